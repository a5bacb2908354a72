/* Rotary positions (Su et al. 2021, arXiv 2104.09864). A thread rotates the points of one access: features j and
 * j + rotary / 2 of a head. */
#include "cuda/typed.cuh"

template <class T, int WIDTH> static __device__ void rotate(const struct rotary &a) {
    typedef pack<T, WIDTH> packed;
    int64_t half = a.rotary / 2, in_head = half / WIDTH;
    float sign = a.is_backward ? -1.0f : 1.0f;
    for (int64_t i = grid_thread(); i < a.rows * a.heads * in_head; i += grid_threads()) {
        int64_t row = i / in_head / a.heads, head = i / in_head % a.heads, j = i % in_head * WIDTH;
        int64_t angle = a.positions[row] * half + j;
        values<WIDTH> cos = read_values<WIDTH>(a.cos + angle), sin = read_values<WIDTH>(a.sin + angle);
        T *x = (T *)a.x + row * a.stride + head * a.head_size + j;
        packed first = *(const packed *)x, second = *(const packed *)(x + half), y1, y2;
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            float x1 = to_float(first.at[k]), x2 = to_float(second.at[k]), s = sign * sin.at[k];
            from_float(x1 * cos.at[k] - x2 * s, y1.at[k]);
            from_float(x2 * cos.at[k] + x1 * s, y2.at[k]);
        }
        *(packed *)x = y1;
        *(packed *)(x + half) = y2;
    }
}

template <class T> static __device__ void any_rotate(const struct rotary &a) {
    if ((a.rotary / 2 | a.head_size | a.stride) % PACK<T> == 0 && is_aligned(a.x) && is_aligned(a.cos) &&
        is_aligned(a.sin))
        rotate<T, PACK<T>>(a);
    else
        rotate<T, 1>(a);
}

extern "C" __global__ void __launch_bounds__(256) rotary_fp32(struct rotary a) {
    wait_for_kernels_before();
    any_rotate<float>(a);
}
extern "C" __global__ void __launch_bounds__(256) rotary_bf16(struct rotary a) {
    wait_for_kernels_before();
    any_rotate<bf16>(a);
}
