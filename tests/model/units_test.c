/* Every unit is unsharded before the first loan of its weights and resharded after the last one. This holds under every
 * layout, with every recomputation, with tied and untied heads, in training, evaluation and inference. */
#include "model/support.h"
#include "support/counting.h"

enum { LAYERS = 4, T = 8, SAMPLES = 2, ROWS = T * SAMPLES };

/* One run: its layout and its model. */
struct scene {
    int tensors, stages, chunks;
    bool is_sequence_parallel, is_untied, is_frozen;
    struct model_recompute recompute;
};

static const struct model_recompute recomputations[] = {
    {.how = RECOMPUTE_NONE},
    {.how = RECOMPUTE_SELECTIVE, .layernorm = true, .mlp_act = true},
    {.how = RECOMPUTE_UNIFORM, .num_layers = 1},
    {.how = RECOMPUTE_UNIFORM, .num_layers = 2},
    {.how = RECOMPUTE_BLOCK, .num_layers = 2},
};
enum { RECOMPUTATIONS = sizeof recomputations / sizeof *recomputations };

/* A rank's model, and what its chunks get from others and give them. */
struct part {
    const struct scene *scene;
    struct test_model test;
    struct model_options options;
    void *x, *y;
};

static int part_open(struct part *part, const struct scene *scene, struct comm *world) {
    const struct rank_grid grid = {scene->tensors, 1, 1, 1, scene->stages};
    int stage = rank_grid_place(&grid, world->rank).pipeline;
    int64_t layers = LAYERS / (scene->stages * scene->chunks);
    *part = (struct part){.scene = scene};
    part->options = (struct model_options){.base.config = test_config(LAYERS, T),
                                           .base.dtype = DTYPE_F32,
                                           .base.trains = !scene->is_frozen,
                                           .train.recompute = scene->recompute,
                                           .max_rows = ROWS,
                                           .train.stashes = scene->chunks,
                                           .base.chunk_count = scene->chunks,
                                           .base.storage = counting_begin(&storage_whole)};
    part->options.base.config.untie_embeddings_and_output_weights = scene->is_untied;
    for (int c = 0; c < scene->chunks; c++)
        part->options.base.chunks[c] = (struct model_chunk){(c * scene->stages + stage) * layers, layers};
    int status = test_model_open_rank(&part->test, &part->options, &grid, world, scene->is_sequence_parallel);
    if (!status)
        status = counting_check(); /* units alternate in planning, too */
    if (!status)
        status = base_initialise(part->test.base, 3);
    size_t bytes = status ? 0 : (size_t)training_stream_elements(part->test.model) * sizeof(float);
    if (!status)
        status = device_alloc_zeroed(part->test.device, bytes, &part->x);
    if (!status)
        status = device_alloc_zeroed(part->test.device, bytes, &part->y);
    counting_reset();
    return status;
}

static void part_close(struct part *part) {
    device_free(part->test.device, part->x);
    device_free(part->test.device, part->y);
    test_model_close(&part->test);
}

/* ---- what is expected ---- */

/* Whether the rank's stage has what comes before the layers, or after them. */
static bool has_first(const struct part *part) {
    return part->options.base.chunks[0].first == 0;
}
static bool has_last(const struct part *part) {
    const struct model_chunk *last = &part->options.base.chunks[part->options.base.chunk_count - 1];
    return last->first + last->count == LAYERS;
}

/* Each layer of the stage is used `times` times for a purpose, other layers never. */
static int expect_layers(const struct part *part, enum param_use use, int times) {
    int status = STATUS_OK;
    for (int layer = 0; layer < LAYERS && !status; layer++)
        status = counting_expect(layer, use, model_has_layer(&part->options.base, layer) ? times : 0, true);
    return status;
}

/* A tied head reads the embedding's unit as well. */
static int expect_ends(const struct part *part, enum param_use use, int embedding, int head, bool needs_loan) {
    int of_first = (has_first(part) ? embedding : 0) + (has_last(part) && !part->scene->is_untied ? head : 0);
    int status = counting_expect(PARAM_UNIT_FIRST, use, of_first, needs_loan);
    return status ? status : counting_expect(LAYERS, use, has_last(part) ? head : 0, true);
}

/* The forward of the head is part of its backward; the embedding's backward reads no weight. */
static int expect_training(const struct part *part) {
    int times = part->scene->is_frozen ? 0 : 1;
    int status = expect_layers(part, PARAM_FORWARD, 1);
    if (!status)
        status = expect_ends(part, PARAM_FORWARD, 1, 0, true);
    if (!status)
        status = expect_layers(part, PARAM_BACKWARD, times);
    if (!status)
        status = expect_ends(part, PARAM_BACKWARD, times, 1, false);
    return status;
}

/* The last group is still as the forward left it, where the stage has one chunk. */
static int expect_recomputation(const struct part *part) {
    const struct model_recompute *how = &part->scene->recompute;
    int again = 0, expected = 0, layers = LAYERS / part->scene->stages;
    for (int layer = 0; layer < LAYERS; layer++)
        again += counting_unit(layer)->unsharded[PARAM_RECOMPUTATION];
    if (part->scene->is_frozen || part->scene->chunks > 1)
        return STATUS_OK;
    if (how->how == RECOMPUTE_UNIFORM)
        expected = layers - (int)(how->num_layers < layers ? how->num_layers : layers);
    if (how->how == RECOMPUTE_BLOCK)
        expected = 1; /* each of the first two by itself */
    return again == expected ? STATUS_OK
                             : status_fail(STATUS_INVALID, "%d layers recomputed, expected %d", again, expected);
}

/* ---- passes ---- */

static struct model_pass pass_of(const struct part *part, int chunk) {
    const struct model_chunk *layers = &part->options.base.chunks[chunk];
    bool has_backward = model_has_backward(&part->options, layers->first + layers->count);
    return (struct model_pass){
        .chunk = chunk, .stash = has_backward ? chunk : -1, .is_first_micro_batch = true, .is_last_micro_batch = true};
}

static int train(struct part *part) {
    struct training_runner *model = part->test.model;
    const struct model_batch batch = test_batch(SAMPLES, T, TEST_VOCAB, 0, NULL);
    int status = STATUS_OK;
    for (int c = 0; c < part->scene->chunks && !status; c++) {
        const struct model_pass pass = pass_of(part, c);
        status = model_forward(model, &batch, &pass, part->x, part->y);
    }
    for (int c = part->scene->chunks - 1; c >= 0 && !status; c--) {
        const struct model_pass pass = pass_of(part, c);
        status = model_backward(model, &pass, part->y, part->x);
    }
    if (!status)
        status = counting_check();
    if (!status)
        status = expect_training(part);
    return status ? status : expect_recomputation(part);
}

static int evaluate(struct part *part) {
    const struct model_batch batch = test_batch(SAMPLES, T, TEST_VOCAB, 0, NULL);
    int status = STATUS_OK;
    counting_reset();
    for (int c = 0; c < part->scene->chunks && !status; c++)
        status = model_evaluate_chunk(part->test.model, &batch, c, part->x, part->y);
    if (!status)
        status = counting_check();
    if (!status)
        status = expect_layers(part, PARAM_EVALUATION, 1);
    return status ? status : expect_ends(part, PARAM_EVALUATION, 1, 1, true);
}

static int run_rank(struct comm *world, void *context) {
    struct part part;
    int status = part_open(&part, context, world);
    if (!status)
        status = train(&part);
    if (!status)
        status = evaluate(&part);
    if (status)
        comm_abort(world, status_text());
    part_close(&part);
    return status;
}

static void run(const struct scene *scene) {
    if (comm_local_run(scene->tensors * scene->stages, run_rank, (void *)scene))
        fail_msg("%d tensor ranks%s, %d stages of %d chunks, recompute %d, %s head, %s: %s", scene->tensors,
                 scene->is_sequence_parallel ? " that cut the sequence" : "", scene->stages, scene->chunks,
                 (int)scene->recompute.how, scene->is_untied ? "untied" : "tied",
                 scene->is_frozen ? "frozen" : "trained", status_text());
}

static const struct scene layouts[] = {
    {.tensors = 1, .stages = 1, .chunks = 1},
    {.tensors = 1, .stages = 1, .chunks = 1, .is_untied = true},
    {.tensors = 1, .stages = 2, .chunks = 2},
    {.tensors = 2, .stages = 1, .chunks = 2, .is_untied = true},
    {.tensors = 2, .stages = 2, .chunks = 1, .is_sequence_parallel = true},
    {.tensors = 2, .stages = 2, .chunks = 2, .is_untied = true, .is_sequence_parallel = true},
};

enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static void check(const struct scene *layout, const struct model_recompute *recompute, bool is_frozen) {
    struct scene scene = *layout;
    scene.recompute = *recompute;
    scene.is_frozen = is_frozen;
    run(&scene);
}

/* The order of units is the host's, and the stand-in for a GPU computes slowly: it has each layout once, and each
 * recomputation. */
static void units_are_whole_while_they_are_read_in_every_layout(void **state) {
    bool is_slow = !strcmp(test_device(), "cuda");
    (void)state;
    for (int i = 0; i < LAYOUTS; i++)
        for (int r = 0; r < RECOMPUTATIONS; r++)
            if (!is_slow || r == i % RECOMPUTATIONS)
                check(&layouts[i], &recomputations[r], false);
}

static void so_in_a_frozen_model(void **state) {
    (void)state;
    for (int i = 0; i < LAYOUTS; i++)
        check(&layouts[i], &recomputations[0], true);
}

/* ---- one rank ---- */

static int fill(void *context, int id) {
    struct test_model *test = context;
    return param_initialise(base_store(test->base), test->rank.exec.stream, 77, id);
}

static void so_for_logits(void **state) {
    (void)state;
    for (int is_untied = 0; is_untied < 2; is_untied++) {
        struct test_model test;
        float logits[ROWS * TEST_VOCAB];
        struct model_options options = {.base.config = test_config(LAYERS, T),
                                        .base.trains = true,
                                        .max_rows = ROWS,
                                        .base.storage = counting_begin(&storage_whole)};
        const struct model_batch batch = test_batch(SAMPLES, T, TEST_VOCAB, 0, NULL);
        options.base.config.untie_embeddings_and_output_weights = is_untied;
        test_model_open(&test, options);
        counting_reset();
        test_ok(model_logits(test.model, &batch, logits));
        test_ok(counting_check());
        test_ok(counting_expect(PARAM_UNIT_FIRST, PARAM_EVALUATION, is_untied ? 1 : 2, true));
        test_ok(counting_expect(LAYERS, PARAM_EVALUATION, 1, true));
        test_model_close(&test);
    }
}

static void so_in_a_step_of_inference_with_packed_weights(void **state) {
    (void)state;
    for (int is_untied = 0; is_untied < 2; is_untied++) {
        struct test_model test;
        struct model_options options = {.base.config = test_config(LAYERS, T),
                                        .max_rows = ROWS,
                                        .infer.max_logit_rows = 1,
                                        .infer.max_sequences = 1,
                                        .infer.max_pages = 2,
                                        .base.storage = counting_begin(&storage_packed)};
        options.base.config.untie_embeddings_and_output_weights = is_untied;
        test_inference_open(&test, options, NULL);
        test_ok(base_fill(test.base, (struct param_fill){.fill = fill, .context = &test}));
        test_ok(inference_open_pages(test.inference, 2));
        counting_reset();
        test_ok(model_infer(test.inference, test_one_row()));
        test_ok(counting_check());
        for (int layer = 0; layer < LAYERS; layer++)
            test_ok(counting_expect(layer, PARAM_EVALUATION, 1, true));
        test_ok(counting_expect(PARAM_UNIT_FIRST, PARAM_EVALUATION, is_untied ? 1 : 2, true));
        test_ok(counting_expect(LAYERS, PARAM_EVALUATION, 1, true));
        test_model_close(&test);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units_are_whole_while_they_are_read_in_every_layout),
        cmocka_unit_test(so_in_a_frozen_model),
        cmocka_unit_test(so_for_logits),
        cmocka_unit_test(so_in_a_step_of_inference_with_packed_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
