/* Messages between threads. The second of sender and receiver finds the other's request in the mailbox of the pair. It
 * copies from buffer to buffer, or queues the copy on their GPU, and marks the request as done. */
#include "local-internal.h"

#include <inttypes.h>

static struct comm_request *meet_or_queue(struct local_mailbox *box, struct comm_request *request) {
    pthread_mutex_lock(&box->lock);
    struct comm_request *other = box->head;
    if (other && other->call.kind != request->call.kind) {
        box->head = other->next;
    } else {
        request->next = NULL;
        if (other)
            box->last->next = request;
        else
            box->head = request;
        box->last = request;
        other = NULL;
    }
    pthread_mutex_unlock(&box->lock);
    return other;
}

int local_message_start(struct local_comm *comm, struct comm_request *request) {
    struct local_group *group = comm->group;
    bool is_send = request->call.kind == COMM_SEND;
    int from = is_send ? comm->base.rank : request->call.peer, to = is_send ? request->call.peer : comm->base.rank;
    if (!local_busy_begin(comm))
        return local_failure(comm);
    struct comm_request *other = meet_or_queue(&group->mailbox[from * group->size + to], request);
    if (!other) {
        local_busy_end(comm);
        return STATUS_OK;
    }
    const struct comm_request *from_request = is_send ? request : other, *to_request = is_send ? other : request;
    const struct comm_data *sent = &from_request->call.data, *received = &to_request->call.data;
    if (sent->count != received->count || sent->dtype != received->dtype) {
        struct comm_data a = *sent, b = *received;
        local_busy_end(comm);
        return local_fail(comm, STATUS_INVALID,
                          "rank %d sends %" PRId64 " %s to rank %d, which receives %" PRId64 " %s",
                          comm->group->world_rank[from], a.count, dtype_name(a.dtype), comm->group->world_rank[to],
                          b.count, dtype_name(b.dtype));
    }
    bool is_on_card = local_is_on_card(&comm->base, &request->call);
    int status = is_on_card == local_is_on_card(other->comm, &other->call)
                     ? STATUS_OK
                     : status_fail(STATUS_INVALID, "a message between a GPU and the host");
    if (!status && is_on_card)
        status = local_card_send(comm, from_request, to_request);
    else if (!status && sent->count > 0)
        memcpy(received->receive, sent->send, (size_t)sent->count * dtype_bytes(sent->dtype));
    if (status) {
        local_busy_end(comm);
        return status;
    }
    atomic_store_explicit(&request->is_done, 1, memory_order_relaxed);
    atomic_store(&other->is_done, 1); /* from here on, the request belongs to its owner again */
    meeting_ring(&group->member[request->call.peer].bell);
    local_busy_end(comm);
    return STATUS_OK;
}

int local_message_finish(struct local_comm *comm, struct comm_request *request) {
    struct local_group *group = comm->group;
    struct meeting *bell = &group->member[comm->base.rank].bell;
    for (int step = 0;;) {
        uint32_t seen = atomic_load(&bell->value); /* read before the flag, so that a ring in between ends the sleep */
        if (atomic_load(&request->is_done))
            return STATUS_OK;
        if (local_has_failed(group->world))
            return local_failure(comm);
        if (!meeting_rest(comm, bell, seen, &step) || !local_has_ended(group, request->call.peer) ||
            atomic_load(&request->is_done))
            continue;
        return local_fail(comm, STATUS_PEER, "rank %d ended while rank %d waits for a message %s it",
                          group->world_rank[request->call.peer], comm->base.world_rank,
                          request->call.kind == COMM_SEND ? "to" : "from");
    }
}
