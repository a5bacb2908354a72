/* Ranks that write one directory together: they agree after each step, so that none goes on where another failed. */
#include "ckpt-internal.h"

#include <stdio.h>

enum { TEXT_BYTES = 1024 };

bool together_is_first(const struct comm *world) {
    return !world || world->rank == 0;
}

/* The rank whose failure the others are told, or -1: the first with one of its own, before those that only heard. */
static int choose(struct comm *world, int *status) {
    int64_t size = world->size, mine = 0, chosen = 0;
    if (*status)
        mine = (*status == STATUS_PEER ? 1 : 2) * size - world->rank;
    struct comm_data data = {.send = &mine, .receive = &chosen, .count = 1, .dtype = DTYPE_I64};
    int result = comm_all_reduce(world, NULL, &data, COMM_MAX);
    if (result && !*status)
        *status = result;
    return result || !chosen ? -1 : (int)((2 * size - chosen) % size);
}

int together_agree(struct comm *world, int status) {
    if (!world || world->size == 1)
        return status;
    char own[TEXT_BYTES], text[TEXT_BYTES + 32];
    int before = status;
    snprintf(own, sizeof own, "%s", status_text());
    snprintf(text, sizeof text, "rank %d failed: %s", world->world_rank, own);
    int chosen = choose(world, &status);
    struct comm_data data = {.send = text, .receive = text, .count = sizeof text, .dtype = DTYPE_U8};
    int result = chosen < 0 ? STATUS_OK : comm_broadcast(world, NULL, &data, chosen);
    if (before) /* whatever the talk about it came to */
        return status_fail(before, "%s", own);
    if (status || result)
        return status ? status : result;
    return chosen < 0 ? STATUS_OK : status_fail(STATUS_PEER, "%s", text);
}

int together_path(struct comm *world, char path[PATH_MAX]) {
    struct comm_data data = {.send = path, .receive = path, .count = PATH_MAX, .dtype = DTYPE_U8};
    return !world || world->size == 1 ? STATUS_OK : comm_broadcast(world, NULL, &data, 0);
}
