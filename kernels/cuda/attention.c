/* Launches of attention. */
#include "cuda/attention.h"
#include "attention_check.h"
#include "cuda/attention_tiles.h"
#include "cuda/kernels.h"

#define TILE_SIZE(size) size,
#define TILE_ROW(size)  {CUDA_attention_forward_tiles_##size, ATTENTION_TILE_BYTES(size)},

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

/* Returns the place in ATTENTION_TILE_SIZES of the kernel by tiles for this call; -1 where only the plain one serves:
 * tiles are copied 16 bytes at a time. */
static int tiles_place(const struct attention *a) {
    static const int sizes[] = {ATTENTION_TILE_SIZES(TILE_SIZE)};
    const void *const memory[] = {a->q, a->k, a->v, a->prefix_k, a->prefix_v, a->out};
    int64_t strides = a->head_size | a->q_stride | a->k_stride | a->v_stride | a->out_stride;
    uintptr_t addresses = 0;
    int place = 0, count = (int)(sizeof sizes / sizeof *sizes);
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        addresses |= (uintptr_t)memory[i];
    while (place < count && a->head_size > sizes[place])
        place++;
    return a->type == DTYPE_BF16 && place < count && strides % 8 == 0 && addresses % 16 == 0 ? place : -1;
}

static int launch_tiles(const struct exec *exec, const struct attention *a, int place) {
    static const struct {
        enum cuda_kernel kernel;
        int bytes;
    } rows[] = {ATTENTION_TILE_SIZES(TILE_ROW)};
    return cuda_launch(exec, &(const struct cuda_launch){.kernel = rows[place].kernel,
                                                         .type = a->type,
                                                         .blocks = (a->rows + TILE_ROWS - 1) / TILE_ROWS * a->heads,
                                                         .threads = TILE_WARPS * 32,
                                                         .shared_bytes = (size_t)rows[place].bytes,
                                                         .arguments = a});
}

size_t cuda_attention_forward_workspace(struct device *device, const struct attention *a) {
    (void)device;
    (void)a;
    return 0;
}

int cuda_attention_forward(const struct exec *exec, const struct attention *a) {
    int status = attention_check(a);
    int place = tiles_place(a);
    if (status)
        return status;
    return place < 0 ? launch_warps(exec, CUDA_attention_forward, a, a->rows, a->heads, a)
                     : launch_tiles(exec, a, place);
}

static size_t delta_bytes(const struct attention *a) {
    return (size_t)(a->rows * a->heads) * sizeof(float);
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
    status = launch_warps(exec, CUDA_attention_backward_queries, a, a->rows, a->heads, &gradient);
    int64_t keys = a->rows + (a->dprefix_k || a->dprefix_v ? a->prefix : 0);
    return status ? status : launch_warps(exec, CUDA_attention_backward_keys, a, keys, a->kv_heads, &gradient);
}
