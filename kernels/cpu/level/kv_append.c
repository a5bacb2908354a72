/* Writes rows of keys and values into their pages. A page holds its keys, then its values, each G * 16 * D elements.
 * Keys are [G, D/U, 16, U] and values are [G, 16/U, D, U], where U is 1 for fp32 and 2 for bf16. U elements are a unit
 * of 32 bits, so that the scores of sixteen tokens are one vector. If D is odd, the last feature of bf16 keys is a
 * block [16] after the others.
 *
 * The order suits the products of paged attention, so a row is written to scattered places. Sixteen rows that fill a
 * page are moved as blocks. */
#include "cpu/level/attention-internal.h"

enum { PAGE = KV_PAGE_TOKENS };

/* Bytes of one row of one head, and of the 16 rows of a page. */
struct row_bytes {
    size_t element, head_row, head_page;
};

static const char *source_row(const void *base, int64_t row, int64_t stride, int head, const struct row_bytes *bytes) {
    return (const char *)base + (size_t)(row * stride) * bytes->element + (size_t)head * bytes->head_row;
}

/* Writes a key: 32-bit units of 16 tokens, and a last odd bf16 feature by itself. */
static void put_key(char *page, int token, const char *key, const struct row_bytes *bytes) {
    size_t units = bytes->head_row / 4;
    for (size_t u = 0; u < units; u++)
        memcpy(page + (u * PAGE + (size_t)token) * 4, key + u * 4, 4);
    if (bytes->head_row % 4)
        memcpy(page + units * PAGE * 4 + (size_t)token * 2, key + units * 4, 2);
}

/* Writes a value: fp32 rows, or bf16 rows of tokens 2i and 2i+1 interleaved. */
static void put_value(char *page, int token, const char *value, const struct row_bytes *bytes) {
    if (bytes->element == 4) {
        memcpy(page + (size_t)token * bytes->head_row, value, bytes->head_row);
        return;
    }
    char *pairs = page + (size_t)(token / 2) * 2 * bytes->head_row + (size_t)(token % 2) * 2;
    for (size_t d = 0; d < bytes->head_row / 2; d++)
        memcpy(pairs + d * 4, value + d * 2, 2);
}

/* Writes the keys of a whole page from 16 rows, `stride` bytes apart. */
static void put_keys(char *page, const char *key, size_t stride, const struct row_bytes *bytes) {
    size_t units = bytes->head_row / 4, whole = units / 4 * 4;
    for (size_t token = 0; token < PAGE; token += 4) {
        const char *x = key + token * stride;
        for (size_t u = 0; u < whole; u += 4) {
            __m128 a = _mm_loadu_ps((const float *)(const void *)(x + u * 4));
            __m128 b = _mm_loadu_ps((const float *)(const void *)(x + stride + u * 4));
            __m128 c = _mm_loadu_ps((const float *)(const void *)(x + 2 * stride + u * 4));
            __m128 d = _mm_loadu_ps((const float *)(const void *)(x + 3 * stride + u * 4));
            _MM_TRANSPOSE4_PS(a, b, c, d);
            float *to = (float *)(void *)page + u * PAGE + token;
            _mm_storeu_ps(to, a);
            _mm_storeu_ps(to + PAGE, b);
            _mm_storeu_ps(to + 2 * PAGE, c);
            _mm_storeu_ps(to + 3 * PAGE, d);
        }
        for (size_t r = 0; r < 4; r++) {
            for (size_t u = whole; u < units; u++)
                memcpy(page + (u * PAGE + token + r) * 4, x + r * stride + u * 4, 4);
            if (bytes->head_row % 4)
                memcpy(page + units * PAGE * 4 + (token + r) * 2, x + r * stride + units * 4, 2);
        }
    }
}

static void put_values(char *page, const char *value, size_t stride, const struct row_bytes *bytes) {
    if (bytes->element == 4) {
        for (size_t token = 0; token < PAGE; token++)
            memcpy(page + token * bytes->head_row, value + token * stride, bytes->head_row);
        return;
    }
    for (size_t token = 0; token < PAGE; token += 2) {
        const uint16_t *even = (const uint16_t *)(const void *)(value + token * stride);
        const uint16_t *odd = (const uint16_t *)(const void *)(value + (token + 1) * stride);
        uint16_t *pairs = (uint16_t *)(void *)(page + token * bytes->head_row);
        for (size_t d = 0; d < bytes->head_row / 2; d++) {
            pairs[2 * d] = even[d];
            pairs[2 * d + 1] = odd[d];
        }
    }
}

/* Rows first .. end-1, at most a page, of heads from .. to-1. */
struct piece {
    int64_t first, end;
    int from, to;
};

/* Prefetches the cache lines that a row is written to: a key has one for each of its units. The second-level cache can
 * wait for more lines at once than stores can. */
static void fetch_row(const struct row_bytes *bytes, const char *key_page, const char *value_page, int token) {
    for (size_t u = 0; u < bytes->head_row; u += 4)
        __builtin_prefetch(key_page + u * PAGE + (size_t)token * 4, 1, 2);
    size_t pair = bytes->element == 4 ? 1 : 2, at = (size_t)token / pair * pair * bytes->head_row;
    for (size_t i = 0; i < pair * bytes->head_row; i += 64)
        __builtin_prefetch(value_page + at + i, 1, 2);
}

static void append_rows(const struct kv_append *a, const struct piece *piece, const struct row_bytes *bytes) {
    int64_t first = piece->first, end = piece->end;
    bool fills_page = end - first == PAGE && a->place[first] >= 0 && a->place[first] % PAGE == 0;
    for (int64_t i = first; fills_page && i < end; i++)
        fills_page = a->place[i] == a->place[first] + (int32_t)(i - first);
    for (int64_t i = first; i < end; i += fills_page ? PAGE : 1) {
        if (a->place[i] < 0)
            continue;
        int token = a->place[i] % PAGE;
        char *keys = (char *)a->pages + (size_t)(a->place[i] / PAGE * a->page_stride) * bytes->element;
        char *values = keys + (size_t)a->kv_heads * bytes->head_page;
        for (int g = piece->from; g < piece->to && !fills_page; g++)
            fetch_row(bytes, keys + (size_t)g * bytes->head_page, values + (size_t)g * bytes->head_page, token);
        for (int g = piece->from; g < piece->to; g++) {
            const char *key = source_row(a->k, i, a->k_stride, g, bytes);
            const char *value = source_row(a->v, i, a->v_stride, g, bytes);
            char *key_page = keys + (size_t)g * bytes->head_page, *value_page = values + (size_t)g * bytes->head_page;
            if (fills_page) {
                put_keys(key_page, key, (size_t)a->k_stride * bytes->element, bytes);
                put_values(value_page, value, (size_t)a->v_stride * bytes->element, bytes);
            } else {
                put_key(key_page, token, key, bytes);
                put_value(value_page, token, value, bytes);
            }
        }
    }
}

LEVEL_OP(kv_append, kv_append) {
    if (a->type != DTYPE_F32 && a->type != DTYPE_BF16)
        return status_fail(STATUS_UNSUPPORTED, "a %s KV cache is not built (fp32 and bf16 are)", dtype_name(a->type));
    size_t element = dtype_bytes(a->type), head_row = (size_t)a->head_size * element;
    struct row_bytes bytes = {.element = element, .head_row = head_row, .head_page = PAGE * head_row};
    /* Blocks begin where the first row's sequence begins a page. The first block has the rows before that. */
    int64_t before = a->rows > 0 && a->place[0] > 0 ? (PAGE - a->place[0] % PAGE) % PAGE : 0;
    int64_t blocks = (a->rows - before + PAGE - 1) / PAGE + 1;
    int parts = exec_threads(exec) < a->kv_heads ? exec_threads(exec) : a->kv_heads;
#pragma omp parallel for schedule(static) num_threads(exec_threads(exec))
    for (int64_t i = 0; i < parts * blocks; i++) {
        int64_t part = i / blocks, first = before + (i % blocks - 1) * PAGE, end = first + PAGE;
        struct piece piece = {.first = first > 0 ? first : 0,
                              .end = end < a->rows ? end : a->rows,
                              .from = (int)(a->kv_heads * part / parts),
                              .to = (int)(a->kv_heads * (part + 1) / parts)};
        append_rows(a, &piece, &bytes);
    }
    return STATUS_OK;
}
