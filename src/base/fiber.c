/* Fibers over ucontext. A sanitizer follows stacks: it is called before a switch with the new stack, and after it
 * there. */
#include "fiber.h"

#include "status.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

struct fiber {
    ucontext_t own, caller;
    char *memory; /* a page that nobody may touch, then the stack */
    size_t guard, stack;
    int (*call)(void *context);
    void *context;
    int status;
    bool is_done;
    /* The sanitizers': */
    void *own_state, *caller_state;
    const void *caller_stack;
    size_t caller_bytes;
};

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
static void open_state(struct fiber *fiber) {
}
static void close_state(struct fiber *fiber) {
}
static void before_resume(struct fiber *fiber) {
    __sanitizer_start_switch_fiber(&fiber->caller_state, fiber->memory + fiber->guard, fiber->stack);
}
static void after_resume(struct fiber *fiber) {
    __sanitizer_finish_switch_fiber(fiber->own_state, &fiber->caller_stack, &fiber->caller_bytes);
}
static void before_pause(struct fiber *fiber) {
    __sanitizer_start_switch_fiber(fiber->is_done ? NULL : &fiber->own_state, fiber->caller_stack, fiber->caller_bytes);
}
static void after_pause(struct fiber *fiber) {
    __sanitizer_finish_switch_fiber(fiber->caller_state, NULL, NULL);
    fiber->own_state = fiber->is_done ? NULL : fiber->own_state;
}
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
static void open_state(struct fiber *fiber) {
    fiber->own_state = __tsan_create_fiber(0);
}
static void close_state(struct fiber *fiber) {
    __tsan_destroy_fiber(fiber->own_state);
}
static void before_resume(struct fiber *fiber) {
    fiber->caller_state = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fiber->own_state, 0);
}
static void after_resume(struct fiber *fiber) {
}
static void before_pause(struct fiber *fiber) {
    __tsan_switch_to_fiber(fiber->caller_state, 0);
}
static void after_pause(struct fiber *fiber) {
}
#else
static void open_state(struct fiber *fiber) {
}
static void close_state(struct fiber *fiber) {
}
static void before_resume(struct fiber *fiber) {
}
static void after_resume(struct fiber *fiber) {
}
static void before_pause(struct fiber *fiber) {
}
static void after_pause(struct fiber *fiber) {
}
#endif

int fiber_open(size_t stack, struct fiber **out) {
    struct fiber *fiber = *out = calloc(1, sizeof *fiber);
    TRY(status_allocated(fiber));
    fiber->guard = (size_t)sysconf(_SC_PAGESIZE);
    fiber->stack = (stack + fiber->guard - 1) / fiber->guard * fiber->guard;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK;
    void *memory = mmap(NULL, fiber->guard + fiber->stack, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, fiber->guard, PROT_NONE)) {
        if (memory != MAP_FAILED)
            munmap(memory, fiber->guard + fiber->stack);
        free(fiber);
        *out = NULL;
        return status_fail(STATUS_MEMORY, "no memory for a stack of %zu bytes", stack);
    }
    fiber->memory = memory;
    return STATUS_OK;
}

void fiber_close(struct fiber *fiber) {
    if (!fiber)
        return;
    munmap(fiber->memory, fiber->guard + fiber->stack);
    free(fiber);
}

/* makecontext passes int arguments only. */
static void enter(unsigned high, unsigned low) {
    struct fiber *fiber = (struct fiber *)((uintptr_t)high << 32 | low);
    after_resume(fiber);
    fiber->status = fiber->call(fiber->context);
    fiber->is_done = true;
    before_pause(fiber);
    setcontext(&fiber->caller);
}

void fiber_begin(struct fiber *fiber, int (*call)(void *context), void *context) {
    uintptr_t address = (uintptr_t)fiber;
    fiber->call = call;
    fiber->context = context;
    fiber->is_done = false;
    open_state(fiber);
    getcontext(&fiber->own);
    fiber->own.uc_stack.ss_sp = fiber->memory + fiber->guard;
    fiber->own.uc_stack.ss_size = fiber->stack;
    fiber->own.uc_link = NULL;
    makecontext(&fiber->own, (void (*)(void))enter, 2, (unsigned)(address >> 32), (unsigned)address);
}

bool fiber_resume(struct fiber *fiber, int *status) {
    before_resume(fiber);
    swapcontext(&fiber->caller, &fiber->own);
    after_pause(fiber);
    if (fiber->is_done)
        close_state(fiber);
    *status = fiber->status;
    return fiber->is_done;
}

void fiber_pause(struct fiber *fiber) {
    before_pause(fiber);
    swapcontext(&fiber->own, &fiber->caller);
    after_resume(fiber);
}
