/* Shared memory: bounds, alignment, values that nobody wrote, and races between barriers.
 *
 * Two warps race where both use a byte between two barriers and one of them writes. Two lanes of one warp race where
 * one writes and the other uses the byte before the next bar.warp.sync; a read before another lane's write is not
 * noticed there. */
#include "cuda/warp.h"

#include <string.h>

struct use {
    struct warp *warp;
    const struct instruction *instruction;
    uint64_t offset; /* of the byte */
    int lane;
};

static char *race(const struct use *use, const char *what, uint32_t thread) {
    warp_fault(use->warp, use->instruction, use->lane, "race in shared memory: %s %u at byte %llu", what, thread,
               (unsigned long long)use->offset);
    return NULL;
}

static char *race_of_warp(const struct use *use, uint32_t readers) {
    warp_fault(use->warp, use->instruction, use->lane,
               "race in shared memory: a write after a read by warp %d at byte %llu", __builtin_ctz(readers),
               (unsigned long long)use->offset);
    return NULL;
}

/* Whether a byte's last writer may have written at the same time. */
static bool races_with_writer(const struct use *use, const struct shadow *shadow, int byte) {
    uint32_t writer = shadow->writer[byte], me = (uint32_t)(use->warp->index * LANES + use->lane);
    if (shadow->wrote_epoch != use->warp->block->epoch || writer == 0 || writer - 1 == me) {
        return false;
    }
    return (writer - 1) / LANES != (uint32_t)use->warp->index || shadow->wrote_sync == use->warp->sync;
}

static bool have_values(const struct use *use, const struct shadow *shadow, int first, int end) {
    uint32_t bytes = ((1u << (end - first)) - 1) << first;
    if (bytes & (shadow->pending | ~shadow->written)) {
        warp_fault(use->warp, use->instruction, use->lane, "reads byte %llu of shared memory, which %s",
                   (unsigned long long)use->offset,
                   bytes & shadow->pending ? "a cp.async has not filled yet" : "nobody has written");
        return false;
    }
    return true;
}

static bool read_bytes(const struct use *use, struct shadow *shadow, int first, int end) {
    struct block *block = use->warp->block;
    if (!have_values(use, shadow, first, end)) {
        return false;
    }
    for (int b = first; b < end && shadow->wrote_epoch == block->epoch; b++) {
        if (races_with_writer(use, shadow, b)) {
            race(use, "a read of what is written by thread", shadow->writer[b] - 1u);
            return false;
        }
    }
    if (shadow->read_epoch != block->epoch) {
        memset(shadow->readers, 0, sizeof shadow->readers);
        shadow->read_epoch = block->epoch;
    }
    for (int b = first; b < end; b++) {
        shadow->readers[b] |= 1u << use->warp->index;
    }
    return true;
}

static bool write_bytes(const struct use *use, struct shadow *shadow, int first, int end) {
    struct block *block = use->warp->block;
    uint32_t others = 0;
    for (int b = first; b < end; b++) {
        others |= shadow->read_epoch == block->epoch ? shadow->readers[b] & ~(1u << use->warp->index) : 0;
        if (races_with_writer(use, shadow, b)) {
            race(use, "a second write after that of thread", shadow->writer[b] - 1u);
            return false;
        }
    }
    if (others) {
        race_of_warp(use, others);
        return false;
    }
    if (shadow->wrote_epoch != block->epoch) {
        memset(shadow->writer, 0, sizeof shadow->writer);
        shadow->wrote_epoch = block->epoch;
    }
    shadow->wrote_sync = use->warp->sync;
    for (int b = first; b < end; b++) {
        shadow->writer[b] = (uint16_t)(1 + use->warp->index * LANES + use->lane);
    }
    shadow->written |= (uint8_t)(((1u << (end - first)) - 1) << first);
    return true;
}

/* A read of a whole word that no thread has written since the last barrier: most reads end here. */
static bool read_alone(const struct warp *warp, struct shadow *shadow) {
    uint32_t epoch = warp->block->epoch, me = 1u << warp->index;
    if (shadow->written != 15 || shadow->pending || shadow->wrote_epoch == epoch) {
        return false;
    }
    for (int b = 0; b < 4; b++) {
        shadow->readers[b] = (shadow->read_epoch == epoch ? shadow->readers[b] : 0) | me;
    }
    shadow->read_epoch = epoch;
    return true;
}

/* The traces of the block before this one are nobody's. */
static void renew(const struct block *block, struct shadow *shadow) {
    if (shadow->block != block->stamp) {
        *shadow = (struct shadow){.block = block->stamp};
    }
}

char *shared_touch(struct warp *warp, const struct instruction *instruction, int lane, uint64_t offset, uint32_t bytes,
                   enum touch touch) {
    struct block *block = warp->block;
    if (offset + bytes > block->shared_bytes || offset + bytes < offset) {
        warp_fault(warp, instruction, lane, "%u bytes at %lld of %u bytes of shared memory", bytes, (long long)offset,
                   block->shared_bytes);
        return NULL;
    }
    if (offset % bytes) {
        warp_fault(warp, instruction, lane, "misaligned: %u bytes at %llu of shared memory", bytes,
                   (unsigned long long)offset);
        return NULL;
    }
    for (uint64_t at = offset; at < offset + bytes;) {
        struct shadow *shadow = &block->shadows[at / 4];
        int first = (int)(at % 4),
            end = offset + bytes - at < 4u - (uint32_t)first ? first + (int)(offset + bytes - at) : 4;
        struct use use = {.warp = warp, .instruction = instruction, .offset = at, .lane = lane};
        renew(block, shadow);
        bool is_word = end - first == 4;
        bool is_fine = touch == TOUCH_ATOMIC ? have_values(&use, shadow, first, end)
                       : touch == TOUCH_WRITE
                           ? write_bytes(&use, shadow, first, end)
                           : (is_word && read_alone(warp, shadow)) || read_bytes(&use, shadow, first, end);
        if (!is_fine) {
            return NULL;
        }
        at += (uint32_t)(end - first);
    }
    return block->shared + offset;
}

/* A cp.async moves 4, 8 or 16 bytes, so these two see whole words. */
void shared_pend(struct warp *warp, uint64_t offset, uint32_t bytes) {
    for (uint64_t at = offset; at < offset + bytes; at += 4) {
        warp->block->shadows[at / 4].pending = 15;
    }
}

void shared_land(struct warp *warp, int lane, uint64_t offset, uint32_t bytes) {
    uint16_t writer = (uint16_t)(1 + warp->index * LANES + lane);
    for (uint64_t at = offset; at < offset + bytes; at += 4) {
        struct shadow *shadow = &warp->block->shadows[at / 4];
        shadow->wrote_epoch = warp->block->epoch;
        shadow->wrote_sync = warp->sync;
        shadow->pending = 0;
        for (int b = 0; b < 4; b++) {
            shadow->writer[b] = writer;
        }
    }
}
