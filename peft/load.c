/* Adapters from their directories, and their values into a stack. */
#include "method-internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct peft_files {
    int count;
    struct peft_config *configs; /* [count] */
    struct peft_file {
        char *directory;
        struct ckpt_tensors *tensors;
    } * of; /* [count] */
};

/* ---- opening ---- */

static bool has_config(const char *directory) {
    char path[PATH_MAX];
    return !file_join(path, sizeof path, directory, "adapter_config.json") && file_exists(path);
}

/* The encoder trains, where the directory has it; else the table is all there is. */
static bool take_encoder(const char *directory, struct peft_config *config) {
    const struct peft_method *method = peft_method(config->type);
    bool has_encoder = method->take_encoder && ckpt_has_encoder(directory);
    if (method->take_encoder)
        method->take_encoder(config, directory, has_encoder);
    return has_encoder;
}

static int open_adapter(struct peft_files *files, const char *directory, bool trains) {
    size_t count = (size_t)files->count + 1;
    struct peft_config *configs = realloc(files->configs, count * sizeof *configs);
    files->configs = configs ? configs : files->configs;
    struct peft_file *of = configs ? realloc(files->of, count * sizeof *of) : NULL;
    files->of = of ? of : files->of;
    if (!of)
        return status_fail(STATUS_MEMORY, "out of memory");
    struct peft_file *file = &of[files->count];
    struct peft_config *config = &configs[files->count++];
    *file = (struct peft_file){.directory = strdup(directory)};
    *config = (struct peft_config){0};
    struct strbuf text = STRBUF_INIT;
    char where[PATH_MAX];
    int status =
        file->directory ? ckpt_read_adapter_config(directory, &text) : status_fail(STATUS_MEMORY, "out of memory");
    if (!status)
        status = file_join(where, sizeof where, directory, "adapter_config.json");
    if (!status)
        status = peft_read_config(strbuf_text(&text), where, config);
    strbuf_free(&text);
    bool is_whole = !status && trains && take_encoder(directory, config);
    if (status)
        return status;
    return is_whole ? ckpt_open_encoder(directory, &file->tensors) : ckpt_open_adapter(directory, &file->tensors);
}

static int fail_no_adapter(const char *directory) {
    return status_fail(STATUS_NOT_FOUND, "%s holds no adapter (adapter_config.json)", directory);
}

bool peft_is_beside(const char *name) {
    return *name == '.' || strstr(name, ".tmp-") || strstr(name, ".old-") || !strncmp(name, "iter_", 5) ||
           !strcmp(name, "best");
}

/* The adapters that stand in a directory side by side, beside finetune's checkpoints. None is STATUS_NOT_FOUND. */
static int open_stack(struct peft_files *files, const char *directory, bool trains) {
    char **names;
    size_t count;
    int before = files->count, status = file_list(directory, &names, &count);
    if (status)
        return status;
    for (size_t i = 0; i < count && !status; i++) {
        char path[PATH_MAX];
        status = file_join(path, sizeof path, directory, names[i]);
        if (!status && !peft_is_beside(names[i]) && has_config(path))
            status = open_adapter(files, path, trains);
    }
    file_list_free(names, count);
    return status || files->count > before ? status : fail_no_adapter(directory);
}

static int open_directory(struct peft_files *files, const char *directory, bool trains) {
    char newest[PATH_MAX], ready[PATH_MAX];
    int before = files->count;
    if (!file_is_directory(directory))
        return status_fail(STATUS_NOT_FOUND, "%s is not the directory of an adapter", directory);
    bool is_ready;
    int status = staging_is_ready(directory, &peft_staging_files, NULL, ready, &is_ready);
    if (status)
        return status;
    if (is_ready) /* a run was killed while it put them in place */
        directory = ready;
    if (has_config(directory))
        return open_adapter(files, directory, trains);
    status = open_stack(files, directory, trains);
    if (status != STATUS_NOT_FOUND || files->count > before)
        return status;
    status = ckpt_latest(directory, newest, sizeof newest, NULL);
    if (status)
        return status == STATUS_NOT_FOUND ? fail_no_adapter(directory) : status;
    status = has_config(newest) ? open_adapter(files, newest, trains) : open_stack(files, newest, trains);
    return status == STATUS_NOT_FOUND && files->count == before
               ? status_fail(STATUS_INVALID, "%s is a checkpoint of a model, not of an adapter", newest)
               : status;
}

int peft_files_open(const char *const *directories, size_t count, bool trains, struct peft_files **out) {
    int status = STATUS_OK;
    *out = NULL;
    struct peft_files *files = calloc(1, sizeof *files);
    if (!files)
        return status_fail(STATUS_MEMORY, "out of memory");
    for (size_t i = 0; i < count && !status; i++)
        status = open_directory(files, directories[i], trains);
    if (status)
        peft_files_close(files);
    else
        *out = files;
    return status;
}

void peft_files_close(struct peft_files *files) {
    if (!files)
        return;
    for (int i = 0; i < files->count; i++) {
        peft_config_free(&files->configs[i]);
        ckpt_close(files->of[i].tensors);
        free(files->of[i].directory);
    }
    free(files->configs);
    free(files->of);
    free(files);
}

int peft_files_count(const struct peft_files *files) {
    return files->count;
}

const struct peft_config *peft_files_configs(const struct peft_files *files) {
    return files->configs;
}

const char *peft_files_directory(const struct peft_files *files, int index) {
    return files->of[index].directory;
}

const struct ckpt_tensors *peft_files_tensors(const struct peft_files *files, int index) {
    return files->of[index].tensors;
}

/* ---- names ---- */

/* `name` with `old` replaced, where the file has such a tensor. */
static bool try_name(const struct ckpt_tensors *tensors, const char *name, const char *old, const char *new,
                     char out[PARAM_NAME_BYTES]) {
    const char *at = strstr(name, old);
    if (!at)
        return false;
    int n = snprintf(out, PARAM_NAME_BYTES, "%.*s%s%s", (int)(at - name), name, new, at + strlen(old));
    return n > 0 && n < PARAM_NAME_BYTES && ckpt_has_tensor(tensors, out);
}

/* As those of a bare model, without its head, name it, or by the method's other names. */
static bool find_name(const void *names, const struct ckpt_tensors *tensors, const char *name,
                      char out[PARAM_NAME_BYTES]) {
    const struct peft_adapter *adapter = names;
    const char *const(*others)[2] = adapter->method->other_names;
    if (try_name(tensors, name, adapter->peft->family->files.prefix, "", out))
        return true;
    for (int i = 0; others && others[i][0]; i++)
        if (try_name(tensors, name, others[i][0], others[i][1], out))
            return true;
    return false;
}

/* ---- loading ---- */

static int check_methods(const struct peft *peft, const struct peft_files *files) {
    if (peft->count != files->count)
        return status_fail(STATUS_INVALID, "%s: a stack of %d, where %d adapters are expected",
                           files->count ? files->of[0].directory : "no directory", files->count, peft->count);
    for (int i = 0; i < peft->count; i++) {
        int expected = peft->adapters[i].config.type, found = files->configs[i].type;
        if (expected != found)
            return status_fail(STATUS_INVALID, "%s is an adapter of method %s, not %s", files->of[i].directory,
                               peft_method_names[found], peft_method_names[expected]);
    }
    return STATUS_OK;
}

int peft_load(struct peft *peft, const struct peft_files *files) {
    struct ckpt_flat flat = {.store = &peft->store,
                             .stream = peft->rank->exec.stream,
                             .memory = peft->store.weights,
                             .dtype = peft->store.dtype};
    struct ckpt_array array = ckpt_flat_array(&flat, "", true);
    return peft_read(peft, files, &array);
}

int peft_read(struct peft *peft, const struct peft_files *files, const struct ckpt_array *values) {
    int status = check_methods(peft, files);
    for (int i = 0; i < peft->count && !status; i++) {
        const struct peft_adapter *adapter = &peft->adapters[i];
        struct ckpt_array named = *values;
        named.find_name = find_name;
        named.names = adapter;
        status = ckpt_read(files->of[i].tensors, peft_table(adapter), &named, 1);
    }
    return status;
}
