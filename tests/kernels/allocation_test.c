/* Whichever allocation of a device fails, the failure is reported and nothing remains. */
#include "kernels/device.h"

#include "support/failing.h"
#include "support/test.h"

enum { SMALL = 1000, LARGE = 5 << 20 /* on huge pages */ };

/* Everything that is opened on a device. */
struct opened {
    struct stream *stream;
    struct event *event;
    void *small, *large, *host;
};

static int open_all(struct device *device, struct opened *o) {
    int status = stream_open(device, &o->stream);
    if (!status)
        status = event_open(device, &o->event);
    if (!status)
        status = device_alloc(device, SMALL, &o->small);
    if (!status)
        status = device_alloc(device, LARGE, &o->large);
    return status ? status : device_host_alloc(device, SMALL, &o->host);
}

static int use_all(const struct opened *o) {
    int status = stream_copy_to_device(o->stream, o->small, o->host, SMALL);
    if (!status)
        status = stream_copy(o->stream, o->large, o->small, SMALL);
    if (!status)
        status = stream_zero(o->stream, o->small, SMALL);
    if (!status)
        status = event_record(o->event, o->stream);
    if (!status)
        status = event_wait(o->event);
    if (!status)
        status = stream_copy_to_host(o->stream, o->host, o->large, SMALL);
    return status ? status : stream_wait(o->stream);
}

static void close_all(struct device *device, struct opened *o) {
    device_host_free(device, o->host);
    device_free(device, o->large);
    device_free(device, o->small);
    if (o->event)
        event_close(o->event);
    if (o->stream)
        stream_close(o->stream);
}

static int open_and_use(void *context) {
    struct device *device = NULL;
    struct opened opened = {0};
    double rate;
    int status = device_open(context, DEVICE_FIRST, 1, &device);
    if (status)
        return status;
    status = open_all(device, &opened);
    if (!status)
        status = use_all(&opened);
    if (!status)
        status = device_measure_gemm(device, DTYPE_F32, false, 0, &rate);
    if (!status)
        status = device_measure_read(device, 0, &rate);
    close_all(device, &opened);
    device_close(device);
    return status;
}

static void devices_open_and_close(void **state) {
    (void)state;
    for (int i = 0; device_name_at(i); i++)
        assert_int_equal(failing_try_all(open_and_use, (void *)device_name_at(i), 100), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_open_and_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
