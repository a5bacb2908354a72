/* ReLU, swish and tanh. */
#include "cuda/activations.cuh"

static __device__ __forceinline__ float tanh_gradient(float x) {
    float y = tanhf(x);
    return (1.0f - y) * (1.0f + y);
}

template <class T> static __device__ void forward(const struct unit_call &a) {
    if (a.unit == UNIT_RELU)
        map<T>(a.count, a.x, nullptr, a.y, [](float x, float) { return x > 0.0f ? x : 0.0f; });
    else if (a.unit == UNIT_TANH)
        map<T>(a.count, a.x, nullptr, a.y, [](float x, float) { return tanhf(x); });
    else
        map<T>(a.count, a.x, nullptr, a.y, [](float x, float) { return swish(x); });
}

template <class T> static __device__ void backward(const struct unit_call &a) {
    if (a.unit == UNIT_RELU)
        map<T>(a.count, a.x, a.dy, a.dx, [](float x, float dy) { return dy * (x > 0.0f ? 1.0f : 0.0f); });
    else if (a.unit == UNIT_TANH)
        map<T>(a.count, a.x, a.dy, a.dx, [](float x, float dy) { return dy * tanh_gradient(x); });
    else
        map<T>(a.count, a.x, a.dy, a.dx, [](float x, float dy) { return dy * swish_gradient(x); });
}

extern "C" __global__ void __launch_bounds__(256) unit_forward_fp32(struct unit_call a) {
    forward<float>(a);
}
extern "C" __global__ void __launch_bounds__(256) unit_forward_bf16(struct unit_call a) {
    forward<bf16>(a);
}
extern "C" __global__ void __launch_bounds__(256) unit_backward_fp32(struct unit_call a) {
    backward<float>(a);
}
extern "C" __global__ void __launch_bounds__(256) unit_backward_bf16(struct unit_call a) {
    backward<bf16>(a);
}
