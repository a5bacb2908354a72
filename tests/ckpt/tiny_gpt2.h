/* The parameter table of the golden directories (2 layers, hidden 16, feed-forward 24, vocabulary 40, positions 12),
 * values for it, and arrays over plain memory. The fused rows stand as v, q, k, unlike the file, so that slices are
 * told apart. */
#pragma once

#include "ckpt/ckpt.h"
#include "support/test.h"

#include <zlib.h>

enum { TINY_C = 16, TINY_F = 24, TINY_V = 40, TINY_T = 12, TINY_L = 2, TINY_MAX = 40 };

static inline struct param *tiny_add(struct param_table *table, const char *name, int dims, int64_t rows,
                                     int64_t columns, const char *file_name, bool is_transposed) {
    struct param *param = &table->rows[table->count++];
    *param = (struct param){.dims = dims, .shape = {rows, columns}, .is_trainable = true, .slice_count = 1};
    snprintf(param->name, sizeof param->name, "%s", name);
    param->slices[0] = (struct param_slice){.rows = rows, .file_rows = rows, .is_transposed = is_transposed};
    snprintf(param->slices[0].name, sizeof param->slices[0].name, "%s", file_name);
    return param;
}

/* Cuts the one slice into three thirds; third i of the parameter is third `order[i]` of the file. */
static inline void tiny_fuse(struct param *param) {
    static const int order[3] = {2, 0, 1};
    struct param_slice whole = param->slices[0];
    param->slice_count = 3;
    for (int i = 0; i < 3; i++) {
        param->slices[i] = whole;
        param->slices[i].rows = whole.rows / 3;
        param->slices[i].row = i * (whole.rows / 3);
        param->slices[i].file_start = order[i] * (whole.rows / 3);
    }
}

static inline void tiny_block(struct param_table *t, int layer) {
    static const struct {
        const char *name;
        int dims;
        int rows, columns;
    } rows[] = {
        {"ln_1.weight", 1, TINY_C, 1},
        {"ln_1.bias", 1, TINY_C, 1},
        {"attn.c_attn.weight", 2, 3 * TINY_C, TINY_C},
        {"attn.c_attn.bias", 1, 3 * TINY_C, 1},
        {"attn.c_proj.weight", 2, TINY_C, TINY_C},
        {"attn.c_proj.bias", 1, TINY_C, 1},
        {"ln_2.weight", 1, TINY_C, 1},
        {"ln_2.bias", 1, TINY_C, 1},
        {"mlp.c_fc.weight", 2, TINY_F, TINY_C},
        {"mlp.c_fc.bias", 1, TINY_F, 1},
        {"mlp.c_proj.weight", 2, TINY_C, TINY_F},
        {"mlp.c_proj.bias", 1, TINY_C, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char name[PARAM_NAME_BYTES], file_name[PARAM_NAME_BYTES];
        snprintf(name, sizeof name, "layers.%d.%s", layer, rows[i].name);
        snprintf(file_name, sizeof file_name, "h.%d.%s", layer, rows[i].name);
        struct param *param =
            tiny_add(t, name, rows[i].dims, rows[i].rows, rows[i].columns, file_name, rows[i].dims == 2);
        if (strstr(name, "c_attn"))
            tiny_fuse(param);
    }
}

static const char *const tiny_buffers[] = {".attn.bias", ".attn.masked_bias", NULL};
static const struct param_files tiny_files = {
    .prefix = "transformer.", .head = "lm_head.weight", .embedding = "wte.weight", .buffers = tiny_buffers};

static inline struct param_table tiny_table(bool is_tied) {
    struct param_table t = {.rows = calloc(TINY_MAX, sizeof *t.rows), .capacity = TINY_MAX, .files = &tiny_files};
    tiny_add(&t, "embedding.word", 2, TINY_V, TINY_C, "wte.weight", false);
    tiny_add(&t, "embedding.position", 2, TINY_T, TINY_C, "wpe.weight", false);
    for (int layer = 0; layer < TINY_L; layer++)
        tiny_block(&t, layer);
    tiny_add(&t, "final.weight", 1, TINY_C, 1, "ln_f.weight", false);
    tiny_add(&t, "final.bias", 1, TINY_C, 1, "ln_f.bias", false);
    if (!is_tied)
        tiny_add(&t, "head.weight", 2, TINY_V, TINY_C, "lm_head.weight", false);
    return t;
}

/* The element of a tensor as tools/golden/hf_gpt2.py sets it: a multiple of 1/128 in [-1, 1). */
static inline float golden_value(const char *name, int64_t element) {
    uint32_t crc = (uint32_t)crc32(0, (const Bytef *)name, (uInt)strlen(name));
    uint32_t x = (uint32_t)((uint64_t)element * 2654435761u + crc);
    return ((float)((x >> 13) & 255) - 128) / 128;
}

/* The same for row r and column c of a parameter. */
static inline float golden_param_value(const struct param *param, int64_t r, int64_t c) {
    for (int i = 0; i < param->slice_count; i++) {
        const struct param_slice *s = &param->slices[i];
        if (r < s->row || r >= s->row + s->rows)
            continue;
        int64_t row = s->file_start + r - s->row;
        return golden_value(s->name, s->is_transposed ? c * s->file_rows + row : row * param->shape[1] + c);
    }
    fail_msg("row %lld of %s is in no slice", (long long)r, param->name);
    return 0;
}

/* A flat array in plain memory. */
struct tiny_array {
    const struct param_table *table;
    int64_t offset[TINY_MAX], elements;
    enum dtype dtype;
    char *memory;
    int calls, fail_at; /* the call that reports a failure; 0: none */
};

static inline struct tiny_array tiny_array(const struct param_table *table, enum dtype dtype) {
    struct tiny_array a = {.table = table, .dtype = dtype};
    for (int i = 0; i < table->count; i++) {
        a.offset[i] = a.elements;
        a.elements += table->rows[i].shape[0] * table->rows[i].shape[1];
    }
    a.memory = malloc((size_t)a.elements * dtype_bytes(dtype));
    memset(a.memory, 0xaa, (size_t)a.elements * dtype_bytes(dtype));
    return a;
}

static inline char *tiny_place(const struct tiny_array *a, const struct ckpt_block *block, int64_t row) {
    int64_t columns = a->table->rows[block->param].shape[1];
    return a->memory +
           (size_t)(a->offset[block->param] + (block->row + row) * columns + block->column) * dtype_bytes(a->dtype);
}

static inline int tiny_get(void *context, const struct ckpt_block *block, void *values) {
    struct tiny_array *a = context;
    size_t bytes = (size_t)block->columns * dtype_bytes(a->dtype);
    if (++a->calls == a->fail_at)
        return status_fail(STATUS_IO, "the device was lost");
    assert_true(block->rows * block->columns <= CKPT_BLOCK_ELEMENTS);
    for (int64_t r = 0; r < block->rows; r++)
        memcpy((char *)values + (size_t)r * bytes, tiny_place(a, block, r), bytes);
    return STATUS_OK;
}

static inline int tiny_put(void *context, const struct ckpt_block *block, const void *values) {
    struct tiny_array *a = context;
    size_t bytes = (size_t)block->columns * dtype_bytes(a->dtype);
    assert_true(block->rows * block->columns <= CKPT_BLOCK_ELEMENTS);
    for (int64_t r = 0; r < block->rows; r++)
        memcpy(tiny_place(a, block, r), (const char *)values + (size_t)r * bytes, bytes);
    return STATUS_OK;
}

static inline struct ckpt_array tiny_as_array(struct tiny_array *a, const char *prefix) {
    return (struct ckpt_array){.prefix = prefix, .dtype = a->dtype, .get = tiny_get, .put = tiny_put, .context = a};
}

static inline float tiny_value(const struct tiny_array *a, int64_t i) {
    return a->dtype == DTYPE_F32 ? ((float *)a->memory)[i] : bf16_to_float(((uint16_t *)a->memory)[i]);
}

static inline void tiny_fill_golden(struct tiny_array *a) {
    for (int p = 0; p < a->table->count; p++)
        for (int64_t i = 0, columns = a->table->rows[p].shape[1]; i < a->table->rows[p].shape[0] * columns; i++) {
            float value = golden_param_value(&a->table->rows[p], i / columns, i % columns);
            if (a->dtype == DTYPE_F32)
                ((float *)a->memory)[a->offset[p] + i] = value;
            else
                ((uint16_t *)a->memory)[a->offset[p] + i] = bf16_from_float(value);
        }
}

static inline void tiny_check_golden(const struct tiny_array *a) {
    for (int p = 0; p < a->table->count; p++)
        for (int64_t i = 0, columns = a->table->rows[p].shape[1]; i < a->table->rows[p].shape[0] * columns; i++) {
            float expected = golden_param_value(&a->table->rows[p], i / columns, i % columns);
            if (tiny_value(a, a->offset[p] + i) != expected)
                fail_msg("%s element %lld: %g, expected %g", a->table->rows[p].name, (long long)i,
                         (double)tiny_value(a, a->offset[p] + i), (double)expected);
        }
}

/* The arrays that training saves: weights and two moments. */
enum { TINY_ARRAYS = 3 };
struct tiny_training {
    struct param_table table;
    struct tiny_array values[TINY_ARRAYS];
    struct ckpt_array arrays[TINY_ARRAYS];
};

/* Takes the table. It stays in place: the arrays point into it. */
static inline void tiny_training_open(struct tiny_training *t, struct param_table table) {
    static const char *const prefixes[TINY_ARRAYS] = {"", "exp_avg.", "exp_avg_sq."};
    t->table = table;
    for (int a = 0; a < TINY_ARRAYS; a++) {
        t->values[a] = tiny_array(&t->table, DTYPE_F32);
        t->arrays[a] = tiny_as_array(&t->values[a], prefixes[a]);
    }
}

static inline void tiny_training_close(struct tiny_training *t) {
    for (int a = 0; a < TINY_ARRAYS; a++)
        free(t->values[a].memory);
    free(t->table.rows);
}

static inline struct ckpt_save tiny_training_save(const struct tiny_training *t, const char *root) {
    return (struct ckpt_save){.root = root,
                              .model = {.table = &t->table, .weights = t->arrays, .config_text = "{}\n"},
                              .optimizer = t->arrays + 1,
                              .optimizer_count = TINY_ARRAYS - 1,
                              .ours_until = INT64_MAX};
}

static inline char *tiny_path(const char *directory, const char *name) {
    char *path;
    assert_true(asprintf(&path, "%s/%s", directory, name) > 0);
    return path;
}

static inline struct strbuf tiny_text(const char *directory, const char *name) {
    char *path = tiny_path(directory, name);
    struct strbuf text = STRBUF_INIT;
    test_ok(file_read(path, 1 << 28, &text));
    free(path);
    return text;
}

static inline void tiny_write(const char *directory, const char *name, const void *bytes, size_t length) {
    char *path = tiny_path(directory, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, length, f), length);
    fclose(f);
    free(path);
}

/* Writes a file of these tensors, each of `bytes`: values[i] is tensor i. */
static inline int tiny_write_tensors(struct safetensors_header *header, const char *path, const void *const *values,
                                     int count, size_t bytes) {
    size_t header_bytes;
    int64_t file_bytes;
    int status = safetensors_header_place(header, path);
    if (status)
        return status;
    const char *before = safetensors_header_bytes(header, &header_bytes, &file_bytes);
    FILE *f = fopen(path, "wb");
    if (!f)
        return status_fail_errno("cannot create %s", path);
    fwrite(before, 1, header_bytes, f);
    for (int i = 0; i < count; i++) {
        fseek(f, (long)safetensors_header_start(header, i), SEEK_SET);
        fwrite(values[i], 1, bytes, f);
    }
    return fclose(f) ? status_fail_errno("cannot write %s", path) : STATUS_OK;
}

static inline void assert_same_files(const char *a, const char *b, const char *name) {
    struct strbuf x = tiny_text(a, name), y = tiny_text(b, name);
    assert_int_equal(x.length, y.length);
    assert_memory_equal(x.data, y.data, x.length);
    strbuf_free(&x);
    strbuf_free(&y);
}
