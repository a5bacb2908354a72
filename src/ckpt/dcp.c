/* Reads the `.metadata` of PyTorch's distributed checkpoint: one object that lists tensors, their boxes, and where each
 * box lies. torch/distributed/checkpoint/metadata.py defines it. */
#include "boxes.h"
#include "exchange.h"
#include "pickle.h"
#include "torch_tensor.h"

#include <stdlib.h>
#include <string.h>

enum { METADATA_LIMIT = 1 << 30 };

/* An entry of storage_data: where a box lies. */
struct stored {
    const struct pickle_node *name; /* a text */
    int64_t offsets[SAFETENSORS_MAX_DIMS];
    int dims; /* -1: an object */
    const struct pickle_node *place;
};

struct dcp {
    char path[PATH_MAX];
    struct strbuf text;
    struct pickle *pickle;
    const struct pickle_node *tensors, *storage;
    struct stored *stored; /* sorted */
    size_t stored_count;
    struct boxes *boxes;
    int64_t objects;
};

static bool is_ours(const struct pickle_node *node, const char *class) {
    return pickle_is_object(node, DCP_MODULE, class);
}

/* Finds an attribute that must be there. */
static int need(const struct dcp *d, const struct pickle_node *object, const char *name,
                const struct pickle_node **value) {
    int status = pickle_find(d->pickle, object, name, value);
    return status || *value ? status : pickle_refuse(d->pickle, object, "the attribute '%s'", name);
}

static int read_metadata(struct dcp *d, const char *directory) {
    int status = file_join(d->path, sizeof d->path, directory, DCP_LIST_FILE);
    if (!status)
        status = file_read(d->path, METADATA_LIMIT, &d->text);
    if (!status)
        status = pickle_read(d->path, 0, strbuf_text(&d->text), d->text.length, &d->pickle);
    if (status)
        return status;
    const struct pickle_node *root = pickle_root(d->pickle);
    if (!is_ours(root, "Metadata"))
        return pickle_refuse(d->pickle, root, "an object of " DCP_MODULE ".Metadata");
    status = need(d, root, "state_dict_metadata", &d->tensors);
    if (!status)
        status = need(d, root, "storage_data", &d->storage);
    if (!status && (d->tensors->kind != PICKLE_DICT || d->storage->kind != PICKLE_DICT))
        status = pickle_refuse(d->pickle, root, "dicts as state_dict_metadata and storage_data");
    return status;
}

/* ---- where boxes lie ---- */

static int compare_stored(const void *a, const void *b) {
    const struct stored *x = a, *y = b;
    uint32_t length = x->name->count < y->name->count ? x->name->count : y->name->count;
    int order = memcmp(x->name->text, y->name->text, length);
    if (!order)
        order = (x->name->count > y->name->count) - (x->name->count < y->name->count);
    if (!order)
        order = x->dims - y->dims;
    for (int i = 0; i < x->dims && !order; i++)
        order = (x->offsets[i] > y->offsets[i]) - (x->offsets[i] < y->offsets[i]);
    return order;
}

static int read_index(const struct dcp *d, const struct pickle_node *key, struct stored *stored) {
    const struct pickle_node *offset;
    if (!is_ours(key, "MetadataIndex"))
        return pickle_refuse(d->pickle, key, "a MetadataIndex as key of storage_data");
    int status = need(d, key, "fqn", &stored->name);
    if (!status && stored->name->kind != PICKLE_TEXT)
        status = pickle_refuse(d->pickle, key, "a name as fqn");
    if (!status)
        status = pickle_find(d->pickle, key, "offset", &offset); /* an object has none */
    stored->dims = -1;
    if (!status && offset && offset->kind != PICKLE_NONE)
        status = pickle_sizes(d->pickle, offset, SAFETENSORS_MAX_DIMS, stored->offsets, &stored->dims);
    return status;
}

static int read_storage(struct dcp *d) {
    size_t count = d->storage->count / 2;
    int status = STATUS_OK;
    d->stored = calloc(count + 1, sizeof *d->stored);
    if (!d->stored)
        return status_fail(STATUS_MEMORY, "%s: out of memory", d->path);
    for (size_t i = 0; i < count && !status; i++) {
        d->stored[i].place = d->storage->items[2 * i + 1];
        status = read_index(d, d->storage->items[2 * i], &d->stored[i]);
    }
    if (status)
        return status;
    d->stored_count = count;
    if (count)
        qsort(d->stored, count, sizeof *d->stored, compare_stored);
    for (size_t i = 1; i < count; i++)
        if (!compare_stored(&d->stored[i - 1], &d->stored[i]))
            return pickle_refuse(d->pickle, d->stored[i].name, "each part of a tensor once in storage_data");
    return STATUS_OK;
}

/* Fills the place of a box from its _StorageInfo. */
static int read_place(const struct dcp *d, const struct pickle_node *place, struct box *box) {
    const struct pickle_node *path, *offset, *length;
    char name[BOXES_NAME_BYTES];
    if (!pickle_is_object(place, DCP_PLACE_MODULE, "_StorageInfo"))
        return pickle_refuse(d->pickle, place, "a _StorageInfo as value of storage_data");
    int status = need(d, place, "relative_path", &path);
    if (!status)
        status = need(d, place, "offset", &offset);
    if (!status)
        status = need(d, place, "length", &length);
    if (!status && (offset->kind != PICKLE_INTEGER || length->kind != PICKLE_INTEGER))
        status = pickle_refuse(d->pickle, place, "numbers as offset and length");
    if (!status)
        status = pickle_copy_text(d->pickle, path, "relative_path", name, sizeof name);
    if (status)
        return status;
    box->start = offset->integer;
    box->bytes = length->integer;
    return boxes_add_file(d->boxes, d->path, name, &box->file);
}

/* ---- tensors ---- */

static int add_box(const struct dcp *d, const struct pickle_node *name, const struct pickle_node *chunk, int dims) {
    const struct pickle_node *offsets, *sizes;
    struct box box = {.is_archive = true};
    int found = 0;
    if (!is_ours(chunk, "ChunkStorageMetadata"))
        return pickle_refuse(d->pickle, chunk, "a ChunkStorageMetadata");
    int status = need(d, chunk, "offsets", &offsets);
    if (!status)
        status = need(d, chunk, "sizes", &sizes);
    if (!status)
        status = pickle_sizes(d->pickle, offsets, SAFETENSORS_MAX_DIMS, box.offsets, &found);
    if (!status && found == dims)
        status = pickle_sizes(d->pickle, sizes, SAFETENSORS_MAX_DIMS, box.sizes, &found);
    if (!status && found != dims)
        status = pickle_refuse(d->pickle, chunk, "offsets and sizes of %d dimensions", dims);
    for (int i = 0; i < dims && !status; i++)
        if (!box.sizes[i]) /* a rank without a part */
            return STATUS_OK;
    if (status)
        return status;
    struct stored key = {.name = name, .dims = dims};
    memcpy(key.offsets, box.offsets, sizeof key.offsets);
    const struct stored *stored =
        d->stored_count ? bsearch(&key, d->stored, d->stored_count, sizeof key, compare_stored) : NULL;
    if (!stored)
        return pickle_refuse(d->pickle, chunk, "a place for this part in storage_data");
    status = read_place(d, stored->place, &box);
    return status ? status : boxes_add(d->boxes, &box);
}

/* Reads the element type from TensorProperties: an object with the state (dtype, ...), or with attributes. */
static int read_type(const struct dcp *d, const struct pickle_node *object, const char **type) {
    const struct pickle_node *properties, *dtype = NULL;
    int status = need(d, object, "properties", &properties);
    if (!status && !is_ours(properties, "TensorProperties"))
        status = pickle_refuse(d->pickle, properties, "TensorProperties");
    if (status)
        return status;
    if (properties->state && properties->state->kind == PICKLE_TUPLE && properties->state->count)
        dtype = properties->state->items[0];
    else
        status = need(d, properties, "dtype", &dtype);
    *type = status ? NULL : torch_type(dtype);
    return status || *type ? status : pickle_refuse(d->pickle, dtype, "an element type that is read");
}

static int add_tensor(struct dcp *d, const struct pickle_node *key, const struct pickle_node *value) {
    const struct pickle_node *size, *chunks;
    char name[BOXES_NAME_BYTES];
    const char *type = NULL;
    int64_t shape[SAFETENSORS_MAX_DIMS];
    int dims = 0;
    int status = pickle_copy_text(d->pickle, key, "a tensor's name", name, sizeof name);
    if (status)
        return status;
    if (is_ours(value, "BytesStorageMetadata")) {
        d->objects++;
        return STATUS_OK;
    }
    if (!is_ours(value, "TensorStorageMetadata"))
        return pickle_refuse(d->pickle, value, "TensorStorageMetadata or BytesStorageMetadata of '%s'", name);
    status = read_type(d, value, &type);
    if (!status)
        status = need(d, value, "size", &size);
    if (!status)
        status = pickle_sizes(d->pickle, size, SAFETENSORS_MAX_DIMS, shape, &dims);
    if (!status)
        status = need(d, value, "chunks", &chunks);
    if (!status && chunks->kind != PICKLE_LIST)
        status = pickle_refuse(d->pickle, chunks, "a list of chunks");
    if (!status)
        status = boxes_add_tensor(d->boxes, name, type, dims, shape);
    for (uint32_t i = 0; !status && i < chunks->count; i++)
        status = add_box(d, key, chunks->items[i], dims);
    return status;
}

int exchange_open_dcp(const char *directory, struct ckpt_tensors **tensors, int64_t *objects) {
    struct dcp d = {.text = STRBUF_INIT};
    *tensors = NULL;
    int status = boxes_new(directory, &d.boxes);
    if (!status)
        status = read_metadata(&d, directory);
    if (!status)
        status = read_storage(&d);
    for (uint32_t i = 0; !status && i + 1 < d.tensors->count; i += 2)
        status = add_tensor(&d, d.tensors->items[i], d.tensors->items[i + 1]);
    if (!status)
        status = boxes_open(d.boxes, tensors);
    else
        boxes_free(d.boxes);
    *objects = d.objects;
    free(d.stored);
    pickle_free(d.pickle);
    strbuf_free(&d.text);
    return status;
}
