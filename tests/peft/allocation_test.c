/* Whichever allocation of adapters' files fails, the failure is reported, nothing remains, and no incomplete model is
 * written. */
#include "peft/peft.h"

#include "base/base.h"
#include "support/failing.h"
#include "support/test.h"

#define GOLDEN TEST_DATA "/peft/golden"

static int open_and_merge(void *context) {
    static const char *const directories[] = {GOLDEN "/lora_all_linear", GOLDEN "/ia3"};
    struct peft_files *files = NULL;
    char path[512];
    int status = peft_files_open(directories, 2, false, &files);
    if (!status)
        status = peft_merge(
            &(struct peft_merge){.device = test_device(), .model = GOLDEN "/base", .files = files, .output = context});
    peft_files_close(files);
    snprintf(path, sizeof path, "%s/config.json", (const char *)context);
    bool is_there = file_exists(path);
    snprintf(path, sizeof path, "%s/model.safetensors", (const char *)context);
    assert_int_equal(is_there, file_exists(path));
    return status;
}

static void a_merge_ends_with_a_word(void **state) {
    char output[300], *directory = test_directory();
    (void)state;
    snprintf(output, sizeof output, "%s/merged", directory);
    assert_int_equal(failing_try_all(open_and_merge, output, 100), 0);
    free(directory);
}

static int open_files(void *context) {
    struct peft_files *files = NULL;
    const char *const directories[] = {context};
    int status = peft_files_open(directories, 1, true, &files);
    peft_files_close(files);
    return status;
}

static void every_methods_files_open_and_close(void **state) {
    static const char *const names[] = {GOLDEN "/lora_patterns", GOLDEN "/adapter_par_bn", GOLDEN "/prompt",
                                        GOLDEN "/ptuning_lstm",  GOLDEN "/prefix",         GOLDEN "/ia3"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_int_equal(failing_try_all(open_files, (void *)names[i], 100), 0);
}

static int open_bytes(void *context) {
    struct peft_files *files = NULL;
    struct peft_bytes bytes;
    int status = peft_bytes_read(context, 1 << 20, &bytes);
    if (!status)
        status = peft_files_open_bytes(&bytes, 1, &files);
    peft_files_close(files);
    peft_bytes_free(&bytes);
    return status;
}

static void bytes_are_read_and_open(void **state) {
    (void)state;
    assert_int_equal(failing_try_all(open_bytes, GOLDEN "/lora_patterns", 100), 0);
    assert_int_equal(failing_try_all(open_bytes, GOLDEN "/adapter_par_bn", 100), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_merge_ends_with_a_word),
        cmocka_unit_test(every_methods_files_open_and_close),
        cmocka_unit_test(bytes_are_read_and_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
