/* Collectives over MPI, window by window, so that their memory is bounded for any size. The sums are computed here,
 * because MPI_Allreduce may add in any order. Each rank gets all contributions to its part, and adds them in the order
 * of ranks. In an all-reduce, it sends the result to all ranks. A short all-reduce is one all-gather, after which every
 * rank adds all contributions. */
#include "mpi-internal.h"

/* ---- words of MPI ---- */

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

/* ---- windows ---- */

enum { SHORT_BYTES = 16 * 1024, TAG_EXCHANGE = 0, TAG_SPREAD = 1 };

static bool is_short(const struct comm_call *call) {
    return call->kind == COMM_ALL_REDUCE && comm_call_bytes(call) <= SHORT_BYTES;
}

static bool is_sum(const struct comm_call *call) {
    return call->kind == COMM_REDUCE_SCATTER || (call->kind == COMM_ALL_REDUCE && !is_short(call));
}

/* A long gather uses windows, too, so that short messages need not wait for all of it. */
static bool is_gather(const struct comm_call *call) {
    return call->kind == COMM_ALL_GATHER && comm_call_bytes(call) > SHORT_BYTES;
}

/* ---- parts of a window ---- */

/* Elements [first, first + count) of the call's buffers. */
struct part {
    int64_t first, count;
};

/* Returns the elements of a window that rank `p` sums, as a part of send[]; in a gather, those that it contributes, as
 * a part of receive[]. */
static struct part part_of(const struct mpi_comm *comm, const struct mpi_window *window, int p) {
    const struct comm_data *data = &window->request->call.data;
    if (window->request->call.kind != COMM_ALL_REDUCE)
        return (struct part){.first = data->count * p + window->first, .count = window->count};
    int64_t chunk = (window->count + comm->base.size - 1) / comm->base.size;
    int64_t first = chunk * p < window->count ? chunk * p : window->count;
    return (struct part){.first = window->first + first,
                         .count = window->count - first < chunk ? window->count - first : chunk};
}

static char *element(const struct comm_call *call, const void *buffer, int64_t at) {
    return (char *)buffer + (size_t)at * dtype_bytes(call->data.dtype);
}

static char *scratch_of(const struct mpi_comm *comm, const struct mpi_window *window, int p) {
    return window->scratch + comm->piece_bytes * (size_t)(p < comm->base.rank ? p : p - 1);
}

static int add_send(struct mpi_comm *comm, struct mpi_window *window, int tag, const char *from, int64_t count,
                    int peer) {
    if (count == 0)
        return STATUS_OK;
    int code = MPI_Isend(from, (int)count, mpi_type(window->request->call.data.dtype), peer, tag, comm->work,
                         &window->moves[window->move_count++]);
    return mpi_status(comm, code, "send of a collective");
}

static int add_receive(struct mpi_comm *comm, struct mpi_window *window, int tag, char *to, int64_t count, int peer) {
    if (count == 0)
        return STATUS_OK;
    int code = MPI_Irecv(to, (int)count, mpi_type(window->request->call.data.dtype), peer, tag, comm->work,
                         &window->moves[window->move_count++]);
    return mpi_status(comm, code, "receive of a collective");
}

/* Begins to send all contributions to each part to the rank that sums it. */
static int begin_exchange(struct mpi_comm *comm, struct mpi_window *window) {
    const struct comm_call *call = &window->request->call;
    int size = comm->base.size, rank = comm->base.rank, status = STATUS_OK;
    struct part mine = part_of(comm, window, rank);
    for (int step = 1; step < size && !status; step++) {
        int to = (rank + step) % size, from = (rank + size - step) % size;
        struct part theirs = part_of(comm, window, to);
        status = add_receive(comm, window, TAG_EXCHANGE, scratch_of(comm, window, from), mine.count, from);
        if (!status)
            status =
                add_send(comm, window, TAG_EXCHANGE, element(call, call->data.send, theirs.first), theirs.count, to);
    }
    return status;
}

/* Begins to send every rank's sums to all ranks. */
static int begin_spread(struct mpi_comm *comm, struct mpi_window *window) {
    const struct comm_call *call = &window->request->call;
    int size = comm->base.size, rank = comm->base.rank, status = STATUS_OK;
    struct part mine = part_of(comm, window, rank);
    window->is_spreading = true;
    for (int step = 1; step < size && !status; step++) {
        int to = (rank + step) % size, from = (rank + size - step) % size;
        struct part theirs = part_of(comm, window, from);
        status =
            add_receive(comm, window, TAG_SPREAD, element(call, call->data.receive, theirs.first), theirs.count, from);
        THEN(status, add_send(comm, window, TAG_SPREAD, element(call, call->data.receive, mine.first), mine.count, to));
    }
    return status;
}

/* Begins to send every rank's elements to all ranks. */
static int begin_gather(struct mpi_comm *comm, struct mpi_window *window) {
    const struct comm_call *call = &window->request->call;
    int size = comm->base.size, rank = comm->base.rank, status = STATUS_OK;
    const char *own = element(call, call->data.send, window->first);
    char *own_place = element(call, call->data.receive, part_of(comm, window, rank).first);
    if (own != own_place)
        memcpy(own_place, own, (size_t)window->count * dtype_bytes(call->data.dtype));
    for (int step = 1; step < size && !status; step++) {
        int to = (rank + step) % size, from = (rank + size - step) % size;
        struct part theirs = part_of(comm, window, from);
        status = add_receive(comm, window, TAG_EXCHANGE, element(call, call->data.receive, theirs.first), theirs.count,
                             from);
        THEN(status, add_send(comm, window, TAG_EXCHANGE, own, window->count, to));
    }
    return status;
}

/* ---- sums ---- */

static void combine(const struct mpi_comm *comm, const struct comm_call *call, void *to, int64_t count) {
    comm_reduce(&(struct comm_reduction){.from = comm->source,
                                         .sources = comm->base.size,
                                         .to = &to,
                                         .targets = 1,
                                         .count = count,
                                         .dtype = call->data.dtype,
                                         .op = call->op});
}

static void combine_short(struct mpi_comm *comm, const struct mpi_window *window) {
    const struct comm_call *call = &window->request->call;
    for (int p = 0; p < comm->base.size; p++)
        comm->source[p] = window->scratch + comm_call_bytes(call) * (size_t)p;
    combine(comm, call, call->data.receive, window->count);
}

/* Adds all contributions to this rank's part, in the order of ranks, and stores the sum. */
static void combine_part(struct mpi_comm *comm, const struct mpi_window *window) {
    const struct comm_call *call = &window->request->call;
    struct part mine = part_of(comm, window, comm->base.rank);
    bool is_all = call->kind == COMM_ALL_REDUCE;
    for (int p = 0; p < comm->base.size; p++)
        comm->source[p] =
            p == comm->base.rank ? element(call, call->data.send, mine.first) : scratch_of(comm, window, p);
    combine(comm, call, element(call, call->data.receive, is_all ? mine.first : window->first), mine.count);
}

/* ---- windows ---- */

/* Begins a collective that is one call of MPI. */
static int begin_whole(struct mpi_comm *comm, struct mpi_window *window) {
    const struct comm_call *call = &window->request->call;
    const struct comm_data *data = &call->data;
    MPI_Datatype type = mpi_type(data->dtype);
    MPI_Request *move = &window->moves[window->move_count++];
    int count = (int)data->count, rank = comm->base.rank;
    if (call->kind == COMM_BROADCAST) {
        if (rank == call->peer && data->send != data->receive)
            memcpy(data->receive, data->send, comm_call_bytes(call));
        return mpi_status(comm, MPI_Ibcast(data->receive, count, type, call->peer, comm->work, move), "broadcast");
    }
    void *all = is_short(call) ? window->scratch : data->receive;
    bool is_in_place = data->send == (char *)all + comm_call_bytes(call) * (size_t)rank;
    int code = MPI_Iallgather(is_in_place ? MPI_IN_PLACE : data->send, count, type, all, count, type, comm->work, move);
    return mpi_status(comm, code, is_short(call) ? "all-gather of a reduction" : "all-gather");
}

static int64_t window_elements(const struct mpi_comm *comm, const struct comm_call *call) {
    int64_t piece = (int64_t)(comm->piece_bytes / dtype_bytes(call->data.dtype));
    if (!is_sum(call) && !is_gather(call))
        return call->data.count;
    return call->kind == COMM_ALL_REDUCE ? piece * comm->base.size : piece;
}

int mpi_window_begin(struct mpi_comm *comm) {
    struct comm_request *request = comm->unbegun;
    struct mpi_window *window = &comm->windows[(comm->window_first + comm->window_count) % comm->window_most];
    int64_t remaining = request->call.data.count - request->begun, most = window_elements(comm, &request->call);
    window->request = request;
    window->first = request->begun;
    window->count = remaining < most ? remaining : most;
    window->is_spreading = window->is_done = false;
    window->move_count = 0;
    request->begun += window->count;
    comm->window_count++;
    return is_sum(&request->call)      ? begin_exchange(comm, window)
           : is_gather(&request->call) ? begin_gather(comm, window)
                                       : begin_whole(comm, window);
}

/* Uses a window whose messages have all arrived: adds them, and sends the sums to the ranks that need them. */
static int use(struct mpi_comm *comm, struct mpi_window *window) {
    const struct comm_call *call = &window->request->call;
    window->move_count = 0;
    if (is_short(call))
        combine_short(comm, window);
    else if (is_sum(call) && !window->is_spreading) {
        combine_part(comm, window);
        if (call->kind == COMM_ALL_REDUCE)
            return begin_spread(comm, window);
    }
    window->is_done = true;
    window->request->finished += window->count;
    return STATUS_OK;
}

/* Advances the windows. They begin to spread in one order, the same on all ranks; they may end in any. */
static int advance(struct mpi_comm *comm, bool *has_moved) {
    int status = STATUS_OK, has_arrived;
    for (int i = 0; i < comm->window_count && !status; i++) {
        struct mpi_window *window = &comm->windows[(comm->window_first + i) % comm->window_most];
        if (window->is_done)
            continue;
        int code = MPI_Testall(window->move_count, window->moves, &has_arrived, MPI_STATUSES_IGNORE);
        status = mpi_status(comm, code, "exchange of a collective");
        if (!status && !has_arrived && !window->is_spreading)
            return STATUS_OK;
        if (!status && has_arrived) {
            *has_moved = true;
            status = use(comm, window);
        }
    }
    return status;
}

int mpi_windows_advance(struct mpi_comm *comm, bool *has_moved) {
    *has_moved = false;
    int status = advance(comm, has_moved);
    while (comm->window_count > 0 && comm->windows[comm->window_first].is_done) {
        comm->window_first = (comm->window_first + 1) % comm->window_most;
        comm->window_count--;
    }
    return status;
}
