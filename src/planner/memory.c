/* Memory of a run: plans of stages, a quick bound, and the formula of the stack of 2022. */
#include "planner/memory.h"

#include "parallel/layout.h"
#include "parallel/pipeline.h"
#include "train/plan.h"

/* ---- this program ---- */

static int plan_stage(const struct train_run *run, int ranks, const struct rank_grid *grid, int stage,
                      const struct cluster *cluster, struct plan_memory *memory) {
    struct train_plan plan;
    TRY(train_plan_rank(run, ranks, stage * grid->tensor * grid->data, cluster->device, &plan, NULL));
    struct train_bytes bytes = train_plan_bytes(&plan);
    *memory = (struct plan_memory){.stage = stage,
                                   .weights = plan.weights,
                                   .gradients = plan.gradients,
                                   .optimizer = plan.optimizer,
                                   .activations = plan.activations,
                                   .workspace = plan.workspace,
                                   .device = bytes.device,
                                   .host = bytes.host};
    return STATUS_OK;
}

/* ---- the stack of 2022 ---- */

double memory_layer_2022(const struct run_config *run) {
    double t = (double)run->parallel.tensor_model_parallel_size, s = (double)run->data.seq_length;
    double h = (double)run->model.hidden_size, a = (double)run->model.num_attention_heads;
    double sbh = s * (double)run->train.micro_batch_size * h;
    bool is_cut = run->parallel.sequence_parallel && t > 1;
    double scores = run->parallel.recompute_granularity == GRANULARITY_SELECTIVE ? 0 : 5 * a * s / (h * t);
    if (run->parallel.recompute_granularity == GRANULARITY_FULL)
        return 2 * sbh;
    return sbh * ((is_cut ? 34 / t : 10 + 24 / t) + scores);
}

/* Returns how many micro batches a stage holds, in chunks. */
static int held_chunks(const struct pipeline_shape *shape, int stage) {
    int stashes;
    return pipeline_stashes(shape, stage, &stashes) ? 0 : stashes;
}

static void formula_stage(const struct train_run *run, const struct rank_grid *grid, const struct pipeline_shape *shape,
                          const struct cost_work *work, int stage, struct plan_memory *memory) {
    const struct run_config *c = &run->config;
    int last = shape->stages - 1;
    double layers = (double)c->model.num_layers / shape->stages, b = (double)c->train.micro_batch_size;
    double sbh = (double)c->data.seq_length * b * (double)c->model.hidden_size;
    double elements = layers * work->elements[COST_LAYER] + (stage == 0 ? work->elements[COST_EMBEDDING] : 0) +
                      (stage == last ? work->elements[COST_HEAD] : 0);
    if (last == 0 && !c->model.untie_embeddings_and_output_weights)
        elements -= (double)(c->model.vocab_size * c->model.hidden_size) / grid->tensor;
    double shards = run_sharding(c) >= SHARDING_OPTIM ? grid->data : 1;
    double kept = memory_layer_2022(c) * layers / shape->chunks * held_chunks(shape, stage);
    kept += stage == 0 ? sbh * shape->stages / grid->tensor : 0; /* the embedding's dropout */
    kept += stage == last
                ? (4 * sbh + 4 * sbh / (double)c->model.hidden_size * (double)c->model.vocab_size) / grid->tensor
                : 0; /* final norm, head's input, logits in fp32 */
    *memory = (struct plan_memory){.stage = stage,
                                   .weights = (size_t)(2 * elements),
                                   .gradients = (size_t)(4 * elements),
                                   .optimizer = (size_t)(12 * elements / shards),
                                   .activations = (size_t)kept};
    memory->device = memory->weights + memory->gradients + memory->optimizer + memory->activations;
}

int memory_stage(const struct train_run *run, int ranks, const struct cost_work *work, const struct cluster *cluster,
                 int stage, struct plan_memory *memory) {
    struct rank_grid grid;
    struct pipeline_shape shape;
    int status = train_plan_grid(run, ranks, &grid, &shape);
    if (!status && cluster->train == CLUSTER_TRAINS_CAMBIUM)
        status = plan_stage(run, ranks, &grid, stage, cluster, memory);
    else if (!status)
        formula_stage(run, &grid, &shape, work, stage, memory);
    return status;
}

int memory_find(const struct train_run *run, int ranks, const struct cost_work *work, const struct cluster *cluster,
                double limit, struct plan_memory *memory) {
    int stages = (int)run->config.parallel.pipeline_model_parallel_size, status = STATUS_OK;
    *memory = (struct plan_memory){0};
    for (int stage = 0; stage < stages && !status; stage++) {
        struct plan_memory of_stage;
        status = memory_stage(run, ranks, work, cluster, stage, &of_stage);
        if (!status && of_stage.device > memory->device)
            *memory = of_stage;
        if (limit > 0 && (double)memory->device > limit)
            return status;
    }
    return status;
}

/* ---- the quick bound ---- */

double memory_layer_state(const struct cost_work *work, enum sharding sharding, int data) {
    double optimizer = (work->dtype == DTYPE_BF16 ? 3 : 2) * sizeof(float), gradients = sizeof(float);
    double states =
        gradients / (sharding >= SHARDING_OPTIM_GRADS ? data : 1) + optimizer / (sharding >= SHARDING_OPTIM ? data : 1);
    return work->weights[COST_LAYER] / (sharding >= SHARDING_OPTIM_GRADS_PARAMS ? data : 1) +
           work->elements[COST_LAYER] * states;
}

double memory_least(const struct train_run *run, const struct rank_grid *grid, const struct pipeline_shape *shape,
                    const struct cost_work *work) {
    const struct run_config *c = &run->config;
    struct pipeline_split split = train_pipeline_split(c, grid);
    int64_t first, count, layers = 0, most = 0; /* each stash has places for the largest chunk */
    for (int chunk = 0; chunk < shape->chunks; chunk++) {
        if (pipeline_layers(&split, 0, chunk, &first, &count))
            return 0;
        layers += count;
        most = count > most ? count : most;
    }
    double again = (double)cost_recomputed_layers(c, most);
    double kept = ((double)most - again) * work->kept[COST_LAYER] + again * work->kept[COST_LAYER_AGAIN];
    if (c->parallel.num_microbatches_with_partial_activation_checkpoints)
        kept = (double)most * work->kept[COST_LAYER_AGAIN];
    return (double)layers * memory_layer_state(work, run_sharding(c), grid->data) + kept * held_chunks(shape, 0);
}
