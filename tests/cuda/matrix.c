/* Fragments as PTX's tables have them: ldmatrix and mma.sync. In these, lane 4 g + t is the t-th of group g. */
#include "cuda/handlers.h"
#include "cuda/lanes.h"
#include "cuda/warp.h"

#include <string.h>

static enum step need_warp(struct warp *warp, const struct instruction *i, uint32_t mask) {
    if (mask != UINT32_MAX) {
        return warp->live == UINT32_MAX
                   ? STEP_MEET
                   : warp_fault(warp, i, __builtin_ctz(mask), "needs a whole warp, and lanes have ended");
    }
    return warp_check(warp, i, mask);
}

enum step run_load_matrix(struct warp *warp, const struct instruction *i, uint32_t mask) {
    uint64_t offsets[LANES];
    const struct operand *address = &i->operands[i->destinations];
    enum step step = need_warp(warp, i, mask);
    if (step) {
        return step;
    }
    for (int l = 0; l < LANES; l++) {
        offsets[l] = warp_get(warp, address, l) + (uint64_t)i->displacement;
    }
    for (int m = 0; m < i->destinations; m++) {
        uint16_t rows[8][8];
        count_shared(warp, offsets, 0xFFu << 8 * m, 16);
        for (int r = 0; r < 8; r++) { /* row r of matrix m lies at the address of lane 8 m + r */
            const char *row = shared_touch(warp, i, 8 * m + r, offsets[8 * m + r], 16, TOUCH_READ);
            if (!row) {
                return STEP_FAULT;
            }
            memcpy(rows[r], row, sizeof rows[r]);
        }
        for (int l = 0; l < LANES; l++) {
            int g = l / 4, t = l % 4 * 2;
            uint32_t low = i->mode ? rows[t][g] : rows[g][t], high = i->mode ? rows[t + 1][g] : rows[g][t + 1];
            warp_put(warp, &i->operands[m], l, high << 16 | low);
        }
        warp_set(warp, &i->operands[m], UINT32_MAX);
    }
    return STEP_NEXT;
}

/* ---- products ---- */

struct tiles {
    int k;
    float a[16][16], b[16][8], sum[16][8]; /* a (m, k), b (k, n), sum (m, n) */
};

static float from_half(uint16_t bits) {
    _Float16 value;
    memcpy(&value, &bits, sizeof value);
    return (float)value;
}

/* The two values in each lane of a register. */
static void halves_of(uint8_t product, const uint32_t *lanes, float *low, float *high) {
    bool is_half = product == PRODUCT_F16_K16;
    for (int l = 0; l < LANES && is_half; l++) {
        low[l] = from_half((uint16_t)lanes[l]), high[l] = from_half((uint16_t)(lanes[l] >> 16));
    }
    for (int l = 0; l < LANES && !is_half; l++) {
        low[l] = lanes_from_bf16((uint16_t)lanes[l]), high[l] = lanes_from_bf16((uint16_t)(lanes[l] >> 16));
    }
}

/* TF32 ignores the last 13 bits. */
static float tf32_of(uint32_t bits) {
    float value;
    bits &= ~0x1FFFu;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Two values to a register: a has rows g and g + 8 in turn, then the next eight columns. */
static void gather_halves(const struct warp *warp, const struct instruction *i, struct tiles *tiles) {
    int registers = tiles->k / 4;
    for (int r = 0; r < registers; r++) {
        float low[LANES], high[LANES];
        halves_of(i->mode, warp_lanes(warp, &i->operands[4 + r]), low, high);
        for (int l = 0; l < LANES; l++) {
            float *to = &tiles->a[l / 4 + r % 2 * 8][l % 4 * 2 + r / 2 * 8];
            to[0] = low[l], to[1] = high[l];
        }
    }
    for (int r = 0; r < registers / 2; r++) {
        float low[LANES], high[LANES];
        halves_of(i->mode, warp_lanes(warp, &i->operands[4 + registers + r]), low, high);
        for (int l = 0; l < LANES; l++) {
            int k = l % 4 * 2 + r * 8;
            tiles->b[k][l / 4] = low[l], tiles->b[k + 1][l / 4] = high[l];
        }
    }
}

static void gather_words(const struct warp *warp, const struct instruction *i, struct tiles *tiles) {
    int registers = tiles->k / 2;
    for (int r = 0; r < registers; r++) {
        const uint32_t *a = warp_lanes(warp, &i->operands[4 + r]);
        for (int l = 0; l < LANES; l++) {
            tiles->a[l / 4 + r % 2 * 8][l % 4 + r / 2 * 4] = tf32_of(a[l]);
        }
    }
    for (int r = 0; r < registers / 2; r++) {
        const uint32_t *b = warp_lanes(warp, &i->operands[4 + registers + r]);
        for (int l = 0; l < LANES; l++) {
            tiles->b[l % 4 + r * 4][l / 4] = tf32_of(b[l]);
        }
    }
}

enum step run_product(struct warp *warp, const struct instruction *i, uint32_t mask) {
    static const uint8_t depths[] = {[PRODUCT_BF16_K16] = 16,
                                     [PRODUCT_BF16_K8] = 8,
                                     [PRODUCT_TF32_K8] = 8,
                                     [PRODUCT_TF32_K4] = 4,
                                     [PRODUCT_F16_K16] = 16};
    enum step step = need_warp(warp, i, mask);
    if (step) {
        return step;
    }
    struct tiles tiles;
    tiles.k = depths[i->mode];
    bool is_tf32 = i->mode == PRODUCT_TF32_K8 || i->mode == PRODUCT_TF32_K4;
    (is_tf32 ? gather_words : gather_halves)(warp, i, &tiles);
    const struct operand *c = &i->operands[4 + i->sources - 4];
    for (int r = 0; r < 4; r++) {
        const float *from = warp_lanes(warp, &c[r]);
        for (int l = 0; l < LANES; l++) {
            tiles.sum[l / 4 + r / 2 * 8][l % 4 * 2 + r % 2] = from[l];
        }
    }
    for (int m = 0; m < 16; m++) {
        float row[8];
        memcpy(row, tiles.sum[m], sizeof row);
        for (int k = 0; k < tiles.k; k++) {
            for (int n = 0; n < 8; n++) {
                row[n] += tiles.a[m][k] * tiles.b[k][n];
            }
        }
        memcpy(tiles.sum[m], row, sizeof row);
    }
    for (int r = 0; r < 4; r++) {
        float *to = warp_lanes(warp, &i->operands[r]);
        for (int l = 0; l < LANES; l++) {
            to[l] = tiles.sum[l / 4 + r / 2 * 8][l % 4 * 2 + r % 2];
        }
        warp_set(warp, &i->operands[r], UINT32_MAX);
    }
    warp->block->counts->products++;
    return STEP_NEXT;
}
