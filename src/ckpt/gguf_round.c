/* Numbers become blocks of GGUF's types. Q4_0, Q5_0 and Q8_0 have the bytes of the gguf package: scales before they are
 * rounded to 16 bits, and their reciprocals. Q4_K and Q6_K search scales as llama.cpp does without importances. */
#include "gguf_round.h"

#include <math.h>

enum { SMALL = 32, LARGE = 256, TINY_GROUP = 16 };

/* Stores a scale; returns false when it is too large for fp16. */
static bool store_scale(float value, unsigned char *out) {
    uint16_t bits = f16_from_float(value);
    memcpy(out, &bits, sizeof bits);
    return isfinite(f16_to_float(bits));
}

static float scale_at(const unsigned char *at) {
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    return f16_to_float(bits);
}

/* Returns the integer next to a number, half to even, within bounds; the lower one for NaN. */
static int nearest(float value, int least, int most) {
    float number = rintf(value);
    return number > (float)most ? most : number > (float)least ? (int)number : least;
}

/* Returns the number of the largest size; the first of equal ones. */
static float largest(const float *x, int count) {
    float found = x[0];
    for (int i = 1; i < count; i++)
        found = fabsf(x[i]) > fabsf(found) ? x[i] : found;
    return found;
}

/* ---- blocks of 32 ---- */

bool gguf_round_q8_0(const float *x, unsigned char *out) {
    float scale = fabsf(largest(x, SMALL)) / 127, inverse = scale > 0 ? 1 / scale : 0;
    for (int i = 0; i < SMALL; i++)
        out[2 + i] = (unsigned char)(int8_t)roundf(x[i] * inverse);
    return store_scale(scale, out);
}

/* Rounds to integers around `middle`, of which the largest number becomes the lowest. */
static bool round_small(const float *x, int middle, unsigned char *out, int codes[SMALL]) {
    float scale = largest(x, SMALL) / (float)-middle, inverse = scale != 0 ? 1 / scale : 0;
    for (int i = 0; i < SMALL; i++) {
        int code = (int)(x[i] * inverse + ((float)middle + 0.5F));
        codes[i] = code < 2 * middle - 1 ? code : 2 * middle - 1;
    }
    return store_scale(scale, out);
}

static void pack_nibbles(const int codes[SMALL], unsigned char *out) {
    for (int i = 0; i < SMALL / 2; i++)
        out[i] = (unsigned char)((codes[i] & 15) | (codes[i + SMALL / 2] & 15) << 4);
}

bool gguf_round_q4_0(const float *x, unsigned char *out) {
    int codes[SMALL];
    bool fits = round_small(x, 8, out, codes);
    pack_nibbles(codes, out + 2);
    return fits;
}

bool gguf_round_q5_0(const float *x, unsigned char *out) {
    int codes[SMALL];
    uint32_t high = 0;
    bool fits = round_small(x, 16, out, codes);
    for (int i = 0; i < SMALL; i++)
        high |= (uint32_t)(codes[i] >> 4) << i;
    memcpy(out + 2, &high, sizeof high);
    pack_nibbles(codes, out + 6);
    return fits;
}

/* ---- Q6_K: 16 groups of 16 ---- */

/* Returns the scale of a group with the smallest weighted error of 19. A number weighs its square. */
static float search_scale(const float *x) {
    float most = largest(x, TINY_GROUP), best = 0, scale = 0;
    if (fabsf(most) < 1e-15F)
        return 0;
    for (int i = 0; i < 19; i++) {
        int step = i == 0 ? 0 : i <= 9 ? i - 10 : i - 9; /* the plain one first, then from below */
        float inverse = -(32 + 0.1F * (float)step) / most, product = 0, square = 0;
        for (int k = 0; k < TINY_GROUP; k++) {
            float code = (float)nearest(inverse * x[k], -32, 31), weight = x[k] * x[k];
            product += weight * x[k] * code;
            square += weight * code * code;
        }
        if (square > 0 && (i == 0 || product * product > best * square)) {
            scale = product / square;
            best = scale * product;
        }
    }
    return scale;
}

bool gguf_round_q6_k(const float *x, unsigned char *out) {
    float scales[TINY_GROUP];
    unsigned char codes[LARGE];
    for (int g = 0; g < TINY_GROUP; g++)
        scales[g] = search_scale(x + g * TINY_GROUP);
    float most = largest(scales, TINY_GROUP);
    memset(out, 0, 210);
    if (fabsf(most) < 1e-15F)
        return true;
    float inverse = -128 / most;
    bool fits = store_scale(1 / inverse, out + 208);
    for (int g = 0; g < TINY_GROUP; g++) {
        int scale = nearest(inverse * scales[g], -128, 127);
        float factor = scale_at(out + 208) * (float)scale;
        out[192 + g] = (unsigned char)(int8_t)scale;
        for (int i = g * TINY_GROUP; i < (g + 1) * TINY_GROUP; i++)
            codes[i] = (unsigned char)(factor != 0 ? nearest(x[i] / factor, -32, 31) + 32 : 32);
    }
    for (int i = 0; i < LARGE; i++) {
        int half = i / 128, group = i % 128 / SMALL, place = i % SMALL;
        out[half * 64 + group % 2 * SMALL + place] |= (unsigned char)((codes[i] & 15) << group / 2 * 4);
        out[128 + half * SMALL + place] |= (unsigned char)(codes[i] >> 4 << group * 2);
    }
    return fits;
}

/* ---- Q4_K: 8 groups of 32 ---- */

/* Sums of a group's codes for a reciprocal of the scale. */
static void try_scale(const float *x, const float *weights, float inverse, float least, float found[2], float *error) {
    float code[SMALL], sum = 0, sum_x = 0, sum_l = 0, sum_l2 = 0, sum_xl = 0;
    for (int i = 0; i < SMALL; i++) {
        float w = weights[i];
        code[i] = (float)nearest(inverse * (x[i] - least), 0, 15);
        sum += w;
        sum_x += w * x[i];
        sum_l += w * code[i];
        sum_l2 += w * code[i] * code[i];
        sum_xl += w * code[i] * x[i];
    }
    float divisor = sum * sum_l2 - sum_l * sum_l, tried = 0;
    if (!(divisor > 0))
        return;
    float scale = (sum * sum_xl - sum_x * sum_l) / divisor, offset = (sum_l2 * sum_x - sum_l * sum_xl) / divisor;
    if (offset > 0) {
        offset = 0;
        scale = sum_xl / sum_l2;
    }
    for (int i = 0; i < SMALL; i++) {
        float wrong = scale * code[i] + offset - x[i];
        tried += weights[i] * wrong * wrong;
    }
    if (tried < *error) {
        *error = tried;
        found[0] = scale;
        found[1] = offset;
    }
}

/* Finds the scale and the size of the offset of a group. A number weighs its size and the group's. */
static void search_pair(const float *x, float *scale, float *offset) {
    float weights[SMALL], least = fminf(x[0], 0), most = x[0], square = 0, error = 0;
    for (int i = 0; i < SMALL; i++) {
        square += x[i] * x[i];
        least = fminf(least, x[i]);
        most = fmaxf(most, x[i]);
    }
    for (int i = 0; i < SMALL; i++)
        weights[i] = sqrtf(square / SMALL) + fabsf(x[i]);
    float found[2] = {(most - least) / 15, least};
    for (int i = 0; i < SMALL && most > least; i++) {
        float wrong = found[0] * (float)nearest((x[i] - least) / found[0], 0, 15) + least - x[i];
        error += weights[i] * wrong * wrong;
    }
    for (int step = 0; step <= 20 && most > least; step++)
        try_scale(x, weights, (14 + 0.1F * (float)step) / (most - least), least, found, &error);
    *scale = most > least ? found[0] : 0;
    *offset = -found[1];
}

bool gguf_round_q4_k(const float *x, unsigned char *out) {
    float scales[8], offsets[8];
    for (int g = 0; g < 8; g++)
        search_pair(x + g * SMALL, &scales[g], &offsets[g]);
    float most = fmaxf(largest(scales, 8), 0), most_offset = fmaxf(largest(offsets, 8), 0);
    memset(out, 0, 144);
    bool fits = store_scale(most / 63, out) & store_scale(most_offset / 63, out + 2);
    for (int g = 0; g < 8; g++) {
        int scale = nearest(most > 0 ? 63 / most * scales[g] : 0, 0, 63);
        int offset = nearest(most_offset > 0 ? 63 / most_offset * offsets[g] : 0, 0, 63);
        unsigned char *packed = out + 4;
        if (g < 4) {
            packed[g] |= (unsigned char)scale;
            packed[g + 4] |= (unsigned char)offset;
        } else {
            packed[g + 4] = (unsigned char)((scale & 15) | (offset & 15) << 4);
            packed[g - 4] |= (unsigned char)(scale >> 4 << 6);
            packed[g] |= (unsigned char)(offset >> 4 << 6);
        }
        float factor = scale_at(out) * (float)scale, shift = scale_at(out + 2) * (float)offset;
        for (int i = 0; i < SMALL; i++) {
            int code = factor != 0 ? nearest((x[g * SMALL + i] + shift) / factor, 0, 15) : 0;
            out[16 + g / 2 * SMALL + i] |= (unsigned char)(code << g % 2 * 4);
        }
    }
    return fits;
}
