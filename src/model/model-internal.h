/* The model inside: where the activations of a batch stand, and the pieces of the forward and backward pass. */
#ifndef CAMBIUM_MODEL_INTERNAL_H
#define CAMBIUM_MODEL_INTERNAL_H

#include "model/model.h"
#include "parallel/upload.h"

enum { VOCAB_STRIDE_MULTIPLE = 64 };

struct norm_params {
    int gain, bias; /* PARAM_NONE: there is none */
};

struct block_params {
    struct norm_params norm1, norm2, q_norm, k_norm;
    struct linear qkv, projection, fc1, fc2;
};

/* The data that the forward of one block keeps for its backward. */
struct block_saved {
    void *x;                              /* [N, C] the block's input */
    void *norm1;                          /* [N, C] */
    void *qkv;                            /* [N, q + 2 kv] */
    void *turned;                         /* [N, q + kv] queries and keys after their norms, if they have any */
    void *attention;                      /* [N, q] heads side by side */
    void *middle;                         /* [N, C] after the attention's residual */
    void *norm2;                          /* [N, C] */
    void *fc1;                            /* [N, fc1] the activation's input */
    void *activated;                      /* [N, F] its output */
    float *mean1, *rstd1, *mean2, *rstd2; /* [N]; an RMSNorm has no mean */
    float *mean_q, *rstd_q;               /* [N, H] of the queries' norms */
    float *mean_k, *rstd_k;               /* [N, G] of the keys' */
    float *lse;                           /* [H, N] */
    void *hooks[ATTACH_PLACE_COUNT];      /* what the methods keep */
};

/* The rows that go through the head: the rows of a batch whose loss counts, in order, with fill after them; or all
 * rows, when that is hardly more. The head processes only these, because logits of a row that does not count have no
 * effect. */
struct head_rows {
    int64_t count;
    bool is_all;
    /* When not all rows count: this rank's part of the residual stream of these rows, `own` rows from `first` on (all
     * of them, with the fill, without sequence parallelism). Then their places in the stream, -1 for fill, and the
     * places of the stream's rows in `own`, -1 for rows that are left out. */
    int64_t first, own;
    const int32_t *source; /* [own] */
    const int32_t *place;  /* [stream rows] */
    const int32_t *labels;
    const float *loss_weight; /* 0 of fill */
};

/* The batch on the device, in the block of its stash. */
struct device_batch {
    void *block;
    int64_t rows, segments;
    const int64_t *segment_start; /* [segments + 1] */
    int32_t *tokens, *positions;
    uint32_t *sample, *token;
    struct head_rows head;
};

/* The arrays of a step of inference. Those without a size come from the host, and belong to the step that was uploaded
 * last. */
struct device_step {
    void *block;
    int32_t *sequence, *cached, *place, *logit_row;
    int32_t *page_table; /* [max_sequences, max_pages] of all steps so far */
    struct sample_row *sample;
    struct sample_change *changes; /* NULL: none */
    void *results;                 /* [max_logit_rows] of each of these, one after the other as the step has rows */
    int32_t *drawn;
    float *logprob, *label_loss;
    int32_t *top_token; /* [.., SAMPLE_MAX_TOP]; NULL: the step has none */
    float *top_logprob;
    float *logits;  /* [step_rows, vocab_stride] */
    void *rows;     /* [step_rows, C] gathered */
    float *whole;   /* [step_rows, whole_vocab_stride] of all tensor ranks, on the first of them */
    float *arrived; /* [step_rows, the widest other rank's vocab_stride] there, too */
    /* The results on their way to the host, by turns: at the first tensor rank of the last stage. */
    struct step_fetch {
        void *host; /* pinned: as `results` */
        struct event *has_arrived;
        int64_t rows;
        bool draws, has_top, has_labels;
    } fetches[MODEL_STEPS];
    int64_t fetched, given; /* steps */
    /* A stage before the last: what goes to the next one, by turns. */
    void *out[2]; /* [N, C] */
    struct comm_request sent[2];
    int turn;
};

/* The activations of a chunk for one micro batch, kept until their backward. */
struct model_stash {
    struct device_batch batch;
    struct block_saved *saved; /* [layers of a chunk]; without training all share one set */
    void *x_last;              /* [N, C] output of the last block; NULL where another stage goes on */
};

/* The rank's share of the model: its stage, and its part of what tensor ranks cut. */
struct model_share {
    bool has_embedding, has_head;
    int64_t lowest;            /* the layer where the backward ends, as nothing below it trains; -1: the embedding */
    bool activates_in_product; /* below it a product computes the activation, whose input needs no memory then */
    bool *is_held, *is_copy;   /* [table count] of the parameters */
    struct model_widths widths;
    int64_t first_head, first_token, vocab;
    int64_t vocab_stride; /* `vocab` rounded up, the row stride of logits */
    int64_t whole_vocab_stride;
};

/* Gradients of parameters that the first micro batch clears: ranges on the device, chunk by chunk. */
struct model_cleared {
    struct flat_range *ranges; /* NULL where nothing trains */
    float *x;                  /* the store's first gradient, from which ranges count */
    int end[MODEL_CHUNKS_MAX]; /* of a chunk's ranges */
};

/* The activations that forwards keep for their backwards. */
struct model_kept {
    struct model_stash *stashes; /* [stashes + 1] */
    struct block_saved *saved;   /* [stashes][layers of a chunk] */
    /* Layers whose backward is never run alternate between two sets, which differ only in x. Chunks with only such
     * layers use a stash of their own when others hold stashes. */
    struct block_saved passing[2];
    struct model_stash *passing_stash;
    int64_t first_layer;       /* of a chunk, counted from its first, that any chunk keeps something of */
    struct block_saved *again; /* [layers of a chunk] sets of layers that are computed again */
    /* The stash whose forward was the last to write to what stashes and layers share; NULL where something else has
     * written there since. */
    const struct model_stash *fresh;
};

/* Memory that one operation of a pass leaves for the next. */
struct model_scratch {
    void *branch;                            /* [N, C] result of attention or MLP before its residual; gradients */
    void *whole;                             /* [N, C] gathered, under sequence parallelism */
    void *virtual_rows;                      /* [virtual tokens, C] of several methods */
    void *final;                             /* [N, C] normalised */
    float *final_mean, *final_rstd, *losses; /* [N]; losses of the head's rows */
    double *loss_sum;
    void *logits;                              /* [head_rows, vocab_stride] */
    struct cross_entropy_part *parts, *joined; /* [tensor ranks, head_rows]; [head_rows] */
};

/* Gradients of activations, of the layer that a backward has come to. */
struct model_gradients {
    void *stream; /* [N, C] of the residual stream, where no neighbour gets it */
    void *norm;   /* [N, C] of a norm's output, [N, q] of the heads' */
    void *whole;  /* [N, C] still to be summed, under sequence parallelism */
    void *qkv;    /* [N, q + 2 kv] */
    void *turned; /* [N, q + kv] of queries and keys after their norms, if they have any */
    void *ffn;    /* [N, F] of the activation's output */
    void *fc1;    /* [N, fc1] of its input; `ffn` where that is as wide */
};

/* Cosines and sines of the angles by which queries and keys turn at each position; NULL where they do not. */
struct model_angles {
    int64_t positions;
    int columns;      /* of a head that turn; 0: none */
    float *cos, *sin; /* [positions, columns / 2] */
};

/* Which pass is on is nobody's to know here: `struct pass` is handed down. */
struct model {
    struct model_options options;
    struct rank *rank;
    struct model_share share;
    struct param_table table;
    struct param_store store;
    int token_table, position_table;
    struct block_params *blocks; /* [L] */
    struct norm_params final_norm;
    struct linear head;
    struct head_staging {
        int32_t *row, *source, *place, *labels; /* `row`: in the batch, -1 of fill */
        float *loss_weight;
    } staging; /* host, [max_rows] each: of the head's rows of a batch while it is uploaded */
    struct upload upload;
    void *activations; /* the block that everything below stands in */
    struct model_cleared cleared;
    struct model_kept kept;
    struct model_scratch scratch;
    struct model_gradients gradients;
    struct model_angles angles;
    struct device_step step;
    void *fetched_loss; /* host: a double */
};

static inline const struct ops_sizes *model_sizes(const struct model *model) {
    return model->rank->ops->sizes(model->rank->device);
}

/* One pass of a micro batch, or of a step of inference, through a chunk: what embedding, blocks and head work on. */
struct pass {
    struct model *model;
    struct model_pass asked; /* as the caller said; zero of inference */
    const struct model_chunk *chunk;
    const struct model_stash *stash;
    const struct device_batch *batch; /* in the stash */
    int64_t rows;                     /* of the batch; of the residual stream a rank may have but its share of them */
    void *d;       /* backward: [N, C] gradient of the residual stream, by turns of each layer's output and input */
    bool is_fresh; /* backward: what stashes and layers share is still as this pass's forward left it */
    const struct model_kv *kv; /* inference: keys and values go to and come from here */
    const struct device_step *step;
    int64_t max_pages;
    double seen; /* while planning a step: as in struct model_step_shape */
};

/* A pass over one of its blocks. */
struct block_pass {
    const struct pass *pass;
    int64_t layer;
    const struct block_saved *saved;
    void *out;      /* [N, C] */
    bool is_again;  /* for a backward, which needs no output */
    bool is_lowest; /* nobody wants the gradient of the block's input */
    bool is_fresh;  /* what stashes and layers share is still as this layer's forward left it */
};

/* Returns the address of an element of an array of the model's type; NULL while planning. */
static inline void *model_element(const struct model *model, void *base, int64_t element) {
    return base ? (char *)base + element * (int64_t)dtype_bytes(model->options.dtype) : NULL;
}

/* model.c */
struct model_stash *model_stash(struct model *model, int number);
static inline bool chunk_has_embedding(const struct model_chunk *chunk) {
    return chunk->first == 0;
}
static inline bool chunk_has_head(const struct model *model, const struct model_chunk *chunk) {
    return chunk->first + chunk->count == model->options.config.num_layers;
}

/* sizes.c */
/* Sets the group of layers of a chunk, counted from its first, that is recomputed together with `layer` from the input
 * of the group's first layer. Returns false when the stash keeps everything that the backward needs. */
bool model_recompute_group(const struct model *model, int stash, int64_t layer, int64_t *first, int64_t *end);
/* Whether something before the chunk wants the gradient of its input. */
static inline bool model_sends_gradient(const struct model *model, const struct model_chunk *chunk) {
    return chunk->first > 0 && chunk->first > model->share.lowest;
}
/* Whether the stash keeps something of the layer for its backward. */
bool model_keeps(const struct model *model, const struct model_chunk *chunk, int stash, int64_t layer);
void model_place_activations(struct model *model, struct arena *arena);
/* Bytes of the blocks that a pass or a step uploads into. */
size_t model_upload_bytes(const struct model *model);
/* Returns the row stride of logits for `tokens` tokens. */
static inline int64_t model_vocab_stride(int64_t tokens) {
    return (tokens + VOCAB_STRIDE_MULTIPLE - 1) / VOCAB_STRIDE_MULTIPLE * VOCAB_STRIDE_MULTIPLE;
}

/* clear.c */
size_t model_cleared_bytes(const struct model *model);
/* Once the gradients and the ranges have their memory. */
int model_upload_cleared(struct model *model);
int chunk_clear_gradients(const struct model *model, const struct model_chunk *chunk);

/* block.c */
int block_forward(const struct block_pass *pass);
/* The layer's prefix, of its hooks; 0 tokens: none. */
int block_prefix(const struct model *model, int64_t layer, int image, struct hook_prefix *prefix);
/* For `rows` rows of keys and values into the layer's pages; whoever calls it says where these are. */
struct kv_append model_kv_append(const struct model *model, const struct model_kv *kv, const int32_t *place,
                                 int64_t layer, int64_t rows);
/* pass->d holds the gradient of the block's output, then of its input. */
int block_backward(const struct block_pass *pass);
/* Sets share.activates_in_product; before activations are placed. */
int block_choose_activation(struct model *model);
size_t block_hook_saved_bytes(const struct model *model, int64_t layer, enum attach_place place);

/* heads.c: what queries and keys go through between their product and the attention. */
/* Columns of a head that turn with the position. */
int heads_turned_columns(const struct model_config *config);
/* Once the angles have their memory. */
int heads_upload_angles(struct model *model);
/* Returns the queries and keys for the attention, side by side, and their row stride. */
const void *heads_of(const struct block_pass *block, int64_t *stride);
/* Called after the product that wrote saved->qkv. */
int heads_forward(const struct block_pass *block);
/* Returns the place where the attention leaves the gradients of both, with the same stride. */
void *heads_gradient(const struct model *model);
/* From these to those of the product's output, in gradients.qkv. */
int heads_backward(const struct block_pass *block);

/* layers.c: the pieces that blocks, embedding and head share. */
/* A norm of the model's kind, and its two runs: they borrow its parameters. */
struct norm norm_call(const struct model *model, int64_t rows, int64_t columns);
int norm_run_forward(const struct model *model, const struct norm_params *norm, struct norm *call);
int norm_run_backward(const struct model *model, const struct norm_params *norm, struct norm *call);
/* `rows` of the residual stream: those of this rank. */
int norm_forward(const struct model *model, const struct norm_params *norm, int64_t rows, const void *x, void *y,
                 float *mean, float *rstd);
/* dx = gradient of x through the norm + dx_add. */
int norm_backward(const struct model *model, const struct norm_params *norm, int64_t rows, const void *x,
                  const float *mean, const float *rstd, const void *dy, const void *dx_add, void *dx);
/* y = residual + dropout(x), residual may be NULL; `site` as in model_dropout_site. */
int dropout_forward(const struct pass *pass, double p, uint32_t site, const void *residual, const void *x, void *y);
int dropout_backward(const struct pass *pass, double p, uint32_t site, const void *dy, void *dx);
static inline uint32_t model_dropout_site(int64_t layer, int is_mlp) {
    return (uint32_t)(1 + 2 * layer + is_mlp); /* 0 is the embedding */
}

/* head_rows.c: which rows of a batch go through the head. */
int head_staging_open(struct model *model);
void head_staging_close(struct model *model);
/* Chooses them, and puts their labels and weights on the device; `head` has its arrays. */
void head_rows_upload(struct model *model, const struct model_batch *batch, struct head_rows *head);
/* For when not all rows count. The forward makes their final norm, whole on every tensor rank, where the head reads it.
 * The backward makes pass->d of all rows, a part on every tensor rank, from the head's gradient there. In between
 * scratch.branch keeps their x_last. */
int head_rows_forward(const struct pass *pass);
int head_rows_backward(const struct pass *pass);
/* How many rows of a batch go through the head, with the fill; its own number where all do. */
int64_t head_rows_count(const struct model *model, const struct model_batch *batch);
/* losses [rows]: in, of the head's rows; out, of the batch's, 0 of those that are not among them. */
void head_rows_put_back(const struct model *model, const struct model_batch *batch, float *losses);

/* ends.c: embedding and head. */
/* Returns the number of ids that rows may have: the vocabulary, then the virtual tokens of all methods. */
int64_t embedding_ids(const struct model *model);
/* Bytes of scratch.virtual_rows; 0 where one method at most has virtual tokens, or another rank adds them. */
size_t embedding_virtual_bytes(const struct model *model);
int embedding_pass_forward(const struct pass *pass, void *x);
/* From pass->d. */
int embedding_pass_backward(const struct pass *pass);
/* Losses of the stash's x_last added to loss_sum; with `train` also pass->d and the head's gradients, logits chunk by
 * chunk. */
int head_pass(const struct pass *pass, bool train);
/* The losses of a call whose columns are cut over the tensor ranks; with `train` also its gradient. */
int head_join_loss(struct model *model, const struct cross_entropy *call, bool train);
/* Logits of rows [first, first + count) of scratch.final into scratch.logits. */
int head_logits(struct model *model, int64_t first, int64_t count);

/* units.c */
/* Unshards the weights of a unit (-1: the embedding, a layer's number, num_layers: the final norm and the head). */
int unit_begin(const struct pass *pass, int64_t unit, enum param_use use);
/* Reshards them after what ended with `status`, and returns the first failure. */
int unit_end(const struct pass *pass, int64_t unit, int status);
/* The same for all that the head reads: a tied head's weight is the embedding's. */
int head_begin(const struct pass *pass, enum param_use use);
int head_end(const struct pass *pass, int status);

/* pass.c: the batch stands in the stash. `use` is PARAM_FORWARD or PARAM_EVALUATION. */
int pass_forward(struct model *model, const struct model_pass *asked, enum param_use use, const void *x, void *y);
int pass_backward(struct model *model, const struct model_pass *asked, const void *dy, void *dx);
int pass_evaluate(struct model *model, int chunk, const void *x, void *y);

/* infer.c */
/* Inference has one chunk. */
static inline int64_t model_first_layer(const struct model *model) {
    return model->options.chunks[0].first;
}
static inline int64_t model_layers(const struct model *model) {
    return model->options.chunks[0].count;
}
int64_t model_kv_page_elements(const struct model *model);
/* An inference step while planning. */
int model_plan_step(struct model *model, const struct model_step_shape *shape);

/* results.c: on ranks where model_gives_results. */
size_t step_fetches_bytes(const struct model *model); /* of the host, that opening takes */
int step_open_fetches(struct model *model);
void step_close_fetches(struct model *model);
/* STATUS_INVALID where the results of MODEL_STEPS steps are not read yet. */
int step_check_fetches(const struct model *model);
/* Queues the step's results to the host, after the step. */
int step_fetch(struct model *model, const struct model_step *step);

#endif
