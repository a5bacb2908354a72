/* A library to preload. It doubles one number of what a rank passes on over MPI, and only on its way: the rank keeps
 * what it had. The environment variable CAMBIUM_MESSAGE has five words:
 *
 * - the rank that passes it on
 * - "send" for MPI_Isend, or "gather" for MPI_Iallgather
 * - the bytes of a number: 4 for fp32, 8 for fp64
 * - the minimum of numbers in a call
 * - the call, from 1, among those whose middle number is a normal one, which only fp32 and fp64 are likely to be. */
#include <math.h>
#include <mpi.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static atomic_int calls;

/* Returns what to pass on: `from`, or a copy with another number in the middle, which stays until the process ends. */
static const void *change(const char *function, const void *from, int count, MPI_Datatype type) {
    const char *words = getenv("CAMBIUM_MESSAGE");
    char chosen[8];
    int rank, bytes, chosen_rank, chosen_bytes, least, call;
    float single;
    double number;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    PMPI_Type_size(type, &bytes);
    if (!words || sscanf(words, "%d %7s %d %d %d", &chosen_rank, chosen, &chosen_bytes, &least, &call) != 5 ||
        rank != chosen_rank || strcmp(function, chosen) != 0 || bytes != chosen_bytes || count < least)
        return from;
    const char *middle = (const char *)from + (size_t)bytes * (size_t)(count / 2);
    memcpy(bytes == sizeof single ? (void *)&single : (void *)&number, middle, (size_t)bytes);
    if (bytes == sizeof single)
        number = single;
    if (!isnormal(number) || fabs(number) < 1e-9 || ++calls != call)
        return from;
    char *copy = malloc((size_t)bytes * (size_t)count);
    if (!copy)
        abort();
    memcpy(copy, from, (size_t)bytes * (size_t)count);
    number *= 2;
    single = (float)number;
    memcpy(copy + (middle - (const char *)from), bytes == sizeof single ? (void *)&single : (void *)&number,
           (size_t)bytes);
    return copy;
}

int MPI_Isend(const void *from, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
    return PMPI_Isend(change("send", from, count, type), count, type, to, tag, comm, request);
}

int MPI_Iallgather(const void *own, int count, MPI_Datatype type, void *all, int counts, MPI_Datatype types,
                   MPI_Comm comm, MPI_Request *request) {
    if (own != MPI_IN_PLACE)
        own = change("gather", own, count, type);
    return PMPI_Iallgather(own, count, type, all, counts, types, comm, request);
}
