/* Products of a model's shapes, one at a time. */
#include "calibrate.h"

enum { LEAST_CALLS = 3, DRAWN = 16384, OPERANDS = 4 };
static const double product_seconds = 0.1; /* of one product */
static const double long_seconds = 0.5;    /* calls that take longer are few: one is enough */

/* ---- the list ---- */

static int add_product(struct calibration *c, const struct work_item *item, enum product_form form) {
    for (int i = 0; i < c->product_count; i++)
        if (!memcmp(c->products[i].shape, item->work.shape, sizeof item->work.shape))
            return STATUS_OK;
    struct calibrate_product *products = realloc(c->products, (size_t)(c->product_count + 1) * sizeof *products);
    TRY(status_allocated(products));
    c->products = products;
    products[c->product_count] = (struct calibrate_product){.form = form};
    memcpy(products[c->product_count++].shape, item->work.shape, sizeof item->work.shape);
    return STATUS_OK;
}

/* Returns true if a forward of the list has products of `count` rows: an inner dimension of that size is the rows. */
static bool has_rows(const struct work_list *list, int64_t count) {
    for (int i = 0; i < list->count; i++)
        if (list->items[i].part == WORK_FORWARD && list->items[i].op == OP_gemm &&
            list->items[i].work.shape[0] == count)
            return true;
    return false;
}

static int add_products(struct calibration *c, const struct work_list *list) {
    int status = STATUS_OK;
    for (int i = 0; i < list->count && !status; i++) {
        const struct work_item *item = &list->items[i];
        if (item->op != OP_gemm || item->phase != PHASE_GEMM || !item->count)
            continue;
        status = add_product(c, item,
                             item->part == WORK_FORWARD            ? PRODUCT_FORWARD
                             : has_rows(list, item->work.shape[2]) ? PRODUCT_WEIGHT_GRADIENT
                                                                   : PRODUCT_INPUT_GRADIENT);
    }
    return status;
}

static int list_layout(struct calibration *c, int tensor, int64_t micro_batch) {
    struct train_run run = c->run;
    struct cost_work work;
    run.config.parallel.tensor_model_parallel_size = tensor;
    run.config.train.micro_batch_size = run.config.train.global_batch_size = micro_batch;
    if (train_plan_obstacle(&run, tensor))
        return STATUS_OK;
    int status = cost_work_make(&run, &c->cluster, &work);
    TRY(status);
    for (int i = 0; i < COST_LISTS && !status; i++)
        status = add_products(c, &work.lists[i]);
    c->layer_elements = tensor == 1 ? work.elements[COST_LAYER] : c->layer_elements;
    cost_work_free(&work);
    return status;
}

int calibrate_list_products(struct calibration *c) {
    int status = STATUS_OK;
    for (int tensor = 1; tensor <= (int)c->options->ranks; tensor++)
        for (int more = 1; more <= 4 && !status; more *= 2)
            status = list_layout(c, tensor, more * c->options->micro_batch_size);
    return status;
}

/* ---- measuring ---- */

static struct gemm call_of(const struct calibrate_product *product, int precision, void *const memory[OPERANDS]) {
    enum dtype dtype = precision_dtype(precision);
    int64_t m = product->shape[0], n = product->shape[1], k = product->shape[2];
    bool is_gradient = product->form == PRODUCT_WEIGHT_GRADIENT, is_forward = product->form == PRODUCT_FORWARD;
    return (struct gemm){
        .a = is_gradient ? matrix_plain(dtype, memory[0], k, m) : matrix_plain(dtype, memory[0], m, k),
        .a_transposed = is_gradient,
        .b = is_forward ? matrix_plain(dtype, memory[1], n, k) : matrix_plain(dtype, memory[1], k, n),
        .b_transposed = is_forward,
        .c = matrix_plain(is_gradient ? DTYPE_F32 : dtype, memory[2], m, n),
        .accumulate = is_gradient,
        .is_tf32 = precision == PRECISION_TF32,
    };
}

/* Fills device memory with copies of one block of random numbers. */
static int fill(struct stream *stream, void *memory, enum dtype dtype, size_t bytes) {
    float drawn[DRAWN];
    for (int64_t i = 0; i < DRAWN; i++) {
        float value = (float)rng_unit(philox(1, (uint32_t)i, 0, 0, (uint32_t)RNG_TEST << 24).word[0]) - 0.5f;
        if (dtype == DTYPE_BF16)
            ((uint16_t *)drawn)[i] = bf16_from_float(value);
        else
            drawn[i] = value;
    }
    int status = STATUS_OK;
    for (size_t at = 0, block = DRAWN * dtype_bytes(dtype); at < bytes && !status; at += block)
        status = stream_copy_to_device(stream, (char *)memory + at, drawn, bytes - at < block ? bytes - at : block);
    return status ? status : stream_wait(stream);
}

/* Calls it until the time is over, and finds the mean. Most short calls of ranks that share a core have it to
 * themselves while they run, so a median would not see that they take turns. The first call prepares, and does not
 * count. */
static int time_calls(const struct exec *exec, const struct ops *ops, const struct gemm *call, double *seconds) {
    double start = 0, begun = clock_seconds(), taken = 0;
    int count = -1, status = STATUS_OK;
    while (!status && (count < 1 || taken < product_seconds || (count < LEAST_CALLS && taken < long_seconds))) {
        status = ops->gemm(exec, call);
        THEN(status, stream_wait(exec->stream));
        start = count < 0 ? clock_seconds() : start;
        taken = clock_seconds() - begun;
        count++;
    }
    *seconds = status ? 0 : (clock_seconds() - start) / count;
    return status;
}

int calibrate_product(struct stream *stream, int precision, const struct calibrate_product *product, double *seconds) {
    enum dtype dtype = precision_dtype(precision);
    struct device *device = stream_device(stream);
    const struct ops *ops = ops_for(device);
    const int64_t *s = product->shape;
    const size_t bytes[] = {(size_t)(s[0] * s[2]) * dtype_bytes(dtype), (size_t)(s[1] * s[2]) * dtype_bytes(dtype),
                            (size_t)(s[0] * s[1]) * sizeof(float)};
    void *memory[OPERANDS] = {0};
    struct exec exec = {.stream = stream};
    int status = STATUS_OK;
    for (int i = 0; i < 3 && !status; i++) {
        status = device_alloc(device, bytes[i], &memory[i]);
        THEN(status, fill(stream, memory[i], i < 2 ? dtype : DTYPE_F32, bytes[i]));
    }
    const struct gemm call = call_of(product, precision, memory);
    if (!status && !ops->gemm_supports(device, &call))
        status = status_fail(STATUS_UNSUPPORTED, "%s has no such product", device_description(device));
    if (!status && (exec.workspace_bytes = ops->gemm_workspace(device, &call)))
        status = device_alloc(device, exec.workspace_bytes, &memory[3]);
    exec.workspace = memory[3];
    THEN(status, time_calls(&exec, ops, &call, seconds));
    for (int i = 0; i < OPERANDS; i++)
        device_free(device, memory[i]);
    return status;
}
