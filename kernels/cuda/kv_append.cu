/* Rows of keys and values written to their pages. A block works on one row. */
#include "cuda/kv_page.cuh"

template <class T> static __device__ void append(const struct kv_append &a) {
    int size = a.head_size, cols = a.kv_heads * size;
    for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
        int place = a.place[i], token = place % KV_PAGE_TOKENS;
        const T *k = (const T *)a.k + i * a.k_stride, *v = (const T *)a.v + i * a.v_stride;
        T *page = (T *)a.pages + place / KV_PAGE_TOKENS * a.page_stride;
        for (int j = threadIdx.x; j < cols && place >= 0; j += blockDim.x) {
            int64_t head = (int64_t)(j / size) * size * KV_PAGE_TOKENS;
            page[head + key_place<T>(token, j % size, size)] = k[j];
            page[(int64_t)cols * KV_PAGE_TOKENS + head + value_place<T>(token, j % size, size)] = v[j];
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) kv_append_fp32(struct kv_append a) {
    wait_for_kernels_before();
    append<float>(a);
}
extern "C" __global__ void __launch_bounds__(256) kv_append_bf16(struct kv_append a) {
    wait_for_kernels_before();
    append<bf16>(a);
}
