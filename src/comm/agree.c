/* Ranks that fail agree on one failure, so that it is reported once. */
#include "comm/comm.h"

enum { TEXT_BYTES = 1024 };

/* Returns the rank that reports the failure, or -1 if no rank failed: the first with its own failure, else the
 * first with STATUS_PEER. */
static int choose(struct comm *comm, int *status) {
    int64_t size = comm->size, mine = 0, chosen = 0;
    if (*status)
        mine = (*status == STATUS_PEER ? 1 : 2) * size - comm->rank;
    struct comm_data data = {.send = &mine, .receive = &chosen, .count = 1, .dtype = DTYPE_I64};
    int result = comm_all_reduce(comm, &data, COMM_MAX);
    if (result && !*status)
        *status = result;
    return result || !chosen ? -1 : (int)((2 * size - chosen) % size);
}

int comm_agree(struct comm *comm, int status) {
    if (comm->size == 1)
        return status;
    char own[TEXT_BYTES], text[TEXT_BYTES + 32];
    snprintf(own, sizeof own, "%s", status ? status_text() : "");
    snprintf(text, sizeof text, "rank %d failed: %s", comm->world_rank, own);
    int before = status, chosen = choose(comm, &status);
    struct comm_data data = {.send = text, .receive = text, .count = sizeof text, .dtype = DTYPE_U8};
    int result = chosen < 0 ? STATUS_OK : comm_broadcast(comm, &data, chosen);
    if (before && (chosen < 0 || chosen == comm->rank)) /* also if the exchange of the text failed */
        return status_fail(before, "%s", own);
    if (chosen < 0 || result)
        return status ? status : result;
    return status_fail(STATUS_PEER, "%s", text);
}
