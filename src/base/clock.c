#include "clock.h"

#include <time.h>

static double read_clock(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double clock_seconds(void) {
    return read_clock(CLOCK_MONOTONIC);
}

double clock_wall_seconds(void) {
    return read_clock(CLOCK_REALTIME);
}
