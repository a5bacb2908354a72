/* Model directories and training checkpoints.
 *
 * A model directory is Hugging Face's: config.json, tokenizer files, model*.safetensors. A training checkpoint
 * SAVE/iter_0000100/ is a model directory with optimizer.safetensors and trainer_state.json beside. Nothing in either
 * knows a layout of ranks: files hold global tensors under their Hugging Face names, in Hugging Face's orientation, and
 * the slices of the parameter table say which rectangle of a parameter stands where. The optimizer's tensors have the
 * same names and shapes after a prefix ("exp_avg.").
 *
 * In place of a model a directory may hold an adapter (adapter_config.json, adapter_model.safetensors), or several,
 * each in a directory of its own.
 *
 * A directory appears whole, by a rename, or not at all; what a killed writer left is removed by the next one. Paths
 * are plain directories; every error names the file. Calls may be made from any thread, one writer (or one group of
 * ranks that write together) a directory at a time. */
#ifndef CAMBIUM_CKPT_CKPT_H
#define CAMBIUM_CKPT_CKPT_H

#include "base/base.h"
#include "ckpt/safetensors.h"
#include "comm/comm.h"
#include "tensor/tensor.h"
#include "text/text.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- values of a table, as rectangles in and out of memory ---- */

/* Rows [row, row + rows) and columns [column, column + columns) of a parameter, in its own [out, in] orientation.
 * Values of a block are dense and row-major. At most CKPT_BLOCK_ELEMENTS of them. */
struct ckpt_block {
    int param; /* row of the table */
    int64_t row, rows, column, columns;
};
enum { CKPT_BLOCK_ELEMENTS = 1 << 20, CKPT_MAX_RECTS = 3 * PARAM_MAX_SLICES };

struct ckpt_tensors; /* the open tensor files of a directory */

/* One number for each element of a table's parameters: the weights, or a moment of the optimizer. */
struct ckpt_array {
    const char *prefix;  /* before each tensor's name in the files: "" for weights, "exp_avg." */
    enum dtype dtype;    /* DTYPE_F32 or DTYPE_BF16: of the values in the calls below, and of files that are written */
    bool only_trainable; /* frozen parameters have no such numbers */
    /* For writing: this rank has the same numbers as the rank `copy_of` of the world, and is not their owner. */
    bool is_copy;
    int copy_of;
    int threads; /* that may call get() at once; 0: one */
    /* The rectangles of a parameter that this rank reads, or has to write, each in one slice: their number, at most
     * CKPT_MAX_RECTS. NULL: all of it. */
    int (*rects)(void *context, int param, struct ckpt_block *rects);
    int (*get)(void *context, const struct ckpt_block *block, void *values);       /* memory to file; for writing */
    int (*put)(void *context, const struct ckpt_block *block, const void *values); /* file to memory; for reading */
    /* For reading: memory of the host that is the block's values, one after another, which are read right into it;
     * NULL: there is none, and put() brings them there. The function itself may be NULL. */
    void *(*find_place)(void *context, const struct ckpt_block *block);
    void *context;
    /* For reading: a value that is not finite in the array's type is an error that names its tensor. */
    bool must_be_finite;
    /* For reading: the name that files have for a tensor that they do not have under its own; false where they have
     * none. NULL: there are no others. */
    bool (*find_name)(const void *names, const struct ckpt_tensors *tensors, const char *name,
                      char out[PARAM_NAME_BYTES]);
    const void *names;
};

/* A flat array in the order of a map, on a device: a store's weights, or an optimizer's moments. A rank may hold ranges
 * of it alone. */
struct ckpt_flat {
    const struct param_map *map;
    struct stream *stream;
    const struct param_range *ranges; /* [count] of `dtype`, ascending; a parameter lies in one of them at most */
    int count;
    enum dtype dtype;
    /* For writing, where ranks hold copies: who does not own them. */
    bool is_copy; /* the rank `copy_of`, of the same data group, has the same elements */
    int copy_of;
    bool leaves_copies; /* parameters of which every tensor rank has a copy are the first one's */
    const bool *leaves; /* [table count] those that another stage writes (a tied embedding); NULL: none */
    int threads;        /* that may read the memory at once, where the host can; 0: one */
};
/* The weights of an opened store, as its storage lists them. */
struct ckpt_flat ckpt_flat_weights(const struct param_store *store, struct stream *stream);
/* The array over `flat`, which must stay alive and in place. Each call waits for the stream. */
struct ckpt_array ckpt_flat_array(struct ckpt_flat *flat, const char *prefix, bool only_trainable);

/* ---- reading ---- */

/* Which directory `path` means: a model directory itself, or the newest checkpoint in it. STATUS_NOT_FOUND when it is
 * neither. */
int ckpt_resolve_model(const char *path, char *out, size_t bytes);
/* The same for resuming: a training checkpoint itself, or the newest one in `path`. STATUS_NOT_FOUND when `path` does
 * not exist or holds no checkpoint yet; STATUS_INVALID when it is a model directory without training state. */
int ckpt_resolve_checkpoint(const char *path, char *out, size_t bytes);
/* The newest whole iter_* directory of `root`, by number; `iteration` may be NULL. */
int ckpt_latest(const char *root, char *out, size_t bytes, int64_t *iteration);

/* The numbers of the iter_* directories of `root` above `iteration`, in order; *iterations is the caller's to free. A
 * root that does not exist has none. */
int ckpt_list_above(const char *root, int64_t iteration, int64_t **iterations, size_t *count);

enum { CKPT_ADAPTER_CONFIG_BYTES = 1 << 20 }; /* of an adapter_config.json, at most */
/* The text of config.json, of generation_config.json, of adapter_config.json, or of trainer_state.json. */
int ckpt_read_config(const char *directory, struct strbuf *text);
int ckpt_read_generation_config(const char *directory, struct strbuf *text);
int ckpt_read_adapter_config(const char *directory, struct strbuf *text);
int ckpt_read_state(const char *directory, struct strbuf *text);

/* Whether the files of a checkpoint, and the values of its trainer_state.json, are those that were saved together.
 * Checkpoints without digests, which older versions wrote, pass. STATUS_INVALID, with the file. */
int ckpt_check_state(const char *directory);
/* Whether the directory's name, where it is that of a checkpoint, has this number. */
int ckpt_check_iteration(const char *directory, int64_t iteration);

/* model.safetensors, or the shards of model.safetensors.index.json; headers are checked, no data is read. Names count
 * with or without the model's prefix. Pickles are refused by name. */
int ckpt_open_model(const char *directory, struct ckpt_tensors **tensors);
/* adapter_model.safetensors, or AdapterHub's adapter.safetensors. Tensors that nobody asked for are an error in an
 * adapter. */
int ckpt_open_adapter(const char *directory, struct ckpt_tensors **tensors);
/* The same of the file's bytes, which outlive the tensors; errors call it DIRECTORY/NAME. */
int ckpt_open_adapter_bytes(const char *directory, const char *name, const void *bytes, size_t length,
                            struct ckpt_tensors **tensors);
/* The same of a file that is open, whose descriptor stays the caller's. */
int ckpt_open_adapter_descriptor(const char *directory, const char *name, int descriptor,
                                 struct ckpt_tensors **tensors);
/* prompt_encoder.safetensors: what training has in the place of an adapter's table, and goes on from. */
int ckpt_open_encoder(const char *directory, struct ckpt_tensors **tensors);
bool ckpt_has_encoder(const char *directory);
/* optimizer.safetensors, or its shards in the same way. */
int ckpt_open_optimizer(const char *directory, struct ckpt_tensors **tensors);
void ckpt_close(struct ckpt_tensors *tensors);
/* Reads every value of every tensor of floating-point numbers: STATUS_INVALID with the first tensor that has one that
 * is not finite. */
int ckpt_check_finite(const struct ckpt_tensors *tensors);
/* The tensors, sorted by name; NULL where there is none of exactly this name. They live as long as the files. */
const struct safetensor *ckpt_tensor_at(const struct ckpt_tensors *tensors, size_t index);
const struct safetensor *ckpt_find_tensor(const struct ckpt_tensors *tensors, const char *name);
/* Whether there is a tensor of exactly this name. */
bool ckpt_has_tensor(const struct ckpt_tensors *tensors, const char *name);
/* Tensors, and the elements of all of them. */
size_t ckpt_count(const struct ckpt_tensors *tensors);
int64_t ckpt_elements(const struct ckpt_tensors *tensors);
/* A digest of names, types, shapes, and values at 16 places of each tensor: training changes them, and they are cheap
 * to read. */
int ckpt_digest(const struct ckpt_tensors *tensors, uint64_t *digest);
/* What ranks that read the same model, adapter or checkpoint have in common. */
int ckpt_model_facts(const char *directory, struct facts *facts);
int ckpt_adapter_facts(const char *directory, struct facts *facts);
int ckpt_checkpoint_facts(const char *directory, struct facts *facts);
/* The type of the largest floating-point tensor. */
enum dtype ckpt_dtype(const struct ckpt_tensors *tensors);
/* Whether any tensor's name begins so: "master." is there only after a bf16 run. */
bool ckpt_has_prefix(const struct ckpt_tensors *tensors, const char *prefix);
/* Checks that every tensor of the arrays is there with the right type and shape (one error names what is not), and then
 * delivers everything through `put`. Files that contradict the table are refused, with the tensor: a model's parameter
 * that has no row (struct param_files), a tied model's head that differs from its embedding, a bias of a row that is
 * zero. Buffers and an equal head are passed over in silence. Other tensors that nobody asked for are one warning, and
 * in an adapter an error. */
int ckpt_read(const struct ckpt_tensors *tensors, const struct param_table *table, const struct ckpt_array *arrays,
              int array_count);
/* One rectangle of one parameter, at most CKPT_BLOCK_ELEMENTS, as array->dtype: what a rank of a layout reads. The
 * tensors must have passed ckpt_check. */
int ckpt_check(const struct ckpt_tensors *tensors, const struct param_table *table, const struct ckpt_array *arrays,
               int array_count);
int ckpt_read_block(const struct ckpt_tensors *tensors, const struct param_table *table, const struct ckpt_array *array,
                    const struct ckpt_block *block, void *values);
/* All that the array has of one parameter, through `put`; checked in the same way. */
int ckpt_read_param(const struct ckpt_tensors *tensors, const struct param_table *table, const struct ckpt_array *array,
                    int param);

/* ---- writing ---- */

/* A file of tensors, NAME.safetensors, perhaps in a directory of its own: "lora/adapter_model". Never in shards. */
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

/* What a model directory is made of. */
struct ckpt_model {
    const struct param_table *table; /* also the optimizer's */
    const struct ckpt_array *weights;
    const char *config_text;       /* config.json; NULL: none */
    const struct ckpt_part *parts; /* of adapters: their files, in place of those of the weights */
    int part_count;                /* 0: the weights, at most CKPT_MAX_PARTS */
    const struct ckpt_text *texts; /* files beside */
    int text_count;
    const struct tokenizer_files *tokenizer; /* what goes beside; NULL: nothing */
    bool is_replaced;                        /* whatever stands in the directory is the caller's own */
    int64_t max_shard_bytes;                 /* of a file, its largest tensor permitting; 0: transformers' 50 GB */
    int threads;                             /* to copy with; 0: one */
    struct comm *world;                      /* the ranks that write together; NULL: this one alone */
};

/* Writes a model directory. A directory of a model alone is replaced; any other that is not empty, and one in which any
 * other file stands, is refused, but with is_replaced.
 *
 * Several ranks make the same call with the same path, table and kinds of arrays, and see one file system. Each element
 * of each tensor has one owner, by `rects` of the arrays; anything else is refused with the tensor's name before a file
 * is made. The texts, the tokenizer and the pruning of old checkpoints are the first rank's. All return when the
 * directory is whole. When one fails, all do, and nothing stays: it with its own status, the others with STATUS_PEER
 * and its number and text. Files have the same bytes whatever the number of ranks. */
int ckpt_write_model(const char *directory, const struct ckpt_model *model);
/* Bytes that it takes at one of so many ranks; of the arrays only prefix, type and only_trainable count. */
int ckpt_model_bytes(const struct ckpt_model *model, int ranks, int rank, size_t *bytes);

struct ckpt_save {
    const char *root; /* SAVE; made when it does not exist */
    int64_t iteration;
    struct ckpt_model model;
    const struct ckpt_array *optimizer;
    int optimizer_count;
    const char *state_text; /* trainer_state.json: a JSON object of the trainer's, to which digests of the files come */
    int64_t keep_last;      /* newest of our checkpoints to keep, 0: all; the one just saved always stays */
    int64_t own_until;      /* what stands in `root` beforehand is ours up to this iteration */
};

/* Writes root/iter_%07d with the ranks of save->model.world, as above, replacing one of ours of that iteration. When it
 * fails, nothing of it stays and the other checkpoints are untouched. Checkpoints of others are neither replaced nor
 * pruned. One that cannot be pruned is a warning: the new one is already whole. */
int ckpt_save(const struct ckpt_save *save);

/* ---- saving again and again, also while the memory goes on to change ---- */

/* How far a save is at one rank; what all ranks have come to is the least of theirs. */
enum ckpt_progress {
    CKPT_FAILED,
    CKPT_WRITING,
    CKPT_WRITTEN,   /* this rank's part is on the disk */
    CKPT_PUBLISHED, /* the checkpoint is there */
    CKPT_IDLE,      /* there is no save */
};

struct ckpt_saver;

/* Prepares saves of the same arrays into the same root: the calls here are made by all ranks together, but for
 * _progress. What `save` points to stays alive and in place until the close; its iteration and state are given later.
 * `is_background`: takes the memory for a copy of what this rank writes, which is 1/ranks of the files. */
int ckpt_saver_open(const struct ckpt_save *save, bool is_background, struct ckpt_saver **saver);
/* Bytes that it takes at a rank; of the arrays only prefix, type and only_trainable count. */
int ckpt_saver_bytes(const struct ckpt_save *save, bool is_background, int ranks, int rank, size_t *bytes);
/* Before the first save of a run that goes on: prunes what it left when it ended between a save and its pruning. */
void ckpt_saver_prune(const struct ckpt_saver *saver);
/* Ends a save that is under way: nothing of it stays. */
void ckpt_saver_close(struct ckpt_saver *saver);
/* Begins a save (after the one before it). When it returns, the arrays may change if the saver is a background one: a
 * thread writes the copy and knows nothing of the other ranks. A failure is one of all ranks, as with ckpt_save. */
int ckpt_saver_begin(struct ckpt_saver *saver, int64_t iteration, const char *state_text);
/* Costs nothing; any time. */
enum ckpt_progress ckpt_saver_progress(const struct ckpt_saver *saver);
/* Takes the save on: `least` is the least progress of all ranks, which they have agreed on in a way of their own. Waits
 * for no disk. *is_saved: the checkpoint is there. */
int ckpt_saver_advance(struct ckpt_saver *saver, enum ckpt_progress least, bool *is_saved);
/* Until the save is through. */
int ckpt_saver_wait(struct ckpt_saver *saver);
/* Seconds from the beginning of the last save until this rank's part was on the disk. */
double ckpt_saver_seconds(const struct ckpt_saver *saver);

#endif
