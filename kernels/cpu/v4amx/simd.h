/* Vectors of 16 floats, and products of pairs of bf16. level/packed_tiles.h has the products of tiles. */
#include "cpu/v4bf16/simd.h"
