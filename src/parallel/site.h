/* The hosts and cores of a run's ranks: which ranks share a host, and which cores each uses.
 *
 * Ranks that were started with the same cores share them. If no number of threads is given, each computes with one. If
 * the cores suffice for all, each rank is bound to its own cores. A rank whose cores no other rank has (alone, or
 * bound by mpirun or srun) computes with all of them, and its binding does not change. */
#pragma once

#include "comm/comm.h"

enum { SITE_CORES_BYTES = 168, SITE_HOST_BYTES = 64 };

/* A host, and a process on it. Several hosts may have the same name, so the id of the boot counts, too. */
struct rank_host {
    char name[SITE_HOST_BYTES], boot[SITE_HOST_BYTES];
    int64_t process;
};
/* Stores the host and process of the caller. */
void rank_host_find(struct rank_host *host);
/* Returns true for two ranks on one host. */
bool rank_host_same(const struct rank_host *a, const struct rank_host *b);

struct rank_site {
    int threads;          /* threads to compute with */
    int in_process;       /* number of ranks in this process */
    int place_on_host;    /* ranks on the same host with lower numbers */
    int first_on_host;    /* the first rank on this host, which acts for the host */
    int first_in_process; /* the first rank in this process, which acts for the process */
    bool is_first_on_host, is_first_in_process;
    char cores[SITE_CORES_BYTES]; /* the cores that this rank may use, "0-3,8" */
};

/* Finds where all ranks run, binds the calling thread, and logs the result. Threads that it starts later inherit the
 * binding. `threads` is the number of each rank, 0 for the default. All ranks call it together. STATUS_MEMORY, and the
 * errors of collectives. */
int rank_site_find(struct comm *world, int threads, struct rank_site *site);
/* Returns the number of the device that this rank opens: its place on its host. A process that sees a single one takes
 * that. Ranks that are threads of one process take the devices that there are in turn, and may share them. */
int rank_site_device(const struct rank_site *site, const char *device);
/* Returns how many ranks of this process open the same device, this one included. 1 for the CPU, which has no separate
 * memory to share out. */
int rank_site_sharers(const struct rank_site *site, const char *device);
/* Adds up values [count] over the ranks of the caller's host. All ranks call it together. STATUS_MEMORY, and the errors
 * of collectives. */
int rank_site_sum(struct comm *world, const struct rank_site *site, int64_t *values, int count);
/* Logs the line with the peak memory of the first rank's host, beside what was planned there. All ranks call it
 * together, right before they free their memory; `planned` counts at the first rank. The errors of rank_site_sum. */
int rank_site_tell_memory(struct comm *world, const struct rank_site *site, size_t planned);
/* Returns what a rank on the CPU takes beside its plan: the stacks and allocators of its threads, and the blocks that
 * products copy. `widest` is the width of its widest product. */
size_t rank_program_bytes(int threads, int64_t widest, int64_t hidden);
/* Logs a warning if a device computes with fewer threads than it was asked for. */
void rank_site_warn(const struct device *device, int threads);

/* A rank before the run starts: the facts that rank_site_find will find. */
struct rank_seat {
    int threads;
    int sharing;  /* ranks with the same cores, itself included */
    bool is_here; /* it is on the caller's host */
};
/* Fills seats [ranks], and binds nothing. `world` has processes that will each be a rank, and that all call this. If it
 * is NULL, the ranks will be threads of this process. STATUS_MEMORY, and the errors of collectives. */
int rank_site_survey(struct comm *world, int ranks, int threads, struct rank_seat *seats);
