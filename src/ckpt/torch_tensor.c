/* The pickle of a tensor is a call of torch._utils._rebuild_tensor_v2 or v3. Its storage is a persistent id. */
#include "torch_tensor.h"

#include "crc.h"

#include <zlib.h>

enum { PICKLE_LIMIT = 1 << 16, SUMMED_BYTES = 1 << 20 };

static const struct {
    const char *torch, *storage, *ours;
} types[] = {
    {"float32", "FloatStorage", "F32"},
    {"bfloat16", "BFloat16Storage", "BF16"},
    {"float16", "HalfStorage", "F16"},
    {"float64", "DoubleStorage", "F64"},
    {"int64", "LongStorage", "I64"},
    {"int32", "IntStorage", "I32"},
    {"int16", "ShortStorage", "I16"},
    {"int8", "CharStorage", "I8"},
    {"uint8", "ByteStorage", "U8"},
    {"bool", "BoolStorage", "BOOL"},
    {"uint16", NULL, "U16"},
    {"uint32", NULL, "U32"},
    {"uint64", NULL, "U64"},
    {"float8_e4m3fn", NULL, "F8_E4M3"},
    {"float8_e5m2", NULL, "F8_E5M2"},
    {"float8_e8m0fnu", NULL, "F8_E8M0"},
};
enum { TYPE_COUNT = sizeof types / sizeof *types };

const char *torch_type(const struct pickle_node *node) {
    for (int i = 0; i < TYPE_COUNT; i++)
        if (pickle_is_global(node, "torch", types[i].torch))
            return types[i].ours;
    return NULL;
}

static int find_type(const char *ours) {
    int i = 0;
    while (i < TYPE_COUNT && strcmp(types[i].ours, ours) != 0)
        i++;
    return i;
}

const char *torch_type_name(const char *type) {
    int i = find_type(type);
    return i < TYPE_COUNT ? types[i].torch : NULL;
}

const char *torch_storage_name(const char *type) {
    int i = find_type(type);
    return i < TYPE_COUNT ? types[i].storage : NULL;
}

struct reading {
    const struct pickle *pickle;
    const struct zip *zip;
    struct torch_tensor *tensor;
    int64_t elements; /* of the shape */
    int64_t width;    /* bytes of an element */
};

/* Reads ("storage", class, key, device, elements), and finds the record of that key. */
static int read_storage(struct reading *r, const struct pickle_node *node, const struct pickle_node *type,
                        struct zip_record **record) {
    char name[64] = "data/";
    const struct pickle_node *id = node->kind == PICKLE_PERSISTENT ? node->arguments : NULL;
    if (!id || id->kind != PICKLE_TUPLE || id->count != 5 || !pickle_is_text(id->items[0], "storage") ||
        id->items[1]->kind != PICKLE_GLOBAL || id->items[4]->kind != PICKLE_INTEGER)
        return pickle_refuse(r->pickle, node, "a storage: its class, key, device and size");
    const struct pickle_node *class = id->items[1];
    if (type && pickle_is_global(class, "torch.storage", "UntypedStorage"))
        r->tensor->type = torch_type(type);
    for (int i = 0; i < TYPE_COUNT && !type; i++)
        if (types[i].storage && pickle_is_global(class, "torch", types[i].storage))
            r->tensor->type = types[i].ours;
    if (!r->tensor->type)
        return pickle_refuse(r->pickle, class, "the storage of an element type that is read");
    r->width = safetensors_type_bytes(r->tensor->type);
    int64_t bytes, count = id->items[4]->integer;
    TRY(pickle_copy_text(r->pickle, id->items[2], "the key of a storage", name + 5, sizeof name - 5));
    *record = zip_find(r->zip, name);
    bool fits = *record && !__builtin_mul_overflow(count, type ? 1 : r->width, &bytes) && (*record)->bytes == bytes;
    return fits ? STATUS_OK : pickle_refuse(r->pickle, id, "a storage of the record's size");
}

/* Checks that the elements lie densely, row by row or, with two dimensions, column by column. */
static int check_strides(struct reading *r, const struct pickle_node *node) {
    struct torch_tensor *t = r->tensor;
    int64_t strides[SAFETENSORS_MAX_DIMS], dense = 1;
    int count;
    TRY(pickle_sizes(r->pickle, node, SAFETENSORS_MAX_DIMS, strides, &count));
    bool is_dense = count == t->dims;
    for (int i = t->dims - 1; i >= 0 && is_dense; i--) {
        is_dense = t->shape[i] <= 1 || strides[i] == dense;
        dense *= t->shape[i] > 1 ? t->shape[i] : 1;
    }
    t->is_transposed = !is_dense && count == 2 && t->dims == 2 && strides[0] == 1 && strides[1] == t->shape[0];
    return is_dense || t->is_transposed || !r->elements
               ? STATUS_OK
               : pickle_refuse(r->pickle, node, "elements that lie row by row, or column by column");
}

static int read_tensor(struct reading *r, const struct pickle_node *root) {
    struct torch_tensor *t = r->tensor;
    bool is_v3 = pickle_is_object(root, "torch._utils", "_rebuild_tensor_v3");
    if (!is_v3 && !pickle_is_object(root, "torch._utils", "_rebuild_tensor_v2"))
        return pickle_refuse(r->pickle, root, "a tensor");
    const struct pickle_node *const *items = root->arguments->items;
    uint32_t least = is_v3 ? 7 : 6;
    if (root->arguments->count < least || root->arguments->count > least + 1 || items[1]->kind != PICKLE_INTEGER)
        return pickle_refuse(r->pickle, root, "a tensor's storage, offset, size and stride");
    struct zip_record *record = NULL;
    TRY(read_storage(r, items[0], is_v3 ? items[6] : NULL, &record));
    TRY(pickle_sizes(r->pickle, items[2], SAFETENSORS_MAX_DIMS, t->shape, &t->dims));
    int64_t most = record->bytes / r->width, offset = items[1]->integer;
    r->elements = 1;
    for (int i = 0; i < t->dims; i++)
        if (__builtin_mul_overflow(r->elements, t->shape[i], &r->elements))
            return pickle_refuse(r->pickle, items[2], "a shape whose elements fit 64 bits");
    if (offset < 0 || r->elements > most || offset > most - r->elements)
        return pickle_refuse(r->pickle, items[2], "a shape within the storage");
    int status = check_strides(r, items[3]);
    THEN(status, zip_locate(r->zip, record));
    t->record_start = record->start;
    t->record_bytes = record->bytes;
    t->start = record->start + offset * r->width;
    t->crc = record->crc;
    return status;
}

/* Checks the records around the elements. */
static int check_records(const struct zip *zip, struct zip_record **pickle) {
    int storages = 0;
    for (size_t i = 0; i < zip->count; i++)
        storages += zip->records[i].length > 5 && !memcmp(zip->records[i].name, "data/", 5);
    *pickle = zip_find(zip, "data.pkl");
    if (!*pickle || storages != 1)
        return status_fail(STATUS_INVALID, "%s: byte %lld: expected an archive with data.pkl and one storage, found %d",
                           zip->path, (long long)zip->start, storages);
    struct zip_record *order = zip_find(zip, "byteorder");
    char *text = NULL;
    int status = order ? zip_read(zip, order, 16, &text) : STATUS_OK;
    if (!status && order && (order->bytes != 6 || memcmp(text, "little", 6)))
        status = status_fail(STATUS_UNSUPPORTED, "%s: byte %lld: expected the byte order 'little'", zip->path,
                             (long long)order->start);
    free(text);
    return status;
}

int torch_tensor_read(const char *path, int descriptor, int64_t start, int64_t bytes, struct torch_tensor *tensor) {
    struct zip zip;
    struct zip_record *record;
    struct pickle *pickle = NULL;
    char *text = NULL;
    *tensor = (struct torch_tensor){0};
    int status = zip_open(&zip, path, descriptor, start, bytes);
    THEN(status, check_records(&zip, &record));
    THEN(status, zip_read(&zip, record, PICKLE_LIMIT, &text));
    THEN(status, pickle_read(path, record->start, text, (size_t)record->bytes, NULL, &pickle));
    if (!status)
        status = read_tensor(&(struct reading){.pickle = pickle, .zip = &zip, .tensor = tensor}, pickle_root(pickle));
    pickle_free(pickle);
    free(text);
    zip_close(&zip);
    return status;
}

/* Adds up piece `index` of the record. */
static int sum_piece(const char *path, int descriptor, const struct torch_tensor *tensor, int64_t index,
                     uint32_t *sum) {
    int64_t at = index * SUMMED_BYTES, left = tensor->record_bytes - at;
    size_t bytes = (size_t)(left < SUMMED_BYTES ? left : SUMMED_BYTES);
    unsigned char *piece = malloc(bytes + 1);
    int status = status_allocated(piece);
    THEN(status, file_pread_all(descriptor, piece, bytes, tensor->record_start + at, path));
    if (!status)
        *sum = crc_add(0, piece, bytes);
    free(piece);
    return status;
}

int torch_tensor_check(const char *path, int descriptor, const struct torch_tensor *tensor) {
    int64_t pieces = (tensor->record_bytes + SUMMED_BYTES - 1) / SUMMED_BYTES, failed = pieces;
    uint32_t *sums = calloc((size_t)pieces + 1, sizeof *sums), sum = 0;
    int found = STATUS_OK;
    TRY(status_allocated(sums));
#pragma omp parallel for num_threads(usable_cores()) schedule(static) reduction(min : failed, found) if (pieces > 1)
    for (int64_t i = 0; i < pieces; i++) {
        int result = sum_piece(path, descriptor, tensor, i, &sums[i]);
        failed = result && i < failed ? i : failed;
        found = result < found ? result : found;
    }
    for (int64_t i = 0; i < pieces; i++) {
        int64_t left = tensor->record_bytes - i * SUMMED_BYTES;
        sum = (uint32_t)crc32_combine(sum, sums[i], left < SUMMED_BYTES ? left : SUMMED_BYTES);
    }
    free(sums);
    if (found) /* the text of an error belongs to its thread */
        return status_fail(found, "%s: cannot read byte %lld and those after it%s", path,
                           (long long)(tensor->record_start + failed * SUMMED_BYTES),
                           found == STATUS_MEMORY ? ": out of memory" : "");
    if (sum != tensor->crc)
        return status_fail(STATUS_INVALID, "%s: byte %lld: expected bytes with the sum that the archive has for them",
                           path, (long long)tensor->record_start);
    return STATUS_OK;
}
