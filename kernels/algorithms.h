/* How the library of a GPU computes products. Only GPUs have such a library. */
#pragma once

#include "kernels/device.h"

/* Makes forward products of the device batch-invariant from now on. A row of C then has the same bits among any number
 * of rows, and whether its sums are rounded by the product or by a cast after it. A CPU always is. */
void device_make_batch_invariant(struct device *device);
bool device_is_batch_invariant(const struct device *device);

/* ---- algorithms that were chosen by measuring ---- */

enum { DEVICE_PRODUCT_BYTES = 192, DEVICE_ALGORITHM_BYTES = 129 };
/* The algorithm of one product. Both are texts of the backend. */
struct device_algorithm {
    char product[DEVICE_PRODUCT_BYTES];     /* its sizes, types and everything else that the library's choice follows */
    char algorithm[DEVICE_ALGORITHM_BYTES]; /* valid for the same library on the same GPU */
    double seconds, first_seconds;          /* of this algorithm, and of the one that the library proposes first */
};
/* Returns name and version of the library that computes products, such as "cuBLASLt 13.1.0". NULL if its algorithms
 * cannot be chosen. The device owns the text. */
const char *device_library(const struct device *device);
/* Makes every product that has no algorithm yet measure up to `proposals` of the library's proposals when it next runs,
 * and keep the fastest. It then runs many times, so a product that accumulates has a wrong result. STATUS_UNSUPPORTED
 * without a choice of algorithms. */
int device_tune(struct device *device, int proposals);
/* Stores algorithm `number` of those that were measured or taken; false after the last. */
bool device_algorithm_at(const struct device *device, int number, struct device_algorithm *algorithm);
/* Makes products take these algorithms from now on, before any product has run. Batch-invariant products keep theirs.
 * STATUS_INVALID for a text that is none, or an algorithm that the library refuses; STATUS_UNSUPPORTED, STATUS_MEMORY.
 */
int device_take_algorithms(struct device *device, const struct device_algorithm *algorithms, int count);
