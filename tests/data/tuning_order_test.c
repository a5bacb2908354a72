/* Samples of tuning rows: their order in every layout, packing, padding. */
#include "tuning_files.h"

#include "support/allocations.h"

#include <zlib.h>

/* ---- order ---- */

/* A file of `count` rows "p" + number, and what is trained of them. */
static char *numbered_file(const char *name, int64_t first, int64_t count) {
    struct strbuf text = STRBUF_INIT;
    for (int64_t i = 0; i < count; i++)
        strbuf_format(&text, "{\"prompt\": \"p\", \"completion\": \"%lld%.*s\"}\n", (long long)(first + i),
                      (int)((first + i) * 7 % 11), "..........");
    char *path = write_file(name, text.data);
    strbuf_free(&text);
    return path;
}

/* Returns the number of a row that was shown as "p[12...$]", after virtual tokens. */
static int64_t number_of(const char *shown) {
    const char *digits = strchr(shown, '[');
    assert_non_null(digits);
    return atoll(digits + 1);
}

static int64_t number_at(const struct tuning_data *data, int64_t k, int64_t seq_length) {
    char *shown = show_sample(data, SPLIT_TRAIN, k, seq_length);
    int64_t number = number_of(shown);
    free(shown);
    return number;
}

static void every_epoch_has_each_row_once_in_another_order(void **state) {
    (void)state;
    enum { ROWS_EACH = 37, ROWS_ALL = 2 * ROWS_EACH, EPOCHS = 3 };
    char *a = numbered_file("a.jsonl", 0, ROWS_EACH), *b = numbered_file("b.jsonl", ROWS_EACH, ROWS_EACH);
    const char *paths[] = {a, b};
    struct tuning_options options = options_of(paths, 2);
    struct tuning_data *data, *other;
    int64_t order[EPOCHS][ROWS_ALL];
    int same = 0, same_seed = 0, moved = 0;
    options.epochs = EPOCHS;
    options.seed = 5;
    test_ok(tuning_data_open(&options, &data));
    options.seed = 6;
    test_ok(tuning_data_open(&options, &other));
    assert_int_equal(tuning_data_length(data, SPLIT_TRAIN), EPOCHS * ROWS_ALL);
    assert_int_equal(tuning_data_epoch(data, SPLIT_TRAIN), ROWS_ALL);
    for (int64_t e = 0; e < EPOCHS; e++) {
        bool is_seen[ROWS_ALL] = {false};
        for (int64_t i = 0; i < ROWS_ALL; i++) {
            order[e][i] = number_at(data, e * ROWS_ALL + i, options.seq_length);
            assert_false(is_seen[order[e][i]]);
            is_seen[order[e][i]] = true;
            same += e > 0 && order[e][i] == order[e - 1][i];
            same_seed += number_at(other, e * ROWS_ALL + i, options.seq_length) == order[e][i];
            moved += order[e][i] != i;
        }
    }
    assert_in_range(same, 0, 12); /* about one a pair of orders */
    assert_in_range(same_seed, 0, 15);
    assert_in_range(moved, EPOCHS * ROWS_ALL - 15, EPOCHS * ROWS_ALL);
    tuning_data_close(other);
    tuning_data_close(data);
    options.samples = 100; /* decides, whatever the epochs */
    test_ok(tuning_data_open(&options, &data));
    assert_int_equal(tuning_data_length(data, SPLIT_TRAIN), 100);
    tuning_data_close(data);
    free(a);
    free(b);
}

static void files_are_drawn_by_their_weights(void **state) {
    (void)state;
    char *a = numbered_file("a.jsonl", 0, 5), *b = numbered_file("b.jsonl", 5, 40);
    const char *paths[] = {"3", a, "1", b};
    struct tuning_options options = options_of(paths, 4);
    struct tuning_data *data;
    int counts[45] = {0};
    options.samples = 80;
    test_ok(tuning_data_open(&options, &data));
    assert_int_equal(tuning_data_epoch(data, SPLIT_TRAIN), 45);
    for (int64_t k = 0; k < 80; k++)
        counts[number_at(data, k, options.seq_length)]++;
    for (int i = 0; i < 5; i++)
        assert_int_equal(counts[i], 12); /* 60 of 5 rows */
    int of_b = 0;
    for (int i = 5; i < 45; i++) {
        assert_in_range(counts[i], 0, 1);
        of_b += counts[i];
    }
    assert_int_equal(of_b, 20);
    tuning_data_close(data);
    options.valid = options.train;
    test_fails(tuning_data_open(&options, &data), STATUS_USAGE, "validation files have no weights");
    paths[2] = "x";
    test_fails(tuning_data_open(&options, &data), STATUS_USAGE, "are weights and some are not");
    free(a);
    free(b);
}

/* Global batches of 8 samples, however they are cut into micro batches and ranks. */
static void samples_do_not_depend_on_the_layout(void **state) {
    (void)state;
    enum { GLOBAL = 8, SAMPLES = 24 };
    static const int64_t layouts[][2] = {{1, 8}, {1, 1}, {2, 2}, {4, 2}, {2, 4}}; /* ranks, micro batch size */
    char *path = numbered_file("a.jsonl", 0, 29);
    const char *paths[] = {path};
    struct tuning_options options = options_of(paths, 1);
    char *expected[SAMPLES];
    options.samples = SAMPLES;
    options.is_packed = true;
    options.seq_length = 30;
    options.virtual_tokens = 2;
    for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
        int64_t ranks = layouts[l][0], size = layouts[l][1];
        struct tuning_data *data; /* each opening gives the same */
        struct gpt_batch batch;
        test_ok(tuning_data_open(&options, &data));
        test_ok(gpt_batch_init(&batch, size, options.seq_length));
        for (int64_t consumed = 0; consumed < SAMPLES; consumed += GLOBAL)
            for (int64_t m = 0; m < GLOBAL / ranks / size; m++)
                for (int64_t rank = 0; rank < ranks; rank++) {
                    int64_t first = gpt_batch_first(consumed, m, size, rank, ranks), segment = 0;
                    test_ok(tuning_batch_read(&batch, data, SPLIT_TRAIN, first));
                    for (int64_t k = first; k < first + size; k++) {
                        int64_t next = segment;
                        while (next < batch.segments && batch.sample[batch.segment_start[next]] == k)
                            next++;
                        char *shown = show_segments(&batch, segment, next);
                        assert_int_equal(batch.token[batch.segment_start[segment]], 0);
                        if (l == 0)
                            expected[k] = strdup(shown);
                        assert_string_equal(shown, expected[k]);
                        free(shown);
                        segment = next;
                    }
                    assert_int_equal(segment, batch.segments);
                }
        gpt_batch_free(&batch);
        tuning_data_close(data);
    }
    for (int k = 0; k < SAMPLES; k++)
        free(expected[k]);
    free(path);
}

/* ---- packing ---- */

static void packing_is_first_fit_with_segments_of_their_own(void **state) {
    (void)state;
    struct tuning_options options = options_of(NULL, 0);
    struct gpt_batch batch;
    struct tuning_data *data;
    options.is_packed = true;
    options.seq_length = 12;
    options.virtual_tokens = 1;                                             /* a row of n tokens takes n rows */
    const char *rows = "{\"prompt\": \"1\", \"completion\": \"abcde\"}\n"   /* 7 */
                       "{\"prompt\": \"2\", \"completion\": \"abcdefg\"}\n" /* 9 */
                       "{\"prompt\": \"3\", \"completion\": \"ab\"}\n"      /* 4: after the first */
                       "{\"prompt\": \"4\", \"completion\": \"a\"}\n"       /* 3: after the second */
                       "{\"prompt\": \"5\", \"completion\": \"abcdefghi\"}" /* 11 */;
    check_rows(rows, options, ROWS("~1[abcde$] | ~3[ab$]", "~2[abcdefg$] | ~4[a$]", "~5[abcdefghi$]"));
    char *path = write_file("rows.jsonl", rows);
    const char *paths[] = {path};
    options.train = options.valid = (struct config_list){paths, 1};
    test_ok(tuning_data_open(&options, &data));
    test_ok(gpt_batch_init(&batch, 2, options.seq_length));
    test_ok(tuning_batch_read(&batch, data, SPLIT_VALID, 0));
    assert_int_equal(batch.segments, 4);
    assert_int_equal(batch.rows, 11 + 12);
    for (int64_t s = 0; s < 4; s++)
        assert_int_equal(batch.positions[batch.segment_start[s]], 0);
    for (int64_t i = 0; i < batch.rows; i++) { /* the place is that in the sample, for dropout */
        assert_int_equal(batch.sample[i], i >= 11);
        assert_int_equal(batch.token[i], i < 11 ? i : i - 11);
    }
    gpt_batch_free(&batch);
    tuning_data_close(data);
    free(path);
}

/* The length of samples is that of the longest row of both splits, a multiple, and at most the limit. */
static void samples_can_be_as_long_as_the_longest_row(void **state) {
    (void)state;
    char *path = write_file("fit.jsonl", "{\"prompt\": \"1\", \"completion\": \"abcde\"}\n" /* 7 tokens */
                                         "{\"prompt\": \"2\", \"completion\": \"a\"}\n"
                                         "{\"prompt\": \"3\", \"completion\": \"b\"}");
    char *longer = write_file("longer.jsonl", "{\"prompt\": \"4\", \"completion\": \"abcdefghi\"}"); /* 11 tokens */
    const char *train[] = {path}, *valid[] = {longer};
    static const struct {
        int64_t limit, virtual_tokens, first_position, multiple, expected, samples;
        bool has_valid, is_packed;
    } cases[] = {
        {1000, 0, 0, 0, 7, 3, false, false}, {1000, 2, 0, 0, 9, 3, false, false}, {1000, 0, 3, 0, 10, 3, false, false},
        {1000, 0, 0, 0, 11, 3, true, false}, {1000, 0, 0, 4, 8, 3, false, false}, {7, 0, 0, 4, 7, 3, false, false},
        {5, 0, 0, 0, 5, 3, true, false},     {1000, 0, 0, 0, 7, 2, false, true},  {1000, 0, 0, 0, 11, 1, true, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tuning_options options = options_of(train, 1);
        struct tuning_data *data;
        options.fits_rows = true;
        options.seq_length = cases[i].limit;
        options.virtual_tokens = cases[i].virtual_tokens;
        options.first_position = cases[i].first_position;
        options.row_multiple = cases[i].multiple;
        options.is_packed = cases[i].is_packed;
        if (cases[i].has_valid)
            options.valid = (struct config_list){valid, 1};
        test_ok(tuning_data_open(&options, &data));
        assert_int_equal(tuning_data_seq_length(data), cases[i].expected);
        assert_int_equal(tuning_data_length(data, SPLIT_TRAIN), cases[i].samples);
        tuning_data_close(data);
    }
    free(path);
    free(longer);
}

static int compare_texts(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* All segments of the training split, sorted. */
static char **sorted_segments(const struct tuning_options *options, int64_t count) {
    struct tuning_data *data;
    struct gpt_batch batch;
    char **texts = calloc((size_t)count, sizeof *texts);
    int64_t found = 0;
    test_ok(tuning_data_open(options, &data));
    test_ok(gpt_batch_init(&batch, 1, options->seq_length));
    for (int64_t k = 0; k < tuning_data_length(data, SPLIT_TRAIN); k++) {
        test_ok(tuning_batch_read(&batch, data, SPLIT_TRAIN, k));
        assert_in_range(batch.rows, 1, options->seq_length);
        for (int64_t s = 0; s < batch.segments; s++) {
            assert_true(found < count);
            texts[found++] = show_segments(&batch, s, s + 1);
        }
    }
    assert_int_equal(found, count);
    assert_true(!options->is_packed || tuning_data_length(data, SPLIT_TRAIN) < count / 2);
    qsort(texts, (size_t)count, sizeof *texts, compare_texts);
    gpt_batch_free(&batch);
    tuning_data_close(data);
    return texts;
}

static void packs_hold_the_separate_rows(void **state) {
    (void)state;
    enum { COUNT = 83 };
    char *path = numbered_file("a.jsonl", 0, COUNT);
    const char *paths[] = {path};
    struct tuning_options options = options_of(paths, 1);
    options.seq_length = 40;
    options.virtual_tokens = 3;
    char **separate = sorted_segments(&options, COUNT);
    options.is_packed = true;
    char **packed = sorted_segments(&options, COUNT);
    for (int i = 0; i < COUNT; i++) {
        assert_string_equal(separate[i], packed[i]);
        free(separate[i]);
        free(packed[i]);
    }
    free(separate);
    free(packed);
    free(path);
}

/* ---- batches ---- */

static void batches_are_padded_to_their_multiple_without_loss(void **state) {
    (void)state;
    char *path = numbered_file("a.jsonl", 0, 3);
    const char *paths[] = {path};
    struct tuning_options options = options_of(paths, 1);
    struct tuning_data *data;
    struct gpt_batch batch, odd;
    options.seq_length = 24;
    options.row_multiple = 8;
    options.valid = options.train;
    test_ok(tuning_data_open(&options, &data));
    test_ok(gpt_batch_init(&batch, 2, options.seq_length));
    test_ok(gpt_batch_init(&odd, 1, 20));
    for (int64_t first = 0; first < 6; first += 2) { /* after sample 2 there is none */
        test_ok(tuning_batch_read(&batch, data, SPLIT_VALID, first));
        assert_int_equal(batch.rows % 8, 0);
        assert_in_range(batch.rows, 8, 48);
        char *shown = show_segments(&batch, 0, 0);
        assert_null(shown);
        int64_t start = batch.segment_start[batch.segments - 1];
        assert_int_equal(batch.segments, first == 0 ? 3 : first == 2 ? 2 : 1);
        assert_true(batch.rows - start < 8 || first == 4);
        for (int64_t i = start; i < batch.rows; i++) {
            assert_true(batch.loss_mask[i] == 0);
            assert_int_equal(batch.tokens[i], 0);
            assert_int_equal(batch.labels[i], 0);
            assert_int_equal(batch.positions[i], 0);
        }
    }
    test_fails(tuning_batch_read(&odd, data, SPLIT_VALID, 0), STATUS_INVALID, "of 20 tokens");
    gpt_batch_free(&odd);
    gpt_batch_free(&batch);
    test_ok(gpt_batch_init(&batch, 1, options.seq_length));
    tuning_data_close(data);
    options.row_multiple = 7;
    test_ok(tuning_data_open(&options, &data));
    test_fails(tuning_batch_read(&batch, data, SPLIT_VALID, 0), STATUS_USAGE, "not a multiple of 7 rows");
    gpt_batch_free(&batch);
    tuning_data_close(data);
    free(path);
}

static void batches_are_of_few_sizes_where_asked(void **state) {
    (void)state;
    char *path = numbered_file("a.jsonl", 0, 50);
    const char *paths[] = {path};
    struct tuning_options plain = options_of(paths, 1), options = plain;
    struct tuning_data *data, *exact;
    struct gpt_batch batch, same;
    options.has_few_sizes = true;
    test_ok(tuning_data_open(&options, &data));
    test_ok(tuning_data_open(&plain, &exact));
    for (int64_t samples = 1; samples <= 50; samples += 7) {
        test_ok(gpt_batch_init(&batch, samples, options.seq_length));
        test_ok(gpt_batch_init(&same, samples, options.seq_length));
        test_ok(tuning_batch_read(&batch, data, SPLIT_TRAIN, 0));
        test_ok(tuning_batch_read(&same, exact, SPLIT_TRAIN, 0));
        int64_t most = samples * options.seq_length, step = 16;
        for (int64_t size = 512; size / 2 < batch.rows; size *= 2)
            step = size / 16;
        assert_true(batch.rows == most || batch.rows % step == 0);
        assert_true(batch.rows >= same.rows && batch.rows - same.rows < step);
        assert_memory_equal(batch.tokens, same.tokens, (size_t)same.rows * sizeof *same.tokens);
        assert_memory_equal(batch.loss_mask, same.loss_mask, (size_t)same.rows * sizeof *same.loss_mask);
        for (int64_t i = same.rows; i < batch.rows; i++)
            assert_true(batch.loss_mask[i] == 0);
        gpt_batch_free(&same);
        gpt_batch_free(&batch);
    }
    tuning_data_close(exact);
    tuning_data_close(data);
    free(path);
}

static void reading_a_batch_allocates_nothing(void **state) {
    (void)state;
    if (!allocations_can_be_counted())
        test_skip("this build has an allocator that cannot be counted");
    char *path = numbered_file("a.jsonl", 0, 50);
    const char *paths[] = {path};
    struct tuning_options options = options_of(paths, 1);
    struct tuning_data *data;
    struct gpt_batch batch;
    options.epochs = 4;
    test_ok(tuning_data_open(&options, &data));
    test_ok(gpt_batch_init(&batch, 4, options.seq_length));
    allocations_start();
    for (int64_t k = 0; k < 200; k += 4)
        test_ok(tuning_batch_read(&batch, data, SPLIT_TRAIN, k));
    assert_int_equal(allocations_stop(), 0);
    gpt_batch_free(&batch);
    tuning_data_close(data);
    free(path);
}

static void wide_and_narrow_tokens_are_the_same(void **state) {
    (void)state;
    char *path = numbered_file("a.jsonl", 0, 20), *packed = path_of("a.jsonl.gz");
    struct strbuf text = STRBUF_INIT;
    test_ok(file_read(path, 1 << 20, &text));
    gzFile file = gzopen(packed, "wb");
    assert_int_equal(gzwrite(file, text.data, (unsigned)text.length), text.length);
    assert_int_equal(gzclose(file), Z_OK);
    const char *paths[] = {path}, *packed_paths[] = {packed};
    struct tuning_options options = options_of(paths, 1), wide = options_of(packed_paths, 1);
    struct tuning_data *a, *b;
    wide.vocab_size = 65537;
    test_ok(tuning_data_open(&options, &a));
    test_ok(tuning_data_open(&wide, &b));
    for (int64_t k = 0; k < 20; k++) {
        char *x = show_sample(a, SPLIT_TRAIN, k, 1000), *y = show_sample(b, SPLIT_TRAIN, k, 1000);
        assert_string_equal(x, y);
        free(x);
        free(y);
    }
    tuning_data_close(a);
    tuning_data_close(b);
    assert_int_equal(truncate(packed, 60), 0);
    test_fails(tuning_data_open(&wide, &b), STATUS_INVALID, "a.jsonl.gz: damaged or truncated gzip data");
    strbuf_free(&text);
    free(packed);
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_epoch_has_each_row_once_in_another_order),
        cmocka_unit_test(files_are_drawn_by_their_weights),
        cmocka_unit_test(samples_do_not_depend_on_the_layout),
        cmocka_unit_test(packing_is_first_fit_with_segments_of_their_own),
        cmocka_unit_test(samples_can_be_as_long_as_the_longest_row),
        cmocka_unit_test(packs_hold_the_separate_rows),
        cmocka_unit_test(batches_are_padded_to_their_multiple_without_loss),
        cmocka_unit_test(batches_are_of_few_sizes_where_asked),
        cmocka_unit_test(reading_a_batch_allocates_nothing),
        cmocka_unit_test(wide_and_narrow_tokens_are_the_same),
    };
    return cmocka_run_group_tests(tests, make_tokenizers, free_tokenizers);
}
