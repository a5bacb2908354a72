/* Adapters are loaded, replaced and unloaded while completions use them. Each completion has the bits of the generation
 * that it began with, and nothing remains. */
#include "infer/images.h"
#include "infer/sequences.h"
#include "mixed.h"

#include <malloc.h>
#include <stdlib.h>

enum { NAMES = 8, SHAPES = 10, WAYS = 2, TEXTS = 32 };

/* The possible meanings of a name. */
static const char *const contents[NAMES][WAYS] = {
    {"lora", "rslora"},
    {"lora_all_linear", "lora_patterns"},
    {"dora", "dora_all_linear"},
    {"ia3", "ia3_inputs"},
    {"adapter_par_bn", "adapter_pre_norm"},
    {"prompt", "ptuning_mlp"},
    {"prefix", "prefix_projection"},
    {"adapter_double_seq_bn", "lora_one_layer"}, /* another method */
};

static int cycles(void) {
    return getenv("CAMBIUM_TEST_LONG") ? 1000 : 100;
}

struct swaps {
    struct rank_grid grid;
    int precision;
    size_t memory;
    struct mixed expected[NAMES][WAYS][SHAPES];
    const char *damaged; /* a directory */
    int64_t texts, replaced, beside, refused, unloaded;
};

static void make_request(struct mixed *mixed, int shape, const char *name) {
    mixed_make(mixed, shape);
    mixed->name_count = 1;
    mixed->names[0] = name;
    mixed->request.priority = 0;
}

static void find_expected(struct engine *engine, struct swaps *swaps) {
    struct adapters *adapters;
    struct scheduler *scheduler;
    test_ok(adapters_open(engine, &adapters));
    test_ok(engine_open_scheduler(engine, &(struct scheduler_options){0}, &scheduler));
    for (int name = 0; name < NAMES; name++)
        for (int way = 0; way < WAYS; way++) {
            char path[512];
            mixed_directory(contents[name][way], path);
            test_ok(adapters_add(adapters, contents[name][way], path));
            for (int shape = 0; shape < SHAPES; shape++) {
                struct mixed *mixed = &swaps->expected[name][way][shape];
                make_request(mixed, shape, contents[name][way]);
                assert_true(mixed_take(mixed, engine, adapters));
                mixed_submit(mixed, scheduler);
                mixed_run(scheduler);
            }
        }
    scheduler_close(scheduler);
    for (int name = 0; name < NAMES; name++)
        for (int way = 0; way < WAYS; way++)
            test_ok(adapters_unload(adapters, contents[name][way]));
    adapters_close(adapters);
}

/* A text under way, and what its name stood for when it came. */
struct running {
    struct mixed mixed;
    bool is_used;
    int name, way, shape;
};

struct show {
    struct engine *engine;
    struct adapters *adapters;
    struct scheduler *scheduler;
    struct swaps *swaps;
    struct running running[TEXTS];
    int replacing; /* the name that is being replaced beside the steps; -1: none */
    uint32_t draws;
};

static const char *name_of(int number) {
    static const char *const names[NAMES] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    return names[number];
}

static uint32_t draw(struct show *show) {
    return mixed_word(1000, show->draws++);
}

/* By the directory that it is of. */
static int present_way(const struct show *show, int name) {
    struct adapter_view view;
    char path[512];
    mixed_directory(contents[name][0], path);
    assert_true(adapters_find(show->adapters, name_of(name), &view));
    return strcmp(view.directory, path) != 0;
}

static void start_texts(struct show *show) {
    for (int i = 0; i < TEXTS; i++) {
        struct running *running = &show->running[i];
        if (running->is_used && running->mixed.is_done) {
            mixed_compare(&running->mixed, &show->swaps->expected[running->name][running->way][running->shape],
                          contents[running->name][running->way]);
            running->is_used = false;
            show->swaps->texts++;
        }
        if (running->is_used)
            continue;
        running->name = (int)(draw(show) % NAMES);
        running->shape = (int)(draw(show) % SHAPES);
        make_request(&running->mixed, running->shape, name_of(running->name));
        running->is_used = mixed_take(&running->mixed, show->engine, show->adapters);
        running->way = present_way(show, running->name); /* the taking may have ended a loading */
        if (running->is_used)
            mixed_submit(&running->mixed, show->scheduler);
    }
}

static void replace(struct show *show, int name) {
    char path[512];
    struct adapter_view before, after;
    mixed_directory(contents[name][1 - present_way(show, name)], path);
    assert_true(adapters_find(show->adapters, name_of(name), &before));
    uint64_t generation = before.generation;
    int status = adapters_replace(show->adapters, name_of(name), path, 0);
    assert_true(adapters_find(show->adapters, name_of(name), &after));
    if (status == STATUS_OK) {
        show->swaps->replaced++;
        assert_true(after.generation > generation);
    } else {
        assert_int_equal(status, STATUS_MEMORY); /* both generations must fit */
        assert_true(after.generation == generation);
        show->swaps->refused++;
    }
}

/* The same beside the steps, a bounded time in each. */
static void begin_replacing(struct show *show, int name) {
    char path[512];
    if (show->replacing >= 0)
        return;
    mixed_directory(contents[name][1 - present_way(show, name)], path);
    struct adapter_files files;
    test_ok(adapter_files_read(&(struct peft_place){.path = path}, &(struct peft_limits){.bytes = ENGINE_ADAPTER_BYTES},
                               &files));
    int status = adapters_begin(show->adapters, name_of(name), &files, ADAPTER_REPLACE, 0);
    adapter_files_free(&files);
    show->replacing = status ? -1 : name;
    show->swaps->refused += status != STATUS_OK;
    assert_true(!status || status == STATUS_MEMORY);
}

static void continue_replacing(struct show *show) {
    bool is_done;
    int status = adapters_continue(show->adapters, &is_done);
    if (!is_done)
        return;
    assert_true(!status || status == STATUS_MEMORY);
    show->swaps->beside += !status;
    show->replacing = -1;
}

static void swap(struct show *show) {
    int name = (int)(draw(show) % NAMES);
    char path[512];
    continue_replacing(show);
    if (name == show->replacing)
        return;
    switch (draw(show) % 6) {
    case 5:
        begin_replacing(show, name);
        break;
    case 0:
        mixed_directory(contents[name][present_way(show, name)], path);
        test_ok(adapters_unload(show->adapters, name_of(name)));
        test_ok(adapters_add(show->adapters, name_of(name), path));
        show->swaps->unloaded++;
        break;
    case 1:
        test_fails(adapters_replace(show->adapters, name_of(name), show->swaps->damaged, 0), STATUS_INVALID, "byte");
        show->swaps->refused++;
        break;
    default:
        replace(show, name);
    }
}

static void run_show(struct engine *engine, struct swaps *swaps) {
    struct show show = {.engine = engine, .swaps = swaps, .replacing = -1};
    size_t before = engine_adapter_bytes(engine);
    test_ok(adapters_open(engine, &show.adapters));
    test_ok(engine_open_scheduler(engine, &(struct scheduler_options){0}, &show.scheduler));
    for (int name = 0; name < NAMES; name++) {
        char path[512];
        mixed_directory(contents[name][0], path);
        test_ok(adapters_add(show.adapters, name_of(name), path));
    }
    for (int cycle = 0; cycle < cycles(); cycle++) {
        start_texts(&show);
        assert_true(scheduler_step(show.scheduler) >= 0);
        swap(&show);
    }
    while (show.replacing >= 0)
        continue_replacing(&show);
    mixed_run(show.scheduler);
    start_texts(&show);
    mixed_run(show.scheduler);
    scheduler_close(show.scheduler);
    assert_int_equal(engine_pages_available(engine), engine_pages(engine));
    for (int name = 0; name < NAMES; name++)
        test_ok(adapters_unload(show.adapters, name_of(name)));
    adapters_close(show.adapters);
    assert_int_equal(engine_adapter_bytes(engine), before);
}

/* Twice: the second time leaves no more on the heap than the first. */
static void run_shows(struct engine *engine, struct swaps *swaps) {
    find_expected(engine, swaps);
    run_show(engine, swaps);
    size_t once = mallinfo2().uordblks;
    run_show(engine, swaps);
    size_t twice = mallinfo2().uordblks;
    if (swaps->grid.tensor * swaps->grid.pipeline == 1 && twice > once + (16 << 10))
        fail_msg("%zu bytes on the heap after a round of swaps, %zu after another", once, twice);
}

static int run_rank(struct comm *world, void *context) {
    struct swaps *swaps = context;
    struct engine *engine = NULL;
    struct engine_options options = {.device = test_device(),
                                     .model = base_directory(),
                                     .world = world->size > 1 ? world : NULL,
                                     .grid = swaps->grid,
                                     .precision = swaps->precision,
                                     .threads = 1,
                                     .max_rows = 64,
                                     .max_logit_rows = 64,
                                     .max_sequences = TEXTS,
                                     .adapter_memory = swaps->memory};
    int status = engine_open(&options, &engine);
    if (!status && engine_leads(engine))
        run_shows(engine, swaps);
    else if (!status)
        status = engine_follow(engine);
    if (!status)
        status = engine_end(engine);
    if (status)
        comm_abort(world, status_text());
    engine_close(engine);
    return status;
}

/* An adapter whose tensors' file ends too early. */
static void make_damaged(char *directory) {
    char command[1024];
    snprintf(command, sizeof command,
             "cp " TEST_DATA "/peft/golden/lora/adapter_config.json '%s/' && head -c 700 " TEST_DATA
             "/peft/golden/lora/adapter_model.safetensors > '%s/adapter_model.safetensors'",
             directory, directory);
    assert_int_equal(system(command), 0);
}

static void check_swaps(struct rank_grid grid, int precision, size_t memory) {
    struct swaps *swaps = calloc(1, sizeof *swaps);
    char *damaged = test_directory();
    assert_non_null(swaps);
    make_damaged(damaged);
    *swaps = (struct swaps){.grid = grid, .precision = precision, .memory = memory, .damaged = damaged};
    test_ok(comm_local_run(rank_grid_size(&grid), run_rank, swaps));
    assert_true(swaps->texts > cycles() && swaps->replaced > cycles() / 16 && swaps->unloaded > cycles() / 10);
    assert_true(swaps->refused > cycles() / 10 && swaps->beside > 0);
    free(swaps);
    free(damaged);
}

static void texts_end_on_the_generation_that_they_began_with(void **state) {
    (void)state;
    check_swaps((struct rank_grid){1, 1, 1, 1, 1}, PRECISION_FP32, 8 << 20);
    check_swaps((struct rank_grid){1, 1, 1, 1, 1}, PRECISION_BF16, 8 << 20);
}

/* Idle ones go and come back; what texts use stays, and a generation that does not fit beside it is refused. */
static void more_adapters_than_fit_take_turns(void **state) {
    (void)state;
    check_swaps((struct rank_grid){1, 1, 1, 1, 1}, PRECISION_FP32, 100 << 10);
    if (!mixed_is_slow())
        check_swaps((struct rank_grid){2, 1, 1, 1, 1}, PRECISION_FP32, 60 << 10);
}

static void ranks_swap_together(void **state) {
    (void)state;
    if (mixed_is_slow())
        test_skip("ranks take too long on this device");
    check_swaps((struct rank_grid){2, 1, 1, 1, 1}, PRECISION_FP32, 8 << 20);
    check_swaps((struct rank_grid){1, 1, 1, 1, 3}, PRECISION_FP32, 8 << 20);
}

/* Memory for one of two: the pinned one stays, the other has no room; unpinned it goes for the other. */
static void pinned_adapters_stay(void **state) {
    (void)state;
    struct engine *engine;
    struct adapters *adapters;
    struct adapter_view view;
    struct engine_options options = {.device = test_device(),
                                     .model = base_directory(),
                                     .precision = PRECISION_FP32,
                                     .threads = 1,
                                     .max_rows = 8,
                                     .max_logit_rows = 8,
                                     .max_sequences = 1,
                                     .adapter_memory = 1 << 20};
    test_ok(engine_open(&options, &engine));
    test_ok(adapters_open(engine, &adapters));
    mixed_add_all(adapters);
    test_ok(adapters_load(adapters, "lora", false));
    assert_true(adapters_find(adapters, "lora", &view));
    options.adapter_memory = view.bytes * 3 / 2; /* both have the same shape */
    adapters_close(adapters);
    engine_close(engine);
    test_ok(engine_open(&options, &engine));
    test_ok(adapters_open(engine, &adapters));
    mixed_add_all(adapters);
    test_ok(adapters_load(adapters, "lora", true));
    assert_true(adapters_find(adapters, "lora", &view) && view.is_pinned && view.state == ADAPTER_RESIDENT);
    test_fails(adapters_load(adapters, "rslora", false), STATUS_UNSUPPORTED, "give adapters more memory");
    assert_true(adapters_find(adapters, "lora", &view) && view.state == ADAPTER_RESIDENT);
    test_ok(adapters_load(adapters, "lora", false));
    test_ok(adapters_load(adapters, "rslora", false));
    assert_true(adapters_find(adapters, "lora", &view) && view.state == ADAPTER_EVICTED && view.generation == 1);
    assert_int_equal(strlen(view.digest), 64);
    adapters_close(adapters);
    engine_close(engine);
}

/* Memory for two, of which the first lies in the middle, where it came beside another: both are loaded again. */
static void a_stack_that_fits_is_never_refused_for_lack_of_one_piece(void **state) {
    (void)state;
    static const char *const names[] = {"dora", "ia3", "lora_all_linear"}; /* before the stack; the stack */
    struct engine *engine;
    struct adapters *adapters;
    struct adapter_view views[3];
    size_t memory[] = {1 << 20, 0};
    for (int round = 0; round < 2; round++) {
        struct engine_options options = {.device = test_device(),
                                         .model = base_directory(),
                                         .precision = PRECISION_FP32,
                                         .threads = 1,
                                         .max_rows = 8,
                                         .max_logit_rows = 8,
                                         .max_sequences = 1,
                                         .adapter_memory = memory[round]};
        int slot;
        uint64_t generations[PEFT_SLOT_IMAGES];
        test_ok(engine_open(&options, &engine));
        test_ok(adapters_open(engine, &adapters));
        mixed_add_all(adapters);
        for (int i = 0; i < 2 + !round; i++) {
            test_ok(adapters_load(adapters, names[i], false));
            assert_true(adapters_find(adapters, names[i], &views[i]));
        }
        if (!round)
            memory[1] = views[1].bytes + views[2].bytes;
        else
            assert_true(memory[1] >= views[0].bytes + views[1].bytes);
        test_ok(adapters_take(adapters, names + 1, 2, &slot, generations));
        test_ok(adapters_give(adapters, slot));
        assert_true(adapters_find(adapters, names[1], &views[1]) && views[1].users == 0);
        adapters_close(adapters);
        engine_close(engine);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_end_on_the_generation_that_they_began_with),
        cmocka_unit_test(more_adapters_than_fit_take_turns),
        cmocka_unit_test(pinned_adapters_stay),
        cmocka_unit_test(a_stack_that_fits_is_never_refused_for_lack_of_one_piece),
        cmocka_unit_test(ranks_swap_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
