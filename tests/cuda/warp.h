/* A block while it runs: its warps, their registers, and its shared memory with the traces of who used it.
 *
 * Lanes of a warp that have parted run one group at a time, always the group whose instruction comes first in the text.
 * So they meet again where their paths join. An instruction that needs lanes of other groups waits until these come. */
#pragma once

#include "cuda/machine.h"

enum { WARP_MOST = LAUNCH_MOST_THREADS / LANES };

/* Addresses that are no device memory: shared and local memory in generic addresses. */
#define SHARED_WINDOW (1ull << 44)
#define LOCAL_WINDOW  (2ull << 44)
#define WINDOW_BYTES  (1ull << 32)

/* Lanes of a warp with a common place. */
struct group {
    uint32_t pc, mask;
    bool meets; /* waits for lanes of another group */
};

/* A cp.async that has not landed. */
struct pending {
    uint64_t to;
    uint32_t group, line;
    uint8_t bytes, lane;
    char data[16];
};

enum warp_state { WARP_RUNS, WARP_AT_BARRIER, WARP_ENDED };

struct warp {
    struct block *block;
    char *registers;
    uint32_t *set; /* by slot: the lanes that have a value */
    const struct instruction *code;
    uint32_t pc, mask, stop; /* of the group that runs, and where it meets the next one */
    uint32_t live;
    struct group others[LANES];
    int other_count, index;
    enum warp_state state;
    uint32_t barrier, barrier_threads, barrier_line;
    uint32_t sync; /* counts what orders the lanes' accesses to shared memory */
    struct pending *pending;
    size_t pending_count, pending_room;
    uint32_t committed[LANES]; /* groups of cp.async, by lane */
    char *local;
    uint64_t thread_instructions, warp_instructions;
};

/* The users of four bytes of shared memory. Epochs count the block's barriers. */
struct shadow {
    uint32_t block;      /* the stamp of the block that used them last: the traces of another one count for nothing */
    uint32_t readers[4]; /* warps that read the byte in read_epoch */
    uint16_t writer[4];  /* 1 + thread that wrote it in wrote_epoch; 0: nobody did */
    uint32_t wrote_epoch, read_epoch, wrote_sync;
    uint8_t written, pending; /* bytes with a value; bytes that a cp.async will write */
};

struct block {
    struct machine *machine;
    const struct launch *launch;
    const struct ptx_kernel *kernel;
    struct counts *counts;
    uint32_t index[3], number; /* number: in the grid */
    uint32_t stamp;            /* of this block; the launch's begin with machine->stamp */
    uint32_t many, atomic;     /* stamps for several readers, and for atomic operations */
    uint8_t *fenced;           /* by block: it has made its writes known: a fence, then an atomic operation */
    bool has_fence, has_atomic;
    const struct allocation *near; /* found last */
    uint32_t threads, warp_count, epoch;
    char *shared;
    uint32_t shared_bytes;
    struct shadow *shadows;
    struct warp warps[WARP_MOST];
};

static inline void *warp_lanes(const struct warp *warp, const struct operand *operand) {
    return warp->registers + operand->at;
}

/* One lane of a register with its number of bytes, as unsigned. */
static inline uint64_t warp_get(const struct warp *warp, const struct operand *operand, int lane) {
    const char *lanes = warp->registers + operand->at;
    return operand->bytes == 4   ? ((const uint32_t *)lanes)[lane]
           : operand->bytes == 8 ? ((const uint64_t *)lanes)[lane]
                                 : ((const uint16_t *)lanes)[lane];
}

static inline void warp_put(const struct warp *warp, const struct operand *operand, int lane, uint64_t value) {
    char *lanes = warp->registers + operand->at;
    if (operand->bytes == 4) {
        ((uint32_t *)lanes)[lane] = (uint32_t)value;
    } else if (operand->bytes == 8) {
        ((uint64_t *)lanes)[lane] = value;
    } else {
        ((uint16_t *)lanes)[lane] = (uint16_t)value;
    }
}

/* The mask that a predicate holds, with its negation. */
static inline uint32_t warp_predicate(const struct warp *warp, const struct operand *operand) {
    uint32_t mask = *(const uint32_t *)(warp->registers + operand->at);
    return operand->negated ? ~mask : mask;
}

static inline void warp_set(struct warp *warp, const struct operand *operand, uint32_t mask) {
    warp->set[operand->slot] |= mask;
}

/* Fails the launch at a lane's instruction. Returns STEP_FAULT. */
enum step warp_fault(const struct warp *warp, const struct instruction *instruction, int lane, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Fails where one of the sources has no value in a lane of `mask`; STEP_NEXT where all have. */
enum step warp_check(const struct warp *warp, const struct instruction *instruction, uint32_t mask);
/* Runs up to `most` instructions: STEP_NEXT where the warp can run on, STEP_WAIT at a barrier or its end, or
 * STEP_FAULT. */
enum step warp_run(struct warp *warp, uint32_t most);

/* ---- shared.c and global.c: one access of one lane ---- */

enum touch { TOUCH_READ, TOUCH_WRITE, TOUCH_ATOMIC };

/* Checks an access and leaves its trace. Returns the memory, or NULL after a fault. `align` is of the lane's access,
 * where `bytes` covers several lanes. */
char *shared_touch(struct warp *warp, const struct instruction *instruction, int lane, uint64_t offset, uint32_t bytes,
                   enum touch touch);
char *global_touch(struct warp *warp, const struct instruction *instruction, int lane, uint64_t address, uint32_t bytes,
                   uint32_t align, enum touch touch);
/* Shared memory that a cp.async will fill, and that it has filled. */
void shared_pend(struct warp *warp, uint64_t offset, uint32_t bytes);
void shared_land(struct warp *warp, int lane, uint64_t offset, uint32_t bytes);

/* ---- count.c ---- */

/* Counts one warp's access. `addresses` by lane, `bytes` a lane. */
void count_global(struct warp *warp, const uint64_t *addresses, uint32_t mask, uint32_t bytes, bool is_store);
void count_shared(struct warp *warp, const uint64_t *offsets, uint32_t mask, uint32_t bytes);
