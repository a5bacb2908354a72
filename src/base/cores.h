/* Processors: how many cores this thread may use, and how busy other programs keep them.
 *
 * A limit has two forms. Affinity says which cores a thread may run on. A quota of a control group (cpu.max) says how
 * much time its processes get together, measured in cores. More threads than either limit would only wait for each
 * other. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct cores {
    int usable;   /* threads to compute with: the lower of `bound` and the quota rounded up; at least 1 */
    int bound;    /* cores that affinity allows this thread; at least 1 */
    int online;   /* cores of the machine; at least 1 */
    double quota; /* cores' worth of time that the control groups of this process allow; 0: no limit */
};

/* Finds the limits of the calling thread. `root` is put before /proc and /sys/fs/cgroup; it is "" for this system. */
struct cores cores_find(const char *root);

/* Returns `usable` for the calling thread on this system; at least 1. Each thread reads the quota once. */
int usable_cores(void);

/* Writes why `threads` threads compute: "all 2 cores", "the control group allows 1.5 of 64 cores". `asked` is the
 * number that the user gave, 0 for none. `ranks` is the number of ranks that share the cores. */
void cores_explain(const struct cores *cores, int threads, int asked, int ranks, char *text, size_t bytes);

/* ---- other programs ---- */

enum { CORES_MOST = 1024 }; /* the maximum number of cores that a meter can watch: as many as cpu_set_t has */

/* Measures the time that other processes compute on this process's cores. Starts zeroed. */
struct cores_meter {
    uint64_t watched[CORES_MOST / 64]; /* a bit for each core */
    int count;                         /* of bits */
    double at, own,
        busy; /* seconds at the last read: the clock, this process's time, the busy time of the watched cores */
};

/* Adds the cores that the calling thread may run on. */
void cores_meter_add(struct cores_meter *meter);
/* Returns the seconds of computing that `text`, the contents of /proc/stat, counts for the watched cores. Returns a
 * negative number when one of them is missing. The time of programs with a positive nice value counts only with
 * `is_nice`, because they take only time that is left over. */
double cores_meter_parse(const struct cores_meter *meter, const char *text, double ticks_per_second, int is_nice);
/* Returns the number of cores that other processes kept busy on average since the last read. Returns a negative number
 * at the first read, and when the system does not say. `file` is /proc/stat, open for reading. */
double cores_meter_read(struct cores_meter *meter, int file);
