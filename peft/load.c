/* Opens adapters in their directories, and loads their values into a stack. */
#include "bytes-internal.h"
#include "method-internal.h"

struct peft_files {
    int count;
    struct peft_config *configs; /* [count] */
    struct peft_file {
        char *directory;
        struct ckpt_tensors *tensors;
        const struct peft_bytes *bytes; /* NULL: opened in its directory */
    } * of;                             /* [count] */
};

/* ---- opening ---- */

static bool has_config(const char *directory) {
    char path[PATH_MAX];
    return !file_join(path, sizeof path, directory, "adapter_config.json") && file_exists(path);
}

/* Lets the encoder train if the directory has it; otherwise only the table exists. */
static bool take_encoder(const char *directory, struct peft_config *config) {
    const struct peft_method *method = peft_method(config->type);
    bool has_encoder = method->take_encoder && ckpt_has_encoder(directory);
    if (method->take_encoder)
        method->take_encoder(config, directory, has_encoder);
    return has_encoder;
}

/* Makes room for one more adapter, from this directory. */
static int add_adapter(struct peft_files *files, const char *directory) {
    size_t count = (size_t)files->count + 1;
    struct peft_config *configs = realloc(files->configs, count * sizeof *configs);
    files->configs = configs ? configs : files->configs;
    struct peft_file *of = configs ? realloc(files->of, count * sizeof *of) : NULL;
    files->of = of ? of : files->of;
    TRY(status_allocated(of));
    of[files->count] = (struct peft_file){.directory = strdup(directory)};
    configs[files->count] = (struct peft_config){0};
    return status_allocated(of[files->count++].directory);
}

static int read_config(const char *directory, const struct strbuf *text, struct peft_config *config) {
    char where[PATH_MAX];
    int status = file_join(where, sizeof where, directory, PEFT_CONFIG_FILE);
    size_t length = strlen(strbuf_text(text));
    if (!status && length < text->length)
        return status_fail(STATUS_INVALID, "%s: byte %zu is 0: expected text", where, length);
    return status ? status : peft_read_config(strbuf_text(text), where, config);
}

static int open_adapter(struct peft_files *files, const char *directory, bool trains) {
    struct strbuf text = STRBUF_INIT;
    int status = add_adapter(files, directory), last = files->count - 1;
    THEN(status, ckpt_read_adapter_config(directory, &text));
    THEN(status, read_config(directory, &text, &files->configs[last]));
    strbuf_free(&text);
    bool is_whole = !status && trains && take_encoder(directory, &files->configs[last]);
    TRY(status);
    struct ckpt_tensors **tensors = &files->of[last].tensors;
    return is_whole ? ckpt_open_encoder(directory, tensors) : ckpt_open_adapter(directory, tensors);
}

static int open_bytes(struct peft_files *files, const struct peft_bytes *bytes) {
    static const char *const names[] = {CKPT_ADAPTER_PART ".safetensors", CKPT_HUB_PART ".safetensors"};
    struct strbuf text = STRBUF_INIT;
    const char *data;
    size_t length;
    int status = peft_bytes_check(bytes), last = files->count;
    THEN(status, add_adapter(files, bytes->directory));
    if (!status && peft_bytes_find(bytes, PEFT_CONFIG_FILE, &data, &length)) {
        strbuf_add(&text, data, length);
        status = strbuf_status(&text);
    }
    THEN(status, read_config(bytes->directory, &text, &files->configs[last]));
    strbuf_free(&text);
    for (int i = 0; i < 2 && !status; i++)
        if (peft_bytes_find(bytes, names[i], &data, &length))
            status = ckpt_open_adapter_bytes(bytes->directory, names[i], data, length, &files->of[last].tensors);
    if (!status)
        files->of[last].bytes = bytes;
    return status;
}

static int fail_no_adapter(const char *directory) {
    return status_fail(STATUS_NOT_FOUND, "%s holds no adapter (adapter_config.json)", directory);
}

bool peft_is_no_adapter(const char *name) {
    return *name == '.' || strstr(name, ".tmp-") || strstr(name, ".old-") || !strncmp(name, "iter_", 5) ||
           !strcmp(name, "best");
}

/* Directories of single adapters. */
struct found {
    char **items;
    size_t count;
};

static int add_found(struct found *found, const char *directory) {
    char **items = realloc(found->items, (found->count + 1) * sizeof *items);
    found->items = items ? items : found->items;
    char *copy = items ? strdup(directory) : NULL;
    TRY(status_allocated(copy));
    items[found->count++] = copy;
    return STATUS_OK;
}

/* Finds the adapters that lie side by side in a directory, next to finetune's checkpoints. STATUS_NOT_FOUND when there
 * are none. */
static int find_stack(const char *directory, struct found *found) {
    char **names;
    size_t count, before = found->count;
    int status = file_list(directory, &names, &count);
    TRY(status);
    for (size_t i = 0; i < count && !status; i++) {
        char path[PATH_MAX];
        status = file_join(path, sizeof path, directory, names[i]);
        THEN_IF(status, !peft_is_no_adapter(names[i]) && has_config(path), add_found(found, path));
    }
    file_list_free(names, count);
    return status || found->count > before ? status : fail_no_adapter(directory);
}

static int find_adapters(const char *directory, struct found *found) {
    char newest[PATH_MAX], ready[PATH_MAX];
    if (!file_is_directory(directory))
        return status_fail(STATUS_NOT_FOUND, "%s is not the directory of an adapter", directory);
    bool is_ready;
    TRY(staging_is_ready(directory, &peft_staging_files, NULL, ready, &is_ready));
    if (is_ready) /* a run was killed while it moved them there */
        directory = ready;
    if (has_config(directory))
        return add_found(found, directory);
    int status = find_stack(directory, found);
    if (status != STATUS_NOT_FOUND)
        return status;
    status = ckpt_latest(directory, newest, sizeof newest, NULL);
    if (status)
        return status == STATUS_NOT_FOUND ? fail_no_adapter(directory) : status;
    status = has_config(newest) ? add_found(found, newest) : find_stack(newest, found);
    return status == STATUS_NOT_FOUND
               ? status_fail(STATUS_INVALID, "%s is a checkpoint of a model, not of an adapter", newest)
               : status;
}

int peft_find(const char *const *directories, size_t count, char ***out, size_t *out_count) {
    struct found found = {0};
    int status = STATUS_OK;
    for (size_t i = 0; i < count && !status; i++)
        status = find_adapters(directories[i], &found);
    if (status) {
        file_list_free(found.items, found.count);
        found = (struct found){0};
    }
    *out = found.items;
    *out_count = found.count;
    return status;
}

static int files_new(struct peft_files **files) {
    *files = calloc(1, sizeof **files);
    return status_allocated(*files);
}

/* Returns the files, or closes them on failure. */
static int give(struct peft_files *files, int status, struct peft_files **out) {
    if (status)
        peft_files_close(files);
    *out = status ? NULL : files;
    return status;
}

int peft_files_open(const char *const *directories, size_t count, bool trains, struct peft_files **out) {
    char **found;
    size_t found_count;
    struct peft_files *files = NULL;
    int status = peft_find(directories, count, &found, &found_count);
    THEN(status, files_new(&files));
    for (size_t i = 0; i < found_count && !status; i++)
        status = open_adapter(files, found[i], trains);
    file_list_free(found, found_count);
    return give(files, status, out);
}

int peft_files_open_header(const char *directory, const struct strbuf *config, const char *name, int descriptor,
                           struct peft_files **out) {
    struct peft_files *files;
    int status = files_new(&files);
    THEN(status, add_adapter(files, directory));
    THEN(status, read_config(directory, config, &files->configs[0]));
    THEN(status, ckpt_open_adapter_descriptor(directory, name, descriptor, &files->of[0].tensors));
    return give(files, status, out);
}

int peft_files_open_bytes(const struct peft_bytes *bytes, size_t count, struct peft_files **out) {
    struct peft_files *files;
    int status = files_new(&files);
    for (size_t i = 0; i < count && !status; i++)
        status = open_bytes(files, &bytes[i]);
    return give(files, status, out);
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

int peft_files_notes(const struct peft_files *files, int index, struct peft_notes *notes) {
    const struct peft_file *file = &files->of[index];
    return file->bytes ? peft_bytes_notes(file->bytes, notes) : peft_read_notes(file->directory, notes);
}

/* ---- names ---- */

/* Tries `name` with `old` replaced; true when the file has such a tensor. */
static bool try_name(const struct ckpt_tensors *tensors, const char *name, const char *old, const char *new,
                     char out[PARAM_NAME_BYTES]) {
    const char *at = strstr(name, old);
    if (!at)
        return false;
    int n = snprintf(out, PARAM_NAME_BYTES, "%.*s%s%s", (int)(at - name), name, new, at + strlen(old));
    return n > 0 && n < PARAM_NAME_BYTES && ckpt_has_tensor(tensors, out);
}

/* Finds a tensor by the name that a bare model without its head gives it, or by the method's other names. */
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

static bool is_copy(const void *names, const char *name) {
    const struct peft_adapter *adapter = names;
    return peft_copied_name(&adapter->peft->family->files, name);
}

static struct ckpt_array named_array(const struct peft_adapter *adapter, struct ckpt_array array) {
    array.find_name = find_name;
    array.is_allowed = is_copy; /* peft_files_check_base compares it with the base's */
    array.names = adapter;
    return array;
}

/* A tensor that does not fit may be another base's; a number that is not finite says nothing of it. */
static int read_adapter(const struct peft *peft, const struct peft_files *files, int index,
                        const struct ckpt_array *values) {
    const struct ckpt_tensors *tensors = files->of[index].tensors;
    const struct peft_adapter *adapter = &peft->adapters[index];
    struct ckpt_array named = named_array(adapter, *values);
    named.must_be_finite = true;
    int status = ckpt_check(tensors, peft_table(adapter), &named, 1);
    return status ? peft_explain_base(status, files, peft->directory)
                  : ckpt_read(tensors, peft_table(adapter), &named, 1);
}

int peft_load(struct peft *peft, const struct peft_files *files) {
    struct ckpt_flat flat = ckpt_flat_weights(&peft->store, peft->rank->exec.stream);
    struct ckpt_array array = ckpt_flat_array(&flat, "", true);
    return peft_read(peft, files, &array);
}

int peft_load_frozen(struct peft *peft, const struct peft_files *files) {
    return peft_load(peft->frozen, files);
}

int peft_check_values(struct peft *peft, const struct peft_files *files, int index) {
    struct ckpt_flat flat = ckpt_flat_weights(&peft->store, peft->rank->exec.stream);
    struct ckpt_array array = named_array(&peft->adapters[0], ckpt_flat_array(&flat, "", true));
    int status = ckpt_check(files->of[index].tensors, peft_table(&peft->adapters[0]), &array, 1);
    return peft_explain_base(status, files, peft->directory);
}

int peft_load_row(struct peft *peft, const struct peft_files *files, int index, int row) {
    struct ckpt_flat flat = ckpt_flat_weights(&peft->store, peft->rank->exec.stream);
    struct ckpt_array array = named_array(&peft->adapters[0], ckpt_flat_array(&flat, "", true));
    return peft->is_held[row] ? ckpt_read_param(files->of[index].tensors, peft_table(&peft->adapters[0]), &array, row)
                              : STATUS_OK;
}

int peft_read(struct peft *peft, const struct peft_files *files, const struct ckpt_array *values) {
    int status = check_methods(peft, files);
    for (int i = 0; i < peft->count && !status; i++)
        status = read_adapter(peft, files, i, values);
    return status;
}
