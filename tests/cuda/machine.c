#include "cuda/machine.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int machine_open(struct machine *machine, uint64_t bytes, uint64_t seed) {
    *machine = (struct machine){.bytes = bytes, .random = seed * 2654435769u + 88172645463325252u, .stamp = 2};
    machine->file = memfd_create("device memory", MFD_CLOEXEC);
    if (machine->file < 0 || ftruncate(machine->file, (off_t)bytes)) {
        return -1;
    }
    void *closed = mmap(NULL, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, machine->file, 0);
    void *view = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, machine->file, 0);
    void *traces = mmap(NULL, bytes / 2 * sizeof(struct trace), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (closed == MAP_FAILED || view == MAP_FAILED || traces == MAP_FAILED) {
        return -1;
    }
    machine->base = (uint64_t)(uintptr_t)closed;
    machine->view = view;
    machine->traces = traces;
    return 0;
}

void machine_close(struct machine *machine) {
    munmap((void *)(uintptr_t)machine->base, machine->bytes);
    munmap(machine->view, machine->bytes);
    munmap(machine->traces, machine->bytes / 2 * sizeof(struct trace));
    close(machine->file);
    free(machine->allocations);
    while (machine->counts) {
        struct counts *next = machine->counts->next;
        free((char *)machine->counts->name);
        free(machine->counts);
        machine->counts = next;
    }
}

int machine_fail(struct machine *machine, const char *format, ...) {
    if (!machine->failed) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(machine->message, sizeof machine->message, format, arguments);
        va_end(arguments);
        machine->failed = true;
    }
    return -1;
}

/* xorshift64*: Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled". */
uint32_t machine_draw(struct machine *machine, uint32_t below) {
    machine->random ^= machine->random >> 12;
    machine->random ^= machine->random << 25;
    machine->random ^= machine->random >> 27;
    return (uint32_t)((machine->random * 2685821657736338717u >> 32) * below >> 32);
}
