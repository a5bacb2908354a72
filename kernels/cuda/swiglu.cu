/* SwiGLU (Shazeer 2020, arXiv 2002.05202): swish(gate) * up. A block works on one row. */
#include "cuda/activations.cuh"

/* y = swish(gate) * up. */
template <class T, int WIDTH>
static __device__ __forceinline__ void forward_row(int64_t packs, const pack<T, WIDTH> *gate, const pack<T, WIDTH> *up,
                                                   pack<T, WIDTH> *y) {
    for (int64_t j = threadIdx.x; j < packs; j += blockDim.x) {
        pack<T, WIDTH> g = gate[j], u = up[j], z;
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            from_float(swish(to_float(g.at[k])) * to_float(u.at[k]), z.at[k]);
        y[j] = z;
    }
}

/* The gradients of gate and up, in their places or elsewhere. */
template <class T, int WIDTH>
static __device__ __forceinline__ void backward_row(int64_t packs, const pack<T, WIDTH> *gate, const pack<T, WIDTH> *up,
                                                    const pack<T, WIDTH> *dy, pack<T, WIDTH> *dgate,
                                                    pack<T, WIDTH> *dup) {
    for (int64_t j = threadIdx.x; j < packs; j += blockDim.x) {
        pack<T, WIDTH> g = gate[j], u = up[j], d = dy[j], dg, du;
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            float x = to_float(g.at[k]), gradient = to_float(d.at[k]);
            from_float(gradient * to_float(u.at[k]) * swish_gradient(x), dg.at[k]);
            from_float(gradient * swish(x), du.at[k]);
        }
        dgate[j] = dg;
        dup[j] = du;
    }
}

template <class T, int WIDTH> static __device__ void forward(const struct swiglu &a) {
    typedef pack<T, WIDTH> packed;
    for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
        const T *x = (const T *)a.x + i * 2 * a.cols;
        forward_row<T, WIDTH>(a.cols / WIDTH, (const packed *)x, (const packed *)(x + a.cols),
                              (packed *)((T *)a.y + i * a.cols));
    }
}

template <class T, int WIDTH> static __device__ void backward(const struct swiglu &a) {
    typedef pack<T, WIDTH> packed;
    for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
        const T *x = (const T *)a.x + i * 2 * a.cols;
        T *dx = (T *)a.dx + i * 2 * a.cols;
        backward_row<T, WIDTH>(a.cols / WIDTH, (const packed *)x, (const packed *)(x + a.cols),
                               (const packed *)((const T *)a.dy + i * a.cols), (packed *)dx, (packed *)(dx + a.cols));
    }
}

template <class T> static __device__ void any_forward(const struct swiglu &a) {
    if (a.cols % PACK<T> == 0 && is_aligned(a.x) && is_aligned(a.y))
        forward<T, PACK<T>>(a);
    else
        forward<T, 1>(a);
}

template <class T> static __device__ void any_backward(const struct swiglu &a) {
    if (a.cols % PACK<T> == 0 && is_aligned(a.x) && is_aligned(a.dy) && is_aligned(a.dx))
        backward<T, PACK<T>>(a);
    else
        backward<T, 1>(a);
}

extern "C" __global__ void __launch_bounds__(256) swiglu_forward_fp32(struct swiglu a) {
    wait_for_kernels_before();
    any_forward<float>(a);
}
extern "C" __global__ void __launch_bounds__(256) swiglu_forward_bf16(struct swiglu a) {
    wait_for_kernels_before();
    any_forward<bf16>(a);
}
extern "C" __global__ void __launch_bounds__(256) swiglu_backward_fp32(struct swiglu a) {
    any_backward<float>(a);
}
extern "C" __global__ void __launch_bounds__(256) swiglu_backward_bf16(struct swiglu a) {
    any_backward<bf16>(a);
}
