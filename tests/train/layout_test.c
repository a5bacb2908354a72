/* The layout does not change the answer. A small GPT with dropout, trained for 20 steps on many layouts of ranks, has
 * the losses, gradient norms and weights of one rank. Ranks are threads. */
#include "train/layout_support.h"

#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__ /* far slower: fewer layouts are tried */
enum { LAYOUTS = 4, PAIRS = 2, OF_LLAMA = 1 };
#else
enum { LAYOUTS = 12, PAIRS = 5, OF_LLAMA = 12 };
#endif
enum { LAYOUTS_LONG = 64, PAIRS_LONG = 30 };

/* ---- tests ---- */

static void choose_recomputation(struct layout *layout, uint32_t which) {
    static const int granularities[] = {GRANULARITY_NONE, GRANULARITY_SELECTIVE, GRANULARITY_FULL, GRANULARITY_FULL,
                                        GRANULARITY_FULL};
    which %= 5;
    layout->granularity = granularities[which];
    layout->method = which == 2 ? METHOD_UNIFORM : METHOD_BLOCK;
    layout->partial = which == 4;
}

/* Stages and chunks, and where stages differ in layers. */
static void choose_pipeline(struct layout *layout, uint32_t which) {
    static const struct {
        int pipeline, chunks, first, last;
    } pipelines[] = {{1, 1, 0, 0}, {2, 1, 0, 0}, {2, 2, 0, 0}, {4, 1, 0, 0}, {4, 2, 0, 0},
                     {2, 1, 5, 3}, {2, 2, 6, 0}, {4, 1, 1, 1}, {4, 1, 0, 2}, {1, 1, 0, 0}};
    which %= sizeof pipelines / sizeof *pipelines;
    layout->pipeline = pipelines[which].pipeline;
    layout->chunks = pipelines[which].chunks;
    layout->first = pipelines[which].first;
    layout->last = pipelines[which].last;
}

/* One of all the layouts of up to RANKS_MOST ranks. */
static struct layout random_layout(uint32_t number, uint32_t use) {
    struct layout layout = {0};
    for (uint32_t attempt = 0; !layout.tensor; attempt++) {
        struct philox r = philox(11, number, attempt, use, (uint32_t)RNG_TEST << 24);
        layout = (struct layout){.tensor = 1 << r.word[0] % 3,
                                 .data = 1 << (r.word[0] >> 8) % 3,
                                 .micro_batch_size = 1 + (int)(r.word[2] % 2),
                                 .sharding = (int)(r.word[1] % 4),
                                 .kept = r.word[1] & 4 ? 2 : 0,
                                 .is_sequence_parallel = r.word[3] & 2};
        choose_pipeline(&layout, number); /* so that a few numbers have all of them */
        choose_recomputation(&layout, r.word[3] >> 8);
        int micro_batches = BATCH / layout.micro_batch_size / layout.data;
        if (layout.chunks > 1 && micro_batches > layout.pipeline && r.word[3] & 4)
            layout.group = micro_batches;
        if (ranks_of(&layout) > RANKS_MOST || (layout.is_sequence_parallel && layout.tensor == 1) ||
            (layout.sharding && layout.data == 1))
            layout.tensor = 0; /* too many, or the same as without */
    }
    return layout;
}

enum use { USE_TIED, USE_UNTIED, USE_FROM, USE_TO, USE_AGAIN, USE_BF16 };

static void check_layouts(bool is_untied, const char *family, uint32_t count) {
    char *prefix = write_text();
    struct outcome whole, cut;
    struct layout one = one_rank;
    one.is_untied = is_untied;
    one.family = family;
    train((const char **)&prefix, &one, 0, steps(), &whole);
    for (uint32_t i = 0; i < count; i++) {
        struct layout layout = random_layout(i, is_untied ? USE_UNTIED : USE_TIED);
        layout.is_untied = is_untied;
        layout.family = family;
        if (family && i % 4 == 0) { /* tensor ranks that share keys and values, in one of these with the rows cut */
            layout.tensor = 4;
            layout.data = layout.pipeline = layout.chunks = 1;
            layout.first = layout.last = layout.group = layout.partial = 0;
            layout.sharding = SHARDING_NONE;
            layout.is_sequence_parallel = i % 8 == 0;
        }
        train((const char **)&prefix, &layout, 0, steps(), &cut);
        compare(&whole, &cut, &layout);
        free(cut.directory);
        char *directory = new_directory();
        prove((const char **)&prefix, &layout, directory);
        free(directory);
    }
    free(whole.directory);
    free(prefix);
}

static void every_layout_trains_as_one_rank(void **state) {
    (void)state;
    check_layouts(false, NULL, test_is_long() ? LAYOUTS_LONG : LAYOUTS);
}

static void so_with_a_head_of_its_own(void **state) {
    (void)state;
    check_layouts(true, NULL, test_is_long() ? LAYOUTS_LONG : LAYOUTS);
}

static void so_does_a_llama(void **state) {
    (void)state;
    check_layouts(true, "llama", test_is_long() ? LAYOUTS_LONG : OF_LLAMA);
}

static void so_do_its_variants(void **state) {
    (void)state;
    check_layouts(false, "qwen3", LAYOUTS / 3);
    check_layouts(true, "mistral", LAYOUTS / 3);
}

/* Four tensor ranks held two groups of keys and values; two ranks and one continue. */
static void a_llama_resumes_with_fewer_tensor_ranks(void **state) {
    (void)state;
    char *prefix = write_text();
    struct outcome whole, moved;
    struct layout layout = one_rank;
    layout.family = "llama";
    train((const char **)&prefix, &layout, 0, steps(), &whole);
    for (int tensor = 1; tensor <= 2; tensor++) {
        layout.tensor = 4;
        train((const char **)&prefix, &layout, 0, steps() / 2, &moved);
        layout.tensor = tensor;
        train((const char **)&prefix, &layout, steps() / 2, steps(), &moved);
        compare(&whole, &moved, &layout);
        free(moved.directory);
    }
    free(whole.directory);
    free(prefix);
}

static void in_bf16_a_dozen_layouts_train_as_one_rank(void **state) {
    (void)state;
    test_skip_without_bf16();
    char *prefix = write_text();
    struct outcome whole, cut;
    struct layout one = one_rank;
    one.is_bf16 = true;
    train((const char **)&prefix, &one, 0, steps(), &whole);
    for (uint32_t i = 0; i < (test_is_long() ? 12 : LAYOUTS / 4); i++) {
        struct layout layout = random_layout(i, USE_BF16);
        layout.is_bf16 = true;
        train((const char **)&prefix, &layout, 0, steps(), &cut);
        compare_steps(&whole, &cut, &layout);
        free(cut.directory);
    }
    free(whole.directory);
    free(prefix);
}

/* In bf16 the order of sums shows; whether the optimizer is cut changes no order. */
static void cutting_the_optimizer_changes_nothing_in_bf16(void **state) {
    (void)state;
    test_skip_without_bf16();
    char *prefix = write_text();
    for (int tensor = 1; tensor <= 2; tensor++) {
        struct outcome whole, cut;
        struct layout layout = one_rank;
        layout.tensor = tensor;
        layout.data = 4;
        layout.is_bf16 = true;
        train((const char **)&prefix, &layout, 0, steps(), &whole);
        layout.sharding = SHARDING_OPTIM;
        train((const char **)&prefix, &layout, 0, steps(), &cut);
        compare(&whole, &cut, &layout);
        free(whole.directory);
        free(cut.directory);
    }
    free(prefix);
}

static void when_sums_and_weights_travel_changes_no_bit(void **state) {
    (void)state;
    char *prefix = write_text();
    for (int which = 0; which < (test_has_bf16() ? 4 : 2); which++) {
        struct outcome waits, overlaps;
        struct layout layout = one_rank;
        size_t bytes, other_bytes;
        layout.data = 2;
        layout.pipeline = 1 + which % 2;
        layout.chunks = 1 + which % 2;
        layout.sharding = SHARDING_OPTIM;
        layout.is_bf16 = which / 2;
        train((const char **)&prefix, &layout, 0, steps(), &overlaps);
        layout.waits = true;
        train((const char **)&prefix, &layout, 0, steps(), &waits);
        assert_memory_equal(overlaps.loss, waits.loss, (size_t)steps() * sizeof *waits.loss);
        assert_memory_equal(overlaps.norm, waits.norm, (size_t)steps() * sizeof *waits.norm);
        char *file = read_checkpoint(&waits, "model.safetensors", &bytes);
        char *other = read_checkpoint(&overlaps, "model.safetensors", &other_bytes);
        assert_int_equal(bytes, other_bytes);
        assert_memory_equal(file, other, bytes);
        free(file);
        free(other);
        free(waits.directory);
        free(overlaps.directory);
    }
    free(prefix);
}

/* Checks that two runs have the same losses and write the same bytes. */
static void expect_same_bytes(const struct outcome *a, const struct outcome *b, const char *what) {
    static const char *const names[] = {"model.safetensors", "optimizer.safetensors"};
    assert_memory_equal(a->loss, b->loss, (size_t)steps() * sizeof *a->loss);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t bytes, other_bytes;
        char *file = read_checkpoint(a, names[i], &bytes), *other = read_checkpoint(b, names[i], &other_bytes);
        if (bytes != other_bytes || memcmp(file, other, bytes))
            fail_msg("%s: %s is not the same", what, names[i]);
        free(file);
        free(other);
    }
}

/* The sum over data ranks is in their order, so a share has the bits of the whole sum. Nothing else is added in another
 * order, since each rank has one micro batch. A run resumes with any other strategy. */
static void every_sharding_strategy_writes_the_same_bytes(void **state) {
    (void)state;
    char *prefix = write_text(), text[256];
    for (int is_bf16 = 0; is_bf16 <= test_has_bf16(); is_bf16++) {
        struct layout layout = {.tensor = 1, .data = 4, .pipeline = 1, .chunks = 1, .micro_batch_size = 2};
        struct outcome whole, cut;
        layout.is_untied = layout.is_unclipped = true;
        layout.is_bf16 = is_bf16;
        train((const char **)&prefix, &layout, 0, steps(), &whole);
        for (int from = SHARDING_NONE; from <= SHARDING_OPTIM_GRADS_PARAMS; from++) {
            layout.sharding = from;
            layout.kept = from == SHARDING_OPTIM_GRADS_PARAMS ? is_bf16 : 0;
            layout.waits = is_bf16;
            train((const char **)&prefix, &layout, 0, steps() / 2, &cut);
            for (int to = SHARDING_NONE; to <= SHARDING_OPTIM_GRADS_PARAMS; to++) {
                if (is_bf16 && to != (from + 1) % 4)
                    continue;
                struct outcome moved = cut;
                layout.sharding = to;
                continue_elsewhere((const char **)&prefix, &layout, &cut, &moved);
                snprintf(text, sizeof text, "from %s to %s", run_shardings[from], run_shardings[to]);
                expect_same_bytes(&whole, &moved, text);
                free(moved.directory);
            }
            free(cut.directory);
        }
        free(whole.directory);
    }
    free(prefix);
}

static void a_run_resumes_in_any_other_layout(void **state) {
    (void)state;
    char *prefix = write_text(), text[256];
    struct outcome whole, moved;
    train((const char **)&prefix, &one_rank, 0, steps(), &whole);
    for (uint32_t pair = 0; pair < (test_is_long() ? PAIRS_LONG : PAIRS); pair++) {
        struct layout from = random_layout(pair, USE_FROM), to = random_layout(pair, USE_TO);
        train((const char **)&prefix, &from, 0, steps() / 2, &moved);
        train((const char **)&prefix, &to, steps() / 2, steps(), &moved);
        print_message("from %s\n", describe(&from, text));
        compare(&whole, &moved, &to);
        free(moved.directory);
    }
    free(whole.directory);
    free(prefix);
}

/* A layout loads a checkpoint and saves it again: every file has the same bytes. */
static void check_saved_again(const char **prefix, bool is_bf16, uint32_t number) {
    static const char *const names[] = {"model.safetensors", "optimizer.safetensors", "trainer_state.json",
                                        "config.json"};
    struct outcome whole, again = {.directory = new_directory()};
    struct layout one = one_rank, layout = random_layout(number, USE_AGAIN);
    char text[256];
    one.is_bf16 = layout.is_bf16 = is_bf16;
    train(prefix, &one, 0, steps(), &whole);
    struct task task = {.run = make_layout_run(prefix, &layout, &again), .outcome = &again, .last = steps()};
    load_from(&task, &whole, steps());
    task.run.progress = (struct train_progress){.has_loss = true, .loss = whole.loss[steps() - 1]};
    test_ok(comm_local_run(ranks_of(&layout), run_rank, &task));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t bytes, again_bytes;
        char *file = read_checkpoint(&whole, names[i], &bytes);
        char *again_file = read_checkpoint(&again, names[i], &again_bytes);
        if (bytes != again_bytes || memcmp(file, again_file, bytes))
            fail_msg("%s: %s is not the same", describe(&layout, text), names[i]);
        free(file);
        free(again_file);
    }
    free(whole.directory);
    free(again.directory);
}

static void a_checkpoint_saved_again_by_any_layout_has_the_same_bytes(void **state) {
    (void)state;
    char *prefix = write_text();
    for (uint32_t i = 0; i < (test_is_long() ? 20 : 4); i++)
        check_saved_again((const char **)&prefix, i % 2 && test_has_bf16(), i);
    free(prefix);
}

/* Ends that count as layers: chunks of a stage differ, and some have an end and no layers. The second half of each run
 * is on one rank. */
static void ends_that_count_as_layers_train_as_one_rank(void **state) {
    (void)state;
    static const struct layout layouts[] = {
        {.tensor = 2, .data = 2, .pipeline = 2, .chunks = 1, .counts_embedding = true, .counts_loss = true},
        {.tensor = 1, .data = 1, .pipeline = 2, .chunks = 5, .counts_embedding = true, .counts_loss = true},
        {.tensor = 2, .data = 1, .pipeline = 3, .chunks = 3, .counts_embedding = true, .is_untied = true},
        {.tensor = 1,
         .data = 2,
         .pipeline = 3,
         .chunks = 3,
         .counts_loss = true,
         .sharding = SHARDING_OPTIM_GRADS_PARAMS},
        {.tensor = 1, .data = 1, .pipeline = 3, .chunks = 1, .counts_loss = true, .is_untied = true},
        {.tensor = 1, .data = 1, .pipeline = 5, .chunks = 2, .counts_embedding = true, .counts_loss = true},
        {.tensor = 1,
         .data = 2,
         .pipeline = 3,
         .chunks = 1,
         .counts_embedding = true,
         .sharding = SHARDING_OPTIM_GRADS},
    };
    char *prefix = write_text();
    struct outcome whole[2], half;
    struct layout one = one_rank;
    for (int is_untied = 0; is_untied < 2; is_untied++) {
        one.is_untied = is_untied;
        train((const char **)&prefix, &one, 0, steps(), &whole[is_untied]);
    }
    for (uint32_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        struct layout layout = layouts[i];
        layout.micro_batch_size = 1 + (int)i % 2;
        layout.is_sequence_parallel = layout.tensor > 1 && i;
        choose_recomputation(&layout, i + 1);
        one.is_untied = layout.is_untied;
        train((const char **)&prefix, &layout, 0, steps() / 2, &half);
        train((const char **)&prefix, i % 2 ? &layout : &one, steps() / 2, steps(), &half);
        compare(&whole[layout.is_untied], &half, &layout);
        free(half.directory);
    }
    free(whole[0].directory);
    free(whole[1].directory);
    free(prefix);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_trains_as_one_rank),
        cmocka_unit_test(so_with_a_head_of_its_own),
        cmocka_unit_test(so_does_a_llama),
        cmocka_unit_test(so_do_its_variants),
        cmocka_unit_test(a_llama_resumes_with_fewer_tensor_ranks),
        cmocka_unit_test(in_bf16_a_dozen_layouts_train_as_one_rank),
        cmocka_unit_test(cutting_the_optimizer_changes_nothing_in_bf16),
        cmocka_unit_test(when_sums_and_weights_travel_changes_no_bit),
        cmocka_unit_test(every_sharding_strategy_writes_the_same_bytes),
        cmocka_unit_test(ends_that_count_as_layers_train_as_one_rank),
        cmocka_unit_test(a_run_resumes_in_any_other_layout),
        cmocka_unit_test(a_checkpoint_saved_again_by_any_layout_has_the_same_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
