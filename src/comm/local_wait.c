/* How threads wait for each other, and learn of a failed rank. */
#include "local-internal.h"

#include <linux/futex.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { YIELDS = 10, SLEEP_NANOSECONDS = 20 * 1000 * 1000 };
static const double short_yield = 50e-6; /* seconds; if a yield takes longer, the core has other work */

static void futex_wake_all(struct meeting *meeting) {
    syscall(SYS_futex, &meeting->value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* A sleeper counts itself before it looks at the value. A thread that changes the value looks at the count afterwards.
 * Both are in one total order, so the sleeper either sees the change or is woken. */
void meeting_add(struct meeting *meeting, uint32_t more, uint32_t target) {
    uint32_t value = atomic_fetch_add(&meeting->value, more) + more;
    if (value == target && atomic_load(&meeting->sleepers))
        futex_wake_all(meeting);
}

void meeting_set(struct meeting *meeting, uint32_t value) {
    atomic_store(&meeting->value, value);
    if (atomic_load(&meeting->sleepers))
        futex_wake_all(meeting);
}

void meeting_ring(struct meeting *meeting) {
    atomic_fetch_add(&meeting->value, 1);
    if (atomic_load(&meeting->sleepers))
        futex_wake_all(meeting);
}

bool meeting_rest(const struct local_comm *comm, struct meeting *meeting, uint32_t seen, int *step) {
    const struct local_world *world = comm->group->world;
    int now = (*step)++;
    if (now < world->spins) {
        __builtin_ia32_pause();
        return false;
    }
    if (now < world->spins + YIELDS) {
        double start = clock_seconds();
        sched_yield();
        if (clock_seconds() - start > short_yield)
            *step = world->spins + YIELDS;
        return false;
    }
    *step = now; /* from now on, always sleep */
    atomic_fetch_add(&meeting->sleepers, 1);
    if (atomic_load(&meeting->value) == seen) {
        struct timespec limit = {.tv_nsec = SLEEP_NANOSECONDS};
        syscall(SYS_futex, &meeting->value, FUTEX_WAIT_PRIVATE, seen, &limit, NULL, 0);
    }
    atomic_fetch_sub(&meeting->sleepers, 1);
    local_give_sign(comm);
    return true;
}

struct comm_signs local_signs_of(const struct comm *base, int rank) {
    const struct local_world *world = ((const struct local_comm *)base)->group->world;
    return (struct comm_signs){.are_known = true,
                               .count = atomic_load_explicit(&world->rank[rank].signs, memory_order_relaxed),
                               .is_failed = local_has_failed(world) && world->failed_rank == rank};
}

bool local_busy_begin(struct local_comm *comm) {
    struct local_world *world = comm->group->world;
    atomic_store(&world->rank[comm->base.world_rank].is_busy, true);
    if (!atomic_load(&world->is_failed))
        return true;
    local_busy_end(comm);
    return false;
}

void local_busy_end(struct local_comm *comm) {
    atomic_store_explicit(&comm->group->world->rank[comm->base.world_rank].is_busy, false, memory_order_release);
}

void local_set_failure(struct local_comm *comm, int status, const char *text) {
    struct local_world *world = comm->group->world;
    pthread_mutex_lock(&world->lock);
    if (!world->is_failed) {
        world->failed_rank = comm->base.world_rank;
        world->failed_status = status;
        snprintf(world->failed_text, sizeof world->failed_text, "%s", text);
        atomic_store(&world->is_failed, true);
    }
    pthread_mutex_unlock(&world->lock);
    for (int r = 0; r < world->size; r++)
        while (r != comm->base.world_rank && atomic_load(&world->rank[r].is_busy))
            sched_yield();
}

int local_failure(struct local_comm *comm) {
    struct local_world *world = comm->group->world;
    local_set_failure(comm, world->failed_status, world->failed_text);
    return status_fail(world->failed_status, "%s", world->failed_text);
}

int local_fail(struct local_comm *comm, int status, const char *format, ...) {
    char text[FAILURE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    local_set_failure(comm, status, text);
    return local_failure(comm);
}

bool local_has_ended(const struct local_group *group, int member) {
    return atomic_load(&group->world->rank[group->world_rank[member]].has_ended);
}
