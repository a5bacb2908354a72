/* Tokenized text on disk, and the samples that a GPT is trained on.
 *
 * An *indexed dataset* is Megatron's pair PREFIX.bin (tokens) and PREFIX.idx (the place of each sequence). *GPT
 * samples* cut its shuffled sequences, end to end, into pieces of seq_length tokens; their labels are the tokens moved
 * by one. The lengths, the split, the seed and the number of requested samples decide which piece is sample k. The
 * choice equals Megatron-LM's (megatron/core/datasets/) element by element, and does not depend on the layout of the
 * ranks.
 *
 * Everything read from a file is checked before it is used. Errors name the file, the field and the byte. An open
 * dataset is read only, so any number of threads may read samples at once; a read allocates nothing. */
#pragma once

#include "base/base.h"
#include "comm/comm.h"
#include "config/run.h"

/* ---- indexed dataset ---- */

/* How PREFIX.bin stores a token: the code of the index file (megatron/core/datasets/indexed_dataset.py). */
enum token_type { TOKEN_U8 = 1, TOKEN_I8 = 2, TOKEN_I16 = 3, TOKEN_I32 = 4, TOKEN_I64 = 5, TOKEN_U16 = 8 };

struct indexed_dataset {
    char *prefix;
    int descriptor;    /* of PREFIX.bin, read by pread: a file that is cut short during the run causes an error, not a
                          signal */
    int type;          /* enum token_type */
    int64_t sequences; /* N; the index maps call them documents */
    int64_t documents; /* a document holds 0 or more sequences */
    int64_t tokens;
    int64_t *starts;      /* [N+1] index of the first token of each sequence */
    uint64_t fingerprint; /* of the lengths: index maps made for these lengths fit no other dataset */
};

/* Opens PREFIX.bin and PREFIX.idx and checks every field. STATUS_NOT_FOUND, STATUS_IO, STATUS_INVALID,
 * STATUS_UNSUPPORTED (token types that hold no ids). */
int indexed_dataset_open(const char *prefix, struct indexed_dataset **dataset);
void indexed_dataset_close(struct indexed_dataset *dataset);
static inline int64_t indexed_dataset_length(const struct indexed_dataset *dataset, int64_t sequence) {
    return dataset->starts[sequence + 1] - dataset->starts[sequence];
}
/* Reads tokens [offset, offset + count) of a sequence. A token outside 0 .. vocab_size-1 is STATUS_INVALID, with its
 * place. With vocab_size 0 every id is accepted that is not negative and fits 31 bits. STATUS_IO. */
int indexed_dataset_read(const struct indexed_dataset *dataset, int64_t sequence, int64_t offset, int64_t count,
                         int64_t vocab_size, int32_t *tokens);

/* Writes both files; they appear whole and together, or not at all. Functions fail with STATUS_IO, STATUS_MEMORY, or
 * STATUS_INVALID for a token outside the vocabulary. */
struct indexed_writer {
    struct staging staging;    /* NULL target: the staging of _open_in's caller is used */
    FILE *bin;                 /* tokens, while they are written */
    char *bin_path, *idx_path; /* the paths under construction */
    int type;                  /* enum token_type */
    int64_t vocab_size;
    int64_t tokens, sequences, documents;
    int64_t open_tokens;                  /* of the sequence that is still open */
    struct strbuf lengths, document_ends; /* int32 and int64, as in the file */
    bool is_finished;
};

/* Returns Megatron's choice: uint16 below 65,500 ids, int32 otherwise. */
enum token_type indexed_token_type(int64_t vocab_size);
/* Begins a dataset that is published by itself. STATUS_INVALID when `vocab_size` ids do not fit `type`. */
int indexed_writer_open(struct indexed_writer *writer, const char *prefix, enum token_type type, int64_t vocab_size);
/* Begins a staging in which several datasets are built and appear together, in the directory that `prefix` names. */
int indexed_staging_begin(struct staging *staging, const char *prefix);
/* Begins one of several datasets in a common staging. Each is finished; committing the staging publishes all of
 * them. */
int indexed_writer_open_in(struct indexed_writer *writer, const struct staging *staging, const char *prefix,
                           enum token_type type, int64_t vocab_size);
int indexed_writer_add_sequence(struct indexed_writer *writer, const int32_t *tokens, int64_t count);
/* Adds a sequence in several calls: tokens as often as needed, then the end. */
int indexed_writer_add_tokens(struct indexed_writer *writer, const int32_t *tokens, int64_t count);
int indexed_writer_end_sequence(struct indexed_writer *writer);
/* Ends the document that holds the sequences since the last one; it may have none. */
int indexed_writer_end_document(struct indexed_writer *writer);
/* Syncs every byte to the disk, at the place of construction. */
int indexed_writer_finish(struct indexed_writer *writer);
/* Finishes and publishes a writer that indexed_writer_open began. */
int indexed_writer_commit(struct indexed_writer *writer);
/* Removes the unfinished files; harmless after a commit. */
void indexed_writer_abort(struct indexed_writer *writer);

/* ---- from texts to an indexed dataset ---- */

enum corpus_format {
    CORPUS_AUTO,      /* by the file's name: FILE for *.txt and *.text (and their .gz), else JSONL */
    CORPUS_JSONL,     /* one JSON object a line; blank lines are skipped */
    CORPUS_FILE,      /* one document a file */
    CORPUS_LINE,      /* one document a line, empty ones included */
    CORPUS_DELIMITER, /* documents between lines that equal the delimiter */
};

struct tokenizer;

struct preprocess_options {
    struct config_list inputs; /* files, plain or gzip; their contents decide */
    int format;                /* enum corpus_format */
    const char *delimiter;
    struct config_list
        json_keys; /* of JSONL: each value is a string, or a list of strings that become sequences of one document */
    const struct tokenizer *tokenizer;
    const char *output_prefix; /* PREFIX_KEY_document.bin and .idx; KEY is "text" for plain text */
    bool append_eod;
    int64_t workers; /* tokenizing threads; 0: the processors of this process */
};

struct preprocess_count {
    int64_t documents, sequences, tokens;
};

/* Tokenizes every document. The result follows the order of the files, for any number of workers. The largest JSON line
 * bounds the memory, and for plain text the longest word; bytes that are not UTF-8 form one word with everything after
 * them. `counts` has one entry per key (one for plain text). All datasets appear whole, or none does. STATUS_INVALID
 * with file and line for a bad document, or when there is no text at all; STATUS_IO; STATUS_MEMORY. STATUS_INTERRUPTED
 * after a signal between stop_watch_begin and stop_watch_end (base/stop.h): nothing is written.
 *
 * All ranks of `world` (NULL: this rank only) see the same inputs and make the same call. Each tokenizes its part of
 * the bytes. The first rank writes the datasets, with the bytes that a single rank would write, and fills `counts`. All
 * return together: after a failure, the first rank that failed returns its own status, and the others return
 * STATUS_PEER. */
int preprocess_run(const struct preprocess_options *options, struct comm *world, struct preprocess_count *counts);
/* Refuses impossible options before ranks start. STATUS_USAGE, STATUS_INVALID, STATUS_IO. */
int preprocess_check(const struct preprocess_options *options);
/* The keys that name the outputs: json_keys, or only "text" when no input is JSONL. */
size_t preprocess_key_count(const struct preprocess_options *options);
const char *preprocess_key(const struct preprocess_options *options, size_t k);

/* ---- GPT index maps ---- */

/* The place where a sample begins: an index of the document index, and a token of that document. */
struct gpt_position {
    uint32_t document;
    int32_t offset;
};

/* One range of sequences of one indexed dataset, cut into samples. */
struct gpt_dataset {
    const struct indexed_dataset *tokens;
    int64_t seq_length;
    int64_t document_count;            /* E epochs times the sequences in the range */
    int32_t *document_index;           /* [document_count] numbers of sequences */
    int64_t length;                    /* samples: at least the requested number */
    struct gpt_position *sample_index; /* [length + 1]; rows j and j+1 bound piece j */
    uint32_t *shuffle_index;           /* [length] sample k is piece number shuffle_index[k] */
    void *maps; /* the three arrays in one block: memory, or a cache's file that processes share */
};

struct gpt_dataset_request {
    const struct indexed_dataset *tokens;
    int64_t first, last; /* sequences [first, last) */
    int64_t seq_length;
    int64_t samples;   /* 0: one epoch */
    int64_t seed;      /* 0 .. 2^32-1 */
    const char *cache; /* directory of index caches; NULL: the one next to the dataset; "": no cache */
};
/* Reads the index maps from the cache or builds them. A range without tokens gives a dataset of length 0. A cache that
 * cannot be written causes a warning; one that is stale or damaged is rebuilt. STATUS_USAGE for a request that is not
 * possible, STATUS_IO, STATUS_MEMORY. */
int gpt_dataset_open(struct gpt_dataset *dataset, const struct gpt_dataset_request *request);
void gpt_dataset_close(struct gpt_dataset *dataset);
/* Computes the counts and the bytes of the maps without building them. STATUS_USAGE. */
int gpt_dataset_measure(struct gpt_dataset *dataset, const struct gpt_dataset_request *request, size_t *bytes);

/* ---- agreement ---- */

/* Adds the facts that ranks reading the files of a data path (or of a blend) must share: weights and contents.
 * `endings`, NULL-terminated, are the endings of each path's files. Messages use `name`. STATUS_IO, STATUS_NOT_FOUND,
 * STATUS_MEMORY. */
int data_facts(const char *name, const struct config_list *words, const char *const *endings, struct facts *facts);

/* ---- splits and blends ---- */

enum data_split { SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST, SPLIT_COUNT };

/* A sample in the form that the model takes: rows of seq_length entries, owned by the caller; none is NULL. */
struct gpt_sample {
    int32_t *tokens, *labels;
    float *loss_mask; /* 0 or 1 */
    int32_t *positions;
    int64_t
        *segments; /* [seq_length] first row of each segment, within which attention looks; ascending, the first is 0 */
    int64_t segment_count;
};

/* The rules that turn tokens into a sample (_get_ltor_masks_and_position_ids). */
struct gpt_rules {
    int64_t eod_id;     /* -1: unknown */
    int64_t pad_id;     /* labels equal to it do not count, and it becomes token 0; -1: none */
    int64_t vocab_size; /* 0: not checked */
    bool eod_mask_loss, reset_position_ids, reset_attention_mask;
};

/* A sampler draws from a split: one dataset, or several in proportion to their weights. */
struct gpt_split {
    int64_t length; /* samples; 0: an empty split */
    int64_t seq_length;
    struct gpt_rules rules;
    int64_t part_count;
    struct gpt_dataset *parts;
    bool is_blend;
    int16_t *dataset_index;        /* for a blend: [length] part of sample k */
    int64_t *dataset_sample_index; /* for a blend: [length] its number within the part */
};
/* Reads sample k, as the trainer sees it. STATUS_INVALID when k is not below the length or the file has bad tokens;
 * STATUS_IO. */
int gpt_split_get(const struct gpt_split *split, int64_t k, struct gpt_sample *sample);

enum { GPT_ONE_EPOCH = 0, GPT_NOT_WANTED = -1 };

struct gpt_data_options {
    struct config_list data_path; /* prefix; or w1 P1 w2 P2 ...; or P1 P2 P3, weighted by their lengths */
    const char *split;            /* "969,30,1"; NULL: every sequence is training data */
    int64_t seq_length, seed;
    int64_t samples[SPLIT_COUNT]; /* requested; GPT_ONE_EPOCH, GPT_NOT_WANTED */
    const char *data_cache_path;  /* NULL: cache/GPTDataset_indices next to each prefix; "": no caches */
    struct gpt_rules rules;
};

struct gpt_data_users;

/* Open data; read only. */
struct gpt_data {
    int64_t file_count;
    struct indexed_dataset **files;
    struct gpt_split splits[SPLIT_COUNT];
    struct gpt_data_users *users; /* NULL: it has one user */
};

/* Returns the samples that a run needs: train_iters * GBS for training, and (train_iters / eval_interval + 1) *
 * eval_iters * GBS for validation (none without evaluation). The test split gets none. The caller sets the rules'
 * eod_id, pad_id and vocab_size. */
struct gpt_data_options gpt_data_options_of_run(const struct run_config *run);
/* Opens the data of a run. STATUS_USAGE for options that are not possible (weights, split, seed), else the errors of
 * indexed_dataset_open. A training split that needs samples and has no tokens is STATUS_INVALID; a validation or test
 * split without tokens becomes an empty one. */
int gpt_data_open(struct gpt_data *data, const struct gpt_data_options *options);
/* Lets `users` copies of the struct, this one included, share the data in any threads of the process. Each copy is
 * closed. STATUS_MEMORY. */
int gpt_data_share(struct gpt_data *data, int users);
void gpt_data_close(struct gpt_data *data);

struct gpt_data_bytes {
    size_t maps;    /* index maps: in a file that the processes of a host share, if a cache can be written */
    size_t process; /* the start of each sequence, and the order of a blend */
};
/* Computes the memory that the data of these options takes. `data` is its open files; nothing is built. The ranks of a
 * process share one copy. STATUS_USAGE. */
int gpt_data_measure(const struct gpt_data *data, const struct gpt_data_options *options, struct gpt_data_bytes *bytes);

/* ---- batches ---- */

/* Rows of a flat batch in host memory, sample after sample. GPT samples fill all N = samples * seq_length rows; tuning
 * rows (tuning.h) take only as many rows as they have tokens. */
struct gpt_batch {
    int64_t samples, seq_length; /* capacity */
    int64_t rows;                /* filled */
    int64_t padding;             /* the last rows, which belong to no sample */
    int32_t *tokens, *labels;    /* [N] */
    float *loss_mask;            /* [N] */
    int32_t *positions;          /* [N] */
    uint32_t *sample, *token;    /* [N] number of the consumed sample, and of the row inside it: the keys of dropout */
    int64_t *segment_start;      /* [N + 1] ascending, 0 .. rows */
    int64_t segments;            /* filled: segment_start has one entry more */
};
/* Takes the memory of a batch that holds `samples` samples. STATUS_MEMORY. gpt_batch_free ends it; a zeroed batch is
 * allowed. */
int gpt_batch_init(struct gpt_batch *batch, int64_t samples, int64_t seq_length);
void gpt_batch_free(struct gpt_batch *batch);
/* Reads samples [first, first + batch->samples) of the split. Sample k = consumed_samples + k of a global batch is the
 * same whatever the micro batch or the ranks. The errors of gpt_split_get. */
int gpt_batch_read(struct gpt_batch *batch, const struct gpt_split *split, int64_t first);
/* Returns the first sample of micro batch m of a data-parallel rank (megatron/legacy/data/data_samplers.py). */
static inline int64_t gpt_batch_first(int64_t consumed_samples, int64_t m, int64_t micro_batch_size, int64_t rank,
                                      int64_t ranks) {
    return consumed_samples + (m * ranks + rank) * micro_batch_size;
}
