/* Rows that a model is tuned on: JSON lines become token sequences that know which of their tokens are trained.
 *
 * A line is an object of one of these forms; every other field is metadata and passed over, but for those that would
 * change the meaning ("system", "history", "functions", ...), which are refused by name:
 *
 *     {"input": I, "output": O}           as NeMo: spaces around I and O go, the answer is " O"
 *     {"prompt": P, "completion": C}      as they stand
 *     {"messages": [{"role": R, ...}, ...], "tools": L, ...}   by a chat template; and what else chat.h's requests hold
 *     {"instruction": I, "input": J, "output": O}      by a template; "input" may be absent, null or ""
 *     {"text": T}                         everything is trained
 *
 * What is trained and what is not is tokenized apart, so that no token lies across the boundary of an answer, and names
 * of special tokens in the fields are ordinary text. The answers and the end behind each are trained (all assistant
 * turns, or the last one), or everything. Tokens behind the last trained one are left out, as nothing
 * depends on them.
 *
 * A *sample* is one row, or with packing several. In a batch a row of n tokens is one segment of V + n - 1 rows: V
 * virtual tokens with the ids vocab_size .. vocab_size + V - 1, then all tokens but the last. The label of each is the
 * token behind it, that of the last virtual token is the first token; without virtual tokens nothing predicts the first
 * one.
 *
 * Which rows are sample k follows from the files, the options and the seed, never from micro batches or ranks. Open
 * data is read only: threads may share it, and a read allocates nothing. */
#ifndef CAMBIUM_DATA_TUNING_H
#define CAMBIUM_DATA_TUNING_H

#include "data/data.h"
#include "text/chat.h"
#include "text/text.h"

/* ---- data ---- */

enum tuning_truncation { TUNING_TRUNCATE_RIGHT, TUNING_TRUNCATE_LEFT }; /* the side that goes */

struct tuning_options {
    struct config_list train; /* plain or gzip; F1 F2 ...: all their rows; w1 F1 w2 F2 ...: by weight; or none */
    struct config_list valid; /* F1 F2 ..., or none; a file of rows there must be */
    const struct tokenizer *tokenizer;             /* only for the opening, as its files */
    const struct tokenizer_files *tokenizer_files; /* where its chat template is looked for; NULL: it has none */
    const char *template;                          /* of messages and instructions: a name or a file; NULL or "auto":
                                                      the tokenizer's own */
    double template_timeout;                       /* seconds of one rendering; 0: CHAT_TEMPLATE_SECONDS */
    enum chat_answers answers;                     /* of messages */
    int32_t config_eos;                            /* end-of-text where the tokenizer has none; -1: none */
    int64_t vocab_size;                            /* the model's */
    int64_t seq_length;     /* most tokens of a row, virtual tokens (or first_position) included, and most
                               rows of a sample */
    int64_t virtual_tokens; /* V rows before each text */
    int64_t first_position; /* of a row's first virtual or real token: the prefix's length, or 0 */
    int64_t row_multiple;   /* rows of a batch are a multiple of it; 0: 1 */
    bool has_few_sizes;     /* batches differ little in their rows: above 256, eight numbers an octave */
    enum tuning_truncation truncation;
    bool is_whole_text; /* every token is trained, not answers alone */
    bool is_packed;
    int64_t seed;
    int64_t samples; /* of training; 0: `epochs` times all */
    int64_t epochs;  /* 0: 1 */
};

struct tuning_data;

/* Reads all files. Rows without a token that is trained (an empty answer, no assistant's turn, cut off) are left out
 * and counted. STATUS_INVALID with file and line for what is no row, and where no row is left; STATUS_USAGE for options
 * that cannot be; STATUS_UNSUPPORTED for a chat template that we do not have; STATUS_IO for files that cannot be read.
 */
int tuning_data_open(const struct tuning_options *options, struct tuning_data **data);
/* NULL is allowed. */
void tuning_data_close(struct tuning_data *data);

/* Samples of a split: for training those asked for, for validation all rows once and in order; 0: no such file. */
int64_t tuning_data_length(const struct tuning_data *data, enum data_split split);
/* Samples of one epoch: rows, or packs of rows. */
int64_t tuning_data_epoch(const struct tuning_data *data, enum data_split split);
/* Bytes of memory that the same files take when they are opened with so many samples of training. */
size_t tuning_data_bytes(const struct tuning_data *data, int64_t samples);
int32_t tuning_data_eos(const struct tuning_data *data);
/* The template that rows were put in, which lives as long as the data; NULL when no row needed one. */
struct chat_template *tuning_data_template(const struct tuning_data *data);

/* The tokens of a row that was kept, in the order of the files, and which of them are trained;
 * both arrays are the caller's to free. STATUS_NOT_FOUND behind the last. */
int tuning_data_row(const struct tuning_data *data, enum data_split split, int64_t row, int32_t **tokens,
                    bool **trained, int64_t *count);

/* What was found in file `f`; false behind the last file (training files come first). */
enum { TUNING_LINES_SHOWN = 5 };
struct tuning_file_count {
    const char *path;
    enum data_split split;
    int64_t rows, empty, truncated;          /* lines that are rows; left out; cut but kept */
    int64_t tokens;                          /* of the rows that are kept */
    int64_t trained;                         /* of these, the labels that count */
    int64_t empty_lines[TUNING_LINES_SHOWN]; /* the first of them, from 1 */
};
bool tuning_data_file(const struct tuning_data *data, size_t f, struct tuning_file_count *count);
/* A warning for each file with rows that were left out or cut. */
void tuning_data_warn(const struct tuning_data *data);

/* Samples [first, first + batch->samples) of the split (gpt_batch_first) as a flat batch without padding between them.
 * Those behind the split's length give nothing. A last segment of loss mask 0 fills up to row_multiple and to
 * the next size, and stands alone where there is no sample. Keys of dropout: the sample's number, and the place in the
 * sample. */
int tuning_batch_read(struct gpt_batch *batch, const struct tuning_data *data, enum data_split split, int64_t first);

#endif
