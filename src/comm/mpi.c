/* The channel `mpi`: making and leaving the world and its groups. */
#include "mpi-internal.h"

#include "watch.h"

#include "base/stop.h"

/* Scratch of a group's windows. Pieces have a minimum size for the sake of messages, so that two windows of many ranks
 * may take more. */
enum { SCRATCH_BYTES = 1 << 20, PIECE_BYTES_MIN = 64 * 1024, WINDOWS_MIN = 2 };

static void comm_free(struct mpi_comm *comm) {
    if (comm->work != MPI_COMM_NULL)
        MPI_Comm_free(&comm->work);
    if (comm->calls != MPI_COMM_NULL)
        MPI_Comm_free(&comm->calls);
    free(comm->world_rank);
    for (int i = 0; i < MPI_WINDOWS; i++) {
        free(comm->windows[i].scratch);
        free(comm->windows[i].moves);
    }
    free(comm->source);
    free(comm);
}

static void mpi_close(struct comm *base) {
    struct mpi_comm *comm = (struct mpi_comm *)base;
    if (comm->is_world) {
        struct watch *watch = comm->watch;
        mpi_process_close(comm->process);
        comm_free(comm);
        MPI_Finalize(); /* it waits for the other ranks */
        watch_close(watch);
        return;
    }
    struct mpi_process *process = comm->process;
    mpi_enter(comm->process);
    mpi_process_remove(comm);
    comm_free(comm);
    mpi_leave(process);
}

/* It ends the run even if another thread hangs inside MPI. After a signal mpirun ends all ranks already; for an abort
 * it would give them one more second. */
static void mpi_abort(struct comm *comm, const char *reason) {
    log_error("rank %d failed: %s", comm->world_rank, reason);
    watch_fail(((struct mpi_comm *)comm)->watch);
    if (stop_requested())
        stop_obey(); /* a launcher ends the run for that, too */
    mpi_enter_soon(((struct mpi_comm *)comm)->process);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* If rank 0 cannot listen, only it fails, and tells port 0. */
static int mpi_watch(struct comm *world, const struct comm_watch_options *asked) {
    struct mpi_comm *comm = (struct mpi_comm *)world;
    struct watch_options options = {.rank = world->rank,
                                    .size = world->size,
                                    .seconds = asked->seconds,
                                    .on_end = asked->on_end,
                                    .context = asked->context};
    struct watch_card card;
    int status = world->rank == 0 ? watch_lead(&options, &card, &comm->watch) : STATUS_OK;
    struct comm_data data = {.send = &card, .receive = &card, .count = sizeof card, .dtype = DTYPE_U8};
    int shared = comm_broadcast(world, &data, 0);
    if (status || shared)
        return status ? status : shared;
    return world->rank > 0 && card.port ? watch_join(&options, &card, &comm->watch) : STATUS_OK;
}

static struct comm_signs mpi_signs_of(const struct comm *base, int rank) {
    const struct watch *watch = ((const struct mpi_comm *)base)->watch;
    struct comm_signs signs = {0};
    signs.are_known = watch && watch_signs_of(watch, rank, &signs.count);
    return signs;
}

static int mpi_subgroup(struct comm *parent, const int *ranks, int count, struct comm **out);

static const struct comm_host_channel comm_host_mpi = {.name = "mpi",
                                                       .start = mpi_start,
                                                       .finish = mpi_finish,
                                                       .await = mpi_await,
                                                       .subgroup = mpi_subgroup,
                                                       .watch = mpi_watch,
                                                       .signs_of = mpi_signs_of,
                                                       .abort = mpi_abort,
                                                       .close = mpi_close};

bool comm_is_mpi(const struct comm *comm) {
    return comm->host == &comm_host_mpi;
}

/* Makes a rank's side of a group of `size`, without communicators. */
static struct mpi_comm *comm_new(int rank, int size) {
    struct mpi_comm *comm = calloc(1, sizeof *comm);
    if (!comm)
        return NULL;
    comm->base = (struct comm){.host = &comm_host_mpi, .device = &comm_device_over_host, .rank = rank, .size = size};
    comm->calls = comm->work = MPI_COMM_NULL;
    size_t others = (size_t)size - 1;
    comm->piece_bytes = SCRATCH_BYTES / MPI_WINDOWS / others / 64 * 64;
    if (comm->piece_bytes < PIECE_BYTES_MIN)
        comm->piece_bytes = PIECE_BYTES_MIN;
    size_t windows = SCRATCH_BYTES / (comm->piece_bytes * others);
    comm->window_most = windows > WINDOWS_MIN ? (int)windows : WINDOWS_MIN;
    comm->world_rank = calloc((size_t)size, sizeof *comm->world_rank);
    comm->source = calloc((size_t)size, sizeof *comm->source);
    bool is_whole = comm->world_rank && comm->source;
    for (int i = 0; i < comm->window_most; i++) {
        struct mpi_window *window = &comm->windows[i];
        window->scratch = aligned_alloc(64, comm->piece_bytes * others);
        window->moves = calloc(2 * (size_t)size, sizeof(MPI_Request));
        is_whole = is_whole && window->scratch && window->moves;
    }
    if (is_whole)
        return comm;
    comm_free(comm);
    return NULL;
}

/* Makes the second communicator, and makes both return errors as codes. */
static int complete(struct mpi_comm *comm) {
    MPI_Comm_set_errhandler(comm->calls, MPI_ERRORS_RETURN);
    int status = mpi_status(comm, MPI_Comm_dup(comm->calls, &comm->work), "communicator");
    if (!status)
        MPI_Comm_set_errhandler(comm->work, MPI_ERRORS_RETURN);
    return status;
}

static int mpi_subgroup(struct comm *base, const int *ranks, int count, struct comm **out) {
    struct mpi_comm *parent = (struct mpi_comm *)base;
    int rank = 0;
    while (ranks[rank] != base->rank)
        rank++;
    struct mpi_comm *comm = comm_new(rank, count);
    if (!comm)
        return status_fail(STATUS_MEMORY, "no memory for a group of %d ranks", count);
    comm->base.world_rank = base->world_rank;
    comm->watch = parent->watch;
    for (int i = 0; i < count; i++)
        comm->world_rank[i] = parent->world_rank[ranks[i]];
    MPI_Group all, some;
    mpi_enter(parent->process);
    int status = mpi_status(parent, MPI_Comm_group(parent->calls, &all), "group");
    if (!status) {
        status = mpi_status(parent, MPI_Group_incl(all, count, ranks, &some), "group");
        MPI_Group_free(&all);
    }
    if (!status) {
        status = mpi_status(parent, MPI_Comm_create_group(parent->calls, some, 0, &comm->calls), "communicator");
        MPI_Group_free(&some);
    }
    status = status ? status : complete(comm);
    if (!status) {
        mpi_process_add(parent->process, comm);
        *out = &comm->base;
    } else {
        comm_free(comm);
    }
    mpi_leave(parent->process);
    return status;
}

static int open_world(struct comm **out) {
    int rank = 0, size = 0;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size == 1)
        return status_fail(STATUS_INVALID, "the launcher started several processes, but MPI sees one rank: use srun "
                                           "--mpi=pmix, or the mpirun of the MPI that this program was built with");
    struct mpi_comm *comm = comm_new(rank, size);
    if (!comm)
        return status_fail(STATUS_MEMORY, "no memory for a group of %d ranks", size);
    comm->base.world_rank = rank;
    comm->is_world = true;
    for (int r = 0; r < size; r++)
        comm->world_rank[r] = r;
    int status = mpi_status(comm, MPI_Comm_dup(MPI_COMM_WORLD, &comm->calls), "communicator");
    status = status ? status : complete(comm);
    struct mpi_process *process;
    status = status ? status : mpi_process_open(&process);
    if (status) {
        comm_free(comm);
        return status;
    }
    mpi_enter(process);
    mpi_process_add(process, comm);
    mpi_leave(process);
    *out = &comm->base;
    return STATUS_OK;
}

int comm_mpi_open(struct comm **out) {
    *out = NULL;
    int is_initialized = 0, provided = 0;
    MPI_Initialized(&is_initialized);
    if (is_initialized)
        return status_fail(STATUS_INVALID, "MPI is initialised once in a process");
    /* One thread at a time calls MPI, but not always the same one (mpi_calls.c). */
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS)
        return status_fail(STATUS_IO, "MPI cannot be initialised");
    int status = provided < MPI_THREAD_SERIALIZED
                     ? status_fail(STATUS_UNSUPPORTED, "this MPI cannot be called from several threads in turn")
                     : open_world(out);
    if (status)
        MPI_Finalize();
    return status;
}
