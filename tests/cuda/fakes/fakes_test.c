/* The backend on a driver that shows faults, and its memory, copies and events on one that shows none.
 * LD_LIBRARY_PATH leads to the fake driver of driver.c. */
#include "kernels/ops.h"

#include "support/device.h"
#include "support/test.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static void show(const char *fault) {
    setenv("FAKE_DRIVER", fault, 1);
}

static void a_fault_of_the_driver_is_one_line(void **state) {
    static const struct {
        const char *fault, *name, *text;
    } cases[] = {
        {"stub", "cuda", "--device cuda: no NVIDIA driver: libcuda.so.1 is the CUDA toolkit's stub"},
        {"no GPU", "cuda", "--device cuda: this machine has no NVIDIA GPU"},
        {"start", "cuda", "--device cuda: the NVIDIA driver does not start: a fault of the test (999)"},
        {"old", "cuda", "the NVIDIA driver is too old: it supports CUDA 11.8, and this program is built with CUDA 1"},
        {"", "cuda:3", "cuda:3: this machine has 2 GPUs (cuda:0 to cuda:1)"},
        {"capability", "cuda:1", "cuda:1: Fake 1 has compute capability 7.5, and the program needs 8.0 or newer"},
        {"context", "cuda", "cuda:0: opening the GPU failed: unknown error (2)"},
        {"module", "cuda", "cuda:0: loading the kernels failed: a fault of the test (999)"},
        {"function", "cuda", "cuda:0: norm_forward_bf16 failed: unknown error (500)"},
        {"library version", "cuda", "--device cuda: libcublasLt.so.13 has version 11.11, and the program needs 13"},
        {"library", "cuda", "cuda:0: opening cuBLASLt failed: a fault of the library (13)"},
        {"preference", "cuda:1", "cuda:1: opening cuBLASLt failed: a fault of the library (13)"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct device *device;
        show(cases[i].fault);
        int status = device_open(cases[i].name, DEVICE_FIRST, 1, &device);
        assert_true(status < 0 && status != STATUS_USAGE);
        assert_non_null(strstr(status_text(), cases[i].text));
        assert_null(strchr(status_text(), '\n'));
        assert_null(device);
    }
}

struct scene {
    struct device *device;
    struct stream *stream;
    void *memory;
};

static void open_scene(struct scene *s, size_t bytes) {
    show("");
    test_ok(device_open("cuda:1", DEVICE_FIRST, 3, &s->device));
    test_ok(stream_open(s->device, &s->stream));
    test_ok(device_alloc(s->device, bytes, &s->memory));
}

static void close_scene(struct scene *s) {
    show("");
    stream_close(s->stream);
    device_free(s->device, s->memory);
    device_close(s->device);
}

static void a_card_is_what_its_name_says(void **state) {
    (void)state;
    struct scene s;
    open_scene(&s, 1);
    assert_int_equal(device_number(s.device), 1);
    assert_int_equal(device_threads(s.device), 3);
    assert_int_equal(device_memory(s.device), 8 << 20);
    assert_string_equal(device_facts(s.device).kind, "cuda:1");
    assert_string_equal(device_description(s.device), "cuda, Fake 1, sm_90, 132 multiprocessors");
    assert_false(device_host_reads(s.device));
    close_scene(&s);
}

/* Rows closer than the driver's largest pitch (64 bytes here) go in one call, and others one by one. */
static void copies_move_rows_in_every_direction(void **state) {
    enum { ROWS = 3, BYTES = 5, MOST = 100 };
    static const size_t strides[] = {BYTES, 7, 64, 65, MOST};
    (void)state;
    struct scene s;
    char from[ROWS * MOST], to[ROWS * MOST];
    open_scene(&s, 2 * sizeof from);
    char *memory = s.memory, *second = memory + sizeof from;
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (char)i;
    for (size_t a = 0; a < 5; a++)
        for (size_t b = 0; b < 5; b++) {
            struct copy_call copy = {.kind = COPY_TO_DEVICE, .to = memory, .from = from, .rows = ROWS, .bytes = BYTES};
            copy.from_stride = strides[a], copy.to_stride = strides[b];
            test_ok(stream_copy_rows(s.stream, &copy));
            copy.kind = COPY_ON_DEVICE, copy.from = memory, copy.to = second;
            copy.from_stride = strides[b], copy.to_stride = strides[a];
            test_ok(stream_copy_rows(s.stream, &copy));
            memset(to, -1, sizeof to);
            copy.kind = COPY_TO_HOST, copy.from = second, copy.to = to;
            copy.from_stride = strides[a], copy.to_stride = strides[b];
            test_ok(stream_copy_rows(s.stream, &copy));
            test_ok(stream_wait(s.stream));
            for (size_t i = 0; i < ROWS; i++) {
                assert_memory_equal(to + i * strides[b], from + i * strides[a], BYTES);
                assert_true(strides[b] == BYTES || to[i * strides[b] + BYTES] == -1);
            }
        }
    close_scene(&s);
}

static void zeroed_memory_is_zero(void **state) {
    (void)state;
    struct scene s;
    char host[64];
    void *memory, *pinned;
    open_scene(&s, sizeof host);
    test_ok(stream_zero(s.stream, s.memory, sizeof host));
    test_ok(test_read(s.stream, host, s.memory, sizeof host));
    for (size_t i = 0; i < sizeof host; i++)
        assert_int_equal(host[i], 0);
    test_ok(device_alloc_zeroed(s.device, sizeof host, &memory));
    test_ok(device_host_alloc(s.device, sizeof host, &pinned));
    test_ok(test_read(s.stream, host, memory, sizeof host));
    assert_memory_equal(host, pinned, sizeof host);
    device_host_free(s.device, pinned);
    device_free(s.device, memory);
    test_ok(device_alloc(s.device, 0, &memory));
    device_free(s.device, memory);
    close_scene(&s);
}

static void memory_that_is_not_there_breaks_nothing(void **state) {
    (void)state;
    struct scene s;
    void *memory;
    open_scene(&s, 3 << 20);
    test_fails(device_alloc(s.device, 6 << 20, &memory), STATUS_MEMORY,
               "cuda:1: cannot allocate 6.3 MB: 5.2 MB of 8.4 MB are free");
    assert_null(memory);
    test_fails(device_host_alloc(s.device, 9 << 20, &memory), STATUS_MEMORY,
               "cuda:1: cannot allocate 9.4 MB of pinned memory of the host");
    test_ok(device_alloc(s.device, 1 << 20, &memory));
    device_free(s.device, memory);
    close_scene(&s);
}

static void a_failure_stays(void **state) {
    static const char text[] = "cuda:1: work on the device failed: a fault of the test (999)";
    (void)state;
    struct scene s;
    struct event *event;
    void *memory;
    open_scene(&s, 8);
    show("work");
    test_fails(stream_wait(s.stream), STATUS_IO, text);
    show("");
    test_fails(stream_wait(s.stream), STATUS_IO, text);
    test_fails(stream_zero(s.stream, s.memory, 8), STATUS_IO, text);
    test_fails(device_alloc(s.device, 8, &memory), STATUS_IO, text);
    test_fails(event_open(s.device, &event), STATUS_IO, text);
    test_fails(device_status(s.device), STATUS_IO, text);
    close_scene(&s);
}

static void events_have_times(void **state) {
    (void)state;
    struct scene s;
    struct event *event[2];
    double seconds, rate;
    open_scene(&s, 8);
    for (int i = 0; i < 2; i++)
        test_ok(event_open(s.device, &event[i]));
    for (int i = 0; i < 2; i++)
        test_ok(event_record(event[i], s.stream));
    test_ok(stream_wait_event(s.stream, event[1]));
    test_ok(event_wait(event[1]));
    test_ok(event_seconds(event[0], event[1], &seconds));
    assert_float_equal(seconds, 1e-3, 1e-9);
    test_fails(device_measure_read(s.device, 0, &rate), STATUS_MEMORY, "cannot allocate"); /* 256 MB of 8 */
    test_fails(device_measure_gemm(s.device, DTYPE_F32, false, 0, &rate), STATUS_MEMORY, "cannot allocate");
    for (int i = 0; i < 2; i++)
        event_close(event[i]);
    close_scene(&s);
}

static void *use_from_thread(void *context) {
    struct scene *s = context;
    void *memory;
    test_ok(stream_zero(s->stream, s->memory, 8));
    test_ok(stream_wait(s->stream));
    test_ok(device_alloc(s->device, 8, &memory));
    device_free(s->device, memory);
    return NULL;
}

/* The driver refuses work of a thread that has made no context current. */
static void every_thread_may_use_a_card(void **state) {
    (void)state;
    struct scene s;
    pthread_t thread;
    open_scene(&s, 8);
    assert_int_equal(pthread_create(&thread, NULL, use_from_thread, &s), 0);
    pthread_join(thread, NULL);
    test_ok(device_status(s.device));
    close_scene(&s);
}

static void a_launch_that_fails_names_its_operation(void **state) {
    (void)state;
    struct scene s;
    open_scene(&s, 64);
    const struct exec exec = {.stream = s.stream};
    struct gelu call = {.count = 16, .type = DTYPE_F32, .x = s.memory, .y = s.memory};
    test_ok(ops_for(s.device)->gelu_forward(&exec, &call));
    call.type = DTYPE_F16;
    test_fails(ops_for(s.device)->gelu_forward(&exec, &call), STATUS_UNSUPPORTED,
               "gelu_forward: no fp16 activations on cuda (fp32, bf16)");
    call.type = DTYPE_F32;
    show("launch");
    test_fails(ops_for(s.device)->gelu_forward(&exec, &call), STATUS_IO,
               "cuda:1: gelu_forward failed: a fault of the test (999)");
    show("work"); /* what fails later changes no text */
    stream_close(s.stream);
    device_free(s.device, s.memory);
    device_close(s.device);
    assert_string_equal(status_text(), "cuda:1: gelu_forward failed: a fault of the test (999)");
}

/* The product needs 32 MiB and an alignment; nothing here writes there. */
static void a_product_that_fails_is_one_line(void **state) {
    static const char text[] = "cuda:1: gemm failed: a fault of the library (13)";
    (void)state;
    struct scene s;
    open_scene(&s, 3 * 64);
    struct matrix_view matrix = matrix_plain(DTYPE_F32, s.memory, 4, 4);
    struct gemm call = {.a = matrix, .b = matrix, .c = matrix};
    struct exec exec = {.stream = s.stream, .workspace = s.memory};
    exec.workspace_bytes = ops_for(s.device)->gemm_workspace(s.device, &call);
    assert_int_equal(exec.workspace_bytes, (32 << 20) + 256);
    test_ok(ops_for(s.device)->gemm(&exec, &call));
    exec.workspace_bytes--;
    test_fails(ops_for(s.device)->gemm(&exec, &call), STATUS_INVALID, "gemm: 33554687 bytes of workspace");
    exec.workspace_bytes++;
    call.b_transposed = true;
    show("no algorithm");
    test_fails(ops_for(s.device)->gemm(&exec, &call), STATUS_UNSUPPORTED,
               "gemm: cuBLASLt has no fp32 product of 4 x 4 x 4 on this GPU");
    show("");
    test_fails(ops_for(s.device)->gemm(&exec, &call), STATUS_UNSUPPORTED, "cuBLASLt has no"); /* it asks once */
    call.b_transposed = false;
    show("multiply");
    test_fails(ops_for(s.device)->gemm(&exec, &call), STATUS_IO, text);
    show("");
    test_fails(ops_for(s.device)->gemm(&exec, &call), STATUS_IO, text);
    close_scene(&s);
}

static void no_operation_is_missing(void **state) {
    (void)state;
    struct scene s;
    open_scene(&s, 8);
    const struct exec exec = {.stream = s.stream};
    assert_null(ops_missing(ops_for(s.device), 0));
    const struct pack_call plain = {.plain = matrix_plain(DTYPE_BF16, NULL, 8, 8)};
    test_fails(ops_for(s.device)->pack(&exec, &plain), STATUS_UNSUPPORTED, "no packed form of plain weights");
    assert_int_equal(ops_for(s.device)->packed_bytes(s.device, &plain.plain), 0);
    close_scene(&s);
}

static void a_sketch_needs_no_driver(void **state) {
    static const char *const names[] = {"cuda", "cuda:7", "cuda:sm_90"};
    (void)state;
    show("stub");
    for (int i = 0; i < 3; i++) {
        struct device *sketch;
        struct stream *stream;
        test_ok(device_sketch(&(const struct device_facts){.kind = names[i], .threads = 2}, &sketch));
        assert_string_equal(device_description(sketch), i < 2 ? "cuda, a sketch of sm_80" : "cuda, a sketch of sm_90");
        assert_string_equal(device_facts(sketch).kind, names[i]);
        assert_int_equal(device_threads(sketch), 2);
        test_fails(stream_open(sketch, &stream), STATUS_UNSUPPORTED, "sketched");
        device_close(sketch);
    }
    struct device *none;
    test_fails(device_sketch(&(const struct device_facts){.kind = "cuda:sm_75"}, &none), STATUS_UNSUPPORTED,
               "cuda:sm_75: the program needs sm_80 or newer");
    assert_null(none);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sketch_needs_no_driver),
        cmocka_unit_test(a_fault_of_the_driver_is_one_line),
        cmocka_unit_test(a_card_is_what_its_name_says),
        cmocka_unit_test(copies_move_rows_in_every_direction),
        cmocka_unit_test(zeroed_memory_is_zero),
        cmocka_unit_test(memory_that_is_not_there_breaks_nothing),
        cmocka_unit_test(a_failure_stays),
        cmocka_unit_test(events_have_times),
        cmocka_unit_test(every_thread_may_use_a_card),
        cmocka_unit_test(a_launch_that_fails_names_its_operation),
        cmocka_unit_test(a_product_that_fails_is_one_line),
        cmocka_unit_test(no_operation_is_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
