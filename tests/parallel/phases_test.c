/* The time of operations is counted by kind, without waiting for them. */
#include "parallel/rank.h"

#include "late/late.h"
#include "support/test.h"

enum { ELEMENTS = 1 << 23 };
/* No memory is written at ten terabytes a second. */
static const double least = ELEMENTS * sizeof(float) / 1e13;

struct scene {
    struct device *device;
    struct rank rank;
    float *x, *host;
};

static void open_scene(struct scene *s, const char *device) {
    void *memory[2];
    test_ok(device_open(device, DEVICE_FIRST, 1, &s->device));
    test_ok(rank_open_single(&s->rank, s->device, 1));
    test_ok(rank_allocate_workspace(&s->rank));
    test_ok(device_alloc_zeroed(s->device, ELEMENTS * sizeof(float), &memory[0]));
    test_ok(device_host_alloc(s->device, sizeof(float), &memory[1]));
    s->x = memory[0];
    s->host = memory[1];
}

static void close_scene(struct scene *s) {
    device_free(s->device, s->x);
    device_host_free(s->device, s->host);
    rank_close(&s->rank);
    device_close(s->device);
}

static int add(struct scene *s, enum phase phase, int64_t count) {
    return rank_run(&s->rank, phase, add, &(const struct add_call){count, DTYPE_F32, s->x, s->x});
}

static void on_every_device(void (*check)(struct scene *scene)) {
    for (int i = 0; device_name_at(i); i++) {
        struct scene s = {0};
        open_scene(&s, device_name_at(i));
        check(&s);
        close_scene(&s);
    }
}

static void check_kinds(struct scene *s) {
    double seconds[PHASE_COUNT], start = clock_seconds();
    test_ok(add(s, PHASE_NORM, ELEMENTS));
    test_ok(rank_time_phases(&s->rank, true));
    test_ok(add(s, PHASE_LOSS, ELEMENTS));
    test_ok(add(s, PHASE_GEMM, ELEMENTS));
    test_ok(rank_time_phases(&s->rank, false));
    test_ok(add(s, PHASE_NORM, ELEMENTS));
    test_ok(rank_take_phases(&s->rank, seconds));
    assert_true(seconds[PHASE_LOSS] > least && seconds[PHASE_GEMM] > least);
    assert_true(seconds[PHASE_LOSS] + seconds[PHASE_GEMM] <= clock_seconds() - start);
    for (int i = 0; i < PHASE_COUNT; i++)
        assert_true(i == PHASE_LOSS || i == PHASE_GEMM || seconds[i] == 0);
    test_ok(rank_take_phases(&s->rank, seconds));
    for (int i = 0; i < PHASE_COUNT; i++)
        assert_true(seconds[i] == 0);
}

static void operations_are_booked_by_kind(void **state) {
    (void)state;
    on_every_device(check_kinds);
}

/* More than there are events. */
static void check_many(struct scene *s) {
    enum { EACH = 1000, COUNT = 1 << 14 };
    double seconds[PHASE_COUNT], start = clock_seconds(), booked = 0;
    test_ok(rank_time_phases(&s->rank, true));
    for (int phase = 0; phase < PHASE_COUNT; phase++)
        for (int i = 0; i < EACH; i++)
            test_ok(add(s, (enum phase)phase, COUNT));
    test_ok(rank_take_phases(&s->rank, seconds));
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        assert_true(seconds[phase] > EACH * (COUNT * sizeof(float) / 1e13));
        booked += seconds[phase];
    }
    assert_true(booked <= clock_seconds() - start);
}

static void all_of_many_operations_count(void **state) {
    (void)state;
    on_every_device(check_many);
}

/* late copies nothing before the host waits, and counts the waits. */
static void timed_operations_are_not_waited_for(void **state) {
    (void)state;
    struct scene s = {0};
    open_scene(&s, "late");
    test_ok(rank_time_phases(&s.rank, true));
    test_ok(stream_copy_to_host(s.rank.exec.stream, s.host, s.x, sizeof *s.host));
    test_ok(add(&s, PHASE_REST, ELEMENTS));
    assert_int_equal(late_counts(s.device).waits, 0);
    test_ok(stream_wait(s.rank.exec.stream));
    assert_true(*s.host == 0);
    close_scene(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_are_booked_by_kind),
        cmocka_unit_test(all_of_many_operations_count),
        cmocka_unit_test(timed_operations_are_not_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
