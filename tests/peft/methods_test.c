/* Methods beyond the golden vectors: cut over tensor ranks, with dropout, computed again, stacked, as the identity at
 * the beginning, and refused where they cannot be. */
#include "bank-internal.h"
#include "support.h"
#include "support/passes.h"

#include "optim/optim.h"

#include <math.h>

#define HEAD LIST("lm_head")

struct named {
    const char *name;
    int count;
    struct peft_config adapters[2];
};

static const struct named methods[] = {
    {"lora", 1, {{.type = PEFT_LORA, .r = 3, .lora_alpha = 6, .target_modules = EVERYTHING}}},
    {"lora with dropout",
     1,
     {{.type = PEFT_LORA, .r = 3, .lora_alpha = 6, .lora_dropout = 0.3, .target_modules = EVERYTHING}}},
    {"lora with patterns",
     1,
     {{.type = PEFT_LORA,
       .r = 3,
       .lora_alpha = 6,
       .target_modules = EVERYTHING,
       .rank_pattern = LIST("h\\.\\d+\\.mlp\\.c_proj=5"),
       .alpha_pattern = LIST("h.1.attn.c_attn=2")}}},
    {"dora", 1, {{.type = PEFT_LORA, .r = 3, .lora_alpha = 6, .use_dora = true, .target_modules = EVERYTHING}}},
    {"dora with dropout",
     1,
     {{.type = PEFT_LORA,
       .r = 3,
       .lora_alpha = 6,
       .lora_dropout = 0.3,
       .use_dora = true,
       .target_modules = EVERYTHING}}},
    {"lora of the head",
     1,
     {{.type = PEFT_LORA, .r = 3, .lora_alpha = 6, .lora_dropout = 0.3, .target_modules = LIST("c_fc", "lm_head")}}},
    {"dora of the head", 1, {{.type = PEFT_LORA, .r = 3, .lora_alpha = 6, .use_dora = true, .target_modules = HEAD}}},
    {"dora of the head with dropout",
     1,
     {{.type = PEFT_LORA, .r = 3, .lora_alpha = 6, .lora_dropout = 0.3, .use_dora = true, .target_modules = HEAD}}},
    {"ia3", 1, {{.type = PEFT_IA3}}},
    {"ia3 everywhere", 1, {{.type = PEFT_IA3, .target_modules = EVERYTHING}}},
    {"ia3 of outputs alone",
     1,
     {{.type = PEFT_IA3, .target_modules = EVERYTHING, .feedforward_modules = LIST("none")}}},
    {"ia3 of inputs", 1, {{.type = PEFT_IA3, .target_modules = EVERYTHING, .feedforward_modules = LIST(".*")}}},
    {"houlsby", 1, {{.type = PEFT_ADAPTER, .bottleneck = 5, .adapter_activation = PEFT_SWISH, .adapter_scaling = 1}}},
    {"pfeiffer with a norm",
     1,
     {{.type = PEFT_ADAPTER,
       .bottleneck = 5,
       .adapter_style = PEFT_PFEIFFER,
       .adapter_activation = PEFT_GELU,
       .adapter_pre_norm = true,
       .adapter_scaling = 0.5}}},
    {"parallel",
     1,
     {{.type = PEFT_ADAPTER,
       .bottleneck = 5,
       .adapter_style = PEFT_PARALLEL,
       .adapter_activation = PEFT_RELU,
       .adapter_scaling = 4}}},
    {"lora and ia3",
     2,
     {{.type = PEFT_LORA, .r = 3, .lora_alpha = 6, .lora_dropout = 0.1, .target_modules = EVERYTHING},
      {.type = PEFT_IA3}}},
};
enum { METHODS = sizeof methods / sizeof *methods };

/* ---- one rank ---- */

struct single {
    struct device *device;
    struct rank rank;
    struct tuned tuned;
    double loss;
};

static void shake_single(struct single *s) {
    test_ok(tuned_shake(s->tuned.store, s->rank.exec.stream, 0.3f));
}

static struct test_values values_of(const struct single *s) {
    return test_values(s->tuned.store, s->rank.exec.stream);
}

static void open_single(struct single *s, const struct tuned_options *options) {
    test_ok(device_open(test_device(), DEVICE_FIRST, 2, &s->device));
    test_ok(rank_open_single(&s->rank, s->device, 1));
    test_ok(tuned_open(&s->tuned, options, &s->rank));
}

static void close_single(struct single *s) {
    tuned_close(&s->tuned);
    rank_close(&s->rank);
    device_close(s->device);
}

static struct tuned_options options_of(const struct named *method) {
    return (struct tuned_options){
        .adapters = method->adapters, .count = method->count, .has_dropout = true, .dtype = DTYPE_F32};
}

static void run_single(struct single *s, const struct tuned_options *options) {
    open_single(s, options);
    shake_single(s);
    test_ok(tuned_run(&s->tuned, true, &s->loss));
}

/* ---- layouts ---- */

/* Sums of 24 to 300 fp32 products in another order, two in a row. */
static int compare(const struct tuned *tuned, const struct test_values *whole) {
    int moved = 0, status = test_compare_gradients(tuned->store, tuned->rank->exec.stream, whole, 5e-6f, &moved);
    if (!status && moved < whole->store->map.table->count)
        status = status_fail(STATUS_INVALID, "%d parameters have no gradient at all",
                             whole->store->map.table->count - moved);
    return status;
}

struct layout {
    const struct named *method;
    struct tuned_options options;
    struct rank_grid grid;
    bool is_sequence_parallel;
    double loss; /* of the whole, */
    struct test_values whole;
};

static int run_rank(struct comm *world, void *context) {
    const struct layout *layout = context;
    struct device *device;
    struct rank rank;
    struct tuned tuned = {0};
    double loss = 0;
    int status = device_open(test_device(), DEVICE_FIRST, 1, &device);
    if (status)
        return status;
    status = rank_open(&rank, &layout->grid, world, device, 1);
    rank.is_sequence_parallel = layout->is_sequence_parallel;
    if (!status)
        status = tuned_open(&tuned, &layout->options, &rank);
    if (!status)
        status = tuned_shake(tuned.store, rank.exec.stream, 0.3f);
    if (!status)
        status = tuned_run(&tuned, true, &loss);
    if (!status && !(fabs(loss - layout->loss) <= 1e-6 * layout->loss))
        status = status_fail(STATUS_INVALID, "loss %.9g, whole %.9g", loss, layout->loss);
    if (!status)
        status = compare(&tuned, &layout->whole);
    if (status)
        status_wrap(status, layout->method->name);
    tuned_close(&tuned);
    rank_close(&rank);
    device_close(device);
    return status;
}

static void check_layouts(bool is_sequence_parallel) {
    for (int i = 0; i < METHODS; i++) {
        struct single whole;
        struct tuned_options options = options_of(&methods[i]);
        run_single(&whole, &options);
        struct layout layout = {.method = &methods[i],
                                .options = options,
                                .is_sequence_parallel = is_sequence_parallel,
                                .loss = whole.loss,
                                .whole = values_of(&whole)};
        for (int tensors = 2; tensors <= 4; tensors *= 2) {
            layout.grid = (struct rank_grid){tensors, 1, 1, 1, 1};
            test_ok(comm_local_run(tensors, run_rank, &layout));
        }
        test_values_free(&layout.whole);
        close_single(&whole);
    }
}

static void tensor_ranks_equal_the_whole(void **state) {
    (void)state;
    check_layouts(false);
}

static void so_with_the_sequence_cut_as_well(void **state) {
    (void)state;
    check_layouts(true);
}

static void what_is_computed_again_is_the_same(void **state) {
    (void)state;
    static const struct model_recompute ways[] = {
        {.how = RECOMPUTE_SELECTIVE, .layernorm = true, .mlp_act = true},
        {.how = RECOMPUTE_UNIFORM, .num_layers = 1},
        {.how = RECOMPUTE_UNIFORM, .num_layers = 2},
        {.how = RECOMPUTE_BLOCK, .num_layers = 1},
    };
    for (int i = 0; i < METHODS; i++)
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            struct single kept, again;
            struct tuned_options options = options_of(&methods[i]);
            run_single(&kept, &options);
            options.recompute = ways[w];
            run_single(&again, &options);
            assert_true(again.loss == kept.loss);
            struct test_values ours = values_of(&again), expected = values_of(&kept);
            if (memcmp(ours.gradients, expected.gradients, param_gradient_bytes(kept.tuned.store)) != 0)
                fail_msg("%s: other gradients when computed again (%zu)", methods[i].name, w);
            test_values_free(&ours);
            test_values_free(&expected);
            close_single(&kept);
            close_single(&again);
        }
}

/* ---- stages ---- */

enum { STREAM_BYTES = TUNED_ROWS * TEST_HIDDEN * sizeof(float) };

/* Carries the data between two layers from one stage's device to the other's, or to its own. */
static void carry(const struct single *from, const void *given, const struct single *to, void *taken) {
    void *values = test_copy(from->rank.exec.stream, given, STREAM_BYTES);
    test_ok(test_write(to->rank.exec.stream, taken, values, STREAM_BYTES));
    free(values);
}

/* Layer by layer, each a chunk with a stash of its own, on one stage or on two. */
static void run_chunks(struct single *first, struct single *second, double *loss) {
    struct model_batch batch = tuned_batch();
    struct model_pass low = {.is_first_micro_batch = true, .is_last_micro_batch = true, .has_dropout = true};
    struct model_pass high = low;
    void *below, *above;
    high.chunk = high.stash = first == second;
    test_ok(device_alloc(first->device, STREAM_BYTES, &below));
    test_ok(device_alloc(second->device, STREAM_BYTES, &above));
    test_ok(peft_begin(first->tuned.peft));
    if (second != first)
        test_ok(peft_begin(second->tuned.peft));
    test_ok(model_forward(first->tuned.model, &batch, &low, NULL, below));
    carry(first, below, second, above);
    test_ok(model_forward(second->tuned.model, &batch, &high, above, NULL));
    test_ok(model_backward(second->tuned.model, &high, NULL, above));
    carry(second, above, first, below);
    test_ok(model_backward(first->tuned.model, &low, below, NULL));
    test_ok(model_loss(second->tuned.model, loss));
    test_ok(stream_wait(first->rank.exec.stream));
    device_free(first->device, below);
    device_free(second->device, above);
}

/* Returns the layer of a row, of two; the head belongs to the last one. */
static int layer_of(const struct param *row) {
    return row->layer > 1 ? 1 : row->layer;
}

/* Checks the parts of a stage; a part that it does not have is empty. */
static void check_stage(const struct named *method, const struct tuned *stage, const struct test_values *whole,
                        int layer) {
    assert_int_equal(stage->store->map.table->count, whole->store->map.table->count);
    for (int id = 0; id < stage->store->map.table->count; id++)
        if (layer >= 0 && layer_of(&stage->store->map.table->rows[id]) != layer)
            assert_int_equal(param_local_elements(stage->store, id), 0);
    int status = compare(stage, whole);
    if (status)
        fail_msg("%s: %s", method->name, status_text());
}

static void stages_equal_the_whole(void **state) {
    (void)state;
    for (int i = 0; i < METHODS; i++) {
        struct single whole, both, stages[2];
        struct tuned_options options = options_of(&methods[i]);
        double loss;
        run_single(&whole, &options);
        struct test_values values = values_of(&whole);
        options.chunk_count = 2;
        options.chunks[0] = (struct model_chunk){0, 1};
        options.chunks[1] = (struct model_chunk){1, 1};
        open_single(&both, &options);
        shake_single(&both);
        run_chunks(&both, &both, &loss);
        assert_true(loss == whole.loss);
        check_stage(&methods[i], &both.tuned, &values, -1);
        for (int s = 0; s < 2; s++) {
            options.chunk_count = 1;
            options.chunks[0] = (struct model_chunk){s, 1};
            open_single(&stages[s], &options);
            shake_single(&stages[s]);
        }
        run_chunks(&stages[0], &stages[1], &loss);
        assert_true(loss == whole.loss);
        for (int s = 0; s < 2; s++)
            check_stage(&methods[i], &stages[s].tuned, &values, s);
        test_values_free(&values);
        close_single(&stages[0]);
        close_single(&stages[1]);
        close_single(&both);
        close_single(&whole);
    }
}

/* ---- gradients ---- */

/* DoRA's norms count as constants, so they are not measured again, but for a magnitude. */
static double loss_with(struct single *s, int id, int64_t element, float value) {
    const struct param_store *store = s->tuned.store;
    bool is_magnitude = strstr(store->map.table->rows[id].name, "magnitude") != NULL;
    double loss;
    test_ok(test_write(s->rank.exec.stream,
                       (float *)test_array(store, PARAM_WEIGHTS) + store->map.places[id].offset + element, &value,
                       sizeof value));
    test_ok(is_magnitude ? STATUS_OK : peft_make_images(s->tuned.peft));
    test_ok(is_magnitude ? tuned_run(&s->tuned, true, &loss) : tuned_pass(&s->tuned, true, &loss));
    return loss;
}

/* Central differences, dropout in force: masks are the same in every pass. */
static void check_differences(const char *name, struct single *s, const struct test_values *values, int id) {
    const struct param *row = &values->store->map.table->rows[id];
    int64_t elements = param_elements(row);
    for (int64_t e = 0; e < elements; e += 1 + elements / 2) {
        int64_t at = values->store->map.places[id].offset + e;
        double h = 0.01, plus = loss_with(s, id, e, values->weights[at] + (float)h),
               minus = loss_with(s, id, e, values->weights[at] - (float)h);
        test_ok(test_write(s->rank.exec.stream, (float *)test_array(values->store, PARAM_WEIGHTS) + at,
                           &values->weights[at], sizeof(float)));
        test_ok(peft_begin(s->tuned.peft));
        double ours = values->gradients[at], numeric = (plus - minus) / (2 * h);
        /* fp32 losses near 3 carry 2e-7, so the quotient 2e-5; its third derivative gives more. */
        if (!(fabs(numeric - ours) <= 1e-4 + 1e-2 * fabs(ours)))
            fail_msg("%s: %s [%lld]: %g, numeric %g", name, row->name, (long long)e, ours, numeric);
    }
}

static void gradients_equal_differences(void **state) {
    (void)state;
    for (int i = 0; i < METHODS; i++) {
        struct single s;
        struct tuned_options options = options_of(&methods[i]);
        if (methods[i].adapters[0].adapter_activation == PEFT_RELU) /* its corners: the golden vectors have them */
            continue;
        run_single(&s, &options);
        struct test_values values = values_of(&s);
        for (int id = 0; id < values.store->map.table->count; id++)
            check_differences(methods[i].name, &s, &values, id);
        test_values_free(&values);
        close_single(&s);
    }
}

/* ---- beginnings ---- */

static double plain_loss(enum dtype dtype, float *logits) {
    struct device *device;
    struct rank rank;
    struct base *base;
    struct training_runner *model;
    struct model_options options = {
        .base.config = tuned_base(false), .base.dtype = dtype, .base.trains = true, .max_rows = TUNED_ROWS};
    struct model_batch batch = tuned_batch();
    double loss;
    test_ok(device_open(test_device(), DEVICE_FIRST, 2, &device));
    test_ok(rank_open_single(&rank, device, 1));
    test_ok(test_open_training(&options, &rank, NULL, &base, &model));
    test_ok(base_initialise(base, 77));
    if (dtype == DTYPE_F32)
        test_ok(tuned_shake(base_store(base), rank.exec.stream, 0.1f));
    test_ok(test_evaluate(model, &batch));
    test_ok(model_loss(model, &loss));
    test_ok(model_logits(model, &batch, logits));
    test_close_training(&base, &model);
    rank_close(&rank);
    device_close(device);
    return loss;
}

static void methods_begin_as_the_identity(void **state) {
    (void)state;
    static float base[TUNED_ROWS * TUNED_VOCAB], tuned[TUNED_ROWS * TUNED_VOCAB];
    for (int is_bf16 = 0; is_bf16 <= test_has_bf16(); is_bf16++) {
        enum dtype dtype = is_bf16 ? DTYPE_BF16 : DTYPE_F32;
        plain_loss(dtype, base);
        for (int i = 0; i < METHODS; i++) {
            struct single s;
            struct model_batch batch = tuned_batch();
            struct tuned_options options = options_of(&methods[i]);
            options.has_dropout = false;
            options.dtype = dtype;
            open_single(&s, &options);
            test_ok(peft_begin(s.tuned.peft));
            test_ok(model_logits(s.tuned.model, &batch, tuned));
            if (memcmp(base, tuned, sizeof base) != 0)
                fail_msg("%s (%s) changes the base's logits at the beginning", methods[i].name, dtype_name(dtype));
            close_single(&s);
        }
    }
}

/* In one row, the gradient of A is 0 in the columns of the inputs that were dropped. */
static void check_mask(const struct single *s, int64_t layer, int projection, const char *name, float p) {
    const struct param_store *store = s->tuned.store;
    char row[PARAM_NAME_BYTES];
    snprintf(row, sizeof row, "layers.%lld.%s.lora_A", (long long)layer, name);
    int id = param_table_find(store->map.table, row, 0), kept = 0;
    assert_true(id >= 0);
    int64_t in = store->map.table->rows[id].shape[1];
    float *gradient = test_copy(s->rank.exec.stream, param_gradient(store, id), (size_t)in * sizeof *gradient);
    uint32_t site = (1u << 23) + (uint32_t)(layer * 4 + projection);
    for (int64_t j = 0; j < in; j++) {
        uint32_t word = rng_dropout_word(s->rank.seed, RNG_DROPOUT, site, 9, 5, (uint32_t)j);
        bool is_kept = word >= rng_dropout_threshold(p);
        kept += is_kept;
        if ((gradient[j] != 0) != is_kept)
            fail_msg("%s, input %lld: expected %s", row, (long long)j, is_kept ? "kept" : "dropped");
    }
    assert_true(kept > 0 && kept < in);
    free(gradient);
}

static void dropout_is_keyed_by_layer_projection_sample_and_token(void **state) {
    (void)state;
    static const char *const names[] = {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"};
    const struct peft_config config = {.type = PEFT_LORA,
                                       .r = 2,
                                       .lora_alpha = 4,
                                       .lora_dropout = 0.5,
                                       .loraplus_lr_ratio = 1,
                                       .target_modules = LIST("all-linear")};
    struct tuned_options options = {.adapters = &config, .count = 1, .dtype = DTYPE_F32};
    struct model_batch batch = {.rows = 1,
                                .tokens = (int32_t[]){3},
                                .positions = (int32_t[]){0},
                                .sample = (uint32_t[]){9},
                                .token = (uint32_t[]){5},
                                .segments = 1,
                                .segment_start = (int64_t[]){0, 1},
                                .labels = (int32_t[]){7},
                                .loss_weight = (float[]){1}};
    struct model_pass pass = {.is_first_micro_batch = true, .is_last_micro_batch = true, .has_dropout = true};
    struct single s;
    open_single(&s, &options);
    shake_single(&s);
    test_ok(peft_begin(s.tuned.peft));
    test_ok(test_train_step(s.tuned.model, &batch, &pass));
    for (int64_t layer = 0; layer < 2; layer++)
        for (int projection = 0; projection < 4; projection++)
            check_mask(&s, layer, projection, names[projection], 0.5f);
    close_single(&s);
}

static void dropout_is_of_training_alone(void **state) {
    (void)state;
    struct single with, without;
    const struct named *plain = &methods[0], *dropped = &methods[1];
    struct tuned_options a = options_of(plain), b = options_of(dropped);
    double loss[2], trained;
    a.has_dropout = b.has_dropout = false;
    open_single(&without, &a);
    open_single(&with, &b);
    shake_single(&without);
    shake_single(&with);
    test_ok(tuned_run(&without.tuned, true, &loss[0]));
    test_ok(tuned_run(&with.tuned, false, &loss[1]));
    test_ok(tuned_run(&with.tuned, true, &trained));
    assert_true(loss[0] == loss[1]);
    assert_true(trained != loss[1]);
    close_single(&without);
    close_single(&with);
}

/* ---- what the table says ---- */

/* Adam's first step is the rate, whatever the gradient. */
static void lora_plus_gives_b_its_own_rate(void **state) {
    (void)state;
    struct single s;
    struct gradient_sync sync;
    struct optimizer optimizer;
    const struct named plus = {"lora+", 1, {{.type = PEFT_LORA, .r = 2, .lora_alpha = 2, .loraplus_lr_ratio = 16}}};
    struct tuned_options options = options_of(&plus);
    run_single(&s, &options);
    struct param_store *store = s.tuned.store;
    struct optimizer_options adamw = {.beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-12};
    double norm, lr = 1e-3;
    struct test_values before = values_of(&s);
    test_ok(gradient_sync_open(&sync, &s.rank, store, &(const struct gradient_sync_options){0}));
    test_ok(optimizer_open(&optimizer, &adamw, &sync));
    test_ok(optimizer_reset(&optimizer));
    test_ok(optimizer_step(&optimizer, lr, &norm));
    struct test_values after = values_of(&s);
    for (int id = 0; id < store->map.table->count; id++) {
        double rate = strstr(store->map.table->rows[id].name, "lora_B") ? 16 * lr : lr;
        float moved = fabsf(after.weights[store->map.places[id].offset] - before.weights[store->map.places[id].offset]);
        if (!(fabs((double)moved - rate) <= 1e-3 * rate))
            fail_msg("%s moved by %g, expected %g", store->map.table->rows[id].name, (double)moved, rate);
    }
    test_values_free(&before);
    test_values_free(&after);
    optimizer_close(&optimizer);
    gradient_sync_close(&sync);
    close_single(&s);
}

enum { V = 20, M = 48 };

/* Published formulas, of GPT-2 small (numbers of papers and of peft's print_trainable_parameters) and large. */
static const struct counted {
    const char *name;
    struct peft_config config;
    int64_t small, large;
} counted[] = {
    {"lora", {.type = PEFT_LORA, .r = 8}, 294912, 8 * (1280 + 3840) * 36},
    {"rslora", {.type = PEFT_LORA, .r = 8, .use_rslora = true}, 294912, 8 * (1280 + 3840) * 36},
    {"lora of every projection",
     {.type = PEFT_LORA, .r = 8, .target_modules = LIST("all-linear")},
     1179648,
     8 * (5120 + 2560 + 6400 + 6400) * 36},
    {"lora with a pattern",
     {.type = PEFT_LORA, .r = 8, .target_modules = LIST("c_attn", "c_fc"), .rank_pattern = LIST("c_fc=2")},
     294912 + 12 * 2 * (768 + 3072),
     36 * (8 * 5120 + 2 * 6400)},
    {"lora of two layers",
     {.type = PEFT_LORA, .r = 8, .layers_to_transform = LIST("0", "11")},
     294912 / 6,
     2 * 8 * (1280 + 3840)},
    {"dora", {.type = PEFT_LORA, .r = 8, .use_dora = true}, 294912 + 12 * 2304, (8 * (1280 + 3840) + 3840) * 36},
    {"dora of every projection",
     {.type = PEFT_LORA, .r = 8, .use_dora = true, .target_modules = LIST("all-linear")},
     1179648 + 12 * 9 * 768,
     (8 * 20480 + 9 * 1280) * 36},
    {"ia3", {.type = PEFT_IA3}, 64512, 36 * (3 * 1280 + 5120)},
    {"ia3 of every projection",
     {.type = PEFT_IA3, .target_modules = EVERYTHING, .feedforward_modules = LIST("mlp.c_proj")},
     12 * (3 + 1 + 4 + 4) * 768,
     36 * (3 + 1 + 4 + 4) * 1280},
    {"houlsby", {.type = PEFT_ADAPTER, .bottleneck = M}, 1789056, 72 * (2 * 1280 * M + M + 1280)},
    {"pfeiffer",
     {.type = PEFT_ADAPTER, .bottleneck = M, .adapter_style = PEFT_PFEIFFER},
     894528,
     36 * (2 * 1280 * M + M + 1280)},
    {"parallel",
     {.type = PEFT_ADAPTER, .bottleneck = M, .adapter_style = PEFT_PARALLEL},
     894528,
     36 * (2 * 1280 * M + M + 1280)},
    {"pfeiffer with a norm",
     {.type = PEFT_ADAPTER, .bottleneck = M, .adapter_style = PEFT_PFEIFFER, .adapter_pre_norm = true},
     894528 + 12 * 2 * 768,
     36 * (2 * 1280 * M + M + 3 * 1280)},
    {"prompt tuning", {.type = PEFT_PROMPT, .num_virtual_tokens = V}, 15360, 25600},
    {"p-tuning", {.type = PEFT_PTUNING, .num_virtual_tokens = V}, 1787136, V * 1280 + 3 * (1280 * 1280 + 1280)},
    {"p-tuning, narrow",
     {.type = PEFT_PTUNING, .num_virtual_tokens = V, .encoder_hidden_size = 128},
     V * 768 + (768 * 128 + 128) + (128 * 128 + 128) + (128 * 768 + 768),
     V * 1280 + (1280 * 128 + 128) + (128 * 128 + 128) + (128 * 1280 + 1280)},
    {"p-tuning with an LSTM",
     {.type = PEFT_PTUNING,
      .num_virtual_tokens = V,
      .encoder_reparameterization_type = PEFT_LSTM,
      .encoder_num_layers = 2,
      .encoder_hidden_size = 128},
     V * 768 + 2 * (4 * 128 * (768 + 128) + 8 * 128) + 2 * (4 * 128 * 3 * 128 + 8 * 128) + 256 * 256 + 256 + 256 * 768 +
         768,
     V * 1280 + 2 * (4 * 128 * (1280 + 128) + 8 * 128) + 2 * (4 * 128 * 3 * 128 + 8 * 128) + 256 * 256 + 256 +
         256 * 1280 + 1280},
    {"prefix", {.type = PEFT_PREFIX, .num_virtual_tokens = V}, 368640, 2 * 36 * V * 1280},
    {"projected prefix",
     {.type = PEFT_PREFIX, .num_virtual_tokens = V, .prefix_projection = true},
     V * 768 + 768 * 769 + 769 * 2 * 12 * 768,
     V * 1280 + 1280 * 1281 + 1281 * (int64_t)2 * 36 * 1280},
};

static int64_t count_parameters(const struct counted *c, bool is_large) {
    struct device *device;
    struct rank rank;
    struct peft *peft;
    struct peft_config config = c->config;
    struct model_options options = {.base.config = tuned_base(false), .max_rows = TUNED_ROWS, .base.dtype = DTYPE_F32};
    config.lora_alpha = config.adapter_scaling = 1;
    options.base.config.num_layers = is_large ? 36 : 12;
    options.base.config.hidden_size = is_large ? 1280 : 768;
    options.base.config.ffn_hidden_size = 4 * options.base.config.hidden_size;
    options.base.config.num_attention_heads = options.base.config.num_query_groups = is_large ? 20 : 12;
    options.base.config.max_position_embeddings = 1024;
    struct peft_options stack = {.adapters = &config, .count = 1, .model = &options, .trains = true};
    test_ok(device_open(test_device(), DEVICE_FIRST, 1, &device));
    test_ok(rank_open_single(&rank, device, 1));
    test_ok(peft_open(&stack, &rank, &peft));
    int64_t count = param_table_elements(peft_store(peft)->map.table, true);
    peft_close(peft);
    rank_close(&rank);
    device_close(device);
    return count;
}

static void counts_are_the_published_ones(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof counted / sizeof *counted; i++)
        for (int is_large = 0; is_large < 2; is_large++) {
            int64_t expected = is_large ? counted[i].large : counted[i].small;
            int64_t count = count_parameters(&counted[i], is_large);
            if (count != expected)
                fail_msg("%s, GPT-2 %s: %lld parameters, expected %lld", counted[i].name, is_large ? "large" : "small",
                         (long long)count, (long long)expected);
        }
}

static const struct {
    struct peft_config config;
    const char *text;
} refused[] = {
    {{.type = PEFT_LORA, .r = 0}, "peft.r 0"},
    {{.type = PEFT_LORA, .r = 2, .lora_dropout = 1}, "peft.lora_dropout 1"},
    {{.type = PEFT_LORA, .r = 2, .rank_pattern = LIST("c_attn")}, "peft.rank_pattern \"c_attn\""},
    {{.type = PEFT_LORA, .r = 2, .rank_pattern = LIST("c_attn=0")}, "peft.rank_pattern \"c_attn=0\""},
    {{.type = PEFT_LORA, .r = 2, .rank_pattern = LIST("c_attn=1.5")}, "a rank of 1.5"},
    {{.type = PEFT_LORA, .r = 2, .alpha_pattern = LIST("c_attn=x")}, "peft.alpha_pattern \"c_attn=x\""},
    {{.type = PEFT_LORA, .r = 2, .target_modules = LIST("q_proj")}, "matches no projection"},
    {{.type = PEFT_IA3, .target_modules = LIST("c_attn"), .feedforward_modules = LIST("mlp.c_proj")},
     "none of peft.target_modules"},
    {{.type = PEFT_LORA, .r = 2, .alpha_pattern = LIST("c_attn=-1")}, "peft.alpha_pattern \"c_attn=-1\""},
    {{.type = PEFT_LORA, .r = 2, .alpha_pattern = LIST("c_attn=")}, "peft.alpha_pattern \"c_attn=\""},
    {{.type = PEFT_LORA, .r = 2, .target_modules = LIST(".*(?R).*")}, "peft.target_modules \".*(?R).*\": an expr"},
    {{.type = PEFT_LORA, .r = 2, .target_modules = LIST("(\\w|\\.|[a-z])*[!?]")},
     "peft.target_modules \"(\\w|\\.|[a-z])*[!?]\": an expression that is too complex"},
    {{.type = PEFT_LORA, .r = 2, .rank_pattern = LIST("(\\w|\\.|[a-z])*[!?]=2")}, "peft.rank_pattern \"(\\w"},
    {{.type = PEFT_LORA, .r = 2, .target_modules = LIST("c_[[:alpha:]]*")}, "matches no projection"},
    {{.type = PEFT_LORA, .r = 2, .target_modules = LIST("c_attn|[")}, "cannot be read"},
    {{.type = PEFT_LORA, .r = 2, .exclude_modules = LIST("(?1)")}, "peft.exclude_modules \"(?1)\""},
    {{.type = PEFT_LORA, .r = 2, .alpha_pattern = LIST("\\Kc_attn=2")}, "peft.alpha_pattern"},
    {{.type = PEFT_LORA, .r = 2, .exclude_modules = LIST(".*\\.attn\\..*")}, "leave nothing"},
    {{.type = PEFT_ADAPTER, .bottleneck = 0}, "peft.bottleneck 0"},
    {{.type = PEFT_ADAPTER, .bottleneck = 2, .layers_to_transform = LIST("7")}, "peft.layers_to_transform"},
};

static void what_cannot_be_is_refused_by_name(void **state) {
    (void)state;
    struct device *device;
    struct rank rank;
    test_ok(device_open(test_device(), DEVICE_FIRST, 1, &device));
    test_ok(rank_open_single(&rank, device, 1));
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct tuned tuned;
        struct tuned_options options = {.adapters = &refused[i].config, .count = 1, .dtype = DTYPE_F32};
        test_fails(tuned_open(&tuned, &options, &rank), STATUS_USAGE, refused[i].text);
    }
    rank_close(&rank);
    device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_ranks_equal_the_whole),
        cmocka_unit_test(so_with_the_sequence_cut_as_well),
        cmocka_unit_test(stages_equal_the_whole),
        cmocka_unit_test(what_is_computed_again_is_the_same),
        cmocka_unit_test(gradients_equal_differences),
        cmocka_unit_test(methods_begin_as_the_identity),
        cmocka_unit_test(dropout_is_of_training_alone),
        cmocka_unit_test(dropout_is_keyed_by_layer_projection_sample_and_token),
        cmocka_unit_test(lora_plus_gives_b_its_own_rate),
        cmocka_unit_test(counts_are_the_published_ones),
        cmocka_unit_test(what_cannot_be_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
