/* Two runners on one base: an adapter takes a training step between two decode steps. Both give the bits that each
 * gives on its own, and device memory has the base once (the linker counts it: tests/peft/tests.cmake). */
#include "optim/optim.h"
#include "peft/support.h"
#include "support/passes.h"

#include <string.h>

enum { STEPS = 3, PAGES = 1 };

static size_t taken; /* bytes of device memory that were allocated since the opening began */

int __real_device_alloc(struct device *device, size_t bytes, void **memory);
int __wrap_device_alloc(struct device *device, size_t bytes, void **memory);
int __wrap_device_alloc(struct device *device, size_t bytes, void **memory) {
    taken += bytes;
    return __real_device_alloc(device, bytes, memory);
}

int __real_device_alloc_zeroed(struct device *device, size_t bytes, void **memory);
int __wrap_device_alloc_zeroed(struct device *device, size_t bytes, void **memory);
int __wrap_device_alloc_zeroed(struct device *device, size_t bytes, void **memory) {
    taken += bytes;
    return __real_device_alloc_zeroed(device, bytes, memory);
}

struct part {
    bool trains, infers;
    struct device *device;
    struct rank rank;
    struct base *base;
    struct peft *peft;
    struct training_runner *training;
    struct inference_runner *inference;
    struct gradient_sync sync;
    struct optimizer optimizer;
    size_t opened; /* bytes of device memory */
    int32_t token[STEPS + 1];
    float logprob[STEPS];
    double loss[STEPS];
};

static void part_open(struct part *p, bool trains, bool infers) {
    const struct peft_config lora = {.type = PEFT_LORA, .r = 2, .lora_alpha = 4, .target_modules = EVERYTHING};
    struct model_options tuning = {.base = {.config = tuned_base(true), .dtype = DTYPE_F32}, .max_rows = TUNED_ROWS};
    struct model_options serving = {
        .base = tuning.base, .max_rows = 4, .infer = {.max_logit_rows = 1, .max_sequences = 1, .max_pages = PAGES}};
    struct peft_options stack = {.adapters = &lora, .count = 1, .model = &tuning, .trains = true};
    const struct optimizer_options adamw = {.beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .clip_grad = 1};
    struct model_plan plan = {0};
    *p = (struct part){.trains = trains, .infers = infers};
    test_ok(device_open(test_device(), DEVICE_FIRST, 2, &p->device));
    test_ok(rank_open_single(&p->rank, p->device, 1));
    taken = 0;
    test_ok(base_sketch(&tuning.base, &p->rank, &plan, &p->base));
    if (trains) {
        test_ok(peft_open(&stack, &p->rank, &p->peft));
        tuning.hooks = peft_hooks(p->peft);
        test_ok(training_sketch(&tuning, p->base, &plan, &p->training));
        test_ok(optimizer_plan(&p->rank, peft_store(p->peft)->map.flat_elements, 1, DTYPE_F32));
    }
    if (infers)
        test_ok(inference_sketch(&serving, p->base, &plan, &p->inference));
    test_ok(base_allocate(p->base));
    if (trains)
        test_ok(training_allocate(p->training));
    if (infers) {
        test_ok(inference_allocate(p->inference));
        test_ok(inference_open_pages(p->inference, PAGES));
    }
    test_ok(rank_allocate_workspace(&p->rank));
    test_ok(base_initialise(p->base, 77));
    test_ok(tuned_shake(base_store(p->base), p->rank.exec.stream, 0.1f));
    if (trains) {
        test_ok(peft_allocate(p->peft));
        peft_set_base(p->peft, base_store(p->base));
        test_ok(peft_initialise(p->peft, 5));
        test_ok(gradient_sync_open(&p->sync, &p->rank, peft_store(p->peft), &(struct gradient_sync_options){0}));
        test_ok(optimizer_open(&p->optimizer, &adamw, &p->sync));
        test_ok(optimizer_reset(&p->optimizer));
    }
    p->opened = taken;
}

static void part_close(struct part *p) {
    if (p->trains) {
        optimizer_close(&p->optimizer);
        gradient_sync_close(&p->sync);
    }
    inference_close(p->inference);
    training_close(p->training);
    peft_close(p->peft);
    base_close(p->base);
    rank_close(&p->rank);
    device_close(p->device);
}

static void decode(struct part *p, int step) {
    const int32_t zero = 0, at = step, *token = &p->token[step];
    const struct id_change page = {0, 0};
    const struct sample_row greedy = {.draws = true, .top_p = 1, .repetition_penalty = 1};
    const struct model_step rows = {.rows = 1,
                                    .tokens = token,
                                    .positions = &at,
                                    .sequence = &zero,
                                    .cached = &at,
                                    .place = &at,
                                    .page_change_count = step == 0,
                                    .page_changes = &page,
                                    .logit_rows = 1,
                                    .logit_row = &zero,
                                    .sample = &greedy};
    float unread;
    int32_t is_greedy;
    const struct model_step_result result = {
        .token = &p->token[step + 1], .logprob = &p->logprob[step], .label_logprob = &unread, .is_greedy = &is_greedy};
    test_ok(model_infer(p->inference, &rows));
    test_ok(model_infer_results(p->inference, &result));
}

static void train(struct part *p, int step) {
    const struct model_pass pass = {.is_first_micro_batch = true, .is_last_micro_batch = true, .has_dropout = true};
    const struct model_batch batch = test_batch(TUNED_SAMPLES, TUNED_T, TUNED_VOCAB, (uint32_t)step % 2, NULL);
    double norm;
    test_ok(peft_begin_batch(p->peft, step * TUNED_SAMPLES));
    test_ok(test_train_step(p->training, &batch, &pass));
    test_ok(peft_end(p->peft));
    test_ok(model_loss(p->training, &p->loss[step]));
    test_ok(optimizer_step(&p->optimizer, 1e-2, &norm));
}

static void part_run(struct part *p) {
    for (int step = 0; step < STEPS; step++) {
        if (p->infers)
            decode(p, step);
        if (p->trains)
            train(p, step);
    }
    assert_int_equal(taken, p->opened); /* steps take nothing */
}

static void a_lora_step_between_two_decode_steps(void **state) {
    (void)state;
    struct part training, inference, both;
    part_open(&training, true, false);
    part_run(&training);
    part_open(&inference, false, true);
    part_run(&inference);
    part_open(&both, true, true);
    part_run(&both);
    assert_memory_equal(both.token, inference.token, sizeof both.token);
    assert_memory_equal(both.logprob, inference.logprob, sizeof both.logprob);
    assert_memory_equal(both.loss, training.loss, sizeof both.loss);
    assert_true(training.loss[0] > training.loss[STEPS - 1]);
    struct param_store *adapter = peft_store(both.peft);
    struct test_values ours = test_values(adapter, both.rank.exec.stream);
    struct test_values expected = test_values(peft_store(training.peft), training.rank.exec.stream);
    assert_memory_equal(ours.weights, expected.weights, (size_t)adapter->map.flat_elements * sizeof *ours.weights);
    test_values_free(&ours);
    test_values_free(&expected);
    /* The base and the workspace, in which the runners take turns, are there once. */
    size_t a = training.rank.exec.workspace_bytes, b = inference.rank.exec.workspace_bytes;
    assert_int_equal(both.rank.exec.workspace_bytes, a > b ? a : b);
    assert_int_equal(training.opened + inference.opened - both.opened,
                     param_weight_bytes(base_store(both.base)) + (a > b ? b : a));
    part_close(&both);
    part_close(&inference);
    part_close(&training);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_lora_step_between_two_decode_steps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
