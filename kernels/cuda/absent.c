/* Replaces the backend `cuda` in a build without it. */
#include "backend.h"
#include "handle.h"

const struct backend backend_cuda = {
    .name = "cuda",
    .has_numbers = true,
    .how_to_build = "this program is built without CUDA: configure the build with -DCAMBIUM_CUDA=ON",
};

int stream_handle(struct stream *stream, void **handle) {
    *handle = NULL;
    return status_fail(STATUS_UNSUPPORTED, "device '%s' has no libraries", stream->device->kind);
}

const char *device_place(const struct device *device) {
    (void)device;
    return NULL;
}
