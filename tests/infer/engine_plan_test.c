/* The plan of an unopened engine against the bytes that opening it takes, counted where they are allocated (held.h):
 * over families, layouts, precisions and adapters. */
#include "engine-internal.h"
#include "held.h"
#include "infer/sequences.h"
#include "stacks.h"

struct task {
    struct rank_grid grid;
    int precision;
    const struct stack *stack; /* NULL: none */
    struct directories directories;
    size_t adapter_memory, cache_bytes;
    int64_t first_layers;
    bool has_second; /* base, of Llama's family */
};

static struct engine_options options_of(const struct task *task) {
    return (struct engine_options){.device = test_device(),
                                   .model = base_directory(),
                                   .grid = task->grid,
                                   .first_layers = task->first_layers,
                                   .adapters = (const char *const *)task->directories.name,
                                   .adapter_count = task->stack ? task->stack->count : 0,
                                   .adapter_memory = task->adapter_memory,
                                   .precision = task->precision,
                                   .threads = 1,
                                   .max_rows = 48,
                                   .max_logit_rows = 20,
                                   .max_sequences = 3,
                                   .cache_bytes = task->cache_bytes};
}

static void is_equal(const char *name, size_t planned, size_t counted) {
    if (planned != counted)
        fail_msg("%s: %zu bytes are planned, and %zu are taken", name, planned, counted);
}

static int open_rank(struct comm *world, void *context) {
    struct engine_options options = options_of(context), second = options;
    struct engine_plan plan, opened;
    second.model = TEST_DATA "/peft/families/llama/base";
    second.max_rows = 20;
    options.next = ((const struct task *)context)->has_second ? &second : NULL;
    struct engine *engine;
    test_ok(engine_plan_make(&options, world->rank, &plan));
    struct held before = held;
    options.world = world;
    int status = engine_open(&options, &engine);
    if (status) {
        comm_abort(world, status_text());
        return status;
    }
    size_t taken[HELD_PARTS], arrays = engine->bank ? peft_bank_hooks(engine->bank)->upload.bytes : 0;
    for (int i = 0; i < HELD_PARTS; i++)
        taken[i] = held.device[i] - before.device[i];
    is_equal("device", engine_plan_device_bytes(&plan), held_on_device(&held) - held_on_device(&before));
    is_equal("weights", plan.weights, taken[HELD_WEIGHTS]);
    is_equal("cache", plan.cache, taken[HELD_CACHE]);
    is_equal("adapters", plan.adapters, taken[HELD_ADAPTERS] + arrays); /* uploaded in the model's memory */
    is_equal("workspace", plan.workspace, taken[HELD_WORKSPACE] - arrays);
    is_equal("transfers", plan.transfers, held.pinned - before.pinned);
    is_equal("steps", plan.steps, held.blocks - before.blocks);
    is_equal("host", engine_plan_host_bytes(&plan), held.pinned - before.pinned + held.blocks - before.blocks);
    engine_read_plan(engine, &opened);
    is_equal("weights", plan.weights, opened.weights);
    is_equal("cache", plan.cache, opened.cache);
    is_equal("adapters", plan.adapters, opened.adapters);
    is_equal("workspace", plan.workspace, opened.workspace);
    is_equal("steps", plan.steps, opened.steps);
    assert_int_equal(plan.threads, opened.threads);
    if (engine_leads(engine)) {
        assert_int_equal(engine_pages(engine), plan.pages);
        status = engine_end(engine);
    } else {
        status = engine_follow(engine);
    }
    if (status)
        comm_abort(world, status_text());
    engine_close(engine);
    return status;
}

static const struct rank_grid layouts[] = {{1, 1, 1, 1, 1}, {2, 1, 1, 1, 1}, {1, 1, 1, 1, 2},
                                           {2, 1, 1, 1, 2}, {1, 1, 1, 2, 1}, {2, 1, 1, 2, 1}};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static void open_everywhere(struct task task) {
    for (int layout = 0; layout < LAYOUTS; layout++)
        for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++) {
            task.grid = layouts[layout];
            task.precision = precision;
            task.first_layers = task.grid.pipeline > 1; /* of three layers */
            test_ok(comm_local_run(rank_grid_size(&task.grid), open_rank, &task));
        }
}

static void an_engine_takes_what_is_planned(void **state) {
    (void)state;
    for (int family = 0; family < 2; family++) {
        stacks_root = family ? "families/llama" : "golden";
        open_everywhere((struct task){0});
    }
    stacks_root = "golden";
}

static void two_bases_are_planned_together(void **state) {
    (void)state;
    open_everywhere((struct task){.has_second = true});
}

static void its_adapters_are_planned_too(void **state) {
    (void)state;
    static const struct stack stack = {{"prompt", "lora_all_linear", "ia3"}, 3, 0, 5};
    struct task task = {.stack = &stack, .adapter_memory = 100 << 10};
    find_stack(&stack, &task.directories);
    open_everywhere(task);
    task.stack = NULL; /* memory for adapters to come */
    open_everywhere(task);
    forget_stack(&stack, &task.directories);
}

/* A cache of a number of bytes has as many pages as the rank with most layers can have. */
static void the_largest_stage_decides_on_pages(void **state) {
    (void)state;
    struct model_config config;
    struct engine_plan plan[2];
    read_base(&config);
    struct task task = {.grid = {1, 1, 1, 1, 2},
                        .precision = PRECISION_FP32,
                        .cache_bytes = 100000,
                        .first_layers = config.num_layers - 1};
    struct engine_options options = options_of(&task);
    for (int rank = 0; rank < 2; rank++)
        test_ok(engine_plan_make(&options, rank, &plan[rank]));
    assert_int_equal(plan[0].pages, plan[1].pages);
    assert_int_equal(plan[0].cache, plan[1].cache * (size_t)(config.num_layers - 1));
    test_ok(comm_local_run(2, open_rank, &task));
    options.cache_bytes = 1;
    test_fails(engine_plan_make(&options, 0, &plan[0]), STATUS_USAGE,
               "a KV cache of 1 bytes: a page of 16 tokens takes");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_engine_takes_what_is_planned),
        cmocka_unit_test(two_bases_are_planned_together),
        cmocka_unit_test(its_adapters_are_planned_too),
        cmocka_unit_test(the_largest_stage_decides_on_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
