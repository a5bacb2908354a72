/* The public functions of algorithms.h, and the libraries by backend. */
#include "algorithms-internal.h"

static const struct algorithm_library *const libraries[] = {&algorithm_library_cuda};

/* Returns the library of an open device, or NULL. */
static const struct algorithm_library *library_of(const struct device *device) {
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++)
        if (libraries[i]->backend == device->backend && libraries[i]->name(device))
            return libraries[i];
    return NULL;
}

static int fail_without_choice(const struct device *device) {
    return status_fail(STATUS_UNSUPPORTED, "products on %s have no choice of algorithms", device->kind);
}

const char *device_library(const struct device *device) {
    const struct algorithm_library *library = library_of(device);
    return library ? library->name(device) : NULL;
}

int device_tune(struct device *device, int proposals) {
    const struct algorithm_library *library = library_of(device);
    return library ? library->tune(device, proposals) : fail_without_choice(device);
}

bool device_algorithm_at(const struct device *device, int number, struct device_algorithm *algorithm) {
    const struct algorithm_library *library = library_of(device);
    return library && library->algorithm_at(device, number, algorithm);
}

int device_take_algorithms(struct device *device, const struct device_algorithm *algorithms, int count) {
    const struct algorithm_library *library = library_of(device);
    return library ? library->take(device, algorithms, count) : fail_without_choice(device);
}

/* ---- batch invariance ---- */

void device_make_batch_invariant(struct device *device) {
    device->is_batch_invariant = true;
}

bool device_is_batch_invariant(const struct device *device) {
    return device->is_batch_invariant;
}
