/* The loop that executes a warp, and what moves its lanes: branches, barriers, the end. */
#include "cuda/warp.h"

#include "cuda/handlers.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum step warp_fault(const struct warp *warp, const struct instruction *instruction, int lane, const char *format,
                     ...) {
    const struct block *block = warp->block;
    const uint32_t *size = block->launch->block;
    uint32_t thread = (uint32_t)(warp->index * LANES + lane);
    char text[PTX_MESSAGE / 2];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    machine_fail(block->machine, "kernel %s, block %u,%u,%u, thread %u,%u,%u, PTX line %u (%s): %s",
                 block->kernel->name, block->index[0], block->index[1], block->index[2], thread % size[0],
                 thread / size[0] % size[1], thread / size[0] / size[1], instruction->line, instruction->opcode, text);
    return STEP_FAULT;
}

enum step warp_check(const struct warp *warp, const struct instruction *instruction, uint32_t mask) {
    const struct operand *sources = instruction->operands + instruction->destinations;
    uint32_t set = UINT32_MAX;
    for (int s = 0; s < instruction->sources; s++) {
        set &= warp->set[sources[s].slot];
    }
    if (mask & ~set) {
        return warp_fault(warp, instruction, __builtin_ctz(mask & ~set), "reads a register that has no value");
    }
    return STEP_NEXT;
}

/* ---- groups ---- */

static void add_group(struct warp *warp, uint32_t pc, uint32_t mask, bool meets) {
    for (int g = 0; g < warp->other_count; g++) {
        if (warp->others[g].pc == pc) { /* lanes meet here */
            warp->others[g].mask |= mask;
            warp->others[g].meets = false;
            return;
        }
    }
    warp->others[warp->other_count++] = (struct group){.pc = pc, .mask = mask, .meets = meets};
}

/* Lets the group run that comes first in the text. False where each one waits for another. */
static bool choose_group(struct warp *warp) {
    int first = -1;
    for (int g = 0; g < warp->other_count; g++) {
        bool earlier = first < 0 || warp->others[g].pc < warp->others[first].pc;
        first = !warp->others[g].meets && earlier ? g : first;
    }
    if (first < 0) {
        return false;
    }
    struct group chosen = warp->others[first];
    warp->others[first] = warp->others[--warp->other_count];
    warp->pc = chosen.pc, warp->mask = chosen.mask;
    warp->stop = UINT32_MAX;
    for (int g = 0; g < warp->other_count; g++) {
        uint32_t pc = warp->others[g].pc;
        warp->stop = pc > warp->pc && pc < warp->stop ? pc : warp->stop;
    }
    return true;
}

static void regroup(struct warp *warp) {
    add_group(warp, warp->pc, warp->mask, false);
    choose_group(warp);
}

/* Others must come first. A fault where none can. */
static enum step meet(struct warp *warp, const struct instruction *i) {
    add_group(warp, warp->pc, warp->mask, true);
    if (!choose_group(warp)) {
        return warp_fault(warp, i, __builtin_ctz(warp->mask), "divergent: it waits for lanes that do not come here");
    }
    return STEP_JUMP;
}

enum step warp_run(struct warp *warp, uint32_t most) {
    uint64_t threads = 0, instructions = 0;
    enum step step = STEP_NEXT;
    while (most-- > 0) {
        if (warp->pc >= warp->stop) {
            regroup(warp);
        }
        const struct instruction *i = &warp->code[warp->pc];
        uint32_t mask = warp->mask;
        if (i->guard) {
            const struct operand *guard = &i->operands[i->guard - 1];
            if (mask & ~warp->set[guard->slot]) {
                step = warp_fault(warp, i, __builtin_ctz(mask & ~warp->set[guard->slot]), "a predicate has no value");
                break;
            }
            mask &= warp_predicate(warp, guard);
            if (!mask) {
                warp->pc++;
                continue;
            }
        }
        step = i->run(warp, i, mask);
        if (step == STEP_MEET) {
            step = meet(warp, i);
        } else {
            threads += (uint64_t)__builtin_popcount(mask);
            instructions++;
        }
        if (step == STEP_NEXT) {
            warp->pc++;
        } else if (step != STEP_JUMP) {
            break;
        }
    }
    warp->thread_instructions += threads;
    warp->warp_instructions += instructions;
    return step == STEP_JUMP ? STEP_NEXT : step;
}

/* ---- control ---- */

enum step run_branch(struct warp *warp, const struct instruction *i, uint32_t mask) {
    uint32_t rest = warp->mask & ~mask;
    if (rest) {
        add_group(warp, warp->pc + 1, rest, false);
    }
    warp->pc = i->target, warp->mask = mask;
    if (warp->other_count > 0) {
        regroup(warp);
    }
    return STEP_JUMP;
}

enum step run_exit(struct warp *warp, const struct instruction *i, uint32_t mask) {
    for (size_t p = 0; p < warp->pending_count; p++) {
        if (mask >> warp->pending[p].lane & 1) {
            return warp_fault(warp, i, warp->pending[p].lane, "ends before the cp.async of line %u has landed",
                              warp->pending[p].line);
        }
    }
    warp->live &= ~mask;
    warp->mask &= ~mask;
    if (!warp->live) {
        warp->state = WARP_ENDED;
        return STEP_WAIT;
    }
    for (int g = 0; g < warp->other_count; g++) {
        warp->others[g].meets = false; /* whoever waited for these lanes looks again */
    }
    if (warp->mask) {
        return STEP_NEXT;
    }
    choose_group(warp);
    return STEP_JUMP;
}

enum step run_trap(struct warp *warp, const struct instruction *i, uint32_t mask) {
    return warp_fault(warp, i, __builtin_ctz(mask), "a trap");
}

enum step run_barrier(struct warp *warp, const struct instruction *i, uint32_t mask) {
    if (warp_check(warp, i, mask)) {
        return STEP_FAULT;
    }
    if (mask != warp->live) {
        return STEP_MEET;
    }
    int lane = __builtin_ctz(mask);
    warp->state = WARP_AT_BARRIER;
    warp->barrier = (uint32_t)warp_get(warp, &i->operands[0], lane);
    warp->barrier_threads = (uint32_t)warp_get(warp, &i->operands[1], lane);
    warp->barrier_line = i->line;
    warp->pc++;
    return STEP_WAIT;
}

enum step run_warp_barrier(struct warp *warp, const struct instruction *i, uint32_t mask) {
    uint32_t members = (uint32_t)warp_get(warp, &i->operands[0], __builtin_ctz(mask));
    if (warp_check(warp, i, mask)) {
        return STEP_FAULT;
    }
    if (mask & ~members) {
        return warp_fault(warp, i, __builtin_ctz(mask & ~members), "the lane is no member of 0x%x", members);
    }
    if (members & warp->live & ~mask) {
        return STEP_MEET;
    }
    warp->sync++;
    return STEP_NEXT;
}

enum step run_fence(struct warp *warp, const struct instruction *i, uint32_t mask) {
    (void)i, (void)mask;
    warp->block->has_fence = true;
    return STEP_NEXT;
}
