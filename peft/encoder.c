/* The steps of an encoder, forward and backward. */
#include "encoder-internal.h"

#include <math.h>

/* ---- weights ---- */

static const struct param_store *store_of(const struct fp32_weights *fp32) {
    return &fp32->adapter->peft->store;
}

/* True when the weights are fp32 themselves, so that there are no copies. */
static bool is_fp32(const struct fp32_weights *fp32) {
    return fp32->adapter->peft->dtype == DTYPE_F32;
}

size_t fp32_bytes(const struct fp32_weights *fp32) {
    const struct param_store *store = store_of(fp32);
    return is_fp32(fp32) ? 0 : (size_t)store->map.flat_elements * sizeof(float);
}

int fp32_allocate(struct fp32_weights *fp32) {
    size_t bytes = fp32_bytes(fp32);
    return bytes ? device_alloc(store_of(fp32)->device, bytes, &fp32->memory) : STATUS_OK;
}

void fp32_free(struct fp32_weights *fp32) {
    if (fp32->memory)
        device_free(store_of(fp32)->device, fp32->memory);
    fp32->memory = NULL;
}

int fp32_begin(struct fp32_weights *fp32) {
    const struct param_store *store = store_of(fp32);
    int status = STATUS_OK;
    if (is_fp32(fp32))
        return STATUS_OK;
    for (int id = fp32->adapter->first_row; id < fp32->adapter->end_row && !status; id++) {
        int64_t count = param_local_elements(store, id);
        struct matrix_view weight = param_borrow(store, id);
        if (count) /* this stage's row */
            status = rank_run(fp32->adapter->peft->rank, PHASE_REST, cast,
                              &(const struct cast_call){count, fp32->adapter->peft->dtype, DTYPE_F32, weight.data,
                                                        (float *)fp32->memory + store->map.places[id].offset});
        param_return(store, id);
    }
    return status;
}

const float *fp32_borrow(const struct fp32_weights *fp32, int id) {
    const struct param_store *store = store_of(fp32);
    if (!is_fp32(fp32))
        return fp32->memory ? (const float *)fp32->memory + store->map.places[id].offset : NULL;
    struct matrix_view weight = param_borrow(store, id);
    return fp32->adapter->peft->rank->is_planning ? NULL : weight.data;
}

void fp32_return(const struct fp32_weights *fp32, int id) {
    if (is_fp32(fp32))
        param_return(store_of(fp32), id);
}

/* ---- parameters ---- */

enum { NAME_BYTES = 48 };

int encoder_check(const struct peft_adapter *adapter) {
    const struct peft_config *config = &adapter->config;
    enum { LAYERS = 64 };
    double dropout = config->encoder_dropout;
    if (config->encoder_hidden_size < 0)
        return status_fail(STATUS_USAGE, "peft.encoder_hidden_size %lld: expected at least 1",
                           (long long)config->encoder_hidden_size);
    if (config->encoder_num_layers < 0 || config->encoder_num_layers > LAYERS)
        return status_fail(STATUS_USAGE, "peft.encoder_num_layers %lld: expected 1 to %d",
                           (long long)config->encoder_num_layers, LAYERS);
    if (!(dropout >= 0 && dropout < 1))
        return status_fail(STATUS_USAGE, "peft.encoder_dropout %g: expected at least 0 and below 1", dropout);
    return STATUS_OK;
}

/* Adds a row to an adapter's parameters that only the encoder has. Its name is NAME, and "prompt_encoder.default.NAME"
 * in the file. Initial values are uniform within `bound`, or normal when `bound` is 0. */
static int encoder_add_row(struct peft_adapter *adapter, const char *name, int64_t rows, int64_t columns,
                           double bound) {
    struct param row = {.dims = columns ? 2 : 1,
                        .shape = {rows, columns},
                        .init = bound > 0 ? PARAM_INIT_UNIFORM : PARAM_INIT_NORMAL,
                        .init_std = bound > 0 ? (float)bound : 1,
                        .decays = columns > 0,
                        .layer = -1};
    snprintf(row.name, sizeof row.name, "%s", name);
    snprintf(row.slices[0].name, sizeof row.slices[0].name, "prompt_encoder.default.%s", name);
    return peft_add_row(adapter, &row);
}

int encoder_start(struct encoder *encoder, struct peft_adapter *adapter, int64_t rows, int64_t width) {
    encoder->adapter = adapter;
    encoder->rows = rows;
    encoder->width = width;
    encoder->embedding = encoder_add_row(adapter, "embedding.weight", rows, width, 0);
    return encoder->embedding < 0 ? encoder->embedding : STATUS_OK;
}

static struct encoder_step *add_step(struct encoder *encoder, enum encoder_kind kind, int64_t out) {
    struct encoder_step *step = &encoder->steps[encoder->count];
    *step = (struct encoder_step){
        .kind = kind, .in = encoder->count ? step[-1].out : encoder->width, .out = out ? out : step[-1].out};
    encoder->count++;
    return step;
}

int encoder_add_linear(struct encoder *encoder, const char *name, int64_t out) {
    struct encoder_step *step = add_step(encoder, ENCODER_LINEAR, out);
    char text[NAME_BYTES];
    double bound = 1 / sqrt((double)step->in);
    snprintf(text, sizeof text, "%s.weight", name);
    step->weight = encoder_add_row(encoder->adapter, text, out, step->in, bound);
    snprintf(text, sizeof text, "%s.bias", name);
    step->bias = step->weight < 0 ? step->weight : encoder_add_row(encoder->adapter, text, out, 0, bound);
    return step->bias < 0 ? step->bias : STATUS_OK;
}

int encoder_add_activation(struct encoder *encoder, enum encoder_kind kind) {
    add_step(encoder, kind, 0);
    return STATUS_OK;
}

/* Sites of dropout after those of the projections' pairs. */
enum { DROPOUT_SITES = 3 << 22 };

int encoder_add_dropout(struct encoder *encoder, double p, int64_t number) {
    struct encoder_step *step = add_step(encoder, ENCODER_DROPOUT, 0);
    step->site = DROPOUT_SITES + (uint32_t)(encoder->adapter->number * ENCODER_LSTMS + number);
    encoder->dropout = p;
    return STATUS_OK;
}

int encoder_add_lstm(struct encoder *encoder, int64_t hidden, int64_t number) {
    struct encoder_step *step = add_step(encoder, ENCODER_LSTM, 2 * hidden);
    double bound = 1 / sqrt((double)hidden);
    for (int d = 0; d < 2; d++) {
        struct encoder_direction *direction = &step->direction[d];
        struct {
            const char *name;
            int64_t columns;
            int *id;
        } rows[] = {{"weight_ih", step->in, &direction->input},
                    {"weight_hh", hidden, &direction->state},
                    {"bias_ih", 0, &direction->input_bias},
                    {"bias_hh", 0, &direction->state_bias}};
        for (int i = 0; i < 4; i++) {
            char text[NAME_BYTES];
            snprintf(text, sizeof text, "lstm_head.%s_l%lld%s", rows[i].name, (long long)number, d ? "_reverse" : "");
            *rows[i].id = encoder_add_row(encoder->adapter, text, 4 * hidden, rows[i].columns, bound);
            if (*rows[i].id < 0)
                return *rows[i].id;
        }
    }
    return STATUS_OK;
}

static size_t key_bytes(const struct encoder *encoder) {
    size_t one = (size_t)encoder->rows * sizeof(uint32_t);
    return 2 * ((one + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT);
}

void encoder_place(struct encoder *encoder, struct arena *arena) {
    size_t row = (size_t)encoder->rows * sizeof(float);
    for (int i = 0; i < encoder->count; i++) {
        struct encoder_step *step = &encoder->steps[i];
        step->y = arena_take(arena, row * (size_t)step->out);
        step->dy = arena_take(arena, row * (size_t)step->out);
        for (int d = 0; d < 2 && step->kind == ENCODER_LSTM; d++) {
            step->direction[d].gates = arena_take(arena, row * 2 * (size_t)step->out);
            step->direction[d].cells = arena_take(arena, row * (size_t)step->out / 2);
        }
    }
    if (encoder->dropout > 0)
        encoder->uploaded = arena_take(arena, key_bytes(encoder));
}

static struct rank *rank_of(const struct encoder *encoder) {
    return encoder->adapter->peft->rank;
}

int encoder_allocate(struct encoder *encoder) {
    return encoder->dropout > 0 ? upload_open(&encoder->upload, rank_of(encoder)->device, key_bytes(encoder))
                                : STATUS_OK;
}

void encoder_close(struct encoder *encoder) {
    upload_close(&encoder->upload);
}

/* ---- products ---- */

static int multiply(const struct encoder *encoder, const struct gemm *gemm) {
    return rank_multiply(rank_of(encoder), PHASE_REST, gemm);
}

/* A weight [out, in] of the store and its bias [out]. */
struct dense {
    int weight, bias; /* rows of the table */
    int64_t in, out;
};

/* y[rows, out] = x[rows, in] weight[out, in]' + bias. */
static int dense_forward(const struct encoder *encoder, const struct dense *dense, const float *x, float *y) {
    struct gemm gemm = {.a = matrix_plain(DTYPE_F32, x, encoder->rows, dense->in),
                        .b = matrix_plain(DTYPE_F32, fp32_borrow(encoder->fp32, dense->weight), dense->out, dense->in),
                        .b_transposed = true,
                        .c = matrix_plain(DTYPE_F32, y, encoder->rows, dense->out),
                        .bias = fp32_borrow(encoder->fp32, dense->bias)};
    int status = multiply(encoder, &gemm);
    fp32_return(encoder->fp32, dense->weight);
    fp32_return(encoder->fp32, dense->bias);
    return status;
}

/* gradient[out, in] += dy[rows, out]' x[rows, in]. */
static int add_weight_gradient(const struct encoder *encoder, const struct dense *dense, int64_t rows, const float *dy,
                               const float *x, int64_t x_stride) {
    float *gradient = param_gradient(&encoder->adapter->peft->store, dense->weight);
    struct gemm gemm = {.a = matrix_plain(DTYPE_F32, dy, rows, dense->out),
                        .a_transposed = true,
                        .b = matrix_strided(DTYPE_F32, x, rows, dense->in, x_stride),
                        .c = matrix_plain(DTYPE_F32, gradient, dense->out, dense->in),
                        .accumulate = true};
    return multiply(encoder, &gemm);
}

static int add_bias_gradient(const struct encoder *encoder, const struct dense *dense, const float *dy) {
    struct column_sum sum = {.rows = encoder->rows,
                             .cols = dense->out,
                             .type = DTYPE_F32,
                             .x = dy,
                             .stride = dense->out,
                             .out = param_gradient(&encoder->adapter->peft->store, dense->bias)};
    return rank_run(rank_of(encoder), PHASE_REST, column_sum, &sum);
}

/* Adds both gradients, and dx[rows, in] = (or +=) dy[rows, out] weight[out, in]. */
static int dense_backward(const struct encoder *encoder, const struct dense *dense, const float *x, const float *dy,
                          float *dx, bool accumulate) {
    TRY(add_weight_gradient(encoder, dense, encoder->rows, dy, x, dense->in));
    TRY(add_bias_gradient(encoder, dense, dy));
    struct gemm gemm = {.a = matrix_plain(DTYPE_F32, dy, encoder->rows, dense->out),
                        .b = matrix_plain(DTYPE_F32, fp32_borrow(encoder->fp32, dense->weight), dense->out, dense->in),
                        .c = matrix_plain(DTYPE_F32, dx, encoder->rows, dense->in),
                        .accumulate = accumulate};
    int status = multiply(encoder, &gemm);
    fp32_return(encoder->fp32, dense->weight);
    return status;
}

/* ---- steps ---- */

static struct unit_call unit_call_of(const struct encoder *encoder, const struct encoder_step *step) {
    return (struct unit_call){.count = encoder->rows * step->out,
                              .type = DTYPE_F32,
                              .unit = step->kind == ENCODER_RELU ? UNIT_RELU : UNIT_TANH,
                              .x = step[-1].y,
                              .y = step->y,
                              .dy = step->dy,
                              .dx = step[-1].dy};
}

/* Returns the call of an LSTM's direction, with the state's weights borrowed. */
static struct lstm lstm_call(const struct encoder *encoder, const struct encoder_step *step, int d) {
    const struct encoder_direction *direction = &step->direction[d];
    int64_t hidden = step->out / 2;
    return (struct lstm){.steps = encoder->rows,
                         .hidden = hidden,
                         .is_reverse = d,
                         .weight = fp32_borrow(encoder->fp32, direction->state),
                         .bias = fp32_borrow(encoder->fp32, direction->state_bias),
                         .gates = direction->gates,
                         .cells = direction->cells,
                         .y = step->y ? step->y + d * hidden : NULL,
                         .y_stride = step->out,
                         .dy = step->dy ? step->dy + d * hidden : NULL};
}

static void lstm_return(const struct encoder *encoder, const struct encoder_direction *direction) {
    fp32_return(encoder->fp32, direction->state);
    fp32_return(encoder->fp32, direction->state_bias);
}

/* The gates' products: with the step's input, and with the state. */
static struct dense input_of(const struct encoder_step *step, int d) {
    const struct encoder_direction *direction = &step->direction[d];
    return (struct dense){direction->input, direction->input_bias, step->in, 2 * step->out};
}

static struct dense state_of(const struct encoder_step *step, int d) {
    const struct encoder_direction *direction = &step->direction[d];
    return (struct dense){direction->state, direction->state_bias, step->out / 2, 2 * step->out};
}

static int lstm_forward(struct encoder *encoder, const struct encoder_step *step, const float *x) {
    int status = STATUS_OK;
    for (int d = 0; d < 2 && !status; d++) {
        const struct dense input = input_of(step, d);
        struct lstm call = lstm_call(encoder, step, d);
        status = dense_forward(encoder, &input, x, step->direction[d].gates);
        THEN(status, rank_run(rank_of(encoder), PHASE_REST, lstm_forward, &call));
        lstm_return(encoder, &step->direction[d]);
    }
    return status;
}

/* The state's weight multiplies each y except the last of its direction: rows of the gates pair with rows of y, shifted
 * by one. */
static int add_state_gradients(const struct encoder *encoder, const struct encoder_step *step, int d) {
    const struct dense state = state_of(step, d);
    const float *gates = step->direction[d].gates, *dy = gates;
    int64_t later = encoder->rows - 1;
    const float *y = step->y ? step->y + d * state.in : NULL;
    if (d == 0 && dy)
        dy += state.out;
    if (d == 1 && y)
        y += step->out;
    int status = later ? add_weight_gradient(encoder, &state, later, dy, y, step->out) : STATUS_OK;
    return status ? status : add_bias_gradient(encoder, &state, gates);
}

static int lstm_backward(struct encoder *encoder, const struct encoder_step *step, const float *x, float *dx,
                         bool accumulate) {
    int status = STATUS_OK;
    for (int d = 0; d < 2 && !status; d++) {
        const struct dense input = input_of(step, d);
        struct lstm call = lstm_call(encoder, step, d);
        status = rank_run(rank_of(encoder), PHASE_REST, lstm_backward, &call);
        lstm_return(encoder, &step->direction[d]);
        THEN(status, add_state_gradients(encoder, step, d));
        THEN(status, dense_backward(encoder, &input, x, step->direction[d].gates, dx, accumulate || d));
    }
    return status;
}

/* Every rank with the encoder uses the same mask. */
static struct residual_dropout dropout_call(const struct encoder *encoder, const struct encoder_step *step) {
    bool is_on = encoder->adapter->peft->sample >= 0;
    return (struct residual_dropout){.rows = encoder->rows,
                                     .cols = step->out,
                                     .type = DTYPE_F32,
                                     .x = step[-1].y,
                                     .y = step->y,
                                     .dy = step->dy,
                                     .dx = step[-1].dy,
                                     .dropout = {.p = is_on ? (float)encoder->dropout : 0,
                                                 .seed = rank_of(encoder)->seed,
                                                 .site = step->site,
                                                 .keys = encoder->keys}};
}

static int set_keys(struct encoder *encoder) {
    size_t bytes = (size_t)encoder->rows * sizeof(uint32_t);
    if (rank_of(encoder)->is_planning || encoder->dropout <= 0)
        return STATUS_OK;
    TRY(upload_begin(&encoder->upload, encoder->uploaded));
    uint32_t *sample = upload_take(&encoder->upload, bytes), *token = upload_take(&encoder->upload, bytes);
    for (int64_t i = 0; i < encoder->rows; i++) {
        sample[i] = (uint32_t)encoder->adapter->peft->sample;
        token[i] = (uint32_t)i;
    }
    encoder->keys = (struct row_keys){.sample = upload_place(&encoder->upload, sample),
                                      .token = upload_place(&encoder->upload, token)};
    return upload_end(&encoder->upload, rank_of(encoder)->exec.stream);
}

int encoder_forward(struct encoder *encoder) {
    const float *x = fp32_borrow(encoder->fp32, encoder->embedding);
    int status = set_keys(encoder);
    for (int i = 0; i < encoder->count && !status; i++) {
        struct encoder_step *step = &encoder->steps[i];
        if (step->kind == ENCODER_LINEAR) {
            const struct dense dense = {step->weight, step->bias, step->in, step->out};
            status = dense_forward(encoder, &dense, x, step->y);
        } else if (step->kind == ENCODER_LSTM) {
            status = lstm_forward(encoder, step, x);
        } else if (step->kind == ENCODER_DROPOUT) {
            struct residual_dropout call = dropout_call(encoder, step);
            status = rank_run(rank_of(encoder), PHASE_REST, residual_dropout_forward, &call);
        } else {
            struct unit_call call = unit_call_of(encoder, step);
            status = rank_run(rank_of(encoder), PHASE_REST, unit_forward, &call);
        }
        x = step->y;
    }
    fp32_return(encoder->fp32, encoder->embedding);
    return status;
}

int encoder_backward(struct encoder *encoder) {
    const float *embedding = fp32_borrow(encoder->fp32, encoder->embedding);
    int status = STATUS_OK;
    for (int i = encoder->count - 1; i >= 0 && !status; i--) {
        struct encoder_step *step = &encoder->steps[i];
        const float *x = i ? step[-1].y : embedding;
        float *dx = i ? step[-1].dy : param_gradient(&encoder->adapter->peft->store, encoder->embedding);
        if (step->kind == ENCODER_LINEAR) {
            const struct dense dense = {step->weight, step->bias, step->in, step->out};
            status = dense_backward(encoder, &dense, x, step->dy, dx, !i);
        } else if (step->kind == ENCODER_LSTM) {
            status = lstm_backward(encoder, step, x, dx, !i);
        } else if (step->kind == ENCODER_DROPOUT) {
            struct residual_dropout call = dropout_call(encoder, step);
            status = rank_run(rank_of(encoder), PHASE_REST, residual_dropout_backward, &call);
        } else {
            struct unit_call call = unit_call_of(encoder, step);
            status = rank_run(rank_of(encoder), PHASE_REST, unit_backward, &call);
        }
    }
    fp32_return(encoder->fp32, encoder->embedding);
    return status;
}
