/* Device memory: allocations with gaps between them, and copies that leave traces of who wrote what. */
#include "cuda/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGNMENT = 256, GAP = 512 };

/* The index of the first allocation after an address. */
static size_t place_after(const struct machine *machine, uint64_t address) {
    size_t low = 0, high = machine->allocation_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (machine->allocations[middle].address <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The lowest place with room, by its index; the address goes to `at`. Returns false where there is none. */
static bool find_room(const struct machine *machine, uint64_t bytes, size_t *index, uint64_t *at) {
    uint64_t end = machine->base + GAP;
    for (size_t i = 0; i <= machine->allocation_count; i++) {
        if (i < machine->allocation_count && machine->allocations[i].is_free) {
            continue;
        }
        bool is_last = i == machine->allocation_count;
        uint64_t limit = is_last ? machine->base + machine->bytes : machine->allocations[i].address;
        if (limit > end && limit - end >= bytes + GAP) {
            *at = end;
            *index = place_after(machine, end);
            return true;
        }
        if (!is_last) {
            end = machine->allocations[i].address + machine->allocations[i].bytes + GAP;
            end = (end + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        }
    }
    return false;
}

/* Forgets released allocations that a new one covers. */
static void forget(struct machine *machine, uint64_t address, uint64_t bytes) {
    size_t kept = 0;
    for (size_t i = 0; i < machine->allocation_count; i++) {
        const struct allocation *old = &machine->allocations[i];
        bool covered = old->is_free && old->address < address + bytes && address < old->address + old->bytes + 1;
        if (!covered) {
            machine->allocations[kept++] = *old;
        }
    }
    machine->allocation_count = kept;
}

uint64_t memory_alloc(struct machine *machine, uint64_t bytes) {
    size_t index;
    uint64_t address;
    if (bytes == 0 || bytes > machine->bytes || !find_room(machine, bytes, &index, &address)) {
        return 0;
    }
    forget(machine, address, bytes);
    index = place_after(machine, address);
    if (machine->allocation_count == machine->allocation_room) {
        size_t room = machine->allocation_room ? 2 * machine->allocation_room : 64;
        struct allocation *more = realloc(machine->allocations, room * sizeof *more);
        if (!more) {
            return 0;
        }
        machine->allocations = more, machine->allocation_room = room;
    }
    memmove(machine->allocations + index + 1, machine->allocations + index,
            (machine->allocation_count - index) * sizeof *machine->allocations);
    machine->allocation_count++;
    machine->allocations[index] =
        (struct allocation){.address = address, .bytes = bytes, .number = ++machine->allocation_number};
    machine->used += bytes;
    return address;
}

int memory_free(struct machine *machine, uint64_t address) {
    size_t after = place_after(machine, address);
    struct allocation *found = after ? &machine->allocations[after - 1] : NULL;
    if (!found || found->address != address || found->is_free) {
        return -1;
    }
    found->is_free = true;
    machine->used -= found->bytes;
    /* Nobody has written what comes here next. Whole pages go back to the system. */
    uint64_t offset = address - machine->base;
    struct trace *traces = machine->traces + offset / 2;
    size_t bytes = (found->bytes + 1) / 2 * sizeof *traces, head = -(uintptr_t)traces % 4096;
    if (bytes > 65536) {
        memset(traces, 0, head);
        size_t pages = (bytes - head) / 4096 * 4096;
        madvise((char *)traces + head, pages, MADV_DONTNEED);
        memset((char *)traces + head + pages, 0, bytes - head - pages);
    } else {
        memset(traces, 0, bytes);
    }
    return 0;
}

const struct allocation *memory_find(const struct machine *machine, uint64_t address, uint64_t bytes) {
    size_t after = place_after(machine, address);
    const struct allocation *found = after ? &machine->allocations[after - 1] : NULL;
    if (!found || found->is_free || address + bytes > found->address + found->bytes || address + bytes < address) {
        return NULL;
    }
    return found;
}

void memory_describe(const struct machine *machine, uint64_t address, char *text, size_t size) {
    size_t after = place_after(machine, address);
    const struct allocation *before = after ? &machine->allocations[after - 1] : NULL;
    const struct allocation *next = after < machine->allocation_count ? &machine->allocations[after] : NULL;
    if (address < machine->base || address >= machine->base + machine->bytes) {
        snprintf(text, size, "0x%llx, which is not device memory", (unsigned long long)address);
    } else if (before && address < before->address + before->bytes) {
        snprintf(text, size, "byte %llu of allocation %u (%llu bytes%s)",
                 (unsigned long long)(address - before->address), before->number, (unsigned long long)before->bytes,
                 before->is_free ? ", released" : "");
    } else if (next && next->address - address < GAP) {
        snprintf(text, size, "%llu bytes before allocation %u (%llu bytes)",
                 (unsigned long long)(next->address - address), next->number, (unsigned long long)next->bytes);
    } else if (before) {
        snprintf(text, size, "%llu bytes after the end of allocation %u (%llu bytes)",
                 (unsigned long long)(address - before->address - before->bytes), before->number,
                 (unsigned long long)before->bytes);
    } else {
        snprintf(text, size, "no allocation");
    }
}

static int check(struct machine *machine, const char *call, uint64_t address, uint64_t bytes) {
    if (bytes > 0 && !memory_find(machine, address, bytes)) {
        char text[160];
        memory_describe(machine, address, text, sizeof text);
        return machine_fail(machine, "%s of %llu bytes at %s", call, (unsigned long long)bytes, text);
    }
    return 0;
}

static void mark(struct machine *machine, uint64_t address, uint64_t bytes) {
    uint64_t first = (address - machine->base) / 2, end = (address - machine->base + bytes + 1) / 2;
    for (uint64_t i = first; i < end; i++) {
        machine->traces[i] = (struct trace){.written = 1};
    }
}

int memory_write(struct machine *machine, uint64_t to, const void *from, uint64_t bytes) {
    if (check(machine, "a copy to the device", to, bytes)) {
        return -1;
    }
    memcpy(memory_view(machine, to), from, bytes);
    mark(machine, to, bytes);
    return 0;
}

int memory_read(struct machine *machine, void *to, uint64_t from, uint64_t bytes) {
    if (check(machine, "a copy to the host", from, bytes)) {
        return -1;
    }
    memcpy(to, memory_view(machine, from), bytes);
    const struct trace *traces = machine->traces;
    for (uint64_t i = 0; i < bytes; i++) {
        if (traces[(from - machine->base + i) / 2].written == 0) {
            ((unsigned char *)to)[i] = 0xFF;
        }
    }
    return 0;
}

int memory_move(struct machine *machine, uint64_t to, uint64_t from, uint64_t bytes) {
    if (check(machine, "a copy on the device", to, bytes) || check(machine, "a copy on the device", from, bytes)) {
        return -1;
    }
    memmove(memory_view(machine, to), memory_view(machine, from), bytes);
    for (uint64_t i = 0; i < bytes; i++) {
        bool written = machine->traces[(from - machine->base + i) / 2].written;
        machine->traces[(to - machine->base + i) / 2] = (struct trace){.written = written};
    }
    return 0;
}

int memory_set(struct machine *machine, uint64_t to, uint8_t value, uint64_t bytes) {
    if (check(machine, "a memset", to, bytes)) {
        return -1;
    }
    memset(memory_view(machine, to), value, bytes);
    mark(machine, to, bytes);
    return 0;
}
