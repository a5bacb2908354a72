/* Instructions that lanes of a warp execute together: shuffles, votes, reductions. */
#include "cuda/handlers.h"
#include "cuda/warp.h"

/* The members must be the lanes that run; those that have ended are not waited for. STEP_MEET where some are missing.
 */
static enum step gather(struct warp *warp, const struct instruction *i, const struct operand *members, uint32_t mask) {
    int lane = __builtin_ctz(mask);
    uint32_t wanted = (uint32_t)warp_get(warp, members, lane);
    if (warp_check(warp, i, mask)) {
        return STEP_FAULT;
    }
    if (mask & ~wanted) {
        return warp_fault(warp, i, __builtin_ctz(mask & ~wanted), "the lane is no member of 0x%x", wanted);
    }
    if (wanted & ~mask & warp->live) {
        return STEP_MEET;
    }
    return STEP_NEXT;
}

/* The lane that a shuffle reads from, by the manual's text. -1 where it is out of range: the lane's own value. */
static int shuffled(enum shuffle kind, int lane, uint32_t b, uint32_t c) {
    int by = (int)(b & 31), clamp = (int)(c & 31), segment = (int)(c >> 8 & 31);
    int most = (lane & segment) | (clamp & ~segment), least = lane & segment;
    int from = kind == SHUFFLE_UP     ? lane - by
               : kind == SHUFFLE_DOWN ? lane + by
               : kind == SHUFFLE_BFLY ? lane ^ by
                                      : least | (by & ~segment);
    bool in_range = kind == SHUFFLE_UP ? from >= most : from <= most;
    return in_range ? from : -1;
}

enum step run_shuffle(struct warp *warp, const struct instruction *i, uint32_t mask) {
    const struct operand *o = i->operands;
    enum step step = gather(warp, i, &o[5], mask);
    if (step) {
        return step;
    }
    uint32_t values[LANES], in_range = 0;
    const uint32_t *a = warp_lanes(warp, &o[2]), *b = warp_lanes(warp, &o[3]), *c = warp_lanes(warp, &o[4]);
    uint32_t *d = warp_lanes(warp, &o[0]), *p = warp_lanes(warp, &o[1]);
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        int l = __builtin_ctz(rest), from = shuffled((enum shuffle)i->mode, l, b[l], c[l]);
        in_range |= (uint32_t)(from >= 0) << l;
        from = from < 0 ? l : from;
        if (!(mask >> from & 1)) {
            return warp_fault(warp, i, l, "reads from lane %d, which does not take part", from);
        }
        values[l] = a[from];
    }
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        int l = __builtin_ctz(rest);
        d[l] = values[l];
    }
    *p = (*p & ~mask) | in_range;
    warp_set(warp, &o[0], mask);
    warp_set(warp, &o[1], mask);
    return STEP_NEXT;
}

enum step run_vote(struct warp *warp, const struct instruction *i, uint32_t mask) {
    const struct operand *o = i->operands;
    enum step step = gather(warp, i, &o[2], mask);
    if (step) {
        return step;
    }
    uint32_t yes = warp_predicate(warp, &o[1]) & mask;
    bool answer = i->mode == VOTE_ANY ? yes != 0 : i->mode == VOTE_ALL ? yes == mask : yes == 0 || yes == mask;
    if (i->mode == VOTE_BALLOT) {
        for (int l = 0; l < LANES; l++) {
            if (mask >> l & 1) {
                warp_put(warp, &o[0], l, yes);
            }
        }
    } else {
        uint32_t *held = warp_lanes(warp, &o[0]);
        *held = (*held & ~mask) | (answer ? mask : 0);
    }
    warp_set(warp, &o[0], mask);
    return STEP_NEXT;
}

static uint32_t reduced(const struct instruction *i, uint32_t a, uint32_t b) {
    bool is_signed = i->type.class == CLASS_SIGNED;
    bool less = is_signed ? (int32_t)a < (int32_t)b : a < b;
    const uint32_t results[] = {[ATOMIC_ADD] = a + b, [ATOMIC_MIN] = less ? a : b, [ATOMIC_MAX] = less ? b : a,
                                [ATOMIC_AND] = a & b, [ATOMIC_OR] = a | b,         [ATOMIC_XOR] = a ^ b};
    return results[i->mode];
}

enum step run_reduce(struct warp *warp, const struct instruction *i, uint32_t mask) {
    const struct operand *o = i->operands;
    enum step step = gather(warp, i, &o[2], mask);
    if (step) {
        return step;
    }
    const uint32_t *a = warp_lanes(warp, &o[1]);
    uint32_t total = a[__builtin_ctz(mask)];
    for (uint32_t rest = mask & (mask - 1); rest; rest &= rest - 1) {
        total = reduced(i, total, a[__builtin_ctz(rest)]);
    }
    for (int l = 0; l < LANES; l++) {
        if (mask >> l & 1) {
            warp_put(warp, &o[0], l, total);
        }
    }
    warp_set(warp, &o[0], mask);
    return STEP_NEXT;
}

enum step run_active(struct warp *warp, const struct instruction *i, uint32_t mask) {
    for (int l = 0; l < LANES; l++) {
        if (mask >> l & 1) {
            warp_put(warp, &i->operands[0], l, mask);
        }
    }
    warp_set(warp, &i->operands[0], mask);
    return STEP_NEXT;
}
