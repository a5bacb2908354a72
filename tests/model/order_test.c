/* The order in which a rank's steps use units, from its schedule alone: nothing runs, and there are no other ranks. In
 * the lists, e is the embedding, h the final norm with the head, and digits are layers. */
#include "model/support.h"

enum { LAYERS = 4, ROWS = 8, UNITS_MOST = 128, STEPS_MOST = 64 };

struct scene {
    int stages, stage, chunks, micro_batches;
    bool is_untied, is_frozen, is_forward_only;
    struct model_recompute recompute;
};

static void check(const struct scene *scene, const char *expected) {
    const struct pipeline_shape shape = {.stages = scene->stages,
                                         .chunks = scene->chunks,
                                         .micro_batches = scene->micro_batches,
                                         .is_forward_only = scene->is_forward_only};
    const struct rank_grid grid = {1, 1, 1, 1, scene->stages};
    struct pipeline_step steps[STEPS_MOST];
    struct model_options options = {.base.config = test_config(LAYERS, ROWS),
                                    .base.dtype = DTYPE_F32,
                                    .base.trains = !scene->is_frozen,
                                    .train.recompute = scene->recompute,
                                    .max_rows = ROWS,
                                    .train.stashes = scene->micro_batches * scene->chunks,
                                    .base.chunk_count = scene->chunks};
    struct model_plan plan;
    struct base *base;
    struct training_runner *model;
    struct device *device;
    struct rank rank;
    struct unit_order order;
    int layers = LAYERS / (scene->stages * scene->chunks);
    char found[UNITS_MOST + 1];
    options.base.config.untie_embeddings_and_output_weights = scene->is_untied;
    for (int c = 0; c < scene->chunks; c++)
        options.base.chunks[c] = (struct model_chunk){(c * scene->stages + scene->stage) * layers, layers};
    pipeline_steps(&shape, scene->stage, steps);
    test_ok(device_sketch(&(const struct device_facts){.kind = test_device(), .threads = 1}, &device));
    rank_sketch(&rank, &grid, scene->stage, device);
    test_ok(test_sketch_training(&options, &rank, &plan, &base, &model));
    test_ok(model_unit_order(model, steps, pipeline_step_count(&shape), scene->is_forward_only, &order));
    assert_in_range(order.count, 1, UNITS_MOST);
    for (int64_t i = 0; i < order.count; i++)
        found[i] = order.units[i] < 0 ? 'e' : order.units[i] == LAYERS ? 'h' : (char)('0' + order.units[i]);
    found[order.count] = '\0';
    free(order.units);
    assert_string_equal(found, expected);
    test_close_training(&base, &model);
    rank_close(&rank);
    device_close(device);
}

static void a_rank_alone_goes_forward_and_back(void **state) {
    (void)state;
    check(&(const struct scene){.stages = 1, .chunks = 1, .micro_batches = 2}, "e0123he3210e"
                                                                               "e0123he3210e");
    check(&(const struct scene){.stages = 1, .chunks = 1, .micro_batches = 1, .is_untied = true}, "e0123h3210e");
    check(&(const struct scene){.stages = 1, .chunks = 1, .micro_batches = 1, .is_forward_only = true}, "e0123he");
}

static void a_stage_uses_its_own_units_in_the_order_of_the_schedule(void **state) {
    (void)state;
    check(&(const struct scene){.stages = 2, .chunks = 1, .micro_batches = 2}, "e01e01"
                                                                               "10e10e");
    check(&(const struct scene){.stages = 2, .stage = 1, .chunks = 1, .micro_batches = 2}, "23he32"
                                                                                           "23he32");
    check(&(const struct scene){.stages = 2, .chunks = 2, .micro_batches = 2}, "e0e022"
                                                                               "220e0e");
}

static void layers_that_run_again_are_used_again(void **state) {
    (void)state;
    const struct model_recompute groups = {.how = RECOMPUTE_UNIFORM, .num_layers = 2};
    check(&(const struct scene){.stages = 1, .chunks = 1, .micro_batches = 1, .recompute = groups}, "e0123he32"
                                                                                                    "0110e");
}

static void a_frozen_model_has_no_backward(void **state) {
    (void)state;
    check(&(const struct scene){.stages = 1, .chunks = 1, .micro_batches = 1, .is_frozen = true}, "e0123he");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_alone_goes_forward_and_back),
        cmocka_unit_test(a_stage_uses_its_own_units_in_the_order_of_the_schedule),
        cmocka_unit_test(layers_that_run_again_are_used_again),
        cmocka_unit_test(a_frozen_model_has_no_backward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
