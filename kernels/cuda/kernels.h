/* The kernels of the backend `cuda`, and how they are launched. The file images.c carries their fat binaries. A kernel
 * of an operation has the operation's name and the type of its elements: norm_forward_bf16. */
#ifndef CAMBIUM_KERNELS_CUDA_KERNELS_H
#define CAMBIUM_KERNELS_CUDA_KERNELS_H

#include "cuda/driver.h"
#include "kernels/ops.h"

/* ROW(file, operation): kernels/cuda/FILE.cu has the operation's kernels for fp32 and bf16. */
#define CUDA_KERNELS(ROW)                                                                                              \
    ROW(embedding, embedding_forward)                                                                                  \
    ROW(gelu, gelu_forward)                                                                                            \
    ROW(gelu, gelu_backward)                                                                                           \
    ROW(norm, norm_forward)                                                                                            \
    ROW(swiglu, swiglu_forward)                                                                                        \
    ROW(swiglu, swiglu_backward)                                                                                       \
    ROW(unit, unit_forward)                                                                                            \
    ROW(unit, unit_backward)

#define CUDA_KERNEL_NUMBER(file, op) CUDA_##op,
enum cuda_kernel { CUDA_KERNELS(CUDA_KERNEL_NUMBER) CUDA_KERNEL_COUNT };
#undef CUDA_KERNEL_NUMBER
enum { CUDA_KERNEL_TYPES = 2 /* fp32, bf16 */, CUDA_IMAGES_MOST = 64 };

/* One fat binary in the program's read-only data. */
struct cuda_image {
    const char *file; /* "norm" */
    const void *start;
};
/* All of them; the last one has no file. */
extern const struct cuda_image cuda_images[];

/* Kernels in a device's memory. */
struct cuda_kernels {
    struct CUmod_st *modules[CUDA_IMAGES_MOST]; /* in the order of cuda_images */
    struct CUfunc_st *functions[CUDA_KERNEL_COUNT][CUDA_KERNEL_TYPES];
};

/* Loads all fat binaries and finds all kernels. The device's context is current. Fails as cuda_check. */
int cuda_kernels_load(struct device *device, struct cuda_kernels *kernels);
/* Unloads what was loaded. */
void cuda_kernels_unload(struct device *device, struct cuda_kernels *kernels);

/* One launch: `blocks` blocks of `threads` threads. A kernel takes one argument, a struct that is copied. */
struct cuda_launch {
    enum cuda_kernel kernel;
    enum dtype type; /* of the elements */
    int64_t blocks;  /* 0: nothing is launched */
    int threads;     /* whole warps */
    size_t shared_bytes;
    const void *arguments;
};
/* Queues the launch. STATUS_UNSUPPORTED for types other than fp32 and bf16; otherwise fails as cuda_check, with the
 * operation's name. */
int cuda_launch(const struct exec *exec, const struct cuda_launch *launch);

/* The operations, which ops.h describes. */
#define CUDA_OPERATION(op, type) int cuda_##op(const struct exec *exec, const struct type *a);
CUDA_OPERATION(embedding_forward, embedding)
CUDA_OPERATION(gelu_forward, gelu)
CUDA_OPERATION(gelu_backward, gelu)
CUDA_OPERATION(norm_forward, norm)
CUDA_OPERATION(swiglu_forward, swiglu)
CUDA_OPERATION(swiglu_backward, swiglu)
CUDA_OPERATION(unit_forward, unit_call)
CUDA_OPERATION(unit_backward, unit_call)
#undef CUDA_OPERATION

#endif
