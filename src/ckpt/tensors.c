/* The tensor files of a directory: one file or shards with an index, and their tensors under one list of names. */
#include "codec-internal.h"
#include "exchange.h"

static int no_memory(const char *directory) {
    return status_fail(STATUS_MEMORY, "out of memory for the tensors of %s", directory);
}

static int compare_entries(const void *a, const void *b) {
    return strcmp(((const struct tensor_entry *)a)->tensor->name, ((const struct tensor_entry *)b)->tensor->name);
}

void tensors_sort(struct ckpt_tensors *tensors) {
    if (tensors->count)
        qsort(tensors->entries, tensors->count, sizeof *tensors->entries, compare_entries);
}

/* A file that is not opened by its name: its bytes, or else its descriptor. */
struct file_bytes {
    const void *data;
    size_t length;
    int descriptor;
};

static int open_file(const char *path, const struct file_bytes *bytes, struct safetensors **file) {
    if (!bytes)
        return safetensors_open(path, file);
    return bytes->data ? safetensors_open_bytes(path, bytes->data, bytes->length, file)
                       : safetensors_open_descriptor(path, bytes->descriptor, file);
}

static int add_file(struct ckpt_tensors *tensors, const char *name, const struct file_bytes *bytes) {
    char path[PATH_MAX];
    struct safetensors **more = realloc(tensors->files, (tensors->file_count + 1) * sizeof *more);
    if (!more)
        return no_memory(tensors->directory);
    tensors->files = more;
    struct safetensors **file = &tensors->files[tensors->file_count];
    int status = file_join(path, sizeof path, tensors->directory, name);
    THEN(status, open_file(path, bytes, file));
    tensors->file_count += !status;
    return status;
}

static int list_single_file(struct ckpt_tensors *tensors, const char *name, const struct file_bytes *bytes) {
    TRY(add_file(tensors, name, bytes));
    const struct safetensors *file = tensors->files[0];
    tensors->entries = calloc(file->count + 1, sizeof *tensors->entries);
    if (!tensors->entries)
        return no_memory(tensors->directory);
    for (size_t i = 0; i < file->count; i++)
        tensors->entries[tensors->count++] = (struct tensor_entry){.file = file, .tensor = &file->tensors[i]};
    return STATUS_OK;
}

/* Opens the file of a shard's name; `numbers` maps names to places in tensors->files. */
static int open_shard(struct ckpt_tensors *tensors, json_t *numbers, const char *index_path, const char *shard,
                      const struct safetensors **file) {
    char word[SHOWN_BYTES];
    json_t *number = json_object_get(numbers, shard);
    if (!number) {
        if (!*shard || strchr(shard, '/') || !strcmp(shard, "..") || !strcmp(shard, "."))
            return status_fail(STATUS_INVALID, "%s: '%s' is not the name of a file in the same directory", index_path,
                               shown(shard, word));
        int status = add_file(tensors, shard, NULL);
        if (status)
            return status == STATUS_NOT_FOUND ? status_wrap(STATUS_INVALID, "%s names a missing shard", index_path)
                                              : status;
        number = json_integer((json_int_t)tensors->file_count - 1);
        if (json_object_set_new(numbers, shard, number))
            return no_memory(tensors->directory);
    }
    *file = tensors->files[json_integer_value(number)];
    return STATUS_OK;
}

static int list_shards(struct ckpt_tensors *tensors, const char *path, json_t *map, json_t *numbers) {
    const char *name;
    json_t *shard;
    json_object_foreach(map, name, shard) {
        char word[SHOWN_BYTES];
        struct tensor_entry *entry = &tensors->entries[tensors->count];
        if (!json_is_string(shard))
            return status_fail(STATUS_INVALID, "%s: weight_map of '%s' must be the name of a file", path,
                               shown(name, word));
        TRY(open_shard(tensors, numbers, path, json_string_value(shard), &entry->file));
        if (!(entry->tensor = safetensors_find(entry->file, name)))
            return status_fail(STATUS_INVALID, "%s: tensor '%s' is not in %s, where weight_map expects it", path,
                               shown(name, word), entry->file->path);
        tensors->count++;
    }
    return STATUS_OK;
}

static int list_indexed_files(struct ckpt_tensors *tensors, const char *path) {
    struct strbuf text = STRBUF_INIT;
    json_t *index = NULL, *numbers = json_object();
    int status = numbers ? file_read(path, JSON_FILE_LIMIT, &text) : no_memory(tensors->directory);
    THEN(status, json_object_parse(path, 0, strbuf_text(&text), text.length, &index));
    strbuf_free(&text);
    json_t *map = json_object_get(index, "weight_map");
    THEN_IF(status, !json_is_object(map), status_fail(STATUS_INVALID, "%s: expected an object \"weight_map\"", path));
    if (!status && !(tensors->entries = calloc(json_object_size(map) + 1, sizeof *tensors->entries)))
        status = no_memory(tensors->directory);
    THEN(status, list_shards(tensors, path, map, numbers));
    json_decref(index);
    json_decref(numbers);
    return status;
}

/* Lists NAME.safetensors, or the files that its index names. */
static int list_files(struct ckpt_tensors *tensors, const char *name) {
    char single[PATH_MAX], index[PATH_MAX], file[64];
    const char *directory = tensors->directory;
    snprintf(file, sizeof file, "%s.safetensors.index.json", name);
    int status = file_join(index, sizeof index, directory, file);
    snprintf(file, sizeof file, "%s.safetensors", name);
    THEN(status, file_join(single, sizeof single, directory, file));
    TRY(status);
    if (file_exists(single))
        return list_single_file(tensors, file, NULL);
    if (file_exists(index))
        return list_indexed_files(tensors, index);
    return status_fail(STATUS_NOT_FOUND, "%s holds no %s and no %s.index.json", directory, file, file);
}

static int refuse_pickles(const char *directory, int status) {
    if (!directory_has_file(directory, "pytorch_model.bin") &&
        !directory_has_file(directory, "pytorch_model.bin.index.json"))
        return status;
    return status_fail(STATUS_UNSUPPORTED,
                       "%s holds only pytorch_model.bin, a pickle, which can run code and is never read: save the "
                       "model again as safetensors",
                       directory);
}

/* `bytes` is the file of that name; NULL: the directory's files of that name are opened. */
static int open_tensors(const char *directory, const char *name, const struct file_bytes *bytes,
                        struct ckpt_tensors **out) {
    *out = NULL;
    struct ckpt_tensors *tensors = calloc(1, sizeof *tensors);
    if (!tensors || !(tensors->directory = strdup(directory))) {
        free(tensors);
        return no_memory(directory);
    }
    int status = bytes ? list_single_file(tensors, name, bytes) : list_files(tensors, name);
    if (!status)
        tensors_sort(tensors);
    if (status)
        ckpt_close(tensors);
    else
        *out = tensors;
    return status;
}

int ckpt_open_model(const char *directory, struct ckpt_tensors **tensors) {
    int status = open_tensors(directory, "model", NULL, tensors);
    if (status == STATUS_NOT_FOUND)
        status = refuse_pickles(directory, status);
    return status == STATUS_NOT_FOUND ? explain_other_system(status, directory) : status;
}

int ckpt_open_adapter(const char *directory, struct ckpt_tensors **tensors) {
    static const char *const pickles[] = {"adapter_model.bin", "pytorch_adapter.bin"};
    bool is_hub = directory_has_file(directory, CKPT_HUB_PART ".safetensors") &&
                  !directory_has_file(directory, CKPT_ADAPTER_PART ".safetensors");
    int status = open_tensors(directory, is_hub ? CKPT_HUB_PART : CKPT_ADAPTER_PART, NULL, tensors);
    if (!status)
        (*tensors)->is_strict = true;
    for (int i = 0; i < 2 && status == STATUS_NOT_FOUND; i++)
        if (directory_has_file(directory, pickles[i]))
            return status_fail(STATUS_UNSUPPORTED,
                               "%s holds only %s, a pickle, which can run code and is never read: save the adapter "
                               "again as safetensors",
                               directory, pickles[i]);
    return status;
}

int ckpt_open_adapter_bytes(const char *directory, const char *name, const void *bytes, size_t length,
                            struct ckpt_tensors **tensors) {
    int status = open_tensors(directory, name, &(const struct file_bytes){.data = bytes, .length = length}, tensors);
    if (!status)
        (*tensors)->is_strict = true;
    return status;
}

int ckpt_open_adapter_descriptor(const char *directory, const char *name, int descriptor,
                                 struct ckpt_tensors **tensors) {
    int status = open_tensors(directory, name, &(const struct file_bytes){.descriptor = descriptor}, tensors);
    if (!status)
        (*tensors)->is_strict = true;
    return status;
}

int ckpt_open_encoder(const char *directory, struct ckpt_tensors **tensors) {
    int status = open_tensors(directory, CKPT_ENCODER_PART, NULL, tensors);
    if (!status)
        (*tensors)->is_strict = true;
    return status;
}

int ckpt_open_optimizer(const char *directory, struct ckpt_tensors **tensors) {
    return open_tensors(directory, "optimizer", NULL, tensors);
}

int ckpt_open_state(const char *directory, const char *name, struct ckpt_tensors **tensors) {
    return open_tensors(directory, name, NULL, tensors);
}

int ckpt_open_source(const char *directory, const struct safetensor *list, size_t count,
                     const struct tensor_source *source, struct ckpt_tensors **out) {
    struct ckpt_tensors *tensors = *out = calloc(1, sizeof *tensors);
    if (tensors) {
        tensors->directory = strdup(directory);
        tensors->files = calloc(1, sizeof *tensors->files);
        tensors->entries = calloc(count + 1, sizeof *tensors->entries);
    }
    int status = tensors && tensors->directory && tensors->files && tensors->entries ? STATUS_OK : no_memory(directory);
    THEN(status, safetensors_open_source(directory, list, count, source, &tensors->files[0]));
    if (status) {
        ckpt_close(tensors);
        *out = NULL;
        return status;
    }
    const struct safetensors *file = tensors->files[tensors->file_count++];
    for (size_t i = 0; i < count; i++)
        tensors->entries[tensors->count++] = (struct tensor_entry){.file = file, .tensor = &file->tensors[i]};
    for (size_t i = 1; i < count && !status; i++)
        if (!strcmp(file->tensors[i - 1].name, file->tensors[i].name))
            status =
                status_fail(STATUS_INVALID, "%s: tensor '%.200s' is there twice", directory, file->tensors[i].name);
    if (status) { /* the caller still owns the source */
        free(tensors->files[0]->source);
        tensors->files[0]->source = NULL;
        ckpt_close(tensors);
        *out = NULL;
    }
    return status;
}

int ckpt_join(struct ckpt_tensors *tensors, struct ckpt_tensors *others) {
    size_t count = tensors->count + others->count, file_count = tensors->file_count + others->file_count;
    struct tensor_entry *entries = realloc(tensors->entries, (count + 1) * sizeof *entries);
    if (entries)
        tensors->entries = entries;
    struct safetensors **files = realloc(tensors->files, (file_count + 1) * sizeof(struct safetensors *));
    if (files)
        tensors->files = files;
    if (!entries || !files)
        return no_memory(tensors->directory);
    memcpy(entries + tensors->count, others->entries, others->count * sizeof *entries);
    memcpy(files + tensors->file_count, others->files, others->file_count * sizeof(struct safetensors *));
    tensors->count = count;
    tensors->file_count = file_count;
    others->count = others->file_count = 0;
    tensors_sort(tensors);
    return STATUS_OK;
}

size_t ckpt_strip(struct ckpt_tensors *tensors, const char *prefix) {
    size_t kept = 0, dropped = 0, length = strlen(prefix);
    for (size_t i = 0; i < tensors->count; i++) {
        struct tensor_entry entry = tensors->entries[i];
        if (strncmp(entry.tensor->name, prefix, length)) {
            dropped++;
            continue;
        }
        ((struct safetensor *)entry.tensor)->name += length;
        tensors->entries[kept++] = entry;
    }
    tensors->count = kept;
    return dropped;
}

void ckpt_close(struct ckpt_tensors *tensors) {
    if (!tensors)
        return;
    for (size_t i = 0; i < tensors->file_count; i++)
        safetensors_close(tensors->files[i]);
    free(tensors->files);
    free(tensors->entries);
    free(tensors->directory);
    free(tensors);
}

enum dtype ckpt_dtype(const struct ckpt_tensors *tensors) {
    enum dtype type = DTYPE_F32;
    int64_t most = -1;
    for (size_t i = 0; i < tensors->count; i++) {
        const struct safetensor *tensor = tensors->entries[i].tensor;
        bool is_float =
            !codec_of(tensors, &tensors->entries[i]) && (tensor->dtype == DTYPE_F32 || tensor->dtype == DTYPE_BF16 ||
                                                         tensor->dtype == DTYPE_F16 || tensor->dtype == DTYPE_F64);
        if (is_float && tensor->elements > most) {
            most = tensor->elements;
            type = tensor->dtype;
        }
    }
    return type;
}

size_t ckpt_count(const struct ckpt_tensors *tensors) {
    return tensors->count;
}

int64_t ckpt_elements(const struct ckpt_tensors *tensors) {
    int64_t elements = 0;
    for (size_t i = 0; i < tensors->count; i++)
        elements += tensors->entries[i].tensor->elements;
    return elements;
}

bool ckpt_has_prefix(const struct ckpt_tensors *tensors, const char *prefix) {
    for (size_t i = 0; i < tensors->count; i++)
        if (!strncmp(tensors->entries[i].tensor->name, prefix, strlen(prefix)))
            return true;
    return false;
}

size_t ckpt_optimizer_prefix(const char *name) {
    static const char *const prefixes[] = {"exp_avg.", "exp_avg_sq.", "master."};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (!strncmp(name, prefixes[i], strlen(prefixes[i])))
            return strlen(prefixes[i]);
    return 0;
}

struct tensor_entry *tensors_find_exactly(const struct ckpt_tensors *tensors, const char *name) {
    struct safetensor key = {.name = name};
    struct tensor_entry entry = {.tensor = &key};
    return tensors->count ? bsearch(&entry, tensors->entries, tensors->count, sizeof entry, compare_entries) : NULL;
}

const struct safetensor *ckpt_tensor_at(const struct ckpt_tensors *tensors, size_t index) {
    return tensors->entries[index].tensor;
}

const struct safetensor *ckpt_find_tensor(const struct ckpt_tensors *tensors, const char *name) {
    const struct tensor_entry *entry = tensors_find_exactly(tensors, name);
    return entry ? entry->tensor : NULL;
}

int ckpt_read_bytes(const struct ckpt_tensors *tensors, size_t index, int64_t first, int64_t length, void *out) {
    const struct tensor_entry *entry = &tensors->entries[index];
    return safetensors_read_bytes(entry->file, entry->tensor, first, length, out);
}

int ckpt_read_numbers(const struct ckpt_tensors *tensors, const char *name, int64_t first, int64_t count,
                      enum dtype dtype, void *out) {
    const struct tensor_entry *entry = tensors_find_exactly(tensors, name);
    return safetensors_read_finite(entry->file, entry->tensor, first, count, dtype, out);
}

bool ckpt_has_tensor(const struct ckpt_tensors *tensors, const char *name) {
    return tensors_find_exactly(tensors, name) != NULL;
}

void tensor_file_name(const struct param_files *files, const char *prefix, const char *name,
                      char out[TENSOR_NAME_BYTES]) {
    bool has_prefix = files && strcmp(name, files->head);
    snprintf(out, TENSOR_NAME_BYTES, "%s%s%s", prefix, has_prefix ? files->prefix : "", name);
}

const struct tensor_entry *tensors_find(const struct ckpt_tensors *tensors, const struct param_files *files,
                                        const char *prefix, const char *name, bool is_tied) {
    char full[TENSOR_NAME_BYTES];
    tensor_file_name(files, prefix, name, full);
    const struct tensor_entry *entry = tensors_find_exactly(tensors, full);
    if (entry)
        return entry;
    snprintf(full, sizeof full, "%s%s", prefix, name);
    entry = tensors_find_exactly(tensors, full);
    if (!entry && is_tied && !strcmp(name, files->embedding)) {
        snprintf(full, sizeof full, "%s%s", prefix, files->head);
        entry = tensors_find_exactly(tensors, full);
    }
    return entry;
}

bool table_is_tied(const struct param_table *table) {
    for (int i = table->count - 1; i >= 0 && table->files; i--)
        for (int s = 0; s < table->rows[i].slice_count; s++)
            if (!strcmp(table->rows[i].slices[s].name, table->files->head))
                return false;
    return table->files != NULL;
}
