/* Events say when a stream ran past them, on every backend. */
#include "kernels/device.h"

#include "support/test.h"

#include <stdlib.h>

enum { MEBIBYTES = 64 };
static const size_t bytes = (size_t)MEBIBYTES << 20;
/* No memory is written at ten terabytes a second. */
static const double least = (double)((size_t)MEBIBYTES << 20) / 1e13;

struct scene {
    struct device *device;
    struct stream *stream;
    struct event *event[3];
    void *memory;
};

static void on_every_device(void (*check)(struct scene *scene)) {
    for (int i = 0; device_name_at(i); i++) {
        struct scene s = {0};
        test_ok(device_open(device_name_at(i), DEVICE_FIRST, 1, &s.device));
        test_ok(stream_open(s.device, &s.stream));
        test_ok(device_alloc(s.device, bytes, &s.memory));
        for (int e = 0; e < 3; e++)
            test_ok(event_open(s.device, &s.event[e]));
        check(&s);
        for (int e = 0; e < 3; e++)
            event_close(s.event[e]);
        device_free(s.device, s.memory);
        if (s.stream)
            stream_close(s.stream);
        device_close(s.device);
    }
}

static double seconds_between(const struct event *from, const struct event *to) {
    double seconds;
    test_ok(event_seconds(from, to, &seconds));
    return seconds;
}

/* Whether the operation runs when it is called or, like those of late, when the host waits. */
static void check_between(struct scene *s) {
    double start = clock_seconds();
    test_ok(event_record(s->event[0], s->stream));
    test_ok(stream_zero(s->stream, s->memory, bytes));
    test_ok(event_record(s->event[1], s->stream));
    test_ok(stream_zero(s->stream, s->memory, bytes));
    test_ok(event_record(s->event[2], s->stream));
    test_ok(event_wait(s->event[2]));
    double all = clock_seconds() - start, first = seconds_between(s->event[0], s->event[1]),
           second = seconds_between(s->event[1], s->event[2]);
    assert_true(first > least && second > least);
    assert_true(first + second <= all);
}

static void time_between_marks_is_that_of_the_operations_between(void **state) {
    (void)state;
    on_every_device(check_between);
}

/* A mark that is set again is the later one. */
static void check_again(struct scene *s) {
    test_ok(event_record(s->event[1], s->stream));
    test_ok(event_record(s->event[0], s->stream));
    test_ok(stream_zero(s->stream, s->memory, bytes));
    test_ok(event_record(s->event[1], s->stream));
    test_ok(event_wait(s->event[1]));
    assert_true(seconds_between(s->event[0], s->event[1]) > least);
}

static void the_last_mark_counts(void **state) {
    (void)state;
    on_every_device(check_again);
}

/* Marks that nobody waits for, with an event closed before its stream, and after it. */
static void check_unwaited(struct scene *s) {
    test_ok(event_record(s->event[0], s->stream));
    event_close(s->event[0]);
    test_ok(stream_wait(s->stream));
    test_ok(event_open(s->device, &s->event[0]));
    test_ok(event_record(s->event[1], s->stream));
    stream_close(s->stream);
    s->stream = NULL;
}

static void marks_are_left_in_any_order(void **state) {
    (void)state;
    on_every_device(check_unwaited);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(time_between_marks_is_that_of_the_operations_between),
        cmocka_unit_test(the_last_mark_counts),
        cmocka_unit_test(marks_are_left_in_any_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
