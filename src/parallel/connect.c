/* Finds the ranks that share a GPU, and opens the channel between GPUs. */
#include "parallel/connect.h"

#include "kernels/handle.h"
#include "parallel/site.h"

/* A rank sends this to the others: where its GPU is. */
struct seat {
    struct rank_host host;
    char place[16]; /* of the GPU in its machine */
    char kind[16];  /* its name in the rank's process */
};

/* Finds the first two ranks that share a GPU. */
static bool find_pair(const struct seat *seats, int ranks, int *first, int *second) {
    for (*second = 1; *second < ranks; ++*second)
        for (*first = 0; *first < *second; ++*first)
            if (rank_host_same(&seats[*first].host, &seats[*second].host) &&
                !strcmp(seats[*first].place, seats[*second].place))
                return true;
    return false;
}

static bool are_threads(const struct seat *seats, int ranks) {
    bool is_one = true;
    for (int r = 1; r < ranks && is_one; r++)
        is_one = rank_host_same(&seats[r].host, &seats[0].host) && seats[r].host.process == seats[0].host.process;
    return is_one;
}

/* Decides from all ranks' GPUs, in the same way on every rank. */
static int decide(const struct seat *seats, int ranks, enum collectives collectives, bool *by_library) {
    int a, b;
    *by_library = true;
    if (!find_pair(seats, ranks, &a, &b))
        return STATUS_OK;
    *by_library = collectives == COLLECTIVES_NCCL || !are_threads(seats, ranks);
    return *by_library
               ? status_fail(STATUS_UNSUPPORTED,
                             "ranks %d and %d on %s both have %s, and NCCL needs a GPU for each: " COMM_WITHOUT_NCCL, a,
                             b, seats[a].host.name, seats[a].kind)
               : STATUS_OK;
}

int rank_connect(struct comm *world, struct device *device, enum collectives collectives, int most_blocks) {
    const char *place = device_place(device);
    if (world->size == 1 || collectives == COLLECTIVES_HOST)
        return STATUS_OK;
    if (!place)
        return collectives == COLLECTIVES_AUTO
                   ? comm_use_device(world, device)
                   : status_fail(STATUS_UNSUPPORTED,
                                 "--collectives nccl: NCCL is for GPUs, and this run computes on %s",
                                 device_facts(device).kind);
    struct seat mine = {0}, *seats = calloc((size_t)world->size, sizeof *seats);
    rank_host_find(&mine.host);
    snprintf(mine.place, sizeof mine.place, "%s", place);
    snprintf(mine.kind, sizeof mine.kind, "%s", device_facts(device).kind);
    struct comm_data data = {.send = &mine, .receive = seats, .count = sizeof mine, .dtype = DTYPE_U8};
    bool by_library = false;
    int status = comm_agree(world, status_allocated(seats));
    THEN(status, comm_all_gather(world, &data));
    THEN(status, decide(seats, world->size, collectives, &by_library));
    free(seats);
    TRY(status);
    return by_library ? comm_nccl_open(world, device, most_blocks) : comm_use_device(world, device);
}

void rank_disconnect(struct comm *world) {
    if (world->size > 1)
        comm_leave_device_channel(world);
}
