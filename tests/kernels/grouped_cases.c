/* Operations on rows of many adapters: products, scaled columns, rows added where they belong. The adapters have
 * different sizes; one has nothing at this place, some segments have no adapter, some rows no segment. */
#include "op_cases.h"

#include <math.h>
#include <stdlib.h>

enum {
    WEIGHT_OTHER = 1, /* the other type than the case's */
    OUT_OTHER = 2,
    BIAS = 4,
    BIAS_OTHER = 8,
    ACCUMULATE = 16,
    BY_INPUT = 32,
    BOTH_LAYOUTS = 64, /* each adapter has its own */
    UNITS = 128,       /* each adapter has its own */
    RANGE = 256,       /* only some rows, and a has no others */
    BY_ZERO = 512,
    IN_PLACE = 1024,
    DIFFERENCE = 2048,
    UNCUT = 4096,   /* each adapter has one segment, and each row one */
    ALIGNED = 8192, /* rows of whole accesses */
};
enum { A, MATRIX, BIAS_VECTOR, C };
enum { SEGMENTS = 1100, ENTRY = 1, ENTRIES = 3, MARGIN = 3, ABSENT = 1 /* the adapter that has nothing here */ };

static enum dtype other(enum dtype type) {
    return type == DTYPE_F32 ? DTYPE_BF16 : DTYPE_F32;
}

static enum dtype type_of(const struct op_run *run, int bit) {
    return run->variant & bit ? other(run->type) : run->type;
}

/* ---- who has which rows: shape {rows, adapters, k, n, longest segment} ---- */

struct place {
    int64_t first, rows;
    int adapter; /* -1: none */
};
struct places {
    int count;
    struct place at[SEGMENTS];
};

static void places_of(const struct op_run *run, struct places *places) {
    int64_t rows = run->shape[0], adapters = run->shape[1], longest = run->shape[4];
    bool is_uncut = run->variant & UNCUT;
    places->count = 0;
    for (int64_t row = 0, i = 0; row < rows; i++) {
        struct philox random = philox(5, (uint32_t)i, 0, 0, (uint32_t)RNG_TEST << 24);
        int64_t length = is_uncut ? longest : random.word[0] % (longest + 1);
        length = length < rows - row ? length : rows - row;
        places->at[places->count++] =
            (struct place){.first = row, .rows = length, .adapter = i % 7 == 6 && !is_uncut ? -1 : (int)(i % adapters)};
        row += length + (i % 5 == 4 && !is_uncut);
    }
    for (int i = 0; i < places->count; i++) { /* in any order */
        int with = (int)(philox(6, (uint32_t)i, 0, 0, (uint32_t)RNG_TEST << 24).word[0] % (uint32_t)places->count);
        struct place kept = places->at[i];
        places->at[i] = places->at[with];
        places->at[with] = kept;
    }
}

static int64_t first_row(const struct op_run *run) {
    return run->variant & RANGE ? run->shape[0] / 5 : 0;
}

static int64_t range_rows(const struct op_run *run) {
    return run->variant & RANGE ? run->shape[0] / 2 : run->shape[0];
}

static struct group_entry entry_of(const struct op_run *run, int adapter) {
    const struct op_tensor *t = run->tensor;
    int64_t k = run->shape[2], n = run->shape[3];
    bool is_small = adapter % 3 == 2 && !(run->variant & UNCUT);
    return (struct group_entry){
        .n = adapter == ABSENT && !(run->variant & UNCUT) ? 0
             : is_small && n > 1                          ? n - 1
                                                          : n,
        .k = is_small && k > 1 ? k - 1 : k,
        .first_column = run->variant & ALIGNED ? 0 : MARGIN - adapter % MARGIN,
        .data = (char *)t[MATRIX].data + (size_t)(adapter * n * k) * dtype_bytes(t[MATRIX].type),
        .is_by_input = run->variant & BOTH_LAYOUTS ? adapter % 2 : run->variant & BY_INPUT,
        .type = t[MATRIX].type,
        .bias = t[BIAS_VECTOR].role
                    ? (char *)t[BIAS_VECTOR].data + (size_t)(adapter * n) * dtype_bytes(t[BIAS_VECTOR].type)
                    : NULL,
        .bias_type = t[BIAS_VECTOR].type,
        .scale = run->variant & BY_ZERO ? 0 : 0.5f + 0.75f * (float)adapter,
        .unit = run->variant & UNITS ? (enum group_unit)(adapter % (GROUP_UNIT_TANH + 1)) : GROUP_UNIT_NONE};
}

/* Device memory: each adapter's entries, of which only ENTRY is set, and after them the segments. */
static int prepare(struct op_run *run, const struct ops *ops, const struct exec *exec) {
    (void)ops;
    struct places *places = malloc(sizeof *places);
    size_t entry_count = (size_t)run->shape[1] * ENTRIES;
    struct group_entry *entries = malloc(entry_count * sizeof *entries);
    struct group_segment *segments = malloc(SEGMENTS * sizeof *segments);
    int status = places && entries && segments ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
    size_t entry_bytes = entry_count * sizeof *entries;
    if (!status)
        status = device_alloc(stream_device(exec->stream), entry_bytes + SEGMENTS * sizeof *segments, &run->state);
    if (!status) {
        memset(entries, 0xff, entry_bytes);
        for (int i = 0; i < run->shape[1]; i++)
            entries[i * ENTRIES + ENTRY] = entry_of(run, i);
        places_of(run, places);
        for (int i = 0; i < places->count; i++) {
            const struct place *place = &places->at[i];
            size_t at = (size_t)place->adapter * ENTRIES * sizeof *entries;
            segments[i] = (struct group_segment){
                .first_row = place->first,
                .rows = place->rows,
                .entries = place->adapter < 0 ? NULL : (struct group_entry *)(void *)((char *)run->state + at)};
        }
        run->host[0] = places->count;
        run->host[1] = (int64_t)entry_bytes;
        status = stream_copy_to_device(exec->stream, run->state, entries, entry_bytes);
    }
    if (!status)
        status = stream_copy_to_device(exec->stream, (char *)run->state + entry_bytes, segments,
                                       (size_t)places->count * sizeof *segments);
    int waited = stream_wait(exec->stream);
    free(places);
    free(entries);
    free(segments);
    return status ? status : waited;
}

static void release(struct op_run *run, struct device *device) {
    device_free(device, run->state);
    run->state = NULL;
}

static const struct group_segment *segments_of(const struct op_run *run) {
    return (const struct group_segment *)(const void *)((const char *)run->state + run->host[1]);
}

static struct op_tensor tensor(const char *name, enum op_role role, enum dtype type, int64_t rows, int64_t cols) {
    return (struct op_tensor){.name = name, .role = role, .type = type, .rows = rows, .cols = cols};
}

/* The adapter of each row of the range; -1: nothing happens to it. The caller frees. */
static int *adapters_of(const struct op_run *run) {
    struct places *places = malloc(sizeof *places);
    int *adapter = malloc((size_t)(run->shape[0] + 1) * sizeof *adapter);
    places_of(run, places);
    for (int64_t i = 0; i < run->shape[0]; i++)
        adapter[i] = -1;
    for (int i = 0; i < places->count; i++)
        for (int64_t row = places->at[i].first; row < places->at[i].first + places->at[i].rows; row++)
            if (row >= first_row(run) && row < first_row(run) + range_rows(run))
                adapter[row] = places->at[i].adapter;
    free(places);
    return adapter;
}

static void keep_values(struct op_tensor *t) {
    memcpy(t->expected, t->value, (size_t)(t->rows * t->cols) * sizeof *t->value);
}

/* ---- products ---- */

static void gemm_setup(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t rows = run->shape[0], adapters = run->shape[1], k = run->shape[2], n = run->shape[3];
    t[A] = tensor("a", OP_IN, run->type, range_rows(run), k);
    t[A].stride = run->variant & UNCUT ? k : k + 3;
    t[MATRIX] = tensor("matrix", OP_IN, type_of(run, WEIGHT_OTHER), adapters * n, k);
    t[MATRIX].spread = 1 / sqrt((double)k);
    if (run->variant & BIAS)
        t[BIAS_VECTOR] = tensor("bias", OP_IN, type_of(run, BIAS_OTHER), adapters, n);
    t[C] = tensor("c", OP_INOUT, type_of(run, OUT_OTHER), rows, n + 2 * MARGIN);
    t[C].stride = run->variant & UNCUT ? n + 16 : n + 2 * MARGIN + 2;
    t[C].bound = op_bound(k + 8);
}

static int gemm_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    const struct op_tensor *t = run->tensor;
    struct grouped_gemm a = {.count = run->host[0],
                             .segments = segments_of(run),
                             .entry = ENTRY,
                             .first_row = first_row(run),
                             .rows = range_rows(run),
                             .a = t[A].data,
                             .a_row = first_row(run),
                             .lda = t[A].stride,
                             .a_type = t[A].type,
                             .c = t[C].data,
                             .ldc = t[C].stride,
                             .c_type = t[C].type,
                             .accumulate = run->variant & ACCUMULATE};
    return ops->grouped_gemm(exec, &a);
}

static double unit_of(double x, enum group_unit unit) {
    switch (unit) {
    case GROUP_UNIT_NONE:
        return x;
    case GROUP_UNIT_GELU_TANH:
        return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    case GROUP_UNIT_GELU_EXACT:
        return 0.5 * x * erfc(-x * 0.7071067811865476);
    case GROUP_UNIT_RELU:
        return x > 0 ? x : 0;
    case GROUP_UNIT_SWISH:
        return x / (1 + exp(-x));
    case GROUP_UNIT_TANH:
        return tanh(x);
    }
    return NAN;
}

static double output(const struct op_run *run, const struct group_entry *e, int adapter, int64_t row, int64_t j) {
    const struct op_tensor *t = run->tensor;
    int64_t k = run->shape[2], n = run->shape[3];
    const double *a = t[A].value + (row - first_row(run)) * k, *matrix = t[MATRIX].value + adapter * n * k;
    double sum = t[BIAS_VECTOR].role ? t[BIAS_VECTOR].value[adapter * n + j] : 0;
    for (int64_t i = 0; i < e->k; i++)
        sum += a[i] * (e->is_by_input ? matrix[i * e->n + j] : matrix[j * e->k + i]);
    return (double)e->scale * unit_of(sum, e->unit);
}

static void gemm_reference(struct op_run *run) {
    struct op_tensor *c = &run->tensor[C];
    int *adapter = adapters_of(run);
    keep_values(c);
    for (int64_t row = 0; row < run->shape[0]; row++) {
        if (adapter[row] < 0)
            continue;
        struct group_entry e = entry_of(run, adapter[row]);
        for (int64_t j = 0; j < e.n; j++) {
            int64_t at = row * c->cols + e.first_column + j;
            c->expected[at] = output(run, &e, adapter[row], row, j) + (run->variant & ACCUMULATE ? c->value[at] : 0);
        }
    }
    free(adapter);
}

static void gemm_cost(const struct op_run *run, double *flops, double *bytes) {
    double rows = (double)run->shape[0], k = (double)run->shape[2], n = (double)run->shape[3];
    double places = ceil(rows / (double)run->shape[4]);
    *flops = 2 * rows * k * n;
    *bytes = fmin((double)run->shape[1], places) * k * n * (double)dtype_bytes(run->tensor[MATRIX].type) +
             rows * k * (double)dtype_bytes(run->type) +
             rows * n * (double)dtype_bytes(run->tensor[C].type) * (run->variant & ACCUMULATE ? 2 : 1);
}

static const struct op_kind gemm = {.name = "grouped_gemm",
                                    .setup = gemm_setup,
                                    .prepare = prepare,
                                    .release = release,
                                    .call = gemm_call,
                                    .reference = gemm_reference,
                                    .cost = gemm_cost};

/* ---- scaled columns: k is 1 ---- */

static void scale_setup(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t rows = run->shape[0], adapters = run->shape[1], n = run->shape[3];
    bool is_over = run->variant & IN_PLACE;
    if (!is_over)
        t[A] = tensor("x", OP_IN, run->type, range_rows(run), n + 2 * MARGIN);
    t[A].stride = n + 2 * MARGIN + 1;
    t[MATRIX] = tensor("scale", OP_IN, type_of(run, WEIGHT_OTHER), adapters, n);
    t[MATRIX].center = 1;
    if (run->variant & BIAS)
        t[BIAS_VECTOR] = tensor("fixed", OP_IN, type_of(run, BIAS_OTHER), adapters, n);
    t[C] = tensor("y", OP_INOUT, type_of(run, OUT_OTHER), rows, n + 2 * MARGIN);
    t[C].stride = n + 2 * MARGIN + 2;
    t[C].bound = op_bound(4);
}

static int scale_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    const struct op_tensor *t = run->tensor, *x = &t[run->variant & IN_PLACE ? C : A];
    struct group_scale a = {.count = run->host[0],
                            .segments = segments_of(run),
                            .entry = ENTRY,
                            .first_row = first_row(run),
                            .rows = range_rows(run),
                            .x = x->data,
                            .x_row = run->variant & IN_PLACE ? 0 : first_row(run),
                            .ldx = x->stride,
                            .x_type = x->type,
                            .y = t[C].data,
                            .ldy = t[C].stride,
                            .y_type = t[C].type,
                            .is_difference = run->variant & DIFFERENCE};
    return ops->group_scale(exec, &a);
}

static double scaled(const struct op_run *run, double x, int64_t at) {
    const struct op_tensor *t = run->tensor;
    double less_one = t[MATRIX].value[at] - 1;
    if (run->variant & DIFFERENCE)
        return x * less_one;
    return x + (x - (run->variant & BIAS ? t[BIAS_VECTOR].value[at] : 0)) * less_one;
}

static void scale_reference(struct op_run *run) {
    struct op_tensor *y = &run->tensor[C], *x = &run->tensor[run->variant & IN_PLACE ? C : A];
    int *adapter = adapters_of(run);
    keep_values(y);
    for (int64_t row = 0; row < run->shape[0]; row++) {
        if (adapter[row] < 0)
            continue;
        struct group_entry e = entry_of(run, adapter[row]);
        int64_t x_row = run->variant & IN_PLACE ? row : row - first_row(run);
        for (int64_t j = 0; j < e.n; j++)
            y->expected[row * y->cols + e.first_column + j] =
                scaled(run, x->value[x_row * x->cols + e.first_column + j], adapter[row] * run->shape[3] + j);
    }
    free(adapter);
}

static void scale_cost(const struct op_run *run, double *flops, double *bytes) {
    *flops = 0;
    *bytes = 2 * (double)(run->shape[0] * run->shape[3]) * (double)dtype_bytes(run->type);
}

static const struct op_kind scale = {.name = "group_scale",
                                     .setup = scale_setup,
                                     .prepare = prepare,
                                     .release = release,
                                     .call = scale_call,
                                     .reference = scale_reference,
                                     .cost = scale_cost};

/* ---- norms: k is 1 ---- */

static const float epsilon = 1e-5f;

static void norm_setup(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t rows = run->shape[0], adapters = run->shape[1], n = run->shape[3];
    t[MATRIX] = tensor("gain", OP_IN, run->type, adapters, n);
    t[MATRIX].center = 1;
    t[BIAS_VECTOR] = tensor("bias", OP_IN, run->type, adapters, n);
    t[C] = tensor("x", OP_INOUT, run->type, rows, n + 2 * MARGIN);
    t[C].center = 0.5;
    t[C].stride = n + (run->variant & ALIGNED ? 16 : 2 * MARGIN + 2);
    t[C].bound = op_bound(n);
}

static int norm_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    const struct op_tensor *x = &run->tensor[C];
    char *first = (char *)x->data + (size_t)(first_row(run) * x->stride) * dtype_bytes(x->type);
    struct grouped_norm a = {.count = run->host[0],
                             .segments = segments_of(run),
                             .entry = ENTRY,
                             .first_row = first_row(run),
                             .rows = range_rows(run),
                             .x = first,
                             .x_row = first_row(run),
                             .ldx = x->stride,
                             .type = run->type,
                             .epsilon = epsilon};
    return ops->grouped_norm(exec, &a);
}

static void norm_reference(struct op_run *run) {
    const struct op_tensor *t = run->tensor;
    struct op_tensor *x = &run->tensor[C];
    int *adapter = adapters_of(run);
    keep_values(x);
    for (int64_t row = 0; row < run->shape[0]; row++) {
        if (adapter[row] < 0)
            continue;
        struct group_entry e = entry_of(run, adapter[row]);
        int64_t at = row * x->cols + e.first_column, vectors = adapter[row] * run->shape[3];
        double mean = 0, variance = 0;
        for (int64_t j = 0; j < e.n; j++)
            mean += x->value[at + j] / (double)e.n;
        for (int64_t j = 0; j < e.n; j++)
            variance += (x->value[at + j] - mean) * (x->value[at + j] - mean) / (double)e.n;
        for (int64_t j = 0; j < e.n; j++)
            x->expected[at + j] =
                (x->value[at + j] - mean) / sqrt(variance + (double)epsilon) * t[MATRIX].value[vectors + j] +
                t[BIAS_VECTOR].value[vectors + j];
    }
    free(adapter);
}

static const struct op_kind norm = {.name = "grouped_norm",
                                    .setup = norm_setup,
                                    .prepare = prepare,
                                    .release = release,
                                    .call = norm_call,
                                    .reference = norm_reference,
                                    .cost = scale_cost};

/* ---- rows added where they belong: shape {rows, cols, columns after those of x} ---- */

enum { X = A, INDEX = MATRIX, Y = C };

/* Every third row of y in turn, backwards; every fifth of x goes nowhere. */
static void fill_index(const struct op_run *run, struct op_tensor *t) {
    for (int64_t i = 0; i < t->cols; i++)
        t->value[i] = i % 5 == 3 ? -1 - (double)i : 3 * (double)(run->shape[0] - 1 - i);
}

static void scatter_setup(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t rows = run->shape[0], cols = run->shape[1];
    t[X] = tensor("x", OP_IN, run->type, rows, cols);
    t[INDEX] = tensor("index", OP_IN, DTYPE_I32, 1, rows);
    t[INDEX].fill = fill_index;
    t[Y] = tensor("y", OP_INOUT, type_of(run, OUT_OTHER), 3 * rows, cols);
    t[X].stride = cols + run->shape[2];
    t[Y].stride = cols + 2 * run->shape[2];
}

static int scatter_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    const struct op_tensor *t = run->tensor;
    bool is_strided = run->shape[2];
    struct scatter_add_rows a = {.rows = run->shape[0],
                                 .cols = run->shape[1],
                                 .x_type = t[X].type,
                                 .y_type = t[Y].type,
                                 .x = t[X].data,
                                 .index = t[INDEX].data,
                                 .y = t[Y].data,
                                 .x_stride = is_strided ? t[X].stride : 0,
                                 .y_stride = is_strided ? t[Y].stride : 0};
    return ops->scatter_add_rows(exec, &a);
}

static void scatter_reference(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    int64_t cols = run->shape[1];
    keep_values(&t[Y]);
    for (int64_t i = 0; i < run->shape[0]; i++)
        for (int64_t j = 0; j < cols && t[INDEX].value[i] >= 0; j++)
            t[Y].expected[(int64_t)t[INDEX].value[i] * cols + j] += t[X].value[i * cols + j];
}

static const struct op_kind scatter = {
    .name = "scatter_add_rows", .setup = scatter_setup, .call = scatter_call, .reference = scatter_reference};

/* ---- ids that change in a table: shape {changes} ---- */

/* Every third place in turn, backwards; every fifth change is none. */
static void fill_changes(const struct op_run *run, struct op_tensor *t) {
    for (int64_t i = 0; i < run->shape[0]; i++) {
        t->value[2 * i] = i % 5 == 3 ? -1 - (double)i : 3 * (double)(run->shape[0] - 1 - i);
        t->value[2 * i + 1] = (double)(1000 + i);
    }
}

static void change_setup(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    t[X] = tensor("changes", OP_IN, DTYPE_I32, 1, 2 * run->shape[0]);
    t[X].fill = fill_changes;
    t[Y] = tensor("table", OP_INOUT, DTYPE_I32, 1, 3 * run->shape[0]);
    t[Y].spread = 100;
}

static int change_call(const struct op_run *run, const struct ops *ops, const struct exec *exec) {
    struct change_ids a = {.count = run->shape[0], .changes = run->tensor[X].data, .table = run->tensor[Y].data};
    return ops->change_ids(exec, &a);
}

static void change_reference(struct op_run *run) {
    struct op_tensor *t = run->tensor;
    keep_values(&t[Y]);
    for (int64_t i = 0; i < run->shape[0]; i++)
        if (t[X].value[2 * i] >= 0)
            t[Y].expected[(int64_t)t[X].value[2 * i]] = t[X].value[2 * i + 1];
}

static const struct op_kind change = {
    .name = "change_ids", .setup = change_setup, .call = change_call, .reference = change_reference};

/* clang-format off */
#define BOTH_TYPES(kind, note, use, variant, ...) \
    {&kind, note, use, DTYPE_F32, variant, {__VA_ARGS__}}, {&kind, note, use, DTYPE_BF16, variant, {__VA_ARGS__}}
/* clang-format on */

static const struct op_case cases[] = {
    BOTH_TYPES(gemm, NULL, OP_TEST, 0, 40, 4, 64, 8, 3),
    BOTH_TYPES(gemm, "odd sizes", OP_TEST, WEIGHT_OTHER, 61, 5, 77, 13, 9),
    BOTH_TYPES(gemm, "odd sizes, by input", OP_TEST, BY_INPUT | OUT_OTHER, 61, 5, 13, 149, 9),
    BOTH_TYPES(gemm, "rank 1", OP_TEST, 0, 17, 4, 131, 1, 3),
    BOTH_TYPES(gemm, "rank 1, by input", OP_TEST, BY_INPUT | ACCUMULATE, 17, 4, 1, 131, 3),
    BOTH_TYPES(gemm, "one row", OP_TEST, BOTH_LAYOUTS, 1, 1, 65, 67, 1),
    BOTH_TYPES(gemm, "no rows", OP_TEST, 0, 0, 2, 8, 8, 1),
    BOTH_TYPES(gemm, "no inputs", OP_TEST, BIAS | BOTH_LAYOUTS | UNCUT, 9, 2, 0, 8, 2),
    BOTH_TYPES(gemm, "rows by themselves, parallel", OP_TEST, ACCUMULATE | BY_INPUT, 60, 16, 8, 2304, 1),
    BOTH_TYPES(gemm, "added to the other type", OP_TEST, ACCUMULATE | OUT_OTHER | BOTH_LAYOUTS, 90, 7, 40, 99, 30),
    BOTH_TYPES(gemm, "bias, units", OP_TEST, BIAS | UNITS | WEIGHT_OTHER, 90, 9, 70, 33, 12),
    BOTH_TYPES(gemm, "bias, units, both layouts", OP_TEST, BIAS | BIAS_OTHER | UNITS | BOTH_LAYOUTS, 90, 9, 40, 70, 12),
    BOTH_TYPES(gemm, "units, added", OP_TEST, BIAS | UNITS | ACCUMULATE, 90, 9, 40, 70, 12),
    BOTH_TYPES(gemm, "some rows", OP_TEST, RANGE | BOTH_LAYOUTS, 150, 5, 48, 50, 20),
    BOTH_TYPES(gemm, "scaled by zero", OP_TEST, BY_ZERO, 30, 5, 48, 50, 20),
    BOTH_TYPES(gemm, "scaled by zero, added", OP_TEST, BY_ZERO | ACCUMULATE, 30, 5, 48, 50, 20),
    BOTH_TYPES(gemm, "long segments, rank 256", OP_TEST, OUT_OTHER, 600, 2, 203, 256, 512),
    BOTH_TYPES(gemm, "long segments, rank 256, by input", OP_TEST, BY_INPUT | WEIGHT_OTHER, 600, 2, 256, 203, 512),
    BOTH_TYPES(scale, NULL, OP_TEST, 0, 40, 4, 1, 64, 3),
    BOTH_TYPES(scale, "odd, in place, other vectors", OP_TEST, WEIGHT_OTHER | IN_PLACE, 61, 5, 1, 149, 9),
    BOTH_TYPES(scale, "a part stays", OP_TEST, BIAS | BIAS_OTHER | OUT_OTHER, 61, 5, 1, 149, 9),
    BOTH_TYPES(scale, "a part stays, in place", OP_TEST, BIAS | WEIGHT_OTHER | IN_PLACE, 61, 5, 1, 149, 9),
    BOTH_TYPES(scale, "difference", OP_TEST, DIFFERENCE | RANGE, 61, 5, 1, 149, 9),
    BOTH_TYPES(scale, "difference, other type", OP_TEST, DIFFERENCE | OUT_OTHER, 61, 5, 1, 149, 9),
    BOTH_TYPES(scale, "parallel, some rows", OP_TEST, RANGE | IN_PLACE, 300, 5, 1, 768, 40),
    BOTH_TYPES(norm, NULL, OP_TEST, 0, 40, 4, 1, 64, 3),
    BOTH_TYPES(norm, "odd", OP_TEST, 0, 61, 5, 1, 149, 9),
    BOTH_TYPES(norm, "whole accesses", OP_TEST, UNCUT | ALIGNED, 61, 3, 1, 768, 1),
    BOTH_TYPES(norm, "no rows", OP_TEST, 0, 0, 2, 1, 48, 1),
    BOTH_TYPES(norm, "parallel, some rows", OP_TEST, RANGE, 300, 5, 1, 768, 40),
    {&norm, "long rows", OP_TEST, DTYPE_F32, 0, {5, 3, 1, 13000, 2}},
    BOTH_TYPES(scatter, NULL, OP_TEST, 0, 37, 77),
    BOTH_TYPES(scatter, "strides", OP_TEST, 0, 37, 77, 9),
    BOTH_TYPES(scatter, "other type, parallel", OP_TEST, OUT_OTHER, 61, 768),
    BOTH_TYPES(scatter, "no rows", OP_TEST, 0, 0, 77),
    {&change, NULL, OP_TEST, DTYPE_I32, 0, {37}},
    {&change, "many", OP_TEST, DTYPE_I32, 0, {1000}},
    {&change, "none", OP_TEST, DTYPE_I32, 0, {0}},
    BOTH_TYPES(gemm, "lora down, decode", OP_BENCH, UNCUT | OUT_OTHER, 16, 16, 768, 8, 1),
    BOTH_TYPES(gemm, "lora up, decode", OP_BENCH, UNCUT | BY_INPUT | OUT_OTHER | ACCUMULATE, 16, 16, 8, 2304, 1),
    BOTH_TYPES(gemm, "lora down, prefill", OP_BENCH, UNCUT, 512, 1, 768, 16, 512),
    BOTH_TYPES(gemm, "lora up, prefill", OP_BENCH, UNCUT | BY_INPUT | ACCUMULATE, 512, 1, 16, 2304, 512),
    BOTH_TYPES(gemm, "lora down, prefill, rank 256", OP_BENCH, UNCUT, 512, 1, 768, 256, 512),
    BOTH_TYPES(gemm, "lora up, prefill, rank 256", OP_BENCH, UNCUT | BY_INPUT | ACCUMULATE, 512, 1, 256, 2304, 512),
    BOTH_TYPES(gemm, "bottleneck up, decode", OP_BENCH, UNCUT | BIAS | ACCUMULATE, 16, 16, 64, 768, 1),
    BOTH_TYPES(norm, "bottleneck, decode", OP_BENCH, UNCUT | ALIGNED, 16, 16, 1, 768, 1),
    BOTH_TYPES(scale, "ia3, decode", OP_BENCH, UNCUT | IN_PLACE, 16, 16, 1, 2304, 1),
};

const struct op_family grouped_family = {"grouped", cases, sizeof cases / sizeof *cases};
