/* The header of a GGUF file is made in memory; tensors follow it row by row, rounded by gguf_round.c. */
#include "gguf_write.h"

#include "gguf-internal.h"
#include "gguf_round.h"

#include <math.h>

enum { ALIGNMENT = 32, VERSION = 3 };

/* Stores a number in 16 bits; returns false when it is too large for them. */
static bool store_f16(const float *value, unsigned char *out) {
    uint16_t bits = f16_from_float(*value);
    memcpy(out, &bits, sizeof bits);
    return isfinite(f16_to_float(bits));
}

static bool store_bf16(const float *value, unsigned char *out) {
    uint16_t bits = bf16_from_float(*value);
    memcpy(out, &bits, sizeof bits);
    return isfinite(bf16_to_float(bits));
}

static bool store_f32(const float *value, unsigned char *out) {
    memcpy(out, value, sizeof *value);
    return true;
}

static const struct {
    uint32_t number, file_type; /* in the format */
    int elements, bytes;        /* of a block */
    enum gguf_written shorter;  /* for rows that are no whole blocks */
    bool (*store)(const float *values, unsigned char *block);
} types[] = {
    [GGUF_WRITE_F32] = {0, 0, 1, 4, GGUF_WRITE_F32, store_f32},
    [GGUF_WRITE_F16] = {1, 1, 1, 2, GGUF_WRITE_F16, store_f16},
    [GGUF_WRITE_BF16] = {30, 32, 1, 2, GGUF_WRITE_BF16, store_bf16},
    [GGUF_WRITE_Q8_0] = {8, 7, 32, 34, GGUF_WRITE_F16, gguf_round_q8_0},
    [GGUF_WRITE_Q5_0] = {6, 8, 32, 22, GGUF_WRITE_F16, gguf_round_q5_0},
    [GGUF_WRITE_Q4_0] = {2, 2, 32, 18, GGUF_WRITE_F16, gguf_round_q4_0},
    [GGUF_WRITE_Q6_K] = {14, 18, 256, 210, GGUF_WRITE_Q8_0, gguf_round_q6_k},
    [GGUF_WRITE_Q4_K] = {12, 15, 256, 144, GGUF_WRITE_Q5_0, gguf_round_q4_k},
};

struct written_tensor {
    char *name;
    enum gguf_written type;
    int64_t rows, columns, bytes;
};

struct gguf_output {
    struct strbuf keys, infos;
    uint64_t key_count;
    struct written_tensor *tensors;
    size_t count, capacity;
    int64_t data_bytes;
    int status;
};

uint32_t gguf_file_type(enum gguf_written type) {
    return types[type].file_type;
}

bool gguf_is_rounded(enum gguf_written type) {
    return types[type].elements > 1;
}

enum gguf_written gguf_type_for(enum gguf_written type, int64_t columns) {
    while (columns % types[type].elements)
        type = types[type].shorter;
    return type;
}

int gguf_output_new(struct gguf_output **output) {
    *output = calloc(1, sizeof **output);
    return status_allocated(*output);
}

void gguf_output_free(struct gguf_output *output) {
    if (!output)
        return;
    for (size_t i = 0; i < output->count; i++)
        free(output->tensors[i].name);
    free(output->tensors);
    strbuf_free(&output->keys);
    strbuf_free(&output->infos);
    free(output);
}

/* ---- keys ---- */

static void add_text(struct strbuf *out, const char *text, uint64_t length) {
    strbuf_add(out, &length, 8);
    strbuf_add(out, text, length);
}

static struct strbuf *begin_key(struct gguf_output *output, const char *key, uint32_t kind) {
    add_text(&output->keys, key, strlen(key));
    strbuf_add(&output->keys, &kind, 4);
    output->key_count++;
    return &output->keys;
}

static struct strbuf *begin_array(struct gguf_output *output, const char *key, uint32_t kind, uint64_t count) {
    struct strbuf *out = begin_key(output, key, GGUF_ARRAY);
    strbuf_add(out, &kind, 4);
    strbuf_add(out, &count, 8);
    return out;
}

void gguf_put_text(struct gguf_output *output, const char *key, const char *text) {
    add_text(begin_key(output, key, GGUF_STRING), text, strlen(text));
}

void gguf_put_integer(struct gguf_output *output, const char *key, uint32_t value) {
    strbuf_add(begin_key(output, key, GGUF_U32), &value, 4);
}

void gguf_put_number(struct gguf_output *output, const char *key, float value) {
    strbuf_add(begin_key(output, key, GGUF_F32), &value, 4);
}

void gguf_put_bool(struct gguf_output *output, const char *key, bool value) {
    strbuf_add_char(begin_key(output, key, GGUF_BOOL), value);
}

void gguf_put_texts(struct gguf_output *output, const char *key, const struct gguf_text *texts, size_t count) {
    struct strbuf *out = begin_array(output, key, GGUF_STRING, count);
    for (size_t i = 0; i < count; i++)
        add_text(out, texts[i].bytes, texts[i].length);
}

void gguf_put_numbers(struct gguf_output *output, const char *key, const float *values, size_t count) {
    strbuf_add(begin_array(output, key, GGUF_F32, count), values, count * sizeof *values);
}

void gguf_put_integers(struct gguf_output *output, const char *key, const int32_t *values, size_t count) {
    strbuf_add(begin_array(output, key, GGUF_I32, count), values, count * sizeof *values);
}

/* ---- tensors ---- */

static int64_t aligned(int64_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

void gguf_output_tensor(struct gguf_output *output, const char *name, enum gguf_written type, int dims,
                        const int64_t *shape) {
    struct written_tensor tensor = {.type = type, .rows = dims > 1 ? shape[0] : 1, .columns = shape[dims - 1]};
    int status = array_reserve(&output->tensors, &output->capacity, output->count + 1, sizeof *output->tensors);
    THEN(status, status_allocated((tensor.name = strdup(name)) != NULL));
    if (status) {
        output->status = status;
        return;
    }
    tensor.bytes = tensor.rows * (tensor.columns / types[type].elements) * types[type].bytes;
    uint32_t count = (uint32_t)dims;
    add_text(&output->infos, name, strlen(name));
    strbuf_add(&output->infos, &count, 4);
    for (int i = dims - 1; i >= 0; i--)
        strbuf_add(&output->infos, &shape[i], 8);
    strbuf_add(&output->infos, &types[type].number, 4);
    strbuf_add(&output->infos, &output->data_bytes, 8);
    output->data_bytes += aligned(tensor.bytes);
    output->tensors[output->count++] = tensor;
}

/* Stores numbers; returns the first that does not fit the type, or the first of its group; -1: all do. */
static int64_t store(enum gguf_written type, const float *values, int64_t count, unsigned char *out) {
    int64_t wrong = dtype_find_not_finite(DTYPE_F32, values, count);
    for (int64_t i = 0; i < count && wrong < 0; i += types[type].elements) {
        wrong = types[type].store(values + i, out) ? -1 : i;
        out += types[type].bytes;
    }
    return wrong;
}

static int write_padding(FILE *stream, int64_t bytes, const char *path) {
    static const char zeros[ALIGNMENT];
    size_t count = (size_t)(aligned(bytes) - bytes);
    return fwrite(zeros, 1, count, stream) == count ? STATUS_OK : status_fail_errno("cannot write %s", path);
}

static int write_tensor(const struct gguf_output *output, size_t index, FILE *stream, const char *path, gguf_rows *get,
                        void *context) {
    const struct written_tensor *t = &output->tensors[index];
    int64_t at_once = GGUF_BLOCK_ELEMENTS / t->columns > 0 ? GGUF_BLOCK_ELEMENTS / t->columns : 1;
    float *values = malloc((size_t)(at_once * t->columns) * sizeof *values);
    unsigned char *stored = malloc((size_t)(at_once * t->columns) * sizeof *values);
    int status = status_allocated(values && stored);
    for (int64_t row = 0; row < t->rows && !status; row += at_once) {
        int64_t rows = t->rows - row < at_once ? t->rows - row : at_once, count = rows * t->columns;
        size_t bytes = (size_t)(count / types[t->type].elements * types[t->type].bytes);
        status = get(context, index, row, rows, values);
        int64_t wrong = status ? -1 : store(t->type, values, count, stored);
        if (wrong >= 0)
            status = status_fail(STATUS_INVALID, "%s: a number of '%s' in row %lld is too large for its type", path,
                                 t->name, (long long)(row + wrong / t->columns));
        THEN_IF(status, fwrite(stored, 1, bytes, stream) != bytes, status_fail_errno("cannot write %s", path));
    }
    free(values);
    free(stored);
    return status ? status : write_padding(stream, t->bytes, path);
}

static int write_header(const struct gguf_output *output, FILE *stream, const char *path) {
    struct strbuf head = STRBUF_INIT;
    uint32_t version = VERSION;
    uint64_t count = output->count;
    strbuf_add_text(&head, "GGUF");
    strbuf_add(&head, &version, 4);
    strbuf_add(&head, &count, 8);
    strbuf_add(&head, &output->key_count, 8);
    strbuf_add(&head, output->keys.data, output->keys.length);
    strbuf_add(&head, output->infos.data, output->infos.length);
    int status = strbuf_status(&head);
    if (!status && fwrite(head.data, 1, head.length, stream) != head.length)
        status = status_fail_errno("cannot write %s", path);
    THEN(status, write_padding(stream, (int64_t)head.length, path));
    strbuf_free(&head);
    return status;
}

/* Writes the whole file at `place`; messages call it `path`. */
static int write_file(const struct gguf_output *output, const char *place, const char *path, gguf_rows *get,
                      void *context) {
    struct file_writer writer;
    TRY(file_writer_open(&writer, place));
    int status = write_header(output, writer.stream, path);
    for (size_t i = 0; i < output->count && !status; i++)
        status = write_tensor(output, i, writer.stream, path, get, context);
    if (!status)
        status = file_writer_commit(&writer);
    else
        file_writer_abort(&writer);
    return status;
}

int gguf_output_write(struct gguf_output *output, const char *path, gguf_rows *get, void *context) {
    struct staging staging = {.mark = -1}; /* its box is swept after a kill */
    char place[PATH_MAX], parent[PATH_MAX];
    int status = output->status ? output->status : strbuf_status(&output->keys);
    THEN(status, strbuf_status(&output->infos));
    THEN(status, staging_begin(&staging, path));
    THEN(status, file_join(place, sizeof place, staging.directory, "file"));
    THEN(status, write_file(output, place, path, get, context));
    THEN_IF(status, rename(place, path), status_fail_errno("cannot rename %s to %s", place, path));
    THEN(status, file_parent(path, parent, sizeof parent));
    THEN(status, file_sync(parent));
    staging_abort(&staging);
    return status;
}
