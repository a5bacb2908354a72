#include "cores.h"

#include <sched.h>
#include <unistd.h>

int usable_cores(void) {
    cpu_set_t set;
    if (!sched_getaffinity(0, sizeof set, &set))
        return CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN); /* more of them than fit the set */
    return online > 0 ? (int)online : 1;
}
