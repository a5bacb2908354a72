/* How long a thread has computed, which does not depend on the machine's other work. */
#pragma once

#include <time.h>

/* Returns seconds by the clock of a thread (pthread_getcpuclockid), or 0 where there is no such clock. */
static inline double processor_seconds(clockid_t clock) {
    struct timespec time = {0};
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}
