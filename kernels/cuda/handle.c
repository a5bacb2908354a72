/* Facts of a card for NVIDIA's other libraries. */
#include "handle.h"

#include "cuda/cuda-internal.h"

int stream_handle(struct stream *stream, void **handle) {
    struct device *device = stream->device;
    *handle = NULL;
    if (device->backend != &backend_cuda)
        return status_fail(STATUS_UNSUPPORTED, "device '%s' has no libraries", device->kind);
    int status = device_status(device);
    *handle = status ? NULL : cuda_stream(stream);
    return status ? status : cuda_enter(device);
}

const char *device_place(const struct device *device) {
    return device->backend == &backend_cuda ? cuda(device)->place : NULL;
}
