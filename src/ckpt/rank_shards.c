/* Directories of safetensors files without an index. Files of PyTorch's HuggingFaceStorageWriter say in their metadata,
 * as JSON, where each of their tensors lies in the whole one. */
#include "boxes.h"
#include "exchange.h"

#define SHARDING_KEY "DCP_SHARDING_INFO"

/* One tensor of one file. */
struct part {
    const char *name;
    const struct safetensor *tensor;
    size_t file; /* in the order of names */
    int64_t offsets[SAFETENSORS_MAX_DIMS];
};

struct parts {
    const char *directory;
    char **names; /* of the files */
    size_t name_count;
    struct safetensors **files; /* [name_count] */
    struct part *items;
    size_t count, capacity;
};

/* Reads where a tensor lies in the whole one. */
static int read_offsets(const struct safetensors *file, const json_t *info, const struct safetensor *tensor,
                        int64_t *offsets) {
    char word[SHOWN_BYTES];
    const json_t *list = json_object_get(json_object_get(info, tensor->name), "saved_offsets");
    bool is_good = json_is_array(list) && json_array_size(list) == (size_t)tensor->dims;
    for (int i = 0; i < tensor->dims && is_good; i++) {
        const json_t *offset = json_array_get(list, (size_t)i);
        offsets[i] = json_integer_value(offset);
        is_good = json_is_integer(offset) && offsets[i] >= 0 && offsets[i] <= INT64_MAX - tensor->shape[i];
    }
    return is_good ? STATUS_OK
                   : status_fail(STATUS_INVALID, "%s: tensor '%s': expected %d offsets in " SHARDING_KEY, file->path,
                                 shown(tensor->name, word), tensor->dims);
}

static int add_file(struct parts *parts, size_t index) {
    char path[PATH_MAX];
    json_t *info = NULL;
    int status = file_join(path, sizeof path, parts->directory, parts->names[index]);
    THEN(status, safetensors_open(path, &parts->files[index]));
    const struct safetensors *file = status ? NULL : parts->files[index];
    const char *text = file ? safetensors_metadata(file, SHARDING_KEY) : NULL;
    if (text)
        status = json_object_parse(path, 0, text, strlen(text), &info);
    THEN(status, array_reserve(&parts->items, &parts->capacity, parts->count + file->count + 1, sizeof *parts->items));
    for (size_t i = 0; !status && i < file->count; i++) {
        const struct safetensor *tensor = &file->tensors[i];
        struct part part = {.name = tensor->name, .tensor = tensor, .file = index};
        status = info ? read_offsets(file, info, tensor, part.offsets) : STATUS_OK;
        parts->items[parts->count++] = part;
    }
    json_decref(info);
    return status;
}

static int compare_parts(const void *a, const void *b) {
    const struct part *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : (x->file > y->file) - (x->file < y->file);
}

/* Adds the tensor of parts [first, end): its shape is the largest place that one of them reaches. */
static int add_tensor(const struct parts *parts, size_t first, size_t end, struct boxes *boxes) {
    const struct part *items = parts->items;
    const struct safetensor *tensor = items[first].tensor;
    int64_t shape[SAFETENSORS_MAX_DIMS] = {0};
    char word[SHOWN_BYTES];
    for (size_t i = first; i < end; i++) {
        if (items[i].tensor->dims != tensor->dims || strcmp(items[i].tensor->type, tensor->type))
            return status_fail(STATUS_INVALID, "%s: the parts of tensor '%s' differ in type or dimensions",
                               parts->directory, shown(tensor->name, word));
        for (int d = 0; d < tensor->dims; d++) {
            int64_t size = items[i].offsets[d] + items[i].tensor->shape[d];
            shape[d] = size > shape[d] ? size : shape[d];
        }
    }
    int status = boxes_add_tensor(boxes, tensor->name, tensor->type, tensor->dims, shape);
    for (size_t i = first; i < end && !status; i++) {
        const struct safetensor *t = items[i].tensor;
        struct box box = {.offsets = items[i].offsets, .sizes = t->shape, .start = t->start, .bytes = t->bytes};
        status = boxes_add_file(boxes, parts->directory, parts->names[items[i].file], &box.file);
        THEN(status, boxes_add(boxes, &box));
    }
    return status;
}

static int add_all(struct parts *parts, struct boxes *boxes) {
    int status = STATUS_OK;
    for (size_t i = 0; i < parts->name_count && !status; i++)
        if (exchange_is_safetensors(parts->names[i]))
            status = add_file(parts, i);
    if (!status && parts->count)
        qsort(parts->items, parts->count, sizeof *parts->items, compare_parts);
    for (size_t first = 0, end; first < parts->count && !status; first = end) {
        end = first + 1;
        while (end < parts->count && !strcmp(parts->items[first].name, parts->items[end].name))
            end++;
        status = add_tensor(parts, first, end, boxes);
    }
    return status;
}

int exchange_open_safetensors(const char *directory, struct ckpt_tensors **tensors) {
    struct parts parts = {.directory = directory};
    struct boxes *boxes = NULL;
    *tensors = NULL;
    TRY(file_list(directory, &parts.names, &parts.name_count));
    parts.files = calloc(parts.name_count + 1, sizeof(struct safetensors *));
    int status = parts.files ? boxes_new(directory, &boxes) : status_no_memory();
    THEN(status, add_all(&parts, boxes));
    if (!status)
        status = boxes_open(boxes, tensors);
    else
        boxes_free(boxes);
    for (size_t i = 0; i < parts.name_count && parts.files; i++)
        safetensors_close(parts.files[i]);
    free(parts.files);
    free(parts.items);
    file_list_free(parts.names, parts.name_count);
    return status;
}
