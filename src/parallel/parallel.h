/* The rank grid, what a rank carries, attach points, and the one linear.
 *
 * A `struct rank` is what travels instead of globals: the place on the grid, the device, the stream, the scratch memory
 * and the seed. One thread uses it at a time. The same code plans and runs: while `is_planning`, operations only note
 * the scratch that they would need.
 *
 * The linear is where every projection of the model meets its hooks, its weight's type and layout, and (once there are
 * several ranks) the tensor- and sequence-parallel collectives. */
#ifndef CAMBIUM_PARALLEL_PARALLEL_H
#define CAMBIUM_PARALLEL_PARALLEL_H

#include "comm/comm.h"
#include "tensor/tensor.h"

/* ---- the grid ---- */

/* Ranks along each axis, in Megatron's order: tensor changes fastest, then context, expert, data, pipeline. */
struct rank_grid {
    int tensor, context, expert, data, pipeline;
};

int rank_grid_size(const struct rank_grid *grid);
/* The coordinates of a rank, 0 <= rank < size: pure arithmetic. */
struct rank_grid rank_grid_place(const struct rank_grid *grid, int rank);
/* The inverse. */
int rank_grid_rank(const struct rank_grid *grid, const struct rank_grid *place);

/* ---- a rank ---- */

/* What a second of a step went to, for the benchmark. */
enum phase {
    PHASE_GEMM,
    PHASE_ATTENTION,
    PHASE_NORM,
    PHASE_LOSS,
    PHASE_OPTIMIZER,
    PHASE_COMM,
    PHASE_REST,
    PHASE_COUNT
};

struct rank {
    struct rank_grid grid, place;
    bool is_sequence_parallel;  /* rows of the residual stream are cut over the tensor ranks; set before planning */
    struct comm *world;         /* all ranks of the run; the caller's */
    struct comm *tensor, *data; /* the ranks that share this one's layers; those that share its weights */
    struct comm
        *pipeline[2];       /* the stages that make up one model, in order: a group for each enum pipeline_step_kind */
    struct comm *embedding; /* first and last stage, which share tied embeddings; NULL elsewhere, and without stages */
    struct device *device;
    const struct ops *ops;
    struct exec exec; /* stream and scratch */
    uint64_t seed;    /* of dropout */
    bool is_planning;
    size_t workspace_needed; /* the most that a planned operation asked for */
    bool is_timed;           /* wait for each operation and add its time to phase_seconds */
    double phase_seconds[PHASE_COUNT];
};

/* The rank `world->rank` of a grid, on an open device. Its stream and groups are opened here, so all ranks of the world
 * call this together. */
int rank_open(struct rank *rank, const struct rank_grid *grid, struct comm *world, struct device *device,
              uint64_t seed);
/* The rank `number` of a grid for planning alone, without its peers: no groups, and nothing may run. */
int rank_sketch(struct rank *rank, const struct rank_grid *grid, int number, struct device *device);
/* A rank alone on its grid. */
int rank_open_single(struct rank *rank, struct device *device, uint64_t seed);
/* Gives the rank scratch of `workspace_needed` bytes; ends planning. */
int rank_allocate_workspace(struct rank *rank);
void rank_close(struct rank *rank);

/* Around one operation of a run. */
static inline double rank_phase_begin(const struct rank *rank) {
    return rank->is_timed ? clock_seconds() : 0;
}
int rank_phase_end(struct rank *rank, enum phase phase, double start, int status);
void rank_need(struct rank *rank, size_t workspace_bytes);

/* Runs ops->OP(exec, ARGS) and books its time; while planning does nothing. */
#define rank_run(rank, phase, op, ...)                                                                                 \
    ((rank)->is_planning ? STATUS_OK : rank_run_timed_(rank, phase, (rank)->ops->op(&(rank)->exec, __VA_ARGS__)))
#define rank_run_timed_(rank, phase, call)                                                                             \
    ({                                                                                                                 \
        double start_ = rank_phase_begin(rank);                                                                        \
        rank_phase_end(rank, phase, start_, call);                                                                     \
    })
/* The same for an operation with a workspace function; while planning notes its scratch. */
#define rank_run_scratch(rank, phase, op, ...)                                                                         \
    ((rank)->is_planning ? (rank_need(rank, (rank)->ops->op##_workspace((rank)->device, __VA_ARGS__)), STATUS_OK)      \
                         : rank_run_timed_(rank, phase, (rank)->ops->op(&(rank)->exec, __VA_ARGS__)))

/* Sums over a group, in place; nothing in a group of one, or while planning. The time is booked as communication. */
int rank_sum(struct rank *rank, struct comm *group, void *data, int64_t count, enum dtype dtype);
/* The same, started and finished, so that other work may stand between. */
int rank_sum_start(struct rank *rank, struct comm *group, void *data, int64_t count, enum dtype dtype,
                   struct comm_request *request);
int rank_wait(struct rank *rank, struct comm_request *request);
/* all[ranks * count] = every rank's own[count], in the order of the group's ranks; `own` may be its place in `all`. */
int rank_gather(struct rank *rank, struct comm *group, const void *own, void *all, int64_t count, enum dtype dtype);
/* own[count] = the sum over the ranks of their all[rank * count ...]; started, and finished by rank_wait. */
int rank_scatter_start(struct rank *rank, struct comm *group, const void *all, void *own, int64_t count,
                       enum dtype dtype, struct comm_request *request);

/* The rows of the residual stream that this rank has of a batch of `rows`, and the first of them. */
static inline int64_t rank_stream_rows(const struct rank *rank, int64_t rows) {
    return rank->is_sequence_parallel ? rows / rank->grid.tensor : rows;
}
static inline int64_t rank_first_stream_row(const struct rank *rank, int64_t rows) {
    return rank->is_sequence_parallel ? rank->place.tensor * rank_stream_rows(rank, rows) : 0;
}

/* ---- attach points ---- */

/* The places of the model that a method may change. */
enum attach_place {
    ATTACH_EMBEDDING,  /* y: the embedded rows, before dropout */
    ATTACH_QKV,        /* a projection: x its input, y its output, q | k | v */
    ATTACH_PROJECTION, /* the attention's output projection */
    ATTACH_FC1,        /* before or after the activation, as the hook says */
    ATTACH_FC2,
    ATTACH_AFTER_ATTENTION, /* y: the attention's result before its residual; x: the block's normalised input */
    ATTACH_AFTER_MLP,       /* the same for the MLP */
    ATTACH_KV,              /* prefix keys and values */
    ATTACH_PLACE_COUNT
};

enum hook_stage { HOOK_BEFORE_ACTIVATION, HOOK_AFTER_ACTIVATION };

/* Consecutive rows of a batch that use one adapter. Training is one segment of slot 0. */
struct hook_segment {
    int slot;
    int64_t first_row, rows;
};

struct hook_call {
    struct rank *rank;
    int layer;
    enum attach_place place;
    enum dtype dtype;
    int64_t rows, in, out;
    const struct hook_segment *segments;
    int segment_count;
    struct row_keys keys; /* of these rows, for dropout; NULL in a pass without it, and while planning */
    const void *x;        /* [N, in]; NULL where the place has no input of its own */
    void *y;              /* [N, out], changed in place */
    const void *residual; /* ATTACH_AFTER_*: [N, C], the stream that the result will be added to */
    void *dresidual;      /* its gradient, added to */
    void *saved;          /* what the forward keeps for the backward: saved_bytes of it */
    void *dy;             /* backward: the gradient of y as it left the hook */
    void *dx;             /* backward_input: the gradient of x, added to; NULL when nobody wants it */
};

/* Keys and values before every segment of a layer: [tokens, G, D] each; gradients fp32, accumulated, or NULL. */
struct hook_prefix {
    int64_t tokens;
    const void *k, *v;
    float *dk, *dv;
};

/* Virtual tokens of the embedding: rows behind the vocabulary, id vocab_size + v of the first method's. The table is
 * whole on every tensor rank; so is its gradient: fp32, accumulated, or NULL. */
struct hook_virtual {
    int64_t tokens;
    const void *table; /* [tokens, C] */
    float *gradient;
};

/* One method at one place. The forward changes y after the base wrote it. The backward has two halves:
 * `backward_output` runs before the base's backward and turns dy into the gradient of what the base wrote;
 * `backward_input` runs behind it and adds the method's own part to dx. Members that a method does not need are NULL.
 * They are called while the rank is planning, too, and then only note the scratch that they need.
 *
 * At a projection a rank's hook sees all rows, its own share of what is cut over the tensor ranks, and y before it is
 * summed over them: a hook there is linear in y. Behind a half of the block it sees whole results, of the rank's rows
 * of the stream. */
struct hook {
    void *self;
    enum hook_stage stage;
    size_t (*saved_bytes)(void *self, const struct hook_call *call);
    int (*forward)(void *self, const struct hook_call *call);
    int (*backward_output)(void *self, const struct hook_call *call);
    int (*backward_input)(void *self, const struct hook_call *call);
    /* At a projection in bf16, training or not: what the method adds to y, for the base's product to add in fp32 before
     * it rounds; then `forward` is left out. Not asked where another method, which is in between, needs y as it was.
     * NULL: `forward` serves. */
    int (*delta)(void *self, const struct hook_call *call, struct gemm_delta *delta);
    /* ATTACH_KV only. */
    int (*prefix)(void *self, int layer, struct hook_prefix *prefix);
    /* ATTACH_EMBEDDING only. Where the stage has no embedding only the number is asked for. */
    int (*virtual_rows)(void *self, struct hook_virtual *rows);
};

enum { HOOKS_PER_PLACE = 4 };
struct hook_list {
    int count;
    struct hook hook[HOOKS_PER_PLACE]; /* applied in order forward, in reverse order backward */
};

/* Every place of every layer: list(layer, place). Places without a layer (the embedding) stand at layer 0. */
struct hook_table {
    int64_t layers;
    struct hook_list *lists; /* [layers * ATTACH_PLACE_COUNT] */
};

int hook_table_init(struct hook_table *table, int64_t layers);
void hook_table_free(struct hook_table *table);
int hook_table_add(struct hook_table *table, int64_t layer, enum attach_place place, const struct hook *hook);
/* Never NULL: a table without hooks, or no table at all, gives an empty list. */
const struct hook_list *hook_table_list(const struct hook_table *table, int64_t layer, enum attach_place place);
bool hook_list_has(const struct hook_list *list, enum hook_stage stage);
/* Bytes the list keeps of a forward, each hook's part aligned; `call` gives the shape. */
size_t hook_list_saved_bytes(const struct hook_list *list, const struct hook_call *call);
/* Run the list's hooks of one stage. `call->saved` is the list's block. */
int hook_list_forward(const struct hook_list *list, enum hook_stage stage, const struct hook_call *call);
/* What the first hooks of the list add to a projection's product before it is rounded, and how many hooks that is. */
int hook_list_deltas(const struct hook_list *list, const struct hook_call *call, struct gemm *gemm, int *count);
/* hook_list_forward without the first `count`. */
int hook_list_forward_from(const struct hook_list *list, int count, enum hook_stage stage,
                           const struct hook_call *call);
int hook_list_backward_output(const struct hook_list *list, enum hook_stage stage, const struct hook_call *call);
int hook_list_backward_input(const struct hook_list *list, enum hook_stage stage, const struct hook_call *call);

/* ---- the linear ---- */

enum linear_split {
    LINEAR_WHOLE,  /* every rank holds it all */
    LINEAR_COLUMN, /* outputs are cut over the tensor ranks */
    LINEAR_ROW,    /* inputs are cut over the tensor ranks */
};

/* A projection y = x W' + b of the model. */
struct linear {
    int weight, bias; /* parameter ids; bias PARAM_NONE for none */
    int64_t in, out;
    enum linear_split split;
};

/* One call: the rows, where they are, and what stands around the product. */
struct linear_call {
    struct rank *rank;
    const struct param_store *store;
    const struct hook_list *hooks; /* of this place; those before an activation run here */
    struct hook_call hook;         /* layer, place, segments, saved; the linear fills in the rest */
    enum dtype dtype;
    int64_t rows;
    const void *x; /* [N, in] */
    void *y;       /* [N, out] forward; row stride y_stride when not 0 */
    int64_t y_stride;
    /* Under sequence parallelism a column linear has its x and dx, and a row linear its y and dy, in this rank's rows
     * of the residual stream alone; the whole ones stand here meanwhile: [N, C] each. */
    void *whole, *whole_gradient;
    bool y_dtype_is_fp32;        /* forward only: y is fp32 whatever dtype is */
    enum gemm_epilogue epilogue; /* fused only when no hook stands in between: see linear_can_fuse */
    void *aux;                   /* of the epilogue: [N, out] forward, [N, in] for a DGELU in the backward */
    void *dy;                    /* [N, out], changed by hooks */
    void *dx;                    /* [N, in] out; NULL when nobody wants it */
    bool overwrite_gradients;    /* the first micro batch of a step: weight gradients are written, not added to */
};

/* Whether an activation directly behind the linear may be its epilogue. */
bool linear_can_fuse(const struct hook_list *hooks);
int linear_forward(const struct linear *linear, const struct linear_call *call);
/* dx, and the gradients of weight and bias where they train. */
int linear_backward(const struct linear *linear, const struct linear_call *call);

#endif
