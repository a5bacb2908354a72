/* The work of calls on a GPU: copies, or one reduction, on a stream of the member that queues it. It runs after all
 * members' events, which then move to its end. The channel is in local_device.c. */
#include "local-internal.h"

/* Makes the member's stream wait for `count` events. */
static int begin(struct local_card *card, struct event *const *events, int count) {
    int status = card->stream ? STATUS_OK : stream_open(card->device, &card->stream);
    for (int i = 0; i < count && !status; i++)
        status = stream_wait_event(card->stream, events[i]);
    return status;
}

/* Moves the events to the end of the work. */
static int end(struct local_card *card, struct event *const *events, int count, int status) {
    for (int i = 0; i < count && !status; i++)
        status = event_record(events[i], card->stream);
    return status;
}

static int reduce(struct stream *stream, const struct local_entry *entry, int size) {
    const struct comm_call *call = &entry->call[0];
    bool is_scattered = call->kind == COMM_REDUCE_SCATTER;
    struct reduce_call reduction = {.sources = size,
                                    .targets = size,
                                    .count = call->data.count * (is_scattered ? size : 1),
                                    .part = is_scattered ? call->data.count : 0,
                                    .dtype = call->data.dtype,
                                    .is_max = call->op == COMM_MAX};
    for (int m = 0; m < size; m++) {
        reduction.from[m] = entry->send[m];
        reduction.to[m] = entry->receive[m];
    }
    return stream_reduce(stream, &reduction);
}

static int move(struct stream *stream, void *to, const void *from, size_t bytes) {
    return to == from ? STATUS_OK : stream_copy(stream, to, from, bytes);
}

/* Copies to each member what others send: every member's part, or the root's. */
static int copy(struct stream *stream, const struct local_entry *entry, int size) {
    const struct comm_call *call = &entry->call[0];
    size_t bytes = comm_call_bytes(call);
    bool is_gather = call->kind == COMM_ALL_GATHER;
    int status = STATUS_OK;
    for (int to = 0; to < size; to++)
        for (int from = 0; from < (is_gather ? size : 1) && !status; from++)
            status = move(stream, (char *)entry->receive[to] + bytes * (size_t)from,
                          entry->send[is_gather ? from : call->peer], bytes);
    return status;
}

int local_card_run(const struct local_comm *comm, const struct local_entry *entry) {
    struct local_card *card = comm->base.device_state;
    const struct comm_call *call = &entry->call[0];
    int size = comm->base.size, status = begin(card, entry->event, size);
    bool is_sum = call->kind == COMM_ALL_REDUCE || call->kind == COMM_REDUCE_SCATTER;
    THEN_IF(status, call->data.count, (is_sum ? reduce : copy)(card->stream, entry, size));
    return end(card, entry->event, size, status);
}

int local_card_send(const struct local_comm *comm, const struct comm_request *sent,
                    const struct comm_request *received) {
    struct local_card *card = comm->base.device_state;
    struct event *events[] = {sent->kept, received->kept};
    int status = begin(card, events, 2);
    if (!status)
        status =
            stream_copy(card->stream, received->call.data.receive, sent->call.data.send, comm_call_bytes(&sent->call));
    return end(card, events, 2, status);
}
