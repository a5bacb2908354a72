/* Rounding to the types of GGUF: its error is that of llama.cpp's own rounding, and extremes stay in their blocks. */
#include "gguf-internal.h"
#include "gguf_round.h"
#include "support/test.h"

#include <math.h>

enum { BLOCKS = 640, BLOCK = 256 };

static const struct {
    const char *name;
    uint32_t number;
    int elements, bytes;
    bool (*round)(const float *values, unsigned char *block);
    double error; /* of llama.cpp without importances, over the numbers, for 640 x 256 normal ones */
} types[] = {{"Q8_0", 8, 32, 34, gguf_round_q8_0, 0.0054},
             {"Q5_0", 6, 32, 22, gguf_round_q5_0, 0.0428},
             {"Q4_0", 2, 32, 18, gguf_round_q4_0, 0.0860},
             {"Q6_K", 14, 256, 210, gguf_round_q6_k, 0.0178},
             {"Q4_K", 12, 256, 144, gguf_round_q4_k, 0.0715}};
enum { TYPES = sizeof types / sizeof *types };

static double normal(uint32_t i) {
    struct philox draw = philox(7, i, 0, 0, 0);
    double u = ((double)draw.word[0] + 1) / 4294967297.0, v = (double)draw.word[1] / 4294967296.0;
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* The bound leaves 2% for other draws: these errors are means over 5,120 blocks of 32. */
static void errors_are_those_of_llama_cpp(void **state) {
    (void)state;
    float values[BLOCK], found[BLOCK];
    unsigned char block[BLOCK];
    for (int t = 0; t < TYPES; t++) {
        double error = 0, size = 0;
        for (uint32_t b = 0; b < BLOCKS; b++)
            for (int first = 0; first < BLOCK; first += types[t].elements) {
                for (int i = 0; i < types[t].elements; i++)
                    values[i] = (float)normal(b * BLOCK + (uint32_t)(first + i));
                assert_true(types[t].round(values, block));
                gguf_values(gguf_type(types[t].number), block, found);
                for (int i = 0; i < types[t].elements; i++) {
                    error += ((double)found[i] - values[i]) * ((double)found[i] - values[i]);
                    size += (double)values[i] * values[i];
                }
            }
        if (!(sqrt(error / size) < 1.02 * types[t].error))
            fail_msg("%s: error %.4f", types[t].name, sqrt(error / size));
    }
}

static void zeros_stay_zero_and_scales_beyond_fp16_are_refused(void **state) {
    (void)state;
    float values[BLOCK] = {0}, found[BLOCK];
    unsigned char block[BLOCK];
    for (int t = 0; t < TYPES; t++) {
        memset(values, 0, sizeof values);
        assert_true(types[t].round(values, block));
        gguf_values(gguf_type(types[t].number), block, found);
        for (int i = 0; i < types[t].elements; i++)
            assert_true(found[i] == 0);
        values[5] = 3e38F;
        assert_false(types[t].round(values, block));
        for (int i = 0; i < types[t].elements; i++)
            values[i] = 1e-30F * (float)(i - 7);
        assert_true(types[t].round(values, block));
        gguf_values(gguf_type(types[t].number), block, found);
        for (int i = 0; i < types[t].elements; i++)
            assert_true(found[i] == 0);
    }
}

/* A group of one sign, with the largest number anywhere. */
static void one_sign_keeps_its_extremes(void **state) {
    (void)state;
    float values[BLOCK], found[BLOCK];
    unsigned char block[BLOCK];
    for (int t = 0; t < TYPES; t++)
        for (int place = 0; place < types[t].elements; place += 7)
            for (int sign = -1; sign < 2; sign += 2) {
                for (int i = 0; i < types[t].elements; i++)
                    values[i] = (float)sign * (i == place ? 4 : 1 + (float)(i % 5) / 4);
                assert_true(types[t].round(values, block));
                gguf_values(gguf_type(types[t].number), block, found);
                for (int i = 0; i < types[t].elements; i++)
                    assert_true(fabsf(found[i] - values[i]) < 0.55F);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_are_those_of_llama_cpp),
        cmocka_unit_test(zeros_stay_zero_and_scales_beyond_fp16_are_refused),
        cmocka_unit_test(one_sign_keeps_its_extremes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
