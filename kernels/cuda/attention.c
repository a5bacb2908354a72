/* Launches of attention. */
#include "cuda/attention.h"
#include "algorithms.h"
#include "attention_check.h"
#include "cuda/attention_tiles.h"
#include "cuda/kernels.h"
#include "cuda/paged_attention.h"

/* The kernels by tiles for one size of heads, and the shared memory of their blocks. */
struct tile_kernels {
    int size, bytes, dropout_bytes, gradient_bytes;
    enum cuda_kernel forward, forward_dropout, queries, keys;
};
#define TILE_KERNELS(size, element, forward, dropout, queries, keys)                                                   \
    {size,                                                                                                             \
     ATTENTION_TILE_BYTES(size, element),                                                                              \
     ATTENTION_TILE_BYTES(size, element) + KEPT_TILE_BYTES(ATTENTION_TILE_KEYS(size, element)),                        \
     GRADIENT_TILE_BYTES(size, element),                                                                               \
     CUDA_attention_##forward##_tiles_##size,                                                                          \
     CUDA_attention_##dropout##_tiles_##size,                                                                          \
     CUDA_attention_##queries##_tiles_##size,                                                                          \
     CUDA_attention_##keys##_tiles_##size},
#define BF16_KERNELS(size) TILE_KERNELS(size, 2, forward, forward_dropout, backward_queries, backward_keys)
#define TF32_KERNELS(size) TILE_KERNELS(size, 4, forward_tf32, forward_tf32, backward_queries_tf32, backward_keys_tf32)
static const struct tile_kernels bf16_kernels[] = {ATTENTION_TILE_SIZES(BF16_KERNELS)};
static const struct tile_kernels tf32_kernels[] = {ATTENTION_TF32_SIZES(TF32_KERNELS)};

/* `shares` warps for each row or key. */
static int launch_rows(const struct exec *exec, enum cuda_kernel kernel, const struct attention *a, int64_t rows,
                       int64_t shares, const void *arguments) {
    int64_t blocks = (rows + ATTENTION_WARPS - 1) / ATTENTION_WARPS * shares;
    return cuda_launch_blocks(exec, kernel, a->type, blocks, ATTENTION_WARPS * 32, arguments);
}

/* One warp for each row, or key, of each of `heads` heads, and for each slab of features. */
static int launch_warps(const struct exec *exec, enum cuda_kernel kernel, const struct attention *a, int64_t rows,
                        int heads, const void *arguments) {
    return launch_rows(exec, kernel, a, rows, (int64_t)heads * attention_slabs(a->head_size), arguments);
}

/* Returns the kernels by tiles for this type and size of heads, or NULL. */
static const struct tile_kernels *tiles_of_size(const struct attention *a) {
    bool is_bf16 = a->type == DTYPE_BF16;
    const struct tile_kernels *tiles = is_bf16 ? bf16_kernels : tf32_kernels;
    if (is_bf16 ? a->head_size > TILE_SIZE_MOST : !a->is_tf32 || !attention_has_tf32(a->head_size))
        return NULL;
    while (a->head_size > tiles->size)
        tiles++;
    return tiles;
}

/* Returns the kernels by tiles for this call; NULL where only the plain ones serve: tiles are copied 16 bytes at a
 * time. */
static const struct tile_kernels *find_tiles(const struct attention *a, bool is_backward) {
    const void *const memory[] = {a->q, a->k, a->v, a->prefix_k, a->prefix_v, a->out, a->dout, a->dq, a->dk, a->dv};
    int64_t strides = a->head_size | a->q_stride | a->k_stride | a->v_stride | a->out_stride;
    uintptr_t addresses = 0;
    for (size_t i = 0; i < (is_backward ? 10 : 6); i++)
        addresses |= (uintptr_t)memory[i];
    return strides % (16 / (int64_t)dtype_bytes(a->type)) == 0 && addresses % 16 == 0 ? tiles_of_size(a) : NULL;
}

/* One block for each tile of rows, or keys, of each of `heads` heads. */
static int launch_tiles(const struct exec *exec, enum cuda_kernel kernel, int64_t rows, int heads, int bytes,
                        const struct attention_part *part) {
    return cuda_launch(exec, &(const struct cuda_launch){.kernel = kernel,
                                                         .type = part->a.type,
                                                         .blocks = (rows + TILE_ROWS - 1) / TILE_ROWS * heads,
                                                         .threads = TILE_WARPS * 32,
                                                         .shared_bytes = (size_t)bytes,
                                                         .arguments = part});
}

/* ---- dropout by tiles: the bits of as many heads as the workspace has room for ---- */

/* The maximum number of bytes of bits, unless those of one key/value head are more. */
enum { KEPT_BYTES_MOST = 64 << 20 };

/* Returns the bytes of the bits of one key/value head's query heads. */
static size_t group_bytes(const struct attention *a, int64_t longest) {
    int64_t words = a->dropout.p > 0 && tiles_of_size(a) ? attention_kept_words(a->prefix, longest) : 0;
    return (size_t)(a->heads / a->kv_heads * a->rows * words) * sizeof(uint32_t);
}

static int64_t longest_of(const struct attention *a) {
    return a->longest ? a->longest : a->rows;
}

/* Returns the bytes of bits to ask for. */
static size_t kept_bytes(const struct attention *a) {
    size_t one = group_bytes(a, a->rows), all = one * (size_t)a->kv_heads;
    return all <= KEPT_BYTES_MOST ? all : one > KEPT_BYTES_MOST ? one : KEPT_BYTES_MOST;
}

/* Opens the first part of a call by tiles; `memory` of `bytes` takes the bits. */
static struct attention_part first_part(const struct attention *a, float *delta, void *memory, size_t bytes) {
    struct attention_part part = {.a = *a, .heads = a->heads, .delta = delta};
    if (a->dropout.p > 0) {
        int64_t groups = (int64_t)(bytes / group_bytes(a, longest_of(a)));
        part.kept = memory;
        part.kept_words = attention_kept_words(a->prefix, longest_of(a));
        part.heads = a->heads / a->kv_heads * (int)(groups < a->kv_heads ? groups : a->kv_heads);
    }
    return part;
}

/* Turns to the next heads. Returns false after the last ones. */
static bool next_part(struct attention_part *part) {
    part->first_head += part->heads;
    int remaining = part->a.heads - part->first_head;
    part->heads = part->heads < remaining ? part->heads : remaining;
    return remaining > 0;
}

static int find_kept(const struct exec *exec, const struct attention_part *part) {
    int64_t groups = (part->heads + KEPT_HEADS - 1) / KEPT_HEADS;
    return part->a.dropout.p > 0 ? launch_rows(exec, CUDA_attention_kept, &part->a, part->a.rows, groups, part)
                                 : STATUS_OK;
}

/* ---- forward ---- */

size_t cuda_attention_forward_workspace(struct device *device, const struct attention *a) {
    return kept_bytes(a);
}

static int forward_tiles(const struct exec *exec, const struct attention *a, const struct tile_kernels *tiles) {
    struct attention_part part = first_part(a, NULL, exec->workspace, exec->workspace_bytes);
    bool drops = a->dropout.p > 0;
    int status;
    do {
        status = find_kept(exec, &part);
        THEN(status, launch_tiles(exec, drops ? tiles->forward_dropout : tiles->forward, a->rows, part.heads,
                                  drops ? tiles->dropout_bytes : tiles->bytes, &part));
    } while (!status && next_part(&part));
    return status;
}

int cuda_attention_forward(const struct exec *exec, const struct attention *a) {
    int status = attention_check(a);
    const struct tile_kernels *tiles = find_tiles(a, false);
    THEN(status, attention_check_workspace(exec, group_bytes(a, longest_of(a)), "attention forward"));
    TRY(status);
    if (device_is_batch_invariant(stream_device(exec->stream)) && a->dropout.p == 0) /* serving has no dropout */
        return cuda_attention_forward_pages(exec, a);
    return tiles ? forward_tiles(exec, a, tiles) : launch_warps(exec, CUDA_attention_forward, a, a->rows, a->heads, a);
}

/* ---- backward ---- */

static size_t delta_bytes(const struct attention *a) {
    return (size_t)(a->rows * a->heads) * 2 * sizeof(float);
}

size_t cuda_attention_backward_workspace(struct device *device, const struct attention *a) {
    return delta_bytes(a) + kept_bytes(a);
}

static int backward_tiles(const struct exec *exec, const struct attention *a, const struct tile_kernels *tiles) {
    size_t first = delta_bytes(a);
    struct attention_part part =
        first_part(a, exec->workspace, (char *)exec->workspace + first, exec->workspace_bytes - first);
    int64_t keys = a->rows + (a->dprefix_k || a->dprefix_v ? a->prefix : 0);
    int bytes = tiles->gradient_bytes, features = GRADIENT_TILE_FEATURES(tiles->size);
    int slabs = (a->head_size + features - 1) / features, group = a->heads / a->kv_heads, status;
    do {
        status = find_kept(exec, &part);
        THEN(status, launch_tiles(exec, tiles->queries, a->rows, part.heads, bytes, &part));
        THEN(status, launch_tiles(exec, tiles->keys, keys, part.heads / group * slabs, bytes, &part));
    } while (!status && next_part(&part));
    return status;
}

int cuda_attention_backward(const struct exec *exec, const struct attention *a) {
    int status = attention_check(a);
    const struct tile_kernels *tiles = find_tiles(a, true);
    THEN(status, attention_check_workspace(exec, delta_bytes(a) + group_bytes(a, longest_of(a)), "attention backward"));
    TRY(status);
    if (tiles)
        return backward_tiles(exec, a, tiles);
    int64_t keys = a->rows + (a->dprefix_k || a->dprefix_v ? a->prefix : 0);
    struct attention_part whole = {.a = *a, .heads = a->heads, .delta = exec->workspace};
    status = launch_warps(exec, CUDA_attention_backward_queries, a, a->rows, a->heads, &whole);
    return status ? status : launch_warps(exec, CUDA_attention_backward_keys, a, keys, a->kv_heads, &whole);
}
