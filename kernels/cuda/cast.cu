/* Casts between fp32, bf16 and fp16: to nearest even, subnormal numbers included. */
#include "cuda/typed.cuh"

/* fp16 in memory. */
struct half {
    uint16_t bits;
};

static __device__ __forceinline__ float to_float(half x) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
    return value;
}
static __device__ __forceinline__ void from_float(float value, half &x) {
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    x.bits = value == value ? bits : (uint16_t)(__float_as_uint(value) >> 16 & 0x8000 | 0x7e00);
}

template <class X, class Y, int WIDTH>
static __device__ __forceinline__ void cast_packs(int64_t first, int64_t packs, const X *from, Y *to) {
    for (int64_t i = first; i < packs; i += grid_threads()) {
        pack<X, WIDTH> x = ((const pack<X, WIDTH> *)from)[i];
        pack<Y, WIDTH> y;
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            from_float(to_float(x.at[k]), y.at[k]);
        ((pack<Y, WIDTH> *)to)[i] = y;
    }
}

/* Four elements at a time, then the rest. */
template <class X, class Y> static __device__ void cast_to(const struct cast_call &a) {
    const X *from = (const X *)a.from;
    Y *to = (Y *)a.to;
    int64_t packs = is_aligned(from) && is_aligned(to) ? a.count / 4 : 0;
    cast_packs<X, Y, 4>(grid_thread(), packs, from, to);
    cast_packs<X, Y, 1>(grid_thread(), a.count - 4 * packs, from + 4 * packs, to + 4 * packs);
}

template <class X> static __device__ void cast_from(const struct cast_call &a) {
    if (a.to_type == DTYPE_F32)
        cast_to<X, float>(a);
    else if (a.to_type == DTYPE_BF16)
        cast_to<X, bf16>(a);
    else
        cast_to<X, half>(a);
}

extern "C" __global__ void __launch_bounds__(256) cast(struct cast_call a) {
    if (a.from_type == DTYPE_F32)
        cast_from<float>(a);
    else if (a.from_type == DTYPE_BF16)
        cast_from<bf16>(a);
    else
        cast_from<half>(a);
}
