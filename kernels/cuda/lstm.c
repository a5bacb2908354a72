/* Launches of the LSTM: one block runs a whole direction, because each step needs all of the step before it. */
#include "cuda/lstm.h"
#include "cuda/kernels.h"

static int launch(const struct exec *exec, enum cuda_kernel kernel, const struct lstm *a, const void *arguments) {
    return cuda_launch(
        exec, &(const struct cuda_launch){.kernel = kernel,
                                          .type = DTYPE_F32,
                                          .blocks = a->steps && a->hidden,
                                          .threads = 32 * (a->hidden < LSTM_WARPS ? (int)a->hidden : LSTM_WARPS),
                                          .arguments = arguments});
}

int cuda_lstm_forward(const struct exec *exec, const struct lstm *a) {
    return launch(exec, CUDA_lstm_forward, a, a);
}

size_t cuda_lstm_backward_workspace(struct device *device, const struct lstm *a) {
    (void)device;
    return (size_t)a->hidden * sizeof(float);
}

int cuda_lstm_backward(const struct exec *exec, const struct lstm *a) {
    return launch(exec, CUDA_lstm_backward, a, &(const struct lstm_backward){*a, exec->workspace});
}
