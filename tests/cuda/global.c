/* Global memory: bounds, alignment, values that nobody wrote, and races between blocks of a launch.
 *
 * Traces cover two bytes each, so accesses of one byte are checked for bounds and values alone. A block may read what
 * another one wrote in the same launch only after both have used an atomic operation, the writer after a fence. */
#include "cuda/warp.h"

static void describe_fault(struct warp *warp, const struct instruction *instruction, int lane, uint64_t address,
                           uint32_t bytes, const char *what) {
    char text[160];
    memory_describe(warp->block->machine, address, text, sizeof text);
    warp_fault(warp, instruction, lane, "%s: %u bytes at %s", what, bytes, text);
}

static bool find(struct block *block, uint64_t address, uint32_t bytes) {
    const struct allocation *near = block->near;
    if (near && address >= near->address && address + bytes <= near->address + near->bytes) {
        return true;
    }
    near = memory_find(block->machine, address, bytes);
    block->near = near ? near : block->near;
    return near != NULL;
}

/* Whether what a block wrote in this launch is known to this one. */
static bool is_known(const struct block *block, uint32_t stamp) {
    if (stamp < block->machine->stamp || stamp == block->stamp) {
        return true;
    }
    if (stamp == block->atomic || stamp == block->many) {
        return block->has_atomic;
    }
    return block->has_atomic && block->fenced[stamp - block->machine->stamp];
}

/* The words of a fault, or NULL. */
static const char *touch_trace(const struct block *block, struct trace *trace, enum touch touch, bool is_byte) {
    if (touch != TOUCH_WRITE && trace->written == 0) {
        return "reads what nobody has written";
    }
    if (is_byte) {
        trace->written = trace->written ? trace->written : 1;
        return NULL;
    }
    bool is_atomic = touch == TOUCH_ATOMIC;
    if (!is_known(block, trace->written) && !(is_atomic && trace->written == block->atomic)) {
        return touch == TOUCH_READ ? "race between blocks, a read of what another block writes"
                                   : "race between blocks, a write after another block's";
    }
    bool is_first =
        trace->written < block->machine->stamp && (touch != TOUCH_READ || trace->read < block->machine->stamp);
    block->counts->moved_bytes += is_first ? 2 : 0;
    if (touch == TOUCH_READ) {
        trace->read = trace->read < block->machine->stamp || trace->read == block->stamp ? block->stamp : block->many;
        return NULL;
    }
    if (!is_known(block, trace->read)) {
        return "race between blocks, a write after another block's read";
    }
    trace->written = is_atomic ? block->atomic : block->stamp;
    return NULL;
}

/* Most accesses end in one of these two: no other block has written the bytes in this launch, nor read what is written
 * now. False leaves the traces as they were. */
static bool read_alone(const struct block *block, struct trace *first, const struct trace *end) {
    uint32_t launch = block->machine->stamp, me = block->stamp, many = block->many, faults = 0, firsts = 0;
    for (const struct trace *trace = first; trace < end; trace++) {
        faults |= (uint32_t)(trace->written == 0) | ((uint32_t)(trace->written >= launch) & (trace->written != me));
    }
    for (struct trace *trace = first; trace < end && !faults; trace++) {
        firsts += (uint32_t)(trace->read < launch) & (trace->written < launch);
        trace->read = trace->read < launch || trace->read == me ? me : many;
    }
    block->counts->moved_bytes += 2 * firsts;
    return !faults;
}

static bool write_alone(const struct block *block, struct trace *first, const struct trace *end) {
    uint32_t launch = block->machine->stamp, me = block->stamp, others = 0, firsts = 0;
    for (const struct trace *trace = first; trace < end; trace++) {
        others |= (uint32_t)(trace->written >= launch) & (trace->written != me);
        others |= (uint32_t)(trace->read >= launch) & (trace->read != me);
    }
    for (struct trace *trace = first; trace < end && !others; trace++) {
        firsts += trace->written < launch;
        trace->written = me;
    }
    block->counts->moved_bytes += 2 * firsts;
    return !others;
}

char *global_touch(struct warp *warp, const struct instruction *instruction, int lane, uint64_t address, uint32_t bytes,
                   uint32_t align, enum touch touch) {
    struct block *block = warp->block;
    struct machine *machine = block->machine;
    if (!find(block, address, bytes)) {
        describe_fault(warp, instruction, lane, address, bytes, "outside every allocation");
        return NULL;
    }
    if (address % align) {
        describe_fault(warp, instruction, lane, address, bytes, "misaligned");
        return NULL;
    }
    struct trace *first = machine->traces + (address - machine->base) / 2;
    struct trace *end = machine->traces + (address - machine->base + bytes + 1) / 2;
    if (bytes > 1 && touch != TOUCH_ATOMIC && (touch == TOUCH_READ ? read_alone : write_alone)(block, first, end)) {
        return memory_view(machine, address);
    }
    for (struct trace *trace = first; trace < end; trace++) {
        const char *what = touch_trace(block, trace, touch, bytes == 1);
        if (what) {
            describe_fault(warp, instruction, lane, address + (uint64_t)(trace - first) * 2, bytes, what);
            return NULL;
        }
    }
    return memory_view(machine, address);
}
