/* How a GPU's library computes the products of a rank. */
#pragma once

#include "parallel/rank.h"

/* Makes the bits of a row of products, and of sums over tensor ranks, independent of the other rows. All tensor ranks
 * call it together, after the rank is open or sketched and before planning. */
void rank_make_batch_invariant(struct rank *rank);

/* ---- files of algorithms, chosen by measuring (bench gemm --tune) ---- */

/* Writes the algorithms that the device has measured or taken. STATUS_IO, STATUS_MEMORY. */
int algorithms_write(const struct device *device, const char *path);
/* Lets the device's products take the algorithms of a file. All ranks of the world call it together, each with its
 * device; the first rank reads the file for all. NULL for the world is a single rank, and NULL for the path does
 * nothing. All ranks return the first failure of any. STATUS_UNSUPPORTED for a device without algorithms;
 * STATUS_INVALID for a damaged file or one of another GPU or library; the errors of reading it. */
int algorithms_take(struct comm *world, struct device *device, const char *path);
