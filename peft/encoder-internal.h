/* Small networks over the rows of an embedding: p-tuning's encoder and a prefix's projection. They run once per global
 * batch, for a few dozen rows, in fp32 whatever the type of the stack's weights. Functions that return a status fail
 * with STATUS_MEMORY or with the device's errors. */
#pragma once

#include "method-internal.h"

/* The weights of a stack's adapter as fp32: the weights themselves, or a copy that is made at the start of a global
 * batch. */
struct fp32_weights {
    const struct peft_adapter *adapter;
    void *memory; /* [flat_elements] of the stack; NULL when the weights are fp32 */
};
size_t fp32_bytes(const struct fp32_weights *fp32);
int fp32_allocate(struct fp32_weights *fp32);
void fp32_free(struct fp32_weights *fp32);
int fp32_begin(struct fp32_weights *fp32);
/* Lend and take back a weight, like param_borrow and param_return; NULL while planning. */
const float *fp32_borrow(const struct fp32_weights *fp32, int id);
void fp32_return(const struct fp32_weights *fp32, int id);

/* Refuses a hidden size, a number of layers or a dropout that no encoder can have. STATUS_USAGE. */
int encoder_check(const struct peft_adapter *adapter);

enum encoder_kind { ENCODER_LINEAR, ENCODER_RELU, ENCODER_TANH, ENCODER_LSTM, ENCODER_DROPOUT };

struct encoder_direction {
    int input, state, input_bias, state_bias; /* ids */
    float *gates, *cells;                     /* [rows, 2 out], [rows, out / 2] */
};

struct encoder_step {
    enum encoder_kind kind;
    int64_t in, out;
    int weight, bias;                      /* ENCODER_LINEAR */
    uint32_t site;                         /* ENCODER_DROPOUT */
    struct encoder_direction direction[2]; /* ENCODER_LSTM: each gives half of the outputs */
    float *y, *dy;                         /* [rows, out] */
};

enum { ENCODER_LSTMS = 64, ENCODER_STEPS = 2 * ENCODER_LSTMS + 4 };

struct encoder {
    struct peft_adapter *adapter;
    const struct fp32_weights *fp32;
    int64_t rows, width; /* of the embedding */
    int embedding;
    double dropout;       /* of ENCODER_DROPOUT, in global batches that are trained on */
    struct row_keys keys; /* of dropout: [rows] the number of the batch's first sample, and the row */
    struct upload upload; /* of the keys */
    void *uploaded;
    int count;
    struct encoder_step steps[ENCODER_STEPS];
};

/* Adds the embedding [rows, width], then steps that start at the width of the step before. Names are torch's:
 * "mlp_head.0". */
int encoder_start(struct encoder *encoder, struct peft_adapter *adapter, int64_t rows, int64_t width);
int encoder_add_linear(struct encoder *encoder, const char *name, int64_t out);
int encoder_add_activation(struct encoder *encoder, enum encoder_kind kind);
/* Adds layer `number` of a bidirectional LSTM. */
int encoder_add_lstm(struct encoder *encoder, int64_t hidden, int64_t number);
/* Adds inverted dropout, as torch's LSTM has between its layers. Dropout steps are numbered separately. */
int encoder_add_dropout(struct encoder *encoder, double p, int64_t number);
void encoder_place(struct encoder *encoder, struct arena *arena);
/* Takes host memory for the keys of dropout. STATUS_MEMORY. */
int encoder_allocate(struct encoder *encoder);
void encoder_close(struct encoder *encoder);
/* Computes the last step's y from the embedding. */
int encoder_forward(struct encoder *encoder);
/* Computes the gradients of all parameters from the last step's dy. */
int encoder_backward(struct encoder *encoder);
static inline struct encoder_step *encoder_last(struct encoder *encoder) {
    return &encoder->steps[encoder->count - 1];
}
