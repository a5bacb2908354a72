/* Elements of fp32 and bf16 in kernels: reading and writing them one by one or 16 bytes at a time, and what a block or
 * a grid does with them. A kernel's arguments are the struct of ops.h, by value. */
#pragma once

#include "kernels/ops.h"

/* bf16 in memory; arithmetic is in fp32. */
struct bf16 {
    uint16_t bits;
};

static __device__ __forceinline__ float to_float(float x) {
    return x;
}
static __device__ __forceinline__ float to_float(bf16 x) {
    return bf16_to_float(x.bits);
}
static __device__ __forceinline__ void from_float(float value, float &x) {
    x = value;
}
static __device__ __forceinline__ void from_float(float value, bf16 &x) {
    x.bits = bf16_from_float(value);
}

/* EARLY kernels (kernels.h) may run before those before them have ended. Each lets the next one do the same, and waits
 * before it touches memory that kernels before it write, or writes memory that they use. Text for other architectures
 * has a register of that name instead, by which a test finds these kernels. */
static __device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ == 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
static __device__ __forceinline__ void wait_for_last() {
#if __CUDA_ARCH__ == 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#else
    asm volatile("{ .reg .pred griddepcontrol_wait; }");
#endif
}
static __device__ __forceinline__ void wait_for_kernels_before() {
    let_next_begin();
    wait_for_last();
}

/* Asks for a line of memory to come to the second-level cache. */
static __device__ __forceinline__ void fetch(const void *from) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

/* WIDTH elements that are read and written together. */
template <class T, int WIDTH> struct alignas(sizeof(T) * WIDTH) pack { T at[WIDTH]; };
/* Elements in 16 bytes. */
template <class T> constexpr int PACK = 16 / sizeof(T);

/* True for addresses of 16-byte accesses. The compiler would load one byte of a pointer; the asm keeps it whole. */
static __device__ __forceinline__ bool is_aligned(const void *memory) {
    uint64_t address = (uintptr_t)memory;
    asm("" : "+l"(address));
    return address % 16 == 0;
}

/* Thread number in the grid, and threads of the grid. */
static __device__ __forceinline__ int64_t grid_thread() {
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}
static __device__ __forceinline__ int64_t grid_threads() {
    return (int64_t)gridDim.x * blockDim.x;
}

/* out[i] = f(a[i], b[i]) for packs first .. of `packs`, `step` apart. */
template <class T, int WIDTH, class F>
static __device__ __forceinline__ void map_packs(int64_t first, int64_t packs, int64_t step, const T *a, const T *b,
                                                 T *out, F f) {
#pragma unroll 1
    for (int64_t i = first; i < packs; i += step) {
        pack<T, WIDTH> x = ((const pack<T, WIDTH> *)a)[i], y = b ? ((const pack<T, WIDTH> *)b)[i] : x, z;
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            from_float(f(to_float(x.at[k]), to_float(y.at[k])), z.at[k]);
        ((pack<T, WIDTH> *)out)[i] = z;
    }
}

/* out[i] = f(a[i], b[i]) of `count` elements, by the whole grid; where b is NULL f gets a[i] twice. */
template <class T, class F>
static __device__ __forceinline__ void map(int64_t count, const void *a, const void *b, void *out, F f) {
    const T *x = (const T *)a, *y = (const T *)b;
    int64_t packs = is_aligned(a) && is_aligned(b) && is_aligned(out) ? count / PACK<T> : 0, done = packs * PACK<T>;
    map_packs<T, PACK<T>>(grid_thread(), packs, grid_threads(), x, y, (T *)out, f);
    map_packs<T, 1>(grid_thread(), count - done, grid_threads(), x + done, y ? y + done : y, (T *)out + done, f);
}

/* The sums of two values over the block, in a fixed order; every thread gets them. Blocks are whole warps, and `warps`
 * is shared memory for one value of each. */
static __device__ float2 block_sum(float2 value, float2 *warps) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        value.x += __shfl_xor_sync(~0u, value.x, distance);
        value.y += __shfl_xor_sync(~0u, value.y, distance);
    }
    if (blockDim.x == 32)
        return value;
    __syncthreads(); /* the sum before this one has been read */
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = value;
    __syncthreads();
    float2 sum = warps[0];
    for (int i = 1; i < (int)blockDim.x / 32; i++) {
        sum.x += warps[i].x;
        sum.y += warps[i].y;
    }
    return sum;
}

/* The largest value over the block; NaN is skipped. Every thread gets it. As block_sum. */
static __device__ float block_max(float value, float *warps) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(~0u, value, distance));
    if (blockDim.x == 32)
        return value;
    __syncthreads(); /* the values before these have been read */
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = value;
    __syncthreads();
    float largest = warps[0];
    for (int i = 1; i < (int)blockDim.x / 32; i++)
        largest = fmaxf(largest, warps[i]);
    return largest;
}

/* WIDTH elements in fp32, from accesses of 16 bytes at most. */
template <int WIDTH> struct values { float at[WIDTH]; };
template <int WIDTH, class T> static __device__ __forceinline__ values<WIDTH> read_values(const T *from) {
    values<WIDTH> read;
    constexpr int EACH = WIDTH < PACK<T> ? WIDTH : PACK<T>;
#pragma unroll
    for (int first = 0; first < WIDTH; first += EACH) {
        pack<T, EACH> some = *(const pack<T, EACH> *)(from + first);
#pragma unroll
        for (int k = 0; k < EACH; k++)
            read.at[first + k] = to_float(some.at[k]);
    }
    return read;
}
