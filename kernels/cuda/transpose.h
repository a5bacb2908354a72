/* Tiles of the kernel that transposes. */
#ifndef CAMBIUM_KERNELS_CUDA_TRANSPOSE_H
#define CAMBIUM_KERNELS_CUDA_TRANSPOSE_H

enum { TRANSPOSE_TILE = 32, TRANSPOSE_ROWS = 8 /* of a tile at a time: one warp each */ };

#endif
