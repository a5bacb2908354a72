/* What server.c has, and the files that stand closest to it. The loop's thread, but for what the engine's sets up
 * before anybody is accepted. */
#ifndef CAMBIUM_SERVE_SERVER_INTERNAL_H
#define CAMBIUM_SERVE_SERVER_INTERNAL_H

#include "driver.h"
#include "keys.h"
#include "loop.h"
#include "server.h"

#include "text/prompt.h"

#include <stdatomic.h>

struct server_own {
    struct server *server;
    struct worker *file_worker;
    struct driver *driver;     /* before the loop has it */
    struct adapters *adapters; /* the engine's thread's */
    struct queue *queue;       /* places for texts of calls that are not done */
    struct queue *token_queue; /* and for tokens of prompts that wait; NULL: any number */
    int64_t calls;
    struct call_own *first_call; /* all that are not freed */
    struct event *tick, *delay_timer, *drain_timer, *on_term, *on_int, *on_hup;
    double last_tick;
    uint64_t progress;     /* of the driver at the last tick */
    int still, hang_ticks; /* ticks since it changed; since that was noticed */
    struct engine *engine; /* for its ranks' signs of life */
    struct rank_signs {
        uint64_t count;
        int silent; /* ticks since it changed */
    } * ranks;      /* [tensor * pipeline]; there before the loop has the driver */
    struct strbuf hang_line;
    struct worker_job trimming;
    atomic_bool is_trimming; /* that job is under way */
    double last_trim;
    int stops;      /* signals */
    bool is_ending; /* the engine has ended; answers go out, for so many ticks more: */
    int grace;
    double delay_end, drain_timeout; /* while it is leaving */
    double drain_deadline, end_time;
    struct loop_note begin_note, end_note;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool has_ended; /* under the lock: the loop has let go */
};

/* registry.c: lists what the options name, before anybody is accepted; the engine's thread. */
int registry_open(struct server *server, struct adapters *adapters, struct registry **registry);
void registry_close(struct registry *registry);
/* Begins to check the adapters below the root, one after the other; a line names those that will be refused. */
void registry_begin_checks(struct server *server);
/* For driver_options. */
void registry_take(struct server *server, struct driver_adapters *adapters);
void registry_bring(struct server *server, const char *name);
/* A call that names these adapters waits, runs, or has ended: by how much the counts change. */
void registry_count(struct server *server, const char *name, int64_t running, int64_t waiting);
/* Whoever waits for a change is told this, whatever becomes of it. */
void registry_fail_all(struct server *server, const struct error *error);
/* Changes that are under way. */
int64_t registry_changes(const struct server *server);

#endif
