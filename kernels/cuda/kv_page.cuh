/* The order inside a page of the KV cache, which is the CPU's (kernels/cpu/level/kv_append.c): the keys of all heads,
 * then their values, each head with the elements of 16 tokens. Keys are units of 32 bits, [D / U, 16, U], and values
 * are [16 / U, D, U]. */
#pragma once

#include "cuda/typed.cuh"

/* U: elements of a unit. */
template <class T> constexpr int KV_UNIT = 4 / sizeof(T);

/* The place of a feature of a token among the elements of a head. The last key feature of an odd size stands by itself.
 */
template <class T> static __device__ __forceinline__ int key_place(int token, int d, int size) {
    constexpr int unit = KV_UNIT<T>;
    return d >= size / unit * unit ? d * KV_PAGE_TOKENS + token : (d / unit * KV_PAGE_TOKENS + token) * unit + d % unit;
}
template <class T> static __device__ __forceinline__ int value_place(int token, int d, int size) {
    constexpr int unit = KV_UNIT<T>;
    return (token / unit * size + d) * unit + token % unit;
}
