/* Groups of ranks and their collectives.
 *
 * A `struct comm` is one rank's membership of a group. It belongs to one thread at a time. A group has two channels.
 * The host channel moves memory of the host: nothing for a rank alone, `local` where ranks are threads of this process,
 * `mpi` where they are processes. The device channel moves memory of devices, in the order of streams. Without a
 * channel of its own, a device's memory goes over the host channel.
 *
 * All ranks of a group make the same collective calls in the same order, with equal counts and types. The host channel
 * finds a difference before data moves, and fails on every rank with a text that names both calls. Messages between two
 * ranks arrive in the order in which they were sent; a send may wait for its receive.
 *
 * Every rank gets the same bits of a sum. Sums of the host's memory are taken in the order of ranks, ((r0 + r1) + r2) +
 * r3, whatever the timing, the channel and the size of chunks; bf16 is summed in fp32 and rounded once. A device
 * channel promises that where comm_is_ordered says so. A maximum with a NaN is NaN.
 *
 * Device memory moves in the order of a stream, as with NCCL: what was queued on the stream before the call is in the
 * buffers, and what is queued after it sees the result. The call may return before it has run. Over the host channel
 * the call waits for the stream, and has finished when it returns.
 *
 * Errors: 0 or a negative status. After any error the run is over: the caller passes it up, and whoever started the
 * rank calls comm_abort, which releases the others with STATUS_PEER and a text that names the failed rank. Buffers and
 * requests of calls that were started must live until comm_wait or comm_abort has returned. */
#ifndef CAMBIUM_COMM_COMM_H
#define CAMBIUM_COMM_COMM_H

#include "base/base.h"
#include "kernels/device.h"

#include <stdbool.h>
#include <stdint.h>

enum comm_op { COMM_SUM, COMM_MAX };

struct comm_host_channel;
struct comm_device_channel;

struct comm {
    const struct comm_host_channel *host;
    const struct comm_device_channel *device;
    void *device_state; /* of the device channel in this group */
    int rank, size;
    int world_rank; /* the rank in the whole run, which messages name */
};

/* The data of a call. Types: any where bytes only move; fp32, bf16, fp64 and int64 where they are added or compared.
 * `send` and `receive` are equal (in place), or as the call says, or do not overlap. */
struct comm_data {
    const void *send;
    void *receive;
    int64_t count; /* elements, the same on every rank */
    enum dtype dtype;
    struct stream *stream; /* both are device memory, in the order of this stream; NULL: memory of the host */
};

/* ---- collectives ---- */

/* receive[count] = the sum or maximum over ranks of send[count]. In place where send == receive. */
int comm_all_reduce(struct comm *comm, const struct comm_data *data, enum comm_op op);
/* receive[size * count] = every rank's send[count], in the order of ranks. In place where send == receive + rank *
 * count. */
int comm_all_gather(struct comm *comm, const struct comm_data *data);
/* receive[count] = send[count] of rank `root`; the others' send is not read. In place where send == receive. */
int comm_broadcast(struct comm *comm, const struct comm_data *data, int root);
/* Returns when every rank of the group has called it. */
int comm_barrier(struct comm *comm);

/* Whether all ranks have come as far as this: `status` is each one's own. Where any is no success, the first rank with
 * a failure of its own gets that back, text and all, and the others get STATUS_PEER and its number and text: so it is
 * said once. */
int comm_agree(struct comm *comm, int status);

/* Whether all ranks have the same facts. Where they have not, the first rank that has another than rank 0 gets
 * STATUS_INVALID and a text with both; the others get STATUS_OK, and agree with it afterwards. */
int comm_same(struct comm *comm, const struct facts *facts);

/* ---- messages ---- */

/* send[count] to rank `to`, which receives the same count and type; data->receive is not used. */
int comm_send(struct comm *comm, const struct comm_data *data, int to);
/* receive[count] from rank `from`; data->send is not used. */
int comm_receive(struct comm *comm, const struct comm_data *data, int from);
/* The same for a message that may be long in coming, to memory of the host (else STATUS_INVALID): waiting for its
 * beginning takes hardly any of a core. Over MPI, where others look for it again and again, this sleeps between two
 * looks for a quarter of the time that it waited: at least 20 microseconds; at most 1 millisecond, 2 once it waited for
 * 100, 4 once it waited for a second. Started calls go on meanwhile. */
int comm_receive_patient(struct comm *comm, const struct comm_data *data, int from);

/* ---- started now, finished by comm_wait ---- */

enum comm_kind {
    COMM_ALL_REDUCE,
    COMM_REDUCE_SCATTER,
    COMM_ALL_GATHER,
    COMM_BROADCAST,
    COMM_BARRIER,
    COMM_SEND,
    COMM_RECEIVE,
};

struct comm_call {
    enum comm_kind kind;
    enum comm_op op;
    int peer; /* the root of a broadcast; the other rank of a message */
    struct comm_data data;
};

/* The caller's memory for one started call; it stays in its place until comm_wait. Zeroed: nothing to wait for. The
 * members are the channels'. */
struct comm_request {
    struct comm *comm;
    struct comm_call call;
    bool is_waited_for; /* the caller does nothing else meanwhile */
    struct comm_request *next;
    uint64_t sequence;
    uint64_t handle;
    int64_t words[4];
    int64_t begun, finished; /* elements */
    _Atomic uint32_t is_done;
    void *kept; /* what the device channel allocated for the call; NULL: nothing */
    void *receive;
    size_t send_bytes, receive_bytes;
};

/* Collectives that one rank may have started in one group and not yet waited for. */
enum { COMM_STARTED_MAX = 32 };

/* The buffers are the call's until comm_wait. Requests may be waited for in any order. */
int comm_all_reduce_start(struct comm *comm, const struct comm_data *data, enum comm_op op,
                          struct comm_request *request);
/* receive[count] = the sum over ranks of their send[rank * count ...]; send holds size * count elements. In place where
 * receive == send + rank * count. */
int comm_reduce_scatter_start(struct comm *comm, const struct comm_data *data, struct comm_request *request);
/* receive as comm_all_gather. */
int comm_all_gather_start(struct comm *comm, const struct comm_data *data, struct comm_request *request);
int comm_send_start(struct comm *comm, const struct comm_data *data, int to, struct comm_request *request);
int comm_receive_start(struct comm *comm, const struct comm_data *data, int from, struct comm_request *request);
/* Host memory: returns when the call has run. Device memory: what is queued on the call's stream from now on sees the
 * result, and may write the buffers; the call itself may still run. */
int comm_wait(struct comm_request *request);
/* The same where another stream of the device than the call's uses the result. */
int comm_wait_on(struct comm_request *request, struct stream *stream);
/* After comm_abort: gives back what a started request holds that nobody will wait for. */
void comm_forget(struct comm_request *request);

/* ---- groups ---- */

/* A rank alone. */
int comm_single_open(struct comm **comm);

/* The group of `ranks` (of `parent`, each once, this one among them), numbered in this order. Called by just these
 * ranks, with the same list; returns when all of them have. */
int comm_subgroup(struct comm *parent, const int *ranks, int count, struct comm **comm);

/* Whether sums of device memory are taken in the order of ranks, like those of the host's: the same bits on every
 * channel that promises it, and again in the next run. */
bool comm_is_ordered(const struct comm *comm);
/* Makes it so, for this group and those that will be made of it: a device channel that cannot promise it gives way to
 * the host channel. All ranks of the group call it together, with nothing started. */
void comm_request_order(struct comm *comm);

/* Leaves the group; sub-groups first. Every request has been waited for. */
void comm_close(struct comm *comm);

/* Marks the whole run as failed by this rank: whoever waits for a collective or message, now or later, gets
 * STATUS_PEER and "rank R failed: REASON". Nobody touches this rank's buffers any more when it returns. Over MPI it
 * prints the line and ends the processes of the run. */
void comm_abort(struct comm *comm, const char *reason);
/* Aborts with the thread's error text after a call of this rank failed with `status`. A rank that only heard of
 * another's failure (STATUS_PEER) leaves it to that one to say so. */
void comm_fail(struct comm *comm, int status);

/* ---- ranks as threads ---- */

/* A world of `ranks` in this process: comms[r] for the thread that will be rank r. */
int comm_local_open(int ranks, struct comm **comms);

/* Runs function(comm, context) in one thread a rank and joins them. A function that fails aborts the world. The status
 * and text are those of the rank that failed first, with its number before the text. */
int comm_local_run(int ranks, int (*function)(struct comm *world, void *context), void *context);

/* ---- ranks as processes ---- */

/* Whether mpirun or srun started this process as one of several: the environment says so (OMPI_COMM_WORLD_SIZE of
 * mpirun, PMIX_RANK of prte and srun --mpi=pmix, SLURM_STEP_NUM_TASKS of srun; PMIX_RANK of a step of one task does not
 * count). */
bool comm_mpi_is_launched(void);

/* Begins to watch the ranks of the world, until comm_close: all call it before they make groups, and agree afterwards.
 * When a rank dies, or gives no sign of life for the timeout because it is stopped or cut off, one rank says so in
 * a line that names it, and all processes end with status 1 (watch.h). Ranks that are threads die and stop together:
 * nothing to do. */
struct comm_watch_options {
    double seconds;
    /* NULL: prints the line and ends the process; else as on_end of watch.h, for this rank. */
    void (*on_end)(void *context, int rank, const char *line);
    void *context;
};
int comm_watch(struct comm *world, const struct comm_watch_options *options);

/* Signs of life of the thread that is a rank of the world: it gives one with every call and, while it waits in a call,
 * several times a second. So who gives none computes, or hangs. */
struct comm_signs {
    bool are_known; /* whether this process can tell */
    uint64_t count; /* so far; grows */
    bool is_failed; /* it was the first that called comm_abort, or that a call failed on */
};
/* Any thread. Over MPI they come with the watch's beats: where nobody watches, and on other ranks than 0, a rank knows
 * of itself alone. */
struct comm_signs comm_signs_of(const struct comm *world, int rank);

/* Initialises MPI, once in a process, and gives the world of all its ranks; comm_close ends MPI. STATUS_UNSUPPORTED in
 * a build without it. Every group of it is used from the thread that uses the world, or from one at a time. */
int comm_mpi_open(struct comm **comm);

#endif
