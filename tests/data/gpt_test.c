/* GPT samples: index maps, splits, blends and masks equal those that Megatron-LM itself made (golden/megatron.json),
 * and the vectors that can be checked by hand. */
#include "files.h"

#include <jansson.h>
#include <zlib.h>

static int64_t number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

static const char *text(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key)); /* NULL for null */
}

/* Entries against the list, or against count and checksum of `width`-byte entries. */
static void check_stored(const json_t *object, const char *key, const int64_t *values, size_t count, size_t width) {
    const json_t *stored = json_object_get(object, key);
    if (json_is_array(stored)) {
        assert_int_equal(json_array_size(stored), count);
        for (size_t i = 0; i < count; i++)
            assert_int_equal(json_integer_value(json_array_get(stored, i)), values[i]);
        return;
    }
    uLong crc = 0;
    for (size_t i = 0; i < count; i++)
        crc = crc32(crc, (const Bytef *)&values[i], (uInt)width); /* the low bytes come first */
    assert_int_equal(number(stored, "count"), count);
    assert_int_equal(number(stored, "crc32"), crc);
}

static void check_indexes(const json_t *expected, const struct gpt_split *split) {
    size_t length = (size_t)split->length;
    const struct gpt_dataset *part = &split->parts[0];
    size_t most = length > (size_t)part->document_count ? length : (size_t)part->document_count;
    int64_t *values = calloc(2 * (most + 1), sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; split->is_blend && i < length; i++)
        values[i] = split->dataset_index[i];
    if (split->is_blend) {
        check_stored(expected, "dataset_index", values, length, 4);
        check_stored(expected, "dataset_sample_index", split->dataset_sample_index, length, 8);
        free(values);
        return;
    }
    for (size_t i = 0; i < (size_t)part->document_count; i++)
        values[i] = part->document_index[i];
    check_stored(expected, "document_index", values, (size_t)part->document_count, 4);
    for (size_t i = 0; i < length; i++)
        values[i] = part->shuffle_index[i];
    check_stored(expected, "shuffle_index", values, length, 4);
    for (size_t i = 0; i <= length; i++) {
        values[2 * i] = part->sample_index[i].document;
        values[2 * i + 1] = part->sample_index[i].offset;
    }
    check_stored(expected, "sample_index", values, 2 * (length + 1), 4);
    free(values);
}

static void check_samples(const json_t *expected, const struct gpt_split *split) {
    const json_t *shown;
    size_t index;
    struct gpt_batch batch;
    test_ok(gpt_batch_init(&batch, 1, split->seq_length));
    json_array_foreach(json_object_get(expected, "shown"), index, shown) {
        int64_t k = number(shown, "sample");
        test_ok(gpt_batch_read(&batch, split, k));
        for (size_t i = 0; i < (size_t)split->seq_length; i++) {
#define AT(key) json_integer_value(json_array_get(json_object_get(shown, key), i))
            assert_int_equal(batch.tokens[i], AT("tokens"));
            assert_int_equal(batch.labels[i], AT("labels"));
            assert_int_equal((int)batch.loss_mask[i], AT("loss_mask"));
            assert_int_equal(batch.positions[i], AT("positions"));
            assert_int_equal(batch.sample[i], k);
            assert_int_equal(batch.token[i], i);
        }
        assert_int_equal(batch.segments, json_array_size(json_object_get(shown, "segments")));
        for (size_t i = 0; i < (size_t)batch.segments; i++)
            assert_int_equal(batch.segment_start[i], AT("segments"));
        assert_int_equal(batch.segment_start[batch.segments], split->seq_length);
    }
    gpt_batch_free(&batch);
}

enum { MAX_FILES = 300 };

/* The files of a case and the words that name them. */
static void write_case(const json_t *golden, const char *directory, struct config_list *words) {
    const json_t *files = json_object_get(golden, "files"), *weights = json_object_get(golden, "weights");
    static char prefixes[MAX_FILES][128];
    static const char *items[2 * MAX_FILES];
    *words = (struct config_list){items, 0};
    assert_true(json_array_size(files) <= MAX_FILES);
    for (size_t k = 0; k < json_array_size(files); k++) {
        const json_t *lengths = json_array_get(files, k);
        int32_t values[1000];
        size_t count = json_array_size(lengths);
        assert_true(count <= sizeof values / sizeof *values);
        for (size_t i = 0; i < count; i++)
            values[i] = (int32_t)json_integer_value(json_array_get(lengths, i));
        snprintf(prefixes[k], sizeof prefixes[k], "%s/f%zu", directory, k);
        write_dataset(prefixes[k], values, count, (int64_t)k);
        if (json_is_array(weights))
            items[words->count++] = json_string_value(json_array_get(weights, k));
        items[words->count++] = prefixes[k];
    }
}

static struct gpt_data_options options_of(const json_t *golden, struct config_list words) {
    struct gpt_data_options options = {
        .data_path = words,
        .split = text(golden, "split"),
        .seq_length = number(golden, "seq_length"),
        .seed = number(golden, "seed"),
        .samples = {GPT_NOT_WANTED, GPT_NOT_WANTED, GPT_NOT_WANTED},
        .rules = {.eod_id = 7,
                  .pad_id = -1,
                  .vocab_size = 11,
                  .eod_mask_loss = json_is_true(json_object_get(golden, "eod_mask_loss")),
                  .reset_position_ids = json_is_true(json_object_get(golden, "reset_position_ids")),
                  .reset_attention_mask = json_is_true(json_object_get(golden, "reset_attention_mask"))},
    };
    options.samples[number(golden, "which")] = number(golden, "samples");
    return options;
}

/* Twice: built, and read from the cache. */
static void everything_equals_megatron(void **state) {
    (void)state;
    json_error_t error;
    json_t *cases = json_load_file(TEST_DATA "/data/golden/megatron.json", 0, &error), *golden;
    size_t index;
    char *root = test_directory(), directory[64];
    if (!cases)
        fail_msg("%s", error.text);
    json_array_foreach(cases, index, golden) {
        snprintf(directory, sizeof directory, "%s/%zu", root, index);
        test_ok(file_make_directories(directory));
        struct config_list words;
        struct gpt_data data;
        write_case(golden, directory, &words);
        struct gpt_data_options options = options_of(golden, words);
        if (words.count > 20)
            options.data_cache_path = ""; /* hundreds of small caches would only wait for the disk */
        for (int pass = 0; pass < 2; pass++) {
            test_ok(gpt_data_open(&data, &options));
            const struct gpt_split *split = &data.splits[number(golden, "which")];
            assert_int_equal(split->length, number(json_object_get(golden, "expected"), "length"));
            check_indexes(json_object_get(golden, "expected"), split);
            check_samples(json_object_get(golden, "expected"), split);
            gpt_data_close(&data);
        }
    }
    free(root);
    assert_int_equal(json_array_size(cases), 56);
    json_decref(cases);
}

/* ---- by hand ---- */

struct corpus {
    char *directory;
    char prefix[200];
    const char *items[1];
    struct gpt_data_options options;
};

static void make_corpus(struct corpus *corpus, const int32_t *lengths, size_t count) {
    corpus->directory = test_directory();
    snprintf(corpus->prefix, sizeof corpus->prefix, "%s/corpus", corpus->directory);
    write_dataset(corpus->prefix, lengths, count, 0);
    corpus->items[0] = corpus->prefix;
    corpus->options = (struct gpt_data_options){
        .data_path = {corpus->items, 1},
        .seq_length = 8,
        .seed = 1234,
        .samples = {GPT_ONE_EPOCH, GPT_NOT_WANTED, GPT_NOT_WANTED},
        .rules = {.eod_id = -1, .pad_id = -1},
    };
}

static void the_order_is_numpys(void **state) {
    (void)state;
    static const int32_t orders[2][10] = {{8, 1, 5, 0, 7, 2, 9, 4, 3, 6}, {7, 2, 9, 1, 0, 8, 4, 5, 6, 3}};
    struct corpus corpus;
    struct gpt_data data;
    make_corpus(&corpus, (const int32_t[]){9, 9, 9, 9, 9, 9, 9, 9, 9, 9}, 10);
    for (int i = 0; i < 2; i++) {
        corpus.options.seed = i == 0 ? 42 : 1234;
        test_ok(gpt_data_open(&data, &corpus.options));
        assert_memory_equal(data.splits[0].parts[0].document_index, orders[i], sizeof orders[i]);
        gpt_data_close(&data);
    }
    free(corpus.directory);
}

/* Lengths and seed of the reference: the second last epoch is shuffled apart. */
static void the_reference_vectors_hold(void **state) {
    (void)state;
    static const int32_t documents[] = {1, 2, 5, 2, 3, 4, 1, 0, 4, 5, 0, 3, 1, 0, 3, 2, 5, 4};
    static const int32_t samples[] = {0, 0, 1,  5, 3,  2, 4,  3, 5,  6, 6,  2, 7,  7, 8,  5,
                                      9, 1, 10, 5, 11, 3, 13, 3, 14, 1, 15, 4, 17, 1, 17, 9};
    static const uint32_t shuffle[] = {7, 6, 2, 3, 1, 9, 5, 4, 0, 8, 14, 11, 13, 10, 12};
    struct corpus corpus;
    struct gpt_data data;
    make_corpus(&corpus, (const int32_t[]){10, 3, 7, 5, 12, 4}, 6);
    corpus.options.samples[SPLIT_TRAIN] = 12;
    test_ok(gpt_data_open(&data, &corpus.options));
    const struct gpt_dataset *part = &data.splits[0].parts[0];
    assert_int_equal(part->document_count, 18);
    assert_int_equal(part->length, 15);
    assert_memory_equal(part->document_index, documents, sizeof documents);
    assert_memory_equal(part->sample_index, samples, sizeof samples);
    assert_memory_equal(part->shuffle_index, shuffle, sizeof shuffle);
    gpt_data_close(&data);
    free(corpus.directory);
}

static void the_reference_blend_holds(void **state) {
    (void)state;
    static const int16_t expected[] = {0, 1, 2, 0, 0, 1, 2, 0};
    struct corpus corpora[3];
    struct gpt_data data;
    for (int i = 0; i < 3; i++)
        make_corpus(&corpora[i], (const int32_t[]){50, 50}, 2);
    struct gpt_data_options options = corpora[0].options;
    const char *words[] = {".5", corpora[0].prefix, ".25", corpora[1].prefix, ".25", corpora[2].prefix};
    options.data_path = (struct config_list){words, 6};
    options.samples[SPLIT_TRAIN] = 8;
    test_ok(gpt_data_open(&data, &options));
    assert_int_equal(data.splits[0].length, 8);
    assert_memory_equal(data.splits[0].dataset_index, expected, sizeof expected);
    gpt_data_close(&data);
    words[0] = ".5x";
    test_fails(gpt_data_open(&data, &options), STATUS_USAGE, "some of '.5x', ... are weights and some are not");
    words[0] = "0";
    test_fails(gpt_data_open(&data, &options), STATUS_USAGE, "weight '0' of ");
    words[0] = "-1";
    test_fails(gpt_data_open(&data, &options), STATUS_USAGE, "weight '-1' of ");
    options.data_path.count = 5;
    test_fails(gpt_data_open(&data, &options), STATUS_USAGE, "expected pairs");
    options.data_path.count = 6;
    words[0] = ".5";
    options.samples[SPLIT_TRAIN] = GPT_ONE_EPOCH;
    test_fails(gpt_data_open(&data, &options), STATUS_USAGE, "needs a number of samples");
    for (int i = 0; i < 3; i++)
        free(corpora[i].directory);
}

static void pads_count_nothing(void **state) {
    (void)state;
    struct corpus corpus;
    struct gpt_data data;
    struct gpt_batch batch;
    int pads = 0;
    make_corpus(&corpus, (const int32_t[]){200}, 1);
    corpus.options.rules.pad_id = 7;
    test_ok(gpt_data_open(&data, &corpus.options));
    test_ok(gpt_batch_init(&batch, 1, 8));
    for (int64_t k = 0; k < data.splits[0].length; k++) {
        test_ok(gpt_batch_read(&batch, &data.splits[0], k));
        int64_t first = data.splits[0].parts[0].shuffle_index[k] * 8;
        for (int64_t i = 0; i < 8; i++) {
            int32_t token = golden_token(first + i, 0), label = golden_token(first + i + 1, 0);
            assert_int_equal(batch.tokens[i], token == 7 ? 0 : token);
            assert_int_equal(batch.labels[i], label == 7 ? 0 : label);
            assert_int_equal((int)batch.loss_mask[i], label == 7 ? 0 : 1);
            pads += label == 7;
        }
    }
    assert_true(pads > 0);
    gpt_batch_free(&batch);
    gpt_data_close(&data);
    free(corpus.directory);
}

static void an_empty_validation_split_is_no_error(void **state) {
    (void)state;
    struct corpus corpus;
    struct gpt_data data;
    struct gpt_batch batch;
    make_corpus(&corpus, (const int32_t[]){10, 3, 7, 5, 12, 4}, 6);
    corpus.options.split = "99990,8,2";
    corpus.options.samples[SPLIT_TRAIN] = corpus.options.samples[SPLIT_VALID] = corpus.options.samples[SPLIT_TEST] = 5;
    test_ok(gpt_data_open(&data, &corpus.options));
    assert_int_equal(data.splits[SPLIT_TRAIN].length, 5);
    assert_int_equal(data.splits[SPLIT_VALID].length, 0);
    assert_int_equal(data.splits[SPLIT_TEST].length, 0);
    test_ok(gpt_batch_init(&batch, 1, 8));
    test_fails(gpt_batch_read(&batch, &data.splits[SPLIT_VALID], 0), STATUS_INVALID, "of a dataset of 0 samples");
    test_fails(gpt_batch_read(&batch, &data.splits[SPLIT_TRAIN], 5), STATUS_INVALID,
               "sample 5 is asked of a dataset of 5");
    gpt_batch_free(&batch);
    gpt_data_close(&data);
    corpus.options.split = "0,1,0";
    test_fails(gpt_data_open(&data, &corpus.options), STATUS_INVALID, "the training split '0,1,0' has no tokens");
    free(corpus.directory);
}

static void impossible_options_are_refused(void **state) {
    (void)state;
    struct corpus corpus;
    struct gpt_data data;
    static const struct {
        const char *split, *error;
    } splits[] = {
        {"1,2,3,4", "more than the 3 weights"}, {"0,0,0", "no weight above 0"}, {"", "no weight above 0"},
        {"1.2.3", "'1.2.3' is not a number"},   {"90,-5,5", "below 0"},         {".", "'.' is not a number"},
    };
    make_corpus(&corpus, (const int32_t[]){10, 3}, 2);
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        corpus.options.split = splits[i].split;
        test_fails(gpt_data_open(&data, &corpus.options), STATUS_USAGE, splits[i].error);
    }
    corpus.options.split = NULL;
    corpus.options.seed = 4294967296;
    test_fails(gpt_data_open(&data, &corpus.options), STATUS_USAGE, "data seed of 4294967296");
    corpus.options.seed = 1;
    corpus.options.seq_length = 0;
    test_fails(gpt_data_open(&data, &corpus.options), STATUS_USAGE, "sequence length of 0");
    corpus.options.seq_length = 1000;
    corpus.options.samples[SPLIT_TRAIN] = INT64_MAX / 2;
    test_fails(gpt_data_open(&data, &corpus.options), STATUS_USAGE, "more than can be counted");
    corpus.options.samples[SPLIT_TRAIN] = INT64_MAX / 5000;
    test_fails(gpt_data_open(&data, &corpus.options), STATUS_UNSUPPORTED, "more than 2^32 entries");
    corpus.options.samples[SPLIT_TRAIN] = 3;
    corpus.options.rules.eod_mask_loss = true;
    test_fails(gpt_data_open(&data, &corpus.options), STATUS_USAGE, "give a tokenizer");
    corpus.options.data_path.count = 0;
    corpus.options.rules.eod_mask_loss = false;
    test_fails(gpt_data_open(&data, &corpus.options), STATUS_USAGE, "no data path");
    free(corpus.directory);
}

static void tokens_outside_the_vocabulary_are_refused(void **state) {
    (void)state;
    struct corpus corpus;
    struct gpt_data data;
    struct gpt_batch batch;
    make_corpus(&corpus, (const int32_t[]){100}, 1);
    corpus.options.rules.vocab_size = 10;
    test_ok(gpt_data_open(&data, &corpus.options));
    test_ok(gpt_batch_init(&batch, data.splits[0].length, 8));
    test_fails(gpt_batch_read(&batch, &data.splits[0], 0), STATUS_INVALID, "corpus.bin: token at byte");
    test_fails(gpt_batch_read(&batch, &data.splits[0], 0), STATUS_INVALID, "is 10, expected 0 to 9 of the vocabulary");
    gpt_batch_free(&batch);
    gpt_data_close(&data);
    free(corpus.directory);
}

/* Two data-parallel ranks of micro batches of 3 see the same global batch as one rank with 12. */
static void a_global_batch_does_not_depend_on_the_layout(void **state) {
    (void)state;
    struct corpus corpus;
    struct gpt_data data;
    struct gpt_batch whole, part;
    make_corpus(&corpus, (const int32_t[]){300, 200, 100}, 3);
    corpus.options.rules = (struct gpt_rules){.eod_id = 7, .pad_id = -1, .reset_attention_mask = true};
    test_ok(gpt_data_open(&data, &corpus.options));
    test_ok(gpt_batch_init(&whole, 12, 8));
    test_ok(gpt_batch_init(&part, 3, 8));
    test_ok(gpt_batch_read(&whole, &data.splits[0], gpt_batch_first(24, 0, 12, 0, 1)));
    assert_true(whole.segments > 12);
    int64_t segments = 0;
    for (int64_t m = 0; m < 2; m++)
        for (int64_t rank = 0; rank < 2; rank++) {
            int64_t first = gpt_batch_first(24, m, 3, rank, 2);
            test_ok(gpt_batch_read(&part, &data.splits[0], first));
            assert_memory_equal(part.tokens, whole.tokens + (first - 24) * 8, 24 * sizeof *part.tokens);
            assert_memory_equal(part.labels, whole.labels + (first - 24) * 8, 24 * sizeof *part.labels);
            assert_memory_equal(part.sample, whole.sample + (first - 24) * 8, 24 * sizeof *part.sample);
            for (int64_t s = 0; s < part.segments; s++)
                assert_int_equal(part.segment_start[s] + (first - 24) * 8, whole.segment_start[segments + s]);
            segments += part.segments;
        }
    assert_int_equal(segments, whole.segments);
    gpt_batch_free(&whole);
    gpt_batch_free(&part);
    gpt_data_close(&data);
    free(corpus.directory);
}

static void a_run_asks_for_what_it_will_use(void **state) {
    (void)state;
    struct run_config run = {0};
    run.train.train_iters = 100;
    run.train.global_batch_size = 4;
    run.train.eval_interval = 30;
    run.train.eval_iters = 10;
    run.data.seed = 5;
    struct gpt_data_options options = gpt_data_options_of_run(&run);
    assert_int_equal(options.samples[SPLIT_TRAIN], 400);
    assert_int_equal(options.samples[SPLIT_VALID], 160);
    assert_int_equal(options.samples[SPLIT_TEST], GPT_NOT_WANTED);
    assert_int_equal(options.seed, 5);
    run.train.eval_interval = 0;
    assert_int_equal(gpt_data_options_of_run(&run).samples[SPLIT_VALID], GPT_NOT_WANTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_equals_megatron),
        cmocka_unit_test(the_order_is_numpys),
        cmocka_unit_test(the_reference_vectors_hold),
        cmocka_unit_test(the_reference_blend_holds),
        cmocka_unit_test(pads_count_nothing),
        cmocka_unit_test(an_empty_validation_split_is_no_error),
        cmocka_unit_test(impossible_options_are_refused),
        cmocka_unit_test(tokens_outside_the_vocabulary_are_refused),
        cmocka_unit_test(a_global_batch_does_not_depend_on_the_layout),
        cmocka_unit_test(a_run_asks_for_what_it_will_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
