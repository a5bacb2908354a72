/* Only rows whose loss counts go through the head, which shows only in the amount of work. Losses and gradients are
 * those of all rows, in every layout. Nothing is prepared inside a step, however many rows there are. */
#include "model/support.h"

#include "support/allocations.h"
#include "support/passes.h"

#include <stdlib.h>

enum { T = 40, SAMPLES = 16, ROWS = T * SAMPLES, STASHES = 2, V = TEST_VOCAB };

static struct model_options make_options(bool is_untied) {
    struct model_options options = {.base.config = test_config(1, T),
                                    .base.dtype = DTYPE_F32,
                                    .base.trains = true,
                                    .train.stashes = STASHES,
                                    .max_rows = ROWS};
    options.base.config.hidden_dropout = 0.1;
    options.base.config.untie_embeddings_and_output_weights = is_untied;
    return options;
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
static struct model_batch make_batch(const struct pattern *pattern, float other, uint32_t micro) {
    float *weight;
    struct model_batch batch = test_batch(SAMPLES, T, V, micro, &weight);
    for (int i = 0; i < ROWS; i++)
        weight[i] = i % T >= T - pattern->counted[i / T] ? 1.0f / 32 : other;
    return batch;
}

/* ---- against all rows ---- */

struct answer {
    double loss, validation;
};

/* Gradients as a step before may have left them. */
static int spoil_gradients(struct test_model *t) {
    struct test_values values = test_model_values(t);
    for (int64_t i = 0; i < values.store->map.flat_elements; i++)
        values.gradients[i] = 3;
    return test_values_put(&values, t->rank.exec.stream);
}

/* Two micro batches are held at once, the second of the next pattern. */
static int train(struct test_model *t, int first, float other, struct answer *answer) {
    struct model_batch batch[STASHES];
    struct training_runner *model = t->model;
    int status = base_initialise(t->base, 77);
    if (!status)
        status = spoil_gradients(t);
    for (int m = 0; m < STASHES && !status; m++) {
        struct model_pass pass = {.stash = m, .has_dropout = true};
        batch[m] = make_batch(&patterns[(first + m) % PATTERNS], other, (uint32_t)m);
        status = model_forward(model, &batch[m], &pass, NULL, NULL);
    }
    for (int m = 0; m < STASHES && !status; m++)
        status = model_backward(model,
                                &(const struct model_pass){.stash = m,
                                                           .is_first_micro_batch = m == 0,
                                                           .is_last_micro_batch = m + 1 == STASHES,
                                                           .has_dropout = true},
                                NULL, NULL);
    if (!status)
        status = model_loss(model, &answer->loss);
    if (!status)
        status = test_evaluate(model, &batch[0]);
    return status ? status : model_loss(model, &answer->validation);
}

struct run {
    struct model_options options;
    struct rank_grid grid;
    bool is_sequence_parallel;
    int first;
    struct answer answer;   /* of all rows, */
    struct test_values all; /* whose gradients these are */
};

static bool is_near(double a, double b) {
    return fabs(a - b) <= 1e-6 * fabs(b) + 1e-20; /* where only the unseen weights count */
}

static int run_rank(struct comm *world, void *context) {
    const struct run *run = context;
    struct test_model t;
    struct answer answer;
    int status = test_model_open_rank(&t, &run->options, &run->grid, world, run->is_sequence_parallel);
    if (!status)
        status = train(&t, run->first, 0, &answer);
    if (!status && !(is_near(answer.loss, run->answer.loss) && is_near(answer.validation, run->answer.validation)))
        status = status_fail(STATUS_INVALID, "pattern %d: losses %.9g and %.9g, of all rows %.9g and %.9g", run->first,
                             answer.loss, answer.validation, run->answer.loss, run->answer.validation);
    if (!status) /* sums of at most 1280 fp32 products in another order, and with 0 rows of fill */
        status = test_compare_gradients(base_store(t.base), t.rank.exec.stream, &run->all, 2e-6f, NULL);
    test_model_close(&t);
    return status;
}

static void rows_that_count_alone_give_what_all_rows_give(void **state) {
    (void)state;
    for (int first = 0; first < PATTERNS; first++)
        for (int is_untied = 0; is_untied < 2; is_untied++) {
            struct test_model all;
            struct run run = {.options = make_options(is_untied), .first = first};
            test_model_open(&all, run.options);
            test_ok(train(&all, first, 1e-30f, &run.answer));
            run.all = test_model_values(&all);
            for (int layout = 0; layout < 5; layout++) {
                int tensors = layout == 0 ? 1 : layout % 2 ? 2 : 4;
                run.grid = (struct rank_grid){tensors, 1, 1, 1, 1};
                run.is_sequence_parallel = layout > 2;
                test_ok(comm_local_run(tensors, run_rank, &run));
            }
            test_values_free(&run.all);
            test_model_close(&all);
        }
}

static void a_batch_that_counts_nothing_gives_zeros(void **state) {
    (void)state;
    struct test_model t;
    struct model_batch batch;
    double loss;
    test_model_open(&t, make_options(false));
    test_ok(base_initialise(t.base, 77));
    test_ok(spoil_gradients(&t));
    batch = make_batch(&patterns[0], 0, 0);
    struct model_pass pass = {.is_first_micro_batch = true, .is_last_micro_batch = true};
    test_ok(test_train_step(t.model, &batch, &pass));
    test_ok(model_loss(t.model, &loss));
    assert_true(loss == 0);
    struct test_values values = test_model_values(&t);
    for (int i = 0; i < values.store->map.table->count; i++)
        for (int64_t e = 0; e < param_local_elements(values.store, i); e++)
            assert_true(values.gradients[values.store->map.places[i].offset + e] == 0);
    test_values_free(&values);
    test_model_close(&t);
}

static void row_losses_stand_at_their_rows(void **state) {
    (void)state;
    for (int p = 0; p < PATTERNS; p++) {
        struct test_model t;
        struct model_batch batch;
        float all[ROWS], counted[ROWS];
        test_model_open(&t, make_options(false));
        test_ok(base_initialise(t.base, 77));
        batch = make_batch(&patterns[p], 1, 0);
        test_ok(test_evaluate(t.model, &batch));
        test_ok(test_row_losses(t.model, &batch, all));
        batch = make_batch(&patterns[p], 0, 0);
        test_ok(test_evaluate(t.model, &batch));
        test_ok(test_row_losses(t.model, &batch, counted));
        for (int i = 0; i < ROWS; i++)
            if (batch.loss_weight[i] != 0)
                assert_true(is_near((double)counted[i], (double)all[i]));
        test_model_close(&t);
    }
}

/* ---- the work ---- */

static _Thread_local struct {
    const struct ops *real;
    int64_t head, most; /* rows that products with the vocabulary had, all together and in one */
    int64_t norms;
} noted;

static int noted_gemm(const struct exec *exec, const struct gemm *a) {
    int64_t rows = gemm_n(a) == V || gemm_k(a) == V ? gemm_m(a) : gemm_m(a) == V ? gemm_k(a) : 0;
    noted.head += rows;
    noted.most = rows > noted.most ? rows : noted.most;
    return noted.real->gemm(exec, a);
}

static int noted_norm(const struct exec *exec, const struct norm *a) {
    noted.norms += a->rows;
    return noted.real->norm_forward(exec, a);
}

/* Three products; their rows are those that count, filled up to a multiple of 64, unless that would be all. */
static void the_head_works_on_rows_that_count(void **state) {
    (void)state;
    struct test_model t;
    struct model_batch batch;
    struct ops table;
    test_model_open(&t, make_options(false));
    test_ok(base_initialise(t.base, 77));
    noted.real = t.rank.ops;
    table = *t.rank.ops;
    table.gemm = noted_gemm;
    table.norm_forward = noted_norm;
    t.rank.ops = &table;
    for (int p = 0; p < PATTERNS; p++) {
        int64_t counted = counted_rows(&patterns[p]), rows = counted == 0 ? 64 : (counted + 63) / 64 * 64;
        rows = rows < ROWS ? rows : ROWS;
        noted.head = noted.norms = 0;
        batch = make_batch(&patterns[p], 0, 0);
        test_ok(test_train_step(t.model, &batch, &(const struct model_pass){.is_first_micro_batch = true}));
        assert_int_equal(noted.head, 3 * rows);
        assert_int_equal(noted.norms, 2 * ROWS + rows);
    }
    test_model_close(&t);
}

static const struct ops_sizes *small_sizes(struct device *device) {
    static _Thread_local struct ops_sizes sizes;
    sizes = *noted.real->sizes(device);
    sizes.head_rows = 96;
    sizes.head_rows_multiple = 32;
    return &sizes;
}

static void the_head_works_on_as_many_rows_as_suit_the_backend(void **state) {
    (void)state;
    struct test_model t;
    double loss[2];
    test_model_open(&t, make_options(false));
    test_ok(base_initialise(t.base, 77));
    struct ops table = *t.rank.ops;
    noted.real = t.rank.ops;
    table.gemm = noted_gemm;
    for (int is_small = 0; is_small < 2; is_small++) {
        struct model_batch batch = make_batch(&patterns[3], 0, 0); /* 64 rows */
        t.rank.ops = &table;
        table.sizes = is_small ? small_sizes : noted.real->sizes;
        noted.head = noted.most = 0;
        test_ok(test_train_step(t.model, &batch, &(const struct model_pass){.is_first_micro_batch = true}));
        test_ok(model_loss(t.model, &loss[is_small]));
        assert_int_equal(noted.head, 3 * 64);
        batch = make_batch(&patterns[1], 0, 0); /* one row */
        noted.head = 0;
        test_ok(test_train_step(t.model, &batch, &(const struct model_pass){.is_first_micro_batch = true}));
        assert_int_equal(noted.head, 3 * (is_small ? 32 : 64));
        batch = make_batch(&patterns[PATTERNS - 1], 0, 0); /* all rows */
        test_ok(test_evaluate(t.model, &batch));
        assert_int_equal(noted.most, is_small ? 96 : 512);
        double all;
        test_ok(model_loss(t.model, &all)); /* of the one row, and of all */
        loss[is_small] += all;
    }
    assert_true(is_near(loss[1], loss[0]));
    test_model_close(&t);
}

/* The first step with a number of rows is like the hundredth. */
static void no_number_of_rows_is_prepared_inside_a_step(void **state) {
    (void)state;
    if (!allocations_can_be_counted())
        test_skip("this build has an allocator that cannot be counted");
    for (int is_untied = 0; is_untied < 2; is_untied++) {
        struct test_model t;
        struct model_batch batch;
        struct answer answer;
        test_model_open(&t, make_options(is_untied));
        test_ok(train(&t, PATTERNS - 1, 1, &answer)); /* of all rows */
        for (int rows = 0; rows < ROWS; rows += 20) {
            struct pattern pattern = {{0}};
            for (int s = 0; s < SAMPLES; s++)
                pattern.counted[s] = rows - s * T < 0 ? 0 : rows - s * T < T ? rows - s * T : T;
            batch = make_batch(&pattern, 0, 0);
            allocations_start();
            for (int is_first = 0; is_first < 2; is_first++)
                test_ok(test_train_step(t.model, &batch, &(const struct model_pass){.is_first_micro_batch = is_first}));
            test_ok(test_evaluate(t.model, &batch));
            test_ok(stream_wait(t.rank.exec.stream));
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
        cmocka_unit_test(the_head_works_on_as_many_rows_as_suit_the_backend),
        cmocka_unit_test(no_number_of_rows_is_prepared_inside_a_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
