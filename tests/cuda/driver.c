/* libcuda.so.1 for tests: the calls of NVIDIA's driver API that the program makes, on one card of the interpreter's.
 *
 * The environment decides, read when the card is opened: CAMBIUM_CUDA_SEED sets the order of streams, blocks and warps.
 * CAMBIUM_CUDA_REPORT names a file for the counts of calls and of each kernel, written at the end of the process.
 * CAMBIUM_CUDA_MEMORY is the card's memory in MiB. CAMBIUM_CUDA_FAIL lists calls that fail: "alloc:3,launch:10,copy:2"
 * is the third allocation, the tenth launch, the second copy. A fault goes to standard error in words, and every later
 * call fails with its number. */
#include "cuda/driver_stream.h"
#include "cuda/fatbin.h"
#include "cuda/library.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>

#define API __attribute__((visibility("default")))

enum { CAPABILITY = 90, MULTIPROCESSORS = 4, PLAIN_SHARED = 49152, MOST_SHARED = 232448 };

struct function {
    const struct ptx_kernel *kernel;
    int most_dynamic;
    struct function *next;
};

struct module {
    struct ptx_module *ptx;
    struct function *functions;
};

/* The one card. Everything is under its lock. */
static struct {
    pthread_mutex_t lock;
    bool is_open;
    struct machine machine;
    struct streams streams;
    struct stream *null_stream;
    unsigned long allocations, launches, copies;
    unsigned long uploads, downloads; /* copies between host and device */
    unsigned long graph_launches;     /* whose work counts in none of the others */
    unsigned long outside;            /* launches that are not captured */
    unsigned long waits;              /* of the host, for a stream or an event with work to run */
    unsigned long contexts;           /* that are retained */
    CUresult error;                   /* of the first fault */
} card = {.lock = PTHREAD_MUTEX_INITIALIZER};

static unsigned long setting(const char *name, unsigned long otherwise) {
    const char *text = getenv(name);
    return text ? strtoul(text, NULL, 10) : otherwise;
}

/* True where the n-th call of a kind shall fail. */
static bool fails(const char *kind, unsigned long n) {
    const char *at = getenv("CAMBIUM_CUDA_FAIL");
    size_t length = strlen(kind);
    for (; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        if (strncmp(at, kind, length) == 0 && at[length] == ':' && strtoul(at + length + 1, NULL, 10) == n) {
            return true;
        }
    }
    return false;
}

static CUresult open_card(void) {
    if (card.is_open) {
        return CUDA_SUCCESS;
    }
    if (machine_open(&card.machine, (uint64_t)setting("CAMBIUM_CUDA_MEMORY", 8192) << 20,
                     setting("CAMBIUM_CUDA_SEED", 1))) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    card.streams.machine = &card.machine;
    card.null_stream = stream_open(&card.streams);
    card.is_open = card.null_stream != NULL;
    return card.is_open ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Captures of this thread, which may neither allocate nor wait meanwhile: the capture is thread-local. */
static _Thread_local int captures;

/* Takes the lock. Returns the error that every call has after a fault, and before cuInit(). */
static CUresult enter(void) {
    pthread_mutex_lock(&card.lock);
    return card.is_open ? card.error : CUDA_ERROR_NOT_INITIALIZED;
}

/* The same for calls that a thread may not make while it captures. */
static CUresult enter_outside(void) {
    CUresult result = enter();
    return result ? result : captures ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

/* Gives the lock back. A fault that is new becomes the error of all calls. */
static CUresult leave(CUresult result) {
    if (card.is_open && card.machine.failed && !card.error) {
        const char *message = card.machine.message;
        card.error = strstr(message, "outside every allocation") ? CUDA_ERROR_ILLEGAL_ADDRESS
                     : strstr(message, "misaligned")             ? CUDA_ERROR_MISALIGNED_ADDRESS
                                                                 : CUDA_ERROR_LAUNCH_FAILED;
        fprintf(stderr, "cuda stand-in: %s\n", message);
        result = card.error;
    }
    pthread_mutex_unlock(&card.lock);
    return result;
}

/* One line with the calls of the driver; those of the kernels follow. */
static int write_calls(const char *path) {
    FILE *file = fopen(path, "a");
    if (!file) {
        return -1;
    }
    fprintf(file,
            "{\"allocations\": %lu, \"uploads\": %lu, \"downloads\": %lu, \"waits\": %lu, "
            "\"graph_launches\": %lu, \"launches\": %lu}\n",
            card.allocations, card.uploads, card.downloads, card.waits, card.graph_launches, card.outside);
    return fclose(file) ? -1 : 0;
}

/* A process that ends may still have threads on the card. Then its memory stays. */
__attribute__((destructor)) static void close_card(void) {
    const char *path = getenv("CAMBIUM_CUDA_REPORT");
    if (card.is_open && path && (write_calls(path) || counts_write(&card.machine, path))) {
        perror(path);
    }
    if (card.is_open && !card.contexts) {
        stream_close(&card.streams, card.null_stream);
        machine_close(&card.machine);
    }
}

static struct stream *stream_of(CUstream stream) {
    return stream ? (struct stream *)stream : card.null_stream;
}

/* ---- the driver and its card ---- */

API CUresult cuInit(unsigned flags) {
    pthread_mutex_lock(&card.lock);
    return leave(flags ? CUDA_ERROR_INVALID_VALUE : open_card());
}

API CUresult cuDriverGetVersion(int *version) {
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

API CUresult cuGetErrorName(CUresult error, const char **text) {
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_UNKNOWN";
    return CUDA_SUCCESS;
}

API CUresult cuGetErrorString(CUresult error, const char **text) {
    static const struct {
        CUresult error;
        const char *text;
    } texts[] = {{CUDA_SUCCESS, "no error"},
                 {CUDA_ERROR_INVALID_VALUE, "invalid argument"},
                 {CUDA_ERROR_OUT_OF_MEMORY, "out of memory"},
                 {CUDA_ERROR_NOT_INITIALIZED, "initialization error"},
                 {CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"},
                 {CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"},
                 {CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"},
                 {CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"},
                 {CUDA_ERROR_NOT_FOUND, "named symbol not found"},
                 {CUDA_ERROR_NOT_READY, "device not ready"},
                 {CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"},
                 {CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"},
                 {CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (texts[i].error == error) {
            *text = texts[i].text;
            return CUDA_SUCCESS;
        }
    }
    *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuDeviceGetCount(int *count) {
    *count = 1;
    return leave(enter());
}

API CUresult cuDeviceGet(CUdevice *device, int number) {
    CUresult result = enter();
    *device = 0;
    return leave(result ? result : number ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS);
}

API CUresult cuDeviceGetName(char *name, int bytes, CUdevice device) {
    (void)device;
    snprintf(name, (size_t)bytes, "PTX interpreter");
    return leave(enter());
}

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    CUresult result = enter();
    (void)device;
    *bytes = card.machine.bytes;
    return leave(result);
}

API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    static const struct {
        CUdevice_attribute attribute;
        int value;
    } values[] = {{CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, LAUNCH_MOST_THREADS},
                  {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, PLAIN_SHARED},
                  {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, MOST_SHARED},
                  {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, MOST_SHARED + 1024},
                  {CU_DEVICE_ATTRIBUTE_MAX_PITCH, INT32_MAX},
                  {CU_DEVICE_ATTRIBUTE_WARP_SIZE, LANES},
                  {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, MULTIPROCESSORS},
                  {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CAPABILITY / 10},
                  {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, CAPABILITY % 10},
                  {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1}};
    CUresult result = enter();
    (void)device;
    for (size_t i = 0; !result && i < sizeof values / sizeof *values; i++) {
        if (values[i].attribute == attribute) {
            *value = values[i].value;
            return leave(CUDA_SUCCESS);
        }
    }
    return leave(result ? result : CUDA_ERROR_INVALID_VALUE);
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    (void)device;
    *context = (CUcontext)&card;
    CUresult result = enter();
    card.contexts += !result;
    return leave(result);
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    (void)device;
    CUresult result = enter();
    card.contexts -= card.contexts > 0;
    return leave(result);
}

API CUresult cuCtxSetCurrent(CUcontext context) {
    CUresult result = enter();
    return leave(result ? result : context && context != (CUcontext)&card ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS);
}

/* ---- memory ---- */

API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    CUresult result = enter();
    *total = card.machine.bytes, *free_bytes = card.machine.bytes - card.machine.used;
    return leave(result);
}

API CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    CUresult result = enter_outside();
    if (!result) {
        *address = fails("alloc", ++card.allocations) ? 0 : memory_alloc(&card.machine, bytes);
        result = bytes == 0 ? CUDA_ERROR_INVALID_VALUE : *address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    return leave(result);
}

API CUresult cuMemFree_v2(CUdeviceptr address) {
    CUresult result = enter_outside();
    if (!result && address) {
        streams_run(&card.streams, NULL, NULL); /* as the driver does: nothing may still use it */
        result = memory_free(&card.machine, address) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    }
    return leave(result);
}

API CUresult cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) {
    CUresult result = enter_outside();
    (void)flags;
    if (!result) {
        *memory = fails("alloc", ++card.allocations) ? NULL : aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
        result = *memory ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    return leave(result);
}

API CUresult cuMemAllocHost_v2(void **memory, size_t bytes) {
    return cuMemHostAlloc(memory, bytes, 0);
}

API CUresult cuMemFreeHost(void *memory) {
    CUresult result = enter();
    if (card.is_open) {
        streams_run(&card.streams, NULL, NULL);
    }
    free(memory);
    return leave(result);
}

static CUresult queue(CUstream stream, struct work *work) {
    CUresult result = enter();
    if (!result && work->kind <= WORK_SET && work->kind != WORK_LAUNCH) {
        work->fails = fails("copy", ++card.copies);
    }
    if (!result && !stream_of(stream)->captured) {
        card.uploads += work->kind == WORK_WRITE;
        card.downloads += work->kind == WORK_READ;
    }
    if (!result && stream_queue(stream_of(stream), work)) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return leave(result);
}

static struct work copy_of(enum work_kind kind, uint64_t to, uint64_t from, size_t bytes) {
    return (struct work){.kind = kind, .to = to, .from = from, .bytes = bytes, .rows = 1};
}

API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    struct work work = copy_of(WORK_WRITE, to, (uintptr_t)from, bytes);
    return queue(stream, &work);
}

API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    struct work work = copy_of(WORK_READ, (uintptr_t)to, from, bytes);
    return queue(stream, &work);
}

API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    struct work work = copy_of(WORK_MOVE, to, from, bytes);
    return queue(stream, &work);
}

API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream) {
    bool to_host = copy->dstMemoryType == CU_MEMORYTYPE_HOST, from_host = copy->srcMemoryType == CU_MEMORYTYPE_HOST;
    if ((to_host && from_host) || copy->dstPitch < copy->WidthInBytes || copy->srcPitch < copy->WidthInBytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    uint64_t to = to_host ? (uintptr_t)copy->dstHost : copy->dstDevice;
    uint64_t from = from_host ? (uintptr_t)copy->srcHost : copy->srcDevice;
    struct work work = copy_of(from_host ? WORK_WRITE
                               : to_host ? WORK_READ
                                         : WORK_MOVE,
                               to + copy->dstY * copy->dstPitch + copy->dstXInBytes,
                               from + copy->srcY * copy->srcPitch + copy->srcXInBytes, copy->WidthInBytes);
    work.rows = copy->Height, work.to_pitch = copy->dstPitch, work.from_pitch = copy->srcPitch;
    return queue(stream, &work);
}

API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
    struct work work = {.kind = WORK_SET, .to = to, .value = value, .bytes = bytes};
    return queue(stream, &work);
}

/* ---- streams and events ---- */

API CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    CUresult result = enter();
    (void)flags;
    if (!result) {
        *stream = (CUstream)stream_open(&card.streams);
        result = *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    return leave(result);
}

API CUresult cuStreamDestroy_v2(CUstream stream) {
    CUresult result = enter();
    if (card.is_open && stream) {
        stream_close(&card.streams, (struct stream *)stream);
    }
    return leave(result);
}

API CUresult cuStreamSynchronize(CUstream stream) {
    CUresult result = enter_outside();
    if (!result) {
        card.waits += stream_of(stream)->first != NULL;
        streams_run(&card.streams, stream_of(stream), NULL);
    }
    return leave(result);
}

API CUresult cuCtxSynchronize(void) {
    CUresult result = enter();
    if (!result) {
        streams_run(&card.streams, NULL, NULL);
    }
    return leave(result);
}

API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    struct event *waited = (struct event *)event;
    struct work work = {.kind = WORK_AWAIT, .event = waited, .ticket = waited->recorded};
    (void)flags;
    return queue(stream, &work);
}

API CUresult cuEventCreate(CUevent *event, unsigned flags) {
    CUresult result = enter();
    (void)flags;
    if (!result) {
        *event = calloc(1, sizeof(struct event));
        result = *event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    return leave(result);
}

API CUresult cuEventDestroy_v2(CUevent event) {
    CUresult result = enter();
    if (card.is_open) {
        streams_run(&card.streams, NULL, NULL);
    }
    free(event);
    return leave(result);
}

API CUresult cuEventRecord(CUevent event, CUstream stream) {
    struct event *recorded = (struct event *)event;
    struct work work = {.kind = WORK_RECORD, .event = recorded, .ticket = ++recorded->recorded};
    return queue(stream, &work);
}

API CUresult cuEventSynchronize(CUevent event) {
    CUresult result = enter_outside();
    const struct event *awaited = (const struct event *)event;
    if (!result) {
        card.waits += awaited->done < awaited->recorded;
        streams_run(&card.streams, NULL, awaited);
    }
    return leave(result);
}

API CUresult cuEventQuery(CUevent event) {
    CUresult result = enter();
    const struct event *asked = (struct event *)event;
    bool is_done = asked->done >= asked->recorded;
    return leave(result ? result : is_done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

API CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent from, CUevent to) {
    CUresult result = enter();
    const struct event *first = (struct event *)from, *last = (struct event *)to;
    bool is_done = first->recorded && last->recorded && first->done >= first->recorded && last->done >= last->recorded;
    *milliseconds = (float)(last->time - first->time);
    return leave(result ? result : is_done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

#undef cuEventElapsedTime
CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to); /* the name of a program for CUDA 12 */
API CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to) {
    return cuEventElapsedTime_v2(milliseconds, from, to);
}

/* ---- modules and launches ---- */

static int place(void *context, struct ptx_variable *variable) {
    (void)context;
    variable->address = memory_alloc(&card.machine, variable->bytes ? variable->bytes : 1);
    return variable->address ? memory_write(&card.machine, variable->address, variable->values, variable->bytes) : -1;
}

API CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    CUresult result = enter();
    const char *text;
    char message[PTX_MESSAGE];
    size_t length;
    struct module *loaded = result ? NULL : calloc(1, sizeof *loaded);
    if (!result && fatbin_ptx(image, CAPABILITY, &text, &length)) {
        result = CUDA_ERROR_NO_BINARY_FOR_GPU;
    } else if (!result && (!loaded || ptx_open("module", text, length, place, NULL, &loaded->ptx, message))) {
        fprintf(stderr, "cuda stand-in: %s\n", loaded ? message : "out of memory");
        result = CUDA_ERROR_INVALID_PTX;
    }
    if (result) {
        free(loaded);
    } else {
        *module = (CUmodule)loaded;
    }
    return leave(result);
}

API CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    return cuModuleLoadData(module, image);
}

API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    CUresult result = enter();
    struct module *loaded = (struct module *)module;
    const struct ptx_kernel *kernel = result ? NULL : ptx_kernel_find(loaded->ptx, name);
    struct function *found = kernel ? calloc(1, sizeof *found) : NULL;
    if (!result && !found) {
        result = kernel ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_NOT_FOUND;
    } else if (!result) {
        *found = (struct function){
            .kernel = kernel, .most_dynamic = PLAIN_SHARED - (int)kernel->shared_bytes, .next = loaded->functions};
        loaded->functions = found;
        *function = (CUfunction)found;
    }
    return leave(result);
}

API CUresult cuModuleUnload(CUmodule module) {
    CUresult result = enter();
    struct module *loaded = (struct module *)module;
    if (card.is_open) {
        streams_run(&card.streams, NULL, NULL);
    }
    for (const struct ptx_variable *at = loaded->ptx->variables; at; at = at->next) {
        memory_free(&card.machine, at->address);
    }
    while (loaded->functions) {
        struct function *function = loaded->functions;
        loaded->functions = function->next;
        free(function);
    }
    ptx_close(loaded->ptx);
    free(loaded);
    return leave(result);
}

API CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    CUresult result = enter();
    struct function *set = (struct function *)function;
    if (!result && attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        bool fits = value >= 0 && (uint32_t)value + set->kernel->shared_bytes <= MOST_SHARED;
        result = fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        set->most_dynamic = fits ? value : set->most_dynamic;
    }
    return leave(result);
}

API CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    CUresult result = enter();
    const struct function *asked = (struct function *)function;
    bool is_known = true;
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        *value = (int)asked->kernel->shared_bytes;
        break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
        *value = (int)asked->kernel->local_bytes;
        break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = asked->most_dynamic;
        break;
    default:
        is_known = false;
    }
    return leave(result ? result : is_known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

/* The parameters as the kernel has them, from one pointer each; NULL where there is no memory. */
static void *gather(const struct ptx_kernel *kernel, void **arguments) {
    char *params = calloc(1, kernel->param_bytes + 1);
    for (size_t p = 0; params && p < kernel->param_count; p++) {
        memcpy(params + kernel->params[p].at, arguments[p], kernel->params[p].bytes);
    }
    return params;
}

API CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                            unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,
                            void **arguments, void **extra) {
    CUresult result = enter();
    const struct function *launched = (struct function *)function;
    bool is_valid = !extra && grid_x && grid_y && grid_z && block_x && block_y && block_z && block_z <= 64 &&
                    grid_y <= 65535 && grid_z <= 65535 && (uint64_t)block_x * block_y * block_z <= LAUNCH_MOST_THREADS;
    if (!result && (!is_valid || (int64_t)shared_bytes > launched->most_dynamic)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (!result) {
        card.outside += !stream_of(stream)->captured;
        struct work work = {.kind = WORK_LAUNCH,
                            .fails = fails("launch", ++card.launches),
                            .launch = {.kernel = launched->kernel,
                                       .grid = {grid_x, grid_y, grid_z},
                                       .block = {block_x, block_y, block_z},
                                       .dynamic_shared = shared_bytes,
                                       .params = gather(launched->kernel, arguments)}};
        if (!work.launch.params || stream_queue(stream_of(stream), &work)) {
            free((void *)work.launch.params);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    return leave(result);
}

/* ---- graphs ---- */

API CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    CUresult result = enter();
    struct stream *captured = stream_of(stream);
    if (!result && (captured->captured || !stream || mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    struct graph *graph = result ? NULL : calloc(1, sizeof *graph);
    if (graph) {
        graph->last = &graph->first;
        captured->captured = graph;
        captures++;
    }
    return leave(result || graph ? result : CUDA_ERROR_OUT_OF_MEMORY);
}

API CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    CUresult result = enter();
    struct stream *captured = stream_of(stream);
    if (!result && !captured->captured) {
        result = CUDA_ERROR_ILLEGAL_STATE;
    }
    if (!result) {
        *graph = (CUgraph)captured->captured;
        captured->captured = NULL;
        captures--;
    }
    return leave(result);
}

/* The instance takes the graph's work, so a graph makes one instance. */
API CUresult cuGraphInstantiateWithFlags(CUgraphExec *instance, CUgraph graph, unsigned long long flags) {
    CUresult result = enter_outside();
    struct graph *from = (struct graph *)graph;
    struct graph *to = result || flags ? NULL : calloc(1, sizeof *to);
    if (!result && !to) {
        result = flags ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!result) {
        to->first = from->first;
        from->first = NULL;
        *instance = (CUgraphExec)to;
    }
    return leave(result);
}

API CUresult cuGraphDestroy(CUgraph graph) {
    CUresult result = enter();
    graph_free((struct graph *)graph);
    return leave(result);
}

API CUresult cuGraphLaunch(CUgraphExec instance, CUstream stream) {
    CUresult result = enter();
    struct work work = {.kind = WORK_GRAPH, .graph = (const struct graph *)instance};
    if (!result && stream_of(stream)->captured) {
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; /* the driver would make a child of it */
    }
    card.graph_launches += !result;
    if (!result && stream_queue(stream_of(stream), &work)) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return leave(result);
}

API CUresult cuGraphExecDestroy(CUgraphExec instance) {
    CUresult result = enter();
    if (card.is_open) {
        streams_run(&card.streams, NULL, NULL);
    }
    graph_free((struct graph *)instance);
    return leave(result);
}

/* ---- libraries ---- */

API int cuda_stand_in_queue(void *stream, void (*call)(struct machine *machine, void *context), void *context) {
    CUresult result = enter();
    struct work work = {.kind = WORK_CALL, .call = call, .context = context};
    if (!result && stream_queue(stream_of(stream), &work)) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result) {
        free(context);
    }
    return leave(result) ? -1 : 0;
}
