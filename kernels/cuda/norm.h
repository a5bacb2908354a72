/* Numbers that the launches and the kernels of the normalisations share. */
#ifndef CAMBIUM_KERNELS_CUDA_NORM_H
#define CAMBIUM_KERNELS_CUDA_NORM_H

/* Shared memory of a block: room for its sums, then its vector if that has no more bytes than these. Together they are
 * the 48 KiB that every card gives a block without being asked. */
enum { NORM_SUM_BYTES = 256, NORM_KEPT_BYTES = (48 << 10) - NORM_SUM_BYTES };

#endif
