/* Processes of a launcher, or threads: what every command with ranks begins and ends with. */
#include "launch.h"

#include "commands.h"

#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>

int launch_begin(struct launch *launch) {
    *launch = (struct launch){0};
    int status = comm_mpi_is_launched() ? comm_mpi_open(&launch->world) : STATUS_OK;
    launch->is_first = !launch->world || launch->world->rank == 0;
    log_quiet(!launch->is_first);
    if (!status && !launch->is_first && !freopen("/dev/null", "w", stdout))
        status = status_fail_errno("cannot open /dev/null");
    return status;
}

int launch_ranks(const struct launch *launch, int64_t asked, int *ranks) {
    *ranks = launch->world ? launch->world->size : asked ? (int)asked : 1;
    if (asked && asked != *ranks)
        return status_fail(STATUS_USAGE, "--ranks %lld in a launch of %d processes: each of them is a rank",
                           (long long)asked, *ranks);
    return STATUS_OK;
}

int launch_agree(struct launch *launch, int status) {
    const struct comm *world = launch->world;
    if (!world)
        return status;
    int64_t own = status, *all = calloc((size_t)world->size, sizeof *all);
    struct comm_data data = {.send = &own, .receive = all, .count = 1, .dtype = DTYPE_I64};
    int gathered = all ? comm_all_gather(launch->world, NULL, &data) : status_fail(STATUS_MEMORY, "out of memory");
    int first = 0, same = 0;
    for (int r = world->size - 1; r >= 0 && !gathered; r--) {
        first = all[r] ? r : first;
        same += all[r] == all[0];
    }
    if (!gathered && all[first]) {
        if (world->rank == first && same == world->size)
            log_error("%s", status_text());
        else if (world->rank == first)
            log_error("rank %d: %s", first, status_text());
        launch->is_told = true;
        launch->is_teller = world->rank == first;
        status = (int)all[first];
    }
    free(all);
    return gathered ? gathered : status;
}

int launch_run(const struct launch *launch, int ranks, int (*function)(struct comm *world, void *context),
               void *context) {
    return launch->world ? function(launch->world, context) : comm_local_run(ranks, function, context);
}

void launch_abort(struct comm *world, int status) {
    if (status == STATUS_PEER)
        comm_barrier(world, NULL); /* ends when the rank that failed comes here */
    comm_abort(world, status_text());
}

int launch_end(struct launch *launch, int status) {
    comm_close(launch->world);
    launch->world = NULL;
    if (!status || !launch->is_told)
        return command_exit_status(status);
    /* mpirun ends the others as soon as one process fails, and what they have said may be lost: the one that says why
     * is the one that fails. */
    if (!launch->is_teller)
        return 0;
    return status == STATUS_USAGE ? 2 : 1;
}
