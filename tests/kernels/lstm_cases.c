/* One direction of an LSTM layer: {steps, hidden}; the variant says whether it goes backwards. */
#include "op_cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SUMS, WEIGHT, BIAS, GATES, CELLS, Y, DY };
enum { REVERSE = 1 };

static struct op_tensor tensor(const char *name, enum op_role role, int64_t rows, int64_t cols) {
    return (struct op_tensor){.name = name, .role = role, .type = DTYPE_F32, .rows = rows, .cols = cols};
}

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

/* From SUMS, WEIGHT and BIAS: gates [T, 4H], cells [T, H], y [T, H]. */
static void compute(const struct op_run *run, double *gates, double *cells, double *y) {
    const struct op_tensor *t = run->tensor;
    int64_t T = run->shape[0], H = run->shape[1];
    for (int64_t n = 0; n < T; n++) {
        bool is_reverse = run->variant & REVERSE;
        int64_t step = is_reverse ? T - 1 - n : n, before = is_reverse ? step + 1 : step - 1;
        double *g = gates + step * 4 * H;
        for (int64_t r = 0; r < 4 * H; r++) {
            double sum = t[SUMS].value[step * 4 * H + r] + t[BIAS].value[r];
            for (int64_t j = 0; j < H && n; j++)
                sum += t[WEIGHT].value[r * H + j] * y[before * H + j];
            g[r] = r / H == 2 ? tanh(sum) : sigmoid(sum);
        }
        for (int64_t j = 0; j < H; j++) {
            cells[step * H + j] = g[j] * g[2 * H + j] + (n ? g[H + j] * cells[before * H + j] : 0);
            y[step * H + j] = g[3 * H + j] * tanh(cells[step * H + j]);
        }
    }
}

struct states {
    double *gates, *cells, *y;
};

static struct states states_of(const struct op_run *run) {
    size_t count = (size_t)(run->shape[0] * run->shape[1]);
    struct states s = {malloc((4 * count + 1) * sizeof(double)), malloc((count + 1) * sizeof(double)),
                       malloc((count + 1) * sizeof(double))};
    compute(run, s.gates, s.cells, s.y);
    return s;
}

static void states_free(struct states s) {
    free(s.gates);
    free(s.cells);
    free(s.y);
}

static void fill_gates(const struct op_run *run, struct op_tensor *t) {
    if (!run->tensor[DY].role) {
        memcpy(t->value, run->tensor[SUMS].value, (size_t)(t->rows * t->cols) * sizeof *t->value);
        return;
    }
    struct states s = states_of(run);
    memcpy(t->value, s.gates, (size_t)(t->rows * t->cols) * sizeof *t->value);
    states_free(s);
}

static void fill_cells(const struct op_run *run, struct op_tensor *t) {
    struct states s = states_of(run);
    memcpy(t->value, s.cells, (size_t)(t->rows * t->cols) * sizeof *t->value);
    states_free(s);
}

static void setup(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t T = run->shape[0], H = run->shape[1];
    t[SUMS] = tensor("sums", OP_IN, T, 4 * H);
    t[WEIGHT] = tensor("weight", OP_IN, 4 * H, H);
    t[WEIGHT].spread = 1 / sqrt((double)H);
    t[BIAS] = tensor("bias", OP_IN, 1, 4 * H);
    t[GATES] = tensor("gates", OP_INOUT, T, 4 * H);
    t[GATES].fill = fill_gates;
    t[CELLS] = tensor("cells", OP_OUT, T, H);
    t[Y] = tensor("y", OP_OUT, T, H);
    t[Y].stride = 2 * H; /* beside the other direction's */
    t[GATES].bound = t[CELLS].bound = t[Y].bound = op_bound(T * 16);
}

static void backward_setup(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    setup(run);
    t[Y].role = 0;
    t[CELLS].role = OP_IN;
    t[CELLS].fill = fill_cells;
    t[DY] = tensor("dy", OP_IN, run->shape[0], run->shape[1]);
    t[DY].stride = 2 * run->shape[1];
    t[GATES].gradient_of = 1 + SUMS;
}

static struct lstm arguments(const struct op_run *run) {
    const struct op_tensor *t = run->tensor;
    return (struct lstm){.steps = run->shape[0],
                         .hidden = run->shape[1],
                         .is_reverse = run->variant & REVERSE,
                         .weight = t[WEIGHT].data,
                         .bias = t[BIAS].data,
                         .gates = t[GATES].data,
                         .cells = t[CELLS].data,
                         .y = t[Y].data,
                         .y_stride = 2 * run->shape[1],
                         .dy = t[DY].data};
}

static int forward_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct lstm a = arguments(run);
    return ops->lstm_forward(exec, &a);
}

static int backward_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct lstm a = arguments(run);
    return ops->lstm_backward(exec, &a);
}

static size_t workspace(const struct op_run *run, const struct ops *ops, struct device *device) {
    struct lstm a = arguments(run);
    return ops->lstm_backward_workspace(device, &a);
}

static void forward_reference(struct op_run *run) {
    compute(run, run->tensor[GATES].expected, run->tensor[CELLS].expected, run->tensor[Y].expected);
}

static void backward_reference(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t T = run->shape[0], H = run->shape[1];
    double *dh = calloc((size_t)(2 * H + 1), sizeof *dh), *dc = dh + H;
    for (int64_t n = T - 1; n >= 0; n--) {
        bool is_reverse = run->variant & REVERSE;
        int64_t step = is_reverse ? T - 1 - n : n, before = is_reverse ? step + 1 : step - 1;
        const double *g = t[GATES].value + step * 4 * H, *c = t[CELLS].value;
        double *d = t[GATES].expected + step * 4 * H;
        for (int64_t j = 0; j < H; j++) {
            double u = tanh(c[step * H + j]), h = dh[j] + t[DY].value[step * H + j];
            double cell = dc[j] + h * g[3 * H + j] * (1 - u * u), last = n ? c[before * H + j] : 0;
            d[j] = cell * g[2 * H + j] * g[j] * (1 - g[j]);
            d[H + j] = cell * last * g[H + j] * (1 - g[H + j]);
            d[2 * H + j] = cell * g[j] * (1 - g[2 * H + j] * g[2 * H + j]);
            d[3 * H + j] = h * u * g[3 * H + j] * (1 - g[3 * H + j]);
            dc[j] = cell * g[H + j];
        }
        for (int64_t j = 0; j < H; j++) {
            dh[j] = 0;
            for (int64_t r = 0; r < 4 * H; r++)
                dh[j] += t[WEIGHT].value[r * H + j] * d[r];
        }
    }
    free(dh);
}

static double loss(const struct op_run *run) {
    struct states s = states_of(run);
    double sum = 0;
    for (int64_t i = 0; i < run->shape[0] * run->shape[1]; i++)
        sum += s.y[i] * run->tensor[DY].value[i];
    states_free(s);
    return sum;
}

static void cost(const struct op_run *run, double *flops, double *bytes) {
    *flops = 8.0 * (double)(run->shape[0] * run->shape[1] * run->shape[1]);
    *bytes = 16.0 * (double)(run->shape[0] * run->shape[1] * run->shape[1]);
}

static const struct op_kind lstm_forward = {
    .name = "lstm_forward", .setup = setup, .call = forward_call, .reference = forward_reference, .cost = cost};
static const struct op_kind lstm_backward = {.name = "lstm_backward",
                                             .setup = backward_setup,
                                             .workspace = workspace,
                                             .call = backward_call,
                                             .reference = backward_reference,
                                             .loss = loss,
                                             .cost = cost};

static const struct op_case cases[] = {
    {&lstm_forward, NULL, OP_TEST, DTYPE_F32, 0, {5, 8}},
    {&lstm_forward, "reverse, odd", OP_TEST, DTYPE_F32, REVERSE, {7, 19}},
    {&lstm_forward, "one step", OP_TEST, DTYPE_F32, 0, {1, 6}},
    {&lstm_forward, "parallel", OP_TEST, DTYPE_F32, 0, {4, 150}},
    {&lstm_backward, NULL, OP_TEST, DTYPE_F32, 0, {5, 8}},
    {&lstm_backward, "reverse, odd", OP_TEST, DTYPE_F32, REVERSE, {7, 19}},
    {&lstm_backward, "one step", OP_TEST, DTYPE_F32, REVERSE, {1, 6}},
    {&lstm_backward, "parallel", OP_TEST, DTYPE_F32, 0, {4, 150}},
    {&lstm_forward, "p-tuning of gpt2", OP_BENCH, DTYPE_F32, 0, {20, 768}},
    {&lstm_backward, "p-tuning of gpt2", OP_BENCH, DTYPE_F32, 0, {20, 768}},
};

const struct op_family lstm_family = {"lstm", cases, sizeof cases / sizeof *cases};
