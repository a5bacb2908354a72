/* Loads, stores, atomic operations and asynchronous copies. */
#include "cuda/handlers.h"
#include "cuda/warp.h"

#include <stdlib.h>
#include <string.h>

/* The address of each lane, whatever the size of its register. */
static void addresses_of(const struct warp *warp, const struct operand *operand, int64_t displacement, uint64_t *to) {
    const char *lanes = warp_lanes(warp, operand);
    for (int l = 0; l < LANES; l++) {
        uint64_t base = operand->bytes == 8 ? ((const uint64_t *)lanes)[l] : ((const uint32_t *)lanes)[l];
        to[l] = base + (uint64_t)displacement;
    }
}

/* A generic address is that of the memory whose window it lies in. All lanes must agree. */
static enum ptx_space space_at(enum ptx_space space, uint64_t *addresses, uint32_t mask) {
    uint64_t first = addresses[__builtin_ctz(mask)];
    if (space != SPACE_GENERIC) {
        return space;
    }
    uint64_t window = first - SHARED_WINDOW < WINDOW_BYTES  ? SHARED_WINDOW
                      : first - LOCAL_WINDOW < WINDOW_BYTES ? LOCAL_WINDOW
                                                            : 0;
    for (int l = 0; l < LANES && window; l++) {
        addresses[l] -= window;
    }
    return window == SHARED_WINDOW ? SPACE_SHARED : window ? SPACE_LOCAL : SPACE_GLOBAL;
}

static char *local_touch(struct warp *warp, const struct instruction *i, int lane, uint64_t offset, uint32_t bytes) {
    uint32_t size = warp->block->kernel->local_bytes;
    if (offset + bytes > size || offset % bytes) {
        warp_fault(warp, i, lane, "%u bytes at %lld of %u bytes of local memory", bytes, (long long)offset, size);
        return NULL;
    }
    return warp->local + (size_t)lane * size + offset;
}

static char *touch(struct warp *warp, const struct instruction *i, int lane, enum ptx_space space, uint64_t address,
                   uint32_t bytes, enum touch kind) {
    return space == SPACE_SHARED  ? shared_touch(warp, i, lane, address, bytes, kind)
           : space == SPACE_LOCAL ? local_touch(warp, i, lane, address, bytes)
                                  : global_touch(warp, i, lane, address, bytes, bytes, kind);
}

/* A number of 1, 2, 4 or 8 bytes: each size has a copy of its own, because one for all takes a call. */
static uint64_t bytes_at(const char *from, uint32_t bytes) {
    uint64_t twice;
    uint32_t word;
    uint16_t half;
    switch (bytes) {
    case 1:
        return *(const uint8_t *)from;
    case 2:
        memcpy(&half, from, 2);
        return half;
    case 4:
        memcpy(&word, from, 4);
        return word;
    default:
        memcpy(&twice, from, 8);
        return twice;
    }
}

static void put_bytes(char *to, uint64_t value, uint32_t bytes) {
    switch (bytes) {
    case 1:
        memcpy(to, &value, 1);
        break;
    case 2:
        memcpy(to, &value, 2);
        break;
    case 4:
        memcpy(to, &value, 4);
        break;
    default:
        memcpy(to, &value, 8);
    }
}

static uint64_t extended(const char *from, struct ptx_type type) {
    uint64_t value = bytes_at(from, type.bytes);
    int unused = 64 - 8 * type.bytes;
    return type.class == CLASS_SIGNED ? (uint64_t)((int64_t)(value << unused) >> unused) : value;
}

/* An element of each lane of `mask` to a register. Most are words to words. */
static void get_element(struct warp *warp, const struct instruction *i, uint32_t mask, char *const *from, int element) {
    const struct operand *d = &i->operands[element];
    size_t at = (size_t)element * i->type.bytes;
    if (i->type.bytes == 4 && d->bytes == 4) {
        uint32_t *lanes = warp_lanes(warp, d);
        for (uint32_t rest = mask; rest; rest &= rest - 1) {
            int l = __builtin_ctz(rest);
            memcpy(&lanes[l], from[l] + at, 4);
        }
    } else {
        for (uint32_t rest = mask; rest; rest &= rest - 1) {
            int l = __builtin_ctz(rest);
            warp_put(warp, d, l, extended(from[l] + at, i->type));
        }
    }
    warp_set(warp, d, mask);
}

static void put_element(struct warp *warp, const struct instruction *i, uint32_t mask, char *const *to, int element) {
    const struct operand *source = &i->operands[1 + element];
    size_t at = (size_t)element * i->type.bytes;
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        int l = __builtin_ctz(rest);
        put_bytes(to[l] + at, warp_get(warp, source, l), i->type.bytes);
    }
}

/* One run of global memory for all lanes, in order: one check for all. NULL where it is none, or where it has faults,
 * which are then found lane by lane. */
static char *touch_run(struct warp *warp, const struct instruction *i, const uint64_t *addresses, uint32_t mask,
                       uint32_t bytes, enum touch kind) {
    uint64_t differ = 0;
    if (mask != UINT32_MAX || bytes == 1) {
        return NULL;
    }
    for (int l = 1; l < LANES; l++) {
        differ |= (addresses[l] - addresses[0]) ^ ((uint64_t)l * bytes);
    }
    if (differ || addresses[0] % bytes || !memory_find(warp->block->machine, addresses[0], (uint64_t)LANES * bytes)) {
        return NULL;
    }
    return global_touch(warp, i, 0, addresses[0], LANES * bytes, bytes, kind);
}

static void count(struct warp *warp, enum ptx_space space, const uint64_t *addresses, uint32_t mask, uint32_t bytes,
                  bool is_store) {
    if (space == SPACE_SHARED) {
        count_shared(warp, addresses, mask, bytes);
    } else if (space == SPACE_GLOBAL) {
        count_global(warp, addresses, mask, bytes, is_store);
    }
}

static enum step access_lanes(struct warp *warp, const struct instruction *i, uint32_t mask, bool is_store) {
    uint64_t addresses[LANES];
    char *at[LANES];
    uint32_t bytes = (uint32_t)i->type.bytes * i->vector;
    if (warp_check(warp, i, mask)) {
        return STEP_FAULT;
    }
    addresses_of(warp, &i->operands[i->destinations], i->displacement, addresses);
    enum ptx_space space = space_at(i->space, addresses, mask);
    enum touch kind = is_store ? TOUCH_WRITE : TOUCH_READ;
    count(warp, space, addresses, mask, bytes, is_store);
    char *run = space == SPACE_GLOBAL ? touch_run(warp, i, addresses, mask, bytes, kind) : NULL;
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        int l = __builtin_ctz(rest);
        at[l] = run ? run + (size_t)l * bytes : touch(warp, i, l, space, addresses[l], bytes, kind);
        if (!at[l]) {
            return STEP_FAULT;
        }
    }
    for (int element = 0; element < i->vector; element++) {
        (is_store ? put_element : get_element)(warp, i, mask, at, element);
    }
    return STEP_NEXT;
}

enum step run_load(struct warp *warp, const struct instruction *i, uint32_t mask) {
    return access_lanes(warp, i, mask, false);
}

enum step run_store(struct warp *warp, const struct instruction *i, uint32_t mask) {
    return access_lanes(warp, i, mask, true);
}

enum step run_load_param(struct warp *warp, const struct instruction *i, uint32_t mask) {
    const struct block *block = warp->block;
    uint64_t offsets[LANES], bytes = (uint64_t)i->type.bytes * i->vector, end = block->kernel->param_bytes;
    char *from[LANES];
    if (warp_check(warp, i, mask)) {
        return STEP_FAULT;
    }
    addresses_of(warp, &i->operands[i->destinations], i->displacement, offsets);
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        int l = __builtin_ctz(rest);
        if (bytes > end || offsets[l] > end - bytes || offsets[l] % bytes) {
            return warp_fault(warp, i, l, "byte %lld of %llu bytes of parameters", (long long)offsets[l],
                              (unsigned long long)end);
        }
        from[l] = (char *)(uintptr_t)block->launch->params + offsets[l];
    }
    for (int element = 0; element < i->vector; element++) {
        get_element(warp, i, mask, from, element);
    }
    return STEP_NEXT;
}

/* ---- atomic operations ---- */

static uint64_t added(uint64_t old, uint64_t by, struct ptx_type type) {
    if (type.class == CLASS_FLOAT && type.bytes == 4) {
        float a, b;
        memcpy(&a, &old, 4), memcpy(&b, &by, 4);
        a += b;
        old = 0;
        memcpy(&old, &a, 4);
        return old;
    }
    if (type.class == CLASS_FLOAT) {
        double a, b;
        memcpy(&a, &old, 8), memcpy(&b, &by, 8);
        a += b;
        memcpy(&old, &a, 8);
        return old;
    }
    return old + by;
}

static bool is_less(uint64_t a, uint64_t b, struct ptx_type type) {
    return type.class == CLASS_SIGNED ? (int64_t)a < (int64_t)b : a < b;
}

static uint64_t combined(const struct instruction *i, uint64_t old, uint64_t b, uint64_t c) {
    switch (i->mode) {
    case ATOMIC_ADD:
        return added(old, b, i->type);
    case ATOMIC_MIN:
        return is_less(b, old, i->type) ? b : old;
    case ATOMIC_MAX:
        return is_less(old, b, i->type) ? b : old;
    case ATOMIC_AND:
        return old & b;
    case ATOMIC_OR:
        return old | b;
    case ATOMIC_XOR:
        return old ^ b;
    case ATOMIC_CAS:
        return old == b ? c : old;
    case ATOMIC_INC:
        return old >= b ? 0 : old + 1;
    case ATOMIC_DEC:
        return old == 0 || old > b ? b : old - 1;
    default:
        return b;
    }
}

enum step run_atomic(struct warp *warp, const struct instruction *i, uint32_t mask) {
    uint64_t addresses[LANES];
    struct block *block = warp->block;
    if (warp_check(warp, i, mask)) {
        return STEP_FAULT;
    }
    addresses_of(warp, &i->operands[1], i->displacement, addresses);
    enum ptx_space space = space_at(i->space, addresses, mask);
    block->has_atomic = true;
    block->fenced[block->number] |= block->has_fence;
    count(warp, space, addresses, mask, i->type.bytes, true);
    uint32_t first = machine_draw(block->machine, LANES); /* the lanes come in any order */
    for (uint32_t n = 0; n < LANES; n++) {
        int l = (int)((n + first) % LANES);
        if (!(mask >> l & 1)) {
            continue;
        }
        char *at = touch(warp, i, l, space, addresses[l], i->type.bytes, TOUCH_ATOMIC);
        if (!at) {
            return STEP_FAULT;
        }
        uint64_t old = extended(at, i->type), b = warp_get(warp, &i->operands[2], l);
        uint64_t c = i->sources > 2 ? warp_get(warp, &i->operands[3], l) : 0;
        b = extended((const char *)&b, i->type);
        uint64_t value = combined(i, old, b, c);
        memcpy(at, &value, i->type.bytes);
        warp_put(warp, &i->operands[0], l, old);
    }
    warp_set(warp, &i->operands[0], mask);
    return STEP_NEXT;
}

/* ---- asynchronous copies ---- */

static struct pending *add_pending(struct warp *warp) {
    if (warp->pending_count == warp->pending_room) {
        size_t room = warp->pending_room ? 2 * warp->pending_room : 256;
        struct pending *more = realloc(warp->pending, room * sizeof *more);
        if (!more) {
            return NULL;
        }
        warp->pending = more, warp->pending_room = room;
    }
    return &warp->pending[warp->pending_count++];
}

enum step run_copy_async(struct warp *warp, const struct instruction *i, uint32_t mask) {
    uint64_t to[LANES], from[LANES];
    if (warp_check(warp, i, mask)) {
        return STEP_FAULT;
    }
    addresses_of(warp, &i->operands[0], 0, to);
    addresses_of(warp, &i->operands[1], 0, from);
    count_shared(warp, to, mask, i->vector);
    count_global(warp, from, mask, i->vector, false);
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        int l = __builtin_ctz(rest);
        uint32_t taken = (uint32_t)warp_get(warp, &i->operands[2], l);
        struct pending *copy = add_pending(warp);
        if (!copy || taken > i->vector) {
            return warp_fault(warp, i, l, "a copy of %u of %u bytes cannot be queued", taken, i->vector);
        }
        *copy = (struct pending){
            .to = to[l], .group = warp->committed[l], .line = i->line, .bytes = i->vector, .lane = (uint8_t)l};
        const char *source = taken ? global_touch(warp, i, l, from[l], taken, i->vector, TOUCH_READ) : NULL;
        if ((taken && !source) || !shared_touch(warp, i, l, to[l], i->vector, TOUCH_WRITE)) {
            return STEP_FAULT;
        }
        if (taken) {
            memcpy(copy->data, source, taken);
        }
        shared_pend(warp, to[l], i->vector);
    }
    return STEP_NEXT;
}

enum step run_copy_commit(struct warp *warp, const struct instruction *i, uint32_t mask) {
    (void)i;
    for (int l = 0; l < LANES; l++) {
        warp->committed[l] += mask >> l & 1;
    }
    return STEP_NEXT;
}

enum step run_copy_wait(struct warp *warp, const struct instruction *i, uint32_t mask) {
    size_t kept = 0;
    for (size_t p = 0; p < warp->pending_count; p++) {
        struct pending *copy = &warp->pending[p];
        int64_t after = (int64_t)warp->committed[copy->lane] - copy->group; /* groups committed since, with its own */
        bool lands = mask >> copy->lane & 1 && after > i->displacement;
        if (lands) {
            memcpy(warp->block->shared + copy->to, copy->data, copy->bytes);
            shared_land(warp, copy->lane, copy->to, copy->bytes);
        } else {
            warp->pending[kept++] = *copy;
        }
    }
    warp->pending_count = kept;
    return STEP_NEXT;
}
