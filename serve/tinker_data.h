/* The data of Tinker's forward_backward: texts of tokens with the values of a loss, read from a message of anybody.
 *
 * Row i of a datum predicts its target i, and each of its tensors has a row for each token. Targets may have several
 * columns. Each column is a text here: the same tokens with other targets. */
#pragma once

#include "openai/error.h"
#include "train/loss.h"
#include "train/train.h"

#include "base/strbuf.h"

enum { TINKER_ID_BYTES = 128, TINKER_COLUMNS = 128 /* at most */ };

struct tinker_text {
    int64_t column, columns; /* of its datum's targets */
    bool is_matrix;          /* the targets have two axes */
    int64_t rows;
    const int32_t *tokens; /* [rows] shared by the texts of a datum */
    int32_t *targets;      /* [rows] */
    float *logprobs;       /* [rows] results */
    float *values[3];      /* [rows] of struct loss_segment: sampled, advantages, weights; NULL: absent */
};

/* A request for a pass, and the source of its samples. */
struct tinker_data {
    struct train_source source; /* the first */
    char model_id[TINKER_ID_BYTES];
    int64_t seq_id;
    bool is_forward_only;
    const struct loss *loss;
    struct loss_options options;
    struct tinker_text *texts; /* [count]; those of a datum are neighbours */
    int64_t count;
    int64_t *packs; /* [pack_count + 1] first text of each sample: tinker_data_pack */
    int64_t pack_count;
    void **blocks; /* [block_count] memory of the texts */
    int64_t block_count;
    struct error error; /* of its contents; such a request is a future that fails. ERROR_NONE: it can run */
};

/* Reads a message. Ids are below `vocab`. NULL with *error when it is not a message of this kind, or without memory.
 * Faults of its contents are in the result's `error`, which names the field. Any thread. */
struct tinker_data *tinker_data_read(const void *bytes, size_t length, int64_t vocab, struct error *error);
/* NULL is allowed. */
void tinker_data_free(struct tinker_data *data);
/* Divides the texts into samples of up to `most` rows each, in order, for data->source. Sets data->error when a text
 * is longer, or without memory. */
void tinker_data_pack(struct tinker_data *data, int64_t most);
/* Appends the answer of a pass that has filled the texts' logprobs: a message ForwardBackwardOutput. */
void tinker_data_answer(const struct tinker_data *data, double loss, struct strbuf *out);
