/* Whatever allocation of a device fails, it says so and leaves nothing behind. */
#include "kernels/device.h"

#include "support/failing.h"
#include "support/test.h"

enum { SMALL = 1000, LARGE = 5 << 20 /* on huge pages */ };

static int use_stream(struct device *device) {
    struct stream *stream = NULL;
    void *small = NULL, *large = NULL;
    char bytes[SMALL] = {1};
    int status = stream_open(device, &stream);
    if (!status)
        status = device_alloc(device, SMALL, &small);
    if (!status)
        status = device_alloc(device, LARGE, &large);
    if (!status)
        status = stream_copy_to_device(stream, small, bytes, SMALL);
    if (!status)
        status = stream_copy(stream, large, small, SMALL);
    if (!status)
        status = stream_wait(stream);
    device_free(device, small);
    device_free(device, large);
    if (stream)
        stream_close(stream);
    return status;
}

static int open_and_use(void *context) {
    struct device *device = NULL;
    double rate;
    (void)context;
    int status = device_open(test_device(), 0, 1, &device);
    if (!status)
        status = use_stream(device);
    if (!status)
        status = device_measure_gemm(device, DTYPE_F32, 0, &rate);
    if (!status)
        status = device_measure_read(device, 0, &rate);
    device_close(device);
    return status;
}

static void a_device_opens_and_closes(void **state) {
    (void)state;
    assert_int_equal(failing_try_all(open_and_use, NULL, 100), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_opens_and_closes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
