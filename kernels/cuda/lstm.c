/* Launches of the LSTM: one block runs a whole direction, because each step needs all of the step before it. */
#include "cuda/lstm.h"
#include "cuda/kernels.h"

static int launch(const struct exec *exec, enum cuda_kernel kernel, const struct lstm *a, const void *arguments) {
    int warps = a->hidden < LSTM_WARPS ? (int)a->hidden : LSTM_WARPS;
    return cuda_launch_blocks(exec, kernel, DTYPE_F32, a->steps && a->hidden, 32 * warps, arguments);
}

int cuda_lstm_forward(const struct exec *exec, const struct lstm *a) {
    return launch(exec, CUDA_lstm_forward, a, a);
}

size_t cuda_lstm_backward_workspace(struct device *device, const struct lstm *a) {
    return (size_t)a->hidden * sizeof(float);
}

int cuda_lstm_backward(const struct exec *exec, const struct lstm *a) {
    return launch(exec, CUDA_lstm_backward, a, &(const struct lstm_backward){*a, exec->workspace});
}
