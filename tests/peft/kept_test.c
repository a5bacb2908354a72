/* Layers below the lowest that trains keep no activations, and no gradient goes to a stage of them; what trains has the
 * same gradients, to the bit. */
#include "peft/prompt_support.h"

#include "comm-internal.h"
#include "parallel/pipeline.h"

enum { MICROS = 3 };
static const struct config_list highest[LAYERS] = {LIST("0", "1", "2", "3"), LIST("1", "2", "3"), LIST("2", "3"),
                                                   LIST("3")};
static const struct peft_config methods[] = {
    {.type = PEFT_LORA, .r = 2, .lora_alpha = 2},
    {.type = PEFT_LORA, .r = 2, .lora_alpha = 2, .target_modules = EVERYTHING},
    {.type = PEFT_ADAPTER, .bottleneck = 3, .adapter_scaling = 1, .adapter_pre_norm = true},
};
enum { METHODS = sizeof methods / sizeof *methods };
static const struct model_recompute recomputations[] = {
    {.how = RECOMPUTE_NONE},
    {.how = RECOMPUTE_SELECTIVE, .layernorm = true},
    {.how = RECOMPUTE_UNIFORM, .num_layers = 2},
    {.how = RECOMPUTE_UNIFORM, .num_layers = 3},
    {.how = RECOMPUTE_BLOCK, .num_layers = 1},
};
enum { RECOMPUTATIONS = sizeof recomputations / sizeof *recomputations };

static struct prompt_stack stack_of(const struct peft_config *adapter, int lowest) {
    struct prompt_stack stack = {.count = 1, .adapters = {*adapter}, .dtype = DTYPE_F32, .shaken = 0.3f};
    stack.adapters[0].layers_to_transform = highest[lowest];
    return stack;
}

/* ---- one rank, and its chunks ---- */

/* A stack on a model of its own, with `chunks` equal runs of layers. */
struct chunked {
    struct prompt_run run;
    struct hook_table hooks;
    struct model_plan plan;
    struct model_options options;
    void *x[MICROS], *dx[MICROS]; /* between two chunks */
};

/* `keeps_all`: with a hook at the first layer that does nothing, so that every layer has a backward. */
static void chunked_open(struct chunked *c, const struct prompt_stack *stack, int chunks,
                         const struct model_recompute *recompute, bool keeps_all) {
    static const struct hook nothing = {.side = HOOK_BEFORE_ACTIVATION};
    *c = (struct chunked){.options = {.base.config = prompt_base(),
                                      .base.dtype = stack->dtype,
                                      .max_rows = ROWS_MOST,
                                      .train.stashes = MICROS * chunks,
                                      .train.recompute = *recompute,
                                      .base.chunk_count = chunks}};
    for (int i = 0; i < chunks; i++)
        c->options.base.chunks[i] = (struct model_chunk){i * LAYERS / chunks, LAYERS / chunks};
    struct prompt_run *run = &c->run;
    struct peft_options adapters = {
        .adapters = stack->adapters, .count = stack->count, .model = &c->options, .trains = true};
    test_ok(device_open(test_device(), DEVICE_FIRST, 1, &run->device));
    test_ok(rank_open_single(&run->rank, run->device, 1));
    test_ok(peft_open(&adapters, &run->rank, &run->peft));
    test_ok(hook_table_init(&c->hooks, LAYERS));
    const struct hook_table *hooks = peft_hooks(run->peft);
    memcpy(c->hooks.lists, hooks->lists, LAYERS * ATTACH_PLACE_COUNT * sizeof *hooks->lists);
    memcpy(c->hooks.prefixes, hooks->prefixes, LAYERS * sizeof *hooks->prefixes);
    c->hooks.tokens = hooks->tokens;
    if (keeps_all)
        test_ok(hook_table_add(&c->hooks, 0, ATTACH_PROJECTION, &nothing));
    c->options.hooks = &c->hooks;
    test_ok(test_open_training(&c->options, &run->rank, &c->plan, &run->base, &run->model));
    test_ok(peft_allocate(run->peft));
    test_ok(base_initialise(run->base, 77));
    peft_set_base(run->peft, base_store(run->base));
    test_ok(peft_initialise(run->peft, 5));
    test_ok(tuned_shake(peft_store(run->peft), run->rank.exec.stream, stack->shaken));
    for (int m = 0; m < MICROS; m++) {
        test_ok(device_alloc(run->device, (size_t)training_stream_elements(run->model) * sizeof(float), &c->x[m]));
        test_ok(device_alloc(run->device, (size_t)training_stream_elements(run->model) * sizeof(float), &c->dx[m]));
    }
}

static void chunked_close(struct chunked *c) {
    for (int m = 0; m < MICROS; m++) {
        device_free(c->run.device, c->x[m]);
        device_free(c->run.device, c->dx[m]);
    }
    prompt_close(&c->run);
    hook_table_free(&c->hooks);
}

static void pass_chunk(struct chunked *c, int chunk, int m, bool is_backward) {
    const struct model_chunk *at = &c->options.base.chunks[chunk];
    bool is_held = model_has_backward(&c->options, at->first + at->count);
    bool is_first = chunk == 0, is_last = chunk + 1 == c->options.base.chunk_count;
    struct model_pass pass = {.chunk = chunk,
                              .stash = is_held ? chunk * MICROS + m : -1,
                              .is_first_micro_batch = m == 0,
                              .is_last_micro_batch = m + 1 == MICROS,
                              .has_dropout = true};
    struct model_batch batch;
    prompt_batch(c->run.peft, (uint32_t)m, &batch);
    if (is_backward)
        test_ok(model_backward(c->run.model, &pass, is_last ? NULL : c->dx[m], is_first ? NULL : c->dx[m]));
    else
        test_ok(model_forward(c->run.model, &batch, &pass, is_first ? NULL : c->x[m], is_last ? NULL : c->x[m]));
}

/* All micro batches forward through a chunk before the next chunk's turn, and back so; a validation in between. */
static void train_chunks(struct chunked *c, double losses[2]) {
    test_ok(peft_begin_batch(c->run.peft, 40));
    for (int chunk = 0; chunk < c->options.base.chunk_count; chunk++)
        for (int m = 0; m < MICROS; m++)
            pass_chunk(c, chunk, m, false);
    for (int chunk = c->options.base.chunk_count - 1; chunk >= 0; chunk--)
        for (int m = 0; m < MICROS; m++)
            pass_chunk(c, chunk, m, true);
    test_ok(peft_end(c->run.peft));
    test_ok(model_loss(c->run.model, &losses[0]));
    struct model_batch batch;
    prompt_batch(c->run.peft, 9, &batch);
    for (int chunk = 0; chunk < c->options.base.chunk_count; chunk++)
        test_ok(model_evaluate_chunk(c->run.model, &batch, chunk, c->x[0], c->x[0]));
    test_ok(model_loss(c->run.model, &losses[1]));
}

static void assert_same_gradients(const struct chunked *a, const struct chunked *b) {
    struct test_values ours = test_values(peft_store(a->run.peft), a->run.rank.exec.stream);
    struct test_values expected = test_values(peft_store(b->run.peft), b->run.rank.exec.stream);
    assert_memory_equal(ours.gradients, expected.gradients, param_gradient_bytes(expected.store));
    test_values_free(&ours);
    test_values_free(&expected);
}

static void what_keeps_nothing_changes_no_bit(void **state) {
    (void)state;
    for (int m = 0; m < METHODS; m++)
        for (int lowest = 1; lowest < LAYERS; lowest++) {
            struct prompt_stack stack = stack_of(&methods[m], lowest);
            struct chunked all;
            double expected[2];
            chunked_open(&all, &stack, 1, &recomputations[0], true);
            train_chunks(&all, expected);
            for (int r = 0; r < RECOMPUTATIONS; r++)
                for (int chunks = 1; chunks <= 2; chunks++) {
                    struct chunked own;
                    double losses[2];
                    chunked_open(&own, &stack, chunks, &recomputations[r], false);
                    train_chunks(&own, losses);
                    assert_true(losses[0] == expected[0] && losses[1] == expected[1]);
                    assert_same_gradients(&own, &all);
                    chunked_close(&own);
                }
            chunked_close(&all);
        }
}

/* Sets of layers that are computed again are for all groups, whatever the hooks of the first. */
static void groups_of_layers_with_other_hooks_share_sets(void **state) {
    (void)state;
    const struct peft_config of_layers[] = {
        {.type = PEFT_LORA,
         .r = 2,
         .lora_alpha = 2,
         .target_modules = LIST("mlp.c_proj"),
         .layers_to_transform = LIST("0")},
        {.type = PEFT_LORA, .r = 2, .lora_alpha = 2, .layers_to_transform = LIST("2")},
    };
    struct prompt_stack stack = {
        .count = 2, .adapters = {of_layers[0], of_layers[1]}, .dtype = DTYPE_F32, .shaken = 0.3f};
    struct chunked kept, again;
    double expected[2], losses[2];
    chunked_open(&kept, &stack, 1, &recomputations[0], false);
    chunked_open(&again, &stack, 1, &(const struct model_recompute){.how = RECOMPUTE_UNIFORM, .num_layers = 2}, false);
    train_chunks(&kept, expected);
    train_chunks(&again, losses);
    assert_true(losses[0] == expected[0] && losses[1] == expected[1]);
    assert_same_gradients(&again, &kept);
    chunked_close(&kept);
    chunked_close(&again);
}

/* ---- the plan ---- */

static size_t planned(const struct peft_config *adapter, int lowest, int chunks, const struct model_recompute *r,
                      bool keeps_all) {
    struct prompt_stack stack = stack_of(adapter, lowest);
    struct chunked c;
    chunked_open(&c, &stack, chunks, r, keeps_all);
    size_t bytes = c.plan.activations;
    chunked_close(&c);
    return bytes;
}

/* Each layer that falls below the lowest gives back what its stashes kept of it. */
static void layers_below_the_lowest_have_no_plan(void **state) {
    (void)state;
    const int64_t C = 16, F = 24;
    const size_t layer = (size_t)(MICROS * ROWS_MOST * (C + 3 * C + C + C + F)) * sizeof(float); /* x to fc1 */
    for (int m = 0; m < METHODS; m++) {
        size_t bytes[LAYERS];
        for (int lowest = 0; lowest < LAYERS; lowest++)
            bytes[lowest] = planned(&methods[m], lowest, 1, &recomputations[0], false);
        assert_true(bytes[1] < bytes[0]);
        for (int lowest = 2; lowest < LAYERS; lowest++)
            assert_true(bytes[lowest] + layer <= bytes[lowest - 1] + (size_t)(2 * ROWS_MOST * C) * sizeof(float));
        for (int r = 0; r < RECOMPUTATIONS; r++)
            for (int lowest = 2; lowest < LAYERS; lowest++) {
                size_t own = planned(&methods[m], lowest, 1, &recomputations[r], false);
                size_t all = planned(&methods[m], lowest, 1, &recomputations[r], true);
                if (own >= all)
                    fail_msg("method %d, recomputation %d, lowest layer %d: %zu bytes, all kept %zu", m, r, lowest, own,
                             all);
            }
    }
}

/* ---- messages ---- */

/* Stands between a rank and its group for gradients. */
struct counted_group {
    struct comm comm, *real;
    int calls;
};

static int counted_start(struct comm *comm, struct comm_request *request) {
    struct counted_group *group = (struct counted_group *)comm;
    group->calls++;
    request->comm = group->real; /* which finishes it */
    return group->real->device->start(group->real, request);
}

static const struct comm_device_channel counted_channel = {.name = "counted", .start = counted_start};

struct staged {
    struct prompt_stack stack;
    struct rank_grid grid;
    struct test_values whole; /* of the adapters */
    double loss;
};

static int run_step(void *context, const struct pipeline_step *step, const void *in, void *out) {
    struct prompt_run *run = context;
    struct model_pass pass = {.stash = step->stash,
                              .is_first_micro_batch = step->micro_batch == 0,
                              .is_last_micro_batch = step->micro_batch == 1};
    struct model_batch batch;
    if (step->kind == PIPELINE_BACKWARD)
        return model_backward(run->model, &pass, in, out);
    prompt_batch(run->peft, (uint32_t)step->micro_batch, &batch);
    return model_forward(run->model, &batch, &pass, in, out);
}

static int run_staged(struct prompt_run *run, struct pipeline *pipeline, double *loss) {
    int status = peft_begin_batch(run->peft, 40);
    if (!status)
        status = pipeline_run(pipeline, false, &(const struct pipeline_worker){run_step, run});
    if (!status)
        status = peft_end(run->peft);
    return status ? status : model_loss(run->model, loss);
}

/* Two micro batches; a stage sends a gradient for each where the one before it has something that trains. */
static int run_stage(struct comm *world, void *context) {
    struct staged *staged = context;
    struct prompt_run run;
    struct pipeline pipeline = {0};
    double loss = 0;
    int stages = staged->grid.pipeline, lowest = 0;
    sscanf(staged->stack.adapters[0].layers_to_transform.items[0], "%d", &lowest);
    struct pipeline_shape shape = {.stages = stages, .chunks = 1, .micro_batches = 2};
    while (param_share(LAYERS, shape.first_backward + 1, stages) <= lowest)
        shape.first_backward++;
    int status = prompt_open(&run, &staged->stack, &staged->grid, world, false), stage = run.rank.place.pipeline;
    if (!status)
        status = pipeline_open(&pipeline, &run.rank, &shape, training_stream_elements(run.model), DTYPE_F32);
    struct counted_group group = {.comm = *run.rank.pipeline[PIPELINE_BACKWARD],
                                  .real = run.rank.pipeline[PIPELINE_BACKWARD]};
    group.comm.device = &counted_channel;
    run.rank.pipeline[PIPELINE_BACKWARD] = &group.comm;
    if (!status)
        status = run_staged(&run, &pipeline, &loss);
    run.rank.pipeline[PIPELINE_BACKWARD] = group.real;
    int sent = stage > shape.first_backward ? 2 : 0;
    int received = stage + 1 < stages && stage >= shape.first_backward ? 2 : 0;
    if (!status && group.calls != sent + received)
        status = status_fail(STATUS_INVALID, "stage %d of %d, lowest layer %d: %d messages of gradients, expected %d",
                             stage, stages, lowest, group.calls, sent + received);
    if (!status && stage + 1 == stages && !(fabs(loss - staged->loss) <= 1e-6 * staged->loss))
        status = status_fail(STATUS_INVALID, "loss %.9g, whole %.9g", loss, staged->loss);
    if (!status)
        status = prompt_compare(&run, &staged->whole);
    pipeline_close(&pipeline);
    prompt_close(&run);
    return status;
}

static void no_gradient_is_sent_where_nothing_trains(void **state) {
    (void)state;
    for (int m = 0; m < METHODS; m++)
        for (int lowest = 0; lowest < LAYERS; lowest++) {
            struct prompt_run whole;
            struct staged staged = {.stack = stack_of(&methods[m], lowest)};
            staged.stack.stashes = LAYERS;
            test_ok(prompt_open(&whole, &staged.stack, &(const struct rank_grid){1, 1, 1, 1, 1}, NULL, false));
            test_ok(prompt_train(&whole, false, &staged.loss));
            staged.whole = test_values(peft_store(whole.peft), whole.rank.exec.stream);
            for (int stages = 2; stages <= LAYERS; stages++) {
                staged.grid = (struct rank_grid){1, 1, 1, 1, stages};
                test_ok(comm_local_run(stages, run_stage, &staged));
            }
            test_values_free(&staged.whole);
            prompt_close(&whole);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_keeps_nothing_changes_no_bit),
        cmocka_unit_test(groups_of_layers_with_other_hooks_share_sets),
        cmocka_unit_test(layers_below_the_lowest_have_no_plan),
        cmocka_unit_test(no_gradient_is_sent_where_nothing_trains),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
