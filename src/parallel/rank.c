/* The rank grid's arithmetic, and what a rank carries. */
#include "parallel/parallel.h"

int rank_grid_size(const struct rank_grid *grid) {
    return grid->tensor * grid->context * grid->expert * grid->data * grid->pipeline;
}

struct rank_grid rank_grid_place(const struct rank_grid *grid, int rank) {
    struct rank_grid place;
    place.tensor = rank % grid->tensor;
    rank /= grid->tensor;
    place.context = rank % grid->context;
    rank /= grid->context;
    place.expert = rank % grid->expert;
    rank /= grid->expert;
    place.data = rank % grid->data;
    place.pipeline = rank / grid->data;
    return place;
}

int rank_grid_rank(const struct rank_grid *grid, const struct rank_grid *place) {
    int rank = place->pipeline;
    rank = rank * grid->data + place->data;
    rank = rank * grid->expert + place->expert;
    rank = rank * grid->context + place->context;
    return rank * grid->tensor + place->tensor;
}

int rank_open_single(struct rank *rank, struct device *device, uint64_t seed) {
    *rank = (struct rank){
        .grid = {1, 1, 1, 1, 1}, .device = device, .ops = ops_for(device), .seed = seed, .is_planning = true};
    return stream_open(device, &rank->exec.stream);
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
    if (rank->exec.stream)
        stream_close(rank->exec.stream);
    *rank = (struct rank){0};
}

void rank_need(struct rank *rank, size_t workspace_bytes) {
    if (workspace_bytes > rank->workspace_needed)
        rank->workspace_needed = workspace_bytes;
}

int rank_phase_end(struct rank *rank, enum phase phase, double start, int status) {
    if (!rank->is_timed || status)
        return status;
    status = stream_wait(rank->exec.stream);
    rank->phase_seconds[phase] += clock_seconds() - start;
    return status;
}
