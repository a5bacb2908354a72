/* A linear in FP8 against golden/fp8.json: TransformerEngine's rules, which tools/golden/fp8_vectors.py writes out in
 * numpy. */
#include "support/device.h"
#include "support/test.h"

#include "parallel/linear.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

enum { ROWS = 12, IN = 8, OUT = 16, STEPS = 5, MICROS = 2, LENGTH_MOST = 3, WORKSPACE = 1 << 20 };
enum { WEIGHT_ROW, BIAS_ROW, TABLE_ROWS };

/* The values of fp8_vectors.py. Their sizes change from step to step; NONE: all are 0. */
enum { NONE = 99 };
static const int exponents[FP8_OPERANDS][STEPS] = {
    [FP8_INPUT] = {0, 2, -1, 3, -30}, [FP8_WEIGHT] = {-5, -5, -4, -6, -5}, [FP8_GRADIENT] = {-12, -10, NONE, -8, -14}};

static void pattern(enum fp8_operand kind, int step, int micro, uint16_t *out, int64_t count) {
    uint32_t key = (uint32_t)kind * 0x9e3779b9u + (uint32_t)step * 0x85ebca6bu + (uint32_t)micro * 0xc2b2ae35u;
    for (int64_t i = 0; i < count; i++) {
        uint32_t h = ((uint32_t)(i + 1) * 2654435761u) ^ key;
        h ^= h >> 15;
        h *= 0x2c1b3c6du;
        h ^= h >> 12;
        float unit = ((float)(h >> 24) - 128) / 128;
        out[i] = exponents[kind][step] == NONE ? 0 : bf16_from_float(ldexpf(unit, exponents[kind][step]));
    }
}

/* The tensors' state on the device, in one block. */
struct scales {
    float scale[FP8_OPERANDS], inverse[FP8_OPERANDS], amax[FP8_OPERANDS], history[LENGTH_MOST][FP8_OPERANDS];
};

struct scene {
    struct device *device;
    struct rank rank;
    struct param rows[TABLE_ROWS];
    struct param_table table;
    struct param_store store;
    struct scales *scales;     /* on the device */
    uint16_t *x, *y, *dy, *dx; /* on the device */
    struct fp8_linear fp8;
};

static void *take(struct scene *s, size_t bytes) {
    void *memory;
    test_ok(device_alloc_zeroed(s->device, bytes, &memory));
    return memory;
}

static void open_scene(struct scene *s, bool is_e4m3, bool keeps_weight) {
    static const struct param rows[TABLE_ROWS] = {
        {.name = "weight", .dims = 2, .shape = {OUT, IN}, .is_trainable = true, .is_linear = true},
        {.name = "bias", .dims = 1, .shape = {OUT, 1}, .is_trainable = true}};
    *s = (struct scene){.table = {.rows = s->rows, .count = TABLE_ROWS}};
    for (int i = 0; i < TABLE_ROWS; i++) {
        s->rows[i] = rows[i];
        s->rows[i].slice_count = 1;
        s->rows[i].slices[0].rows = s->rows[i].slices[0].file_rows = OUT;
    }
    test_ok(device_open(test_device(), DEVICE_FIRST, 2, &s->device));
    test_ok(rank_open_single(&s->rank, s->device, 1));
    test_ok(rank_need(&s->rank, WORKSPACE));
    test_ok(rank_allocate_workspace(&s->rank));
    test_ok(param_store_sketch(
        &s->store, &(const struct param_store_options){
                       .table = &s->table, .device = s->device, .dtype = DTYPE_BF16, .has_gradients = true}));
    test_ok(param_store_open(&s->store, NULL));
    struct scales first = {.scale = {1, 1, 1}, .inverse = {1, 1, 1}};
    s->scales = take(s, sizeof *s->scales);
    test_ok(stream_copy_to_device(s->rank.exec.stream, s->scales, &first, sizeof first));
    test_ok(stream_wait(s->rank.exec.stream));
    s->x = take(s, sizeof(uint16_t) * ROWS * IN);
    s->dx = take(s, sizeof(uint16_t) * ROWS * IN);
    s->y = take(s, sizeof(uint16_t) * ROWS * OUT);
    s->dy = take(s, sizeof(uint16_t) * ROWS * OUT);
    const size_t bytes[] = {fp8_bytes(ROWS, IN), fp8_bytes(OUT, IN), fp8_bytes(ROWS, OUT)};
    for (int i = 0; i < FP8_OPERANDS; i++)
        s->fp8.tensor[i] = (struct fp8_tensor){.type = i == FP8_GRADIENT && !is_e4m3 ? DTYPE_E5M2 : DTYPE_E4M3,
                                               .scale = &s->scales->scale[i],
                                               .inverse = &s->scales->inverse[i],
                                               .amax = &s->scales->amax[i],
                                               .values = take(s, bytes[i])};
    s->fp8.keeps_weight = keeps_weight;
}

static void close_scene(struct scene *s) {
    void *const blocks[] = {s->scales, s->x, s->y, s->dx, s->dy};
    for (int i = 0; i < FP8_OPERANDS; i++)
        device_free(s->device, s->fp8.tensor[i].values);
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        device_free(s->device, blocks[i]);
    param_store_close(&s->store);
    rank_close(&s->rank);
    device_close(s->device);
}

static void put(struct scene *s, void *to, enum fp8_operand kind, int step, int micro, int64_t count) {
    uint16_t values[ROWS * OUT];
    pattern(kind, step, micro, values, count);
    test_ok(stream_copy_to_device(s->rank.exec.stream, to, values, (size_t)count * sizeof *values));
    test_ok(stream_wait(s->rank.exec.stream));
}

static void put_weights(struct scene *s, int step) {
    put(s, param_borrow_to_write(&s->store, WEIGHT_ROW), FP8_WEIGHT, step, 0, OUT * IN);
    param_return(&s->store, WEIGHT_ROW);
    put(s, param_borrow_to_write(&s->store, BIAS_ROW), FP8_WEIGHT, step, 7, OUT);
    param_return(&s->store, BIAS_ROW);
}

static int set_scales(struct scene *s, const json_t *golden, int step) {
    int length = (int)json_integer_value(json_object_get(golden, "length"));
    int margin = (int)json_integer_value(json_object_get(golden, "margin")), status = STATUS_OK;
    const char *algorithm = json_string_value(json_object_get(golden, "algorithm"));
    for (int i = 0; i < FP8_OPERANDS && !status; i++) {
        struct fp8_scales call = {.count = 1,
                                  .length = length,
                                  .position = step % length,
                                  .stride = FP8_OPERANDS,
                                  .is_most_recent = !strcmp(algorithm, "most_recent"),
                                  .most = ldexpf(fp8_largest(s->fp8.tensor[i].type), -margin),
                                  .amax = &s->scales->amax[i],
                                  .history = &s->scales->history[0][i],
                                  .scale = &s->scales->scale[i],
                                  .inverse = &s->scales->inverse[i]};
        status = s->rank.ops->fp8_scales(&s->rank.exec, &call);
    }
    s->fp8.weight = FP8_WEIGHT_OLD;
    return status;
}

/* A recomputed forward, and an evaluation, change no largest size and give the same bits. */
static void run_micro_batch(struct scene *s, int step, int micro) {
    static const struct hook_list no_hooks;
    const struct linear linear = {.weight = WEIGHT_ROW, .bias = BIAS_ROW, .in = IN, .out = OUT};
    struct linear_call call = {.rank = &s->rank,
                               .store = &s->store,
                               .hooks = &no_hooks,
                               .dtype = DTYPE_BF16,
                               .fp8 = &s->fp8,
                               .rows = ROWS,
                               .x = s->x,
                               .y = s->y,
                               .overwrite_gradients = micro == 0};
    struct stream *stream = s->rank.exec.stream;
    put(s, s->x, FP8_INPUT, step, micro, ROWS * IN);
    put(s, s->dy, FP8_GRADIENT, step, micro, ROWS * OUT);
    struct scales *before = test_copy(stream, s->scales, sizeof *before);
    test_ok(linear_forward(&linear, &call));
    uint16_t *unmeasured = test_copy(stream, s->y, sizeof(uint16_t) * ROWS * OUT);
    struct scales *after = test_copy(stream, s->scales, sizeof *after);
    assert_memory_equal(before, after, sizeof *after);
    call.measures_fp8 = true;
    test_ok(linear_forward(&linear, &call));
    uint16_t *y = test_copy(stream, s->y, sizeof(uint16_t) * ROWS * OUT);
    assert_memory_equal(unmeasured, y, sizeof(uint16_t) * ROWS * OUT);
    call.dy = s->dy;
    call.dx = s->dx;
    test_ok(linear_backward(&linear, &call));
    free(before);
    free(after);
    free(unmeasured);
    free(y);
}

/* bf16 rounds a result to 2^-9 of it. A sum of `IN` .. MICROS * ROWS products in fp32 errs by 2^-20 of the largest. */
static void compare(const char *name, const json_t *expected, const void *found, enum dtype type) {
    double most = 0, value;
    for (size_t i = 0; i < json_array_size(expected); i++)
        most = fmax(most, fabs(json_number_value(json_array_get(expected, i))));
    for (size_t i = 0; i < json_array_size(expected); i++) {
        double wanted = json_number_value(json_array_get(expected, i));
        value =
            type == DTYPE_F32 ? (double)((const float *)found)[i] : (double)bf16_to_float(((const uint16_t *)found)[i]);
        double bound = (type == DTYPE_F32 ? 0 : 0x1p-8 * fabs(wanted)) + 0x1p-20 * most;
        if (!(fabs(value - wanted) <= bound))
            fail_msg("%s[%zu] is %.9g, expected %.9g", name, i, value, wanted);
    }
}

static void compare_copy(struct scene *s, const json_t *step, const char *name, const void *at, size_t bytes,
                         enum dtype type) {
    void *copy = test_copy(s->rank.exec.stream, at, bytes);
    compare(name, json_object_get(step, name), copy, type);
    free(copy);
}

static void check_step(struct scene *s, const json_t *golden, int step) {
    const json_t *expected = json_array_get(json_object_get(golden, "steps"), (size_t)step);
    put_weights(s, step);
    test_ok(param_clear_gradients(&s->store, s->rank.exec.stream));
    for (int micro = 0; micro < MICROS; micro++)
        run_micro_batch(s, step, micro);
    compare_copy(s, expected, "y", s->y, sizeof(uint16_t) * ROWS * OUT, DTYPE_BF16);
    compare_copy(s, expected, "dx", s->dx, sizeof(uint16_t) * ROWS * IN, DTYPE_BF16);
    compare_copy(s, expected, "dw", param_gradient(&s->store, WEIGHT_ROW), sizeof(float) * OUT * IN, DTYPE_F32);
    compare_copy(s, expected, "db", param_gradient(&s->store, BIAS_ROW), sizeof(float) * OUT, DTYPE_F32);
    test_ok(set_scales(s, golden, step));
    struct scales *scales = test_copy(s->rank.exec.stream, s->scales, sizeof *scales);
    for (size_t i = 0; i < FP8_OPERANDS; i++) {
        float wanted = (float)json_number_value(json_array_get(json_object_get(expected, "scale"), i));
        assert_true(scales->scale[i] == wanted);
        assert_true(scales->inverse[i] == 1 / wanted);
        assert_true(scales->amax[i] == 0);
    }
    free(scales);
}

static void a_linear_follows_transformer_engine(void **state) {
    (void)state;
    test_skip_without_bf16();
    json_t *cases = json_load_file(TEST_DATA "/parallel/golden/fp8.json", 0, NULL);
    assert_non_null(cases);
    for (size_t i = 0; i < json_array_size(cases); i++)
        for (int keeps_weight = 0; keeps_weight < 2; keeps_weight++) {
            const json_t *golden = json_array_get(cases, i);
            struct scene scene;
            bool is_e4m3 = !strcmp(json_string_value(json_object_get(golden, "format")), "e4m3");
            open_scene(&scene, is_e4m3, keeps_weight);
            for (int step = 0; step < STEPS; step++)
                check_step(&scene, golden, step);
            close_scene(&scene);
        }
    json_decref(cases);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_linear_follows_transformer_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
