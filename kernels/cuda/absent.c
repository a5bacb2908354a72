/* Replaces the backend `cuda` in a build without it. */
#include "backend.h"

const struct backend backend_cuda = {
    .name = "cuda",
    .has_numbers = true,
    .how_to_build = "this program is built without CUDA: configure the build with -DCAMBIUM_CUDA=ON",
};
