/* How model directories and checkpoints come to be. One rank plans the directory and creates it beside its target,
 * every rank writes what it owns, and the directory takes its place when all have written and synced. */
#include "ckpt-internal.h"

#include <stdlib.h>
#include <string.h>

static const int64_t default_shard_bytes = 50000000000; /* transformers' */

/* A directory that is being written. */
struct writing {
    const char *target;
    const struct ckpt_model *model;
    const struct ckpt_save *save; /* NULL: a model alone */
    struct write_plan plans[2];
    int plan_count;
};

static int write_text(const char *directory, const char *name, const char *text) {
    char path[PATH_MAX];
    int status = file_join(path, sizeof path, directory, name);
    return status ? status : file_write_atomic(path, text, strlen(text));
}

static int copy_tokenizer(const char *from, const char *to) {
    static const char *const names[] = {
        "tokenizer.json",        "vocab.json", "merges.txt", "tokenizer_config.json", "special_tokens_map.json",
        "generation_config.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char source[PATH_MAX], target[PATH_MAX];
        if (!directory_has_file(from, names[i]))
            continue;
        int status = file_join(source, sizeof source, from, names[i]);
        if (!status)
            status = file_join(target, sizeof target, to, names[i]);
        if (!status)
            status = file_copy(source, target);
        if (!status)
            status = file_sync(target);
        if (status)
            return status;
    }
    return STATUS_OK;
}

/* An --output that names the wrong directory must not cost its contents. */
static int check_replaceable(const char *directory) {
    char **names;
    size_t count;
    int status = directory_check(directory);
    if (status == STATUS_NOT_FOUND)
        return STATUS_OK;
    if (!status)
        status = file_list(directory, &names, &count);
    if (status)
        return status;
    if (count > 0 && !directory_has_model(directory))
        status = status_fail(STATUS_INVALID, "%s is not empty and no model directory: name another, or remove it",
                             directory);
    file_list_free(names, count);
    return status;
}

static int compare_iterations(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void prune_one(const char *root, int64_t iteration) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/iter_%07lld", root, (long long)iteration) >= (int)sizeof path)
        return;
    if (staging_remove(path))
        log_warning("%s", status_text());
}

static void prune(const char *root, int64_t saved, int64_t keep_last) {
    char **names;
    size_t count, found = 0;
    if (keep_last <= 0)
        return;
    if (file_list(root, &names, &count)) {
        log_warning("%s", status_text());
        return;
    }
    int64_t *iterations = calloc(count + 1, sizeof *iterations);
    for (size_t i = 0; iterations && i < count; i++) {
        int64_t number = checkpoint_iteration(names[i]);
        if (number >= 0 && number != saved)
            iterations[found++] = number;
    }
    if (found)
        qsort(iterations, found, sizeof *iterations, compare_iterations);
    for (size_t i = 0; i < found && (int64_t)(found - i) > keep_last - 1; i++)
        prune_one(root, iterations[i]);
    free(iterations);
    file_list_free(names, count);
}

static int make_plans(struct writing *writing) {
    const struct ckpt_model *model = writing->model;
    const struct ckpt_save *save = writing->save;
    struct write_request weights = {
        .name = "model",
        .table = model->table,
        .arrays = model->weights,
        .array_count = 1,
        .max_shard_bytes = model->max_shard_bytes > 0 ? model->max_shard_bytes : default_shard_bytes,
    };
    int status = write_plan_make(&weights, &writing->plans[writing->plan_count++]);
    if (status || !save)
        return status;
    struct write_request optimizer = {
        .name = "optimizer",
        .table = model->table,
        .arrays = save->optimizer,
        .array_count = save->optimizer_count,
    };
    return write_plan_make(&optimizer, &writing->plans[writing->plan_count++]);
}

/* The first rank's part before the values. */
static int begin(struct writing *writing, struct staging *staging) {
    const struct ckpt_model *model = writing->model;
    int status = writing->save ? STATUS_OK : check_replaceable(writing->target);
    if (!status)
        status = staging_begin(staging, writing->target, writing->save != NULL);
    if (!status)
        status = write_text(staging->temporary, CONFIG_FILE, model->config_text);
    if (!status && model->tokenizer_directory)
        status = copy_tokenizer(model->tokenizer_directory, staging->temporary);
    for (int i = 0; i < writing->plan_count && !status; i++)
        status = write_create(&writing->plans[i], staging->temporary);
    return status;
}

/* And after them. */
static int finish(struct writing *writing, struct staging *staging) {
    int status = STATUS_OK;
    for (int i = 0; i < writing->plan_count && !status; i++)
        status = write_index(&writing->plans[i], staging->temporary);
    if (!status && writing->save)
        status = write_text(staging->temporary, STATE_FILE, writing->save->state_text);
    if (!status)
        status = staging_commit(staging);
    if (!status && writing->save)
        prune(writing->save->root, writing->save->iteration, writing->save->keep_last);
    return status;
}

static int write_directory(struct writing *writing) {
    struct comm *world = writing->model->world;
    struct staging staging = {.lock = -1};
    char directory[PATH_MAX] = "";
    bool is_first = together_is_first(world);
    int status = together_agree(world, make_plans(writing));
    for (int i = 0; i < writing->plan_count && !status; i++)
        status = write_plan_check_owners(&writing->plans[i], world);
    if (!status) { /* on all ranks or on none, as after each agreement */
        if (is_first)
            status = begin(writing, &staging);
        if (is_first && !status)
            status = copy_path(staging.temporary, directory, sizeof directory);
        status = together_agree(world, status);
    }
    if (!status) {
        status = together_path(world, directory);
        for (int i = 0; i < writing->plan_count && !status; i++)
            status = write_values(&writing->plans[i], directory, is_first);
        status = together_agree(world, status);
    }
    if (!status && is_first)
        status = finish(writing, &staging);
    if (is_first)
        staging_abort(&staging);
    for (int i = 0; i < writing->plan_count; i++)
        write_plan_free(&writing->plans[i]);
    return together_agree(world, status); /* nobody leaves before the directory is whole, or gone */
}

int ckpt_write_model(const char *directory, const struct ckpt_model *model) {
    struct writing writing = {.target = directory, .model = model};
    int status = write_directory(&writing);
    return status ? status_wrap(status, "model %s was not written", directory) : STATUS_OK;
}

int ckpt_save(const struct ckpt_save *save) {
    char target[PATH_MAX];
    if (save->iteration < 0 ||
        snprintf(target, sizeof target, "%s/iter_%07lld", save->root, (long long)save->iteration) >= (int)sizeof target)
        return status_fail(STATUS_INVALID, "cannot save iteration %lld under %.200s", (long long)save->iteration,
                           save->root);
    struct writing writing = {.target = target, .model = &save->model, .save = save};
    int status = write_directory(&writing);
    return status ? status_wrap(status, "checkpoint %s was not saved", target) : STATUS_OK;
}
