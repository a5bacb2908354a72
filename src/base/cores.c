/* Cores by affinity, by the quotas of control groups, and by the counts in /proc/stat. */
#include "cores.h"

#include "cgroup.h"
#include "clock.h"

#include <math.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { STAT_BYTES = 1 << 17 }; /* the lines of the cores come first, about 70 bytes each */

/* ---- limits ---- */

/* cpu.max "150000 100000" allows 1.5 cores; "max" allows any number. */
static double read_second_quota(const char *directory) {
    char line[64];
    double time, period;
    bool is_read = cgroup_read(directory, "cpu.max", line, sizeof line);
    return is_read && sscanf(line, "%lf %lf", &time, &period) == 2 && time > 0 && period > 0 ? time / period : 0;
}

/* -1 in cpu.cfs_quota_us allows any number. */
static double read_first_quota(const char *directory) {
    char time[64], period[64];
    if (!cgroup_read(directory, "cpu.cfs_quota_us", time, sizeof time) ||
        !cgroup_read(directory, "cpu.cfs_period_us", period, sizeof period))
        return 0;
    return atof(time) > 0 && atof(period) > 0 ? atof(time) / atof(period) : 0;
}

static void look_at_group(const char *directory, bool is_second, void *context) {
    double *least = context, quota = is_second ? read_second_quota(directory) : read_first_quota(directory);
    if (quota > 0 && (*least == 0 || quota < *least))
        *least = quota;
}

static double find_quota(const char *root) {
    double quota = 0;
    cgroup_walk(root, "cpu", look_at_group, &quota);
    return quota;
}

static struct cores with_quota(double quota) {
    cpu_set_t set;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    struct cores cores = {.online = online > 0 ? (int)online : 1, .quota = quota};
    cores.bound =
        sched_getaffinity(0, sizeof set, &set) ? cores.online : CPU_COUNT(&set); /* more cores than the set can hold */
    cores.usable = quota > 0 && ceil(quota) < cores.bound ? (int)ceil(quota) : cores.bound;
    return cores;
}

struct cores cores_find(const char *root) {
    return with_quota(find_quota(root));
}

/* Reading the quota takes 40 microseconds, and loading asks once for each tensor. Affinity changes when a rank is
 * bound. */
int usable_cores(void) {
    static _Thread_local double quota = -1;
    if (quota < 0)
        quota = find_quota("");
    return with_quota(quota).usable;
}

void cores_explain(const struct cores *cores, int threads, int asked, int ranks, char *text, size_t bytes) {
    if (asked)
        snprintf(text, bytes, "as asked, of %d core%s", cores->bound, cores->bound > 1 ? "s" : "");
    else if (threads < cores->usable && ranks > 1)
        snprintf(text, bytes, "%d ranks share %d cores", ranks, cores->bound);
    else if (cores->usable < cores->bound)
        snprintf(text, bytes, "the control group allows %.3g of %d cores", cores->quota, cores->bound);
    else if (cores->bound < cores->online)
        snprintf(text, bytes, "affinity leaves %d of %d cores", cores->bound, cores->online);
    else
        snprintf(text, bytes, "all cores");
}

/* ---- other programs ---- */

static bool is_watched(const struct cores_meter *meter, long core) {
    return core >= 0 && core < CORES_MOST && meter->watched[core / 64] >> core % 64 & 1;
}

void cores_meter_add(struct cores_meter *meter) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set))
        return;
    for (int core = 0; core < CORES_MOST && core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &set) && !is_watched(meter, core)) {
            meter->watched[core / 64] |= UINT64_C(1) << core % 64;
            meter->count++;
        }
}

double cores_meter_parse(const struct cores_meter *meter, const char *text, double ticks_per_second, int is_nice) {
    double ticks = 0;
    int found = 0;
    for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        char *end;
        long core = !strncmp(line, "cpu", 3) && line[3] != ' ' ? strtol(line + 3, &end, 10) : -1;
        if (!is_watched(meter, core))
            continue;
        double user = strtod(end, &end), nice = strtod(end, &end), system = strtod(end, &end);
        ticks += user + system + (is_nice ? nice : 0);
        found++;
    }
    return found == meter->count ? ticks / ticks_per_second : -1;
}

double cores_meter_read(struct cores_meter *meter, int file) {
    static const double nanosecond = 1e-9;
    char text[STAT_BYTES];
    ssize_t length = pread(file, text, sizeof text - 1, 0);
    struct timespec used = {0};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    double at = clock_seconds(), own_seconds = (double)used.tv_sec + (double)used.tv_nsec * nanosecond, busy = -1;
    if (length > 0) {
        text[length] = 0;
        busy = cores_meter_parse(meter, text, (double)sysconf(_SC_CLK_TCK), getpriority(PRIO_PROCESS, 0) > 0);
    }
    double others = -1, passed = at - meter->at;
    if (busy >= 0 && meter->at > 0 && meter->busy >= 0 && passed > 0)
        others = fmax((busy - meter->busy - (own_seconds - meter->own)) / passed, 0);
    meter->at = at;
    meter->own = own_seconds;
    meter->busy = busy;
    return others;
}
