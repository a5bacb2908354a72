/* Counts of kernels by the stand-in for the driver. */
#pragma once

#include "cuda/library.h"
#include "support/test.h"

#include <dlfcn.h>
#include <string.h>

/* Returns the counts of all kernels so far, as cuda_stand_in_counts() does. The library is open already. */
static inline const struct counts *test_counts(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    assert_non_null(library);
    const struct counts *(*counts_of_card)(void);
    *(void **)(void *)&counts_of_card = dlsym(library, "cuda_stand_in_counts");
    assert_non_null(counts_of_card);
    const struct counts *counts = counts_of_card();
    dlclose(library);
    return counts;
}

/* Returns a copy of a kernel's counts so far. */
static inline struct counts test_counts_of(const char *kernel) {
    const struct counts *counts = test_counts();
    while (counts && strcmp(counts->name, kernel))
        counts = counts->next;
    return counts ? *counts : (struct counts){0};
}
