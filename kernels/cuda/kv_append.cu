/* Rows of keys and values written to their pages. Each thread writes one feature of both. */
#include "cuda/kv_page.cuh"

template <class T> static __device__ void append(const struct kv_append &a) {
    int size = a.head_size, cols = a.kv_heads * size, slices = (cols + (int)blockDim.x - 1) / (int)blockDim.x;
    let_next_begin();
    for (int64_t i = blockIdx.x; i < a.rows * slices; i += gridDim.x) {
        int64_t row = i / slices;
        int j = (int)(i - row * slices) * (int)blockDim.x + (int)threadIdx.x, place = a.place[row];
        wait_for_last(); /* which changes no places */
        if (j >= cols || place < 0)
            continue;
        T k = ((const T *)a.k)[row * a.k_stride + j], v = ((const T *)a.v)[row * a.v_stride + j];
        int token = place % KV_PAGE_TOKENS;
        T *head = (T *)a.pages + place / KV_PAGE_TOKENS * a.page_stride + (int64_t)(j / size) * size * KV_PAGE_TOKENS;
        head[key_place<T>(token, j % size, size)] = k;
        head[(int64_t)cols * KV_PAGE_TOKENS + value_place<T>(token, j % size, size)] = v;
    }
}

extern "C" __global__ void __launch_bounds__(256) kv_append_fp32(struct kv_append a) {
    append<float>(a);
}
extern "C" __global__ void __launch_bounds__(256) kv_append_bf16(struct kv_append a) {
    append<bf16>(a);
}
