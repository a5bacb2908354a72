/* The list of a rank's work: its FLOPs against the known formulas, its collectives against arithmetic, its bytes
 * against the memory that an opened model has. */
#include "model/support.h"

#include <string.h>

enum { T = 32, B = 3, N = B * T, L = 3 };
static const double C = TEST_HIDDEN, F = TEST_FFN, V = TEST_VOCAB, LAYERS = L, ROWS = N;

static struct model_options train_options(void) {
    struct model_options options = {.base.config = test_config(L, T),
                                    .base.dtype = DTYPE_F32,
                                    .base.trains = true,
                                    .max_rows = N,
                                    .train.segment_rows = T};
    options.base.config.vocab_size = 4 * TEST_VOCAB; /* divides */
    return options;
}

/* The list of a rank of a grid, planned alone. */
static void plan(struct test_model *t, const struct model_options *options, struct rank_grid grid, int number,
                 bool is_sequence_parallel) {
    *t = (struct test_model){0};
    test_ok(device_open(test_device(), DEVICE_FIRST, 1, &t->device));
    rank_sketch(&t->rank, &grid, number, t->device);
    t->rank.is_sequence_parallel = is_sequence_parallel;
    test_ok(test_plan_training(options, &t->rank, NULL));
}

static const struct rank_grid alone = {1, 1, 1, 1, 1};

/* The bytes of this rank's operands in the collectives of a group. */
static double work_group_bytes(const struct work_list *list, enum work_part part, enum rank_group group) {
    double bytes = 0;
    for (int i = 0; i < list->count; i++)
        if (list->items[i].part == part && list->items[i].group == group)
            bytes += (double)list->items[i].count * list->items[i].work.bytes;
    return bytes;
}

/* FLOPs of one operation in one part. */
static double flops_of(const struct test_model *t, enum op op, enum work_part part) {
    double flops = 0;
    for (int i = 0; i < t->rank.work.count; i++) {
        const struct work_item *item = &t->rank.work.items[i];
        if (item->part == part && item->op == op)
            flops += (double)item->count * item->work.flops;
    }
    return flops;
}

static void is_about_at(double a, double b, int line) {
    if (fabs(a - b) > 1e-12 * fabs(b))
        fail_msg("line %d: %.17g is not %.17g", line, a, b);
}
#define is_about(a, b) is_about_at(a, b, __LINE__)

static const double BLOCK = 4 * C * C + 2 * C * F; /* elements of a layer's matrices */

/* 2 FLOPs for each row and element forward, 4 backward, where the head has both; attention has two products of the
 * pairs that rows see forward, and five backward. */
static void the_flops_of_a_step_are_the_formula(void **state) {
    (void)state;
    struct test_model t;
    struct model_options options = train_options();
    double layers = LAYERS * BLOCK, head = 4 * V * C, pairs = B * T * (T + 1) / 2.0;
    for (int precision = 0; precision < 2; precision++) {
        options.base.dtype = precision ? DTYPE_BF16 : DTYPE_F32;
        plan(&t, &options, alone, 0, false);
        is_about(flops_of(&t, OP_gemm, WORK_FORWARD), 2 * ROWS * layers);
        is_about(flops_of(&t, OP_gemm, WORK_BACKWARD), ROWS * (4 * layers + 6 * head));
        is_about(flops_of(&t, OP_attention_forward, WORK_FORWARD), LAYERS * 2 * 2 * pairs * C);
        is_about(flops_of(&t, OP_attention_backward, WORK_BACKWARD), LAYERS * 5 * 2 * pairs * C);
        test_model_close(&t);
    }
}

/* Three forwards are the published formula: six for each weight and token, biases and norms included. It counts half of
 * all pairs, and so half of the diagonal less than there is. */
static void model_flops_are_three_forwards(void **state) {
    (void)state;
    struct test_model t;
    struct model_options options = train_options();
    struct work_list list;
    const struct model_step_shape shape = {.rows = N, .logit_rows = N, .seen = (T + 1) / 2.0};
    options.infer = (struct model_inference){.max_logit_rows = N, .max_sequences = B, .max_pages = 2};
    for (int family = 0; family < 2; family++) {
        if (family) {
            options.base.config.normalization = NORMALIZATION_RMS;
            options.base.config.swiglu = true;
            options.base.config.num_query_groups = TEST_HEADS / 2;
            options.base.config.add_bias_linear = false;
            options.base.config.position_embedding = POSITION_ROPE;
            options.base.config.rotary.base = 10000;
            options.base.config.rotary.percent = 1;
            test_ok(model_family_choose(&options.base.config));
        }
        test_inference_open(&t, options, NULL);
        test_ok(model_step_work(t.inference, &shape, &list));
        double diagonal = LAYERS * 2 * C * ROWS;
        is_about(3 * (work_model_flops(&list, WORK_FORWARD) - diagonal),
                 ROWS * model_flops_per_token(&options.base.config, T));
        work_free(&list);
        test_model_close(&t);
    }
}

/* Each layer but the last, which is as its forward left it, is done again as far as its backward reads. */
static void recomputation_is_counted_in_the_backward(void **state) {
    (void)state;
    struct test_model kept, again;
    struct model_options options = train_options();
    plan(&kept, &options, alone, 0, false);
    options.train.recompute = (struct model_recompute){.how = RECOMPUTE_UNIFORM, .num_layers = 1};
    plan(&again, &options, alone, 0, false);
    is_about(flops_of(&again, OP_gemm, WORK_FORWARD), flops_of(&kept, OP_gemm, WORK_FORWARD));
    is_about(flops_of(&again, OP_gemm, WORK_BACKWARD) - flops_of(&kept, OP_gemm, WORK_BACKWARD),
             (LAYERS - 1) * 2 * ROWS * (BLOCK - C * F));
    test_model_close(&kept);
    test_model_close(&again);
}

static void a_frozen_model_has_no_weight_gradients(void **state) {
    (void)state;
    struct test_model t;
    struct model_options options = train_options();
    options.base.trains = false;
    plan(&t, &options, alone, 0, false);
    is_about(flops_of(&t, OP_gemm, WORK_FORWARD), 2 * ROWS * LAYERS * BLOCK);
    is_about(flops_of(&t, OP_gemm, WORK_BACKWARD), 4 * ROWS * 4 * V * C); /* the head, and the gradient of its input */
    is_about(work_sum(&t.rank.work, WORK_GRADIENTS).bytes + 1, 1);
    test_model_close(&t);
}

/* Two ranks do what one does, and sum four partial results a layer, the embedding and the head's input. */
static void tensor_ranks_share_the_work_and_sum(void **state) {
    (void)state;
    struct test_model whole, part;
    struct model_options options = train_options();
    double products[2] = {0, 0};
    plan(&whole, &options, alone, 0, false);
    assert_true(work_group_bytes(&whole.rank.work, WORK_FORWARD, RANK_TENSOR) <= 0);
    for (int r = 0; r < 4; r++) {
        bool is_sequence_parallel = r / 2;
        plan(&part, &options, (struct rank_grid){2, 1, 1, 1, 1}, r % 2, is_sequence_parallel);
        products[r / 2] += flops_of(&part, OP_gemm, WORK_FORWARD) + flops_of(&part, OP_gemm, WORK_BACKWARD);
        /* Each sum of the stream becomes a reduce-scatter and an all-gather, forward and backward. */
        double stream = ROWS * C * sizeof(float), times = is_sequence_parallel ? 2 : 1;
        is_about(work_group_bytes(&part.rank.work, WORK_FORWARD, RANK_TENSOR),
                 times * 2 * LAYERS * stream + stream);                /* of the embedding */
        double again = is_sequence_parallel ? 2 * LAYERS * stream : 0; /* inputs, whole for weight gradients */
        double ends = is_sequence_parallel ? 3 * stream : stream;      /* around the head and before the embedding */
        is_about(work_group_bytes(&part.rank.work, WORK_BACKWARD, RANK_TENSOR),
                 times * 2 * LAYERS * stream + again + ends + 2 * ROWS * (double)sizeof(struct cross_entropy_part));
        test_model_close(&part);
    }
    double all = flops_of(&whole, OP_gemm, WORK_FORWARD) + flops_of(&whole, OP_gemm, WORK_BACKWARD);
    is_about(products[0], all);
    is_about(products[1], all);
    test_model_close(&whole);
}

/* Norms' gradients under sequence parallelism, and tied embeddings of two stages. */
static void gradients_of_shared_parameters_are_summed(void **state) {
    (void)state;
    struct test_model t;
    struct model_options options = train_options();
    plan(&t, &options, (struct rank_grid){2, 1, 1, 1, 1}, 0, true);
    is_about(work_group_bytes(&t.rank.work, WORK_GRADIENTS, RANK_TENSOR), (LAYERS * 4 + 2) * C * sizeof(float));
    test_model_close(&t);
    options.base.chunk_count = 1;
    options.base.chunks[0] = (struct model_chunk){0, 2};
    plan(&t, &options, (struct rank_grid){1, 1, 1, 1, 2}, 0, false);
    is_about(work_group_bytes(&t.rank.work, WORK_GRADIENTS, RANK_EMBEDDING), 4 * V * C * sizeof(float));
    assert_true(work_group_bytes(&t.rank.work, WORK_FORWARD, RANK_EMBEDDING) <= 0);
    test_model_close(&t);
}

/* The workspace is the largest that an item asks for. */
static void bytes_are_those_of_the_opened_model(void **state) {
    (void)state;
    struct test_model t;
    struct model_options options = train_options();
    test_model_open(&t, options);
    assert_int_equal(work_scratch(&t.rank.work), t.rank.exec.workspace_bytes);
    assert_true(t.rank.exec.workspace_bytes > 0);
    /* Gradients that micro batches only add to are cleared: positions, norms, and biases beside the products. */
    double cleared = 0;
    for (int i = 0; i < base_table(t.base)->count; i++)
        if (!base_table(t.base)->rows[i].is_linear)
            cleared += (double)param_elements(&base_table(t.base)->rows[i]) * sizeof(float);
    is_about(work_sum(&t.rank.work, WORK_GRADIENTS).bytes, cleared);
    test_model_close(&t);
}

/* Runners of one rank take turns: their work adds up, and the largest workspace is enough for all. */
static void plans_add_up_runners(void **state) {
    (void)state;
    struct test_model t;
    struct model_options options = train_options();
    plan(&t, &options, alone, 0, false);
    double once = work_sum(&t.rank.work, WORK_BACKWARD).bytes;
    size_t scratch = work_scratch(&t.rank.work);
    test_ok(test_plan_training(&options, &t.rank, NULL));
    is_about(work_sum(&t.rank.work, WORK_BACKWARD).bytes, 2 * once);
    assert_int_equal(work_scratch(&t.rank.work), scratch);
    test_model_close(&t);
}

/* Decoding reads the weights once, and of each row's sequence the keys and values. */
static void a_decode_step_reads_weights_and_pages(void **state) {
    (void)state;
    struct test_model t;
    struct work_list list = {0};
    enum { SEQUENCES = 5, SEEN = 11 };
    struct model_options options = {.base.config = test_config(L, T),
                                    .base.dtype = DTYPE_F32,
                                    .max_rows = 8,
                                    .infer.max_logit_rows = 8,
                                    .infer.max_sequences = 8,
                                    .infer.max_pages = 2};
    test_inference_open(&t, options, NULL);
    const struct model_step_shape shape = {.rows = SEQUENCES, .logit_rows = SEQUENCES, .seen = SEEN};
    test_ok(model_step_work(t.inference, &shape, &list));
    double weights = (double)param_table_elements(base_table(t.base), false) - T * C;
    double pages = SEQUENCES * SEEN * 2 * LAYERS * C;
    is_about(work_sum(&list, WORK_FORWARD).lasting, (weights + pages) * sizeof(float));
    is_about(work_model_flops(&list, WORK_FORWARD), SEQUENCES * (2 * weights + 4 * LAYERS * C * SEEN));
    assert_int_equal(work_scratch(&t.rank.work), t.rank.exec.workspace_bytes);
    assert_false(t.rank.is_planning);
    work_free(&list);
    test_model_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_flops_of_a_step_are_the_formula),
        cmocka_unit_test(model_flops_are_three_forwards),
        cmocka_unit_test(recomputation_is_counted_in_the_backward),
        cmocka_unit_test(a_frozen_model_has_no_weight_gradients),
        cmocka_unit_test(tensor_ranks_share_the_work_and_sum),
        cmocka_unit_test(gradients_of_shared_parameters_are_summed),
        cmocka_unit_test(bytes_are_those_of_the_opened_model),
        cmocka_unit_test(plans_add_up_runners),
        cmocka_unit_test(a_decode_step_reads_weights_and_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
