/* The engine on several GPUs over NCCL. Texts of adapters run together, and the adapters are replaced under their
 * names meanwhile. Each text has the bits that it gets alone on these GPUs, by the generation that it began with. Its
 * tokens are the CPU's. This holds on two tensor ranks in each of two stages. On two tensor ranks, decode steps that
 * are replayed with their sums have the bits of steps that are not. */
#include "infer/mixed.h"

#include <math.h>
#include <stdlib.h>

enum { NAMES = 4, WAYS = 2 };

/* The meanings of a name: before it is replaced, and afterwards. */
static const char *const contents[NAMES][WAYS] = {
    {"lora", "rslora"}, {"ia3", "ia3_inputs"}, {"adapter_par_bn", "lora_patterns"}, {"prompt", "prefix"}};

struct texts {
    const char *device;
    struct rank_grid grid;
    bool has_no_graphs;
    struct engine_graphs graphs; /* of the leader */
    struct mixed alone[NAMES][WAYS], together[NAMES][WAYS], bare[NAMES];
};

/* A greedy text of a name. */
static void make(struct mixed *mixed, int number, const char *name) {
    mixed_make(mixed, number);
    mixed->name_count = 1;
    mixed->names[0] = name;
    mixed->request.sampling.temperature = 0;
    mixed->request.choices = 1;
    mixed->request.max_tokens = 4;
    mixed->request.priority = 0;
    mixed->request.end_count = mixed->request.stop_count = 0;
    mixed->request.ignore_eos = true;
}

static void submit(struct mixed *mixed, struct engine *engine, struct adapters *adapters, struct scheduler *scheduler) {
    assert_true(mixed_take(mixed, engine, adapters));
    mixed_submit(mixed, scheduler);
}

static void run_alone(struct texts *texts, struct engine *engine, struct adapters *adapters,
                      struct scheduler *scheduler) {
    for (int name = 0; name < NAMES; name++)
        for (int way = 0; way < WAYS; way++) {
            char path[512];
            mixed_directory(contents[name][way], path);
            test_ok(adapters_add(adapters, contents[name][way], path));
            make(&texts->alone[name][way], name, contents[name][way]);
            submit(&texts->alone[name][way], engine, adapters, scheduler);
            mixed_run(scheduler);
            test_ok(adapters_unload(adapters, contents[name][way]));
        }
}

static void run_together(struct texts *texts, struct engine *engine, struct adapters *adapters,
                         struct scheduler *scheduler) {
    static const char *const names[NAMES] = {"a", "b", "c", "d"};
    for (int way = 0; way < WAYS; way++) {
        for (int name = 0; name < NAMES; name++) {
            char path[512];
            mixed_directory(contents[name][way], path);
            test_ok(way ? adapters_replace(adapters, names[name], path, 0) : adapters_add(adapters, names[name], path));
            make(&texts->together[name][way], name, names[name]);
            submit(&texts->together[name][way], engine, adapters, scheduler);
        }
        for (int step = 0; step < 2; step++)
            assert_true(scheduler_step(scheduler) >= 0);
        assert_false(way == 0 && texts->together[0][0].is_done);
    }
    mixed_run(scheduler);
}

/* Texts of the base, whose decode steps have several rows. */
static void run_bare(struct texts *texts, struct engine *engine, struct adapters *adapters,
                     struct scheduler *scheduler) {
    for (int i = 0; i < NAMES; i++) {
        make(&texts->bare[i], i, NULL);
        texts->bare[i].name_count = 0;
        submit(&texts->bare[i], engine, adapters, scheduler);
    }
    mixed_run(scheduler);
}

static void run_texts(struct engine *engine, struct texts *texts) {
    struct adapters *adapters;
    struct scheduler *scheduler;
    test_ok(adapters_open(engine, &adapters));
    test_ok(engine_open_scheduler(engine, &(struct scheduler_options){0}, &scheduler));
    run_alone(texts, engine, adapters, scheduler);
    run_together(texts, engine, adapters, scheduler);
    run_bare(texts, engine, adapters, scheduler);
    scheduler_close(scheduler);
    adapters_close(adapters);
}

static int run_rank(struct comm *world, void *context) {
    struct texts *texts = context;
    struct engine *engine = NULL;
    const struct engine_options options = {.device = texts->device,
                                           .device_number = world->rank,
                                           .model = base_directory(),
                                           .world = world->size > 1 ? world : NULL,
                                           .grid = texts->grid,
                                           .first_layers = texts->grid.pipeline == 2 ? 2 : 0,
                                           .precision = PRECISION_FP32,
                                           .threads = 1,
                                           .max_rows = 32,
                                           .max_logit_rows = 32,
                                           .max_sequences = NAMES * WAYS,
                                           .has_no_prefix_cache = true,
                                           .has_no_graphs = texts->has_no_graphs,
                                           .adapter_memory = 4 << 20};
    int status = engine_open(&options, &engine);
    if (!status && engine_leads(engine)) {
        assert_int_equal(comm_is_ordered(world), world->size == 1); /* NCCL adds in any order */
        run_texts(engine, texts);
        texts->graphs = engine_graphs(engine);
    } else if (!status)
        status = engine_follow(engine);
    if (!status)
        status = engine_end(engine);
    if (status)
        comm_abort(world, status_text());
    engine_close(engine);
    return status;
}

static struct texts *run_on(const char *device, struct rank_grid grid, bool has_no_graphs) {
    struct texts *texts = calloc(1, sizeof *texts);
    assert_non_null(texts);
    texts->device = device;
    texts->grid = grid;
    texts->has_no_graphs = has_no_graphs;
    test_ok(comm_local_run(rank_grid_size(&grid), run_rank, texts));
    return texts;
}

static void check_figures(const struct answer *ours, const struct answer *expected) {
    assert_int_equal(ours->counts[0], expected->counts[0]);
    for (int64_t i = 0; i < ours->counts[0]; i++) {
        assert_int_equal(ours->text[0][i].token, expected->text[0][i].token);
        assert_true(fabsf(ours->text[0][i].logprob - expected->text[0][i].logprob) < 1e-4f); /* fp32, of some 1 to 5 */
    }
}

static void adapters_are_replaced_on_four_cards(void **state) {
    (void)state;
    struct texts *cards = run_on("cuda", (struct rank_grid){2, 1, 1, 1, 2}, false);
    struct texts *cpu = run_on("cpu", (struct rank_grid){1, 1, 1, 1, 1}, false);
    assert_int_equal(cards->graphs.count, 0); /* stages have none */
    for (int name = 0; name < NAMES; name++)
        for (int way = 0; way < WAYS; way++) {
            mixed_compare(&cards->together[name][way], &cards->alone[name][way], contents[name][way]);
            check_figures(&cards->alone[name][way].answer, &cpu->alone[name][way].answer);
        }
    free(cards);
    free(cpu);
}

static void replayed_steps_of_tensor_ranks_have_the_bits_of_others(void **state) {
    (void)state;
    struct texts *replayed = run_on("cuda", (struct rank_grid){2, 1, 1, 1, 1}, false);
    struct texts *plain = run_on("cuda", (struct rank_grid){2, 1, 1, 1, 1}, true);
    assert_int_equal(replayed->graphs.count, 6 * 4); /* 1, 2, 4 and 8 rows, without adapters and at each level */
    const struct model_replays *replays = &replayed->graphs.replays;
    assert_true(replays->steps >= 16 && replays->asked > replays->steps); /* some of several rows */
    assert_int_equal(plain->graphs.replays.steps, 0);
    for (int name = 0; name < NAMES; name++) {
        mixed_compare(&replayed->bare[name], &plain->bare[name], "bare");
        for (int way = 0; way < WAYS; way++) {
            mixed_compare(&replayed->together[name][way], &plain->together[name][way], contents[name][way]);
            mixed_compare(&replayed->alone[name][way], &plain->alone[name][way], contents[name][way]);
        }
    }
    free(replayed);
    free(plain);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adapters_are_replaced_on_four_cards),
        cmocka_unit_test(replayed_steps_of_tensor_ranks_have_the_bits_of_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
