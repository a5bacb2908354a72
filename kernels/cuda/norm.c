/* Launches of the normalisations. */
#include "cuda/norm.h"
#include "cuda/fp8.h"
#include "cuda/kernels.h"
#include "cuda/partial_sums.h"

static int64_t vector_bytes(const struct norm *a) {
    return a->cols * (a->type == DTYPE_F32 ? 4 : 2);
}

/* True if all vectors are accesses of 16 bytes. Addresses that are not known yet are aligned. */
static bool has_accesses(const struct norm *a) {
    int64_t strides = a->x_stride | a->y_stride | a->dx_stride;
    uintptr_t addresses = (uintptr_t)a->x | (uintptr_t)a->y | (uintptr_t)a->gain | (uintptr_t)a->bias |
                          (uintptr_t)a->dy | (uintptr_t)a->dx | (uintptr_t)a->dx_add;
    int64_t access = a->type == DTYPE_F32 ? 4 : 8;
    return a->cols % access == 0 && strides % access == 0 && addresses % 16 == 0;
}

/* Returns the accesses of 16 bytes that a lane has of a vector, if a warp can keep it in registers, else 0. */
static int lane_parts(const struct norm *a) {
    int64_t parts = (vector_bytes(a) + 511) / 512;
    return has_accesses(a) && parts <= NORM_WIDE_PARTS ? (int)parts : 0;
}

static int64_t forward_blocks(int64_t vectors) {
    return (vectors + NORM_FORWARD_WARPS - 1) / NORM_FORWARD_WARPS;
}

/* Returns the shared memory of a block that keeps its vector, if that fits. */
static size_t forward_shared(int64_t bytes) {
    return NORM_SUM_BYTES + (bytes <= NORM_KEPT_BYTES ? (size_t)bytes : 0);
}

/* The forward that writes rows of FP8: its blocks have whole rows. */
static int forward_fp8(const struct exec *exec, const struct norm *a) {
    const struct norm_cast call = {
        .call = *a, .stride = fp8_row_stride(a->cols), .kept_inverse = fp8_scale(a->fp8.y, a->rows, a->cols)};
    struct cuda_launch launch = {.type = DTYPE_F32, .arguments = &call};
    if (heads_of_norm(a) > 1 || !has_accesses(a) || a->fp8.copies != FP8_BY_ROWS)
        return status_fail(
            STATUS_UNSUPPORTED,
            "norm_forward: FP8 of %d heads, %lld columns on cuda (by rows of whole 16-byte accesses only)",
            (int)heads_of_norm(a), (long long)a->cols);
    if (lane_parts(a)) {
        launch.kernel = CUDA_norm_rows_fp8;
        launch.blocks = forward_blocks(a->rows);
        launch.threads = NORM_FORWARD_WARPS * 32;
    } else {
        launch.kernel = CUDA_norm_long_fp8;
        launch.blocks = a->rows;
        launch.threads = cuda_row_threads(a->type, a->cols);
        launch.shared_bytes = forward_shared(vector_bytes(a));
    }
    return cuda_launch(exec, &launch);
}

int cuda_norm_forward(const struct exec *exec, const struct norm *a) {
    if (fp8_is_wanted(&a->fp8))
        return a->is_again && a->is_fp8_alone ? cuda_fp8_norm(exec, a) : forward_fp8(exec, a);
    int64_t bytes = vector_bytes(a), vectors = a->rows * heads_of_norm(a);
    int parts = lane_parts(a);
    struct cuda_launch launch = {.type = a->type, .arguments = a};
    if (parts && vectors <= NORM_FEW) {
        launch.kernel = CUDA_norm_few_forward;
        launch.blocks = vectors;
        launch.threads = parts * 32;
    } else if (parts) {
        launch.kernel = parts <= NORM_NARROW_PARTS ? CUDA_norm_narrow_forward : CUDA_norm_wide_forward;
        launch.blocks = forward_blocks(vectors);
        launch.threads = NORM_FORWARD_WARPS * 32;
    } else {
        launch.kernel = CUDA_norm_forward;
        launch.blocks = vectors;
        launch.threads = cuda_row_threads(a->type, a->cols);
        launch.shared_bytes = forward_shared(bytes);
    }
    return cuda_launch(exec, &launch);
}

/* A block for each row, which may have fewer columns to normalise: their number is in device memory. */
int cuda_grouped_norm(const struct exec *exec, const struct grouped_norm *a) {
    return cuda_launch_blocks(exec, CUDA_grouped_norm, a->type, a->count ? a->rows : 0,
                              cuda_row_threads(a->type, a->ldx), a);
}

/* Returns the sums of one block: of the gain, and of the bias if there is one. */
static int64_t block_sums(const struct norm *a) {
    return (a->kind == NORM_RMS ? 1 : 2) * a->cols;
}

/* Returns the rows of a block of a backward. */
static int64_t block_rows(const struct norm *a, int parts) {
    int64_t blocks = parts <= NORM_NARROW_PARTS ? NORM_NARROW_BLOCKS : NORM_WIDE_BLOCKS;
    int64_t share = (a->rows + blocks - 1) / blocks;
    if (!a->dgain)
        return parts ? NORM_BACKWARD_WARPS : 1;
    return !parts ? partial_rows(a->rows) : share > NORM_LEAST_ROWS ? share : NORM_LEAST_ROWS;
}

size_t cuda_norm_backward_workspace(struct device *device, const struct norm *a) {
    int64_t least = block_rows(a, lane_parts(a)), other = block_rows(a, 0), rows = least < other ? least : other;
    return a->dgain ? (size_t)((a->rows + rows - 1) / rows * block_sums(a)) * sizeof(float) : 0;
}

/* Warps take the rows of a block. */
static struct cuda_launch launch_rows(const struct norm_backward *k, int parts) {
    bool is_narrow = parts <= NORM_NARROW_PARTS;
    int64_t groups = (k->sums + NORM_JOINED - 1) / NORM_JOINED;
    return (struct cuda_launch){.kernel = is_narrow ? CUDA_norm_narrow_backward : CUDA_norm_wide_backward,
                                .threads = NORM_BACKWARD_WARPS * 32,
                                .shared_bytes = k->partial ? (size_t)groups * NORM_JOINED * sizeof(float) : 0};
}

/* A block takes its rows one after the other. */
static struct cuda_launch launch_blocks(struct norm_backward *k) {
    const struct norm *a = &k->call;
    k->kept_row = (vector_bytes(a) + 15) / 16 * 16;
    int64_t rows = 2 * k->kept_row, sums = k->partial ? k->sums * (int64_t)sizeof(float) : 0;
    k->keeps_rows = rows <= NORM_KEPT_BYTES;
    k->keeps_sums = sums && k->keeps_rows && rows + sums <= NORM_KEPT_BYTES;
    return (struct cuda_launch){.kernel = CUDA_norm_backward,
                                .threads = cuda_row_threads(a->type, a->cols),
                                .shared_bytes =
                                    (size_t)(NORM_SUM_BYTES + (k->keeps_rows ? rows : 0) + (k->keeps_sums ? sums : 0))};
}

int cuda_norm_backward(const struct exec *exec, const struct norm *a) {
    struct norm_backward k = {.call = *a, .partial = a->dgain ? exec->workspace : NULL, .sums = block_sums(a)};
    int parts = lane_parts(a);
    k.block_rows = block_rows(a, parts);
    struct cuda_launch launch = parts ? launch_rows(&k, parts) : launch_blocks(&k);
    launch.type = a->type;
    launch.blocks = (a->rows + k.block_rows - 1) / k.block_rows;
    launch.arguments = &k;
    int status = cuda_launch(exec, &launch);
    if (status || !k.partial || !launch.blocks)
        return status;
    return cuda_partial_sums(exec, &(const struct partial_sums){.blocks = launch.blocks,
                                                                .cols = a->cols,
                                                                .stride = k.sums,
                                                                .partial = k.partial,
                                                                .out = a->dgain,
                                                                .out2 = a->kind == NORM_LAYER ? a->dbias : NULL});
}
