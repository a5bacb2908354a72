/* Reads the `.metadata` of PyTorch's distributed checkpoint: one object that lists tensors, their boxes, and where each
 * box lies. torch/distributed/checkpoint/metadata.py defines it. */
#include "boxes.h"
#include "exchange.h"
#include "pickle.h"
#include "torch_tensor.h"

enum { METADATA_LIMIT = 1 << 30 };

/* A text of the pickle. */
struct text {
    const char *bytes;
    uint32_t length;
};

/* Objects of the list that are read when they are complete; what stays of one is a row of its class's table. Sizes lie
 * in `numbers`, from a place on. */
enum class { CLASS_PART, CLASS_INDEX, CLASS_PLACE, CLASS_TENSOR, CLASS_COUNT };

/* A ChunkStorageMetadata: offsets, then sizes. */
struct part {
    size_t numbers;
    uint32_t at; /* byte of the list */
    int dims;
};

/* A MetadataIndex: which part is stored; -1 dimensions: an object. */
struct index {
    struct text name;
    uint32_t at;
    int dims;
    size_t numbers;
};

/* A _StorageInfo: where something lies. */
struct place {
    int64_t start, bytes;
    size_t file;
};

/* A TensorStorageMetadata: its shape, and its parts in part_numbers. */
struct listed_tensor {
    const char *type;
    size_t numbers, parts;
    uint32_t count;
    int dims;
};

/* An entry of storage_data. */
struct stored {
    const struct pickle_node *place;
    uint32_t index;
};

struct table {
    void *rows;
    size_t count, capacity;
};

struct dcp {
    char path[PATH_MAX];
    struct strbuf text;
    struct pickle *pickle;
    const struct pickle_node *tensors, *storage;
    struct table tables[CLASS_COUNT], numbers, part_numbers;
    struct stored *stored; /* sorted */
    size_t stored_count;
    struct boxes *boxes;
    int64_t objects;
};

/* Finds an attribute that must be there. */
static int need(const struct pickle *pickle, const struct pickle_node *object, const char *name,
                const struct pickle_node **value) {
    int status = pickle_find(pickle, object, name, value);
    return status || *value ? status : pickle_refuse(pickle, object, "the attribute '%s'", name);
}

/* ---- tables ---- */

/* Adds a row of `bytes`. STATUS_MEMORY. */
static int add_row(struct table *table, const void *row, size_t bytes) {
    TRY(array_reserve(&table->rows, &table->capacity, table->count + 1, bytes));
    memcpy((char *)table->rows + table->count++ * bytes, row, bytes);
    return STATUS_OK;
}

static const int64_t *numbers_at(const struct dcp *d, size_t place) {
    return (const int64_t *)d->numbers.rows + place;
}

/* Appends the sizes of a node to the numbers. */
static int add_sizes(struct dcp *d, const struct pickle *pickle, const struct pickle_node *node, int *dims) {
    int64_t sizes[SAFETENSORS_MAX_DIMS];
    int status = pickle_sizes(pickle, node, SAFETENSORS_MAX_DIMS, sizes, dims);
    for (int i = 0; i < *dims && !status; i++)
        status = add_row(&d->numbers, &sizes[i], sizeof *sizes);
    return status;
}

static int read_part(struct dcp *d, const struct pickle *pickle, const struct pickle_node *object) {
    const struct pickle_node *offsets, *sizes;
    struct part part = {.numbers = d->numbers.count, .at = object->at};
    int found = 0;
    int status = need(pickle, object, "offsets", &offsets);
    THEN(status, need(pickle, object, "sizes", &sizes));
    THEN(status, add_sizes(d, pickle, offsets, &part.dims));
    THEN(status, add_sizes(d, pickle, sizes, &found));
    THEN_IF(status, found != part.dims, pickle_refuse(pickle, object, "offsets and sizes of %d dimensions", part.dims));
    return status ? status : add_row(&d->tables[CLASS_PART], &part, sizeof part);
}

static int read_index(struct dcp *d, const struct pickle *pickle, const struct pickle_node *object) {
    const struct pickle_node *name, *offset = NULL;
    struct index index = {.numbers = d->numbers.count, .at = object->at, .dims = -1};
    int status = need(pickle, object, "fqn", &name);
    THEN_IF(status, name->kind != PICKLE_TEXT, pickle_refuse(pickle, object, "a name as fqn"));
    THEN(status, pickle_find(pickle, object, "offset", &offset)); /* an object has none */
    THEN_IF(status, offset && offset->kind != PICKLE_NONE, add_sizes(d, pickle, offset, &index.dims));
    TRY(status);
    index.name = (struct text){name->text, name->count};
    return add_row(&d->tables[CLASS_INDEX], &index, sizeof index);
}

static int read_place(struct dcp *d, const struct pickle *pickle, const struct pickle_node *object) {
    const struct pickle_node *path, *offset, *length;
    char name[BOXES_NAME_BYTES];
    struct place place;
    int status = need(pickle, object, "relative_path", &path);
    THEN(status, need(pickle, object, "offset", &offset));
    THEN(status, need(pickle, object, "length", &length));
    if (!status && (offset->kind != PICKLE_INTEGER || length->kind != PICKLE_INTEGER))
        status = pickle_refuse(pickle, object, "numbers as offset and length");
    THEN(status, pickle_copy_text(pickle, path, "relative_path", name, sizeof name));
    THEN(status, boxes_add_file(d->boxes, d->path, name, &place.file));
    TRY(status);
    place.start = offset->integer;
    place.bytes = length->integer;
    return add_row(&d->tables[CLASS_PLACE], &place, sizeof place);
}

/* Reads the element type from TensorProperties: an object with the state (dtype, ...), or with attributes. */
static int read_type(const struct pickle *pickle, const struct pickle_node *object, const char **type) {
    const struct pickle_node *properties, *dtype = NULL;
    int status = need(pickle, object, "properties", &properties);
    if (!status && !pickle_is_object(properties, DCP_MODULE, "TensorProperties"))
        status = pickle_refuse(pickle, properties, "TensorProperties");
    TRY(status);
    if (properties->state && properties->state->kind == PICKLE_TUPLE && properties->state->count)
        dtype = properties->state->items[0];
    else
        status = need(pickle, properties, "dtype", &dtype);
    *type = status ? NULL : torch_type(dtype);
    return status || *type ? status : pickle_refuse(pickle, dtype, "an element type that is read");
}

static int number_of(struct dcp *d, const struct pickle *pickle, const struct pickle_node *node, enum class class,
                     uint32_t *number);

static int read_tensor(struct dcp *d, const struct pickle *pickle, const struct pickle_node *object) {
    const struct pickle_node *size, *chunks;
    struct listed_tensor tensor = {.parts = d->part_numbers.count};
    int status = read_type(pickle, object, &tensor.type);
    THEN(status, need(pickle, object, "size", &size));
    tensor.numbers = d->numbers.count;
    THEN(status, add_sizes(d, pickle, size, &tensor.dims));
    THEN(status, need(pickle, object, "chunks", &chunks));
    THEN_IF(status, chunks->kind != PICKLE_LIST, pickle_refuse(pickle, chunks, "a list of chunks"));
    for (uint32_t i = 0; !status && i < chunks->count; i++) {
        uint32_t number;
        status = number_of(d, pickle, chunks->items[i], CLASS_PART, &number);
        THEN(status, add_row(&d->part_numbers, &number, sizeof number));
    }
    TRY(status);
    tensor.count = chunks->count;
    return add_row(&d->tables[CLASS_TENSOR], &tensor, sizeof tensor);
}

static const struct {
    const char *module, *name, *expected;
    int (*read)(struct dcp *d, const struct pickle *pickle, const struct pickle_node *object);
} classes[CLASS_COUNT] = {
    [CLASS_PART] = {DCP_MODULE, "ChunkStorageMetadata", "a ChunkStorageMetadata", read_part},
    [CLASS_INDEX] = {DCP_MODULE, "MetadataIndex", "a MetadataIndex as key of storage_data", read_index},
    [CLASS_PLACE] = {DCP_PLACE_MODULE, "_StorageInfo", "a _StorageInfo as value of storage_data", read_place},
    [CLASS_TENSOR] = {DCP_MODULE, "TensorStorageMetadata", "TensorStorageMetadata or BytesStorageMetadata",
                      read_tensor},
};

/* Takes an object of these classes. One that is not as it should be stays what it is: perhaps nobody needs it. */
static int take(void *context, const struct pickle *pickle, const struct pickle_node *object, int64_t *number) {
    struct dcp *d = context;
    int class = 0;
    while (class < CLASS_COUNT && !pickle_is_object(object, classes[class].module, classes[class].name))
        class ++;
    int status = class < CLASS_COUNT ? classes[class].read(d, pickle, object) : STATUS_INVALID;
    if (!status)
        *number = (int64_t)(d->tables[class].count - 1) * CLASS_COUNT + class;
    return status == STATUS_MEMORY ? status : STATUS_OK;
}

/* Finds the row of an object that must have this class. */
static int number_of(struct dcp *d, const struct pickle *pickle, const struct pickle_node *node, enum class class,
                     uint32_t *number) {
    bool is_taken = node->kind == PICKLE_TAKEN && node->integer % CLASS_COUNT == class;
    *number = is_taken ? (uint32_t)(node->integer / CLASS_COUNT) : (uint32_t)d->tables[class].count;
    if (is_taken)
        return STATUS_OK;
    return pickle_is_object(node, classes[class].module, classes[class].name)
               ? classes[class].read(d, pickle, node)
               : pickle_refuse(pickle, node, "%s", classes[class].expected);
}

/* ---- the list ---- */

static int read_metadata(struct dcp *d, const char *directory) {
    const struct pickle_taker taker = {.take = take, .context = d};
    TRY(file_join(d->path, sizeof d->path, directory, DCP_LIST_FILE));
    TRY(file_read(d->path, METADATA_LIMIT, &d->text));
    TRY(pickle_read(d->path, 0, strbuf_text(&d->text), d->text.length, &taker, &d->pickle));
    const struct pickle_node *root = pickle_root(d->pickle);
    if (!pickle_is_object(root, DCP_MODULE, "Metadata"))
        return pickle_refuse(d->pickle, root, "an object of " DCP_MODULE ".Metadata");
    int status = need(d->pickle, root, "state_dict_metadata", &d->tensors);
    THEN(status, need(d->pickle, root, "storage_data", &d->storage));
    if (!status && (d->tensors->kind != PICKLE_DICT || d->storage->kind != PICKLE_DICT))
        status = pickle_refuse(d->pickle, root, "dicts as state_dict_metadata and storage_data");
    return status;
}

/* ---- where parts lie ---- */

/* The part that an entry of storage_data places. */
struct key {
    struct text name;
    const int64_t *offsets;
    int dims;
};

static struct key key_of(const struct dcp *d, const struct stored *stored) {
    const struct index *index = (const struct index *)d->tables[CLASS_INDEX].rows + stored->index;
    return (struct key){index->name, numbers_at(d, index->numbers), index->dims};
}

static int compare_keys(const struct key *x, const struct key *y) {
    uint32_t length = x->name.length < y->name.length ? x->name.length : y->name.length;
    int order = x->name.bytes == y->name.bytes ? 0 : memcmp(x->name.bytes, y->name.bytes, length);
    if (!order)
        order = (x->name.length > y->name.length) - (x->name.length < y->name.length);
    if (!order)
        order = x->dims - y->dims;
    for (int i = 0; i < x->dims && !order; i++)
        order = (x->offsets[i] > y->offsets[i]) - (x->offsets[i] < y->offsets[i]);
    return order;
}

static int compare_stored(const void *a, const void *b, void *context) {
    const struct key x = key_of(context, a), y = key_of(context, b);
    return compare_keys(&x, &y);
}

/* Makes the sorted list of what is stored. */
static int read_storage(struct dcp *d) {
    size_t count = d->storage->count / 2;
    int status = STATUS_OK;
    d->stored = calloc(count + 1, sizeof *d->stored);
    if (!d->stored)
        return status_fail(STATUS_MEMORY, "%s: out of memory", d->path);
    for (size_t i = 0; i < count && !status; i++) {
        d->stored[i].place = d->storage->items[2 * i + 1];
        status = number_of(d, d->pickle, d->storage->items[2 * i], CLASS_INDEX, &d->stored[i].index);
    }
    TRY(status);
    d->stored_count = count;
    qsort_r(d->stored, count, sizeof *d->stored, compare_stored, d);
    for (size_t i = 1; i < count; i++)
        if (!compare_stored(&d->stored[i - 1], &d->stored[i], d)) {
            const struct index *index = (const struct index *)d->tables[CLASS_INDEX].rows + d->stored[i].index;
            return pickle_refuse(d->pickle, &(struct pickle_node){.at = index->at},
                                 "each part of a tensor once in storage_data");
        }
    return STATUS_OK;
}

static const struct stored *find_stored(const struct dcp *d, const struct key *key) {
    size_t low = 0, high = d->stored_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct key found = key_of(d, &d->stored[middle]);
        int order = compare_keys(key, &found);
        if (!order)
            return &d->stored[middle];
        low = order > 0 ? middle + 1 : low;
        high = order > 0 ? high : middle;
    }
    return NULL;
}

/* ---- tensors ---- */

/* Adds a part to the tensor of this name. */
static int add_part(struct dcp *d, struct text name, const struct part *part, int dims) {
    const struct pickle_node node = {.at = part->at};
    const int64_t *offsets = numbers_at(d, part->numbers), *sizes = offsets + part->dims;
    uint32_t number;
    if (part->dims != dims)
        return pickle_refuse(d->pickle, &node, "offsets and sizes of %d dimensions", dims);
    for (int i = 0; i < dims; i++)
        if (!sizes[i]) /* a rank without a part */
            return STATUS_OK;
    const struct stored *stored = find_stored(d, &(struct key){name, offsets, dims});
    if (!stored)
        return pickle_refuse(d->pickle, &node, "a place for this part in storage_data");
    TRY(number_of(d, d->pickle, stored->place, CLASS_PLACE, &number));
    const struct place *place = (const struct place *)d->tables[CLASS_PLACE].rows + number;
    const struct box box = {.offsets = offsets,
                            .sizes = sizes,
                            .file = place->file,
                            .start = place->start,
                            .bytes = place->bytes,
                            .is_archive = true};
    return boxes_add(d->boxes, &box);
}

static int add_tensor(struct dcp *d, const struct pickle_node *key, const struct pickle_node *value) {
    char name[BOXES_NAME_BYTES];
    uint32_t number;
    TRY(pickle_copy_text(d->pickle, key, "a tensor's name", name, sizeof name));
    if (pickle_is_object(value, DCP_MODULE, "BytesStorageMetadata")) {
        d->objects++;
        return STATUS_OK;
    }
    if (value->kind != PICKLE_TAKEN && !pickle_is_object(value, DCP_MODULE, classes[CLASS_TENSOR].name))
        return pickle_refuse(d->pickle, value, "TensorStorageMetadata or BytesStorageMetadata of '%s'", name);
    TRY(number_of(d, d->pickle, value, CLASS_TENSOR, &number));
    const struct listed_tensor tensor = ((const struct listed_tensor *)d->tables[CLASS_TENSOR].rows)[number];
    int status = boxes_add_tensor(d->boxes, name, tensor.type, tensor.dims, numbers_at(d, tensor.numbers));
    for (uint32_t i = 0; !status && i < tensor.count; i++) {
        uint32_t part = ((const uint32_t *)d->part_numbers.rows)[tensor.parts + i];
        status = add_part(d, (struct text){key->text, key->count},
                          (const struct part *)d->tables[CLASS_PART].rows + part, tensor.dims);
    }
    return status;
}

static int read_list(struct dcp *d, const char *directory) {
    int status = read_metadata(d, directory);
    THEN(status, read_storage(d));
    for (uint32_t i = 0; !status && i + 1 < d->tensors->count; i += 2)
        status = add_tensor(d, d->tensors->items[i], d->tensors->items[i + 1]);
    for (int i = 0; i < CLASS_COUNT; i++)
        free(d->tables[i].rows);
    free(d->numbers.rows);
    free(d->part_numbers.rows);
    free(d->stored);
    pickle_free(d->pickle);
    strbuf_free(&d->text);
    return status;
}

int exchange_open_dcp(const char *directory, struct ckpt_tensors **tensors, int64_t *objects) {
    struct dcp d = {.text = STRBUF_INIT};
    *tensors = NULL;
    int status = boxes_new(directory, &d.boxes);
    THEN(status, read_list(&d, directory));
    if (!status)
        status = boxes_open(d.boxes, tensors);
    else
        boxes_free(d.boxes);
    *objects = d.objects;
    return status;
}
