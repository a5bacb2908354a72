/* The device channel of groups that have no other: device memory goes over the host channel. A call waits for its
 * stream before it starts. If the host cannot read the device's memory, data are copied to the host and back. */
#include "comm-internal.h"

/* ---- host memory, pinned where the device can do that ---- */

/* Memory for the data of one call. */
struct block {
    struct block *next; /* in the group's pool */
    struct device *device;
    size_t bytes;
    void *memory;
};

/* The state of a group: blocks that no call uses, so that a step pins no memory. Calls that are under way at the same
 * time have a block each, and there are never more. */
struct pool {
    struct block *unused;
};

static void close_block(struct block *block) {
    device_host_free(block->device, block->memory);
    free(block);
}

/* Takes the first block out of the pool that is large enough. If none is, a smaller one makes room for a new one. */
static struct block *take_unused(struct pool *pool, const struct device *device, size_t bytes) {
    struct block **small = NULL;
    for (struct block **at = &pool->unused; *at; at = &(*at)->next) {
        struct block *block = *at;
        if (block->device == device && block->bytes >= bytes) {
            *at = block->next;
            return block;
        }
        small = at;
    }
    if (small) {
        close_block(*small);
        *small = NULL; /* it was the last one */
    }
    return NULL;
}

static int open_block(struct device *device, size_t bytes, struct block **out) {
    struct block *block = *out = malloc(sizeof *block);
    TRY(status_allocated(block));
    *block = (struct block){.device = device, .bytes = bytes};
    int status = device_host_alloc(device, bytes, &block->memory);
    if (status) {
        free(block);
        *out = NULL;
    }
    return status;
}

static int take_block(const struct comm *comm, struct device *device, size_t bytes, struct block **block) {
    *block = comm->device_state ? take_unused(comm->device_state, device, bytes) : NULL;
    return *block ? STATUS_OK : open_block(device, bytes, block);
}

static int join(struct comm *parent, const int *ranks, struct comm *group) {
    if (!group)
        return STATUS_OK;
    group->device_state = calloc(1, sizeof(struct pool));
    return status_allocated(group->device_state);
}

static void leave(struct comm *group) {
    struct pool *pool = group->device_state;
    while (pool && pool->unused) {
        struct block *block = pool->unused;
        pool->unused = block->next;
        close_block(block);
    }
    free(pool);
}

/* ---- calls ---- */

/* Gives the call's block back. */
static void forget(struct comm_request *request) {
    struct pool *pool = request->comm->device_state;
    struct block *block = request->kept;
    request->kept = NULL;
    if (!pool) {
        close_block(block);
        return;
    }
    block->next = pool->unused;
    pool->unused = block;
}

/* Replaces the buffers by host memory, if the host cannot read them. */
static int stage(const struct comm *comm, struct comm_request *request) {
    struct comm_data *data = &request->call.data;
    struct block *block;
    const struct comm_call *call = &request->call;
    size_t bytes = comm_call_bytes(call), whole = bytes * (size_t)comm->size;
    request->send_bytes = !comm_reads(comm, call) ? 0 : call->kind == COMM_REDUCE_SCATTER ? whole : bytes;
    request->receive_bytes = call->kind == COMM_SEND ? 0 : call->kind == COMM_ALL_GATHER ? whole : bytes;
    int status =
        take_block(comm, stream_device(data->stream), request->send_bytes + request->receive_bytes + 1, &block);
    TRY(status);
    request->kept = block;
    status = stream_copy_to_host(data->stream, block->memory, data->send, request->send_bytes);
    int waited = stream_wait(data->stream);
    request->receive = data->receive;
    data->send = block->memory;
    data->receive = (char *)block->memory + request->send_bytes;
    return status ? status : waited;
}

static int start(struct comm *comm, struct comm_request *request) {
    struct stream *stream = request->call.data.stream;
    int status = stream_wait(stream);
    THEN(status, !device_host_reads(stream_device(stream)) ? stage(comm, request) : STATUS_OK);
    THEN(status, comm->host->start(comm, request));
    if (status && request->kept)
        forget(request);
    return status;
}

/* Finishes the call. When this returns, every stream sees the result. */
static int wait(struct comm *comm, struct comm_request *request, struct stream *stream) {
    int status = comm->host->finish(comm, request);
    if (!request->kept)
        return status;
    THEN(status, stream_copy_to_device(stream, request->receive, request->call.data.receive, request->receive_bytes));
    int waited = stream_wait(stream);
    forget(request);
    return status ? status : waited;
}

const struct comm_device_channel comm_device_over_host = {.name = "over the host",
                                                          .is_ordered = true,
                                                          .start = start,
                                                          .wait = wait,
                                                          .forget = forget,
                                                          .join = join,
                                                          .leave = leave};
