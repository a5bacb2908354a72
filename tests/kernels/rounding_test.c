/* Nearest rounding against golden/rounding.json, which tools/golden/rounding_vectors.py makes with the formats' own
 * libraries; its error against the known one of each format; and equal bytes for any number of threads. */
#include "kernels/rounding.h"
#include "support/test.h"

#include <jansson.h>
#include <math.h>

struct rounded {
    struct encoded_rows rows;
    struct rounding_scales scales;
    void *memory;
};

/* Rounds values, whose scales are `count` at the maximum. */
static struct rounded round_values(const struct rounding *rounding, const float *values, int64_t rows, int64_t columns,
                                   int threads) {
    struct encoded_part part = {rows, columns, false, rounding_encoding(rounding, columns)};
    size_t count = (size_t)(rows * columns);
    struct rounded made = {.memory = calloc(1, encoded_rows_bytes(&part))};
    made.rows = encoded_rows_place(&part, made.memory);
    made.scales.codes = calloc(count, 1);
    made.scales.absmax = calloc(count, sizeof(float));
    rounding_rows(&(struct rounding_call){rounding, values, rows, columns, threads, &made.rows, &made.scales});
    return made;
}

static void free_rounded(struct rounded *made) {
    free(made->memory);
    free(made->scales.codes);
    free(made->scales.absmax);
}

static float *golden_values(int64_t count) {
    float *values = malloc((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++) {
        int64_t x = ((i * 7919 + 13) % 65521 - 32760) * (1 + i / 37 % 29);
        values[i] = i % 1024 >= 128 && i % 1024 < 192 ? 0 : (float)((double)x / 2097152);
    }
    return values;
}

static void digest_equals(json_t *vector, const char *key, const void *bytes, size_t count) {
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++)
        total = total * 1099511628211U + ((const unsigned char *)bytes)[i] + 1;
    json_t *expected = json_object_get(vector, key);
    if (strtoull(json_string_value(expected), NULL, 10) != total)
        fail_msg("%s of %s, %d x %d differ", key, json_string_value(json_object_get(vector, "kind")),
                 (int)json_integer_value(json_object_get(vector, "rows")),
                 (int)json_integer_value(json_object_get(vector, "columns")));
}

/* "zeros4" is the asymmetric form of "int4". */
static struct rounding named(const char *name) {
    char plain[8];
    bool has_zeros = !strncmp(name, "zeros", 5);
    snprintf(plain, sizeof plain, "int%s", name + 5 * has_zeros);
    struct rounding rounding = *rounding_find(has_zeros ? plain : name);
    if (has_zeros) {
        rounding.encoding.shift = ENCODED_ZEROS;
        rounding.encoding.bias = 0;
    }
    return rounding;
}

static void every_format_has_its_librarys_codes_and_scales(void **state) {
    (void)state;
    json_t *golden = json_load_file(TEST_DATA "/kernels/golden/rounding.json", 0, NULL), *vector;
    size_t index;
    json_array_foreach(json_object_get(golden, "cases"), index, vector) {
        int64_t rows = json_integer_value(json_object_get(vector, "rows"));
        int64_t columns = json_integer_value(json_object_get(vector, "columns"));
        struct rounding rounding = named(json_string_value(json_object_get(vector, "kind")));
        float *values = golden_values(rows * columns);
        struct rounded made = round_values(&rounding, values, rows, columns, 2);
        digest_equals(vector, "codes", made.rows.codes, (size_t)(rows * columns));
        int64_t group = made.rows.encoding.group, groups = encoded_groups(&made.rows.encoding, columns);
        float *scales = made.rows.scales;
        int64_t count = rows * groups;
        if (rounding.is_flat) { /* the file has one scale for each 64 values */
            assert_int_equal(64 % group, 0);
            count = (rows * columns + 63) / 64;
            scales = calloc((size_t)count, sizeof *scales);
            for (int64_t i = 0; i < rows * groups; i++) {
                float *block = &scales[i * group / 64], scale = ((float *)made.rows.scales)[i];
                assert_true(i * group % 64 == 0 || *block == scale);
                *block = scale;
            }
            json_t *absmax = json_object_get(vector, "absmax");
            for (size_t i = 0; i < json_array_size(absmax); i++)
                assert_true(made.scales.absmax[i] == (float)json_number_value(json_array_get(absmax, i)));
            assert_true(made.scales.offset == (float)json_number_value(json_object_get(vector, "offset")));
            digest_equals(vector, "scale codes", made.scales.codes, (size_t)count);
        }
        digest_equals(vector, "scales", scales, (size_t)count * dtype_bytes(rounding.encoding.scale_type));
        if (rounding.encoding.shift == ENCODED_ZEROS)
            digest_equals(vector, "zeros", made.rows.shifts, (size_t)count);
        if (rounding.is_flat)
            free(scales);
        free_rounded(&made);
        free(values);
    }
    float map[256];
    rounding_map(map);
    for (size_t i = 0; i < 256; i++)
        assert_true(map[i] == (float)json_number_value(json_array_get(json_object_get(golden, "map"), i)));
    json_decref(golden);
}

/* Root mean square of the error over that of the weights, for normal numbers: bounds are 1.02 times the errors of the
 * libraries of rounding_vectors.py. */
static void errors_are_those_of_the_formats(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double bound;
    } rows[] = {{"int8", 0.00712}, {"int4", 0.1197}, {"zeros4", 0.1025},
                {"nf4", 0.0939},   {"fp4", 0.1244},  {"fp8", 0.0269}};
    enum { ROWS = 640, COLUMNS = 256 };
    float *values = malloc(ROWS * COLUMNS * sizeof *values), out[COLUMNS];
    for (uint32_t i = 0; i < ROWS * COLUMNS; i++) {
        struct philox draw = philox(7, i, 0, 0, 0);
        double u = ((double)draw.word[0] + 1) / 4294967297.0, v = (double)draw.word[1] / 4294967296.0;
        values[i] = (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct rounding rounding = named(rows[i].name);
        struct rounded made = round_values(&rounding, values, ROWS, COLUMNS, 1);
        double error = 0, size = 0;
        for (int r = 0; r < ROWS; r++) {
            encoded_row_values(&made.rows, r, out);
            for (int c = 0; c < COLUMNS; c++) {
                double x = values[r * COLUMNS + c];
                error += (x - out[c]) * (x - out[c]);
                size += x * x;
            }
        }
        assert_true(sqrt(error / size) < rows[i].bound);
        free_rounded(&made);
    }
    free(values);
}

static void threads_do_not_change_a_byte(void **state) {
    (void)state;
    static const char *const names[] = {"int8", "int4", "zeros4", "nf4", "fp8"};
    enum { ROWS = 300, COLUMNS = 288 };
    float *values = golden_values(ROWS * COLUMNS);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct rounding rounding = named(names[i]);
        struct encoded_part part = {ROWS, COLUMNS, false, rounding_encoding(&rounding, COLUMNS)};
        struct rounded one = round_values(&rounding, values, ROWS, COLUMNS, 1);
        for (int threads = 2; threads < 5; threads++) {
            struct rounded many = round_values(&rounding, values, ROWS, COLUMNS, threads);
            assert_memory_equal(one.memory, many.memory, encoded_rows_bytes(&part));
            free_rounded(&many);
        }
        free_rounded(&one);
    }
    free(values);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_has_its_librarys_codes_and_scales),
        cmocka_unit_test(errors_are_those_of_the_formats),
        cmocka_unit_test(threads_do_not_change_a_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
