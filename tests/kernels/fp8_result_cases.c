/* Operations that write their result in FP8 {rows, columns of the result, exponent of the scale}. What they must give
 * is what the same operation in bf16 and a cast after it give, bit for bit: prepare runs these. */
#include "fp8_memory.h"

#include <stdlib.h>

/* The operation, and how it writes. AGAIN: a norm's forward by rows, then the call for columns alone. */
enum result { NORM, GELU, GELU_BACKWARD, SWIGLU, SWIGLU_BACKWARD, RESULTS = 7 };
enum { E5M2 = 8, BY_ROWS = 16, BY_COLUMNS = 32, ALONE = 64, AGAIN = 128, RMS = 256, EXACT = 512, NO_AMAX = 1024 };
enum { X, GAIN, BIAS, DY, SCALE, INVERSE, MEAN, RSTD, AMAX, RESULT, Y };
static const float EPSILON = 1e-5f;

static enum result result_of(const struct op_run *run) {
    return (enum result)(run->variant & RESULTS);
}

static bool has(const struct op_run *run, int flag) {
    return run->variant & flag;
}

static struct op_tensor tensor(const char *name, enum op_role role, enum dtype type, int64_t rows, int64_t cols) {
    return (struct op_tensor){.name = name, .role = role, .type = type, .rows = rows, .cols = cols};
}

static void setup(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    enum result result = result_of(run);
    int64_t rows = run->shape[0], cols = run->shape[1];
    t[X] = tensor("x", OP_IN, DTYPE_BF16, rows, result == SWIGLU ? 2 * cols : cols);
    if (result == NORM) {
        t[X].center = 3;
        t[GAIN] = tensor("gain", OP_IN, DTYPE_BF16, 1, cols);
        t[RSTD] = tensor("rstd", OP_OUT, DTYPE_F32, 1, rows);
    }
    if (result == NORM && !has(run, RMS)) {
        t[BIAS] = tensor("bias", OP_IN, DTYPE_BF16, 1, cols);
        t[MEAN] = tensor("mean", OP_OUT, DTYPE_F32, 1, rows);
    }
    if (result == GELU_BACKWARD || result == SWIGLU_BACKWARD)
        t[DY] = tensor("dy", OP_IN, DTYPE_BF16, rows, result == GELU_BACKWARD ? cols : cols / 2);
    t[SCALE] = tensor("scale", OP_IN, DTYPE_F32, 1, 1);
    t[SCALE].fill = fill_scale;
    t[INVERSE] = tensor("inverse", OP_IN, DTYPE_F32, 1, 1);
    if (!has(run, NO_AMAX))
        t[AMAX] = tensor("amax", OP_INOUT, DTYPE_F32, 1, 1);
    if (!has(run, ALONE))
        t[RESULT] = tensor("result", OP_OUT, DTYPE_BF16, rows, cols);
    t[Y] = fp8_memory(run, rows, cols);
}

/* The memory that a call writes to. Of the operation in bf16, `fp8` has no type. */
struct outputs {
    void *result;
    float *mean, *rstd;
    struct fp8_output fp8;
    bool is_again;
};

static int run_norm(const struct op_run *run, const struct ops *ops, const struct exec *exec,
                    const struct outputs *out) {
    const struct op_tensor *t = run->tensor;
    return ops->norm_forward(exec, &(const struct norm){.kind = has(run, RMS) ? NORM_RMS : NORM_LAYER,
                                                        .rows = run->shape[0],
                                                        .cols = run->shape[1],
                                                        .type = DTYPE_BF16,
                                                        .x = t[X].data,
                                                        .gain = t[GAIN].data,
                                                        .bias = t[BIAS].data,
                                                        .epsilon = EPSILON,
                                                        .y = out->result,
                                                        .mean = out->mean,
                                                        .rstd = out->rstd,
                                                        .fp8 = out->fp8,
                                                        .is_fp8_alone = !out->result,
                                                        .is_again = out->is_again});
}

static int run_gelu(const struct op_run *run, const struct ops *ops, const struct exec *exec,
                    const struct outputs *out) {
    const struct op_tensor *t = run->tensor;
    const struct gelu call = {.count = run->shape[0] * run->shape[1],
                              .cols = run->shape[1],
                              .type = DTYPE_BF16,
                              .is_tanh = !has(run, EXACT),
                              .x = t[X].data,
                              .y = out->result,
                              .dy = t[DY].data,
                              .dx = out->result,
                              .fp8 = out->fp8,
                              .is_fp8_alone = !out->result};
    return result_of(run) == GELU ? ops->gelu_forward(exec, &call) : ops->gelu_backward(exec, &call);
}

static int run_swiglu(const struct op_run *run, const struct ops *ops, const struct exec *exec,
                      const struct outputs *out) {
    const struct op_tensor *t = run->tensor;
    bool is_forward = result_of(run) == SWIGLU;
    const struct swiglu call = {.rows = run->shape[0],
                                .cols = is_forward ? run->shape[1] : run->shape[1] / 2,
                                .type = DTYPE_BF16,
                                .x = t[X].data,
                                .y = out->result,
                                .dy = t[DY].data,
                                .dx = out->result,
                                .fp8 = out->fp8,
                                .is_fp8_alone = !out->result};
    return is_forward ? ops->swiglu_forward(exec, &call) : ops->swiglu_backward(exec, &call);
}

static int run_result(const struct op_run *run, const struct ops *ops, const struct exec *exec,
                      const struct outputs *out) {
    enum result result = result_of(run);
    return result == NORM                              ? run_norm(run, ops, exec, out)
           : result == GELU || result == GELU_BACKWARD ? run_gelu(run, ops, exec, out)
                                                       : run_swiglu(run, ops, exec, out);
}

static struct fp8_output output_of(const struct op_run *run) {
    const struct op_tensor *t = run->tensor;
    return (struct fp8_output){.type = has(run, E5M2) ? DTYPE_E5M2 : DTYPE_E4M3,
                               .copies = has(run, BY_ROWS)      ? FP8_BY_ROWS
                                         : has(run, BY_COLUMNS) ? FP8_BY_COLUMNS
                                                                : FP8_ANY,
                               .scale = t[SCALE].data,
                               .inverse = t[INVERSE].data,
                               .amax = t[AMAX].data,
                               .y = t[Y].data};
}

static int call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    const struct op_tensor *t = run->tensor;
    struct outputs out = {t[RESULT].data, t[MEAN].data, t[RSTD].data, output_of(run), false};
    if (has(run, AGAIN))
        out.fp8.copies = FP8_BY_ROWS;
    int status = run_result(run, ops, exec, &out);
    if (status || !has(run, AGAIN))
        return status;
    out.fp8.copies = FP8_BY_COLUMNS;
    out.fp8.amax = NULL;
    out.is_again = true;
    out.result = NULL;
    return run_result(run, ops, exec, &out);
}

/* Reads a tensor's copy, and makes it what is expected. */
static int expect(struct op_run *run, int index, struct stream *stream, const void *memory) {
    struct op_tensor *t = &run->tensor[index];
    size_t count = (size_t)(t->rows * t->cols), size = dtype_bytes(t->type);
    char *host = malloc(count * size);
    if (!host)
        return status_fail(STATUS_MEMORY, "out of memory");
    int status = stream_copy_to_host(stream, host, memory, count * size);
    if (!status)
        status = stream_wait(stream);
    for (size_t i = 0; i < count && !status; i++)
        t->expected[i] = op_decode(t->type, host + i * size);
    free(host);
    return status;
}

/* Runs the operation in bf16 and the cast, in memory of their own: `copy` has a copy of each output. */
static int run_apart(struct op_run *run, const struct ops *ops, const struct exec *exec, void *const *copy) {
    const struct op_tensor *t = run->tensor;
    const struct outputs out = {.result = copy[RESULT], .mean = copy[MEAN], .rstd = copy[RSTD]};
    struct fp8_cast cast = {
        .rows = run->shape[0], .cols = run->shape[1], .stride = run->shape[1], .x = copy[RESULT], .to = output_of(run)};
    cast.to.y = copy[Y];
    cast.to.amax = t[AMAX].role ? copy[AMAX] : NULL;
    int status = run_result(run, ops, exec, &out);
    if (!status && is_on_card(run))
        status = stream_copy(exec->stream, copy[Y], t[Y].data, (size_t)t[Y].cols);
    if (!status && t[AMAX].role)
        status = stream_copy(exec->stream, copy[AMAX], t[AMAX].data, sizeof(float));
    if (!status)
        status = ops->fp8_cast(exec, &cast);
    for (int i = MEAN; i <= Y && !status; i++)
        if (t[i].role)
            status = expect(run, i, exec->stream, copy[i]);
    return status;
}

static int prepare(struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct device *device = stream_device(exec->stream);
    const struct op_tensor *t = run->tensor;
    void *copy[Y + 1] = {0};
    int status = STATUS_OK;
    if (run->is_benchmark)
        return STATUS_OK;
    for (int i = MEAN; i <= Y && !status; i++)
        if (t[i].role || i == RESULT)
            status = device_alloc(device,
                                  i == RESULT ? (size_t)(run->shape[0] * run->shape[1]) * sizeof(uint16_t)
                                              : (size_t)(t[i].rows * t[i].cols) * dtype_bytes(t[i].type),
                                  &copy[i]);
    if (!status)
        status = run_apart(run, ops, exec, copy);
    int waited = stream_wait(exec->stream);
    for (int i = MEAN; i <= Y; i++)
        device_free(device, copy[i]);
    return status ? status : waited;
}

static void reference(struct op_run *run) {
    (void)run; /* see prepare */
}

/* The inputs, the result in bf16 if it is written, and the copies. */
static void cost(const struct op_run *run, double *flops, double *bytes) {
    double count = (double)run->shape[0] * (double)run->shape[1];
    bool is_one = has(run, BY_ROWS) || has(run, BY_COLUMNS);
    *flops = 0;
    *bytes = count * (has(run, AGAIN) || !is_one ? 2 : 1) + (has(run, ALONE) ? 0 : 2 * count);
    for (int i = X; i <= DY; i++)
        *bytes += 2.0 * (double)(run->tensor[i].rows * run->tensor[i].cols) * (has(run, AGAIN) ? 2 : 1);
}

static const struct op_kind kind = {.name = "fp8_result",
                                    .setup = setup,
                                    .prepare = prepare,
                                    .supports = cast_supports,
                                    .call = call,
                                    .reference = reference,
                                    .cost = cost};

#define CASE(note, use, variant, ...)                                                                                  \
    {                                                                                                                  \
        &kind, note, use, DTYPE_BF16, variant, {                                                                       \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    }
static const struct op_case cases[] = {
    CASE("layernorm", OP_TEST, NORM | BY_ROWS, 33, 768, 5),
    CASE("rmsnorm, odd accesses, alone", OP_TEST, NORM | RMS | BY_ROWS | ALONE, 19, 24, 3),
    CASE("layernorm, long rows", OP_TEST, NORM | BY_ROWS, 5, 1800, 5),
    CASE("layernorm, longer than shared memory, alone", OP_TEST, NORM | BY_ROWS | ALONE, 2, 25000, 9),
    CASE("layernorm, again", OP_TEST, NORM | AGAIN | ALONE, 33, 272, 5),
    CASE("rmsnorm, again", OP_TEST, NORM | RMS | AGAIN, 140, 48, 0),
    CASE("gelu", OP_TEST, GELU, 33, 272, 5),
    CASE("gelu, exact, by rows, alone", OP_TEST, GELU | EXACT | BY_ROWS | ALONE, 130, 48, 9),
    CASE("gelu, by columns, alone", OP_TEST, GELU | BY_COLUMNS | ALONE | NO_AMAX, 33, 144, 5),
    CASE("gelu, odd sizes", OP_TEST, GELU, 7, 77, 0),
    CASE("gelu backward", OP_TEST, GELU_BACKWARD | E5M2, 33, 144, 12),
    CASE("gelu backward, exact, alone", OP_TEST, GELU_BACKWARD | EXACT | ALONE, 17, 80, 5),
    CASE("swiglu", OP_TEST, SWIGLU | BY_ROWS, 33, 144, 5),
    CASE("swiglu, by columns, odd sizes, alone", OP_TEST, SWIGLU | BY_COLUMNS | ALONE, 9, 77, 5),
    CASE("swiglu backward", OP_TEST, SWIGLU_BACKWARD | E5M2, 33, 160, 12),
    CASE("swiglu backward, by rows, alone", OP_TEST, SWIGLU_BACKWARD | E5M2 | BY_ROWS | ALONE, 130, 64, 5),
    CASE("gpt2 norm", OP_BENCH, NORM | BY_ROWS | ALONE, 1024, 768, 5),
    CASE("gpt2 norm, again", OP_BENCH, NORM | AGAIN | ALONE, 1024, 768, 5),
    CASE("gpt2 gelu", OP_BENCH, GELU | BY_ROWS | ALONE, 1024, 3072, 5),
    CASE("gpt2 gelu, columns", OP_BENCH, GELU | BY_COLUMNS | ALONE | NO_AMAX, 1024, 3072, 5),
    CASE("gpt2 gelu backward", OP_BENCH, GELU_BACKWARD | E5M2, 1024, 3072, 12),
    CASE("smollm2 swiglu", OP_BENCH, SWIGLU | BY_ROWS | ALONE, 1024, 1536, 5),
    CASE("smollm2 swiglu backward", OP_BENCH, SWIGLU_BACKWARD | E5M2 | ALONE, 1024, 3072, 12),
};

const struct op_family fp8_result_family = {"fp8_result", cases, sizeof cases / sizeof *cases};
