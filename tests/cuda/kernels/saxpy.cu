// Compiler output for the interpreter's test: y = a x + y, one thread an element.
extern "C" __global__ void saxpy(int count, float a, const float *x, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        y[i] = a * x[i] + y[i];
    }
}
