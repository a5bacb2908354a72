/* What the backends share: their table, the arithmetic, and how calls are described. */
#ifndef CAMBIUM_COMM_INTERNAL_H
#define CAMBIUM_COMM_INTERNAL_H

#include "comm/comm.h"

/* A backend sees calls that are checked, in groups of at least two ranks. */
struct comm_backend {
    const char *name;
    bool meets_on_host; /* reads and writes memory of the host, when the stream has run */
    /* Begins request->call; request->comm is set. */
    int (*start)(struct comm *comm, struct comm_request *request);
    int (*finish)(struct comm *comm, struct comm_request *request);
    /* Sleeps until a message of rank `from` is there that no started receive takes. NULL: finish sleeps by itself. */
    int (*await)(struct comm *comm, int from);
    /* `ranks` are checked, hold this rank, and are at least two. */
    int (*subgroup)(struct comm *parent, const int *ranks, int count, struct comm **comm);
    /* NULL: its ranks cannot die or stop one by one. */
    int (*watch)(struct comm *world, const struct comm_watch_options *options);
    /* NULL: nothing is known. */
    struct comm_signs (*signs_of)(const struct comm *world, int rank);
    void (*abort)(struct comm *comm, const char *reason);
    void (*close)(struct comm *comm);
};

extern const struct comm_backend comm_backend_single;

/* "all-reduce (sum) of 8 fp32", "broadcast of 8 fp32 from rank 0". */
enum { COMM_TEXT_BYTES = 96 };
void comm_describe(const struct comm_call *call, char text[COMM_TEXT_BYTES]);

/* Whether two ranks' calls are the same collective. */
bool comm_calls_agree(const struct comm_call *a, const struct comm_call *b);

static inline size_t comm_call_bytes(const struct comm_call *call) {
    return (size_t)call->data.count * dtype_bytes(call->data.dtype);
}

/* to[t][0 .. count) = from[0] + from[1] + ... in this order, for each of `targets`; `from` and `to` are displaced by
 * `offset` bytes. A target may be a source. */
struct comm_reduction {
    const void *const *from;
    int sources;
    void *const *to;
    int targets;
    size_t from_offset, to_offset; /* bytes */
    int64_t count;
    enum dtype dtype;
    enum comm_op op;
};
void comm_reduce(const struct comm_reduction *reduction);
/* The same, compiled for one level of instructions each. */
void comm_reduce_v2(const struct comm_reduction *reduction);
void comm_reduce_v3(const struct comm_reduction *reduction);
void comm_reduce_v4(const struct comm_reduction *reduction);

#endif
