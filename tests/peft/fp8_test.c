/* LoRA on a base whose products are in FP8: its loss and its gradients beside those on a bf16 base. */
#include "peft/support.h"

enum { STEPS = 3 };

static const struct peft_config lora = {.type = PEFT_LORA, .r = 4, .lora_alpha = 8, .target_modules = EVERYTHING};

struct outcome {
    double loss;
    float *gradients;
    int64_t count;
};

/* The last of some steps on the same weights: by then scales follow from histories. */
static struct outcome train(bool is_fp8) {
    struct device *device;
    struct rank rank;
    struct tuned tuned;
    struct outcome outcome;
    struct model_config base = tiny_model(&(const struct tiny_model){
        .layers = 2, .hidden = 32, .heads = 4, .ffn = 64, .positions = TUNED_T, .vocab = TUNED_VOCAB, .init_std = 0.2});
    struct tuned_options options = {.adapters = &lora,
                                    .count = 1,
                                    .dtype = DTYPE_BF16,
                                    .fp8 = {.is_on = is_fp8, .history_length = 2},
                                    .base = &base};
    test_ok(device_open(test_device(), DEVICE_FIRST, 2, &device));
    test_ok(rank_open_single(&rank, device, 1));
    test_ok(tuned_open(&tuned, &options, &rank));
    for (int id = 0; id < tuned.store->map.table->count; id++) { /* B, too, so that there are deltas */
        tuned.store->map.table->rows[id].init = PARAM_INIT_NORMAL;
        tuned.store->map.table->rows[id].init_std = 0.2f;
    }
    test_ok(param_store_initialise(tuned.store, rank.exec.stream, 9));
    for (int64_t step = 0; step < STEPS; step++) {
        test_ok(tuned_run(&tuned, false, &outcome.loss));
        test_ok(model_fp8_end_step(tuned.model, step));
    }
    outcome.count = tuned.store->map.flat_elements;
    outcome.gradients =
        test_copy(rank.exec.stream, test_array(tuned.store, PARAM_GRADIENTS), param_gradient_bytes(tuned.store));
    tuned_close(&tuned);
    rank_close(&rank);
    device_close(device);
    return outcome;
}

/* E4M3 and E5M2 round an element to 2^-4 and 2^-3 of it. Errors of a sum cancel by chance, so that its error is less
 * than one element's; a gradient went through two layers. */
static void lora_trains_on_an_fp8_base(void **state) {
    (void)state;
    test_skip_without_bf16();
    struct outcome bf16 = train(false), fp8 = train(true);
    double difference = 0, whole = 0;
    for (int64_t i = 0; i < bf16.count; i++) {
        difference += pow((double)fp8.gradients[i] - bf16.gradients[i], 2);
        whole += pow((double)bf16.gradients[i], 2);
    }
    print_message("loss %g and %g, gradients differ by %.3f\n", bf16.loss, fp8.loss, sqrt(difference / whole));
    assert_true(fp8.loss != bf16.loss);
    assert_true(fabs(fp8.loss - bf16.loss) <= 0x1p-6 * bf16.loss);
    assert_true(difference > 0 && sqrt(difference / whole) <= 0x1p-2);
    free(bf16.gradients);
    free(fp8.gradients);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lora_trains_on_an_fp8_base),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
