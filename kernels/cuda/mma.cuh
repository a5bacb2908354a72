/* Tiles of bf16 or fp32 in shared memory, and products of them by tensor cores: cp.async, ldmatrix and mma.sync of PTX.
 * In these lane 4 g + t is the t-th of group g. Products of fp32 are in TF32. */
#pragma once

#include "cuda/typed.cuh"

/* Copies 16 bytes to shared memory, or fills them with zeros. They have landed after copies_wait. */
static __device__ __forceinline__ void copy_async(uint32_t to, const void *from, bool is_there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(is_there ? 16 : 0)
                 : "memory");
}
/* The same for 4 bytes, and for 8. */
static __device__ __forceinline__ void copy_async_4(uint32_t to, const void *from, bool is_there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(is_there ? 4 : 0) : "memory");
}
static __device__ __forceinline__ void copy_async_8(uint32_t to, const void *from, bool is_there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(is_there ? 8 : 0) : "memory");
}
static __device__ __forceinline__ void copies_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits for all groups of copies but the last COUNT. */
template <int COUNT> static __device__ __forceinline__ void copies_wait_but() {
    asm volatile("cp.async.wait_group %0;" ::"n"(COUNT) : "memory");
}
static __device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

/* A tile in shared memory: rows of SIZE elements, in chunks of 16 bytes. The chunks of a row change places by the row's
 * number. Eight rows at the same column are then in different banks. */
template <int SIZE, class T = bf16> struct tile {
    using element = T;
    static constexpr int FEATURES = SIZE, CHUNK = PACK<T>, ROW_BYTES = sizeof(T) * SIZE, CHUNKS = SIZE / CHUNK;
    static constexpr int TURN = CHUNKS % 8 == 0 ? 8 : 4; /* neighbours that change places */

    static __device__ __forceinline__ uint32_t at(int row, int chunk) {
        int turn = TURN == 8 ? row % 8 : row / 2 % 4;
        return row * ROW_BYTES + (chunk ^ turn) * 16;
    }
    /* From the place of a row's first or second chunk to that of the chunk 2 * pair further. */
    static __device__ __forceinline__ uint32_t pair(uint32_t place, int pair) {
        return (place ^ (pair % (TURN / 2) * 32)) + pair / (TURN / 2) * TURN * 16;
    }
};

/* A chunk of shared memory. */
static __device__ __forceinline__ uint4 load_chunk(uint32_t at) {
    uint4 chunk;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(chunk.x), "=r"(chunk.y), "=r"(chunk.z), "=r"(chunk.w)
                 : "r"(at)
                 : "memory");
    return chunk;
}

/* Four matrices of 8 x 8, each at the addresses of eight lanes. Each lane gets elements 2t and 2t + 1 of row g; and
 * where they are transposed, of column g. Of fp32, a matrix has 8 x 4 elements, and a lane gets element t of row g. */
static __device__ __forceinline__ void load_matrices(uint32_t (&to)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}
static __device__ __forceinline__ void load_transposed(uint32_t (&to)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}

/* The bits of fp32 rounded to TF32, and a tie away from zero. */
static __device__ __forceinline__ uint32_t to_tf32(float x) {
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}

/* sum += a b, of 16 x 16 and 16 x 8 in bf16, and of 16 x 8 and 8 x 8 in TF32. Of sum, a lane has columns 2t and 2t + 1
 * of row g, and then of row g + 8. */
template <class T = bf16>
static __device__ __forceinline__ void multiply(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (sizeof(T) == 4)
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%0, %1, %2, %3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* sum = a b. */
template <class T>
static __device__ __forceinline__ void multiply_first(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0,
                                                      uint32_t b1) {
    if constexpr (sizeof(T) == 4)
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%10, %10, %10, %10};"
                     : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
    else
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%10, %10, %10, %10};"
            : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

/* Two values rounded to bf16, the first one in the low half. */
static __device__ __forceinline__ uint32_t pack_two(float low, float high) {
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

static __device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
