// Compiler output for the interpreter's test: sums of rows by shuffles and shared memory, one block a row.
static __device__ float warp_sum(float value) {
    for (int step = 16; step > 0; step /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, step);
    }
    return value;
}

// values (rows, columns), sums (rows): one block of whole warps for each row.
extern "C" __global__ void reduce(int columns, const float *values, float *sums) {
    __shared__ float warps[32];
    const float *row = values + (size_t)blockIdx.x * columns;
    float sum = 0;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) {
        sum += row[i];
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) {
        warps[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = warp_sum(threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : 0.0f);
        if (threadIdx.x == 0) {
            sums[blockIdx.x] = sum;
        }
    }
}

// The softmax of each row in place, in the terms that kernels use: exponentials, a division, a reciprocal root.
extern "C" __global__ void softmax(int columns, float *values) {
    float *row = values + (size_t)blockIdx.x * columns;
    float most = -3.4e38f, sum = 0;
    for (int i = threadIdx.x; i < columns; i += 32) {
        most = fmaxf(most, row[i]);
    }
    for (int step = 16; step > 0; step /= 2) {
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    }
    for (int i = threadIdx.x; i < columns; i += 32) {
        row[i] = expf(row[i] - most);
        sum += row[i];
    }
    sum = warp_sum(sum);
    for (int i = threadIdx.x; i < columns; i += 32) {
        row[i] = row[i] / sum;
    }
}
