/* Whichever allocation of this room fails, the failure is reported and nothing remains. */
#include "tuning_files.h"

#include "data/data.h"
#include "support/failing.h"

static int write_dataset(void *context) {
    static const int32_t tokens[] = {1, 2, 3, 4, 5};
    struct indexed_writer writer = {0};
    int status = indexed_writer_open(&writer, context, TOKEN_U16, 300);
    for (int i = 0; i < 100 && !status; i++) {
        status = indexed_writer_add_sequence(&writer, tokens, 5);
        if (!status)
            status = indexed_writer_end_document(&writer);
    }
    if (!status)
        status = indexed_writer_commit(&writer);
    indexed_writer_abort(&writer);
    return status;
}

/* Once the dataset is in place, or before it is begun, what is swept away may stay for the next writer. */
enum { SWEPT = 8 };

static int write_and_read(void *context) {
    struct indexed_dataset *dataset = NULL;
    int status = write_dataset(context);
    if (!status)
        status = indexed_dataset_open(context, &dataset);
    indexed_dataset_close(dataset);
    return status;
}

static int read_batches(struct gpt_data *data) {
    struct gpt_batch batch = {0};
    int status = gpt_batch_init(&batch, 2, 16);
    if (!status)
        status = gpt_batch_read(&batch, &data->splits[SPLIT_TRAIN], 3);
    gpt_batch_free(&batch);
    return status;
}

struct blend {
    const char *items[4], *cache;
};

static int open_blend(void *context) {
    struct blend *blend = context;
    struct gpt_data data = {0};
    struct gpt_data_options options = {.data_path = {.items = blend->items, .count = 4},
                                       .split = "80,20,0",
                                       .seq_length = 16,
                                       .seed = 1234,
                                       .samples = {40, 4, GPT_NOT_WANTED},
                                       .data_cache_path = blend->cache};
    int status = gpt_data_open(&data, &options);
    if (!status)
        status = read_batches(&data);
    gpt_data_close(&data);
    return status;
}

/* Without memory to find or write a cache, the maps are built and stay in memory: a warning at most. */
enum { UNCACHED = 60 };

static int build_caches(void *context) {
    struct blend *blend = context;
    failing_pause(true);
    test_ok(file_remove_tree(blend->cache));
    failing_pause(false);
    return open_blend(blend);
}

static void a_blend_opens_and_closes(void **state) {
    char *a = path_of("a"), *b = path_of("b"), *cache = path_of("cache");
    struct blend blend = {{"0.3", a, "0.7", b}, ""};
    (void)state;
    test_ok(write_dataset(a));
    test_ok(write_dataset(b));
    assert_int_equal(failing_try_all(open_blend, &blend, 200), 0);
    blend.cache = cache;
    assert_in_range(failing_try_all(build_caches, &blend, 200), 0, UNCACHED);
    assert_in_range(failing_try_all(open_blend, &blend, 200), 0, UNCACHED);
    free(a);
    free(b);
    free(cache);
}

static void a_dataset_is_written_and_read(void **state) {
    char *prefix = path_of("c");
    (void)state;
    assert_in_range(failing_try_all(write_and_read, prefix, 200), 0, SWEPT);
    free(prefix);
}

/* In two splits, the memory of rows is shrunk to their number; when that fails they stay unchanged. */
enum { SHRUNK = 8 };

static int open_rows(void *context) {
    struct tuning_data *data = NULL;
    struct gpt_batch batch = {0};
    int status = tuning_data_open(context, &data);
    if (!status) {
        tuning_data_warn(data);
        status = gpt_batch_init(&batch, 2, 32);
    }
    if (!status)
        status = tuning_batch_read(&batch, data, SPLIT_TRAIN, 0);
    gpt_batch_free(&batch);
    tuning_data_close(data);
    return status;
}

static void rows_open_and_close(void **state) {
    char *rows = write_file("rows.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\\u00e4\"}\n"
                                          "{\"text\": \"some text\"}\n"
                                          "{\"messages\": [{\"role\": \"user\", \"content\": \"hello\"}, "
                                          "{\"role\": \"assistant\", \"content\": \"good day\"}]}\n");
    const char *plain[] = {rows}, *weighted[] = {"0.4", rows, "0.6", rows};
    (void)state;
    struct tuning_options options = {.train = {.items = plain, .count = 1},
                                     .valid = {.items = plain, .count = 1},
                                     .tokenizer = marks,
                                     .template = "chatml",
                                     .config_eos = -1,
                                     .vocab_size = VOCAB,
                                     .seq_length = 32,
                                     .is_packed = true,
                                     .epochs = 1};
    assert_in_range(failing_try_all(open_rows, &options, 200), 0, SHRUNK);
    options.train = (struct config_list){.items = weighted, .count = 4};
    options.is_packed = false;
    assert_in_range(failing_try_all(open_rows, &options, 200), 0, SHRUNK);
    char *array = write_file("rows.json", "[{\"text\": \"some text\", \"weight\": 0.5},\n{\"text\": \"more\"}]\n");
    char *csv = write_file("rows.csv", "prompt,completion,weight,tools\n\"a, \"\"\",b,0.5,\n\nc,d,,\n");
    const char *others[] = {array, csv};
    options.train = options.valid = (struct config_list){.items = others, .count = 2};
    assert_in_range(failing_try_all(open_rows, &options, 400), 0, SHRUNK);
    free(array);
    free(csv);
    free(rows);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_blend_opens_and_closes),
        cmocka_unit_test(a_dataset_is_written_and_read),
        cmocka_unit_test(rows_open_and_close),
    };
    return cmocka_run_group_tests(tests, make_tokenizers, free_tokenizers);
}
