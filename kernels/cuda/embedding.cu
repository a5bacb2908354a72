/* Embedding: rows of the tables gathered and added. A block works on one row. */
#include "cuda/typed.cuh"

/* The row of a token or a virtual token; NULL if another rank has it. */
template <class T> static __device__ const T *token_row(const struct embedding &a, int64_t i) {
    int64_t token = a.tokens[i];
    if (a.virtual_tokens && token >= a.first_virtual) {
        int64_t row = token - a.first_virtual;
        return a.virtual_table && row < a.virtual_tokens ? (const T *)a.virtual_table + row * a.cols : nullptr;
    }
    int64_t entry = token - a.first_token;
    bool is_here = !a.token_count || (entry >= 0 && entry < a.token_count);
    return is_here ? (const T *)a.token_table + entry * a.cols : nullptr;
}

template <class T, int WIDTH> static __device__ void gather(const struct embedding &a) {
    typedef pack<T, WIDTH> packed;
    for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
        const packed *token = (const packed *)token_row<T>(a, i);
        const T *table = (const T *)a.position_table;
        const packed *position = table ? (const packed *)(table + a.positions[i] * a.cols) : nullptr;
        packed *x = (packed *)((T *)a.x + i * a.cols);
        for (int64_t j = threadIdx.x; j < a.cols / WIDTH; j += blockDim.x) {
            packed sum = {};
            if (token)
                sum = token[j];
            if (token && position) {
                packed p = position[j];
#pragma unroll
                for (int k = 0; k < WIDTH; k++)
                    from_float(to_float(sum.at[k]) + to_float(p.at[k]), sum.at[k]);
            }
            x[j] = sum;
        }
    }
}

template <class T> static __device__ void any_gather(const struct embedding &a) {
    if (a.cols % PACK<T> == 0 && is_aligned(a.token_table) && is_aligned(a.position_table) &&
        is_aligned(a.virtual_table) && is_aligned(a.x))
        gather<T, PACK<T>>(a);
    else
        gather<T, 1>(a);
}

extern "C" __global__ void __launch_bounds__(256) embedding_forward_fp32(struct embedding a) {
    any_gather<float>(a);
}
extern "C" __global__ void __launch_bounds__(256) embedding_forward_bf16(struct embedding a) {
    any_gather<bf16>(a);
}
