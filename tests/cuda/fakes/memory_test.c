/* A GPU without memory. On command the stand-in lets the n-th allocation fail, for every n that a training and a
 * decode have. Each ends with one line, and what it had is freed. */
#include "support/device.h"
#include "train/support.h"

#include "infer/engine.h"
#include "infer/sequences.h"

#include <stdlib.h>
#include <string.h>

enum { LEAST = 8, MOST = 500 /* allocations of each */ };

static int train(void *context) {
    struct train_run run = make_run(context, PRECISION_BF16, 1);
    struct trainer *trainer;
    struct train_record record;
    int status = trainer_open(&run, NULL, &trainer);
    if (!status)
        status = trainer_step(trainer, &record);
    trainer_close(trainer);
    return status;
}

static int decode(void *context) {
    struct engine_options options = {.device = test_device(),
                                     .model = context,
                                     .precision = PRECISION_BF16,
                                     .threads = 1,
                                     .max_rows = 2,
                                     .max_logit_rows = 1,
                                     .max_sequences = 1};
    struct engine *engine;
    struct engine_result result;
    int status = engine_open(&options, &engine);
    if (status)
        return status;
    struct engine_row row = {.token = 7, .sequence = engine_sequence_new(engine), .wants_logits = true, .label = 5};
    status = engine_submit(engine, &row, 1);
    if (!status)
        status = engine_collect(engine, &result);
    engine_close(engine);
    return status;
}

/* Returns the bytes that nobody uses of a GPU. The call also ends a fault. */
static size_t free_bytes(struct device *device) {
    size_t bytes;
    void *memory;
    assert_int_equal(unsetenv("CAMBIUM_CUDA_FAIL"), 0);
    test_ok(device_alloc(device, 1, &memory));
    device_free(device, memory);
    test_ok(device_free_memory(device, &bytes));
    return bytes;
}

static void check_allocations(int (*run)(void *context), void *context) {
    struct device *device;
    char text[32];
    int n = 0, status;
    test_ok(device_open(test_device(), DEVICE_FIRST, 1, &device));
    test_ok(run(context)); /* the kernels' own variables stay */
    size_t before = free_bytes(device);
    do {
        snprintf(text, sizeof text, "alloc:%d", ++n);
        assert_int_equal(setenv("CAMBIUM_CUDA_FAIL", text, 1), 0);
        status = run(context);
        if (status && (status != STATUS_MEMORY || !strstr(status_text(), "cuda:0: cannot allocate ") ||
                       strchr(status_text(), '\n')))
            fail_msg("without allocation %d: %s", n, status_text());
        assert_int_equal(free_bytes(device), before);
    } while (status && n < MOST);
    assert_in_range(n, LEAST, MOST - 1);
    device_close(device);
}

static void a_training_says_which_allocation_failed(void **state) {
    (void)state;
    char *prefix = write_text();
    check_allocations(train, &prefix);
    free(prefix);
}

static void a_decode_says_which_allocation_failed(void **state) {
    (void)state;
    check_allocations(decode, (void *)(uintptr_t)(TEST_DATA "/peft/golden/base"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_training_says_which_allocation_failed),
        cmocka_unit_test(a_decode_says_which_allocation_failed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
