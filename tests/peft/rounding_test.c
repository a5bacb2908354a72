/* In bf16 LoRA's product is added to the base's in fp32: y = x W' + b + s B A x is rounded once, in training and in
 * inference. This holds for one adapter and for two, on all outputs of a place and on ranges of them. The result is the
 * base's to the bit while B is zero. */
#include "peft/support.h"

#include <math.h>

enum { WIDE = 64, LAYERS = 1, ROWS = 40 };

static const struct peft_config pairs[] = {
    {.type = PEFT_LORA, .r = 3, .lora_alpha = 5, .target_modules = EVERYTHING},
    {.type = PEFT_LORA, .r = 2, .lora_alpha = 2, .target_modules = EVERYTHING},
};

struct opened {
    struct device *device;
    struct rank rank;
    struct peft *peft;
    struct base *base;
    struct training_runner *training;
    struct inference_runner *inference;
    uint16_t weight[2 * WIDE * 3 * WIDE], bias[3 * WIDE]; /* of the place, before they are packed */
};

/* Outputs of a place that one projection makes. */
struct range {
    const char *name; /* NULL past the last */
    int64_t first, columns;
};

/* A place of the first layer, and the adapters of its projections. */
static const struct place {
    const char *family; /* NULL: GPT-2 */
    enum attach_place place;
    const char *weight, *bias;
    int64_t in, out;
    struct range ranges[3];
} places[] = {
    {NULL,
     ATTACH_QKV,
     "layers.0.attention.qkv.weight",
     "layers.0.attention.qkv.bias",
     WIDE,
     3 * WIDE,
     {{"attn.c_attn", 0, 3 * WIDE}}},
    {NULL, ATTACH_FC2, "layers.0.mlp.fc2.weight", "layers.0.mlp.fc2.bias", 2 * WIDE, WIDE, {{"mlp.c_proj", 0, WIDE}}},
    {"llama",
     ATTACH_QKV,
     "layers.0.attention.qkv.weight",
     "layers.0.attention.qkv.bias",
     WIDE,
     2 * WIDE,
     {{"self_attn.q_proj", 0, WIDE}, {"self_attn.v_proj", WIDE + WIDE / 2, WIDE / 2}}},
    {"llama",
     ATTACH_FC1,
     "layers.0.mlp.fc1.weight",
     "layers.0.mlp.fc1.bias",
     WIDE,
     2 * WIDE,
     {{"mlp.up_proj", WIDE, WIDE}}},
};

/* For each family, in the order of `places`, two adapters with different ranks. */
static const struct peft_config pairs_of_ranges[] = {
    {.type = PEFT_LORA, .r = 3, .lora_alpha = 5, .target_modules = LIST("q_proj", "v_proj", "up_proj")},
    {.type = PEFT_LORA, .r = 2, .lora_alpha = 2, .target_modules = LIST("q_proj", "v_proj", "up_proj")},
};

static const struct peft_config *pairs_at(const struct place *place) {
    return place->family ? pairs_of_ranges : pairs;
}

/* Its keys have half as many heads, and its MLP has a gate. */
static void set_base(struct model_config *config, const struct place *place) {
    config->num_layers = LAYERS;
    config->hidden_size = WIDE;
    config->ffn_hidden_size = 2 * WIDE;
    if (!place->family)
        return;
    config->family = model_family_find(place->family);
    config->ffn_hidden_size = WIDE;
    config->num_query_groups = config->num_attention_heads / 2;
    config->kv_channels = WIDE / config->num_attention_heads;
    config->normalization = NORMALIZATION_RMS;
    config->position_embedding = POSITION_ROPE;
    config->rotary.base = 10000;
    config->rotary.percent = 1;
    config->swiglu = true;
    config->add_bias_linear = false;
    config->add_qkv_bias = config->add_mlp_bias = true;
}

struct filling {
    struct opened *opened;
    const struct place *place;
};

/* Initial values; the place's are noted. */
static int fill(void *context, int id) {
    const struct filling *filling = context;
    struct opened *o = filling->opened;
    const struct place *place = filling->place;
    struct param_store *store = base_store(o->base);
    int status = param_initialise(store, o->rank.exec.stream, 77, id);
    const void *values = param_borrow(store, id).data;
    if (!status && id == param_table_find(store->map.table, place->weight, 0))
        status =
            test_read(o->rank.exec.stream, o->weight, values, (size_t)(place->in * place->out) * sizeof *o->weight);
    if (!status && id == param_table_find(store->map.table, place->bias, 0))
        status = test_read(o->rank.exec.stream, o->bias, values, (size_t)place->out * sizeof *o->bias);
    param_return(store, id);
    return status;
}

static float draw(uint32_t key, int64_t i) {
    return (float)rng_unit(philox(key, (uint32_t)i, 0, 0, (uint32_t)RNG_TEST << 24).word[0]) - 0.5f;
}

static void opened_open(struct opened *o, const struct place *place, int count, bool trains) {
    struct model_options options = {.base.config = tuned_base(false),
                                    .base.dtype = DTYPE_BF16,
                                    .max_rows = ROWS,
                                    .infer.max_logit_rows = 1,
                                    .infer.max_sequences = 1,
                                    .infer.max_pages = 4};
    set_base(&options.base.config, place);
    struct peft_options stack = {.adapters = pairs_at(place), .count = count, .model = &options, .trains = trains};
    test_ok(device_open(test_device(), DEVICE_FIRST, 2, &o->device));
    test_ok(rank_open_single(&o->rank, o->device, 1));
    test_ok(peft_open(&stack, &o->rank, &o->peft));
    options.hooks = peft_hooks(o->peft);
    o->training = NULL;
    o->inference = NULL;
    if (trains)
        test_ok(test_open_training(&options, &o->rank, NULL, &o->base, &o->training));
    else
        test_ok(test_open_inference(&options, &o->rank, NULL, &o->base, &o->inference));
    test_ok(peft_allocate(o->peft));
    struct filling filling = {o, place};
    if (!trains)
        test_ok(base_fill(o->base, (struct param_fill){.fill = fill, .context = &filling}));
    for (int id = 0; id < base_table(o->base)->count && trains; id++)
        test_ok(fill(&filling, id));
    test_ok(peft_initialise(o->peft, 5));
    test_ok(peft_begin(o->peft));
}

static void opened_close(struct opened *o) {
    inference_close(o->inference);
    test_close_training(&o->base, &o->training);
    peft_close(o->peft);
    rank_close(&o->rank);
    device_close(o->device);
}

/* Their weights in host memory. */
struct adapters {
    const struct param_store *store;
    uint16_t *weights;
};

static uint16_t *weights_of(const struct adapters *adapters, const char *name) {
    int id = param_table_find(adapters->store->map.table, name, 0);
    assert_true(id >= 0);
    return adapters->weights + adapters->store->map.places[id].offset;
}

static void run_place(struct opened *o, const struct place *place, const uint16_t *x, bool has_hooks, uint16_t *y) {
    size_t in_bytes = (size_t)(ROWS * place->in) * sizeof *x, out_bytes = (size_t)(ROWS * place->out) * sizeof *y;
    static const struct hook_list none;
    struct param_store *store = base_store(o->base);
    struct linear linear = {.weight = param_table_find(store->map.table, place->weight, 0),
                            .bias = param_table_find(store->map.table, place->bias, 0),
                            .in = place->in,
                            .out = place->out,
                            .split = place->place == ATTACH_FC2 ? LINEAR_ROW : LINEAR_COLUMN};
    const struct hook_list *hooks = hook_table_list(peft_hooks(o->peft), 0, place->place);
    struct linear_call call = {.rank = &o->rank,
                               .store = store,
                               .hooks = has_hooks ? hooks : &none,
                               .hook = {.place = place->place},
                               .dtype = DTYPE_BF16,
                               .rows = ROWS};
    struct hook_call shape = {.rank = &o->rank, .dtype = DTYPE_BF16, .rows = ROWS, .in = place->in, .out = place->out};
    void *in;
    test_ok(device_alloc(o->device, in_bytes, &in));
    test_ok(device_alloc(o->device, out_bytes, &call.y));
    test_ok(device_alloc(o->device, hook_list_saved_bytes(hooks, &shape) + 64, &call.hook.saved));
    test_ok(test_write(o->rank.exec.stream, in, x, in_bytes));
    call.x = in;
    test_ok(linear_forward(&linear, &call));
    test_ok(test_read(o->rank.exec.stream, y, call.y, out_bytes));
    device_free(o->device, call.hook.saved);
    device_free(o->device, call.y);
    device_free(o->device, in);
}

/* The range that has the column, or NULL. */
static const struct range *range_of(const struct place *place, int64_t j) {
    for (const struct range *range = place->ranges; range->name; range++)
        if (j >= range->first && j < range->first + range->columns)
            return range;
    return NULL;
}

/* s B A x of one row and column, in fp64. */
static double delta_of(const struct adapters *adapters, const struct place *place, int number, int count,
                       const uint16_t *x, int64_t column, double *size) {
    const struct peft_config *config = &pairs_at(place)[number];
    const struct range *range = range_of(place, column);
    char name[PARAM_NAME_BYTES], prefix[16] = "";
    double sum = 0;
    if (!range)
        return 0;
    int64_t j = column - range->first;
    if (count > 1)
        snprintf(prefix, sizeof prefix, "%d.", number);
    snprintf(name, sizeof name, "%slayers.0.%s.lora_A", prefix, range->name);
    const uint16_t *a = weights_of(adapters, name);
    snprintf(name, sizeof name, "%slayers.0.%s.lora_B", prefix, range->name);
    const uint16_t *b = weights_of(adapters, name);
    for (int64_t r = 0; r < config->r; r++) {
        double inner = 0;
        for (int64_t k = 0; k < place->in; k++)
            inner += (double)bf16_to_float(a[r * place->in + k]) * (double)bf16_to_float(x[k]);
        double term = config->lora_alpha / (double)config->r * inner * (double)bf16_to_float(b[j * config->r + r]);
        sum += term;
        *size += fabs(term);
    }
    return sum;
}

static void check_place(const struct opened *o, const struct adapters *adapters, const struct place *place, int count,
                        const uint16_t *x, const uint16_t *y) {
    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t j = 0; j < place->out; j++) {
            double sum = bf16_to_float(o->bias[j]), size = fabs(sum);
            const uint16_t *row = x + i * place->in;
            for (int64_t k = 0; k < place->in; k++) {
                double term = (double)bf16_to_float(row[k]) * (double)bf16_to_float(o->weight[j * place->in + k]);
                sum += term;
                size += fabs(term);
            }
            for (int n = 0; n < count; n++)
                sum += delta_of(adapters, place, n, count, row, j, &size);
            double ours = bf16_to_float(y[i * place->out + j]);
            int exponent; /* half a unit in the last of 8 bits, and the sums' own error in fp32 */
            frexp(fmax(fabs(sum), fabs(ours)), &exponent);
            if (!(fabs(ours - sum) <= ldexp(1, exponent - 9) + 1e-6 * size))
                fail_msg("%s, %d adapters, [%lld, %lld]: %.9g, in fp64 %.9g", place->ranges[0].name, count,
                         (long long)i, (long long)j, ours, sum);
        }
}

static void check(int count, bool trains) {
    for (size_t p = 0; p < sizeof places / sizeof *places; p++) {
        struct opened o;
        const struct place *place = &places[p];
        opened_open(&o, place, count, trains);
        uint16_t x[ROWS * 2 * WIDE], y[ROWS * 3 * WIDE], base[ROWS * 3 * WIDE];
        for (int64_t i = 0; i < ROWS * place->in; i++)
            x[i] = bf16_from_float(draw(3, i));
        run_place(&o, place, x, false, base);
        run_place(&o, place, x, true, y);
        assert_memory_equal(y, base, (size_t)(ROWS * place->out) * sizeof *y);
        struct param_store *store = peft_store(o.peft);
        struct adapters adapters = {store, calloc((size_t)store->map.flat_elements, sizeof *adapters.weights)};
        for (int id = 0; id < store->map.table->count; id++)
            for (int64_t e = 0; e < param_local_elements(store, id); e++)
                adapters.weights[store->map.places[id].offset + e] = bf16_from_float(draw((uint32_t)id + 9, e) / 4);
        test_ok(test_write(o.rank.exec.stream, test_array(store, PARAM_WEIGHTS), adapters.weights,
                           param_weight_bytes(store)));
        test_ok(peft_begin(o.peft));
        run_place(&o, place, x, true, y);
        check_place(&o, &adapters, place, count, x, y);
        free(adapters.weights);
        opened_close(&o);
    }
}

static void training_rounds_once(void **state) {
    (void)state;
    test_skip_without_bf16();
    check(1, true);
    check(2, true);
}

static void inference_rounds_once(void **state) {
    (void)state;
    test_skip_without_bf16(); /* the pair's own products are plain */
    check(1, false);
    check(2, false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_rounds_once),
        cmocka_unit_test(inference_rounds_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
