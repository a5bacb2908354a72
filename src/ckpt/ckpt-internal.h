/* Shared by the files of this room: names in headers, the conversion of a table's slices to tensors of files, and the
 * open files of a directory. */
#pragma once

#include "base/json_keys.h"
#include "ckpt.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors files are little-endian");

#define MODEL_FILE       "model.safetensors"
#define MODEL_INDEX_FILE "model.safetensors.index.json"
#define CONFIG_FILE      "config.json"
#define GENERATION_FILE  "generation_config.json"
#define STATE_FILE       "trainer_state.json"
#define DCP_LIST_FILE    ".metadata"
#define ADAPTER_FILE     "adapter_config.json"

enum {
    JSON_FILE_LIMIT = 64 << 20,                /* bytes of config.json, an index, a trainer's state */
    TENSOR_NAME_BYTES = PARAM_NAME_BYTES + 64, /* with the prefixes of the array and of the model */
    SHOWN_BYTES = 121,                         /* of a file's text that a message shows */
};

static inline const char *shown(const char *text, char out[SHOWN_BYTES]) {
    return json_shown(text, SHOWN_BYTES, out);
}

/* Parses the JSON text of file `path` into an object; duplicate keys are refused. `position` is the byte of the file at
 * which the text starts, for the message. STATUS_INVALID, STATUS_MEMORY. */
int json_object_parse(const char *path, int64_t position, const char *text, size_t length, json_t **object);

/* A checked header: the tensors by name, and the strings that they point to. */
struct safetensors {
    char *path;
    int descriptor;               /* -1: the contents are `bytes`, owned by the caller */
    const char *bytes;            /* [size] */
    struct tensor_source *source; /* NULL: the data are in the file */
    int64_t size;
    struct safetensor *tensors; /* sorted by name; `start` of one of a source: its number there */
    size_t count;
    json_t *header; /* owns the names, unless the source does */
};

/* Returns the place of a type in the order of data in a file; -1 for an unknown one. */
int safetensors_type_number(const char *type);
/* Returns our type of that name; DTYPE_COUNT when we have none. */
enum dtype safetensors_type_dtype(const char *type);

struct tensor_source; /* exchange.h */

/* Opens the tensors of a source as if they were in a file called `path`. The array is copied; the names stay the
 * source's. The file owns the source from here on, unless the call fails. STATUS_MEMORY. */
int safetensors_open_source(const char *path, const struct safetensor *tensors, size_t count,
                            const struct tensor_source *source, struct safetensors **file);

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
    bool is_strict;           /* a tensor that is not requested is an error */
    struct codec_set *codecs; /* what is attached (codec.c); NULL: nothing. A file of `files` owns it */
};

/* Makes the name for files that are written: the array's prefix, the model's if it has one, then the name. `files` may
 * be NULL. */
void tensor_file_name(const struct param_files *files, const char *prefix, const char *name,
                      char out[TENSOR_NAME_BYTES]);
/* Finds the entry of that name, with or without the model's prefix; NULL when absent. A tied model's embedding may be
 * stored under the head's name only. */
const struct tensor_entry *tensors_find(const struct ckpt_tensors *tensors, const struct param_files *files,
                                        const char *prefix, const char *name, bool is_tied);
/* Finds the entry of exactly this name; NULL: there is none. */
struct tensor_entry *tensors_find_exactly(const struct ckpt_tensors *tensors, const char *name);
/* Sorts the entries by name. */
void tensors_sort(struct ckpt_tensors *tensors);
/* True for a model's table without a row for the head, which shares the embedding's weight. */
bool table_is_tied(const struct param_table *table);

/* Sets the shape, in files, of the tensor that a slice is part of; returns the number of dimensions. */
int slice_file_shape(const struct param *param, const struct param_slice *slice, bool is_transposed, int64_t shape[2]);
/* Writes a shape for a message. */
void shape_text(char *out, size_t bytes, int dims, const int64_t *shape);
/* Checks that the slices of a parameter cover each of its rows, in order. STATUS_INVALID. */
int slices_check(const struct param *param);

/* Cuts a block at the ends of slices: sets *part to the part of `block` in `slice`; returns false when it is empty. */
bool slice_cut(const struct param_slice *slice, const struct ckpt_block *block, struct ckpt_block *part);
/* Walks a rectangle of a slice in blocks of at most CKPT_BLOCK_ELEMENTS with long runs in the file and in memory. Start
 * with *block zeroed; returns false at the end. */
bool slice_next_block(const struct param_slice *slice, const struct ckpt_block *rect, struct ckpt_block *block);
/* Sets the rectangles of a slice that a rank reads or writes, and returns their number. */
int slice_rects(const struct ckpt_array *array, const struct param *param, const struct param_slice *slice, int index,
                struct ckpt_block rects[CKPT_MAX_RECTS]);

/* Computes out[columns, rows] = in[rows, columns] for elements of 2 or 4 bytes; rows of `out` are `stride` elements
 * apart. */
void transpose(const void *in, int64_t rows, int64_t columns, size_t element_bytes, void *out, int64_t stride);

/* ---- writing: plan.c, owners.c ---- */

/* The files of arrays: one file `NAME.safetensors`, or shards and an index when they exceed max_shard_bytes (0:
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
    int file;                               /* index in the directory: files.c */
    int64_t start;                          /* its first byte in that file */
};

/* One slice of one parameter of one array. */
struct write_piece {
    int array, param, slice, tensor;
    int64_t start;
};

/* The part of a tensor that a rank owns: owners.c. */
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
/* Checks that the rectangles of all ranks cover each tensor exactly once, with the same result on every rank. NULL: one
 * rank. STATUS_INVALID. */
int write_plan_check_owners(struct write_plan *plan, struct comm *world);

/* Writes the index of several shards; does nothing for a single file. STATUS_IO. */
int write_plan_index(const struct write_plan *plan, const char *directory);

/* ---- ranks that write together: together.c; all of them make the same calls; NULL: one rank ---- */

/* True on the rank that does what only one rank does. */
bool together_is_first(const struct comm *world);
/* Agrees on a status, as comm_agree. */
int together_agree(struct comm *world, int status);
/* Sends the first rank's path to all. */
int together_path(struct comm *world, char path[PATH_MAX]);

/* ---- directories ---- */

/* copy_path copies a path into a caller's buffer; STATUS_INVALID when it does not fit. */
int copy_path(const char *path, char *out, size_t bytes);
bool directory_has_model(const char *directory);
/* Makes the failure to open a directory of another system one that says what to do: STATUS_INVALID. Else returns
 * `status`. */
int explain_other_system(int status, const char *directory);
/* Checks a path. STATUS_NOT_FOUND when nothing exists there, STATUS_IO when it cannot be one of our directories. */
int directory_check(const char *path);
bool directory_has_file(const char *directory, const char *name);

/* Converts "iter_0000100" to 100; returns -1 for other names. */
int64_t checkpoint_iteration(const char *name);
/* True when the ordered numbers contain `iteration`. */
bool checkpoint_is_among(int64_t iteration, const int64_t *iterations, size_t count);
