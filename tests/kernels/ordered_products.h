/* Products of the library whose bits do not depend on the number of threads. */
#pragma once

#include "kernels/ops.h"
#include "support/test.h"

/* True when oneDNN has AVX-512 (CTest also runs a program without it). With narrower vectors it shares sums among
 * threads. */
static inline bool has_ordered_products(void) {
    struct device *device;
    test_ok(device_open("cpu", DEVICE_FIRST, 1, &device));
    bool has = ops_for_level(device, "v4") && !getenv("ONEDNN_MAX_CPU_ISA");
    device_close(device);
    return has;
}
