/* Planned device bytes of 78 layouts equal those that trainer_open allocates, at every rank, to the byte and part by
 * part. The plan is made from a sketch of the device, as the planner makes it. */
#include "infer/tuner.h"
#include "taken.h"
#include "train/support.h"

enum { LAYERS = 8, BATCH = 8, HEADS = 4, CHANNELS = 8 };

enum recomputing { KEEP, NORMS, ACTIVATIONS, BOTH, BLOCK, FULL, RECOMPUTES };
static const char *modules[] = {"layernorm", "mlp_act"};
static const struct config_list selected[RECOMPUTES] = {
    [NORMS] = {modules, 1}, [ACTIVATIONS] = {modules + 1, 1}, [BOTH] = {modules, 2}};

static const struct {
    int tensor, data, pipeline, chunks;
    bool counts_embedding, counts_loss; /* as layers */
} grids[] = {{1, 1, 1, 1, false, false}, {2, 1, 1, 1, false, false}, {4, 1, 1, 1, false, false},
             {1, 2, 1, 1, false, false}, {1, 1, 2, 1, false, false}, {1, 1, 4, 1, false, false},
             {1, 1, 2, 2, false, false}, {2, 1, 2, 1, false, false}, {2, 2, 1, 1, false, false},
             {1, 2, 2, 2, false, false}, {1, 1, 2, 5, true, true},   {2, 1, 3, 3, true, false},
             {1, 1, 3, 3, false, true}};
enum { GRIDS = sizeof grids / sizeof *grids };

static const char *const families[] = {NULL, "llama", "qwen3"}; /* NULL: GPT-2 */
static const struct peft_config adapters[] = {
    {.type = PEFT_LORA, .r = 4, .lora_alpha = 8, .loraplus_lr_ratio = 1},
    {.type = PEFT_IA3, .loraplus_lr_ratio = 1},
};

static void set_recompute(enum recomputing how, bool is_partial, struct run_config *config) {
    config->parallel.recompute_granularity = how == KEEP   ? GRANULARITY_NONE
                                             : how < BLOCK ? GRANULARITY_SELECTIVE
                                                           : GRANULARITY_FULL;
    config->parallel.recompute_method = how == BLOCK ? METHOD_BLOCK : METHOD_UNIFORM;
    config->parallel.recompute_num_layers = 1;
    config->parallel.recompute_modules = selected[how];
    config->parallel.num_microbatches_with_partial_activation_checkpoints = is_partial;
}

static void set_family(const char *family, struct model_config *model) {
    if (!family)
        return;
    tiny_model_become(model, family, 2, CHANNELS);
    model->hidden_dropout = model->embedding_dropout = 0;
}

/* Makes the run of a grid and a recomputation; their numbers decide the rest, so that every two meet. */
static struct train_run make_layout(const char **prefix, int grid, enum recomputing how) {
    int number = grid * RECOMPUTES + (int)how;
    bool is_bf16 = (grid + (int)how / 2) % 2 && test_has_bf16();
    struct train_run run = make_run(prefix, is_bf16 ? PRECISION_BF16 : PRECISION_FP32, 1 + (grid + (int)how / 2) % 2);
    struct run_config *config = &run.config;
    config->device = test_device();
    config->model.num_layers = LAYERS;
    config->model.num_attention_heads = config->model.num_query_groups = HEADS;
    config->model.kv_channels = CHANNELS;
    set_family(families[(grid + (int)how) % 3], &config->model);
    config->model.untie_embeddings_and_output_weights = number % 4 < 2;
    config->train.global_batch_size = BATCH;
    config->parallel.threads_per_rank = 1;
    config->parallel.tensor_model_parallel_size = grids[grid].tensor;
    config->parallel.pipeline_model_parallel_size = grids[grid].pipeline;
    config->parallel.virtual_pipeline_model_parallel_size = grids[grid].chunks;
    config->parallel.account_for_embedding_in_pipeline_split = grids[grid].counts_embedding;
    config->parallel.account_for_loss_in_pipeline_split = grids[grid].counts_loss;
    config->parallel.sequence_parallel = grids[grid].tensor > 1 && (grid + (int)how) % 2;
    config->parallel.use_distributed_optimizer = grids[grid].data > 1 && (grid + (int)how / 2) % 2;
    set_recompute(how, how == BLOCK && grids[grid].pipeline > 1, config);
    test_ok(run_config_resolve(config));
    return run;
}

static void plan(const struct train_run *run, int ranks, int number, struct train_plan *planned) {
    const struct device_facts facts = {.kind = run->config.device, .threads = 1};
    struct device *sketch;
    test_ok(device_sketch(&facts, &sketch));
    test_ok(train_plan_rank(run, ranks, number, sketch, planned, NULL));
    device_close(sketch);
}

static int expect(const char *part, size_t planned, size_t allocated) {
    return planned == allocated
               ? STATUS_OK
               : status_fail(STATUS_INVALID, "%s: %zu bytes are planned, %zu allocated", part, planned, allocated);
}

static int compare(struct comm *world, struct trainer *trainer, void *context) {
    struct train_plan planned;
    (void)trainer;
    plan(context, world->size, world->rank, &planned);
    const struct {
        const char *name;
        size_t planned;
        enum part part;
    } parts[] = {
        {"weights", planned.weights, PART_WEIGHTS},       {"gradients", planned.gradients, PART_GRADIENTS},
        {"optimizer", planned.optimizer, PART_OPTIMIZER}, {"activations", planned.activations, PART_ACTIVATIONS},
        {"workspace", planned.workspace, PART_WORKSPACE}, {"else", 0, PART_OTHER}};
    int status = STATUS_OK;
    for (size_t i = 0; i < sizeof parts / sizeof *parts && !status; i++)
        status = expect(parts[i].name, parts[i].planned, taken_bytes(parts[i].part));
    return status;
}

static int run_rank(struct comm *world, void *context) {
    return use_trainer(context, world, compare, context);
}

static void what_is_allocated_is_what_was_planned(void **state) {
    (void)state;
    char *prefix = write_text();
    for (int grid = 0; grid < GRIDS; grid++)
        for (int how = 0; how < RECOMPUTES; how++) {
            struct train_run run = make_layout((const char **)&prefix, grid, (enum recomputing)how);
            const struct tuner_adapters adapter = {.configs = &adapters[how % 2], .count = 1};
            const struct tuner tuner = tuner_of_adapters(&adapter);
            if ((grid + how) % 4 == 3)
                run.tuner = &tuner;
            print_message("layout %d: tensor %d, data %d, stages %d of %d chunks, recomputation %d, %s%s\n",
                          grid * RECOMPUTES + how, grids[grid].tensor, grids[grid].data, grids[grid].pipeline,
                          grids[grid].chunks, how, precision_names[run.config.train.precision],
                          run.tuner ? ", frozen" : "");
            test_ok(comm_local_run(grids[grid].tensor * grids[grid].data * grids[grid].pipeline, run_rank, &run));
        }
    free(prefix);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_allocated_is_what_was_planned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
