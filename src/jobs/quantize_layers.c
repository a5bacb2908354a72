/* Samples go through a model layer by layer. Each layer is a separate stage, which is opened, used and closed.
 *
 * Ranks take the samples in turn. The inputs of a linear are gathered, and each rank adds x x' for its blocks of rows,
 * in the order of the samples. So the sums have the same bits for any number of ranks. */
#include "quantize-internal.h"

#include "tensor/tensor.h"

#include <math.h>

enum { HEAD_ROWS = 64, SUM_ROWS = 256 };

/* The sum over the inputs of the linear at a place. */
struct sums {
    const struct calibration *calibration;
    int64_t width;
    int64_t first_block;  /* the number of its first block of rows in the layer */
    float *device, *host; /* [width, width] */
};

struct calibration {
    const struct pretrained *model;
    const struct param_table *table;
    struct comm *world;
    struct samples samples;
    struct device *device;
    enum dtype dtype;
    void *inputs;   /* [own samples * length, C] of the present layer */
    void *exact;    /* [own samples that are held back * length, C] the same with the model's own weights */
    void *outputs;  /* [length, C] of one sample */
    char *gathered; /* [ranks, length, the widest input of a linear]; NULL: there is one rank */
    /* The stage. */
    int64_t layer; /* below 0: none of a layer */
    struct rank rank;
    struct base *base;
    struct training_runner *runner;
    struct hook_table hooks;
    struct sums sums[ATTACH_PLACE_COUNT];
    bool is_summing;
    int64_t round;              /* the sample of the first rank, while inputs are summed */
    int32_t *positions, *zeros; /* [length] */
    float *weights;             /* [length] zero */
};

/* ---- a stage ---- */

static int64_t fitted(const struct calibration *c) {
    return c->samples.count - c->samples.held_back;
}

/* Adds x x' of a sample [length, width] to this rank's blocks of rows. x is NULL while planning. */
static int add_blocks(const struct sums *sums, struct rank *rank, const char *x) {
    const struct calibration *c = sums->calibration;
    struct matrix_view all = matrix_plain(c->dtype, x, c->samples.length, sums->width);
    for (int64_t row = 0, block = sums->first_block; row < sums->width; row += SUM_ROWS, block++) {
        int64_t rows = sums->width - row < SUM_ROWS ? sums->width - row : SUM_ROWS;
        const void *columns = x ? x + (size_t)row * dtype_bytes(c->dtype) : NULL;
        if (block % c->world->size != c->world->rank)
            continue;
        TRY(rank_multiply(
            rank, PHASE_GEMM,
            &(struct gemm){.a = matrix_strided(c->dtype, columns, all.rows, rows, sums->width),
                           .a_transposed = true,
                           .b = all,
                           .c = matrix_plain(DTYPE_F32, sums->device + row * sums->width, rows, sums->width),
                           .accumulate = true}));
    }
    return STATUS_OK;
}

static int add_inputs(void *self, const struct hook_call *call) {
    const struct sums *sums = self;
    const struct calibration *c = sums->calibration;
    int ranks = call->rank->is_planning ? 1 : c->world->size;
    const char *x = call->x;
    struct comm_data data = {.send = x,
                             .receive = c->gathered,
                             .count = call->rows * sums->width,
                             .dtype = c->dtype,
                             .stream = call->rank->exec.stream};
    if (ranks > 1) {
        TRY(comm_all_gather(c->world, &data));
        x = c->gathered;
    }
    for (int r = 0; r < ranks && c->round + r < fitted(c); r++)
        TRY(add_blocks(sums, call->rank, r ? x + (size_t)(r * data.count) * dtype_bytes(c->dtype) : x));
    return STATUS_OK;
}

static bool is_summing(const void *self) {
    return ((const struct sums *)self)->calibration->is_summing;
}

static int open_sums(struct calibration *c, int64_t layer) {
    int64_t blocks = 0;
    TRY(hook_table_init(&c->hooks, c->model->config.num_layers));
    for (int place = ATTACH_QKV; place <= ATTACH_FC2; place++) {
        struct sums *sums = &c->sums[place];
        int id = model_find_linear(c->table, layer, (enum attach_place)place, false);
        sums->calibration = c;
        sums->width = c->table->rows[id].shape[1];
        sums->first_block = blocks;
        blocks += (sums->width + SUM_ROWS - 1) / SUM_ROWS;
        size_t bytes = (size_t)(sums->width * sums->width) * sizeof(float);
        sums->host = malloc(bytes);
        TRY(status_allocated(sums->host));
        TRY(device_alloc_zeroed(c->device, bytes, (void **)&sums->device));
        TRY(hook_table_add(&c->hooks, layer, (enum attach_place)place,
                           &(struct hook){.self = sums, .forward = add_inputs, .is_active = is_summing}));
    }
    return STATUS_OK;
}

static void close_stage(struct calibration *c) {
    training_close(c->runner);
    base_close(c->base);
    if (c->rank.device)
        rank_close(&c->rank);
    hook_table_free(&c->hooks);
    for (int place = 0; place < ATTACH_PLACE_COUNT; place++) {
        device_free(c->device, c->sums[place].device);
        free(c->sums[place].host);
    }
    memset(c->sums, 0, sizeof c->sums);
    c->hooks = (struct hook_table){0};
    c->runner = NULL;
    c->base = NULL;
    c->rank = (struct rank){0};
}

/* Opens the stage of a layer, or of an end of the model, with the model's weights. */
static int open_stage(struct calibration *c, struct model_chunk chunk, int64_t rows) {
    bool has_layer = chunk.count > 0;
    struct model_plan plan = {0};
    struct model_options options = {.base = {.config = c->model->config,
                                             .dtype = c->dtype,
                                             .chunk_count = 1,
                                             .chunks = {chunk},
                                             .is_after_embedding = has_layer,
                                             .is_before_head = has_layer},
                                    .max_rows = rows,
                                    .hooks = has_layer ? &c->hooks : NULL};
    close_stage(c);
    c->round = 0;
    c->is_summing = true; /* their workspace is planned, too */
    TRY(rank_open_single(&c->rank, c->device, 0));
    TRY(has_layer ? open_sums(c, chunk.first) : STATUS_OK);
    TRY(base_sketch(&options.base, &c->rank, &plan, &c->base));
    TRY(training_sketch(&options, c->base, &plan, &c->runner));
    TRY(base_allocate(c->base));
    TRY(training_allocate(c->runner));
    TRY(rank_allocate_workspace(&c->rank));
    struct param_store *store = base_store(c->base);
    struct ckpt_flat flat = ckpt_flat_weights(store, c->rank.exec.stream);
    flat.threads = device_threads(c->device);
    struct ckpt_array array = ckpt_flat_array(&flat, "", false);
    array.must_be_finite = array.heeds_stop = true;
    return ckpt_read(c->model->tensors, store->map.table, &array, 1);
}

static size_t sample_bytes(const struct calibration *c) {
    return (size_t)(c->samples.length * c->model->config.hidden_size) * dtype_bytes(c->dtype);
}

/* Returns a batch of one segment with `count` rows. `starts` [2] outlives it. */
static struct model_batch batch_of(const struct calibration *c, const int32_t *tokens, int64_t count,
                                   int64_t starts[2]) {
    starts[0] = 0;
    starts[1] = count;
    return (struct model_batch){.rows = count,
                                .tokens = tokens,
                                .positions = c->positions,
                                .sample = (const uint32_t *)c->zeros,
                                .token = (const uint32_t *)c->zeros,
                                .segments = 1,
                                .segment_start = starts,
                                .labels = c->zeros,
                                .loss_weight = c->weights};
}

/* Runs a sample through the stage: from x to y, which may be the same memory. */
static int run_sample(struct calibration *c, int64_t sample, void *x, void *y) {
    int64_t starts[2];
    const struct model_batch batch =
        batch_of(c, c->samples.tokens + sample * c->samples.length, c->samples.length, starts);
    TRY(model_evaluate_chunk(c->runner, &batch, 0, x, c->outputs));
    TRY(y ? stream_copy(c->rank.exec.stream, y, c->outputs, sample_bytes(c)) : STATUS_OK);
    TRY(rank_finish(&c->rank));
    return stop_check("while the samples ran");
}

static char *sample_at(const struct calibration *c, void *of, int64_t sample) {
    return (char *)of + (size_t)sample * sample_bytes(c);
}

/* Returns how many of the first `count` samples are this rank's. */
static int64_t own(const struct calibration *c, int64_t count) {
    return (count - c->world->rank + c->world->size - 1) / c->world->size;
}

/* Runs this rank's sample `number` of them through the stage: from x to y. */
static int run_own(struct calibration *c, int64_t number, void *x, void *y) {
    return run_sample(c, c->world->rank + number * c->world->size, x, y);
}

/* Runs this rank's samples through the stage, in place. */
static int run_samples(struct calibration *c, bool has_inputs) {
    int status = STATUS_OK;
    for (int64_t i = 0; i < own(c, c->samples.count) && !status; i++) {
        char *at = sample_at(c, c->inputs, i);
        status = run_own(c, i, has_inputs ? at : NULL, at);
    }
    return status;
}

/* Takes the sums of all ranks' blocks to the host. */
static int take_sums(struct calibration *c, const struct sums *sums) {
    int64_t count = sums->width * sums->width;
    struct comm_data data = {.send = sums->host, .receive = sums->host, .count = count, .dtype = DTYPE_F32};
    TRY(stream_copy_to_host(c->rank.exec.stream, sums->host, sums->device, (size_t)count * sizeof(float)));
    TRY(rank_finish(&c->rank));
    return comm_all_reduce(c->world, &data, COMM_SUM);
}

/* Opens a layer, sums its inputs, and takes the exact ones of the samples that are held back through it. A rank without
 * a sample in the last round runs its first one again, which nobody adds. */
static int open_layer(struct calibration *c, int64_t layer) {
    TRY(open_stage(c, (struct model_chunk){layer, 1}, c->samples.length));
    for (int64_t i = 0; c->round < fitted(c); i++, c->round += c->world->size) {
        int64_t number = i < own(c, fitted(c)) ? i : 0;
        TRY(run_own(c, number, sample_at(c, c->inputs, number), NULL));
    }
    c->is_summing = false;
    for (int64_t i = own(c, fitted(c)); i < own(c, c->samples.count); i++) {
        char *at = sample_at(c, c->exact, i - own(c, fitted(c)));
        TRY(run_own(c, i, at, at));
    }
    for (int place = ATTACH_QKV; place <= ATTACH_FC2; place++)
        TRY(take_sums(c, &c->sums[place]));
    return STATUS_OK;
}

/* ---- what others call ---- */

/* Allocates what all stages share. */
static int allocate(struct calibration *c) {
    const struct model_widths w = model_widths(&c->model->config, 1);
    size_t length = (size_t)(c->samples.length > HEAD_ROWS ? c->samples.length : HEAD_ROWS), bytes = sample_bytes(c);
    int64_t widest = w.q > w.ffn ? w.q : w.ffn;
    widest = widest > c->model->config.hidden_size ? widest : c->model->config.hidden_size;
    c->positions = calloc(length, sizeof *c->positions);
    c->zeros = calloc(length, sizeof *c->zeros);
    c->weights = calloc(length, sizeof *c->weights);
    TRY(status_allocated(c->positions && c->zeros && c->weights));
    for (size_t i = 0; i < length; i++)
        c->positions[i] = (int32_t)i;
    int64_t samples = own(c, c->samples.count);
    TRY(device_alloc(c->device, (size_t)samples * bytes, &c->inputs));
    TRY(device_alloc(c->device, (size_t)(samples - own(c, fitted(c)) + 1) * bytes, &c->exact));
    TRY(device_alloc(c->device, bytes, &c->outputs));
    if (c->world->size == 1)
        return STATUS_OK;
    return device_alloc(c->device, (size_t)(c->world->size * c->samples.length * widest) * dtype_bytes(c->dtype),
                        (void **)&c->gathered);
}

int calibration_open(const struct quantize_job *job, const struct pretrained *model, const struct param_table *table,
                     struct comm *world, int threads, struct calibration **calibration) {
    struct calibration *c = *calibration = calloc(1, sizeof *c);
    TRY(status_allocated(c));
    c->model = model;
    c->table = table;
    c->world = world;
    c->layer = -1;
    c->dtype = job->precision == 0   ? (model->dtype == DTYPE_BF16 ? DTYPE_BF16 : DTYPE_F32)
               : job->precision == 1 ? DTYPE_F32
                                     : DTYPE_BF16;
    TRY(samples_read(job, model, &c->samples));
    if (world->size > fitted(c))
        return status_fail(STATUS_USAGE, "--ranks %d: --data has %lld samples to divide", world->size,
                           (long long)fitted(c));
    TRY(device_open(NULL, DEVICE_FIRST, threads, &c->device));
    TRY(allocate(c));
    TRY(open_stage(c, (struct model_chunk){0, 0}, c->samples.length));
    TRY(run_samples(c, false));
    int64_t first = own(c, fitted(c)), held_back = own(c, c->samples.count) - first;
    TRY(stream_copy(c->rank.exec.stream, c->exact, sample_at(c, c->inputs, first),
                    (size_t)held_back * sample_bytes(c)));
    return rank_finish(&c->rank);
}

void calibration_close(struct calibration *c) {
    if (!c)
        return;
    close_stage(c);
    device_free(c->device, c->inputs);
    device_free(c->device, c->exact);
    device_free(c->device, c->outputs);
    device_free(c->device, c->gathered);
    device_close(c->device);
    samples_free(&c->samples);
    free(c->positions);
    free(c->zeros);
    free(c->weights);
    free(c);
}

int calibration_reach(struct calibration *c, int64_t layer) {
    while (c->layer < layer) {
        TRY(c->layer >= 0 ? run_samples(c, true) : STATUS_OK);
        TRY(++c->layer < c->model->config.num_layers ? open_layer(c, c->layer) : STATUS_OK);
    }
    return STATUS_OK;
}

const float *calibration_sums(const struct calibration *c, int place) {
    return c->sums[place].host;
}

const struct param_slice *quantized_slice(const struct param *row, const char *module, int *number) {
    for (; *number < row->slice_count; ++*number) {
        const struct param_slice *slice = &row->slices[*number];
        size_t length = (size_t)(strrchr(slice->name, '.') - slice->name), whole = strlen(module);
        if (length <= whole && !strncmp(module + whole - length, slice->name, length))
            return &row->slices[(*number)++];
    }
    return NULL;
}

static float value_at(enum dtype type, const void *values, int64_t i) {
    return type == DTYPE_F32 ? ((const float *)values)[i] : bf16_to_float(((const uint16_t *)values)[i]);
}

static void set_values(enum dtype type, void *to, int64_t first, const float *values, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (type == DTYPE_F32)
            ((float *)to)[first + i] = values[i];
        else
            ((uint16_t *)to)[first + i] = bf16_from_float(values[i]);
}

static int find_param(const struct calibration *c, int param) {
    return param_table_find(base_table(c->base), c->table->rows[param].name, param);
}

int calibration_set(struct calibration *c, const struct quantized_linear *linear, const struct encoded_rows *rows) {
    int id = find_param(c, linear->param);
    float *values = malloc((size_t)linear->columns * sizeof *values);
    TRY(status_allocated(values));
    void *weight = param_borrow_to_write(base_store(c->base), id);
    const struct param_slice *slice;
    for (int s = 0; (slice = quantized_slice(&c->table->rows[linear->param], linear->name, &s));)
        for (int64_t r = 0; r < slice->rows; r++) {
            encoded_row_values(rows, slice->file_start + r, values);
            set_values(c->dtype, weight, (slice->row + r) * linear->columns, values, linear->columns);
        }
    param_return(base_store(c->base), id);
    free(values);
    return STATUS_OK;
}

int calibration_rows(const struct calibration *c, int place, int64_t most, float **rows, int64_t *count) {
    int id = model_find_linear(base_table(c->base), c->layer, (enum attach_place)place, false);
    struct param_store *store = base_store(c->base);
    struct matrix_view weight = param_borrow(store, id);
    int64_t step = (weight.rows + most - 1) / most;
    *count = (weight.rows + step - 1) / step;
    *rows = malloc((size_t)(*count * weight.columns) * sizeof **rows);
    for (int64_t r = 0; *rows && r < *count; r++)
        for (int64_t i = 0; i < weight.columns; i++)
            (*rows)[r * weight.columns + i] = value_at(weight.type, weight.data, r * step * weight.stride + i);
    param_return(store, id);
    return status_allocated(*rows);
}

void calibration_set_vector(struct calibration *c, const struct quantized_vector *vector) {
    int id = find_param(c, vector->param);
    void *to = param_borrow_to_write(base_store(c->base), id);
    const struct param_slice *slice;
    for (int s = 0; (slice = quantized_slice(&c->table->rows[vector->param], vector->name, &s));)
        set_values(c->dtype, to, slice->row, vector->values + slice->file_start, slice->rows);
    param_return(base_store(c->base), id);
}

/* ---- divergence ---- */

/* Returns the divergence of two rows of logits. */
static double divergence_of(const float *p, const float *q, int64_t count) {
    double most[2] = {-INFINITY, -INFINITY}, sum[2] = {0}, total = 0;
    for (int64_t i = 0; i < count; i++) {
        most[0] = fmax(most[0], p[i]);
        most[1] = fmax(most[1], q[i]);
    }
    for (int64_t i = 0; i < count; i++) {
        sum[0] += exp(p[i] - most[0]);
        sum[1] += exp(q[i] - most[1]);
    }
    double norm[2] = {most[0] + log(sum[0]), most[1] + log(sum[1])};
    for (int64_t i = 0; i < count; i++)
        total += exp(p[i] - norm[0]) * ((p[i] - norm[0]) - (q[i] - norm[1]));
    return total;
}

int calibration_finish(struct calibration *c, double *divergence) {
    int64_t vocab = c->model->config.vocab_size, length = c->samples.length, held_back = c->samples.held_back;
    int64_t start = own(c, fitted(c)), rows = (own(c, c->samples.count) - start) * length;
    size_t width = (size_t)c->model->config.hidden_size * dtype_bytes(c->dtype);
    float *logits = malloc((size_t)(2 * HEAD_ROWS * vocab) * sizeof *logits);
    double *found = calloc((size_t)(held_back * length), sizeof *found);
    char *streams[] = {c->exact, sample_at(c, c->inputs, start)};
    int status = status_allocated(logits && found);
    THEN(status, calibration_reach(c, c->model->config.num_layers));
    THEN(status, open_stage(c, (struct model_chunk){c->model->config.num_layers, 0}, HEAD_ROWS));
    for (int64_t first = 0; first < rows && !status; first += HEAD_ROWS) {
        int64_t count = rows - first < HEAD_ROWS ? rows - first : HEAD_ROWS, starts[2];
        const struct model_batch batch = batch_of(c, c->zeros, count, starts);
        for (int s = 0; s < 2 && !status; s++) {
            const struct model_logits_part part = {.count = count, .logits = logits + s * count * vocab};
            status = model_logits_chunk(c->runner, &batch, 0, streams[s] + (size_t)first * width, NULL, &part);
        }
#pragma omp parallel for num_threads(device_threads(c->device)) schedule(static)
        for (int64_t r = 0; r < (status ? 0 : count); r++) {
            int64_t sample = (start + (first + r) / length) * c->world->size + c->world->rank - fitted(c);
            found[sample * length + (first + r) % length] =
                divergence_of(logits + r * vocab, logits + (count + r) * vocab, vocab);
        }
    }
    THEN(status, ranks_add(c->world, found, held_back * length, divergence));
    *divergence = status ? 0 : *divergence / (double)(held_back * length);
    free(logits);
    free(found);
    return status;
}
