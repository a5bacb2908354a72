/* NVIDIA's GPUs as a backend: opening one, its memory, and sketches of GPUs that need no driver. */
#include "cuda/cuda-internal.h"

enum { LEAST_ARCHITECTURE = 80 };

/* ---- opening ---- */

/* Makes a device without a GPU; device.c names it. NULL without memory. */
static struct cuda_device *make_device(int threads) {
    struct cuda_device *own = calloc(1, sizeof *own);
    if (!own) {
        status_no_memory();
        return NULL;
    }
    pthread_mutex_init(&own->lock, NULL);
    own->device =
        (struct device){.backend = &backend_cuda, .ops = &cuda_ops, .threads = threads > 0 ? threads : usable_cores()};
    return own;
}

static int find_card(struct cuda_device *own, int number) {
    const struct cuda_driver *driver = &own->driver;
    struct device *device = &own->device;
    int count = 0;
    TRY(cuda_check(device, driver->device_count(&count), "counting the GPUs"));
    if (count == 0)
        return status_fail(STATUS_UNSUPPORTED, "--device cuda: this machine has no NVIDIA GPU");
    if (number >= count)
        return status_fail(STATUS_UNSUPPORTED, "cuda:%d: this machine has %d GPUs (cuda:0 to cuda:%d)", number, count,
                           count - 1);
    return cuda_check(device, driver->device_at(&own->card, number), "finding the GPU");
}

/* Reads the properties that other files need, and writes the description. */
static int describe_card(struct cuda_device *own, int number) {
    struct device *device = &own->device;
    const struct cuda_driver *driver = &own->driver;
    int major = 0, minor = 0;
    char name[64] = "";
    const unsigned results[] = {driver->device_name(name, sizeof name, own->card),
                                driver->device_place(own->place, sizeof own->place, own->card),
                                driver->device_memory(&own->memory, own->card),
                                driver->device_attribute(&major, CUDA_CAPABILITY_MAJOR, own->card),
                                driver->device_attribute(&minor, CUDA_CAPABILITY_MINOR, own->card),
                                driver->device_attribute(&own->multiprocessors, CUDA_MULTIPROCESSORS, own->card),
                                driver->device_attribute(&own->max_pitch, CUDA_MAX_PITCH, own->card)};
    int status = STATUS_OK;
    for (size_t i = 0; i < sizeof results / sizeof *results && !status; i++)
        status = cuda_check(device, results[i], "asking for the GPU's properties");
    TRY(status);
    own->architecture = 10 * major + minor;
    if (own->architecture < LEAST_ARCHITECTURE)
        return status_fail(STATUS_UNSUPPORTED,
                           "cuda:%d: %s has compute capability %d.%d, and the program needs 8.0 or newer", number, name,
                           major, minor);
    snprintf(device->description, sizeof device->description, "cuda, %.40s, sm_%d, %d multiprocessors", name,
             own->architecture, own->multiprocessors);
    return STATUS_OK;
}

static int look_at_card(struct cuda_device *own, int number) {
    int status = cuda_driver_open(&own->driver);
    THEN(status, find_card(own, number));
    return status ? status : describe_card(own, number);
}

static int retain_context(struct cuda_device *own) {
    struct device *device = &own->device;
    struct CUctx_st *context = NULL;
    TRY(cuda_check(device, own->driver.context_retain(&context, own->card), "opening the GPU"));
    own->context = context;
    int status = cuda_enter(device);
    THEN(status,
         cuda_check(device, own->driver.stream_create(&own->stream, CUDA_STREAM_NON_BLOCKING, 0), "opening a stream"));
    THEN(status, cuda_kernels_load(device, &own->kernels));
    return status ? status : cuda_gemm_cache_open(device);
}

static int cuda_open(int number, int threads, struct device **out) {
    struct cuda_device *own = make_device(threads);
    if (!own)
        return STATUS_MEMORY;
    *out = &own->device;
    snprintf(own->device.kind, sizeof own->device.kind, "cuda:%d", number);
    int status = look_at_card(own, number);
    return status ? status : retain_context(own);
}

static int cuda_sketch(const struct device_facts *facts, struct device **out) {
    struct cuda_device *own = make_device(facts->threads);
    if (!own)
        return STATUS_MEMORY;
    const char *architecture = strstr(facts->kind, ":sm_");
    own->architecture = architecture ? atoi(architecture + 4) : LEAST_ARCHITECTURE;
    own->may_be_newer = !architecture;
    snprintf(own->device.description, sizeof own->device.description, "cuda, a sketch of sm_%d", own->architecture);
    *out = &own->device;
    if (own->architecture < LEAST_ARCHITECTURE)
        return status_fail(STATUS_UNSUPPORTED, "%s: the program needs sm_%d or newer", facts->kind, LEAST_ARCHITECTURE);
    return STATUS_OK;
}

static void cuda_close(struct device *device) {
    struct cuda_device *own = cuda(device);
    bool is_entered = own->context && !cuda_enter(device);
    if (is_entered)
        cuda_kernels_unload(device, &own->kernels);
    cuda_gemm_cache_close(device);
    if (is_entered && own->stream)
        cuda_check(device, own->driver.stream_destroy(own->stream), "closing a stream");
    if (own->context)
        cuda_check(device, own->driver.context_release(own->card), "closing the GPU");
    cuda_driver_close(&own->driver);
    pthread_mutex_destroy(&own->lock);
    free(own);
}

static int cuda_find(int number) {
    struct cuda_device *own = make_device(1);
    int status = own ? look_at_card(own, number) : STATUS_MEMORY;
    if (own)
        cuda_close(&own->device);
    return status;
}

static int cuda_count(void) {
    struct cuda_driver driver;
    int count = 0;
    if (cuda_driver_open(&driver) || driver.device_count(&count))
        count = 0;
    cuda_driver_close(&driver);
    return count;
}

/* There are no levels: only the CPU has them. */
static const struct ops *cuda_ops_for_level(const struct device *device, const char *level) {
    return NULL;
}

/* ---- memory ---- */

static size_t cuda_memory(const struct device *device) {
    return cuda(device)->memory;
}

static int cuda_free_memory(struct device *device, size_t *bytes) {
    size_t total;
    int status = cuda_enter(device);
    return status ? status
                  : cuda_check(device, cuda(device)->driver.memory_info(bytes, &total), "asking for free memory");
}

/* A failed allocation does not break the device. Its text says how much memory is free. */
static int fail_alloc(struct device *device, unsigned result, size_t bytes) {
    size_t free_bytes = 0;
    if (result != CUDA_OUT_OF_MEMORY)
        return cuda_check(device, result, "allocating memory");
    int status = cuda_free_memory(device, &free_bytes);
    return status ? status
                  : status_fail(STATUS_MEMORY, "%s: cannot allocate %.1f MB: %.1f MB of %.1f MB are free", device->kind,
                                (double)bytes / 1e6, (double)free_bytes / 1e6, (double)cuda(device)->memory / 1e6);
}

/* Zeroes memory and waits, because other streams may use it as soon as the call returns. */
static int zero_and_wait(struct device *device, unsigned long long address, size_t bytes) {
    const struct cuda_driver *driver = &cuda(device)->driver;
    struct CUstream_st *stream = cuda(device)->stream;
    int status = cuda_check(device, driver->fill_bytes(address, 0, bytes, stream), "zeroing memory");
    return status ? status : cuda_check(device, driver->stream_synchronize(stream), "zeroing memory");
}

static void cuda_free(struct device *device, void *memory) {
    if (!cuda_enter(device))
        cuda_check(device, cuda(device)->driver.memory_free(cuda_address(memory)), "freeing memory");
}

/* Returns at least 1, because the driver refuses blocks of 0 bytes. */
static size_t block_bytes(size_t bytes) {
    return bytes ? bytes : 1;
}

static int cuda_alloc(struct device *device, size_t bytes, bool is_zeroed, void **memory) {
    unsigned long long address = 0;
    *memory = NULL;
    TRY(cuda_enter(device));
    unsigned result = cuda(device)->driver.memory_alloc(&address, block_bytes(bytes));
    if (result)
        return fail_alloc(device, result, bytes);
    int status = is_zeroed ? zero_and_wait(device, address, block_bytes(bytes)) : STATUS_OK;
    if (status)
        cuda_free(device, (void *)(uintptr_t)address);
    else
        *memory = (void *)(uintptr_t)address;
    return status;
}

static int cuda_host_alloc(struct device *device, size_t bytes, void **memory) {
    *memory = NULL;
    TRY(cuda_enter(device));
    unsigned result = cuda(device)->driver.host_alloc(memory, block_bytes(bytes), CUDA_HOST_PORTABLE);
    if (result == CUDA_OUT_OF_MEMORY)
        return status_fail(STATUS_MEMORY, "%s: cannot allocate %.1f MB of pinned memory of the host", device->kind,
                           (double)bytes / 1e6);
    int status = cuda_check(device, result, "allocating pinned memory of the host");
    if (!status)
        memset(*memory, 0, block_bytes(bytes));
    return status;
}

static void cuda_host_free(struct device *device, void *memory) {
    if (!cuda_enter(device))
        cuda_check(device, cuda(device)->driver.host_free(memory), "freeing pinned memory of the host");
}

const struct backend backend_cuda = {
    .name = "cuda",
    .has_numbers = true,
    .find = cuda_find,
    .count = cuda_count,
    .open = cuda_open,
    .sketch = cuda_sketch,
    .close = cuda_close,
    .ops_for_level = cuda_ops_for_level,
    .memory = cuda_memory,
    .free_memory = cuda_free_memory,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .measure_gemm = cuda_measure_gemm,
    .time_read = cuda_time_read,
    .stream_open = cuda_stream_open,
    .stream_close = cuda_stream_close,
    .stream_wait = cuda_stream_wait,
    .copy = cuda_copy,
    .zero = cuda_zero,
    .reduce = cuda_reduce,
    .event_open = cuda_event_open,
    .event_close = cuda_event_close,
    .event_record = cuda_event_record,
    .event_wait = cuda_event_wait,
    .event_seconds = cuda_event_seconds,
    .stream_wait_event = cuda_stream_wait_event,
    .record_begin = cuda_record_begin,
    .record_end = cuda_record_end,
    .replay = cuda_replay,
    .recording_close = cuda_recording_close,
};
