/* Merged models against peft's logits (golden/README.md), and what cannot be merged. */
#include "golden.h"

#include "pretrained/pretrained.h"
#include "support/runner.h"
#include "support/test.h"

static int merge(const struct golden *golden, const char *output) {
    const char *directories[] = {golden->directory};
    struct peft_files *files;
    test_ok(peft_files_open(directories, 1, false, &files));
    int status = peft_merge(
        &(struct peft_merge){.device = test_device(), .model = golden->base, .files = files, .output = output});
    peft_files_close(files);
    return status;
}

static void merged_model_gives_the_logits_of_base_and_adapter(void **state) {
    struct golden golden;
    struct device *device;
    struct rank rank;
    struct base *base;
    struct training_runner *model;
    struct ckpt_tensors *tensors;
    int64_t count;
    struct pretrained merged;
    char *root = test_directory(), output[400];
    snprintf(output, sizeof output, "%s/merged", root);
    golden_open(&golden, *state);
    test_ok(merge(&golden, output));
    test_ok(pretrained_open_config(output, &merged)); /* a changed head is no longer tied */
    golden.model.untie_embeddings_and_output_weights = merged.config.untie_embeddings_and_output_weights;
    pretrained_close(&merged);
    struct model_options options = {
        .base.config = golden.model, .base.dtype = DTYPE_F32, .base.trains = true, .max_rows = golden.rows};
    test_ok(device_open(test_device(), DEVICE_FIRST, 2, &device));
    test_ok(rank_open_single(&rank, device, 1));
    test_ok(test_open_training(&options, &rank, NULL, &base, &model));
    struct param_store *store = base_store(base);
    struct ckpt_flat flat = ckpt_flat_weights(store, rank.exec.stream);
    struct ckpt_array array = ckpt_flat_array(&flat, "", false);
    test_ok(ckpt_open_model(output, &tensors));
    assert_int_equal(ckpt_dtype(tensors), DTYPE_F32);
    test_ok(ckpt_read(tensors, store->map.table, &array, 1));
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
    test_close_training(&base, &model);
    rank_close(&rank);
    device_close(device);
    golden_close(&golden);
    free(root);
}

static void what_is_no_change_of_weights_is_refused(void **state) {
    struct golden golden;
    char *root = test_directory(), output[400];
    snprintf(output, sizeof output, "%s/merged", root);
    golden_open(&golden, *state);
    test_fails(merge(&golden, output), STATUS_USAGE, "cannot be merged");
    assert_false(file_exists(output));
    golden_close(&golden);
    free(root);
}

static bool is_of(const char *name, const char *const *words) {
    const char *slash = strchr(name, '/'), *own = slash ? slash + 1 : name;
    for (; *words; words++)
        if (!strncmp(own, *words, strlen(*words)))
            return true;
    return false;
}

int main(void) {
    static const char *const weights[] = {"lora", "rslora", "dora", "ia3", NULL};
    char **names[2];
    size_t counts[] = {golden_cases(&names[0]), golden_family_cases(&names[1])};
    int failed = 0;
    for (int i = 0; i < 2; i++) {
        struct CMUnitTest *tests = calloc(counts[i], sizeof *tests);
        if (!tests)
            return 1;
        for (size_t k = 0; k < counts[i]; k++)
            tests[k] = (struct CMUnitTest){.name = names[i][k],
                                           .test_func = is_of(names[i][k], weights)
                                                            ? merged_model_gives_the_logits_of_base_and_adapter
                                                            : what_is_no_change_of_weights_is_refused,
                                           .initial_state = names[i][k]};
        failed += _cmocka_run_group_tests(i ? "merge_families" : "merge", tests, counts[i], NULL, NULL);
        free(tests);
        golden_free_cases(names[i], counts[i]);
    }
    return failed;
}
