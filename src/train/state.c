/* trainer_state.json: the progress of a run, and the keys with which it was saved. */
#include "train-internal.h"

enum { VALUE_BYTES = 4096 };

/* Keys that decide the order of the samples, their meaning or the random numbers; a loss adds its own. A run may resume
 * with other values, but then it is not the run that was interrupted. */
static const char *const kept_keys[] = {
    "data.data_path",
    "data.split",
    "data.seq_length",
    "data.seed",
    "data.eod_mask_loss",
    "data.reset_position_ids",
    "data.reset_attention_mask",
    "train.train_iters",
    "train.seed",
    "train.global_batch_size",
    "train.precision",
    "train.fp8_format",
    "train.fp8_margin",
    "train.fp8_amax_history_len",
    "train.fp8_amax_compute_algo",
};
enum { KEPT_KEYS = sizeof kept_keys / sizeof *kept_keys };

/* Returns true if the run uses a kept key. */
static bool is_used(const char *key, const struct run_config *run) {
    return run->train.precision == PRECISION_FP8 || strncmp(key, "train.fp8_", strlen("train.fp8_")) != 0;
}

static const struct config_row *find_row(const char *path) {
    for (size_t i = 0; i < run_row_count; i++)
        if (!strcmp(run_rows[i].path, path))
            return &run_rows[i];
    return NULL;
}

enum { LOSS_KEYS = 5, ALL_KEYS = KEPT_KEYS + LOSS_KEYS };

/* Finds key `i` of the run, and writes its value as the file has it. Returns NULL if the run does not use it. */
static const char *find_key(const struct train_run *run, size_t i, char out[VALUE_BYTES]) {
    const struct loss *loss = run->loss;
    const struct loss_options *options = &run->loss_options;
    bool is_dpo = loss && loss->has_reference && loss->form == TUNING_PAIRS;
    const struct {
        const char *path;
        bool is_used;
        double value;
    } numbers[] = {{"tuning.beta", loss && loss->run, options->beta},
                   {"tuning.label_smoothing", is_dpo, options->label_smoothing},
                   {"tuning.sft_weight", is_dpo, options->sft_weight}};
    if (i < KEPT_KEYS) {
        const struct config_row *row = find_row(kept_keys[i]);
        config_value_text(row, (const char *)&run->config + row->offset, out, VALUE_BYTES);
        return is_used(kept_keys[i], &run->config) ? kept_keys[i] : NULL;
    }
    if (i >= ALL_KEYS - 2) {
        snprintf(out, VALUE_BYTES, "%s", i == ALL_KEYS - 1 ? run->frozen_digest : loss ? loss->name : "");
        return !loss ? NULL : i == ALL_KEYS - 1 ? "adapter" : "loss";
    }
    snprintf(out, VALUE_BYTES, "%.15g", numbers[i - KEPT_KEYS].value);
    return numbers[i - KEPT_KEYS].is_used ? numbers[i - KEPT_KEYS].path : NULL;
}

int train_state_write(const struct trainer *trainer, char **text) {
    const struct run_config *run = &trainer->run.config;
    json_begin();
    json_t *keys = json_object();
    for (size_t i = 0; i < ALL_KEYS; i++) {
        char value[VALUE_BYTES];
        const char *key = find_key(&trainer->run, i, value);
        if (key)
            json_object_set_new(keys, key, json_string(value));
    }
    const struct train_progress *progress = &trainer->progress;
    json_t *root =
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "iteration", (json_int_t)trainer->iteration,
                  "consumed_samples", (json_int_t)trainer->consumed_samples, "consumed_tokens",
                  (json_int_t)(trainer->consumed_samples * run->data.seq_length), "optimizer_step",
                  (json_int_t)trainer->stepper.optimizer.step, "validated_iteration", (json_int_t)progress->validated,
                  "validations_without_better", (json_int_t)progress->bad, "run", keys);
    if (progress->has_loss)
        json_object_set_new(root, "lm_loss", json_real(progress->loss));
    if (progress->has_best) /* 17 digits: it reads back to the same bits */
        json_object_set_new(root, "best_valid_loss", json_real(progress->best_loss));
    return json_end(root, JSON_INDENT(2), text);
}

static int read_count(const json_t *root, const char *key, const char *where, int64_t *out) {
    const json_t *value = json_object_get(root, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > INT64_MAX / 4)
        return status_fail(STATUS_INVALID, "%s: '%s' must be a number of at least 0", where, key);
    *out = json_integer_value(value);
    return STATUS_OK;
}

/* Checks that the counters agree; in a damaged file they do not. The number of samples per iteration may have changed
 * during the run. */
static int check_counts(const json_t *root, const char *where, const struct train_run *run) {
    const json_t *tokens = json_object_get(root, "consumed_tokens");
    const char *saved = json_string_value(json_object_get(json_object_get(root, "run"), "data.seq_length"));
    int64_t length = saved ? strtoll(saved, NULL, 10) : 0, expected;
    if (run->optimizer_step != run->iteration)
        return status_fail(STATUS_INVALID, "%s: 'optimizer_step' is %lld after %lld iterations", where,
                           (long long)run->optimizer_step, (long long)run->iteration);
    if (run->consumed_samples < run->iteration || (run->iteration == 0 && run->consumed_samples > 0))
        return status_fail(STATUS_INVALID, "%s: 'consumed_samples' is %lld after %lld iterations", where,
                           (long long)run->consumed_samples, (long long)run->iteration);
    if (tokens && length > 0 &&
        (__builtin_mul_overflow(run->consumed_samples, length, &expected) || json_integer_value(tokens) != expected))
        return status_fail(STATUS_INVALID, "%s: 'consumed_tokens' is not that of %lld samples of %lld tokens", where,
                           (long long)run->consumed_samples, (long long)length);
    return STATUS_OK;
}

/* Reads the progress, which checkpoints of older versions lack. */
static int read_progress(const json_t *root, const char *where, struct train_run *run) {
    struct train_progress *progress = &run->progress;
    const json_t *best = json_object_get(root, "best_valid_loss"), *loss = json_object_get(root, "lm_loss");
    *progress = (struct train_progress){.validated = run->iteration};
    int status = STATUS_OK;
    if (json_object_get(root, "validated_iteration"))
        status = read_count(root, "validated_iteration", where, &progress->validated);
    if (!status && json_object_get(root, "validations_without_better"))
        status = read_count(root, "validations_without_better", where, &progress->bad);
    if (!status && best && !json_is_number(best))
        status = status_fail(STATUS_INVALID, "%s: 'best_valid_loss' must be a number", where);
    if (!status && loss && !json_is_number(loss))
        status = status_fail(STATUS_INVALID, "%s: 'lm_loss' must be a number", where);
    progress->has_loss = !status && loss;
    progress->loss = progress->has_loss ? json_number_value(loss) : 0;
    progress->has_best = !status && best;
    progress->best_loss = progress->has_best ? json_number_value(best) : 0;
    return status;
}

static void compare_keys(const struct train_run *run, const json_t *keys) {
    for (size_t i = 0; i < ALL_KEYS; i++) {
        char value[VALUE_BYTES];
        const char *key = find_key(run, i, value), *saved = key ? json_string_value(json_object_get(keys, key)) : NULL;
        if (saved && strcmp(saved, value))
            log_warning("%s was '%s' and is '%s': the run resumes, but its results differ from an uninterrupted one",
                        key, saved, value);
    }
}

int train_state_read(struct train_run *run, const char *text, const char *where) {
    json_error_t error;
    json_t *root;
    int status = json_read(text, strlen(text), JSON_REJECT_DUPLICATES, &root, &error);
    if (status == STATUS_INVALID)
        status_fail(status, "%s:%d:%d: %s", where, error.line, error.column, error.text);
    TRY(status);
    status = read_count(root, "iteration", where, &run->iteration);
    THEN(status, read_count(root, "consumed_samples", where, &run->consumed_samples));
    THEN(status, read_count(root, "optimizer_step", where, &run->optimizer_step));
    THEN(status, check_counts(root, where, run));
    THEN(status, read_progress(root, where, run));
    if (!status)
        compare_keys(run, json_object_get(root, "run"));
    json_decref(root);
    return status;
}
