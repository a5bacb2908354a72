/* A driver without a GPU: its device memory is the host's, and a call does its work before it returns. FAKE_DRIVER in
 * the environment names the fault that it shows; each call looks there. It runs no kernels. */
#include "cuda/driver.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOTAL = 8 << 20, REFUSED = 999 };
static size_t allocated;

static bool shows(const char *fault) {
    const char *name = getenv("FAKE_DRIVER");
    return name && !strcmp(name, fault);
}

#define FAKE(name, parameters)                                                                                         \
    unsigned name parameters;                                                                                          \
    unsigned name parameters

FAKE(cuDriverGetVersion, (int *version)) {
    *version = shows("old") ? 11080 : 13010;
    return shows("stub") ? CUDA_STUB_LIBRARY : 0;
}
FAKE(cuInit, (unsigned flags)) {
    (void)flags;
    return shows("no GPU") ? CUDA_NO_DEVICE : shows("start") ? REFUSED : 0;
}
FAKE(cuGetErrorString, (unsigned result, const char **text)) {
    *text = result == REFUSED ? "a fault of the test" : NULL;
    return *text ? 0 : 1;
}
FAKE(cuDeviceGetCount, (int *count)) {
    *count = 2;
    return 0;
}
FAKE(cuDeviceGet, (int *device, int number)) {
    *device = 10 + number;
    return number < 2 ? 0 : 101;
}
FAKE(cuDeviceGetName, (char *name, int bytes, int device)) {
    snprintf(name, (size_t)bytes, "Fake %d", device - 10);
    return 0;
}
FAKE(cuDeviceGetPCIBusId, (char *id, int bytes, int device)) {
    snprintf(id, (size_t)bytes, "0000:%02d:00.0", device);
    return 0;
}
FAKE(cuDeviceGetAttribute, (int *value, unsigned attribute, int device)) {
    (void)device;
    *value = attribute == CUDA_CAPABILITY_MAJOR   ? (shows("capability") ? 7 : 9)
             : attribute == CUDA_CAPABILITY_MINOR ? (shows("capability") ? 5 : 0)
             : attribute == CUDA_MAX_PITCH        ? 64
                                                  : 132;
    return 0;
}
FAKE(cuDeviceTotalMem_v2, (size_t * bytes, int device)) {
    (void)device;
    *bytes = TOTAL;
    return 0;
}

FAKE(cuDevicePrimaryCtxRetain, (struct CUctx_st * *context, int device)) {
    static char contexts[2];
    *context = (struct CUctx_st *)(void *)&contexts[device - 10];
    return shows("context") ? CUDA_OUT_OF_MEMORY : 0;
}
FAKE(cuDevicePrimaryCtxRelease_v2, (int device)) {
    (void)device;
    return 0;
}
static _Thread_local struct CUctx_st *current;
FAKE(cuCtxSetCurrent, (struct CUctx_st * context)) {
    current = context;
    return 0;
}
/* 201 is an invalid context: nothing works on a thread that made none current. */
static unsigned result(void) {
    return !current ? 201 : shows("work") ? REFUSED : 0;
}

/* ---- memory ---- */

FAKE(cuMemGetInfo_v2, (size_t * free_bytes, size_t *total)) {
    *free_bytes = TOTAL - allocated;
    *total = TOTAL;
    return result();
}
FAKE(cuMemAlloc_v2, (unsigned long long *address, size_t bytes)) {
    size_t *block = bytes && allocated + bytes <= TOTAL ? malloc(bytes + 256) : NULL;
    if (!block)
        return bytes ? CUDA_OUT_OF_MEMORY : 1;
    *block = bytes;
    allocated += bytes;
    *address = (uintptr_t)block + 256;
    memset((char *)block + 256, 0xff, bytes);
    return result();
}
FAKE(cuMemFree_v2, (unsigned long long address)) {
    size_t *block = (size_t *)(uintptr_t)(address - 256);
    allocated -= *block;
    free(block);
    return result();
}
FAKE(cuMemHostAlloc, (void **memory, size_t bytes, unsigned flags)) {
    *memory = flags == CUDA_HOST_PORTABLE && bytes && bytes <= TOTAL ? malloc(bytes) : NULL;
    return *memory ? result() : CUDA_OUT_OF_MEMORY;
}
FAKE(cuMemFreeHost, (void *memory)) {
    free(memory);
    return result();
}

/* ---- streams and copies ---- */

FAKE(cuCtxGetStreamPriorityRange, (int *least, int *greatest)) {
    *least = 0;
    *greatest = -5;
    return result();
}
FAKE(cuStreamCreateWithPriority, (struct CUstream_st * *stream, unsigned flags, int priority)) {
    *stream = malloc(1);
    return flags == CUDA_STREAM_NON_BLOCKING && (priority == 0 || priority == -5) ? result() : 1;
}
FAKE(cuStreamDestroy_v2, (struct CUstream_st * stream)) {
    free(stream);
    return result();
}
FAKE(cuStreamSynchronize, (struct CUstream_st * stream)) {
    return stream ? result() : 1;
}
FAKE(cuStreamWaitEvent, (struct CUstream_st * stream, struct CUevent_st *event, unsigned flags)) {
    return stream && event && !flags ? result() : 1;
}
static unsigned copy(unsigned long long to, unsigned long long from, size_t bytes, struct CUstream_st *stream) {
    if (stream && !result())
        memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    return stream ? result() : 1;
}
FAKE(cuMemcpyHtoDAsync_v2, (unsigned long long to, const void *from, size_t bytes, struct CUstream_st *stream)) {
    return copy(to, (uintptr_t)from, bytes, stream);
}
FAKE(cuMemcpyDtoHAsync_v2, (void *to, unsigned long long from, size_t bytes, struct CUstream_st *stream)) {
    return copy((uintptr_t)to, from, bytes, stream);
}
FAKE(cuMemcpyDtoDAsync_v2, (unsigned long long to, unsigned long long from, size_t bytes, struct CUstream_st *stream)) {
    return copy(to, from, bytes, stream);
}
FAKE(cuMemcpy2DAsync_v2, (const struct CUDA_MEMCPY2D_st *call, struct CUstream_st *stream)) {
    const struct cuda_copy_2d *block = (const void *)call;
    unsigned long long from = block->from_kind == CUDA_MEMORY_HOST ? (uintptr_t)block->from_host : block->from_device;
    unsigned long long to = block->to_kind == CUDA_MEMORY_HOST ? (uintptr_t)block->to_host : block->to_device;
    if (block->from_pitch > 64 || block->to_pitch > 64 || block->from_pitch < block->bytes ||
        block->to_pitch < block->bytes)
        return 1;
    for (size_t i = 0; i < block->rows; i++)
        if (copy(to + i * block->to_pitch, from + i * block->from_pitch, block->bytes, stream))
            return result();
    return result();
}
FAKE(cuMemsetD8Async, (unsigned long long to, unsigned char value, size_t bytes, struct CUstream_st *stream)) {
    memset((void *)(uintptr_t)to, value, bytes);
    return stream ? result() : 1;
}

/* ---- events: each record is a millisecond after the one before ---- */

struct CUevent_st {
    float milliseconds;
};
FAKE(cuEventCreate, (struct CUevent_st * *event, unsigned flags)) {
    *event = calloc(1, sizeof **event);
    return flags ? 1 : result();
}
FAKE(cuEventDestroy_v2, (struct CUevent_st * event)) {
    free(event);
    return result();
}
FAKE(cuEventRecord, (struct CUevent_st * event, struct CUstream_st *stream)) {
    static float clock;
    event->milliseconds = ++clock;
    return stream ? result() : 1;
}
FAKE(cuEventSynchronize, (struct CUevent_st * event)) {
    return event ? result() : 1;
}
FAKE(cuEventElapsedTime, (float *milliseconds, struct CUevent_st *from, struct CUevent_st *to)) {
    *milliseconds = to->milliseconds - from->milliseconds;
    return result();
}

/* ---- graphs, which never run ---- */

FAKE(cuStreamBeginCapture_v2, (struct CUstream_st * stream, unsigned mode)) {
    return stream && mode == CUDA_CAPTURE_THREAD_LOCAL ? result() : 1;
}
FAKE(cuStreamEndCapture, (struct CUstream_st * stream, struct CUgraph_st **graph)) {
    *graph = (struct CUgraph_st *)(void *)stream;
    return shows("capture") ? REFUSED : result();
}
FAKE(cuGraphInstantiateWithFlags,
     (struct CUgraphExec_st * *instance, struct CUgraph_st *graph, unsigned long long flags)) {
    *instance = (struct CUgraphExec_st *)(void *)graph;
    return shows("instance") ? REFUSED : flags ? 1 : result();
}
FAKE(cuGraphDestroy, (struct CUgraph_st * graph)) {
    return graph ? result() : 1;
}
FAKE(cuGraphLaunch, (struct CUgraphExec_st * instance, struct CUstream_st *stream)) {
    return instance && stream ? result() : 1;
}
FAKE(cuGraphExecDestroy, (struct CUgraphExec_st * instance)) {
    return instance ? result() : 1;
}

/* ---- kernels, which never run ---- */

FAKE(cuModuleLoadData, (struct CUmod_st * *module, const void *image)) {
    *module = (struct CUmod_st *)(uintptr_t)image;
    return shows("module") ? REFUSED : result();
}
FAKE(cuModuleUnload, (struct CUmod_st * module)) {
    return module ? result() : 1;
}
FAKE(cuModuleGetFunction, (struct CUfunc_st * *function, struct CUmod_st *module, const char *name)) {
    *function = (struct CUfunc_st *)(void *)module;
    return shows("function") && !strcmp(name, "norm_forward_bf16") ? 500 : result();
}
FAKE(cuFuncSetAttribute, (struct CUfunc_st * function, unsigned attribute, int value)) {
    return function && attribute == CUDA_DYNAMIC_SHARED && value > 0 ? result() : 1;
}
FAKE(cuLaunchKernelEx,
     (const struct CUlaunchConfig_st *config, struct CUfunc_st *function, void **arguments, void **extra)) {
    const struct cuda_launch_config *launch = (const void *)config;
    bool is_early = launch->attribute_count == 1 && launch->attributes->kind == CUDA_LAUNCH_EARLY;
    return !function || !is_early || !launch->stream || !arguments || extra ? 1 : shows("launch") ? REFUSED : result();
}
#ifndef FAKE_LACKS_LAUNCH
FAKE(cuLaunchKernel, (struct CUfunc_st * function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                      unsigned block_y, unsigned block_z, unsigned shared_bytes, struct CUstream_st *stream,
                      void **arguments, void **extra)) {
    unsigned blocks = grid_x * grid_y * grid_z, threads = block_x * block_y * block_z;
    bool is_right = function && blocks && threads && threads <= 1024 && shared_bytes <= 99 << 10 && arguments && !extra;
    return !is_right || !stream ? 1 : shows("launch") ? REFUSED : result();
}
#endif
