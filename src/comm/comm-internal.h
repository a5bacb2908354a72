/* The two channels of a group as tables, the arithmetic that they share, and how calls are described. */
#ifndef CAMBIUM_COMM_INTERNAL_H
#define CAMBIUM_COMM_INTERNAL_H

#include "comm/comm.h"

/* The host channel moves memory of the host. It also makes sub-groups, and knows which ranks have failed: a `struct
 * comm` is the first member of what a host channel keeps of a group. It sees calls that are checked, and sums in the
 * order of ranks. Where ranks are several it never sees a group of one. */
struct comm_host_channel {
    const char *name;
    /* Begins request->call; request->comm is set. The buffers are memory of the host. */
    int (*start)(struct comm *comm, struct comm_request *request);
    /* Returns when the call has run. */
    int (*finish)(struct comm *comm, struct comm_request *request);
    /* Sleeps until a message of rank `from` is there that no started receive takes. NULL: finish sleeps by itself. */
    int (*await)(struct comm *comm, int from);
    /* `ranks` are checked, hold this rank, and are at least two. The group's device channel is not set yet. */
    int (*subgroup)(struct comm *parent, const int *ranks, int count, struct comm **comm);
    /* NULL: its ranks cannot die or stop one by one. */
    int (*watch)(struct comm *world, const struct comm_watch_options *options);
    /* NULL: nothing is known. */
    struct comm_signs (*signs_of)(const struct comm *world, int rank);
    void (*abort)(struct comm *comm, const char *reason);
    void (*close)(struct comm *comm);
};

/* The device channel moves memory of devices, in the order of streams. It sees calls that are checked and have a
 * stream.
 */
struct comm_device_channel {
    const char *name;
    bool is_ordered; /* adds in the order of ranks, as comm_is_ordered says */
    /* Begins request->call after what is on its stream by now; it may run on a stream of the channel's own. */
    int (*start)(struct comm *comm, struct comm_request *request);
    /* Work queued on `stream` from now on sees the result; the call may not have run when this returns. */
    int (*wait)(struct comm *comm, struct comm_request *request, struct stream *stream);
    /* Gives back request->kept, which is not NULL, of a call that nobody will wait for. */
    void (*forget)(struct comm_request *request);
    /* Sets group->device_state. The group's host channel is open, and all of its ranks call this. NULL: there is no
     * state. */
    int (*join)(const struct comm *parent, struct comm *group);
    void (*leave)(struct comm *group);
};

/* Works over every host channel: waits for the stream, and copies through the host where the host cannot read the
 * device's memory. */
extern const struct comm_device_channel comm_device_over_host;

/* "all-reduce (sum) of 8 fp32", "broadcast of 8 fp32 from rank 0". */
enum { COMM_TEXT_BYTES = 96 };
void comm_describe(const struct comm_call *call, char text[COMM_TEXT_BYTES]);

/* Whether two ranks' calls are the same collective. */
bool comm_calls_agree(const struct comm_call *a, const struct comm_call *b);

/* Whether the call reads this rank's `send`. */
static inline bool comm_reads(const struct comm *comm, const struct comm_call *call) {
    return call->kind == COMM_BROADCAST ? call->peer == comm->rank : call->kind != COMM_RECEIVE;
}

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
