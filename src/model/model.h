/* The GPT: embedding, blocks of attention and MLP, head. A base is the model on one rank; runners compute with it.
 *
 * A base (struct base) is configuration, parameter table, store and linears of this rank's part. It owns no activation
 * and no scratch. Any number of runners borrow it. While a weight is borrowed nothing may change it; between steps only
 * the one training runner of a base with gradients may. A training runner has forward and backward in pairs, with their
 * activations, gradients of activations and FP8 state. An inference runner has a forward over a paged KV cache.
 *
 * Both are opened in two steps. A sketch fixes all sizes, adds its bytes to a plan and notes its work in the rank's
 * list. Then `allocate` takes the memory; nothing is allocated afterwards. Whoever opens runners on a rank gives the
 * rank its workspace (rank_allocate_workspace) once all of them, and other users such as the optimizer, are sketched.
 * All calls come from the rank's thread. The model knows no PEFT method: a runner has a hook table that a caller may
 * fill.
 *
 * Functions that return a status may return STATUS_MEMORY when they open something, the errors of the device, and those
 * of the communication (STATUS_PEER). Comments name the others.
 *
 * Letters: N rows of a flat batch, C hidden, H heads, D head size, F feed-forward, V vocabulary, L layers. */
#pragma once

#include "config/run.h"
#include "model/family.h"
#include "parallel/hook.h"
#include "parallel/schedule.h"

struct base;
struct training_runner;
struct inference_runner;

/* ---- options ---- */

/* The activations that the forward does not keep and the backward recomputes: Megatron-LM's recompute_granularity and
 * recompute_method. Dropout masks are never kept, because they follow from counters. */
enum recompute {
    RECOMPUTE_NONE,
    RECOMPUTE_SELECTIVE, /* the outputs of norms and activations, as chosen; attention keeps nothing large anyway */
    RECOMPUTE_UNIFORM,   /* every layer, in groups of num_layers: each group keeps only its input */
    RECOMPUTE_BLOCK,     /* the first num_layers layers, each in a group of one */
};
struct model_recompute {
    enum recompute how;
    int64_t num_layers;
    bool layernorm, mlp_act;
};

/* FP8 products by delayed scaling, as in TransformerEngine: those of qkv, projection, fc1 and fc2 of every layer. Their
 * inputs, weights and gradients of outputs are cast to FP8. `dtype` is then DTYPE_BF16. */
struct model_fp8_options {
    bool is_on;
    bool is_e4m3; /* gradients are E4M3 like inputs and weights, not E5M2 */
    bool is_most_recent;
    int margin;
    int64_t history_length; /* steps */
};

/* Layers first .. first + count - 1 that a micro batch goes through without leaving the rank; only a chunk with an end
 * of the model may have none. */
struct model_chunk {
    int64_t first, count;
};
enum { MODEL_CHUNKS_MAX = 64 };

struct base_options {
    struct model_config config; /* resolved */
    enum dtype dtype;           /* of weights and activations: DTYPE_F32 or DTYPE_BF16 */
    bool trains;                /* the parameters train and have gradients */
    /* A pipeline stage: its runs of layers, ascending; inference has one. The stage with the first layer has the
     * embedding, and the stage with the last layer has the head; but see below. 0: one run of all layers. */
    int chunk_count;
    struct model_chunk chunks[MODEL_CHUNKS_MAX];
    bool is_after_embedding, is_before_head; /* a stage without layers has that end */
    int layer_shards;                        /* each unit can be cut into this number of equal shards; 0: never cut */
    /* With a storage that cuts units (parallel/sharded.h): further layers that stay whole; a unit is gathered only when
     * it is needed; the backward waits for each sum of gradients. */
    int kept_units;
    bool gathers_wait, sums_wait;
    const struct storage *storage;           /* of the weights; NULL: whole */
    const struct param_encodings *encodings; /* of the weights' source, which outlives the sketch; NULL: plain */
};

/* Options of a training runner only. */
struct model_training {
    struct model_recompute recompute;
    struct model_fp8_options fp8;
    int64_t segment_rows; /* mean rows of a segment, by which planning counts attention; 0: a batch is one segment */
    int stashes;          /* the most (micro batch, chunk) pairs that wait for their backward at once; 0: 1 */
    /* With RECOMPUTE_BLOCK: stashes from this number on recompute all layers; 0: all stashes follow `recompute`. */
    int partial_stashes;
    bool has_row_losses; /* passes may have `weigh` */
    /* Evaluations of each batch before its own pass, for planning: with the hooks of training, and with others. */
    int evaluations, other_evaluations;
    const struct hook_table *other_hooks; /* NULL: none */
    int64_t head_rows;                    /* limit of rows that go through the head at a time; 0: the backend's */
};

/* Options of an inference runner only. */
struct model_inference {
    int64_t max_logit_rows;           /* the maximum number of rows of a step whose logits are wanted */
    int64_t max_changes;              /* the maximum number of changes of logits in a step, for all rows together */
    int64_t max_sequences, max_pages; /* the rows and columns of a step's page table */
    int64_t max_masks;                /* the maximum number of rows of a step with a mask */
};

/* A base, and a runner of it. */
struct model_options {
    struct base_options base;
    int64_t max_rows;               /* rows of the largest batch */
    int64_t max_positions;          /* positions of rows are below it; 0: the model's limit */
    const struct hook_table *hooks; /* of the runner, or NULL; must outlive it */
    struct rank *rank;              /* of the runner, which shares the base's place (rank_share); NULL: the base's */
    struct model_training train;
    struct model_inference infer;
};

/* True when the stage has the layer; -1: the embedding, num_layers: the head. */
bool model_has_layer(const struct base_options *options, int64_t layer);
/* Returns the layer where the backward ends because nothing below it trains; -1: the embedding; num_layers: nothing
 * trains. A layer with a hook counts as one that trains, also if the hook is of a frozen adapter. */
int64_t model_lowest_layer(const struct model_options *options);
/* True when a chunk that ends before layer `end` has a backward. A chunk below the lowest layer has none, and its
 * forward keeps nothing. The chunk with the head always has one. */
bool model_has_backward(const struct model_options *options, int64_t end);

/* The bytes of each part, exactly as they are allocated. It starts zeroed; a base and each of its runners add to it. */
struct model_plan {
    size_t weights, gradients, activations; /* of the device */
    size_t transfers;                       /* of the host, for copies to and from the device */
    size_t kv_page_bytes;                   /* inference: one page of keys and values, in all layers of this rank */
    int64_t parameters;                     /* elements that train */
    int64_t all_parameters;
    int64_t flat_elements; /* length of the store's flat arrays, for planning an optimizer */
    int64_t table_rows;    /* parameters of all stages, whether they train or not */
    size_t stream_bytes;   /* of the residual stream of the largest batch, which stages send each other */
};

/* ---- a base ---- */

/* Sketches a base: its table, and a store without memory. `rank` must be fresh, still planning, and outlives it.
 * STATUS_USAGE for a model that cannot be cut over the tensor ranks, STATUS_INVALID for impossible chunks. The caller
 * closes it, even after a failure, and after its runners. */
int base_sketch(const struct base_options *options, struct rank *rank, struct model_plan *plan, struct base **base);
/* Gives it its weights, zero until they are loaded or initialised, and its gradients. A base whose
 * storage has needs_fill stays without them until base_fill. */
int base_allocate(struct base *base);
/* Gives it its weights, one parameter after the other: see struct param_fill, whose stream is set here. Returns the
 * errors of `fill` too. */
int base_fill(struct base *base, struct param_fill fill);
/* Sketches and allocates a base that nothing else is planned with, and ends the planning of its rank. */
int base_open(const struct base_options *options, struct rank *rank, struct base **base);
/* NULL is allowed. */
void base_close(struct base *base);
/* Return parts of the base, which owns them. */
const struct param_table *base_table(const struct base *base);
struct param_store *base_store(struct base *base);
const struct model_config *base_config(const struct base *base);
/* Sets every parameter to its initial value, keyed by seed, name and element. */
int base_initialise(struct base *base, uint64_t seed);

/* Returns the model FLOPs of one token in training (3 times the forward). They are 6 per weight, counting a tied head
 * once and the position table not at all. Causal attention counts half: 6 * L * q * T, where q is the columns of all
 * heads. The forward by itself is a third. */
double model_flops_per_token(const struct model_config *config, int64_t seq_length);
/* Returns the head's share of it, which applies only to tokens whose loss counts. */
double model_head_flops_per_token(const struct model_config *config);

/* ---- training ---- */

/* Sketches a training runner of a base, with the options of its runner: options->base is that of the base.
 * STATUS_UNSUPPORTED when the backend lacks an operation; STATUS_USAGE for sizes that FP8 does not have. The caller
 * closes it, even after a failure. */
int training_sketch(const struct model_options *options, struct base *base, struct model_plan *plan,
                    struct training_runner **training);
/* Gives it its memory, after its base has its own. All ranks of a tensor group call it together. */
int training_allocate(struct training_runner *training);
/* NULL is allowed. */
void training_close(struct training_runner *training);
/* Returns the elements of the residual stream of the largest batch, on this rank. */
int64_t training_stream_elements(const struct training_runner *training);

/* A flat micro batch. All arrays are in host memory and are copied during the call. Rows belong to segments (whole
 * samples, or documents within a sample); a row sees the rows of its segment up to itself. */
struct model_batch {
    int64_t rows;
    const int32_t *tokens;    /* [N] */
    const int32_t *positions; /* [N] */
    const uint32_t *sample;   /* [N] number of the consumed sample, for dropout */
    const uint32_t *token;    /* [N] number of the row within its sample, for dropout */
    int64_t segments;
    const int64_t *segment_start; /* [S+1] */
    const int32_t *labels;        /* [N] 0 .. V-1, even if the weight is 0 */
    /* [N] factor of the row's loss in the sum, for example mask / label tokens of the global batch. Rows with 0 may
     * skip the head. */
    const float *loss_weight;
};

struct model_pass {
    int chunk;                 /* the chunk of the stage */
    int stash;                 /* the stash that holds its activations; below 0 for a chunk without a backward */
    bool is_first_micro_batch; /* the first backward of the chunk in a global batch: gradients are overwritten, not
                                  added to */
    bool is_last_micro_batch;  /* the last one: gradients of which tensor ranks have parts are summed and final */
    bool has_dropout;
    /* Called before each use of a unit's weights in this pass. The units are those before the layers (-1), each layer,
     * and those after the layers (num_layers). NULL: all weights have arrived. */
    int (*layer_needed)(void *context, int layer);
    /* Called in the backward as soon as this pass has added its whole part to the gradients of a layer's parameters.
     * The order is: parameters after the layers (num_layers), each layer from the last down, then those before the
     * layers (-1), as far as the chunk has them. NULL: not called. */
    int (*layer_done)(void *context, int layer);
    /* Called in the forward with the output of the embedding (-1) and of each layer: this rank's rows of the residual
     * stream, of a batch of `rows` rows. NULL: not called. */
    int (*layer_output)(void *context, int layer, const void *x, int64_t rows);
    /* Called by the head for a loss that is no weighted sum of its rows' losses; the runner has_row_losses. `values`
     * [count], in host memory: -log p(label) of each row, which it replaces by the gradient of the loss with respect to
     * it. `count` is the batch's rows; or less, and then they are the rows with a loss_weight, in order, and padding.
     * An evaluation ignores the gradient. The loss sum stays as it is. NULL: the loss is such a sum. */
    int (*weigh)(void *context, int64_t count, float *values);
    void *context;
};

/* The two halves of training on a micro batch, chunk by chunk. The arrays x, y, dy and dx are on the device: the rank's
 * rows of the residual stream, [N, C] in the model's type. STATUS_INVALID for a batch that the model was not opened
 * for, or with ids or positions that it does not have.
 *
 * The forward takes x, the output of the layer before, and gives y. No x exists (NULL) in the chunk with the embedding.
 * No y exists (NULL) in the chunk with the head, whose forward is part of its backward. The batch's segments must stay
 * until the backward. Layers below model_lowest_layer keep nothing. */
int model_forward(struct training_runner *training, const struct model_batch *batch, const struct model_pass *pass,
                  const void *x, void *y);
/* dy is the gradient of y. It is NULL in the chunk with the head, which adds sum(loss * loss_weight) to the device
 * number that model_loss reads. dx is that of x. It is NULL in the chunk with the embedding, and unchanged when nothing
 * before the chunk trains. */
int model_backward(struct training_runner *training, const struct model_pass *pass, const void *dy, void *dx);
/* Runs a forward without dropout in stash 0. The chunk with the head adds its losses to the same number, or calls
 * pass->weigh. Of *pass only chunk, weigh and context count. The errors of model_forward. */
int model_evaluate(struct training_runner *training, const struct model_batch *batch, const struct model_pass *pass,
                   const void *x, void *y);
/* The same of a chunk, without `weigh`. */
int model_evaluate_chunk(struct training_runner *training, const struct model_batch *batch, int chunk, const void *x,
                         void *y);

/* Units in the order of their use. */
struct unit_order {
    int *units; /* [count] */
    int64_t count;
};
/* Lists the units that steps [count] of this rank use. `is_forward_only`: the steps are those of an evaluation. It
 * needs no values: the model may be a sketch. The caller frees order->units. STATUS_MEMORY. */
int model_unit_order(struct training_runner *training, const struct pipeline_step *steps, int count,
                     bool is_forward_only, struct unit_order *order);

/* Sums the gradient of a tied table over the stages that have it. All stages call it after the last backward of a
 * global batch. */
int model_sum_tied_gradients(struct training_runner *training);

/* Describes the scales and histories of FP8 products, as parameters that checkpoints have: docs/formats.md names them.
 * None of them trains. The caller frees the table. STATUS_MEMORY. */
int model_fp8_describe(const struct model_config *config, int64_t history_length, struct param_table *table);
/* Returns the store of these values, which the model owns; NULL without FP8. */
struct param_store *model_fp8_store(struct training_runner *training);
/* Ends step number `step`, from 0 on: the largest sizes of the step go to the histories, and new scales follow. All
 * ranks call it after the last backward of a global batch. It does nothing without FP8. */
int model_fp8_end_step(struct training_runner *training, int64_t step);

/* Queues, on the stream, a copy of the loss sum to the host, and then clears it. */
int model_loss_fetch(struct training_runner *training);
/* Returns the loss sum that was fetched last, once the stream has run; 0 on a stage without the head. */
double model_fetched_loss(const struct training_runner *training);
/* Fetches the loss sum, waits for it, and sets *loss. */
int model_loss(struct training_runner *training, double *loss);
/* Computes the logits [N, V] in fp32 of a batch without dropout, in host memory: for tests and the uncached path. A
 * tensor rank sets only the columns of its part of the vocabulary. The errors of model_forward. */
int model_logits(struct training_runner *training, const struct model_batch *batch, float *logits);
/* The logits of some rows of a batch, in host memory. */
struct model_logits_part {
    int64_t first, count;
    float *logits; /* [count, V] */
};
/* The same of one chunk, as model_evaluate_chunk; a chunk with the head sets the part. */
int model_logits_chunk(struct training_runner *training, const struct model_batch *batch, int chunk, const void *x,
                       void *y, const struct model_logits_part *part);
/* Sets the hooks of the next passes, which have no backward: all that the runner was opened with, or some of them, or
 * none (NULL). Returns the hooks before. */
const struct hook_table *training_set_hooks(struct training_runner *training, const struct hook_table *hooks);

/* ---- inference ---- */

/* Sketches an inference runner of a base, whose stage is one run of layers, as training_sketch does. */
int inference_sketch(const struct model_options *options, const struct base *base, struct model_plan *plan,
                     struct inference_runner **inference);
/* Gives it its memory. Its base may get weights later. */
int inference_allocate(struct inference_runner *inference);
/* NULL is allowed. */
void inference_close(struct inference_runner *inference);

/* The masks of a step's rows. They may still be in the making when the step begins; only its draw needs them. */
struct model_masks {
    int64_t count; /* 0: none */
    /* Writes the masks [count, sample_mask_words(V)] to host memory. It is called once for each step that has any, on
     * the rank that gives results, when everything before the draw has been queued. Its failure fails the step. */
    int (*fill)(void *self, uint32_t *masks);
    void *self;
};

/* The rows of one engine step, of any sequences, with prefill and decode mixed. All arrays are in host memory and are
 * copied during the call. */
struct model_step {
    int64_t rows;
    const int32_t *tokens;    /* [N] ids; those after the vocabulary are hooks' virtual tokens */
    const int32_t *positions; /* [N] position ids */
    const int32_t *sequence;  /* [N] row of page_table */
    const int32_t *cached;    /* [N] index of the row in its sequence's cache: it sees 0 .. cached[i] */
    const int32_t
        *place; /* [N] page * KV_PAGE_TOKENS + token within it: the place for the row's key and value; -1: none */
    int64_t page_change_count;
    const struct id_change *page_changes; /* of the page table [max_sequences, max_pages], before the step */
    int64_t logit_rows;
    const int32_t *logit_row;        /* [logit_rows] rows whose logits are wanted */
    const struct sample_row *sample; /* [logit_rows] how to draw each token; NULL: nothing is drawn */
    int64_t change_count;            /* changes of logits; sample[i] names those of row i */
    const struct sample_change *changes;
    struct model_masks masks; /* sample[i] names that of row i */
    bool has_top;             /* with sample: some row requests the likeliest tokens */
    const int32_t *labels;    /* [logit_rows] also give log p(label); NULL: none */
};

struct model_step_result {
    int32_t *token;       /* [logit_rows] drawn; -1: none */
    float *logprob;       /* [logit_rows] of the drawn token; 0: none was drawn */
    float *label_logprob; /* [logit_rows] of step->labels; 0: there are none */
    int32_t *is_greedy;   /* [logit_rows] 1: the label is the likeliest token, and has the lowest id of equal ones */
    int32_t *top_token;   /* [logit_rows, SAMPLE_MAX_TOP] when the step has_top: the likeliest first; -1 for none */
    float *top_logprob;
};

/* Returns the results of `rows` rows as arrays that follow each other in a block. */
static inline struct model_step_result model_results_at(void *block, int64_t rows) {
    struct model_step_result result = {.token = block};
    result.logprob = (float *)(result.token + rows);
    result.label_logprob = result.logprob + rows;
    result.is_greedy = (int32_t *)(result.label_logprob + rows);
    result.top_token = result.is_greedy + rows;
    result.top_logprob = (float *)(result.top_token + rows * SAMPLE_MAX_TOP);
    return result;
}

/* Returns the bytes of the block; the likeliest tokens come last, and only on request. */
static inline size_t model_results_bytes(int64_t rows, bool has_top) {
    return (size_t)rows * (2 * sizeof(int32_t) + 2 * sizeof(float) +
                           (has_top ? SAMPLE_MAX_TOP * (sizeof(int32_t) + sizeof(float)) : 0));
}

/* A step for planning: its rows, the rows with logits, and how many tokens of its sequence a row sees on average. */
struct model_step_shape {
    int64_t rows, logit_rows;
    double seen;
};
/* Lists the work of such a step on this rank. Called between steps. The caller frees the list (work_free), even after a
 * failure. It lacks the work of adapters. STATUS_MEMORY. */
int model_step_work(struct inference_runner *inference, const struct model_step_shape *shape, struct work_list *list);

/* Returns the bytes of a cache of `page_count` pages: keys and values of this rank's layers and heads. */
size_t model_kv_bytes(const struct base *base, int64_t page_count);
/* Gives the runner its cache. Its contents are undefined. STATUS_MEMORY. */
int inference_open_pages(struct inference_runner *inference, int64_t page_count);
/* Zeroes the cache, so that its memory is there before the first step. */
int inference_touch_pages(struct inference_runner *inference);
/* Tokens first .. first + count - 1 of an image's prefix, which the hooks have, and their places as in struct
 * model_step. */
struct model_prefix_rows {
    int image;
    int64_t first, count; /* at most max_rows */
    const int32_t *place; /* [count] */
};
/* Puts keys and values of a prefix into pages. STATUS_INVALID for more tokens than max_rows. */
int model_kv_put_prefix(struct inference_runner *inference, const struct model_prefix_rows *rows);
/* The recorded steps that were replayed: their rows, padding included, and the rows that were asked for. */
struct model_replays {
    int64_t steps, rows, asked;
};
/* Returns the numbers since the opening. */
struct model_replays model_replays(const struct inference_runner *inference);
/* Records decode steps of 1, 2, 4 and so on up to `limit` rows, each of which wants logits. model_infer then replays
 * them. *count receives the number of records. Called once, on a rank that holds the whole model, on a device that
 * records (device_records). They write no keys and values. The device's failure. */
int model_record_steps(struct inference_runner *inference, int64_t limit, int *count);
/* Changes the page table without a step. */
int model_kv_change_pages(struct inference_runner *inference, const struct id_change *changes, int64_t count);
/* Runs one step; all ranks of the model call it together. The caller may change the step's arrays when it returns. A
 * stage may start the next step as soon as its part is done. Nothing is allocated. STATUS_INVALID for a step that the
 * model was not opened for, or when the results of MODEL_STEPS steps are not read yet. */
int model_infer(struct inference_runner *inference, const struct model_step *step);
/* True on the rank that gives results: the first tensor rank of the last stage. */
bool model_gives_results(const struct inference_runner *inference);
/* Returns how many wanted rows a step may have for model_step_logits to find all of them. */
int64_t model_step_logit_rows(const struct inference_runner *inference);
/* Waits for the oldest step whose results were not read yet, and returns them; the device may run the next step
 * meanwhile. At most MODEL_STEPS steps may have unread results. STATUS_INVALID when no step has any. */
enum { MODEL_STEPS = 2 };
int model_infer_results(struct inference_runner *inference, const struct model_step_result *result);
/* Copies the logits [rows, V] of the step whose results were read last to host memory, on the rank that gives results.
 * Tensor ranks need a step with `sample`. STATUS_INVALID for more rows than the head takes at a time. */
int model_step_logits(struct inference_runner *inference, int64_t rows, float *logits);
/* Called after the last step: waits until everything that was sent to the next stage has arrived. */
int model_infer_end(struct inference_runner *inference);
