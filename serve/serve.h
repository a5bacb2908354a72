/* The server: gRPC and OpenAI-style HTTP in front of an engine.
 *
 * One thread, the loop, has every socket: it frames, checks and queues requests, and writes answers. The engine's
 * thread is the leader of the model's ranks: it takes calls from a queue, owns scheduler and adapters, and alone calls
 * the model. Two workers tokenize long texts and read adapters' files. A client therefore never holds up the engine,
 * and the engine never holds up a client.
 *
 *     server_open         starts the loop before the ranks start; binds addresses, accepts nobody yet
 *     server_run          at the leader: opens adapters and scheduler, accepts, and serves until a signal or a drain
 *     server_close
 *
 * Protocols see the transport through exchange.h, and the engine through call.h. */
#pragma once

#include "http/listen.h"

#include "config/config.h"
#include "infer/adapters.h"
#include "infer/engine.h"
#include "infer/grammars.h"
#include "text/chat.h"

struct serve_name {
    const char *name, *directory;
};

/* Access to /metrics on the data listener: clients with a key if the listener requires one, or anybody. */
enum serve_metrics { SERVE_METRICS_OFF, SERVE_METRICS_KEY, SERVE_METRICS_OPEN };

struct serve_options {
    const char *const *model_names; /* [model_name_count] at least one; answers use the first */
    size_t model_name_count;
    const struct serve_name *adapters; /* [adapter_count] */
    size_t adapter_count;
    const char *adapter_root;     /* NULL: none */
    const char *listen, *control; /* "none": no control listener */
    const char *api_key_file, *control_key_file, *tls_cert, *tls_key;
    struct config_list cors_origins, allowed_hosts; /* allowed_hosts: names of this server besides those of loopback */
    enum serve_metrics metrics_on_data;
    const char *metrics_key_file; /* keys for /metrics only; NULL: the listener's */
    const char *otlp_endpoint;    /* a collector of spans; NULL: none */
    bool has_prefix_cache;
    struct chat_template *chat_template;   /* for messages when the tokenizer has no template; NULL: none */
    double template_timeout;               /* limit for one rendering, in seconds */
    const struct tool_format *tool_format; /* of calls; NULL: as a template writes them */
    bool has_no_reasoning;
    struct grammars_options grammars; /* of constraints */
    int64_t max_queued_requests, max_queued_tokens;
    double prefill_stretch;
    double tuning_share, tuning_slice; /* of a decode step; seconds */
    double request_timeout;            /* 0: none */
    double drain_delay, drain_timeout, rank_timeout;
    bool logs_json;
    struct transport_limits limits;
    const char *tokenizer_id;         /* for Tinker's clients: the directory of the tokenizer; NULL: the model's name */
    const char *tuning_root;          /* NULL: no tuning */
    int64_t tuning_jobs, tuning_disk; /* that run at a time; bytes below the root */
    double tuning_save;               /* seconds between saves of a job */
    const char *const *tuning_words;  /* [tuning_word_count] of `cambium finetune`, in all jobs: the base */
    size_t tuning_word_count;
    const struct jobs_maker *jobs_maker; /* jobs.h */
    int tensor, pipeline;                /* for ServerInfo */
    /* Ends the process with status 1 and this line: a rank hangs, or a second signal came. The loop's thread. */
    void (*end_process)(const char *line);
};

struct server;

/* Checks the options, reads keys and certificates, starts the loop and binds addresses. `options` outlives the server.
 * STATUS_USAGE, STATUS_INVALID, STATUS_NOT_FOUND, STATUS_IO, STATUS_MEMORY. */
int server_open(const struct serve_options *options, struct server **server);
/* Serves until the server has drained; returns 0, or the failure that ended it. The leader calls this after
 * engine_open. `tokenizer` may be NULL. */
int server_run(struct server *server, struct engine *engine, const struct tokenizer *tokenizer,
               const struct tokenizer_files *files);
/* Frees the server. NULL is allowed. */
void server_close(struct server *server);
/* Reports that the engine has failed: the server is no longer ready, and requests fail with UNAVAILABLE. The caller
 * ends the process afterwards. `rank` is the lost rank, or -1 when none is known. Any thread. */
void server_fail(struct server *server, int rank, const char *line);
/* Returns the bytes that the server itself may take, for the printed plan. */
size_t server_planned_bytes(const struct serve_options *options);
