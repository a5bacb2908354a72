/* Accesses of 16 bytes that stay as they lie in memory until they are used, and sums over a warp. */
#pragma once

#include "cuda/typed.cuh"

/* The sums of two values over the warp, in a fixed order; every lane gets them. */
static __device__ __forceinline__ float2 warp_sum(float2 value) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        value.x += __shfl_xor_sync(~0u, value.x, distance);
        value.y += __shfl_xor_sync(~0u, value.y, distance);
    }
    return value;
}

/* The elements of an access of 16 bytes, in fp32, and back. A register of the access has two elements of bf16. */
template <class T> static __device__ __forceinline__ values<PACK<T>> unpack(uint4 access) {
    values<PACK<T>> read;
    uint32_t words[] = {access.x, access.y, access.z, access.w};
#pragma unroll
    for (int k = 0; k < PACK<T>; k++) {
        uint32_t word = words[k * 4 / PACK<T>];
        read.at[k] = __uint_as_float(PACK<T> == 4 ? word : k % 2 ? word & 0xffff0000 : word << 16);
    }
    return read;
}
template <class T> static __device__ __forceinline__ uint4 packed(const values<PACK<T>> &from) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (PACK<T> == 4)
            words[i] = __float_as_uint(from.at[i]);
        else
            asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
                : "=r"(words[i])
                : "f"(from.at[PACK<T> / 4 * i + 1]), "f"(from.at[PACK<T> / 4 * i]));
    return {words[0], words[1], words[2], words[3]};
}
