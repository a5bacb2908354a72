/* How a card's library computes the products of a rank. */
#ifndef CAMBIUM_PARALLEL_ALGORITHMS_H
#define CAMBIUM_PARALLEL_ALGORITHMS_H

#include "parallel/rank.h"

/* Makes the bits of a row of products, and of sums over tensor ranks, independent of the other rows. All tensor ranks
 * call it together, after the rank is open or sketched and before planning. */
void rank_make_batch_invariant(struct rank *rank);

#endif
