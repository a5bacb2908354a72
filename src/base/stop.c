/* Requests to stop. Handlers of signals and of fork can reach only a global, and this is the program's only one. */
#include "stop.h"
#include "status.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct {
    _Atomic int signal;
    _Atomic long long milliseconds; /* the time when it came */
    _Atomic int watches;            /* watches that have begun and not ended */
    sigset_t outside;               /* the signals that this process held back when it was started */
    struct sigaction before[2];     /* of SIGTERM and SIGINT, outside the watches */
} requested;

enum { ECHO_MILLISECONDS = 1000, HANDLER_STACK = 256 << 10 };

static long long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000LL + time.tv_nsec / 1000000;
}

/* Handles a signal. The first one is a request; the next one, of either kind, has its default effect. The same signal
 * within a second does not count, because launchers forward signals that a process got already: srun when a job is
 * preempted, mpirun after Ctrl-C in a terminal. */
static void request_stop(int signal_number) {
    if (!requested.signal) {
        requested.milliseconds = now();
        requested.signal = signal_number;
    } else if (signal_number != requested.signal || now() - requested.milliseconds > ECHO_MILLISECONDS) {
        signal(signal_number, SIG_DFL);
        raise(signal_number); /* takes effect when this handler returns */
    }
}

static void *handle_signals(void *unused) {
    for (;;)
        pause();
    return unused;
}

/* A child has no thread that handles signals. */
static void unmask_child(void) {
    pthread_sigmask(SIG_SETMASK, &requested.outside, NULL);
}

int stop_handle_apart(void) {
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, HANDLER_STACK);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int error = pthread_create(&thread, &attributes, handle_signals, NULL);
    pthread_attr_destroy(&attributes);
    if (!error)
        error = pthread_atfork(NULL, NULL, unmask_child);
    if (error)
        return status_fail(STATUS_MEMORY, "cannot start a thread for signals: %s", strerror(error));
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPIPE};
    sigset_t others;
    sigfillset(&others);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(&others, own[i]);
    pthread_sigmask(SIG_BLOCK, &others, &requested.outside);
    return STATUS_OK;
}

void stop_watch_begin(void) {
    if (requested.watches++ > 0)
        return;
    requested.signal = 0;
    struct sigaction action = {.sa_handler = request_stop, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGTERM);
    sigaddset(&action.sa_mask, SIGINT);
    sigaction(SIGTERM, &action, &requested.before[0]);
    sigaction(SIGINT, &action, &requested.before[1]);
}

void stop_watch_end(void) {
    if (--requested.watches > 0 || requested.signal) /* a repetition may still come, and the run ends anyway */
        return;
    sigaction(SIGTERM, &requested.before[0], NULL);
    sigaction(SIGINT, &requested.before[1], NULL);
}

int stop_requested(void) {
    return requested.signal;
}

int stop_check(const char *when) {
    return requested.signal ? status_fail(STATUS_INTERRUPTED, "stopped by %s %s", stop_name(requested.signal), when)
                            : STATUS_OK;
}

int stop_take(void) {
    return atomic_exchange(&requested.signal, 0);
}

void stop_obey(void) {
    signal(requested.signal, SIG_DFL);
    kill(getpid(), requested.signal); /* this thread may hold it back */
    for (;;)
        pause();
}

const char *stop_name(int signal_number) {
    return signal_number == SIGINT ? "SIGINT" : "SIGTERM";
}
