/* Each layer that is cut over tensor ranks equals the whole layer: its outputs, the gradient of its input, and the
 * gradients of its parameters. This holds for 2 and 4 ranks, with and without the sequence cut as well. Ranks are
 * threads. Every number of weights and inputs follows from its place in the whole. */
#include "model-internal.h"
#include "support/passes.h"

#include "model/support.h"
#include "parallel/sync.h"

#include <stdlib.h>

enum {
    T = 8,
    SAMPLES = 3,
    ROWS = T * SAMPLES,
    C = TEST_HIDDEN,
    F = TEST_FFN,
    V = TEST_VOCAB,
    WIDEST = 3 * C,
    RESULTS = 2,
    BLOCKS = 6
};

enum layer { EMBEDDING, NORM, QKV, PROJECTION, FC1, FC2, ATTENTION, CROSS_ENTROPY, LAYERS };
static const char *const names[LAYERS] = {"embedding", "norm", "qkv", "projection", "fc1", "fc2", "attention", "loss"};

/* Sums of at most 72 products in another order differ by some root of 72 roundings, 5e-7 of the largest. A result that
 * passes through a layer and back contains two or three such sums. */
static const float BOUND = 2e-6f;

struct scene {
    enum layer layer;
    struct test_model test;
    void *blocks[BLOCKS]; /* on the device, until the scene ends */
    int block_count;
    struct test_values values; /* of the whole, after its run */
    float *results[RESULTS];   /* [ROWS, WIDEST] of the whole: the output, the gradient of the input */
};

struct task {
    enum layer layer;
    int tensors;
    bool is_sequence_parallel;
    const struct scene *whole;
};

/* ---- numbers ---- */

static float number(uint32_t site, int64_t row, int64_t column) {
    return (float)(rng_unit(philox(21, site, (uint32_t)row, (uint32_t)column, 0).word[0]) - 0.5);
}

static float *block_of(struct scene *s, int64_t count) {
    void **block = &s->blocks[s->block_count];
    assert_true(s->block_count++ < BLOCKS);
    test_ok(device_alloc(s->test.device, (size_t)count * sizeof(float), block));
    return *block;
}

/* Copies rows of the whole from `first` on, and columns as the map says (NULL: all of them); rows are `stride`
 * apart. */
static int put_numbers(struct scene *s, float *device, uint32_t site, float scale, int64_t first, int64_t rows,
                       int64_t columns, int64_t stride, const int64_t *map) {
    float *values = calloc((size_t)(rows * stride), sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            values[i * stride + j] = scale * number(site, first + i, map ? map[j] : j);
    int status = test_write(s->test.rank.exec.stream, device, values, (size_t)(rows * stride) * sizeof *values);
    free(values);
    return status;
}

static float *fill(struct scene *s, uint32_t site, int64_t first, int64_t rows, int64_t columns, const int64_t *map) {
    float *block = block_of(s, rows * columns);
    test_ok(put_numbers(s, block, site, 1, first, rows, columns, columns, map));
    return block;
}

static int fill_weights(struct test_model *t, enum layer layer) {
    struct test_values values = test_model_values(t);
    const struct param_store *store = values.store;
    for (int id = 0; id < store->map.table->count; id++) {
        const struct param *row = &store->map.table->rows[id];
        float *weight = values.weights + store->map.places[id].offset;
        struct param_rect rects[PARAM_MAX_SLICES];
        int count = param_part_rects(&store->map.part, store->map.table, id, rects);
        bool is_silent = layer == ATTENTION && strstr(row->name, "fc2"); /* a block without an MLP */
        for (int r = 0; r < count; r++)
            for (int64_t i = 0; i < rects[r].rows; i++)
                for (int64_t j = 0; j < rects[r].columns; j++)
                    weight[(rects[r].local_row + i) * rects[r].columns + j] =
                        is_silent ? 0 : number(100 + (uint32_t)id, rects[r].row + i, rects[r].column + j);
    }
    return test_values_put(&values, t->rank.exec.stream);
}

/* ---- comparison ---- */

static int compare(const char *what, int64_t row, int64_t column, float ours, float expected, float largest) {
    if (fabsf(ours - expected) <= BOUND * largest)
        return STATUS_OK;
    return status_fail(STATUS_INVALID, "%s [%lld, %lld]: %.9g, whole %.9g, the largest %.9g", what, (long long)row,
                       (long long)column, (double)ours, (double)expected, (double)largest);
}

/* A layer's result: kept for the whole, and compared for a part. */
static int result(struct scene *s, const struct scene *whole, int which, const float *device, int64_t stride,
                  int64_t first, int64_t rows, int64_t columns, const int64_t *map) {
    float largest = 0, *values = test_copy(s->test.rank.exec.stream, device, (size_t)(rows * stride) * sizeof *values);
    int status = STATUS_OK;
    char what[64];
    if (!whole)
        s->results[which] = calloc(ROWS * WIDEST, sizeof(float));
    for (int64_t i = 0; whole && i < ROWS * WIDEST; i++)
        largest = fmaxf(largest, fabsf(whole->results[which][i]));
    snprintf(what, sizeof what, "%s, %s", names[s->layer], which ? "gradient of the input" : "output");
    if (whole && !(largest > 0))
        status = status_fail(STATUS_INVALID, "%s: all zero", what);
    for (int64_t i = 0; i < rows && !status; i++)
        for (int64_t j = 0; j < columns && !status; j++) {
            int64_t column = map ? map[j] : j, at = (first + i) * WIDEST + column;
            float value = values[i * stride + j];
            if (whole)
                status = compare(what, first + i, column, value, whole->results[which][at], largest);
            else
                s->results[which][at] = value;
        }
    free(values);
    return status;
}

/* Every parameter's: those of other layers are zero in both. */
static int compare_gradients(const struct scene *s, const struct scene *whole) {
    int moved = 0, status = test_compare_gradients(base_store(s->test.base), s->test.rank.exec.stream, &whole->values,
                                                   BOUND, &moved);
    if (!status && moved == 0 && s->layer != CROSS_ENTROPY)
        status = status_fail(STATUS_INVALID, "%s: no parameter has a gradient", names[s->layer]);
    return status;
}

/* ---- layers ---- */

static int64_t first_row(const struct scene *s) {
    return rank_first_stream_row(&s->test.rank, ROWS);
}

static int64_t own_rows(const struct scene *s) {
    return rank_stream_rows(&s->test.rank, ROWS);
}

/* Over the batch of the first stash. */
static struct pass pass_over(const struct scene *s) {
    struct training_runner *model = s->test.model;
    return (struct pass){.run = &model->run,
                         .training = model,
                         .asked = {.is_first_micro_batch = true},
                         .chunk = &s->test.base->options.chunks[0],
                         .stash = training_stash(model, 0),
                         .batch = &training_stash(model, 0)->batch,
                         .rows = ROWS};
}

static int embedding(struct scene *s, const struct scene *whole) {
    struct pass pass = pass_over(s);
    float *x = block_of(s, ROWS * C);
    pass.d = fill(s, 2, first_row(s), own_rows(s), C, NULL);
    int status = embedding_pass_forward(&pass, x);
    if (!status)
        status = result(s, whole, 0, x, C, first_row(s), own_rows(s), C, NULL);
    if (!status)
        status = embedding_pass_backward(&pass);
    return status;
}

static int norm(struct scene *s, const struct scene *whole) {
    const struct norm_params *params = &s->test.base->blocks[0].norm1;
    int64_t first = first_row(s), rows = own_rows(s);
    float *x = fill(s, 1, first, rows, C, NULL), *dy = fill(s, 2, first, rows, C, NULL);
    float *y = block_of(s, rows * C), *dx = block_of(s, rows * C), *mean = block_of(s, rows), *rstd = block_of(s, rows);
    const struct norm call = {.rows = rows, .x = x, .y = y, .mean = mean, .rstd = rstd, .dy = dy, .dx = dx};
    int status = norm_forward(&s->test.model->run, params, &call);
    if (!status)
        status = result(s, whole, 0, y, C, first, rows, C, NULL);
    if (!status)
        status = norm_backward(&s->test.model->run, params, &call);
    if (!status)
        status = result(s, whole, 1, dx, C, first, rows, C, NULL);
    return status;
}

/* Which outputs of a column linear, or inputs of a row linear, a rank has. */
static void map_columns(const struct scene *s, const struct linear *linear, int64_t map[WIDEST]) {
    const struct param_store *store = &s->test.base->store;
    struct param_rect rects[PARAM_MAX_SLICES];
    int count = param_part_rects(&store->map.part, store->map.table, linear->weight, rects);
    for (int r = 0; r < count; r++)
        if (linear->split == LINEAR_COLUMN)
            for (int64_t i = 0; i < rects[r].rows; i++)
                map[rects[r].local_row + i] = rects[r].row + i;
        else
            for (int64_t j = 0; j < rects[r].columns; j++)
                map[j] = rects[r].column + j;
}

static int linear(struct scene *s, const struct scene *whole, const struct linear *linear) {
    static const struct hook_list no_hooks;
    bool is_column = linear->split == LINEAR_COLUMN;
    int64_t map[WIDEST], first[2] = {0, first_row(s)}, rows[2] = {ROWS, own_rows(s)};
    const int64_t *in = is_column ? NULL : map, *out = is_column ? map : NULL; /* what is cut has all rows */
    map_columns(s, linear, map);
    float *x = fill(s, 1, first[is_column], rows[is_column], linear->in, in), *y = block_of(s, ROWS * linear->out);
    float *dy = fill(s, 2, first[!is_column], rows[!is_column], linear->out, out);
    float *dx = block_of(s, ROWS * linear->in);
    struct linear_call call = {.rank = &s->test.rank,
                               .store = &s->test.base->store,
                               .hooks = &no_hooks,
                               .dtype = DTYPE_F32,
                               .rows = ROWS,
                               .x = x,
                               .y = y,
                               .whole = s->test.model->run.scratch.whole,
                               .whole_gradient = s->test.model->run.gradients.whole,
                               .dy = dy,
                               .dx = dx,
                               .overwrite_gradients = true};
    int status = linear_forward(linear, &call);
    if (!status)
        status = result(s, whole, 0, y, linear->out, first[!is_column], rows[!is_column], linear->out, out);
    if (!status)
        status = linear_backward(linear, &call);
    if (!status)
        status = result(s, whole, 1, dx, linear->in, first[is_column], rows[is_column], linear->in, in);
    return status;
}

/* The heads between their two linears and after their norm, with dropout of weights and of the result: a block whose
 * MLP gives nothing. */
static int attention(struct scene *s, const struct scene *whole) {
    struct training_runner *model = s->test.model;
    int64_t first = first_row(s), rows = own_rows(s);
    size_t bytes = (size_t)(rows * C) * sizeof(float);
    float *x = fill(s, 1, first, rows, C, NULL), *d = fill(s, 2, first, rows, C, NULL), *out = block_of(s, rows * C);
    struct stream *stream = s->test.rank.exec.stream;
    struct pass pass = pass_over(s);
    struct block_pass block = {.pass = &pass, .saved = &pass.stash->saved[0], .out = out};
    pass.asked.has_dropout = true;
    pass.d = model->run.gradients.stream;
    int status = stream_copy(stream, block.saved->x, x, bytes);
    if (!status)
        status = block_forward(&block);
    if (!status)
        status = result(s, whole, 0, out, C, first, rows, C, NULL);
    if (!status)
        status = stream_copy(stream, pass.d, d, bytes);
    if (!status)
        status = block_backward(&block);
    if (!status)
        status = result(s, whole, 1, pass.d, C, first, rows, C, NULL);
    return status;
}

static int loss(struct scene *s, const struct scene *whole) {
    struct training_runner *model = s->test.model;
    const struct base_part *part = &s->test.base->part;
    int64_t map[WIDEST], stride = part->vocab_stride;
    float *logits = model->run.scratch.logits;
    for (int64_t v = 0; v < part->vocab; v++)
        map[v] = part->first_token + v;
    struct cross_entropy call = {.rows = ROWS,
                                 .vocab = part->vocab,
                                 .first_label = part->first_token,
                                 .stride = stride,
                                 .type = DTYPE_F32,
                                 .logits = logits,
                                 .labels = training_stash(model, 0)->batch.head.labels,
                                 .loss = model->run.scratch.losses,
                                 .dloss = training_stash(model, 0)->batch.head.loss_weight};
    int status = put_numbers(s, logits, 1, 8, 0, ROWS, part->vocab, stride, map);
    if (!status)
        status = whole ? head_join_loss(&model->run, &call, true)
                       : rank_run(&s->test.rank, PHASE_LOSS, cross_entropy_fused, &call);
    if (!status)
        status = result(s, whole, 0, model->run.scratch.losses, 1, 0, ROWS, 1, NULL);
    return status ? status : result(s, whole, 1, logits, stride, 0, ROWS, part->vocab, map);
}

static int run_layer(struct scene *s, const struct scene *whole) {
    const struct block_params *block = &s->test.base->blocks[0];
    switch (s->layer) {
    case EMBEDDING:
        return embedding(s, whole);
    case NORM:
        return norm(s, whole);
    case QKV:
        return linear(s, whole, &block->qkv);
    case PROJECTION:
        return linear(s, whole, &block->projection);
    case FC1:
        return linear(s, whole, &block->fc1);
    case FC2:
        return linear(s, whole, &block->fc2);
    case ATTENTION:
        return attention(s, whole);
    default:
        return loss(s, whole);
    }
}

/* ---- runs ---- */

static struct model_options make_options(void) {
    struct model_options options = {
        .base.config = test_config(1, T), .base.dtype = DTYPE_F32, .base.trains = true, .max_rows = ROWS};
    options.base.config.hidden_dropout = 0.1;
    options.base.config.attention_dropout = 0.2;
    return options;
}

/* The layer by itself, in a model whose batch is there; then what ranks sum of their parts of gradients. */
static int play(struct scene *s, const struct scene *whole) {
    float *weight;
    struct model_batch batch = test_batch(SAMPLES, T, V, 0, &weight);
    for (int i = 0; i < ROWS; i++)
        weight[i] = 1.0f / (float)(16 + i);
    struct param_store *store = base_store(s->test.base);
    int status = fill_weights(&s->test, s->layer);
    if (!status)
        status = test_train_step(s->test.model, &batch, &(struct model_pass){.is_first_micro_batch = true});
    if (!status)
        status = stream_zero(s->test.rank.exec.stream, test_array(store, PARAM_GRADIENTS), param_gradient_bytes(store));
    if (!status)
        status = run_layer(s, whole);
    return status ? status : gradient_sum_over_tensor(&s->test.rank, store, 0);
}

static void end(struct scene *s) {
    for (int i = 0; i < s->block_count; i++)
        device_free(s->test.device, s->blocks[i]);
    test_model_close(&s->test);
}

static int run_rank(struct comm *world, void *context) {
    const struct task *task = context;
    struct scene s = {.layer = task->layer};
    struct rank_grid grid = {task->tensors, 1, 1, 1, 1};
    const struct model_options options = make_options();
    int status = test_model_open_rank(&s.test, &options, &grid, world, task->is_sequence_parallel);
    if (!status)
        status = play(&s, task->whole);
    if (!status)
        status = compare_gradients(&s, task->whole);
    if (status)
        comm_abort(world, status_text());
    end(&s);
    return status;
}

static void check(enum layer layer) {
    struct scene whole = {.layer = layer};
    const struct model_options options = make_options();
    test_ok(test_model_open_rank(&whole.test, &options, &(const struct rank_grid){1, 1, 1, 1, 1}, NULL, false));
    test_ok(play(&whole, NULL));
    whole.values = test_model_values(&whole.test);
    for (int tensors = 2; tensors <= 4; tensors *= 2)
        for (int is_cut = 0; is_cut < 2; is_cut++) {
            struct task task = {layer, tensors, is_cut, &whole};
            test_ok(comm_local_run(tensors, run_rank, &task));
        }
    test_values_free(&whole.values);
    end(&whole);
    for (int i = 0; i < RESULTS; i++)
        free(whole.results[i]);
}

static void the_embedding_of_a_cut_vocabulary(void **state) {
    (void)state;
    check(EMBEDDING);
}

static void the_norm_of_a_cut_sequence(void **state) {
    (void)state;
    check(NORM);
}

static void linears_cut_by_columns(void **state) {
    (void)state;
    check(QKV);
    check(FC1);
}

static void linears_cut_by_rows(void **state) {
    (void)state;
    check(PROJECTION);
    check(FC2);
}

static void attention_cut_by_heads(void **state) {
    (void)state;
    check(ATTENTION);
}

static void the_loss_of_a_cut_vocabulary(void **state) {
    (void)state;
    check(CROSS_ENTROPY);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_embedding_of_a_cut_vocabulary),
        cmocka_unit_test(the_norm_of_a_cut_sequence),
        cmocka_unit_test(linears_cut_by_columns),
        cmocka_unit_test(linears_cut_by_rows),
        cmocka_unit_test(attention_cut_by_heads),
        cmocka_unit_test(the_loss_of_a_cut_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
