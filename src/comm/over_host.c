/* The device channel of groups that have no other: device memory goes over the host channel. A call waits for its
 * stream before it starts. If the host cannot read the device's memory, data are copied to the host and back. */
#include "comm-internal.h"

/* Stores the bytes that the call reads and writes at this rank. */
static void measure(const struct comm *comm, struct comm_request *request) {
    const struct comm_call *call = &request->call;
    size_t bytes = comm_call_bytes(call), whole = bytes * (size_t)comm->size;
    request->send_bytes = !comm_reads(comm, call) ? 0 : call->kind == COMM_REDUCE_SCATTER ? whole : bytes;
    request->receive_bytes = call->kind == COMM_SEND ? 0 : call->kind == COMM_ALL_GATHER ? whole : bytes;
}

static void forget(struct comm_request *request) {
    device_host_free(stream_device(request->call.data.stream), request->kept);
    request->kept = NULL;
}

/* Replaces the buffers by host memory, if the host cannot read them. */
static int stage(const struct comm *comm, struct comm_request *request) {
    struct comm_data *data = &request->call.data;
    measure(comm, request);
    int status = device_host_alloc(stream_device(data->stream), request->send_bytes + request->receive_bytes + 1,
                                   &request->kept);
    if (status)
        return status;
    status = stream_copy_to_host(data->stream, request->kept, data->send, request->send_bytes);
    int waited = stream_wait(data->stream);
    request->receive = data->receive;
    data->send = request->kept;
    data->receive = (char *)request->kept + request->send_bytes;
    return status ? status : waited;
}

static int start(struct comm *comm, struct comm_request *request) {
    struct stream *stream = request->call.data.stream;
    int status = stream_wait(stream);
    if (!status && !device_host_reads(stream_device(stream)))
        status = stage(comm, request);
    if (!status)
        status = comm->host->start(comm, request);
    if (status && request->kept)
        forget(request);
    return status;
}

/* Finishes the call. When this returns, every stream sees the result. */
static int wait(struct comm *comm, struct comm_request *request, struct stream *stream) {
    int status = comm->host->finish(comm, request);
    if (!request->kept)
        return status;
    if (!status)
        status = stream_copy_to_device(stream, request->receive, request->call.data.receive, request->receive_bytes);
    int waited = stream_wait(stream);
    forget(request);
    return status ? status : waited;
}

const struct comm_device_channel comm_device_over_host = {
    .name = "over the host", .is_ordered = true, .start = start, .wait = wait, .forget = forget};
