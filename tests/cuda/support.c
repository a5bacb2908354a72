#include "cuda/support.h"

#include "support/test.h"

void kernel_machine(struct machine *machine, uint64_t seed) {
    assert_int_equal(machine_open(machine, 1 << 26, seed), 0);
}

static int place(void *context, struct ptx_variable *variable) {
    struct machine *machine = context;
    variable->address = memory_alloc(machine, variable->bytes);
    return variable->address ? memory_write(machine, variable->address, variable->values, variable->bytes) : -1;
}

struct ptx_module *kernel_module(struct machine *machine, const char *text) {
    struct ptx_module *module = NULL;
    char message[PTX_MESSAGE];
    if (ptx_open("test.ptx", text, strlen(text), place, machine, &module, message)) {
        fail_msg("%s", message);
    }
    for (struct ptx_kernel *kernel = module->kernels; kernel; kernel = kernel->next) {
        if (ptx_decode(module, kernel, message)) {
            fail_msg("%s", message);
        }
    }
    return module;
}

uint64_t kernel_memory(struct machine *machine, const void *from, uint64_t bytes) {
    uint64_t address = memory_alloc(machine, bytes);
    assert_int_not_equal(address, 0);
    if (from) {
        assert_int_equal(memory_write(machine, address, from, bytes), 0);
    }
    return address;
}

int kernel_run(struct machine *machine, const struct ptx_module *module, const char *name, uint32_t blocks,
               uint32_t threads, const void *params) {
    const struct ptx_kernel *kernel = ptx_kernel_find(module, name);
    assert_non_null(kernel);
    return launch_run(
        machine,
        &(const struct launch){.kernel = kernel, .grid = {blocks, 1, 1}, .block = {threads, 1, 1}, .params = params});
}

void kernel_ok(const struct machine *machine, int status) {
    if (status) {
        fail_msg("%s", machine->message);
    }
}
