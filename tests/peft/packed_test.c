/* Adapters train on a base whose weights are only packed, with the bits that a plain base gives. */
#include "peft/support.h"

/* The methods that read the base's weights themselves, and some of the others. DoRA's dropout and IA3's inputs multiply
 * ranges of a place's rows: of Llama's keys, rows from the middle of qkv. */
static const struct stack {
    const char *family; /* of the base; NULL: GPT-2 */
    struct peft_config adapters[2];
} stacks[] = {
    {NULL, {{.type = PEFT_LORA, .r = 2, .lora_alpha = 2, .target_modules = EVERYTHING}}},
    {"llama", {{.type = PEFT_LORA, .r = 2, .lora_alpha = 2, .target_modules = LIST("all-linear")}}},
    {"llama",
     {{.type = PEFT_LORA,
       .r = 2,
       .lora_alpha = 2,
       .use_dora = true,
       .lora_dropout = 0.2,
       .target_modules = LIST("k_proj", "o_proj", "up_proj")}}},
    {"llama",
     {{.type = PEFT_IA3,
       .target_modules = LIST("all-linear"),
       .feedforward_modules = LIST("k_proj", "gate_proj", "o_proj")}}},
    {NULL, {{.type = PEFT_ADAPTER, .bottleneck = 3, .adapter_scaling = 1}}},
    {NULL, {{.type = PEFT_PROMPT, .num_virtual_tokens = 2}, {.type = PEFT_LORA, .r = 2, .lora_alpha = 2}}},
};
enum { STACKS = sizeof stacks / sizeof *stacks };

/* The plain base, and the packed one that gets its values. */
struct copying {
    struct tuned *from, *to;
};

static int copy_values(void *context, int id) {
    const struct copying *copying = context;
    const struct param_store *from = base_store(copying->from->base);
    struct param_store *to = base_store(copying->to->base);
    size_t bytes = (size_t)param_local_elements(from, id) * dtype_bytes(from->map.type);
    int status =
        stream_copy(copying->to->rank->exec.stream, param_borrow_to_write(to, id), param_borrow(from, id).data, bytes);
    param_return(from, id);
    param_return(to, id);
    return status;
}

static void open_base(struct tuned *t, const struct tuned_options *options, struct device *device, struct rank *rank) {
    test_ok(rank_open_single(rank, device, 1));
    test_ok(tuned_open(t, options, rank));
}

static void check_stack(const struct stack *stack, enum dtype dtype) {
    struct model_config base = tuned_base(true);
    if (stack->family)
        tiny_model_become(&base, stack->family, 2, 6);
    struct tuned_options options = {.adapters = stack->adapters,
                                    .count = stack->adapters[1].r ? 2 : 1,
                                    .has_dropout = true,
                                    .dtype = dtype,
                                    .base = &base};
    struct device *device;
    struct rank ranks[2];
    struct tuned plain, packed;
    double losses[2][2];
    test_ok(device_open(test_device(), DEVICE_FIRST, 2, &device));
    open_base(&plain, &options, device, &ranks[0]);
    options.storage = &storage_packed;
    options.fill = copy_values;
    options.fill_context = &(struct copying){&plain, &packed};
    open_base(&packed, &options, device, &ranks[1]);
    for (int i = 0; i < 2; i++) {
        struct tuned *t = i ? &packed : &plain;
        test_ok(tuned_run(t, true, &losses[i][0]));
        test_ok(tuned_run(t, false, &losses[i][1]));
    }
    assert_memory_equal(losses[0], losses[1], sizeof losses[0]);
    struct test_values a = test_values(plain.store, ranks[0].exec.stream),
                       b = test_values(packed.store, ranks[1].exec.stream);
    assert_memory_equal(a.gradients, b.gradients, (size_t)plain.store->map.flat_elements * sizeof(float));
    test_values_free(&a);
    test_values_free(&b);
    tuned_close(&plain);
    tuned_close(&packed);
    rank_close(&ranks[0]);
    rank_close(&ranks[1]);
    device_close(device);
}

static void a_packed_base_trains_adapters_with_the_bits_of_a_plain_one(void **state) {
    (void)state;
    for (int stack = 0; stack < STACKS; stack++) {
        check_stack(&stacks[stack], DTYPE_F32);
        if (test_has_bf16())
            check_stack(&stacks[stack], DTYPE_BF16);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_packed_base_trains_adapters_with_the_bits_of_a_plain_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
