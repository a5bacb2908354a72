/* Merged models against peft's logits (golden/README.md), and what cannot be merged. */
#include "golden.h"

#include "support/test.h"

static void merge(const char *name, const char *output) {
    char directory[300];
    const char *directories[] = {directory};
    struct peft_files *files;
    snprintf(directory, sizeof directory, TEST_DATA "/peft/golden/%s", name);
    test_ok(peft_files_open(directories, 1, false, &files));
    test_ok(peft_merge(&(struct peft_merge){
        .device = test_device(), .model = TEST_DATA "/peft/golden/base", .files = files, .output = output}));
    peft_files_close(files);
}

static void merged_model_gives_the_logits_of_base_and_adapter(void **state) {
    struct golden golden;
    struct device *device;
    struct rank rank;
    struct model *model;
    struct ckpt_tensors *tensors;
    int64_t count;
    char *root = test_directory(), output[400];
    snprintf(output, sizeof output, "%s/merged", root);
    golden_open(&golden, *state);
    merge(*state, output);
    struct model_options options = {
        .config = golden.model, .dtype = DTYPE_F32, .use = MODEL_EVALUATE, .max_rows = golden.rows};
    test_ok(device_open(test_device(), 0, 2, &device));
    test_ok(rank_open_single(&rank, device, 1));
    test_ok(model_open(&options, &rank, false, NULL, &model));
    struct param_store *store = model_store(model);
    struct ckpt_flat flat = {
        .store = store, .stream = rank.exec.stream, .memory = store->weights, .dtype = store->dtype};
    struct ckpt_array array = ckpt_flat_array(&flat, "", false);
    test_ok(ckpt_open_model(output, &tensors));
    assert_int_equal(ckpt_dtype(tensors), DTYPE_F32);
    test_ok(ckpt_read(tensors, store->table, &array, 1));
    ckpt_close(tensors);
    struct model_batch batch = golden_batch(&golden, -1);
    double *expected = golden_expected(&golden, "logits", &count);
    float *logits = malloc((size_t)count * sizeof *logits);
    assert_non_null(logits);
    test_ok(model_logits(model, &batch, logits));
    double error = test_max_error(logits, expected, (size_t)count);
    if (!(error <= 1e-5))
        fail_msg("%s: logits of the merged model are off by %g of the largest", (const char *)*state, error);
    free(logits);
    free(expected);
    model_close(model);
    rank_close(&rank);
    device_close(device);
    golden_close(&golden);
    free(root);
}

static void what_is_no_change_of_weights_is_refused(void **state) {
    static const char *const names[] = {"prompt", "ptuning_mlp", "prefix", "adapter_seq_bn"};
    char *root = test_directory(), output[400];
    (void)state;
    snprintf(output, sizeof output, "%s/merged", root);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char directory[300];
        const char *directories[] = {directory};
        struct peft_files *files;
        snprintf(directory, sizeof directory, TEST_DATA "/peft/golden/%s", names[i]);
        test_ok(peft_files_open(directories, 1, false, &files));
        const struct peft_merge request = {
            .device = test_device(), .model = TEST_DATA "/peft/golden/base", .files = files, .output = output};
        test_fails(peft_merge(&request), STATUS_USAGE, "cannot be merged");
        assert_false(file_exists(output));
        peft_files_close(files);
    }
    free(root);
}

int main(void) {
    static const char *const cases[] = {"lora",          "lora_all_linear", "lora_one_layer", "lora_regex",
                                        "lora_patterns", "rslora",          "dora",           "dora_all_linear",
                                        "ia3",           "ia3_attention",   "lora_exclude",   "ia3_inputs"};
    enum { CASES = sizeof cases / sizeof *cases };
    struct CMUnitTest tests[CASES + 1] = {cmocka_unit_test(what_is_no_change_of_weights_is_refused)};
    for (int i = 0; i < CASES; i++)
        tests[i + 1] = (struct CMUnitTest){.name = cases[i],
                                           .test_func = merged_model_gives_the_logits_of_base_and_adapter,
                                           .initial_state = (void *)(uintptr_t)cases[i]};
    return cmocka_run_group_tests_name("merge", tests, NULL, NULL);
}
