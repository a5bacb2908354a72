/* A small frozen model with a stack of adapters, on any ranks: its loss, its gradients against differences, and those
 * of a layout against one rank. Where the layout has data ranks, each holds a share of the base. */
#pragma once

#include "peft/peft.h"

#include "parallel/schedule.h"
#include "parallel/sharded.h"
#include "parallel/sync.h"
#include "peft/support.h"
#include "support/runner.h"
#include "support/test.h"
#include "support/tiny_model.h"

#include <limits.h>
#include <math.h>

enum { SAMPLES = 2, OWN_TOKENS = 6, SAMPLE_MOST = 16, ROWS_MOST = SAMPLES * SAMPLE_MOST, VOCAB = 31, LAYERS = 4 };
enum { PROMPT_STACK_MOST = 3 };

static inline struct model_config prompt_base(void) {
    return tiny_model(&(const struct tiny_model){.layers = LAYERS,
                                                 .hidden = 16,
                                                 .heads = 4,
                                                 .ffn = 24,
                                                 .positions = SAMPLE_MOST,
                                                 .vocab = VOCAB,
                                                 .init_std = 0.3});
}

/* A base of another family: four heads, wider together than C, of two keys and values. */
static inline struct model_config prompt_family_base(const char *family) {
    struct model_config config = prompt_base();
    tiny_model_become(&config, family, 2, 6);
    return config;
}

struct prompt_run {
    struct device *device;
    struct rank rank;
    struct peft *peft;
    struct base *base;
    struct training_runner *model;
    void *stream[4];         /* between two stages: x, y, dx, dy */
    bool has_dropout;        /* of the adapters; the base has none */
    struct unit_order order; /* of a global batch, if the base is cut */
};

struct prompt_stack {
    int count;
    struct peft_config adapters[PROMPT_STACK_MOST];
    int frozen_count;
    struct peft_config frozen[PROMPT_STACK_MOST]; /* below those */
    enum dtype dtype;
    int64_t layers;     /* of the base; 0: LAYERS */
    int stashes;        /* of the model; 0: 1 */
    float shaken;       /* added to the initial values: so much of tuned_shake */
    const char *family; /* of the base; NULL: GPT-2 */
    bool has_dropout;   /* of the adapters */
};

enum { PROMPT_MICRO_BATCHES = 2, PROMPT_KEPT = 1 };

static inline struct model_config prompt_base_of(const struct prompt_stack *stack) {
    return stack->family ? prompt_family_base(stack->family) : prompt_base();
}

/* Lists the units of a global batch, whose micro batches go forward and back one after the other. */
static inline int prompt_order(struct prompt_run *run) {
    struct pipeline_step steps[2 * PROMPT_MICRO_BATCHES] = {{0}};
    for (int m = 0; m < PROMPT_MICRO_BATCHES; m++) {
        steps[2 * m].kind = PIPELINE_FORWARD;
        steps[2 * m + 1].kind = PIPELINE_BACKWARD;
    }
    return model_unit_order(run->model, steps, 2 * PROMPT_MICRO_BATCHES, false, &run->order);
}

static inline int prompt_open(struct prompt_run *run, const struct prompt_stack *stack, const struct rank_grid *grid,
                              struct comm *world, bool is_sequence_parallel) {
    *run = (struct prompt_run){.has_dropout = stack->has_dropout};
    int status = device_open(test_device(), DEVICE_FIRST, 1, &run->device);
    if (!status)
        status = rank_open(&run->rank, grid, world, run->device, 1);
    run->rank.is_sequence_parallel = is_sequence_parallel;
    struct model_options options = {.base.config = prompt_base_of(stack),
                                    .base.dtype = stack->dtype,
                                    .max_rows = ROWS_MOST,
                                    .train.stashes = stack->stashes,
                                    .base.layer_shards = grid->data > 1 ? grid->data : 0,
                                    .base.kept_units = grid->pipeline > 1 ? PROMPT_KEPT : 0,
                                    .base.storage = grid->data > 1 ? &storage_sharded : NULL,
                                    .base.chunk_count = 1};
    int64_t layers = options.base.config.num_layers = stack->layers ? stack->layers : LAYERS;
    int64_t first = param_share(layers, run->rank.place.pipeline, grid->pipeline);
    options.base.chunks[0] =
        (struct model_chunk){first, param_share(layers, run->rank.place.pipeline + 1, grid->pipeline) - first};
    struct peft_options adapters = {
        .adapters = stack->adapters, .count = stack->count, .model = &options, .trains = true};
    adapters.frozen = stack->frozen;
    adapters.frozen_count = stack->frozen_count;
    if (!status)
        status = peft_open(&adapters, &run->rank, &run->peft);
    if (status)
        return status;
    options.hooks = peft_hooks(run->peft);
    status = test_open_training(&options, &run->rank, NULL, &run->base, &run->model);
    if (!status)
        status = peft_allocate(run->peft);
    if (!status)
        status = base_initialise(run->base, 77);
    if (!status)
        peft_set_base(run->peft, base_store(run->base));
    if (!status)
        status = peft_initialise(run->peft, 5);
    if (!status && stack->shaken > 0)
        status = tuned_shake(peft_store(run->peft), run->rank.exec.stream, stack->shaken);
    struct peft *frozen = status ? NULL : (struct peft *)peft_frozen(run->peft); /* as if its files had these values */
    if (frozen)
        status = peft_initialise(frozen, 6);
    if (!status && frozen)
        status = tuned_shake(peft_store(frozen), run->rank.exec.stream, 0.3f);
    size_t bytes = status ? 0 : (size_t)training_stream_elements(run->model) * dtype_bytes(stack->dtype);
    for (int i = 0; i < 4 && !status; i++)
        status = device_alloc(run->device, bytes, &run->stream[i]);
    return status || grid->data == 1 ? status : prompt_order(run);
}

static inline void prompt_close(struct prompt_run *run) {
    for (int i = 0; i < 4; i++)
        device_free(run->device, run->stream[i]);
    free(run->order.units);
    test_close_training(&run->base, &run->model);
    peft_close(run->peft);
    rank_close(&run->rank);
    device_close(run->device);
}

/* Samples of virtual tokens and then their own, some of which train. */
static inline void prompt_batch(const struct peft *peft, uint32_t number, struct model_batch *batch) {
    static _Thread_local int32_t tokens[ROWS_MOST], positions[ROWS_MOST], labels[ROWS_MOST];
    static _Thread_local uint32_t sample[ROWS_MOST], token[ROWS_MOST];
    static _Thread_local float weight[ROWS_MOST];
    static _Thread_local int64_t start[SAMPLES + 1];
    uint32_t virtual_tokens = (uint32_t)peft_virtual_tokens(peft), length = virtual_tokens + OWN_TOKENS;
    length += length % 2; /* tensor ranks cut the rows */
    for (uint32_t i = 0; i < SAMPLES * length; i++) {
        struct philox draw = philox(5, i, number, 0, 0);
        uint32_t place = i % length;
        tokens[i] = place < virtual_tokens ? (int32_t)(VOCAB + place) : (int32_t)(draw.word[0] % VOCAB);
        labels[i] = (int32_t)(draw.word[1] % VOCAB);
        positions[i] = (int32_t)(place + peft_prefix_tokens(peft));
        token[i] = place;
        sample[i] = i / length + number * SAMPLES;
        weight[i] = place + 1 < virtual_tokens || i % 5 == 4 ? 0 : 1.0f / 16;
    }
    for (int i = 0; i <= SAMPLES; i++)
        start[i] = i * length;
    *batch = (struct model_batch){.rows = SAMPLES * length,
                                  .tokens = tokens,
                                  .positions = positions,
                                  .sample = sample,
                                  .token = token,
                                  .segments = SAMPLES,
                                  .segment_start = start,
                                  .labels = labels,
                                  .loss_weight = weight};
}

static inline int prompt_move(struct prompt_run *run, bool sends, void *data, enum pipeline_step_kind kind, int to) {
    struct comm_data call = {.send = sends ? data : NULL,
                             .receive = sends ? NULL : data,
                             .count = training_stream_elements(run->model),
                             .dtype = peft_store(run->peft)->map.type,
                             .stream = run->rank.exec.stream};
    return sends ? comm_send(run->rank.pipeline[kind], &call, to) : comm_receive(run->rank.pipeline[kind], &call, to);
}

/* A micro batch through all stages, forward and (unless it is evaluated) back. */
static inline int prompt_micro_batch(struct prompt_run *run, const struct model_batch *batch,
                                     const struct model_pass *pass, bool is_evaluated) {
    int stage = run->rank.place.pipeline, last = run->rank.grid.pipeline - 1;
    void *x = stage ? run->stream[0] : NULL, *y = stage < last ? run->stream[1] : NULL;
    void *dx = stage ? run->stream[2] : NULL, *dy = stage < last ? run->stream[3] : NULL;
    int status = stage ? prompt_move(run, false, x, PIPELINE_FORWARD, stage - 1) : STATUS_OK;
    if (!status)
        status = is_evaluated ? model_evaluate_chunk(run->model, batch, 0, x, y)
                              : model_forward(run->model, batch, pass, x, y);
    if (!status && stage < last)
        status = prompt_move(run, true, y, PIPELINE_FORWARD, stage + 1);
    if (status || is_evaluated)
        return status;
    if (stage < last)
        status = prompt_move(run, false, dy, PIPELINE_BACKWARD, stage + 1);
    if (!status)
        status = model_backward(run->model, pass, dy, dx);
    return status || !stage ? status : prompt_move(run, true, dx, PIPELINE_BACKWARD, stage - 1);
}

/* A global batch: the loss (of the last stage), and the gradients in the stack's store. Every data rank has the same
 * batch, so the gradients of each are those of one rank. */
static inline int prompt_train(struct prompt_run *run, bool is_evaluated, double *loss) {
    const struct param_store *base = base_store(run->base);
    int status = peft_begin_batch(run->peft, 40);
    if (!status)
        status = sharded_follow(base, run->order.units, run->order.count);
    for (uint32_t m = 0; m < PROMPT_MICRO_BATCHES && !status; m++) {
        struct model_batch batch;
        struct model_pass pass = {.is_first_micro_batch = m == 0,
                                  .is_last_micro_batch = m + 1 == PROMPT_MICRO_BATCHES,
                                  .has_dropout = run->has_dropout};
        prompt_batch(run->peft, m, &batch);
        status = prompt_micro_batch(run, &batch, &pass, is_evaluated);
    }
    if (!status)
        status = sharded_follow(base, NULL, 0);
    if (!status && !is_evaluated)
        status = peft_end(run->peft);
    for (int layer = -1; layer <= LAYERS && !status && !is_evaluated; layer++)
        status = gradient_sum_over_tensor(&run->rank, peft_store(run->peft), layer);
    return status ? status : model_loss(run->model, loss);
}

/* ---- folded ---- */

static inline void prompt_logits(struct prompt_run *run, float *logits) {
    struct model_batch batch;
    test_ok(peft_begin(run->peft));
    prompt_batch(run->peft, 0, &batch);
    test_ok(model_logits(run->model, &batch, logits));
}

/* The files of the stack, into one that does not train: [count] adapters in the stack's order. */
static inline void prompt_save_and_load(struct peft *peft, const struct prompt_stack *stack, struct peft *served) {
    char *root = test_directory(), directories[PROMPT_STACK_MOST][PATH_MAX];
    const char *names[PROMPT_STACK_MOST];
    struct peft_texts texts;
    struct peft_files *files;
    const struct model_config base = prompt_base_of(stack);
    test_ok(peft_texts_make(stack->adapters, stack->count, &base, "base", &(struct peft_notes){0}, &texts));
    test_ok(
        peft_export(peft, &(struct peft_export){.texts = texts.items, .text_count = texts.count, .directory = root}));
    for (int i = 0; i < stack->count; i++) {
        const char *name = stack->count > 1 ? peft_method_names[stack->adapters[i].type] : "";
        test_ok(file_join(directories[i], sizeof directories[i], root, name));
        names[i] = directories[i];
    }
    test_ok(peft_files_open(names, (size_t)stack->count, false, &files));
    test_ok(peft_load(served, files));
    peft_files_close(files);
    peft_texts_free(&texts);
    free(root);
}

/* Opens the stack once more, without training, on a model of its own, with what the first one left in files. */
static inline void prompt_check_fold(const struct prompt_stack *stack) {
    struct prompt_run run, served = {0};
    test_ok(prompt_open(&run, stack, &(const struct rank_grid){1, 1, 1, 1, 1}, NULL, false));
    float *logits = calloc(ROWS_MOST * VOCAB, sizeof *logits), *folded = calloc(ROWS_MOST * VOCAB, sizeof *folded);
    prompt_logits(&run, logits);
    struct model_options options = {
        .base.config = prompt_base_of(stack), .base.dtype = stack->dtype, .base.trains = true, .max_rows = ROWS_MOST};
    struct peft_options adapters = {.adapters = stack->adapters, .count = stack->count, .model = &options};
    test_ok(device_open(test_device(), DEVICE_FIRST, 1, &served.device));
    test_ok(rank_open_single(&served.rank, served.device, 1));
    test_ok(peft_open(&adapters, &served.rank, &served.peft));
    options.hooks = peft_hooks(served.peft);
    test_ok(test_open_training(&options, &served.rank, NULL, &served.base, &served.model));
    test_ok(peft_allocate(served.peft));
    test_ok(base_initialise(served.base, 77));
    prompt_save_and_load(run.peft, stack, served.peft);
    struct param_store *store = peft_store(served.peft);
    for (int i = 0; i < store->map.table->count; i++)
        for (int s = 0; s < store->map.table->rows[i].slice_count; s++)
            assert_string_equal(store->map.table->rows[i].slices[s].name, "prompt_embeddings");
    prompt_logits(&served, folded);
    assert_memory_equal(logits, folded, ROWS_MOST * VOCAB * sizeof *logits);
    free(logits);
    free(folded);
    prompt_close(&served);
    prompt_close(&run);
}

/* ---- gradients against differences ---- */

/* The loss with other values for some of a parameter's. */
static inline double prompt_loss_with(struct prompt_run *run, float *device, const float *values, int64_t count) {
    double loss;
    test_ok(test_write(run->rank.exec.stream, device, values, (size_t)count * sizeof *values));
    test_ok(prompt_train(run, true, &loss));
    return loss;
}

/* The loss's slope at a weight by differences over +-h. */
static inline double prompt_difference(struct prompt_run *run, float *device, float value, float h) {
    double plus = prompt_loss_with(run, device, &(float){value + h}, 1),
           minus = prompt_loss_with(run, device, &(float){value - h}, 1);
    test_ok(test_write(run->rank.exec.stream, device, &value, sizeof value));
    return (plus - minus) / (2 * (double)h);
}

/* A step along a tensor's whole gradient changes the loss as its length says: what single elements are too small to
 * show. */
static inline void prompt_check_direction(struct prompt_run *run, int id, const struct test_values *all) {
    struct param_store *store = peft_store(run->peft);
    float *device = (float *)test_array(store, PARAM_WEIGHTS) + store->map.places[id].offset;
    const float *gradient = all->gradients + store->map.places[id].offset,
                *kept = all->weights + store->map.places[id].offset;
    int64_t count = param_local_elements(store, id);
    double length = 0, loss[2];
    float *values = malloc((size_t)count * sizeof *values);
    assert_non_null(values);
    for (int64_t e = 0; e < count; e++)
        length += (double)gradient[e] * (double)gradient[e];
    length = sqrt(length);
    double step = length > 0.06 ? 0.003 / length : 0.05; /* beyond fp32's rounding, before the next corner of a ReLU */
    for (int side = 0; side < 2 && length > 0; side++) {
        for (int64_t e = 0; e < count; e++)
            values[e] = kept[e] + (float)((side ? step : -step) * (double)gradient[e] / length);
        loss[side] = prompt_loss_with(run, device, values, count);
    }
    test_ok(test_write(run->rank.exec.stream, device, kept, (size_t)count * sizeof *kept));
    free(values);
    double numeric = length > 0 ? (loss[1] - loss[0]) / (2 * step) : 0;
    if (!(fabs(numeric - length) <= 1e-5 + 0.03 * length))
        fail_msg("%s: along its gradient of length %g the loss has a slope of %g", store->map.table->rows[id].name,
                 length, numeric);
}

/* Some elements of every parameter. fp32 losses around 5 carry 5e-7: differences are good to about 5e-5; where a ReLU
 * turns within the step, a smaller one has to do. */
static inline void prompt_check_differences(const struct prompt_stack *stack) {
    struct prompt_run run;
    double loss;
    test_ok(prompt_open(&run, stack, &(const struct rank_grid){1, 1, 1, 1, 1}, NULL, false));
    test_ok(prompt_train(&run, false, &loss));
    struct param_store *store = peft_store(run.peft);
    struct test_values all = test_values(store, run.rank.exec.stream);
    for (int i = 0; i < store->map.table->count; i++) {
        int64_t count = param_local_elements(store, i), step = count / 5 + 1;
        double largest = 0;
        for (int64_t e = 0; e < count; e++)
            largest = fmax(largest, fabs((double)all.gradients[store->map.places[i].offset + e]));
        bool is_state = strstr(store->map.table->rows[i].name, "weight_hh") != NULL; /* of one token: there is none */
        if (largest == 0 && !(is_state && peft_virtual_tokens(run.peft) == 1))
            fail_msg("%s has no gradient", store->map.table->rows[i].name);
        prompt_check_direction(&run, i, &all);
        for (int64_t e = 0; e < count; e += step) {
            float *device = (float *)test_array(store, PARAM_WEIGHTS) + store->map.places[i].offset + e,
                  value = all.weights[store->map.places[i].offset + e];
            double ours = all.gradients[store->map.places[i].offset + e],
                   numeric = prompt_difference(&run, device, value, 0.01f);
            bool is_close = fabs(numeric - ours) <= 1e-4 + 5e-3 * fabs(ours);
            if (!is_close && fabs((numeric = prompt_difference(&run, device, value, 0.001f)) - ours) > 1e-3)
                fail_msg("%s, element %lld: %g, numeric %g", store->map.table->rows[i].name, (long long)e, ours,
                         numeric);
        }
    }
    test_values_free(&all);
    prompt_close(&run);
}

/* ---- layouts against one rank ---- */

struct prompt_layout {
    struct rank_grid grid;
    bool is_sequence_parallel;
    const struct prompt_stack *stack;
    const struct test_values *whole; /* of the adapters */
    double loss;
};

/* Compares the rank's rectangles of a parameter with the same elements of the whole. Values are equal to the bit,
 * except DoRA's norms, whose sums tensor ranks share. Gradients are within `bound` of the largest entry. */
static inline int prompt_compare_param(const struct test_values *ours, const struct test_values *whole, float bound,
                                       int id) {
    const struct param_store *store = ours->store;
    const struct param *row = &store->map.table->rows[id];
    int64_t at = store->map.places[id].offset, whole_at = whole->store->map.places[id].offset;
    const float *gradient = ours->gradients + at, *expected = whole->gradients + whole_at;
    const float *weight = ours->weights + at, *whole_weight = whole->weights + whole_at;
    struct param_rect rects[PARAM_MAX_SLICES];
    int count = param_part_rects(&store->map.part, store->map.table, id, rects);
    float rounding = bound > 0 && strstr(row->name, "magnitude") ? 1e-6f : 0;
    float largest = 0;
    for (int64_t e = 0; e < param_elements(row); e++)
        largest = fmaxf(largest, fabsf(expected[e]));
    for (int r = 0; r < count; r++)
        for (int64_t e = 0; e < rects[r].rows * rects[r].columns; e++) {
            int64_t y = e / rects[r].columns, x = e % rects[r].columns;
            int64_t here = (rects[r].local_row + y) * rects[r].columns + x;
            int64_t there = (rects[r].row + y) * row->shape[1] + rects[r].column + x;
            if (!(fabsf(weight[here] - whole_weight[there]) <= rounding * fabsf(whole_weight[there])))
                return status_fail(STATUS_INVALID, "%s [%lld]: value %.9g, whole %.9g", row->name, (long long)there,
                                   (double)weight[here], (double)whole_weight[there]);
            if (!(fabsf(gradient[here] - expected[there]) <= bound * largest))
                return status_fail(STATUS_INVALID, "%s [%lld]: %.9g, whole %.9g", row->name, (long long)there,
                                   (double)gradient[here], (double)expected[there]);
        }
    return STATUS_OK;
}

/* Data ranks that hold shares of the base add nothing in another order, so they have the bits of one rank. */
static inline int prompt_compare(struct prompt_run *run, const struct test_values *whole) {
    struct test_values ours = test_values(peft_store(run->peft), run->rank.exec.stream);
    float bound = run->rank.grid.tensor == 1 && run->rank.grid.pipeline == 1 ? 0 : 2e-5f;
    int status = STATUS_OK;
    for (int id = 0; id < ours.store->map.table->count && !status; id++)
        status = prompt_compare_param(&ours, whole, bound, id);
    test_values_free(&ours);
    return status;
}

static inline int prompt_run_rank(struct comm *world, void *context) {
    const struct prompt_layout *layout = context;
    struct prompt_run run;
    double loss = 0;
    int status = prompt_open(&run, layout->stack, &layout->grid, world, layout->is_sequence_parallel);
    if (!status)
        status = prompt_train(&run, false, &loss);
    bool is_last = run.rank.place.pipeline + 1 == layout->grid.pipeline;
    if (!status && is_last && !(fabs(loss - layout->loss) <= 1e-6 * layout->loss))
        status = status_fail(STATUS_INVALID, "loss %.9g, whole %.9g", loss, layout->loss);
    if (!status)
        status = prompt_compare(&run, layout->whole);
    prompt_close(&run);
    return status;
}

static inline void prompt_check(const struct prompt_stack *stack, const struct prompt_layout *layouts, size_t count) {
    struct prompt_run whole;
    double loss;
    test_ok(prompt_open(&whole, stack, &(const struct rank_grid){1, 1, 1, 1, 1}, NULL, false));
    test_ok(prompt_train(&whole, false, &loss));
    struct test_values values = test_values(peft_store(whole.peft), whole.rank.exec.stream);
    for (size_t i = 0; i < count; i++) {
        struct prompt_layout layout = layouts[i];
        layout.stack = stack;
        layout.whole = &values;
        layout.loss = loss;
        if (comm_local_run(rank_grid_size(&layout.grid), prompt_run_rank, &layout))
            fail_msg("tensor %d%s, data %d, pipeline %d: %s", layout.grid.tensor,
                     layout.is_sequence_parallel ? " with the sequence cut" : "", layout.grid.data,
                     layout.grid.pipeline, status_text());
    }
    test_values_free(&values);
    prompt_close(&whole);
}

/* Ranks that cut the model. */
static inline void prompt_check_layouts(const struct prompt_stack *stack) {
    static const struct prompt_layout layouts[] = {
        {.grid = {2, 1, 1, 1, 1}}, {.grid = {2, 1, 1, 1, 1}, .is_sequence_parallel = true}, {.grid = {1, 1, 1, 1, 2}},
        {.grid = {4, 1, 1, 1, 1}}, {.grid = {4, 1, 1, 1, 1}, .is_sequence_parallel = true}, {.grid = {1, 1, 1, 1, 3}},
        {.grid = {2, 1, 1, 1, 2}}, {.grid = {2, 1, 1, 1, 2}, .is_sequence_parallel = true}, {.grid = {1, 1, 1, 1, 4}}};
    prompt_check(stack, layouts, sizeof layouts / sizeof *layouts);
}

/* Data ranks of which each holds a share of the base. */
static inline void prompt_check_sharded(const struct prompt_stack *stack) {
    static const struct prompt_layout layouts[] = {
        {.grid = {1, 1, 1, 4, 1}}, {.grid = {2, 1, 1, 2, 1}, .is_sequence_parallel = true},
        {.grid = {1, 1, 1, 2, 2}}, {.grid = {2, 1, 1, 4, 1}},
        {.grid = {1, 1, 1, 4, 2}}, {.grid = {2, 1, 1, 2, 2}, .is_sequence_parallel = true}};
    size_t count = sizeof layouts / sizeof *layouts;
    prompt_check(stack, layouts, test_is_long() ? count : count / 2);
}
