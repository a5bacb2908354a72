/* Attention, its gradients and the paged cache: against fp64, and the promises of their contract. */
#include "op_cases.h"
#include "support/test.h"

#include <math.h>

static const char *const levels[] = {"v2", "v3", "v4", "v4bf16", "v4amx"};

static void attention_equals_fp64(void **state) {
    (void)state;
    test_ok(op_check_reference(&attention_family, test_device(), test_is_long()));
}

static void attention_gradients_are_those_of_finite_differences(void **state) {
    (void)state;
    test_ok(op_check_gradients(&attention_family, test_device(), test_is_long()));
}

static void attention_does_not_depend_on_the_number_of_threads(void **state) {
    (void)state;
    test_ok(op_check_threads(&attention_family, test_device(), test_is_long()));
}

static void paged_attention_equals_fp64(void **state) {
    (void)state;
    test_ok(op_check_reference(&paged_family, test_device(), test_is_long()));
}

static void paged_attention_does_not_depend_on_the_number_of_threads(void **state) {
    (void)state;
    test_ok(op_check_threads(&paged_family, test_device(), test_is_long()));
}

/* ---- one sequence, through both --------------------------------------------------------------------------------- */

enum { ROWS = 150, MOST_SIZE = 130, MOST_HEADS = 4, PAGES = 10 };

struct sequence {
    const struct ops *ops;
    struct device *device;
    struct exec exec;
    enum dtype type;
    int size, heads, kv_heads;
    int window;
    void *qkv;  /* [ROWS, (H + 2G) D] */
    void *out;  /* [ROWS, H, D] */
    float *lse; /* [H, ROWS] */
    void *pages;
};

static int64_t qkv_cols(const struct sequence *s) {
    return (s->heads + 2 * s->kv_heads) * (int64_t)s->size;
}

static void *allocate(struct device *device, size_t bytes) {
    void *memory;
    test_ok(device_alloc(device, bytes, &memory));
    return memory;
}

static void put(const struct sequence *s, void *base, int64_t index, float value) {
    if (s->type == DTYPE_F32)
        ((float *)base)[index] = value;
    else
        ((uint16_t *)base)[index] = bf16_from_float(value);
}

static size_t out_bytes(const struct sequence *s) {
    return (size_t)(ROWS * s->heads * s->size) * dtype_bytes(s->type);
}

static void sequence_open(struct sequence *s) {
    int64_t count = ROWS * qkv_cols(s);
    size_t page_bytes = (size_t)(2 * s->kv_heads * KV_PAGE_TOKENS * s->size) * 4;
    s->qkv = allocate(s->device, (size_t)count * 4);
    s->out = allocate(s->device, out_bytes(s));
    s->lse = allocate(s->device, (size_t)(s->heads * ROWS) * sizeof(float));
    s->pages = allocate(s->device, PAGES * page_bytes);
    memset(s->pages, 0xff, PAGES * page_bytes);
    for (int64_t i = 0; i < count; i++) {
        uint32_t word = philox(3, (uint32_t)i, (uint32_t)s->size, 0, (uint32_t)RNG_TEST << 24).word[0];
        put(s, s->qkv, i, (float)(4 * rng_unit(word) - 2));
    }
    s->exec.workspace_bytes = (size_t)32 << 20;
    s->exec.workspace = allocate(s->device, s->exec.workspace_bytes);
}

static void sequence_close(struct sequence *s) {
    device_free(s->device, s->qkv);
    device_free(s->device, s->out);
    device_free(s->device, s->lse);
    device_free(s->device, s->pages);
    device_free(s->device, s->exec.workspace);
}

static const char *column(const struct sequence *s, int head) {
    return (const char *)s->qkv + (size_t)(head * s->size) * dtype_bytes(s->type);
}

static void plain_attention(struct sequence *s) {
    const int64_t segment[] = {0, ROWS};
    struct attention a = {.rows = ROWS,
                          .segments = 1,
                          .segment_start = segment,
                          .heads = s->heads,
                          .kv_heads = s->kv_heads,
                          .head_size = s->size,
                          .type = s->type,
                          .q = s->qkv,
                          .k = column(s, s->heads),
                          .v = column(s, s->heads + s->kv_heads),
                          .q_stride = qkv_cols(s),
                          .k_stride = qkv_cols(s),
                          .v_stride = qkv_cols(s),
                          .scale = 1 / sqrtf((float)s->size),
                          .out = s->out,
                          .out_stride = (int64_t)s->heads * s->size,
                          .window = s->window,
                          .lse = s->lse};
    assert_true(s->ops->attention_forward_workspace(s->device, &a) <= s->exec.workspace_bytes);
    test_ok(s->ops->attention_forward(&s->exec, &a));
}

/* Appends rows first .. end-1 (pages from the last to the first) and attends from them, in one call each, without the
 * pages before the window. */
static void paged_step(struct sequence *s, int first, int end) {
    int32_t place[ROWS], sequence[ROWS] = {0}, position[ROWS], table[PAGES];
    for (int i = 0; i < PAGES; i++)
        table[i] = PAGES - 1 - i;
    for (int i = first; i < end; i++) {
        place[i - first] = table[i / KV_PAGE_TOKENS] * KV_PAGE_TOKENS + i % KV_PAGE_TOKENS;
        position[i - first] = i;
    }
    size_t row = (size_t)(first * qkv_cols(s)) * dtype_bytes(s->type);
    int64_t page_stride = 2 * s->kv_heads * KV_PAGE_TOKENS * (int64_t)s->size;
    struct kv_append append = {.rows = end - first,
                               .kv_heads = s->kv_heads,
                               .head_size = s->size,
                               .type = s->type,
                               .k = column(s, s->heads) + row,
                               .v = column(s, s->heads + s->kv_heads) + row,
                               .k_stride = qkv_cols(s),
                               .v_stride = qkv_cols(s),
                               .pages = s->pages,
                               .page_stride = page_stride,
                               .place = place};
    test_ok(s->ops->kv_append(&s->exec, &append));
    for (int i = 0; s->window && (i + 1) * KV_PAGE_TOKENS <= first + 1 - s->window; i++)
        table[i] = INT32_MIN;
    struct paged_attention a = {.rows = end - first,
                                .heads = s->heads,
                                .kv_heads = s->kv_heads,
                                .head_size = s->size,
                                .type = s->type,
                                .q = column(s, 0) + row,
                                .q_stride = qkv_cols(s),
                                .scale = 1 / sqrtf((float)s->size),
                                .pages = s->pages,
                                .page_stride = page_stride,
                                .page_table = table,
                                .max_pages = PAGES,
                                .sequence = sequence,
                                .position = position,
                                .window = s->window,
                                .out = (char *)s->out + (size_t)(first * s->heads * s->size) * dtype_bytes(s->type),
                                .out_stride = (int64_t)s->heads * s->size};
    assert_true(s->ops->paged_attention_workspace(s->device, &a) <= s->exec.workspace_bytes);
    test_ok(s->ops->paged_attention(&s->exec, &a));
}

/* Calls `check` at every level for both types and several head sizes, on two threads. */
static void each_sequence(void (*check)(struct sequence *s)) {
    static const int sizes[] = {1, 2, 5, 16, 33, 64, 80, 128, 130};
    struct device *device;
    struct stream *stream;
    test_ok(device_open("cpu", DEVICE_FIRST, 2, &device));
    test_ok(stream_open(device, &stream));
    for (int level = 0; level < 4; level++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (int type = 0; type < 2; type++) {
                struct sequence s = {.ops = ops_for_level(device, levels[level]),
                                     .device = device,
                                     .exec = {.stream = stream},
                                     .type = type ? DTYPE_BF16 : DTYPE_F32,
                                     .size = sizes[i],
                                     .heads = MOST_HEADS,
                                     .kv_heads = i % 2 ? 2 : MOST_HEADS};
                if (!s.ops)
                    continue;
                sequence_open(&s);
                check(&s);
                sequence_close(&s);
            }
    stream_close(stream);
    device_close(device);
}

static void check_paged_equals_plain(struct sequence *s) {
    size_t bytes = out_bytes(s);
    plain_attention(s);
    void *plain = malloc(bytes);
    memcpy(plain, s->out, bytes);
    static const int chunk[] = {ROWS, 1, 7, 64, 100};
    for (size_t i = 0; i < sizeof chunk / sizeof *chunk; i++) {
        memset(s->out, 0xff, bytes);
        memset(s->pages, 0xff, (size_t)(PAGES * 2 * s->kv_heads * KV_PAGE_TOKENS * s->size) * dtype_bytes(s->type));
        for (int first = 0; first < ROWS; first += chunk[i])
            paged_step(s, first, first + chunk[i] < ROWS ? first + chunk[i] : ROWS);
        assert_memory_equal(s->out, plain, bytes);
    }
    free(plain);
}

static void check_windows(struct sequence *s) {
    static const int windows[] = {0, 1, 37, 64, 149};
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
        s->window = windows[i];
        check_paged_equals_plain(s);
    }
}

/* Prefill in chunks of any size and decoding row by row give the bits of training's forward, with and without a
 * window. */
static void paged_rows_have_the_bits_of_plain_attention_in_any_grouping(void **state) {
    (void)state;
    each_sequence(check_windows);
}

static void check_later_rows(struct sequence *s) {
    enum { FIRST_BAD = 101 };
    size_t bytes = out_bytes(s) / ROWS * FIRST_BAD;
    plain_attention(s);
    void *before = malloc(bytes);
    memcpy(before, s->out, bytes);
    for (int64_t i = FIRST_BAD * qkv_cols(s); i < ROWS * qkv_cols(s); i++)
        put(s, s->qkv, i, i % 3 ? NAN : INFINITY);
    plain_attention(s);
    assert_memory_equal(s->out, before, bytes);
    free(before);
}

static void later_rows_that_are_nan_change_no_earlier_row(void **state) {
    (void)state;
    each_sequence(check_later_rows);
}

static void check_rows_before_window(struct sequence *s) {
    enum { BAD = 45 };
    size_t bytes = out_bytes(s), row = bytes / ROWS;
    s->window = 37;
    plain_attention(s);
    char *before = malloc(bytes);
    memcpy(before, s->out, bytes);
    for (int64_t i = 0; i < BAD * qkv_cols(s); i++)
        put(s, s->qkv, i, i % 3 ? NAN : INFINITY);
    plain_attention(s);
    int64_t clean = BAD + s->window - 1;
    assert_memory_equal((char *)s->out + (size_t)clean * row, before + (size_t)clean * row,
                        bytes - (size_t)clean * row);
    assert_memory_not_equal((char *)s->out + (size_t)(clean - 1) * row, before + (size_t)(clean - 1) * row, row);
    free(before);
}

static void rows_before_the_window_that_are_nan_change_no_row(void **state) {
    (void)state;
    each_sequence(check_rows_before_window);
}

static void check_whole_window(struct sequence *s) {
    size_t bytes = out_bytes(s);
    plain_attention(s);
    void *before = malloc(bytes);
    memcpy(before, s->out, bytes);
    s->window = ROWS;
    plain_attention(s);
    assert_memory_equal(s->out, before, bytes);
    free(before);
}

static void a_window_that_hides_nothing_changes_no_bits(void **state) {
    (void)state;
    each_sequence(check_whole_window);
}

static void check_nan_query(struct sequence *s) {
    enum { BAD = 70 };
    plain_attention(s);
    size_t bytes = out_bytes(s), row = bytes / ROWS;
    char *before = malloc(bytes);
    memcpy(before, s->out, bytes);
    put(s, s->qkv, BAD * qkv_cols(s), NAN);
    plain_attention(s);
    assert_memory_equal(s->out, before, BAD * row);
    assert_memory_equal((char *)s->out + (BAD + 1) * row, before + (BAD + 1) * row, bytes - (BAD + 1) * row);
    for (int d = 0; d < s->size; d++) {
        const char *at = (const char *)s->out + BAD * row + (size_t)d * dtype_bytes(s->type);
        assert_true(isnan(s->type == DTYPE_F32 ? *(const float *)(const void *)at
                                               : bf16_to_float(*(const uint16_t *)(const void *)at)));
    }
    free(before);
}

static void a_nan_in_a_query_shows_in_its_row_alone(void **state) {
    (void)state;
    each_sequence(check_nan_query);
}

/* Scores far apart and of thousands neither overflow nor lose the largest. */
static void check_large_scores(struct sequence *s) {
    for (int64_t i = 0; i < ROWS * qkv_cols(s); i++) {
        bool is_value = i % qkv_cols(s) >= (s->heads + s->kv_heads) * s->size;
        put(s, s->qkv, i, is_value ? 1.0f : (float)(i % 89 - 44));
    }
    plain_attention(s);
    for (int64_t i = 0; i < ROWS * s->heads * s->size; i++) {
        float x = s->type == DTYPE_F32 ? ((float *)s->out)[i] : bf16_to_float(((uint16_t *)s->out)[i]);
        assert_true(fabsf(x - 1.0f) < 0.01f);
    }
    for (int i = 0; i < s->heads * ROWS; i++)
        assert_true(isfinite(s->lse[i]));
}

static void large_scores_do_not_overflow(void **state) {
    (void)state;
    each_sequence(check_large_scores);
}

static void impossible_arguments_are_refused(void **state) {
    (void)state;
    struct device *device;
    struct stream *stream;
    test_ok(device_open("cpu", DEVICE_FIRST, 1, &device));
    test_ok(stream_open(device, &stream));
    const struct ops *ops = ops_for(device);
    const int64_t segment[] = {0, 1};
    struct exec exec = {.stream = stream};
    struct attention a = {.rows = 1,
                          .segments = 1,
                          .segment_start = segment,
                          .heads = 3,
                          .kv_heads = 2,
                          .head_size = 8,
                          .type = DTYPE_F32};
    test_fails(ops->attention_forward(&exec, &a), STATUS_INVALID, "3 heads of size 8 over 2 key/value heads");
    a.kv_heads = 1;
    a.is_tf32 = true;
    test_fails(ops->attention_forward(&exec, &a), STATUS_UNSUPPORTED, "attention: no TF32 on cpu");
    test_fails(ops->attention_backward(&exec, &a), STATUS_UNSUPPORTED, "attention: no TF32 on cpu");
    a.type = DTYPE_BF16;
    test_fails(ops->attention_forward(&exec, &a), STATUS_UNSUPPORTED, "attention: TF32 is for fp32");
    a.type = DTYPE_F32;
    a.is_tf32 = false;
    test_fails(ops->attention_forward(&exec, &a), STATUS_INVALID, "workspace");
    test_fails(ops->attention_backward(&exec, &a), STATUS_INVALID, "workspace");
    a.window = -1;
    test_fails(ops->attention_forward(&exec, &a), STATUS_INVALID, "a window of -1 tokens");
    a.window = a.prefix = 5;
    test_fails(ops->attention_backward(&exec, &a), STATUS_INVALID, "5 tokens after a prefix of 5");
    a.window = a.prefix = 0;
    struct paged_attention paged = {.heads = 1, .kv_heads = 1, .head_size = 8, .type = DTYPE_F32, .window = -1};
    test_fails(ops->paged_attention(&exec, &paged), STATUS_INVALID, "a window of -1 tokens");
    a.dropout.p = 1;
    test_fails(ops->attention_forward(&exec, &a), STATUS_INVALID, "dropout");
    a.type = DTYPE_F16;
    test_fails(ops->attention_forward(&exec, &a), STATUS_UNSUPPORTED, "fp16");
    stream_close(stream);
    device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_equals_fp64),
        cmocka_unit_test(attention_gradients_are_those_of_finite_differences),
        cmocka_unit_test(attention_does_not_depend_on_the_number_of_threads),
        cmocka_unit_test(paged_attention_equals_fp64),
        cmocka_unit_test(paged_attention_does_not_depend_on_the_number_of_threads),
        cmocka_unit_test(paged_rows_have_the_bits_of_plain_attention_in_any_grouping),
        cmocka_unit_test(later_rows_that_are_nan_change_no_earlier_row),
        cmocka_unit_test(rows_before_the_window_that_are_nan_change_no_row),
        cmocka_unit_test(a_window_that_hides_nothing_changes_no_bits),
        cmocka_unit_test(a_nan_in_a_query_shows_in_its_row_alone),
        cmocka_unit_test(large_scores_do_not_overflow),
        cmocka_unit_test(impossible_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
