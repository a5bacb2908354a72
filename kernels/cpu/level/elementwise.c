/* Casts, addition and gathers of rows, whose speed is the memory's. Casts round to nearest even at every level,
 * subnormal numbers included. So bf16 is rounded in integers: the processor's instruction (vcvtneps2bf16) flushes
 * subnormals to zero, and it is no faster at the memory's speed. */
#include "cpu/level/rows.h"

enum { CHUNK = 8192 };

/* f16_to_float and f16_from_float of base/dtype.h without branches. */
static inline float half_to_float(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, rest = (uint32_t)(bits & 0x7fff) << 13;
    float small = (float)(int32_t)(bits & 0x7fff) * 0x1p-24f;
    uint32_t fp32 = rest + (rest >= 0x0f800000u ? 0x70000000u : 0x38000000u);
    fp32 = rest < 0x00800000u ? vfloat_to_bits(small) : fp32;
    return vbits_to_float(fp32 | sign);
}

static inline uint16_t half_from_float(float value) {
    uint32_t bits = vfloat_to_bits(value), sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    uint32_t small = vfloat_to_bits(vbits_to_float(bits) + 0.5f) - 0x3f000000u;
    uint32_t normal = (bits + 0xc8000fffu + (bits >> 13 & 1)) >> 13;
    uint32_t half = bits < 0x38800000u ? small : normal;
    half = bits >= 0x477ff000u ? 0x7c00u : half;
    half = bits > 0x7f800000u ? 0x7e00u : half;
    return (uint16_t)(half | sign);
}

TYPED_BODY float load_any(const void *x, int64_t i, enum dtype type) {
    return type == DTYPE_F16 ? half_to_float(((const uint16_t *)x)[i]) : load(x, i, type);
}

TYPED_BODY void store_any(void *x, int64_t i, enum dtype type, float value) {
    if (type == DTYPE_F16)
        ((uint16_t *)x)[i] = half_from_float(value);
    else
        store(x, i, type, value);
}

TYPED_BODY void cast_chunk(const void *from, enum dtype from_type, void *to, enum dtype to_type, int64_t first,
                           int64_t count) {
    const void *x = at_const(from, first, from_type);
    void *y = at(to, first, to_type);
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        store_any(y, i, to_type, load_any(x, i, from_type));
}

static bool is_float(enum dtype type) {
    return type == DTYPE_F32 || type == DTYPE_BF16 || type == DTYPE_F16;
}

int LEVEL(cpu_cast)(const struct exec *exec, const struct cast_call *a) {
    enum dtype from_type = a->from_type, to_type = a->to_type;
    const void *from = a->from;
    void *to = a->to;
    if (!is_float(from_type) || !is_float(to_type))
        return status_fail(STATUS_UNSUPPORTED, "cast: no %s to %s on the cpu (fp32, bf16 and fp16 only)",
                           dtype_name(from_type), dtype_name(to_type));
#pragma omp parallel for num_threads(threads_for(exec, a->count)) schedule(static)
    for (int64_t first = 0; first < a->count; first += CHUNK) {
        int64_t n = a->count - first < CHUNK ? a->count - first : CHUNK;
        size_t size = dtype_bytes(from_type);
        if (from_type == to_type)
            memcpy((char *)to + (size_t)first * size, (const char *)from + (size_t)first * size, (size_t)n * size);
        else if (from_type == DTYPE_F16)
            WITH_TYPE(TO, to_type, cast_chunk(from, DTYPE_F16, to, TO, first, n));
        else if (to_type == DTYPE_F16)
            WITH_TYPE(FROM, from_type, cast_chunk(from, FROM, to, DTYPE_F16, first, n));
        else if (to_type == DTYPE_BF16)
            cast_chunk(from, DTYPE_F32, to, DTYPE_BF16, first, n);
        else
            cast_chunk(from, DTYPE_BF16, to, DTYPE_F32, first, n);
    }
    return STATUS_OK;
}

TYPED_BODY void add_chunk(const void *x, void *y, int64_t first, int64_t count, enum dtype type) {
    const void *from = at_const(x, first, type);
    void *to = at(y, first, type);
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        store(to, i, type, load(to, i, type) + load(from, i, type));
}

int LEVEL(cpu_add)(const struct exec *exec, const struct add_call *a) {
    TRY(require_activation("add", a->type));
#pragma omp parallel for num_threads(threads_for(exec, a->count)) schedule(static)
    for (int64_t first = 0; first < a->count; first += CHUNK) {
        int64_t n = a->count - first < CHUNK ? a->count - first : CHUNK;
        WITH_TYPE(T, a->type, add_chunk(a->x, a->y, first, n, T));
    }
    return STATUS_OK;
}

TYPED_BODY void scale_chunk(float scale, const void *x, bool accumulate, void *y, int64_t count, enum dtype type) {
    if (accumulate) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            store(y, i, type, load(y, i, type) + scale * load(x, i, type));
    } else {
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            store(y, i, type, scale * load(x, i, type));
    }
}

/* Returns the same call with chunks as rows, for rows without gaps between them. */
static struct scale_add in_chunks(const struct scale_add *a) {
    struct scale_add call = *a;
    call.x_stride = a->x_stride ? a->x_stride : a->cols;
    call.y_stride = a->y_stride ? a->y_stride : a->cols;
    if (call.x_stride != a->cols || call.y_stride != a->cols)
        return call;
    int64_t count = a->rows * a->cols;
    call.cols = call.x_stride = call.y_stride = CHUNK;
    call.rows = (count + CHUNK - 1) / CHUNK;
    return call;
}

int LEVEL(cpu_scale_add)(const struct exec *exec, const struct scale_add *a) {
    TRY(require_activation("scale_add", a->type));
    struct scale_add call = in_chunks(a);
    int64_t count = a->rows * a->cols;
#pragma omp parallel for num_threads(threads_for(exec, count)) schedule(static)
    for (int64_t i = 0; i < call.rows; i++) {
        const void *x = at_const(a->x, i * call.x_stride, a->type);
        void *y = at(a->y, i * call.y_stride, a->type);
        int64_t remaining = count - i * call.cols, n = remaining < call.cols ? remaining : call.cols;
        WITH_TYPE(T, a->type, scale_chunk(a->scale, x, a->accumulate, y, n, T));
    }
    return STATUS_OK;
}

int LEVEL(cpu_gather_rows)(const struct exec *exec, const struct gather_rows *a) {
    size_t bytes = (size_t)a->cols * dtype_bytes(a->type);
#pragma omp parallel for num_threads(threads_for(exec, a->rows * a->cols)) schedule(static)
    for (int64_t i = 0; i < a->rows; i++)
        if (a->index[i] < 0)
            memset((char *)a->out + (size_t)i * bytes, 0, bytes);
        else
            memcpy((char *)a->out + (size_t)i * bytes, (const char *)a->x + (size_t)a->index[i] * bytes, bytes);
    return STATUS_OK;
}

TYPED_BODY void scatter_row(const void *x, void *y, int64_t cols, enum dtype x_type, enum dtype y_type) {
#pragma omp simd
    for (int64_t j = 0; j < cols; j++)
        store(y, j, y_type, load(y, j, y_type) + load(x, j, x_type));
}

int LEVEL(cpu_scatter_add_rows)(const struct exec *exec, const struct scatter_add_rows *a) {
    TRY(require_activation("scatter_add_rows", a->x_type));
    TRY(require_activation("scatter_add_rows", a->y_type));
    int64_t x_stride = a->x_stride ? a->x_stride : a->cols, y_stride = a->y_stride ? a->y_stride : a->cols;
#pragma omp parallel for num_threads(threads_for(exec, a->rows * a->cols)) schedule(static)
    for (int64_t i = 0; i < a->rows; i++) {
        const void *from = at_const(a->x, i * x_stride, a->x_type);
        void *to = a->index[i] < 0 ? NULL : at(a->y, a->index[i] * y_stride, a->y_type);
        if (!to)
            continue;
        WITH_TYPE(X, a->x_type, WITH_TYPE(Y, a->y_type, scatter_row(from, to, a->cols, X, Y)));
    }
    return STATUS_OK;
}

int LEVEL(cpu_change_ids)(const struct exec *exec, const struct change_ids *a) {
    for (int64_t i = 0; i < a->count; i++)
        if (a->changes[i].place >= 0)
            a->table[a->changes[i].place] = a->changes[i].id;
    return STATUS_OK;
}
