/* Batch invariance: a row of a product has the same bits among any number of rows, and attention that trains has those
 * of attention over the cache. The stand-in's first algorithm adds in an order that follows the number of rows, C's
 * type and the epilogue (CAMBIUM_CUDA_ALGORITHMS), so that a product with another algorithm has other bits. */
#include "kernels/algorithms.h"
#include "kernels/ops.h"

#include "support/device.h"
#include "support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 100, MOST = 1030 };

/* Products of the same rows with a weight [n, k]. C's rows begin at a multiple of 8 elements. */
static const struct form {
    int64_t n, k;
    enum dtype type, c_type;
    bool has_bias;
    enum gemm_epilogue epilogue;
} forms[] = {
    {40, 72, DTYPE_F32, DTYPE_F32, true, EPILOGUE_NONE},
    {40, 72, DTYPE_F32, DTYPE_F32, true, EPILOGUE_GELU_TANH},
    {40, 640, DTYPE_BF16, DTYPE_BF16, true, EPILOGUE_NONE},
    {40, 640, DTYPE_BF16, DTYPE_BF16, false, EPILOGUE_NONE},
    {40, 640, DTYPE_BF16, DTYPE_BF16, true, EPILOGUE_GELU_TANH},
    {40, 72, DTYPE_F32, DTYPE_F32, true, EPILOGUE_GELU_EXACT},
    {MOST, 64, DTYPE_BF16, DTYPE_F32, false, EPILOGUE_NONE}, /* the last columns are a product of their own */
    {61, 61, DTYPE_BF16, DTYPE_F32, false, EPILOGUE_NONE},   /* no row begins at an access of 16 bytes */
};
enum { FORMS = sizeof forms / sizeof *forms };

struct scene {
    struct device *device;
    struct exec exec;
    void *a, *b, *bias, *c;
};

static void open_scene(struct scene *s, bool is_invariant) {
    void **arrays[] = {&s->a, &s->b, &s->bias, &s->c};
    float *values = malloc(sizeof *values * MOST * 128);
    assert_non_null(values);
    for (uint32_t i = 0; i < MOST * 128; i++)
        values[i] = (float)(philox(1, i, 0, 0, (uint32_t)RNG_TEST << 24).word[0] % 2001) / 1000 - 1;
    test_ok(device_open("cuda", DEVICE_FIRST, 1, &s->device));
    if (is_invariant)
        device_make_batch_invariant(s->device);
    test_ok(stream_open(s->device, &s->exec.stream));
    for (int i = 0; i < 4; i++) {
        test_ok(device_alloc(s->device, sizeof *values * MOST * 128, arrays[i]));
        test_ok(stream_copy_to_device(s->exec.stream, *arrays[i], values, sizeof *values * MOST * 128));
    }
    test_ok(stream_wait(s->exec.stream));
    s->exec.workspace_bytes = (size_t)64 << 20;
    test_ok(device_alloc(s->device, s->exec.workspace_bytes, &s->exec.workspace));
    free(values);
}

static void close_scene(struct scene *s) {
    void *arrays[] = {s->a, s->b, s->bias, s->c, s->exec.workspace};
    for (int i = 0; i < 5; i++)
        device_free(s->device, arrays[i]);
    stream_close(s->exec.stream);
    device_close(s->device);
}

/* Rows [first, first + rows) of a product, in the caller's `c`. In bf16, the numbers are every second half of fp32
 * ones. */
static void multiply(struct scene *s, const struct form *f, int64_t first, int64_t rows, void *c) {
    int64_t stride = (f->n + 7) / 8 * 8;
    const struct gemm call = {
        .a = matrix_rows(matrix_plain(f->type, s->a, ROWS, f->k), first, rows),
        .b = matrix_plain(f->type, s->b, f->n, f->k),
        .b_transposed = true,
        .bias = f->has_bias ? s->bias : NULL,
        .epilogue = f->epilogue,
        .c = matrix_rows(matrix_strided(f->c_type, s->c, ROWS, f->n, stride), first, rows),
    };
    assert_true(ops_for(s->device)->gemm_workspace(s->device, &call) <= s->exec.workspace_bytes);
    test_ok(ops_for(s->device)->gemm(&s->exec, &call));
    size_t bytes = dtype_bytes(f->c_type);
    for (int64_t i = 0; i < rows; i++)
        test_ok(test_read(s->exec.stream, (char *)c + (size_t)(i * f->n) * bytes,
                          (const char *)call.c.data + (size_t)(i * stride) * bytes, (size_t)f->n * bytes));
}

/* Returns the number of cuts of the rows in which a row has other bits than among all rows. */
static int count_differences(struct scene *s, const struct form *f) {
    static const int64_t cuts[][2] = {{0, 1},  {0, 2},  {0, 3},  {0, 8},  {0, 15}, {0, 16}, {0, 17},
                                      {0, 31}, {0, 64}, {0, 65}, {99, 1}, {5, 2},  {7, 16}, {13, 17}};
    size_t width = (size_t)f->n * dtype_bytes(f->c_type);
    char *all = malloc(ROWS * width), *some = malloc(ROWS * width);
    int different = 0;
    assert_true(all && some);
    multiply(s, f, 0, ROWS, all);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        multiply(s, f, cuts[i][0], cuts[i][1], some);
        different += memcmp(all + (size_t)cuts[i][0] * width, some, (size_t)cuts[i][1] * width) != 0;
    }
    free(all);
    free(some);
    return different;
}

/* Off, this test must see other bits. */
static void a_row_has_its_bits_among_any_number_of_rows(void **state) {
    struct scene on = {0}, off = {0};
    (void)state;
    open_scene(&on, true);
    open_scene(&off, false);
    for (int i = 0; i < FORMS; i++) {
        if (count_differences(&on, &forms[i]))
            fail_msg("form %d: a row has other bits among other rows", i);
        if (!count_differences(&off, &forms[i]))
            fail_msg("form %d: without batch invariance this test would see nothing", i);
    }
    close_scene(&on);
    close_scene(&off);
}

/* Beside rows with adapters, a product's C is fp32 and is rounded by a cast. */
static void a_row_has_the_bits_of_sums_in_fp32(void **state) {
    enum { ELEMENTS = ROWS * 40, SOME = 17 };
    const struct form narrow = {40, 640, DTYPE_BF16, DTYPE_BF16, true, EPILOGUE_NONE};
    struct form wide = narrow;
    static uint16_t rounded[ELEMENTS];
    static float sums[ELEMENTS];
    (void)state;
    wide.c_type = DTYPE_F32;
    for (int is_invariant = 0; is_invariant < 2; is_invariant++) {
        struct scene s = {0};
        int different = 0;
        open_scene(&s, is_invariant);
        multiply(&s, &narrow, 0, SOME, rounded);
        multiply(&s, &wide, 0, ROWS, sums);
        for (int i = 0; i < SOME * 40; i++)
            different += rounded[i] != bf16_from_float(sums[i]);
        if (is_invariant != (different == 0))
            fail_msg("%d numbers differ with batch invariance %d", different, is_invariant);
        close_scene(&s);
    }
}

/* ---- attention that trains, in the order of the cache's pages ---- */

/* A batch of two segments, and the same rows as sequences of the cache. */
enum { FIRST = 401, LAST = 18, TOKENS = FIRST + LAST, PREFIX = 5, PAGES = 27, KV = 2, GROUP = 2 };
static const int64_t segment_start[] = {0, FIRST, TOKENS};
static const struct attending {
    const char *name;
    int size, prefix, window;
    enum dtype type;
    bool is_tf32;
} attending[] = {
    {"fp32", 6, 0, 0, DTYPE_F32, false},
    {"a prefix", 6, PREFIX, 0, DTYPE_F32, false},
    {"a window", 6, 0, 390, DTYPE_F32, false},
    {"tf32", 8, 0, 0, DTYPE_F32, true},
    {"bf16", 32, 0, 0, DTYPE_BF16, false},
    {"bf16, a prefix", 32, PREFIX, 0, DTYPE_BF16, false},
    {"bf16, a window", 32, 0, 17, DTYPE_BF16, false},
    {"bf16, size 72", 72, 0, 0, DTYPE_BF16, false},
    {"bf16, an odd size", 7, PREFIX, 0, DTYPE_BF16, false},
};

static void *upload(struct scene *s, const void *values, size_t bytes) {
    void *memory;
    test_ok(device_alloc(s->device, bytes, &memory));
    test_ok(test_write(s->exec.stream, memory, values, bytes));
    return memory;
}

/* Puts keys and values of a prefix or of the batch into both sequences, which have pages 0 .. PAGES - 1 and those after
 * them. */
static void append(struct scene *s, const struct attention *a, bool is_prefix, void *pages, int64_t page_stride) {
    static int32_t place[2 * PREFIX + TOKENS];
    for (int sequence = 0, i = 0; sequence < 2; sequence++)
        for (int k = 0; k < (is_prefix ? PREFIX : sequence ? LAST : FIRST); k++)
            place[i++] = sequence * PAGES * KV_PAGE_TOKENS + (is_prefix ? k : (int)a->prefix + k);
    void *places = upload(s, place, sizeof place);
    for (int sequence = 0; sequence < (is_prefix ? 2 : 1); sequence++) {
        const struct kv_append call = {.rows = is_prefix ? PREFIX : TOKENS,
                                       .kv_heads = KV,
                                       .head_size = a->head_size,
                                       .type = a->type,
                                       .k = is_prefix ? a->prefix_k : a->k,
                                       .v = is_prefix ? a->prefix_v : a->v,
                                       .k_stride = is_prefix ? (int64_t)KV * a->head_size : a->k_stride,
                                       .v_stride = is_prefix ? (int64_t)KV * a->head_size : a->v_stride,
                                       .pages = pages,
                                       .page_stride = page_stride,
                                       .place = (int32_t *)places + sequence * PREFIX};
        test_ok(ops_for(s->device)->kv_append(&s->exec, &call));
    }
    test_ok(stream_wait(s->exec.stream));
    device_free(s->device, places);
}

/* Attention of the batch's rows over the pages of their sequences. */
static void attend_pages(struct scene *s, const struct attention *a, void *out) {
    static int32_t numbers[2 * TOKENS], table[2 * PAGES];
    int64_t page_stride = ops_for(s->device)->kv_page_elements(s->device, KV, a->head_size, a->type);
    void *pages;
    test_ok(device_alloc(s->device, (size_t)(2 * PAGES * page_stride) * dtype_bytes(a->type), &pages));
    for (int i = 0; i < TOKENS; i++) {
        numbers[i] = i >= FIRST;
        numbers[TOKENS + i] = (int32_t)a->prefix + (i < FIRST ? i : i - FIRST);
    }
    for (int i = 0; i < 2 * PAGES; i++)
        table[i] = i;
    int32_t *of_rows = upload(s, numbers, sizeof numbers), *of_pages = upload(s, table, sizeof table);
    if (a->prefix)
        append(s, a, true, pages, page_stride);
    append(s, a, false, pages, page_stride);
    const struct paged_attention call = {.rows = TOKENS,
                                         .heads = a->heads,
                                         .kv_heads = KV,
                                         .head_size = a->head_size,
                                         .type = a->type,
                                         .q = a->q,
                                         .q_stride = a->q_stride,
                                         .scale = a->scale,
                                         .pages = pages,
                                         .page_stride = page_stride,
                                         .page_table = of_pages,
                                         .max_pages = PAGES,
                                         .sequence = of_rows,
                                         .position = of_rows + TOKENS,
                                         .window = a->window,
                                         .out = out,
                                         .out_stride = a->out_stride};
    test_ok(ops_for(s->device)->paged_attention(&s->exec, &call));
    test_ok(stream_wait(s->exec.stream));
    device_free(s->device, pages);
    device_free(s->device, of_rows);
    device_free(s->device, of_pages);
}

/* Returns the bytes that differ between attention in the forward that trains and attention over pages. Sets *lse_error
 * to the largest difference of a log-sum-exp from that of an ordinary device. */
static int count_attended(const struct attending *c, bool is_invariant, double *lse_error) {
    struct scene s = {0};
    open_scene(&s, is_invariant);
    int heads = KV * GROUP;
    int64_t q = (int64_t)heads * c->size, kv = (int64_t)KV * c->size, row = q + 2 * kv;
    size_t out_bytes = (size_t)(TOKENS * q) * dtype_bytes(c->type),
           lse_bytes = (size_t)(heads * TOKENS) * sizeof(float);
    char *block = test_upload_random(s.device, s.exec.stream, c->type, TOKENS * row, 1, -1, 1);
    void *prefix = test_upload_random(s.device, s.exec.stream, c->type, 2 * PREFIX * kv, 2, -1, 1);
    void *starts = upload(&s, segment_start, sizeof segment_start), *outs[2], *lse[2];
    for (int i = 0; i < 2; i++) {
        test_ok(device_alloc(s.device, out_bytes, &outs[i]));
        test_ok(device_alloc(s.device, lse_bytes, &lse[i]));
    }
    struct attention a = {.rows = TOKENS,
                          .segments = 2,
                          .segment_start = starts,
                          .heads = heads,
                          .kv_heads = KV,
                          .head_size = c->size,
                          .type = c->type,
                          .is_tf32 = c->is_tf32,
                          .q = block,
                          .k = block + (size_t)q * dtype_bytes(c->type),
                          .v = block + (size_t)(q + kv) * dtype_bytes(c->type),
                          .q_stride = row,
                          .k_stride = row,
                          .v_stride = row,
                          .scale = 0.5f,
                          .out = outs[0],
                          .out_stride = q,
                          .window = c->window,
                          .lse = lse[0],
                          .prefix = c->prefix,
                          .prefix_k = c->prefix ? prefix : NULL,
                          .prefix_v = c->prefix ? (char *)prefix + (size_t)(PREFIX * kv) * dtype_bytes(c->type) : NULL};
    attend_pages(&s, &a, outs[1]);
    test_ok(ops_for(s.device)->attention_forward(&s.exec, &a));
    char *trained = test_copy(s.exec.stream, outs[0], out_bytes),
         *served = test_copy(s.exec.stream, outs[1], out_bytes);
    int different = 0;
    for (size_t i = 0; i < out_bytes; i++)
        different += trained[i] != served[i];
    a.dropout = (struct dropout){.p = 1e-9f, .keys = {.sample = s.a, .token = s.a}}; /* another kernel's sums */
    a.lse = lse[1];
    test_ok(ops_for(s.device)->attention_forward(&s.exec, &a));
    float *ours = test_copy(s.exec.stream, lse[0], lse_bytes), *theirs = test_copy(s.exec.stream, lse[1], lse_bytes);
    for (int i = 0; i < heads * TOKENS; i++)
        *lse_error = fmax(*lse_error, fabs((double)ours[i] - (double)theirs[i]));
    void *const host[] = {trained, served, ours, theirs};
    void *const memory[] = {block, prefix, starts, outs[0], outs[1], lse[0], lse[1]};
    for (int i = 0; i < 4; i++)
        free(host[i]);
    for (int i = 0; i < 7; i++)
        device_free(s.device, memory[i]);
    close_scene(&s);
    return different;
}

/* Off, attention in bf16 and in TF32 has other bits. */
static void attention_that_trains_has_the_bits_of_pages(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof attending / sizeof *attending; i++) {
        const struct attending *c = &attending[i];
        double lse_error = 0, other_error = 0, bound = c->is_tf32 ? 2e-3 : 1e-5; /* TF32: 10 bits of a factor */
        int different = count_attended(c, true, &lse_error);
        if (different || lse_error > bound)
            fail_msg("%s: %d bytes differ, and log-sum-exps by %g", c->name, different, lse_error);
        if ((c->type == DTYPE_BF16 || c->is_tf32) && c->size % 8 == 0 && !count_attended(c, false, &other_error))
            fail_msg("%s: without batch invariance this test would see nothing", c->name);
    }
}

/* ---- the loss ---- */

/* The bf16 gradient of fp32 logits is the fp32 gradient, rounded once, also where it overwrites logits of the row. */
static void a_bf16_gradient_of_the_loss_is_rounded_once(void **state) {
    enum { V = 1203, STRIDE = 1216, N = 3, FUSED = 0, BACKWARD = 1, PARTS = 2 };
    static const int32_t labels[N] = {0, 700, V - 1};
    static const float weights[N] = {0.25f, 0, 3};
    struct scene s = {0};
    (void)state;
    open_scene(&s, true);
    const struct ops *ops = ops_for(s.device);
    void *label = upload(&s, labels, sizeof labels), *weight = upload(&s, weights, sizeof weights);
    size_t bytes = (size_t)N * STRIDE * sizeof(float);
    for (int way = FUSED; way <= PARTS; way++) {
        void *memory[2], *host[2];
        for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
            memory[is_bf16] = test_upload_random(s.device, s.exec.stream, DTYPE_F32, (int64_t)N * STRIDE, 3, -4, 4);
            struct cross_entropy a = {.rows = N,
                                      .vocab = V,
                                      .stride = STRIDE,
                                      .type = DTYPE_F32,
                                      .logits = memory[is_bf16],
                                      .labels = label,
                                      .loss = s.c,
                                      .lse = (float *)s.c + N,
                                      .dloss = weight,
                                      .gradient_is_bf16 = is_bf16,
                                      .part = s.bias};
            if (way != FUSED)
                test_ok((way == PARTS ? ops->cross_entropy_part : ops->cross_entropy_forward)(&s.exec, &a));
            test_ok((way == FUSED      ? ops->cross_entropy_fused
                     : way == BACKWARD ? ops->cross_entropy_backward
                                       : ops->cross_entropy_part_backward)(&s.exec, &a));
            host[is_bf16] = test_copy(s.exec.stream, memory[is_bf16], bytes);
        }
        for (int i = 0; i < N; i++)
            for (int j = 0; j < STRIDE; j++)
                assert_int_equal(((uint16_t *)host[1])[2 * i * STRIDE + j],
                                 bf16_from_float(((float *)host[0])[i * STRIDE + j]));
        for (int i = 0; i < 2; i++) {
            device_free(s.device, memory[i]);
            free(host[i]);
        }
    }
    device_free(s.device, label);
    device_free(s.device, weight);
    close_scene(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_has_its_bits_among_any_number_of_rows),
        cmocka_unit_test(a_row_has_the_bits_of_sums_in_fp32),
        cmocka_unit_test(attention_that_trains_has_the_bits_of_pages),
        cmocka_unit_test(a_bf16_gradient_of_the_loss_is_rounded_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
