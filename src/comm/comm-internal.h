/* The two channels of a group as tables, the arithmetic that they share, and descriptions of calls. */
#pragma once

#include "comm/comm.h"

/* The host channel moves memory of the host. It also makes sub-groups, and knows which ranks have failed. A `struct
 * comm` is the first member of its struct for a group. Its calls are already checked. It sums in the order of ranks.
 * The channels of threads and of processes never see a group of one. */
struct comm_host_channel {
    const char *name;
    /* Starts request->call; request->comm is set. The buffers are host memory. */
    int (*start)(struct comm *comm, struct comm_request *request);
    /* Returns when the call has run. */
    int (*finish)(struct comm *comm, struct comm_request *request);
    /* Sleeps until there is a message of rank `from` that no started receive takes. NULL: finish sleeps anyway. */
    int (*await)(struct comm *comm, int from);
    /* `ranks` are checked, include this rank, and are at least two. The group's device channel is not set yet. */
    int (*subgroup)(struct comm *parent, const int *ranks, int count, struct comm **comm);
    /* As comm_use_device. NULL: members never share a GPU. */
    int (*use_device)(struct comm *comm, struct device *device);
    /* NULL: ranks cannot die or stop one by one. */
    int (*watch)(struct comm *world, const struct comm_watch_options *options);
    /* NULL: no signs are known. */
    struct comm_signs (*signs_of)(const struct comm *world, int rank);
    void (*abort)(struct comm *comm, const char *reason);
    void (*close)(struct comm *comm);
};

/* The device channel moves memory of devices, in the order of streams. Its calls are already checked, and have a
 * stream.
 */
struct comm_device_channel {
    const char *name;
    bool is_ordered; /* it adds in the order of ranks; see comm_is_ordered */
    bool is_work;    /* only of streams; see comm_records */
    /* Starts request->call, to run after the work that is on its stream now. It may run on another stream. */
    int (*start)(struct comm *comm, struct comm_request *request);
    /* Runs the messages that start held back; NULL: it holds none. */
    int (*post)(struct comm *comm);
    /* Makes work that is queued on `stream` from now on see the result. May return before the call has run. */
    int (*wait)(struct comm *comm, struct comm_request *request, struct stream *stream);
    /* As comm_check. NULL: calls that end have results. */
    int (*check)(struct comm *comm);
    /* Frees request->kept, which is not NULL, of a call that no one will wait for. */
    void (*forget)(struct comm_request *request);
    /* Sets group->device_state. The group's host channel is open. All ranks of the parent call this together, with the
     * list of their group, by the parent's numbers; both are NULL for a rank in no group. A failed join may have set
     * the state. NULL: the channel has no state. */
    int (*join)(struct comm *parent, const int *ranks, struct comm *group);
    void (*leave)(struct comm *group); /* device_state may be NULL */
    /* Ends calls of all ranks of this process that wait for others. The host channel has failed already. NULL: they
     * end with the host channel's. */
    void (*abort)(struct comm *comm);
};

/* Works over every host channel. It waits for the stream, and copies through the host if the host cannot read the
 * device's memory. */
extern const struct comm_device_channel comm_device_over_host;

/* Leaves the group's device channel. From then on, its device memory goes over the host. */
void comm_leave_device_channel(struct comm *comm);

enum { COMM_TEXT_BYTES = 96 };
/* Describes a call: "all-reduce (sum) of 8 fp32", "broadcast of 8 fp32 from rank 0". */
void comm_describe(const struct comm_call *call, char text[COMM_TEXT_BYTES]);

/* Returns true if two ranks' calls are the same collective. */
bool comm_calls_agree(const struct comm_call *a, const struct comm_call *b);

/* In builds that check, compares a list of calls that a device channel is about to run, one collective or messages,
 * with those of the other ranks. STATUS_INVALID for a difference, with both calls; the errors of collectives. */
int comm_check_calls(struct comm *comm, const struct comm_request *first);

/* Returns true if the call reads this rank's `send`. */
static inline bool comm_reads(const struct comm *comm, const struct comm_call *call) {
    return call->kind == COMM_BROADCAST ? call->peer == comm->rank : call->kind != COMM_RECEIVE;
}

/* Returns the bytes of data.count elements. */
static inline size_t comm_call_bytes(const struct comm_call *call) {
    return (size_t)call->data.count * dtype_bytes(call->data.dtype);
}

/* to[t][0 .. count) = from[0] + from[1] + ... in this order, or the maximum, for each target t. The offsets are added
 * to all pointers of `from` and `to`. A target may be a source. */
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
/* Runs the reduction at the processor's level of instructions. */
void comm_reduce(const struct comm_reduction *reduction);
/* The same, each compiled for one level of instructions. */
void comm_reduce_v2(const struct comm_reduction *reduction);
void comm_reduce_v3(const struct comm_reduction *reduction);
void comm_reduce_v4(const struct comm_reduction *reduction);
