/* Launch of products whose rows belong to many adapters. */
#include "cuda/grouped_gemm.h"

#include "cuda/kernels.h"

enum {
    SINGLE_ROWS_MOST = 64, /* so few rows are mostly those of a decode step, each with its own adapter */
    BLOCKS = 512,          /* that a launch should have: few rows share out their columns */
    SPLIT_BITS_MOST = 4,
};

int cuda_grouped_gemm(const struct exec *exec, const struct grouped_gemm *a) {
    int tile_rows = a->a_type == DTYPE_BF16 ? GROUP_TILE_ROWS : GROUP_ROWS;
    struct grouped_gemm_call call = {.product = *a, .tile_rows = a->rows > SINGLE_ROWS_MOST ? tile_rows : 1};
    call.tiles = a->count ? (a->rows + call.tile_rows - 1) / call.tile_rows : 0;
    while (call.split_bits < SPLIT_BITS_MOST && call.tiles << call.split_bits < BLOCKS)
        call.split_bits++;
    TRY(cuda_require_activation("grouped_gemm", a->c_type));
    return cuda_launch_blocks(exec, CUDA_grouped_gemm, a->a_type, call.tiles << call.split_bits, GROUP_COLS, &call);
}
