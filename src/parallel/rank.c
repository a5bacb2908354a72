/* A rank: its groups, its scratch and its sums. */
#include "parallel/rank.h"

#include <stdlib.h>

static int open_group(struct rank *rank, unsigned axes, struct comm **group) {
    int count = rank_grid_group_size(&rank->grid, axes);
    if (count == 1)
        return comm_single_open(group);
    int *ranks = malloc((size_t)count * sizeof *ranks);
    if (!ranks)
        return status_fail(STATUS_MEMORY, "out of memory");
    rank_grid_group(&rank->grid, axes, rank->world->rank, ranks);
    int status = comm_subgroup(rank->world, ranks, count, group);
    free(ranks);
    return status;
}

static int open_pipeline_groups(struct rank *rank) {
    int ranks[2], status = STATUS_OK;
    for (int kind = 0; kind < 2 && !status; kind++)
        status = open_group(rank, GRID_PIPELINE, &rank->pipeline[kind]);
    if (!status && rank->grid.pipeline > 1 && rank_grid_embedding_group(&rank->grid, rank->world->rank, ranks))
        status = comm_subgroup(rank->world, ranks, 2, &rank->embedding);
    return status;
}

int rank_sketch(struct rank *rank, const struct rank_grid *grid, int number, struct device *device) {
    *rank = (struct rank){.grid = *grid,
                          .place = rank_grid_place(grid, number),
                          .device = device,
                          .ops = ops_for(device),
                          .is_planning = true};
    return stream_open(device, &rank->exec.stream);
}

int rank_open(struct rank *rank, const struct rank_grid *grid, struct comm *world, struct device *device,
              uint64_t seed) {
    int status = rank_sketch(rank, grid, world ? world->rank : 0, device);
    rank->world = world;
    rank->seed = seed;
    if (!status)
        status = open_group(rank, GRID_TENSOR, &rank->tensor);
    if (!status)
        status = open_group(rank, GRID_DATA | GRID_CONTEXT, &rank->data);
    if (!status)
        status = open_group(rank, GRID_DATA | GRID_CONTEXT, &rank->buckets);
    if (!status)
        status = open_pipeline_groups(rank);
    if (status)
        rank_close(rank);
    return status;
}

int rank_open_sharers(struct rank *rank, int64_t groups) {
    int count = rank->grid.tensor / (int)groups;
    if (rank->sharers || rank->grid.tensor <= groups)
        return STATUS_OK;
    int *ranks = malloc((size_t)rank->grid.tensor * sizeof *ranks);
    if (!ranks)
        return status_fail(STATUS_MEMORY, "out of memory");
    rank_grid_group(&rank->grid, GRID_TENSOR, rank->world->rank, ranks);
    int status = comm_subgroup(rank->world, ranks + rank->place.tensor / count * count, count, &rank->sharers);
    free(ranks);
    return status;
}

int rank_open_single(struct rank *rank, struct device *device, uint64_t seed) {
    return rank_open(rank, &(const struct rank_grid){1, 1, 1, 1, 1}, NULL, device, seed);
}

int rank_allocate_workspace(struct rank *rank) {
    device_free(rank->device, rank->exec.workspace);
    rank->exec.workspace = NULL;
    rank->exec.workspace_bytes = rank->workspace_needed;
    rank->is_planning = false;
    if (!rank->workspace_needed)
        return STATUS_OK;
    int status = device_alloc(rank->device, rank->workspace_needed, &rank->exec.workspace);
    return status ? status_wrap(status, "workspace") : STATUS_OK;
}

void rank_close(struct rank *rank) {
    if (!rank->device)
        return;
    device_free(rank->device, rank->exec.workspace);
    phase_timer_close(&rank->timer);
    if (rank->exec.stream)
        stream_close(rank->exec.stream);
    comm_close(rank->tensor);
    comm_close(rank->sharers);
    comm_close(rank->data);
    comm_close(rank->buckets);
    comm_close(rank->pipeline[0]);
    comm_close(rank->pipeline[1]);
    comm_close(rank->embedding);
    *rank = (struct rank){0};
}

void rank_need(struct rank *rank, size_t workspace_bytes) {
    if (workspace_bytes > rank->workspace_needed)
        rank->workspace_needed = workspace_bytes;
}

/* ---- collectives of operations ---- */

static bool has_peers(const struct rank *rank, const struct comm *group) {
    return !rank->is_planning && group->size > 1;
}

static struct comm_data on_stream(const struct rank *rank, const void *send, void *receive, int64_t count,
                                  enum dtype dtype) {
    return (struct comm_data){
        .send = send, .receive = receive, .count = count, .dtype = dtype, .stream = rank->exec.stream};
}

int rank_wait(struct rank *rank, struct comm_request *request) {
    int begun = rank_phase_begin(rank);
    int status = request->comm ? comm_wait(request) : STATUS_OK;
    return rank_phase_end(rank, PHASE_COMM, begun, status);
}

int rank_sum(struct rank *rank, struct comm *group, void *data, int64_t count, enum dtype dtype) {
    if (!has_peers(rank, group))
        return STATUS_OK;
    int begun = rank_phase_begin(rank);
    struct comm_data call = on_stream(rank, data, data, count, dtype);
    return rank_phase_end(rank, PHASE_COMM, begun, comm_all_reduce(group, &call, COMM_SUM));
}

int rank_sum_start(struct rank *rank, struct comm *group, void *data, int64_t count, enum dtype dtype,
                   struct comm_request *request) {
    *request = (struct comm_request){0};
    if (!has_peers(rank, group))
        return STATUS_OK;
    int begun = rank_phase_begin(rank);
    struct comm_data call = on_stream(rank, data, data, count, dtype);
    return rank_phase_end(rank, PHASE_COMM, begun, comm_all_reduce_start(group, &call, COMM_SUM, request));
}

int rank_gather(struct rank *rank, struct comm *group, const void *own, void *all, int64_t count, enum dtype dtype) {
    if (!has_peers(rank, group))
        return STATUS_OK;
    int begun = rank_phase_begin(rank);
    struct comm_data call = on_stream(rank, own, all, count, dtype);
    return rank_phase_end(rank, PHASE_COMM, begun, comm_all_gather(group, &call));
}

int rank_gather_start(struct rank *rank, struct comm *group, const void *own, void *all, int64_t count,
                      enum dtype dtype, struct comm_request *request) {
    *request = (struct comm_request){0};
    if (!has_peers(rank, group))
        return STATUS_OK;
    int begun = rank_phase_begin(rank);
    struct comm_data call = on_stream(rank, own, all, count, dtype);
    return rank_phase_end(rank, PHASE_COMM, begun, comm_all_gather_start(group, &call, request));
}

int rank_scatter_start(struct rank *rank, struct comm *group, const void *all, void *own, int64_t count,
                       enum dtype dtype, struct comm_request *request) {
    *request = (struct comm_request){0};
    if (!has_peers(rank, group))
        return STATUS_OK;
    int begun = rank_phase_begin(rank);
    struct comm_data call = on_stream(rank, all, own, count, dtype);
    return rank_phase_end(rank, PHASE_COMM, begun, comm_reduce_scatter_start(group, &call, request));
}
