/* Receipts: which thread computes what. tests/commands/receipts_test.py has the faults that they find. */
#include "infer/adapters.h"
#include "infer/images.h"
#include "stacks.h"

static const struct stack lora = {{"lora:4"}, 1, 0, 0};

/* Writes the receipt of an adapter as `cambium adapter receipt` does. */
static void write_receipt(struct engine *engine, const char *directory) {
    struct peft_bytes bytes;
    char path[PATH_MAX], *text;
    json_t *base;
    test_ok(receipt_describe_base(base_directory(), &base));
    test_ok(peft_bytes_read(directory, 1 << 20, &bytes));
    int image = engine_image_load(engine, &bytes);
    assert_true(image >= 0);
    test_ok(engine_make_receipt(engine, &bytes, image, base, &text));
    test_ok(engine_image_drop(engine, image));
    test_ok(file_join(path, sizeof path, directory, PEFT_RECEIPT_FILE));
    test_ok(file_write_atomic(path, text, strlen(text)));
    free(text);
    json_decref(base);
    peft_bytes_free(&bytes);
}

static struct engine *open_small(void) {
    struct engine *engine;
    test_ok(engine_open(&(struct engine_options){.device = test_device(),
                                                 .model = base_directory(),
                                                 .precision = PRECISION_FP32,
                                                 .threads = 1,
                                                 .max_rows = 16,
                                                 .max_logit_rows = 16,
                                                 .max_sequences = 2,
                                                 .adapter_memory = 1 << 20},
                        &engine));
    return engine;
}

/* Loads files that another thread may have read. */
static int load(struct adapters *adapters, struct adapter_files *files) {
    int status = adapters_begin(adapters, "a", files, ADAPTER_REPLACE, 0);
    for (bool is_done = false; !status && !is_done;)
        status = adapters_continue(adapters, &is_done);
    adapter_files_free(files);
    return status;
}

/* Gives the last weight another sign. A block has names of 56 bytes, lengths of 8, and contents. */
static void flip_last_sign(const struct peft_bytes *bytes) {
    enum { NAME = 56, LENGTH = 8 };
    char *at = bytes->data, *end = at + bytes->length;
    int64_t length = 0;
    for (; at < end; at += NAME + LENGTH + length) {
        memcpy(&length, at + NAME, sizeof length);
        if (!strcmp(at, CKPT_ADAPTER_PART ".safetensors"))
            at[NAME + LENGTH + length - 1] ^= (char)0x80;
    }
}

/* Bits that change after the reading are found by the golden texts only: no digest is computed again. */
static void digests_are_computed_where_files_are_read(void **state) {
    (void)state;
    struct directories directories;
    struct adapters *adapters;
    struct adapter_files files;
    struct adapter_view view;
    struct engine *engine = open_small();
    find_stack(&lora, &directories);
    write_receipt(engine, directories.name[0]);
    test_ok(adapters_open(engine, &adapters));
    test_ok(adapters_add(adapters, "a", directories.name[0]));
    const struct peft_place place = {.path = directories.name[0]};
    const struct peft_limits limits = adapters_limits(adapters);
    test_ok(adapter_files_read(&place, &limits, &files));
    test_ok(load(adapters, &files));
    assert_true(adapters_find(adapters, "a", &view));
    assert_int_equal(view.receipt.word, RECEIPT_EXACT);
    for (int is_compared = 1; is_compared >= 0; is_compared--) {
        test_ok(adapter_files_read(&place, &limits, &files));
        flip_last_sign(&files.bytes);
        files.digest[0] = 'x'; /* not that of the adapter in memory, which was proved */
        files.bytes.is_compared = is_compared;
        test_fails(load(adapters, &files), STATUS_INVALID,
                   is_compared ? "golden text" : "of the adapter is not the one in its receipt");
    }
    adapters_close(adapters);
    engine_close(engine);
    forget_stack(&lora, &directories);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(digests_are_computed_where_files_are_read)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
