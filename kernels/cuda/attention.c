/* Launches of attention. */
#include "cuda/attention.h"
#include "attention_check.h"
#include "cuda/attention_tiles.h"
#include "cuda/kernels.h"

/* The kernels by tiles for one size of heads, and the shared memory of their blocks. */
struct tile_kernels {
    int size, bytes, gradient_bytes;
    enum cuda_kernel forward, forward_dropout, queries, keys;
};
#define TILE_KERNELS(size)                                                                                             \
    {size,                                                                                                             \
     ATTENTION_TILE_BYTES(size),                                                                                       \
     GRADIENT_TILE_BYTES(size),                                                                                        \
     CUDA_attention_forward_tiles_##size,                                                                              \
     CUDA_attention_forward_dropout_tiles_##size,                                                                      \
     CUDA_attention_backward_queries_tiles_##size,                                                                     \
     CUDA_attention_backward_keys_tiles_##size},
static const struct tile_kernels tile_kernels[] = {ATTENTION_TILE_SIZES(TILE_KERNELS)};

/* One warp for each row, or key, of each of `heads` heads, and for each slab of features. */
static int launch_warps(const struct exec *exec, enum cuda_kernel kernel, const struct attention *a, int64_t rows,
                        int heads, const void *arguments) {
    int64_t blocks = (rows + ATTENTION_WARPS - 1) / ATTENTION_WARPS * heads * attention_slabs(a->head_size);
    return cuda_launch(exec, &(const struct cuda_launch){.kernel = kernel,
                                                         .type = a->type,
                                                         .blocks = blocks,
                                                         .threads = ATTENTION_WARPS * 32,
                                                         .arguments = arguments});
}

/* Returns the kernels by tiles for this call; NULL where only the plain ones serve: tiles are copied 16 bytes at a
 * time. */
static const struct tile_kernels *find_tiles(const struct attention *a, bool is_backward) {
    const void *const memory[] = {a->q, a->k, a->v, a->prefix_k, a->prefix_v, a->out, a->dout, a->dq, a->dk, a->dv};
    int64_t strides = a->head_size | a->q_stride | a->k_stride | a->v_stride | a->out_stride;
    uintptr_t addresses = 0;
    size_t count = sizeof tile_kernels / sizeof *tile_kernels, place = 0;
    for (size_t i = 0; i < (is_backward ? 10 : 6); i++)
        addresses |= (uintptr_t)memory[i];
    while (place < count && a->head_size > tile_kernels[place].size)
        place++;
    bool is_served = a->type == DTYPE_BF16 && place < count && strides % 8 == 0 && addresses % 16 == 0;
    return is_served ? &tile_kernels[place] : NULL;
}

/* One block for each tile of rows, or keys, of each of `heads` heads. */
static int launch_tiles(const struct exec *exec, enum cuda_kernel kernel, int64_t rows, int heads, int bytes,
                        const void *arguments) {
    return cuda_launch(exec, &(const struct cuda_launch){.kernel = kernel,
                                                         .type = DTYPE_BF16,
                                                         .blocks = (rows + TILE_ROWS - 1) / TILE_ROWS * heads,
                                                         .threads = TILE_WARPS * 32,
                                                         .shared_bytes = (size_t)bytes,
                                                         .arguments = arguments});
}

size_t cuda_attention_forward_workspace(struct device *device, const struct attention *a) {
    (void)device;
    (void)a;
    return 0;
}

int cuda_attention_forward(const struct exec *exec, const struct attention *a) {
    int status = attention_check(a);
    const struct tile_kernels *tiles = find_tiles(a, false);
    if (status)
        return status;
    if (!tiles)
        return launch_warps(exec, CUDA_attention_forward, a, a->rows, a->heads, a);
    enum cuda_kernel kernel = a->dropout.p > 0 ? tiles->forward_dropout : tiles->forward;
    return launch_tiles(exec, kernel, a->rows, a->heads, tiles->bytes, a);
}

static size_t delta_bytes(const struct attention *a) {
    return (size_t)(a->rows * a->heads) * 2 * sizeof(float);
}

size_t cuda_attention_backward_workspace(struct device *device, const struct attention *a) {
    (void)device;
    return delta_bytes(a);
}

int cuda_attention_backward(const struct exec *exec, const struct attention *a) {
    int status = attention_check(a);
    if (!status)
        status = attention_check_workspace(exec, delta_bytes(a), "attention backward");
    if (status)
        return status;
    struct attention_gradient gradient = {.a = *a, .delta = exec->workspace};
    int64_t keys = a->rows + (a->dprefix_k || a->dprefix_v ? a->prefix : 0);
    const struct tile_kernels *tiles = find_tiles(a, true);
    if (!tiles) {
        status = launch_warps(exec, CUDA_attention_backward_queries, a, a->rows, a->heads, &gradient);
        return status ? status : launch_warps(exec, CUDA_attention_backward_keys, a, keys, a->kv_heads, &gradient);
    }
    int bytes = tiles->gradient_bytes, features = GRADIENT_TILE_FEATURES(tiles->size);
    int slabs = (a->head_size + features - 1) / features;
    status = launch_tiles(exec, tiles->queries, a->rows, a->heads, bytes, &gradient);
    return status ? status : launch_tiles(exec, tiles->keys, keys, a->kv_heads * slabs, bytes, &gradient);
}
