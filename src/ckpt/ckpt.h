/* Model directories and training checkpoints.
 *
 * A model directory is Hugging Face's: config.json, tokenizer files, model*.safetensors. A training checkpoint
 * SAVE/iter_0000100/ is a model directory with optimizer.safetensors and trainer_state.json added. Neither depends on a
 * layout of ranks. Files hold global tensors under their Hugging Face names, in Hugging Face's orientation; the slices
 * of the parameter table say which rectangle of a parameter is where. The optimizer's tensors have the same names and
 * shapes after a prefix ("exp_avg.").
 *
 * A directory may hold an adapter (adapter_config.json, adapter_model.safetensors) in place of a model, or several,
 * each in a subdirectory.
 *
 * A directory appears whole, by a rename, or not at all. If a writer is killed, the next one removes its unfinished
 * files. Paths are plain directories; every error names the file. Any thread may call these functions, but a directory
 * has only one writer (or group of writing ranks) at a time.
 *
 * Functions that return a status may return STATUS_IO and STATUS_MEMORY. Comments name the others. */
#pragma once

#include "base/base.h"
#include "ckpt/safetensors.h"
#include "comm/comm.h"
#include "tensor/tensor.h"
#include "text/text.h"

/* ---- values of a table, as rectangles in and out of memory ---- */

/* Rows [row, row + rows) and columns [column, column + columns) of a parameter, in the parameter's [out, in]
 * orientation. Values of a block are dense and row-major. At most CKPT_BLOCK_ELEMENTS of them. */
struct ckpt_block {
    int param; /* row of the table */
    int64_t row, rows, column, columns;
};
enum { CKPT_BLOCK_ELEMENTS = 1 << 20, CKPT_MAX_RECTS = 3 * PARAM_MAX_SLICES };

/* Memory for a block's rows, `stride` bytes apart. */
struct ckpt_target {
    void *memory;
    size_t stride;
    enum copy_kind kind; /* COPY_TO_HOST; COPY_ON_DEVICE: it is the device's memory */
};

struct ckpt_tensors; /* The open tensor files of a directory. */

/* One number for each element of a table's parameters: the weights, or a moment of the optimizer. */
struct ckpt_array {
    const char *prefix;  /* before each tensor's name in the files: "" for weights, "exp_avg." */
    enum dtype dtype;    /* of values in the calls below, and of files: DTYPE_F32, DTYPE_BF16; writing also DTYPE_F16 */
    bool only_trainable; /* frozen parameters have no such numbers */
    /* For writing: this rank has the same numbers as the rank `copy_of` of the world, which owns them. */
    bool is_copy;
    int copy_of;
    int threads; /* that may call get() at the same time; 0: one */
    /* For writing, and for ckpt_read_block: a block lies in one slice, and its values are as the files have them, which
     * is transposed where the slice is. */
    bool is_as_in_files;
    /* The rectangles of a parameter that this rank reads or must write, each in one slice; returns their number, at
     * most CKPT_MAX_RECTS. NULL: the whole parameter. */
    int (*rects)(void *context, int param, struct ckpt_block *rects);
    int (*get)(void *context, const struct ckpt_block *block, void *values); /* memory to file; for writing */
    /* The same for an array with a stream, in place of get(): queues the copy there. The block may be of any size. */
    int (*queue)(void *context, const struct ckpt_block *block, const struct ckpt_target *target);
    int (*put)(void *context, const struct ckpt_block *block, const void *values); /* file to memory; for reading */
    /* For reading: returns host memory that holds exactly the block's values, into which they are read directly. It
     * returns NULL, or is NULL itself, when there is none; put() then delivers them. */
    void *(*find_place)(void *context, const struct ckpt_block *block);
    /* On which put() and queue() only queue copies; those arrays of a save that have one have the same. NULL: put() has
     * taken the values when it returns. */
    struct stream *stream;
    void *context;
    /* For reading: a value that is not finite in the array's type is an error, which names the tensor. */
    bool must_be_finite;
    /* For reading: a requested stop (base/stop.h) ends it between two tensors, with STATUS_INTERRUPTED. */
    bool heeds_stop;
    /* For reading: finds another name for a tensor that the files do not have under `name`; returns false when they
     * have none. NULL: there are no other names. */
    bool (*find_name)(const void *names, const struct ckpt_tensors *tensors, const char *name,
                      char out[PARAM_NAME_BYTES]);
    /* For reading: true for a tensor that may be there although it is not requested. NULL: there are none. */
    bool (*is_allowed)(const void *names, const char *name);
    const void *names;
};

/* A flat array in the order of a map, on a device: a store's weights, or an optimizer's moments. A rank may hold only
 * some ranges of it. */
struct ckpt_flat {
    const struct param_map *map;
    struct stream *stream;            /* NULL while planning */
    const struct param_range *ranges; /* [count] of `dtype`, ascending; a parameter lies in at most one of them */
    int count;
    enum dtype dtype;
    /* For writing, when ranks hold copies of the same elements: which copy owns them. */
    bool is_copy; /* the rank `copy_of`, of the same data group, has the same elements */
    int copy_of;
    bool leaves_copies; /* parameters that every tensor rank has belong to the first one */
    const bool *leaves; /* [table count] parameters that another stage writes (a tied embedding); NULL: none */
    int threads;        /* that may read the memory at the same time, if the host can; 0: one */
};
/* Returns the weights of an opened store, as its storage lists them. */
struct ckpt_flat ckpt_flat_weights(const struct param_store *store, struct stream *stream);
/* Returns the array over `flat`, which must stay alive and in place. */
struct ckpt_array ckpt_flat_array(struct ckpt_flat *flat, const char *prefix, bool only_trainable);

/* ---- reading ---- */

/* Finds what `path` means: a model directory or a GGUF file itself, or the newest checkpoint in it. STATUS_NOT_FOUND
 * when it is none of them, STATUS_INVALID for another file. The error of a hub's name says what to do. */
int ckpt_resolve_model(const char *path, char *out, size_t bytes);
/* The same for resuming: a training checkpoint itself, or the newest one in `path`. STATUS_NOT_FOUND when `path` does
 * not exist or holds no checkpoint yet; STATUS_INVALID for a model directory without training state, and where all
 * checkpoints in `path` lack files. */
int ckpt_resolve_checkpoint(const char *path, char *out, size_t bytes);
/* Finds the newest whole iter_* directory of `root`, by number; `iteration` may be NULL. STATUS_NOT_FOUND when there is
 * none; STATUS_INVALID when there are some and all of them lack files. A warning names one that lacks files beside a
 * whole one. */
int ckpt_latest(const char *root, char *out, size_t bytes, int64_t *iteration);

/* Lists the numbers of the iter_* directories of `root` above `iteration`, in order; the caller frees *iterations. A
 * root that does not exist has none. */
int ckpt_list_above(const char *root, int64_t iteration, int64_t **iterations, size_t *count);

enum { CKPT_ADAPTER_CONFIG_BYTES = 1 << 20 }; /* of an adapter_config.json, at most */
/* Read the text of config.json, generation_config.json, adapter_config.json or trainer_state.json. STATUS_NOT_FOUND. */
int ckpt_read_config(const char *directory, struct strbuf *text);
int ckpt_read_generation_config(const char *directory, struct strbuf *text);
int ckpt_read_adapter_config(const char *directory, struct strbuf *text);
int ckpt_read_state(const char *directory, struct strbuf *text);

/* Checks that the files of a checkpoint, and the values of its trainer_state.json, were saved together. STATUS_INVALID
 * names the file, also when it has no digests. */
int ckpt_check_state(const char *directory);
/* Checks that a directory named like a checkpoint has this number. STATUS_INVALID. */
int ckpt_check_iteration(const char *directory, int64_t iteration);

/* Opens model.safetensors, or the shards of model.safetensors.index.json. Headers are checked; no data is read. Names
 * count with or without the model's prefix. Pickles are refused by name. STATUS_NOT_FOUND, STATUS_INVALID,
 * STATUS_UNSUPPORTED. */
int ckpt_open_model(const char *directory, struct ckpt_tensors **tensors);
/* Opens adapter_model.safetensors, or AdapterHub's adapter.safetensors. In an adapter a tensor that is not requested is
 * an error. */
int ckpt_open_adapter(const char *directory, struct ckpt_tensors **tensors);
/* The same for the file's bytes, which outlive the tensors; errors call it DIRECTORY/NAME. */
int ckpt_open_adapter_bytes(const char *directory, const char *name, const void *bytes, size_t length,
                            struct ckpt_tensors **tensors);
/* The same for an open file; its descriptor stays the caller's. */
int ckpt_open_adapter_descriptor(const char *directory, const char *name, int descriptor,
                                 struct ckpt_tensors **tensors);
/* Opens prompt_encoder.safetensors: the weights that training has in place of an adapter's table, and resumes from. */
int ckpt_open_encoder(const char *directory, struct ckpt_tensors **tensors);
bool ckpt_has_encoder(const char *directory);
/* Opens optimizer.safetensors, or its shards in the same way. */
int ckpt_open_optimizer(const char *directory, struct ckpt_tensors **tensors);
/* Opens another file of a checkpoint's tensors, NAME.safetensors. */
int ckpt_open_state(const char *directory, const char *name, struct ckpt_tensors **tensors);
/* Moves the files of `others` to `tensors`; names must differ. After a failure both are as they were. STATUS_MEMORY. */
int ckpt_join(struct ckpt_tensors *tensors, struct ckpt_tensors *others);
/* Takes a prefix from the names, and forgets the tensors whose names do not begin with it; returns their number. */
size_t ckpt_strip(struct ckpt_tensors *tensors, const char *prefix);
void ckpt_close(struct ckpt_tensors *tensors);
/* Reads every floating-point value: STATUS_INVALID names the first tensor with one that is not finite. */
int ckpt_check_finite(const struct ckpt_tensors *tensors);
/* Return tensors, sorted by name, or by exactly this name (NULL: there is none). They live as long as the files. */
const struct safetensor *ckpt_tensor_at(const struct ckpt_tensors *tensors, size_t index);
const struct safetensor *ckpt_find_tensor(const struct ckpt_tensors *tensors, const char *name);
/* True when there is a tensor of exactly this name. */
bool ckpt_has_tensor(const struct ckpt_tensors *tensors, const char *name);
/* Reads bytes [first, first + length) of the tensor number `index`, as they are. STATUS_INVALID. */
int ckpt_read_bytes(const struct ckpt_tensors *tensors, size_t index, int64_t first, int64_t length, void *out);
/* Reads elements [first, first + count) of a tensor that is there, as DTYPE_F32 or DTYPE_BF16. STATUS_INVALID when one
 * is not finite; STATUS_UNSUPPORTED for other types. */
int ckpt_read_numbers(const struct ckpt_tensors *tensors, const char *name, int64_t first, int64_t count,
                      enum dtype dtype, void *out);
/* Return the number of tensors, and of their elements. */
size_t ckpt_count(const struct ckpt_tensors *tensors);
int64_t ckpt_elements(const struct ckpt_tensors *tensors);
/* Computes a digest of names, types, shapes, and values at 16 places of each tensor: training changes them, and they
 * are cheap to read. */
int ckpt_digest(const struct ckpt_tensors *tensors, uint64_t *digest);
/* Add the facts that ranks reading the same adapter or checkpoint must share. */
int ckpt_adapter_facts(const char *directory, struct facts *facts);
int ckpt_checkpoint_facts(const char *directory, struct facts *facts);
/* Returns the type of the largest floating-point tensor. */
enum dtype ckpt_dtype(const struct ckpt_tensors *tensors);
/* True when any tensor's name begins with the prefix: "master." exists only after a bf16 run. */
bool ckpt_has_prefix(const struct ckpt_tensors *tensors, const char *prefix);
/* Returns the length of the prefix of a name that a checkpoint gives to what the optimizer keeps of a weight
 * ("master.", "exp_avg.", "exp_avg_sq."); 0: it has none. */
size_t ckpt_optimizer_prefix(const char *name);
/* Checks that every tensor of the arrays exists with the right type and shape (one error names those that do not), and
 * then delivers everything through `put`.
 *
 * Files that contradict the table are refused, and the message names the tensor. A model's parameter may have no row
 * (struct param_files). A tied model's head may differ from its embedding. A bias may be nonzero although its row must
 * be zero. Buffers and an equal head are silently ignored. Other tensors that are not requested cause one warning, and
 * in an adapter an error. STATUS_INVALID. */
int ckpt_read(const struct ckpt_tensors *tensors, const struct param_table *table, const struct ckpt_array *arrays,
              int array_count);
/* Compares a tensor with the one that a model's files have under `name`, as fp32, in shape and values; a tied model's
 * head is its embedding. */
int ckpt_equals(const struct ckpt_tensors *tensors, size_t index, const struct ckpt_tensors *model,
                const struct param_table *table, const char *name, bool *is_equal);
/* ckpt_check checks as ckpt_read does. ckpt_read_block then reads one rectangle of a parameter, at most
 * CKPT_BLOCK_ELEMENTS, as array->dtype, for a rank of a layout. */
int ckpt_check(const struct ckpt_tensors *tensors, const struct param_table *table, const struct ckpt_array *arrays,
               int array_count);
int ckpt_read_block(const struct ckpt_tensors *tensors, const struct param_table *table, const struct ckpt_array *array,
                    const struct ckpt_block *block, void *values);
/* Reads everything that the array has of one parameter, through `put`, with the same checks. */
int ckpt_read_param(const struct ckpt_tensors *tensors, const struct param_table *table, const struct ckpt_array *array,
                    int param);

/* ---- writing ---- */

/* A file of tensors, NAME.safetensors, perhaps in a subdirectory: "lora/adapter_model". Never in shards. */
struct ckpt_part {
    char name[64];
    const struct param_table *table;
    const struct ckpt_array *weights;
};
/* The files of an adapter: PEFT's, AdapterHub's, and the encoder that ckpt_open_encoder opens. */
#define CKPT_ADAPTER_PART "adapter_model"
#define CKPT_HUB_PART     "adapter"
#define CKPT_ENCODER_PART "prompt_encoder"

struct ckpt_text {
    char name[64];
    const char *text;
};
enum { CKPT_MAX_PARTS = 16 };

/* The contents of a model directory. */
struct ckpt_model {
    const struct param_table *table; /* also the optimizer's */
    const struct ckpt_array *weights;
    const char *config_text;       /* config.json; NULL: none */
    const struct ckpt_part *parts; /* adapters: their files, in place of those of the weights */
    int part_count;                /* 0: the weights, at most CKPT_MAX_PARTS */
    const struct ckpt_text *texts; /* further files */
    int text_count;
    const struct tokenizer_files *tokenizer; /* written too; NULL: none */
    bool is_replaced;                        /* whatever exists in the directory belongs to the caller */
    int64_t max_shard_bytes;                 /* of a file, its largest tensor permitting; 0: transformers' 50 GB */
    int threads;                             /* to copy with; 0: one */
    struct comm *world;                      /* the ranks that write together; NULL: only this one */
    /* Called on the first rank, perhaps in another thread, when all files are in the directory and before it appears;
     * it may add files. NULL: nothing is added. */
    int (*seal)(void *context, const char *directory);
    void *seal_context;
};

/* Writes a model directory. A directory with only a model is replaced. Any other directory that is not empty, or has
 * other files too, is refused unless is_replaced.
 *
 * Several ranks make the same call with the same path, table and kinds of arrays, and see one file system. Each element
 * of each tensor has one owner, by `rects` of the arrays; anything else is refused with the tensor's name before a file
 * is made. The first rank handles the texts, the tokenizer and the pruning of old checkpoints. All return when the
 * directory is whole. When one fails, all do, and nothing remains. The rank that failed returns its status; the others
 * return STATUS_PEER with its number and text. Files have the same bytes for any number of ranks. */
int ckpt_write_model(const char *directory, const struct ckpt_model *model);
/* Writes a model into a directory that also holds the checkpoints of its run. Its files replace those of the model that
 * an earlier run wrote there, as one generation (staging.h). The errors of ckpt_write_model and ckpt_check_beside. */
int ckpt_write_beside(const char *directory, const struct ckpt_model *model);
/* Checks that ckpt_write_beside would replace nothing but a model of the newest checkpoint's configuration.
 * STATUS_USAGE. */
int ckpt_check_beside(const char *directory);
/* Computes the memory that writing takes at one of `ranks` ranks; of the arrays only prefix, type and only_trainable
 * matter. */
int ckpt_model_bytes(const struct ckpt_model *model, int ranks, int rank, size_t *bytes);

/* A file of tensors in memory. */
struct ckpt_image {
    const char *name; /* for messages */
    const struct param_table *table;
    const struct ckpt_array *arrays; /* [array_count] */
    int array_count;
    struct comm *world; /* the ranks that have the values; NULL: only this one */
};
/* Makes the bytes of the file that ckpt_write_model would write, on every rank; the caller frees *bytes. Errors as
 * there, but for those of files. */
int ckpt_write_image(const struct ckpt_image *image, char **bytes, size_t *length);

struct ckpt_save {
    const char *root; /* SAVE; made when it does not exist */
    int64_t iteration;
    struct ckpt_model model;
    const struct ckpt_array *optimizer;
    int optimizer_count;
    const struct ckpt_part *state; /* a further file of the trainer's tensors; NULL: none */
    const char
        *state_text;    /* trainer_state.json: a JSON object of the trainer, to which digests of the files are added */
    int64_t keep_last;  /* how many of our newest checkpoints to keep, 0: all; the one just saved always stays */
    int64_t ours_until; /* earlier contents of `root` are ours up to this iteration */
};

/* Writes root/iter_%07d with the ranks of save->model.world, as above, and replaces a checkpoint that we wrote for that
 * iteration. After a failure nothing of it remains, and the other checkpoints are untouched. Checkpoints of others are
 * neither replaced nor pruned. One that cannot be pruned causes a warning: the new one is already whole. */
int ckpt_save(const struct ckpt_save *save);

/* ---- repeated saves, also while the memory keeps changing ---- */

/* The progress of a save at one rank; the progress of all is the least of theirs. */
enum ckpt_progress {
    CKPT_FAILED,
    CKPT_WRITING,
    CKPT_WRITTEN,   /* this rank's part is on the disk */
    CKPT_PUBLISHED, /* the checkpoint exists */
    CKPT_IDLE,      /* no save is in progress */
};

struct ckpt_saver;

/* Prepares saves of the same arrays into the same root. All ranks make the calls here together, except _progress.
 * Everything that `save` points to stays alive and in place until the close; the iteration and the state are given
 * later. `is_background` takes memory for a copy of what this rank writes, which is 1/ranks of the files. Memory that a
 * stream copies to is pinned. */
int ckpt_saver_open(const struct ckpt_save *save, bool is_background, struct ckpt_saver **saver);
/* Device memory of a saver of arrays with a stream, in which matrices are transposed. */
enum { CKPT_DEVICE_BYTES = 2 << 20 };
/* Computes the host memory that a saver takes at a rank; of the arrays only prefix, type and only_trainable matter. */
int ckpt_saver_bytes(const struct ckpt_save *save, bool is_background, int ranks, int rank, size_t *bytes);
/* Prunes checkpoints before the first save of a resumed run, which may have ended between a save and its pruning. */
void ckpt_saver_prune(const struct ckpt_saver *saver);
/* Abandons a save that is in progress: nothing of it remains. */
void ckpt_saver_close(struct ckpt_saver *saver);
/* Begins a save, after the one before it. When it returns, the arrays may change if the saver is a background one: a
 * thread writes the copy, independently of the other ranks. When one rank fails, all do, as in ckpt_save. */
int ckpt_saver_begin(struct ckpt_saver *saver, int64_t iteration, const char *state_text);
/* Sets model.seal_context for the saves that begin from now on. */
void ckpt_saver_set_seal(struct ckpt_saver *saver, void *context);
/* Returns the progress. Cheap, and allowed at any time. */
enum ckpt_progress ckpt_saver_progress(const struct ckpt_saver *saver);
/* Advances the save. `least` is the minimum progress of all ranks, on which they have agreed by other means. It never
 * waits for the disk. *is_saved: the checkpoint exists. */
int ckpt_saver_advance(struct ckpt_saver *saver, enum ckpt_progress least, bool *is_saved);
/* Waits until the save is complete. */
int ckpt_saver_wait(struct ckpt_saver *saver);
/* Returns the seconds from the beginning of the last save until this rank's part was on the disk. */
double ckpt_saver_seconds(const struct ckpt_saver *saver);
