/* Shared inside the room: corpus readers, the file of index maps, blends. Functions return STATUS_OK
 * or a negative status; where a comment names none, it is STATUS_IO or STATUS_MEMORY. */
#pragma once

#include "data/data.h"
#include "data/random_state.h"

/* Publishes a dataset's files into a directory that has other files; the index is the key. */
extern const struct staging_files indexed_staging_files;

/* ---- corpus.c: documents out of files ---- */

/* A document, or a part of a plain document that is too long to hold. */
struct corpus_document {
    size_t start, length; /* in the batch's text */
    int64_t line;         /* line of its file on which it begins, from 1 */
    size_t file;          /* number of its input */
    bool is_continued;    /* the document before it in the batches is the part before it */
    bool is_unfinished;   /* the next document is the part after it */
};
struct corpus_batch {
    struct strbuf text;
    struct corpus_document *documents;
    size_t count, capacity;
};
void corpus_batch_free(struct corpus_batch *batch);

/* The pieces that a rank reads, in this order: whole inputs, and ranges of plain inputs that begin and end between
 * documents. */
struct corpus_piece {
    size_t file;          /* number of its input */
    int64_t begin, bytes; /* ignored when the input is read to its end, whether packed or not */
    bool is_whole;
};
struct corpus_pieces {
    const struct preprocess_options *options;
    struct corpus_piece *items;
    size_t count;
    int64_t total; /* bytes, 0: unknown */
};

struct corpus_reader;
/* Opens a reader of the pieces, which the caller keeps until it is freed. */
int corpus_reader_new(const struct corpus_pieces *pieces, struct corpus_reader **reader);
void corpus_reader_free(struct corpus_reader *reader);
/* Adds the next documents, or a part of one: a few hundred kilobytes, or one larger JSON line. It adds none at the end
 * of the corpus. STATUS_INVALID for damaged input. */
int corpus_reader_fill(struct corpus_reader *reader, struct corpus_batch *batch);
/* Returns how many bytes of the pieces were read (packed bytes, for gzip). */
int64_t corpus_reader_done(const struct corpus_reader *reader);
/* Returns the format of an input. */
enum corpus_format corpus_format_of(const struct preprocess_options *options, size_t file);
/* Sets *bytes to an input's length, or to -1 for a pipe, whose length is unknown. Refuses an input that cannot be
 * read. */
int corpus_input_bytes(const char *path, int64_t *bytes);

/* ---- corpus_split.c ---- */

/* Finds the pieces that a rank reads. corpus_pieces_free frees them. */
int corpus_split(const struct preprocess_options *options, int rank, int ranks, struct corpus_pieces *pieces);
void corpus_pieces_free(struct corpus_pieces *pieces);
/* Converts a line number that a piece counts from 1 to the number in its whole file. */
int64_t corpus_line(const struct corpus_pieces *pieces, size_t file, int64_t line);

/* ---- join.c: the ranks' output becomes one dataset ---- */

/* Opens the writer of any rank but the first. Its files have no names, so none of them can remain on the disk. */
int part_writer_open(struct indexed_writer *writer, int *descriptor, const char *prefix, enum token_type type,
                     int64_t vocab_size);
/* part_send sends this rank's output to the first rank. There part_receive appends it to the first rank's files, key
 * after key and rank after rank. `buffer` holds PART_CHUNK_BYTES. A failure to read or write goes into *result, and the
 * messages continue, so that no rank waits for ever. When *result is already a failure, the bytes are only passed on.
 * The return value is the communication's status (STATUS_PEER). */
enum { PART_CHUNK_BYTES = 1 << 20 };
int part_send(struct comm *world, struct indexed_writer *writer, int descriptor, char *buffer, int *result);
int part_receive(struct comm *world, int from, struct indexed_writer *writer, char *buffer, int *result);

/* ---- index_cache.c ---- */

/* One block of memory for the maps of a dataset whose counts are set. */
size_t index_maps_bytes(const struct gpt_dataset *dataset);
int index_maps_allocate(struct gpt_dataset *dataset);
void index_maps_free(struct gpt_dataset *dataset);
/* Maps the cache's file. Returns false when it is missing or unusable. */
bool index_cache_read(const struct gpt_dataset_request *request, struct gpt_dataset *dataset);
/* Writes the maps to the cache, and replaces them in memory by the mapped file. A failure is a warning. */
void index_cache_write(const struct gpt_dataset_request *request, struct gpt_dataset *dataset);

/* ---- blend.c ---- */

/* blend_pairwise_sum is numpy.sum of doubles, with its order of additions; blend_normalize divides the weights by
 * it. */
double blend_pairwise_sum(const double *values, int64_t count);
void blend_normalize(double *weights, int64_t count);
/* Draws `size` samples by weights (helpers.cpp, build_blending_indices). */
void blend_fill(const double *weights, int64_t count, int64_t size, int64_t *drawn, int16_t *dataset_index,
                int64_t *dataset_sample_index);
/* Draws every sample of every part once (build_exhaustive_blending_indices). */
void blend_fill_exhaustive(const int64_t *lengths, int64_t count, int64_t *drawn, int16_t *dataset_index,
                           int64_t *dataset_sample_index);
/* Splits words into prefixes (pointers into `words`) and weights (NULL when none are given). The caller frees both
 * arrays. STATUS_USAGE. */
int blend_parse(const struct config_list *words, const char ***prefixes, double **weights, int64_t *count);
/* Converts "969,30,1" to the range [first, last) of `sequences` for each split; a weight of 0 gives an empty range.
 * NULL makes all of them training data. STATUS_USAGE. */
int split_parse(const char *text, int64_t sequences, int64_t first[SPLIT_COUNT], int64_t last[SPLIT_COUNT]);
