/* Faults planted between the host and the card. On command the stand-in lets a wait of the host return at once. Then a
 * result is read before it is there, or a buffer is filled again before its copy has run. The program runs unchanged.
 */
#include "train/support.h"

#include "infer/engine.h"
#include "infer/sequences.h"

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_buffer_that_is_filled_too_early_is_found),
        cmocka_unit_test(results_that_are_read_too_early_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
