// Compiler output for the interpreter's test: one 16 x 8 tile of a product, by cp.async, ldmatrix and mma.sync.
#include <cuda_bf16.h>

static __device__ void copy16(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from));
}

// a (16, k), b (8, k), d (16, 8) = a bᵀ: one warp, k a multiple of 16, two stages.
extern "C" __global__ void tile(int k, const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *d) {
    __shared__ __align__(16) __nv_bfloat16 left[2][16][24], right[2][8][24];
    int lane = threadIdx.x;
    float sum[4] = {0, 0, 0, 0};
    for (int step = 0; step <= k / 16; step++) {
        if (step < k / 16) {
            copy16(&left[step % 2][lane / 2][lane % 2 * 8], a + lane / 2 * k + step * 16 + lane % 2 * 8);
            if (lane < 16) {
                copy16(&right[step % 2][lane / 2][lane % 2 * 8], b + lane / 2 * k + step * 16 + lane % 2 * 8);
            }
        }
        asm volatile("cp.async.commit_group;");
        if (step == 0) {
            continue;
        }
        asm volatile("cp.async.wait_group 1;");
        __syncwarp();
        int stage = (step - 1) % 2;
        unsigned x[4], y[2];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"((unsigned)__cvta_generic_to_shared(&left[stage][lane % 16][lane / 16 * 8])));
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                     : "=r"(y[0]), "=r"(y[1])
                     : "r"((unsigned)__cvta_generic_to_shared(&right[stage][lane % 8][lane / 8 % 2 * 8])));
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
        __syncwarp();
    }
    int row = lane / 4, column = lane % 4 * 2;
    d[row * 8 + column] = sum[0];
    d[row * 8 + column + 1] = sum[1];
    d[(row + 8) * 8 + column] = sum[2];
    d[(row + 8) * 8 + column + 1] = sum[3];
}
