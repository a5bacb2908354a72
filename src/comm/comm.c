/* The calls: each is checked here, runs at once where the group is one rank, and else goes to the backend. */
#include "comm-internal.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- words ---- */

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

static bool reads(const struct comm *comm, const struct comm_call *call) {
    return call->kind == COMM_BROADCAST ? call->peer == comm->rank : call->kind != COMM_RECEIVE;
}

/* Whether the buffers are apart, or in place as the call allows. */
static bool buffers_are_apart(const struct comm *comm, const struct comm_call *call) {
    if (!reads(comm, call) || call->kind == COMM_SEND)
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
        return status_fail(STATUS_UNSUPPORTED, "%s: reductions are of fp32, bf16, fp64 and int64", text);
    bool has_peer = call->kind == COMM_BROADCAST || call->kind == COMM_SEND || call->kind == COMM_RECEIVE;
    if (has_peer && (call->peer < 0 || call->peer >= comm->size))
        return status_fail(STATUS_INVALID, "%s: the group has ranks 0 to %d", text, comm->size - 1);
    if (data->count == 0)
        return STATUS_OK;
    if ((reads(comm, call) && !data->send) || (call->kind != COMM_SEND && !data->receive))
        return status_fail(STATUS_INVALID, "%s: a buffer is missing", text);
    if (!buffers_are_apart(comm, call))
        return status_fail(STATUS_INVALID, "%s: the buffers overlap", text);
    return STATUS_OK;
}

/* ---- a rank alone ---- */

static int copy(struct stream *stream, void *to, const void *from, size_t bytes) {
    if (to == from || bytes == 0)
        return STATUS_OK;
    if (stream)
        return stream_copy(stream, to, from, bytes);
    memcpy(to, from, bytes);
    return STATUS_OK;
}

static int single_start(struct comm *comm, struct comm_request *request) {
    const struct comm_call *call = &request->call;
    (void)comm;
    if (call->kind == COMM_BARRIER)
        return STATUS_OK;
    return copy(call->data.stream, call->data.receive, call->data.send, comm_call_bytes(call));
}

static int single_finish(struct comm *comm, struct comm_request *request) {
    (void)comm;
    (void)request;
    return STATUS_OK;
}

static void single_abort(struct comm *comm, const char *reason) {
    (void)comm;
    (void)reason;
}

static void single_close(struct comm *comm) {
    free(comm);
}

/* A group of one has no subgroup of two: comm_subgroup answers for it. */
const struct comm_backend comm_backend_single = {
    .name = "single", .start = single_start, .finish = single_finish, .abort = single_abort, .close = single_close};

int comm_single_open(struct comm **out) {
    *out = malloc(sizeof **out);
    if (!*out)
        return status_fail(STATUS_MEMORY, "out of memory");
    **out = (struct comm){.backend = &comm_backend_single, .rank = 0, .size = 1, .world_rank = 0};
    return STATUS_OK;
}

/* ---- device memory that the host cannot read ---- */

/* The bytes that the call reads and writes at this rank. */
static void measure(const struct comm *comm, struct comm_request *request) {
    const struct comm_call *call = &request->call;
    size_t bytes = comm_call_bytes(call), whole = bytes * (size_t)comm->size;
    request->send_bytes = !reads(comm, call) ? 0 : call->kind == COMM_REDUCE_SCATTER ? whole : bytes;
    request->receive_bytes = call->kind == COMM_SEND ? 0 : call->kind == COMM_ALL_GATHER ? whole : bytes;
}

/* Puts memory of the host in the place of the buffers. */
static int stage(const struct comm *comm, struct comm_request *request) {
    struct comm_call *call = &request->call;
    if (call->kind == COMM_BARRIER || !call->data.stream || device_host_reads(stream_device(call->data.stream)))
        return STATUS_OK;
    measure(comm, request);
    int status = device_host_alloc(stream_device(call->data.stream), request->send_bytes + request->receive_bytes + 1,
                                   &request->staged);
    if (!status)
        status = stream_copy_to_host(call->data.stream, request->staged, call->data.send, request->send_bytes);
    int waited = stream_wait(call->data.stream);
    request->receive = call->data.receive;
    call->data.send = request->staged;
    call->data.receive = (char *)request->staged + request->send_bytes;
    return status ? status : waited;
}

/* After it: the result goes to the device. */
static int unstage(struct comm_request *request, int status) {
    if (!request->staged)
        return status;
    struct stream *stream = request->call.data.stream;
    if (!status)
        status = stream_copy_to_device(stream, request->receive, request->call.data.receive, request->receive_bytes);
    int waited = stream_wait(stream);
    comm_forget(request);
    return status ? status : waited;
}

void comm_forget(struct comm_request *request) {
    if (request->staged)
        device_host_free(stream_device(request->call.data.stream), request->staged);
    request->staged = NULL;
}

/* ---- calls ---- */

static int start_call(struct comm *comm, const struct comm_call *call, bool is_waited_for,
                      struct comm_request *request) {
    *request = (struct comm_request){.is_waited_for = is_waited_for};
    int status = check(comm, call);
    bool is_message = call->kind == COMM_SEND || call->kind == COMM_RECEIVE;
    if (!status && is_message && call->peer == comm->rank)
        status = status_fail(STATUS_INVALID, "a message of rank %d to itself", comm->rank);
    bool is_on_host = comm->backend->meets_on_host;
    if (!status && call->data.stream && is_on_host) /* what the ranks share must be there */
        status = stream_wait(call->data.stream);
    if (status)
        return status;
    request->comm = comm;
    request->call = *call;
    status = is_on_host ? stage(comm, request) : STATUS_OK;
    if (!status)
        status = comm->backend->start(comm, request);
    if (status) {
        unstage(request, status);
        request->comm = NULL;
    }
    return status;
}

static int start(struct comm *comm, const struct comm_call *call, struct comm_request *request) {
    return start_call(comm, call, false, request);
}

int comm_wait(struct comm_request *request) {
    struct comm *comm = request->comm;
    if (!comm)
        return STATUS_OK;
    int status = unstage(request, comm->backend->finish(comm, request));
    request->comm = NULL;
    return status;
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
    if (!status && from != comm->rank && comm->backend->await)
        status = comm->backend->await(comm, from);
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

int comm_subgroup(struct comm *parent, const int *ranks, int count, struct comm **out) {
    *out = NULL;
    if (count < 1 || count > parent->size)
        return status_fail(STATUS_INVALID, "a group of %d ranks from one of %d", count, parent->size);
    int mine = -1;
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
    if (count > 1)
        return parent->backend->subgroup(parent, ranks, count, out);
    int status = comm_single_open(out);
    if (!status)
        (*out)->world_rank = parent->world_rank;
    return status;
}

int comm_watch(struct comm *world, const struct comm_watch_options *options) {
    return world->backend->watch ? world->backend->watch(world, options) : STATUS_OK;
}

struct comm_signs comm_signs_of(const struct comm *world, int rank) {
    return world->backend->signs_of ? world->backend->signs_of(world, rank) : (struct comm_signs){0};
}

void comm_close(struct comm *comm) {
    if (comm)
        comm->backend->close(comm);
}

void comm_abort(struct comm *comm, const char *reason) {
    comm->backend->abort(comm, reason);
}
