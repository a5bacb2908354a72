/* The server as its core files see it: data shared on the loop's thread. A comment names another thread that writes a
 * field. Only the loop reads it unless stated otherwise. */
#pragma once

#include "http/gathered.h"
#include "http/rates.h"
#include "serve.h"

#include "openai/error.h"
#include "openai/model.h"

#include "base/strbuf.h"

#include <event2/event.h>

enum { SERVER_METRICS_KEYS = LISTENER_COUNT, SERVER_KEYS };

struct server {
    const struct serve_options *options;
    struct event_base *base;
    struct loop *loop;
    struct worker *worker;                              /* for long texts; NULL: nothing counts as long */
    struct tokenizer_encoder *encoder, *worker_encoder; /* for the loop; for that worker */
    struct gathered gathered;                           /* bodies that handlers have not read yet */
    struct transport *transport;
    struct openai_model model;             /* set before anybody is accepted */
    struct registry *registry;             /* adapters: registry.h */
    struct driver *driver;                 /* the engine's side: driver.h */
    struct jobs *jobs;                     /* tuning: jobs.h; NULL: there is no --tuning-root */
    struct metrics *metrics;               /* metrics.h */
    struct keys *keys[SERVER_KEYS];        /* of the listeners by their numbers, and of /metrics */
    struct otlp *otlp;                     /* spans: otlp.h; NULL: none are sent */
    struct tinker *tinker;                 /* Tinker's API: tinker.h; NULL: it is off */
    struct grammars *grammars;             /* of constraints; NULL: the model has no tokenizer */
    struct grammar_vocabulary *vocabulary; /* of the tokenizer */
    bool checks_names[LISTENER_COUNT];     /* the Host of requests must be a known name (origin.h) */
    int64_t lost_lines;                    /* log.h */
    struct rates log_rates;                /* lines of the log about each client */
    uint64_t first_id, last_id;            /* of requests; the router's */
    int64_t exchanges;                     /* open ones of the data listener that will end */
    bool is_ready, has_failed;
    bool is_leaving;  /* is stopping: not ready any more */
    bool is_draining; /* takes no more work */
    char failure[512];
    struct server_core *core; /* server-internal.h */
};

/* True when the server serves: a step or an idle beat not long ago, all ranks present, not draining. */
bool server_is_ready(const struct server *server);
/* Takes over the engine's counts, before the metrics are read. */
void server_count(struct server *server);
/* Stops the server in three stages. At once it is no longer ready. For `delay` seconds it still accepts and serves
 * everything, while routers notice. Then the data listener closes, no more work is taken, and running work gets
 * `timeout` seconds. Negative seconds mean the option's. A further call can only shorten these times. */
void server_drain(struct server *server, double delay, double timeout);
