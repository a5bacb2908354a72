/* Arithmetic and moves: all lanes are computed, and active lanes keep the results. */
#include "cuda/handlers.h"
#include "cuda/lanes.h"
#include "cuda/warp.h"

#include <math.h>
#include <string.h>

union lanes {
    uint16_t half[LANES];
    uint32_t word[LANES];
    uint64_t twice[LANES];
    float single[LANES];
    double real[LANES];
};

static const union lanes zeros;

/* Takes the lanes of `mask` from a register of `bytes` a lane. */
static void blend(void *to, const void *from, uint8_t bytes, uint32_t mask) {
    if (bytes == 4) {
        uint32_t *lanes = to;
        for (int l = 0; l < LANES; l++) {
            uint32_t take = 0 - (mask >> l & 1);
            lanes[l] = (((const uint32_t *)from)[l] & take) | (lanes[l] & ~take);
        }
    } else if (bytes == 8) {
        uint64_t *lanes = to;
        for (int l = 0; l < LANES; l++) {
            uint64_t take = 0 - (uint64_t)(mask >> l & 1);
            lanes[l] = (((const uint64_t *)from)[l] & take) | (lanes[l] & ~take);
        }
    } else {
        for (int l = 0; l < LANES; l++) {
            ((uint16_t *)to)[l] = ((const uint16_t *)(mask >> l & 1 ? from : to))[l];
        }
    }
}

/* Takes the active lanes of a result. */
static void keep(struct warp *warp, const struct operand *d, const union lanes *result, uint32_t mask) {
    blend(warp_lanes(warp, d), result, d->bytes, mask);
    warp_set(warp, d, mask);
}

static void flush(union lanes *values) {
    for (int l = 0; l < LANES; l++) {
        uint32_t word = values->word[l];
        values->word[l] = (word & 0x7F800000) == 0 ? word & 0x80000000 : word;
    }
}

static void clamp(union lanes *values) {
    for (int l = 0; l < LANES; l++) {
        float value = values->single[l];
        values->single[l] = value > 0 ? (value < 1 ? value : 1) : 0;
    }
}

/* With .ftz and .sat, which nothing that must be fast has. */
static void run_special(const struct instruction *i, union lanes *result, const void *const *sources) {
    union lanes flushed[3];
    const void *at[3] = {sources[0], sources[1], sources[2]};
    for (int s = 0; s < i->sources && i->flush; s++) {
        if (i->operands[1 + s].bytes == 4) {
            memcpy(&flushed[s], sources[s], sizeof flushed[s].word);
            flush(&flushed[s]);
            at[s] = &flushed[s];
        }
    }
    i->lanes(result, at[0], at[1], at[2]);
    if (i->operands[0].bytes == 4 && i->flush) {
        flush(result);
    }
    if (i->operands[0].bytes == 4 && i->clamp) {
        clamp(result);
    }
}

enum step run_lanes(struct warp *warp, const struct instruction *i, uint32_t mask) {
    const struct operand *o = i->operands;
    if (warp_check(warp, i, mask)) {
        return STEP_FAULT;
    }
    const void *sources[3] = {warp_lanes(warp, &o[1]), i->sources > 1 ? warp_lanes(warp, &o[2]) : &zeros,
                              i->sources > 2 ? warp_lanes(warp, &o[3]) : &zeros};
    if (mask == UINT32_MAX && !i->flush && !i->clamp) {
        i->lanes(warp_lanes(warp, o), sources[0], sources[1], sources[2]);
        warp->set[o->slot] = UINT32_MAX;
        return STEP_NEXT;
    }
    union lanes result;
    if (i->flush || i->clamp) {
        run_special(i, &result, sources);
    } else {
        i->lanes(&result, sources[0], sources[1], sources[2]);
    }
    keep(warp, o, &result, mask);
    return STEP_NEXT;
}

static void keep_mask(struct warp *warp, const struct operand *d, uint32_t value, uint32_t mask) {
    uint32_t *held = warp_lanes(warp, d);
    *held = (*held & ~mask) | (value & mask);
    warp_set(warp, d, mask);
}

static uint32_t joined(uint8_t join, uint32_t value, uint32_t other) {
    return join == JOIN_AND   ? value & other
           : join == JOIN_OR  ? value | other
           : join == JOIN_XOR ? value ^ other
                              : value;
}

enum step run_compare(struct warp *warp, const struct instruction *i, uint32_t mask) {
    const struct operand *o = i->operands;
    if (warp_check(warp, i, mask)) {
        return STEP_FAULT;
    }
    union lanes a, b;
    const void *left = warp_lanes(warp, &o[2]), *right = warp_lanes(warp, &o[3]);
    if (i->flush) {
        memcpy(&a, left, sizeof a.word), memcpy(&b, right, sizeof b.word);
        flush(&a), flush(&b);
        left = &a, right = &b;
    }
    uint32_t value = i->compare(left, right), other = i->sources > 2 ? warp_predicate(warp, &o[4]) : 0;
    keep_mask(warp, &o[0], joined(i->mode, value, other), mask);
    keep_mask(warp, &o[1], joined(i->mode, ~value, other), mask);
    return STEP_NEXT;
}

enum step run_select(struct warp *warp, const struct instruction *i, uint32_t mask) {
    const struct operand *o = i->operands;
    uint32_t first = warp_predicate(warp, &o[3]);
    uint32_t missing =
        mask & (~warp->set[o[3].slot] | (first & ~warp->set[o[1].slot]) | (~first & ~warp->set[o[2].slot]));
    if (missing) {
        return warp_fault(warp, i, __builtin_ctz(missing), "reads a register that has no value");
    }
    union lanes result;
    memcpy(&result, warp_lanes(warp, &o[2]), (size_t)LANES * o[2].bytes);
    blend(&result, warp_lanes(warp, &o[1]), o[0].bytes, first);
    keep(warp, &o[0], &result, mask);
    return STEP_NEXT;
}

/* fp32 to TF32, ties away from zero. */
static void to_tf32(union lanes *result, const uint32_t *a) {
    for (int l = 0; l < LANES; l++) {
        bool is_finite = (a[l] & 0x7F800000) != 0x7F800000;
        result->word[l] = (is_finite ? a[l] + 0x1000 : a[l]) & ~0x1FFFu;
    }
}

enum step run_convert(struct warp *warp, const struct instruction *i, uint32_t mask) {
    const struct operand *d = &i->operands[0], *a = &i->operands[1];
    if (warp_check(warp, i, mask)) {
        return STEP_FAULT;
    }
    union lanes result, source;
    const void *from = warp_lanes(warp, a);
    if (i->flush && i->from.bytes == 4 && i->from.class == CLASS_FLOAT) {
        memcpy(&source, from, sizeof source.word);
        flush(&source);
        from = &source;
    }
    if (i->space) {
        to_tf32(&result, from);
    } else {
        lanes_convert(&result, d->bytes, i->type, from, a->bytes, i->from, i->mode, i->clamp);
    }
    keep(warp, d, &result, mask);
    return STEP_NEXT;
}

enum step run_pair(struct warp *warp, const struct instruction *i, uint32_t mask) {
    if (warp_check(warp, i, mask)) {
        return STEP_FAULT;
    }
    const struct ptx_type one = {.class = i->type.class, .bytes = 2};
    uint16_t high[LANES], low[LANES];
    union lanes result;
    if (i->type.class == CLASS_BFLOAT && i->mode == ROUND_NEAREST && !i->flush && !i->clamp) {
        const float *first = warp_lanes(warp, &i->operands[1]), *second = warp_lanes(warp, &i->operands[2]);
        for (int l = 0; l < LANES; l++) {
            result.word[l] =
                (uint32_t)lanes_to_bf16(first[l], ROUND_NEAREST) << 16 | lanes_to_bf16(second[l], ROUND_NEAREST);
        }
        keep(warp, &i->operands[0], &result, mask);
        return STEP_NEXT;
    }
    lanes_convert(high, 2, one, warp_lanes(warp, &i->operands[1]), 4, i->from, i->mode, i->clamp);
    lanes_convert(low, 2, one, warp_lanes(warp, &i->operands[2]), 4, i->from, i->mode, i->clamp);
    for (int l = 0; l < LANES; l++) {
        result.word[l] = (uint32_t)high[l] << 16 | low[l];
    }
    keep(warp, &i->operands[0], &result, mask);
    return STEP_NEXT;
}

enum step run_pack(struct warp *warp, const struct instruction *i, uint32_t mask) {
    if (warp_check(warp, i, mask)) {
        return STEP_FAULT;
    }
    uint64_t values[LANES] = {0};
    for (int s = i->sources; s > 0; s--) {
        uint8_t bytes = i->operands[s].bytes;
        const void *part = warp_lanes(warp, &i->operands[s]);
        for (int l = 0; l < LANES; l++) {
            values[l] =
                values[l] << 8 * bytes | (bytes == 4 ? ((const uint32_t *)part)[l] : ((const uint16_t *)part)[l]);
        }
    }
    union lanes result;
    for (int l = 0; l < LANES && i->operands[0].bytes == 4; l++) {
        result.word[l] = (uint32_t)values[l];
    }
    keep(warp, &i->operands[0], i->operands[0].bytes == 8 ? (const union lanes *)values : &result, mask);
    return STEP_NEXT;
}

enum step run_unpack(struct warp *warp, const struct instruction *i, uint32_t mask) {
    if (warp_check(warp, i, mask)) {
        return STEP_FAULT;
    }
    const struct operand *source = &i->operands[i->destinations];
    const void *whole = warp_lanes(warp, source);
    uint64_t values[LANES];
    union lanes result;
    for (int l = 0; l < LANES; l++) {
        values[l] = source->bytes == 4 ? ((const uint32_t *)whole)[l] : ((const uint64_t *)whole)[l];
    }
    for (int d = 0; d < i->destinations; d++) {
        uint8_t bytes = i->operands[d].bytes;
        int shift = 8 * d * bytes;
        for (int l = 0; l < LANES; l++) {
            if (bytes == 4) {
                result.word[l] = (uint32_t)(values[l] >> shift);
            } else {
                result.half[l] = (uint16_t)(values[l] >> shift);
            }
        }
        keep(warp, &i->operands[d], &result, mask);
    }
    return STEP_NEXT;
}

enum step run_logic(struct warp *warp, const struct instruction *i, uint32_t mask) {
    if (warp_check(warp, i, mask)) {
        return STEP_FAULT;
    }
    uint32_t a = warp_predicate(warp, &i->operands[1]), b = i->sources > 1 ? warp_predicate(warp, &i->operands[2]) : 0;
    const uint32_t results[] = {
        [LOGIC_MOV] = a, [LOGIC_NOT] = ~a, [LOGIC_AND] = a & b, [LOGIC_OR] = a | b, [LOGIC_XOR] = a ^ b};
    keep_mask(warp, &i->operands[0], results[i->mode], mask);
    return STEP_NEXT;
}

enum step run_lop3(struct warp *warp, const struct instruction *i, uint32_t mask) {
    if (warp_check(warp, i, mask)) {
        return STEP_FAULT;
    }
    const uint32_t *a = warp_lanes(warp, &i->operands[1]), *b = warp_lanes(warp, &i->operands[2]);
    const uint32_t *c = warp_lanes(warp, &i->operands[3]);
    union lanes result = {0};
    for (int term = 0; term < 8; term++) {
        if (!(i->displacement >> term & 1)) {
            continue;
        }
        uint32_t not_a = term & 4 ? 0 : UINT32_MAX, not_b = term & 2 ? 0 : UINT32_MAX,
                 not_c = term & 1 ? 0 : UINT32_MAX;
        for (int l = 0; l < LANES; l++) {
            result.word[l] |= (a[l] ^ not_a) & (b[l] ^ not_b) & (c[l] ^ not_c);
        }
    }
    keep(warp, &i->operands[0], &result, mask);
    return STEP_NEXT;
}

enum step run_insert(struct warp *warp, const struct instruction *i, uint32_t mask) {
    const struct operand *o = i->operands;
    uint32_t width = 8u * o[0].bytes;
    if (warp_check(warp, i, mask)) {
        return STEP_FAULT;
    }
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        int l = __builtin_ctz(rest);
        uint64_t into = warp_get(warp, &o[2], l), first = warp_get(warp, &o[3], l) & 255;
        uint64_t length = warp_get(warp, &o[4], l) & 255, bits = length >= 64 ? ~0ull : (1ull << length) - 1;
        bits = first >= width ? 0 : bits << first;
        uint64_t inserted = first >= width ? 0 : warp_get(warp, &o[1], l) << first;
        warp_put(warp, &o[0], l, (into & ~bits) | (inserted & bits));
    }
    warp_set(warp, &o[0], mask);
    return STEP_NEXT;
}

enum step run_window(struct warp *warp, const struct instruction *i, uint32_t mask) {
    if (warp_check(warp, i, mask)) {
        return STEP_FAULT;
    }
    uint64_t window = i->space == SPACE_SHARED ? SHARED_WINDOW : i->space == SPACE_LOCAL ? LOCAL_WINDOW : 0;
    const uint64_t *a = warp_lanes(warp, &i->operands[1]);
    union lanes result;
    for (int l = 0; l < LANES; l++) {
        result.twice[l] = i->mode ? a[l] + window : a[l] - window;
    }
    keep(warp, &i->operands[0], &result, mask);
    return STEP_NEXT;
}

enum step run_nothing(struct warp *warp, const struct instruction *i, uint32_t mask) {
    (void)warp, (void)i, (void)mask;
    return STEP_NEXT;
}
