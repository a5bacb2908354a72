/* The places of a run's ranks: which share a machine and its cores, and which cores each computes with.
 *
 * Ranks that were started with the same cores share them. Without a number of threads each computes with one. If the
 * cores suffice for all, each is bound to cores of its own. A rank with cores that no other one has (alone, or bound by
 * mpirun or srun) computes with all of them and stays as it is. */
#ifndef CAMBIUM_PARALLEL_SITE_H
#define CAMBIUM_PARALLEL_SITE_H

#include "comm/comm.h"

enum { SITE_CORES_BYTES = 168 };

struct rank_site {
    int threads;          /* to compute with */
    int in_process;       /* ranks of this process */
    int place_on_host;    /* ranks of this one's host that come before it: the number of its device */
    int first_on_host;    /* the first rank of this one's host: it stands for the host */
    int first_in_process; /* the same for its process */
    bool is_first_on_host, is_first_in_process;
    char cores[SITE_CORES_BYTES]; /* what this rank may use, "0-3,8" */
};

/* All ranks tell each other where they run, bind the calling thread, and tell the log; threads that it starts later
 * are bound with it. `threads`: of each rank, 0 for the default. */
int rank_site_find(struct comm *world, int threads, struct rank_site *site);
/* A warning where a device computes with fewer threads than it was asked to. */
void rank_site_warn(const struct device *device, int threads);

/* A rank before the run starts: what it will find, except its place in a process. */
struct rank_seat {
    int threads;
    int sharing;  /* ranks with the same cores, itself among them */
    bool is_here; /* on the host of the caller */
};
/* Fills seats [ranks]. `world`: processes, each of which will be a rank, and which all call this; NULL: the ranks will
 * be threads of this process. Binds nothing. */
int rank_site_survey(struct comm *world, int ranks, int threads, struct rank_seat *seats);

#endif
