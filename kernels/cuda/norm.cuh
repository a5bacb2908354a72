/* The value of a normalisation, which several kernels compute with the same bits. */
#pragma once

#include "cuda/fp8_numbers.cuh"
#include "cuda/norm.h"

static __device__ __forceinline__ float norm_value(float x, float mean, float rstd, float gain, float bias,
                                                   bool is_rms) {
    float value = (x - mean) * rstd;
    return is_rms ? value * gain : fmaf(value, gain, bias);
}

/* A thread's part of the rows that a block casts to FP8. */
struct fp8_row_writer {
    const norm_cast &c;
    float scale;
    uint32_t most;

    /* Casts 8 elements, an access of 16 bytes, of a row. Zeros follow its last one. */
    __device__ __forceinline__ void write(int64_t row, int access, uint4 value) {
        uint2 *to = (uint2 *)((uint8_t *)c.call.fp8.y + row * c.stride) + access;
        *to = cast_quad(quad_of(value), scale, c.call.fp8.type == DTYPE_E5M2, most);
        if ((access + 1) * (int64_t)QUAD == c.call.cols && access % 2 == 0)
            to[1] = uint2{};
    }
    /* Adds the block's largest size, as keep_largest. */
    __device__ __forceinline__ void end(uint32_t *of_warps) {
        keep_largest((uint32_t *)c.call.fp8.amax, most, of_warps);
        if (threadIdx.x == 0 && blockIdx.x == 0)
            *c.kept_inverse = *c.call.fp8.inverse;
    }
};
