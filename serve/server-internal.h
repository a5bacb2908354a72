/* The data of server.c and the files closest to it. The loop's thread owns it; the engine's thread sets it up before
 * connections are accepted. */
#pragma once

#include "driver.h"
#include "keys.h"
#include "loop.h"
#include "server.h"

#include "text/prompt.h"

#include <stdatomic.h>
#include <sys/queue.h>

#define SERVER_TICK_SECONDS 0.25

struct server_core {
    struct server *server;
    struct worker *file_worker;
    struct driver *driver;     /* until it is passed to the loop */
    struct adapters *adapters; /* for the engine's thread */
    struct queue *queue;       /* places for the completions of calls that are not done */
    struct queue *token_queue; /* the same for tokens of waiting prompts; NULL: no limit */
    int64_t calls;
    LIST_HEAD(, call_loop) all_calls;
    struct event *tick, *delay_timer, *drain_timer, *on_term, *on_int, *on_hup;
    double last_tick;
    uint64_t progress;     /* the driver's at the last tick */
    int still, hang_ticks; /* ticks without a change; ticks since that was noticed */
    struct engine *engine; /* whose ranks are watched for signs of life */
    struct rank_signs {
        uint64_t count;
        int silent; /* ticks without a change */
    } * ranks;      /* [tensor * pipeline]; set before the loop has the driver */
    struct strbuf hang_line;
    struct worker_job trimming;
    atomic_bool is_trimming; /* the job `trimming` is in progress */
    double last_trim;
    int stops;      /* number of signals so far */
    bool is_ending; /* the engine has ended; answers are still sent for `grace` ticks: */
    int grace;
    double delay_end, drain_timeout; /* while the server is leaving */
    double drain_deadline, end_time;
    struct loop_note begin_note, end_note;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool has_ended; /* under the lock: the loop has finished */
};

/* Ends the driver when a drain has no more calls to wait for: server_state.c. */
void server_end_if_idle(struct server *server);
/* Callbacks of the drain's timers: at the end of its delay, and at the end of its timeout, which stops running
 * calls. */
ON_EVENT(server_on_delay_over);
ON_EVENT(server_give_up);

/* In registry.c: lists the adapters that the options name, before anybody is accepted. The engine's thread.
 * STATUS_MEMORY and the errors of the adapters' files. */
int registry_open(struct server *server, struct adapters *adapters, struct registry **registry);
void registry_close(struct registry *registry);
/* Begins to check the adapters below the root, one after the other. A log line names those that will be refused. */
void registry_begin_checks(struct server *server);
/* For driver_options. */
void registry_take(struct server *server, struct driver_adapters *adapters);
void registry_bring(struct server *server, const char *name);
/* Changes the counts of a call that names these adapters and waits, runs, or has ended. */
void registry_count(struct server *server, const char *name, int64_t running, int64_t waiting);
/* Gives everybody who waits for a change this error, whatever becomes of the change. */
void registry_fail_all(struct server *server, const struct error *error);
/* Returns the number of changes in progress. */
int64_t registry_changes(const struct server *server);
