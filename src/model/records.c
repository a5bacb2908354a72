/* A step of inference, and the decode steps that are recorded once and replayed: one for each power of two of rows.
 *
 * A record has the operations of a step, with the addresses of their arguments. Whatever differs from step to step is
 * therefore read from device memory: the arrays of the upload, which lie at the same places, the page table and the
 * cache. A step of fewer rows is padded. A record begins after the upload and ends before the results are fetched. */
#include "model-internal.h"

static const struct hook_upload *hooks_of(const struct model *model) {
    const struct hook_table *hooks = model->options.hooks;
    return hooks && hooks->upload.bytes ? &hooks->upload : NULL;
}

/* Returns the smallest record that can run the step, or NULL. Phases are measured operation by operation, so a measured
 * step has none. */
static const struct step_record *find_record(const struct model *model, const struct model_step *step) {
    const struct hook_upload *hooks = hooks_of(model);
    int level = hooks ? hooks->level(hooks->self) : 0;
    bool is_decode = step->logit_rows == step->rows && step->sample && !step->labels;
    if (!is_decode || model->rank->timer.is_on)
        return NULL;
    for (int i = 0; i < model->record_count; i++) {
        const struct step_record *record = &model->records[i];
        if (step->rows <= record->rows && step->page_change_count <= record->rows && record->level == level)
            return record;
    }
    return NULL;
}

/* A step of padding only, as a record has it: it draws, and reports the likeliest tokens. */
static struct model_step padding_of(const struct step_record *record, const struct sample_row *rows) {
    return (struct model_step){.rows = record->rows, .logit_rows = record->rows, .sample = rows, .has_top = true};
}

/* Runs the step before it is recorded: libraries choose and load what they need. */
static int run_once(struct model *model, const struct model_kv *kv, struct step_record *record) {
    static const struct sample_row unread;
    const struct model_step padding = padding_of(record, &unread);
    int status = step_run(model, kv, &padding);
    return status ? status : stream_wait(model->rank->exec.stream);
}

static int record_once(struct model *model, const struct model_kv *kv, struct step_record *record) {
    struct stream *stream = model->rank->exec.stream;
    static const struct sample_row unread;
    const struct model_step padding = padding_of(record, &unread);
    TRY(stream_record_begin(stream));
    int status = step_run(model, kv, &padding);
    int ended = stream_record_end(stream, &record->recording);
    return status ? status : ended;
}

/* Does it to the record's step, with its hooks. */
static int do_once(struct model *model, const struct model_kv *kv, struct step_record *record,
                   int (*what)(struct model *model, const struct model_kv *kv, struct step_record *record)) {
    static const struct sample_row unread;
    const struct hook_upload *hooks = hooks_of(model);
    const struct model_step none = {.sample = &unread, .has_top = true};
    TRY(step_upload(model, &none, record));
    if (record->level)
        hooks->act_by_row(hooks->self, record->level, record->rows);
    int status = what(model, kv, record);
    if (record->level)
        hooks->act_by_row(hooks->self, 0, 0);
    return status;
}

static int add_record(struct model *model, const struct model_kv *kv, int64_t rows, int level) {
    struct step_record *record = &model->records[model->record_count];
    *record = (struct step_record){.rows = rows, .level = level};
    int status = do_once(model, kv, record, record_once);
    model->record_count += record->recording != NULL;
    return status;
}

static int record_rows(struct model *model, const struct model_kv *kv, int64_t rows) {
    struct step_record bare = {.rows = rows}, hooked = {.rows = rows, .level = HOOK_LEVEL_EACH};
    int levels = hooks_of(model) ? hooks_of(model)->levels : 0;
    int status = do_once(model, kv, &bare, run_once);
    if (!status && levels)
        status = do_once(model, kv, &hooked, run_once);
    for (int level = 0; level <= levels && !status; level++)
        status = add_record(model, kv, rows, level);
    return status;
}

int model_record_steps(struct model *model, const struct model_kv *kv, int *count) {
    const struct model_inference *o = &model->options.infer;
    int64_t most = o->max_sequences < o->max_logit_rows ? o->max_sequences : o->max_logit_rows;
    most = most < model->options.max_rows ? most : model->options.max_rows;
    int status = STATUS_OK;
    for (int64_t rows = 1, last = 0; last < most && !status; rows *= 2) {
        last = rows < most ? rows : most;
        status = record_rows(model, kv, last);
    }
    *count = model->record_count;
    return status ? status : stream_wait(model->rank->exec.stream);
}

static int replay(struct model *model, const struct step_record *record, int64_t asked) {
    model->replays.steps++;
    model->replays.rows += record->rows;
    model->replays.asked += asked;
    return stream_replay(model->rank->exec.stream, record->recording);
}

struct model_replays model_replays(const struct model *model) {
    return model->replays;
}

static int check_step(const struct model *model, const struct model_step *step) {
    const struct model_options *o = &model->options;
    return step->rows < 1 || step->rows > o->max_rows || step->logit_rows > o->infer.max_logit_rows ||
                   step->page_change_count > o->infer.max_sequences * o->infer.max_pages ||
                   step->change_count > o->infer.max_changes
               ? status_fail(STATUS_INVALID, "an engine step beyond what the model was opened for")
           : model_gives_results(model) ? step_check_fetches(model)
                                        : STATUS_OK;
}

int model_infer(struct model *model, const struct model_kv *kv, const struct model_step *step) {
    const struct step_record *record = find_record(model, step);
    int status = check_step(model, step);
    THEN(status, step_upload(model, step, record));
    THEN(status, record ? replay(model, record, step->rows) : step_run(model, kv, step));
    return status || !model_gives_results(model) ? status : step_fetch(model, step, record);
}

void step_close_records(struct model *model) {
    for (int i = 0; i < model->record_count; i++)
        recording_close(model->records[i].recording);
    model->record_count = 0;
}
