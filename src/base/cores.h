/* Processors: how many this thread may use, and what other programs take of them.
 *
 * A limit has two forms. Affinity says which cores a thread may run on; a quota of a control group (cpu.max) says how
 * much time its processes get together, in cores. More threads than either would only wait for each other. */
#ifndef CAMBIUM_BASE_CORES_H
#define CAMBIUM_BASE_CORES_H

#include <stddef.h>
#include <stdint.h>

struct cores {
    int usable;   /* threads to compute with: the lower of `bound` and of the quota, rounded up; at least 1 */
    int bound;    /* that affinity leaves to this thread; at least 1 */
    int online;   /* that the machine has; at least 1 */
    double quota; /* that the control groups of this process allow, as time; 0: as much as there is */
};

/* Finds the limits of the calling thread. The files are those below `root`/proc and `root`/sys/fs/cgroup: "" for this
 * system. */
struct cores cores_find(const char *root);

/* `usable` of this system: how many threads the calling thread may compute with; at least 1. Each thread reads the
 * quota once. */
int usable_cores(void);

/* Writes why `threads` compute: "all 2 cores", "the control group allows 1.5 of 64 cores". `asked`: the number that the
 * user gave, 0 for none; `ranks`: those that share the cores. */
void cores_explain(const struct cores *cores, int threads, int asked, int ranks, char *text, size_t bytes);

/* ---- other programs ---- */

enum { CORES_MOST = 1024 }; /* numbers of cores that a meter can watch: as many as cpu_set_t has */

/* Measures what other processes compute on the cores of this one. Begin it with zeros. */
struct cores_meter {
    uint64_t watched[CORES_MOST / 64]; /* a bit for each core */
    int count;                         /* of bits */
    double at, own, busy; /* seconds: of the clock, of this process, of the watched cores, at the last read */
};

/* Adds the cores that the calling thread may run on. */
void cores_meter_add(struct cores_meter *meter);
/* Seconds of computing that `text`, the contents of /proc/stat, counts for the watched cores; negative where it lacks
 * one of them. Time of programs that were made nice is left out unless `is_nice`: they take only what is left over. */
double cores_meter_parse(const struct cores_meter *meter, const char *text, double ticks_per_second, int is_nice);
/* The cores that other processes kept busy on average since the last read; negative where the system does not say, and
 * at the first read. `file`: /proc/stat, open for reading. */
double cores_meter_read(struct cores_meter *meter, int file);

#endif
