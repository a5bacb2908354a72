/* Finds which ranks share a host and its cores, and binds them. */
#include "parallel/site.h"

#include <assert.h>
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

/* The facts that each rank sends to the others. Ranks of one host with equal cores share them. */
struct whereabouts {
    struct rank_host host;
    char cores[SITE_CORES_BYTES];
    int64_t core_count;
    int64_t usable; /* threads that affinity and control groups allow a single rank */
};

/* One rank's share of its cores. */
struct share {
    int ranks, place; /* number of ranks that share the cores; this rank's number among them */
    int threads;
    bool is_bound;
};

/* Writes "0-3,8". A list that is too long ends in "..."; such lists differ only in their counts. */
static void list_cores(const cpu_set_t *set, char out[SITE_CORES_BYTES]) {
    size_t used = 0;
    out[0] = 0;
    for (int first = 0; first < CPU_SETSIZE; first++) {
        int last = first;
        if (!CPU_ISSET(first, set))
            continue;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, set))
            last++;
        if (used > SITE_CORES_BYTES - 24) {
            snprintf(out + used, SITE_CORES_BYTES - used, ",...");
            return;
        }
        used += (size_t)snprintf(out + used, SITE_CORES_BYTES - used, last > first ? "%s%d-%d" : "%s%d",
                                 used ? "," : "", first, last);
        first = last;
    }
}

/* Reads the id of the host's boot, because several hosts may have the same name. It uses no stream: that needs memory,
 * and a rank without it would seem to be on another host. */
static void read_boot(char boot[SITE_HOST_BYTES]) {
    int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = file < 0 ? 0 : read(file, boot, SITE_HOST_BYTES - 1);
    boot[n < 0 ? 0 : n] = 0;
    if (file >= 0)
        close(file);
}

void rank_host_find(struct rank_host *host) {
    *host = (struct rank_host){.process = getpid()};
    gethostname(host->name, sizeof host->name - 1);
    read_boot(host->boot);
}

bool rank_host_same(const struct rank_host *a, const struct rank_host *b) {
    return !strcmp(a->name, b->name) && !strcmp(a->boot, b->boot);
}

static struct whereabouts find_whereabouts(cpu_set_t *set) {
    struct whereabouts here = {.core_count = 1, .usable = usable_cores()};
    CPU_ZERO(set);
    rank_host_find(&here.host);
    if (!sched_getaffinity(0, sizeof *set, set)) {
        here.core_count = CPU_COUNT(set);
        list_cores(set, here.cores);
    }
    return here;
}

static bool same_cores(const struct whereabouts *a, const struct whereabouts *b) {
    return rank_host_same(&a->host, &b->host) && a->core_count == b->core_count && !strcmp(a->cores, b->cores);
}

/* Returns the threads of each of `ranks` ranks with the same cores. `threads` is the number asked for, or 0. */
static int threads_of(int threads, int ranks, int64_t usable) {
    return threads ? threads : ranks > 1 ? 1 : (int)usable;
}

static struct share share_of(const struct whereabouts *all, int ranks, int rank, int threads) {
    struct share share = {0};
    for (int r = 0; r < ranks; r++) {
        share.ranks += same_cores(&all[r], &all[rank]);
        share.place += r < rank && same_cores(&all[r], &all[rank]);
    }
    share.threads = threads_of(threads, share.ranks, all[rank].usable);
    share.is_bound = share.ranks > 1 && (int64_t)share.ranks * share.threads <= all[rank].core_count;
    return share;
}

/* Returns the cores of one of the ranks that share a set. */
static cpu_set_t cores_of_rank(const cpu_set_t *set, const struct share *share) {
    cpu_set_t chosen;
    int number = 0, first = share->place * share->threads;
    CPU_ZERO(&chosen);
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, set)) {
            if (number >= first && number < first + share->threads)
                CPU_SET(core, &chosen);
            number++;
        }
    return chosen;
}

/* Logs a line for each set of cores. */
static int log_sites(const struct whereabouts *all, int ranks, int threads) {
    int status = STATUS_OK;
    for (int first = 0; first < ranks && !status; first++) {
        struct share share = share_of(all, ranks, first, threads);
        struct strbuf text = STRBUF_INIT;
        for (int r = first; r < ranks && share.place == 0; r++)
            if (same_cores(&all[r], &all[first]))
                strbuf_format(&text, "%s%d", text.length ? ", " : "", r);
        const char *how = share.is_bound     ? "each bound to its part of cores"
                          : share.ranks == 1 ? "cores"
                                             : "more than there are, of cores";
        status = strbuf_status(&text);
        if (share.place == 0 && !status)
            log_info("rank%s %s on %s: %d thread%s%s, %s %s", share.ranks > 1 ? "s" : "", strbuf_text(&text),
                     all[first].host.name, share.threads, share.threads > 1 ? "s" : "", share.ranks > 1 ? " each" : "",
                     how, all[first].cores);
        strbuf_free(&text);
    }
    return status;
}

static int settle(const struct whereabouts *all, const struct comm *world, cpu_set_t *set, int threads,
                  struct rank_site *site) {
    struct share share = share_of(all, world->size, world->rank, threads);
    int first_on_host = world->rank, first_in_process = world->rank;
    *site = (struct rank_site){.threads = share.threads};
    for (int r = world->size - 1; r >= 0; r--) {
        if (!rank_host_same(&all[r].host, &all[world->rank].host))
            continue;
        first_on_host = r;
        site->place_on_host += r < world->rank;
        if (all[r].host.process != all[world->rank].host.process)
            continue;
        first_in_process = r;
        site->in_process++;
    }
    site->first_on_host = first_on_host;
    site->is_first_on_host = first_on_host == world->rank;
    site->first_in_process = first_in_process;
    site->is_first_in_process = first_in_process == world->rank;
    if (share.is_bound) {
        *set = cores_of_rank(set, &share);
        if (sched_setaffinity(0, sizeof *set, set))
            return status_fail_errno("cannot bind rank %d to its cores", world->rank);
    }
    list_cores(set, site->cores);
    return STATUS_OK;
}

/* Collects the whereabouts of all ranks; the caller frees them. */
static int gather(struct comm *world, cpu_set_t *set, struct whereabouts **all) {
    struct whereabouts here = find_whereabouts(set);
    *all = calloc((size_t)world->size, sizeof **all);
    TRY(status_allocated(*all));
    struct comm_data data = {
        .send = &here, .receive = *all, .count = sizeof here / sizeof(int64_t), .dtype = DTYPE_I64};
    return comm_all_gather(world, &data);
}

int rank_site_find(struct comm *world, int threads, struct rank_site *site) {
    cpu_set_t set;
    struct whereabouts *all;
    int status = gather(world, &set, &all);
    THEN(status, settle(all, world, &set, threads, site));
    THEN_IF(status, world->size > 1, log_sites(all, world->size, threads));
    free(all);
    return status;
}

int rank_site_survey(struct comm *world, int ranks, int threads, struct rank_seat *seats) {
    cpu_set_t set;
    struct whereabouts *all = NULL, here = find_whereabouts(&set);
    int together = threads_of(threads, ranks, here.usable);
    int status = world ? gather(world, &set, &all) : STATUS_OK;
    for (int r = 0; r < ranks && !status; r++) {
        struct share share = {.ranks = ranks, .threads = together};
        if (world)
            share = share_of(all, ranks, r, threads);
        seats[r] = (struct rank_seat){.threads = share.threads,
                                      .sharing = share.ranks,
                                      .is_here = !world || rank_host_same(&all[r].host, &all[world->rank].host)};
    }
    free(all);
    return status;
}

/* Returns how many devices the ranks of this process share, or 0 if each rank is the only one in its process, or one
 * device serves all. */
static int shared_devices(const struct rank_site *site, const char *device) {
    return site->in_process > 1 ? device_count(device) : 0;
}

int rank_site_device(const struct rank_site *site, const char *device) {
    int count = site->in_process > 1 ? shared_devices(site, device) : device_count(device) == 1;
    return count ? site->place_on_host % count : site->place_on_host;
}

int rank_site_sharers(const struct rank_site *site, const char *device) {
    int count = shared_devices(site, device);
    return count ? (site->in_process + count - 1) / count : 1;
}

void rank_site_warn(const struct device *device, int threads) {
    int count = device_threads(device);
    if (count < threads)
        log_warning("computing with %d thread%s, not %d: %s", count, count > 1 ? "s" : "", threads,
                    count < usable_cores() ? "OpenMP's environment allows no more" : "more would wait for each other");
}

int rank_site_sum(struct comm *world, const struct rank_site *site, int64_t *values, int count) {
    int64_t mine[4] = {site->first_on_host}, *all = calloc((size_t)world->size, sizeof mine);
    assert(count < 4);
    int status = status_allocated(all);
    memcpy(mine + 1, values, (size_t)count * sizeof *values);
    struct comm_data data = {.send = mine, .receive = all, .count = 4, .dtype = DTYPE_I64};
    status = comm_agree(world, status);
    THEN(status, comm_all_gather(world, &data));
    for (int i = 0; i < count && !status; i++) {
        values[i] = 0;
        for (int r = 0; r < world->size; r++)
            values[i] += all[r * 4] == site->first_on_host ? all[r * 4 + 1 + i] : 0;
    }
    free(all);
    return status;
}

int rank_site_tell_memory(struct comm *world, const struct rank_site *site, size_t planned) {
    static const double mebibyte = 1 << 20;
    int status = comm_barrier(world);
    int64_t peak = site->is_first_in_process ? (int64_t)memory_peak() : 0;
    THEN(status, rank_site_sum(world, site, &peak, 1));
    if (!status && world->rank == 0)
        log_info("peak memory %.1f MiB, planned %.1f MiB", (double)peak / mebibyte, (double)planned / mebibyte);
    return status;
}

/* A thread was measured to take 1.5 to 2.5 MiB. oneDNN copies a block of its widest operand, and the allocator may keep
 * one more. A block has at most 9984 x 384 elements. */
size_t rank_program_bytes(int threads, int64_t widest, int64_t hidden) {
    enum { THREAD_BYTES = 2 << 20, MOST_WIDE = 9984, MOST_DEEP = 384 };
    int64_t block = (widest < MOST_WIDE ? widest : MOST_WIDE) * (hidden < MOST_DEEP ? hidden : MOST_DEEP);
    return (size_t)threads * THREAD_BYTES + (size_t)block * 2 * sizeof(float);
}
