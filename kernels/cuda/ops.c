/* The table of the card's operations. device.c fills in ops_absent for those that it lacks. */
#include "cuda/cuda-internal.h"

const struct ops cuda_ops = {.name = "cuda"};
