/* Our prototypes, enumerators and layouts of NVIDIA's driver API, of cuBLASLt and of NCCL are those of the libraries'
 * headers, or this does not compile. A toolkit without cuBLASLt or NCCL leaves that part out. */
#include "comm/nccl-internal.h"
#include "cuda/cublaslt.h"
#include "cuda/driver.h"

#include <cuda.h>
#include <stdio.h>

#define SAME_FUNCTION(member, name, parameters)                                                                        \
    _Static_assert(__builtin_types_compatible_p(__typeof__(((struct cuda_driver *)0)->member), __typeof__(&name)),     \
                   #member " has the type of the driver's function");
CUDA_FUNCTIONS(SAME_FUNCTION)

#define SAME_NUMBER(name, driver_name, value) _Static_assert((int)name == (int)driver_name, #name " has its number");
CUDA_ENUMERATORS(SAME_NUMBER)

#define SAME_FIELD(ours, theirs)                                                                                       \
    _Static_assert(offsetof(struct cuda_copy_2d, ours) == offsetof(CUDA_MEMCPY2D, theirs) &&                           \
                       sizeof(((struct cuda_copy_2d *)0)->ours) == sizeof(((CUDA_MEMCPY2D *)0)->theirs),               \
                   #ours " lies where it does in CUDA_MEMCPY2D");
SAME_FIELD(from_x, srcXInBytes)
SAME_FIELD(from_y, srcY)
SAME_FIELD(from_kind, srcMemoryType)
SAME_FIELD(from_host, srcHost)
SAME_FIELD(from_device, srcDevice)
SAME_FIELD(from_array, srcArray)
SAME_FIELD(from_pitch, srcPitch)
SAME_FIELD(to_x, dstXInBytes)
SAME_FIELD(to_y, dstY)
SAME_FIELD(to_kind, dstMemoryType)
SAME_FIELD(to_host, dstHost)
SAME_FIELD(to_device, dstDevice)
SAME_FIELD(to_array, dstArray)
SAME_FIELD(to_pitch, dstPitch)
SAME_FIELD(bytes, WidthInBytes)
SAME_FIELD(rows, Height)
_Static_assert(sizeof(struct cuda_copy_2d) == sizeof(CUDA_MEMCPY2D), "a block has the size of CUDA_MEMCPY2D");

#define SAME_LAUNCH(ours, theirs)                                                                                      \
    _Static_assert(offsetof(struct cuda_launch_config, ours) == offsetof(CUlaunchConfig, theirs),                      \
                   #ours " lies where it does in CUlaunchConfig");
SAME_LAUNCH(grid[0], gridDimX)
SAME_LAUNCH(grid[2], gridDimZ)
SAME_LAUNCH(block[0], blockDimX)
SAME_LAUNCH(block[2], blockDimZ)
SAME_LAUNCH(shared_bytes, sharedMemBytes)
SAME_LAUNCH(stream, hStream)
SAME_LAUNCH(attributes, attrs)
SAME_LAUNCH(attribute_count, numAttrs)
_Static_assert(sizeof(struct cuda_launch_config) == sizeof(CUlaunchConfig), "a launch has the size of CUlaunchConfig");
_Static_assert(offsetof(struct cuda_launch_attribute, kind) == offsetof(CUlaunchAttribute, id) &&
                   offsetof(struct cuda_launch_attribute, value) == offsetof(CUlaunchAttribute, value) &&
                   sizeof(struct cuda_launch_attribute) == sizeof(CUlaunchAttribute),
               "an attribute is CUlaunchAttribute");

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#define SAME_STRUCT(ours, theirs)                                                                                      \
    _Static_assert(sizeof(ours) == sizeof(theirs) && _Alignof(ours) == _Alignof(theirs), #ours " has its size");
SAME_STRUCT(struct cublaslt_algorithm, cublasLtMatmulAlgo_t)
SAME_STRUCT(struct cublaslt_result, cublasLtMatmulHeuristicResult_t)
#define SAME_PLACE(ours, theirs)                                                                                       \
    _Static_assert(offsetof(struct cublaslt_result, ours) == offsetof(cublasLtMatmulHeuristicResult_t, theirs),        \
                   #ours " lies where it does in the library's result");
SAME_PLACE(algorithm, algo)
SAME_PLACE(workspace_bytes, workspaceSize)
SAME_PLACE(state, state)
SAME_PLACE(waves, wavesCount)
CUBLASLT_ENUMERATORS(SAME_NUMBER)
#if CUBLAS_VERSION >= 131000
CUBLASLT_LATER_ENUMERATORS(SAME_NUMBER)
#endif

/* The prototypes once more, with the library's opaque types. */
#undef CUBLASLT_OPERATION
#undef CUBLASLT_LAYOUT
#undef CUBLASLT_PREFERENCE
#undef CUBLASLT_ALGORITHM
#undef CUBLASLT_RESULT
#define CUBLASLT_OPERATION  cublasLtMatmulDescOpaque_t
#define CUBLASLT_LAYOUT     cublasLtMatrixLayoutOpaque_t
#define CUBLASLT_PREFERENCE cublasLtMatmulPreferenceOpaque_t
#define CUBLASLT_ALGORITHM  cublasLtMatmulAlgo_t
#define CUBLASLT_RESULT     cublasLtMatmulHeuristicResult_t
#define SAME_PRODUCT(member, result, name, parameters)                                                                 \
    typedef result(*type_of_##member) parameters;                                                                      \
    _Static_assert(__builtin_types_compatible_p(type_of_##member, __typeof__(&name)),                                  \
                   #member " has the type of the library's function");
CUBLASLT_FUNCTIONS(SAME_PRODUCT)
#endif

#if __has_include(<nccl.h>)
#include <nccl.h>
NCCL_ENUMERATORS(SAME_NUMBER)
#define SAME_MEMBER(ours, theirs)                                                                                      \
    _Static_assert(offsetof(struct nccl_config, ours) == offsetof(ncclConfig_t, theirs) &&                             \
                       sizeof(((struct nccl_config *)0)->ours) == sizeof(((ncclConfig_t *)0)->theirs),                 \
                   #ours " lies where it does in the library's configuration");
SAME_MEMBER(size, size)
SAME_MEMBER(magic, magic)
SAME_MEMBER(version, version)
SAME_MEMBER(blocking, blocking)
SAME_MEMBER(cluster_size, cgaClusterSize)
SAME_MEMBER(min_blocks, minCTAs)
SAME_MEMBER(max_blocks, maxCTAs)
SAME_MEMBER(network, netName)
SAME_MEMBER(split_share, splitShare)
_Static_assert(sizeof(struct nccl_id) == sizeof(ncclUniqueId), "an identifier has its size");
_Static_assert(NCCL_CONFIG_UNDEF_INT == INT_MIN, "a value that is not given is the library's");

#undef NCCL_ID
#undef NCCL_CONFIG
#define NCCL_ID     ncclUniqueId
#define NCCL_CONFIG ncclConfig_t
#define SAME_COLLECTIVE(member, result, name, parameters)                                                              \
    typedef result(*nccl_##member) parameters;                                                                         \
    _Static_assert(__builtin_types_compatible_p(nccl_##member, __typeof__(&name)),                                     \
                   #member " has the type of the library's function");
NCCL_FUNCTIONS(SAME_COLLECTIVE)
#endif

#define STRING(name)                    #name
#define DRIVER_NAME(name)               STRING(name)
#define PRINT(member, name, parameters) puts(DRIVER_NAME(name));
int main(void) {
    CUDA_FUNCTIONS(PRINT)
    return 0;
}
