/* The server as its own files see it: what the loop's thread shares. Fields are written by who is named, and read by
 * the loop alone where nothing else is said. */
#ifndef CAMBIUM_SERVE_SERVER_H
#define CAMBIUM_SERVE_SERVER_H

#include "error.h"
#include "http/gathered.h"
#include "serve.h"

#include "base/strbuf.h"

#include <event2/event.h>

/* What answers say of the model; set before anybody is accepted. */
struct server_model {
    const char *name;         /* that answers report */
    const char *const *names; /* [name_count] all that name the base */
    size_t name_count;
    char fingerprint[16]; /* "b" and 12 hex digits of the base's digest */
    int64_t created;      /* seconds of the epoch */
    int64_t max_model_len, vocab;
    struct model_text_ends ends;
    const char *precision;               /* "fp32", "bf16" */
    const struct tokenizer *tokenizer;   /* NULL: none */
    struct prompt_room room;             /* of texts and renderings */
    struct chat_template *chat_template; /* of the base: the tokenizer's, or the option's; NULL: none */
};

enum { SERVER_METRICS_KEYS = LISTENER_COUNT, SERVER_KEYS };

struct server {
    const struct serve_options *options;
    struct event_base *base;
    struct loop *loop;
    struct worker *worker;                              /* for long texts; NULL: nothing is long */
    struct tokenizer_encoder *encoder, *worker_encoder; /* of the loop; of that worker */
    struct gathered gathered;                           /* bodies that were not read yet */
    struct transport *transport;
    struct server_model model;
    struct registry *registry;         /* registry.h: adapters, as the loop knows them */
    struct driver *driver;             /* driver.h: the engine's side */
    struct metrics *metrics;           /* metrics.h */
    struct keys *keys[SERVER_KEYS];    /* of the listeners by their numbers, and of /metrics */
    struct otlp *otlp;                 /* otlp.h; NULL: spans go nowhere */
    bool checks_names[LISTENER_COUNT]; /* requests must call the server by a name that it knows (origin.h) */
    int64_t lost_lines;                /* log.h */
    uint64_t first_id, last_id;        /* of requests: the router's */
    int64_t exchanges;                 /* of the data listener, that are open and will end */
    bool is_ready, has_failed;
    bool is_leaving;  /* told to stop: not ready any more */
    bool is_draining; /* no more work is taken */
    char failure[512];
    struct server_own *own; /* of server.c */
};

/* Whether it serves: a step or an idle beat not long ago, all ranks there, not draining. */
bool server_is_ready(const struct server *server);
/* Takes over what the engine's thread has counted: before the metrics are read. */
void server_count(struct server *server);
/* Stops the server, in three stages. It is not ready any more, at once. For `delay` seconds it still accepts and serves
 * all that comes, while routers notice. Then the data listener closes, no more work is taken, and what runs has
 * `timeout` seconds to end. Negative seconds: the option's. Again: each time may become shorter, and never longer. */
void server_drain(struct server *server, double delay, double timeout);

#endif
