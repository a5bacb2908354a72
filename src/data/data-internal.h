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

/* ---- corpus.c: documents out of files ---- */

struct corpus_document {
    size_t start, length; /* in the batch's text */
    int64_t line;         /* where it begins in its file, from 1 */
    size_t file;          /* number of its input */
};
struct corpus_batch {
    struct strbuf text;
    struct corpus_document *documents;
    size_t count, capacity;
};
void corpus_batch_clear(struct corpus_batch *batch);
void corpus_batch_free(struct corpus_batch *batch);

struct corpus_reader;
int corpus_reader_new(const struct preprocess_options *options, struct corpus_reader **reader);
void corpus_reader_free(struct corpus_reader *reader);
/* Adds the next documents, some hundred kilobytes or one larger document; none: the corpus has ended. */
int corpus_reader_fill(struct corpus_reader *reader, struct corpus_batch *batch);
/* Bytes of the files (0: unknown), and how many of them were read (of a gzip file, packed ones). */
int64_t corpus_reader_total(const struct corpus_reader *reader);
int64_t corpus_reader_done(const struct corpus_reader *reader);
/* What the format is for an input. */
enum corpus_format corpus_format_of(const struct preprocess_options *options, size_t file);

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
/* "969,30,1" to [begin, end) of `sequences` for each split; a weight of 0 gives an empty range. NULL: all is training.
 */
int split_parse(const char *text, int64_t sequences, int64_t first[SPLIT_COUNT], int64_t last[SPLIT_COUNT]);

#endif
