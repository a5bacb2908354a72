/* Checks that all ranks mean the same run. */
#include "comm/comm.h"

#include <inttypes.h>

enum { TEXT_BYTES = 512 };

/* Gathers the digests of all ranks, each in its place; 0 after a rank's last fact. */
static int gather(struct comm *comm, const struct facts *facts, int64_t **all, int64_t *count) {
    *count = (int64_t)facts->count;
    struct comm_data most = {.send = count, .receive = count, .count = 1, .dtype = DTYPE_I64};
    TRY(comm_all_reduce(comm, &most, COMM_MAX));
    *all = calloc((size_t)comm->size * (size_t)*count + 1, sizeof **all);
    TRY(comm_agree(comm, status_allocated(*all)));
    int64_t *own = *all + *count * comm->rank;
    for (size_t i = 0; i < facts->count; i++)
        own[i] = (int64_t)facts->items[i].digest;
    struct comm_data data = {.send = own, .receive = *all, .count = *count, .dtype = DTYPE_I64};
    return comm_all_gather(comm, &data);
}

/* Finds the first fact that differs, and the first rank whose fact is not rank 0's. Returns false if none differs. */
static bool find_difference(const int64_t *all, int size, int64_t count, int64_t *fact, int *rank) {
    for (*fact = 0; *fact < count; ++*fact)
        for (*rank = 1; *rank < size; ++*rank)
            if (all[*fact] != all[count * *rank + *fact])
                return true;
    return false;
}

int comm_same(struct comm *comm, const struct facts *facts) {
    static const struct fact nothing = {.name = "", .shown = ""};
    int64_t *all = NULL, count, at;
    int other;
    if (comm->size == 1)
        return STATUS_OK;
    int status = gather(comm, facts, &all, &count);
    bool differs = !status && find_difference(all, comm->size, count, &at, &other);
    free(all);
    if (!differs)
        return status;
    const struct fact *own = (size_t)at < facts->count ? &facts->items[at] : &nothing;
    char texts[2][TEXT_BYTES]; /* of rank 0: the fact's name and value */
    snprintf(texts[0], TEXT_BYTES, "%s", own->name);
    snprintf(texts[1], TEXT_BYTES, "%s", own->shown);
    struct comm_data data = {.send = texts, .receive = texts, .count = sizeof texts, .dtype = DTYPE_U8};
    status = comm_broadcast(comm, &data, 0);
    if (status || comm->rank != other)
        return status;
    if (!*texts[0])
        return status_fail(STATUS_INVALID, "%s is %s, rank 0 has none: %s", own->name, own->shown, own->because);
    if (own == &nothing)
        return status_fail(STATUS_INVALID, "%s is missing, rank 0 has %s: " FACT_CONFIGURATION, texts[0], texts[1]);
    if (!strcmp(texts[0], own->name))
        return status_fail(STATUS_INVALID, "%s is %s, rank 0 has %s: %s", own->name, own->shown, texts[1],
                           own->because);
    return status_fail(STATUS_INVALID, "%s is %s, where rank 0 has %s %s: " FACT_CONFIGURATION, own->name, own->shown,
                       texts[0], texts[1]);
}
