/* A backend may lack products with an activation, which then runs by itself. Losses and gradients stay those of a
 * backend that has them. */
#include "peft/bank.h"
#include "peft/support.h"

#include <math.h>

static _Thread_local struct {
    const struct ops *real;
    bool is_lacking;
    int activations; /* in products that ran */
} backend;

static bool lacks(const struct gemm *gemm) {
    return backend.is_lacking && gemm->epilogue != EPILOGUE_NONE;
}

static bool supports(struct device *device, const struct gemm *gemm) {
    return !lacks(gemm) && backend.real->gemm_supports(device, gemm);
}

static int multiply(const struct exec *exec, const struct gemm *gemm) {
    if (lacks(gemm))
        return status_fail(STATUS_UNSUPPORTED, "gemm: no activations");
    backend.activations += gemm->epilogue != EPILOGUE_NONE;
    return backend.real->gemm(exec, gemm);
}

/* Values for every parameter of the adapter, none of them neutral. */
static void fill(struct tuned *t) {
    for (int id = 0; id < t->store->map.table->count; id++) {
        int64_t count = param_local_elements(t->store, id);
        float *values = malloc((size_t)count * sizeof *values + 1);
        assert_non_null(values);
        for (int64_t i = 0; i < count; i++) {
            values[i] = 0.5f * tuned_draw(id, i);
            if (t->store->map.type == DTYPE_BF16)
                ((uint16_t *)(void *)values)[i] = bf16_from_float(values[i]);
        }
        test_ok(test_write(t->rank->exec.stream, param_borrow_to_write(t->store, id), values,
                           (size_t)count * dtype_bytes(t->store->map.type)));
        param_return(t->store, id);
        free(values);
    }
}

struct answer {
    double loss;
    float *gradients;
    int64_t elements;
    int activations;
};

/* One step of a frozen model with an adapter. */
static struct answer answer_of(const struct peft_config *adapter, enum dtype dtype, bool is_lacking) {
    struct tuned_options options = {.adapters = adapter, .count = 1, .dtype = dtype};
    struct device *device;
    struct rank rank;
    struct tuned t;
    struct answer answer;
    test_ok(device_open(test_device(), DEVICE_FIRST, 2, &device));
    test_ok(rank_open_single(&rank, device, 1));
    struct ops table = *rank.ops;
    backend.real = rank.ops;
    backend.is_lacking = is_lacking;
    backend.activations = 0;
    table.gemm = multiply;
    table.gemm_supports = supports;
    rank.ops = &table;
    test_ok(tuned_open(&t, &options, &rank));
    fill(&t);
    test_ok(tuned_run(&t, false, &answer.loss));
    struct test_values values = test_values(t.store, rank.exec.stream);
    answer.gradients = values.gradients;
    answer.elements = t.store->map.flat_elements;
    answer.activations = backend.activations;
    free(values.weights);
    tuned_close(&t);
    rank_close(&rank);
    device_close(device);
    return answer;
}

static const struct peft_config adapters[] = {
    {.type = PEFT_LORA, .r = 3, .lora_alpha = 3, .target_modules = EVERYTHING},
    {.type = PEFT_LORA, .r = 3, .lora_alpha = 3, .target_modules = LIST("c_fc"), .layers_to_transform = LIST("1")},
    {.type = PEFT_ADAPTER, .bottleneck = 3, .adapter_scaling = 1},
};

/* `bound`: of differences, over the loss and over the largest gradient. */
static void check(enum dtype dtype, double bound) {
    for (size_t i = 0; i < sizeof adapters / sizeof *adapters; i++) {
        struct answer whole = answer_of(&adapters[i], dtype, false), other = answer_of(&adapters[i], dtype, true);
        double largest = 0;
        assert_int_equal(whole.activations > 0, adapters[i].target_modules.count != 3);
        assert_int_equal(other.activations, 0);
        for (int64_t e = 0; e < whole.elements; e++)
            largest = fmax(largest, fabs((double)whole.gradients[e]));
        assert_true(largest > 0);
        if (!(fabs(other.loss - whole.loss) <= bound * whole.loss))
            fail_msg("adapter %zu: the loss is %.9g, expected %.9g", i, other.loss, whole.loss);
        for (int64_t e = 0; e < whole.elements; e++)
            if (!(fabs((double)(other.gradients[e] - whole.gradients[e])) <= bound * largest))
                fail_msg("adapter %zu: gradient %lld is %.9g, expected %.9g", i, (long long)e,
                         (double)other.gradients[e], (double)whole.gradients[e]);
        free(whole.gradients);
        free(other.gradients);
    }
}

/* The same sums, perhaps in another order. */
static void a_backend_without_activations_trains_the_same(void **state) {
    (void)state;
    check(DTYPE_F32, 1e-5);
}

static const struct ops_sizes *more_scratch(struct device *device) {
    static _Thread_local struct ops_sizes sizes;
    sizes = *backend.real->sizes(device);
    sizes.bank_scratch_bytes += 4096;
    return &sizes;
}

static size_t bank_bytes(struct rank *rank) {
    struct model_options options = {
        .base.config = tuned_base(false), .max_rows = 8, .infer.max_sequences = 1, .infer.max_pages = 1};
    struct peft_bank *bank;
    test_ok(peft_bank_open(&options, rank, &bank));
    size_t bytes = peft_bank_fixed_bytes(bank);
    peft_bank_close(bank);
    return bytes;
}

static void a_bank_has_the_scratch_that_suits_the_backend(void **state) {
    (void)state;
    struct device *device;
    struct rank rank;
    test_ok(device_open(test_device(), DEVICE_FIRST, 1, &device));
    test_ok(rank_open_single(&rank, device, 1));
    struct ops table = *rank.ops;
    backend.real = rank.ops;
    table.sizes = more_scratch;
    size_t bytes = bank_bytes(&rank);
    rank.ops = &table;
    assert_int_equal(bank_bytes(&rank), bytes + 4096);
    rank_close(&rank);
    device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_backend_without_activations_trains_the_same),
        cmocka_unit_test(a_bank_has_the_scratch_that_suits_the_backend),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
