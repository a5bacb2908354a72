/* Rows that a model is tuned on: JSON lines become token sequences in which each token is marked as trained or not.
 *
 * A line is an object of one of these forms. Every other field is metadata and ignored, except those that would change
 * the meaning ("system", "history", "functions", ...), which are refused by name:
 *
 *     {"input": I, "output": O}           as NeMo: spaces around I and O are removed, the answer is " O"
 *     {"prompt": P, "completion": C}      unchanged
 *     {"messages": [...], "tools": L}     by a chat template; the members are those of a chat request (chat.h)
 *     {"instruction": I, "input": J, "output": O}      by a template; "input" may be absent, null or ""
 *     {"text": T}                         everything is trained
 *
 * For losses of preferences a line is a prompt with two answers, or with one answer and a label. Prompt and answers are
 * texts, or lists of messages:
 *
 *     {"prompt": P, "chosen": C, "rejected": R}        as TRL; without a prompt, C and R are whole chats
 *     {"input": {"messages": [...], "tools": L}, "preferred_output": [M], "non_preferred_output": [M]}     as OpenAI
 *     {"prompt": P, "completion": C, "label": true or false}          as TRL
 *
 * A row is tokenized as a whole, like the prompts that the model is asked with. Names of special tokens in the fields
 * are ordinary text. The answers and the end token after each are trained (all assistant turns, or the last one), or
 * everything is. A token that reaches into an answer belongs to it. Tokens after the last trained one are dropped,
 * because nothing depends on them.
 *
 * A *sample* is one row, or with packing several. In a batch a row of n tokens is one segment of V + n - 1 rows. The V
 * virtual tokens come first, with the ids vocab_size .. vocab_size + V - 1, then all tokens but the last. Each label is
 * the next token; the label of the last virtual token is the first token. Without virtual tokens nothing predicts the
 * first one.
 *
 * The files, the options and the seed decide which rows are sample k; micro batches and ranks do not. Open data is read
 * only: threads may share it, and a read allocates nothing. */
#pragma once

#include "data/data.h"
#include "text/chat.h"
#include "text/prompt.h"
#include "text/text.h"

/* ---- data ---- */

enum tuning_form {
    TUNING_ANSWERS, /* the forms that sft trains on */
    TUNING_PAIRS,   /* two answers: a row has two texts */
    TUNING_LABELS   /* one answer, which is wanted or not */
};
/* Returns how many texts a row has; each is a segment of a batch. */
static inline int tuning_texts(enum tuning_form form) {
    return form == TUNING_PAIRS ? 2 : 1;
}
enum tuning_truncation { TUNING_TRUNCATE_RIGHT, TUNING_TRUNCATE_LEFT }; /* the side that is cut off */

struct tuning_options {
    struct config_list train; /* plain or gzip; F1 F2 ...: all their rows; w1 F1 w2 F2 ...: by weight; or none */
    struct config_list valid; /* F1 F2 ..., or none; each must have a row */
    const struct tokenizer *tokenizer; /* used only during opening, like its files */
    const struct tokenizer_files
        *tokenizer_files; /* the files in which its chat template is looked for; NULL: it has none */
    const char *template; /* of messages and instructions: a name or a file; NULL or "auto":
                             the tokenizer's own */
    enum tuning_form form;
    double template_timeout;            /* limit for one rendering, in seconds; 0: CHAT_TEMPLATE_SECONDS */
    enum chat_answers answers;          /* of messages */
    enum special_tokens special_tokens; /* of rows without a template */
    int32_t config_eos;                 /* end-of-text when the tokenizer has none; -1: none */
    const int32_t *ends; /* [end_count] all tokens at which the model's generator stops, during opening */
    int end_count;
    int64_t vocab_size; /* the model's */
    bool fits_rows;     /* samples are as long as the longest row that seq_length leaves, rounded up to row_multiple */
    int64_t seq_length; /* maximum number of tokens of a row, virtual tokens (or first_position) included, and of its
                           rows of a sample */
    int64_t virtual_tokens; /* V rows before each text */
    int64_t first_position; /* of a row's first virtual or real token: the prefix's length, or 0 */
    int64_t row_multiple;   /* rows of a batch are a multiple of it; 0: 1 */
    bool has_few_sizes;     /* batches come in few sizes: above 256 rows, eight sizes per octave */
    enum tuning_truncation truncation;
    bool is_whole_text; /* every token is trained, not only answers */
    bool is_packed;
    int64_t seed;
    int64_t samples; /* of training; 0: `epochs` times all rows */
    int64_t epochs;  /* 0: 1 */
};

struct tuning_data;

/* Reads all files. Rows without a trained token (an empty answer, no assistant's turn, cut off) are skipped and
 * counted.
 *
 * STATUS_INVALID with file and line for a line that is not a row, and when no row remains; STATUS_USAGE for impossible
 * options; STATUS_UNSUPPORTED for an unknown chat template; STATUS_IO; STATUS_MEMORY. */
int tuning_data_open(const struct tuning_options *options, struct tuning_data **data);
/* NULL is allowed. */
void tuning_data_close(struct tuning_data *data);

/* Returns the samples of a split: for training the requested number, for validation all rows once and in order; 0 when
 * it has no file. */
int64_t tuning_data_length(const struct tuning_data *data, enum data_split split);
/* Returns the samples of one epoch: rows, or packs of rows. */
int64_t tuning_data_epoch(const struct tuning_data *data, enum data_split split);
/* Returns the rows of a split, each once. */
int64_t tuning_data_rows(const struct tuning_data *data, enum data_split split);
/* Returns the number of rows of sample k, 0 past the end of the split. They are at *packed; if that is NULL, there is
 * only *row. */
int64_t tuning_data_sample(const struct tuning_data *data, enum data_split split, int64_t k, const uint32_t **packed,
                           int64_t *row);
/* Returns the memory in bytes that the same files take when opened with `samples` samples of training. */
size_t tuning_data_bytes(const struct tuning_data *data, int64_t samples);
/* Returns the maximum number of tokens of a sample, virtual tokens and first_position included: seq_length, or less
 * with fits_rows. */
int64_t tuning_data_seq_length(const struct tuning_data *data);
/* Returns the end-of-text token that ends each answer. */
int32_t tuning_data_eos(const struct tuning_data *data);
/* Returns the template that the rows were rendered with, which lives as long as the data; NULL when no row needed
 * one. */
struct chat_template *tuning_data_template(const struct tuning_data *data);

/* Copies the tokens of a kept row, of a pair those of the first text, in the order of the files, and marks the trained
 * ones. The caller frees both arrays. STATUS_NOT_FOUND past the last row; STATUS_MEMORY. */
int tuning_data_row(const struct tuning_data *data, enum data_split split, int64_t row, int32_t **tokens,
                    bool **trained, int64_t *count);
/* Returns the weight of the losses of a kept row, which must be there. */
double tuning_data_weight(const struct tuning_data *data, enum data_split split, int64_t row);

/* The contents of one file. */
enum { TUNING_LINES_SHOWN = 5 };
struct tuning_file_count {
    const char *path;
    enum data_split split;
    int64_t rows, empty, truncated;          /* lines that are rows; skipped; cut but kept */
    int64_t weightless;                      /* of the skipped ones: with the weight 0 */
    int64_t tokens;                          /* of the kept rows */
    int64_t trained;                         /* of these, labels that count */
    int64_t endless;                         /* kept rows with an answer after which no token stops a generator */
    int64_t empty_lines[TUNING_LINES_SHOWN]; /* the first skipped lines, from 1 */
    bool has_elements;                       /* these are rows of an array */
};
/* Reports the contents of file `f`, training files first; returns false past the last file. */
bool tuning_data_file(const struct tuning_data *data, size_t f, struct tuning_file_count *count);
/* Logs a warning for each file with skipped or cut rows, or with answers that have no end. */
void tuning_data_warn(const struct tuning_data *data);

/* Reads samples [first, first + batch->samples) of the split (gpt_batch_first) as a flat batch, without padding between
 * them. Samples past the split's length add nothing. A last segment with loss mask 0 pads the batch to row_multiple and
 * to the next size; without a sample it is the only segment. The keys of dropout are the sample's number and the place
 * within the sample. The texts of a pair are two segments. The loss mask has the row's weight; it is below 0 in the
 * second text of a pair, and where the answer is not wanted. STATUS_MEMORY. */
int tuning_batch_read(struct gpt_batch *batch, const struct tuning_data *data, enum data_split split, int64_t first);
/* A batch for a loss of preferences: with other tokens before each text, or with other answers. */
struct tuning_view {
    int64_t virtual_tokens, first_position; /* in place of those of the options */
    /* Each prompt with the answer of the next row, cut to a row's length. Samples [cycle_first, + cycle) are a cycle:
     * the first follows the last. With packing, the next row is that of the pack; cycle 0: no */
    int64_t cycle_first, cycle;
};
/* The same as tuning_batch_read with a view. */
int tuning_batch_view(struct gpt_batch *batch, const struct tuning_data *data, enum data_split split, int64_t first,
                      const struct tuning_view *view);
/* Returns the largest number of rows of a batch's sample: those of its texts. */
int64_t tuning_sample_rows(enum tuning_form form, int64_t seq_length);
