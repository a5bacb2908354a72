/* Reductions over MPI whose sums are ours: MPI_Allreduce may add in any order. Each rank collects everybody's
 * contributions to its part, adds them in the order of ranks, and for an all-reduce sends the result to everybody.
 * Small ones are one all-gather, added by every rank for itself. Long ones go piece by piece through the group's
 * scratch. */
#include "mpi-internal.h"

enum { SMALL_BYTES = 16 * 1024 };

static int add_send(struct mpi_comm *comm, const void *from, int64_t count, MPI_Datatype type, int peer) {
    if (count == 0)
        return STATUS_OK;
    int code = MPI_Isend(from, (int)count, type, peer, 0, comm->work, &comm->transfers[comm->transfer_count++]);
    return mpi_status(comm, code, "send of a reduction");
}

static int add_receive(struct mpi_comm *comm, void *to, int64_t count, MPI_Datatype type, int peer) {
    if (count == 0)
        return STATUS_OK;
    int code = MPI_Irecv(to, (int)count, type, peer, 0, comm->work, &comm->transfers[comm->transfer_count++]);
    return mpi_status(comm, code, "receive of a reduction");
}

static int finish_transfers(struct mpi_comm *comm) {
    int count = comm->transfer_count;
    comm->transfer_count = 0;
    return mpi_status(comm, MPI_Waitall(count, comm->transfers, MPI_STATUSES_IGNORE), "exchange of a reduction");
}

/* Adds the sources, this rank's own among them in its place, into `to`. */
static void combine(struct mpi_comm *comm, const struct comm_call *call, const void *own, void *to, int64_t count) {
    for (int p = 0; p < comm->base.size; p++)
        comm->source[p] = p == comm->base.rank ? own : comm->scratch + comm->piece_bytes * (size_t)p;
    comm_reduce(&(struct comm_reduction){.from = comm->source,
                                         .sources = comm->base.size,
                                         .to = &to,
                                         .targets = 1,
                                         .count = count,
                                         .dtype = call->data.dtype,
                                         .op = call->op});
}

static int reduce_small(struct mpi_comm *comm, const struct comm_call *call) {
    int size = comm->base.size, count = (int)call->data.count;
    MPI_Datatype type = mpi_type(call->data.dtype);
    int code = MPI_Allgather(call->data.send, count, type, comm->scratch, count, type, comm->work);
    int status = mpi_status(comm, code, "all-gather of a reduction");
    if (status)
        return status;
    for (int p = 0; p < size; p++)
        comm->source[p] = comm->scratch + comm_call_bytes(call) * (size_t)p;
    comm_reduce(&(struct comm_reduction){.from = comm->source,
                                         .sources = size,
                                         .to = &call->data.receive,
                                         .targets = 1,
                                         .count = count,
                                         .dtype = call->data.dtype,
                                         .op = call->op});
    return STATUS_OK;
}

/* The part of rank `p` in a window of `count` elements cut into chunks. */
struct part {
    int64_t first, count;
};
static struct part part_of(int64_t count, int64_t chunk, int p) {
    int64_t first = chunk * p < count ? chunk * p : count;
    return (struct part){.first = first, .count = count - first < chunk ? count - first : chunk};
}

/* One window of an all-reduce: `send` and `receive` point at it. */
static int reduce_window(struct mpi_comm *comm, const struct comm_call *call, const char *send, char *receive,
                         int64_t count, int64_t chunk) {
    int size = comm->base.size, rank = comm->base.rank, status = STATUS_OK;
    size_t element = dtype_bytes(call->data.dtype);
    MPI_Datatype type = mpi_type(call->data.dtype);
    struct part mine = part_of(count, chunk, rank);
    for (int step = 1; step < size && !status; step++) {
        int to = (rank + step) % size, from = (rank + size - step) % size;
        struct part theirs = part_of(count, chunk, to);
        status = add_receive(comm, comm->scratch + comm->piece_bytes * (size_t)from, mine.count, type, from);
        status = status ? status : add_send(comm, send + (size_t)theirs.first * element, theirs.count, type, to);
    }
    status = status ? status : finish_transfers(comm);
    if (status)
        return status;
    char *result = receive + (size_t)mine.first * element;
    combine(comm, call, send + (size_t)mine.first * element, result, mine.count);
    for (int step = 1; step < size && !status; step++) {
        int to = (rank + step) % size, from = (rank + size - step) % size;
        struct part theirs = part_of(count, chunk, from);
        status = add_receive(comm, receive + (size_t)theirs.first * element, theirs.count, type, from);
        status = status ? status : add_send(comm, result, mine.count, type, to);
    }
    return status ? status : finish_transfers(comm);
}

int mpi_all_reduce(struct mpi_comm *comm, const struct comm_call *call) {
    const struct comm_data *data = &call->data;
    size_t bytes = comm_call_bytes(call), element = dtype_bytes(data->dtype);
    if (bytes <= SMALL_BYTES && bytes <= comm->piece_bytes)
        return reduce_small(comm, call);
    int size = comm->base.size, status = STATUS_OK;
    int64_t piece = (int64_t)(comm->piece_bytes / element), window = piece * size;
    for (int64_t first = 0; first < data->count && !status; first += window) {
        int64_t count = data->count - first < window ? data->count - first : window;
        int64_t chunk = (count + size - 1) / size;
        status = reduce_window(comm, call, (const char *)data->send + (size_t)first * element,
                               (char *)data->receive + (size_t)first * element, count, chunk);
    }
    return status;
}

int mpi_reduce_scatter(struct mpi_comm *comm, const struct comm_call *call) {
    const struct comm_data *data = &call->data;
    int size = comm->base.size, rank = comm->base.rank, status = STATUS_OK;
    size_t element = dtype_bytes(data->dtype), part = comm_call_bytes(call);
    MPI_Datatype type = mpi_type(data->dtype);
    int64_t piece = (int64_t)(comm->piece_bytes / element);
    const char *send = data->send;
    for (int64_t first = 0; first < data->count && !status; first += piece) {
        int64_t count = data->count - first < piece ? data->count - first : piece;
        size_t offset = (size_t)first * element;
        for (int step = 1; step < size && !status; step++) {
            int to = (rank + step) % size, from = (rank + size - step) % size;
            status = add_receive(comm, comm->scratch + comm->piece_bytes * (size_t)from, count, type, from);
            status = status ? status : add_send(comm, send + part * (size_t)to + offset, count, type, to);
        }
        status = status ? status : finish_transfers(comm);
        if (!status)
            combine(comm, call, send + part * (size_t)rank + offset, (char *)data->receive + offset, count);
    }
    return status;
}
