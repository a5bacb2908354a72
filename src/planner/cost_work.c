/* Plans small models for the work of a layer, of the embedding and of the head. All of them have two stages: the first
 * has the embedding and some layers, the last has a layer and the head. Differences of their lists are the units. */
#include "cost-internal.h"

#include "train/plan.h"

static const struct {
    bool is_last, recomputes;
    bool has_more; /* it has `more` layers more */
} small[COST_LISTS] = {
    [COST_FIRST] = {false, false, false}, [COST_FIRST_MORE] = {false, false, true}, [COST_LAST] = {true, false, false},
    [COST_AGAIN] = {false, true, false},  [COST_AGAIN_MORE] = {false, true, true},
};

/* Returns the run with a model of so few layers that each of two stages has `layers`. */
static struct train_run small_run(const struct train_run *run, const struct cluster *cluster, int64_t layers,
                                  bool recomputes) {
    struct train_run made = *run;
    struct run_config *config = &made.config;
    config->model.num_layers = 2 * layers;
    config->checkpoint.save = NULL;
    config->train.global_batch_size = config->train.micro_batch_size;
    config->parallel.pipeline_model_parallel_size = 2;
    config->parallel.virtual_pipeline_model_parallel_size = 1;
    config->parallel.microbatch_group_size_per_vp_stage = 0;
    config->parallel.decoder_first_pipeline_num_layers = 0;
    config->parallel.decoder_last_pipeline_num_layers = 0;
    config->parallel.account_for_embedding_in_pipeline_split = false;
    config->parallel.account_for_loss_in_pipeline_split = false;
    config->parallel.use_distributed_optimizer = false;
    config->parallel.data_parallel_sharding_strategy = SHARDING_NONE;
    config->parallel.num_microbatches_with_partial_activation_checkpoints = 0;
    bool is_selective = config->parallel.recompute_granularity == GRANULARITY_SELECTIVE &&
                        cluster->train == CLUSTER_TRAINS_CAMBIUM; /* of 2022: attention, see cost_unit.c */
    config->parallel.recompute_granularity = recomputes     ? GRANULARITY_FULL
                                             : is_selective ? GRANULARITY_SELECTIVE
                                                            : GRANULARITY_NONE;
    config->parallel.recompute_method = METHOD_UNIFORM;
    config->parallel.recompute_num_layers = 1;
    return made;
}

/* Divides figures of the stages into those of the units; COST_FIRST_MORE has `more` layers more. */
static void divide(const double lists[COST_LISTS], double more, double units[COST_UNITS]) {
    units[COST_LAYER] = units[COST_LAYER_AGAIN] = (lists[COST_FIRST_MORE] - lists[COST_FIRST]) / more;
    units[COST_EMBEDDING] = lists[COST_FIRST] - units[COST_LAYER];
    units[COST_HEAD] = lists[COST_LAST] - units[COST_LAYER];
}

/* Stores the bytes of the weights that data ranks may share: casts to FP8 are not among them. */
static int find_weights(const struct train_run *run, int rank, const struct cluster *cluster, double *bytes) {
    struct train_run made = *run;
    struct train_plan plan;
    made.config.train.precision = PRECISION_BF16;
    int ranks = (int)made.config.parallel.tensor_model_parallel_size * 2;
    int status = train_plan_rank(&made, ranks, rank, cluster->device, &plan, NULL);
    *bytes = status ? 0 : (double)plan.weights;
    return status;
}

int cost_work_make(const struct train_run *run, const struct cluster *cluster, struct cost_work *work) {
    const struct run_config *config = &run->config;
    enum { MANY = 12 }; /* layers to average over where some have a window; else one is enough */
    int64_t tensor = config->parallel.tensor_model_parallel_size, layers = config->model.num_layers;
    int64_t more = !config->model.window ? 1 : layers < MANY ? layers : MANY;
    double elements[COST_LISTS] = {0}, weights[COST_LISTS] = {0}, kept[COST_LISTS] = {0};
    int precision = config->train.precision;
    int status = cluster_check_precision(cluster, precision);
    *work = (struct cost_work){
        .layers = (double)more,
        .dtype = run_dtype(config),
        .precision = precision,
        .drops_attention = config->model.attention_dropout > 0,
        .seq_length = config->data.seq_length,
        .tensor = (int)tensor,
    };
    for (int i = 0; i < COST_LISTS && !status; i++) {
        struct train_plan plan;
        struct train_run made = small_run(run, cluster, small[i].has_more ? 1 + more : 1, small[i].recomputes);
        int rank = small[i].is_last ? (int)tensor : 0;
        status = train_plan_rank(&made, (int)tensor * 2, rank, cluster->device, &plan, &work->lists[i]);
        elements[i] = status ? 0 : (double)plan.gradients / sizeof(float);
        weights[i] = status ? 0 : (double)plan.weights;
        kept[i] = status ? 0 : (double)plan.activations;
        THEN(status, precision == PRECISION_FP8 ? find_weights(&made, rank, cluster, &weights[i]) : STATUS_OK);
    }
    divide(elements, (double)more, work->elements);
    divide(weights, (double)more, work->weights);
    work->kept[COST_LAYER] = (kept[COST_FIRST_MORE] - kept[COST_FIRST]) / (double)more;
    work->kept[COST_LAYER_AGAIN] = (kept[COST_AGAIN_MORE] - kept[COST_AGAIN]) / (double)more;
    int64_t rows = config->train.micro_batch_size * config->data.seq_length;
    work->message_bytes = (double)(rows * config->model.hidden_size) * (double)dtype_bytes(work->dtype) /
                          (config->parallel.sequence_parallel ? (double)tensor : 1);
    if (status)
        cost_work_free(work);
    return status;
}

void cost_work_free(struct cost_work *work) {
    for (int i = 0; i < COST_LISTS; i++)
        work_free(&work->lists[i]);
}
