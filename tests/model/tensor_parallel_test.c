/* A model cut over tensor ranks equals the whole one: losses and every gradient, with dropout, for uneven vocabularies,
 * tied and untied. Ranks are threads. */
#include "model/support.h"
#include "support/passes.h"

#include <stdlib.h>

enum { T = 8, SAMPLES = 3, ROWS = T * SAMPLES, MICRO_BATCHES = 2 };

static struct model_config make_config(bool is_untied) {
    struct model_config config = test_config(2, T);
    config.hidden_dropout = config.embedding_dropout = 0.1;
    config.attention_dropout = 0.2;
    config.untie_embeddings_and_output_weights = is_untied;
    return config;
}

struct whole {
    struct test_values values;
    double losses[MICRO_BATCHES];
};

struct run {
    struct model_options options;
    struct rank_grid grid;
    bool is_sequence_parallel;
    const struct whole *whole;
};

static struct model_batch make_batch(int micro) {
    return test_batch(SAMPLES, T, TEST_VOCAB, (uint32_t)micro, NULL);
}

static int train(struct base *base, struct training_runner *model, double losses[MICRO_BATCHES]) {
    int status = base_initialise(base, 77);
    for (int m = 0; m < MICRO_BATCHES && !status; m++) {
        struct model_batch batch = make_batch(m);
        struct model_pass pass = {
            .is_first_micro_batch = m == 0, .is_last_micro_batch = m + 1 == MICRO_BATCHES, .has_dropout = true};
        status = test_train_step(model, &batch, &pass);
        if (!status)
            status = model_loss(model, &losses[m]);
    }
    return status;
}

static int run_rank(struct comm *world, void *context) {
    const struct run *run = context;
    struct test_model t;
    double losses[MICRO_BATCHES];
    int status = test_model_open_rank(&t, &run->options, &run->grid, world, run->is_sequence_parallel);
    if (!status)
        status = train(t.base, t.model, losses);
    for (int m = 0; m < MICRO_BATCHES && !status; m++)
        if (!(fabs(losses[m] - run->whole->losses[m]) <= 1e-6 * run->whole->losses[m]))
            status = status_fail(STATUS_INVALID, "loss %d: %.9g, whole %.9g", m, losses[m], run->whole->losses[m]);
    if (!status) /* sums of 40 to 300 fp32 products in another order */
        status = test_compare_gradients(base_store(t.base), t.rank.exec.stream, &run->whole->values, 2e-6f, NULL);
    test_model_close(&t);
    return status;
}

static void check(struct model_config config, bool is_sequence_parallel) {
    struct whole whole;
    struct test_model test;
    struct model_options options = {
        .base.config = config, .base.dtype = DTYPE_F32, .base.trains = true, .max_rows = ROWS};
    test_model_open(&test, options);
    test_ok(train(test.base, test.model, whole.losses));
    whole.values = test_model_values(&test);
    for (int tensors = 2; tensors <= 4; tensors *= 2) {
        struct run run = {.options = options,
                          .grid = {tensors, 1, 1, 1, 1},
                          .is_sequence_parallel = is_sequence_parallel,
                          .whole = &whole};
        test_ok(comm_local_run(tensors, run_rank, &run));
    }
    test_values_free(&whole.values);
    test_model_close(&test);
}

static void tensor_ranks_equal_the_whole(void **state) {
    (void)state;
    check(make_config(false), false);
}

static void so_with_a_head_of_its_own(void **state) {
    (void)state;
    check(make_config(true), false);
}

static void so_with_the_sequence_cut_as_well(void **state) {
    (void)state;
    check(make_config(false), true);
    check(make_config(true), true);
}

/* The gradient of the heads takes more than that of a norm on one rank and on two, but not on four. */
static void so_with_heads_wider_than_the_stream(void **state) {
    struct model_config config = make_config(false);
    (void)state;
    config.kv_channels = 16;
    assert_true(model_widths(&config, 2).q > config.hidden_size && model_widths(&config, 4).q < config.hidden_size);
    check(config, false);
    check(config, true);
}

/* ---- when gradients are final ---- */

struct snapshot {
    struct test_model *test;
    int last; /* the layer of the last call */
    float *gradients;
};

/* Keeps the gradients of the parameters that this call says are final. */
static int keep(void *context, int layer) {
    struct snapshot *snapshot = context;
    const struct param_store *store = base_store(snapshot->test->base);
    int status = STATUS_OK;
    if (layer != snapshot->last - 1)
        return status_fail(STATUS_INVALID, "layer %d after layer %d", layer, snapshot->last);
    snapshot->last = layer;
    for (int i = 0; i < store->map.table->count && !status; i++)
        if (store->map.table->rows[i].layer == layer)
            status = test_read(snapshot->test->rank.exec.stream, snapshot->gradients + store->map.places[i].offset,
                               param_gradient(store, i), (size_t)param_local_elements(store, i) * sizeof(float));
    return status;
}

static void a_layer_is_done_when_its_gradients_are_final(void **state) {
    (void)state;
    for (int is_untied = 0; is_untied < 2; is_untied++) {
        struct test_model test;
        struct model_options options = {
            .base.config = make_config(is_untied), .base.dtype = DTYPE_F32, .base.trains = true, .max_rows = ROWS};
        struct model_batch batch = make_batch(0);
        test_model_open(&test, options);
        test_ok(base_initialise(test.base, 77));
        size_t bytes = param_gradient_bytes(base_store(test.base));
        struct snapshot snapshot = {
            .test = &test, .last = (int)options.base.config.num_layers + 1, .gradients = calloc(1, bytes)};
        struct model_pass pass = {
            .is_first_micro_batch = true, .has_dropout = true, .layer_done = keep, .context = &snapshot};
        test_ok(test_train_step(test.model, &batch, &pass));
        assert_int_equal(snapshot.last, -1);
        struct test_values values = test_model_values(&test);
        assert_memory_equal(snapshot.gradients, values.gradients, bytes);
        test_values_free(&values);
        free(snapshot.gradients);
        test_model_close(&test);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_ranks_equal_the_whole),
        cmocka_unit_test(so_with_a_head_of_its_own),
        cmocka_unit_test(so_with_the_sequence_cut_as_well),
        cmocka_unit_test(so_with_heads_wider_than_the_stream),
        cmocka_unit_test(a_layer_is_done_when_its_gradients_are_final),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
