/* Watches whether the machine is busy. While it is, OpenMP's threads sleep instead of spinning. */
#include "cpu/waits.h"

#include "base/base.h"

#include <fcntl.h>
#include <omp.h>
#include <time.h>
#include <unistd.h>

enum { PERIOD_MS = 100 };

/* One state for the process, because libgomp's threads belong to the process. */
static struct {
    pthread_mutex_t gate; /* held while the thread is started or ended */
    pthread_mutex_t lock; /* guards all members after it */
    pthread_cond_t ending;
    pthread_t thread;
    bool is_running, is_ending, has_warned;
    struct waits_team *teams;
    struct cores_meter meter;
} waits = {.gate = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER, .ending = PTHREAD_COND_INITIALIZER};

/* ---- the teams ---- */

/* Returns true if no other team of the same opener has more threads, or as many and an earlier place. */
static bool is_largest(const struct waits_team *team) {
    bool is_before = true;
    for (const struct waits_team *other = waits.teams; other; other = other->next) {
        is_before = is_before && other != team;
        if (other != team && pthread_equal(other->opener, team->opener) &&
            (other->threads > team->threads || (other->threads == team->threads && is_before)))
            return false;
    }
    return true;
}

/* The caller holds the lock. */
static int count_threads(void) {
    int threads = 0;
    for (const struct waits_team *team = waits.teams; team; team = team->next)
        threads += is_largest(team) ? team->threads : 0;
    return threads;
}

int waits_threads(void) {
    pthread_mutex_lock(&waits.lock);
    int threads = count_threads();
    pthread_mutex_unlock(&waits.lock);
    return threads;
}

/* ---- the choice ---- */

/* Limits of the computing that is asked of the cores beyond what they have, in cores. Interrupts and short commands
 * stay below. */
static const double busy_from = 0.35, idle_below = 0.2;

bool waits_choose(struct waits_choice *choice, double others, int cores, int threads) {
    double excess = others + threads - cores;
    bool is_other = choice->is_asleep ? others < 0 || excess < idle_below : excess > busy_from;
    choice->looks = is_other && (others >= 0 || choice->is_asleep) ? choice->looks + 1 : 0;
    if (choice->looks >= (choice->is_asleep ? WAITS_IDLE_LOOKS : WAITS_BUSY_LOOKS))
        *choice = (struct waits_choice){.is_asleep = !choice->is_asleep};
    return choice->is_asleep;
}

/* ---- libgomp ---- */

/* Starts a team of more OpenMP threads than cores. Its threads sleep until the watching thread ends them. */
static void hold_threads(void) {
    int procs = omp_get_num_procs(), most = omp_get_max_threads();
    omp_set_dynamic(0);
    omp_set_num_threads((procs > most ? procs : most) + 1);
#pragma omp parallel
    {
#pragma omp barrier
    } omp_set_num_threads(most);
}

static void end_threads(void) {
    omp_pause_resource(omp_pause_soft, omp_get_initial_device());
}

/* ---- the thread ---- */

static void warn_busy(double others, int threads, int cores) {
    double load = 0;
    if (getloadavg(&load, 1) != 1 || load < others + threads)
        load = others + threads; /* the average lags by a minute */
    log_warning("this machine is busy: load %.0f on %d cores; threads sleep while they wait for each other", load,
                cores);
}

/* Waits for a period. Returns false when the watch ends. */
static bool sleep_a_period(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += PERIOD_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    while (!waits.is_ending && !pthread_cond_timedwait(&waits.ending, &waits.lock, &until))
        continue;
    return !waits.is_ending;
}

static void *watch(void *context) {
    struct waits_choice choice = {0};
    bool is_asleep;
    int file = open("/proc/stat", O_RDONLY | O_CLOEXEC);
    pthread_mutex_lock(&waits.lock);
    while (file >= 0 && sleep_a_period()) {
        double others = cores_meter_read(&waits.meter, file);
        int threads = count_threads(), cores = waits.meter.count;
        pthread_mutex_unlock(&waits.lock);
        is_asleep = choice.is_asleep;
        if (waits_choose(&choice, others, cores, threads) != is_asleep)
            (choice.is_asleep ? hold_threads : end_threads)();
        pthread_mutex_lock(&waits.lock);
        if (choice.is_asleep && !waits.has_warned)
            warn_busy(others, threads, cores);
        waits.has_warned |= choice.is_asleep;
    }
    pthread_mutex_unlock(&waits.lock);
    if (choice.is_asleep)
        end_threads();
    if (file >= 0)
        close(file);
    return NULL;
}

/* ---- start and end ---- */

/* One thread never waits for another, and the choice of a user comes first. */
static bool is_watched(int threads) {
    return threads > 1 && !getenv("OMP_WAIT_POLICY") && !getenv("GOMP_SPINCOUNT");
}

void waits_begin(struct waits_team *team, int threads) {
    *team = (struct waits_team){.threads = is_watched(threads) ? threads : 0, .opener = pthread_self()};
    if (!team->threads)
        return;
    pthread_mutex_lock(&waits.gate);
    pthread_mutex_lock(&waits.lock);
    cores_meter_add(&waits.meter);
    bool is_first = !waits.teams;
    team->next = waits.teams;
    waits.teams = team;
    pthread_mutex_unlock(&waits.lock);
    if (is_first)
        waits.is_running = !pthread_create(&waits.thread, NULL, watch, NULL);
    pthread_mutex_unlock(&waits.gate);
}

void waits_end(struct waits_team *team) {
    if (!team->threads)
        return;
    pthread_mutex_lock(&waits.gate);
    pthread_mutex_lock(&waits.lock);
    struct waits_team **place = &waits.teams;
    while (*place != team)
        place = &(*place)->next;
    *place = team->next;
    waits.is_ending = !waits.teams;
    pthread_cond_signal(&waits.ending);
    pthread_mutex_unlock(&waits.lock);
    if (waits.is_ending) {
        if (waits.is_running)
            pthread_join(waits.thread, NULL);
        waits.meter = (struct cores_meter){0};
        waits.is_running = waits.is_ending = false;
    }
    pthread_mutex_unlock(&waits.gate);
}
