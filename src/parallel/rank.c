/* A rank: its groups, its scratch and its sums. */
#include "parallel/rank.h"

#include "kernels/algorithms.h"
#include "kernels/handle.h"

static int open_group(struct rank *rank, unsigned axes, struct comm **group) {
    int count = rank_grid_group_size(&rank->grid, axes);
    if (count == 1)
        return comm_single_open(group);
    int *ranks = malloc((size_t)count * sizeof *ranks);
    TRY(status_allocated(ranks));
    rank_grid_group(&rank->grid, axes, rank->world->rank, ranks);
    int status = comm_subgroup(rank->world, ranks, count, group);
    free(ranks);
    return status;
}

static int open_pipeline_groups(struct rank *rank) {
    int ranks[2], status = open_group(rank, GRID_PIPELINE, &rank->pipeline[0]);
    if (!status && comm_holds_messages(rank->pipeline[0]))
        rank->pipeline[1] = rank->pipeline[0];
    else if (!status)
        status = open_group(rank, GRID_PIPELINE, &rank->pipeline[1]);
    if (status || rank->grid.pipeline == 1)
        return status;
    int count = rank_grid_embedding_group(&rank->grid, rank->world->rank, ranks);
    return comm_subgroup(rank->world, ranks, count, &rank->embedding);
}

void rank_sketch(struct rank *rank, const struct rank_grid *grid, int number, struct device *device) {
    *rank = (struct rank){.grid = *grid,
                          .place = rank_grid_place(grid, number),
                          .device = device,
                          .ops = ops_for(device),
                          .is_planning = true};
    rank_plan_part(rank, WORK_UPDATE, 0);
}

int rank_open(struct rank *rank, const struct rank_grid *grid, struct comm *world, struct device *device,
              uint64_t seed) {
    rank_sketch(rank, grid, world ? world->rank : 0, device);
    rank->world = world;
    rank->seed = seed;
    int status = stream_open(device, &rank->exec.stream);
    THEN(status, open_group(rank, GRID_TENSOR, &rank->tensor));
    THEN(status, open_group(rank, GRID_DATA | GRID_CONTEXT, &rank->data));
    THEN(status, open_group(rank, GRID_DATA | GRID_CONTEXT, &rank->buckets));
    THEN(status, open_pipeline_groups(rank));
    if (status && world && world->size > 1)
        comm_fail(world, status); /* others may wait for this rank in a group */
    if (status)
        rank_close(rank);
    return status;
}

void rank_plan_sharers(struct rank *rank, int64_t groups) {
    rank->sharer_count = rank->grid.tensor > groups ? rank->grid.tensor / (int)groups : 1;
}

int rank_open_sharers(struct rank *rank) {
    int count = rank->sharer_count;
    if (rank->sharers || count < 2)
        return STATUS_OK;
    int *ranks = malloc((size_t)rank->grid.tensor * sizeof *ranks);
    TRY(status_allocated(ranks));
    rank_grid_group(&rank->grid, GRID_TENSOR, rank->world->rank, ranks);
    int status = comm_subgroup(rank->world, ranks + rank->place.tensor / count * count, count, &rank->sharers);
    free(ranks);
    return status;
}

int rank_open_single(struct rank *rank, struct device *device, uint64_t seed) {
    return rank_open(rank, &(const struct rank_grid){1, 1, 1, 1, 1}, NULL, device, seed);
}

int rank_use_tf32(struct rank *rank) {
    struct matrix_view matrix = matrix_plain(DTYPE_F32, NULL, 1, 1);
    const struct gemm gemm = {.a = matrix, .b = matrix, .c = matrix, .is_tf32 = true};
    rank->is_tf32 = rank->ops->gemm_supports(rank->device, &gemm);
    return rank->is_tf32 ? STATUS_OK
                         : status_fail(STATUS_UNSUPPORTED,
                                       "precision tf32: no TF32 on %s: take fp32 or bf16, or an NVIDIA GPU "
                                       "(--device cuda)",
                                       device_facts(rank->device).kind);
}

int rank_multiply(struct rank *rank, enum phase phase, const struct gemm *gemm) {
    struct gemm product = *gemm;
    product.is_tf32 = rank->is_tf32 && gemm->a.type == DTYPE_F32;
    return rank_run(rank, phase, gemm, &product);
}

int rank_allocate_workspace(struct rank *rank) {
    device_free(rank->device, rank->exec.workspace);
    rank->exec.workspace = NULL;
    rank->exec.workspace_bytes = work_scratch(&rank->work);
    rank->is_planning = false;
    if (!rank->exec.workspace_bytes)
        return STATUS_OK;
    int status = device_alloc(rank->device, rank->exec.workspace_bytes, &rank->exec.workspace);
    return status ? status_wrap(status, "workspace") : STATUS_OK;
}

void rank_close(struct rank *rank) {
    if (!rank->device)
        return;
    device_free(rank->device, rank->exec.workspace);
    work_free(&rank->work);
    phase_timer_close(&rank->timer);
    if (rank->exec.stream)
        stream_close(rank->exec.stream);
    comm_close(rank->tensor);
    comm_close(rank->sharers);
    comm_close(rank->data);
    comm_close(rank->buckets);
    if (rank->pipeline[1] != rank->pipeline[0])
        comm_close(rank->pipeline[1]);
    comm_close(rank->pipeline[0]);
    comm_close(rank->embedding);
    *rank = (struct rank){0};
}

void rank_share(struct rank *rank, const struct rank *of, uint64_t seed) {
    *rank = *of;
    rank->exec = (struct exec){.stream = of->exec.stream};
    rank->seed = seed;
    rank->work = (struct work_list){0};
    rank->timer = (struct phase_timer){0};
    rank->is_planning = true;
}

void rank_unshare(struct rank *rank) {
    if (rank->device)
        device_free(rank->device, rank->exec.workspace);
    work_free(&rank->work);
    *rank = (struct rank){0};
}

int rank_pause_rows(struct rank *rank, const struct slice_rows *rows, int64_t *count) {
    *count = rows->rows;
    if (!rank->slice || rank->is_planning)
        return STATUS_OK;
    return device_is_batch_invariant(rank->device)
               ? slice_pause_rows(rank->slice, rows, count)
               : slice_pause(rank->slice, rows->kind, rows->fixed + (double)rows->rows * rows->row);
}

/* ---- planning ---- */

int rank_note(struct rank *rank, enum phase phase, enum op op, struct op_work work, const void *arguments) {
    if (ops_lacks(rank->ops, op))
        return status_fail(STATUS_UNSUPPORTED, "%s: there is no operation %s", device_description(rank->device),
                           op_facts[op].name);
    size_t scratch = ops_workspace(rank->ops, op, rank->device, arguments);
    return work_note(&rank->work,
                     &(const struct work_item){.op = op, .phase = phase, .work = work, .scratch = scratch, .count = 1});
}

int rank_need(struct rank *rank, size_t scratch) {
    return work_note(&rank->work,
                     &(const struct work_item){.op = OP_COUNT, .phase = PHASE_REST, .scratch = scratch, .count = 1});
}

void rank_plan_part(struct rank *rank, enum work_part part, int chunk) {
    rank->work.part = part;
    rank->work.chunk = chunk;
}

int rank_note_messages(struct rank *rank, enum rank_group group, enum work_message message, int64_t count,
                       enum dtype dtype, int64_t calls) {
    int ranks = rank_group_size(rank, group);
    if (ranks < 2 || calls < 1)
        return STATUS_OK;
    return work_note(&rank->work, &(const struct work_item){
                                      .op = OP_COUNT,
                                      .message = message,
                                      .phase = PHASE_COMM,
                                      .group = group,
                                      .ranks = ranks,
                                      .work = {.shape = {count}, .bytes = (double)count * (double)dtype_bytes(dtype)},
                                      .count = calls});
}

/* ---- collectives of operations ---- */

static struct comm *group_of(const struct rank *rank, enum rank_group group) {
    struct comm *const groups[RANK_GROUPS] = {
        [RANK_TENSOR] = rank->tensor,   [RANK_SHARERS] = rank->sharers,      [RANK_DATA] = rank->data,
        [RANK_BUCKETS] = rank->buckets, [RANK_PIPELINE] = rank->pipeline[0], [RANK_EMBEDDING] = rank->embedding,
    };
    return groups[group];
}

/* Returns the size of a group of a sketch, which has no open groups. */
static int planned_size(const struct rank *rank, enum rank_group group) {
    const struct rank_grid *grid = &rank->grid;
    int ends[2];
    switch (group) {
    case RANK_TENSOR:
        return grid->tensor;
    case RANK_SHARERS:
        return rank->sharer_count;
    case RANK_DATA:
    case RANK_BUCKETS:
        return grid->data * grid->context;
    case RANK_PIPELINE:
        return grid->pipeline;
    case RANK_EMBEDDING:
        return rank_grid_embedding_group(grid, rank_grid_rank(grid, &rank->place), ends);
    default:
        return 1;
    }
}

int rank_group_size(const struct rank *rank, enum rank_group group) {
    const struct comm *comm = group_of(rank, group);
    return comm ? comm->size : rank->is_planning ? planned_size(rank, group) : 1;
}

static bool runs_on(const struct rank *rank, enum rank_group group) {
    return !rank->is_planning && rank_group_size(rank, group) > 1;
}

/* Replaces a collective that does not run: while planning it is added to the list, and a group of one needs none. */
static int note_planned(struct rank *rank, enum rank_group group, enum work_message message, int64_t count,
                        enum dtype dtype) {
    return rank->is_planning ? rank_note_messages(rank, group, message, count, dtype, 1) : STATUS_OK;
}

static struct comm_data on_stream(const struct rank *rank, const void *send, void *receive, int64_t count,
                                  enum dtype dtype) {
    return (struct comm_data){
        .send = send, .receive = receive, .count = count, .dtype = dtype, .stream = rank->exec.stream};
}

/* Counts calls of `buckets` that are under way. Products share the GPU with them. */
static void count_under_way(struct rank *rank, const struct comm *group, int change) {
    if (group != rank->buckets || rank->gemm_sm_margin == 0)
        return;
    rank->under_way += change;
    device_spare(rank->device, rank->under_way ? rank->gemm_sm_margin : 0);
}

int rank_wait(struct rank *rank, struct comm_request *request) {
    int begun = rank_phase_begin(rank);
    const struct comm *group = request->comm;
    int status = group ? comm_wait(request) : STATUS_OK;
    if (group)
        count_under_way(rank, group, -1);
    return rank_phase_end(rank, PHASE_COMM, begun, status);
}

int rank_finish(struct rank *rank) {
    int status = stream_wait(rank->exec.stream);
    return status || !rank->world ? status : comm_check(rank->world);
}

/* Ends the function that started a call. */
static int started(struct rank *rank, enum rank_group group, int begun, int status) {
    if (!status)
        count_under_way(rank, group_of(rank, group), 1);
    return rank_phase_end(rank, PHASE_COMM, begun, status);
}

static int reduce(struct rank *rank, enum rank_group group, enum comm_op op, void *data, int64_t count,
                  enum dtype dtype) {
    if (!runs_on(rank, group))
        return note_planned(rank, group, WORK_ALL_REDUCE, count, dtype);
    int begun = rank_phase_begin(rank);
    struct comm_data call = on_stream(rank, data, data, count, dtype);
    return rank_phase_end(rank, PHASE_COMM, begun, comm_all_reduce(group_of(rank, group), &call, op));
}

int rank_sum(struct rank *rank, enum rank_group group, void *data, int64_t count, enum dtype dtype) {
    return reduce(rank, group, COMM_SUM, data, count, dtype);
}

int rank_max(struct rank *rank, enum rank_group group, void *data, int64_t count, enum dtype dtype) {
    return reduce(rank, group, COMM_MAX, data, count, dtype);
}

int rank_sum_start(struct rank *rank, enum rank_group group, void *data, int64_t count, enum dtype dtype,
                   struct comm_request *request) {
    *request = (struct comm_request){0};
    if (!runs_on(rank, group))
        return note_planned(rank, group, WORK_ALL_REDUCE, count, dtype);
    int begun = rank_phase_begin(rank);
    struct comm_data call = on_stream(rank, data, data, count, dtype);
    return started(rank, group, begun, comm_all_reduce_start(group_of(rank, group), &call, COMM_SUM, request));
}

int rank_sum_stream(struct rank *rank, void *partial, void *own, int64_t rows, int64_t columns, enum dtype dtype) {
    if (!rank->is_sequence_parallel)
        return rank_sum(rank, RANK_TENSOR, partial, rows * columns, dtype);
    const struct comm_data data = {
        .send = partial, .receive = own, .count = rank_stream_rows(rank, rows) * columns, .dtype = dtype};
    struct comm_request request;
    int status = rank_scatter_start(rank, RANK_TENSOR, &data, &request);
    return status ? status : rank_wait(rank, &request);
}

int rank_gather(struct rank *rank, enum rank_group group, const void *own, void *all, int64_t count, enum dtype dtype) {
    if (!runs_on(rank, group))
        return note_planned(rank, group, WORK_ALL_GATHER, count * rank_group_size(rank, group), dtype);
    int begun = rank_phase_begin(rank);
    struct comm_data call = on_stream(rank, own, all, count, dtype);
    return rank_phase_end(rank, PHASE_COMM, begun, comm_all_gather(group_of(rank, group), &call));
}

int rank_gather_start(struct rank *rank, enum rank_group group, const struct comm_data *data,
                      struct comm_request *request) {
    *request = (struct comm_request){0};
    if (!runs_on(rank, group))
        return note_planned(rank, group, WORK_ALL_GATHER, data->count * rank_group_size(rank, group), data->dtype);
    int begun = rank_phase_begin(rank);
    struct comm_data call = on_stream(rank, data->send, data->receive, data->count, data->dtype);
    return started(rank, group, begun, comm_all_gather_start(group_of(rank, group), &call, request));
}

int rank_scatter_start(struct rank *rank, enum rank_group group, const struct comm_data *data,
                       struct comm_request *request) {
    *request = (struct comm_request){0};
    if (!runs_on(rank, group))
        return note_planned(rank, group, WORK_REDUCE_SCATTER, data->count * rank_group_size(rank, group), data->dtype);
    int begun = rank_phase_begin(rank);
    struct comm_data call = on_stream(rank, data->send, data->receive, data->count, data->dtype);
    return started(rank, group, begun, comm_reduce_scatter_start(group_of(rank, group), &call, request));
}
