/* Loads the fat binaries when a GPU is opened, and launches their kernels. */
#include "cuda/cuda-internal.h"

enum { GRID_MOST = 0x7fffffff };  /* blocks of a grid; kernels take more rows in a loop */
enum { SHARED_PLAIN = 48 << 10 }; /* bytes of shared memory that a kernel has without asking */
enum { THREADS = 256, ACCESS_BYTES = 16 };

static struct CUmod_st *module_of(const struct cuda_kernels *kernels, const char *file) {
    int i = 0;
    while (strcmp(cuda_images[i].file, file))
        i++;
    return kernels->modules[i];
}

static const struct {
    const char *file, *kernel, *names[CUDA_KERNEL_TYPES];
    enum cuda_begin begin;
} table[CUDA_KERNEL_COUNT] = {
#define TYPED(file, kernel, begin) {#file, #kernel, {#kernel "_fp32", #kernel "_bf16"}, begin},
#define PLAIN(file, kernel, begin) {#file, #kernel, {#kernel, #kernel}, begin},
    CUDA_KERNELS(TYPED, PLAIN)};

int cuda_kernels_load(struct device *device, struct cuda_kernels *kernels) {
    const struct cuda_driver *driver = &cuda(device)->driver;
    int status = STATUS_OK;
    for (int i = 0; cuda_images[i].file && !status; i++)
        status =
            cuda_check(device, driver->module_load(&kernels->modules[i], cuda_images[i].start), "loading the kernels");
    for (int k = 0; k < CUDA_KERNEL_COUNT; k++)
        for (int type = 0; type < CUDA_KERNEL_TYPES && !status; type++)
            status = cuda_check(device,
                                driver->module_function(&kernels->functions[k][type], module_of(kernels, table[k].file),
                                                        table[k].names[type]),
                                table[k].names[type]);
    return status;
}

void cuda_kernels_unload(struct device *device, struct cuda_kernels *kernels) {
    for (int i = 0; i < CUDA_IMAGES_MOST; i++)
        if (kernels->modules[i])
            cuda_check(device, cuda(device)->driver.module_unload(kernels->modules[i]), "unloading the kernels");
}

/* Queues a launch. If it and the kernel before it begin early, it may begin before that one has ended. */
static unsigned queue(const struct exec *exec, const struct cuda_launch *launch, struct CUfunc_st *function,
                      unsigned blocks) {
    const struct cuda_device *own = cuda(exec->stream->device);
    struct cuda_stream *stream = (struct cuda_stream *)exec->stream;
    void *arguments = (void *)(uintptr_t)launch->arguments;
    bool is_early = own->architecture == 90 && table[launch->kernel].begin == EARLY, was_early = stream->is_followed;
    stream->is_followed = is_early;
    if (!is_early || !was_early)
        return own->driver.launch(function, blocks, 1, 1, (unsigned)launch->threads, 1, 1,
                                  (unsigned)launch->shared_bytes, stream->handle, &arguments, NULL);
    struct cuda_launch_attribute early = {.kind = CUDA_LAUNCH_EARLY, .value = 1};
    const struct cuda_launch_config config = {.grid = {blocks, 1, 1},
                                              .block = {(unsigned)launch->threads, 1, 1},
                                              .shared_bytes = (unsigned)launch->shared_bytes,
                                              .stream = stream->handle,
                                              .attributes = &early,
                                              .attribute_count = 1};
    return own->driver.launch_with((const struct CUlaunchConfig_st *)(const void *)&config, function, &arguments, NULL);
}

int cuda_launch(const struct exec *exec, const struct cuda_launch *launch) {
    struct device *device = exec->stream->device;
    const struct cuda_device *own = cuda(device);
    const char *op = table[launch->kernel].kernel;
    if (launch->type != DTYPE_F32 && launch->type != DTYPE_BF16)
        return status_fail(STATUS_UNSUPPORTED, "%s: no %s activations on cuda (fp32, bf16)", op,
                           dtype_name(launch->type));
    int status = device_status(device);
    THEN_IF(status, launch->blocks, cuda_enter(device));
    if (status || !launch->blocks)
        return status;
    struct CUfunc_st *function = own->kernels.functions[launch->kernel][launch->type == DTYPE_BF16];
    unsigned blocks = launch->blocks < GRID_MOST ? (unsigned)launch->blocks : GRID_MOST, result = CUDA_SUCCESS_RESULT;
    if (launch->shared_bytes > SHARED_PLAIN)
        result = own->driver.function_set(function, CUDA_DYNAMIC_SHARED, (int)launch->shared_bytes);
    if (!result)
        result = queue(exec, launch, function, blocks);
    return cuda_check(device, result, op);
}

static int64_t access_elements(enum dtype type) {
    return ACCESS_BYTES / (type == DTYPE_F32 ? 4 : 2);
}

int cuda_launch_blocks(const struct exec *exec, enum cuda_kernel kernel, enum dtype type, int64_t blocks, int threads,
                       const void *arguments) {
    return cuda_launch(exec, &(const struct cuda_launch){kernel, type, blocks, threads, .arguments = arguments});
}

int cuda_launch_elements(const struct exec *exec, enum cuda_kernel kernel, enum dtype type, int64_t count,
                         const void *arguments) {
    int64_t share = THREADS * access_elements(type);
    return cuda_launch_blocks(exec, kernel, type, (count + share - 1) / share, THREADS, arguments);
}

int cuda_row_threads(enum dtype type, int64_t cols) {
    int64_t accesses = cols / access_elements(type);
    return accesses <= 32 ? 32 : accesses <= 128 ? 128 : THREADS;
}

int cuda_launch_rows(const struct exec *exec, enum cuda_kernel kernel, enum dtype type, int64_t rows, int64_t cols,
                     const void *arguments) {
    return cuda_launch_blocks(exec, kernel, type, cols ? rows : 0, cuda_row_threads(type, cols), arguments);
}
