/* Shared inside the room: numpy's generator, the file of index maps, weights. */
#ifndef CAMBIUM_DATA_DATA_INTERNAL_H
#define CAMBIUM_DATA_DATA_INTERNAL_H

#include "data/data.h"

/* The files of datasets, as they come into a directory that holds others: the index is the key. */
extern const struct staging_files indexed_staging_files;

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

/* A document, or a part of a plain one that is too long to be held. */
struct corpus_document {
    size_t start, length; /* in the batch's text */
    int64_t line;         /* where it begins in its file, from 1 */
    size_t file;          /* number of its input */
    bool is_continued;    /* the part before was the document before this one */
    bool is_unfinished;   /* the next part is the next document */
};
struct corpus_batch {
    struct strbuf text;
    struct corpus_document *documents;
    size_t count, capacity;
};
void corpus_batch_clear(struct corpus_batch *batch);
void corpus_batch_free(struct corpus_batch *batch);

/* A rank reads pieces, in its order: whole inputs, and ranges of plain ones that begin and end between documents. */
struct corpus_piece {
    size_t file;          /* number of its input */
    int64_t begin, bytes; /* not looked at where the input is read to its end, packed or not */
    bool is_whole;
};
struct corpus_pieces {
    const struct preprocess_options *options;
    struct corpus_piece *items;
    size_t count;
    int64_t total; /* bytes, 0: unknown */
};

struct corpus_reader;
/* Reads the pieces, which stay the caller's. */
int corpus_reader_new(const struct corpus_pieces *pieces, struct corpus_reader **reader);
void corpus_reader_free(struct corpus_reader *reader);
/* Adds the next documents or part of one, some hundred kilobytes or one larger JSON line; none: the corpus has ended.
 */
int corpus_reader_fill(struct corpus_reader *reader, struct corpus_batch *batch);
/* Bytes of the pieces that were read (of a gzip file, packed ones). */
int64_t corpus_reader_done(const struct corpus_reader *reader);
/* The format of an input. */
enum corpus_format corpus_format_of(const struct preprocess_options *options, size_t file);
/* Refuses what cannot be read; *bytes is -1 for a pipe, whose length nobody knows. */
int corpus_input_bytes(const char *path, int64_t *bytes);

/* ---- corpus_split.c ---- */

/* The pieces of a rank. */
int corpus_split(const struct preprocess_options *options, int rank, int ranks, struct corpus_pieces *pieces);
void corpus_pieces_free(struct corpus_pieces *pieces);
/* The number in the whole file of a line that a piece counts from 1. */
int64_t corpus_line(const struct corpus_pieces *pieces, size_t file, int64_t line);
/* Whether a document begins its whole file. */
bool corpus_is_first_line(const struct corpus_pieces *pieces, const struct corpus_document *document);

/* ---- join.c: what ranks wrote becomes one dataset ---- */

/* A rank's writer but the first's: its files have no names, so that nothing of them can stay. */
int part_writer_open(struct indexed_writer *writer, int *descriptor, const char *prefix, enum token_type type,
                     int64_t vocab_size);
/* This rank sends what it wrote, and the first rank puts it behind what it has, key after key and rank after rank.
 * `buffer` holds PART_CHUNK_BYTES. What a rank cannot read or write is in *result, and the messages go on all the same,
 * so that nobody waits; where *result is a failure already, they only pass. */
enum { PART_CHUNK_BYTES = 1 << 20 };
int part_send(struct comm *world, struct indexed_writer *writer, int descriptor, char *buffer, int *result);
int part_receive(struct comm *world, int from, struct indexed_writer *writer, char *buffer, int *result);

/* ---- index_cache.c ---- */

/* The block of the maps of a dataset whose counts are set. */
size_t index_maps_bytes(const struct gpt_dataset *dataset);
int index_maps_allocate(struct gpt_dataset *dataset);
void index_maps_free(struct gpt_dataset *dataset);
/* Maps the cache's file. False: nothing usable there. */
bool index_cache_read(const struct gpt_dataset_request *request, struct gpt_dataset *dataset);
/* Writes the maps, and has them in the file from then on; a failure is a warning. */
void index_cache_write(const struct gpt_dataset_request *request, struct gpt_dataset *dataset);

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
