/* Inside the model: where the activations of a batch lie, and the parts of the forward and backward pass. Functions
 * that return a status return the device's or the communication's errors, and STATUS_MEMORY if they open something. */
#pragma once

#include "kernels/algorithms.h"
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
    void *hooks[ATTACH_PLACE_COUNT];      /* memory that the hooks keep for their backward */
};

/* The rows that go through the head: the rows of a batch whose loss counts, in order, then padding. Or all rows, when
 * that is hardly more. The head processes only these, because the logits of other rows have no effect. */
struct head_rows {
    int64_t count;
    bool is_all;
    /* When not all rows count: `local` of these rows, from `first` on, lie in this rank's part of the residual stream.
     * Without sequence parallelism these are all rows, padding included. `source` has their places in the stream, -1
     * for padding. `place` maps the stream's rows to local rows, -1 for rows that do not count. */
    int64_t first, local;
    const int32_t *source; /* [local] */
    const int32_t *place;  /* [stream rows] */
    const int32_t *labels;
    const float *loss_weight; /* 0 for padding */
    struct row_keys keys;     /* of dropout in the head's hooks, if it has any; 0 for padding */
};

/* The rows of a batch, or of a step of inference, on the device: their ids, their places, and what they want. Rows of
 * segments attend within them. Without segments a row attends to the pages of its sequence. */
struct device_rows {
    void *block;
    int64_t rows, segments, longest; /* rows of the longest segment */
    const int64_t *segment_start;    /* [segments + 1] */
    int32_t *tokens, *positions;
    uint32_t *sample, *token;           /* keys of dropout; NULL in a step */
    int32_t *sequence, *cached, *place; /* of a step: as in struct model_step */
    struct head_rows head;
    int32_t *logit_row; /* of a step */
};

/* The same on the host, as in struct model_batch (it has segments) or in struct model_step (it has none). Rows up to
 * `padded` are added on the device: they see nothing, and their keys and values are stored nowhere. */
struct host_rows {
    int64_t rows, padded, segments;
    const int64_t *segment_start;
    const int32_t *tokens, *positions;
    const uint32_t *sample, *token;
    const int32_t *sequence, *cached, *place;
};

/* The arrays of a step of inference beside its rows. Arrays without a size come from the host, and belong to the step
 * that was uploaded last. */
struct device_step {
    int32_t *page_table; /* [max_sequences, max_pages] of all steps so far */
    struct change_ids page_changes;
    struct sample_row *sample;
    struct sample_change *changes; /* NULL: none */
    uint32_t *masks;               /* [max_masks, sample_mask_words]; on the rank that gives results */
    void *results;                 /* the block of max_logit_rows rows */
    struct model_step_result at; /* its arrays, for as many rows as the step has; label_logprob: the loss. top_token is
                                    NULL where the step has none */
    float *logits;               /* [step_rows, vocab_stride] */
    void *rows;                  /* [step_rows, C] the rows whose logits are wanted */
    float *whole; /* [step_rows, whole_vocab_stride] the logits of all tensor ranks; on the first tensor rank */
    float
        *arrived; /* [tensor ranks - 1, step_rows, the largest vocab_stride] the others' parts; also on the first one */
    struct comm_request *parts; /* [tensor ranks] as they arrive; NULL elsewhere */
    /* The results on their way to the host; steps alternate. Used on the first tensor rank of the last stage. */
    struct step_fetch {
        void *host;      /* pinned: as `results`, and `masks` */
        uint32_t *masks; /* of the step */
        struct event *has_arrived;
        int64_t rows, stride; /* wanted rows; rows of each array */
        bool draws, has_top, has_labels;
    } fetches[MODEL_STEPS];
    int64_t fetched, given; /* steps whose results were queued, and steps whose results were read */
    struct stream *up;      /* copies masks to the device while it computes logits; NULL: there are none */
    struct event *has_masks;
    /* On a stage before the last: the rows for the next stage; steps alternate. */
    void *out[2]; /* [N, C] */
    struct comm_request sent[2];
    int turn;
};

/* A decode step of `rows` rows that was recorded. Fewer rows are padded. */
struct step_record {
    int64_t rows;
    int level; /* of hooks: see struct hook_upload */
    struct recording *recording;
    /* The same in two parts for a step with masks: what comes before the draw, which can begin while masks are being
     * made, and the rest. On ranks that do not draw, `before` is NULL. */
    struct recording *before, *rest;
};
enum { STEP_RECORDS_MOST = 24 * (1 + HOOK_LEVELS_MOST) };

/* The activations of a chunk for one micro batch, kept until their backward. */
struct model_stash {
    struct device_rows batch;
    struct block_saved *saved; /* [layers of a chunk]; without training all layers share one set */
    void *x_last;              /* [N, C] output of the last block; NULL if another stage continues */
};

/* The rank's part of the model: its stage, and its part of everything that is cut over tensor ranks. */
struct base_part {
    bool has_embedding, has_head;
    bool *is_held, *is_copy; /* [table count] of the parameters */
    struct model_widths widths;
    int64_t first_head, first_token, vocab;
    int64_t vocab_stride; /* `vocab` rounded up, the row stride of logits */
    int64_t whole_vocab_stride;
};

/* Runners borrow it, and change nothing in it but the gradients and values in its store. */
struct base {
    struct base_options options;
    struct rank *rank;
    struct base_part part;
    struct param_table table;
    struct param_store store;
    int token_table, position_table;
    struct block_params *blocks; /* [L] */
    struct norm_params final_norm;
    struct linear head;
};

/* The gradients that the first micro batch clears: ranges on the device, chunk by chunk. */
struct model_cleared {
    struct flat_range *ranges; /* NULL if nothing trains */
    float *x;                  /* the store's first gradient; ranges are counted from it */
    int end[MODEL_CHUNKS_MAX]; /* end of each chunk's ranges */
};

/* The activations that forwards keep for their backwards. */
struct model_kept {
    struct model_stash *stashes; /* [stashes + 1] */
    struct block_saved *saved;   /* [stashes][layers of a chunk] */
    /* Layers without a backward alternate between two sets, which differ only in x. Chunks with only such layers use
     * transient_stash: an extra one when other chunks hold stashes. */
    struct block_saved transient[2];
    struct model_stash *transient_stash;
    int64_t first_layer;       /* the first layer, counted within its chunk, of which any chunk keeps something */
    struct block_saved *again; /* [layers of a chunk] sets for layers that are recomputed */
    /* The stash whose forward was the last to write to the memory that stashes and layers share; NULL if anything else
     * has written there since. */
    const struct model_stash *fresh;
};

/* Memory through which an operation of a pass gives its result to the next one. */
struct model_scratch {
    void *branch;                            /* [N, C] result of attention or MLP before its residual; gradients */
    void *whole;                             /* [N, C] gathered, under sequence parallelism */
    void *virtual_rows;                      /* [virtual tokens, C] of several methods */
    void *final;                             /* [N, C] the output of the final norm */
    float *final_mean, *final_rstd, *losses; /* [N]; losses of the head's rows */
    double *loss_sum;
    void *logits;                              /* [head_rows, vocab_stride] of head_logits_type */
    struct cross_entropy_part *parts, *joined; /* [tensor ranks, head_rows]; [head_rows] */
    void *head_hooks;                          /* memory that the head's hooks keep for their backward */
};

/* Gradients of activations, in the layer where a backward is. */
struct model_gradients {
    void *stream; /* [N, C] of the residual stream, if it is not sent to a neighbour */
    void *norm;   /* [N, C] of a norm's output, or [N, q] of the heads' output */
    void *whole;  /* [N, C] this rank's part of a sum, under sequence parallelism */
    void *qkv;    /* [N, q + 2 kv] */
    void *turned; /* [N, q + kv] of queries and keys after their norms, if they have any */
    void *ffn;    /* [N, F] of the activation's output */
    void *fc1;    /* [N, fc1] of the activation's input; the same as `ffn` if the sizes are equal */
};

/* Cosines and sines of the angles by which queries and keys are rotated at each position; NULL without rotation. */
struct model_angles {
    int64_t positions;
    int columns;      /* of a head that are rotated; 0: none */
    float *cos, *sin; /* [positions, columns / 2] */
};

/* A base and the activations of a runner: every pass needs both. */
struct runner {
    const struct base *base;
    struct rank *rank;
    const struct hook_table *hooks; /* or NULL */
    int64_t max_rows, max_positions;
    int64_t head_rows; /* limit of rows of the head at a time; 0: none */
    int64_t lowest;    /* the layer where the backward ends because nothing below it trains; -1: the embedding */
    bool activates_in_product; /* below `lowest`, fc1's product also computes the activation, so its input needs no
                                  memory */
    struct model_recompute recompute;
    struct fp8_linear *fp8; /* [layers of the stage][FP8_PLACES]; NULL: no FP8 */
    struct upload upload;
    size_t activation_bytes;
    void *activations; /* the block that holds everything below, and the other arrays of the runner */
    struct model_scratch scratch;
    struct model_gradients gradients;
    struct model_angles angles;
};

/* The state of FP8 products. A layer has FP8_OPERANDS rows of FP8_PLACES tensors, in this order everywhere. */
enum { FP8_PLACES = ATTACH_FC2 - ATTACH_QKV + 1, FP8_TENSORS = FP8_OPERANDS * FP8_PLACES };
struct model_fp8 {
    struct param_table table; /* of model_fp8_describe */
    struct param_store store;
    bool *is_held;  /* [table count] */
    int64_t layers; /* of the stage */
    float *amax;    /* [layers][FP8_TENSORS] of this step */
    void *weights;  /* the block of cast weights; NULL: weights are cut, and cast before each use */
};

struct training_runner {
    struct runner run;
    struct model_training options;
    struct head_staging {
        int32_t *row, *source, *place, *labels; /* `row`: in the batch, -1 for padding */
        float *loss_weight;
        uint32_t *sample, *token;
    } staging; /* host, [max_rows] each: the head's rows of a batch while it is uploaded */
    struct model_cleared cleared;
    struct model_kept kept;
    struct model_fp8 fp8;
    void *fetched_loss; /* host: a double */
    float *row_losses;  /* host: [2, max_rows] if options.has_row_losses: losses, and what is made of them */
};

/* The KV cache of this rank's layers and heads: one block of [layers][page_count] pages. */
struct model_kv {
    void *pages; /* device; NULL while planning */
    int64_t page_count;
};

struct inference_runner {
    struct runner run;
    struct model_kv kv;
    struct model_inference options;
    struct model_stash stash;
    struct device_step step;
    struct step_record records[STEP_RECORDS_MOST]; /* ascending */
    int record_count;
    struct step_record *divided; /* the one that is being recorded in parts; NULL: none, or no longer */
    struct model_replays replays;
};

static inline const struct ops_sizes *model_sizes(const struct runner *run) {
    return run->rank->ops->sizes(run->rank->device);
}

/* One pass of a micro batch, or of a step of inference, through a chunk. Embedding, blocks and head get it. */
struct pass {
    struct runner *run;
    struct training_runner *training;   /* NULL in inference */
    struct inference_runner *inference; /* NULL in training */
    struct model_pass asked;            /* as the caller gave it; zero in inference */
    const struct model_chunk *chunk;
    const struct model_stash *stash;
    const struct device_rows *batch; /* in the stash */
    int64_t rows;                    /* of the batch; a rank may have only its share of them in the residual stream */
    void *d;       /* backward: [N, C] gradient of the residual stream: of each layer's output, then of its input */
    bool is_fresh; /* backward: the memory that stashes and layers share still has the results of this pass's forward */
    double seen;   /* while planning a step: as in struct model_step_shape */
};

/* A pass through one block. */
struct block_pass {
    const struct pass *pass;
    int64_t layer;
    const struct block_saved *saved;
    void *out;      /* [N, C] */
    bool is_again;  /* recomputes for a backward, which needs no output */
    bool measures;  /* a forward of training, whose tensors count for the scales of FP8 */
    bool is_lowest; /* the gradient of the block's input is not needed */
    bool is_fresh;  /* the memory that stashes and layers share still has the results of this layer's forward */
};

/* Returns the address of an element of an array of the model's type; NULL while planning. */
static inline void *model_element(const struct runner *run, void *start, int64_t element) {
    return start ? (char *)start + element * (int64_t)dtype_bytes(run->base->options.dtype) : NULL;
}

/* Returns the address of a row of the residual stream, in the same way. */
static inline void *model_row(const struct runner *run, void *start, int64_t row) {
    return model_element(run, start, row * run->base->options.config.hidden_size);
}
/* Returns the bytes of this rank's rows of the residual stream, of `rows` rows in all. */
static inline size_t model_stream_bytes(const struct runner *run, int64_t rows) {
    return (size_t)(rank_stream_rows(run->rank, rows) * run->base->options.config.hidden_size) *
           dtype_bytes(run->base->options.dtype);
}

/* base.c */
static inline bool chunk_has_embedding(const struct base *base, const struct model_chunk *chunk) {
    return base->part.has_embedding && chunk->first == 0;
}
static inline bool chunk_has_head(const struct base *base, const struct model_chunk *chunk) {
    return base->part.has_head && chunk->first + chunk->count == base->options.config.num_layers;
}
/* Returns the maximum number of layers of a chunk: what each stash has places for. */
static inline int64_t base_chunk_layers(const struct base *base) {
    int64_t most = 0;
    for (int c = 0; c < base->options.chunk_count; c++)
        most = base->options.chunks[c].count > most ? base->options.chunks[c].count : most;
    return most;
}

/* runner.c */
/* Begins a runner: sets what it has in common with others, from the options. */
void runner_begin(struct runner *run, const struct base *base, const struct model_options *options);
/* Plans batches of 1, 2, 4 and so on up to max_rows: every operation enters the rank's list of work. Only the backend
 * knows which shape needs the largest scratch. But only the work of the largest batch counts. */
int runner_plan(struct runner *run, int (*plan)(void *self, int64_t rows), void *self);
/* Allocates the block of activations, whose bytes were planned. */
int runner_allocate(struct runner *run);
/* Opens the uploads of `bytes`, and uploads the angles. */
int runner_open_uploads(struct runner *run, size_t bytes);
void runner_close(struct runner *run);

/* pass.c */
/* Logits on the device: columns first .. first + count - 1 of the vocabulary. */
struct logits_view {
    const void *logits; /* [rows, stride] */
    enum dtype type;
    int64_t rows, stride, first, count;
};
/* Copies them to those columns of out [rows, vocab] in host memory, as fp32. STATUS_MEMORY. */
int logits_fetch(struct rank *rank, const struct logits_view *from, int64_t vocab, float *out);

/* stage.c */
struct model_stash *training_stash(struct training_runner *training, int number);
/* True when the chunk has a backward: see model_has_backward. */
static inline bool chunk_has_backward(const struct runner *run, const struct model_chunk *chunk) {
    int64_t end = chunk->first + chunk->count;
    return end > run->lowest || end == run->base->options.config.num_layers;
}

/* sizes.c */
/* Sets the group of layers of a chunk of `layers`, counted from its first, that is recomputed together with `layer`
 * from the input of the group's first layer. Returns false when the stash keeps everything that the backward needs. */
bool model_recompute_group(const struct training_runner *training, int64_t layers, int stash, int64_t layer,
                           int64_t *first, int64_t *end);
/* True when something before the chunk needs the gradient of the chunk's input. */
static inline bool model_sends_gradient(const struct runner *run, const struct model_chunk *chunk) {
    return !chunk_has_embedding(run->base, chunk) && chunk->first > run->lowest;
}
/* True when the stash keeps anything of the layer for its backward. */
bool model_keeps(const struct training_runner *training, const struct model_chunk *chunk, int stash, int64_t layer);
/* Place the activations of a runner. */
void training_place(struct training_runner *training, struct arena *arena);
void inference_place(struct inference_runner *inference, struct arena *arena);
/* Return the bytes of the block into which a micro batch, or a step, is uploaded. */
size_t training_upload_bytes(const struct runner *run);
size_t inference_upload_bytes(const struct inference_runner *inference);
/* Returns the row stride of logits for `tokens` tokens. */
static inline int64_t model_vocab_stride(int64_t tokens) {
    return (tokens + VOCAB_STRIDE_MULTIPLE - 1) / VOCAB_STRIDE_MULTIPLE * VOCAB_STRIDE_MULTIPLE;
}

/* rows.c */
/* Adds an array to the upload, with `pad` after its `count` elements until it has `padded`; each has `width` bytes.
 * Returns its place on the device. */
void *upload_add_padded(struct upload *upload, const void *from, int64_t count, int64_t padded, const void *pad,
                        size_t width);
/* Adds the arrays of rows to an upload that has begun, and sets their places. */
void rows_upload(struct upload *upload, const struct host_rows *from, struct device_rows *to);

/* clear.c */
size_t model_cleared_bytes(const struct training_runner *training);
/* Uploads the ranges, once they and the gradients have their memory. STATUS_MEMORY. */
int model_upload_cleared(struct training_runner *training);
int chunk_clear_gradients(const struct training_runner *training, const struct model_chunk *chunk);

/* block.c */
int block_forward(const struct block_pass *pass);
/* Gets the layer's prefix from its hooks; 0 tokens: none. */
int block_prefix(const struct runner *run, int64_t layer, int image, struct hook_prefix *prefix);
/* Returns the operation that puts `rows` rows of keys and values into the layer's pages. The caller sets their
 * addresses. */
struct kv_append model_kv_append(const struct inference_runner *inference, const int32_t *place, int64_t layer,
                                 int64_t rows);
/* Replaces the gradient of the block's output, in pass->d, by that of its input. */
int block_backward(const struct block_pass *pass);
/* Sets share.activates_in_product. Called before activations are placed. */
int block_choose_activation(struct runner *run);
size_t block_hook_saved_bytes(const struct runner *run, int64_t layer, enum attach_place place);

/* heads.c: norms and rotation of queries and keys, between their product and the attention. */
/* Returns the columns of a head that are rotated by an angle that depends on the position. */
int heads_turned_columns(const struct model_config *config);
/* Uploads the angles, once they have their memory. */
int heads_upload_angles(struct runner *run);
/* Returns the queries and keys for the attention, side by side, and their row stride. */
const void *heads_of(const struct block_pass *block, int64_t *stride);
/* Called after the product that wrote saved->qkv. */
int heads_forward(const struct block_pass *block);
/* Returns the place where the attention leaves the gradients of both, with the same stride. */
void *heads_gradient(const struct runner *run);
/* Computes from these the gradients of the product's output, in gradients.qkv. */
int heads_backward(const struct block_pass *block);

/* fp8.c: FP8 products; without them these functions do nothing. */
/* Makes the state, before the model is planned. STATUS_USAGE for sizes that FP8 does not have; STATUS_UNSUPPORTED when
 * the backend lacks its operations. */
int fp8_sketch(struct training_runner *training);
/* Returns the device bytes of scales, histories and cast weights. */
size_t fp8_weight_bytes(const struct training_runner *training);
/* Places the rest among the activations. */
void fp8_place(struct training_runner *training, struct arena *arena);
/* Takes the memory of fp8_weight_bytes, after the activations are placed: all scales are 1, and histories 0. */
int fp8_open(struct training_runner *training);
void fp8_close(struct training_runner *training);
/* Returns a linear of a layer; NULL without FP8. */
struct fp8_linear *fp8_linear_at(const struct runner *run, int64_t layer, enum attach_place place);
/* Returns true if norms write the inputs of FP8 products. They do not where the ranks' rows are gathered in between. */
bool fp8_has_norms(const struct runner *run);

/* layers.c: the parts that blocks, embedding and head share. */
/* Borrow the parameters of a norm and run it, over rows of this rank's part of the residual stream unless `cols` is
 * set. The caller sets rows, x, mean and rstd; forward y; backward dy, dx and dx_add; and what other columns need. */
int norm_forward(const struct runner *run, const struct norm_params *norm, const struct norm *arguments);
int norm_backward(const struct runner *run, const struct norm_params *norm, const struct norm *arguments);
/* Computes y = residual + dropout(x); residual may be NULL. `site`: see model_dropout_site. */
int dropout_forward(const struct pass *pass, double p, uint32_t site, const void *residual, const void *x, void *y);
int dropout_backward(const struct pass *pass, double p, uint32_t site, const void *dy, void *dx);
static inline uint32_t model_dropout_site(int64_t layer, int is_mlp) {
    return (uint32_t)(1 + 2 * layer + is_mlp); /* 0 is the embedding */
}

/* head_rows.c: the rows of a batch that go through the head. */
int head_staging_open(struct training_runner *training);
void head_staging_close(struct training_runner *training);
/* Chooses the rows, and uploads their labels and weights; `head` receives the arrays. */
void head_rows_upload(struct training_runner *training, const struct model_batch *batch, struct head_rows *head);
/* For batches in which not all rows count. The forward computes the final norm of the rows that do, whole on every
 * tensor rank, where the head reads it. The backward computes pass->d of all rows from the head's gradient, of which
 * each tensor rank has a part. In between, scratch.branch keeps the rows' x_last. */
int head_rows_forward(const struct pass *pass);
int head_rows_backward(const struct pass *pass);
/* Returns how many rows go through the head, padding included; batch->rows when all do. */
int64_t head_rows_count(const struct runner *run, const struct model_batch *batch);

/* ends.c: embedding and head. */
/* Returns the number of ids that rows may have: the vocabulary, then the virtual tokens of all methods. */
int64_t embedding_ids(const struct runner *run);
/* Returns the bytes of scratch.virtual_rows; 0 when at most one method has virtual tokens, or another rank adds them.
 */
size_t embedding_virtual_bytes(const struct runner *run);
int embedding_pass_forward(const struct pass *pass, void *x);
/* Computes the gradients of the embedding's parameters from pass->d. */
int embedding_pass_backward(const struct pass *pass);
/* Adds the losses of the stash's x_last to loss_sum, in chunks of rows. With `train` it also computes pass->d and the
 * head's gradients. */
int head_pass(const struct pass *pass, bool train);
/* Computes the losses of logits whose columns are cut over the tensor ranks; with `train` also their gradient. */
int head_join_loss(struct runner *run, const struct cross_entropy *call, bool train);
/* Returns the type of training's logits: fp32, as in inference, where rows have the same bits in every batch. */
enum dtype head_logits_type(const struct runner *run);
/* Returns the rows of the head at a time. A frozen base in bf16 takes a quarter of them, because its logits are fp32. A
 * head that trains keeps them all: it would add to its weight gradients twice as often. */
int64_t head_rows_most(const struct runner *run);
/* Computes the final norm of the head's rows, where the head reads it. */
int final_norm_forward(const struct pass *pass);
/* Computes the logits of rows [first, first + count) of scratch.final, in scratch.logits. */
int head_logits(const struct pass *pass, int64_t first, int64_t count);
/* Returns the hooks of the head. */
static inline const struct hook_list *head_hooks(const struct runner *run) {
    return hook_table_list(run->hooks, run->base->options.config.num_layers, ATTACH_HEAD);
}
/* Returns the bytes that they keep of the rows that the head takes at a time. */
size_t head_hook_saved_bytes(const struct runner *run);

/* units.c */
/* Waits until the weights of a unit have arrived, and unshards them (-1: the embedding, a layer's number, num_layers:
 * the final norm and the head). For PARAM_BACKWARD, gradients that are cut get memory for this micro batch. */
int unit_begin(const struct pass *pass, int64_t unit, enum param_use use);
/* Reshards them. `status` is the result of the work on them; returns the first failure. */
int unit_end(const struct pass *pass, int64_t unit, int status);
/* Starts the sum of a unit's gradients over the ranks once they are final. It does nothing where gradients are whole.
 */
int unit_end_gradients(const struct pass *pass, int64_t unit);
/* unit_begin and unit_end for all weights that the head reads: a tied head's weight belongs to the embedding. */
int head_begin(const struct pass *pass, enum param_use use);
int head_end(const struct pass *pass, int status);

/* pass.c: the batch is in the stash. `use` is PARAM_FORWARD or PARAM_EVALUATION. See model_forward for x and y. */
int pass_forward(struct training_runner *training, const struct model_pass *asked, enum param_use use, const void *x,
                 void *y);
/* A forward without a backward, and the head's loss. */
int pass_evaluate(struct training_runner *training, const struct model_pass *asked, const void *x, void *y);
/* Layers first .. end - 1 of a chunk, counted within it. */
struct layer_group {
    int64_t first, end;
};
/* Returns true if the backward of `layer` begins with a second forward of a group, whose last layer it is. The group
 * kept only its input. The chunk's last group needs no second forward while the results of the first are still there
 * (`is_fresh`). */
bool model_runs_again(const struct training_runner *training, const struct model_chunk *chunk, int stash, int64_t layer,
                      bool is_fresh, struct layer_group *group);

/* infer.c */
/* Return the layers of the rank: inference has one chunk. */
static inline int64_t base_first_layer(const struct base *base) {
    return base->options.chunks[0].first;
}
static inline int64_t base_layers(const struct base *base) {
    return base->options.chunks[0].count;
}
/* Plans a step of inference. */
int model_plan_step(struct inference_runner *inference, const struct model_step_shape *shape);

/* Uploads the arrays of a step, at the same places for all steps of a record. `record` may be NULL. */
int step_upload(struct inference_runner *inference, const struct model_step *step, const struct step_record *record);
/* Queues the work of a step that was uploaded, as far as its results on the device. */
int step_run(struct inference_runner *inference, const struct model_step *step);

/* records.c */
void step_close_records(struct inference_runner *inference);

/* results.c: on ranks where model_gives_results. */
size_t step_fetches_bytes(const struct inference_runner *inference); /* of host memory, which step_open_fetches takes */
int step_open_fetches(struct inference_runner *inference);
void step_close_fetches(struct inference_runner *inference);
/* STATUS_INVALID when the results of MODEL_STEPS steps are not read yet. */
int step_check_fetches(const struct inference_runner *inference);
/* Lets the step's masks be written, and queues their copy to the device, for which the draw waits. */
int step_put_masks(struct inference_runner *inference, const struct model_masks *masks);
/* Comes before the draw: divides a record there, or puts the masks. */
int step_meet_masks(struct inference_runner *inference, const struct model_masks *masks);
/* Returns the bytes of a step's masks. */
static inline size_t step_masks_bytes(const struct inference_runner *inference) {
    int64_t words = sample_mask_words(inference->run.base->options.config.vocab_size);
    return (size_t)(inference->options.max_masks * words) * sizeof(uint32_t);
}
/* Queues the copy of the step's results to the host, after the step. `record` ran it, or NULL. */
int step_fetch(struct inference_runner *inference, const struct model_step *step, const struct step_record *record);
