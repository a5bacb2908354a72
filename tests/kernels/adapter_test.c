#include "op_cases.h"
#include "support/test.h"

static void operations_of_adapters_equal_fp64(void **state) {
    (void)state;
    test_ok(op_check_reference(&adapter_family, test_device(), test_is_long()));
}

static void gradients_equal_finite_differences(void **state) {
    (void)state;
    test_ok(op_check_gradients(&adapter_family, test_device(), test_is_long()));
}

static void threads_do_not_change_bits(void **state) {
    (void)state;
    test_ok(op_check_threads(&adapter_family, test_device(), test_is_long()));
}

/* ---- norms of rows: a packed weight, whole or by ranges of rows, has the plain one's bits ---- */

enum { ROWS = 83, COLS = 1037, RANK = 3 };

struct scene {
    struct device *device;
    struct exec exec;
    const struct ops *ops;
};

static void fill_random(void *to, int count, enum dtype type) {
    for (int i = 0; i < count; i++) {
        float value = (float)(2 * rng_unit(philox(4, (uint32_t)i, 0, 0, (uint32_t)RNG_TEST << 24).word[0]) - 1);
        if (type == DTYPE_F32)
            ((float *)to)[i] = value;
        else
            ((uint16_t *)to)[i] = bf16_from_float(value);
    }
}

static void *upload(const struct scene *scene, int count, enum dtype type) {
    void *host = malloc((size_t)count * sizeof(float)), *memory;
    fill_random(host, count, type);
    test_ok(device_alloc(scene->device, (size_t)count * dtype_bytes(type), &memory));
    test_ok(stream_copy_to_device(scene->exec.stream, memory, host, (size_t)count * dtype_bytes(type)));
    test_ok(stream_wait(scene->exec.stream));
    free(host);
    return memory;
}

/* Sums all rows, in calls of `count` rows. */
static void squares_by(const struct scene *scene, const struct row_squares *whole, int64_t rows, float *squares) {
    size_t row_bytes = RANK * dtype_bytes(whole->weight.type);
    for (int64_t first = 0; first < ROWS; first += rows) {
        struct row_squares a = *whole;
        a.first_row = first;
        a.rows = ROWS - first < rows ? ROWS - first : rows;
        a.up = (const char *)whole->up + (size_t)first * row_bytes;
        a.squares = whole->squares + first;
        test_ok(scene->ops->row_squares(&scene->exec, &a));
    }
    test_ok(stream_copy_to_host(scene->exec.stream, squares, whole->squares, ROWS * sizeof *squares));
    test_ok(stream_wait(scene->exec.stream));
}

/* A backend that packs no plain weights says so. Returns whether this one packs. */
static bool packs(const struct scene *scene, const struct matrix_view *weight) {
    if (scene->ops->packed_bytes(scene->device, weight))
        return true;
    test_fails(scene->ops->pack(&scene->exec, &(const struct pack_call){.plain = *weight}), STATUS_UNSUPPORTED,
               "no packed form of plain weights");
    return false;
}

/* The ranges' norms of a weight, plain and packed where the backend packs. */
static void check_packed(struct scene *scene, enum dtype type) {
    static const int64_t ranges[] = {ROWS, 1, 7, 30, 64};
    float want[ROWS], got[ROWS];
    void *packed, *squares;
    struct matrix_view weight = matrix_plain(type, upload(scene, ROWS * COLS, type), ROWS, COLS), view = weight;
    test_ok(device_alloc(scene->device, scene->ops->packed_bytes(scene->device, &weight), &packed));
    test_ok(device_alloc(scene->device, ROWS * sizeof(float), &squares));
    if (packs(scene, &weight)) {
        test_ok(scene->ops->pack(&scene->exec, &(const struct pack_call){.plain = weight, .out = packed}));
        view = matrix_packed(weight, packed);
    }
    struct row_squares plain = {.weight = weight,
                                .rank = RANK,
                                .up = upload(scene, ROWS * RANK, type),
                                .down = upload(scene, RANK * COLS, type),
                                .scale = 0.3f,
                                .squares = squares};
    struct row_squares other = plain;
    other.weight = view;
    squares_by(scene, &plain, ROWS, want);
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        squares_by(scene, &plain, ranges[i], got);
        assert_memory_equal(got, want, sizeof want);
        squares_by(scene, &other, ranges[i], got);
        assert_memory_equal(got, want, sizeof want);
    }
    void *blocks[] = {(void *)weight.data, packed, squares, (void *)plain.up, (void *)plain.down};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        device_free(scene->device, blocks[i]);
}

static void norms_of_a_packed_weight_have_its_bits(void **state) {
    (void)state;
    static const char *const levels[] = {"v2", "v3", "v4", "v4bf16", "v4amx"};
    struct scene scene = {0};
    test_ok(device_open(test_device(), DEVICE_FIRST, 2, &scene.device));
    test_ok(stream_open(scene.device, &scene.exec.stream));
    for (int i = 0; i < 5; i++) {
        scene.ops = i < 4 ? ops_for_level(scene.device, levels[i]) : ops_for(scene.device);
        for (int type = 0; scene.ops && type < 2; type++)
            check_packed(&scene, type ? DTYPE_BF16 : DTYPE_F32);
    }
    stream_close(scene.exec.stream);
    device_close(scene.device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_of_adapters_equal_fp64),
        cmocka_unit_test(gradients_equal_finite_differences),
        cmocka_unit_test(threads_do_not_change_bits),
        cmocka_unit_test(norms_of_a_packed_weight_have_its_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
