/* The tensors of a case: made, filled, guarded, put back, read. op_check.c compares, op_measure.c measures. */
#include "op_cases-internal.h"

#include "base/smaller.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Elements that a benchmark draws, and repeats: to draw every number of a large weight takes longer than to measure. */
enum { DRAWN = 65537 };

double op_bound(int64_t terms) {
    return 4 * 0x1p-24 * sqrt((double)(terms > 1 ? terms : 1));
}

void op_case_text(const struct op_case *c, char *text, size_t bytes) {
    int used = snprintf(text, bytes, "%s %s ", c->kind->name, dtype_name(c->type));
    int last = OP_SHAPE;
    while (last > 1 && c->shape[last - 1] == 0)
        last--;
    for (int i = 0; i < last && used < (int)bytes; i++)
        used += snprintf(text + used, bytes - (size_t)used, i ? "x%lld" : "%lld", (long long)c->shape[i]);
    if (c->note && used < (int)bytes)
        snprintf(text + used, bytes - (size_t)used, " (%s)", c->note);
}

double op_decode(enum dtype type, const void *at) {
    switch (type) {
    case DTYPE_F32: {
        float x;
        memcpy(&x, at, 4);
        return x;
    }
    case DTYPE_BF16: {
        uint16_t x;
        memcpy(&x, at, 2);
        return bf16_to_float(x);
    }
    case DTYPE_I32: {
        int32_t x;
        memcpy(&x, at, 4);
        return x;
    }
    case DTYPE_I64: {
        int64_t x;
        memcpy(&x, at, 8);
        return (double)x;
    }
    case DTYPE_I8:
        return *(const int8_t *)at;
    default: {
        double x;
        memcpy(&x, at, 8);
        return x;
    }
    }
}

static void encode(enum dtype type, double value, void *at) {
    float narrow = (float)value;
    uint16_t half = bf16_from_float(narrow);
    int32_t whole = type == DTYPE_I32 ? (int32_t)value : 0;
    int64_t wide = type == DTYPE_I64 ? (int64_t)value : 0;
    switch (type) {
    case DTYPE_F32:
        memcpy(at, &narrow, 4);
        break;
    case DTYPE_BF16:
        memcpy(at, &half, 2);
        break;
    case DTYPE_I32:
        memcpy(at, &whole, 4);
        break;
    case DTYPE_I64:
        memcpy(at, &wide, 8);
        break;
    case DTYPE_I8:
        *(int8_t *)at = (int8_t)value;
        break;
    default:
        memcpy(at, &value, 8);
    }
}

/* Two normal numbers from two words (Box and Muller). */
static void normals(struct philox words, double *out) {
    for (int i = 0; i < 4; i += 2) {
        double radius = sqrt(-2 * log(rng_unit(words.word[i]))),
               angle = 6.283185307179586 * rng_unit(words.word[i + 1]);
        out[i] = radius * cos(angle);
        out[i + 1] = radius * sin(angle);
    }
}

static void fill_random(const struct op_run *run, struct op_tensor *t, int index) {
    int64_t count = t->rows * t->cols;
    int64_t drawn = run->is_benchmark ? smaller(count, DRAWN) : count;
    double spread = t->spread != 0 ? t->spread : 1;
    for (int64_t i = 0; i < drawn; i += 4) {
        struct philox words = philox(20261121, (uint32_t)(i / 4), (uint32_t)index, 0, (uint32_t)RNG_TEST << 24);
        double four[4];
        bool is_whole = t->type == DTYPE_I32 || t->type == DTYPE_I8;
        if (is_whole)
            for (int j = 0; j < 4; j++)
                four[j] = floor(t->center + spread * rng_unit(words.word[j]));
        else
            normals(words, four);
        for (int j = 0; j < 4 && i + j < drawn; j++)
            t->value[i + j] = is_whole ? four[j] : t->center + spread * four[j];
    }
    for (int64_t i = drawn; i < count; i++)
        t->value[i] = t->value[i - drawn];
}

size_t op_tensor_span(const struct op_tensor *t) {
    return t->rows && t->cols ? (size_t)((t->rows - 1) * t->stride + t->cols) * dtype_bytes(t->type) : 0;
}

/* The whole block of a tensor: guards and gaps are bytes 0xff, which is NaN in every floating type. */
static void make_image(struct op_tensor *t, bool repeats) {
    memset(t->image, 0xff, t->image_bytes);
    size_t size = dtype_bytes(t->type);
    bool is_filled = t->role != OP_OUT;
    int64_t count = t->rows * t->cols, encoded = repeats && t->stride == t->cols ? smaller(count, DRAWN) : count;
    for (int64_t i = 0; is_filled && i < encoded; i++) {
        unsigned char *at = t->image + OP_GUARD + (size_t)(i / t->cols * t->stride + i % t->cols) * size;
        encode(t->type, t->value[i], at);
        t->value[i] = op_decode(t->type, at);
    }
    for (int64_t i = encoded; is_filled && i < count; i += DRAWN) {
        unsigned char *first = t->image + OP_GUARD;
        memcpy(first + (size_t)i * size, first, (size_t)smaller(count - i, DRAWN) * size);
    }
}

static int open_tensor(struct op_run *run, int index, struct device *device) {
    struct op_tensor *t = &run->tensor[index];
    if (!t->stride)
        t->stride = t->cols;
    if (t->bound == 0)
        t->bound = op_bound(1);
    size_t count = (size_t)(t->rows * t->cols) + 1;
    t->image_bytes = op_tensor_span(t) + 2 * OP_GUARD;
    t->image = malloc(t->image_bytes);
    t->value = calloc(count, sizeof *t->value);
    t->expected = t->role == OP_IN || run->is_benchmark ? NULL : calloc(count, sizeof *t->expected);
    if (!t->image || !t->value || (!t->expected && t->role != OP_IN && !run->is_benchmark))
        return status_fail(STATUS_MEMORY, "out of memory for tensor %s", t->name);
    if (t->fill)
        t->fill(run, t);
    else if (t->role != OP_OUT)
        fill_random(run, t, index);
    make_image(t, run->is_benchmark && !t->fill);
    int status = device_alloc(device, t->image_bytes, &t->block);
    t->data = (char *)t->block + OP_GUARD;
    return status;
}

int op_run_open(struct op_run *run, const struct op_case *op_case, struct device *device, struct stream *stream) {
    bool is_benchmark = run->is_benchmark;
    *run = (struct op_run){.op_case = op_case,
                           .shape = op_case->shape,
                           .type = op_case->type,
                           .variant = op_case->variant,
                           .backend = ops_for(device)->name,
                           .is_benchmark = is_benchmark};
    op_case->kind->setup(run);
    int status = STATUS_OK;
    for (int i = 0; i < OP_TENSORS && !status; i++)
        if (run->tensor[i].role)
            status = open_tensor(run, i, device);
    if (!status)
        status = op_run_reset(run, stream);
    if (status)
        op_run_close(run, device);
    return status;
}

int op_run_reset(struct op_run *run, struct stream *stream) {
    for (int i = 0; i < OP_TENSORS; i++) {
        struct op_tensor *t = &run->tensor[i];
        int status = t->role ? stream_copy_to_device(stream, t->block, t->image, t->image_bytes) : STATUS_OK;
        if (status)
            return status;
    }
    return stream_wait(stream);
}

int op_run_read(const struct op_run *run, int index, struct stream *stream, double **values) {
    const struct op_tensor *t = &run->tensor[index];
    unsigned char *image = malloc(t->image_bytes);
    *values = malloc(((size_t)(t->rows * t->cols) + 1) * sizeof **values);
    int status = image && *values ? stream_copy_to_host(stream, image, t->block, t->image_bytes)
                                  : status_fail(STATUS_MEMORY, "out of memory for tensor %s", t->name);
    if (!status)
        status = stream_wait(stream);
    for (int64_t i = 0; !status && i < t->rows * t->cols; i++)
        (*values)[i] = op_decode(t->type, image + OP_GUARD +
                                              (size_t)(i / t->cols * t->stride + i % t->cols) * dtype_bytes(t->type));
    free(image);
    if (status) {
        free(*values);
        *values = NULL;
    }
    return status;
}

void op_run_close(struct op_run *run, struct device *device) {
    for (int i = 0; i < OP_TENSORS; i++) {
        struct op_tensor *t = &run->tensor[i];
        device_free(device, t->block);
        free(t->image);
        free(t->value);
        free(t->expected);
    }
    memset(run->tensor, 0, sizeof run->tensor);
}
