/* Counts of the test backend `late`, for tests. */
#pragma once

#include "kernels/device.h"

/* Counts since the device was opened: copies each way between host and device, copies within the device, and waits of
 * the host that found work still to run. Operations of a replay count as the one replay. `allocated`: bytes of its
 * memory that are allocated now. */
struct late_counts {
    int64_t uploads, downloads, moves, waits, operations, replays, allocated;
};
/* Returns the counts of a device of the backend late. Any thread. */
struct late_counts late_counts(const struct device *device);
