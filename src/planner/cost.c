/* A step: the schedules of all stages, the sums of gradients, and the update. */
#include "cost-internal.h"

#include "parallel/layout.h"
#include "train/plan.h"

#include <math.h>

/* The seconds of a chunk. */
struct chunk {
    int64_t layers;
    double elements; /* that train */
    double weights;  /* bytes */
    struct cost_seconds forward, backward;
    struct cost_seconds backward_again; /* of micro batches that recompute all layers */
};

struct stage {
    double elements;
    double first_forward;      /* of the first micro batch */
    struct cost_seconds saved; /* by a backward right after its forward, whose activations are still there */
};

struct layout {
    const struct train_run *run;
    const struct cost_work *work;
    const struct cluster *cluster;
    struct rank_grid grid;
    struct pipeline_shape shape;
    struct cost_units units;
    int partial;          /* stashes from this number on recompute all layers; 0: none do */
    struct chunk *chunks; /* [stages][chunks] */
    struct stage *stages;
    bool has_messages;
};

static const struct chunk *chunk_at(const struct layout *layout, int stage, int chunk) {
    return &layout->chunks[stage * layout->shape.chunks + chunk];
}

static bool is_megatron(const struct layout *layout) {
    return layout->cluster->train == CLUSTER_TRAINS_MEGATRON_2022;
}

int64_t cost_recomputed_layers(const struct run_config *config, int64_t layers) {
    int64_t first = config->parallel.recompute_num_layers;
    if (config->parallel.recompute_granularity != GRANULARITY_FULL)
        return 0;
    return config->parallel.recompute_method == METHOD_BLOCK && first < layers ? first : layers;
}

/* ---- durations ---- */

static void fill_chunk(struct layout *layout, int stage, int number) {
    const struct cost_units *units = &layout->units;
    struct chunk *chunk = &layout->chunks[stage * layout->shape.chunks + number];
    int last = layout->shape.stages * layout->shape.chunks - 1, place = number * layout->shape.stages + stage;
    double again = (double)cost_recomputed_layers(&layout->run->config, chunk->layers);
    double plain = (double)chunk->layers - again;
    cost_add(&chunk->forward, &units->forward[COST_LAYER], (double)chunk->layers);
    cost_add(&chunk->backward, &units->backward[COST_LAYER], plain);
    cost_add(&chunk->backward, &units->backward[COST_LAYER_AGAIN], again);
    cost_add(&chunk->backward_again, &units->backward[COST_LAYER_AGAIN], (double)chunk->layers);
    chunk->elements = (double)chunk->layers * layout->work->elements[COST_LAYER];
    chunk->weights = (double)chunk->layers * layout->work->weights[COST_LAYER];
    for (int end = 0; end < 2; end++) {
        enum cost_unit unit = end ? COST_HEAD : COST_EMBEDDING;
        if (place != (end ? last : 0))
            continue;
        cost_add(&chunk->forward, &units->forward[unit], 1);
        cost_add(&chunk->backward, &units->backward[unit], 1);
        cost_add(&chunk->backward_again, &units->backward[unit], 1);
        chunk->elements += layout->work->elements[unit];
        chunk->weights += layout->work->weights[unit];
    }
    if (last == 0 && !layout->run->tuner &&
        !layout->run->config.model.untie_embeddings_and_output_weights) /* one table, not two */
        chunk->elements -= (double)(layout->run->config.model.vocab_size * layout->run->config.model.hidden_size) /
                           layout->grid.tensor;
    if (place == last && again > 0 && !is_megatron(layout)) {
        cost_add(&layout->stages[stage].saved, &units->backward[COST_LAYER_AGAIN], 1);
        cost_add(&layout->stages[stage].saved, &units->backward[COST_LAYER], -1);
    }
    layout->stages[stage].elements += chunk->elements;
    layout->stages[stage].first_forward += number == 0 ? cost_total(&chunk->forward) : 0;
}

/* Returns a step's seconds by cause. */
static struct cost_seconds step_seconds(const struct layout *layout, int stage, const struct pipeline_step *step) {
    const struct chunk *chunk = chunk_at(layout, stage, step->chunk);
    if (step->kind == PIPELINE_FORWARD)
        return chunk->forward;
    bool is_again = layout->partial > 0 && step->stash >= layout->partial;
    struct cost_seconds seconds = is_again ? chunk->backward_again : chunk->backward;
    if (stage == layout->shape.stages - 1 && step->chunk == layout->shape.chunks - 1)
        cost_add(&seconds, &layout->stages[stage].saved, -1);
    return seconds;
}

static double step_time(const void *context, int stage, const struct pipeline_step *step) {
    struct cost_seconds seconds = step_seconds(context, stage, step);
    return cost_total(&seconds);
}

/* Stages are numbered along the nodes: see parallel/grid.h. */
static double message_time(const void *context, int from, int to) {
    const struct layout *layout = context;
    int64_t stride = (int64_t)layout->grid.tensor * layout->grid.data, per_node = layout->cluster->per_node;
    if (!layout->has_messages)
        return 0;
    struct cost_link link = cost_link(layout->cluster, from * stride / per_node == to * stride / per_node);
    return layout->work->message_bytes / link.bandwidth + link.latency;
}

/* Speeds are those of a device while all devices of its node work. Where they share processors, fewer working devices
 * are faster, until each has a processor. Stages are spread evenly over the nodes. */
static double rate(const void *context, int working) {
    const struct layout *layout = context;
    const struct rank_grid *grid = &layout->grid;
    double devices = (double)layout->cluster->per_node, processors = (double)layout->cluster->processors;
    double ranks = (double)grid->tensor * grid->data, all = ranks * grid->pipeline;
    double asked = working * ranks * (all > devices ? devices / all : 1);
    return devices / (asked > processors ? asked : processors);
}

static bool are_shared(const struct layout *layout) {
    return layout->cluster->processors < layout->cluster->per_node;
}

static struct walk_times times_of(const struct layout *layout) {
    return (struct walk_times){
        .step = step_time, .message = message_time, .rate = are_shared(layout) ? rate : NULL, .context = layout};
}

static int fill(struct layout *layout) {
    struct pipeline_split split = train_pipeline_split(&layout->run->config, &layout->grid);
    int status = pipeline_split_check(&split);
    for (int stage = 0; stage < layout->shape.stages; stage++)
        for (int chunk = 0; chunk < layout->shape.chunks && !status; chunk++) {
            int64_t first;
            status = pipeline_layers(&split, stage, chunk, &first,
                                     &layout->chunks[stage * layout->shape.chunks + chunk].layers);
            if (!status)
                fill_chunk(layout, stage, chunk);
        }
    return status;
}

/* ---- gradients and weights of the data ranks ---- */

/* Returns the seconds of a ring of the data ranks. Where it leaves a node it has one link, however many members it has
 * there. */
static double data_ring(const struct layout *layout, double bytes, double passes) {
    const struct cluster *cluster = layout->cluster;
    bool is_within = (int64_t)layout->grid.tensor * layout->grid.data <= cluster->per_node;
    struct cost_link link = cost_link(cluster, is_within);
    if (!is_within && !is_megatron(layout))
        link.bandwidth = fmin(link.bandwidth * fmax((double)cluster->per_node / layout->grid.tensor, 1),
                              cluster->node_bandwidth.value);
    return cost_ring(bytes, layout->grid.data, passes, link);
}

static enum sharding sharding_of(const struct layout *layout) {
    return layout->grid.data > 1 ? run_sharding(&layout->run->config) : SHARDING_NONE;
}

/* Returns when the sums of a stage's gradients end. Those of a layer start when its last backward has made them, or
 * with shares of gradients each backward, one after the other. Without overlap, all start at the end. */
static double sums_end(const struct layout *layout, const struct walk *walk, int stage, bool overlaps, double passes) {
    double end = 0, last = walk_event_at(walk, stage, walk->steps - 1)->end;
    for (int i = 0; i < walk->steps && overlaps; i++) {
        const struct walk_event *event = walk_event_at(walk, stage, i);
        const struct chunk *chunk = chunk_at(layout, stage, event->step.chunk);
        bool is_final =
            event->step.kind == PIPELINE_BACKWARD &&
            (sharding_of(layout) >= SHARDING_OPTIM_GRADS || event->step.micro_batch + 1 == walk->shape.micro_batches);
        double parts = (double)(chunk->layers > 0 ? chunk->layers : 1);
        double sum = data_ring(layout, chunk->elements / parts * sizeof(float), passes);
        for (int64_t part = 1; part <= (int64_t)parts && is_final; part++) {
            double ready = event->start + (event->end - event->start) * (double)part / parts;
            end = (end > ready ? end : ready) + sum;
        }
    }
    if (!overlaps)
        end = last + data_ring(layout, layout->stages[stage].elements * sizeof(float), passes) *
                         (sharding_of(layout) >= SHARDING_OPTIM_GRADS ? walk->shape.micro_batches : 1);
    return end > last ? end : last;
}

/* Returns the seconds for which a stage waits for weights that it has only shares of. Each step gathers the layers of
 * its chunk, while it computes. */
static double gather_seconds(const struct layout *layout, const struct walk *walk, int stage) {
    bool overlaps = layout->run->config.parallel.overlap_param_gather;
    double hides = layout->cluster->achieved[CLUSTER_SUMS_HIDDEN].value, seconds = 0;
    for (int i = 0; i < walk->steps && sharding_of(layout) == SHARDING_OPTIM_GRADS_PARAMS; i++) {
        const struct walk_event *event = walk_event_at(walk, stage, i);
        double gather = data_ring(layout, chunk_at(layout, stage, event->step.chunk)->weights, 1);
        double hidden = overlaps ? hides * (event->end - event->start) : 0;
        seconds += gather > hidden ? gather - hidden : 0;
    }
    return seconds;
}

/* Returns the seconds for which a stage waits for the data ranks, and for the tied table's sum. It waits for sums, for
 * the weights of other ranks' updates, and for weights of which it has shares. */
static double gradient_seconds(const struct layout *layout, const struct walk *walk, int stage) {
    const struct run_config *config = &layout->run->config;
    bool is_sharded = sharding_of(layout) >= SHARDING_OPTIM;
    bool overlaps = is_megatron(layout) ? layout->shape.stages == 1 : config->parallel.overlap_grad_reduce;
    double last = walk_event_at(walk, stage, walk->steps - 1)->end;
    double hides = layout->cluster->achieved[CLUSTER_SUMS_HIDDEN].value, seconds = 0;
    for (int is_hidden = 0; is_hidden < 2 && layout->grid.data > 1; is_hidden++)
        seconds += (is_hidden ? hides : 1 - hides) *
                   (sums_end(layout, walk, stage, is_hidden && overlaps, is_sharded ? 1 : 2) - last);
    if (is_sharded && sharding_of(layout) < SHARDING_OPTIM_GRADS_PARAMS) {
        double bytes = layout->stages[stage].elements * (double)dtype_bytes(layout->work->dtype);
        double gather = data_ring(layout, bytes, 1);
        double hidden = config->parallel.overlap_param_gather ? hides * layout->stages[stage].first_forward : 0;
        seconds += gather > hidden ? gather - hidden : 0;
    }
    seconds += gather_seconds(layout, walk, stage);
    bool has_table = stage == 0 || stage == layout->shape.stages - 1;
    if (layout->shape.stages > 1 && has_table && !config->model.untie_embeddings_and_output_weights &&
        !layout->run->tuner)
        seconds += cost_ring((double)(config->model.vocab_size * config->model.hidden_size) / layout->grid.tensor *
                                 sizeof(float),
                             2, 2, cost_link(layout->cluster, false));
    return seconds;
}

static double update_seconds(const struct layout *layout, int stage) {
    const struct cluster *cluster = layout->cluster;
    int shards = sharding_of(layout) >= SHARDING_OPTIM ? layout->grid.data : 1;
    int64_t elements = (int64_t)(layout->stages[stage].elements / shards);
    const struct adamw update = {.elements = elements, .weights_type = layout->work->dtype};
    const struct sum_of_squares squares = {.count = elements};
    const struct zero_ranges cleared = {.elements = (int64_t)layout->stages[stage].elements};
    double bytes = adamw_work(&update).bytes + sum_of_squares_work(&squares).bytes;
    double seconds = cost_bytes_seconds(cluster, layout->work->precision, PHASE_OPTIMIZER, bytes);
    if (cluster->speed_count) /* else a part of the constants */
        seconds += cost_bytes_seconds(cluster, layout->work->precision, PHASE_REST, zero_ranges_work(&cleared).bytes);
    return seconds + cluster->achieved[CLUSTER_STEP].value;
}

/* ---- the step ---- */

/* Finds the stage that ends last, and the seconds of its work by cause. */
static void find_last(struct layout *layout, const struct walk *walk, struct cost_step *step) {
    double most = 0;
    for (int stage = 0; stage < walk->shape.stages; stage++) {
        double end = walk_event_at(walk, stage, walk->steps - 1)->end;
        double gradients = gradient_seconds(layout, walk, stage), update = update_seconds(layout, stage);
        if (end + gradients + update <= most)
            continue;
        most = end + gradients + update;
        *step = (struct cost_step){.seconds = most,
                                   .gradients = gradients,
                                   .optimizer = update,
                                   .stage = stage,
                                   .bubble = end - walk->busy[stage]};
    }
    for (int i = 0; i < walk->steps; i++) {
        const struct walk_event *event = walk_event_at(walk, step->stage, i);
        struct cost_seconds seconds = step_seconds(layout, step->stage, &event->step);
        double total = cost_total(&seconds);
        cost_add(&step->work, &seconds, are_shared(layout) && total > 0 ? (event->end - event->start) / total : 1);
    }
}

/* Divides the bubble: a walk with free messages shows the part that messages cause. */
static int divide_bubble(struct layout *layout, const struct walk *walk, struct cost_step *step) {
    const struct walk_times times = times_of(layout);
    struct walk without;
    if (walk->shape.stages == 1)
        return STATUS_OK;
    layout->has_messages = false;
    int status = walk_run(&layout->shape, &times, &without);
    layout->has_messages = true;
    TRY(status);
    int last = walk->steps - 1;
    step->stages = walk_event_at(walk, step->stage, last)->end - walk_event_at(&without, step->stage, last)->end;
    step->bubble -= step->stages;
    walk_free(&without);
    return STATUS_OK;
}

static int walk_layout(struct layout *layout, struct cost_step *step, struct walk *walk) {
    const struct walk_times times = times_of(layout);
    struct walk own;
    int status = walk_run(&layout->shape, &times, &own);
    TRY(status);
    find_last(layout, &own, step);
    if (walk)
        status = divide_bubble(layout, &own, step);
    if (walk && !status)
        *walk = own;
    else
        walk_free(&own);
    return status;
}

/* Finds all durations. The caller frees chunks and stages, even after a failure. */
static int open_layout(const struct train_run *run, int ranks, const struct cost_work *work,
                       const struct cluster *cluster, struct layout *layout) {
    const struct run_config *config = &run->config;
    *layout = (struct layout){.run = run, .work = work, .cluster = cluster, .has_messages = true};
    TRY(train_plan_grid(run, ranks, &layout->grid, &layout->shape));
    bool selects = is_megatron(layout) && config->parallel.recompute_granularity == GRANULARITY_SELECTIVE;
    cost_units_find(work, cluster, selects, &layout->units);
    layout->partial = (int)config->parallel.num_microbatches_with_partial_activation_checkpoints;
    layout->chunks = calloc((size_t)(layout->shape.stages * layout->shape.chunks), sizeof *layout->chunks);
    layout->stages = calloc((size_t)layout->shape.stages, sizeof *layout->stages);
    return layout->chunks && layout->stages ? fill(layout) : status_no_memory();
}

int cost_step(const struct train_run *run, int ranks, const struct cost_work *work, const struct cluster *cluster,
              struct cost_step *step, struct walk *walk) {
    struct layout layout;
    int status = open_layout(run, ranks, work, cluster, &layout);
    THEN(status, walk_layout(&layout, step, walk));
    free(layout.chunks);
    free(layout.stages);
    return status;
}

int cost_least(const struct train_run *run, int ranks, const struct cost_work *work, const struct cluster *cluster,
               double *seconds) {
    struct layout layout;
    int status = open_layout(run, ranks, work, cluster, &layout);
    *seconds = 0;
    for (int stage = 0; stage < layout.shape.stages && !status; stage++) {
        double micro_batch = -cost_total(&layout.stages[stage].saved);
        for (int chunk = 0; chunk < layout.shape.chunks; chunk++)
            micro_batch += cost_total(&chunk_at(&layout, stage, chunk)->forward) +
                           cost_total(&chunk_at(&layout, stage, chunk)->backward);
        double fastest = are_shared(&layout) ? rate(&layout, 1) : 1;
        double least = micro_batch * layout.shape.micro_batches / fastest + update_seconds(&layout, stage);
        *seconds = least > *seconds ? least : *seconds;
    }
    free(layout.chunks);
    free(layout.stages);
    return status;
}
