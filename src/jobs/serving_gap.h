/* The gap between training and serving at the end of a run on rows. */
#pragma once

#include "train/train.h"

/* Compares, as verify_serving_run does, what the run wrote with the forward that trains, over the first texts of its
 * validation. The largest difference becomes the last record of its metrics. It does nothing without validation rows or
 * metrics, and in FP8. A comparison that fails is a warning, since the run itself has succeeded. All
 * ranks of the run call it together, after they closed their trainers; `iteration` is the last. STATUS_IO and
 * STATUS_INVALID of the metrics; STATUS_PEER. */
int serving_gap_add(struct comm *world, const struct train_run *run, int64_t iteration);
