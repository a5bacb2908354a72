/* The machine that runs kernels: device memory, order by seed, counters, and the first fault.
 *
 * One thread at a time may use a machine. The program sees addresses of device memory that nobody may touch; the
 * machine reads and writes the same pages through another mapping. */
#pragma once

#include "cuda/ptx.h"

struct allocation {
    uint64_t address, bytes;
    uint32_t number; /* counts the allocations of the machine, from 1 */
    bool is_free;    /* still here, so that a use after the release has a name */
};

/* Stamps of two bytes of device memory: who wrote and who read them last. */
struct trace {
    uint32_t written; /* 0: nobody has; 1: before all launches; else a block's number over all launches */
    uint32_t read;    /* the same; the launch's last number stands for several blocks */
};

/* The work of one kernel in all its launches. */
struct counts {
    const char *name;
    uint64_t launches, blocks, warp_instructions, thread_instructions;
    uint64_t load_bytes, store_bytes;                                /* global memory, as the lanes ask for them */
    uint64_t moved_bytes;                                            /* of these, what a launch reads or writes first */
    uint64_t load_sectors, store_sectors;                            /* 32 bytes each, one warp's access */
    uint64_t least_sectors;                                          /* that hold as many bytes as were asked for */
    uint64_t shared_passes, least_shared_passes, barriers, products; /* products: mma.sync of a warp */
    struct counts *next;
};

struct machine {
    uint64_t base, bytes; /* device memory, as addresses of the program */
    char *view;           /* the same pages, open */
    int file;
    struct trace *traces;           /* one for two bytes */
    struct allocation *allocations; /* by address */
    size_t allocation_count, allocation_room;
    uint32_t allocation_number;
    uint64_t used;
    uint64_t random; /* the state of the order */
    uint32_t stamp;  /* the next launch's first block */
    struct counts *counts;
    double claimed; /* milliseconds by the clock of events, besides the real ones */
    bool failed;
    char message[PTX_MESSAGE];
};

/* Makes a machine with `bytes` of device memory, of which only touched pages cost. 0, or -1 with errno. */
int machine_open(struct machine *machine, uint64_t bytes, uint64_t seed);
void machine_close(struct machine *machine);
/* Notes the first fault; later ones change nothing. Returns -1. */
int machine_fail(struct machine *machine, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A number below `below`, from the seed. */
uint32_t machine_draw(struct machine *machine, uint32_t below);

/* ---- memory.c ---- */

/* Allocates device memory: 256 bytes aligned, with a gap to the next one. Returns 0 where there is no room. */
uint64_t memory_alloc(struct machine *machine, uint64_t bytes);
/* Releases an allocation. Returns -1 where `address` is none. */
int memory_free(struct machine *machine, uint64_t address);
/* The allocation that holds these bytes, or NULL. */
const struct allocation *memory_find(const struct machine *machine, uint64_t address, uint64_t bytes);
/* The open view of an address. */
static inline char *memory_view(const struct machine *machine, uint64_t address) {
    return machine->view + (address - machine->base);
}
/* Says in words where an address lies: "4 bytes after allocation 3 (1024 bytes)". */
void memory_describe(const struct machine *machine, uint64_t address, char *text, size_t size);
/* Copies by the host and the copy engines. They check bounds; a host that reads what nobody has written gets 0xFF. */
int memory_write(struct machine *machine, uint64_t to, const void *from, uint64_t bytes);
int memory_read(struct machine *machine, void *to, uint64_t from, uint64_t bytes);
int memory_move(struct machine *machine, uint64_t to, uint64_t from, uint64_t bytes);
int memory_set(struct machine *machine, uint64_t to, uint8_t value, uint64_t bytes);

/* ---- launch.c ---- */

struct launch {
    const struct ptx_kernel *kernel;
    uint32_t grid[3], block[3], dynamic_shared;
    const void *params; /* param_bytes, laid out as the kernel has them */
};

enum { LAUNCH_MOST_THREADS = 1024, LAUNCH_MOST_SHARED = 232448 };

/* Runs a kernel to its end. Returns 0, or -1 with machine->message. */
int launch_run(struct machine *machine, const struct launch *launch);
/* Appends the counts of all kernels to a file, a line of JSON each. Returns 0, or -1 with errno. */
int counts_write(const struct machine *machine, const char *path);
