/* Plans the memory of one rank. Model and optimizer run without data, and nothing is allocated. The trainer fills its
 * plan here; survey.c does the same for all ranks of a run. */
#include "train-internal.h"

#include "parallel/sharded.h"
#include "parallel/unit_slots.h"

/* Returns the bytes of a rank's part of a global batch. */
static size_t batch_bytes(const struct train_run *run, int data_ranks) {
    int64_t rows = run->config.train.global_batch_size / data_ranks * train_sample_rows(&run->config, run->loss);
    return (size_t)rows * (6 * sizeof(int32_t) + sizeof(int64_t)) + stepper_answer_bytes(run, data_ranks);
}

static int measure_data(const struct train_run *run, const struct gpt_data *data, struct gpt_data_bytes *bytes) {
    const struct gpt_data_options options = train_data_options(run);
    *bytes = (struct gpt_data_bytes){0};
    return run->tuning || run->source || !data ? STATUS_OK : gpt_data_measure(data, &options, bytes);
}

/* Adds the elements of units that a global batch gathers, where weights are cut. */
static int add_gathers(const struct train_model *model, const struct pipeline_shape *shape, int stage,
                       int64_t *gathered) {
    const struct param_store *store = base_store(model->base);
    int units = param_map_unit_count(store->map.table), layers = UNIT_SLOTS_OF_LAYERS + store->sharing.kept_units;
    int steps = pipeline_step_count(shape);
    struct pipeline_step *list = calloc((size_t)steps, sizeof *list);
    struct unit_slot *memory = calloc((size_t)unit_slots_count(layers), sizeof *memory);
    struct param_unit *runs = calloc((size_t)units, sizeof *runs);
    int64_t *fetches = calloc((size_t)units, sizeof *fetches);
    struct unit_order order = {0};
    bool is_there = list && memory && runs && fetches;
    int status = status_allocated(is_there);
    if (!status) {
        pipeline_steps(shape, stage, list);
        status = model_unit_order(model->runner, list, steps, false, &order);
    }
    if (!status) {
        unit_slots_count_fetches(units, layers, order.units, order.count, memory, fetches);
        sharded_units(store, runs);
    }
    for (int u = 0; u < units && !status; u++)
        *gathered += fetches[u] * (runs[u].run[0].count + runs[u].run[1].count);
    free(list);
    free(memory);
    free(runs);
    free(fetches);
    free(order.units);
    return status;
}

/* Lists the messages of a global batch among the ranks that share the weights. `trained` elements train. */
static int plan_messages(struct rank *rank, const struct base_options *options, const struct pipeline_shape *shape,
                         const struct train_model *model, int64_t trained) {
    struct gradient_sync_traffic traffic = {.dtype = options->dtype};
    const struct param_store *store = base_store(model->base);
    int times = param_cuts_gradients(store) ? shape->micro_batches : 1, status = STATUS_OK;
    if (options->layer_shards > 1) {
        traffic.scattered = trained * times;
        traffic.gathered = sharded_cuts_weights(store) && options->trains ? 0 : trained;
    } else {
        traffic.reduced = trained;
    }
    if (sharded_cuts_weights(store))
        status = add_gathers(model, shape, rank->place.pipeline, &traffic.gathered);
    return status ? status : gradient_sync_plan(rank, &traffic);
}

/* A frozen weight has no gradient, which saves 2 of the 2 operations forward and 4 backward. */
static const double frozen_share = 4.0 / 6;

/* Sketches base, tuner and runner. A base in few bits takes its encodings from its files. A base that is there already
 * is another's. */
static int sketch(const struct train_run *run, struct rank *rank, struct pipeline_shape *shape,
                  struct model_options *options, struct model_plan *plan, struct train_model *model) {
    bool is_lent = model->base;
    if (run->tuner && !is_lent && (run->load_in || run->is_quantised)) {
        model->files.config = run->config.model; /* of a model without files */
        TRY(*run->model_directory ? pretrained_open(run->model_directory, NULL, &model->files) : STATUS_OK);
        TRY(pretrained_encodings_open(&model->files, run->load_in, &model->encodings));
    }
    TRY(train_model_options(run, rank, model, options, shape));
    if (run->tuner) {
        TRY(run->tuner->open(run->tuner->description, options, rank, &model->tuner));
        /* its hooks decide which activations are kept */
        TRY(train_model_options(run, rank, model, options, shape));
    }
    options->rank = rank;
    TRY(is_lent ? STATUS_OK : base_sketch(&options->base, rank, plan, &model->base));
    return training_sketch(options, model->base, plan, &model->runner);
}

void train_close_files(struct train_model *model) {
    pretrained_encodings_close(&model->encodings);
    pretrained_close(&model->files);
}

void train_model_close(const struct train_run *run, struct train_model *model) {
    training_close(model->runner);
    base_close(model->base);
    if (model->tuner.self)
        run->tuner->close(model->tuner.self);
    train_close_files(model);
    *model = (struct train_model){0};
}

int train_plan_fill(const struct train_run *run, struct rank *rank, const struct gpt_data *data,
                    struct train_model *model, struct train_plan *plan) {
    struct model_options options;
    struct pipeline_shape shape;
    struct model_plan of_model = {0};
    struct gpt_data_bytes of_data;
    rank->is_sequence_parallel = run->config.parallel.sequence_parallel && rank->grid.tensor > 1;
    TRY(sketch(run, rank, &shape, &options, &of_model, model));
    TRY(measure_data(run, data, &of_data));
    const struct param_store *adapter = run->tuner ? model->tuner.store : NULL;
    const struct base_options *base = &options.base;
    int64_t trained = adapter ? adapter->map.flat_elements : of_model.flat_elements;
    int64_t message = (int64_t)(of_model.stream_bytes / dtype_bytes(base->dtype));
    int shards = base->layer_shards ? base->layer_shards : 1;
    TRY(pipeline_plan(rank, &shape, message, base->dtype));
    TRY(plan_messages(rank, base, &shape, model, trained));
    TRY(optimizer_plan(rank, trained, shards, base->dtype));
    double share = adapter ? frozen_share : 1;
    *plan = (struct train_plan){
        .ranks = rank_grid_size(&rank->grid),
        .grid = rank->grid,
        .place = rank->place,
        .device_memory = device_memory(rank->device),
        .weights = of_model.weights + (adapter ? param_weight_bytes(adapter) : 0),
        .gradients = of_model.gradients + (adapter ? param_gradient_bytes(adapter) : 0),
        .optimizer =
            optimizer_bytes(trained / shards, adapter ? adapter->map.table->count : of_model.table_rows, base->dtype),
        .activations = of_model.activations + pipeline_bytes(&shape, rank->place.pipeline, of_model.stream_bytes) +
                       (adapter ? model->tuner.bytes : 0),
        .workspace = work_scratch(&rank->work),
        .data = batch_bytes(run, rank->grid.data) + run->tuning_bytes + of_data.maps + of_data.process,
        .of_data = of_data,
        .parameters = of_model.all_parameters + (adapter ? param_table_elements(adapter->map.table, false) : 0),
        .trainable_parameters = adapter ? param_table_elements(adapter->map.table, true) : of_model.parameters,
        .flops_per_token = model_flops_per_token(&run->config.model, run->config.data.seq_length) * share,
        .head_flops_per_token = model_head_flops_per_token(&run->config.model) * share,
    };
    pretrained_encodings_text(&model->encodings, rank->device, base->dtype, plan->encodings);
    return train_saver_bytes(run, rank, &model->tuner, &plan->checkpoint);
}

struct train_bytes train_plan_bytes(const struct train_plan *plan) {
    return (struct train_bytes){.device = plan->weights + plan->gradients + plan->optimizer + plan->activations +
                                          plan->workspace + plan->checkpoint.device,
                                .host = plan->data + plan->checkpoint.host};
}

size_t train_plan_total(const struct train_plan *plan) {
    struct train_bytes bytes = train_plan_bytes(plan);
    return bytes.device + bytes.host;
}

size_t train_plan_of_host(const struct train_plan *plan) {
    return plan->here.host + (plan->device_memory ? 0 : plan->here.device) +
           plan->program * (size_t)plan->processes_here;
}

/* The rows are in memory already, and in the plan of each rank. */
void train_plan_add_program(const struct train_run *run, const struct comm *world, struct train_plan *plan) {
    size_t program = memory_of_program(train_plan_total(plan)), data = run->tuning_bytes;
    int ranks = world ? 1 : plan->ranks_here;
    plan->program = program > data ? program - data : 0;
    const struct model_config *model = &run->config.model;
    int64_t rows = model->vocab_size / plan->grid.tensor;
    int64_t widest = rows > model->ffn_hidden_size ? rows : model->ffn_hidden_size;
    plan->program += (size_t)ranks * rank_program_bytes(plan->threads, widest, model->hidden_size);
    plan->processes_here = plan->ranks_here / ranks;
}
