/* How the library of a card computes products. Only cards have such a library. */
#ifndef CAMBIUM_KERNELS_ALGORITHMS_H
#define CAMBIUM_KERNELS_ALGORITHMS_H

#include "kernels/device.h"

/* Makes products of the device batch-invariant from now on. A row of C then has the same bits among any number of rows,
 * and whether its sums are rounded by the product or by a cast after it. Packed products have that on every device, so
 * on the CPU this changes nothing. */
void device_make_batch_invariant(struct device *device);
bool device_is_batch_invariant(const struct device *device);

#endif
