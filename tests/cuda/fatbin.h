/* The container that nvcc makes for several architectures: only its uncompressed PTX is read. */
#pragma once

#include <stddef.h>

/* Finds the PTX for the newest architecture up to `architecture` (80 for sm_80) in an image: a fat binary, its wrapper,
 * or PTX itself with a zero at its end. Returns 0 with the text, which lies in the image, or -1 where there is none. */
int fatbin_ptx(const void *image, int architecture, const char **text, size_t *length);
