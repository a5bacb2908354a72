/* Our prototypes, enumerators and layouts of NVIDIA's driver API are those of the toolkit's header, or this does not
 * compile. */
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

#define STRING(name)                    #name
#define DRIVER_NAME(name)               STRING(name)
#define PRINT(member, name, parameters) puts(DRIVER_NAME(name));
int main(void) {
    CUDA_FUNCTIONS(PRINT)
    return 0;
}
