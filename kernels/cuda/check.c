/* Results of the driver, and the context that each thread must make current. */
#include "cuda/cuda-internal.h"

int cuda_enter(struct device *device) {
    return cuda_check(device, cuda(device)->driver.context_use(cuda(device)->context), "using the device");
}

int cuda_check(struct device *device, unsigned result, const char *what) {
    return result ? cuda_fail(device, what, cuda_driver_text(&cuda(device)->driver, result), result) : STATUS_OK;
}

int cuda_fail(struct device *device, const char *what, const char *text, unsigned number) {
    struct cuda_device *own = cuda(device);
    if (device_status(device))
        return device_status(device);
    int status = status_fail(STATUS_IO, "%s: %s failed: %s (%u)", device->kind, what, text, number);
    pthread_mutex_lock(&own->lock);
    device_set_failure(device, status);
    pthread_mutex_unlock(&own->lock);
    return status;
}
