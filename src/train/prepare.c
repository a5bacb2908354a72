/* A run's configuration, completed from the files that it names. */
#include "train-internal.h"

#include "ckpt/codec.h"
#include "pretrained/pretrained.h"

enum { VALUE_BYTES = 2 * MODEL_MAX_LAYERS + 256 }; /* a number for each layer */

static bool is_model_row(const struct config_row *row) {
    return !strncmp(row->path, "model.", 6);
}

/* Returns the next row of the `model` section, from *index on, whose values differ; NULL when there is none. */
static const struct config_row *next_difference(const struct run_config *a, const struct run_config *b, size_t *index,
                                                char text_a[VALUE_BYTES], char text_b[VALUE_BYTES]) {
    while (*index < run_row_count) {
        const struct config_row *row = &run_rows[(*index)++];
        if (!is_model_row(row))
            continue;
        config_value_text(row, (const char *)a + row->offset, text_a, VALUE_BYTES);
        config_value_text(row, (const char *)b + row->offset, text_b, VALUE_BYTES);
        if (strcmp(text_a, text_b))
            return row;
    }
    return NULL;
}

/* Takes the whole model section from the directory that the command's `option` names. */
static int take_model(struct train_run *run, const char *option, const char *init_from, const struct config *given) {
    struct run_config typed = run->config;
    struct pretrained model;
    int status = pretrained_open(init_from, NULL, &model);
    memcpy(run->model_directory, model.directory, sizeof run->model_directory);
    run_config_take_model(&run->config, &model.config);
    run->ends = model.ends;
    run->is_quantised = !status && ckpt_quantization(model.tensors)->method;
    pretrained_close(&model);
    if (status)
        return status_wrap(status, "%s", option);
    char was[VALUE_BYTES], is[VALUE_BYTES];
    const struct config_row *row;
    for (size_t i = 0; given && (row = next_difference(&typed, &run->config, &i, was, is));)
        if (config_is_given(given, row->path))
            log_warning("%s %s gives way to %s of %s", row->path, was, is, run->model_directory);
    return STATUS_OK;
}

/* Rows of a tuning run are checked token by token: a tokenizer may have tokens that the model has no row for, except
 * the end-of-text, which each row has. */
static int take_tokenizer(struct train_run *run, bool is_tuning) {
    const char *directory = run->config.tokenizer.path;
    if (!directory && *run->model_directory && pretrained_has_tokenizer(run->model_directory))
        directory = run->model_directory;
    if (!directory)
        return STATUS_OK;
    struct tokenizer *tokenizer;
    int status = STATUS_OK;
    if (!(run->tokenizer = calloc(1, sizeof *run->tokenizer)))
        status = status_no_memory();
    THEN(status, pretrained_read_tokenizer(directory, run->tokenizer));
    THEN(status, tokenizer_open_files(run->tokenizer, &tokenizer));
    if (status)
        return status_wrap(status, "tokenizer");
    int64_t size = tokenizer_vocab_size(tokenizer);
    int32_t eos_id = tokenizer_eos_id(tokenizer);
    tokenizer_close(tokenizer);
    if (!run->config.model.vocab_size)
        run->config.model.vocab_size = size;
    if (run->config.model.vocab_size < size && is_tuning && eos_id >= run->config.model.vocab_size)
        return status_fail(STATUS_USAGE,
                           "the end-of-text is token %d of the %lld tokens of the tokenizer %s, but the model has %lld",
                           (int)eos_id, (long long)size, directory, (long long)run->config.model.vocab_size);
    if (run->config.model.vocab_size < size && !is_tuning)
        return status_fail(STATUS_USAGE, "model.vocab_size %lld is less than the %lld tokens of the tokenizer %s",
                           (long long)run->config.model.vocab_size, (long long)size, directory);
    bool is_known = false;
    for (int i = 0; i < run->ends.count; i++)
        is_known |= run->ends.eos[i] == eos_id;
    if (eos_id >= 0 && !is_known)
        run->ends = (struct model_text_ends){0}; /* the directory's ids belong to another tokenizer */
    if (eos_id >= 0)
        model_add_eos(&run->ends, eos_id, true);
    return STATUS_OK;
}

/* Checks that the checkpoint has this model, and takes its family. */
static int take_checkpoint_model(struct train_run *run, bool is_tuning) {
    struct run_config saved = run->config;
    struct pretrained model;
    int status = pretrained_read_config(run->checkpoint, &model);
    run_config_take_model(&saved, &model.config);
    pretrained_close(&model);
    TRY(status);
    char theirs[VALUE_BYTES], ours[VALUE_BYTES];
    size_t i = 0;
    const struct config_row *row = next_difference(&saved, &run->config, &i, theirs, ours);
    if (row)
        return status_fail(STATUS_USAGE,
                           "%s is %s in the checkpoint %s, but %s in this run: a resumed run has the same model "
                           "(%s starts a new one from its weights)",
                           row->path, theirs, run->checkpoint, ours, is_tuning ? "--model" : "--init-from");
    if (saved.model.add_projection_bias != run->config.model.add_projection_bias ||
        saved.model.add_mlp_bias != run->config.model.add_mlp_bias)
        return status_fail(STATUS_USAGE, "the model of the checkpoint %s has other biases than that of this run",
                           run->checkpoint);
    run->config.model.family = saved.model.family;
    return STATUS_OK;
}

/* Handles a fresh run into a directory that already has checkpoints. Pretraining may add its own. The directory of
 * another tuning run is refused, because readers take the newest checkpoint in it. */
static int check_older_run(const struct run_config *config, bool is_tuning) {
    char newest[PATH_MAX];
    const char *save = config->checkpoint.save;
    if (!save || !file_is_directory(save))
        return STATUS_OK;
    int status = ckpt_latest(save, newest, sizeof newest, NULL);
    if (status == STATUS_INVALID && !is_tuning)
        log_warning("%s", status_text());
    if (status)
        return status == STATUS_INVALID && is_tuning ? status : STATUS_OK;
    if (is_tuning && !config->checkpoint.load)
        return status_fail(STATUS_USAGE,
                           "%s is already there, of another run: resume from it (checkpoint.load), or name another "
                           "directory",
                           newest);
    log_warning("%s is already there and this run does not resume from it (checkpoint.load does that)", newest);
    return STATUS_OK;
}

static int take_checkpoint(struct train_run *run, bool is_tuning, bool has_model) {
    const char *load = run->config.checkpoint.load;
    int status = STATUS_NOT_FOUND;
    if (load)
        status = ckpt_resolve_checkpoint(load, run->checkpoint, sizeof run->checkpoint);
    if (status == STATUS_NOT_FOUND) {
        run->checkpoint[0] = 0;
        if (load)
            log_info("no checkpoint in %s yet: starting afresh", load);
        return check_older_run(&run->config, is_tuning);
    }
    struct strbuf text = STRBUF_INIT;
    char path[PATH_MAX];
    THEN_IF(status, has_model, take_checkpoint_model(run, is_tuning));
    THEN(status, ckpt_read_state(run->checkpoint, &text));
    THEN(status, file_join(path, sizeof path, run->checkpoint, "trainer_state.json"));
    THEN(status, train_state_read(run, strbuf_text(&text), path));
    THEN(status, ckpt_check_iteration(run->checkpoint, run->iteration));
    strbuf_free(&text);
    return status ? status_wrap(status, "checkpoint.load") : STATUS_OK;
}

void train_run_free(struct train_run *run) {
    if (run->tokenizer)
        tokenizer_files_free(run->tokenizer);
    free(run->tokenizer);
    run->tokenizer = NULL;
}

int train_prepare(struct train_run *run, const struct run_config *config, const char *init_from,
                  const struct config *given) {
    *run = (struct train_run){.config = *config};
    int status = init_from ? take_model(run, "--init-from", init_from, given) : STATUS_OK;
    THEN(status, take_tokenizer(run, false));
    THEN(status, run_config_resolve(&run->config));
    THEN_IF(status, !init_from, model_family_choose(&run->config.model));
    if (!status && !init_from && run->config.model.family)
        log_info("the model is a %s: its keys fit %s", model_family(&run->config.model)->name,
                 model_family(&run->config.model)->class_name);
    if (!status && !run->config.data.data_path.count)
        status = status_fail(STATUS_USAGE, "data.data_path is not given: name the prefix of a dataset that "
                                           "'cambium preprocess' wrote");
    return status ? status : take_checkpoint(run, false, true);
}

int train_prepare_tuning(struct train_run *run, const struct run_config *config, const char *model_directory) {
    *run = (struct train_run){.config = *config};
    TRY(take_model(run, "--model", model_directory, NULL));
    TRY(take_tokenizer(run, true));
    return run_config_resolve(&run->config);
}

int train_resume_tuning(struct train_run *run, bool is_full) {
    return take_checkpoint(run, true, is_full);
}
