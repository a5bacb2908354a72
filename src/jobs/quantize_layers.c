/* Samples go through a model layer by layer. Each layer is a separate stage, which is opened, used and closed. */
#include "quantize-internal.h"

#include "tensor/tensor.h"

#include <math.h>

enum { HEAD_ROWS = 64 };

/* The sum over the inputs of the linear at a place. */
struct sums {
    const struct calibration *calibration;
    int64_t width;
    float *device, *host; /* [width, width] */
};

struct calibration {
    const struct pretrained *model;
    const struct param_table *table;
    struct samples samples;
    struct device *device;
    enum dtype dtype;
    void *inputs;  /* [samples * length, C] of the present layer */
    void *exact;   /* [held_back * length, C] the same with the model's own weights */
    void *outputs; /* [length, C] of one sample */
    /* The stage. */
    int64_t layer; /* below 0: none of a layer */
    struct rank rank;
    struct base *base;
    struct training_runner *runner;
    struct hook_table hooks;
    struct sums sums[ATTACH_PLACE_COUNT];
    bool is_summing;
    int32_t *positions, *zeros; /* [length] */
    float *weights;             /* [length] zero */
};

/* ---- a stage ---- */

static int add_inputs(void *self, const struct hook_call *call) {
    const struct sums *sums = self;
    struct matrix_view x = matrix_plain(call->dtype, call->x, call->rows, call->in);
    return rank_multiply(call->rank, PHASE_GEMM,
                         &(struct gemm){.a = x,
                                        .a_transposed = true,
                                        .b = x,
                                        .c = matrix_plain(DTYPE_F32, sums->device, call->in, call->in),
                                        .accumulate = true});
}

static bool is_summing(const void *self) {
    return ((const struct sums *)self)->calibration->is_summing;
}

static int open_sums(struct calibration *c, int64_t layer) {
    TRY(hook_table_init(&c->hooks, c->model->config.num_layers));
    for (int place = ATTACH_QKV; place <= ATTACH_FC2; place++) {
        struct sums *sums = &c->sums[place];
        int id = model_find_linear(c->table, layer, (enum attach_place)place, false);
        sums->calibration = c;
        sums->width = c->table->rows[id].shape[1];
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

/* Runs the samples from `first` on through the stage, in place. */
static int run_samples(struct calibration *c, bool has_inputs) {
    int status = STATUS_OK;
    for (int64_t i = 0; i < c->samples.count && !status; i++) {
        char *at = sample_at(c, c->inputs, i);
        status = run_sample(c, i, has_inputs ? at : NULL, at);
    }
    return status;
}

static int64_t fitted(const struct calibration *c) {
    return c->samples.count - c->samples.held_back;
}

/* Opens a layer, sums its inputs, and takes the exact ones of the samples that are held back through it. */
static int open_layer(struct calibration *c, int64_t layer) {
    TRY(open_stage(c, (struct model_chunk){layer, 1}, c->samples.length));
    for (int64_t i = 0; i < fitted(c); i++)
        TRY(run_sample(c, i, sample_at(c, c->inputs, i), NULL));
    c->is_summing = false;
    for (int64_t i = 0; i < c->samples.held_back; i++) {
        char *at = sample_at(c, c->exact, i);
        TRY(run_sample(c, fitted(c) + i, at, at));
    }
    for (int place = ATTACH_QKV; place <= ATTACH_FC2; place++) {
        const struct sums *sums = &c->sums[place];
        TRY(stream_copy_to_host(c->rank.exec.stream, sums->host, sums->device,
                                (size_t)(sums->width * sums->width) * sizeof(float)));
    }
    return rank_finish(&c->rank);
}

/* ---- what others call ---- */

int calibration_open(const struct quantize_job *job, const struct pretrained *model, const struct param_table *table,
                     struct calibration **calibration) {
    struct calibration *c = *calibration = calloc(1, sizeof *c);
    TRY(status_allocated(c));
    c->model = model;
    c->table = table;
    c->layer = -1;
    c->dtype = job->precision == 0   ? (model->dtype == DTYPE_BF16 ? DTYPE_BF16 : DTYPE_F32)
               : job->precision == 1 ? DTYPE_F32
                                     : DTYPE_BF16;
    TRY(samples_read(job, model, &c->samples));
    size_t length = (size_t)(c->samples.length > HEAD_ROWS ? c->samples.length : HEAD_ROWS);
    c->positions = calloc(length, sizeof *c->positions);
    c->zeros = calloc(length, sizeof *c->zeros);
    c->weights = calloc(length, sizeof *c->weights);
    TRY(status_allocated(c->positions && c->zeros && c->weights));
    for (size_t i = 0; i < length; i++)
        c->positions[i] = (int32_t)i;
    TRY(device_open(NULL, DEVICE_FIRST, job->threads ? (int)job->threads : usable_cores(), &c->device));
    size_t bytes = sample_bytes(c);
    TRY(device_alloc(c->device, (size_t)c->samples.count * bytes, &c->inputs));
    TRY(device_alloc(c->device, (size_t)c->samples.held_back * bytes, &c->exact));
    TRY(device_alloc(c->device, bytes, &c->outputs));
    TRY(open_stage(c, (struct model_chunk){0, 0}, c->samples.length));
    TRY(run_samples(c, false));
    TRY(stream_copy(c->rank.exec.stream, c->exact, sample_at(c, c->inputs, fitted(c)),
                    (size_t)c->samples.held_back * bytes));
    return rank_finish(&c->rank);
}

void calibration_close(struct calibration *c) {
    if (!c)
        return;
    close_stage(c);
    device_free(c->device, c->inputs);
    device_free(c->device, c->exact);
    device_free(c->device, c->outputs);
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
    int64_t vocab = c->model->config.vocab_size, rows = c->samples.held_back * c->samples.length;
    size_t width = (size_t)c->model->config.hidden_size * dtype_bytes(c->dtype);
    float *logits = malloc((size_t)(2 * HEAD_ROWS * vocab) * sizeof *logits);
    char *streams[] = {c->exact, sample_at(c, c->inputs, fitted(c))};
    int status = status_allocated(logits);
    double total = 0;
    THEN(status, calibration_reach(c, c->model->config.num_layers));
    THEN(status, open_stage(c, (struct model_chunk){c->model->config.num_layers, 0}, HEAD_ROWS));
    for (int64_t first = 0; first < rows && !status; first += HEAD_ROWS) {
        int64_t count = rows - first < HEAD_ROWS ? rows - first : HEAD_ROWS, starts[2];
        const struct model_batch batch = batch_of(c, c->zeros, count, starts);
        for (int s = 0; s < 2 && !status; s++) {
            const struct model_logits_part part = {.count = count, .logits = logits + s * count * vocab};
            status = model_logits_chunk(c->runner, &batch, 0, streams[s] + (size_t)first * width, NULL, &part);
        }
#pragma omp parallel for num_threads(device_threads(c->device)) schedule(static) reduction(+ : total)
        for (int64_t r = 0; r < (status ? 0 : count); r++)
            total += divergence_of(logits + r * vocab, logits + (count + r) * vocab, vocab);
    }
    free(logits);
    *divergence = status ? 0 : total / (double)rows;
    return status;
}
