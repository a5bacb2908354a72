/* Parameter-efficient methods on a frozen base: the parameters that they add, and the hooks that apply them.
 *
 * A stack is one or several adapters that train or apply together. It has a parameter table and a store, like a model,
 * so gradient sums, the optimizer and checkpoints treat it like a model. Its rows carry the file names of Hugging
 * Face's PEFT. The model sees only its hook table.
 *
 * Order of calls: peft_open (nothing is allocated on the device), a runner with peft_hooks, peft_allocate, the base's
 * values, peft_set_base, then initial values or files. During training: peft_begin before the forwards of a global
 * batch, peft_end after its last backward. One thread. The stack outlives the model that has its hooks.
 *
 * Functions that return a status may return STATUS_MEMORY and the device's errors. Comments name the others. */
#pragma once

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
    const char *directory;             /* of the base, for errors about adapters of other bases; NULL: unknown */
    bool trains;
    bool takes_tables; /* while it trains: tables that an encoder made take its place, as in the files of an adapter */
};

/* Opens a stack: its table, store and hooks. STATUS_USAGE for configurations that do not fit the base or each other.
 * peft_close closes it; NULL is allowed. */
int peft_open(const struct peft_options *options, struct rank *rank, struct peft **peft);
void peft_close(struct peft *peft);
/* Returns the learning rate for a stack when none is given: the lowest of its methods' rates, which are those of PEFT's
 * examples or of the methods' papers. Sets *type to the method that has it. */
double peft_default_lr(const struct peft_config *configs, int count, int *type);
/* Return the hooks to open a runner with, and the store of the stack's parameters. */
const struct hook_table *peft_hooks(const struct peft *peft);
struct param_store *peft_store(struct peft *peft);
/* Returns the store's table with tensor names that differ between the adapters: "base_model.....ia3_l.ia3". */
const struct param_table *peft_state_table(const struct peft *peft);
/* Returns the virtual tokens of all adapters: rows before the tokens of each sample. */
int64_t peft_virtual_tokens(const struct peft *peft);

/* Returns the number of keys and values before each sample. It is the position of the sample's first row, virtual or
 * not. */
int64_t peft_prefix_tokens(const struct peft *peft);

/* Gives the store its memory. */
int peft_allocate(struct peft *peft);
/* Returns the bytes on the device that peft_allocate takes in addition to the store. */
size_t peft_device_bytes(const struct peft *peft);
/* Sets the loaded weights of the base, before peft_initialise. Prompts start as rows of them, and DoRA measures them at
 * every peft_begin. */
void peft_set_base(struct peft *peft, const struct param_store *weights);
/* Sets initial values, keyed by seed, name and element. All tensor ranks call it together. */
int peft_initialise(struct peft *peft, uint64_t seed);
/* Clears the gradients, and computes what the hooks use until the weights change again. Call it before each global
 * batch and each validation, and once when nothing trains. */
int peft_begin(struct peft *peft);
/* The same before a global batch that is trained on. `sample`, the number of its first sample, is a key of the
 * encoders' dropout. */
int peft_begin_batch(struct peft *peft, int64_t sample);
/* Computes the gradients of the parameters that peft_begin read. */
int peft_end(struct peft *peft);

/* ---- a stack's files: export.c ----
 *
 * An adapter alone has a directory. Each adapter of several has a directory within it, named after its method. The
 * files are adapter_config.json, adapter_model.safetensors (AdapterHub's adapter.safetensors for a bottleneck adapter)
 * and cambium_adapter.json. chat_template.jinja is added when its rows had one. An encoder (p-tuning, a projected
 * prefix) adds prompt_encoder.safetensors, from which training resumes. */

/* Describes the parts of a stack's files. `values`: of the store's rows; the parts keep pointing to them. Tables of
 * encoders are those of the last peft_make_tables. */
int peft_parts(struct peft *peft, const struct ckpt_array *values, struct ckpt_part parts[CKPT_MAX_PARTS], int *count);

/* Computes the tables of encoders before files are written; clears the gradients. */
int peft_make_tables(struct peft *peft);

struct peft_export {
    const struct ckpt_array *values; /* NULL: the store's weights */
    const struct ckpt_text *texts;
    int text_count;
    const char *directory;
    bool is_shared; /* the directory exists and keeps its other files; else it is replaced as a whole */
    int (*seal)(void *context, const char *directory); /* see struct ckpt_model */
    void *seal_context;
};
/* The hooks of only one adapter of the stack. The caller frees the table. STATUS_MEMORY. */
int peft_hooks_of(const struct peft *peft, int adapter, struct hook_table *hooks);
/* Writes all files, together with the ranks of the stack's world. They replace older files as one generation: after a
 * kill at any moment, readers find the old one or the new one. STATUS_IO, STATUS_INVALID, STATUS_PEER. */
int peft_export(struct peft *peft, const struct peft_export *export);

/* Checks that a stack may be written to a directory, and the best one to `best` in it. STATUS_INVALID when it holds
 * another adapter, or one that finetune did not write; STATUS_IO. peft_export checks again. */
int peft_check_output(const char *directory, const struct peft_config *configs, int count);

/* The texts of such directories: configurations, and notes for each. */
struct peft_notes;
enum {
    PEFT_MAX_STACK = 8 /* adapters */,
    PEFT_TEXTS = 3 /* of one adapter */,
    PEFT_MAX_TEXTS = PEFT_TEXTS * PEFT_MAX_STACK
};
struct peft_texts {
    struct ckpt_text items[PEFT_MAX_TEXTS];
    char *owned[PEFT_MAX_TEXTS];
    int count;
};
/* STATUS_MEMORY. peft_texts_free frees the texts. */
int peft_texts_make(const struct peft_config *configs, int count, const struct model_config *base,
                    const char *base_directory, const struct peft_notes *notes, struct peft_texts *texts);
void peft_texts_free(struct peft_texts *texts);

/* ---- adapters in files: load.c ---- */

/* Open adapters of directories: configurations, and tensor files with checked headers. Opening has no other effect, and
 * any thread may do it. Errors are STATUS_NOT_FOUND, STATUS_IO, STATUS_INVALID, STATUS_UNSUPPORTED and
 * STATUS_MEMORY. */
struct peft_files;

/* Opens directories. Each is an adapter's, a stack's with a directory for each adapter, or one of checkpoints, of which
 * the newest counts. `trains`: dropout applies, and an encoder is used if the directory has one; else the table that an
 * encoder made trains as a table. */
int peft_files_open(const char *const *directories, size_t count, bool trains, struct peft_files **files);
/* Finds the directories of single adapters that peft_files_open would open, in order; file_list_free frees them. */
int peft_find(const char *const *directories, size_t count, char ***found, size_t *found_count);

/* The files of one adapter as a block of bytes: its configuration, its tensors, and its notes and chat template if it
 * has them. The same bytes are digested, sent and used, whatever happens to the files. */
struct peft_bytes {
    char *directory; /* for messages */
    void *data;
    size_t length;
    bool fits_base;   /* peft_files_check_base has passed its files */
    bool is_compared; /* receipt_compare has compared its files with its receipt: */
    char *difference; /* the error; NULL: they agree */
};
enum { PEFT_SHA256_BYTES = 65 };
/* The place of an adapter's directory: anywhere, or the directory `path` below `root`. With a root, no link from the
 * root to a file is followed, and nothing outside the root is opened (openat2); a path that would need either is
 * STATUS_INVALID. */
struct peft_place {
    const char *root; /* NULL: `path` is unrestricted */
    const char *path;
};
/* Limits that are checked before the files are read whole. Only the header of the tensors' file is read for them. */
struct peft_limits {
    size_t bytes;                 /* of all files together */
    const struct peft_bank *bank; /* the adapter must fit it (peft_bank_check); NULL: no check */
};
/* Reads the directory of one adapter, with the errors of peft_files_open and peft_bank_check. STATUS_INVALID too when
 * another program keeps changing the files during repeated reads. peft_bytes_free frees the block. */
int peft_bytes_read_at(const struct peft_place *place, const struct peft_limits *limits, struct peft_bytes *bytes);
/* The same for any directory and any adapter, of at most `limit` bytes. */
int peft_bytes_read(const char *directory, size_t limit, struct peft_bytes *bytes);
/* Checks what peft_bytes_read_at checks before it reads the whole files: sizes, configuration, header, names and
 * shapes. Values are not read. Any thread. */
int peft_check_directory(const struct peft_place *place, const struct peft_limits *limits);
/* Computes a number from the device, inode, size and times of the directory's files. It changes when a file does.
 * STATUS_IO, STATUS_INVALID. */
int peft_stamp_directory(const struct peft_place *place, uint64_t *stamp);
/* A file of an adapter in memory. */
struct peft_member {
    const char *name; /* as in a directory */
    const void *data;
    size_t length;
};
/* Makes the block of an adapter whose files are in memory; those that a block does not hold are left out. `directory`
 * is its name in messages. STATUS_INVALID without a configuration or tensors; STATUS_MEMORY. */
int peft_bytes_make(const char *directory, const struct peft_member *files, int count, struct peft_bytes *bytes);
/* Gets file number `index` of a checked block, in its order. Returns false past the last. */
bool peft_bytes_file(const struct peft_bytes *bytes, int index, struct peft_member *file);
/* Zeroed bytes are allowed. */
void peft_bytes_free(struct peft_bytes *bytes);
/* Computes the SHA-256 of the block, in hexadecimal digits. For each file it covers the name (56 bytes, padded with
 * zeros), the length (8 bytes, little-endian) and the contents. The files, if present, are adapter_config.json, the
 * tensors' file, cambium_adapter.json, chat_template.jinja and tokenizer_config.json. */
int peft_bytes_digest(const struct peft_bytes *bytes, char digest[PEFT_SHA256_BYTES]);
/* Opens one adapter as peft_files_open does, from the text of its configuration and from its file of tensors. `name` is
 * that file's name; `descriptor` stays the caller's. Only the header is read. */
int peft_files_open_header(const char *directory, const struct strbuf *config, const char *name, int descriptor,
                           struct peft_files **files);
/* Opens blocks [count] as peft_files_open does; they outlive the files. Arbitrary bytes are allowed: they are checked
 * as files are. */
int peft_files_open_bytes(const struct peft_bytes *bytes, size_t count, struct peft_files **files);

/* NULL is allowed. */
void peft_files_close(struct peft_files *files);
int peft_files_count(const struct peft_files *files);
/* [count]; valid as long as the files. */
const struct peft_config *peft_files_configs(const struct peft_files *files);
const char *peft_files_directory(const struct peft_files *files, int index);
const struct ckpt_tensors *peft_files_tensors(const struct peft_files *files, int index);
/* Checks, as far as possible without the base, that an adapter's tensors have the shapes of its configuration and the
 * same shapes in all layers. STATUS_INVALID names the first that is not. */
int peft_check_shapes(const struct peft_files *files, int index);
/* Loads the parameters of a stack that was opened with these configurations and has its memory. Within one adapter,
 * everything is checked before any value is set. STATUS_INVALID, STATUS_IO. */
int peft_load(struct peft *peft, const struct peft_files *files);
/* The same in pieces, for a stack of one that is adapter `index` of the files: first everything is checked, then each
 * row of its table is read. */
int peft_check_values(struct peft *peft, const struct peft_files *files, int index);
int peft_load_row(struct peft *peft, const struct peft_files *files, int index, int row);
/* The same as peft_load, into `values`, which are laid out as the store's rows. */
int peft_read(struct peft *peft, const struct peft_files *files, const struct ckpt_array *values);

/* ---- notes, in a file next to PEFT's: notes.c ---- */

enum { PEFT_DIGEST_BYTES = 17 };
/* How a base's weights are held in few bits: by its files' method, or by the word of --load-in. */
struct peft_quantization {
    char method[24];    /* "": the base is plain */
    int bits;           /* 0: linears differ */
    int64_t group_size; /* -1: whole rows; 0: linears differ */
};
struct peft_notes {
    char base_digest[PEFT_DIGEST_BYTES]; /* "": not recorded */
    struct peft_quantization quantization;
    char chat_template[24]; /* a name; "": not recorded */
    const char *jinja;      /* for writing: the template as chat_template.jinja; NULL: none */
};
/* Computes the digest of a base's files. STATUS_NOT_FOUND, STATUS_IO. */
int peft_base_digest(const char *model, char digest[PEFT_DIGEST_BYTES]);
/* Notes a base: its digest, and its quantisation with an index into load_in_names. The errors of pretrained_open and
 * pretrained_quantization. */
int peft_note_base(const char *model, int load_in, struct peft_notes *notes);
/* Returns the quantisation as notes have it. */
struct ckpt_quantization;
struct peft_quantization peft_quantization_of(const struct ckpt_quantization *quantization);
bool peft_quantization_equals(const struct peft_quantization *a, const struct peft_quantization *b);
/* Writes it for people: "gptq, 4 bits, groups of 128", or "plain". */
enum { PEFT_QUANTIZATION_BYTES = 80 };
void peft_quantization_text(const struct peft_quantization *quantization, char text[PEFT_QUANTIZATION_BYTES]);
/* Makes the text of cambium_adapter.json, a file in an adapter's directory; the caller frees it. STATUS_MEMORY. */
int peft_write_notes(const struct peft_notes *notes, char **text);
/* Reads the notes of a directory; empty when it has none. STATUS_INVALID, STATUS_IO. */
int peft_read_notes(const char *directory, struct peft_notes *notes);
/* The same for an open adapter, and for the block of one. */
int peft_files_notes(const struct peft_files *files, int index, struct peft_notes *notes);
int peft_bytes_notes(const struct peft_bytes *bytes, struct peft_notes *notes);
/* Opens the chat template of an adapter's rows: the one named in the notes, or chat_template.jinja, or that of
 * tokenizer_config.json, where save_pretrained wrote it until 2025. NULL when nothing is recorded. STATUS_UNSUPPORTED
 * for an unknown name, and the errors of chat_template_open. The bytes must have been opened before. */
int peft_chat_template(const char *directory, struct chat_template **template);
int peft_bytes_chat_template(const struct peft_bytes *bytes, struct chat_template **template);

/* ---- adapters and their bases: base.c ---- */

/* Warns about adapters that were trained on another base. Embeddings and heads that PEFT has saved beside an adapter
 * must equal the base's: STATUS_UNSUPPORTED. STATUS_IO, STATUS_INVALID, STATUS_MEMORY. */
int peft_files_check_base(const struct peft_files *files, const char *model, int load_in);
/* Returns `status`, the result of loading adapters on the base in `model` (NULL: unknown). Where one does not fit
 * because its configuration names another base, the error text becomes a line with both bases and their types. */
int peft_explain_base(int status, const struct peft_files *files, const char *model);

/* ---- the base and its adapters as one model: merge.c ---- */

struct peft_merge {
    const char *model; /* a model directory, or a directory of checkpoints */
    const struct peft_files *files;
    const char *output; /* a model directory; the base's directory is not changed */
    const char *device; /* backend; NULL: the first backend that the machine has */
    bool dequantizes;   /* the base is quantised, and the result plain */
    enum dtype dtype;   /* of the result if it does: DTYPE_BF16, DTYPE_F16 or DTYPE_F32 */
    /* Proves the adapters, once they fit the base and before anything is computed. NULL: nothing is proved. */
    int (*prove)(const struct peft_merge *merge, const void *context);
    const void *context;
};
/* Merges LoRA with its variants, and IA3, into a base. The result has the type of the base's files, or `dtype`, and is
 * computed in fp32. STATUS_USAGE for a quantised base without `dequantizes`, and for a plain one with it;
 * STATUS_UNSUPPORTED for other methods, STATUS_INVALID, STATUS_IO; errors of `prove`. */
int peft_merge(const struct peft_merge *merge);
