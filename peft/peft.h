/* Parameter-efficient methods on a frozen base: what they add to the parameters, and the hooks that make it work.
 *
 * A stack is one or several adapters that train, or apply, together. It has a parameter table and a store of its own,
 * of the same kind as the model's; so gradient sums, the optimizer and checkpoints treat it as they treat a model. Its
 * rows carry the file names of Hugging Face's PEFT. The model knows of it only the hook table.
 *
 * Order of calls: peft_open (nothing is allocated on the device), model_open with peft_hooks, peft_allocate, the base's
 * values, peft_set_base, then initial values or files. While it trains: peft_begin before the forwards of a global
 * batch, peft_end after its last backward. One thread; the stack outlives the model that has its hooks. */
#ifndef CAMBIUM_PEFT_PEFT_H
#define CAMBIUM_PEFT_PEFT_H

#include "ckpt/ckpt.h"
#include "model/model.h"
#include "peft/config.h"
#include "text/chat.h"

struct peft;
struct peft_bank;

struct peft_options {
    const struct peft_config *adapters;
    int count;
    const struct model_options *model; /* of the base: shape, type, layers of this stage */
    bool trains;
};

int peft_open(const struct peft_options *options, struct rank *rank, struct peft **peft);
void peft_close(struct peft *peft);
const struct hook_table *peft_hooks(const struct peft *peft);
struct param_store *peft_store(struct peft *peft);
/* The store's table with names of tensors that are each adapter's own: "base_model.....ia3_l.ia3". */
const struct param_table *peft_state_table(const struct peft *peft);
/* Rows of each sample that stand before its tokens: virtual tokens, of all adapters together. */
int64_t peft_virtual_tokens(const struct peft *peft);

/* Keys and values that stand before each sample: its first row, virtual or not, is at this position. */
int64_t peft_prefix_tokens(const struct peft *peft);

/* Gives the store its memory. */
int peft_allocate(struct peft *peft);
/* Bytes on the device that peft_allocate takes beside the store. */
size_t peft_device_bytes(const struct peft *peft);
/* The weights of the base, loaded, before peft_initialise: prompts start as rows of them, and DoRA measures
 * them at every peft_begin. */
void peft_set_base(struct peft *peft, const struct param_store *weights);
/* Initial values, keyed by seed, name and element. All tensor ranks together. */
int peft_initialise(struct peft *peft, uint64_t seed);
/* Clears the gradients and computes what hooks use until the weights change again: before a global batch, before a
 * validation, and once where nothing trains. */
int peft_begin(struct peft *peft);
/* The same before a global batch that is trained on: `sample`, the number of its first one, is a key of the dropout
 * that encoders have. */
int peft_begin_batch(struct peft *peft, int64_t sample);
/* Gradients of what peft_begin computed. */
int peft_end(struct peft *peft);
/* ---- a stack's files: export.c ----
 *
 * An adapter alone has a directory; of several each has one in it, named as its method. In it: adapter_config.json,
 * adapter_model.safetensors (of a bottleneck adapter AdapterHub's adapter.safetensors), cambium_adapter.json, where
 * its rows had one chat_template.jinja; and of an encoder (p-tuning, a projected prefix) prompt_encoder.safetensors,
 * from which training goes on. */

/* `values`: of the store's rows; the parts keep pointing to it. Tables of encoders are those that peft_make_tables
 * left. */
int peft_parts(struct peft *peft, const struct ckpt_array *values, struct ckpt_part parts[CKPT_MAX_PARTS], int *count);

/* Before files are written; gradients are cleared. */
int peft_make_tables(struct peft *peft);

struct peft_export {
    const struct ckpt_array *values; /* NULL: the store's weights */
    const struct ckpt_text *texts;
    int text_count;
    const char *directory;
    bool is_shared; /* beside what else the directory, which exists, holds; else it is replaced as a whole */
};
/* Writes all of them, with the ranks of the stack's world together. They take the place of older ones as one
 * generation: a kill at any moment leaves readers the old one or the new one. */
int peft_export(struct peft *peft, const struct peft_export *export);

/* Whether a stack may be written to a directory, and the best one to `best` in it: STATUS_INVALID where there stands
 * another adapter, or one that finetune did not write. As peft_export checks again. */
int peft_check_output(const char *directory, const struct peft_config *configs, int count);

/* The texts of such directories: configurations, and notes for each. */
struct peft_notes;
enum {
    PEFT_MAX_STACK = 8 /* adapters */,
    PEFT_TEXTS = 3 /* of an adapter */,
    PEFT_MAX_TEXTS = PEFT_TEXTS * PEFT_MAX_STACK
};
struct peft_texts {
    struct ckpt_text items[PEFT_MAX_TEXTS];
    char *owned[PEFT_MAX_TEXTS];
    int count;
};
int peft_texts_make(const struct peft_config *configs, int count, const struct model_config *base,
                    const char *base_directory, const struct peft_notes *notes, struct peft_texts *texts);
void peft_texts_free(struct peft_texts *texts);

/* ---- adapters in files: load.c ---- */

/* Adapters of directories: configurations, and tensor files that are open and whose headers are checked. Opening has no
 * other effect, and any thread may do it. */
struct peft_files;

/* A directory is an adapter's; or a stack's, with a directory for each adapter; or one of checkpoints, whose newest
 * counts. `trains`: dropout counts, and encoders; the table that an encoder once made goes on as one. */
int peft_files_open(const char *const *directories, size_t count, bool trains, struct peft_files **files);
/* The directories of single adapters that peft_files_open would open, in order; file_list_free ends them. */
int peft_find(const char *const *directories, size_t count, char ***found, size_t *found_count);

/* The files of one adapter as a block of bytes: its configuration, its tensors, and where it has them its notes and its
 * chat template. What is digested, sent and used is the same bytes, whatever becomes of the files. */
struct peft_bytes {
    char *directory; /* the name in messages */
    void *data;
    size_t length;
};
enum { PEFT_SHA256_BYTES = 65 };
/* The place of an adapter's directory: anywhere, or the directory `path` below `root`, and then no link is followed
 * from the root to a file, and nothing above the root (openat2): STATUS_INVALID where that would be. */
struct peft_place {
    const char *root; /* NULL: `path` is any */
    const char *path;
};
/* The limits of an adapter's files, which are checked before they are read whole: of the tensors' file the header
 * alone.
 */
struct peft_limits {
    size_t bytes;                 /* of all files together */
    const struct peft_bank *bank; /* that the adapter is for: peft_bank_check; NULL: any */
};
/* Reads the directory of one adapter. STATUS_INVALID also where another changes the files meanwhile, more often than
 * they are read again. Directory and data are from malloc. */
int peft_bytes_read_at(const struct peft_place *place, const struct peft_limits *limits, struct peft_bytes *bytes);
/* The same of any directory and any adapter, of at most `limit` bytes. */
int peft_bytes_read(const char *directory, size_t limit, struct peft_bytes *bytes);
/* Checks that peft_bytes_read_at would find what it expects: sizes, configuration, header, names and shapes. Values are
 * not read. Any thread. */
int peft_check_directory(const struct peft_place *place, const struct peft_limits *limits);
/* A number of the directory's files as they are on the disk (device, inode, size and times of each): it changes when
 * one of them does. */
int peft_stamp_directory(const struct peft_place *place, uint64_t *stamp);
void peft_bytes_free(struct peft_bytes *bytes);
/* SHA-256 of the block, in hexadecimal digits: of the name (56 bytes, zeros behind it), the length (8 bytes,
 * little-endian) and the contents of adapter_config.json, the tensors' file, cambium_adapter.json and
 * chat_template.jinja, as far as they are there. */
int peft_bytes_digest(const struct peft_bytes *bytes, char digest[PEFT_SHA256_BYTES]);
/* The same as peft_files_open, of one adapter: the text of its configuration, and its file of tensors (its name, and
 * its descriptor, which stays the caller's), of which the header alone is read. */
int peft_files_open_header(const char *directory, const struct strbuf *config, const char *name, int descriptor,
                           struct peft_files **files);
/* The same as peft_files_open, of blocks [count], which outlive the files. Whatever the bytes are, they are checked as
 * files are. */
int peft_files_open_bytes(const struct peft_bytes *bytes, size_t count, struct peft_files **files);

void peft_files_close(struct peft_files *files);
int peft_files_count(const struct peft_files *files);
/* [count] They live as long as the files. */
const struct peft_config *peft_files_configs(const struct peft_files *files);
const char *peft_files_directory(const struct peft_files *files, int index);
const struct ckpt_tensors *peft_files_tensors(const struct peft_files *files, int index);
/* Checks that an adapter's tensors have the shapes that its configuration says, and alike ones in all layers: as far as
 * can be known without the base. STATUS_INVALID with the first that has not. */
int peft_check_shapes(const struct peft_files *files, int index);
/* The parameters of a stack that was opened with these configurations and has its memory. Everything is checked before
 * anything is set, within one adapter. */
int peft_load(struct peft *peft, const struct peft_files *files);
/* The same in pieces, of a stack of one, which is adapter `index` of the files: everything is checked, then each row of
 * its table is read. */
int peft_check_values(struct peft *peft, const struct peft_files *files, int index);
int peft_load_row(struct peft *peft, const struct peft_files *files, int index, int row);
/* The same into `values`, of the store's rows. */
int peft_read(struct peft *peft, const struct peft_files *files, const struct ckpt_array *values);

/* ---- beside PEFT's files: notes.c ---- */

enum { PEFT_DIGEST_BYTES = 17 };
struct peft_notes {
    char base_digest[PEFT_DIGEST_BYTES]; /* "": not recorded */
    char chat_template[24];              /* a name; "": not recorded */
    const char *jinja;                   /* for writing: the template as chat_template.jinja; NULL: none */
};
int peft_base_digest(const char *model, char digest[PEFT_DIGEST_BYTES]);
/* The text of cambium_adapter.json, which stands in the directory of an adapter; the caller frees it. */
int peft_write_notes(const struct peft_notes *notes, char **text);
/* Empty where the directory has none. */
int peft_read_notes(const char *directory, struct peft_notes *notes);
/* Of an adapter that is open. */
int peft_files_notes(const struct peft_files *files, int index, struct peft_notes *notes);
/* The chat template that an adapter's rows had: the notes' name, or chat_template.jinja; NULL where nothing is
 * recorded. STATUS_UNSUPPORTED where the name is none of ours. The bytes have been opened. */
int peft_chat_template(const char *directory, struct chat_template **template);
int peft_bytes_chat_template(const struct peft_bytes *bytes, struct chat_template **template);
/* Warns of adapters that were trained on another base. */
int peft_files_check_base(const struct peft_files *files, const char *model);

/* ---- the base and its adapters as one model: merge.c ---- */

struct peft_merge {
    const char *model; /* a model directory, or one of checkpoints */
    const struct peft_files *files;
    const char *output; /* a model directory; the base's stays as it is */
    const char *device; /* backend; NULL: the first that the machine has */
};
/* LoRA with its variants, and IA3; in the type of the base's files, computed in fp32. */
int peft_merge(const struct peft_merge *merge);

#endif
