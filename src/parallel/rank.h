/* The data of a rank: its place on the grid, device, stream, scratch memory and seed. It is passed along instead of
 * globals. One thread uses it at a time. The same code plans and runs: while `is_planning`, operations and
 * collectives only enter the list of the rank's work. */
#ifndef CAMBIUM_PARALLEL_RANK_H
#define CAMBIUM_PARALLEL_RANK_H

#include "comm/comm.h"
#include "kernels/ops.h"
#include "parallel/grid.h"
#include "parallel/work.h"

/* The kinds of work that a step's time is booked to, for the benchmark. */
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

/* Books the time of operations by events, which are read when all are in use: phases.c. */
struct phase_timer {
    bool is_on;
    struct phase_span *spans; /* NULL until it was first on */
    int count;                /* of spans that were not read yet */
    double seconds[PHASE_COUNT];
};

struct rank {
    struct rank_grid grid, place;
    bool is_sequence_parallel;  /* rows of the residual stream are cut over the tensor ranks; set before planning */
    struct comm *world;         /* all ranks of the run; the caller's */
    struct comm *tensor, *data; /* the ranks that share this one's layers; those that share its weights */
    struct comm *sharers; /* neighbours of the tensor group that hold the same key and value heads; NULL: none do */
    struct comm *buckets; /* those of `data` again: for what travels beside everything else */
    struct comm
        *pipeline[2];       /* the stages that make up one model, in order: a group for each enum pipeline_step_kind */
    struct comm *embedding; /* first and last stage, which share tied embeddings; NULL elsewhere, and without stages */
    struct device *device;
    const struct ops *ops;
    struct exec exec; /* stream and scratch */
    uint64_t seed;    /* of dropout */
    bool is_planning;
    struct work_list work; /* what was planned */
    int sharer_count;      /* of `sharers`; 0: not known yet */
    struct phase_timer timer;
};

/* The rank `world->rank` of a grid, on an open device. Its stream and groups are opened here, so all ranks of the world
 * call this together. */
int rank_open(struct rank *rank, const struct rank_grid *grid, struct comm *world, struct device *device,
              uint64_t seed);
/* The rank `number` of a grid for planning alone, without its peers: no groups, and nothing may run. The device may be
 * a sketch. */
void rank_sketch(struct rank *rank, const struct rank_grid *grid, int number, struct device *device);
/* A rank alone on its grid. */
int rank_open_single(struct rank *rank, struct device *device, uint64_t seed);
/* Sets how many neighbours of the tensor group hold the same one of `groups` key and value heads: before planning. */
void rank_plan_sharers(struct rank *rank, int64_t groups);
/* Opens the group of these neighbours, when there are more tensor ranks than heads. All of them call it together. */
int rank_open_sharers(struct rank *rank);
/* Gives the rank the most scratch that any planned operation asked for; ends planning. */
int rank_allocate_workspace(struct rank *rank);
void rank_close(struct rank *rank);

/* Whether operations are timed from here on. The first call for that opens the events. */
int rank_time_phases(struct rank *rank, bool is_timed);
/* Waits for what was timed, and gives the seconds of each kind of work since the last call. */
int rank_take_phases(struct rank *rank, double seconds[PHASE_COUNT]);
int rank_span_begin_(struct rank *rank);
/* Before and after one operation of a run, with no other between; `begun` is what the first returned. */
static inline int rank_phase_begin(struct rank *rank) {
    return rank->timer.is_on ? rank_span_begin_(rank) : STATUS_OK;
}
int rank_phase_end(struct rank *rank, enum phase phase, int begun, int status);
void phase_timer_close(struct phase_timer *timer);

/* ---- planning ---- */

/* Enters one call of an operation into the list of work: its work and its workspace. STATUS_MEMORY. */
int rank_note(struct rank *rank, enum phase phase, const char *name, struct op_work work, size_t scratch);
/* The same for workspace alone. */
int rank_need(struct rank *rank, size_t scratch);
/* Sets the part of a step that later notes belong to. It has no effect while the rank runs. */
void rank_plan_part(struct rank *rank, enum work_part part, int chunk);
/* Between a call with 1 and one with -1 a step may do what is noted, or not: its workspace counts, its work does not.
 * Pairs nest. Where it `is_unsure` alone; nothing while the rank runs. */
static inline void rank_unsure(struct rank *rank, bool is_unsure, int change) {
    rank->work.unsure += is_unsure ? change : 0;
}

/* ---- operations and collectives ---- */

/* While planning: STATUS_UNSUPPORTED where the device lacks the operation. */
#define rank_lacks_(rank, op) ((rank)->ops->op == ops_absent.op)
int rank_fail_absent_(const struct rank *rank, const char *op);
/* Runs ops->OP(exec, ARGS) and books its time; while planning notes it. */
#define rank_run(rank, phase, op, ...) rank_run_within(rank, phase, op, 0, __VA_ARGS__)
/* The same for an operation with a workspace function of the same arguments. */
#define rank_run_scratch(rank, phase, op, ...)                                                                         \
    rank_run_within(rank, phase, op, (rank)->ops->op##_workspace((rank)->device, __VA_ARGS__), __VA_ARGS__)
/* The same with the workspace said, which only planning asks for. */
#define rank_run_within(rank, phase, op, scratch, ...)                                                                 \
    ((rank)->is_planning ? rank_lacks_(rank, op) ? rank_fail_absent_(rank, #op)                                        \
                                                 : rank_note(rank, phase, #op, op##_work(__VA_ARGS__), scratch)        \
                         : rank_run_noted(rank, phase, op, __VA_ARGS__))
/* The same for an operation that planning notes elsewhere. */
#define rank_run_noted(rank, phase, op, ...)                                                                           \
    ({                                                                                                                 \
        int begun_ = rank_phase_begin(rank);                                                                           \
        rank_phase_end(rank, phase, begun_, (rank)->ops->op(&(rank)->exec, __VA_ARGS__));                              \
    })

/* The ranks of a group, this one included; 1 where it is alone. Planning knows it from the grid. */
int rank_group_size(const struct rank *rank, enum rank_group group);
/* Sums over a group, in place; nothing in a group of one; while planning noted. The time is booked as communication. */
int rank_sum(struct rank *rank, enum rank_group group, void *data, int64_t count, enum dtype dtype);
/* The same, started and finished, so that other work may stand between. */
int rank_sum_start(struct rank *rank, enum rank_group group, void *data, int64_t count, enum dtype dtype,
                   struct comm_request *request);
int rank_wait(struct rank *rank, struct comm_request *request);
/* all[ranks * count] = every rank's own[count], in the order of the group's ranks; `own` may be its place in `all`. */
int rank_gather(struct rank *rank, enum rank_group group, const void *own, void *all, int64_t count, enum dtype dtype);
/* The same, started and finished by rank_wait. */
int rank_gather_start(struct rank *rank, enum rank_group group, const void *own, void *all, int64_t count,
                      enum dtype dtype, struct comm_request *request);
/* own[count] = the sum over the ranks of their all[rank * count ...]; started, and finished by rank_wait. */
int rank_scatter_start(struct rank *rank, enum rank_group group, const void *all, void *own, int64_t count,
                       enum dtype dtype, struct comm_request *request);
/* Enters `calls` collectives or messages into the list of work, which other code will make: `count` elements of this
 * rank's whole operand each. Nothing for a group of one. */
int rank_note_messages(struct rank *rank, enum rank_group group, const char *name, int64_t count, enum dtype dtype,
                       int64_t calls);

/* The rows of the residual stream that this rank has of a batch of `rows`, and the first of them. */
static inline int64_t rank_stream_rows(const struct rank *rank, int64_t rows) {
    return rank->is_sequence_parallel ? rows / rank->grid.tensor : rows;
}
static inline int64_t rank_first_stream_row(const struct rank *rank, int64_t rows) {
    return rank->is_sequence_parallel ? rank->place.tensor * rank_stream_rows(rank, rows) : 0;
}

#endif
