/* NVIDIA's driver API, as far as the program uses it: our own prototypes and enumerators, and a table of functions
 * that is filled at run time from libcuda.so.1. So one program serves machines with a driver and without one.
 *
 * prototypes_test.c compares all of it with the header of the toolkit. Functions return a result, 0 for success. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct CUctx_st;       /* a context */
struct CUmod_st;       /* a module: the kernels of one fat binary */
struct CUfunc_st;      /* a kernel */
struct CUstream_st;    /* a stream */
struct CUevent_st;     /* an event */
struct CUgraph_st;     /* a graph: recorded work */
struct CUgraphExec_st; /* a graph that can be launched */
struct CUDA_MEMCPY2D_st;
struct CUlaunchConfig_st;

/* A block copied from rows to rows: the layout of CUDA_MEMCPY2D. Pitches are bytes from one row to the next. */
struct cuda_copy_2d {
    size_t from_x, from_y;
    unsigned from_kind; /* CUDA_MEMORY_HOST or CUDA_MEMORY_DEVICE */
    const void *from_host;
    unsigned long long from_device;
    void *from_array;
    size_t from_pitch;
    size_t to_x, to_y;
    unsigned to_kind;
    void *to_host;
    unsigned long long to_device;
    void *to_array;
    size_t to_pitch;
    size_t bytes, rows;
};

/* A launch with attributes: the layouts of CUlaunchConfig and CUlaunchAttribute. */
struct cuda_launch_attribute {
    unsigned kind, pad;
    int value;
    char unused[60];
};
struct cuda_launch_config {
    unsigned grid[3], block[3], shared_bytes;
    struct CUstream_st *stream;
    struct cuda_launch_attribute *attributes;
    unsigned attribute_count;
};

/* ROW(our name, the driver's name, value) */
#define CUDA_ENUMERATORS(ROW)                                                                                          \
    ROW(CUDA_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY, 2)                                                               \
    ROW(CUDA_STUB_LIBRARY, CUDA_ERROR_STUB_LIBRARY, 34)                                                                \
    ROW(CUDA_NO_DEVICE, CUDA_ERROR_NO_DEVICE, 100)                                                                     \
    ROW(CUDA_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16)                                            \
    ROW(CUDA_MAX_PITCH, CU_DEVICE_ATTRIBUTE_MAX_PITCH, 11)                                                             \
    ROW(CUDA_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75)                                       \
    ROW(CUDA_CAPABILITY_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76)                                       \
    ROW(CUDA_DYNAMIC_SHARED, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 8)                                       \
    ROW(CUDA_LAUNCH_EARLY, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, 6)                                   \
    ROW(CUDA_MEMORY_HOST, CU_MEMORYTYPE_HOST, 1)                                                                       \
    ROW(CUDA_MEMORY_DEVICE, CU_MEMORYTYPE_DEVICE, 2)                                                                   \
    ROW(CUDA_HOST_PORTABLE, CU_MEMHOSTALLOC_PORTABLE, 1)                                                               \
    ROW(CUDA_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING, 1)                                                           \
    ROW(CUDA_EVENT_BLOCKING_SYNC, CU_EVENT_BLOCKING_SYNC, 1)                                                           \
    ROW(CUDA_CAPTURE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, 1)

#define CUDA_ENUMERATOR(name, driver_name, value) name = (value),
enum cuda_enumerator { CUDA_SUCCESS_RESULT = 0, CUDA_ENUMERATORS(CUDA_ENUMERATOR) };
#undef CUDA_ENUMERATOR

/* ROW(member of the table, the driver's name, parameters). A name with _v2 is the one that the
 * header of the toolkit gives the plain one.
 */
#define CUDA_FUNCTIONS(ROW)                                                                                            \
    ROW(version, cuDriverGetVersion, (int *version))                                                                   \
    ROW(init, cuInit, (unsigned flags))                                                                                \
    ROW(error_text, cuGetErrorString, (unsigned result, const char **text))                                            \
    ROW(device_count, cuDeviceGetCount, (int *count))                                                                  \
    ROW(device_at, cuDeviceGet, (int *device, int number))                                                             \
    ROW(device_name, cuDeviceGetName, (char *name, int bytes, int device))                                             \
    ROW(device_place, cuDeviceGetPCIBusId, (char *id, int bytes, int device))                                          \
    ROW(device_attribute, cuDeviceGetAttribute, (int *value, unsigned attribute, int device))                          \
    ROW(device_memory, cuDeviceTotalMem_v2, (size_t * bytes, int device))                                              \
    ROW(context_retain, cuDevicePrimaryCtxRetain, (struct CUctx_st * *context, int device))                            \
    ROW(context_release, cuDevicePrimaryCtxRelease_v2, (int device))                                                   \
    ROW(context_use, cuCtxSetCurrent, (struct CUctx_st * context))                                                     \
    ROW(memory_info, cuMemGetInfo_v2, (size_t * free_bytes, size_t * total))                                           \
    ROW(memory_alloc, cuMemAlloc_v2, (unsigned long long *address, size_t bytes))                                      \
    ROW(memory_free, cuMemFree_v2, (unsigned long long address))                                                       \
    ROW(host_alloc, cuMemHostAlloc, (void **memory, size_t bytes, unsigned flags))                                     \
    ROW(host_free, cuMemFreeHost, (void *memory))                                                                      \
    ROW(priorities, cuCtxGetStreamPriorityRange, (int *least, int *greatest))                                          \
    ROW(stream_create, cuStreamCreateWithPriority, (struct CUstream_st * *stream, unsigned flags, int priority))       \
    ROW(stream_destroy, cuStreamDestroy_v2, (struct CUstream_st * stream))                                             \
    ROW(stream_synchronize, cuStreamSynchronize, (struct CUstream_st * stream))                                        \
    ROW(stream_wait_event, cuStreamWaitEvent,                                                                          \
        (struct CUstream_st * stream, struct CUevent_st * event, unsigned flags))                                      \
    ROW(capture_begin, cuStreamBeginCapture_v2, (struct CUstream_st * stream, unsigned mode))                          \
    ROW(capture_end, cuStreamEndCapture, (struct CUstream_st * stream, struct CUgraph_st * *graph))                    \
    ROW(graph_destroy, cuGraphDestroy, (struct CUgraph_st * graph))                                                    \
    ROW(graph_instantiate, cuGraphInstantiateWithFlags,                                                                \
        (struct CUgraphExec_st * *instance, struct CUgraph_st * graph, unsigned long long flags))                      \
    ROW(graph_launch, cuGraphLaunch, (struct CUgraphExec_st * instance, struct CUstream_st * stream))                  \
    ROW(instance_destroy, cuGraphExecDestroy, (struct CUgraphExec_st * instance))                                      \
    ROW(copy_to_device, cuMemcpyHtoDAsync_v2,                                                                          \
        (unsigned long long to, const void *from, size_t bytes, struct CUstream_st *stream))                           \
    ROW(copy_to_host, cuMemcpyDtoHAsync_v2,                                                                            \
        (void *to, unsigned long long from, size_t bytes, struct CUstream_st *stream))                                 \
    ROW(copy_on_device, cuMemcpyDtoDAsync_v2,                                                                          \
        (unsigned long long to, unsigned long long from, size_t bytes, struct CUstream_st *stream))                    \
    ROW(copy_rows, cuMemcpy2DAsync_v2, (const struct CUDA_MEMCPY2D_st *copy, struct CUstream_st *stream))              \
    ROW(fill_bytes, cuMemsetD8Async,                                                                                   \
        (unsigned long long to, unsigned char value, size_t bytes, struct CUstream_st *stream))                        \
    ROW(event_create, cuEventCreate, (struct CUevent_st * *event, unsigned flags))                                     \
    ROW(event_destroy, cuEventDestroy_v2, (struct CUevent_st * event))                                                 \
    ROW(event_record, cuEventRecord, (struct CUevent_st * event, struct CUstream_st * stream))                         \
    ROW(event_synchronize, cuEventSynchronize, (struct CUevent_st * event))                                            \
    ROW(event_milliseconds, cuEventElapsedTime, (float *milliseconds, struct CUevent_st *from, struct CUevent_st *to)) \
    ROW(module_load, cuModuleLoadData, (struct CUmod_st * *module, const void *image))                                 \
    ROW(module_unload, cuModuleUnload, (struct CUmod_st * module))                                                     \
    ROW(module_function, cuModuleGetFunction,                                                                          \
        (struct CUfunc_st * *function, struct CUmod_st * module, const char *name))                                    \
    ROW(function_set, cuFuncSetAttribute, (struct CUfunc_st * function, unsigned attribute, int value))                \
    ROW(launch, cuLaunchKernel,                                                                                        \
        (struct CUfunc_st * function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,             \
         unsigned block_y, unsigned block_z, unsigned shared_bytes, struct CUstream_st *stream, void **arguments,      \
         void **extra))                                                                                                \
    ROW(launch_with, cuLaunchKernelEx,                                                                                 \
        (const struct CUlaunchConfig_st *config, struct CUfunc_st *function, void **arguments, void **extra))

#define CUDA_MEMBER(member, name, parameters) unsigned(*member) parameters;
struct cuda_driver {
    void *library; /* of dlopen */
    CUDA_FUNCTIONS(CUDA_MEMBER)
};
#undef CUDA_MEMBER

/* Opens the driver and initialises it. Fails with STATUS_UNSUPPORTED and one line: no library, the toolkit's stub, no
 * GPU, a driver older than the toolkit's major version, a library that lacks a function. */
int cuda_driver_open(struct cuda_driver *driver);
/* Closes what was opened; a zeroed table is allowed. */
void cuda_driver_close(struct cuda_driver *driver);
/* Returns the driver's message for a result: "out of memory". */
const char *cuda_driver_text(const struct cuda_driver *driver, unsigned result);
