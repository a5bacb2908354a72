/* The table of a library whose algorithms can be chosen. Its functions are as those of algorithms.h. It is no part of
 * backend.h, because only a GPU's backend has such a library. */
#pragma once

#include "algorithms.h"
#include "backend.h"

struct algorithm_library {
    const struct backend *backend;                    /* whose products it computes */
    const char *(*name)(const struct device *device); /* NULL: of a sketch */
    int (*tune)(struct device *device, int proposals);
    bool (*algorithm_at)(const struct device *device, int number, struct device_algorithm *algorithm);
    int (*take)(struct device *device, const struct device_algorithm *algorithms, int count);
};

extern const struct algorithm_library algorithm_library_cuda;
