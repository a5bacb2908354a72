/* Launches of the operations on the pages of the KV cache. */
#include "cuda/paged_attention.h"
#include "attention_check.h"
#include "cuda/attention.h"
#include "cuda/kernels.h"

/* Above these sizes there are warps enough without dividing sequences into parts. With tensor cores, one block takes up
 * to PARTS_OF_BLOCK parts, and up to BLOCKS_FEW blocks, which leave multiprocessors idle, have several teams of warps.
 * Results have the same bits. */
enum { FEW_ROWS = 64, PARTS_MOST_BYTES = 64 << 20, PARTS_OF_BLOCK = 3, BLOCKS_FEW = 132 };

static int64_t parts_of(const struct paged_attention *a) {
    return (a->max_pages * KV_PAGE_TOKENS + PAGED_PART_TOKENS - 1) / PAGED_PART_TOKENS;
}

/* Returns the bytes of the parts' results; 0 if sequences are not divided. */
static size_t parts_bytes(const struct paged_attention *a) {
    int64_t parts = parts_of(a), bytes = a->rows * a->heads * parts * (a->head_size + 2) * (int64_t)sizeof(float);
    return parts > (a->type == DTYPE_BF16 ? PARTS_OF_BLOCK : 1) && a->rows <= FEW_ROWS && bytes <= PARTS_MOST_BYTES
               ? (size_t)bytes
               : 0;
}

size_t cuda_paged_attention_workspace(struct device *device, const struct paged_attention *a) {
    return parts_bytes(a);
}

/* A block for each row, key/value head, slab of features and part. */
static int launch(const struct exec *exec, enum cuda_kernel kernel, const struct paged_attention *a, int64_t parts,
                  const void *arguments) {
    int group = a->heads / a->kv_heads;
    int64_t blocks = a->rows * a->kv_heads * attention_slabs(a->head_size) * parts;
    return cuda_launch_blocks(exec, kernel, a->type, blocks, 32 * (group < PAGED_WARPS ? group : PAGED_WARPS),
                              arguments);
}

/* ---- tensor cores ---- */

struct tile_kernel {
    int size, features, teams;
    enum cuda_kernel kernel, of_batch;
};
#define TILE_KERNEL(size)                                                                                              \
    {size, PAGED_TILE_FEATURES(size), PAGED_TILE_TEAMS(size), CUDA_paged_attention_tiles_##size,                       \
     CUDA_attention_forward_pages_##size},
static const struct tile_kernel tile_kernels[] = {PAGED_TILE_SIZES(TILE_KERNEL)};

/* Returns the kernel by tiles for this call; NULL where only the plain ones serve. It reads units of pages. */
static const struct tile_kernel *find_tiles(const struct paged_attention *a) {
    size_t count = sizeof tile_kernels / sizeof *tile_kernels, place = 0;
    while (place < count && a->head_size > tile_kernels[place].size)
        place++;
    bool is_served = a->type == DTYPE_BF16 && place < count && a->head_size % 2 == 0 && (uintptr_t)a->pages % 4 == 0;
    return is_served ? &tile_kernels[place] : NULL;
}

/* One block for each row, for up to PAGED_PAIRS query heads of each key/value head and for each slab of features. Where
 * parts have their own results, several blocks share them. */
static int launch_tiles(const struct exec *exec, const struct tile_kernel *tiles, struct paged_parts *parts,
                        const struct attention *batch) {
    const struct paged_attention *a = &parts->a;
    int64_t heads = (a->heads / a->kv_heads + PAGED_PAIRS - 1) / PAGED_PAIRS * a->kv_heads;
    int64_t slabs = (a->head_size + tiles->features - 1) / tiles->features, blocks = a->rows * heads * slabs;
    int64_t most = parts->result || blocks <= BLOCKS_FEW ? parts_of(a) : 1;
    int teams = most < tiles->teams ? (int)most : tiles->teams;
    parts->blocks = parts->result ? (int)((most + teams - 1) / teams) : 1;
    return cuda_launch(exec,
                       &(const struct cuda_launch){.kernel = batch ? tiles->of_batch : tiles->kernel,
                                                   .type = DTYPE_BF16,
                                                   .blocks = blocks * parts->blocks,
                                                   .threads = 32 * PAGED_TILE_WARPS * teams,
                                                   .shared_bytes = (size_t)(teams * PAGED_TEAM_BYTES(tiles->features) +
                                                                            PAGED_PAIR_BYTES(tiles->features)),
                                                   .arguments = batch ? (const void *)batch : parts});
}

/* The pages of a batch are as long as its longest segment, which decides only how many teams of warps a block has. */
int cuda_attention_forward_pages(const struct exec *exec, const struct attention *a) {
    int64_t longest = a->prefix + (a->longest ? a->longest : a->rows);
    struct paged_parts parts = {.a = {.rows = a->rows,
                                      .heads = a->heads,
                                      .kv_heads = a->kv_heads,
                                      .head_size = a->head_size,
                                      .type = a->type,
                                      .max_pages = (longest + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS}};
    const struct tile_kernel *tiles = find_tiles(&parts.a);
    return tiles ? launch_tiles(exec, tiles, &parts, a) : launch(exec, CUDA_attention_forward_pages, &parts.a, 1, a);
}

int cuda_paged_attention(const struct exec *exec, const struct paged_attention *a) {
    int status = paged_attention_check(a);
    if (!status && a->type == DTYPE_BF16 && a->page_stride % 2)
        status =
            status_fail(STATUS_INVALID, "paged attention over pages of an odd stride, %lld", (long long)a->page_stride);
    THEN(status, attention_check_workspace(exec, parts_bytes(a), "paged attention"));
    TRY(status);
    bool is_cut = parts_bytes(a) > 0;
    const struct tile_kernel *tiles = find_tiles(a);
    struct paged_parts parts = {
        .a = *a, .count = is_cut ? (int)parts_of(a) : 1, .result = is_cut ? exec->workspace : NULL};
    if (tiles)
        status = launch_tiles(exec, tiles, &parts, NULL);
    else if (is_cut)
        status = launch(exec, CUDA_paged_attention_parts, a, parts.count, &parts);
    else
        status = launch(exec, CUDA_paged_attention, a, 1, a);
    return status || !is_cut ? status : launch(exec, CUDA_paged_attention_merge, a, 1, &parts);
}

int64_t cuda_kv_page_elements(struct device *device, int kv_heads, int head_size, enum dtype type) {
    return (int64_t)2 * KV_PAGE_TOKENS * kv_heads * head_size;
}

int cuda_kv_append(const struct exec *exec, const struct kv_append *a) {
    int cols = a->kv_heads * a->head_size, threads = cols <= 32 ? 32 : cols <= 128 ? 128 : 256;
    return cuda_launch_blocks(exec, CUDA_kv_append, a->type, a->rows * ((cols + threads - 1) / threads), threads, a);
}
