/* The GPT: embedding, blocks of attention and MLP, head; forward and backward in pairs, and the forward over a paged
 * KV cache for inference.
 *
 * A model is opened for one rank: it owns its parameter table and store (weights, gradients) and, for training, one
 * block of activations. Sizes are fixed at the opening (`max_rows` of a batch); nothing is allocated afterwards. All
 * calls come from the rank's thread. The model knows no PEFT method: it has places, and a hook table that a caller may
 * fill.
 *
 * Letters: N rows of a flat batch, C hidden, H heads, D head size, F feed-forward, V vocabulary, L layers. */
#ifndef CAMBIUM_MODEL_MODEL_H
#define CAMBIUM_MODEL_MODEL_H

#include "config/run.h"
#include "model/family.h"
#include "parallel/hook.h"

struct model;

/* ---- a model ---- */

enum model_use { MODEL_TRAIN, MODEL_EVALUATE, MODEL_INFER };

/* The activations that the forward does not keep and the backward computes again: Megatron-LM's recompute_granularity
 * and recompute_method. Dropout needs no keeping, its masks follow from counters. */
enum recompute {
    RECOMPUTE_NONE,
    RECOMPUTE_SELECTIVE, /* the outputs of norms and activations, as chosen; attention keeps nothing big anyway */
    RECOMPUTE_UNIFORM,   /* every layer, num_layers at a time: of each such group its input alone is kept */
    RECOMPUTE_BLOCK,     /* the first num_layers layers, one at a time */
};
struct model_recompute {
    enum recompute how;
    int64_t num_layers;
    bool layernorm, mlp_act;
};

/* Layers first .. first + count - 1 that a micro batch goes through without leaving the rank. */
struct model_chunk {
    int64_t first, count;
};
enum { MODEL_CHUNKS_MAX = 64 };

/* Options of MODEL_TRAIN alone. */
struct model_training {
    bool is_frozen; /* nothing of the model trains, only what hooks have; there are no gradients */
    struct model_recompute recompute;
    int64_t segment_rows; /* of a batch, in the mean: planning counts attention by it; 0: all rows are one segment */
    int stashes;          /* micro batches of chunks that are held for their backward at once; 0: 1 */
    /* With RECOMPUTE_BLOCK: stashes from this one on recompute all layers; 0: all stashes are as `recompute` says. */
    int partial_stashes;
    int layer_shards; /* each unit can be cut into this number of equal shards; 0: never cut */
};

/* Options of MODEL_INFER alone. */
struct model_inference {
    int64_t max_logit_rows;           /* rows whose logits one step may want */
    int64_t max_changes;              /* of logits, of all rows of a step */
    int64_t max_sequences, max_pages; /* of a step's page table */
};

struct model_options {
    struct model_config config; /* resolved */
    enum dtype dtype;           /* of weights and activations: DTYPE_F32 or DTYPE_BF16 */
    enum model_use use;
    int64_t max_rows;      /* rows of the largest batch */
    int64_t max_positions; /* that rows may have; 0: the model's */
    /* A pipeline stage: its runs of layers, ascending; one of them for MODEL_INFER. Who has the first layer has the
     * embedding, who has the last one the head. 0: one run of all layers. */
    int chunk_count;
    struct model_chunk chunks[MODEL_CHUNKS_MAX];
    struct model_training train;
    struct model_inference infer;
    const struct hook_table *hooks; /* or NULL; must outlive the model */
    const struct storage *storage;  /* of the weights; NULL: packed for MODEL_INFER, whole otherwise */
};

/* Whether the layer is the stage's. */
bool model_has_layer(const struct model_options *options, int64_t layer);
/* The layer where the backward ends, as nothing below it trains; -1: the embedding; num_layers: nothing trains.
 */
int64_t model_lowest_layer(const struct model_options *options);
/* Whether a chunk that ends before layer `end` has a backward: below the lowest layer there is none, and its forward
 * keeps nothing; but the head is part of it. */
bool model_has_backward(const struct model_options *options, int64_t end);

/* Bytes of each part; what model_open allocates is exactly this. */
struct model_plan {
    size_t weights, gradients, activations, workspace; /* the device's */
    size_t transfers;                                  /* the host's, which copies from and to the device go through */
    size_t kv_page_bytes; /* MODEL_INFER: of a page of keys and values, in all layers of this rank */
    int64_t parameters;   /* elements that train */
    int64_t all_parameters;
    int64_t flat_elements; /* length of the store's flat arrays: what an optimizer plans by */
    int64_t table_rows;    /* parameters of all stages, whether they train or not */
    size_t stream_bytes;   /* of the largest batch between two layers: what stages send each other */
};

/* `rank` must be planning (fresh); its workspace is allocated here, so whoever else uses it (the optimizer) notes its
 * needs before. With `only_plan` nothing is allocated and *model stays NULL. Weights are zero until they are loaded or
 * initialised; those of MODEL_INFER are not there before model_fill. */
int model_open(const struct model_options *options, struct rank *rank, bool only_plan, struct model_plan *plan,
               struct model **model);
/* The same without memory and without weights, for whoever plans what stands on the model: model_store is a sketch. */
int model_sketch(const struct model_options *options, struct rank *rank, struct model_plan *plan, struct model **model);
void model_close(struct model *model);
/* Elements of the residual stream of the largest batch, on this rank. */
int64_t model_stream_elements(const struct model *model);
const struct param_table *model_table(const struct model *model);
struct param_store *model_store(struct model *model);
const struct model_config *model_config_of(const struct model *model);

/* Sets every parameter to its initial value (keyed by seed, name, element). */
int model_initialise(struct model *model, uint64_t seed);

/* MODEL_INFER: gives the model its weights, one parameter after the other: see struct param_fill. */
int model_fill(struct model *model, int (*fill)(void *context, int id), void *context);

/* Returns the model FLOPs of one token in training (3 times the forward). They are 6 per weight, tied head once,
 * position table not. Causal attention counts half: 6 * L * q * T, where q is the columns of all heads. Forward alone
 * is a third. */
double model_flops_per_token(const struct model_config *config, int64_t seq_length);
/* The head's share of it, which a token has only where its loss counts. */
double model_head_flops_per_token(const struct model_config *config);

/* ---- training ---- */

/* A flat micro batch; all arrays in host memory, copied at the call. Rows belong to segments (whole samples, or
 * documents inside a sample); a row sees the rows of its own segment up to itself. */
struct model_batch {
    int64_t rows;
    const int32_t *tokens;    /* [N] */
    const int32_t *positions; /* [N] */
    const uint32_t *sample;   /* [N] number of the consumed sample, for dropout */
    const uint32_t *token;    /* [N] place of the row in its sample, for dropout */
    int64_t segments;
    const int64_t *segment_start; /* [S+1] */
    const int32_t *labels;        /* [N] 0 .. V-1 also where the weight is 0 */
    /* [N] what the row's loss counts in the sum, e.g. mask / label tokens of the global batch; rows of 0 need not go
     * through the head. */
    const float *loss_weight;
};

struct model_pass {
    int chunk;                 /* what goes through */
    int stash;                 /* where its activations are held; below 0 for a chunk without a backward */
    bool is_first_micro_batch; /* of a chunk's backwards: gradients are written, not added to */
    bool is_last_micro_batch;  /* of them: what tensor ranks have parts of is summed over them, and is finished */
    bool has_dropout;
    /* Called before the first use of a layer's weights in this pass: those before the layers (-1), each layer, and
     * those after them (num_layers), whose first use is the backward. NULL: all weights are there. */
    int (*layer_needed)(void *context, int layer);
    /* Called in the backward as soon as this pass has added its whole part to the gradients of a layer's parameters.
     * The order is: parameters after the layers (num_layers), each layer from the last down, then those before them
     * (-1), as far as the chunk has them. NULL: not called. */
    int (*layer_done)(void *context, int layer);
    void *context;
};

/* The two halves of training on a micro batch, chunk by chunk. The arrays x, y, dy and dx are on the device, of the
 * rank's rows of the residual stream: [N, C] of the model's type.
 *
 * The forward takes x, the output of the layer before, and gives y. No x exists (NULL) in the chunk with the embedding.
 * No y exists (NULL) in the chunk with the head, whose forward is part of its backward. The batch's segments must stay
 * until the backward. Layers below the lowest that trains keep nothing. */
int model_forward(struct model *model, const struct model_batch *batch, const struct model_pass *pass, const void *x,
                  void *y);
/* dy is the gradient of y. It is NULL in the chunk with the head, which adds sum(loss * loss_weight) to the device
 * number that model_loss reads. dx is that of x. It is NULL in the chunk with the embedding, and unchanged when nothing
 * before the chunk trains. */
int model_backward(struct model *model, const struct model_pass *pass, const void *dy, void *dx);
/* A forward without dropout in stash 0, and in the chunk with the head its losses, added to the same number. */
int model_evaluate_chunk(struct model *model, const struct model_batch *batch, int chunk, const void *x, void *y);

/* After the last backward of a global batch, on all stages: the gradient of a tied table is summed over the stages
 * that have it. */
int model_sum_tied_gradients(struct model *model);

/* Both halves on a model of one chunk with both ends. */
int model_train_step(struct model *model, const struct model_batch *batch, const struct model_pass *pass);
/* The same without a backward. */
int model_evaluate(struct model *model, const struct model_batch *batch);
/* Sends the loss sum to the host and clears it, in the order of the stream. */
int model_loss_fetch(struct model *model);
/* The loss sum that was fetched last, once the stream has run: 0 on a stage without the head. */
double model_fetched_loss(const struct model *model);
/* Both, with the wait between them. */
int model_loss(struct model *model, double *loss);
/* -log p(label) of each row of `batch` whose loss counts, to host memory [N]; that batch must be the last that went
 * through model_evaluate or model_train_step. */
int model_row_losses(struct model *model, const struct model_batch *batch, float *losses);
/* The logits [N, V] fp32 of a batch without dropout, to host memory: for tests and the uncached path. */
int model_logits(struct model *model, const struct model_batch *batch, float *logits);

/* ---- inference ---- */

/* The plan of one engine step: rows of any sequences, prefill and decode mixed. Host memory, copied at the call. */
struct model_step {
    int64_t rows;
    const int32_t *tokens;    /* [N], or hooks' virtual tokens after the vocabulary */
    const int32_t *positions; /* [N] position ids */
    const int32_t *sequence;  /* [N] row of page_table */
    const int32_t *cached;    /* [N] index of the row in its sequence's cache: it sees 0 .. cached[i] */
    const int32_t *place;     /* [N] page * KV_PAGE_TOKENS + token inside; where its key and value go; -1: nowhere */
    /* Rows of the page table that are not as in the step before, at most max_sequences. */
    int64_t changed_rows;
    const int32_t *changed_row; /* [changed_rows] each once */
    const int32_t *page_table;  /* [max_sequences, max_pages] */
    int64_t logit_rows;
    const int32_t *logit_row;        /* [logit_rows] rows whose logits are wanted */
    const struct sample_row *sample; /* [logit_rows] how to draw, or NULL: no drawing */
    int64_t change_count;            /* of logits: sample[i] says which are row i's */
    const struct sample_change *changes;
    bool has_top;          /* with sample: some row asks for the likeliest tokens */
    const int32_t *labels; /* [logit_rows] or NULL: also give log p(label) */
};

struct model_step_result {
    int32_t *token;       /* [logit_rows] drawn; -1: none */
    float *logprob;       /* [logit_rows] of the drawn token; 0 where there is none */
    float *label_logprob; /* [logit_rows] of step->labels; 0 where there are none */
    int32_t *top_token;   /* [logit_rows, SAMPLE_MAX_TOP] when the step has_top: the likeliest first, then -1 */
    float *top_logprob;
};

/* Returns the bytes of the results of `rows` rows of a step. They are the drawn token,
 * its log-probability and the loss of the label; on request also the likeliest tokens and their log-probabilities. */
static inline size_t model_results_bytes(int64_t rows, bool has_top) {
    return (size_t)rows *
           (sizeof(int32_t) + 2 * sizeof(float) + (has_top ? SAMPLE_MAX_TOP * (sizeof(int32_t) + sizeof(float)) : 0));
}

/* A step as plans see it: rows, those with logits, and the tokens of its sequence that a row sees in the mean. */
struct model_step_shape {
    int64_t rows, logit_rows;
    double seen;
};
/* The work of such a step on this rank, between steps: a list that the caller frees (work_free), also after a failure.
 * What adapters add is not known to it. STATUS_MEMORY. */
int model_step_work(struct model *model, const struct model_step_shape *shape, struct work_list *list);

/* KV cache of this rank's layers and heads: one block, which the caller allocates on the device, [layers][page_count]
 * pages. */
struct model_kv {
    void *pages; /* device */
    int64_t page_count;
};
/* Returns the bytes of a cache of `page_count` pages. */
size_t model_kv_bytes(const struct model *model, int64_t page_count);
/* Tokens first .. first + count - 1 of an image's prefix, as hooks have it, and their places: as in struct model_step.
 */
struct model_prefix_rows {
    int image;
    int64_t first, count; /* at most max_rows */
    const int32_t *place; /* [count] */
};
/* Puts keys and values of a prefix into pages. */
int model_kv_put_prefix(struct model *model, const struct model_kv *kv, const struct model_prefix_rows *rows);
/* One step, which all ranks of the model make together; the step's arrays are the caller's again when it returns. A
 * stage goes on to the next step as soon as its own work is done. Nothing is allocated. */
int model_infer(struct model *model, const struct model_kv *kv, const struct model_step *step);
/* True on the rank that gives results: the first tensor rank of the last stage. */
bool model_gives_results(const struct model *model);
/* Waits for the oldest step whose results were not read yet, and gives them; the device may run the next step
 * meanwhile. At most MODEL_STEPS steps have results that are not read yet. */
enum { MODEL_STEPS = 2 };
int model_infer_results(struct model *model, const struct model_step_result *result);
/* Called after the last step: waits until everything sent to the next stage has arrived. */
int model_infer_end(struct model *model);

#endif
