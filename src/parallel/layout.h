/* Parallel layouts: the layers of pipeline stages, and which layouts are possible.
 *
 * Pure arithmetic: no communication, no device; any thread. Failures are STATUS_USAGE. They name the configuration's
 * keys with their values, and suggest the nearest values. */
#pragma once

#include "parallel/grid.h"

/* ---- layers ---- */

/* How layers are spread over stages, and over the chunks of each. */
struct pipeline_split {
    int64_t layers; /* model.num_layers */
    int64_t stages, chunks;
    int64_t first,
        last; /* decoder_first_ and decoder_last_pipeline_num_layers, all chunks together; 0: like the others */
    bool counts_embedding, counts_loss; /* account_for_..._in_pipeline_split: the end takes the place of a layer */
};

/* Returns true if the split is possible. */
bool pipeline_split_fits(const struct pipeline_split *split);
/* Checks a split. STATUS_USAGE for one that does not fit, with the nearest values that do. */
int pipeline_split_check(const struct pipeline_split *split);
/* Stores the layers first .. first+count-1 of a chunk, numbered from 0. Chunk c of stage s comes before chunk c of
 * stage s+1, and all chunks c come before all chunks c+1. Only an end that counts may leave its chunk without layers.
 * STATUS_USAGE as pipeline_split_check. */
int pipeline_layers(const struct pipeline_split *split, int64_t stage, int64_t chunk, int64_t *first, int64_t *count);

/* ---- whole layouts ---- */

/* A layout, and the numbers of model and batch that it must divide. */
struct parallel_layout {
    struct rank_grid grid;       /* filled */
    int64_t chunks, first, last; /* of the pipeline split; chunks 1: no interleaving */
    bool counts_embedding, counts_loss;
    bool sequence_parallel;
    bool is_one_model; /* data-parallel ranks would have nothing to divide among them */
    int64_t layers, heads, query_groups, ffn_hidden;
    int64_t vocab; /* rows of the vocabulary's table; 0: it is padded as the tensor ranks need */
    int64_t seq_length, micro_batch, global_batch; /* global_batch 0: none (inference) */
};

/* Returns the name of the first number that does not divide as it must; NULL: the layout is possible. */
const char *parallel_layout_obstacle(const struct parallel_layout *layout);
/* Refuses an impossible layout, with the first number that does not divide. It suggests the nearest layouts of as many
 * ranks that work, or the nearest number of ranks that has one. STATUS_USAGE. */
int parallel_layout_check(const struct parallel_layout *layout);
