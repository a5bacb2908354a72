/* The plan of an unopened engine against the bytes that opening it takes, counted where they are allocated: over
 * families, layouts, precisions and adapters. The linker puts the counting functions below in the place of the real
 * ones (tests/CMakeLists.txt). */
#include "infer/sequences.h"
#include "stacks.h"

#include <pthread.h>
#include <stdlib.h>

/* ---- the count: what each thread took and nobody has given back ---- */

struct held {
    size_t device, pinned, blocks; /* blocks: of the host, aligned; and a pool's */
};
static _Thread_local struct held held;
static _Thread_local bool opens_pool, opens_group, takes_pinned;

enum { LIVE = 4096 };
static struct {
    void *memory;
    size_t bytes, *count;
} live[LIVE];
static int live_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void take(void *memory, size_t bytes, size_t *count) {
    pthread_mutex_lock(&lock);
    if (live_count == LIVE)
        abort();
    live[live_count].memory = memory;
    live[live_count].bytes = bytes;
    live[live_count++].count = count;
    *count += bytes;
    pthread_mutex_unlock(&lock);
}

static void give_back(const void *memory) {
    pthread_mutex_lock(&lock);
    for (int i = live_count - 1; memory && i >= 0; i--)
        if (live[i].memory == memory) {
            *live[i].count -= live[i].bytes;
            live[i] = live[--live_count];
            break;
        }
    pthread_mutex_unlock(&lock);
}

#define COUNTED(result, name, ...)                                                                                     \
    result __real_##name(__VA_ARGS__);                                                                                 \
    result __wrap_##name(__VA_ARGS__);                                                                                 \
    result __wrap_##name(__VA_ARGS__)

COUNTED(int, device_alloc, struct device *device, size_t bytes, void **memory) {
    int status = __real_device_alloc(device, bytes, memory);
    if (!status)
        take(*memory, bytes, &held.device);
    return status;
}

COUNTED(int, device_alloc_zeroed, struct device *device, size_t bytes, void **memory) {
    int status = __real_device_alloc_zeroed(device, bytes, memory);
    if (!status)
        take(*memory, bytes, &held.device);
    return status;
}

COUNTED(void, device_free, struct device *device, void *memory) {
    give_back(memory);
    __real_device_free(device, memory);
}

COUNTED(int, device_host_alloc, struct device *device, size_t bytes, void **memory) {
    bool is_outer = !takes_pinned; /* a backend may ask another one for the memory */
    takes_pinned = true;
    int status = __real_device_host_alloc(device, bytes, memory);
    takes_pinned = !is_outer;
    if (!status && is_outer)
        take(*memory, bytes, &held.pinned);
    return status;
}

COUNTED(void, device_host_free, struct device *device, void *memory) {
    give_back(memory);
    __real_device_host_free(device, memory);
}

COUNTED(void *, aligned_alloc, size_t alignment, size_t bytes) {
    void *memory = __real_aligned_alloc(alignment, bytes);
    if (memory && !opens_group)
        take(memory, bytes, &held.blocks);
    return memory;
}

/* The memory that ranks of a group share is the group's. */
COUNTED(int, comm_subgroup, struct comm *world, const int *ranks, int count, struct comm **group) {
    opens_group = true;
    int status = __real_comm_subgroup(world, ranks, count, group);
    opens_group = false;
    return status;
}

COUNTED(void *, calloc, size_t count, size_t bytes) {
    void *memory = __real_calloc(count, bytes);
    if (memory && opens_pool)
        take(memory, count * bytes, &held.blocks);
    return memory;
}

COUNTED(int, kv_pool_open, struct kv_pool *pool, int64_t count, bool keeps_findable) {
    opens_pool = true;
    int status = __real_kv_pool_open(pool, count, keeps_findable);
    opens_pool = false;
    return status;
}

COUNTED(void, free, void *memory) {
    give_back(memory);
    __real_free(memory);
}

/* ---- engines ---- */

struct task {
    struct rank_grid grid;
    int precision;
    const struct stack *stack; /* NULL: none */
    struct directories directories;
    size_t adapter_memory, cache_bytes;
    int64_t first_layers;
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
    struct engine_options options = options_of(context);
    struct engine_plan plan, opened;
    struct engine *engine;
    test_ok(engine_plan_make(&options, world->rank, &plan));
    struct held before = held;
    options.world = world;
    int status = engine_open(&options, &engine);
    if (status) {
        comm_abort(world, status_text());
        return status;
    }
    is_equal("device", engine_plan_device_bytes(&plan), held.device - before.device);
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
    assert_int_equal(engine_pages(engine), engine_leads(engine) ? plan.pages : 0);
    if (engine_leads(engine))
        status = engine_end(engine);
    else
        status = engine_follow(engine);
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
        cmocka_unit_test(its_adapters_are_planned_too),
        cmocka_unit_test(the_largest_stage_decides_on_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
