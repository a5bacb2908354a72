/* The work of each operation: shape, FLOPs and bytes, from the sizes and types of its call only. No pointer is
 * followed, so plans need neither memory nor a device. An optional operand counts if a training step has it.
 *
 * A function NAME_work takes the arguments of operation NAME (ops.h). Numbers that the operation finds in device memory
 * are separate members: the elements of ranges, the tokens that a row sees. Those of grouped operations are in
 * their entries, and do not count. Attention takes all segments as equally long. The functions are pure arithmetic,
 * cannot fail, and run on any thread. */
#pragma once

#include "kernels/ops.h"

struct op_work {
    int64_t shape[3]; /* rows, columns and, of a product, the inner dimension; 0 where there is none */
    double flops;     /* of matrix products, two for each multiplication with its addition; 0 for others */
    double fp8_flops; /* the part of `flops` whose operands are FP8 */
    double bytes;     /* operands read and results written, each at least once */
    double lasting;   /* the part of `bytes` that no step makes: weights read whole, and cached keys and values */
    double weights;   /* elements of weights that every row is multiplied with: two model FLOPs each for every row */
};

#define OP_WORK(op, type, ...) struct op_work op##_work(const struct type *a);
OPS(OP_WORK)
#undef OP_WORK
