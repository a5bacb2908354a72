/* Steps on the device: what one asks of it, and one that is submitted while another runs. */
#include "infer/sequences.h"
#include "stacks.h"

#include "late/late.h"

enum { T = 20 };

static struct engine_options base_options(const char *device) {
    return (struct engine_options){.device = device,
                                   .model = base_directory(),
                                   .precision = PRECISION_FP32,
                                   .threads = 1,
                                   .max_rows = ROWS,
                                   .max_logit_rows = ROWS,
                                   .max_sequences = 4};
}

/* With the stack in every row. */
static struct engine *open_stack(const struct stack *stack, struct engine_options options) {
    struct directories directories;
    struct engine *engine;
    find_stack(stack, &directories);
    options.adapters = (const char *const *)directories.name;
    options.adapter_count = stack->count;
    test_ok(engine_open(&options, &engine));
    forget_stack(stack, &directories);
    return engine;
}

static const struct stack lora = {{"lora_all_linear"}, 1, 0, 0};

static struct engine *open_adapted(const char *device) {
    return open_stack(&lora, base_options(device));
}

static struct engine_row row_of(int sequence, int text, int i) {
    return (struct engine_row){.token = (text * 7 + i * 5) % V,
                               .sequence = sequence,
                               .wants_logits = true,
                               .label = (text * 7 + i * 5 + 5) % V};
}

struct asked {
    struct late_counts counts;
    int64_t computed;
};

/* One step, and what the host asked for meanwhile. */
static struct asked step(struct engine *engine, const struct engine_row *rows, int count) {
    const struct device *device = engine_rank(engine)->device;
    struct engine_result results[ROWS];
    struct late_counts before = late_counts(device);
    int64_t computed = engine_graphs(engine).replays.rows;
    test_ok(engine_step(engine, rows, count, results));
    struct late_counts after = late_counts(device);
    return (struct asked){.counts = {.uploads = after.uploads - before.uploads,
                                     .downloads = after.downloads - before.downloads,
                                     .moves = after.moves - before.moves,
                                     .waits = after.waits - before.waits,
                                     .operations = after.operations - before.operations,
                                     .replays = after.replays - before.replays},
                          .computed = engine_graphs(engine).replays.rows - computed};
}

/* At the beginning of a page, the pages of all texts change. */
static void a_step_is_one_upload_one_download_and_one_wait(void **state) {
    (void)state;
    int64_t operations[T];
    struct engine *engine = open_adapted("late");
    int sequence[2] = {engine_sequence_new(engine), engine_sequence_new(engine)};
    for (int i = 0; i < T; i++) { /* over the beginning of a page */
        struct engine_row rows[2] = {row_of(sequence[0], 0, i), row_of(sequence[1], 1, i)};
        struct late_counts counts = step(engine, rows, 2).counts;
        assert_int_equal(counts.uploads, 1);
        assert_int_equal(counts.downloads, 1);
        assert_int_equal(counts.moves, 0);
        assert_int_equal(counts.waits, 1);
        operations[i] = counts.operations;
    }
    for (int i = 0; i < T; i++)
        assert_int_equal(operations[i], operations[1] + (i % KV_PAGE_TOKENS == 0));
    engine_close(engine);
}

static void count_decode_steps(struct engine *engine) {
    static const struct sampling greedy = {.top_p = 1, .repetition_penalty = 1};
    struct engine_row rows[ROWS];
    for (int i = 0; i < ROWS; i++) {
        int sequence = engine_sequence_new(engine);
        rows[i] = (struct engine_row){
            .token = i % V, .sequence = sequence, .wants_logits = true, .label = -1, .sampling = &greedy};
    }
    for (int count = 1; count <= ROWS; count++) {
        struct asked asked = step(engine, rows, count);
        assert_int_equal(asked.counts.replays, 1);
        assert_int_equal(asked.counts.operations, 0);
        assert_int_equal(asked.counts.moves, 0);
        assert_int_equal(asked.counts.uploads, 1);
        assert_int_equal(asked.counts.downloads, 1);
        assert_int_equal(asked.counts.waits, 1);
        assert_in_range(asked.computed, count, 2 * count);
        for (int i = 0; i < count; i++)
            if (engine_sequence_length(engine, rows[i].sequence) == T) {
                engine_sequence_close(engine, rows[i].sequence);
                rows[i].sequence = engine_sequence_new(engine);
            }
    }
    engine_close(engine);
}

/* Whatever the number of rows, which a power of two covers: at most twice as many are computed. Adapters are of every
 * method that changes rows, and in stacks. */
static void a_decode_step_is_one_replay(void **state) {
    static const struct stack stacks[] = {
        {{0}, 0, 0, 0},
        {{"lora_all_linear"}, 1, 0, 0},
        {{"lora:300"}, 1, 0, 0},
        {{"dora_all_linear"}, 1, 0, 0},
        {{"ia3"}, 1, 0, 0},
        {{"ia3_inputs"}, 1, 0, 0},
        {{"adapter_seq_bn"}, 1, 0, 0},
        {{"adapter_double_seq_bn"}, 1, 0, 0},
        {{"adapter_par_bn"}, 1, 0, 0},
        {{"adapter_pre_norm"}, 1, 0, 0},
        {{"lora_all_linear", "ia3"}, 2, 0, 0},
        {{"adapter_par_bn", "dora"}, 2, 0, 0},
        {{"adapter_seq_bn", "adapter_pre_norm"}, 2, 0, 0},
        {{"ia3", "adapter_seq_bn", "lora", "adapter_double_seq_bn"}, 4, 0, 0},
        {{"lora", "lora_all_linear", "rslora", "lora_patterns"}, 4, 0, 0},
    };
    struct engine_options options = base_options("late");
    (void)state;
    options.max_sequences = ROWS;
    for (size_t i = 0; i < sizeof stacks / sizeof *stacks; i++)
        count_decode_steps(open_stack(&stacks[i], options));
}

/* log p of each next token of two texts: a step of one text runs while the next of the other is submitted. */
static void run_texts(struct engine *engine, bool is_overlapped, float logprobs[2][T]) {
    int sequence[2] = {engine_sequence_new(engine), engine_sequence_new(engine)};
    for (int i = 0; i < T; i++) {
        struct engine_result results[2];
        for (int text = 0; text < 2; text++) {
            struct engine_row row = row_of(sequence[text], text, i);
            test_ok(engine_submit(engine, &row, 1));
            if (!is_overlapped)
                test_ok(engine_collect(engine, &results[text]));
        }
        for (int text = 0; text < 2 && is_overlapped; text++)
            test_ok(engine_collect(engine, &results[text]));
        for (int text = 0; text < 2; text++)
            logprobs[text][i] = results[text].label_logprob;
    }
    for (int text = 0; text < 2; text++)
        engine_sequence_close(engine, sequence[text]);
}

static void a_step_is_submitted_while_another_runs(void **state) {
    (void)state;
    for (int i = 0; device_name_at(i); i++) {
        struct engine *engine = open_adapted(device_name_at(i));
        float one[2][T], other[2][T];
        run_texts(engine, false, one);
        run_texts(engine, true, other);
        assert_memory_equal(one, other, sizeof one);
        engine_close(engine);
    }
}

/* Nor does the host wait for the device when it submits. */
static void submitting_waits_for_nothing(void **state) {
    (void)state;
    struct engine *engine = open_adapted("late");
    const struct device *device = engine_rank(engine)->device;
    int sequence = engine_sequence_new(engine);
    struct engine_result result;
    struct late_counts before = late_counts(device);
    for (int i = 0; i < 2; i++) {
        struct engine_row row = row_of(sequence, 0, i);
        test_ok(engine_submit(engine, &row, 1));
    }
    assert_int_equal(late_counts(device).waits, before.waits);
    struct engine_row third = row_of(sequence, 0, 2);
    test_fails(engine_submit(engine, &third, 1), STATUS_INVALID, "2 steps are under way already");
    for (int i = 0; i < 2; i++)
        test_ok(engine_collect(engine, &result));
    test_ok(engine_step(engine, &third, 1, &result));
    test_fails(engine_collect(engine, &result), STATUS_INVALID, "no step is under way");
    engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_one_upload_one_download_and_one_wait),
        cmocka_unit_test(a_decode_step_is_one_replay),
        cmocka_unit_test(a_step_is_submitted_while_another_runs),
        cmocka_unit_test(submitting_waits_for_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
