/* Faults planted between the host and the GPU. On command the stand-in lets a wait of the host return at once. Then a
 * result is read before it is there, or a buffer is filled again before its copy has run. Or a stream does not wait for
 * an event: then work runs before what it needs. The program runs unchanged. */
#include "train/support.h"

#include "infer/engine.h"
#include "infer/sequences.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Calls from now on have this fault: the one of this number. */
static void plant(const char *kind, int number) {
    char text[32];
    snprintf(text, sizeof text, "%s:%d", kind, number);
    assert_int_equal(setenv("CAMBIUM_CUDA_FAIL", text, 1), 0);
}

static void unplant(void) {
    assert_int_equal(unsetenv("CAMBIUM_CUDA_FAIL"), 0);
}

/* ---- waits ---- */

enum { TEXTS = 2, TOKENS = 3, FIGURES = 8 };

/* The loss and norm of a second step of six micro batches, in which the wait of this number is missing. */
static void train(int number, double figures[FIGURES]) {
    char *prefix = write_text();
    struct train_run run = make_run((const char **)&prefix, PRECISION_FP32, 1);
    struct trainer *trainer;
    struct train_record record;
    test_ok(trainer_open(&run, NULL, &trainer));
    test_ok(trainer_step(trainer, &record));
    plant("wait", number);
    test_ok(trainer_step(trainer, &record));
    unplant();
    figures[0] = record.lm_loss;
    figures[1] = record.grad_norm;
    trainer_close(trainer);
    free(prefix);
}

/* The log probabilities of two texts, whose steps overlap. */
static void decode(int number, double figures[FIGURES]) {
    struct engine_options options = {.device = test_device(),
                                     .model = TEST_DATA "/peft/golden/base",
                                     .precision = PRECISION_FP32,
                                     .threads = 1,
                                     .max_rows = 8,
                                     .max_logit_rows = 8,
                                     .max_sequences = TEXTS};
    struct engine *engine;
    struct engine_result result;
    test_ok(engine_open(&options, &engine));
    int sequence[TEXTS] = {engine_sequence_new(engine), engine_sequence_new(engine)};
    plant("wait", number);
    for (int i = 0; i < TOKENS; i++) {
        for (int text = 0; text < TEXTS; text++) {
            struct engine_row row = {
                .token = 7 * text + 5 * i, .sequence = sequence[text], .wants_logits = true, .label = 5 * i + 5};
            test_ok(engine_submit(engine, &row, 1));
        }
        for (int text = 0; text < TEXTS; text++) {
            test_ok(engine_collect(engine, &result));
            figures[TEXTS * i + text] = result.label_logprob;
        }
    }
    unplant();
    engine_close(engine);
}

/* Each of these waits is needed, and they are all. */
static void check_waits(int waits, void (*run)(int number, double figures[FIGURES])) {
    double right[FIGURES] = {0}, figures[FIGURES] = {0};
    run(0, right);
    for (int number = 1; number <= waits + 1; number++) {
        run(number, figures);
        bool is_right = memcmp(figures, right, sizeof right) == 0;
        if (is_right != (number > waits))
            fail_msg("without wait %d of %d the figures are %s", number, waits, is_right ? "right" : "wrong");
    }
}

/* A pass of six micro batches fills each of two buffers three times. The last wait is for loss and norm. */
static void a_buffer_that_is_filled_too_early_is_found(void **state) {
    (void)state;
    check_waits(4 + 1, train);
}

static void results_that_are_read_too_early_are_found(void **state) {
    (void)state;
    check_waits(TEXTS * TOKENS, decode);
}

/* ---- events ---- */

enum { RANKS = 2, SUM_EVENTS = 2 * RANKS, COUNT = 64, ROUNDS = 40 };

/* Sums of two ranks on one GPU, in which the wait of a stream of this number is missing. */
struct sums {
    int number;
    atomic_int wrong; /* rounds and ranks with another sum */
};

/* A rank's memory. */
struct summand {
    struct comm *world;
    struct stream *stream;
    float host[COUNT], *device;
};

/* A rank adds its values to the other's. The host waits only when both ranks have queued all their work. */
static int sum_once(struct summand *s, struct sums *sums, float value) {
    struct comm_request request;
    struct comm_data data = {s->device, s->device, COUNT, DTYPE_F32, s->stream};
    for (int i = 0; i < COUNT; i++)
        s->host[i] = value;
    int status = stream_copy_to_device(s->stream, s->device, s->host, sizeof s->host);
    if (!status)
        status = comm_barrier(s->world);
    if (!status && s->world->rank == 0)
        plant("event", sums->number);
    if (!status)
        status = comm_barrier(s->world);
    if (!status)
        status = comm_all_reduce_start(s->world, &data, COMM_SUM, &request);
    if (!status)
        status = comm_wait_on(&request, s->stream);
    if (!status)
        status = comm_barrier(s->world);
    if (s->world->rank == 0)
        unplant();
    if (!status)
        status = stream_copy_to_host(s->stream, s->host, s->device, sizeof s->host);
    return status ? status : comm_barrier(s->world);
}

static int sum_rounds(struct comm *world, void *context) {
    struct sums *sums = context;
    struct summand s = {.world = world};
    struct device *device = NULL;
    void *memory = NULL;
    int status = device_open(test_device(), DEVICE_FIRST, 1, &device);
    if (!status)
        status = stream_open(device, &s.stream);
    if (!status)
        status = device_alloc_zeroed(device, sizeof s.host, &memory);
    s.device = memory;
    if (!status)
        status = comm_use_device(world, device);
    for (int round = 1; round <= ROUNDS && !status; round++) {
        status = sum_once(&s, sums, (float)(round + 100 * world->rank));
        if (!status)
            status = stream_wait(s.stream);
        sums->wrong += s.host[COUNT - 1] != (float)(2 * round + 100);
        if (!status)
            status = comm_barrier(world);
    }
    comm_leave_device_channel(world);
    device_free(device, memory);
    stream_close(s.stream);
    device_close(device);
    return status;
}

/* The stream of the sum waits for both ranks, and each rank's stream for the sum. */
static void a_missing_event_is_found(void **state) {
    (void)state;
    for (int number = 0; number <= SUM_EVENTS + 1; number++) {
        struct sums sums = {.number = number};
        test_ok(comm_local_run(RANKS, sum_rounds, &sums));
        bool is_missing = number >= 1 && number <= SUM_EVENTS;
        if ((sums.wrong > 0) != is_missing)
            fail_msg("without event %d, %d of %d sums are wrong", number, sums.wrong, RANKS * ROUNDS);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_buffer_that_is_filled_too_early_is_found),
        cmocka_unit_test(results_that_are_read_too_early_are_found),
        cmocka_unit_test(a_missing_event_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
