/* Groups of ranks and layers of stages, compared with megatron-core's answers; and layouts that are refused. */
#include "support/test.h"

#include "base/base.h"
#include "parallel/layout.h"

/* Calls `check` with each line of the golden file that begins with `word`. Returns their number. */
static int each_case(const char *word, void (*check)(const char *line)) {
    FILE *file = fopen(TEST_DATA "/parallel/golden/megatron.txt", "r");
    assert_non_null(file);
    char line[4096];
    int cases = 0;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, word, strlen(word)))
            continue;
        check(line);
        cases++;
    }
    fclose(file);
    return cases;
}

/* ---- groups ---- */

static unsigned axes_named(const char *names) {
    return (strstr(names, "tp") ? GRID_TENSOR : 0u) | (strstr(names, "cp") ? GRID_CONTEXT : 0u) |
           (strstr(names, "ep") ? GRID_EXPERT : 0u) | (strstr(names, "dp") ? GRID_DATA : 0u) |
           (strstr(names, "pp") ? GRID_PIPELINE : 0u);
}

static void groups_line(const char *line) {
    struct rank_grid grid;
    char axes[16];
    int at = 0;
    assert_int_equal(sscanf(line, "groups %d %d %d %d %d %15s : %n", &grid.tensor, &grid.context, &grid.expert,
                            &grid.data, &grid.pipeline, axes, &at),
                     6);
    /* Every group once, in the order of its first rank; every member names the same group. */
    struct strbuf text = STRBUF_INIT;
    int ranks[32], others[32], size = rank_grid_size(&grid);
    assert_in_range(size, 1, 32);
    for (int rank = 0; rank < size; rank++) {
        int count = rank_grid_group(&grid, axes_named(axes), rank, ranks);
        assert_int_equal(count, rank_grid_group_size(&grid, axes_named(axes)));
        bool is_member = false;
        for (int i = 0; i < count; i++)
            is_member |= ranks[i] == rank;
        assert_true(is_member);
        assert_int_equal(rank_grid_group(&grid, axes_named(axes), ranks[0], others), count);
        assert_memory_equal(ranks, others, sizeof *ranks * (size_t)count);
        for (int i = 0; i < count && ranks[0] == rank; i++)
            strbuf_format(&text, "%s%d", i ? "," : text.length ? " " : "", ranks[i]);
    }
    assert_string_equal(strbuf_text(&text), line + at);
    strbuf_free(&text);
}

static void groups_are_megatron_cores(void **state) {
    (void)state;
    assert_int_equal(each_case("groups", groups_line), 40);
}

static void embeddings_are_shared_by_first_and_last_stage(void **state) {
    (void)state;
    struct rank_grid grid = {.tensor = 2, .context = 1, .expert = 1, .data = 2, .pipeline = 4};
    for (int rank = 0; rank < 16; rank++) {
        int ranks[2], count = rank_grid_embedding_group(&grid, rank, ranks);
        bool is_end = rank < 4 || rank >= 12;
        assert_int_equal(count, is_end ? 2 : 0);
        if (is_end) {
            assert_int_equal(ranks[0], rank % 4);
            assert_int_equal(ranks[1], 12 + rank % 4);
        }
    }
    grid.pipeline = 1;
    int ranks[2];
    assert_int_equal(rank_grid_embedding_group(&grid, 3, ranks), 1);
    assert_int_equal(ranks[0], 3);
}

static void data_parallelism_is_what_is_left(void **state) {
    (void)state;
    struct rank_grid grid = {.tensor = 2, .context = 1, .expert = 1, .pipeline = 4};
    test_ok(rank_grid_fill(&grid, 24));
    assert_int_equal(grid.data, 3);
    test_fails(
        rank_grid_fill(&grid, 4), STATUS_USAGE,
        "parallel.tensor_model_parallel_size 2 x parallel.pipeline_model_parallel_size 4 needs 8 ranks, and there "
        "are 4");
    test_fails(rank_grid_fill(&grid, 12), STATUS_USAGE, "is 8, which does not divide the 12 ranks: start 8 or 16");
    grid = (struct rank_grid){.tensor = 65536, .context = 65536, .expert = 65536, .pipeline = 65536};
    test_fails(rank_grid_fill(&grid, 8), STATUS_USAGE, "needs 4294967296 ranks");
}

/* ---- layers ---- */

static void layers_line(const char *line) {
    struct pipeline_split split = {0};
    long long layers, stages, chunks, first, last;
    int at = 0, counts_embedding, counts_loss;
    assert_int_equal(sscanf(line, "layers %lld %lld %lld %lld %lld %d %d : %n", &layers, &stages, &chunks, &first,
                            &last, &counts_embedding, &counts_loss, &at),
                     7);
    split = (struct pipeline_split){layers, stages, chunks, first, last, counts_embedding, counts_loss};
    struct strbuf text = STRBUF_INIT;
    for (int64_t stage = 0; stage < stages; stage++)
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            int64_t begin, count;
            test_ok(pipeline_layers(&split, stage, chunk, &begin, &count));
            strbuf_format(&text, "%s%lld+%lld", text.length ? " " : "", (long long)begin, (long long)count);
        }
    assert_string_equal(strbuf_text(&text), line + at);
    strbuf_free(&text);
}

static void layers_of_stages_are_megatron_cores(void **state) {
    (void)state;
    assert_int_equal(each_case("layers", layers_line), 21);
}

static void every_layer_has_one_place(void **state) {
    (void)state;
    int splits = 0;
    for (int64_t layers = 1; layers <= 24; layers++)
        for (int64_t stages = 1; stages <= 6; stages++)
            for (int64_t chunks = 1; chunks <= 3; chunks++)
                for (int64_t first = 0; first <= layers; first++)
                    for (int64_t last = 0; last <= layers; last++) {
                        struct pipeline_split split = {layers, stages, chunks, first, last, false, false};
                        if (!pipeline_split_fits(&split))
                            continue;
                        int64_t next = 0, begin, count; /* walks along the model */
                        for (int64_t place = 0; place < stages * chunks; place++) {
                            test_ok(pipeline_layers(&split, place % stages, place / stages, &begin, &count));
                            assert_int_equal(begin, next);
                            assert_true(count > 0);
                            next += count;
                        }
                        assert_int_equal(next, layers);
                        splits++;
                    }
    assert_true(splits > 1000);
}

/* Every layer has one place, and only an end that counts may be without layers. */
static void ends_that_count_take_the_place_of_a_layer(void **state) {
    (void)state;
    int splits = 0;
    for (int64_t layers = 1; layers <= 24; layers++)
        for (int64_t stages = 2; stages <= 6; stages++)
            for (int64_t chunks = 1; chunks <= 4; chunks++)
                for (int ends = 1; ends < 4; ends++) {
                    struct pipeline_split split = {layers, stages, chunks, 0, 0, ends & 1, ends & 2};
                    bool divides = (layers + (ends & 1) + ends / 2) % (stages * chunks) == 0;
                    assert_int_equal(pipeline_split_fits(&split), divides);
                    if (!divides)
                        continue;
                    int64_t next = 0, begin, count, places = stages * chunks;
                    for (int64_t place = 0; place < places; place++) {
                        test_ok(pipeline_layers(&split, place % stages, place / stages, &begin, &count));
                        bool is_counted = (place == 0 && ends & 1) || (place == places - 1 && ends & 2);
                        assert_int_equal(begin, next);
                        assert_int_equal(count + is_counted, (layers + (ends & 1) + ends / 2) / places);
                        next += count;
                    }
                    assert_int_equal(next, layers);
                    splits++;
                }
    assert_true(splits > 100);
    struct pipeline_split one = {7, 1, 1, 0, 0, true, true}, uneven = {12, 2, 1, 9, 0, true, false};
    int64_t begin, count;
    test_ok(pipeline_layers(&one, 0, 0, &begin, &count)); /* one stage has all */
    assert_int_equal(count, 7);
    test_fails(pipeline_split_check(&uneven), STATUS_USAGE,
               "parallel.account_for_embedding_in_pipeline_split (with which no stage has its own number)");
    uneven = (struct pipeline_split){126, 16, 3, 0, 0, true, true};
    test_fails(pipeline_split_check(&uneven), STATUS_USAGE,
               "parallel.account_for_loss_in_pipeline_split; nearest that work: "
               "parallel.virtual_pipeline_model_parallel_size 2 or 4, model.num_layers 94 or 142");
}

static void splits_that_cannot_be_name_the_nearest(void **state) {
    (void)state;
    const struct {
        struct pipeline_split split;
        const char *text;
    } cases[] = {
        {{13, 4, 1, 0, 0, false, false},
         "model.num_layers 13 cannot be spread over parallel.pipeline_model_parallel_size 4; nearest that work: "
         "parallel.decoder_first_pipeline_num_layers 1 or 4, parallel.pipeline_model_parallel_size 1 or 13, "
         "model.num_layers 12 or 16"},
        {{12, 2, 1, 9, 4, false, false},
         "parallel.decoder_first_pipeline_num_layers 9, parallel.decoder_last_pipeline_num_layers 4; nearest that "
         "work: "
         "parallel.decoder_first_pipeline_num_layers 8, parallel.decoder_last_pipeline_num_layers 3"},
        {{12, 4, 2, 0, 0, false, false}, "parallel.virtual_pipeline_model_parallel_size 1 or 3"},
        {{12, 1, 1, 9, 0, false, false}, "one stage has no chunks, and all layers"},
        {{12, 1, 2, 0, 0, false, false}, "parallel.pipeline_model_parallel_size 2"},
        {{4, 8, 1, 0, 0, false, false}, "parallel.pipeline_model_parallel_size 4"},
        {{12, 3, 1, 12, 0, false, false}, "parallel.decoder_first_pipeline_num_layers 10"},
        {{12, 2, 1, -1, 0, false, false}, "decoder_first_pipeline_num_layers -1"},
        {{INT64_MAX, 7, INT64_MAX, 3, 0, false, false}, "cannot be spread"},
        {{INT64_MAX - 6, 7, 1, INT64_MAX - 6, INT64_MAX, false, false}, "cannot be spread"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        test_fails(pipeline_split_check(&cases[i].split), STATUS_USAGE, cases[i].text);
    struct pipeline_split split = {12, 2, 1, 9, 0, false, false};
    int64_t first, count;
    test_fails(pipeline_layers(&split, 2, 0, &first, &count), STATUS_USAGE, "chunk 0 of stage 2");
}

/* ---- whole layouts ---- */

/* GPT-2 124M, a global batch of 16. */
static struct parallel_layout layout_of(int tensor, int data, int pipeline) {
    return (struct parallel_layout){
        .grid = {.tensor = tensor, .context = 1, .expert = 1, .data = data, .pipeline = pipeline},
        .chunks = 1,
        .layers = 12,
        .heads = 12,
        .query_groups = 12,
        .ffn_hidden = 3072,
        .seq_length = 1024,
        .micro_batch = 1,
        .global_batch = 16,
    };
}

static void layouts_that_work_pass(void **state) {
    (void)state;
    const int sizes[][3] = {{1, 1, 1}, {4, 2, 2}, {2, 16, 1}, {12, 1, 12}, {1, 4, 3}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct parallel_layout layout = layout_of(sizes[i][0], sizes[i][1], sizes[i][2]);
        layout.sequence_parallel = sizes[i][0] != 12;
        test_ok(parallel_layout_check(&layout));
    }
    struct parallel_layout layout = layout_of(2, 2, 2);
    layout.first = 9;
    layout.vocab = 50304;
    test_ok(parallel_layout_check(&layout));
    layout.global_batch = 0; /* inference */
    test_ok(parallel_layout_check(&layout));
}

static void layouts_that_cannot_be_name_the_nearest(void **state) {
    (void)state;
    struct parallel_layout layout = layout_of(8, 1, 2);
    test_fails(parallel_layout_check(&layout), STATUS_USAGE,
               "model.num_attention_heads 12 is not divisible by parallel.tensor_model_parallel_size 8 (8 and 16 are); "
               "nearest that work with the same 16 ranks: tensor 4 pipeline 2 data 2, ");
    layout = layout_of(1, 2, 8);
    test_fails(parallel_layout_check(&layout), STATUS_USAGE,
               "model.num_layers 12 cannot be spread over parallel.pipeline_model_parallel_size 8");
    test_fails(parallel_layout_check(&layout), STATUS_USAGE, "16 ranks: tensor 1 pipeline 4 data 4,");
    layout = layout_of(1, 3, 1);
    test_fails(
        parallel_layout_check(&layout), STATUS_USAGE,
        "train.global_batch_size 16 is not divisible by train.micro_batch_size x data-parallel ranks 3 (15 and 18 "
        "are); nearest that work with the same 3 ranks: tensor ");
    layout = layout_of(4, 1, 1);
    layout.query_groups = 2; /* two ranks hold each */
    test_ok(parallel_layout_check(&layout));
    layout.query_groups = 3;
    test_fails(parallel_layout_check(&layout), STATUS_USAGE,
               "model.num_query_groups 3 is not divisible by parallel.tensor_model_parallel_size 4, nor that by it");
    layout = layout_of(4, 1, 1);
    layout.ffn_hidden = 3070;
    test_fails(parallel_layout_check(&layout), STATUS_USAGE, "model.ffn_hidden_size 3070");
    layout = layout_of(4, 1, 1);
    layout.vocab = 50257;
    test_fails(parallel_layout_check(&layout), STATUS_USAGE, "50257 is not divisible");
    layout = layout_of(3, 1, 1);
    layout.sequence_parallel = true;
    test_fails(parallel_layout_check(&layout), STATUS_USAGE, "data.seq_length (sequence_parallel) 1024");
    layout.sequence_parallel = false;
    test_ok(parallel_layout_check(&layout));
    layout = layout_of(7, 1, 1); /* no way to cut 7 */
    test_fails(parallel_layout_check(&layout), STATUS_USAGE,
               "; nearest that work, with 6 ranks: tensor 6 pipeline 1 data 1");
}

static void the_nearest_layouts_do_work(void **state) {
    (void)state;
    for (int t = 1; t <= 16; t++)
        for (int p = 1; p <= 16; p++)
            for (int d = 1; d <= 5; d++) {
                struct parallel_layout layout = layout_of(t, d, p);
                if (!parallel_layout_check(&layout))
                    continue;
                const char *text = strstr(status_text(), " ranks: tensor ");
                assert_non_null(text);
                assert_int_equal(sscanf(text, " ranks: tensor %d pipeline %d data %d", &layout.grid.tensor,
                                        &layout.grid.pipeline, &layout.grid.data),
                                 3);
                test_ok(parallel_layout_check(&layout));
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_are_megatron_cores),
        cmocka_unit_test(embeddings_are_shared_by_first_and_last_stage),
        cmocka_unit_test(data_parallelism_is_what_is_left),
        cmocka_unit_test(layers_of_stages_are_megatron_cores),
        cmocka_unit_test(every_layer_has_one_place),
        cmocka_unit_test(ends_that_count_take_the_place_of_a_layer),
        cmocka_unit_test(splits_that_cannot_be_name_the_nearest),
        cmocka_unit_test(layouts_that_work_pass),
        cmocka_unit_test(layouts_that_cannot_be_name_the_nearest),
        cmocka_unit_test(the_nearest_layouts_do_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
