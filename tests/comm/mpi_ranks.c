/* A rank under mpirun: `cases` runs what every backend must do; the others fail in one way each, and the text that they
 * leave is what the test looks for. */
#include "cases.h"

#include <stdio.h>

static int mismatch(struct comm *world) {
    float in[8] = {0}, out[32];
    struct comm_data data = {in, out, 8, DTYPE_F32};
    return world->rank == 2 ? comm_all_gather(world, NULL, &data) : comm_all_reduce(world, NULL, &data, COMM_SUM);
}

static int message(struct comm *world) {
    float numbers[16] = {0};
    if (world->rank == 0)
        expect_ok(comm_send(world, NULL, &(struct comm_data){numbers, NULL, 8, DTYPE_F32}, 1));
    else
        return comm_receive(world, NULL, &(struct comm_data){NULL, numbers, 9, DTYPE_I32}, 0);
    return comm_barrier(world, NULL);
}

static int told_to_fail(struct comm *world) {
    return world->rank == 1 ? status_fail(STATUS_INVALID, "it was told to") : comm_barrier(world, NULL);
}

int main(int count, char **words) {
    struct comm *world;
    const char *name = count == 2 ? words[1] : "";
    if (!comm_mpi_is_launched()) {
        printf("no launcher started this as one of several ranks\n");
        return 2;
    }
    int status = comm_mpi_open(&world);
    if (status) {
        printf("%s\n", status_text());
        return 1;
    }
    if (!strcmp(name, "cases"))
        status = cases_run(world, NULL);
    else if (!strcmp(name, "mismatch"))
        status = mismatch(world);
    else if (!strcmp(name, "message"))
        status = message(world);
    else
        status = told_to_fail(world);
    if (status)
        comm_abort(world, status_text());
    comm_close(world);
    return status ? 1 : 0;
}
