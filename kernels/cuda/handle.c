/* A GPU for NVIDIA's other libraries. */
#include "handle.h"

#include "cuda/cuda-internal.h"

static int check(const struct device *device) {
    return device->backend == &backend_cuda
               ? device_status(device)
               : status_fail(STATUS_UNSUPPORTED, "device '%s' has no libraries", device->kind);
}

int stream_handle(struct stream *stream, void **handle) {
    int status = check(stream->device);
    *handle = status ? NULL : cuda_stream(stream);
    return status ? status : cuda_enter(stream->device);
}

int stream_open_urgent(struct device *device, struct stream **stream) {
    int status = check(device);
    *stream = NULL;
    return status ? status : cuda_stream_open_urgent(device, stream);
}

void device_spare(struct device *device, int multiprocessors) {
    if (device->backend == &backend_cuda)
        cuda(device)->spared = multiprocessors;
}

const char *device_place(const struct device *device) {
    return device->backend == &backend_cuda ? cuda(device)->place : NULL;
}
