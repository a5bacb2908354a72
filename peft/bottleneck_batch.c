/* Bottleneck adapters in a bank. Their inputs are put together run by run. The norms of all runs are one call, and so
 * is each product. */
#include "bank-internal.h"
#include "bottleneck-internal.h"

static bool is_input_stream(const struct peft_image *image) {
    return image->config.adapter_style == PEFT_PARALLEL;
}

static enum group_unit unit_of(const struct peft_config *config) {
    return config->adapter_activation == PEFT_GELU   ? GROUP_UNIT_GELU_EXACT
           : config->adapter_activation == PEFT_RELU ? GROUP_UNIT_RELU
                                                     : GROUP_UNIT_SWISH;
}

/* ---- the image ---- */

static int put_half(struct image_maker *maker, const struct bottleneck *half) {
    const struct peft_bank *bank = maker->bank;
    const struct peft_config *config = &maker->adapter->config;
    int64_t C = bank->model.base.config.hidden_size, m = config->bottleneck, layer = half->layer - bank->first_layer;
    bool is_mlp = half->place == ATTACH_AFTER_MLP;
    enum dtype type = bank->model.base.dtype;
    struct group_entry *norm = image_entry(maker, bank_half_entry(bank, layer, is_mlp, ENTRY_NORM));
    struct group_entry *down = image_entry(maker, bank_half_entry(bank, layer, is_mlp, ENTRY_HALF_DOWN));
    struct group_entry *up = image_entry(maker, bank_half_entry(bank, layer, is_mlp, ENTRY_HALF_UP));
    *down = (struct group_entry){.n = m, .k = C, .type = type, .bias_type = type, .scale = 1, .unit = unit_of(config)};
    *up = (struct group_entry){
        .n = C, .k = m, .is_by_input = true, .type = type, .bias_type = type, .scale = (float)config->adapter_scaling};
    maker->image->columns = m;
    maker->image->reads_half = config->adapter_style != PEFT_PARALLEL;
    maker->image->reads_stream = config->adapter_style != PEFT_HOULSBY;
    maker->image->has_norm = config->adapter_pre_norm;
    int status = image_put_param(maker, half->id[DOWN], false, &down->data);
    THEN(status, image_put_param(maker, half->id[DOWN_BIAS], false, &down->bias));
    THEN(status, image_put_param(maker, half->id[UP], true, &up->data));
    THEN(status, image_put_param(maker, half->id[UP_BIAS], false, &up->bias));
    if (status || !config->adapter_pre_norm)
        return status;
    *norm = (struct group_entry){.n = C, .type = type, .bias_type = type};
    status = image_put_param(maker, half->id[NORM_GAIN], false, &norm->data);
    return status ? status : image_put_param(maker, half->id[NORM_BIAS], false, &norm->bias);
}

int bottleneck_make_image(struct image_maker *maker) {
    const struct bottlenecks *all = maker->adapter->state;
    int status = STATUS_OK;
    for (int i = 0; i < all->count && !status; i++)
        if (peft_has_layer(maker->adapter->peft, all->of[i].layer))
            status = put_half(maker, &all->of[i]);
    return status;
}

/* ---- the rows ---- */

/* A piece of the batch, and intermediate results: inputs, the streams of a recorded step, and the first product. */
struct half_piece {
    const struct bank_call *call;
    int64_t first, rows;
    char *in, *streams, *inner;
};

static size_t piece_row_bytes(const struct bank_call *call) {
    return ((size_t)(2 * call->hook->out + call->columns)) * dtype_bytes(call->hook->dtype) + 3 * ARENA_ALIGNMENT;
}

static const struct group_entry *entry_of(const struct bank_call *call, const struct peft_image *image,
                                          enum half_entry entry) {
    return &image
                ->entries[bank_half_entry(call->bank, call->site->layer, call->site->place == ATTACH_AFTER_MLP, entry)];
}

static int add(const struct hook_call *hook, int64_t count, const void *x, bool accumulate, void *y) {
    struct scale_add call = {
        .rows = 1, .cols = count, .type = hook->dtype, .scale = 1, .x = x, .y = y, .accumulate = accumulate};
    return rank_run(hook->rank, PHASE_NORM, scale_add, &call);
}

/* Puts one run's rows into `in`: S, X + S, or X. */
static int put_together(const struct half_piece *piece, const struct bank_rows *run) {
    const struct hook_call *hook = piece->call->hook;
    const struct peft_image *image = run->image;
    int64_t first = run->first_row > piece->first ? run->first_row : piece->first;
    int64_t run_end = run->first_row + run->rows, piece_end = piece->first + piece->rows;
    int64_t rows = (run_end < piece_end ? run_end : piece_end) - first;
    if (rows <= 0 || !entry_of(piece->call, image, ENTRY_HALF_DOWN)->n)
        return STATUS_OK;
    size_t row = (size_t)hook->out * dtype_bytes(hook->dtype), from = (size_t)first * row,
           to = (size_t)(first - piece->first) * row;
    char *x = piece->in + to;
    int64_t count = rows * hook->out;
    const char *half = (const char *)hook->y + from, *stream = (const char *)hook->residual + from;
    int status = add(hook, count, is_input_stream(image) ? stream : half, false, x);
    THEN_IF(status, image->config.adapter_style == PEFT_PFEIFFER, add(hook, count, stream, true, x));
    return status;
}

/* The same in a recorded step, whose rows get their images later. */
static int put_together_by_row(const struct half_piece *piece) {
    const struct bank_list *list = piece->call->list;
    const struct hook_call *hook = piece->call->hook;
    struct rank *rank = hook->rank;
    int64_t first = piece->first;
    const struct gather_rows halves = {piece->rows, hook->out, hook->dtype, hook->y, list->half_index + first,
                                       piece->in};
    const struct gather_rows streams = {
        piece->rows, hook->out, hook->dtype, hook->residual, list->stream_index + first, piece->streams};
    const struct add_call sum = {piece->rows * hook->out, hook->dtype, piece->streams, piece->in};
    TRY(rank_run(rank, PHASE_NORM, gather_rows, &halves));
    TRY(rank_run(rank, PHASE_NORM, gather_rows, &streams));
    return rank_run(rank, PHASE_NORM, add, &sum);
}

/* Normalises the inputs of the images that have a norm. */
static int norm(const struct half_piece *piece) {
    const struct bank_call *call = piece->call;
    const struct hook_call *hook = call->hook;
    bool is_mlp = call->site->place == ATTACH_AFTER_MLP;
    struct grouped_norm norm = {.count = call->list->count,
                                .segments = call->list->segments,
                                .entry = bank_half_entry(call->bank, call->site->layer, is_mlp, ENTRY_NORM),
                                .first_row = piece->first,
                                .rows = piece->rows,
                                .x = piece->in,
                                .x_row = piece->first,
                                .ldx = hook->out,
                                .type = hook->dtype,
                                .epsilon = bottleneck_norm_epsilon};
    return rank_run(hook->rank, PHASE_NORM, grouped_norm, &norm);
}

static int multiply(const struct half_piece *piece) {
    const struct bank_call *call = piece->call;
    const struct hook_call *hook = call->hook;
    bool is_mlp = call->site->place == ATTACH_AFTER_MLP;
    struct grouped_gemm down = {.count = call->list->count,
                                .segments = call->list->segments,
                                .entry = bank_half_entry(call->bank, call->site->layer, is_mlp, ENTRY_HALF_DOWN),
                                .first_row = piece->first,
                                .rows = piece->rows,
                                .a = piece->in,
                                .a_row = piece->first,
                                .lda = hook->out,
                                .a_type = hook->dtype,
                                .c = piece->inner,
                                .c_row = piece->first,
                                .ldc = call->columns,
                                .c_type = hook->dtype};
    struct grouped_gemm up = {.count = call->list->count,
                              .segments = call->list->segments,
                              .entry = bank_half_entry(call->bank, call->site->layer, is_mlp, ENTRY_HALF_UP),
                              .first_row = piece->first,
                              .rows = piece->rows,
                              .a = piece->inner,
                              .a_row = piece->first,
                              .lda = call->columns,
                              .a_type = hook->dtype,
                              .c = hook->y,
                              .ldc = hook->out,
                              .c_type = hook->y_dtype,
                              .accumulate = true};
    int status = rank_run(hook->rank, PHASE_GEMM, grouped_gemm, &down);
    return status ? status : rank_run(hook->rank, PHASE_GEMM, grouped_gemm, &up);
}

int bottleneck_forward(const struct bank_call *call) {
    const struct hook_call *hook = call->hook;
    struct peft_bank *bank = call->bank;
    int64_t most = bank_piece(bank, piece_row_bytes(call));
    int status = STATUS_OK;
    for (int64_t first = 0; first < hook->rows && !status; first += most) {
        int64_t rows = hook->rows - first < most ? hook->rows - first : most;
        size_t bytes = (size_t)(rows * hook->out) * dtype_bytes(hook->dtype);
        struct arena arena = arena_over(bank->scratch, bank->scratch_bytes);
        size_t inner = (size_t)call->columns * dtype_bytes(hook->dtype);
        struct half_piece piece = {.call = call, .first = first, .rows = rows, .in = arena_take(&arena, bytes)};
        piece.streams = arena_take(&arena, bytes);
        piece.inner = arena_take(&arena, (size_t)rows * inner);
        if (call->kept.inner)
            piece.inner = (char *)call->kept.inner + (size_t)first * inner;
        if (bank->is_by_row)
            status = put_together_by_row(&piece);
        for (int64_t i = 0; i < call->list->count && !bank->is_by_row && !status; i++)
            status = put_together(&piece, &call->list->rows[i]);
        if (!status && call->kept.in)
            status = stream_copy(hook->rank->exec.stream,
                                 (char *)call->kept.in + (size_t)first * (bytes / (size_t)rows), piece.in, bytes);
        THEN_IF(status, call->list->has_norm, norm(&piece));
        THEN(status, multiply(&piece));
    }
    return status;
}

uint16_t bottleneck_sites(void) {
    return peft_site_bit(ATTACH_AFTER_ATTENTION, HOOK_BEFORE_ACTIVATION) |
           peft_site_bit(ATTACH_AFTER_MLP, HOOK_BEFORE_ACTIVATION);
}
