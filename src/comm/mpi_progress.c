/* Who calls MPI, and when. MPI moves data only inside its own calls: with nobody waiting, a thread looks after what was
 * started, so that sums travel while the ranks compute. It sleeps most of the time, and wholly while nothing was
 * started. */
#include "mpi-internal.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

/* In a nap at most 25 kB leave at 1 Gbit/s: the system's buffers hold many times that. */
enum { NAP_NANOSECONDS = 200 * 1000, STACK_BYTES = 1 << 20 };

/* MPI is initialised once in a process, and this belongs to it. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t started;
    pthread_t thread;
    struct mpi_comm *groups;
    bool is_asleep, is_ending;
} process = {.lock = PTHREAD_MUTEX_INITIALIZER, .started = PTHREAD_COND_INITIALIZER};

void mpi_enter(void) {
    pthread_mutex_lock(&process.lock);
}

void mpi_leave(void) {
    pthread_mutex_unlock(&process.lock);
}

bool mpi_enter_soon(void) {
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec++;
    return pthread_mutex_timedlock(&process.lock, &limit) == 0;
}

void mpi_process_add(struct mpi_comm *comm) {
    comm->next = process.groups;
    process.groups = comm;
}

void mpi_process_remove(struct mpi_comm *comm) {
    struct mpi_comm **at = &process.groups;
    while (*at && *at != comm)
        at = &(*at)->next;
    if (*at)
        *at = comm->next;
}

void mpi_process_advance(void) {
    for (struct mpi_comm *comm = process.groups; comm; comm = comm->next)
        if (mpi_is_busy(comm))
            mpi_advance(comm);
}

void mpi_process_wake(void) {
    if (process.is_asleep)
        pthread_cond_signal(&process.started);
}

static bool is_busy(void) {
    for (const struct mpi_comm *comm = process.groups; comm; comm = comm->next)
        if (mpi_is_busy(comm))
            return true;
    return false;
}

static void nap(void) {
    struct timespec time = {.tv_nsec = NAP_NANOSECONDS};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
}

static void *look_after(void *unused) {
    (void)unused;
    mpi_enter();
    for (;;) {
        process.is_asleep = true;
        while (!is_busy() && !process.is_ending)
            pthread_cond_wait(&process.started, &process.lock);
        process.is_asleep = false;
        if (process.is_ending)
            break;
        mpi_process_advance();
        mpi_leave();
        do /* a rank that waits moves everything by itself, and holds the lock */
            nap();
        while (pthread_mutex_trylock(&process.lock) == EBUSY);
    }
    mpi_leave();
    return NULL;
}

int mpi_process_open(void) {
    process.is_ending = false;
    sigset_t all, before;
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error)
        return status_fail(STATUS_MEMORY, "out of memory");
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the other threads' */
    error = pthread_create(&process.thread, &attributes, look_after, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (error)
        return status_fail(STATUS_IO, "cannot start a thread for MPI: %s", strerror(error));
    return STATUS_OK;
}

void mpi_process_close(void) {
    mpi_enter();
    process.is_ending = true;
    pthread_cond_signal(&process.started);
    mpi_leave();
    pthread_join(process.thread, NULL);
}
