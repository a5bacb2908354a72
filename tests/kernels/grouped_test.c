/* Rows of many adapters: against fp64, over threads, and the same bits however the rows are cut. */
#include "op_cases.h"
#include "support/test.h"

#include <math.h>

static void grouped_operations_equal_fp64(void **state) {
    (void)state;
    test_ok(op_check_reference(&grouped_family, test_device(), test_is_long()));
}

static void threads_do_not_change_bits(void **state) {
    (void)state;
    test_ok(op_check_threads(&grouped_family, test_device(), test_is_long()));
}

/* ---- cuts ---- */

static const char *const levels[] = {"v2", "v3", "v4", "v4bf16", "v4amx"};
enum { ROWS = 131, K = 151 /* some copies of the matrix */, N = 149, FIRST = 2, LDC = N + 5, MOST = ROWS + 1 };

struct scene {
    struct device *device;
    struct stream *stream;
    const struct ops *ops;
    char *memory; /* a [ROWS, K], matrix [N, K], c [ROWS, LDC], of at most 4 bytes; then entry, then segments */
    bool is_by_input;
    enum dtype type;
    float scale;
    bool is_c_negative; /* c is -0, and otherwise drawn */
    int spoiled; /* this row of a has an infinity in its last element, the next one a NaN in its first; -1: none */
};
enum {
    A_AT = 0,
    MATRIX_AT = A_AT + ROWS * K * 4,
    C_AT = MATRIX_AT + N * K * 4,
    ENTRY_AT = (C_AT + ROWS * LDC * 4 + 63) / 64 * 64,
    SEGMENTS_AT = ENTRY_AT + (int)sizeof(struct group_entry),
    BYTES = SEGMENTS_AT + MOST * (int)sizeof(struct group_segment)
};

static void fill(void *to, int count, enum dtype type, uint32_t stream) {
    for (int i = 0; i < count; i++) {
        float value = (float)(4 * rng_unit(philox(2, (uint32_t)i, stream, 0, (uint32_t)RNG_TEST << 24).word[0]) - 2);
        if (type == DTYPE_F32)
            ((float *)to)[i] = value;
        else
            ((uint16_t *)to)[i] = bf16_from_float(value);
    }
}

static void spoil(const struct scene *s, char *a) {
    static const float wrong[] = {INFINITY, NAN};
    for (int i = 0; i < 2 && s->spoiled >= 0; i++) {
        char *at = a + (size_t)((s->spoiled + i) * K + (i ? 0 : K - 1)) * dtype_bytes(s->type);
        uint16_t half = bf16_from_float(wrong[i]);
        memcpy(at, s->type == DTYPE_F32 ? (const void *)&wrong[i] : &half, dtype_bytes(s->type));
    }
}

/* Segments of `length` rows, all of the one entry. Returns their number. */
static int64_t put_segments(const struct scene *s, int64_t length, char *image) {
    int64_t count = 0;
    for (int64_t row = 0; row < ROWS; row += length, count++) {
        struct group_segment segment = {.first_row = row,
                                        .rows = ROWS - row < length ? ROWS - row : length,
                                        .entries = (const struct group_entry *)(void *)(s->memory + ENTRY_AT)};
        memcpy(image + SEGMENTS_AT + count * (int64_t)sizeof segment, &segment, sizeof segment);
    }
    return count;
}

/* The bits of c after calls over the rows, which are cut into segments of `length`, in calls of `call_rows` rows. With
 * `is_shifted` each call's rows stand at the beginning of a and c, as a piece's do. */
static void cut_bits(const struct scene *s, int64_t length, int64_t call_rows, void *bits) {
    static char image[BYTES];
    memset(image, 0, sizeof image);
    fill(image + A_AT, ROWS * K, s->type, 1);
    spoil(s, image + A_AT);
    fill(image + MATRIX_AT, N * K, s->type, 2);
    fill(image + C_AT, ROWS * LDC, s->type, 3);
    for (int i = 0; i < ROWS * LDC && s->is_c_negative; i++)
        memcpy(image + C_AT + i * (int)dtype_bytes(s->type), s->type == DTYPE_F32 ? "\0\0\0\x80" : "\0\x80",
               dtype_bytes(s->type));
    struct group_entry entry = {.n = N,
                                .k = K,
                                .first_column = FIRST,
                                .data = s->memory + MATRIX_AT,
                                .is_by_input = s->is_by_input,
                                .type = s->type,
                                .scale = s->scale,
                                .unit = GROUP_UNIT_GELU_EXACT};
    memcpy(image + ENTRY_AT, &entry, sizeof entry);
    int64_t count = put_segments(s, length, image);
    test_ok(stream_copy_to_device(s->stream, s->memory, image, sizeof image));
    size_t size = dtype_bytes(s->type);
    for (int64_t row = 0; row < ROWS; row += call_rows) {
        struct grouped_gemm g = {.count = count,
                                 .segments = (const struct group_segment *)(void *)(s->memory + SEGMENTS_AT),
                                 .first_row = row,
                                 .rows = call_rows,
                                 .a = s->memory + A_AT + (size_t)(row * K) * size,
                                 .a_row = row,
                                 .lda = K,
                                 .a_type = s->type,
                                 .c = s->memory + C_AT + (size_t)(row * LDC) * size,
                                 .c_row = row,
                                 .ldc = LDC,
                                 .c_type = s->type,
                                 .accumulate = true};
        test_ok(s->ops->grouped_gemm(&(struct exec){.stream = s->stream}, &g));
    }
    test_ok(stream_copy_to_host(s->stream, bits, s->memory + C_AT, ROWS * LDC * size));
    test_ok(stream_wait(s->stream));
}

static void check_cuts(struct scene *s) {
    static char whole[ROWS * LDC * 4], cut[ROWS * LDC * 4];
    static const int64_t cuts[][2] = {{1, ROWS}, {1, 1}, {7, ROWS}, {ROWS, 25}, {40, 33}, {23, 1}};
    for (int i = 0; i < 4; i++) {
        s->is_by_input = i % 2;
        s->type = i / 2 ? DTYPE_BF16 : DTYPE_F32;
        size_t bytes = ROWS * LDC * dtype_bytes(s->type);
        cut_bits(s, ROWS, ROWS, whole);
        for (size_t j = 0; j < sizeof cuts / sizeof *cuts; j++) {
            cut_bits(s, cuts[j][0], cuts[j][1], cut);
            assert_memory_equal(whole, cut, bytes);
        }
    }
}

static void with_each_level(void (*check)(struct scene *s)) {
    struct scene s = {.scale = 1.75f, .spoiled = -1};
    void *memory;
    test_ok(device_open(test_device(), DEVICE_FIRST, 2, &s.device));
    test_ok(stream_open(s.device, &s.stream));
    test_ok(device_alloc(s.device, BYTES, &memory));
    s.memory = memory;
    s.ops = ops_for(s.device);
    check(&s);
    for (int i = 0; i < 4; i++)
        if ((s.ops = ops_for_level(s.device, levels[i])))
            check(&s);
    device_free(s.device, memory);
    stream_close(s.stream);
    device_close(s.device);
}

static void a_row_has_its_bits_however_rows_are_cut(void **state) {
    (void)state;
    with_each_level(check_cuts);
}

static void check_zeros(struct scene *s) {
    static char bits[ROWS * LDC * 4];
    s->scale = 0;
    s->is_c_negative = true;
    for (int i = 0; i < 4; i++) {
        s->is_by_input = i & 1;
        s->type = i & 2 ? DTYPE_BF16 : DTYPE_F32;
        cut_bits(s, ROWS, ROWS, bits);
        size_t width = dtype_bytes(s->type);
        for (size_t at = 0; at < ROWS * LDC * width; at++)
            assert_int_equal((uint8_t)bits[at], at % width == width - 1 ? 0x80 : 0);
    }
}

static void sums_of_zero_change_no_bit(void **state) {
    (void)state;
    with_each_level(check_zeros);
}

static bool is_finite(const struct scene *s, const char *bits, int row, int col) {
    const char *at = bits + (size_t)(row * LDC + FIRST + col) * dtype_bytes(s->type);
    float fp32 = 0;
    uint16_t half = 0;
    if (s->type == DTYPE_F32)
        memcpy(&fp32, at, sizeof fp32);
    else
        memcpy(&half, at, sizeof half);
    return isfinite(fp32 + bf16_to_float(half));
}

/* Also where it is multiplied by zero. */
static void check_spoiled(struct scene *s) {
    static char clean[ROWS * LDC * 4], bits[ROWS * LDC * 4];
    enum { ROW = 44 };
    for (int i = 0; i < 8; i++) {
        s->is_by_input = i & 1;
        s->type = i & 2 ? DTYPE_BF16 : DTYPE_F32;
        s->scale = i & 4 ? 0 : 1.75f;
        size_t row_bytes = LDC * dtype_bytes(s->type);
        s->spoiled = -1;
        cut_bits(s, 50, ROWS, clean);
        s->spoiled = ROW;
        cut_bits(s, 50, ROWS, bits);
        assert_memory_equal(bits, clean, ROW * row_bytes);
        assert_memory_equal(bits + (ROW + 2) * row_bytes, clean + (ROW + 2) * row_bytes, (ROWS - ROW - 2) * row_bytes);
        for (int j = 0; j < N; j++)
            assert_false(is_finite(s, bits, ROW + 1, j));
        int finite = 0;
        for (int j = 0; j < N; j++)
            finite += is_finite(s, bits, ROW, j);
        assert_true(finite < N);
    }
}

static void infinities_and_nans_stay_in_their_row(void **state) {
    (void)state;
    with_each_level(check_spoiled);
}

/* ---- norms ---- */

enum { NORMED = N - 1, NORM_BIAS_AT = A_AT + 1024, CONTENTS = 16 }; /* whole accesses, but rows do not begin at one */

/* Two neighbours have the same numbers. */
static uint32_t content_of(size_t row) {
    return (uint32_t)(row / 2 % CONTENTS);
}

/* The bits of a norm in place; cut as above. */
static void norm_bits(const struct scene *s, int64_t length, int64_t call_rows, void *bits) {
    static char image[BYTES];
    size_t row_bytes = LDC * dtype_bytes(s->type);
    memset(image, 0, sizeof image);
    fill(image + A_AT, 1024, s->type, 2);
    for (size_t row = 0; row < ROWS; row++)
        fill(image + C_AT + row * row_bytes, LDC, s->type, 3 + content_of(row));
    struct group_entry entry = {
        .n = NORMED, .first_column = FIRST, .data = s->memory + A_AT, .bias = s->memory + NORM_BIAS_AT};
    memcpy(image + ENTRY_AT, &entry, sizeof entry);
    int64_t count = put_segments(s, length, image);
    test_ok(stream_copy_to_device(s->stream, s->memory, image, sizeof image));
    for (int64_t row = 0; row < ROWS; row += call_rows) {
        struct grouped_norm g = {.count = count,
                                 .segments = (const struct group_segment *)(void *)(s->memory + SEGMENTS_AT),
                                 .first_row = row,
                                 .rows = call_rows,
                                 .x = s->memory + C_AT,
                                 .ldx = LDC,
                                 .type = s->type,
                                 .epsilon = 1e-5f};
        test_ok(s->ops->grouped_norm(&(struct exec){.stream = s->stream}, &g));
    }
    test_ok(stream_copy_to_host(s->stream, bits, s->memory + C_AT, ROWS * row_bytes));
    test_ok(stream_wait(s->stream));
}

static void check_norms(struct scene *s) {
    static char bits[ROWS * LDC * 4], first[ROWS * LDC * 4];
    static const int64_t cuts[][2] = {{ROWS, ROWS}, {1, ROWS}, {1, 1}, {7, ROWS}, {ROWS, 25}, {40, 33}};
    for (int i = 0; i < 2; i++) {
        s->type = i ? DTYPE_BF16 : DTYPE_F32;
        size_t row_bytes = LDC * dtype_bytes(s->type);
        for (size_t j = 0; j < sizeof cuts / sizeof *cuts; j++) {
            norm_bits(s, cuts[j][0], cuts[j][1], bits);
            if (j == 0)
                memcpy(first, bits, ROWS * row_bytes);
            for (size_t row = 0; row < ROWS; row++)
                assert_memory_equal(bits + row * row_bytes, first + 2 * content_of(row) * row_bytes, row_bytes);
        }
    }
}

static void a_norm_has_the_same_bits_in_every_row(void **state) {
    (void)state;
    with_each_level(check_norms);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grouped_operations_equal_fp64),
        cmocka_unit_test(threads_do_not_change_bits),
        cmocka_unit_test(a_row_has_its_bits_however_rows_are_cut),
        cmocka_unit_test(sums_of_zero_change_no_bit),
        cmocka_unit_test(infinities_and_nans_stay_in_their_row),
        cmocka_unit_test(a_norm_has_the_same_bits_in_every_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
