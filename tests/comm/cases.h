/* Properties of every backend's collectives, checked with ranks as threads (comm_test.c) and as processes
 * (mpi_ranks.c). Ranks do not run on the test's own thread, so the checks return a status instead of ending the
 * test. */
#pragma once

#include "comm/comm.h"

/* Returns from the rank's function with the failed condition and its place. */
#define expect(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return status_fail(STATUS_INVALID, "%s:%d: not true: %s", __FILE__, __LINE__, #condition);                 \
    } while (0)
#define expect_ok(call)                                                                                                \
    do {                                                                                                               \
        int status_ = (call);                                                                                          \
        if (status_)                                                                                                   \
            return status_wrap(status_, "%s:%d", __FILE__, __LINE__);                                                  \
    } while (0)

/* The values of a rank's elements [first, first + count), made from their numbers; every type. */
void cases_fill(void *memory, int rank, int64_t first, int64_t count, enum dtype dtype);
/* The sum or maximum of these values over `size` ranks, in the order of ranks. */
void cases_expected(void *memory, int size, int64_t first, int64_t count, enum dtype dtype, enum comm_op op);

/* Runs all checks in host memory, on a world of any size. `context` is not used. */
int cases_run(struct comm *world, void *context);

/* Ranks wait patiently for rank 0, which sleeps: they take less than MOST of a core by the clock at `context`. Their
 * earlier calls continue meanwhile, else none of them would wake up. */
int cases_patience(struct comm *world, void *context);

/* Runs every call over device memory. Any stream that waits for a result sees it. Sums have the bits of the order of
 * ranks if the group promises that, or was asked for it. Otherwise they are right within rounding, and equal on every
 * rank. */
struct device_cases {
    struct device *device; /* the ranks' own, or one of all of them */
    /* Gives a group a channel that does not promise the order of ranks, such as unordered_open; NULL: over the host. */
    int (*open_channel)(struct comm *group, struct device *device);
};
/* `context`: struct device_cases. */
int cases_on_device(struct comm *world, void *context);
