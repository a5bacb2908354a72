/* Ranks that write one directory together. They agree after each step, so that none continues after another failed. */
#include "ckpt-internal.h"

bool together_is_first(const struct comm *world) {
    return !world || world->rank == 0;
}

int together_agree(struct comm *world, int status) {
    return world ? comm_agree(world, status) : status;
}

int together_path(struct comm *world, char path[PATH_MAX]) {
    struct comm_data data = {.send = path, .receive = path, .count = PATH_MAX, .dtype = DTYPE_U8};
    return !world || world->size == 1 ? STATUS_OK : comm_broadcast(world, &data, 0);
}
