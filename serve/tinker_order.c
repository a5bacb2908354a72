/* Requests of a training run in the order of their numbers. A request has steps, and the next one of the run begins
 * when it is done. So a snapshot has the values at its place in the order. */
#include "tinker-internal.h"

static struct tinker_op *op_of(struct loop_note *note) {
    return (struct tinker_op *)((char *)note - offsetof(struct tinker_op, ask.note));
}

void tinker_op_free(struct tinker_op *op) {
    tinker_data_free(op->data);
    tinker_saved_free(&op->saved);
    adapter_files_free(&op->files);
    strbuf_free(&op->state);
    if (op->described)
        op->described->free(op->described);
    free(op);
}

/* ---- steps ---- */

static void after_ask(struct loop_note *note) {
    struct tinker_op *op = op_of(note);
    op->run->tinker->under_way--;
    op->next(op);
}

void tinker_op_ask(struct tinker_op *op, enum tuning_kind kind, void (*next)(struct tinker_op *op)) {
    op->next = next;
    op->ask.run = op->run->run;
    tinker_ask(op->run->tinker, &op->ask, kind, after_ask);
}

static void after_work(struct worker_job *job) {
    struct tinker_op *op = (struct tinker_op *)((char *)job - offsetof(struct tinker_op, job));
    op->run->tinker->under_way--;
    op->next(op);
}

void tinker_op_work(struct tinker_op *op, void (*work)(struct worker_job *job), void (*next)(struct tinker_op *op)) {
    op->next = next;
    op->job = (struct worker_job){.work = work, .done = after_work};
    error_set(&op->error, ERROR_OVERLOADED, NULL, "too many files wait to be read or written"); /* until it works */
    tinker_work(op->run->tinker, &op->job);
}

/* ---- the end ---- */

static void free_run(struct tinker_run *run) {
    if (run->described)
        run->described->free(run->described);
    json_decref(run->metadata);
    free(run);
}

static void after_close(struct loop_note *note) {
    struct tinker_run *run = (struct tinker_run *)((char *)note - offsetof(struct tinker_run, closing.note));
    run->tinker->under_way--;
    free_run(run);
}

/* Frees a run without a session and without a request under way. */
static void close_run(struct tinker_run *run) {
    if (!run->run) {
        free_run(run);
        return;
    }
    run->closing.run = run->run;
    tinker_ask(run->tinker, &run->closing, TUNING_CLOSE, after_close);
}

void tinker_run_end(struct tinker_run *run) {
    LIST_REMOVE(run, all);
    run->session = NULL;
    for (struct tinker_op *op; (op = TAILQ_FIRST(&run->waiting));) {
        TAILQ_REMOVE(&run->waiting, op, waits);
        run->tinker->waiting--;
        tinker_op_free(op);
    }
    if (!run->op) {
        close_run(run);
        return;
    }
    run->op->future = NULL;
    run->op->ask.is_unwanted = true;
}

/* ---- order ---- */

void tinker_op_wait(struct tinker_run *run, struct tinker_op *op) {
    struct tinker_op *other = TAILQ_LAST(&run->waiting, tinker_ops);
    while (other && other->seq > op->seq)
        other = TAILQ_PREV(other, tinker_ops, waits);
    if (other)
        TAILQ_INSERT_AFTER(&run->waiting, other, op, waits);
    else
        TAILQ_INSERT_HEAD(&run->waiting, op, waits);
    run->tinker->waiting++;
}

void tinker_run_next(struct tinker_run *run) {
    struct tinker_op *op = TAILQ_FIRST(&run->waiting);
    if (run->op || !op || op->seq != run->next)
        return;
    TAILQ_REMOVE(&run->waiting, op, waits);
    run->tinker->waiting--;
    run->next++;
    run->op = op;
    op->begin(op);
}

void tinker_op_end(struct tinker_op *op) {
    struct tinker_run *run = op->run;
    run->op = NULL;
    tinker_op_free(op);
    if (run->session)
        tinker_run_next(run);
    else
        close_run(run);
}

void tinker_op_done(struct tinker_op *op, json_t *object) {
    if (op->future)
        tinker_future_json(op->future, object);
    else
        json_decref(object);
    tinker_op_end(op);
}

void tinker_op_fail(struct tinker_op *op, const struct error *error) {
    if (op->future)
        tinker_future_fail(op->future, error);
    tinker_op_end(op);
}
