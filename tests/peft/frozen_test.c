/* Frozen means frozen, counted: passes run on a table of operations that notes each, and forwards on a tensor group
 * that notes each call. */
#include "peft/prompt_support.h"
#include "support/passes.h"

#include "comm-internal.h"

/* ---- operations ---- */

enum { OPERATIONS = sizeof(struct ops) / sizeof(void (*)(void)) };
#define NUMBER_OF(op) (offsetof(struct ops, op) / sizeof(void (*)(void)))

/* The operations of this thread. */
struct noted {
    const struct ops *real;
    const struct param_store *base, *adapters;
    int total, count[OPERATIONS]; /* by their place in the table */
    bool reads[LAYERS];           /* a weight of this layer of the base */
    int gradients;                /* products that are gradients of weights */
    int foreign;                  /* gradients of parameters that are none of the adapters' */
};
static _Thread_local struct noted noted;

/* Every word of the argument that points into the base's weights is a use of them. */
static void note(size_t number, const void *argument, size_t bytes) {
    const struct param_store *base = noted.base;
    const char *first = test_array(base, PARAM_WEIGHTS);
    noted.count[number]++;
    noted.total++;
    for (size_t at = 0; at + sizeof(char *) <= bytes; at += sizeof(char *)) {
        const char *p;
        memcpy(&p, (const char *)argument + at, sizeof p);
        if (p < first || p >= first + param_weight_bytes(base))
            continue;
        int64_t element = (p - first) / (int64_t)dtype_bytes(base->map.type);
        for (int id = 0; id < base->map.table->count; id++) {
            int layer = base->map.table->rows[id].layer;
            if (layer >= 0 && layer < LAYERS && element >= base->map.places[id].offset &&
                element < base->map.places[id].offset + param_local_elements(base, id))
                noted.reads[layer] = true;
        }
    }
}

static void note_gradient(const void *gradient) {
    const char *p = gradient, *first = test_array(noted.adapters, PARAM_GRADIENTS);
    noted.foreign += p < first || p >= first + param_gradient_bytes(noted.adapters);
}

#define NOTED(op, type)                                                                                                \
    static int noted_##op(const struct exec *exec, const struct type *a) {                                             \
        note(NUMBER_OF(op), a, sizeof *a);                                                                             \
        return noted.real->op(exec, a);                                                                                \
    }
NOTED(norm_forward, norm)
NOTED(gelu_forward, gelu)
NOTED(gelu_backward, gelu)
NOTED(unit_forward, unit_call)
NOTED(unit_backward, unit_call)
NOTED(column_scale_forward, column_scale)
NOTED(scale_add, scale_add)
NOTED(row_squares, row_squares)
NOTED(magnitude_ratio, magnitude_ratio)
NOTED(lstm_forward, lstm)
NOTED(lstm_backward, lstm)
NOTED(residual_dropout_forward, residual_dropout)
NOTED(residual_dropout_backward, residual_dropout)
NOTED(attention_forward, attention)
NOTED(attention_backward, attention)
NOTED(embedding_forward, embedding)
NOTED(cross_entropy_forward, cross_entropy)
NOTED(cross_entropy_fused, cross_entropy)

/* Those below may have gradients of parameters. */

static int noted_gemm(const struct exec *exec, const struct gemm *a) {
    note(NUMBER_OF(gemm), a, sizeof *a);
    noted.gradients += a->a_transposed;
    if (a->a_transposed)
        note_gradient(a->c.data);
    if (a->bias_gradient)
        note_gradient(a->bias_gradient);
    return noted.real->gemm(exec, a);
}

static int noted_norm_backward(const struct exec *exec, const struct norm *a) {
    note(NUMBER_OF(norm_backward), a, sizeof *a);
    if (a->dgain || a->dbias)
        note_gradient(a->dgain);
    return noted.real->norm_backward(exec, a);
}

static int noted_column_scale_backward(const struct exec *exec, const struct column_scale *a) {
    note(NUMBER_OF(column_scale_backward), a, sizeof *a);
    if (a->dscale)
        note_gradient(a->dscale);
    return noted.real->column_scale_backward(exec, a);
}

static int noted_embedding_backward(const struct exec *exec, const struct embedding *a) {
    note(NUMBER_OF(embedding_backward), a, sizeof *a);
    noted.foreign += a->dtoken_table || a->dposition_table;
    return noted.real->embedding_backward(exec, a);
}

static int noted_column_sum(const struct exec *exec, const struct column_sum *a) {
    note(NUMBER_OF(column_sum), a, sizeof *a);
    note_gradient(a->out);
    return noted.real->column_sum(exec, a);
}

static void table_of(const struct ops *real, struct ops *table) {
    *table = *real;
    table->gemm = noted_gemm;
    table->norm_forward = noted_norm_forward;
    table->norm_backward = noted_norm_backward;
    table->gelu_forward = noted_gelu_forward;
    table->gelu_backward = noted_gelu_backward;
    table->unit_forward = noted_unit_forward;
    table->unit_backward = noted_unit_backward;
    table->column_scale_forward = noted_column_scale_forward;
    table->column_scale_backward = noted_column_scale_backward;
    table->row_squares = noted_row_squares;
    table->magnitude_ratio = noted_magnitude_ratio;
    table->lstm_forward = noted_lstm_forward;
    table->lstm_backward = noted_lstm_backward;
    table->residual_dropout_forward = noted_residual_dropout_forward;
    table->residual_dropout_backward = noted_residual_dropout_backward;
    table->attention_forward = noted_attention_forward;
    table->attention_backward = noted_attention_backward;
    table->embedding_forward = noted_embedding_forward;
    table->embedding_backward = noted_embedding_backward;
    table->cross_entropy_forward = noted_cross_entropy_forward;
    table->cross_entropy_fused = noted_cross_entropy_fused;
    table->column_sum = noted_column_sum;
    table->scale_add = noted_scale_add;
}

/* From here on the run's operations are noted. */
static void start_noting(struct prompt_run *run, struct ops *table) {
    if (run->rank.ops != table) {
        table_of(run->rank.ops, table);
        noted.real = run->rank.ops;
        run->rank.ops = table;
    }
    noted = (struct noted){.real = noted.real, .base = base_store(run->base), .adapters = peft_store(run->peft)};
}

/* ---- methods ---- */

static struct prompt_stack stack_of(const struct peft_config *adapter) {
    return (struct prompt_stack){.count = 1, .adapters = {*adapter}, .dtype = DTYPE_F32, .shaken = 0.3f};
}

static const struct peft_config methods[] = {
    {.type = PEFT_LORA, .r = 2, .lora_alpha = 2},
    {.type = PEFT_LORA, .r = 2, .lora_alpha = 2, .target_modules = EVERYTHING},
    {.type = PEFT_LORA, .r = 2, .lora_alpha = 2, .target_modules = EVERYTHING, .lora_dropout = 0.2},
    {.type = PEFT_LORA, .r = 2, .lora_alpha = 2, .target_modules = EVERYTHING, .use_dora = true},
    {.type = PEFT_LORA, .r = 2, .lora_alpha = 2, .target_modules = EVERYTHING, .use_dora = true, .lora_dropout = 0.2},
    {.type = PEFT_IA3},
    {.type = PEFT_IA3, .target_modules = EVERYTHING},
    {.type = PEFT_ADAPTER, .bottleneck = 3, .adapter_scaling = 1, .adapter_pre_norm = true},
    {.type = PEFT_ADAPTER, .bottleneck = 3, .adapter_style = PEFT_PFEIFFER, .adapter_scaling = 1},
    {.type = PEFT_ADAPTER, .bottleneck = 3, .adapter_style = PEFT_PARALLEL, .adapter_scaling = 1},
    {.type = PEFT_PROMPT, .num_virtual_tokens = 3},
    {.type = PEFT_PTUNING, .num_virtual_tokens = 3, .encoder_hidden_size = 10},
    {.type = PEFT_PTUNING,
     .num_virtual_tokens = 3,
     .encoder_hidden_size = 10,
     .encoder_num_layers = 1,
     .encoder_reparameterization_type = PEFT_LSTM},
    {.type = PEFT_PREFIX, .num_virtual_tokens = 3},
    {.type = PEFT_PREFIX, .num_virtual_tokens = 3, .prefix_projection = true, .encoder_hidden_size = 10},
};
enum { METHODS = sizeof methods / sizeof *methods };

/* Returns the operations of a backward on one rank. */
static struct noted backward_of(const struct prompt_stack *stack) {
    struct prompt_run run;
    struct ops table;
    struct model_batch batch;
    struct model_pass pass = {.is_first_micro_batch = true, .is_last_micro_batch = true, .has_dropout = true};
    test_ok(prompt_open(&run, stack, &(const struct rank_grid){1, 1, 1, 1, 1}, NULL, false));
    struct test_values before = test_values(base_store(run.base), run.rank.exec.stream);
    test_ok(peft_begin(run.peft));
    prompt_batch(run.peft, 0, &batch);
    test_ok(model_forward(run.model, &batch, &pass, NULL, NULL));
    start_noting(&run, &table);
    test_ok(model_backward(run.model, &pass, NULL, NULL));
    struct noted backward = noted;
    test_ok(peft_end(run.peft));
    assert_int_equal(noted.foreign, 0);
    struct test_values after = test_values(base_store(run.base), run.rank.exec.stream);
    assert_memory_equal(before.weights, after.weights, param_weight_bytes(before.store));
    test_values_free(&before);
    test_values_free(&after);
    prompt_close(&run);
    return backward;
}

/* ---- the base ---- */

static void every_gradient_is_the_adapters(void **state) {
    (void)state;
    for (int m = 0; m < METHODS; m++) {
        struct prompt_stack stack = stack_of(&methods[m]);
        struct noted backward = backward_of(&stack);
        int matrices = methods[m].type == PEFT_ADAPTER && methods[m].adapter_style == PEFT_HOULSBY ? 4
                       : methods[m].type == PEFT_ADAPTER                                           ? 2
                       : methods[m].type != PEFT_LORA                                              ? 0
                       : methods[m].target_modules.count                                           ? 8
                                                                                                   : 2;
        assert_int_equal(backward.gradients, LAYERS * matrices);
        assert_int_equal(backward.foreign, 0);
        assert_int_equal(backward.count[NUMBER_OF(column_sum)], 0);
    }
}

static const struct of_ranges {
    struct peft_config config;
    int matrices; /* of a layer */
} of_ranges[] = {
    {{.type = PEFT_LORA, .r = 2, .lora_alpha = 2}, 4},
    {{.type = PEFT_LORA, .r = 2, .lora_alpha = 2, .target_modules = LIST("all-linear")}, 14},
    {{.type = PEFT_LORA, .r = 2, .lora_alpha = 2, .use_dora = true, .target_modules = LIST("all-linear")}, 14},
    {{.type = PEFT_IA3, .target_modules = LIST("all-linear")}, 0},
};

/* The same where projections are ranges of what a place computes. */
static void every_gradient_of_ranges_is_the_adapters(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof of_ranges / sizeof *of_ranges; i++) {
        struct prompt_stack stack = stack_of(&of_ranges[i].config);
        stack.family = "llama";
        struct noted backward = backward_of(&stack);
        assert_int_equal(backward.gradients, LAYERS * of_ranges[i].matrices);
        assert_int_equal(backward.foreign, 0);
        assert_int_equal(backward.count[NUMBER_OF(column_sum)], 0);
    }
}

static void the_base_has_no_memory_for_gradients(void **state) {
    (void)state;
    struct prompt_stack stack = stack_of(&methods[0]);
    struct prompt_run run;
    test_ok(prompt_open(&run, &stack, &(const struct rank_grid){1, 1, 1, 1, 1}, NULL, false));
    struct param_store *base = base_store(run.base), *own = peft_store(run.peft);
    assert_null(test_array(base, PARAM_GRADIENTS));
    assert_int_equal(param_gradient_bytes(base), 0);
    for (int id = 0; id < base->map.table->count; id++) {
        assert_false(param_trains(base, id));
        assert_null(param_gradient(base, id));
    }
    assert_int_equal(param_gradient_bytes(own), own->map.flat_elements * (int64_t)sizeof(float));
    assert_true(own->map.flat_elements < base->map.flat_elements / 4);
    struct rank rank;
    struct model_plan plan;
    struct model_options options = {.base.config = prompt_base(), .hooks = peft_hooks(run.peft), .max_rows = 32};
    test_ok(rank_open_single(&rank, run.device, 1));
    test_ok(test_plan_training(&options, &rank, &plan));
    assert_int_equal(plan.gradients, 0);
    assert_int_equal(plan.parameters, 0);
    rank_close(&rank);
    prompt_close(&run);
}

/* ---- where the backward ends ---- */

static const struct config_list highest[LAYERS] = {LIST("0", "1", "2", "3"), LIST("1", "2", "3"), LIST("2", "3"),
                                                   LIST("3")};

/* With the highest layers alone it is that of a model which has no others. */
static void the_backward_ends_at_the_lowest_layer(void **state) {
    (void)state;
    for (int m = 0; m < METHODS; m++)
        for (int lowest = 0; lowest < LAYERS && methods[m].type <= PEFT_ADAPTER; lowest++) {
            struct prompt_stack stack = stack_of(&methods[m]), small = stack;
            stack.adapters[0].layers_to_transform = highest[lowest];
            small.layers = LAYERS - lowest;
            struct noted backward = backward_of(&stack), of_small = backward_of(&small);
            assert_memory_equal(backward.count, of_small.count, sizeof backward.count);
            for (int layer = 0; layer < lowest; layer++)
                assert_false(backward.reads[layer]);
            for (int layer = lowest + 1; layer < LAYERS; layer++)
                assert_true(backward.reads[layer]);
        }
}

static void virtual_tokens_and_prefixes_want_the_whole_way(void **state) {
    (void)state;
    for (int m = 0; m < METHODS; m++) {
        struct prompt_stack stack = stack_of(&methods[m]);
        struct noted backward = backward_of(&stack);
        bool is_embedded = methods[m].type == PEFT_PROMPT || methods[m].type == PEFT_PTUNING;
        assert_int_equal(backward.count[NUMBER_OF(embedding_backward)], is_embedded);
        if (methods[m].type > PEFT_ADAPTER) {
            assert_int_equal(backward.count[NUMBER_OF(attention_backward)], LAYERS);
            assert_int_equal(backward.count[NUMBER_OF(norm_backward)], 1 + 2 * LAYERS - !is_embedded);
            for (int layer = 0; layer < LAYERS; layer++)
                assert_true(backward.reads[layer]);
        }
    }
}

/* For one layer: products (the head's two, the base's above the place, and the adapter's own), norms, attention. A
 * bottleneck computes its activation's input again. */
static const struct {
    struct peft_config config;
    int products, norms, attention;
} places[] = {
    {{.type = PEFT_LORA, .target_modules = LIST("c_attn")}, 2 + 3 + 3, 2, 1},
    {{.type = PEFT_LORA, .target_modules = LIST("attn.c_proj")}, 2 + 2 + 3, 2, 0},
    {{.type = PEFT_LORA, .target_modules = LIST("c_fc")}, 2 + 1 + 3, 1, 0},
    {{.type = PEFT_LORA, .target_modules = LIST("mlp.c_proj")}, 2 + 0 + 3, 1, 0},
    {{.type = PEFT_LORA, .target_modules = EVERYTHING}, 2 + 3 + 4 * 4 - 1, 2, 1},
    {{.type = PEFT_IA3}, 2 + 3, 2, 1},
    {{.type = PEFT_IA3, .target_modules = LIST("mlp.c_proj")}, 2 + 1, 1, 0},
    {{.type = PEFT_ADAPTER, .bottleneck = 3, .adapter_scaling = 1}, 2 + 2 + 10, 2, 0},
    {{.type = PEFT_ADAPTER, .bottleneck = 3, .adapter_scaling = 1, .adapter_style = PEFT_PFEIFFER}, 2 + 5, 1, 0},
    {{.type = PEFT_ADAPTER, .bottleneck = 3, .adapter_scaling = 1, .adapter_style = PEFT_PARALLEL}, 2 + 5, 1, 0},
};

static const struct peft_config lowest_scale = {.type = PEFT_IA3,
                                                .target_modules = LIST("c_attn"),
                                                .feedforward_modules = LIST("none"),
                                                .layers_to_transform = LIST("0")};

static void the_backward_ends_at_the_lowest_place(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct prompt_stack stack = stack_of(&places[i].config);
        stack.adapters[0].layers_to_transform = highest[LAYERS - 1];
        stack.adapters[0].r = stack.adapters[0].type == PEFT_LORA;
        struct noted backward = backward_of(&stack);
        const int *count = backward.count;
        if (count[NUMBER_OF(gemm)] != places[i].products || count[NUMBER_OF(norm_backward)] != places[i].norms ||
            count[NUMBER_OF(attention_backward)] != places[i].attention)
            fail_msg("case %zu: %d products, %d norms, %d attentions, expected %d, %d and %d", i,
                     count[NUMBER_OF(gemm)], count[NUMBER_OF(norm_backward)], count[NUMBER_OF(attention_backward)],
                     places[i].products, places[i].norms, places[i].attention);
    }
}

/* Values and gradients of one micro batch. With `same` the first rows have its values, and the others are ones. */
static struct test_values train_once(struct prompt_run *run, const struct prompt_stack *stack,
                                     const struct test_values *same) {
    struct model_batch batch;
    struct model_pass pass = {.is_first_micro_batch = true, .is_last_micro_batch = true};
    test_ok(prompt_open(run, stack, &(const struct rank_grid){1, 1, 1, 1, 1}, NULL, false));
    const struct param_store *store = peft_store(run->peft);
    struct test_values values = test_values(store, run->rank.exec.stream);
    for (int id = 0; id < store->map.table->count && same; id++)
        for (int64_t e = 0; e < param_local_elements(store, id); e++)
            values.weights[store->map.places[id].offset + e] =
                id < same->store->map.table->count ? same->weights[same->store->map.places[id].offset + e] : 1;
    test_ok(test_values_put(&values, run->rank.exec.stream));
    test_ok(peft_begin(run->peft));
    prompt_batch(run->peft, 0, &batch);
    test_ok(test_train_step(run->model, &batch, &pass));
    return test_values(store, run->rank.exec.stream);
}

/* An adapter after the end of the backward, which changes nothing, makes it go the whole way. */
static void where_the_backward_ends_changes_no_gradient(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct prompt_run run, whole;
        struct prompt_stack stack = stack_of(&places[i].config), both;
        stack.adapters[0].layers_to_transform = highest[LAYERS - 1];
        stack.adapters[0].r = stack.adapters[0].type == PEFT_LORA;
        stack.adapters[0].lora_alpha = 2;
        both = stack;
        both.adapters[both.count++] = lowest_scale;
        struct test_values ours = train_once(&run, &stack, NULL), all = train_once(&whole, &both, &ours);
        for (int id = 0; id < ours.store->map.table->count; id++)
            assert_memory_equal(ours.gradients + ours.store->map.places[id].offset,
                                all.gradients + all.store->map.places[id].offset,
                                (size_t)param_local_elements(ours.store, id) * sizeof(float));
        test_values_free(&ours);
        test_values_free(&all);
        prompt_close(&run);
        prompt_close(&whole);
    }
}

/* ---- stages ---- */

struct staged {
    const struct prompt_stack *stack;
    struct rank_grid grid;
    int64_t lowest; /* layer */
};

/* A stage that ends below the lowest layer runs in training what it runs in validation. */
static int run_stage(struct comm *world, void *context) {
    const struct staged *staged = context;
    struct prompt_run run;
    struct ops table;
    double loss;
    int status = prompt_open(&run, staged->stack, &staged->grid, world, false), totals[2] = {0, 0};
    int stage = run.rank.place.pipeline, stages = staged->grid.pipeline;
    bool is_below = param_share(LAYERS, stage + 1, stages) <= staged->lowest;
    for (int is_evaluated = 0; is_evaluated < 2 && !status; is_evaluated++) {
        start_noting(&run, &table);
        status = prompt_train(&run, is_evaluated, &loss);
        totals[is_evaluated] = noted.total;
    }
    if (!status && (totals[0] == totals[1]) != is_below)
        status = status_fail(STATUS_INVALID, "stage %d of %d, lowest layer %lld: %d operations, %d of validation",
                             stage, stages, (long long)staged->lowest, totals[0], totals[1]);
    if (!status && noted.foreign)
        status = status_fail(STATUS_INVALID, "gradients of the base");
    prompt_close(&run);
    return status;
}

static void stages_below_the_lowest_have_no_backward(void **state) {
    (void)state;
    for (int m = 0; m < METHODS; m++)
        for (int lowest = 0; lowest < LAYERS; lowest++)
            for (int stages = 2; stages <= 3; stages++) {
                struct prompt_stack stack = stack_of(&methods[m]);
                struct staged staged = {.stack = &stack, .grid = {1, 1, 1, 1, stages}};
                bool has_layers = methods[m].type <= PEFT_ADAPTER;
                if (has_layers)
                    stack.adapters[0].layers_to_transform = highest[lowest];
                staged.lowest = has_layers ? lowest : 0;
                if (has_layers || lowest == 0)
                    test_ok(comm_local_run(stages, run_stage, &staged));
            }
}

/* ---- collectives ---- */

enum { CALLS_MOST = 64 };

/* Stands between a rank and its tensor group. */
struct noted_group {
    struct comm comm, *real;
    int count;
    struct comm_call calls[CALLS_MOST];
};

static int group_start(struct comm *comm, struct comm_request *request) {
    struct noted_group *group = (struct noted_group *)comm;
    if (group->count == CALLS_MOST)
        return status_fail(STATUS_INVALID, "more than %d calls", CALLS_MOST);
    group->calls[group->count++] = request->call;
    request->comm = group->real; /* which finishes it */
    return group->real->device->start(group->real, request);
}

static const struct comm_device_channel noted_channel = {.name = "noted", .start = group_start};

struct forward {
    struct tuned_options options;
    bool is_sequence_parallel;
};

/* A forward that trains, and a validation with its loss. */
static int note_forward(struct rank *rank, struct training_runner *model, struct noted_group *group) {
    struct model_batch batch = tuned_batch();
    struct model_pass pass = {.is_first_micro_batch = true, .has_dropout = true};
    *group = (struct noted_group){.comm = *rank->tensor, .real = rank->tensor};
    group->comm.device = &noted_channel;
    rank->tensor = &group->comm;
    int status = model_forward(model, &batch, &pass, NULL, NULL);
    if (!status)
        status = test_evaluate(model, &batch);
    rank->tensor = group->real;
    return status;
}

static int note_base(const struct forward *forward, struct comm *world, struct device *device,
                     struct noted_group *group) {
    struct rank rank;
    struct base *base;
    struct training_runner *model;
    struct model_options options = {.base.config = tuned_base(true), .base.dtype = DTYPE_F32, .max_rows = TUNED_ROWS};
    int status = rank_open(&rank, &(const struct rank_grid){2, 1, 1, 1, 1}, world, device, 1);
    rank.is_sequence_parallel = forward->is_sequence_parallel;
    if (!status)
        status = test_open_training(&options, &rank, NULL, &base, &model);
    if (!status)
        status = base_initialise(base, 77);
    if (!status)
        status = note_forward(&rank, model, group);
    test_close_training(&base, &model);
    rank_close(&rank);
    return status;
}

static int note_tuned(const struct forward *forward, struct comm *world, struct device *device,
                      struct noted_group *group) {
    struct rank rank;
    struct tuned tuned = {0};
    int status = rank_open(&rank, &(const struct rank_grid){2, 1, 1, 1, 1}, world, device, 1);
    rank.is_sequence_parallel = forward->is_sequence_parallel;
    if (!status)
        status = tuned_open(&tuned, &forward->options, &rank);
    if (!status)
        status = peft_begin(tuned.peft);
    if (!status)
        status = note_forward(&rank, tuned.model, group);
    tuned_close(&tuned);
    rank_close(&rank);
    return status;
}

static int compare_forwards(struct comm *world, void *context) {
    struct noted_group base, tuned;
    struct device *device;
    int status = device_open(test_device(), DEVICE_FIRST, 1, &device);
    if (status)
        return status;
    status = note_base(context, world, device, &base);
    if (!status)
        status = note_tuned(context, world, device, &tuned);
    if (!status && (base.count == 0 || base.count != tuned.count))
        status = status_fail(STATUS_INVALID, "%d calls, without adapters %d", tuned.count, base.count);
    for (int i = 0; i < base.count && !status; i++)
        if (!comm_calls_agree(&base.calls[i], &tuned.calls[i]))
            status = status_fail(STATUS_INVALID, "call %d is another than without adapters", i);
    device_close(device);
    return status;
}

/* The same calls in the same order, with as many elements of the same types. */
static void no_method_adds_a_forward_collective(void **state) {
    (void)state;
    for (int m = 0; m < METHODS; m++)
        for (int is_cut = 0; is_cut < 2; is_cut++) {
            struct forward forward = {
                .options = {.adapters = &methods[m], .count = 1, .has_dropout = true, .dtype = DTYPE_F32},
                .is_sequence_parallel = is_cut};
            if (comm_local_run(2, compare_forwards, &forward))
                fail_msg("method %d%s: %s", m, is_cut ? ", the sequence cut" : "", status_text());
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_gradient_is_the_adapters),
        cmocka_unit_test(every_gradient_of_ranges_is_the_adapters),
        cmocka_unit_test(the_base_has_no_memory_for_gradients),
        cmocka_unit_test(the_backward_ends_at_the_lowest_layer),
        cmocka_unit_test(virtual_tokens_and_prefixes_want_the_whole_way),
        cmocka_unit_test(the_backward_ends_at_the_lowest_place),
        cmocka_unit_test(where_the_backward_ends_changes_no_gradient),
        cmocka_unit_test(stages_below_the_lowest_have_no_backward),
        cmocka_unit_test(no_method_adds_a_forward_collective),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
