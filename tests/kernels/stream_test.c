/* Promises of device.h about two streams, recordings and failures, on every backend. `late` uses every freedom that the
 * promises allow. */
#include "kernels/ops.h"
#include "late/late.h"

#include "support/device.h"
#include "support/test.h"

enum { ROUNDS = 64, COUNT = 16, BYTES = COUNT * sizeof(float) };

struct scene {
    struct device *device;
    struct exec exec[2];
    struct event *event;
    float *x, *y; /* [COUNT] on the device */
    float *host;  /* [COUNT] */
};

static void open_scene(struct scene *s, const char *name) {
    void *memory[3];
    *s = (struct scene){0};
    test_ok(device_open(name, DEVICE_FIRST, 1, &s->device));
    test_ok(event_open(s->device, &s->event));
    for (int i = 0; i < 2; i++) {
        test_ok(stream_open(s->device, &s->exec[i].stream));
        test_ok(device_alloc(s->device, BYTES, &memory[i]));
    }
    test_ok(device_host_alloc(s->device, BYTES, &memory[2]));
    s->x = memory[0];
    s->y = memory[1];
    s->host = memory[2];
}

static void close_scene(struct scene *s) {
    event_close(s->event);
    for (int i = 0; i < 2; i++)
        stream_close(s->exec[i].stream);
    device_free(s->device, s->x);
    device_free(s->device, s->y);
    device_host_free(s->device, s->host);
    device_close(s->device);
}

static void fill(float *values, float value) {
    for (int i = 0; i < COUNT; i++)
        values[i] = value;
}

static void zero(struct scene *s, float *memory) {
    test_ok(stream_zero(s->exec[0].stream, memory, BYTES));
    test_ok(stream_wait(s->exec[0].stream));
}

/* The first stream puts `value` into x. The second copies x to y and to the host; if `is_ordered`, it waits for an
 * event of the first. Returns the number that arrived. */
static float pass_on(struct scene *s, float value, bool is_ordered) {
    float source[COUNT], arrived[COUNT];
    struct stream *first = s->exec[0].stream, *second = s->exec[1].stream;
    fill(source, value);
    zero(s, s->x);
    test_ok(stream_copy_to_device(first, s->x, source, BYTES));
    test_ok(event_record(s->event, first));
    if (is_ordered)
        test_ok(stream_wait_event(second, s->event));
    test_ok(stream_copy(second, s->y, s->x, BYTES));
    test_ok(stream_copy_to_host(second, arrived, s->y, BYTES));
    test_ok(stream_wait(second));
    test_ok(stream_wait(first));
    return arrived[COUNT - 1];
}

static void a_stream_waits_for_the_event_of_another(void **state) {
    (void)state;
    for (int i = 0; device_name_at(i); i++) {
        struct scene s;
        open_scene(&s, device_name_at(i));
        for (int round = 1; round <= ROUNDS; round++)
            assert_float_equal(pass_on(&s, (float)round, true), round, 0);
        close_scene(&s);
    }
}

static void late_runs_streams_without_events_in_either_order(void **state) {
    (void)state;
    struct scene s;
    int early = 0;
    open_scene(&s, "late");
    for (int round = 1; round <= ROUNDS; round++)
        early += pass_on(&s, (float)round, false) == 0;
    assert_in_range(early, ROUNDS / 8, ROUNDS - ROUNDS / 8);
    close_scene(&s);
}

/* The host never waits for the first stream, which is closed early. */
static void a_stream_that_closes_is_still_waited_for(void **state) {
    (void)state;
    for (int i = 0; device_name_at(i); i++) {
        struct scene s;
        float source[COUNT], arrived[COUNT];
        open_scene(&s, device_name_at(i));
        fill(source, 7);
        zero(&s, s.x);
        test_ok(stream_copy_to_device(s.exec[0].stream, s.x, source, BYTES));
        test_ok(event_record(s.event, s.exec[0].stream));
        test_ok(stream_wait_event(s.exec[1].stream, s.event));
        stream_close(s.exec[0].stream);
        test_ok(stream_copy_to_host(s.exec[1].stream, arrived, s.x, BYTES));
        test_ok(stream_wait(s.exec[1].stream));
        assert_float_equal(arrived[0], 7, 0);
        test_ok(stream_open(s.device, &s.exec[0].stream));
        close_scene(&s);
    }
}

/* A mark that is set again on the other stream is the later one; work that waited for the earlier mark
 * still waits for that one. */
static void a_wait_is_for_the_mark_that_it_saw(void **state) {
    (void)state;
    struct scene s;
    open_scene(&s, "late");
    for (int round = 1; round <= ROUNDS; round++) {
        float source[COUNT], arrived[COUNT];
        fill(source, (float)round);
        test_ok(stream_copy_to_device(s.exec[0].stream, s.x, source, BYTES));
        test_ok(event_record(s.event, s.exec[0].stream));
        test_ok(stream_wait_event(s.exec[1].stream, s.event));
        test_ok(stream_copy_to_host(s.exec[1].stream, arrived, s.x, BYTES));
        test_ok(event_record(s.event, s.exec[1].stream));
        test_ok(event_wait(s.event));
        assert_float_equal(arrived[0], round, 0);
        test_ok(stream_wait(s.exec[0].stream));
    }
    close_scene(&s);
}

/* The host cannot read a copy's target before it has waited: it would see the last step's numbers. */
static void late_poisons_what_a_copy_will_fill(void **state) {
    (void)state;
    struct scene s;
    open_scene(&s, "late");
    fill(s.host, 3);
    test_ok(stream_zero(s.exec[0].stream, s.x, BYTES));
    test_ok(stream_copy_to_host(s.exec[0].stream, s.host, s.x, BYTES));
    assert_true(s.host[0] != s.host[0]);
    test_ok(stream_wait(s.exec[0].stream));
    assert_float_equal(s.host[0], 0, 0);
    close_scene(&s);
}

static void check_failed(int status) {
    test_fails(status, STATUS_UNSUPPORTED, "cast");
}

/* Operations of late fail when they run. An unsupported one is the first failure, and later ones change nothing. */
static void a_failure_stays_with_its_device(void **state) {
    (void)state;
    struct scene s;
    void *memory;
    struct event *event;
    struct stream *stream;
    open_scene(&s, "late");
    const struct ops *ops = ops_for(s.device);
    test_ok(device_status(s.device));
    test_ok(ops->cast(&s.exec[0], &(const struct cast_call){COUNT, DTYPE_I64, DTYPE_F32, s.x, s.y}));
    test_ok(event_record(s.event, s.exec[0].stream));
    test_ok(stream_wait_event(s.exec[1].stream, s.event));
    test_ok(ops->add(&s.exec[1], &(const struct add_call){COUNT, DTYPE_I64, s.x, s.y}));
    check_failed(stream_wait(s.exec[0].stream));
    status_fail(STATUS_IO, "another text");
    check_failed(stream_wait(s.exec[1].stream));
    check_failed(stream_wait(s.exec[0].stream));
    check_failed(ops->add(&s.exec[1], &(const struct add_call){COUNT, DTYPE_F32, s.x, s.y}));
    check_failed(stream_copy_to_host(s.exec[1].stream, s.host, s.x, BYTES));
    check_failed(stream_zero(s.exec[1].stream, s.x, BYTES));
    check_failed(event_record(s.event, s.exec[1].stream));
    check_failed(event_wait(s.event));
    check_failed(stream_wait_event(s.exec[1].stream, s.event));
    check_failed(device_alloc(s.device, BYTES, &memory));
    check_failed(event_open(s.device, &event));
    check_failed(stream_open(s.device, &stream));
    check_failed(stream_record_begin(s.exec[0].stream));
    check_failed(device_status(s.device));
    close_scene(&s);
}

static int sum_columns(const struct scene *s, int stream) {
    return ops_for(s->device)->sum_of_squares(&s->exec[stream],
                                              &(const struct sum_of_squares){COUNT, s->x, false, (double *)s->y});
}

/* Their work may run at the same time. */
static void streams_share_no_workspace(void **state) {
    (void)state;
    struct scene s;
    void *memory[2];
    open_scene(&s, "late");
    size_t bytes =
        ops_for(s.device)->sum_of_squares_workspace(s.device, &(const struct sum_of_squares){.count = COUNT});
    assert_true(bytes > 0);
    zero(&s, s.x);
    for (int i = 0; i < 2; i++) {
        test_ok(device_alloc(s.device, bytes, &memory[i]));
        s.exec[i].workspace = memory[0];
        s.exec[i].workspace_bytes = bytes;
    }
    test_ok(sum_columns(&s, 0));
    test_fails(sum_columns(&s, 1), STATUS_INVALID, "another stream uses its workspace");
    s.exec[1].workspace = memory[1];
    test_ok(sum_columns(&s, 1));
    for (int i = 0; i < 2; i++)
        test_ok(stream_wait(s.exec[i].stream));
    for (int i = 0; i < 2; i++)
        device_free(s.device, memory[i]);
    close_scene(&s);
}

/* host -> x, y = x + x, y -> host. */
static int double_numbers(struct scene *s) {
    struct stream *stream = s->exec[0].stream;
    int status = stream_copy_to_device(stream, s->x, s->host, BYTES);
    if (!status)
        status = stream_copy(stream, s->y, s->x, BYTES);
    if (!status)
        status = ops_for(s->device)->add(&s->exec[0], &(const struct add_call){COUNT, DTYPE_F32, s->x, s->y});
    return status ? status : stream_copy_to_host(stream, s->host + COUNT, s->y, BYTES);
}

/* A backend that records: the test's, if it does. */
static const char *recording_device(void) {
    return test_device() && !strncmp(test_device(), "cuda", 4) ? test_device() : "late";
}

static void a_recording_runs_at_each_replay_with_what_its_pointers_lead_to(void **state) {
    (void)state;
    struct scene s;
    struct recording *recording;
    void *host;
    bool is_late = !strcmp(recording_device(), "late");
    open_scene(&s, recording_device());
    test_ok(device_host_alloc(s.device, 2 * BYTES, &host));
    device_host_free(s.device, s.host);
    s.host = host;
    fill(s.host, 1);
    fill(s.host + COUNT, 5);
    test_ok(stream_record_begin(s.exec[0].stream));
    test_ok(double_numbers(&s));
    test_ok(stream_record_end(s.exec[0].stream, &recording));
    test_ok(stream_wait(s.exec[0].stream));
    assert_true(is_late ? s.host[COUNT] != s.host[COUNT] : s.host[COUNT] == 5); /* nothing has run */
    for (int round = 1; round <= 3; round++) {
        struct exec *exec = &s.exec[round % 2];
        fill(s.host, (float)round);
        test_ok(stream_replay(exec->stream, recording));
        assert_true(!is_late || s.host[COUNT] != s.host[COUNT]); /* it would be the last replay's */
        test_ok(stream_wait(exec->stream));
        assert_float_equal(s.host[COUNT], 2 * round, 0);
    }
    recording_close(recording);
    close_scene(&s);
}

/* The first stream puts x's bytes into the host's memory after the second has zeroed x, between events of the first. */
static void check_events_of_a_recording(struct scene *s) {
    struct recording *recording;
    struct event *back;
    struct stream *first = s->exec[0].stream, *second = s->exec[1].stream;
    test_ok(event_open(s->device, &back));
    fill(s->host, 3);
    test_ok(stream_copy_to_device(first, s->x, s->host, BYTES));
    test_ok(stream_wait(first));
    test_ok(stream_record_begin(first));
    test_ok(event_record(s->event, first));
    test_ok(stream_wait_event(second, s->event));
    test_ok(stream_zero(second, s->x, BYTES));
    test_ok(event_record(back, second));
    test_ok(stream_wait_event(first, back));
    test_ok(stream_copy_to_host(first, s->host, s->x, BYTES));
    test_ok(stream_record_end(first, &recording));
    test_ok(stream_wait(second));
    assert_float_equal(s->host[0], 3, 0); /* nothing has run */
    test_ok(stream_replay(first, recording));
    test_ok(stream_wait(first));
    assert_float_equal(s->host[0], 0, 0);
    recording_close(recording);
    event_close(back);
}

static void nobody_waits_for_a_recording_but_streams_for_its_events(void **state) {
    (void)state;
    struct scene s;
    struct recording *recording;
    open_scene(&s, recording_device());
    struct stream *stream = s.exec[0].stream;
    test_fails(stream_record_end(stream, &recording), STATUS_INVALID, "is not being recorded");
    test_ok(event_record(s.event, s.exec[1].stream));
    test_ok(stream_record_begin(stream));
    test_fails(stream_record_begin(stream), STATUS_INVALID, "being recorded");
    test_fails(stream_wait(stream), STATUS_INVALID, "being recorded");
    if (!strcmp(recording_device(), "late")) {
        test_fails(stream_wait_event(stream, s.event), STATUS_INVALID, "event");
        test_fails(event_record(s.event, stream), STATUS_INVALID, "event");
    }
    test_ok(stream_record_end(stream, &recording));
    recording_close(recording);
    if (strcmp(recording_device(), "late"))
        check_events_of_a_recording(&s);
    test_ok(stream_record_begin(stream)); /* and is closed so */
    test_ok(stream_zero(stream, s.x, BYTES));
    close_scene(&s);
    open_scene(&s, "cpu");
    test_fails(stream_record_begin(s.exec[0].stream), STATUS_UNSUPPORTED, "device 'cpu' cannot record work");
    test_fails(stream_record_end(s.exec[0].stream, &recording), STATUS_UNSUPPORTED, "cannot record work");
    close_scene(&s);
}

static void late_counts_what_the_host_asks_for(void **state) {
    (void)state;
    struct scene s;
    open_scene(&s, "late");
    fill(s.host, 1);
    test_ok(stream_copy_to_device(s.exec[0].stream, s.x, s.host, BYTES));
    test_ok(event_record(s.event, s.exec[0].stream));
    test_ok(stream_copy_to_host(s.exec[0].stream, s.host, s.x, BYTES));
    test_ok(stream_wait(s.exec[0].stream));
    test_ok(stream_wait(s.exec[0].stream)); /* finds nothing to wait for, */
    test_ok(event_wait(s.event));           /* nor does this */
    struct late_counts counts = late_counts(s.device);
    assert_int_equal(counts.uploads, 1);
    assert_int_equal(counts.downloads, 1);
    assert_int_equal(counts.waits, 1);
    close_scene(&s);
}

/* ---- sketches ---- */

static void a_sketch_has_the_arithmetic_of_its_device_and_nothing_else(void **state) {
    (void)state;
    for (int i = 0; device_name_at(i); i++) {
        struct device *device, *sketch;
        struct stream *stream;
        void *memory;
        double flops;
        test_ok(device_open(device_name_at(i), DEVICE_FIRST, 2, &device));
        struct device_facts facts = device_facts(device);
        assert_string_equal(facts.kind, device_name_at(i));
        test_ok(device_sketch(&facts, &sketch));
        assert_string_equal(device_description(sketch), device_description(device));
        assert_int_equal(device_threads(sketch), device_threads(device));
        struct gemm gemm = {.a = matrix_plain(DTYPE_F32, NULL, 64, 48),
                            .b = matrix_plain(DTYPE_F32, NULL, 192, 48),
                            .b_transposed = true,
                            .c = matrix_plain(DTYPE_F32, NULL, 64, 192)};
        struct norm norm = {.rows = 300, .cols = 64, .dgain = (float *)&norm};
        const struct ops *ops = ops_for(device), *sketched = ops_for(sketch);
        assert_true(ops->norm_backward_workspace(device, &norm) > 0);
        assert_int_equal(sketched->norm_backward_workspace(sketch, &norm), ops->norm_backward_workspace(device, &norm));
        assert_int_equal(sketched->gemm_workspace(sketch, &gemm), ops->gemm_workspace(device, &gemm));
        assert_int_equal(sketched->gemm_supports(sketch, &gemm), ops->gemm_supports(device, &gemm));
        test_fails(stream_open(sketch, &stream), STATUS_UNSUPPORTED, "sketched");
        test_fails(device_alloc(sketch, BYTES, &memory), STATUS_UNSUPPORTED, "sketched");
        test_fails(device_host_alloc(sketch, BYTES, &memory), STATUS_UNSUPPORTED, "sketched");
        test_fails(device_measure_gemm(sketch, DTYPE_F32, false, 0.1, &flops), STATUS_UNSUPPORTED, "sketched");
        device_close(sketch);
        device_close(device);
    }
    struct device *none;
    test_fails(device_sketch(&(const struct device_facts){.kind = "abacus"}, &none), STATUS_UNSUPPORTED, "abacus");
    assert_null(none);
}

static void a_device_knows_its_number(void **state) {
    (void)state;
    for (int i = 0; device_name_at(i); i++)
        for (int number = 0; number < 3; number++) {
            struct device *device;
            test_ok(device_open(device_name_at(i), number, 1, &device));
            assert_int_equal(device_number(device), number);
            device_close(device);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_waits_for_the_event_of_another),
        cmocka_unit_test(late_runs_streams_without_events_in_either_order),
        cmocka_unit_test(a_stream_that_closes_is_still_waited_for),
        cmocka_unit_test(a_wait_is_for_the_mark_that_it_saw),
        cmocka_unit_test(late_poisons_what_a_copy_will_fill),
        cmocka_unit_test(a_failure_stays_with_its_device),
        cmocka_unit_test(streams_share_no_workspace),
        cmocka_unit_test(a_recording_runs_at_each_replay_with_what_its_pointers_lead_to),
        cmocka_unit_test(nobody_waits_for_a_recording_but_streams_for_its_events),
        cmocka_unit_test(late_counts_what_the_host_asks_for),
        cmocka_unit_test(a_sketch_has_the_arithmetic_of_its_device_and_nothing_else),
        cmocka_unit_test(a_device_knows_its_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
