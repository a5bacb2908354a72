/* Batch invariance of a rank. */
#include "parallel/algorithms.h"

#include "kernels/algorithms.h"

/* A library of collectives may cut an array among ranks. Then an element's place decides the order of its sum, which
 * matters from three ranks on. */
void rank_make_batch_invariant(struct rank *rank) {
    device_make_batch_invariant(rank->device);
    if (rank->tensor && rank->tensor->size > 2)
        comm_request_order(rank->tensor);
}
