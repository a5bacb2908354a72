/* For libraries of a device's vendor, such as one of collectives. Only GPUs of NVIDIA have such libraries:
 * kernels/cuda/handle.c, and in a build without CUDA kernels/cuda/absent.c. */
#pragma once

#include "kernels/device.h"

/* Stores the handle by which libraries know the stream, and makes the device current to the calling thread, as these
 * libraries expect it. STATUS_UNSUPPORTED if the device has no libraries, or its failure. */
int stream_handle(struct stream *stream, void **handle);
/* As stream_open, for the work of a library that goes before that of other streams. STATUS_UNSUPPORTED if the device
 * has no libraries. */
int stream_open_urgent(struct device *device, struct stream **stream);
/* Products that are queued from now on leave this number of multiprocessors free, for the work of libraries; 0: none.
 * It has no effect on a device without libraries. */
void device_spare(struct device *device, int multiprocessors);
/* Returns the device's place in its machine, such as "0000:17:00.0", the same in every process, whatever number the
 * device has there. NULL if the device has no libraries. */
const char *device_place(const struct device *device);
