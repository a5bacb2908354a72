/* Rounding to the types of GGUF: its error is that of llama.cpp's own rounding, and extremes stay in their blocks. */
#include "gguf_round.h"
#include "support/test.h"

#include <math.h>

enum { BLOCKS = 640, BLOCK = 256 };

/* ---- the values of blocks, by the definitions of their types ---- */

static float half_at(const unsigned char *at) {
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    return f16_to_float(bits);
}

static int nibble(const unsigned char *at, int i) {
    return i < 16 ? at[i] & 15 : at[i - 16] >> 4;
}

static float q8_0(const unsigned char *block, int i) {
    return half_at(block) * (float)(int8_t)block[2 + i];
}

static float q5_0(const unsigned char *block, int i) {
    return half_at(block) * (float)(nibble(block + 6, i) + 16 * (block[2 + i / 8] >> i % 8 & 1) - 16);
}

static float q4_0(const unsigned char *block, int i) {
    return half_at(block) * (float)(nibble(block + 2, i) - 8);
}

static float q6_k(const unsigned char *block, int i) {
    int half = i / 128, group = i % 128 / 32, place = i % 32;
    int low = block[half * 64 + group % 2 * 32 + place] >> (group / 2 * 4) & 15;
    int high = block[128 + half * 32 + place] >> (group * 2) & 3;
    return half_at(block + 208) * (float)(int8_t)block[192 + i / 16] * (float)((low | high << 4) - 32);
}

static float q4_k(const unsigned char *block, int i) {
    const unsigned char *packed = block + 4;
    int g = i / 32, code = block[16 + g / 2 * 32 + i % 32] >> (g % 2 * 4) & 15;
    int scale = g < 4 ? packed[g] & 63 : (packed[g + 4] & 15) | packed[g - 4] >> 6 << 4;
    int offset = g < 4 ? packed[g + 4] & 63 : packed[g + 4] >> 4 | packed[g] >> 6 << 4;
    return half_at(block) * (float)scale * (float)code - half_at(block + 2) * (float)offset;
}

static const struct {
    const char *name;
    float (*value)(const unsigned char *block, int i);
    int elements;
    bool (*round)(const float *values, unsigned char *block);
    double error; /* of llama.cpp without importances, over the numbers, for 640 x 256 normal ones */
} types[] = {{"Q8_0", q8_0, 32, gguf_round_q8_0, 0.0054},
             {"Q5_0", q5_0, 32, gguf_round_q5_0, 0.0428},
             {"Q4_0", q4_0, 32, gguf_round_q4_0, 0.0860},
             {"Q6_K", q6_k, 256, gguf_round_q6_k, 0.0178},
             {"Q4_K", q4_k, 256, gguf_round_q4_k, 0.0715}};
enum { TYPES = sizeof types / sizeof *types };

static void find_values(int t, const unsigned char *block, float *found) {
    for (int i = 0; i < types[t].elements; i++)
        found[i] = types[t].value(block, i);
}

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
                find_values(t, block, found);
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
        find_values(t, block, found);
        for (int i = 0; i < types[t].elements; i++)
            assert_true(found[i] == 0);
        values[5] = 3e38F;
        assert_false(types[t].round(values, block));
        for (int i = 0; i < types[t].elements; i++)
            values[i] = 1e-30F * (float)(i - 7);
        assert_true(types[t].round(values, block));
        find_values(t, block, found);
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
                find_values(t, block, found);
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
