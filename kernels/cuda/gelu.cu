/* GELU, exact or by its tanh form, and its gradient. */
#include "cuda/activations.cuh"

template <class T> static __device__ void forward(const struct gelu &a) {
    if (a.is_tanh)
        map<T>(a.count, a.x, nullptr, a.y, [](float x, float) { return gelu_tanh(x); });
    else
        map<T>(a.count, a.x, nullptr, a.y, [](float x, float) { return gelu_exact(x); });
}

template <class T> static __device__ void backward(const struct gelu &a) {
    if (a.is_tanh)
        map<T>(a.count, a.x, a.dy, a.dx, [](float x, float dy) { return dy * gelu_tanh_gradient(x); });
    else
        map<T>(a.count, a.x, a.dy, a.dx, [](float x, float dy) { return dy * gelu_exact_gradient(x); });
}

extern "C" __global__ void __launch_bounds__(256) gelu_forward_fp32(struct gelu a) {
    wait_for_kernels_before();
    forward<float>(a);
}
extern "C" __global__ void __launch_bounds__(256) gelu_forward_bf16(struct gelu a) {
    wait_for_kernels_before();
    forward<bf16>(a);
}
extern "C" __global__ void __launch_bounds__(256) gelu_backward_fp32(struct gelu a) {
    backward<float>(a);
}
extern "C" __global__ void __launch_bounds__(256) gelu_backward_bf16(struct gelu a) {
    backward<bf16>(a);
}
