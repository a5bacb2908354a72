/* A row that fits the registers of a warp, for normalisation. A lane has every 32nd access of 16 bytes. Two elements of
 * bf16 stay in one register until they are used. */
#pragma once

#include "cuda/norm.cuh"

/* A lane's part of a row: every 32nd access of 16 bytes. Beyond the row's end it is 0. */
template <int PARTS> struct lane_row { uint4 at[PARTS]; };
/* The elements of one access. */
template <class T> using elements = values<PACK<T>>;

struct statistics {
    float mean, rstd;
};

static __device__ __forceinline__ int lane_access(int part) {
    return (int)threadIdx.x % 32 + 32 * part;
}

template <class T> static __device__ __forceinline__ int accesses_of(const struct norm &a) {
    return (int)a.cols / PACK<T>;
}

static __device__ __forceinline__ uint4 read_access(const void *row, int at, int accesses) {
    return at < accesses ? ((const uint4 *)row)[at] : uint4{};
}

template <int PARTS> static __device__ __forceinline__ lane_row<PARTS> read_row(const void *row, int accesses) {
    lane_row<PARTS> read;
#pragma unroll
    for (int p = 0; p < PARTS; p++)
        read.at[p] = read_access(row, lane_access(p), accesses);
    return read;
}
