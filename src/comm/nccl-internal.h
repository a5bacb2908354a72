/* NVIDIA's library of collectives, NCCL, as far as the program uses it. Prototypes and enumerators are our own. A table
 * of functions is filled at run time from libnccl.so.2.
 *
 * prototypes_test.c compares all of it with the library's header. Functions return a result, 0 for success. */
#pragma once

#include <limits.h>
#include <stddef.h>

struct ncclComm; /* a rank's membership of a communicator */
struct CUstream_st;

/* Names a world that its ranks are about to join. */
struct nccl_id {
    char bytes[128];
};

/* The first members of the library's struct, which version 2.18 has, too. */
struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cluster_size, min_blocks, max_blocks;
    const char *network;
    int split_share;
};

/* The version that the members above belong to; older libraries are refused. Major * 10000 + minor * 100 + patch. */
enum { NCCL_OLDEST = 21800 };

/* Calls return before they have run, also those that make communicators. */
#define NCCL_CONFIG_UNBLOCKED                                                                                          \
    {                                                                                                                  \
        .size = sizeof(struct nccl_config), .magic = 0xcafebeef, .version = NCCL_OLDEST, .blocking = 0,                \
        .cluster_size = INT_MIN, .min_blocks = INT_MIN, .max_blocks = INT_MIN, .split_share = INT_MIN                  \
    }

/* The library's header gives these structs no tags, or others. The test of prototypes puts the library's types here. */
#define NCCL_ID     struct nccl_id
#define NCCL_CONFIG struct nccl_config

/* ROW(our name, the library's name, value) */
#define NCCL_ENUMERATORS(ROW)                                                                                          \
    ROW(NCCL_SUCCESS, ncclSuccess, 0)                                                                                  \
    ROW(NCCL_SYSTEM_ERROR, ncclSystemError, 2)                                                                         \
    ROW(NCCL_INTERNAL_ERROR, ncclInternalError, 3)                                                                     \
    ROW(NCCL_INVALID_ARGUMENT, ncclInvalidArgument, 4)                                                                 \
    ROW(NCCL_INVALID_USAGE, ncclInvalidUsage, 5)                                                                       \
    ROW(NCCL_REMOTE_ERROR, ncclRemoteError, 6)                                                                         \
    ROW(NCCL_IN_PROGRESS, ncclInProgress, 7)                                                                           \
    ROW(NCCL_NO_COLOR, NCCL_SPLIT_NOCOLOR, -1)                                                                         \
    ROW(NCCL_SUM, ncclSum, 0)                                                                                          \
    ROW(NCCL_UINT8, ncclUint8, 1)                                                                                      \
    ROW(NCCL_INT64, ncclInt64, 4)                                                                                      \
    ROW(NCCL_FLOAT32, ncclFloat32, 7)                                                                                  \
    ROW(NCCL_FLOAT64, ncclFloat64, 8)                                                                                  \
    ROW(NCCL_BFLOAT16, ncclBfloat16, 9)

#define NCCL_ENUMERATOR(name, library_name, value) name = (value),
enum nccl_enumerator { NCCL_ENUMERATORS(NCCL_ENUMERATOR) };
#undef NCCL_ENUMERATOR

/* ROW(member of the table, result, the library's name, parameters) */
#define NCCL_FUNCTIONS(ROW)                                                                                            \
    ROW(version, unsigned, ncclGetVersion, (int *version))                                                             \
    ROW(error_text, const char *, ncclGetErrorString, (unsigned result))                                               \
    ROW(last_error, const char *, ncclGetLastError, (struct ncclComm * comm))                                          \
    ROW(make_id, unsigned, ncclGetUniqueId, (NCCL_ID * id))                                                            \
    ROW(join, unsigned, ncclCommInitRankConfig,                                                                        \
        (struct ncclComm * *comm, int ranks, NCCL_ID id, int rank, NCCL_CONFIG *config))                               \
    ROW(split, unsigned, ncclCommSplit,                                                                                \
        (struct ncclComm * comm, int color, int key, struct ncclComm **part, NCCL_CONFIG *config))                     \
    ROW(async_error, unsigned, ncclCommGetAsyncError, (struct ncclComm * comm, unsigned *result))                      \
    ROW(finalize, unsigned, ncclCommFinalize, (struct ncclComm * comm))                                                \
    ROW(destroy, unsigned, ncclCommDestroy, (struct ncclComm * comm))                                                  \
    ROW(abort, unsigned, ncclCommAbort, (struct ncclComm * comm))                                                      \
    ROW(group_start, unsigned, ncclGroupStart, (void))                                                                 \
    ROW(group_end, unsigned, ncclGroupEnd, (void))                                                                     \
    ROW(all_reduce, unsigned, ncclAllReduce,                                                                           \
        (const void *send, void *receive, size_t count, unsigned type, unsigned op, struct ncclComm *comm,             \
         struct CUstream_st *stream))                                                                                  \
    ROW(reduce_scatter, unsigned, ncclReduceScatter,                                                                   \
        (const void *send, void *receive, size_t count, unsigned type, unsigned op, struct ncclComm *comm,             \
         struct CUstream_st *stream))                                                                                  \
    ROW(all_gather, unsigned, ncclAllGather,                                                                           \
        (const void *send, void *receive, size_t count, unsigned type, struct ncclComm *comm,                          \
         struct CUstream_st *stream))                                                                                  \
    ROW(broadcast, unsigned, ncclBroadcast,                                                                            \
        (const void *send, void *receive, size_t count, unsigned type, int root, struct ncclComm *comm,                \
         struct CUstream_st *stream))                                                                                  \
    ROW(send, unsigned, ncclSend,                                                                                      \
        (const void *send, size_t count, unsigned type, int peer, struct ncclComm *comm, struct CUstream_st *stream))  \
    ROW(receive, unsigned, ncclRecv,                                                                                   \
        (void *receive, size_t count, unsigned type, int peer, struct ncclComm *comm, struct CUstream_st *stream))

#define NCCL_MEMBER(member, result, name, parameters) result(*member) parameters;
struct nccl_library {
    void *library; /* of dlopen */
    NCCL_FUNCTIONS(NCCL_MEMBER)
};
#undef NCCL_MEMBER

/* Opens the library. Fails with STATUS_UNSUPPORTED and one line: it is missing, too old, or lacks a function. The line
 * also says how to run without it. */
int nccl_library_open(struct nccl_library *library);
/* Closes what was opened; a zeroed table is allowed. */
void nccl_library_close(struct nccl_library *library);
