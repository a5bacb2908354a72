/* A step of inference, and the decode steps that are recorded once and replayed: one for each power of two of rows.
 *
 * A record has the operations of a step, with the addresses of their arguments. Whatever differs from step to step is
 * therefore read from device memory: the arrays of the upload, which lie at the same places, the page table and the
 * cache. A step of fewer rows is padded. A record begins after the upload and ends before the results are fetched. It
 * is recorded once more in two parts, so that masks can be made while the device computes the logits. */
#include "model-internal.h"

static const struct hook_upload *hooks_of(const struct inference_runner *inference) {
    const struct hook_table *hooks = inference->run.hooks;
    return hooks && hooks->upload.bytes ? &hooks->upload : NULL;
}

/* Returns the smallest record that can run the step, or NULL. Phases are measured operation by operation, so a measured
 * step has none. */
static const struct step_record *find_record(const struct inference_runner *inference, const struct model_step *step) {
    const struct hook_upload *hooks = hooks_of(inference);
    int level = hooks ? hooks->level(hooks->self) : 0;
    bool is_decode = step->logit_rows == step->rows && step->sample && !step->labels;
    if (!is_decode || inference->run.rank->timer.is_on)
        return NULL;
    for (int i = 0; i < inference->record_count; i++) {
        const struct step_record *record = &inference->records[i];
        if (step->rows <= record->rows && step->page_change_count <= record->rows && record->level == level)
            return record;
    }
    return NULL;
}

/* A step of padding only, as a record has it: it draws, and reports the likeliest tokens. */
static struct model_step padding_of(int64_t rows) {
    static const struct sample_row unread;
    return (struct model_step){.rows = rows, .logit_rows = rows, .sample = &unread, .has_top = true};
}

/* Runs the step before it is recorded: libraries choose and load what they need. */
static int run_once(struct inference_runner *inference, struct step_record *record) {
    const struct model_step padding = padding_of(record->rows);
    int status = step_run(inference, &padding);
    return status ? status : stream_wait(inference->run.rank->exec.stream);
}

static int record_once(struct inference_runner *inference, struct step_record *record) {
    struct stream *stream = inference->run.rank->exec.stream;
    const struct model_step padding = padding_of(record->rows);
    for (int parts = 0; parts <= (inference->options.max_masks > 0); parts++) {
        TRY(stream_record_begin(stream));
        inference->divided = parts ? record : NULL;
        int status = step_run(inference, &padding), ended = STATUS_OK;
        if (!parts || inference->divided)
            ended = stream_record_end(stream, parts ? &record->rest : &record->recording);
        inference->divided = NULL;
        TRY(status ? status : ended);
    }
    return STATUS_OK;
}

/* Does it to the record's step, with its hooks. */
static int do_once(struct inference_runner *inference, struct step_record *record,
                   int (*what)(struct inference_runner *inference, struct step_record *record)) {
    const struct hook_upload *hooks = hooks_of(inference);
    const struct model_step none = padding_of(0);
    TRY(step_upload(inference, &none, record));
    if (record->level)
        hooks->act_by_row(hooks->self, record->level, record->rows);
    int status = what(inference, record);
    if (record->level)
        hooks->act_by_row(hooks->self, 0, 0);
    return status;
}

static int add_record(struct inference_runner *inference, int64_t rows, int level) {
    struct step_record *record = &inference->records[inference->record_count];
    *record = (struct step_record){.rows = rows, .level = level};
    int status = do_once(inference, record, record_once);
    inference->record_count += record->recording != NULL;
    return status;
}

static int record_rows(struct inference_runner *inference, int64_t rows) {
    struct step_record bare = {.rows = rows}, hooked = {.rows = rows, .level = HOOK_LEVEL_EACH};
    int levels = hooks_of(inference) ? hooks_of(inference)->levels : 0;
    int status = do_once(inference, &bare, run_once);
    THEN_IF(status, levels, do_once(inference, &hooked, run_once));
    for (int level = 0; level <= levels && !status; level++)
        status = add_record(inference, rows, level);
    return status;
}

int model_record_steps(struct inference_runner *inference, int64_t limit, int *count) {
    const struct model_inference *o = &inference->options;
    int64_t most = limit < o->max_logit_rows ? limit : o->max_logit_rows;
    most = most < inference->run.max_rows ? most : inference->run.max_rows;
    int status = STATUS_OK;
    for (int64_t rows = 1, last = 0; last < most && !status; rows *= 2) {
        last = rows < most ? rows : most;
        status = record_rows(inference, last);
    }
    *count = inference->record_count;
    return status ? status : stream_wait(inference->run.rank->exec.stream);
}

static int replay(struct inference_runner *inference, const struct step_record *record, const struct model_step *step) {
    struct stream *stream = inference->run.rank->exec.stream;
    inference->replays.steps++;
    inference->replays.rows += record->rows;
    inference->replays.asked += step->rows;
    if (!step->masks.count)
        return stream_replay(stream, record->recording);
    if (record->before) {
        TRY(stream_replay(stream, record->before));
        TRY(step_put_masks(inference, &step->masks));
    }
    return stream_replay(stream, record->rest);
}

struct model_replays model_replays(const struct inference_runner *inference) {
    return inference->replays;
}

static int check_step(const struct inference_runner *inference, const struct model_step *step) {
    const struct model_inference *o = &inference->options;
    return step->rows < 1 || step->rows > inference->run.max_rows || step->logit_rows > o->max_logit_rows ||
                   step->page_change_count > o->max_sequences * o->max_pages || step->change_count > o->max_changes ||
                   step->masks.count > o->max_masks
               ? status_fail(STATUS_INVALID, "an engine step beyond what the model was opened for")
           : model_gives_results(inference) ? step_check_fetches(inference)
                                            : STATUS_OK;
}

int model_infer(struct inference_runner *inference, const struct model_step *step) {
    const struct step_record *record = find_record(inference, step);
    int status = check_step(inference, step);
    THEN(status, step_upload(inference, step, record));
    THEN(status, record ? replay(inference, record, step) : step_run(inference, step));
    return status || !model_gives_results(inference) ? status : step_fetch(inference, step, record);
}

void step_close_records(struct inference_runner *inference) {
    for (int i = 0; i < inference->record_count; i++) {
        recording_close(inference->records[i].before);
        recording_close(inference->records[i].rest);
        recording_close(inference->records[i].recording);
    }
    inference->record_count = 0;
}
