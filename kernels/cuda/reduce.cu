/* Sums and maxima over arrays of several ranks, element by element in the order of ranks. */
#include "cuda/typed.cuh"

/* An element in the type that it is combined in. Integers are added as unsigned numbers, for which wrapping is
 * defined. */
static __device__ __forceinline__ float to_sum(float x) {
    return x;
}
static __device__ __forceinline__ float to_sum(bf16 x) {
    return to_float(x);
}
static __device__ __forceinline__ double to_sum(double x) {
    return x;
}
static __device__ __forceinline__ unsigned long long to_sum(int64_t x) {
    return (unsigned long long)x;
}
template <class T, class W> static __device__ __forceinline__ void from_sum(W value, T &x) {
    x = (T)value;
}
static __device__ __forceinline__ void from_sum(float value, bf16 &x) {
    from_float(value, x);
}

/* A NaN on either side wins. */
template <class W> static __device__ __forceinline__ W larger(W a, W b) {
    return a > b || a != a ? a : b;
}
static __device__ __forceinline__ unsigned long long larger(unsigned long long a, unsigned long long b) {
    return (long long)a > (long long)b ? a : b;
}

/* Accesses first .. of `packs`, which begin at element `start`. A part is a whole number of accesses. */
template <class T, int WIDTH>
static __device__ __forceinline__ void reduce_packs(const struct reduce_call &a, int64_t start, int64_t packs) {
    using sum_type = decltype(to_sum(T()));
    for (int64_t i = grid_thread(); i < packs; i += grid_threads()) {
        int64_t at = start + i * WIDTH;
        sum_type sum[WIDTH];
        pack<T, WIDTH> x = *(const pack<T, WIDTH> *)((const T *)a.from[0] + at);
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            sum[k] = to_sum(x.at[k]);
#pragma unroll 1
        for (int source = 1; source < a.sources; source++) {
            x = *(const pack<T, WIDTH> *)((const T *)a.from[source] + at);
#pragma unroll
            for (int k = 0; k < WIDTH; k++)
                sum[k] = a.is_max ? larger(sum[k], to_sum(x.at[k])) : sum[k] + to_sum(x.at[k]);
        }
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            from_sum(sum[k], x.at[k]);
        int64_t owner = a.part ? at / a.part : 0, place = at - owner * a.part;
#pragma unroll 1
        for (int64_t target = owner; target < (a.part ? owner + 1 : a.targets); target++)
            *(pack<T, WIDTH> *)((T *)a.to[target] + place) = x;
    }
}

template <class T> static __device__ void reduce_all(const struct reduce_call &a) {
    bool is_packed = a.part % PACK<T> == 0;
#pragma unroll 1
    for (int i = 0; i < a.sources; i++)
        is_packed = is_packed && is_aligned(a.from[i]);
#pragma unroll 1
    for (int i = 0; i < a.targets; i++)
        is_packed = is_packed && is_aligned(a.to[i]);
    int64_t packs = is_packed ? a.count / PACK<T> : 0, done = packs * PACK<T>;
    reduce_packs<T, PACK<T>>(a, 0, packs);
    reduce_packs<T, 1>(a, done, a.count - done);
}

extern "C" __global__ void __launch_bounds__(256) reduce(const __grid_constant__ struct reduce_call a) {
    if (a.dtype == DTYPE_F32)
        reduce_all<float>(a);
    else if (a.dtype == DTYPE_BF16)
        reduce_all<bf16>(a);
    else if (a.dtype == DTYPE_F64)
        reduce_all<double>(a);
    else
        reduce_all<int64_t>(a);
}
