/* Asks of tuning runs at the engine: in slices between steps, by turns.
 *
 * Serving comes first. While completions decode, each step leaves a share of its time as credit, and a slice runs when
 * the next piece of a run fits into it. Without completions slices fill the time. */
#include "driver-internal.h"

void driver_tune(struct driver *driver, struct tuning_ask *ask) {
    pthread_mutex_lock(&driver->shared.lock);
    STAILQ_INSERT_TAIL(&driver->shared.new_asks, ask, all);
    pthread_cond_signal(&driver->shared.woken);
    pthread_mutex_unlock(&driver->shared.lock);
}

/* ---- turns ---- */

static bool has_earlier(const struct driver *driver, const struct tuning_ask *ask) {
    const struct tuning_ask *other = STAILQ_FIRST(&driver->asks);
    while (other != ask && other->run != ask->run)
        other = STAILQ_NEXT(other, all);
    return other != ask;
}

/* Returns the ask whose turn it is: the first without a run, else the first of the run with the minimum of service. */
static struct tuning_ask *next_ask(const struct driver *driver) {
    struct tuning_ask *next = NULL;
    for (struct tuning_ask *ask = STAILQ_FIRST(&driver->asks); ask; ask = STAILQ_NEXT(ask, all)) {
        if (!ask->run)
            return ask;
        if (!has_earlier(driver, ask) && (!next || tuning_service(ask->run) < tuning_service(next->run)))
            next = ask;
    }
    return next;
}

/* ---- ends ---- */

static void end_ask(struct driver *driver, struct tuning_ask *ask) {
    STAILQ_REMOVE(&driver->asks, ask, tuning_ask, all);
    loop_post(driver->options.loop, &ask->note);
}

/* Sets the error of a status. What a client cannot mend is the engine's failure. */
static void end_with(struct driver *driver, struct tuning_ask *ask, int status) {
    bool is_own = status == STATUS_INVALID || status == STATUS_USAGE || status == STATUS_UNSUPPORTED ||
                  (status == STATUS_MEMORY && ask->kind == TUNING_OPEN);
    ask->status = status;
    if (status)
        error_of_status(&ask->error, is_own ? ERROR_ARGUMENT : ERROR_ENGINE_FAILED, NULL);
    if (status && !is_own)
        driver->status = driver->status ? driver->status : status;
    end_ask(driver, ask);
}

static void end_early(struct driver *driver, struct tuning_ask *ask, enum error_case which, const char *text) {
    int status = ask->is_under_way && !driver->status ? tuning_cancel(ask->run) : STATUS_OK;
    driver->status = driver->status ? driver->status : status;
    error_set(&ask->error, which, NULL, "%s", text);
    end_ask(driver, ask);
}

static void published(struct loop_note *note) {
    struct tuning_ask *ask = (void *)((char *)note - offsetof(struct tuning_ask, publish.note));
    ask->error = ask->publish.error;
    ask->status = ask->publish.status;
    ask->note.run(&ask->note);
}

/* Its change ends it. */
static void publish(struct driver *driver, struct tuning_ask *ask) {
    STAILQ_REMOVE(&driver->asks, ask, tuning_ask, all);
    ask->publish.note.run = published;
    STAILQ_INSERT_TAIL(&driver->changes, &ask->publish, all);
}

/* ---- work ---- */

/* A slice of a pass or an update. Returns whether there was time for one. */
static bool work_on(struct driver *driver, struct tuning_ask *ask, bool has_stepped) {
    struct tuning_spent before = ask->spent;
    bool has_run, is_done;
    if (!ask->is_under_way && ask->kind == TUNING_PASS)
        tuning_begin_pass(ask->run, &ask->pass);
    else if (!ask->is_under_way)
        tuning_begin_update(ask->run, &ask->update);
    ask->is_under_way = true;
    int status = tuning_turn(&driver->turns, ask->run, has_stepped, &ask->spent, &has_run, &is_done);
    driver->tuned.slices += ask->spent.slices - before.slices;
    driver->tuned.seconds += ask->spent.seconds - before.seconds;
    if (is_done)
        end_with(driver, ask, status);
    else
        driver->status = driver->status ? driver->status : status;
    return has_run;
}

static void do_ask(struct driver *driver, struct tuning_ask *ask) {
    switch (ask->kind) {
    case TUNING_OPEN:
        end_with(driver, ask, tuning_open(driver->options.engine, &ask->open, &ask->run));
        return;
    case TUNING_SNAPSHOT:
        end_with(driver, ask, tuning_take_snapshot(ask->run, &ask->snapshot));
        return;
    case TUNING_PUBLISH:
        publish(driver, ask);
        return;
    case TUNING_CLOSE:
        end_with(driver, ask, tuning_close(ask->run));
        return;
    case TUNING_PASS:
    case TUNING_UPDATE:
        return;
    }
}

bool driver_tune_on(struct driver *driver, bool has_stepped, bool must_end) {
    struct tuning_ask *ask = next_ask(driver);
    if (!ask)
        return false;
    bool is_work = ask->kind == TUNING_PASS || ask->kind == TUNING_UPDATE;
    if (driver->status)
        end_early(driver, ask, ERROR_ENGINE_FAILED, "the engine has failed");
    else if (atomic_load(&ask->is_unwanted) && ask->kind != TUNING_CLOSE &&
             !(ask->is_under_way && ask->kind == TUNING_UPDATE))
        end_early(driver, ask, ERROR_CANCELLED, "cancelled");
    else if (must_end && (is_work || ask->kind == TUNING_OPEN))
        end_early(driver, ask, ERROR_DRAINING, "the server is stopping");
    else if (!is_work)
        do_ask(driver, ask);
    else
        return work_on(driver, ask, has_stepped);
    return true;
}
