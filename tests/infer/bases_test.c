/* An engine of two bases of different families. Steps of both are under way together, and each completion has the bits
 * that it has in an engine of its base only. */
#include "infer/engine.h"
#include "infer/generate.h"
#include "infer/sequences.h"
#include "infer/slots.h"
#include "stacks.h"

enum { BASES = 2, TEXTS = 3, TOKENS = 12, RANKS = 4 };

static const char *const roots[BASES] = {"golden", "families/llama"};
static const struct stack stacks[BASES] = {{{"lora_all_linear"}, 1, 0, 0}, {{"ia3"}, 1, 0, 0}};

struct written {
    int32_t token[TEXTS][TOKENS];
    float logprob[TEXTS][TOKENS];
};

/* The texts of a base that are being written. */
struct writing {
    struct engine *engine;
    int sequence[TEXTS];
    struct sampling sampling[TEXTS];
    struct engine_row rows[ROWS];
    int64_t last[TEXTS]; /* of its rows */
    struct written *out;
};

static void begin(struct writing *w, struct engine *engine, struct written *out) {
    *w = (struct writing){.engine = engine, .out = out};
    for (int text = 0; text < TEXTS; text++) {
        w->sequence[text] = engine_sequence_new(engine);
        assert_true(w->sequence[text] >= 0);
        w->sampling[text] = (struct sampling){
            .temperature = text == 1, .top_p = 1, .repetition_penalty = 1, .seed = 5, .choice = (uint32_t)text};
    }
}

/* The first step has the prompts, of different lengths; the others have a token of each text. */
static int submit(struct writing *w, int step) {
    int64_t count = 0;
    for (int text = 0; text < TEXTS; text++) {
        int64_t rows = step ? 1 : 3 + 2 * text;
        for (int64_t i = 0; i < rows; i++)
            w->rows[count++] = (struct engine_row){.token = step ? w->out->token[text][step - 1] : token_at(text, i),
                                                   .sequence = w->sequence[text],
                                                   .label = -1};
        w->last[text] = count - 1;
        w->rows[count - 1].wants_logits = true;
        w->rows[count - 1].sampling = &w->sampling[text];
    }
    return engine_submit(w->engine, w->rows, count);
}

static int collect(struct writing *w, int step) {
    struct engine_result results[ROWS];
    TRY(engine_collect(w->engine, results));
    for (int text = 0; text < TEXTS; text++) {
        w->out->token[text][step] = results[w->last[text]].token;
        w->out->logprob[text][step] = results[w->last[text]].logprob;
    }
    return STATUS_OK;
}

/* Steps of the bases are collected in both orders. */
static int write_all(struct engine *const *engines, int count, struct written *const *out) {
    struct writing writing[BASES];
    int status = STATUS_OK;
    for (int i = 0; i < count; i++)
        begin(&writing[i], engines[i], out[i]);
    for (int step = 0; step < TOKENS; step++) {
        for (int i = 0; i < count; i++)
            THEN(status, submit(&writing[i], step));
        for (int i = 0; i < count; i++)
            THEN(status, collect(&writing[step % 2 ? count - 1 - i : i], step));
    }
    for (int i = 0; i < count; i++)
        for (int text = 0; text < TEXTS; text++)
            engine_sequence_close(engines[i], writing[i].sequence[text]);
    return status;
}

struct scene {
    struct rank_grid grid;
    struct directories directories[BASES];
    char base[BASES][512];
    struct written own[RANKS][BASES], together[RANKS][BASES];
};

static struct engine_options options_of(const struct scene *scene, int base, struct comm *world) {
    return (struct engine_options){.device = test_device(),
                                   .is_batch_invariant = true,
                                   .model = scene->base[base],
                                   .adapters = (const char *const *)scene->directories[base].name,
                                   .adapter_count = 1,
                                   .world = world->size > 1 ? world : NULL,
                                   .grid = scene->grid,
                                   .first_layers = scene->grid.pipeline > 1, /* of three */
                                   .precision = PRECISION_FP32,
                                   .threads = 1,
                                   .max_rows = base ? 20 : 24,
                                   .max_logit_rows = 4,
                                   .max_sequences = 3 + base};
}

static int serve(struct comm *world, const struct engine_options *options, int count, struct written *const *out) {
    struct engine *engine, *engines[BASES];
    TRY(engine_open(options, &engine));
    for (int i = 0; i < count; i++)
        engines[i] = engine_of_base(engine, i);
    int status = engine_leads(engine) ? write_all(engines, count, out) : engine_follow(engine);
    THEN(status, engine_end(engine));
    if (status)
        comm_abort(world, status_text());
    engine_close(engine);
    return status;
}

static int serve_apart_and_together(struct comm *world, void *context) {
    struct scene *scene = context;
    struct engine_options options[BASES];
    for (int base = 0; base < BASES; base++) {
        options[base] = options_of(scene, base, world);
        TRY(serve(world, &options[base], 1, (struct written *[]){&scene->own[world->rank][base]}));
    }
    options[0].next = &options[1];
    struct written *together = scene->together[world->rank];
    return serve(world, options, BASES, (struct written *[]){&together[0], &together[1]});
}

static void check_layout(struct rank_grid grid) {
    struct scene *scene = calloc(1, sizeof *scene);
    assert_non_null(scene);
    scene->grid = grid;
    for (int base = 0; base < BASES; base++) {
        stacks_root = roots[base];
        snprintf(scene->base[base], sizeof scene->base[base], "%s", base_directory());
        find_stack(&stacks[base], &scene->directories[base]);
    }
    test_ok(comm_local_run(rank_grid_size(&grid), serve_apart_and_together, scene));
    assert_memory_equal(scene->own, scene->together, sizeof scene->own);
    assert_memory_not_equal(&scene->own[0][0], &scene->own[0][1], sizeof scene->own[0][0]);
    for (int base = 0; base < BASES; base++)
        forget_stack(&stacks[base], &scene->directories[base]);
    free(scene);
}

static void two_bases_give_what_each_gives_in_its_own_engine(void **state) {
    (void)state;
    check_layout((struct rank_grid){1, 1, 1, 1, 1});
}

static void so_do_the_parts_of_tensor_ranks_and_stages(void **state) {
    (void)state;
    check_layout((struct rank_grid){2, 1, 1, 1, 1});
    check_layout((struct rank_grid){1, 1, 1, 1, 2});
    check_layout((struct rank_grid){2, 1, 1, 1, 2});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_bases_give_what_each_gives_in_its_own_engine),
        cmocka_unit_test(so_do_the_parts_of_tensor_ranks_and_stages),
    };
    test_ends_within(60);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
