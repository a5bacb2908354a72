/* The tests' way to run a kernel: PTX from a text, memory by name, results on the host. */
#pragma once

#include "cuda/machine.h"

/* A machine of 64 MiB with a seed; the test fails where there is none. */
void kernel_machine(struct machine *machine, uint64_t seed);

/* Decodes a text; its variables get device memory. The caller closes the module. */
struct ptx_module *kernel_module(struct machine *machine, const char *text);

/* Device memory that holds a copy of `bytes` bytes, or nothing where `from` is NULL. */
uint64_t kernel_memory(struct machine *machine, const void *from, uint64_t bytes);

/* Runs the kernel of a name on `blocks` blocks of `threads` threads. Returns what launch_run() returns. */
int kernel_run(struct machine *machine, const struct ptx_module *module, const char *name, uint32_t blocks,
               uint32_t threads, const void *params);

/* Fails the test with the machine's message unless the launch succeeded. */
void kernel_ok(const struct machine *machine, int status);
