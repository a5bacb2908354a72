#include "support/allocations.h"

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_bool is_counting;
static atomic_int allocations;
static size_t held_before;

#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

/* Libraries whose allocations are their own: also the driver of a GPU, and its library of products. */
static const char *const others[] = {"libdnnl", "libstdc++", "libgomp", "libcuda.", "libcublasLt."};

static void count(const void *caller) {
    Dl_info info;
    if (!atomic_load_explicit(&is_counting, memory_order_relaxed) || !dladdr(caller, &info))
        return;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strstr(info.dli_fname, others[i]))
            return;
    atomic_fetch_add(&allocations, 1);
}

void *malloc(size_t bytes) {
    count(__builtin_return_address(0));
    return __libc_malloc(bytes);
}

void *calloc(size_t items, size_t bytes) {
    count(__builtin_return_address(0));
    return __libc_calloc(items, bytes);
}

void *realloc(void *memory, size_t bytes) {
    count(__builtin_return_address(0));
    return __libc_realloc(memory, bytes);
}

void *memalign(size_t alignment, size_t bytes) {
    count(__builtin_return_address(0));
    return __libc_memalign(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes) {
    count(__builtin_return_address(0));
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes) {
    count(__builtin_return_address(0));
    *memory = __libc_memalign(alignment, bytes);
    return *memory ? 0 : ENOMEM;
}

bool allocations_can_be_counted(void) {
    setenv("OMP_WAIT_POLICY", "passive",
           false); /* no watch of busy machines, which would start threads while we count */
    return true;
}
#else
bool allocations_can_be_counted(void) {
    return false;
}
#endif

void allocations_start(void) {
    atomic_store(&allocations, 0);
    held_before = mallinfo2().uordblks;
    atomic_store(&is_counting, true);
}

int allocations_stop(void) {
    atomic_store(&is_counting, false);
    return atomic_load(&allocations) + (mallinfo2().uordblks > held_before);
}
