/* All calls. Each is checked here. Calls with a stream go to the group's device channel, others to its host channel. */
#include "comm-internal.h"

#include <inttypes.h>

/* ---- descriptions of calls ---- */

static const char *const kind_names[] = {
    [COMM_ALL_REDUCE] = "all-reduce", [COMM_REDUCE_SCATTER] = "reduce-scatter",
    [COMM_ALL_GATHER] = "all-gather", [COMM_BROADCAST] = "broadcast",
    [COMM_BARRIER] = "barrier",       [COMM_SEND] = "send",
    [COMM_RECEIVE] = "receive",
};

void comm_describe(const struct comm_call *call, char text[COMM_TEXT_BYTES]) {
    const char *kind = kind_names[call->kind];
    if (call->kind == COMM_BARRIER) {
        snprintf(text, COMM_TEXT_BYTES, "%s", kind);
        return;
    }
    char peer[32] = "";
    if (call->kind == COMM_BROADCAST)
        snprintf(peer, sizeof peer, " from root %d", call->peer);
    else if (call->kind == COMM_SEND || call->kind == COMM_RECEIVE)
        snprintf(peer, sizeof peer, " %s rank %d", call->kind == COMM_SEND ? "to" : "from", call->peer);
    const char *op = call->kind != COMM_ALL_REDUCE ? "" : call->op == COMM_SUM ? " (sum)" : " (max)";
    snprintf(text, COMM_TEXT_BYTES, "%s%s of %" PRId64 " %s%s", kind, op, call->data.count,
             dtype_name(call->data.dtype), peer);
}

bool comm_calls_agree(const struct comm_call *a, const struct comm_call *b) {
    return a->kind == b->kind && a->op == b->op && a->peer == b->peer && a->data.count == b->data.count &&
           a->data.dtype == b->data.dtype;
}

/* ---- checks ---- */

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return x < y + b_bytes && y < x + a_bytes;
}

/* Returns true if the buffers do not overlap, or are in place as the call allows. */
static bool buffers_are_apart(const struct comm *comm, const struct comm_call *call) {
    if (!comm_reads(comm, call) || call->kind == COMM_SEND)
        return true;
    const char *send = call->data.send, *receive = call->data.receive;
    size_t bytes = comm_call_bytes(call), whole = bytes * (size_t)comm->size, mine = bytes * (size_t)comm->rank;
    switch (call->kind) {
    case COMM_REDUCE_SCATTER:
        return receive == send + mine || !overlap(send, whole, receive, bytes);
    case COMM_ALL_GATHER:
        return send == receive + mine || !overlap(send, bytes, receive, whole);
    default:
        return send == receive || !overlap(send, bytes, receive, bytes);
    }
}

static int check(const struct comm *comm, const struct comm_call *call) {
    const struct comm_data *data = &call->data;
    if (call->kind == COMM_BARRIER)
        return STATUS_OK;
    char text[COMM_TEXT_BYTES];
    comm_describe(call, text);
    if (data->count < 0 || data->count > INT64_MAX / 8 / comm->size)
        return status_fail(STATUS_INVALID, "%s: no such number of elements", text);
    bool is_reduction = call->kind == COMM_ALL_REDUCE || call->kind == COMM_REDUCE_SCATTER;
    if (is_reduction && data->dtype != DTYPE_F32 && data->dtype != DTYPE_BF16 && data->dtype != DTYPE_F64 &&
        data->dtype != DTYPE_I64)
        return status_fail(STATUS_UNSUPPORTED, "%s: only fp32, bf16, fp64 and int64 can be reduced", text);
    bool has_peer = call->kind == COMM_BROADCAST || call->kind == COMM_SEND || call->kind == COMM_RECEIVE;
    if (has_peer && (call->peer < 0 || call->peer >= comm->size))
        return status_fail(STATUS_INVALID, "%s: the group has ranks 0 to %d", text, comm->size - 1);
    if (data->count == 0)
        return STATUS_OK;
    if ((comm_reads(comm, call) && !data->send) || (call->kind != COMM_SEND && !data->receive))
        return status_fail(STATUS_INVALID, "%s: a buffer is missing", text);
    if (!buffers_are_apart(comm, call))
        return status_fail(STATUS_INVALID, "%s: the buffers overlap", text);
    return STATUS_OK;
}

/* ---- calls ---- */

static int start_call(struct comm *comm, const struct comm_call *call, bool is_waited_for,
                      struct comm_request *request) {
    *request = (struct comm_request){.is_waited_for = is_waited_for};
    int status = check(comm, call);
    bool is_message = call->kind == COMM_SEND || call->kind == COMM_RECEIVE;
    if (!status && is_message && call->peer == comm->rank)
        status = status_fail(STATUS_INVALID, "a message of rank %d to itself", comm->rank);
    TRY(status);
    request->comm = comm;
    request->call = *call;
    status = call->data.stream ? comm->device->start(comm, request) : comm->host->start(comm, request);
    if (status)
        request->comm = NULL;
    return status;
}

static int start(struct comm *comm, const struct comm_call *call, struct comm_request *request) {
    return start_call(comm, call, false, request);
}

int comm_wait_on(struct comm_request *request, struct stream *stream) {
    struct comm *comm = request->comm;
    if (!comm)
        return STATUS_OK;
    bool is_on_device = request->call.data.stream;
    int status = is_on_device ? comm->device->wait(comm, request, stream) : comm->host->finish(comm, request);
    request->comm = NULL;
    return status;
}

int comm_wait(struct comm_request *request) {
    return comm_wait_on(request, request->call.data.stream);
}

int comm_post(struct comm *comm) {
    return comm->device->post ? comm->device->post(comm) : STATUS_OK;
}

bool comm_holds_messages(const struct comm *comm) {
    return comm->device->post;
}

int comm_check(struct comm *comm) {
    return comm->device->check ? comm->device->check(comm) : STATUS_OK;
}

void comm_forget(struct comm_request *request) {
    if (request->kept)
        request->comm->device->forget(request);
}

static int run(struct comm *comm, const struct comm_call *call) {
    struct comm_request request;
    int status = start_call(comm, call, true, &request);
    return status ? status : comm_wait(&request);
}

int comm_all_reduce(struct comm *comm, const struct comm_data *data, enum comm_op op) {
    return run(comm, &(struct comm_call){.kind = COMM_ALL_REDUCE, .op = op, .data = *data});
}

int comm_all_gather(struct comm *comm, const struct comm_data *data) {
    return run(comm, &(struct comm_call){.kind = COMM_ALL_GATHER, .data = *data});
}

int comm_broadcast(struct comm *comm, const struct comm_data *data, int root) {
    return run(comm, &(struct comm_call){.kind = COMM_BROADCAST, .peer = root, .data = *data});
}

int comm_barrier(struct comm *comm) {
    return run(comm, &(struct comm_call){.kind = COMM_BARRIER});
}

int comm_send(struct comm *comm, const struct comm_data *data, int to) {
    return run(comm, &(struct comm_call){.kind = COMM_SEND, .peer = to, .data = *data});
}

int comm_receive(struct comm *comm, const struct comm_data *data, int from) {
    return run(comm, &(struct comm_call){.kind = COMM_RECEIVE, .peer = from, .data = *data});
}

int comm_receive_patient(struct comm *comm, const struct comm_data *data, int from) {
    struct comm_call call = {.kind = COMM_RECEIVE, .peer = from, .data = *data};
    int status = check(comm, &call);
    THEN(status, data->stream ? status_fail(STATUS_INVALID, "a patient receive of device memory") : STATUS_OK);
    THEN(status, from != comm->rank && comm->host->await ? comm->host->await(comm, from) : STATUS_OK);
    return status ? status : run(comm, &call);
}

int comm_all_reduce_start(struct comm *comm, const struct comm_data *data, enum comm_op op,
                          struct comm_request *request) {
    struct comm_call call = {.kind = COMM_ALL_REDUCE, .op = op, .data = *data};
    return start(comm, &call, request);
}

int comm_reduce_scatter_start(struct comm *comm, const struct comm_data *data, struct comm_request *request) {
    return start(comm, &(struct comm_call){.kind = COMM_REDUCE_SCATTER, .data = *data}, request);
}

int comm_all_gather_start(struct comm *comm, const struct comm_data *data, struct comm_request *request) {
    return start(comm, &(struct comm_call){.kind = COMM_ALL_GATHER, .data = *data}, request);
}

int comm_send_start(struct comm *comm, const struct comm_data *data, int to, struct comm_request *request) {
    return start(comm, &(struct comm_call){.kind = COMM_SEND, .peer = to, .data = *data}, request);
}

int comm_receive_start(struct comm *comm, const struct comm_data *data, int from, struct comm_request *request) {
    struct comm_call call = {.kind = COMM_RECEIVE, .peer = from, .data = *data};
    return start(comm, &call, request);
}

/* ---- groups ---- */

static int open_subgroup(struct comm *parent, const int *ranks, int count, struct comm **out) {
    TRY(parent->host->subgroup(parent, ranks, count, out));
    (*out)->device = parent->device;
    int status = parent->device->join ? parent->device->join(parent, ranks, *out) : STATUS_OK;
    if (status) {
        comm_close(*out);
        *out = NULL;
    }
    return status;
}

/* Makes the group of a single rank, or none. The other ranks may make larger ones. */
static int open_alone(struct comm *parent, int count, struct comm **out) {
    int status = parent->device->join ? parent->device->join(parent, NULL, NULL) : STATUS_OK;
    if (status || count == 0)
        return status;
    status = comm_single_open(out);
    if (!status)
        (*out)->world_rank = parent->world_rank;
    return status;
}

int comm_subgroup(struct comm *parent, const int *ranks, int count, struct comm **out) {
    *out = NULL;
    if (count < 0 || count > parent->size)
        return status_fail(STATUS_INVALID, "a group of %d ranks from one of %d", count, parent->size);
    int mine = count ? -1 : 0;
    for (int i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= parent->size)
            return status_fail(STATUS_INVALID, "no rank %d in a group of %d", ranks[i], parent->size);
        for (int k = 0; k < i; k++)
            if (ranks[k] == ranks[i])
                return status_fail(STATUS_INVALID, "rank %d is twice in a list of ranks", ranks[i]);
        mine = ranks[i] == parent->rank ? i : mine;
    }
    if (mine < 0)
        return status_fail(STATUS_INVALID, "rank %d makes a group that it is not in", parent->rank);
    return count > 1 ? open_subgroup(parent, ranks, count, out) : open_alone(parent, count, out);
}

bool comm_is_ordered(const struct comm *comm) {
    return comm->device->is_ordered;
}

bool comm_records(const struct comm *comm) {
    return comm->device->is_work;
}

void comm_leave_device_channel(struct comm *comm) {
    if (comm->device->leave)
        comm->device->leave(comm);
    comm->device = &comm_device_over_host;
    comm->device_state = NULL;
}

int comm_use_device(struct comm *comm, struct device *device) {
    return comm->host->use_device ? comm->host->use_device(comm, device) : STATUS_OK;
}

void comm_request_order(struct comm *comm) {
    if (!comm_is_ordered(comm))
        comm_leave_device_channel(comm);
}

int comm_watch(struct comm *world, const struct comm_watch_options *options) {
    return world->host->watch ? world->host->watch(world, options) : STATUS_OK;
}

struct comm_signs comm_signs_of(const struct comm *world, int rank) {
    return world->host->signs_of ? world->host->signs_of(world, rank) : (struct comm_signs){0};
}

void comm_close(struct comm *comm) {
    if (!comm)
        return;
    comm_leave_device_channel(comm);
    comm->host->close(comm);
}

void comm_abort(struct comm *comm, const char *reason) {
    comm->host->abort(comm, reason);
    if (comm->device->abort)
        comm->device->abort(comm);
}

void comm_fail(struct comm *comm, int status) {
    if (status == STATUS_PEER)
        comm_barrier(comm); /* returns when the rank that failed calls it, too */
    comm_abort(comm, status_text());
}
