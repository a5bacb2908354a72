/* The data of a rank: its place on the grid, device, stream, scratch memory and seed. It is passed along instead of
 * globals. One thread uses it at a time. The same code plans and runs: while `is_planning`, operations and collectives
 * are only added to the list of the rank's work. */
#pragma once

#include "comm/comm.h"
#include "kernels/ops.h"
#include "parallel/grid.h"
#include "parallel/slice.h"
#include "parallel/work.h"

/* The kinds of work into which benchmarks divide a step's time. */
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

extern const char *const phase_names[PHASE_COUNT];

/* Measures operations by events, which are read when all are in use (phases.c). */
struct phase_timer {
    bool is_on;
    struct phase_span *spans; /* NULL until timing is first switched on */
    int count;                /* spans that are not read yet */
    double seconds[PHASE_COUNT];
};

struct rank {
    struct rank_grid grid, place;
    bool is_sequence_parallel;  /* rows of the residual stream are cut over the tensor ranks; set before planning */
    struct comm *world;         /* all ranks of the run; the caller owns it */
    struct comm *tensor, *data; /* the ranks that share this rank's layers; the ranks that share its weights */
    struct comm
        *sharers; /* neighbours in the tensor group that hold the same key and value heads; NULL: there are none */
    struct comm *buckets;     /* the ranks of `data` again, for calls that run beside all others */
    struct comm *pipeline[2]; /* the stages of one model, in order: a group for each enum pipeline_step_kind. It is the
                                 same group where messages are held back: both kinds of a round then move together */
    struct comm *embedding;   /* first and last stage, which share tied embeddings; NULL in other stages, or with one */
    struct device *device;
    const struct ops *ops;
    struct exec exec;    /* stream and scratch */
    bool is_tf32;        /* products of fp32 may round to TF32: rank_use_tf32 */
    int gemm_sm_margin;  /* multiprocessors that products leave free while calls of `buckets` are under way */
    int under_way;       /* such calls: started and not waited for */
    uint64_t seed;       /* of dropout */
    struct slice *slice; /* in which its work runs; NULL: nothing pauses it */
    bool is_planning;
    struct work_list work; /* the planned work */
    int sharer_count;      /* ranks of `sharers`; 0: not known yet */
    struct phase_timer timer;
};

/* Opens rank `world->rank` of a grid on an open device, with its stream and groups. All ranks of the world call this
 * together. The caller closes the rank; `world` and the device outlive it. After a failure the world has failed, too.
 * The errors of streams and groups. */
int rank_open(struct rank *rank, const struct rank_grid *grid, struct comm *world, struct device *device,
              uint64_t seed);
/* Makes rank `number` of a grid only for planning. It has no groups, and nothing may run on it. The device may be a
 * sketch. */
void rank_sketch(struct rank *rank, const struct rank_grid *grid, int number, struct device *device);
/* Opens a single rank on its grid. Errors as rank_open. */
int rank_open_single(struct rank *rank, struct device *device, uint64_t seed);
/* Lets products of fp32 round their factors to TF32. STATUS_UNSUPPORTED if the device has no TF32, with what to use. */
int rank_use_tf32(struct rank *rank);
/* Call it before planning: sets the number of neighbours in the tensor group that hold the same one of `groups` key and
 * value heads. */
void rank_plan_sharers(struct rank *rank, int64_t groups);
/* Opens the group of these neighbours if there are more tensor ranks than heads. All of them call it together. The
 * errors of comm_subgroup. */
int rank_open_sharers(struct rank *rank);
/* Allocates the largest scratch that any planned operation needs, and ends planning. STATUS_MEMORY. */
int rank_allocate_workspace(struct rank *rank);
/* Closes the rank's stream and groups, and frees its scratch and its list. */
void rank_close(struct rank *rank);
/* Makes a rank with the place, device, stream and groups of an open one, which outlives it. It has its own seed, list
 * of work and workspace, and still plans. */
void rank_share(struct rank *rank, const struct rank *of, uint64_t seed);
/* Frees what such a rank does not share. */
void rank_unshare(struct rank *rank);

/* Switches the timing of operations on or off. The first call that switches it on opens the events. STATUS_MEMORY, or
 * the device's failure. */
int rank_time_phases(struct rank *rank, bool is_timed);
/* Waits for all timed operations, and stores the seconds of each kind of work since the last call. The device's
 * failure.
 */
int rank_take_phases(struct rank *rank, double seconds[PHASE_COUNT]);
/* Used only by rank_phase_begin. */
int rank_span_begin_(struct rank *rank);
/* Call them before and after one operation of a run, with no other operation between. `begun` is the result of the
 * first, and `status` is the operation's. rank_phase_end returns the first failure of both. */
static inline int rank_phase_begin(struct rank *rank) {
    return rank->timer.is_on ? rank_span_begin_(rank) : STATUS_OK;
}
int rank_phase_end(struct rank *rank, enum phase phase, int begun, int status);
/* Closes the events. */
void phase_timer_close(struct phase_timer *timer);

/* ---- planning ---- */

/* Adds one call of an operation to the list of work: its work and its workspace. STATUS_UNSUPPORTED if the device lacks
 * it; STATUS_MEMORY. */
int rank_note(struct rank *rank, enum phase phase, enum op op, struct op_work work, const void *arguments);
/* Adds workspace only. STATUS_MEMORY. */
int rank_need(struct rank *rank, size_t scratch);
/* Sets the part of a step that later notes belong to. It has no effect while the rank runs. */
void rank_plan_part(struct rank *rank, enum work_part part, int chunk);
/* Marks the work between a call with change 1 and one with -1 as uncertain, if `is_unsure`: a step may do it or not.
 * Its workspace counts, and its work does not. Pairs nest. It has no effect while the rank runs. */
static inline void rank_unsure(struct rank *rank, bool is_unsure, int change) {
    rank->work.unsure += is_unsure ? change : 0;
}

/* ---- slices ---- */

/* Comes before a piece of work: see slice_pause. */
static inline int rank_pause(struct rank *rank, enum slice_kind kind, double work) {
    return rank->slice && !rank->is_planning ? slice_pause(rank->slice, kind, work) : STATUS_OK;
}
/* Comes before rows whose bits do not depend on each other, of which *count are next: see slice_pause_rows. */
int rank_pause_rows(struct rank *rank, const struct slice_rows *rows, int64_t *count);

/* ---- operations and collectives ---- */

/* Runs operation OP with these arguments, a pointer to its struct, and measures its time. While planning, it adds the
 * call to the list of work, with its workspace. Returns the status of either. */
#define rank_run(rank, phase, op, ...)                                                                                 \
    ({                                                                                                                 \
        int begun_ = (rank)->is_planning ? STATUS_OK : rank_phase_begin(rank);                                         \
        (rank)->is_planning ? rank_note(rank, phase, OP_##op, op##_work(__VA_ARGS__), __VA_ARGS__)                     \
                            : rank_phase_end(rank, phase, begun_, (rank)->ops->op(&(rank)->exec, __VA_ARGS__));        \
    })

/* Runs a product in the rank's arithmetic, as rank_run does. */
int rank_multiply(struct rank *rank, enum phase phase, const struct gemm *gemm);

/* Returns the number of ranks in a group, this one included. It works while planning, too. */
int rank_group_size(const struct rank *rank, enum rank_group group);
/* ---- collectives: in a group of one they do nothing; while planning they are added to the list of work ---- */

/* Sums over a group, in place. Its time counts as communication. The errors of comm_all_reduce. */
int rank_sum(struct rank *rank, enum rank_group group, void *data, int64_t count, enum dtype dtype);
/* Takes the maximum over a group, in the same way. */
int rank_max(struct rank *rank, enum rank_group group, void *data, int64_t count, enum dtype dtype);
/* Starts a sum, so that other work can run before rank_wait. */
int rank_sum_start(struct rank *rank, enum rank_group group, void *data, int64_t count, enum dtype dtype,
                   struct comm_request *request);
/* Finishes a call that one of the functions here started. The errors of comm_wait. */
int rank_wait(struct rank *rank, struct comm_request *request);
/* Gathers all[ranks * count] = every rank's own[count], in the order of the group's ranks. `own` may be its place in
 * `all`. The errors of comm_all_gather. */
int rank_gather(struct rank *rank, enum rank_group group, const void *own, void *all, int64_t count, enum dtype dtype);
/* Starts such a gather from data->send [count] to data->receive, on the rank's stream; rank_wait finishes it. */
int rank_gather_start(struct rank *rank, enum rank_group group, const struct comm_data *data,
                      struct comm_request *request);
/* Starts receive[count] = the sum over the ranks of their send[rank * count ...]; rank_wait finishes it. */
int rank_scatter_start(struct rank *rank, enum rank_group group, const struct comm_data *data,
                       struct comm_request *request);
/* Sums a partial [rows, columns] over the tensor ranks: in place, or under sequence parallelism into `own`, which
 * receives this rank's rows. It waits, so no thread is needed to advance it meanwhile. */
int rank_sum_stream(struct rank *rank, void *partial, void *own, int64_t rows, int64_t columns, enum dtype dtype);
/* Waits for the rank's stream, so that the host may read its results. The device's failure, and the errors of
 * comm_check. */
int rank_finish(struct rank *rank);
/* Adds `calls` collectives or messages that other code will make to the list of work. Each has `count` elements of this
 * rank's whole operand. STATUS_MEMORY. */
int rank_note_messages(struct rank *rank, enum rank_group group, enum work_message message, int64_t count,
                       enum dtype dtype, int64_t calls);

/* ---- the rows of the residual stream that this rank has of a batch of `rows`: their number, and the first one ---- */

static inline int64_t rank_stream_rows(const struct rank *rank, int64_t rows) {
    return rank->is_sequence_parallel ? rows / rank->grid.tensor : rows;
}
static inline int64_t rank_first_stream_row(const struct rank *rank, int64_t rows) {
    return rank->is_sequence_parallel ? rank->place.tensor * rank_stream_rows(rank, rows) : 0;
}
