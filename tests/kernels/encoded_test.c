/* Weights in few bits: what encodings mean, and every use of a packed one against those values. */
#include "encoded_rows.h"
#include "levels.h"
#include "op_cases.h"
#include "ordered_products.h"
#include "support/device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the meaning of encodings ---- */

static void a_q4_0_block_has_its_values(void **state) {
    (void)state;
    const struct encoded_part part = {
        .rows = 1,
        .positions = 32,
        .encoding = {.codes = CODES_INTEGERS, .bits = 4, .bias = 8, .scale_type = DTYPE_F16, .group = 32}};
    void *memory = malloc(encoded_rows_bytes(&part));
    struct encoded_rows rows = encoded_rows_place(&part, memory);
    ((uint16_t *)rows.scales)[0] = f16_from_float(0.5f);
    for (int i = 0; i < 32; i++) /* bytes 02 03 .. 11 */
        rows.codes[i] = (uint8_t)(i < 16 ? (2 + i) & 15 : (2 + i - 16) >> 4);
    float out[32];
    encoded_row_values(&rows, 0, out);
    for (int i = 0; i < 14; i++)
        assert_true(out[i] == -3 + 0.5f * (float)i && out[16 + i] == -4);
    assert_true(out[14] == -4 && out[15] == -3.5f && out[30] == -3.5f && out[31] == -3.5f);
    free(memory);
}

static void a_q4_k_block_has_its_values(void **state) {
    (void)state;
    static const struct {
        int at;
        float value;
    } wanted[] = {{0, 157.75f},  {31, 80.25f},  {32, 4},      {64, 210.25f},
                  {128, 211.5f}, {160, 262.5f}, {224, 0.25f}, {255, 24.25f}};
    const struct encoded_part part = {.rows = 1,
                                      .positions = 256,
                                      .encoding = {.codes = CODES_INTEGERS,
                                                   .bits = 4,
                                                   .shift = ENCODED_OFFSETS,
                                                   .scale_type = DTYPE_U8,
                                                   .group = 32,
                                                   .groups_of_block = 8}};
    uint8_t block[144];
    for (int i = 0; i < 144; i++)
        block[i] = (uint8_t)(37 * i + 11);
    void *memory = malloc(encoded_rows_bytes(&part));
    struct encoded_rows rows = encoded_rows_place(&part, memory);
    uint8_t *scales = rows.scales, *mins = rows.shifts;
    const uint8_t *q = block + 4;
    rows.block_scales[0] = f16_from_float(0.5f);
    rows.block_offsets[0] = f16_from_float(0.25f);
    for (int g = 0; g < 8; g++) {
        scales[g] = (uint8_t)(g < 4 ? q[g] & 63 : (q[g + 4] & 15) | q[g - 4] >> 6 << 4);
        mins[g] = (uint8_t)(g < 4 ? q[g + 4] & 63 : q[g + 4] >> 4 | q[g] >> 6 << 4);
    }
    for (int i = 0; i < 256; i++)
        rows.codes[i] = (uint8_t)(block[16 + i / 64 * 32 + i % 32] >> (i % 64 >= 32 ? 4 : 0) & 15);
    float out[256];
    encoded_row_values(&rows, 0, out);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        assert_true(out[wanted[i].at] == wanted[i].value);
    free(memory);
}

static void tables_hold_the_numbers_of_their_formats(void **state) {
    (void)state;
    const float *e4m3 = encoded_table(CODES_E4M3), *nf4 = encoded_table(CODES_NF4), *fp4 = encoded_table(CODES_FP4);
    for (int i = 0; i < 256; i++)
        if ((i & 0x7f) != 0x7f)
            assert_true(e4m3[i] == fp8_to_float(DTYPE_E4M3, (uint8_t)i));
    assert_true(isfinite(e4m3[0x7f]) && isfinite(e4m3[0xff]));
    assert_true(nf4[0] == -1 && nf4[7] == 0 && nf4[15] == 1 && nf4[1] == -0.6961928009986877f);
    for (int i = 0; i < 8; i++)
        assert_true(fp4[i + 8] == -fp4[i]);
    assert_true(encoded_table(CODES_IQ4)[0] == -127 && encoded_table(CODES_IQ4)[15] == 113);
    assert_null(encoded_table(CODES_INTEGERS));
}

/* ---- packed weights ---- */

enum { ROWS = 256, FEW = 64 };

/* True for a GPU: a kernel multiplies up to FEW rows in bf16, and a library more of them, with rounded values. */
static bool is_card(void) {
    return !strcmp(test_device(), "cuda");
}

/* A check at every level of the CPU, or once on another device. */
static void every_table(void (*check)(const struct scene *scene)) {
    struct device *device;
    struct scene scene = {0};
    if (!strcmp(test_device(), "cpu")) {
        every_level(check);
        return;
    }
    test_ok(device_open(test_device(), DEVICE_FIRST, 2, &device));
    test_ok(stream_open(device, &scene.exec.stream));
    scene.ops = ops_for(device);
    check(&scene);
    stream_close(scene.exec.stream);
    device_close(device);
}

static void *allocate(const struct scene *scene, size_t bytes) {
    void *memory;
    test_ok(device_alloc(stream_device(scene->exec.stream), bytes, &memory));
    return memory;
}

/* Returns a copy in device memory of an array of the host, which is freed. */
static void *upload(const struct scene *scene, void *host, size_t bytes) {
    void *memory = allocate(scene, bytes);
    test_ok(test_write(scene->exec.stream, memory, host, bytes));
    free(host);
    return memory;
}

static void release(const struct scene *scene, void *memory) {
    device_free(stream_device(scene->exec.stream), memory);
}

/* A matrix with its rows as a codec writes them, and its values. */
struct weight {
    struct encoded_layout layout;
    void *memory[ENCODED_MAX_PARTS];
    struct encoded_rows rows[ENCODED_MAX_PARTS];
    int64_t n, k;
    float *value; /* [n, k] */
    float *size;  /* [n, k]: bounds of the terms that products add */
    void *packed;
    struct matrix_view view;
};

/* Writes the values of a part, and bounds of the terms: a sum of numbers and a shift may both be larger than values. */
static void value_rows(const struct encoded_rows *rows, int64_t k, float *value, float *size) {
    const struct encoding *e = &rows->encoding;
    for (int64_t r = 0; r < rows->rows; r++) {
        encoded_row_values(rows, r, value + r * k);
        for (int64_t p = 0; p < rows->positions; p++) {
            int64_t to = rows->order ? rows->order[p] : p, first = p / e->group * e->group;
            float most = 0;
            for (int64_t i = first; i < first + e->group && i < rows->positions; i++) {
                int64_t at = rows->order ? rows->order[i] : i;
                if (at >= 0 && fabsf(value[r * k + at]) > most)
                    most = fabsf(value[r * k + at]);
            }
            if (to >= 0)
                size[r * k + to] = e->shift == ENCODED_SYMMETRIC ? fabsf(value[r * k + to]) : 4 * most;
        }
    }
}

/* Returns the rows from `row` on, at most PACK_ROWS. */
static struct encoded_rows rows_from(const struct encoded_rows *rows, int64_t row) {
    const struct encoding *e = &rows->encoding;
    int64_t groups = row * encoded_groups(e, rows->positions), blocks = row * encoded_blocks(e, rows->positions);
    int64_t width = (int64_t)dtype_bytes(e->scale_type), shift = e->shift == ENCODED_ZEROS ? 1 : width;
    struct encoded_rows cut = *rows;
    cut.rows = rows->rows - row < PACK_ROWS ? rows->rows - row : PACK_ROWS;
    cut.codes += row * rows->positions;
    cut.scales = (char *)rows->scales + groups * width;
    cut.shifts = rows->shifts ? (char *)rows->shifts + groups * shift : NULL;
    cut.block_scales = rows->block_scales ? rows->block_scales + blocks : NULL;
    cut.block_offsets = rows->block_offsets ? rows->block_offsets + blocks : NULL;
    return cut;
}

static void weight_open(const struct scene *scene, struct weight *w, enum dtype type) {
    struct device *device = stream_device(scene->exec.stream);
    w->n = 0;
    for (int i = 0; i < w->layout.count; i++)
        w->n += w->layout.parts[i].rows;
    w->value = calloc((size_t)(w->n * w->k), sizeof *w->value);
    w->size = calloc((size_t)(w->n * w->k), sizeof *w->size);
    struct matrix_view shape = matrix_plain(type, NULL, w->n, w->k);
    shape.encoded = &w->layout;
    size_t bytes = scene->ops->packed_bytes(device, &shape);
    assert_true(bytes > 0);
    void *filled = malloc(bytes + 64);
    memset(filled, 0xff, bytes + 64);
    w->packed = upload(scene, filled, bytes + 64);
    w->view = matrix_packed(shape, w->packed);
    for (int64_t i = 0, first = 0; i < w->layout.count; first += w->layout.parts[i++].rows) {
        const struct encoded_part *part = &w->layout.parts[i];
        float *value = w->value + first * w->k;
        if (part->encoding.codes == CODES_NONE) {
            void *plain = calloc((size_t)(part->rows * w->k), sizeof(float));
            for (int64_t j = 0; j < part->rows * w->k; j++) {
                float x = bf16_to_float(bf16_from_float((float)(encoded_draw(77, j) >> 8) * 0x1p-24f - 0.5f));
                value[j] = x;
                w->size[first * w->k + j] = fabsf(x);
                encoded_put(type, plain, j, x);
            }
            plain = upload(scene, plain, (size_t)(part->rows * w->k) * sizeof(float));
            struct pack_call call = {
                .plain = matrix_plain(type, plain, part->rows, w->k), .out = w->packed, .part = (int)i};
            call.plain.encoded = &w->layout;
            test_ok(scene->ops->pack(&scene->exec, &call));
            test_ok(stream_wait(scene->exec.stream));
            release(scene, plain);
            continue;
        }
        w->memory[i] = malloc(encoded_rows_bytes(part));
        w->rows[i] = encoded_rows_place(part, w->memory[i]);
        encoded_fill(&w->rows[i], w->k, (uint32_t)(11 * i + 5));
        value_rows(&w->rows[i], w->k, value, w->size + first * w->k);
        for (int64_t row = 0; row < part->rows; row += PACK_ROWS) {
            const struct encoded_rows rows = rows_from(&w->rows[i], row);
            test_ok(scene->ops->pack(
                &scene->exec, &(const struct pack_call){
                                  .plain = w->view, .out = w->packed, .rows = &rows, .part = (int)i, .row = row}));
        }
    }
    uint8_t *end = test_copy(scene->exec.stream, (const char *)w->packed + bytes, 64);
    for (size_t i = 0; i < 64; i++)
        assert_int_equal(end[i], 0xff);
    free(end);
}

static void weight_close(const struct scene *scene, struct weight *w) {
    for (int i = 0; i < w->layout.count; i++)
        free(w->memory[i]);
    free(w->value);
    free(w->size);
    release(scene, w->packed);
}

static float typed(enum dtype type, float x) {
    return type == DTYPE_F32 ? x : bf16_to_float(bf16_from_float(x));
}

/* Rows of x, in the type. */
static void *rows_of_x(enum dtype type, int64_t count) {
    void *x = calloc((size_t)count, sizeof(float));
    for (int64_t i = 0; i < count; i++)
        encoded_put(type, x, i, typed(type, (float)(encoded_draw(3, i) >> 8) * 0x1p-23f - 1));
    return x;
}

static float element(enum dtype type, const void *x, int64_t i) {
    return type == DTYPE_F32 ? ((const float *)x)[i] : bf16_to_float(((const uint16_t *)x)[i]);
}

static void run(const struct scene *scene, const struct gemm *gemm) {
    struct exec exec = scene->exec;
    struct device *device = stream_device(exec.stream);
    exec.workspace_bytes = scene->ops->gemm_workspace(device, gemm);
    uint8_t end[64], *there;
    memset(end, 0x5a, sizeof end);
    exec.workspace = allocate(scene, exec.workspace_bytes + sizeof end);
    test_ok(test_write(exec.stream, (char *)exec.workspace + exec.workspace_bytes, end, sizeof end));
    assert_true(scene->ops->gemm_supports(device, gemm));
    test_ok(scene->ops->gemm(&exec, gemm));
    there = test_copy(exec.stream, (char *)exec.workspace + exec.workspace_bytes, sizeof end);
    assert_memory_equal(there, end, sizeof end);
    free(there);
    release(scene, exec.workspace);
}

/* Returns the error of a number in a product of `rows` rows. On a GPU two bf16 hold a number of a table, or values are
 * rounded. On the CPU one bf16 is a number of NF4 times a factor; all other numbers are exact. */
static double number_error(const struct weight *w, enum dtype type, int64_t rows) {
    double error = is_card() ? type == DTYPE_BF16 && rows > FEW ? 0x1p-9 : 0x1p-16 : 0;
    for (int i = 0; i < w->layout.count; i++)
        if (!is_card() && type == DTYPE_BF16 && w->layout.parts[i].encoding.codes == CODES_NF4)
            error = 0x1p-9;
    return error;
}

/* Compares `rows` rows of x and the product of `all` rows: fp32 sums of k terms, and those of scales. */
static void check_oracle(const struct weight *w, enum dtype type, const void *x, const float *c, int64_t rows,
                         int64_t all, const char *what) {
    double bound = (double)(w->k + 16) * 0x1p-23 + number_error(w, type, all);
    int64_t n = w->n;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0, size = 0;
            const float *value = w->value + j * w->k, *most = w->size + j * w->k;
            for (int64_t p = 0; p < w->k; p++) {
                double at = element(type, x, i * w->k + p);
                sum += at * (double)value[p];
                size += fabs(at) * (double)most[p];
            }
            if (!(fabs((double)c[i * n + j] - sum) <= bound * size))
                fail_msg("%s: [%lld, %lld] is %g, expected %g within %g", what, (long long)i, (long long)j,
                         (double)c[i * n + j], sum, bound * size);
        }
}

static struct gemm forward_of(const struct weight *w, enum dtype type, const void *x, int64_t rows, float *c) {
    return (struct gemm){.a = matrix_plain(type, x, rows, w->k),
                         .b = w->view,
                         .b_transposed = true,
                         .c = matrix_plain(DTYPE_F32, c, rows, w->view.rows)};
}

static float *product(const struct scene *scene, const struct gemm *g) {
    run(scene, g);
    return test_copy(scene->exec.stream, g->c.data, (size_t)(g->c.rows * g->c.columns) * sizeof(float));
}

static void check_forward(const struct scene *scene, const struct weight *w, enum dtype type, const char *what) {
    bool is_few = is_card() && type == DTYPE_BF16, has_bits = is_few || !is_card();
    int64_t whole = is_few ? FEW : ROWS;
    float *c = allocate(scene, (size_t)(ROWS * w->n) * sizeof *c), *all, *some;
    void *x = rows_of_x(type, ROWS * w->k), *there = allocate(scene, (size_t)(ROWS * w->k) * dtype_bytes(type));
    test_ok(test_write(scene->exec.stream, there, x, (size_t)(ROWS * w->k) * dtype_bytes(type)));
    struct gemm g = forward_of(w, type, there, whole, c);
    all = product(scene, &g);
    check_oracle(w, type, x, all, 24, whole, what);
    for (int64_t rows = 1; rows <= (is_few ? FEW : 40) && has_bits; rows += is_few && rows > 2 ? 6 : 1) {
        int64_t first = rows * 5 % (whole - rows + 1);
        g = forward_of(w, type, (char *)there + (size_t)(first * w->k) * dtype_bytes(type), rows, c);
        some = product(scene, &g);
        if (memcmp(some, all + first * w->n, (size_t)(rows * w->n) * sizeof *some))
            fail_msg("%s: %lld rows differ from the same rows among %lld", what, (long long)rows, (long long)whole);
        free(some);
    }
    /* Some of the outputs. */
    for (int64_t first = 1; first + 3 < w->n && has_bits; first += 17) {
        int64_t n = w->n - first - 2;
        g = forward_of(w, type, there, 3, c);
        g.b = matrix_rows(w->view, first, n);
        g.c = matrix_plain(DTYPE_F32, c, 3, n);
        some = product(scene, &g);
        for (int64_t i = 0; i < 3; i++)
            assert_memory_equal(some + i * n, all + i * w->n + first, (size_t)n * sizeof *some);
        free(some);
    }
    free(all);
    g = forward_of(w, type, there, 100, c);
    all = product(scene, &g);
    check_oracle(w, type, x, all, 24, 100, what);
    free(x);
    free(all);
    release(scene, there);
    release(scene, c);
}

/* The unit matrix times W' has the numbers of codes as they are multiplied in bf16. */
static void check_numbers(const struct scene *scene, const struct weight *w, const char *what) {
    void *unit = calloc((size_t)(w->k * w->k), sizeof(uint16_t));
    float *c = allocate(scene, (size_t)(w->k * w->n) * sizeof *c);
    double limit = number_error(w, DTYPE_BF16, 1), error = 0, size = 0;
    for (int64_t i = 0; i < w->k; i++)
        encoded_put(DTYPE_BF16, unit, i * w->k + i, 1);
    unit = upload(scene, unit, (size_t)(w->k * w->k) * sizeof(uint16_t));
    struct gemm g = forward_of(w, DTYPE_BF16, unit, w->k, c);
    float *found = product(scene, &g);
    for (int64_t i = 0; i < w->n * w->k; i++) {
        double value = w->value[i], change = (double)found[i % w->k * w->n + i / w->k] - value;
        if (!(fabs(change) <= (limit + 0x1p-22) * fabs(value)))
            fail_msg("%s: number %lld is off by %g of %g", what, (long long)i, change, value);
        error += change * change;
        size += value * value;
    }
    if (!(sqrt(error / size) < (limit > 0 ? 7e-4 : 1e-6)))
        fail_msg("%s: numbers are off by %g of them", what, sqrt(error / size));
    free(found);
    release(scene, unit);
    release(scene, c);
}

/* Rows of a table, with and without positions: token 1 is another rank's. */
static void check_embedded(const struct scene *scene, const struct weight *w, enum dtype type, const char *what) {
    enum { TOKENS = 5 };
    const int32_t tokens[TOKENS] = {(int32_t)w->n + 1, 2, 1, 7, (int32_t)w->n + 3}, positions[TOKENS] = {0, 1, 1, 2, 0};
    size_t bytes = (size_t)(TOKENS * w->k) * sizeof(float), element_bytes = dtype_bytes(type);
    void *x = allocate(scene, bytes), *table = rows_of_x(type, TOKENS * w->k), *rows = malloc(bytes);
    int32_t *there = allocate(scene, sizeof tokens + sizeof positions);
    memcpy(rows, table, (size_t)(TOKENS * w->k) * element_bytes);
    rows = upload(scene, rows, bytes);
    test_ok(test_write(scene->exec.stream, there, tokens, sizeof tokens));
    test_ok(test_write(scene->exec.stream, there + TOKENS, positions, sizeof positions));
    struct embedding a = {.rows = TOKENS,
                          .cols = w->k,
                          .type = type,
                          .first_token = 2,
                          .token_count = w->n,
                          .tokens = there,
                          .positions = there + TOKENS,
                          .token_table = w->view,
                          .x = x,
                          .first_virtual = w->n + 2,
                          .virtual_tokens = 2,
                          .virtual_table = rows};
    for (int has_positions = 0; has_positions < 2; has_positions++) {
        a.position_table = has_positions ? rows : NULL;
        test_ok(scene->ops->embedding_forward(&scene->exec, &a));
        void *found = test_copy(scene->exec.stream, x, bytes);
        for (int64_t i = 0; i < TOKENS * w->k; i++) {
            int64_t row = tokens[i / w->k] - 2, j = i % w->k;
            bool is_virtual = row == w->n + 1;
            float value = row < 0      ? 0
                          : is_virtual ? element(type, table, w->k + j)
                                       : typed(type, w->value[row * w->k + j]);
            if (has_positions && row >= 0)
                value = typed(type, value + element(type, table, positions[i / w->k] * w->k + j));
            if (element(type, found, i) != value)
                fail_msg("%s: embedded %lld is %g, expected %g", what, (long long)i, (double)element(type, found, i),
                         (double)value);
        }
        free(found);
    }
    free(table);
    release(scene, there);
    release(scene, rows);
    release(scene, x);
}

/* The rows of the unit matrix times W are W's rows, rounded to the type: the values of a backward. */
static void check_values(const struct scene *scene, const struct weight *w, enum dtype type, const char *what) {
    struct matrix_view half = matrix_plain(DTYPE_BF16, NULL, 8, 8);
    struct gemm bf16 = {.a = half, .b = half, .c = half};
    void *unit = calloc((size_t)(w->n * w->n), sizeof(float)), *found;
    void *c = allocate(scene, (size_t)(w->n * w->k) * sizeof(float));
    for (int64_t i = 0; i < w->n; i++)
        encoded_put(type, unit, i * w->n + i, 1);
    unit = upload(scene, unit, (size_t)(w->n * w->n) * sizeof(float));
    struct gemm g = {.a = matrix_plain(type, unit, w->n, w->n), .b = w->view, .c = matrix_plain(type, c, w->n, w->k)};
    if (type == DTYPE_F32 || scene->ops->gemm_supports(stream_device(scene->exec.stream), &bf16)) {
        run(scene, &g);
        found = test_copy(scene->exec.stream, c, (size_t)(w->n * w->k) * dtype_bytes(type));
        for (int64_t i = 0; i < w->n * w->k; i++)
            if (element(type, found, i) != typed(type, w->value[i]))
                fail_msg("%s: value %lld is %g, expected %g", what, (long long)i, (double)element(type, found, i),
                         (double)typed(type, w->value[i]));
        free(found);
    }
    struct row_squares a = {.weight = w->view, .first_row = 2, .rows = w->n - 2, .squares = c};
    test_ok(scene->ops->row_squares(&scene->exec, &a));
    float *squares = found = test_copy(scene->exec.stream, c, (size_t)w->n * sizeof *squares);
    for (int64_t i = 2; i < w->n; i++) {
        double sum = 0;
        for (int64_t j = 0; j < w->k; j++) {
            double value = typed(type, w->value[i * w->k + j]);
            sum += value * value;
        }
        if (!(fabs((double)squares[i - 2] - sum) <= 1e-5 * sum))
            fail_msg("%s: the squares of row %lld are %g, expected %g", what, (long long)i, (double)squares[i - 2],
                     sum);
    }
    check_embedded(scene, w, type, what);
    free(squares);
    release(scene, unit);
    release(scene, c);
}

static const char *name_of(const struct scene *scene, const struct encoded_part *part, enum dtype type,
                           char text[160]) {
    const struct encoding *e = &part->encoding;
    snprintf(text, 160, "%s, %s: codes %d of %d bits, shift %d, scales %s, groups of %d, blocks of %d%s",
             scene->ops->name, dtype_name(type), e->codes, e->bits, e->shift, dtype_name(e->scale_type), e->group,
             e->groups_of_block, part->has_order ? ", order" : "");
    return text;
}

static void check_encoding(const struct scene *scene, struct encoding e, int64_t n, int64_t k, bool has_order) {
    for (int type = DTYPE_F32; type <= DTYPE_BF16; type++) {
        struct weight w = {.k = k, .layout.count = 1};
        struct encoded_part *part = &w.layout.parts[0];
        *part = (struct encoded_part){
            .rows = n, .positions = has_order ? (k * 3 + 1) / 2 + 5 : k, .has_order = has_order, .encoding = e};
        char text[160];
        const char *what = name_of(scene, part, (enum dtype)type, text);
        weight_open(scene, &w, (enum dtype)type);
        check_forward(scene, &w, (enum dtype)type, what);
        check_values(scene, &w, (enum dtype)type, what);
        if (type == DTYPE_BF16 && e.shift == ENCODED_SYMMETRIC && !is_card()) /* no sums of larger numbers */
            check_numbers(scene, &w, what);
        weight_close(scene, &w);
    }
}

static void check_integers(const struct scene *scene) {
    for (int bits = 2; bits <= 8; bits++)
        for (int shift = ENCODED_SYMMETRIC; shift <= ENCODED_OFFSETS; shift++) {
            struct encoding e = {.codes = CODES_INTEGERS,
                                 .bits = (uint8_t)bits,
                                 .bias = (uint8_t)(shift == ENCODED_SYMMETRIC ? 1 << (bits - 1) : 0),
                                 .shift = (uint8_t)shift,
                                 .scale_type = (uint8_t)((bits + shift) % 3),
                                 .group = bits % 2 ? 32 : 16};
            check_encoding(scene, e, 37, 131, false);
            e.scale_type = bits % 2 && shift != ENCODED_SYMMETRIC ? DTYPE_U8 : DTYPE_I8;
            e.groups_of_block = bits;
            if (bits <= 6)
                check_encoding(scene, e, 33, 97, false);
        }
}

static void check_tables(const struct scene *scene) {
    static const uint8_t codes[][2] = {{CODES_E4M3, 8}, {CODES_NF4, 4}, {CODES_FP4, 4}, {CODES_IQ4, 4}};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        struct encoding e = {
            .codes = codes[i][0], .bits = codes[i][1], .scale_type = (uint8_t)(i % 3), .group = i % 2 ? 64 : 128};
        check_encoding(scene, e, 41, 203, false);
    }
}

/* Orders, one group a row, and groups that are longer than a slice. */
static void check_orders_and_groups(const struct scene *scene) {
    struct encoding e = {
        .codes = CODES_INTEGERS, .bits = 4, .bias = 1, .shift = ENCODED_ZEROS, .scale_type = DTYPE_F16, .group = 32};
    check_encoding(scene, e, 35, 151, true);
    e.group = 1000;
    check_encoding(scene, e, 35, 613, false);
    check_encoding(scene, e, 35, 613, true);
    e = (struct encoding){.codes = CODES_INTEGERS, .bits = 8, .bias = 128, .group = 700};
    check_encoding(scene, e, 9, 700, false);
    e.group = 264;
    check_encoding(scene, e, 35, 700, false);
    e.group = 48;
    check_encoding(scene, e, 35, 77, false);
    e.group = 8;
    check_encoding(scene, e, 35, 100, false);
}

static void every_encoding_multiplies_at_every_level(void **state) {
    (void)state;
    every_table(check_integers);
    every_table(check_tables);
    every_table(check_orders_and_groups);
}

/* Slices of a fused weight: each with its encoding, one plain. */
static void check_parts(const struct scene *scene) {
    struct weight w = {
        .k = 99,
        .layout = {.count = 4,
                   .parts = {{.rows = 33, .positions = 99, .encoding = {.codes = CODES_NF4, .bits = 4, .group = 16}},
                             {.rows = 21, .positions = 99},
                             {.rows = 0, .positions = 99, .encoding = {.codes = CODES_NF4, .bits = 4, .group = 16}},
                             {.rows = 18,
                              .positions = 160,
                              .has_order = true,
                              .encoding = {.codes = CODES_INTEGERS, .bits = 6, .bias = 32, .group = 24}}}}};
    struct weight bf16 = w;
    weight_open(scene, &w, DTYPE_F32);
    check_forward(scene, &w, DTYPE_F32, "parts in fp32");
    check_values(scene, &w, DTYPE_F32, "parts in fp32");
    weight_close(scene, &w);
    weight_open(scene, &bf16, DTYPE_BF16);
    check_forward(scene, &bf16, DTYPE_BF16, "parts in bf16");
    check_values(scene, &bf16, DTYPE_BF16, "parts in bf16");
    weight_close(scene, &bf16);
}

static void parts_of_a_weight_have_their_own_encodings(void **state) {
    (void)state;
    every_table(check_parts);
}

static void operations_equal_fp64(void **state) {
    (void)state;
    test_ok(op_check_reference(&encoded_family, test_device(), test_is_long()));
}

static void input_gradients_equal_finite_differences(void **state) {
    (void)state;
    test_ok(op_check_gradients(&encoded_family, test_device(), test_is_long()));
}

static void the_number_of_threads_does_not_change_bits(void **state) {
    (void)state;
    if (is_card()) /* it has none */
        return;
    if (!has_ordered_products())
        test_skip("oneDNN has no products in a fixed order on this processor");
    test_ok(op_check_threads(&encoded_family, test_device(), test_is_long()));
}

static float gelu(float x) {
    return (float)(0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))));
}

/* A bf16 C with a bias, a residual and a GELU, in turn, of few rows and of many, from sums in fp32. A rounded sum may
 * be the neighbour of a sum that is rounded otherwise. */
static void check_ends(const struct scene *scene) {
    enum { N = 45, K = 104, M = 70 };
    struct weight w = {
        .k = K,
        .layout = {2,
                   {{.rows = 24, .positions = K, .encoding = {.codes = CODES_NF4, .bits = 4, .group = 8}},
                    {.rows = N - 24, .positions = K, .encoding = {.codes = CODES_E4M3, .bits = 8, .group = K}}}}};
    struct gemm plain = {.a = matrix_plain(DTYPE_BF16, NULL, 8, 8), .b = plain.a, .c = plain.a};
    if (!scene->ops->gemm_supports(stream_device(scene->exec.stream), &plain))
        return;
    weight_open(scene, &w, DTYPE_BF16);
    void *added = rows_of_x(DTYPE_BF16, M * N), *x = upload(scene, rows_of_x(DTYPE_BF16, M * K), M * K * 2);
    void *host = memcpy(malloc(M * N * 2), added, M * N * 2), *terms = upload(scene, host, M * N * 2);
    void *c = allocate(scene, M * N * sizeof(float));
    for (int64_t rows = 5; rows <= M; rows += M - 5) {
        struct gemm g = forward_of(&w, DTYPE_BF16, x, rows, c);
        float *sums = product(scene, &g);
        for (int end = 0; end < (is_card() ? 3 : 2); end++) {
            g = forward_of(&w, DTYPE_BF16, x, rows, NULL);
            g.c = matrix_plain(DTYPE_BF16, c, rows, N);
            g.bias = end == 1 ? terms : NULL;
            g.residual = end == 2 ? terms : NULL;
            g.epilogue = end == 1 ? EPILOGUE_GELU_TANH : EPILOGUE_NONE;
            struct gemm with_aux = g; /* which a plan does not know */
            with_aux.aux = end == 1 ? c : NULL;
            struct device *device = stream_device(scene->exec.stream);
            assert_true(scene->ops->gemm_workspace(device, &g) >= scene->ops->gemm_workspace(device, &with_aux));
            run(scene, &g);
            uint16_t *found = test_copy(scene->exec.stream, c, (size_t)(rows * N) * sizeof *found);
            for (int64_t i = 0; i < rows * N; i++) {
                float wanted = sums[i] + (end ? element(DTYPE_BF16, added, end == 1 ? i % N : i) : 0);
                wanted = end == 1 ? gelu(typed(DTYPE_BF16, wanted)) : wanted;
                if (!(fabsf(bf16_to_float(found[i]) - wanted) <= 0x1p-7f * fabsf(wanted) + 0x1p-14f))
                    fail_msg("%lld rows, end %d: [%lld] is %g, expected %g", (long long)rows, end, (long long)i,
                             (double)bf16_to_float(found[i]), (double)wanted);
            }
            free(found);
        }
        free(sums);
    }
    free(added);
    release(scene, x);
    release(scene, terms);
    release(scene, c);
    weight_close(scene, &w);
}

static void products_end_with_bias_gelu_and_residual(void **state) {
    (void)state;
    every_table(check_ends);
}

/* More values than a block of a GPU's workspace, forward and back. */
static void check_blocks(const struct scene *scene) {
    enum { N = 130, K = 66000 };
    struct weight w = {
        .k = K,
        .layout = {1, {{.rows = N, .positions = K, .encoding = {.codes = CODES_E4M3, .bits = 8, .group = 120}}}}};
    weight_open(scene, &w, DTYPE_F32);
    void *x = rows_of_x(DTYPE_F32, K), *there = allocate(scene, K * sizeof(float));
    float *c = allocate(scene, K * sizeof *c);
    test_ok(test_write(scene->exec.stream, there, x, K * sizeof(float)));
    struct gemm g = forward_of(&w, DTYPE_F32, there, 1, c);
    float *found = product(scene, &g);
    check_oracle(&w, DTYPE_F32, x, found, 1, 1, "blocks");
    free(found);
    g = (struct gemm){.a = matrix_plain(DTYPE_F32, there, 1, N), .b = w.view, .c = matrix_plain(DTYPE_F32, c, 1, K)};
    found = product(scene, &g);
    for (int64_t j = 0; j < K; j++) {
        double sum = 0, size = 0;
        for (int64_t i = 0; i < N; i++) {
            double term = (double)((float *)x)[i] * (double)w.value[i * K + j];
            sum += term;
            size += fabs(term);
        }
        assert_true(fabs((double)found[j] - sum) <= (N + 16) * 0x1p-23 * size);
    }
    free(found);
    free(x);
    release(scene, there);
    release(scene, c);
    weight_close(scene, &w);
}

static void large_weights_multiply_in_blocks(void **state) {
    (void)state;
    if (is_card()) /* others have small blocks */
        every_table(check_blocks);
}

static void what_panels_do_not_hold_is_refused(void **state) {
    (void)state;
    struct device *device;
    test_ok(device_open(test_device(), DEVICE_FIRST, 1, &device));
    const struct encoding good = {.codes = CODES_INTEGERS, .bits = 4, .bias = 8, .scale_type = DTYPE_F16, .group = 32};
    struct encoding bad[] = {good, good, good, good, good, good};
    bad[0].group = 12;
    bad[1].bits = 9;
    bad[2].scale_type = DTYPE_U8;
    bad[3].groups_of_block = 4;
    bad[4].codes = CODES_E4M3;
    bad[5].group = 0;
    for (size_t i = 0; i <= sizeof bad / sizeof *bad; i++) {
        struct encoded_layout layout = {1, {{.rows = 8, .positions = 64, .encoding = i ? bad[i - 1] : good}}};
        struct matrix_view view = matrix_plain(DTYPE_BF16, NULL, 8, 64);
        view.encoded = &layout;
        assert_int_equal(ops_for(device)->packed_bytes(device, &view) > 0, i == 0);
        layout.parts[0].positions = 60;
        assert_int_equal(ops_for(device)->packed_bytes(device, &view), 0);
    }
    device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_q4_0_block_has_its_values),
        cmocka_unit_test(a_q4_k_block_has_its_values),
        cmocka_unit_test(tables_hold_the_numbers_of_their_formats),
        cmocka_unit_test(every_encoding_multiplies_at_every_level),
        cmocka_unit_test(parts_of_a_weight_have_their_own_encodings),
        cmocka_unit_test(operations_equal_fp64),
        cmocka_unit_test(input_gradients_equal_finite_differences),
        cmocka_unit_test(products_end_with_bias_gelu_and_residual),
        cmocka_unit_test(large_weights_multiply_in_blocks),
        cmocka_unit_test(the_number_of_threads_does_not_change_bits),
        cmocka_unit_test(what_panels_do_not_hold_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
