/* What the files of this room share: how the header of a file is named, how a table's slices become tensors of files,
 * and the open files of a directory. */
#ifndef CAMBIUM_CKPT_INTERNAL_H
#define CAMBIUM_CKPT_INTERNAL_H

#include "base/json_keys.h"
#include "ckpt.h"

#include <limits.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors files are little-endian");

#define MODEL_FILE       "model.safetensors"
#define MODEL_INDEX_FILE "model.safetensors.index.json"
#define CONFIG_FILE      "config.json"
#define GENERATION_FILE  "generation_config.json"
#define STATE_FILE       "trainer_state.json"
#define ADAPTER_FILE     "adapter_config.json"

enum {
    JSON_FILE_LIMIT = 64 << 20,                /* bytes of config.json, an index, a trainer's state */
    TENSOR_NAME_BYTES = PARAM_NAME_BYTES + 64, /* with the array's and the model's prefix */
    SHOWN_BYTES = 121,                         /* of a file's own words in a message */
};

static inline const char *shown(const char *text, char out[SHOWN_BYTES]) {
    return json_shown(text, SHOWN_BYTES, out);
}

/* Parses JSON text of file `path` into an object; duplicate keys are refused. `position` is the file's byte where the
 * text starts, for the message. */
int json_object_parse(const char *path, int64_t position, const char *text, size_t length, json_t **object);

/* A checked header: the tensors by name, and the strings that they point to. */
struct safetensors {
    char *path;
    int descriptor;    /* -1: it is `bytes`, another's */
    const char *bytes; /* [size] */
    int64_t size;
    struct safetensor *tensors; /* sorted by name */
    size_t count;
    json_t *header; /* owns the names */
};

/* The name of the reference implementation for a type, and its place in the order of data in a file. */
const char *safetensors_type_name(enum dtype dtype);
int safetensors_type_rank(enum dtype dtype);

struct tensor_entry {
    const struct safetensors *file;
    const struct safetensor *tensor;
};

struct ckpt_tensors {
    char *directory;
    struct safetensors **files;
    size_t file_count;
    struct tensor_entry *entries; /* sorted by name */
    size_t count;
    bool is_strict; /* tensors that nobody asks for are an error */
};

/* The name in files that are written: the array's prefix, the model's where it has one, name. `files` may be NULL. */
void tensor_file_name(const struct param_files *files, const char *prefix, const char *name,
                      char out[TENSOR_NAME_BYTES]);
/* The entry of that name with or without the model's prefix; NULL when absent. A tied model's embedding may stand under
 * the head's name alone. */
const struct tensor_entry *tensors_find(const struct ckpt_tensors *tensors, const struct param_files *files,
                                        const char *prefix, const char *name, bool is_tied);
/* Whether it is a model's, and no row is the head: it shares the embedding's weight. */
bool table_is_tied(const struct param_table *table);

/* Shape in files of the tensor that a slice is part of; returns the number of dimensions. */
int slice_file_shape(const struct param *param, const struct param_slice *slice, int64_t shape[2]);
/* Checks that the slices of a parameter cover each of its rows, in order. */
int slices_check(const struct param *param);

/* A block is cut where slices end: the part of `block` that stands in `slice`; false when empty. */
bool slice_cut(const struct param_slice *slice, const struct ckpt_block *block, struct ckpt_block *part);
/* Walks a rectangle of a slice in blocks of at most CKPT_BLOCK_ELEMENTS whose pieces in the file and in memory are
 * long. Start with *block zeroed; false at the end. */
bool slice_next_block(const struct param_slice *slice, const struct ckpt_block *rect, struct ckpt_block *block);
/* The rectangles of a slice that a rank reads or writes: their number. */
int slice_rects(const struct ckpt_array *array, const struct param *param, const struct param_slice *slice, int index,
                struct ckpt_block rects[CKPT_MAX_RECTS]);

/* out[columns, rows] = in[rows, columns] of 2- or 4-byte elements; rows of `out` begin `stride` elements apart. */
void transpose(const void *in, int64_t rows, int64_t columns, size_t element_bytes, void *out, int64_t stride);

/* ---- writing: plan.c, owners.c ---- */

/* The files of arrays: one file `NAME.safetensors`, or shards and an index when they are more than max_shard_bytes (0:
 * never). */
struct write_request {
    const char *name; /* "model" */
    const struct param_table *table;
    const struct ckpt_array *arrays;
    int array_count;
    int64_t max_shard_bytes;
};

struct file_tensor {
    char name[TENSOR_NAME_BYTES];
    enum dtype dtype;
    int dims, shard;
    int64_t shape[2], rows, columns, bytes; /* rows: along the axis of the slices */
    int file;                               /* of the directory: files.c */
    int64_t start;                          /* its first byte in that file */
};

/* One slice of one parameter of one array. */
struct write_piece {
    int array, param, slice, tensor;
    int64_t start;
};

/* What a rank owns of a tensor: owners.c. */
struct write_share {
    int64_t elements, measure;
};

struct write_plan {
    struct write_request request;
    struct file_tensor *tensors; /* in the table's order, which is transformers' order of modules */
    struct write_piece *pieces;  /* sorted by tensor, then place */
    struct write_share *shares;  /* [tensor_count] */
    int tensor_count, piece_count, shard_count;
    int64_t total_bytes, total_elements;
};

int write_plan_make(const struct write_request *request, struct write_plan *plan);
void write_plan_free(struct write_plan *plan);
int write_plan_shard_name(const struct write_plan *plan, int shard, char *out, size_t bytes);
/* Checks that the rectangles which the ranks write cover each tensor exactly once; the same answer on every rank. NULL:
 * one rank. */
int write_plan_check_owners(struct write_plan *plan, struct comm *world);

/* The index of several shards; nothing where there is one file. */
int write_plan_index(const struct write_plan *plan, const char *directory);

/* ---- ranks that write together: together.c; all of them make the same calls; NULL: one rank ---- */

/* Whether this rank does what only one does. */
bool together_is_first(const struct comm *world);
/* comm_agree. */
int together_agree(struct comm *world, int status);
/* The first rank's path to all. */
int together_path(struct comm *world, char path[PATH_MAX]);

/* ---- directories ---- */

/* A path into a caller's buffer; STATUS_INVALID when it does not fit. */
int copy_path(const char *path, char *out, size_t bytes);
bool directory_has_model(const char *directory);
/* STATUS_NOT_FOUND when there is nothing, STATUS_IO when what there is cannot be a directory of ours. */
int directory_check(const char *path);
bool directory_has_file(const char *directory, const char *name);

/* "iter_0000100" -> 100; -1 when the name is none. */
int64_t checkpoint_iteration(const char *name);
/* The numbers are in order. */
bool checkpoint_is_among(int64_t iteration, const int64_t *iterations, size_t count);

#endif
