/* The server: gRPC and OpenAI-style HTTP in front of an engine.
 *
 * One thread, the loop, has every socket: it frames, checks and queues requests and writes answers. The engine's
 * thread, the leader of the model's ranks, takes calls from a queue, owns scheduler and adapters, and alone calls the
 * model. Two workers tokenize long texts and read adapters' files. So a client never holds up the engine, nor the
 * engine a client.
 *
 *     server_open         the loop begins, before the ranks start; addresses are bound, nobody is accepted
 *     server_run          at the leader: opens adapters and scheduler, accepts, and serves until it is told to stop
 *     server_close
 *
 * exchange.h is what protocols see of the transport, call.h what they see of the engine. */
#ifndef CAMBIUM_SERVE_SERVE_H
#define CAMBIUM_SERVE_SERVE_H

#include "http/listen.h"

#include "infer/adapters.h"
#include "infer/infer.h"
#include "text/chat.h"

struct serve_name {
    const char *name, *directory;
};

/* The readers of /metrics on the data listener: those with a key where the listener wants one, or anybody. */
enum serve_metrics { SERVE_METRICS_OFF, SERVE_METRICS_KEY, SERVE_METRICS_OPEN };

struct serve_options {
    const char *const *model_names; /* [model_name_count] at least one; the first is what answers report */
    size_t model_name_count;
    const struct serve_name *adapters; /* [adapter_count] */
    size_t adapter_count;
    const char *adapter_root;     /* NULL: none */
    const char *listen, *control; /* "none": no control listener */
    const char *api_key_file, *control_key_file, *tls_cert, *tls_key;
    const char *const *cors_origins; /* [cors_origin_count] */
    size_t cors_origin_count;
    const char *const *allowed_hosts; /* [allowed_host_count] names of this server beside those of loopback */
    size_t allowed_host_count;
    enum serve_metrics metrics_on_data;
    const char *metrics_key_file; /* keys of /metrics alone; NULL: those of the listener */
    const char *otlp_endpoint;    /* of a collector of spans; NULL: none */
    bool has_prefix_cache;
    struct chat_template *chat_template; /* for messages where the tokenizer has none; NULL: none */
    double template_timeout;             /* seconds of one rendering */
    int64_t max_queued_requests, max_queued_tokens;
    double prefill_stretch;
    double request_timeout; /* 0: none */
    double drain_delay, drain_timeout, rank_timeout;
    bool logs_json;
    struct transport_limits limits;
    int tensor, pipeline; /* for ServerInfo */
    /* Ends the process with status 1 and this line: a rank hangs, or a second signal came. The loop's thread. */
    void (*end_process)(const char *line);
};

struct server;

/* Checks what can be checked, reads keys and certificates, starts the loop and binds. `options` outlives the server. */
int server_open(const struct serve_options *options, struct server **server);
/* The leader's, behind engine_open; `tokenizer` may be NULL. Returns when the server was told to stop and has done so,
 * or with the failure that ended it. */
int server_run(struct server *server, struct engine *engine, const struct tokenizer *tokenizer,
               const struct tokenizer_files *files);
void server_close(struct server *server);
/* The engine has failed: readiness goes, requests fail with UNAVAILABLE; the caller ends the process behind it. `rank`
 * is the one that is lost; -1: none, or it is not known. Any thread. */
void server_fail(struct server *server, int rank, const char *line);
/* Bytes that the server itself may take, for the plan that is printed. */
size_t server_planned_bytes(const struct serve_options *options);

#endif
