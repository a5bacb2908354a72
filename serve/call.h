/* A call: a client's request to the model and its results, independent of the protocol.
 *
 * A protocol makes a call, fills in the request (struct ask, prompts), and passes it to call_submit. Results arrive as
 * updates: on_update is called whenever the engine has new results, until `is_done`. The functions here run on the
 * loop's thread; a call that was not submitted may be made and freed on any thread. Between submission and updates,
 * tokenizing (long texts on a worker) and the engine (driver.c) run on their own threads. The engine never waits for a
 * client: a call whose client does not read is paused. */
#pragma once

#include "keys.h"

#include "openai/call_request.h"
#include "openai/tools.h"
#include "openai/update.h"

#include "infer/scheduler.h"

struct server;
struct call;

struct call {
    /* The request: */
    struct server *server;
    struct call_request request; /* the seed is drawn when none is given */
    bool is_chat;
    bool only_counts;          /* it ends when its prompts have ids */
    const char *id;            /* of the exchange, for use in answers */
    struct key_holder client;  /* number 0 without a key */
    double deadline;           /* monotonic seconds; 0: the server's default */
    json_t *texts;             /* JSON that holds the request's strings: a reference of the call; NULL: none */
    struct openai_tools tools; /* of a request of gRPC */
    uint64_t turn_owner;       /* for taking turns at the worker for texts: exchange_owner */
    void (*on_update)(struct call *call, const struct call_update *update);
    void *context; /* for the protocol */
    /* The results: */
    uint64_t generations[ASK_MAX_ADAPTERS];
    int64_t *cached;        /* [request.prompt_count] tokens */
    const char *constraint; /* the field that constrains the answers; NULL: none */
    const json_t *ignored;  /* keywords of its constraint that are not enforced; NULL: none */
    struct call_loop *loop; /* call_loop.h */
};

/* Makes a call of a request, which it takes over and leaves empty. NULL: no memory, and the request stays. */
struct call *call_new(struct server *server, struct call_request *request);
/* Passes the call to the engine. on_update is called later, never inside this function; errors come as an update
 * too. */
void call_submit(struct call *call);
/* Pauses the call while its client does not read, and resumes it. */
void call_pause(struct call *call, bool is_paused);
/* Frees the call, and ends it if it still runs; no more updates come. It must not be called inside on_update, except
 * with is_done. A call that still ran is counted as not read (`why` ERROR_SLOW_READER), else as cancelled. */
void call_free(struct call *call, enum error_case why);
