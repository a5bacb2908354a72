#include "unordered.h"

#include "comm-internal.h"

#include <stdlib.h>

/* The channel's state in one group. */
struct channel {
    struct device *device;
    struct stream *stream;
    struct event *event;
    int calls;         /* collectives started: the same number on every rank, and where the next sum begins */
    struct call *done; /* their results may still be on their way to the device */
};

/* A call over memory of the host: of a reduction, every rank's numbers come here. */
struct call {
    struct comm_request request;
    char *memory; /* [send_bytes + gathered] */
    size_t send_bytes, receive_bytes;
    int first; /* the rank whose numbers a sum begins with */
    struct call *next;
};

static bool is_reduction(const struct comm_call *call) {
    return call->kind == COMM_ALL_REDUCE || call->kind == COMM_REDUCE_SCATTER;
}

static void call_free(struct channel *channel, struct call *call) {
    if (call)
        device_host_free(channel->device, call->memory);
    free(call);
}

/* The channel's stream has run. */
static void free_done(struct channel *channel) {
    for (struct call *call = channel->done, *next; call; call = next) {
        next = call->next;
        call_free(channel, call);
    }
    channel->done = NULL;
}

/* ---- sums ---- */

/* to[count] = the sum, or maximum, over ranks of from[rank * stride ...], one addition at a time. */
static void reduce(const struct call *call, const struct comm *comm, const char *from, size_t stride, void *to) {
    const struct comm_call *asked = &call->request.call;
    memcpy(to, from + stride * (size_t)call->first, call->receive_bytes);
    for (int i = 1; i < comm->size; i++) {
        const void *pair[] = {to, from + stride * (size_t)((call->first + i) % comm->size)};
        comm_reduce(&(struct comm_reduction){.from = pair,
                                             .sources = 2,
                                             .to = &to,
                                             .targets = 1,
                                             .count = (int64_t)(call->receive_bytes / dtype_bytes(asked->data.dtype)),
                                             .dtype = asked->data.dtype,
                                             .op = asked->op});
    }
}

/* The memory of the host in which the result is. */
static const char *result_of(const struct comm *comm, const struct comm_request *request) {
    struct call *call = request->kept;
    char *gathered = call->memory + call->send_bytes;
    if (!is_reduction(&request->call))
        return gathered;
    size_t mine = request->call.kind == COMM_REDUCE_SCATTER ? call->receive_bytes * (size_t)comm->rank : 0;
    call->request.call.op = request->call.op;
    reduce(call, comm, gathered + mine, call->send_bytes, call->memory);
    return call->memory;
}

/* ---- the table ---- */

/* The call over the host: a reduction gathers the numbers of all. */
static struct comm_call over_host(const struct comm_call *asked, const struct call *call) {
    struct comm_call over = *asked;
    over.data.stream = NULL;
    over.data.send = call->memory;
    over.data.receive = call->memory + call->send_bytes;
    if (is_reduction(asked)) {
        over.kind = COMM_ALL_GATHER;
        over.op = COMM_SUM;
        over.data.count = (int64_t)(call->send_bytes / dtype_bytes(asked->data.dtype));
    }
    return over;
}

static int make_call(const struct comm *comm, const struct comm_request *request, struct call **out) {
    struct channel *channel = comm->device_state;
    const struct comm_call *asked = &request->call;
    struct call *call = *out = calloc(1, sizeof *call);
    if (!call)
        return status_fail(STATUS_MEMORY, "out of memory");
    size_t bytes = comm_call_bytes(asked), size = (size_t)comm->size;
    call->send_bytes = asked->kind == COMM_REDUCE_SCATTER ? bytes * size : bytes;
    call->receive_bytes = asked->kind == COMM_SEND ? 0 : asked->kind == COMM_ALL_GATHER ? bytes * size : bytes;
    void *memory = NULL;
    int status = device_host_alloc(channel->device, call->send_bytes * (1 + size), &memory);
    call->memory = memory;
    return status;
}

/* The numbers leave the device on the channel's stream, after what is on the caller's. */
static int fetch(struct channel *channel, const struct comm_request *request, struct call *call) {
    const struct comm_data *data = &request->call.data;
    int status = event_record(channel->event, data->stream);
    if (!status)
        status = stream_wait_event(channel->stream, channel->event);
    if (!status && comm_reads(request->comm, &request->call))
        status = stream_copy_to_host(channel->stream, call->memory, data->send, call->send_bytes);
    int waited = stream_wait(channel->stream);
    free_done(channel);
    return status ? status : waited;
}

static int unordered_start(struct comm *comm, struct comm_request *request) {
    struct channel *channel = comm->device_state;
    struct call *call;
    int status = make_call(comm, request, &call);
    if (!status)
        status = fetch(channel, request, call);
    if (!status) {
        call->request.comm = comm;
        call->request.call = over_host(&request->call, call);
        call->first = is_reduction(&request->call) ? channel->calls++ % comm->size : 0;
        status = comm->host->start(comm, &call->request);
    }
    if (status)
        call_free(channel, call);
    else
        request->kept = call;
    return status;
}

static int unordered_wait(struct comm *comm, struct comm_request *request, struct stream *stream) {
    struct channel *channel = comm->device_state;
    struct call *call = request->kept;
    int status = comm->host->finish(comm, &call->request);
    if (!status && call->receive_bytes)
        status = stream_copy_to_device(channel->stream, request->call.data.receive, result_of(comm, request),
                                       call->receive_bytes);
    if (!status)
        status = event_record(channel->event, channel->stream);
    if (!status)
        status = stream_wait_event(stream, channel->event);
    request->kept = NULL;
    call->next = channel->done;
    channel->done = call;
    return status;
}

static void unordered_forget(struct comm_request *request) {
    call_free(request->comm->device_state, request->kept);
    request->kept = NULL;
}

static void unordered_leave(struct comm *comm) {
    struct channel *channel = comm->device_state;
    if (!channel)
        return;
    if (channel->stream)
        stream_wait(channel->stream);
    free_done(channel);
    event_close(channel->event);
    stream_close(channel->stream);
    free(channel);
}

static int open_channel(struct device *device, struct comm *comm) {
    struct channel *channel = comm->device_state = calloc(1, sizeof *channel);
    if (!channel)
        return status_fail(STATUS_MEMORY, "out of memory");
    channel->device = device;
    int status = stream_open(device, &channel->stream);
    return status ? status : event_open(device, &channel->event);
}

static int unordered_join(struct comm *parent, const int *ranks, struct comm *group) {
    (void)ranks;
    return !group ? STATUS_OK : open_channel(((const struct channel *)parent->device_state)->device, group);
}

static const struct comm_device_channel unordered = {.name = "unordered",
                                                     .start = unordered_start,
                                                     .wait = unordered_wait,
                                                     .forget = unordered_forget,
                                                     .join = unordered_join,
                                                     .leave = unordered_leave};

int unordered_open(struct comm *group, struct device *device) {
    if (group->size == 1)
        return STATUS_OK;
    if (group->device->leave)
        group->device->leave(group);
    group->device = &unordered;
    return open_channel(device, group);
}
