/* The wish to stop. A signal handler can reach nothing but a global: this flag is the program's only one. */
#include "train-internal.h"

#include <signal.h>
#include <string.h>

static _Atomic int requested;

/* The first signal is a wish; the next one, of either kind, does what it does by default. */
static void request_stop(int signal_number) {
    requested = signal_number;
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
}

void stop_watch_begin(void) {
    requested = 0;
    struct sigaction action = {.sa_handler = request_stop, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGTERM);
    sigaddset(&action.sa_mask, SIGINT);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
}

void stop_watch_end(void) {
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
}

int stop_requested(void) {
    return requested;
}
