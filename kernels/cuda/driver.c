/* Opens libcuda.so.1 at run time. If that fails, one line says why. */
#include "cuda/driver.h"

#include "base/base.h"
#include "base/library.h"

/* A version is 1000 times the major number plus 10 times the minor one. */
enum { MAJOR = 1000, MINOR = 10 };

static int fail_version(int version) {
    return status_fail(STATUS_UNSUPPORTED,
                       "--device cuda: the NVIDIA driver is too old: it supports CUDA %d.%d, and this program is built "
                       "with CUDA %d.%d, which needs %d.0",
                       version / MAJOR, version % MAJOR / MINOR, CAMBIUM_CUDA_VERSION / MAJOR,
                       CAMBIUM_CUDA_VERSION % MAJOR / MINOR, CAMBIUM_CUDA_VERSION / MAJOR);
}

static int fail_init(const struct cuda_driver *driver, unsigned result) {
    switch (result) {
    case CUDA_STUB_LIBRARY:
        return status_fail(STATUS_UNSUPPORTED, "--device cuda: no NVIDIA driver: libcuda.so.1 is the CUDA toolkit's "
                                               "stub, which only serves to link programs");
    case CUDA_NO_DEVICE:
        return status_fail(STATUS_UNSUPPORTED, "--device cuda: this machine has no NVIDIA GPU, or it is hidden "
                                               "(CUDA_VISIBLE_DEVICES)");
    default:
        return status_fail(STATUS_UNSUPPORTED, "--device cuda: the NVIDIA driver does not start: %s (%u)",
                           cuda_driver_text(driver, result), result);
    }
}

/* Finds all functions. Returns the name of the first one that the library lacks, or NULL. */
static const char *find_functions(struct cuda_driver *driver) {
    const char *missing = NULL;
#define FIND(member, name, parameters) missing = library_find(driver->library, #name, &driver->member, missing);
    CUDA_FUNCTIONS(FIND)
#undef FIND
    return missing;
}

static int start(struct cuda_driver *driver, const char *missing) {
    int version = 0;
    unsigned result = driver->version ? driver->version(&version) : CUDA_SUCCESS_RESULT;
    if (result)
        return fail_init(driver, result);
    if (driver->version && version / MAJOR < CAMBIUM_CUDA_VERSION / MAJOR)
        return fail_version(version);
    if (missing)
        return status_fail(STATUS_UNSUPPORTED, "--device cuda: libcuda.so.1 has no function %s", missing);
    result = driver->init(0);
    return result ? fail_init(driver, result) : STATUS_OK;
}

int cuda_driver_open(struct cuda_driver *driver) {
    *driver = (struct cuda_driver){.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)};
    if (!driver->library)
        return status_fail(STATUS_UNSUPPORTED, "--device cuda: no NVIDIA driver: libcuda.so.1 was not found");
    int status = start(driver, find_functions(driver));
    if (status)
        cuda_driver_close(driver);
    return status;
}

void cuda_driver_close(struct cuda_driver *driver) {
    if (driver->library)
        dlclose(driver->library);
    *driver = (struct cuda_driver){0};
}

const char *cuda_driver_text(const struct cuda_driver *driver, unsigned result) {
    const char *text = NULL;
    return driver->error_text && !driver->error_text(result, &text) && text ? text : "unknown error";
}
