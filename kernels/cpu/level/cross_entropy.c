/* Softmax cross-entropy over a row of logits, forward and backward, in place: there is never a second copy of them. */
#include "cpu/level/softmax.h"

static void write_loss(const struct cross_entropy *a, int64_t i, struct softmax_sum s, float at_label) {
    double log_sum = log(s.sum);
    if (a->loss)
        a->loss[i] = (float)(log_sum + ((double)s.max - (double)at_label));
    if (a->lse)
        a->lse[i] = (float)((double)s.max + log_sum);
}

TYPED_BODY void clear(void *x, int64_t first, int64_t end, enum dtype type) {
    memset(at(x, first, type), 0, (size_t)(end - first) * dtype_bytes(type));
}

/* x = exp(x - reference) * scale as `to`, then the label's gradient from its original logit. `label` -1: another rank
 * has it. A narrower gradient never overwrites a logit that is still to be read. */
TYPED_BODY void write_gradient_as(const struct cross_entropy *a, int64_t i, int64_t label, void *x, float reference,
                                  float scale, enum dtype type, enum dtype to) {
    int64_t vocab = a->vocab;
    float at_label = label < 0 ? 0 : vexp(load(x, label, type) - reference) * scale - a->dloss[i];
#pragma omp simd
    for (int64_t j = 0; j < vocab; j++)
        store(x, j, to, vexp(load(x, j, type) - reference) * scale);
    if (label >= 0)
        store(x, label, to, at_label);
    clear(x, vocab, a->stride, to);
}

TYPED_BODY void write_gradient(const struct cross_entropy *a, int64_t i, int64_t label, void *x, float reference,
                               float scale, enum dtype type) {
    if (a->dloss[i] == 0)
        clear(x, 0, a->stride, type);
    else if (a->gradient_is_bf16)
        write_gradient_as(a, i, label, x, reference, scale, type, DTYPE_BF16);
    else
        write_gradient_as(a, i, label, x, reference, scale, type, type);
}

/* Returns 1 if the label's logit is the row's largest, and no earlier one equals it; else 0. */
TYPED_BODY int is_first_largest(const void *x, int64_t label, float largest, enum dtype type) {
    return load(x, label, type) == largest && row_max(x, label, type) < largest;
}

TYPED_BODY void forward_row(const struct cross_entropy *a, int64_t i, enum dtype type) {
    const void *x = at_const(a->logits, i * a->stride, type);
    struct softmax_sum s = softmax_finite_row(x, a->vocab, type);
    write_loss(a, i, s, load(x, a->labels[i], type));
    if (a->is_greedy)
        a->is_greedy[i] = is_first_largest(x, a->labels[i], s.max, type);
}

TYPED_BODY void backward_row(const struct cross_entropy *a, int64_t i, enum dtype type) {
    void *x = at(a->logits, i * a->stride, type);
    write_gradient(a, i, a->labels[i], x, a->lse[i], a->dloss[i], type);
}

/* fp32: the exponentials of the sum overwrite the logits, each chunk relative to the maximum so far. They are scaled
 * afterwards. */
TYPED_BODY void fused_row_f32(const struct cross_entropy *a, int64_t i, enum dtype to) {
    float *x = (float *)a->logits + i * a->stride, reference[SOFTMAX_CHUNKS_MAX], at_label = x[a->labels[i]];
    int64_t label = a->labels[i], chunk = softmax_chunk(a->vocab);
    struct softmax_sum s = {.max = -INFINITY};
    for (int64_t first = 0, c = 0; first < a->vocab; first += chunk, c++) {
        int64_t count = a->vocab - first < chunk ? a->vocab - first : chunk;
        reference[c] = softmax_add(&s, x + first, count, x + first, DTYPE_F32);
    }
    write_loss(a, i, s, at_label);
    for (int64_t first = 0, c = 0; first < a->vocab; first += chunk, c++) {
        int64_t count = a->vocab - first < chunk ? a->vocab - first : chunk;
        float scale = (float)(exp((double)reference[c] - (double)s.max) / s.sum * (double)a->dloss[i]);
        if (label >= first && label < first + count)
            at_label = x[label] * scale - a->dloss[i];
#pragma omp simd
        for (int64_t j = first; j < first + count; j++)
            store(x, j, to, x[j] * scale);
    }
    store(x, label, to, at_label);
    clear(x, a->vocab, a->stride, to);
}

/* bf16: exponentials are computed twice, because storing the first ones would round twice. */
static void fused_row_bf16(const struct cross_entropy *a, int64_t i) {
    void *x = at(a->logits, i * a->stride, DTYPE_BF16);
    struct softmax_sum s = softmax_row(x, a->vocab, DTYPE_BF16);
    write_loss(a, i, s, load(x, a->labels[i], DTYPE_BF16));
    write_gradient(a, i, a->labels[i], x, s.max, (float)((double)a->dloss[i] / s.sum), DTYPE_BF16);
}

static void fused_row(const void *call, int64_t i) {
    const struct cross_entropy *a = call;
    if (a->dloss[i] == 0) {
        WITH_TYPE(T, a->type, forward_row(a, i, T); clear(a->logits, i * a->stride, (i + 1) * a->stride, T));
    } else if (a->type == DTYPE_F32) {
        WITH_TYPE(T, a->gradient_is_bf16 ? DTYPE_BF16 : DTYPE_F32, fused_row_f32(a, i, T));
    } else {
        fused_row_bf16(a, i);
    }
}

TYPED_ROW(forward_row, cross_entropy)

int LEVEL(cpu_cross_entropy_forward)(const struct exec *exec, const struct cross_entropy *a) {
    return every_row(exec,
                     &(struct pieces){"cross_entropy_forward", a->type, a->rows, a->vocab, a, .row = forward_row_of});
}

TYPED_ROW(backward_row, cross_entropy)

int LEVEL(cpu_cross_entropy_backward)(const struct exec *exec, const struct cross_entropy *a) {
    return every_row(exec,
                     &(struct pieces){"cross_entropy_backward", a->type, a->rows, a->vocab, a, .row = backward_row_of});
}

int LEVEL(cpu_cross_entropy_fused)(const struct exec *exec, const struct cross_entropy *a) {
    return every_row(exec, &(struct pieces){"cross_entropy_fused", a->type, a->rows, a->vocab, a, .row = fused_row});
}

/* ---- columns of one rank ---- */

static int64_t own_label(const struct cross_entropy *a, int64_t i) {
    int64_t label = a->labels[i] - a->first_label;
    return label >= 0 && label < a->vocab ? label : -1;
}

TYPED_BODY void part_row(const struct cross_entropy *a, int64_t i, enum dtype type) {
    const void *x = at_const(a->logits, i * a->stride, type);
    struct softmax_sum s = softmax_finite_row(x, a->vocab, type);
    int64_t label = own_label(a, i);
    a->part[i] = (struct cross_entropy_part){.max = s.max, .sum = s.sum};
    if (label < 0)
        return;
    a->part[i].at_label = load(x, label, type);
    a->part[i].is_first = a->is_greedy ? is_first_largest(x, label, s.max, type) : 0;
}

TYPED_ROW(part_row, cross_entropy)

int LEVEL(cpu_cross_entropy_part)(const struct exec *exec, const struct cross_entropy *a) {
    return every_row(exec, &(struct pieces){"cross_entropy_part", a->type, a->rows, a->vocab, a, .row = part_row_of});
}

int LEVEL(cpu_cross_entropy_join)(const struct exec *exec, const struct cross_entropy_join *join) {
    const struct cross_entropy *a = &join->call;
    const struct cross_entropy_part *parts = join->parts;
    int ranks = join->ranks;
    for (int64_t i = 0; i < a->rows; i++) {
        struct cross_entropy_part whole = {.max = -INFINITY};
        for (int r = 0; r < ranks; r++)
            if (parts[r * a->rows + i].max > whole.max) {
                whole.max = parts[r * a->rows + i].max;
                whole.is_first = parts[r * a->rows + i].is_first;
            }
        for (int r = 0; r < ranks; r++) {
            const struct cross_entropy_part *part = &parts[r * a->rows + i];
            whole.sum += part->sum * exp(part->max - whole.max);
            whole.at_label += part->at_label;
        }
        a->part[i] = whole;
        a->loss[i] = (float)(log(whole.sum) + (whole.max - whole.at_label));
        if (a->is_greedy)
            a->is_greedy[i] = whole.is_first > 0;
    }
    return STATUS_OK;
}

TYPED_BODY void part_backward_row(const struct cross_entropy *a, int64_t i, enum dtype type) {
    void *x = at(a->logits, i * a->stride, type);
    float scale = (float)((double)a->dloss[i] / a->part[i].sum);
    write_gradient(a, i, own_label(a, i), x, (float)a->part[i].max, scale, type);
}

TYPED_ROW(part_backward_row, cross_entropy)

int LEVEL(cpu_cross_entropy_part_backward)(const struct exec *exec, const struct cross_entropy *a) {
    return every_row(exec, &(struct pieces){"cross_entropy_part_backward", a->type, a->rows, a->vocab, a,
                                            .row = part_backward_row_of});
}
