/* Replaces the backend `cuda` in a build without it. */
#include "algorithms-internal.h"
#include "handle.h"

const struct backend backend_cuda = {
    .name = "cuda",
    .has_numbers = true,
    .how_to_build = "this program is built without CUDA: configure the build with -DCAMBIUM_CUDA=ON",
};

const struct algorithm_library algorithm_library_cuda = {.backend = &backend_cuda};

int stream_handle(struct stream *stream, void **handle) {
    *handle = NULL;
    return status_fail(STATUS_UNSUPPORTED, "device '%s' has no libraries", stream->device->kind);
}

int stream_open_urgent(struct device *device, struct stream **stream) {
    *stream = NULL;
    return status_fail(STATUS_UNSUPPORTED, "device '%s' has no libraries", device->kind);
}

void device_spare(struct device *device, int multiprocessors) {
}

const char *device_place(const struct device *device) {
    return NULL;
}
