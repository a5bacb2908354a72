/* Calls over MPI. When a collective is started, a hash of it is sent, so that ranks with different calls fail before
 * data moves. Then its windows begin, after those of earlier collectives. Messages carry their type as the tag. A
 * thread advances started calls while no rank waits. */
#include "mpi-internal.h"

#include "watch.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

static void keep(struct comm_request *request, MPI_Request travelling) {
    _Static_assert(sizeof travelling <= sizeof request->handle, "a request holds MPI's handle");
    memcpy(&request->handle, &travelling, sizeof travelling);
}

static MPI_Request kept(const struct comm_request *request) {
    MPI_Request travelling;
    memcpy(&travelling, &request->handle, sizeof travelling);
    return travelling;
}

/* ---- agreement ---- */

/* Returns a hash of everything that must be equal in the ranks' calls. It is positive, so that its negative exists. */
static int64_t call_hash(const struct comm_call *call) {
    int64_t words[] = {call->kind, call->op, call->peer, call->data.count, call->data.dtype};
    return (int64_t)(digest_bytes(DIGEST_START, words, sizeof words) >> 1);
}

/* Fails after the hashes differed. Every rank comes here for the same collective, and learns the others' calls. */
static int fail_mismatch(struct mpi_comm *comm, const struct comm_call *call) {
    int size = comm->base.size;
    int64_t mine[5] = {call->kind, call->op, call->peer, call->data.count, call->data.dtype};
    int64_t *all = malloc((size_t)size * sizeof mine);
    TRY(status_allocated(all));
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
    free(all);
    return status;
}

/* ---- messages ---- */

/* The members of `words` of a message that has arrived. */
enum { MESSAGE_CODE, MESSAGE_TAG, MESSAGE_COUNT };

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
    if (code == MPI_SUCCESS) {
        request->next = comm->messages;
        comm->messages = request;
    }
    return mpi_status(comm, code, call->kind == COMM_SEND ? "send" : "receive");
}

/* Returns true if a message has arrived or failed. Stores its facts for the call that waits. */
static bool message_has_arrived(struct comm_request *request) {
    MPI_Request travelling = kept(request);
    MPI_Status message = {0};
    int has_arrived = 0, count = 0, code = MPI_Test(&travelling, &has_arrived, &message);
    if (code == MPI_SUCCESS && !has_arrived)
        return false;
    if (code == MPI_SUCCESS && request->call.kind == COMM_RECEIVE)
        MPI_Get_count(&message, mpi_type((enum dtype)message.MPI_TAG), &count);
    request->words[MESSAGE_CODE] = code;
    request->words[MESSAGE_TAG] = message.MPI_TAG;
    request->words[MESSAGE_COUNT] = count;
    request->is_done = true;
    return true;
}

static int check_message(const struct mpi_comm *comm, const struct comm_request *request) {
    const struct comm_call *call = &request->call;
    const struct comm_data *data = &call->data;
    int peer = comm->world_rank[call->peer], self = comm->base.world_rank;
    int code = (int)request->words[MESSAGE_CODE], class = MPI_SUCCESS;
    if (code != MPI_SUCCESS)
        MPI_Error_class(code, &class);
    if (class == MPI_ERR_TRUNCATE)
        return status_fail(STATUS_INVALID, "rank %d sends more to rank %d than the %" PRId64 " %s that it receives",
                           peer, self, data->count, dtype_name(data->dtype));
    int status = mpi_status(comm, code, call->kind == COMM_SEND ? "send" : "receive");
    if (status || call->kind == COMM_SEND)
        return status;
    enum dtype sent = (enum dtype)request->words[MESSAGE_TAG];
    int64_t count = request->words[MESSAGE_COUNT];
    if (sent == data->dtype && count == data->count)
        return STATUS_OK;
    return status_fail(STATUS_INVALID, "rank %d sends %" PRId64 " %s to rank %d, which receives %" PRId64 " %s", peer,
                       count, dtype_name(sent), self, data->count, dtype_name(data->dtype));
}

/* ---- collectives ---- */

static int start_collective(struct mpi_comm *comm, struct comm_request *request) {
    if (comm->started == COMM_STARTED_MAX)
        return status_fail(STATUS_INVALID, "rank %d has started %d collectives without waiting for them",
                           comm->base.world_rank, COMM_STARTED_MAX);
    int64_t *words = request->words;
    words[0] = call_hash(&request->call);
    words[1] = -words[0];
    MPI_Request travelling;
    int code = MPI_Iallreduce(words, words + 2, 2, MPI_INT64_T, MPI_MAX, comm->calls, &travelling);
    keep(request, travelling);
    TRY(mpi_status(comm, code, "agreement"));
    if (comm->oldest)
        comm->newest->next = request;
    else
        comm->oldest = request;
    comm->newest = request;
    comm->unbegun = comm->unbegun ? comm->unbegun : request;
    comm->started++;
    return STATUS_OK;
}

/* Sets *have_agreed if all ranks have started comm->unbegun, with the same call. */
static int have_agreed(struct mpi_comm *comm, bool *have_agreed) {
    struct comm_request *request = comm->unbegun;
    MPI_Request travelling = kept(request);
    int has_arrived = 1, status = STATUS_OK;
    if (travelling != MPI_REQUEST_NULL)
        status = mpi_status(comm, MPI_Test(&travelling, &has_arrived, MPI_STATUS_IGNORE), "agreement");
    keep(request, travelling);
    comm->is_mismatch = !status && has_arrived && request->words[2] != -request->words[3];
    *have_agreed = !status && has_arrived && !comm->is_mismatch;
    return status;
}

/* Begins windows of collectives that all ranks have started, while the ring has free ones. */
static int begin_windows(struct mpi_comm *comm) {
    while (comm->unbegun && comm->window_count < comm->window_most) {
        struct comm_request *request = comm->unbegun;
        bool is_ready;
        int status = have_agreed(comm, &is_ready);
        if (!is_ready)
            return status;
        if (request->call.data.count) /* a barrier has none: its agreement is enough */
            status = mpi_window_begin(comm);
        TRY(status);
        if (request->begun == request->call.data.count)
            comm->unbegun = request->next;
    }
    return STATUS_OK;
}

/* Advances the group's messages and collectives. The group keeps a failure, for the calls that wait. */
static void mpi_advance(struct mpi_comm *comm) {
    bool has_moved = true;
    int status = STATUS_OK;
    for (struct comm_request **at = &comm->messages; *at;) {
        if (message_has_arrived(*at))
            *at = (*at)->next;
        else
            at = &(*at)->next;
    }
    while (has_moved && comm->oldest && !comm->failure && !comm->is_mismatch && !status) {
        status = begin_windows(comm);
        THEN(status, mpi_windows_advance(comm, &has_moved));
        /* Removes finished collectives from the list. */
        while (comm->oldest && comm->oldest != comm->unbegun &&
               comm->oldest->finished == comm->oldest->call.data.count) {
            struct comm_request *request = comm->oldest;
            comm->oldest = request->next;
            request->is_done = true;
            comm->started--;
        }
    }
    if (status) {
        comm->failure = status;
        snprintf(comm->failure_text, sizeof comm->failure_text, "%s", status_text());
    }
}

/* ---- the thread that advances started calls ----
 *
 * MPI moves data only inside its functions. While no rank waits, this thread calls them, so that sums travel while the
 * ranks compute. It naps between calls, and sleeps while nothing is started. */

/* During a nap, 25 kB of the megabyte under way leave at 1 Gbit/s. (With 500 microseconds, the link was used 2% less,
 * and the computation beside it was no faster.) */
enum { NAP_NANOSECONDS = 200 * 1000, STACK_BYTES = 1 << 20 };

struct mpi_process {
    pthread_mutex_t lock;
    pthread_cond_t started;
    pthread_t thread;
    struct mpi_comm *groups;
    bool is_asleep, is_ending;
};

void mpi_enter(struct mpi_process *process) {
    pthread_mutex_lock(&process->lock);
}

void mpi_leave(struct mpi_process *process) {
    pthread_mutex_unlock(&process->lock);
}

void mpi_enter_soon(struct mpi_process *process) {
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec++;
    pthread_mutex_timedlock(&process->lock, &limit);
}

void mpi_process_add(struct mpi_process *process, struct mpi_comm *comm) {
    comm->process = process;
    comm->next = process->groups;
    process->groups = comm;
}

void mpi_process_remove(struct mpi_comm *comm) {
    struct mpi_comm **at = &comm->process->groups;
    while (*at && *at != comm)
        at = &(*at)->next;
    if (*at)
        *at = comm->next;
}

/* Advances the calls of all groups. Under the lock. */
static void mpi_process_advance(struct mpi_process *process) {
    for (struct mpi_comm *comm = process->groups; comm; comm = comm->next)
        if (mpi_is_busy(comm))
            mpi_advance(comm);
}

/* Wakes the thread after a start that no rank waits for yet. Under the lock. */
static void mpi_process_wake(struct mpi_process *process) {
    if (process->is_asleep)
        pthread_cond_signal(&process->started);
}

static bool is_busy(const struct mpi_process *process) {
    for (const struct mpi_comm *comm = process->groups; comm; comm = comm->next)
        if (mpi_is_busy(comm))
            return true;
    return false;
}

static void nap(void) {
    struct timespec time = {.tv_nsec = NAP_NANOSECONDS};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
}

static void *look_after(void *context) {
    struct mpi_process *process = context;
    pthread_mutex_lock(&process->lock);
    for (;;) {
        process->is_asleep = true;
        while (!is_busy(process) && !process->is_ending)
            pthread_cond_wait(&process->started, &process->lock);
        process->is_asleep = false;
        if (process->is_ending)
            break;
        mpi_process_advance(process);
        pthread_mutex_unlock(&process->lock);
        do /* a rank that waits holds the lock, and advances all calls itself */
            nap();
        while (pthread_mutex_trylock(&process->lock) == EBUSY);
    }
    pthread_mutex_unlock(&process->lock);
    return NULL;
}

int mpi_process_open(struct mpi_process **out) {
    struct mpi_process *process = *out = calloc(1, sizeof *process);
    sigset_t all, before;
    pthread_attr_t attributes;
    if (!process || pthread_attr_init(&attributes)) {
        free(process);
        return status_no_memory();
    }
    pthread_mutex_init(&process->lock, NULL);
    pthread_cond_init(&process->started, NULL);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* other threads handle signals */
    int error = pthread_create(&process->thread, &attributes, look_after, process);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (!error)
        return STATUS_OK;
    free(process);
    return status_fail(STATUS_IO, "cannot start a thread for MPI: %s", strerror(error));
}

void mpi_process_close(struct mpi_process *process) {
    pthread_mutex_lock(&process->lock);
    process->is_ending = true;
    pthread_cond_signal(&process->started);
    pthread_mutex_unlock(&process->lock);
    pthread_join(process->thread, NULL);
    pthread_cond_destroy(&process->started);
    pthread_mutex_destroy(&process->lock);
    free(process);
}

/* ---- what ranks call ---- */

int mpi_start(struct comm *base, struct comm_request *request) {
    struct mpi_comm *comm = (struct mpi_comm *)base;
    const struct comm_call *call = &request->call;
    bool is_message = call->kind == COMM_SEND || call->kind == COMM_RECEIVE;
    if (call->data.count > INT_MAX && (is_message || call->kind == COMM_BROADCAST))
        return status_fail(STATUS_UNSUPPORTED, "%" PRId64 " elements in one call; MPI moves up to %d", call->data.count,
                           INT_MAX);
    watch_give_sign(comm->watch);
    mpi_enter(comm->process);
    int status = is_message ? start_message(comm, request) : start_collective(comm, request);
    if (!status && !request->is_waited_for)
        mpi_process_wake(comm->process);
    mpi_leave(comm->process);
    return status;
}

/* Advances all calls of the process until the request is done. */
static int wait_until_done(struct mpi_comm *comm, const struct comm_request *request) {
    bool is_message = request->call.kind == COMM_SEND || request->call.kind == COMM_RECEIVE;
    while (!request->is_done) {
        watch_give_sign(comm->watch);
        mpi_process_advance(comm->process);
        if (is_message || request->is_done)
            continue;
        if (comm->failure)
            return status_fail(comm->failure, "%s", comm->failure_text);
        if (comm->is_mismatch)
            return fail_mismatch(comm, &comm->unbegun->call);
    }
    return STATUS_OK;
}

int mpi_finish(struct comm *base, struct comm_request *request) {
    struct mpi_comm *comm = (struct mpi_comm *)base;
    bool is_message = request->call.kind == COMM_SEND || request->call.kind == COMM_RECEIVE;
    mpi_enter(comm->process);
    int status = wait_until_done(comm, request);
    mpi_leave(comm->process);
    return !status && is_message ? check_message(comm, request) : status;
}

/* ---- patience ---- */

/* Sleeps for a quarter of the wait so far, so that an early message is seen early. A rank that waits for a step of the
 * others polls once a millisecond. After a wait longer than steps take, it polls half as often. After an idle second,
 * it polls half as often again. That takes 1/200 of a core, or 1/100 on a busy machine, where a poll costs more. */
static void nap_after(double waited) {
    static const double shortest = 20e-6, longest = 1e-3, beyond_steps = 0.1, idle = 1;
    double nap = waited / 4, most = waited < beyond_steps ? longest : waited < idle ? 2 * longest : 4 * longest;
    nap = nap < shortest ? shortest : nap > most ? most : nap;
    struct timespec time = {.tv_nsec = (long)(nap * 1e9)};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
}

/* It only probes: a started receive would keep the thread awake. */
int mpi_await(struct comm *base, int from) {
    struct mpi_comm *comm = (struct mpi_comm *)base;
    double start = clock_seconds();
    for (;;) {
        int is_there = 0;
        watch_give_sign(comm->watch);
        mpi_enter(comm->process);
        mpi_process_advance(comm->process);
        int code = MPI_Iprobe(from, MPI_ANY_TAG, comm->calls, &is_there, MPI_STATUS_IGNORE);
        mpi_leave(comm->process);
        if (code != MPI_SUCCESS || is_there)
            return mpi_status(comm, code, "receive");
        nap_after(clock_seconds() - start);
    }
}
