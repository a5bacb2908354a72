/* Shared inside the room: numpy's generator, the file of index maps, weights. */
#ifndef CAMBIUM_DATA_DATA_INTERNAL_H
#define CAMBIUM_DATA_DATA_INTERNAL_H

#include "data/data.h"

/* ---- random_state.c: numpy.random.RandomState, the legacy MT19937 stream ---- */

struct random_state {
    uint32_t word[624];
    int next;
};
void random_state_seed(struct random_state *state, uint32_t seed);
uint32_t random_state_next(struct random_state *state);
/* RandomState.shuffle of a one-dimensional array; count at most 2^32. */
void random_state_shuffle(struct random_state *state, uint32_t *values, int64_t count);

/* ---- index_cache.c ---- */

/* Reads the maps into `dataset`, whose counts are set and whose arrays are allocated. False: nothing usable there. */
bool index_cache_read(const struct gpt_dataset_request *request, struct gpt_dataset *dataset);
/* Writes them; a failure is a warning. */
void index_cache_write(const struct gpt_dataset_request *request, const struct gpt_dataset *dataset);

/* ---- blend.c ---- */

/* numpy.sum of doubles, with its order of additions, and the weights divided by it. */
double blend_pairwise_sum(const double *values, int64_t count);
void blend_normalize(double *weights, int64_t count);
/* Indexes of `size` samples by weights (helpers.cpp, build_blending_indices). */
void blend_fill(const double *weights, int64_t count, int64_t size, int64_t *drawn, int16_t *dataset_index,
                int64_t *dataset_sample_index);
/* Every sample of every part once (build_exhaustive_blending_indices). */
void blend_fill_exhaustive(const int64_t *lengths, int64_t count, int64_t *drawn, int16_t *dataset_index,
                           int64_t *dataset_sample_index);
/* Words to prefixes (pointers into `words`) and weights (NULL: none given). Free both arrays. */
int blend_parse(const struct config_list *words, const char ***prefixes, double **weights, int64_t *count);
/* "969,30,1" to [begin, end) of `sequences` for each split; a weight of 0 gives an empty range. NULL: all is training. */
int split_parse(const char *text, int64_t sequences, int64_t first[SPLIT_COUNT], int64_t last[SPLIT_COUNT]);

#endif
