/* Many mixed requests in one run give each the bits that it gets alone, whatever the layout, the budget of rows, the
 * pages, and what is found in the cache. */
#include "infer/sequences.h"
#include "mixed.h"
#include "support/allocations.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum { REQUESTS = 300, FEWER = 150, SWAPS = 48 << 10 /* bytes: a few adapters */ };
#if defined __SANITIZE_THREAD__ /* threads do the same in either precision */
enum { IS_SANITIZED = true, FIRST_PRECISION = PRECISION_BF16 };
#elif defined __SANITIZE_ADDRESS__
enum { IS_SANITIZED = true, FIRST_PRECISION = PRECISION_FP32 };
#else
enum { IS_SANITIZED = false, FIRST_PRECISION = PRECISION_FP32 };
#endif

static int request_count(void) {
    return mixed_is_slow() || (IS_SANITIZED && !test_is_long()) ? FEWER : REQUESTS;
}

/* Constraints: every third request has one. */
static const struct grammar_source sources[] = {
    {.kind = GRAMMAR_CHOICE, .text = "[\"abcdefgh\", \"abdefxyzzy\", \"hello\", \"help\", \"x\"]"},
    {.kind = GRAMMAR_CHOICE, .text = "[\"wwwwwwwwww\", \"abababab\"]"},
    {.kind = GRAMMAR_REGEX, .text = "(ab|[c-k]{2,4}|x{3,5}z)+"},
    {.kind = GRAMMAR_GBNF, .text = "root ::= \"l\" root \"r\" | [a-f]+ \"q\""},
};
enum { GRAMMARS = sizeof sources / sizeof *sources, EVERY = 3 };
static struct grammar_vocabulary *vocabulary;
static struct constraint_pool *pool;
static struct grammar *grammars[GRAMMARS];

/* Masks that take longer than a step, while it is set. */
static atomic_bool is_slow;

static void on_mask(void *self, double seconds) {
    if (atomic_load(&is_slow))
        nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
}

/* Letters, and pairs of letters. */
static int open_constraints(void **state) {
    struct grammar_token tokens[V] = {{0}};
    char pairs[V][2];
    const int32_t end = V - 1;
    (void)state;
    for (int i = 0; i < V - 1; i++) {
        pairs[i][0] = (char)('a' + i % 26);
        pairs[i][1] = (char)('a' + (i + i / 26) % 26);
        tokens[i] = (struct grammar_token){.bytes = pairs[i], .length = i < 26 ? 1 : 2};
    }
    test_ok(grammar_vocabulary_open(tokens, V, &end, 1, &vocabulary));
    for (int i = 0; i < GRAMMARS; i++) {
        struct grammar_report report = {0};
        struct grammar_source source = sources[i];
        source.length = strlen(source.text);
        test_ok(grammar_compile(&source, vocabulary, &(struct grammar_limits){.seconds = 60, .bytes = 16 << 20},
                                &report, &grammars[i]));
        grammar_report_free(&report);
    }
    test_ok(constraint_pool_open(&(struct constraint_pool_options){.threads = 1, .on_mask = on_mask}, &pool));
    return 0;
}

static int close_constraints(void **state) {
    (void)state;
    constraint_pool_close(pool);
    for (int i = 0; i < GRAMMARS; i++)
        grammar_release(grammars[i]);
    grammar_vocabulary_close(vocabulary);
    return 0;
}

static void constrain(struct mixed *mixed) {
    struct scheduler_request *r = &mixed->request;
    if (mixed->number % EVERY)
        return;
    r->grammar = grammars[mixed->number / EVERY % GRAMMARS];
    r->wants_logprobs = mixed->number % 2;
    r->top_count = r->wants_logprobs ? r->top_count : 0;
    r->ignore_eos = false;
    mixed->end_ids[0] = V - 1;
    r->end_count = 1;
}

/* Only a drawn token has a log-probability, and a forced one may be drawn. */
static void forget_logprobs(struct mixed *mixed) {
    for (int c = 0; c < MIXED_CHOICES && mixed->request.grammar && !mixed->request.wants_logprobs; c++)
        for (int i = 0; i < MIXED_TOKENS; i++)
            mixed->answer.text[c][i].logprob = 0;
}

struct scene {
    struct rank_grid grid;
    int64_t first_layers;
    int precision;
    const char *device; /* NULL: the test's */
    int64_t max_rows, max_sequences, cache_tokens;
    bool has_no_prefix_cache, is_alone; /* alone: one request after the other */
    bool arrives;                       /* a step between two requests */
    double stretch;
    size_t adapter_memory;  /* so little that adapters take turns; 0: enough for all */
    uint32_t random;        /* the key of a random schedule; 0: none */
    struct mixed *requests; /* [REQUESTS] those that can run */
    int count;
    int64_t preemptions, late;
};

static uint32_t draw(const struct scene *scene, uint32_t number, uint32_t what, uint32_t below) {
    return philox(scene->random, number, what, 0, 0).word[0] % below;
}

static void finish_all(struct scheduler *scheduler, const struct scene *scene) {
    for (int i = 0; i < scene->count; i++)
        scheduler_resume(scheduler, scene->requests[i].id);
    mixed_run(scheduler);
}

/* A request runs twice more, on its own: the last time finds its first page, however the requests before ran. */
static int64_t cached_again(struct scheduler *scheduler, struct engine *engine, const struct scene *scene) {
    int i = 0;
    while (scene->requests[i].request.prompt_length <= KV_PAGE_TOKENS ||
           scene->requests[i].request.wants_prompt_logprobs)
        assert_in_range(++i, 1, scene->count - 1);
    struct mixed again;
    for (int time = 0; time < 2; time++) {
        mixed_make(&again, scene->requests[i].number);
        constrain(&again);
        assert_true(mixed_take(&again, engine, scene->requests[i].adapters));
        mixed_submit(&again, scheduler);
        mixed_run(scheduler);
        forget_logprobs(&again);
        mixed_compare(&again, &scene->requests[i], "once more");
    }
    return again.cached;
}

static void run_requests(struct engine *engine, struct scene *scene) {
    struct adapters *adapters;
    struct scheduler *scheduler;
    struct scheduler_options options = {.prefill_stretch = scene->stretch,
                                        .constraints = pool,
                                        .mask_words = (int64_t)grammar_vocabulary_words(vocabulary)};
    test_ok(adapters_open(engine, &adapters));
    mixed_add_all(adapters);
    test_ok(engine_open_scheduler(engine, &options, &scheduler));
    for (int i = 0; i < request_count(); i++) {
        struct mixed *mixed = &scene->requests[scene->count];
        mixed_make(mixed, i);
        constrain(mixed);
        bool is_taken = mixed_take(mixed, engine, adapters);
        if (!is_taken && scene->adapter_memory) { /* others have the room of its adapters */
            finish_all(scheduler, scene);
            is_taken = mixed_take(mixed, engine, adapters);
        }
        if (!is_taken)
            continue;
        scene->count++;
        mixed_submit(mixed, scheduler);
        if (scene->is_alone)
            mixed_run(scheduler);
        for (uint32_t k = scene->random ? draw(scene, (uint32_t)i, 0, 4) : 0; k > 0; k--)
            assert_true(scheduler_step(scheduler) >= 0);
        if (scene->random && draw(scene, (uint32_t)i, 1, 4) == 0)
            scheduler_pause(scheduler, mixed->id);
        if (scene->random)
            scheduler_resume(scheduler, scene->requests[draw(scene, (uint32_t)i, 2, (uint32_t)scene->count)].id);
        if (scene->arrives && i % 2)
            assert_true(scheduler_step(scheduler) >= 0);
        if (scene->arrives && i % 3 == 0) /* a slow reader, whose pages others may take */
            scheduler_pause(scheduler, mixed->id);
    }
    for (int i = 0; i < scene->count && scene->arrives; i++) {
        scheduler_resume(scheduler, scene->requests[i].id);
        assert_true(scheduler_step(scheduler) >= 0);
    }
    finish_all(scheduler, scene);
    struct scheduler_stats stats;
    scheduler_read_stats(scheduler, &stats);
    scene->preemptions = stats.preemptions;
    scene->late = stats.late_masks;
    for (int i = 0; i < scene->count; i++) {
        assert_true(scene->requests[i].is_done);
        forget_logprobs(&scene->requests[i]);
    }
    assert_int_equal(cached_again(scheduler, engine, scene) > 0, !scene->has_no_prefix_cache);
    assert_int_equal(engine_pages_available(engine), engine_pages(engine));
    scheduler_close(scheduler);
    adapters_close(adapters);
}

static int run_rank(struct comm *world, void *context) {
    struct scene *scene = context;
    struct engine *engine = NULL;
    struct engine_options options = {.device = scene->device ? scene->device : test_device(),
                                     .model = base_directory(),
                                     .world = world->size > 1 ? world : NULL,
                                     .grid = scene->grid,
                                     .first_layers = scene->first_layers,
                                     .precision = scene->precision,
                                     .threads = 1,
                                     .max_rows = scene->max_rows,
                                     .max_logit_rows = scene->max_rows < 64 ? scene->max_rows : 64,
                                     .max_sequences = scene->max_sequences,
                                     .cache_tokens = scene->cache_tokens,
                                     .has_no_prefix_cache = scene->has_no_prefix_cache,
                                     .adapter_memory = scene->adapter_memory ? scene->adapter_memory : 4 << 20};
    int status = engine_open(&options, &engine);
    if (!status && engine_leads(engine))
        run_requests(engine, scene);
    else if (!status)
        status = engine_follow(engine);
    if (!status)
        status = engine_end(engine);
    if (status)
        comm_abort(world, status_text());
    engine_close(engine);
    return status;
}

static struct comm *processes; /* of mpirun; NULL: ranks are threads */

static struct scene run_scene(struct scene scene) {
    scene.requests = calloc(REQUESTS, sizeof *scene.requests);
    assert_non_null(scene.requests);
    test_ok(processes ? run_rank(processes, &scene) : comm_local_run(rank_grid_size(&scene.grid), run_rank, &scene));
    return scene;
}

static void compare(struct scene *ours, const struct scene *alone, const char *how) {
    int at = 0;
    assert_int_equal(ours->count, alone->count);
    for (int i = 0; i < ours->count; i++, at++) {
        while (alone->requests[at].number != ours->requests[i].number)
            at++;
        mixed_compare(&ours->requests[i], &alone->requests[at], how);
    }
    free(ours->requests);
}

static struct scene one_by_one(struct rank_grid grid, int precision, const char *device) {
    return run_scene((struct scene){.grid = grid,
                                    .first_layers = grid.pipeline == 2 ? 2 : 0,
                                    .precision = precision,
                                    .device = device,
                                    .max_rows = 64,
                                    .max_sequences = 2,
                                    .has_no_prefix_cache = true,
                                    .is_alone = true});
}

static const struct rank_grid single = {1, 1, 1, 1, 1};

static void check_together(struct scene *alone, struct rank_grid grid, int precision, const char *device) {
    char how[128];
    bool is_leader = true;
    const struct scene ways[] = {
        {.max_rows = 512, .max_sequences = 64},
        {.max_rows = 7, .max_sequences = 5, .stretch = 2.5},
        {.max_rows = 1, .max_sequences = 3},
        {.max_rows = 64, .max_sequences = 8, .cache_tokens = 4 * KV_PAGE_TOKENS, .arrives = true}, /* they lose pages */
    };
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        struct scene scene = ways[w];
        scene.grid = grid;
        scene.precision = precision;
        scene.device = device;
        scene.first_layers = grid.pipeline == 2 ? 2 : 0;
        scene = run_scene(scene);
        snprintf(how, sizeof how, "%s, tensor %d, pipeline %d, %lld rows",
                 precision == PRECISION_BF16 ? "bf16" : "fp32", grid.tensor, grid.pipeline, (long long)scene.max_rows);
        is_leader = !processes || processes->rank == 0;
        if (scene.cache_tokens && is_leader)
            assert_true(scene.preemptions > 0);
        compare(&scene, alone, how);
    }
}

static void one_run_gives_what_each_gets_alone(void **state) {
    (void)state;
    for (int precision = FIRST_PRECISION; precision <= PRECISION_BF16; precision++) {
        struct scene alone = one_by_one(single, precision, NULL);
        assert_true(alone.count > request_count() * 3 / 4);
        check_together(&alone, single, precision, NULL);
        if (!mixed_is_slow())
            check_together(&alone, (struct rank_grid){1, 1, 1, 1, 2}, precision, NULL); /* stages change no bit */
        free(alone.requests);
    }
}

static void tensor_ranks_give_what_each_gets_alone(void **state) {
    (void)state;
    if (mixed_is_slow())
        test_skip("ranks take too long on this device");
    for (int precision = FIRST_PRECISION; precision <= PRECISION_BF16; precision++) {
        struct scene alone = one_by_one((struct rank_grid){2, 1, 1, 1, 1}, precision, NULL);
        check_together(&alone, (struct rank_grid){2, 1, 1, 1, 1}, precision, NULL);
        check_together(&alone, (struct rank_grid){2, 1, 1, 1, 2}, precision, NULL);
        free(alone.requests);
    }
}

/* A row whose mask is late runs once more, in another step. */
static void late_masks_change_no_bit(void **state) {
    (void)state;
    struct scene alone = one_by_one(single, PRECISION_BF16, NULL);
    atomic_store(&is_slow, true);
    for (int stages = 1; stages <= (mixed_is_slow() ? 1 : 2); stages++) {
        struct scene scene = run_scene((struct scene){.grid = {1, 1, 1, 1, stages},
                                                      .first_layers = stages == 2 ? 2 : 0,
                                                      .precision = PRECISION_BF16,
                                                      .max_rows = 64,
                                                      .max_sequences = 16});
        assert_true(scene.late > 10);
        compare(&scene, &alone, "late masks");
    }
    atomic_store(&is_slow, false);
    free(alone.requests);
}

/* Projections that are ranges of a place's outputs; of four tensor ranks two hold the same keys and values. */
static void families_give_what_each_gets_alone(void **state) {
    (void)state;
    static const char *const roots[] = {"families/llama", "families/qwen3"};
    for (size_t i = 0; i < sizeof roots / sizeof *roots && !mixed_is_slow(); i++) {
        stacks_root = roots[i];
        for (int precision = FIRST_PRECISION; precision <= PRECISION_BF16; precision++) {
            struct scene alone = one_by_one(single, precision, NULL);
            assert_true(alone.count > request_count() * 3 / 4);
            check_together(&alone, single, precision, NULL);
            free(alone.requests);
        }
        struct scene alone = one_by_one((struct rank_grid){4, 1, 1, 1, 1}, PRECISION_FP32, NULL);
        check_together(&alone, (struct rank_grid){4, 1, 1, 1, 1}, PRECISION_FP32, NULL);
        free(alone.requests);
        stacks_root = "golden";
    }
}

/* Batches, chunks, hits, preemptions and swaps of adapters as they come; each schedule begins with an engine that has
 * seen nothing. In the long form more than 10,000 requests. */
static void random_schedules_give_what_each_gets_alone(void **state) {
    (void)state;
    static const size_t memory[] = {0, SWAPS, 2 * SWAPS};
    int rounds = test_is_long() ? 40 : 4;
    struct scene alone[] = {one_by_one(single, PRECISION_FP32, NULL), one_by_one(single, PRECISION_BF16, NULL)};
    int64_t compared = 0, preemptions = 0;
    for (int round = 0; round < (mixed_is_slow() ? 0 : rounds); round++) {
        struct scene scene = {.grid = single, .precision = round % 2, .random = 1 + (uint32_t)round};
        char how[64];
        scene.max_rows = 1 + draw(&scene, 0, 10, 8) * draw(&scene, 0, 11, 32);
        scene.max_sequences = 2 + draw(&scene, 0, 12, 24);
        scene.cache_tokens = draw(&scene, 0, 13, 3) ? (4 + draw(&scene, 0, 14, 20)) * KV_PAGE_TOKENS : 0;
        scene.has_no_prefix_cache = draw(&scene, 0, 15, 4) == 0;
        scene.stretch = draw(&scene, 0, 16, 3) * 1.25;
        scene.adapter_memory = memory[draw(&scene, 0, 17, 3)];
        scene.grid.pipeline = draw(&scene, 0, 18, 4) ? 1 : 2;
        scene.first_layers = scene.grid.pipeline == 2 ? 2 : 0;
        scene = run_scene(scene);
        preemptions += scene.preemptions;
        compared += scene.count;
        snprintf(how, sizeof how, "schedule %d", round);
        compare(&scene, &alone[round % 2], how);
    }
    assert_true(mixed_is_slow() || preemptions > 0);
    assert_true(!test_is_long() || mixed_is_slow() || IS_SANITIZED || compared >= 10000);
    free(alone[0].requests);
    free(alone[1].requests);
}

/* The same of bf16 where the processor has no AVX-512. */
static void narrower_instructions_give_what_each_gets_alone(void **state) {
    (void)state;
    if (strcmp(test_device() ? test_device() : "cpu", "cpu"))
        test_skip("the levels are the CPU's");
    struct scene alone = one_by_one(single, PRECISION_BF16, "cpu:v3");
    check_together(&alone, single, PRECISION_BF16, "cpu:v3");
    free(alone.requests);
}

/* Steps of changing rows, slots and samplers. What the first round needs once, later ones have. */
static void nothing_is_allocated_in_a_thousand_steps(void **state) {
    (void)state;
    if (!allocations_can_be_counted())
        test_skip("this build has an allocator that cannot be counted");
    struct engine *engine;
    struct adapters *adapters;
    struct mixed *requests = calloc(REQUESTS, sizeof *requests);
    struct engine_options options = {.device = test_device(),
                                     .model = base_directory(),
                                     .precision = PRECISION_BF16,
                                     .threads = 2,
                                     .max_rows = 24,
                                     .max_logit_rows = 24,
                                     .max_sequences = 6,
                                     .cache_tokens = 9 * KV_PAGE_TOKENS,
                                     .adapter_memory = 4 << 20};
    int64_t steps = 0, allocated = 0;
    assert_non_null(requests);
    test_ok(engine_open(&options, &engine));
    test_ok(adapters_open(engine, &adapters));
    mixed_add_all(adapters);
    for (int round = 0; steps <= 1000; round++) {
        struct scheduler *scheduler;
        test_ok(engine_open_scheduler(engine, &(struct scheduler_options){.prefill_stretch = 2.5}, &scheduler));
        for (int i = 0; i < request_count(); i++) {
            mixed_make(&requests[i], i);
            if (mixed_take(&requests[i], engine, adapters))
                mixed_submit(&requests[i], scheduler);
        }
        int status = scheduler_step(scheduler); /* OpenMP's threads come back in the first */
        if (round)
            allocations_start();
        for (; status > 0; steps += round > 0)
            status = scheduler_step(scheduler);
        allocated += round ? allocations_stop() : 0;
        test_ok(status);
        scheduler_close(scheduler);
    }
    assert_int_equal(allocated, 0);
    adapters_close(adapters);
    engine_close(engine);
    free(requests);
}

/* Under mpirun: both ranks of two run this. */
static void processes_give_what_each_gets_alone(void **state) {
    (void)state;
    static const struct rank_grid tensor = {2, 1, 1, 1, 1}, stages = {1, 1, 1, 1, 2};
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++) {
        struct scene alone = one_by_one(tensor, precision, NULL);
        check_together(&alone, tensor, precision, NULL);
        free(alone.requests);
        alone = one_by_one(stages, precision, NULL);
        check_together(&alone, stages, precision, NULL);
        free(alone.requests);
    }
}

static int main_of_a_process(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(processes_give_what_each_gets_alone)};
    test_ok(comm_mpi_open(&processes));
    int failed = cmocka_run_group_tests(tests, open_constraints, close_constraints);
    if (!failed)
        comm_close(processes);
    return failed;
}

int main(void) {
    if (comm_mpi_is_launched())
        return main_of_a_process();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_run_gives_what_each_gets_alone),
        cmocka_unit_test(tensor_ranks_give_what_each_gets_alone),
        cmocka_unit_test(late_masks_change_no_bit),
        cmocka_unit_test(families_give_what_each_gets_alone),
        cmocka_unit_test(random_schedules_give_what_each_gets_alone),
        cmocka_unit_test(nothing_is_allocated_in_a_thousand_steps),
        cmocka_unit_test(narrower_instructions_give_what_each_gets_alone),
    };
    return cmocka_run_group_tests(tests, open_constraints, close_constraints);
}
