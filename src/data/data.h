/* Tokenized text on disk and the samples that a GPT is trained on.
 *
 * An *indexed dataset* is Megatron's pair PREFIX.bin (tokens) and PREFIX.idx (where each sequence lies). *GPT samples*
 * cut its shuffled sequences, end to end, into pieces of seq_length tokens whose labels are the tokens moved by one.
 * Which piece is sample k follows from the lengths, the split, the seed and the number of samples asked for, equal to
 * Megatron-LM's (megatron/core/datasets/) element by element; nothing of it depends on the layout of the ranks.
 *
 * Everything read from a file is checked before it is believed, and errors name the file, the field and the byte. An
 * open dataset is read only, so any number of threads may read samples at once; nothing is allocated by a read. */
#ifndef CAMBIUM_DATA_DATA_H
#define CAMBIUM_DATA_DATA_H

#include "base/base.h"
#include "comm/comm.h"
#include "config/run.h"

#include <signal.h>

/* ---- indexed dataset ---- */

/* How PREFIX.bin stores a token: the code of the index file (megatron/core/datasets/indexed_dataset.py). */
enum token_type { TOKEN_U8 = 1, TOKEN_I8 = 2, TOKEN_I16 = 3, TOKEN_I32 = 4, TOKEN_I64 = 5, TOKEN_U16 = 8 };

struct indexed_dataset {
    char *prefix;
    int descriptor;    /* of PREFIX.bin, read by pread: a file cut short while we run is an error, not a signal */
    int type;          /* enum token_type */
    int64_t sequences; /* N; the index maps call them documents */
    int64_t documents; /* a document holds 0 or more sequences */
    int64_t tokens;
    int64_t *starts;      /* [N+1] number of the first token of each sequence */
    uint64_t fingerprint; /* of the lengths: an index built for it fits no other */
};

/* Opens PREFIX.bin and PREFIX.idx and checks every field. STATUS_NOT_FOUND, STATUS_IO, STATUS_INVALID,
 * STATUS_UNSUPPORTED (token types that hold no ids). */
int indexed_dataset_open(const char *prefix, struct indexed_dataset **dataset);
void indexed_dataset_close(struct indexed_dataset *dataset);
static inline int64_t indexed_dataset_length(const struct indexed_dataset *dataset, int64_t sequence) {
    return dataset->starts[sequence + 1] - dataset->starts[sequence];
}
/* Tokens [offset, offset + count) of a sequence. A token outside 0 .. vocab_size-1 is STATUS_INVALID with its place;
 * vocab_size 0 lets every id pass that is not negative and fits 31 bits. */
int indexed_dataset_read(const struct indexed_dataset *dataset, int64_t sequence, int64_t offset, int64_t count,
                         int64_t vocab_size, int32_t *tokens);

/* Writes both files so that they appear whole, together, or not at all. */
struct indexed_writer {
    struct staging staging;    /* NULL target: that of _open_in's caller */
    FILE *bin;                 /* tokens, while they are written */
    char *bin_path, *idx_path; /* where they are built */
    int type;                  /* enum token_type */
    int64_t vocab_size;
    int64_t tokens, sequences, documents;
    int64_t open_tokens;                  /* of the sequence that is not ended */
    struct strbuf lengths, document_ends; /* int32 and int64, as in the file */
    bool is_finished;
};

/* Megatron's choice: uint16 below 65,500 ids, int32 otherwise. */
enum token_type indexed_token_type(int64_t vocab_size);
/* STATUS_INVALID when `vocab_size` ids do not fit `type`. */
int indexed_writer_open(struct indexed_writer *writer, const char *prefix, enum token_type type, int64_t vocab_size);
/* A directory to build datasets in that appear together; `prefix` names the directory that they come into. */
int indexed_staging_begin(struct staging *staging, const char *prefix);
/* One of several datasets: each is finished, and the commit of their staging is that of all. */
int indexed_writer_open_in(struct indexed_writer *writer, const struct staging *staging, const char *prefix,
                           enum token_type type, int64_t vocab_size);
int indexed_writer_add_sequence(struct indexed_writer *writer, const int32_t *tokens, int64_t count);
/* The same in several calls: tokens as often as wanted, and the end. */
int indexed_writer_add_tokens(struct indexed_writer *writer, const int32_t *tokens, int64_t count);
int indexed_writer_end_sequence(struct indexed_writer *writer);
/* Closes the document that holds the sequences since the last one: none is allowed. */
int indexed_writer_end_document(struct indexed_writer *writer);
/* Brings every byte to the disk, where the dataset is built. */
int indexed_writer_finish(struct indexed_writer *writer);
/* Finishes and publishes; for a writer with a staging of its own. */
int indexed_writer_commit(struct indexed_writer *writer);
/* Leaves nothing behind; harmless after a commit. */
void indexed_writer_abort(struct indexed_writer *writer);

/* ---- from texts to an indexed dataset ---- */

enum corpus_format {
    CORPUS_AUTO,      /* by the file's name: FILE for *.txt and *.text (and .gz of it), else JSONL */
    CORPUS_JSONL,     /* a JSON object a line; blank lines are skipped */
    CORPUS_FILE,      /* a document a file */
    CORPUS_LINE,      /* a document a line, empty ones too */
    CORPUS_DELIMITER, /* documents between lines that equal the delimiter */
};

struct tokenizer;

struct preprocess_options {
    struct config_list inputs; /* files, plain or gzip by their contents */
    int format;                /* enum corpus_format */
    const char *delimiter;
    struct config_list json_keys; /* of JSONL: a string, or a list of strings that become sequences of one document */
    const struct tokenizer *tokenizer;
    const char *output_prefix; /* PREFIX_KEY_document.bin and .idx; KEY is "text" for plain text */
    bool append_eod;
    int64_t workers; /* threads that tokenize; 0: the processors of this process */
};

struct preprocess_count {
    int64_t documents, sequences, tokens;
};

/* Tokenizes every document, in the order of the files whatever the number of workers; memory is bounded by the largest
 * JSON line, and for plain text by the longest word (bytes that are not UTF-8 make one of all that follows them).
 * `counts` has one entry a key (one for plain text). All datasets appear whole or none does: STATUS_INVALID with file
 * and line for a bad document, or when there is no text at all; STATUS_IO; STATUS_INTERRUPTED on SIGINT or SIGTERM,
 * where the caller holds these back.
 *
 * The ranks of `world` (NULL: this one alone) see the same inputs and make the same call; each tokenizes its part of
 * the bytes, and the first writes the datasets, with the bytes that a rank alone writes, and fills `counts`. All return
 * together: of a failure, the first rank that has one with its own status, the others with STATUS_PEER. */
int preprocess_run(const struct preprocess_options *options, struct comm *world, struct preprocess_count *counts);
/* Refuses what can be refused before ranks start. */
int preprocess_check(const struct preprocess_options *options);
/* SIGINT and SIGTERM wait, for this thread and those that it starts, and a run sees them between batches, so that a
 * stop leaves nothing behind; a run that failed has answered them. */
void preprocess_hold_signals(sigset_t *before);
void preprocess_release_signals(const sigset_t *before, int status);
/* The keys that name the outputs: json_keys, or "text" alone when no input is JSONL. */
size_t preprocess_key_count(const struct preprocess_options *options);
const char *preprocess_key(const struct preprocess_options *options, size_t k);

/* ---- GPT index maps ---- */

/* Where a sample begins: a position in the document index, and a token of that document. */
struct gpt_position {
    uint32_t document;
    int32_t offset;
};

/* One range of sequences of one indexed dataset, cut into samples. */
struct gpt_dataset {
    const struct indexed_dataset *tokens;
    int64_t seq_length;
    int64_t document_count;            /* E epochs times the sequences of the range */
    int32_t *document_index;           /* [document_count] numbers of sequences */
    int64_t length;                    /* samples: at least as many as were asked for */
    struct gpt_position *sample_index; /* [length + 1]; rows j and j+1 bound piece j */
    uint32_t *shuffle_index;           /* [length] sample k is piece shuffle_index[k] */
    void *maps;                        /* the three in one block: memory, or a cache's file, which processes share */
};

struct gpt_dataset_request {
    const struct indexed_dataset *tokens;
    int64_t first, last; /* sequences [first, last) */
    int64_t seq_length;
    int64_t samples;   /* 0: one epoch */
    int64_t seed;      /* 0 .. 2^32-1 */
    const char *cache; /* directory of index caches; NULL: the one beside the dataset; "": none is kept */
};
/* Builds the index maps, or reads them from the cache. A range without tokens gives a dataset of length 0. A cache that
 * cannot be written is a warning, one that is stale or damaged is built again. */
int gpt_dataset_open(struct gpt_dataset *dataset, const struct gpt_dataset_request *request);
void gpt_dataset_close(struct gpt_dataset *dataset);
/* The counts and the bytes of the maps, which are not built. */
int gpt_dataset_measure(struct gpt_dataset *dataset, const struct gpt_dataset_request *request, size_t *bytes);

/* ---- agreement ---- */

/* Adds what ranks that read the files of a data path (or of a blend) have in common: weights, and contents. `endings`,
 * up to a NULL, are those of each path's files. `name` is for messages. */
int data_facts(const char *name, const struct config_list *words, const char *const *endings, struct facts *facts);

/* ---- splits and blends ---- */

enum data_split { SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST, SPLIT_COUNT };
const char *data_split_name(enum data_split split);

/* A sample as the model takes it: the caller's rows of seq_length entries each, none of them NULL. */
struct gpt_sample {
    int32_t *tokens, *labels;
    float *loss_mask; /* 0 or 1 */
    int32_t *positions;
    int64_t *segments; /* [seq_length] first rows of what attention may see together; ascending, the first is 0 */
    int64_t segment_count;
};

/* How tokens become a sample (_get_ltor_masks_and_position_ids). */
struct gpt_rules {
    int64_t eod_id;     /* -1: unknown */
    int64_t pad_id;     /* labels equal to it count nothing, and it becomes token 0; -1: none */
    int64_t vocab_size; /* 0: not checked */
    bool eod_mask_loss, reset_position_ids, reset_attention_mask;
};

/* A sampler draws from a split: one dataset, or several in the proportion of their weights. */
struct gpt_split {
    int64_t length; /* samples; 0: an empty split */
    int64_t seq_length;
    struct gpt_rules rules;
    int64_t part_count;
    struct gpt_dataset *parts;
    bool is_blend;
    int16_t *dataset_index;        /* blend: [length] part of sample k */
    int64_t *dataset_sample_index; /* blend: [length] its number in the part */
};
/* Sample k, as the trainer sees it. STATUS_INVALID when k is not below the length or the file has bad tokens. */
int gpt_split_get(const struct gpt_split *split, int64_t k, struct gpt_sample *sample);

enum { GPT_ONE_EPOCH = 0, GPT_NOT_WANTED = -1 };

struct gpt_data_options {
    struct config_list data_path; /* prefix; or w1 P1 w2 P2 ...; or P1 P2 P3: by their lengths */
    const char *split;            /* "969,30,1"; NULL: every sequence is training data */
    int64_t seq_length, seed;
    int64_t samples[SPLIT_COUNT]; /* asked for; GPT_ONE_EPOCH, GPT_NOT_WANTED */
    const char *data_cache_path;  /* NULL: cache/GPTDataset_indices beside each prefix; "": no caches */
    struct gpt_rules rules;
};

struct gpt_data_users;

/* Read only once it is open. */
struct gpt_data {
    int64_t file_count;
    struct indexed_dataset **files;
    struct gpt_split splits[SPLIT_COUNT];
    struct gpt_data_users *users; /* NULL: it has one */
};

/* The samples that a run asks for: train_iters * GBS samples, (train_iters / eval_interval + 1) * eval_iters * GBS for
 * validation (not wanted without evaluation), none for the test split. The rules' eod_id, pad_id and vocab_size are the
 * caller's to set. */
struct gpt_data_options gpt_data_options_of_run(const struct run_config *run);
/* STATUS_USAGE for options that cannot be (weights, split, seed), else as indexed_dataset_open. Samples asked of a
 * training split without tokens are STATUS_INVALID; an empty validation or test split is none. */
int gpt_data_open(struct gpt_data *data, const struct gpt_data_options *options);
/* Copies of the struct, in any threads of the process, stand for the same data from now on: `users` of them with this
 * one, each of which is closed. */
int gpt_data_share(struct gpt_data *data, int users);
void gpt_data_close(struct gpt_data *data);

struct gpt_data_bytes {
    size_t maps;    /* index maps: in a file that the processes of a host share, where a cache can be written */
    size_t process; /* where each sequence starts, and the order of a blend */
};
/* Counts what the data of these options holds in memory. `data`: its open files; nothing is built. The ranks of a
 * process have it once. */
int gpt_data_measure(const struct gpt_data *data, const struct gpt_data_options *options, struct gpt_data_bytes *bytes);

/* ---- batches ---- */

/* Rows of a flat batch in host memory, sample after sample. GPT samples fill all N = samples * seq_length rows, tuning
 * rows (tuning.h) are no longer than their text. */
struct gpt_batch {
    int64_t samples, seq_length; /* capacity */
    int64_t rows;                /* filled */
    int64_t padding;             /* the last of them, which belong to no sample */
    int32_t *tokens, *labels;    /* [N] */
    float *loss_mask;            /* [N] */
    int32_t *positions;          /* [N] */
    uint32_t *sample, *token;    /* [N] number of the consumed sample and of the row inside it: the keys of dropout */
    int64_t *segment_start;      /* [N + 1] ascending, 0 .. rows */
    int64_t segments;            /* filled: segment_start has one more */
};
int gpt_batch_init(struct gpt_batch *batch, int64_t samples, int64_t seq_length);
void gpt_batch_free(struct gpt_batch *batch);
/* Samples [first, first + batch->samples) of the split: what a global batch's sample k = consumed_samples + k is does
 * not depend on micro batch or ranks. */
int gpt_batch_read(struct gpt_batch *batch, const struct gpt_split *split, int64_t first);
/* The first sample of micro batch m of a data-parallel rank (megatron/legacy/data/data_samplers.py). */
static inline int64_t gpt_batch_first(int64_t consumed_samples, int64_t m, int64_t micro_batch_size, int64_t rank,
                                      int64_t ranks) {
    return consumed_samples + (m * ranks + rank) * micro_batch_size;
}

#endif
