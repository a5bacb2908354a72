/* The inside of Tinker's API, shared by tinker*.c. */
#pragma once

#include "loop.h"
#include "route.h"
#include "tinker.h"
#include "tinker_answer.h"
#include "tinker_data.h"
#include "tuning.h"

#include <sys/queue.h>

enum {
    TINKER_BUCKETS = 1024,
    TINKER_NAME_BYTES = 129, /* of saved weights */
    TINKER_PATH_BYTES = 400,
    TINKER_WAITING = 4096 /* requests that may wait for their turn */
};

struct tinker {
    struct tinker_options options; /* its root is: */
    char root[PATH_MAX];
    struct server *server;
    LIST_HEAD(, tinker_session) sessions;
    LIST_HEAD(tinker_bucket, tinker_future) futures[TINKER_BUCKETS]; /* by the digest of their ids */
    LIST_HEAD(tinker_waiters, tinker_waiter) waiters;
    int64_t under_way; /* asks, changes and jobs of files */
    int64_t waiting;   /* requests of runs that wait for their turn */
};

/* A client's session. Everything of it ends with it. */
struct tinker_session {
    LIST_ENTRY(tinker_session) all;
    struct tinker *tinker;
    char id[33];
    uint64_t client;
    double weight;
    char owner[KEYS_NAME_BYTES + 1]; /* the name of its key; "": there are no keys */
    double heard;                    /* when it last sent anything */
    LIST_HEAD(, tinker_run) runs;
    LIST_HEAD(, tinker_sampler) samplers;
    LIST_HEAD(, tinker_future) futures;
};

/* ---- tinker.c ---- */

/* Takes a body. Returns false with *error when the request fails before there is a future. */
typedef bool tinker_take(struct exchange *exchange, const json_t *root, struct error *error);
tinker_take tinker_take_create, tinker_take_load, tinker_take_update, tinker_take_save, tinker_take_save_sampler,
    tinker_take_unload, tinker_take_info;             /* tinker_run.c */
tinker_take tinker_take_retrieve, tinker_take_cancel; /* tinker_future.c */
tinker_take tinker_take_sampler, tinker_take_sample;  /* tinker_sampler.c, tinker_sample.c */
tinker_take tinker_take_weights_info;                 /* tinker_rest.c */

/* ---- tinker_session.c ---- */

/* Finds a session of the exchange's client, and notes that it lives. NULL with *error. */
struct tinker_session *tinker_session_of(struct exchange *exchange, const char *id, struct error *error);
/* True when it belongs to the exchange's client. */
bool tinker_is_owner(const struct tinker_session *session, const struct exchange *exchange);
/* Sends a job to the worker. Without room its `done` is called with nothing done, and false is returned. */
bool tinker_work(struct tinker *tinker, struct worker_job *job);
/* Passes an ask to the engine. */
void tinker_ask(struct tinker *tinker, struct tuning_ask *ask, enum tuning_kind kind, void (*run)(struct loop_note *));

/* ---- tinker_future.c ---- */

struct tinker_sample;
struct tinker_future {
    LIST_ENTRY(tinker_future) bucket, of_session;
    struct tinker_session *session;
    char id[TINKER_PATH_BYTES], model_id[TINKER_ID_BYTES];
    bool is_done, is_fetched, is_protobuf;
    double since;                                 /* it was last fetched */
    struct strbuf result;                         /* when it is done */
    struct error error;                           /* or why it has failed */
    struct tinker_sample *sample;                 /* under way; NULL: none */
    void (*cancel)(struct tinker_sample *sample); /* ends it; nobody waits for it */
};

/* A fetch that waits. */
struct tinker_waiter {
    LIST_ENTRY(tinker_waiter) all;
    struct exchange *exchange;
    struct tinker_future *future;
    double until;
};

/* Makes a future of a session. NULL: no memory. */
struct tinker_future *tinker_future_new(struct tinker_session *session, const char *id, const char *model_id);
/* Finds a future of the exchange's client; NULL: there is none. */
struct tinker_future *tinker_future_find(struct exchange *exchange, const char *id);
/* Answers with its number. */
void tinker_future_answer(struct exchange *exchange, const struct tinker_future *future);
/* The future is done, with an object, which is released; NULL: no memory. */
void tinker_future_json(struct tinker_future *future, json_t *object);
/* The same with a message of protobuf, which is taken over. */
void tinker_future_message(struct tinker_future *future, struct strbuf *message);
void tinker_future_fail(struct tinker_future *future, const struct error *error);
void tinker_future_free(struct tinker_future *future);
/* Answers fetches that were held long enough, and frees results that were fetched long ago. `is_end`: all. */
void tinker_futures_tick(struct tinker *tinker, double now, bool is_end);

/* ---- tinker_files.c: any thread ---- */

/* The facts of saved weights, in their file tinker.json. */
struct tinker_saved {
    char run[TINKER_ID_BYTES], name[TINKER_NAME_BYTES], base[256], owner[KEYS_NAME_BYTES + 1];
    bool is_sampler; /* of sampler_weights: without the optimizer's state */
    struct tinker_shape shape;
    int64_t updates, bytes;
    double created, expires; /* seconds since 1970; expires 0: never */
    json_t *metadata;        /* NULL: none */
};
void tinker_saved_free(struct tinker_saved *saved);
/* Splits tinker://RUN/weights/NAME or tinker://RUN/sampler_weights/NAME into run, name and is_sampler. */
bool tinker_parse_path(const char *path, struct tinker_saved *saved);
/* True for a name of saved weights: letters, digits and ._- without a leading dot. */
bool tinker_name_is_valid(const char *name);
/* Writes the directory of saved weights. STATUS_INVALID when it is too long. */
int tinker_directory(const char *root, const struct tinker_saved *saved, char path[PATH_MAX]);
/* Writes weights; the directory appears whole. `state` NULL: none. STATUS_INVALID when it is there and may not be
 * replaced; STATUS_IO, STATUS_MEMORY. */
int tinker_write(const char *directory, const struct tinker_saved *saved, const struct adapter_files *files,
                 const struct strbuf *state, bool overwrites);
/* Writes files of an adapter for the time of a session. */
int tinker_write_plain(const char *directory, const struct adapter_files *files);
/* Reads the facts of saved weights of this owner. STATUS_NOT_FOUND when there are none, or another's. */
int tinker_read(const char *directory, const char *owner, struct tinker_saved *saved);
/* Reads an adapter's files of a directory. */
int tinker_read_files(const char *directory, struct adapter_files *files);
/* Reads the state of the optimizer. STATUS_NOT_FOUND when there is none. */
int tinker_read_state(const char *directory, struct strbuf *state);

/* ---- tinker_run.c ---- */

enum tinker_kind {
    TINKER_CREATE,
    TINKER_LOAD,
    TINKER_PASS,
    TINKER_UPDATE,
    TINKER_SAVE,
    TINKER_SAVE_SAMPLER,
    TINKER_UNLOAD
};

/* A request of a run. Its steps follow one another on the loop: asks of the engine, and jobs of the worker. */
struct tinker_op {
    struct tuning_ask ask; /* the first */
    struct worker_job job;
    TAILQ_ENTRY(tinker_op) waits;
    enum tinker_kind kind;
    int64_t seq;
    struct tinker_run *run;
    struct tinker_future *future;        /* NULL: nobody waits for it */
    struct error error;                  /* it fails with this when its turn comes */
    void (*begin)(struct tinker_op *op); /* its first step */
    void (*next)(struct tinker_op *op);
    struct tinker_data *data; /* of a pass */
    /* For saving and loading: */
    struct tinker_saved saved;
    char directory[PATH_MAX];
    bool overwrites, wants_state, is_inflight;
    int64_t sampler_seq; /* of a snapshot; -1: the weights get a name */
    int64_t longest;
    struct tinker_described *described;
    struct adapter_files files;
    struct strbuf state;
};

struct tinker_run {
    LIST_ENTRY(tinker_run) all;
    struct tinker *tinker;
    struct tinker_session *session; /* NULL: it has ended */
    char id[TINKER_ID_BYTES], owner[KEYS_NAME_BYTES + 1];
    int64_t weight;
    struct tinker_shape shape;
    json_t *metadata;
    int64_t next;                              /* the number whose turn it is */
    TAILQ_HEAD(tinker_ops, tinker_op) waiting; /* by number */
    struct tinker_op *op;                      /* under way */
    struct tuning_run *run;                    /* NULL: not opened, or unloaded */
    struct tinker_described *described;        /* of `run` */
    int64_t longest, updates, snapshots;
    bool has_gradients;
    struct tuning_ask closing;
};

/* Finds a run of the exchange's client. NULL with *error. */
struct tinker_run *tinker_run_of(struct exchange *exchange, const char *id, struct error *error);
/* Takes a pass of a run. */
bool tinker_take_pass(struct exchange *exchange, struct tinker_data *data, struct error *error);

/* ---- tinker_order.c ---- */

/* Ends a run when its session ends. */
void tinker_run_end(struct tinker_run *run);
/* Lets a request wait for its turn. */
void tinker_op_wait(struct tinker_run *run, struct tinker_op *op);
/* Begins the next request of a run, if its turn has come. */
void tinker_run_next(struct tinker_run *run);
/* Frees a request that does not wait. */
void tinker_op_free(struct tinker_op *op);
/* Ends a request, whose future has its result. */
void tinker_op_end(struct tinker_op *op);
/* Steps of a request. */
void tinker_op_ask(struct tinker_op *op, enum tuning_kind kind, void (*next)(struct tinker_op *op));
void tinker_op_work(struct tinker_op *op, void (*work)(struct worker_job *job), void (*next)(struct tinker_op *op));
/* The request is done, with an object, or has failed. */
void tinker_op_done(struct tinker_op *op, json_t *object);
void tinker_op_fail(struct tinker_op *op, const struct error *error);

/* ---- tinker_save.c ---- */

/* The first steps of its requests. */
void tinker_begin_open(struct tinker_op *op);
void tinker_begin_save(struct tinker_op *op);
/* Unloads the adapters of the run's snapshots, and removes their files. */
void tinker_forget_snapshots(struct tinker_run *run);

/* ---- tinker_sampler.c ---- */

struct tinker_sampler {
    LIST_ENTRY(tinker_sampler) all;
    char id[TINKER_ID_BYTES], adapter[ADAPTER_NAME_BYTES], path[TINKER_PATH_BYTES];
};

/* Makes a sampler of a session, of an adapter or (NULL) of the base. NULL: no memory. */
struct tinker_sampler *tinker_sampler_new(struct tinker_session *session, int64_t number, const char *adapter,
                                          const char *path);
/* Finds a sampler of the exchange's client. NULL with *error. */
struct tinker_sampler *tinker_sampler_of(struct exchange *exchange, const char *id, struct error *error);
void tinker_sampler_free(struct tinker_sampler *sampler);
