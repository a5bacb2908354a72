/* The engine's thread: takes commands, steps, publishes results, sleeps. */
#include "driver-internal.h"

#include "infer/images.h"
#include "infer/sequences.h"

#include <errno.h>

static const double beat_seconds = 0.25; /* how often an idle thread shows that it lives */

int driver_open(const struct driver_options *options, struct driver **out) {
    pthread_condattr_t clock;
    const struct serve_options *serve = options->server->options;
    struct driver *driver = *out = calloc(1, sizeof *driver);
    TRY(status_allocated(driver));
    driver->options = *options;
    STAILQ_INIT(&driver->shared.commands);
    STAILQ_INIT(&driver->shared.new_changes);
    STAILQ_INIT(&driver->changes);
    STAILQ_INIT(&driver->shared.new_asks);
    STAILQ_INIT(&driver->asks);
    TAILQ_INIT(&driver->waiting);
    pthread_mutex_init(&driver->shared.lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&driver->shared.woken, &clock);
    pthread_condattr_destroy(&clock);
    struct scheduler_options scheduler = {.prefill_stretch = serve->prefill_stretch,
                                          .slice_share = serve->tuning_share,
                                          .slice_seconds = serve->tuning_slice};
    grammars_schedule(options->server->grammars, options->server->vocabulary, &scheduler);
    int status = engine_open_scheduler(options->engine, &scheduler, &driver->scheduler);
    driver->turns.scheduler = driver->scheduler;
    if (status) {
        driver_close(driver);
        *out = NULL;
    }
    return status;
}

void driver_close(struct driver *driver) {
    if (!driver)
        return;
    scheduler_close(driver->scheduler);
    pthread_mutex_destroy(&driver->shared.lock);
    pthread_cond_destroy(&driver->shared.woken);
    free(driver);
}

/* ---- commands ---- */

void driver_tell(struct driver *driver, struct call_shared *shared, unsigned commands) {
    pthread_mutex_lock(&driver->shared.lock);
    if (shared->is_over) {
        pthread_mutex_unlock(&driver->shared.lock);
        return;
    }
    if (commands & (CALL_PAUSE | CALL_RESUME))
        shared->commands &= ~(unsigned)(CALL_PAUSE | CALL_RESUME); /* the last one counts */
    shared->commands |= commands;
    if (!shared->is_listed) {
        shared->is_listed = true;
        STAILQ_INSERT_TAIL(&driver->shared.commands, shared, commanded);
    }
    pthread_cond_signal(&driver->shared.woken);
    pthread_mutex_unlock(&driver->shared.lock);
}

void driver_change(struct driver *driver, struct driver_change *change) {
    pthread_mutex_lock(&driver->shared.lock);
    STAILQ_INSERT_TAIL(&driver->shared.new_changes, change, all);
    pthread_cond_signal(&driver->shared.woken);
    pthread_mutex_unlock(&driver->shared.lock);
}

void driver_know(struct driver *driver, struct driver_name *name) {
    pthread_mutex_lock(&driver->shared.lock);
    name->next = driver->shared.new_names;
    driver->shared.new_names = name;
    pthread_cond_signal(&driver->shared.woken);
    pthread_mutex_unlock(&driver->shared.lock);
}

void driver_end(struct driver *driver) {
    pthread_mutex_lock(&driver->shared.lock);
    driver->shared.must_end = true;
    pthread_cond_signal(&driver->shared.woken);
    pthread_mutex_unlock(&driver->shared.lock);
}

/* Takes the loop's commands. Sets must_end when the driver must end and had no commands. */
static void take_commands(struct driver *driver, bool *must_end) {
    struct driver_commands taken = STAILQ_HEAD_INITIALIZER(taken);
    pthread_mutex_lock(&driver->shared.lock);
    STAILQ_CONCAT(&taken, &driver->shared.commands);
    STAILQ_CONCAT(&driver->changes, &driver->shared.new_changes);
    STAILQ_CONCAT(&driver->asks, &driver->shared.new_asks);
    *must_end = driver->shared.must_end && STAILQ_EMPTY(&taken);
    struct driver_name *names = driver->shared.new_names;
    driver->shared.new_names = NULL;
    pthread_mutex_unlock(&driver->shared.lock);
    driver_take_names(driver, names);
    for (struct call_shared *shared; (shared = STAILQ_FIRST(&taken));) {
        pthread_mutex_lock(&driver->shared.lock);
        unsigned commands = shared->commands;
        STAILQ_REMOVE_HEAD(&taken, commanded);
        shared->commands = 0;
        shared->is_listed = false;
        pthread_mutex_unlock(&driver->shared.lock);
        driver_do(driver, shared->engine, commands);
    }
}

/* ---- updates ---- */

/* After its last update the loop may free a call, whatever commands it has given since. Under the lock. */
static void forget_commands(struct driver *driver, struct call_shared *shared) {
    shared->is_over = true;
    if (shared->is_listed)
        STAILQ_REMOVE(&driver->shared.commands, shared, call_shared, commanded);
    shared->is_listed = false;
}

bool driver_withdraw(struct driver *driver, struct call_shared *shared) {
    pthread_mutex_lock(&driver->shared.lock);
    const struct call_shared *listed = STAILQ_FIRST(&driver->shared.commands); /* not among those being taken */
    while (listed && listed != shared)
        listed = STAILQ_NEXT(listed, commanded);
    bool is_new = listed && shared->commands & CALL_SUBMIT;
    if (is_new)
        forget_commands(driver, shared);
    pthread_mutex_unlock(&driver->shared.lock);
    return is_new;
}

void driver_take_back(struct driver *driver, struct call_shared *shared) {
    pthread_mutex_lock(&driver->shared.lock);
    shared->is_over = false;
    pthread_mutex_unlock(&driver->shared.lock);
}

/* Exchanges the update in making with the published one, if the loop has taken that. Returns whether it has. */
static bool publish(struct driver *driver, struct call_engine *self) {
    struct call_shared *shared = self->shared;
    pthread_mutex_lock(&driver->shared.lock);
    bool can_go = !shared->is_posted;
    if (can_go) {
        struct call_update *update = shared->published;
        shared->published = self->making;
        self->making = update;
        shared->is_posted = true;
        if (shared->published->is_done)
            forget_commands(driver, shared);
    }
    pthread_mutex_unlock(&driver->shared.lock);
    return can_go;
}

/* Publishes updates. While the loop has not taken a call's previous update, the next one stays in `making`. */
static void publish_calls(struct driver *driver) {
    struct call_engine *self = driver->changed;
    struct loop_note *notes = NULL, **last = &notes;
    driver->changed = NULL;
    pthread_mutex_lock(&driver->shared.lock);
    driver->shared.has_taken = false;
    pthread_mutex_unlock(&driver->shared.lock);
    for (struct call_engine *next; self; self = next) {
        next = self->next_changed;
        self->is_changed = false;
        if (publish(driver, self)) {
            *last = &self->shared->note;
            last = &self->shared->note.next;
        } else {
            driver_note(driver, self);
        }
    }
    *last = NULL;
    if (notes) /* the calls may be freed after this */
        loop_post_all(driver->options.loop, notes, last);
    pthread_mutex_lock(&driver->shared.lock);
    driver->shared.has_more = driver->changed != NULL;
    pthread_mutex_unlock(&driver->shared.lock);
}

struct call_update *driver_take_update(struct driver *driver, struct call_shared *shared, struct call_update *read) {
    pthread_mutex_lock(&driver->shared.lock);
    struct call_update *update = shared->published;
    shared->published = read;
    shared->is_posted = false;
    driver->shared.has_taken = true;
    if (driver->shared.has_more)
        pthread_cond_signal(&driver->shared.woken);
    pthread_mutex_unlock(&driver->shared.lock);
    return update;
}

static void publish_stats(struct driver *driver) {
    struct engine *engine = driver->options.engine;
    struct driver_stats stats = {.pages = engine_pages(engine),
                                 .pages_free = engine_pages_available(engine),
                                 .adapter_bytes = engine_adapter_bytes(engine),
                                 .tuning = driver->tuned,
                                 .tuning_bytes = tuning_bytes(engine)};
    for (const struct call_engine *self = TAILQ_FIRST(&driver->waiting); self; self = TAILQ_NEXT(self, waits))
        stats.deferred += self->call->request.prompt_count * self->call->request.ask.choices;
    scheduler_read_stats(driver->scheduler, &stats.scheduler);
    memcpy(stats.receipts, adapters_receipts(driver->options.adapters), sizeof stats.receipts);
    pthread_mutex_lock(&driver->shared.lock);
    int64_t rows = stats.scheduler.prefill_rows - driver->shared.stats.scheduler.prefill_rows;
    if (rows + driver->drawn)
        metrics_count_step(&driver->shared.steps, rows + driver->drawn);
    driver->shared.stats = stats;
    pthread_mutex_unlock(&driver->shared.lock);
    driver->drawn = 0;
}

void driver_read_stats(struct driver *driver, struct driver_stats *stats) {
    pthread_mutex_lock(&driver->shared.lock);
    *stats = driver->shared.stats;
    pthread_mutex_unlock(&driver->shared.lock);
}

void driver_take_steps(struct driver *driver, struct metrics_steps *steps) {
    pthread_mutex_lock(&driver->shared.lock);
    *steps = driver->shared.steps;
    driver->shared.steps = (struct metrics_steps){0};
    pthread_mutex_unlock(&driver->shared.lock);
}

uint64_t driver_progress(const struct driver *driver) {
    return atomic_load(&driver->progress);
}

/* ---- the thread ---- */

/* Sleeps until a command arrives, a deadline passes or a beat is due. */
static void sleep_until_woken(struct driver *driver) {
    double now = clock_seconds(), wait = beat_seconds, deadline = scheduler_next_deadline(driver->scheduler);
    struct timespec until;
    if (deadline > 0 && deadline - now < wait)
        wait = deadline > now ? deadline - now : 0;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t nanoseconds = until.tv_nsec + (int64_t)(wait * 1e9);
    until.tv_sec += (time_t)(nanoseconds / 1000000000);
    until.tv_nsec = nanoseconds % 1000000000;
    pthread_mutex_lock(&driver->shared.lock);
    while (STAILQ_EMPTY(&driver->shared.commands) && STAILQ_EMPTY(&driver->shared.new_changes) &&
           STAILQ_EMPTY(&driver->shared.new_asks) && !driver->shared.new_names &&
           !(driver->shared.must_end && !driver->calls) && !(driver->shared.has_more && driver->shared.has_taken))
        if (pthread_cond_timedwait(&driver->shared.woken, &driver->shared.lock, &until) == ETIMEDOUT)
            break;
    pthread_mutex_unlock(&driver->shared.lock);
}

int driver_run(struct driver *driver) {
    for (;;) {
        bool must_end;
        take_commands(driver, &must_end);
        driver_retry(driver);
        int stepped = driver->calls ? scheduler_step(driver->scheduler) : 0;
        driver_settle(driver);
        bool is_busy = driver_continue(driver);
        if (stepped < 0 || driver->status) {
            driver->status = driver->status ? driver->status : stepped;
            driver_fail_all(driver);
            driver_settle(driver);
        }
        publish_stats(driver);
        publish_calls(driver);
        driver_publish_adapters(driver);
        is_busy |= driver_tune_on(driver, stepped > 0, must_end);
        atomic_fetch_add(&driver->progress, 1);
        while (driver->status && driver_tune_on(driver, false, true))
            continue;
        if (driver->status)
            return driver->status;
        if (must_end && !driver->calls && STAILQ_EMPTY(&driver->changes) && STAILQ_EMPTY(&driver->asks) &&
            !driver->changed)
            return STATUS_OK;
        if (!stepped && !is_busy)
            sleep_until_woken(driver);
    }
}
