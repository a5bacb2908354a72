/* Inline functions that CUDA kernels share with the host: the device's compiler needs a word for that. */
#pragma once

#ifdef __CUDACC__
#define BASE_INLINE static __host__ __device__ inline
#else
#define BASE_INLINE static inline
#endif
