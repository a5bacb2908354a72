/* Only rows whose loss counts go through the head, and nobody can tell but by the work: losses and gradients are those
 * of all rows, in every layout, and nothing is prepared inside a step however many there are. */
#include "model/support.h"

#include "support/allocations.h"

#include <math.h>
#include <stdlib.h>

enum { T = 40, SAMPLES = 16, ROWS = T * SAMPLES, SLOTS = 2, V = 31 };

static struct model_options make_options(bool is_untied) {
    return (struct model_options){.config = {.num_layers = 1,
                                             .hidden_size = 24,
                                             .num_attention_heads = 4,
                                             .num_query_groups = 4,
                                             .ffn_hidden_size = 40,
                                             .max_position_embeddings = T,
                                             .vocab_size = V,
                                             .hidden_dropout = 0.1,
                                             .init_method_std = 0.2,
                                             .layernorm_epsilon = 1e-5,
                                             .untie_embeddings_and_output_weights = is_untied,
                                             .add_bias_linear = true},
                                  .dtype = DTYPE_F32,
                                  .use = MODEL_TRAIN,
                                  .slots = SLOTS,
                                  .max_rows = ROWS};
}

/* How many rows of each sample count, the last ones: a prompt stands before them. */
struct pattern {
    int counted[SAMPLES];
};
static const struct pattern patterns[] = {
    {{0}},
    {{[7] = 1}},
    {{[0] = T}},
    {{[SAMPLES - 1] = 24, [3] = T}}, /* 64 */
    {{5, 0, 7, 1, T, 2, 2, 9, 3, 3, 3, 3, 3, 3, 3, 3}},
    {{T, T, T, T, T, T, T, T, T, T, T, T, T, T, T - 1}}, /* more than the head takes at once */
    {{T, T, T, T, T, T, T, T, T, T, T, T, T, T, T, T - 1}},
};
enum { PATTERNS = sizeof patterns / sizeof *patterns };

static int64_t counted_rows(const struct pattern *pattern) {
    int64_t count = 0;
    for (int s = 0; s < SAMPLES; s++)
        count += pattern->counted[s];
    return count;
}

/* `other`: the weight of rows that do not count; one that no sum can see has them go through the head all the same. */
static void make_batch(const struct pattern *pattern, float other, uint32_t micro, struct model_batch *batch) {
    static _Thread_local int32_t tokens[SLOTS][ROWS], positions[ROWS], labels[SLOTS][ROWS];
    static _Thread_local uint32_t sample[ROWS], token[ROWS];
    static _Thread_local float weight[SLOTS][ROWS];
    static _Thread_local int64_t start[SAMPLES + 1];
    for (uint32_t i = 0; i < ROWS; i++) {
        struct philox draw = philox(5, i, micro, 0, 0);
        tokens[micro][i] = (int32_t)(draw.word[0] % V);
        labels[micro][i] = (int32_t)(draw.word[1] % V);
        positions[i] = (int32_t)(i % T);
        token[i] = i % T;
        sample[i] = i / T;
        weight[micro][i] = (int)(i % T) >= T - pattern->counted[i / T] ? 1.0f / 32 : other;
    }
    for (int s = 0; s <= SAMPLES; s++)
        start[s] = s * T;
    *batch = (struct model_batch){.rows = ROWS,
                                  .tokens = tokens[micro],
                                  .positions = positions,
                                  .sample = sample,
                                  .token = token,
                                  .segments = SAMPLES,
                                  .segment_start = start,
                                  .labels = labels[micro],
                                  .loss_weight = weight[micro]};
}

/* ---- against all rows ---- */

struct answer {
    double loss, validation;
};

/* Two micro batches are held at once, the second of the next pattern. */
static int train(struct model *model, int first, float other, struct answer *answer) {
    struct model_batch batch[SLOTS];
    struct param_store *store = model_store(model);
    int status = model_initialise(model, 77);
    for (int64_t i = 0; i < store->flat_elements; i++)
        ((float *)store->gradients)[i] = 3; /* of a step before */
    for (int m = 0; m < SLOTS && !status; m++) {
        struct model_pass pass = {.slot = m, .has_dropout = true};
        make_batch(&patterns[(first + m) % PATTERNS], other, (uint32_t)m, &batch[m]);
        status = model_forward(model, &batch[m], &pass, NULL, NULL);
    }
    for (int m = 0; m < SLOTS && !status; m++)
        status = model_backward(
            model,
            &(const struct model_pass){
                .slot = m, .is_first_micro_batch = m == 0, .is_last_micro_batch = m + 1 == SLOTS, .has_dropout = true},
            NULL, NULL);
    if (!status)
        status = model_loss(model, &answer->loss);
    if (!status)
        status = model_evaluate(model, &batch[0]);
    return status ? status : model_loss(model, &answer->validation);
}

struct run {
    struct model_options options;
    struct rank_grid grid;
    bool is_sequence_parallel;
    int first;
    struct answer answer;         /* of all rows, */
    const struct test_model *all; /* whose gradients these are */
};

static bool is_near(double a, double b) {
    return fabs(a - b) <= 1e-6 * fabs(b) + 1e-20; /* where only the unseen weights count */
}

/* Within 2e-6 of the largest entry: sums of at most 1280 fp32 products in another order, and with 0 rows of fill. */
static int compare_gradients(const struct param_store *store, const struct param_store *all) {
    for (int i = 0; i < store->table->count; i++) {
        const struct param *row = &store->table->rows[i];
        const float *ours = param_gradient(store, i), *expected = param_gradient(all, i);
        struct param_rect rects[PARAM_MAX_SLICES];
        int count = param_part_rects(&store->part, store->table, i, rects);
        float largest = 0;
        for (int64_t e = 0; e < param_elements(row); e++)
            largest = fmaxf(largest, fabsf(expected[e]));
        for (int r = 0; r < count; r++)
            for (int64_t e = 0; e < rects[r].rows * rects[r].columns; e++) {
                int64_t y = e / rects[r].columns, x = e % rects[r].columns;
                float a = ours[rects[r].local_row * rects[r].columns + e];
                float b = expected[(rects[r].row + y) * row->shape[1] + rects[r].column + x];
                if (!(fabsf(a - b) <= 2e-6f * largest))
                    return status_fail(STATUS_INVALID, "%s [%lld, %lld]: %.9g, of all rows %.9g", row->name,
                                       (long long)(rects[r].row + y), (long long)(rects[r].column + x), (double)a,
                                       (double)b);
            }
    }
    return STATUS_OK;
}

static int run_rank(struct comm *world, void *context) {
    const struct run *run = context;
    struct device *device;
    struct rank rank;
    struct model *model = NULL;
    struct answer answer;
    int status = device_open(test_device(), 0, 1, &device);
    if (status)
        return status;
    status = rank_open(&rank, &run->grid, world, device, 1);
    rank.is_sequence_parallel = run->is_sequence_parallel;
    if (!status)
        status = model_open(&run->options, &rank, false, NULL, &model);
    if (!status)
        status = train(model, run->first, 0, &answer);
    if (!status && !(is_near(answer.loss, run->answer.loss) && is_near(answer.validation, run->answer.validation)))
        status = status_fail(STATUS_INVALID, "pattern %d: losses %.9g and %.9g, of all rows %.9g and %.9g", run->first,
                             answer.loss, answer.validation, run->answer.loss, run->answer.validation);
    if (!status)
        status = compare_gradients(model_store(model), model_store(run->all->model));
    model_close(model);
    rank_close(&rank);
    device_close(device);
    return status;
}

static void rows_that_count_alone_give_what_all_rows_give(void **state) {
    (void)state;
    for (int first = 0; first < PATTERNS; first++)
        for (int is_untied = 0; is_untied < 2; is_untied++) {
            struct test_model all;
            struct run run = {.options = make_options(is_untied), .first = first, .all = &all};
            test_model_open(&all, run.options);
            test_ok(train(all.model, first, 1e-30f, &run.answer));
            for (int layout = 0; layout < 5; layout++) {
                int tensors = layout == 0 ? 1 : layout % 2 ? 2 : 4;
                run.grid = (struct rank_grid){tensors, 1, 1, 1, 1};
                run.is_sequence_parallel = layout > 2;
                test_ok(comm_local_run(tensors, run_rank, &run));
            }
            test_model_close(&all);
        }
}

static void a_batch_that_counts_nothing_gives_zeros(void **state) {
    (void)state;
    struct test_model t;
    struct model_batch batch;
    double loss;
    test_model_open(&t, make_options(false));
    test_ok(model_initialise(t.model, 77));
    struct param_store *store = model_store(t.model);
    for (int64_t i = 0; i < store->flat_elements; i++)
        ((float *)store->gradients)[i] = 3;
    make_batch(&patterns[0], 0, 0, &batch);
    struct model_pass pass = {.is_first_micro_batch = true, .is_last_micro_batch = true};
    test_ok(model_train_step(t.model, &batch, &pass));
    test_ok(model_loss(t.model, &loss));
    assert_true(loss == 0);
    for (int i = 0; i < store->table->count; i++)
        for (int64_t e = 0; e < param_local_elements(store, i); e++)
            assert_true(param_gradient(store, i)[e] == 0);
    test_model_close(&t);
}

static void row_losses_stand_at_their_rows(void **state) {
    (void)state;
    for (int p = 0; p < PATTERNS; p++) {
        struct test_model t;
        struct model_batch batch;
        float all[ROWS], counted[ROWS];
        test_model_open(&t, make_options(false));
        test_ok(model_initialise(t.model, 77));
        make_batch(&patterns[p], 1, 0, &batch);
        test_ok(model_evaluate(t.model, &batch));
        test_ok(model_row_losses(t.model, all));
        make_batch(&patterns[p], 0, 0, &batch);
        test_ok(model_evaluate(t.model, &batch));
        test_ok(model_row_losses(t.model, counted));
        for (int i = 0; i < ROWS; i++)
            if (batch.loss_weight[i] != 0)
                assert_true(is_near((double)counted[i], (double)all[i]));
        test_model_close(&t);
    }
}

/* ---- the work ---- */

static _Thread_local struct {
    const struct ops *real;
    int64_t head; /* rows that products with the vocabulary had */
    int64_t norms;
} noted;

static int noted_gemm(const struct exec *exec, const struct gemm *a) {
    if (a->n == V || a->k == V)
        noted.head += a->m;
    else if (a->m == V)
        noted.head += a->k;
    return noted.real->gemm(exec, a);
}

static int noted_norm(const struct exec *exec, const struct layernorm *a) {
    noted.norms += a->rows;
    return noted.real->layernorm_forward(exec, a);
}

/* Three products; their rows are those that count, filled up to a multiple of 64, unless that would be all. */
static void the_head_works_on_rows_that_count(void **state) {
    (void)state;
    struct test_model t;
    struct model_batch batch;
    struct ops table;
    test_model_open(&t, make_options(false));
    test_ok(model_initialise(t.model, 77));
    noted.real = t.rank.ops;
    table = *t.rank.ops;
    table.gemm = noted_gemm;
    table.layernorm_forward = noted_norm;
    t.rank.ops = &table;
    for (int p = 0; p < PATTERNS; p++) {
        int64_t counted = counted_rows(&patterns[p]), rows = counted == 0 ? 64 : (counted + 63) / 64 * 64;
        rows = rows < ROWS ? rows : ROWS;
        noted.head = noted.norms = 0;
        make_batch(&patterns[p], 0, 0, &batch);
        test_ok(model_train_step(t.model, &batch, &(const struct model_pass){.is_first_micro_batch = true}));
        assert_int_equal(noted.head, 3 * rows);
        assert_int_equal(noted.norms, 2 * ROWS + rows);
    }
    test_model_close(&t);
}

/* The first step with so many rows of each kind is like the hundredth. */
static void no_number_of_rows_is_prepared_inside_a_step(void **state) {
    (void)state;
    if (!allocations_can_be_counted())
        test_skip("this build has an allocator that cannot be counted");
    for (int is_untied = 0; is_untied < 2; is_untied++) {
        struct test_model t;
        struct model_batch batch;
        struct answer answer;
        test_model_open(&t, make_options(is_untied));
        test_ok(train(t.model, PATTERNS - 1, 1, &answer)); /* of all rows */
        for (int rows = 0; rows < ROWS; rows += 20) {
            struct pattern pattern = {{0}};
            for (int s = 0; s < SAMPLES; s++)
                pattern.counted[s] = rows - s * T < 0 ? 0 : rows - s * T < T ? rows - s * T : T;
            make_batch(&pattern, 0, 0, &batch);
            allocations_start();
            for (int is_first = 0; is_first < 2; is_first++)
                test_ok(
                    model_train_step(t.model, &batch, &(const struct model_pass){.is_first_micro_batch = is_first}));
            test_ok(model_evaluate(t.model, &batch));
            assert_int_equal(allocations_stop(), 0);
        }
        test_model_close(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_that_count_alone_give_what_all_rows_give),
        cmocka_unit_test(a_batch_that_counts_nothing_gives_zeros),
        cmocka_unit_test(row_losses_stand_at_their_rows),
        cmocka_unit_test(the_head_works_on_rows_that_count),
        cmocka_unit_test(no_number_of_rows_is_prepared_inside_a_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
