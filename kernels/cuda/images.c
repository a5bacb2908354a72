/* The fat binaries of the kernels, in the program's read-only data. The build lists them in images.inc. */
#include "cuda/kernels.h"

#define IMAGE(name, path)                                                                                              \
    __asm__(".section .rodata\n.balign 64\ncuda_image_" #name ":\n.incbin \"" path "\"\n.byte 0\n.previous");          \
    extern const char cuda_image_##name[];
#include "images.inc"
#undef IMAGE

const struct cuda_image cuda_images[] = {
#define IMAGE(name, path) {#name, cuda_image_##name},
#include "images.inc"
    {NULL, NULL},
};
