#include "cuda/product.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TILE_ROWS = 4, TILE_COLUMNS = 256, PIECE = 1024 };

static float from_bf16(uint16_t bits) {
    uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* Rounds to the nearest, and a tie to even. */
static uint16_t to_bf16(float value) {
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    if (isnan(value)) {
        return 0x7fff;
    }
    return (uint16_t)((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

/* A number of FP8, by its definition: a sign, an exponent, and a fraction of `bits` bits. */
static float from_fp8(enum product_type type, uint8_t byte) {
    int bits = type == PRODUCT_E4M3 ? 3 : 2, bias = type == PRODUCT_E4M3 ? 7 : 15, one = 1 << bits;
    int exponent = (byte & 0x7f) >> bits, fraction = byte & (one - 1);
    float size =
        exponent ? ldexpf((float)(one + fraction), exponent - bias - bits) : ldexpf((float)fraction, 1 - bias - bits);
    if (type == PRODUCT_E4M3 && (byte & 0x7f) == 0x7f) {
        size = NAN;
    } else if (type == PRODUCT_E5M2 && exponent == 31) {
        size = fraction ? NAN : INFINITY;
    }
    return byte & 0x80 ? -size : size;
}

static uint64_t element_bytes(enum product_type type) {
    return type == PRODUCT_FP32 ? sizeof(float) : type == PRODUCT_BF16 ? sizeof(uint16_t) : 1;
}

/* Reads `count` elements from an address. */
static int read_row(struct machine *machine, uint64_t address, enum product_type type, int64_t count, float *row) {
    size_t bytes = element_bytes(type);
    if (memory_read(machine, row, address, (uint64_t)count * bytes)) {
        return -1;
    }
    for (int64_t i = type == PRODUCT_FP32 ? 0 : count; i-- > 0;) {
        uint16_t bits = 0;
        memcpy(&bits, (const char *)row + (size_t)i * bytes, bytes);
        row[i] = type == PRODUCT_BF16 ? from_bf16(bits) : from_fp8(type, (uint8_t)bits);
    }
    return 0;
}

static int write_row(struct machine *machine, uint64_t address, enum product_type type, int64_t count, float *row) {
    for (int64_t i = 0; type == PRODUCT_BF16 && i < count; i++) {
        uint16_t bits = to_bf16(row[i]);
        memcpy((char *)row + (size_t)i * sizeof bits, &bits, sizeof bits);
    }
    return memory_write(machine, address, row, (uint64_t)count * element_bytes(type));
}

static uint64_t row_address(const struct product_matrix *matrix, int64_t row) {
    return matrix->address + (uint64_t)(row * matrix->stride) * element_bytes(matrix->type);
}

/* Returns the matrix, or its transpose, as fp32 without gaps; NULL after a fault. The caller frees it. */
static float *read_matrix(struct machine *machine, const struct product_matrix *matrix, bool transposed) {
    int64_t rows = matrix->rows, columns = matrix->columns;
    float *all = malloc((size_t)(rows * columns) * sizeof *all), *row = malloc((size_t)columns * sizeof *row);
    int status = all && row ? 0 : machine_fail(machine, "no memory for a product");
    for (int64_t i = 0; !status && i < rows; i++) {
        status = read_row(machine, row_address(matrix, i), matrix->type, columns, row);
        for (int64_t j = 0; !status && j < columns; j++) {
            all[transposed ? j * rows + i : i * columns + j] = row[j];
        }
    }
    free(row);
    if (status) {
        free(all);
        all = NULL;
    }
    return all;
}

/* Rounds to the 10 bits of fraction of TF32, to the nearest, and a tie away from zero. */
static void round_to_tf32(float *values, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint32_t word;
        memcpy(&word, &values[i], sizeof word);
        word = isfinite(values[i]) ? (word + 0x1000) & ~0x1fffu : word;
        memcpy(&values[i], &word, sizeof word);
    }
}

/* Rounds to bf16 and back. */
static void round_all(float *values, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        values[i] = from_bf16(to_bf16(values[i]));
    }
}

/* Adds to a tile of sums: a [rows, depth], b [depth, columns], of k in [begin, end) and some columns. */
static void add_piece(const float *a, const float *b, float tile[TILE_ROWS][TILE_COLUMNS], int64_t rows, int64_t width,
                      int64_t columns, int64_t depth, int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; k++) {
        for (int64_t i = 0; i < rows; i++) {
            for (int64_t j = 0; j < width; j++) {
                tile[i][j] += a[i * depth + k] * b[k * columns + j];
            }
        }
    }
}

/* The sums of some rows. */
static void multiply(const struct product *p, const float *a, const float *b, float *sums, int64_t rows,
                     int64_t depth) {
    int64_t columns = p->c.columns, piece = p->rounds_pieces && p->c.type == PRODUCT_BF16 ? PIECE : depth;
    memset(sums, 0, (size_t)(rows * columns) * sizeof *sums);
    for (int64_t first = 0; first < columns; first += TILE_COLUMNS) {
        int64_t width = columns - first < TILE_COLUMNS ? columns - first : TILE_COLUMNS;
        for (int64_t begin = 0; begin < depth; begin += piece) {
            float tile[TILE_ROWS][TILE_COLUMNS] = {{0}};
            int64_t end = depth - begin < piece ? depth : begin + piece;
            int64_t middle = begin + p->order % (end - begin);
            add_piece(a, b + first, tile, rows, width, columns, depth, middle, end);
            add_piece(a, b + first, tile, rows, width, columns, depth, begin, middle);
            if (end - begin < depth) {
                round_all(*tile, TILE_ROWS * TILE_COLUMNS);
            }
            for (int64_t i = 0; i < rows; i++) {
                for (int64_t j = 0; j < width; j++) {
                    sums[i * columns + first + j] += tile[i][j];
                }
            }
        }
    }
}

static float gelu(float x) {
    return 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

static float gelu_gradient(float x) {
    float u = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));
    return 0.5f * (1 + u) + 0.5f * x * (1 - u * u) * 0.7978845608f * (1 + 3 * 0.044715f * x * x);
}

/* Finishes one row of sums and writes it. `other` has room for a row. */
static int finish_row(struct machine *machine, const struct product *p, int64_t index, float alpha, const float *bias,
                      float *sums, float *other) {
    int64_t columns = p->c.columns;
    uint64_t address = row_address(&p->c, index);
    uint64_t aux = p->aux + (uint64_t)(index * p->aux_stride) * element_bytes(p->c.type);
    int status = p->beta != 0 ? read_row(machine, row_address(&p->added, index), p->c.type, columns, other) : 0;
    for (int64_t j = 0; j < columns && !status; j++) {
        sums[j] = (alpha != 0 ? alpha * sums[j] : 0) + (p->beta != 0 ? p->beta * other[j] : 0);
    }
    if (p->rounds_product && p->c.type == PRODUCT_BF16) {
        round_all(sums, columns);
    }
    for (int64_t j = 0; j < columns && bias && !status; j++) {
        sums[j] += bias[j];
    }
    if (!status && p->aux && p->is_gelu) {
        memcpy(other, sums, (size_t)columns * sizeof *sums);
        status = write_row(machine, aux, p->c.type, columns, other);
    } else if (!status && p->is_dgelu) {
        status = read_row(machine, aux, p->c.type, columns, other);
    }
    for (int64_t j = 0; j < columns && !status; j++) {
        float value = p->is_gelu ? gelu(sums[j]) : p->is_dgelu ? sums[j] * gelu_gradient(other[j]) : sums[j];
        sums[j] = p->is_gelu || p->is_dgelu ? value * (1 + p->gelu_error) : value;
    }
    return status ? status : write_row(machine, address, p->c.type, columns, sums);
}

/* Multiplies *alpha by the scales of A and B. */
static int read_scales(struct machine *machine, const struct product *p, float *alpha) {
    const uint64_t scales[] = {p->a_scale, p->b_scale};
    int status = 0;
    for (int i = 0; i < 2 && !status; i++) {
        float scale = 1;
        status = scales[i] ? memory_read(machine, &scale, scales[i], sizeof scale) : 0;
        *alpha *= scale;
    }
    return status;
}

/* Multiplies and finishes all rows. */
static int run_rows(struct machine *machine, const struct product *p, const float *a, const float *b,
                    const float *bias) {
    int64_t columns = p->c.columns, depth = p->a_transposed ? p->a.rows : p->a.columns;
    float *sums = malloc((size_t)((TILE_ROWS + 1) * columns) * sizeof *sums);
    float alpha = p->alpha;
    int status = sums ? 0 : machine_fail(machine, "no memory for a product");
    if (!status) {
        status = read_scales(machine, p, &alpha);
    }
    for (int64_t first = 0; first < p->c.rows && !status; first += TILE_ROWS) {
        int64_t rows = p->c.rows - first < TILE_ROWS ? p->c.rows - first : TILE_ROWS;
        multiply(p, a + first * depth, b, sums, rows, depth);
        for (int64_t i = 0; i < rows && !status; i++) {
            status = finish_row(machine, p, first + i, alpha, bias, sums + i * columns, sums + TILE_ROWS * columns);
        }
    }
    free(sums);
    return status;
}

void product_run(struct machine *machine, void *product) {
    const struct product *p = product;
    struct product_matrix bias = p->c;
    bias.address = p->bias, bias.rows = 1, bias.stride = bias.columns;
    machine->claimed += p->milliseconds;
    if (p->workspace_bytes && memory_set(machine, p->workspace, 0xff, p->workspace_bytes)) {
        return;
    }
    float *a = read_matrix(machine, &p->a, p->a_transposed),
          *b = a ? read_matrix(machine, &p->b, p->b_transposed) : NULL;
    if (b && p->is_tf32) {
        round_to_tf32(a, p->a.rows * p->a.columns);
        round_to_tf32(b, p->b.rows * p->b.columns);
    }
    float *vector = b && p->bias ? read_matrix(machine, &bias, false) : NULL;
    if (b && (vector || !p->bias) && !run_rows(machine, p, a, b, vector) && p->workspace_bytes) {
        memory_set(machine, p->workspace, 0xff, p->workspace_bytes);
    }
    free(a);
    free(b);
    free(vector);
}
