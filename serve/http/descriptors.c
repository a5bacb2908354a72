/* The limit of descriptors: as high as the places of the listeners need, or fewer places. */
#include "listen.h"

#include "base/base.h"

#include <sys/resource.h>

enum { OTHER_DESCRIPTORS = 128 }; /* files, pipes, threads and ranks */

void transport_fit_descriptors(struct transport_limits *limits, int listeners) {
    struct rlimit limit;
    rlim_t needed = OTHER_DESCRIPTORS + (rlim_t)listeners * (rlim_t)(limits->connections + LISTEN_LINGERING);
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= needed)
        return;
    limit.rlim_cur = needed < limit.rlim_max ? needed : limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) || getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= needed)
        return;
    int64_t places = ((int64_t)limit.rlim_cur - OTHER_DESCRIPTORS) / listeners - LISTEN_LINGERING;
    places = places > 1 ? places : 1;
    log_warning("the hard limit of %llu descriptors is too low for --limits.connections %lld: each listener takes %lld "
                "connections; raise it to %llu (ulimit -n, LimitNOFILE)",
                (unsigned long long)limit.rlim_cur, (long long)limits->connections, (long long)places,
                (unsigned long long)needed);
    limits->connections = places;
}
