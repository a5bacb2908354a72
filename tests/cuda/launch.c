/* A launch: its blocks one after the other in random order, and the warps of a block in random turns. */
#include "cuda/warp.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_TURN = 96 };
/* No kernel of a test runs for longer: it is a loop without end. */
static const uint64_t most_instructions = 1ull << 36;

static struct counts *counts_of(struct machine *machine, const char *name) {
    for (struct counts *counts = machine->counts; counts; counts = counts->next) {
        if (strcmp(counts->name, name) == 0) {
            return counts;
        }
    }
    struct counts *made = calloc(1, sizeof *made);
    if (made) {
        made->name = strdup(name);
        made->next = machine->counts;
        machine->counts = made;
    }
    return made;
}

static int check_launch(struct machine *machine, const struct launch *launch) {
    uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];
    uint64_t blocks = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    uint64_t shared = (uint64_t)launch->kernel->shared_bytes + launch->dynamic_shared;
    if (threads == 0 || threads > LAUNCH_MOST_THREADS || launch->block[2] > 64) {
        return machine_fail(machine, "kernel %s: blocks of %llu threads", launch->kernel->name,
                            (unsigned long long)threads);
    }
    if (blocks == 0 || launch->grid[0] > INT32_MAX || launch->grid[1] > 65535 || launch->grid[2] > 65535) {
        return machine_fail(machine, "kernel %s: a grid of %u x %u x %u blocks", launch->kernel->name, launch->grid[0],
                            launch->grid[1], launch->grid[2]);
    }
    if (shared > LAUNCH_MOST_SHARED) {
        return machine_fail(machine, "kernel %s: %llu bytes of shared memory", launch->kernel->name,
                            (unsigned long long)shared);
    }
    return 0;
}

/* ---- memory of a block, made once for a launch ---- */

static bool open_block(struct block *block) {
    const struct ptx_kernel *kernel = block->kernel;
    const struct launch *launch = block->launch;
    uint32_t warps = block->warp_count;
    block->shared_bytes = kernel->shared_bytes + launch->dynamic_shared;
    block->shared = aligned_alloc(64, (block->shared_bytes + 127) / 64 * 64);
    block->shadows = calloc(block->shared_bytes / 4 + 1, sizeof *block->shadows);
    char *registers = aligned_alloc(64, (size_t)warps * kernel->register_bytes + 64);
    uint32_t *set = malloc((size_t)warps * kernel->slots * sizeof *set);
    char *local = kernel->local_bytes ? malloc((size_t)warps * LANES * kernel->local_bytes) : NULL;
    block->warps[0].registers = registers, block->warps[0].set = set, block->warps[0].local = local;
    if (!block->shared || !block->shadows || !registers || !set || (kernel->local_bytes && !local)) {
        return false;
    }
    for (uint32_t w = 0; w < warps; w++) {
        struct warp *warp = &block->warps[w];
        warp->block = block, warp->index = (int)w, warp->code = kernel->code;
        warp->registers = registers + (size_t)w * kernel->register_bytes;
        warp->set = set + (size_t)w * kernel->slots;
        warp->local = local ? local + (size_t)w * LANES * kernel->local_bytes : NULL;
        for (size_t c = 0; c < kernel->constant_count; c++) { /* nobody writes to these: once is enough */
            const struct ptx_constant *constant = &kernel->constants[c];
            struct operand operand = {.at = constant->at, .bytes = constant->bytes};
            for (int l = 0; l < LANES; l++) {
                warp_put(warp, &operand, l, constant->value);
            }
        }
    }
    return true;
}

static void close_block(struct block *block) {
    for (uint32_t w = 0; w < block->warp_count; w++) {
        free(block->warps[w].pending);
    }
    free(block->warps[0].registers);
    free(block->warps[0].set);
    free(block->warps[0].local);
    free(block->shared);
    free(block->shadows);
    free(block->fenced);
    free(block);
}

/* ---- one block ---- */

static void place_lane(struct warp *warp, int lane) {
    const struct block *block = warp->block;
    const struct launch *launch = block->launch;
    uint32_t thread = (uint32_t)(warp->index * LANES + lane), x = launch->block[0], y = launch->block[1];
    const uint32_t values[SPECIAL_COUNT] = {thread % x,
                                            thread / x % y,
                                            thread / x / y,
                                            x,
                                            y,
                                            launch->block[2],
                                            block->index[0],
                                            block->index[1],
                                            block->index[2],
                                            launch->grid[0],
                                            launch->grid[1],
                                            launch->grid[2],
                                            (uint32_t)lane,
                                            (uint32_t)warp->index};
    for (int s = 0; s < SPECIAL_COUNT; s++) {
        if (block->kernel->special[s] != UINT32_MAX) {
            warp_put(warp, &(struct operand){.at = block->kernel->special[s], .bytes = 4}, lane, values[s]);
        }
    }
}

static void begin_warp(struct warp *warp) {
    struct block *block = warp->block;
    uint32_t first = (uint32_t)warp->index * LANES, threads = block->threads - first;
    warp->live = warp->mask = threads >= LANES ? UINT32_MAX : (1u << threads) - 1;
    warp->pc = 0, warp->stop = UINT32_MAX;
    warp->other_count = 0;
    warp->state = WARP_RUNS;
    warp->pending_count = 0;
    warp->sync++;
    memset(warp->committed, 0, sizeof warp->committed);
    memset(warp->set, 0, block->kernel->slots * sizeof *warp->set);
    warp->set[SLOT_CONSTANT] = UINT32_MAX;
    for (int l = 0; l < LANES; l++) {
        place_lane(warp, l);
    }
}

static void begin_block(struct block *block, uint32_t number) {
    const uint32_t *grid = block->launch->grid;
    block->number = number;
    block->stamp = block->machine->stamp + number;
    block->index[0] = number % grid[0];
    block->index[1] = number / grid[0] % grid[1];
    block->index[2] = number / grid[0] / grid[1];
    block->has_fence = block->has_atomic = false;
    block->epoch = 1;
    for (uint32_t w = 0; w < block->warp_count; w++) {
        begin_warp(&block->warps[w]);
    }
}

static int fail_barrier(struct block *block, const struct warp *first, const struct warp *other) {
    return machine_fail(block->machine,
                        "kernel %s, block %u,%u,%u: divergent barrier %u: warp %d waits at line %u, warp %d at line %u",
                        block->kernel->name, block->index[0], block->index[1], block->index[2], first->barrier,
                        first->index, first->barrier_line, other->index, other->barrier_line);
}

/* Lets warps run on whose barrier is complete. Returns 1 where some did, 0 where none can, -1 after a fault. */
static int release(struct block *block) {
    for (uint32_t w = 0; w < block->warp_count; w++) {
        struct warp *first = &block->warps[w];
        uint32_t threads = 0, live = 0;
        if (first->state != WARP_AT_BARRIER) {
            continue;
        }
        for (uint32_t v = 0; v < block->warp_count; v++) {
            const struct warp *other = &block->warps[v];
            bool comes = other->state == WARP_AT_BARRIER && other->barrier == first->barrier;
            live += other->state == WARP_ENDED ? 0 : LANES;
            threads += comes ? LANES : 0;
            if (comes &&
                (other->barrier_line != first->barrier_line || other->barrier_threads != first->barrier_threads)) {
                return fail_barrier(block, first, other);
            }
        }
        if (threads < (first->barrier_threads ? first->barrier_threads : live)) {
            continue;
        }
        uint32_t barrier = first->barrier;
        for (uint32_t v = 0; v < block->warp_count; v++) {
            struct warp *warp = &block->warps[v];
            if (warp->state == WARP_AT_BARRIER && warp->barrier == barrier) {
                warp->state = WARP_RUNS;
                warp->sync++;
            }
        }
        block->epoch++;
        block->counts->barriers++;
        return 1;
    }
    return 0;
}

static int run_block(struct block *block) {
    uint64_t instructions = 0;
    for (;;) {
        struct warp *ready[WARP_MOST], *waiting = NULL;
        uint32_t count = 0;
        for (uint32_t w = 0; w < block->warp_count; w++) {
            struct warp *warp = &block->warps[w];
            waiting = warp->state == WARP_AT_BARRIER ? warp : waiting;
            if (warp->state == WARP_RUNS) {
                ready[count++] = warp;
            }
        }
        if (count == 0) {
            int released = waiting ? release(block) : 0;
            if (released > 0) {
                continue;
            }
            return !waiting ? 0
                            : machine_fail(block->machine, "kernel %s: warp %d waits at a barrier in line %u for ever",
                                           block->kernel->name, waiting->index, waiting->barrier_line);
        }
        struct warp *warp = ready[machine_draw(block->machine, count)];
        uint32_t turn = count == 1 ? 4 * MOST_TURN : 1 + machine_draw(block->machine, MOST_TURN);
        instructions += turn;
        if (warp_run(warp, turn) == STEP_FAULT) {
            return -1;
        }
        if (warp->state == WARP_AT_BARRIER && release(block) < 0) {
            return -1;
        }
        if (instructions > most_instructions / LANES) {
            return machine_fail(block->machine, "kernel %s runs without end", block->kernel->name);
        }
    }
}

/* ---- the grid ---- */

/* Blocks in random order: a walk through all numbers by a step that has no divisor in common with their count. */
static uint32_t random_step(struct machine *machine, uint32_t count) {
    uint32_t step = 1 + machine_draw(machine, count);
    for (;; step++) {
        uint32_t a = step, b = count;
        while (b) {
            uint32_t rest = a % b;
            a = b, b = rest;
        }
        if (a == 1) {
            return step;
        }
    }
}

static int run_grid(struct block *block, uint32_t blocks) {
    struct machine *machine = block->machine;
    uint32_t number = machine_draw(machine, blocks), step = random_step(machine, blocks);
    for (uint32_t b = 0; b < blocks; b++) {
        begin_block(block, number);
        if (run_block(block)) {
            return -1;
        }
        number = (uint32_t)(((uint64_t)number + step) % blocks);
    }
    return 0;
}

/* Stamps that have run out begin again: everything counts as written before. */
static void renew_stamps(struct machine *machine, uint32_t blocks) {
    if (machine->stamp < UINT32_MAX - blocks - 2) {
        return;
    }
    for (size_t a = 0; a < machine->allocation_count; a++) {
        uint64_t first = (machine->allocations[a].address - machine->base) / 2,
                 end = first + (machine->allocations[a].bytes + 1) / 2;
        for (uint64_t i = first; i < end; i++) {
            machine->traces[i].written = machine->traces[i].written != 0;
            machine->traces[i].read = 0;
        }
    }
    machine->stamp = 2;
}

int launch_run(struct machine *machine, const struct launch *launch) {
    if (machine->failed || check_launch(machine, launch)) {
        return -1;
    }
    uint32_t blocks = launch->grid[0] * launch->grid[1] * launch->grid[2];
    renew_stamps(machine, blocks);
    struct block *block = calloc(1, sizeof *block);
    if (!block) {
        return machine_fail(machine, "out of memory");
    }
    block->machine = machine, block->launch = launch, block->kernel = launch->kernel;
    block->threads = launch->block[0] * launch->block[1] * launch->block[2];
    block->warp_count = (block->threads + LANES - 1) / LANES;
    block->many = machine->stamp + blocks, block->atomic = machine->stamp + blocks + 1;
    block->fenced = calloc(blocks, 1);
    block->counts = counts_of(machine, launch->kernel->name);
    int status = -1;
    if (open_block(block) && block->fenced && block->counts) {
        status = run_grid(block, blocks);
        block->counts->launches++;
        block->counts->blocks += blocks;
        for (uint32_t w = 0; w < block->warp_count; w++) {
            block->counts->thread_instructions += block->warps[w].thread_instructions;
            block->counts->warp_instructions += block->warps[w].warp_instructions;
        }
    } else {
        machine_fail(machine, "out of memory");
    }
    close_block(block);
    machine->stamp += blocks + 2;
    return status;
}
