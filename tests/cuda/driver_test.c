/* The stand-in's libcuda.so.1, opened as the program opens the driver: late streams, events, faults, failures on
 * command. */
#include "support/test.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cuda.h>

#define QUOTED(name)  #name
#define NAME_OF(name) QUOTED(name)
/* The function of a call, by the name that cuda.h gives it. */
#define CALL(function) ((__typeof__(&function))call(NAME_OF(function)))

enum { COUNT = 1000 };

static void *library;

static void *call(const char *name) {
    void *function = dlsym(library, name);
    if (!function) {
        fail_msg("%s", dlerror());
    }
    return function;
}

static void ok(CUresult result) {
    assert_int_equal(result, CUDA_SUCCESS);
}

static CUfunction saxpy(CUmodule *module) {
    static char image[1 << 20];
    CUfunction function;
    FILE *file = fopen(CUDA_TEST_KERNELS "/saxpy.fatbin", "rb");
    assert_non_null(file);
    assert_true(fread(image, 1, sizeof image, file) > 0);
    fclose(file);
    ok(CALL(cuModuleLoadData)(module, image));
    ok(CALL(cuModuleGetFunction)(&function, *module, "saxpy"));
    assert_int_equal(CALL(cuModuleGetFunction)(&function, *module, "nobody"), CUDA_ERROR_NOT_FOUND);
    return function;
}

static CUresult launch(CUfunction function, int count, CUdeviceptr x, CUdeviceptr y, CUstream stream) {
    float a = 2;
    void *arguments[] = {&count, &a, &x, &y};
    return CALL(cuLaunchKernel)(function, (COUNT + 255) / 256, 1, 1, 256, 1, 1, 0, stream, arguments, NULL);
}

static int open_driver(void **state) {
    (void)state;
    CUcontext context;
    library = dlopen(CUDA_TEST_KERNELS "/lib/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return -1;
    }
    ok(CALL(cuInit)(0));
    ok(CALL(cuDevicePrimaryCtxRetain)(&context, 0));
    ok(CALL(cuCtxSetCurrent)(context));
    return 0;
}

static void a_card_describes_itself(void **state) {
    (void)state;
    int count, value;
    CUdevice device;
    const char *text;
    size_t free_bytes, total;
    ok(CALL(cuDeviceGetCount)(&count));
    assert_int_equal(count, 1);
    assert_int_equal(CALL(cuDeviceGet)(&device, 1), CUDA_ERROR_INVALID_DEVICE);
    ok(CALL(cuDeviceGetAttribute)(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
    assert_int_equal(value, 9);
    ok(CALL(cuDriverGetVersion)(&value));
    assert_int_equal(value, CUDA_VERSION);
    ok(CALL(cuMemGetInfo)(&free_bytes, &total));
    assert_true(free_bytes <= total && total == 8192ull << 20);
    ok(CALL(cuGetErrorString)(CUDA_ERROR_OUT_OF_MEMORY, &text));
    assert_string_equal(text, "out of memory");
}

static void nothing_runs_before_somebody_waits(void **state) {
    (void)state;
    CUmodule module;
    CUstream stream;
    CUdeviceptr x, y;
    float *host, seconds;
    CUevent begin, end;
    CUfunction function = saxpy(&module);
    ok(CALL(cuStreamCreateWithPriority)(&stream, CU_STREAM_NON_BLOCKING, 0));
    ok(CALL(cuEventCreate)(&begin, 0));
    ok(CALL(cuEventCreate)(&end, 0));
    ok(CALL(cuMemAlloc)(&x, COUNT * 4));
    ok(CALL(cuMemAlloc)(&y, COUNT * 4));
    ok(CALL(cuMemHostAlloc)((void **)&host, COUNT * 4, 0));
    for (int i = 0; i < COUNT; i++) {
        host[i] = (float)i;
    }
    ok(CALL(cuEventRecord)(begin, stream));
    ok(CALL(cuMemcpyHtoDAsync)(x, host, COUNT * 4, stream));
    ok(CALL(cuMemcpyDtoDAsync)(y, x, COUNT * 4, stream));
    ok(launch(function, COUNT, x, y, stream));
    ok(CALL(cuMemcpyDtoHAsync)(host, y, COUNT * 4, stream));
    ok(CALL(cuEventRecord)(end, stream));
    host[7] = 100; /* a host that refills too early */
    assert_int_equal(CALL(cuEventQuery)(end), CUDA_ERROR_NOT_READY);
    assert_int_equal(CALL(cuEventElapsedTime)(&seconds, begin, end), CUDA_ERROR_NOT_READY);
    ok(CALL(cuStreamSynchronize)(stream));
    for (int i = 0; i < COUNT; i++) {
        assert_true(host[i] == (i == 7 ? 300 : 3 * (float)i));
    }
    ok(CALL(cuEventElapsedTime)(&seconds, begin, end));
    assert_true(seconds > 0);
    ok(CALL(cuMemFreeHost)(host));
    ok(CALL(cuMemFree)(x));
    ok(CALL(cuMemFree)(y));
    assert_int_equal(CALL(cuMemFree)(y), CUDA_ERROR_INVALID_VALUE);
    ok(CALL(cuEventDestroy)(begin));
    ok(CALL(cuEventDestroy)(end));
    ok(CALL(cuStreamDestroy)(stream));
    ok(CALL(cuModuleUnload)(module));
}

/* Two streams on one value: set to 1, then to 2. With an event the second is always the last. Without one, or if the
 * stand-in drops it on command, not always. */
static void only_events_order_streams(void **state) {
    (void)state;
    enum { WITHOUT, DROPPED, WITH, KINDS };
    int late[KINDS] = {0};
    for (int round = 0; round < 60; round++) {
        CUstream first, second;
        CUdeviceptr value;
        CUevent event;
        unsigned char got;
        int kind = round % KINDS;
        ok(CALL(cuStreamCreateWithPriority)(&first, 0, 0));
        ok(CALL(cuStreamCreateWithPriority)(&second, 0, 0));
        ok(CALL(cuEventCreate)(&event, 0));
        ok(CALL(cuMemAlloc)(&value, 1));
        ok(CALL(cuMemsetD8Async)(value, 1, 1, first));
        ok(CALL(cuEventRecord)(event, first));
        assert_int_equal(kind == DROPPED ? setenv("CAMBIUM_CUDA_FAIL", "event:1", 1) : 0, 0);
        ok(kind == WITHOUT ? CUDA_SUCCESS : CALL(cuStreamWaitEvent)(second, event, 0));
        assert_int_equal(unsetenv("CAMBIUM_CUDA_FAIL"), 0);
        ok(CALL(cuMemsetD8Async)(value, 2, 1, second));
        ok(CALL(cuCtxSynchronize)());
        ok(CALL(cuMemcpyDtoHAsync)(&got, value, 1, NULL));
        ok(CALL(cuStreamSynchronize)(NULL));
        late[kind] += got == 1;
        ok(CALL(cuMemFree)(value));
        ok(CALL(cuEventDestroy)(event));
        ok(CALL(cuStreamDestroy)(first));
        ok(CALL(cuStreamDestroy)(second));
    }
    assert_true(late[WITHOUT] > 0 && late[DROPPED] > 0 && late[WITH] == 0);
}

/* Captures two streams, the second between events of the first; without the last wait if they shall not join. */
static CUresult capture(CUstream streams[2], CUevent events[2], CUdeviceptr value, bool joins, CUgraph *graph) {
    ok(CALL(cuStreamBeginCapture)(streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    ok(CALL(cuMemsetD8Async)(value, 1, 1, streams[0]));
    ok(CALL(cuEventRecord)(events[0], streams[0]));
    ok(CALL(cuStreamWaitEvent)(streams[1], events[0], 0));
    ok(CALL(cuMemsetD8Async)(value, 2, 1, streams[1]));
    ok(CALL(cuEventRecord)(events[1], streams[1]));
    if (joins) {
        ok(CALL(cuStreamWaitEvent)(streams[0], events[1], 0));
    }
    return CALL(cuStreamEndCapture)(streams[0], graph);
}

static void captures_follow_events_to_other_streams(void **state) {
    (void)state;
    CUstream streams[2];
    CUevent events[2], outside;
    CUdeviceptr value;
    CUgraph graph;
    CUgraphExec instance;
    unsigned char got = 0;
    for (int i = 0; i < 2; i++) {
        ok(CALL(cuStreamCreateWithPriority)(&streams[i], CU_STREAM_NON_BLOCKING, 0));
        ok(CALL(cuEventCreate)(&events[i], 0));
    }
    ok(CALL(cuEventCreate)(&outside, 0));
    ok(CALL(cuMemAlloc)(&value, 1));
    ok(CALL(cuMemsetD8Async)(value, 0, 1, streams[0]));
    ok(CALL(cuEventRecord)(outside, streams[0]));
    assert_int_equal(capture(streams, events, value, false, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    ok(capture(streams, events, value, true, &graph));
    assert_int_equal(CALL(cuEventQuery)(events[1]), CUDA_ERROR_CAPTURED_EVENT);
    assert_int_equal(CALL(cuStreamWaitEvent)(streams[1], events[0], 0), CUDA_ERROR_CAPTURED_EVENT);
    ok(CALL(cuGraphInstantiate)(&instance, graph, 0));
    ok(CALL(cuGraphDestroy)(graph));
    for (int launched = 0; launched < 2; launched++) {
        ok(CALL(cuMemcpyDtoHAsync)(&got, value, 1, streams[0]));
        ok(CALL(cuStreamSynchronize)(streams[0]));
        assert_int_equal(got, launched ? 2 : 0); /* nothing of a capture has run before */
        ok(CALL(cuGraphLaunch)(instance, streams[0]));
    }
    ok(CALL(cuStreamBeginCapture)(streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    assert_int_equal(CALL(cuStreamWaitEvent)(streams[0], outside, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    ok(CALL(cuStreamEndCapture)(streams[0], &graph));
    ok(CALL(cuGraphDestroy)(graph));
    ok(CALL(cuGraphExecDestroy)(instance));
    ok(CALL(cuMemFree)(value));
    for (int i = 0; i < 2; i++) {
        ok(CALL(cuEventDestroy)(events[i]));
        ok(CALL(cuStreamDestroy)(streams[i]));
    }
    ok(CALL(cuEventDestroy)(outside));
}

static void rows_are_copied_between_pitches(void **state) {
    (void)state;
    char from[4][8] = {"abcdefg", "hijklmn", "opqrstu", "vwxyz01"}, to[4][3];
    CUdeviceptr memory;
    ok(CALL(cuMemAlloc)(&memory, 64));
    CUDA_MEMCPY2D up = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                        .srcHost = from,
                        .srcPitch = 8,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                        .dstDevice = memory,
                        .dstPitch = 16,
                        .WidthInBytes = 8,
                        .Height = 4};
    CUDA_MEMCPY2D down = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = memory,
                          .srcPitch = 16,
                          .srcXInBytes = 2,
                          .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = to,
                          .dstPitch = 3,
                          .WidthInBytes = 3,
                          .Height = 4};
    ok(CALL(cuMemcpy2DAsync)(&up, NULL));
    ok(CALL(cuMemcpy2DAsync)(&down, NULL));
    ok(CALL(cuStreamSynchronize)(NULL));
    assert_memory_equal(to, "cdejklqrsxyz", 12);
    ok(CALL(cuMemFree)(memory));
}

/* Runs a function in a child, because it ends in a crash or changes the environment. Returns its wait status. */
static int in_child(void (*run)(void)) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr)) {
            _exit(9);
        }
        run();
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void expect(bool is_so) {
    if (!is_so) {
        _exit(1);
    }
}

static void read_device_memory(void) {
    CUdeviceptr memory;
    expect(CALL(cuMemAlloc)(&memory, 64) == CUDA_SUCCESS);
    signal(SIGSEGV, SIG_DFL);
    signal(SIGBUS, SIG_DFL);
    expect(*(volatile char *)(uintptr_t)memory == 0);
}

static void device_memory_is_closed_to_the_host(void **state) {
    (void)state;
    int status = in_child(read_device_memory);
    /* A sanitizer makes an exit of the signal. */
    assert_true(WIFSIGNALED(status) ? WTERMSIG(status) == SIGSEGV : WEXITSTATUS(status) > 1);
}

static void launch_too_far(void) {
    CUmodule module;
    CUdeviceptr x, y;
    size_t free_bytes, total;
    CUfunction function = saxpy(&module);
    expect(CALL(cuMemAlloc)(&x, COUNT * 4) == CUDA_SUCCESS && CALL(cuMemAlloc)(&y, COUNT * 4 - 4) == CUDA_SUCCESS);
    expect(CALL(cuMemsetD8Async)(x, 0, COUNT * 4, NULL) == CUDA_SUCCESS);
    expect(CALL(cuMemsetD8Async)(y, 0, COUNT * 4 - 4, NULL) == CUDA_SUCCESS);
    expect(launch(function, COUNT, x, y, NULL) == CUDA_SUCCESS);
    expect(CALL(cuStreamSynchronize)(NULL) == CUDA_ERROR_ILLEGAL_ADDRESS);
    expect(CALL(cuMemAlloc)(&x, 16) == CUDA_ERROR_ILLEGAL_ADDRESS);
    expect(CALL(cuMemGetInfo)(&free_bytes, &total) == CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void a_fault_stays(void **state) {
    (void)state;
    assert_int_equal(in_child(launch_too_far), 0);
}

static void fail_calls(void) {
    CUdeviceptr first, second;
    char byte = 1;
    expect(setenv("CAMBIUM_CUDA_FAIL", "copy:2,alloc:2", 1) == 0);
    expect(CALL(cuMemAlloc)(&first, 16) == CUDA_SUCCESS);
    expect(CALL(cuMemAlloc)(&second, 16) == CUDA_ERROR_OUT_OF_MEMORY);
    expect(CALL(cuMemAlloc)(&second, 1ull << 50) == CUDA_ERROR_OUT_OF_MEMORY);
    expect(CALL(cuMemcpyHtoDAsync)(first, &byte, 1, NULL) == CUDA_SUCCESS);
    expect(CALL(cuStreamSynchronize)(NULL) == CUDA_SUCCESS);
    expect(CALL(cuMemcpyHtoDAsync)(first, &byte, 1, NULL) == CUDA_SUCCESS);
    expect(CALL(cuStreamSynchronize)(NULL) == CUDA_ERROR_LAUNCH_FAILED);
}

/* First in its process, so that the counts begin here. */
static void calls_fail_on_command(void **state) {
    (void)state;
    assert_int_equal(in_child(fail_calls), 0);
}

static void ask_much_shared_memory(void) {
    CUmodule module;
    CUdeviceptr x = 0;
    int count = 0;
    float a = 0;
    void *arguments[] = {&count, &a, &x, &x};
    CUfunction function = saxpy(&module);
    expect(CALL(cuLaunchKernel)(function, 1, 1, 1, 32, 1, 1, 65536, NULL, arguments, NULL) == CUDA_ERROR_INVALID_VALUE);
    expect(CALL(cuFuncSetAttribute)(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 65536) == CUDA_SUCCESS);
    expect(CALL(cuLaunchKernel)(function, 1, 1, 1, 32, 1, 1, 65536, NULL, arguments, NULL) == CUDA_SUCCESS);
    expect(CALL(cuLaunchKernel)(function, 1, 1, 1, 2048, 1, 1, 0, NULL, arguments, NULL) == CUDA_ERROR_INVALID_VALUE);
    expect(CALL(cuStreamSynchronize)(NULL) == CUDA_SUCCESS);
}

static void much_shared_memory_must_be_asked_for(void **state) {
    (void)state;
    assert_int_equal(in_child(ask_much_shared_memory), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_fail_on_command),
        cmocka_unit_test(a_card_describes_itself),
        cmocka_unit_test(nothing_runs_before_somebody_waits),
        cmocka_unit_test(only_events_order_streams),
        cmocka_unit_test(captures_follow_events_to_other_streams),
        cmocka_unit_test(rows_are_copied_between_pitches),
        cmocka_unit_test(device_memory_is_closed_to_the_host),
        cmocka_unit_test(a_fault_stays),
        cmocka_unit_test(much_shared_memory_must_be_asked_for),
    };
    return cmocka_run_group_tests(tests, open_driver, NULL);
}
