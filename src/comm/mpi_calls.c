/* Calls over MPI. When a collective is started, a hash of it begins to travel, so that ranks that call different things
 * are told so before data moves. The rest is done when the rank waits, oldest first. Messages carry their type as the
 * tag. */
#include "mpi-internal.h"

#include <inttypes.h>
#include <limits.h>

static void keep(struct comm_request *request, MPI_Request travelling) {
    _Static_assert(sizeof travelling <= sizeof request->handle, "a request holds MPI's handle");
    memcpy(&request->handle, &travelling, sizeof travelling);
}

static MPI_Request kept(const struct comm_request *request) {
    MPI_Request travelling;
    memcpy(&travelling, &request->handle, sizeof travelling);
    return travelling;
}

int mpi_status(const struct mpi_comm *comm, int code, const char *what) {
    if (code == MPI_SUCCESS)
        return STATUS_OK;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    return status_fail(STATUS_IO, "rank %d: %s: %s", comm->base.world_rank, what, text);
}

MPI_Datatype mpi_type(enum dtype dtype) {
    switch (dtype_bytes(dtype)) {
    case 1:
        return MPI_UINT8_T;
    case 2:
        return MPI_UINT16_T;
    case 4:
        return MPI_UINT32_T;
    default:
        return MPI_UINT64_T;
    }
}

/* ---- agreement ---- */

/* Of what calls must have in common; positive, so that its negative exists. */
static int64_t call_hash(const struct comm_call *call) {
    int64_t words[] = {call->kind, call->op, call->peer, call->data.count, call->data.dtype};
    return (int64_t)(digest_bytes(DIGEST_START, words, sizeof words) >> 1);
}

/* The hashes differ: every rank comes here for the same collective and learns who called what. */
static int fail_mismatch(struct mpi_comm *comm, const struct comm_call *call) {
    int size = comm->base.size;
    int64_t mine[5] = {call->kind, call->op, call->peer, call->data.count, call->data.dtype};
    int64_t *all = (int64_t *)(void *)comm->scratch; /* a piece is larger than a call */
    int code = MPI_Allgather(mine, 5, MPI_INT64_T, all, 5, MPI_INT64_T, comm->work);
    int status = mpi_status(comm, code, "comparison of calls");
    for (int m = 1; m < size && !status; m++) {
        if (!memcmp(all, all + 5 * m, sizeof mine))
            continue;
        char text[2][COMM_TEXT_BYTES];
        for (int i = 0; i < 2; i++) {
            const int64_t *words = all + (i ? 5 * m : 0);
            struct comm_call other = {.kind = (enum comm_kind)words[0],
                                      .op = (enum comm_op)words[1],
                                      .peer = (int)words[2],
                                      .data = {.count = words[3], .dtype = (enum dtype)words[4]}};
            comm_describe(&other, text[i]);
        }
        status = status_fail(STATUS_INVALID, "ranks of one group call different collectives: rank %d %s, rank %d %s",
                             comm->world_rank[0], text[0], comm->world_rank[m], text[1]);
    }
    return status;
}

static int begin_agreement(struct mpi_comm *comm, struct comm_request *request) {
    int64_t *words = request->agreement;
    words[0] = call_hash(&request->call);
    words[1] = -words[0];
    MPI_Request travelling;
    int code = MPI_Iallreduce(words, words + 2, 2, MPI_INT64_T, MPI_MAX, comm->calls, &travelling);
    keep(request, travelling);
    return mpi_status(comm, code, "agreement");
}

static int finish_agreement(struct mpi_comm *comm, struct comm_request *request) {
    MPI_Request travelling = kept(request);
    int status = mpi_status(comm, MPI_Wait(&travelling, MPI_STATUS_IGNORE), "agreement");
    if (!status && request->agreement[2] != -request->agreement[3])
        status = fail_mismatch(comm, &request->call);
    return status;
}

/* ---- messages ---- */

static int start_message(struct mpi_comm *comm, struct comm_request *request) {
    const struct comm_call *call = &request->call;
    const struct comm_data *data = &call->data;
    MPI_Datatype type = mpi_type(data->dtype);
    MPI_Request travelling;
    int code =
        call->kind == COMM_SEND
            ? MPI_Isend(data->send, (int)data->count, type, call->peer, (int)data->dtype, comm->calls, &travelling)
            : MPI_Irecv(data->receive, (int)data->count, type, call->peer, MPI_ANY_TAG, comm->calls, &travelling);
    keep(request, travelling);
    return mpi_status(comm, code, call->kind == COMM_SEND ? "send" : "receive");
}

static int finish_message(struct mpi_comm *comm, struct comm_request *request) {
    const struct comm_call *call = &request->call;
    const struct comm_data *data = &call->data;
    int peer = comm->world_rank[call->peer], self = comm->base.world_rank;
    MPI_Request travelling = kept(request);
    MPI_Status message;
    int code = MPI_Wait(&travelling, &message), class = MPI_SUCCESS;
    if (code != MPI_SUCCESS)
        MPI_Error_class(code, &class);
    if (class == MPI_ERR_TRUNCATE)
        return status_fail(STATUS_INVALID, "rank %d sends more to rank %d than the %" PRId64 " %s that it receives",
                           peer, self, data->count, dtype_name(data->dtype));
    int status = mpi_status(comm, code, call->kind == COMM_SEND ? "send" : "receive");
    if (status || call->kind == COMM_SEND)
        return status;
    enum dtype sent = (enum dtype)message.MPI_TAG;
    int count = 0;
    MPI_Get_count(&message, mpi_type(sent), &count);
    if (sent == data->dtype && count == data->count)
        return STATUS_OK;
    return status_fail(STATUS_INVALID, "rank %d sends %d %s to rank %d, which receives %" PRId64 " %s", peer, count,
                       dtype_name(sent), self, data->count, dtype_name(data->dtype));
}

/* ---- collectives ---- */

static int all_gather(struct mpi_comm *comm, const struct comm_call *call) {
    const struct comm_data *data = &call->data;
    MPI_Datatype type = mpi_type(data->dtype);
    const char *own = (char *)data->receive + comm_call_bytes(call) * (size_t)comm->base.rank;
    int code = MPI_Allgather(data->send == own ? MPI_IN_PLACE : data->send, (int)data->count, type, data->receive,
                             (int)data->count, type, comm->work);
    return mpi_status(comm, code, "all-gather");
}

static int broadcast(struct mpi_comm *comm, const struct comm_call *call) {
    const struct comm_data *data = &call->data;
    if (comm->base.rank == call->peer && data->send != data->receive && data->count > 0)
        memcpy(data->receive, data->send, comm_call_bytes(call));
    int code = MPI_Bcast(data->receive, (int)data->count, mpi_type(data->dtype), call->peer, comm->work);
    return mpi_status(comm, code, "broadcast");
}

static int run_collective(struct mpi_comm *comm, struct comm_request *request) {
    const struct comm_call *call = &request->call;
    int status = finish_agreement(comm, request);
    if (status)
        return status;
    switch (call->kind) {
    case COMM_ALL_REDUCE:
        return mpi_all_reduce(comm, call);
    case COMM_REDUCE_SCATTER:
        return mpi_reduce_scatter(comm, call);
    case COMM_ALL_GATHER:
        return all_gather(comm, call);
    case COMM_BROADCAST:
        return broadcast(comm, call);
    default: /* a barrier: that all agree means that all have come */
        return STATUS_OK;
    }
}

int mpi_start(struct comm *base, struct comm_request *request) {
    struct mpi_comm *comm = (struct mpi_comm *)base;
    const struct comm_call *call = &request->call;
    if (call->data.count > INT_MAX && call->kind != COMM_ALL_REDUCE && call->kind != COMM_REDUCE_SCATTER)
        return status_fail(STATUS_UNSUPPORTED, "%" PRId64 " elements in one call; MPI moves up to %d", call->data.count,
                           INT_MAX);
    if (call->kind == COMM_SEND || call->kind == COMM_RECEIVE)
        return start_message(comm, request);
    if (comm->started == COMM_STARTED_MAX)
        return status_fail(STATUS_INVALID, "rank %d has started %d collectives without waiting for them",
                           base->world_rank, COMM_STARTED_MAX);
    int status = begin_agreement(comm, request);
    if (status)
        return status;
    if (comm->oldest)
        comm->newest->next = request;
    else
        comm->oldest = request;
    comm->newest = request;
    comm->started++;
    return STATUS_OK;
}

int mpi_finish(struct comm *base, struct comm_request *request) {
    struct mpi_comm *comm = (struct mpi_comm *)base;
    if (request->call.kind == COMM_SEND || request->call.kind == COMM_RECEIVE)
        return finish_message(comm, request);
    int status = STATUS_OK;
    while (!request->is_done && !status) {
        struct comm_request *oldest = comm->oldest;
        if (!oldest)
            return status_fail(STATUS_INVALID, "rank %d waits for a collective after one that failed",
                               base->world_rank);
        comm->oldest = oldest->next;
        comm->started--;
        status = run_collective(comm, oldest);
        oldest->is_done = !status;
    }
    return status;
}
