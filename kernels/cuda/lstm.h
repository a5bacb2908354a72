/* Arguments of the LSTM's backward kernel. */
#pragma once

#include "kernels/ops.h"

enum { LSTM_WARPS = 16 }; /* the most of a block */

struct lstm_backward {
    struct lstm call;
    float *dcell; /* [H] the gradient of a step's cells that comes from the step after it */
};
