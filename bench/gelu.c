/* The GELU that a product of bf16 contains, which is a library's on some devices, beside its own operation. The
 * weight is the identity, so that both get the same input. */
#include "bench.h"

#include "kernels/ops.h"

#include <math.h>

enum { ROWS = 64, COLUMNS = 256, VALUES = ROWS * COLUMNS };
static const double most = 8; /* beyond it the GELU is 0 or its input */

enum { INPUT, WEIGHT, BIAS, SAVED, OF_PRODUCT, OWN, ARRAYS };

struct comparison {
    struct exec exec;
    void *memory[ARRAYS];
    uint16_t host[COLUMNS * COLUMNS > VALUES ? COLUMNS *COLUMNS : VALUES];
    uint16_t input[VALUES], of_product[VALUES], own[VALUES];
};

static int upload(struct comparison *c, int array, int64_t count) {
    int status = device_alloc(stream_device(c->exec.stream), (size_t)count * sizeof *c->host, &c->memory[array]);
    THEN(status, stream_copy_to_device(c->exec.stream, c->memory[array], c->host, (size_t)count * sizeof *c->host));
    return status ? status : stream_wait(c->exec.stream);
}

static int make_arrays(struct comparison *c) {
    for (int i = 0; i < VALUES; i++)
        c->host[i] = c->input[i] = bf16_from_float((float)(most * (2.0 * i / (VALUES - 1) - 1)));
    int status = upload(c, INPUT, VALUES);
    memset(c->host, 0, sizeof c->host);
    THEN(status, upload(c, BIAS, COLUMNS));
    for (int array = SAVED; array < ARRAYS && !status; array++)
        status = upload(c, array, VALUES);
    for (int i = 0; i < COLUMNS; i++)
        c->host[i * COLUMNS + i] = bf16_from_float(1);
    return status ? status : upload(c, WEIGHT, (int64_t)COLUMNS * COLUMNS);
}

static int compute(struct comparison *c, const struct ops *ops, const struct gemm *product) {
    const struct gelu gelu = {
        .count = VALUES, .type = DTYPE_BF16, .is_tanh = true, .x = c->memory[INPUT], .y = c->memory[OWN]};
    int status = ops->gemm(&c->exec, product);
    THEN(status, ops->gelu_forward(&c->exec, &gelu));
    THEN(status, stream_copy_to_host(c->exec.stream, c->of_product, c->memory[OF_PRODUCT], sizeof c->of_product));
    THEN(status, stream_copy_to_host(c->exec.stream, c->own, c->memory[OWN], sizeof c->own));
    int waited = stream_wait(c->exec.stream);
    return status ? status : waited;
}

/* Returns the largest error of values in roundings to bf16: 2^-8 of a value, and of 1 for smaller ones. */
static double largest_error(const struct comparison *c, const uint16_t *values) {
    double largest = 0;
    for (int i = 0; i < VALUES; i++) {
        double x = bf16_to_float(c->input[i]),
               right = 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
        largest = fmax(largest, fabs(bf16_to_float(values[i]) - right) / fmax(fabs(right), 1) / 0x1p-8);
    }
    return largest;
}

static json_t *describe(const struct comparison *c) {
    int different = 0;
    for (int i = 0; i < VALUES; i++)
        different += c->of_product[i] != c->own[i];
    return json_pack("{s:i, s:i, s:f, s:f}", "values", VALUES, "different", different, "product_error_roundings",
                     largest_error(c, c->of_product), "own_error_roundings", largest_error(c, c->own));
}

int bench_compare_gelu(struct device *device, json_t **found) {
    const struct ops *ops = ops_for(device);
    struct comparison *c = calloc(1, sizeof *c);
    *found = NULL;
    int status = c ? stream_open(device, &c->exec.stream) : status_no_memory();
    THEN(status, make_arrays(c));
    struct gemm product = {.b_transposed = true, .epilogue = EPILOGUE_GELU_TANH};
    if (!status) {
        product.a = matrix_plain(DTYPE_BF16, c->memory[INPUT], ROWS, COLUMNS);
        product.b = matrix_plain(DTYPE_BF16, c->memory[WEIGHT], COLUMNS, COLUMNS);
        product.c = matrix_plain(DTYPE_BF16, c->memory[OF_PRODUCT], ROWS, COLUMNS);
        product.bias = c->memory[BIAS];
        product.aux = c->memory[SAVED];
    }
    if (!status && ops->gemm_supports(device, &product)) {
        c->exec.workspace_bytes = ops->gemm_workspace(device, &product);
        status = device_alloc(device, c->exec.workspace_bytes, &c->exec.workspace);
        THEN(status, compute(c, ops, &product));
        *found = status ? NULL : describe(c);
    }
    for (int i = 0; c && i < ARRAYS; i++)
        device_free(device, c->memory[i]);
    if (c) {
        device_free(device, c->exec.workspace);
        stream_close(c->exec.stream);
    }
    free(c);
    return status;
}
