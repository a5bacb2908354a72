/* Numbers cast to FP8, and the largest size of a block's numbers. */
#pragma once

#include "cuda/accesses.cuh"
#include "cuda/fp8.h"

enum { QUAD = 8 /* numbers of bf16 that a thread reads together */ };
#if __CUDA_ARCH__ >= 890
constexpr bool HAS_CAST = true;
#else
constexpr bool HAS_CAST = false;
#endif

/* Four words: 16 numbers in FP8, or 8 in bf16. */
struct alignas(16) quad {
    uint32_t word[4];
};

/* fp8_from_float of x * scale, in whole numbers but for subnormal ones: the bits of their sum with a power of two whose
 * last bit is the minimum number. The sign is x's, because a GPU's products of NaN have none. */
static __device__ __forceinline__ uint32_t cast_one(uint32_t x, float scale, bool is_e5m2) {
    const int drop = is_e5m2 ? 21 : 20; /* bits of a float's fraction */
    const uint32_t least = (is_e5m2 ? 113u : 121u) << 23, limit = is_e5m2 ? 0x47600000u : 0x43e00000u;
    const uint32_t not_a_number = is_e5m2 ? 0x7e : 0x7f, magic = least + ((uint32_t)drop << 23);
    uint32_t size = __float_as_uint(__uint_as_float(x) * scale) & 0x7fffffffu;
    uint32_t bounded = size < limit ? size : limit;
    uint32_t normal = (bounded + ((1u << (drop - 1)) - 1 - (least - (1u << 23))) + (bounded >> drop & 1)) >> drop;
    uint32_t subnormal = __float_as_uint(__uint_as_float(size) + __uint_as_float(magic)) - magic;
    uint32_t result = bounded < least ? subnormal : normal;
    result = size > 0x7f800000u ? not_a_number : result;
    return result | (x >> 24 & 0x80);
}

/* Returns the bits of a float that is number `index` of 8. */
static __device__ __forceinline__ uint32_t bits_of(const quad &numbers, int index) {
    uint32_t pair = numbers.word[index / 2];
    return index % 2 ? pair & 0xffff0000u : pair << 16;
}

/* Casts two numbers that are not NaN by the GPU's instruction, which has the same bits. */
static __device__ __forceinline__ uint32_t cast_two(float low, float high, bool is_e5m2) {
    uint16_t two = 0;
#if __CUDA_ARCH__ >= 890
    if (is_e5m2)
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high), "f"(low));
    else
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high), "f"(low));
#endif
    return two;
}

/* Casts 8 numbers to two words. `most` becomes the bits of the largest size. */
static __device__ __forceinline__ uint2 cast_quad(const quad &numbers, float scale, bool is_e5m2, uint32_t &most) {
    uint32_t cast[2] = {0, 0};
    bool is_plain = HAS_CAST;
#pragma unroll
    for (int i = 0; i < QUAD; i++) {
        uint32_t size = bits_of(numbers, i) & 0x7fffffffu;
        is_plain = is_plain && size <= 0x7f800000u;
        size = size > 0x7f800000u ? 0 : size;
        most = size > most ? size : most;
    }
    if (is_plain) {
#pragma unroll
        for (int i = 0; i < QUAD; i += 2)
            cast[i / 4] |= cast_two(__uint_as_float(bits_of(numbers, i)) * scale,
                                    __uint_as_float(bits_of(numbers, i + 1)) * scale, is_e5m2)
                           << i % 4 * 8;
    } else {
#pragma unroll
        for (int i = 0; i < QUAD; i++)
            cast[i / 4] |= cast_one(bits_of(numbers, i), scale, is_e5m2) << i % 4 * 8;
    }
    return make_uint2(cast[0], cast[1]);
}

/* Adds the block's largest size. Sizes compare as their bits do, and the order of blocks does not matter. All threads
 * call this, with shared memory for a number of each warp. */
static __device__ __forceinline__ void keep_largest(uint32_t *amax, uint32_t most, uint32_t *of_warps) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        uint32_t other = __shfl_xor_sync(~0u, most, distance);
        most = other > most ? other : most;
    }
    if (threadIdx.x % 32 == 0)
        of_warps[threadIdx.x / 32] = most;
    __syncthreads();
    if (threadIdx.x > 0 || !amax)
        return;
    for (int i = 1; i < (int)blockDim.x / 32; i++)
        most = of_warps[i] > most ? of_warps[i] : most;
    if (most)
        atomicMax(amax, most);
}

static __device__ __forceinline__ quad quad_of(uint4 access) {
    return quad{{access.x, access.y, access.z, access.w}};
}
static __device__ __forceinline__ uint4 access_of(const quad &numbers) {
    return uint4{numbers.word[0], numbers.word[1], numbers.word[2], numbers.word[3]};
}
