/* A model cut over tensor ranks equals the whole one: losses and every gradient, with dropout, for uneven vocabularies,
 * tied and untied. Ranks are threads. */
#include "model/support.h"

#include <math.h>
#include <stdlib.h>

enum { T = 8, SAMPLES = 3, ROWS = T * SAMPLES, MICRO_BATCHES = 2 };

static struct model_config make_config(bool is_untied) {
    return (struct model_config){.num_layers = 2,
                                 .hidden_size = 24,
                                 .num_attention_heads = 4,
                                 .num_query_groups = 4,
                                 .ffn_hidden_size = 40,
                                 .max_position_embeddings = T,
                                 .vocab_size = 31, /* divides by no number of ranks */
                                 .hidden_dropout = 0.1,
                                 .attention_dropout = 0.2,
                                 .embedding_dropout = 0.1,
                                 .init_method_std = 0.2,
                                 .layernorm_epsilon = 1e-5,
                                 .untie_embeddings_and_output_weights = is_untied,
                                 .add_bias_linear = true};
}

struct whole {
    struct test_model test;
    double losses[MICRO_BATCHES];
};

struct run {
    struct model_options options;
    struct rank_grid grid;
    bool is_sequence_parallel;
    const struct whole *whole;
};

static void make_batch(int micro, struct model_batch *batch) {
    static _Thread_local int32_t tokens[ROWS], positions[ROWS], labels[ROWS];
    static _Thread_local uint32_t sample[ROWS], token[ROWS];
    static _Thread_local float weight[ROWS];
    static const int64_t start[SAMPLES + 1] = {0, T, 2 * T, 3 * T};
    for (uint32_t i = 0; i < ROWS; i++) {
        struct philox draw = philox(5, i, (uint32_t)micro, 0, 0);
        tokens[i] = (int32_t)(draw.word[0] % 31);
        labels[i] = (int32_t)(draw.word[1] % 31);
        positions[i] = (int32_t)(i % T);
        token[i] = i % T;
        sample[i] = i / T + (uint32_t)(micro * SAMPLES);
        weight[i] = i % 5 == 4 ? 0 : 1.0f / 32;
    }
    *batch = (struct model_batch){.rows = ROWS,
                                  .tokens = tokens,
                                  .positions = positions,
                                  .sample = sample,
                                  .token = token,
                                  .segments = SAMPLES,
                                  .segment_start = start,
                                  .labels = labels,
                                  .loss_weight = weight};
}

static int train(struct model *model, double losses[MICRO_BATCHES]) {
    int status = model_initialise(model, 77);
    for (int m = 0; m < MICRO_BATCHES && !status; m++) {
        struct model_batch batch;
        struct model_pass pass = {
            .is_first_micro_batch = m == 0, .is_last_micro_batch = m + 1 == MICRO_BATCHES, .has_dropout = true};
        make_batch(m, &batch);
        status = model_train_step(model, &batch, &pass);
        if (!status)
            status = model_loss(model, &losses[m]);
    }
    return status;
}

/* Of every parameter the rank's rectangles, beside the same elements of the whole gradient: within 2e-6 of its largest
 * entry (sums of 40 to 300 fp32 products in another order). */
static int compare_gradients(struct model *model, const struct whole *whole) {
    const struct param_store *store = model_store(model), *all = model_store(whole->test.model);
    for (int i = 0; i < store->table->count; i++) {
        const struct param *row = &store->table->rows[i];
        const float *ours = param_gradient(store, i), *expected = param_gradient(all, i);
        struct param_rect rects[PARAM_MAX_SLICES];
        int count = param_part_rects(&store->part, store->table, i, rects);
        float largest = 0;
        for (int64_t e = 0; e < param_elements(row); e++)
            largest = fmaxf(largest, fabsf(expected[e]));
        for (int r = 0; r < count; r++)
            for (int64_t y = 0; y < rects[r].rows; y++)
                for (int64_t x = 0; x < rects[r].columns; x++) {
                    float a = ours[(rects[r].local_row + y) * rects[r].columns + x];
                    float b = expected[(rects[r].row + y) * row->shape[1] + rects[r].column + x];
                    if (!(fabsf(a - b) <= 2e-6f * largest))
                        return status_fail(STATUS_INVALID, "%s [%lld, %lld]: %.9g, whole %.9g", row->name,
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
    double losses[MICRO_BATCHES];
    int status = device_open(test_device(), 0, 1, &device);
    if (status)
        return status;
    status = rank_open(&rank, &run->grid, world, device, 1);
    rank.is_sequence_parallel = run->is_sequence_parallel;
    if (!status)
        status = model_open(&run->options, &rank, false, NULL, &model);
    if (!status)
        status = train(model, losses);
    for (int m = 0; m < MICRO_BATCHES && !status; m++)
        if (!(fabs(losses[m] - run->whole->losses[m]) <= 1e-6 * run->whole->losses[m]))
            status = status_fail(STATUS_INVALID, "loss %d: %.9g, whole %.9g", m, losses[m], run->whole->losses[m]);
    if (!status)
        status = compare_gradients(model, run->whole);
    model_close(model);
    rank_close(&rank);
    device_close(device);
    return status;
}

static void check(bool is_untied, bool is_sequence_parallel) {
    struct whole whole;
    struct model_options options = {
        .config = make_config(is_untied), .dtype = DTYPE_F32, .use = MODEL_TRAIN, .max_rows = ROWS};
    test_model_open(&whole.test, options);
    test_ok(train(whole.test.model, whole.losses));
    for (int tensors = 2; tensors <= 4; tensors *= 2) {
        struct run run = {.options = options,
                          .grid = {tensors, 1, 1, 1, 1},
                          .is_sequence_parallel = is_sequence_parallel,
                          .whole = &whole};
        test_ok(comm_local_run(tensors, run_rank, &run));
    }
    test_model_close(&whole.test);
}

static void tensor_ranks_equal_the_whole(void **state) {
    (void)state;
    check(false, false);
}

static void so_with_a_head_of_its_own(void **state) {
    (void)state;
    check(true, false);
}

static void so_with_the_sequence_cut_as_well(void **state) {
    (void)state;
    check(false, true);
    check(true, true);
}

/* ---- when gradients are final ---- */

struct snapshot {
    struct model *model;
    int last; /* the layer of the last call */
    float *gradients;
};

/* Keeps the gradients of the parameters that this call says are final. */
static int keep(void *context, int layer) {
    struct snapshot *snapshot = context;
    const struct param_store *store = model_store(snapshot->model);
    if (layer != snapshot->last - 1)
        return status_fail(STATUS_INVALID, "layer %d behind layer %d", layer, snapshot->last);
    snapshot->last = layer;
    for (int i = 0; i < store->table->count; i++)
        if (store->table->rows[i].layer == layer)
            memcpy(snapshot->gradients + store->offset[i], param_gradient(store, i),
                   (size_t)param_local_elements(store, i) * sizeof(float));
    return STATUS_OK;
}

static void a_layer_is_done_when_its_gradients_are_final(void **state) {
    (void)state;
    for (int is_untied = 0; is_untied < 2; is_untied++) {
        struct test_model test;
        struct model_options options = {
            .config = make_config(is_untied), .dtype = DTYPE_F32, .use = MODEL_TRAIN, .max_rows = ROWS};
        struct model_batch batch;
        test_model_open(&test, options);
        test_ok(model_initialise(test.model, 77));
        const struct param_store *store = model_store(test.model);
        size_t bytes = (size_t)store->flat_elements * sizeof(float);
        struct snapshot snapshot = {
            .model = test.model, .last = (int)options.config.num_layers + 1, .gradients = calloc(1, bytes)};
        struct model_pass pass = {
            .is_first_micro_batch = true, .has_dropout = true, .layer_done = keep, .context = &snapshot};
        make_batch(0, &batch);
        test_ok(model_train_step(test.model, &batch, &pass));
        assert_int_equal(snapshot.last, -1);
        assert_memory_equal(snapshot.gradients, store->gradients, bytes);
        free(snapshot.gradients);
        test_model_close(&test);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_ranks_equal_the_whole),
        cmocka_unit_test(so_with_a_head_of_its_own),
        cmocka_unit_test(so_with_the_sequence_cut_as_well),
        cmocka_unit_test(a_layer_is_done_when_its_gradients_are_final),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
