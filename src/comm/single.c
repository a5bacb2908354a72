/* The group of a single rank. Its calls copy at once, or on the stream. */
#include "comm-internal.h"

static int copy_on_host(struct comm *comm, struct comm_request *request) {
    const struct comm_data *data = &request->call.data;
    if (data->send != data->receive && request->call.kind != COMM_BARRIER && data->count)
        memcpy(data->receive, data->send, comm_call_bytes(&request->call));
    return STATUS_OK;
}

static int finish(struct comm *comm, struct comm_request *request) {
    return STATUS_OK;
}

static void abort_alone(struct comm *comm, const char *reason) {
}

static void close_alone(struct comm *comm) {
    free(comm);
}

/* It needs no subgroup: comm_subgroup handles groups of one. */
static const struct comm_host_channel host_channel = {
    .name = "single", .start = copy_on_host, .finish = finish, .abort = abort_alone, .close = close_alone};

static int copy_on_device(struct comm *comm, struct comm_request *request) {
    const struct comm_data *data = &request->call.data;
    size_t bytes = comm_call_bytes(&request->call);
    return data->send == data->receive || !bytes ? STATUS_OK
                                                 : stream_copy(data->stream, data->receive, data->send, bytes);
}

/* Makes another stream wait for the copy. */
static int wait_for_copy(struct comm *comm, struct comm_request *request, struct stream *stream) {
    return stream == request->call.data.stream ? STATUS_OK : stream_wait(request->call.data.stream);
}

static const struct comm_device_channel device_channel = {
    .name = "single", .is_ordered = true, .start = copy_on_device, .wait = wait_for_copy};

int comm_single_open(struct comm **out) {
    *out = malloc(sizeof **out);
    TRY(status_allocated(*out));
    **out = (struct comm){.host = &host_channel, .device = &device_channel, .size = 1};
    return STATUS_OK;
}
