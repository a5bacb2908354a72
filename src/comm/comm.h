/* Groups of ranks and their collectives.
 *
 * A `struct comm` is one rank's membership of a group. One thread uses it at a time. A group has two channels. The host
 * channel moves memory of the host. It is `local` if ranks are threads of this process and `mpi` if they are processes;
 * a single rank needs none. The device channel moves memory of devices, in the order of streams. If a device has no
 * channel, its memory goes over the host channel.
 *
 * All ranks of a group make the same collective calls in the same order, with equal counts and types. The host channel
 * finds a difference before data moves, and so do builds that check (CAMBIUM_CHECK_CALLS) for all calls. Then the call
 * fails on every rank with STATUS_INVALID and a text that names both calls. Messages between two ranks arrive in the
 * order in which they were sent. A send may wait for its receive.
 *
 * Every rank gets the same bits of a sum. Sums of host memory are taken in the order of ranks, ((r0 + r1) + r2) + r3,
 * for any timing, channel and size of chunks. Elements of bf16 are summed in fp32 and rounded once. A device channel
 * keeps the order of ranks if comm_is_ordered returns true. A maximum with a NaN is NaN.
 *
 * Device memory moves in the order of a stream, as with NCCL. The call sees the results of work that was queued on the
 * stream before it, and work queued after it sees the call's result. The call may return before it has run. Over the
 * host channel, the call waits for the stream, and has finished when it returns.
 *
 * Functions that return int return STATUS_OK or a negative status with its text. Bad arguments are STATUS_INVALID, and
 * types that cannot be added are STATUS_UNSUPPORTED. After any error the run is over. The caller returns the error, and
 * the code that started the rank calls comm_abort. That releases the other ranks, whose calls fail with STATUS_PEER and
 * a text that names the failed rank. Buffers and requests of started calls must live until comm_wait or comm_abort has
 * returned. */
#pragma once

#include "base/base.h"
#include "kernels/device.h"

enum comm_op { COMM_SUM, COMM_MAX };

struct comm_host_channel;
struct comm_device_channel;

struct comm {
    const struct comm_host_channel *host;
    const struct comm_device_channel *device;
    void *device_state; /* the device channel's state of this group */
    int rank, size;
    int world_rank; /* this rank's number in the whole run, which texts of errors name */
};

/* The data of a call. Calls that only move bytes take any type; sums and maxima take fp32, bf16, fp64 and int64. `send`
 * and `receive` must not overlap, unless they are equal or as the call allows (in place). */
struct comm_data {
    const void *send;
    void *receive;
    int64_t count; /* elements, the same on every rank */
    enum dtype dtype;
    struct stream *stream; /* NULL: both are host memory; else both are device memory, in the order of this stream */
};

/* ---- collectives: they return when they have run, or with a stream when they are queued ---- */

/* receive[count] = the sum or maximum over ranks of send[count]. In place if send == receive. */
int comm_all_reduce(struct comm *comm, const struct comm_data *data, enum comm_op op);
/* receive[size * count] = every rank's send[count], in the order of ranks. In place if
 * send == receive + rank * count. */
int comm_all_gather(struct comm *comm, const struct comm_data *data);
/* receive[count] = send[count] of rank `root`; `send` of other ranks is not read. In place if send == receive. */
int comm_broadcast(struct comm *comm, const struct comm_data *data, int root);
/* Returns when every rank of the group has called it. */
int comm_barrier(struct comm *comm);

/* Agrees whether all ranks have succeeded; each passes its status. Returns STATUS_OK if all have. Otherwise the first
 * rank with its own failure gets that status back with its text, and will report it. The others get STATUS_PEER,
 * with that rank's number and text. */
int comm_agree(struct comm *comm, int status);

/* Checks that all ranks have the same facts. If not, the first rank with a fact other than rank 0's gets
 * STATUS_INVALID, and a text with both. The other ranks get STATUS_OK; all must call comm_agree afterwards. */
int comm_same(struct comm *comm, const struct facts *facts);

/* ---- messages ---- */

/* Sends send[count] to rank `to`, which receives the same count and type. data->receive is not used. */
int comm_send(struct comm *comm, const struct comm_data *data, int to);
/* Receives receive[count] from rank `from`. data->send is not used. */
int comm_receive(struct comm *comm, const struct comm_data *data, int from);
/* Like comm_receive, for a message that may take long to come; waiting for it hardly uses the core. STATUS_INVALID for
 * device memory. Over MPI, other receives poll all the time. This one sleeps between two polls for a quarter of the
 * time that it has waited. It sleeps for at least 20 microseconds and at most 1 millisecond; at most 2 milliseconds
 * after it has waited for 100, and at most 4 after a second. Started calls continue meanwhile. */
int comm_receive_patient(struct comm *comm, const struct comm_data *data, int from);

/* ---- calls that are started now and finished by comm_wait ---- */

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

/* The caller's memory for one started call. It must not move before comm_wait. If it is zeroed, there is nothing to
 * wait for. Only the channels use its members. */
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
    void *kept; /* memory that the device channel allocated for the call, or NULL */
    void *receive;
    size_t send_bytes, receive_bytes;
};

/* The maximum number of collectives that one rank may have started in one group before it waits for them. */
enum { COMM_STARTED_MAX = 32 };

/* Starts comm_all_reduce. The buffers of a started call belong to it until comm_wait. Requests may be waited for in any
 * order. */
int comm_all_reduce_start(struct comm *comm, const struct comm_data *data, enum comm_op op,
                          struct comm_request *request);
/* Starts receive[count] = the sum over ranks of their send[rank * count ...]; `send` has size * count elements. In
 * place if receive == send + rank * count. */
int comm_reduce_scatter_start(struct comm *comm, const struct comm_data *data, struct comm_request *request);
/* Starts comm_all_gather. */
int comm_all_gather_start(struct comm *comm, const struct comm_data *data, struct comm_request *request);
/* Starts comm_send. */
int comm_send_start(struct comm *comm, const struct comm_data *data, int to, struct comm_request *request);
/* Starts comm_receive. */
int comm_receive_start(struct comm *comm, const struct comm_data *data, int from, struct comm_request *request);
/* Makes progress possible for the messages of device memory that this rank has started in the group. A device channel
 * may hold them back until this call, or until comm_wait for one of them, and then moves them together. So a rank must
 * not wait for another's answer to a message before it calls this. */
int comm_post(struct comm *comm);
/* Returns true if messages of device memory may be held back. */
bool comm_holds_messages(const struct comm *comm);
/* Finishes a started call. With host memory, it returns when the call has run. With device memory, the call may still
 * run; work that is queued on the call's stream from now on sees the result, and may write the buffers. */
int comm_wait(struct comm_request *request);
/* Like comm_wait, for device memory, when another stream than the call's uses the result. */
int comm_wait_on(struct comm_request *request, struct stream *stream);
/* Call it after the host has waited for a stream, before it reads results of calls on that stream. A rank of this
 * process that fails ends the calls of all, without results. Then this returns STATUS_PEER, with that rank's text. */
int comm_check(struct comm *comm);
/* After comm_abort: frees the memory of a started request that no one will wait for. */
void comm_forget(struct comm_request *request);

/* ---- groups ---- */

/* Opens the group of a single rank. The caller closes it. STATUS_MEMORY. */
int comm_single_open(struct comm **comm);

/* Makes the group of `ranks`, which are ranks of `parent`, each once, this rank among them. They are numbered in this
 * order. All ranks of `parent` call it together; those of one group give the same list. A rank that joins no group
 * gives a count of 0, and gets NULL. The caller closes *comm before `parent`. STATUS_INVALID for a bad list;
 * STATUS_MEMORY. */
int comm_subgroup(struct comm *parent, const int *ranks, int count, struct comm **comm);

/* Tells the group the device of this rank's memory. All of its ranks call it together, before they make sub-groups. If
 * the ranks are threads and share a GPU, calls on its memory then run there, without the host. Sub-groups do the same.
 * The errors of comm_all_gather; STATUS_MEMORY. */
int comm_use_device(struct comm *comm, struct device *device);

/* Returns true if sums of device memory are taken in the order of ranks, like sums of host memory. Then every such
 * channel gives the same bits, in every run. */
bool comm_is_ordered(const struct comm *comm);
/* Returns true if calls on device memory may be recorded on a stream (device.h). All ranks of the group record the same
 * calls, and replay them in the same order. */
bool comm_records(const struct comm *comm);
/* Makes comm_is_ordered true for this group and for sub-groups made later. A device channel that cannot keep the order
 * is replaced by the host channel. All ranks of the group call it together, while no call is started. */
void comm_request_order(struct comm *comm);

/* Ends a line that says why NCCL cannot be used: how to run without it. */
#define COMM_WITHOUT_NCCL "add --collectives host, or run the ranks as threads of one process (--ranks)"
/* Lets device memory of this world, and of groups made later, move by NVIDIA's library of collectives, NCCL. All ranks
 * call it together, each with its own GPU. Sums then have the same bits on every rank, but not in the order of
 * ranks, and bf16 is rounded at each addition. A call takes at most `most_blocks` multiprocessors of the GPU, 0: as
 * many as the library decides. All ranks give the same number. A world of one rank needs no library. All ranks return
 * the first failure of any: STATUS_UNSUPPORTED without the library, with the ways to run without it; STATUS_IO for a
 * failure of it. */
int comm_nccl_open(struct comm *world, struct device *device, int most_blocks);
/* Lets device memory of the world move over the host again, as in the beginning. All ranks call it together before the
 * device is closed, and have closed the groups. */
void comm_leave_device_channel(struct comm *world);

/* Leaves the group and frees it. The caller has closed its sub-groups and waited for every request. NULL is allowed. */
void comm_close(struct comm *comm);

/* Marks the whole run as failed by this rank. From then on, calls of other ranks fail with STATUS_PEER and "rank R
 * failed: REASON". When it returns, no rank touches this rank's buffers any more. Over MPI, it prints the line and ends
 * all processes of the run. */
void comm_abort(struct comm *comm, const char *reason);
/* Calls comm_abort with the thread's error text after a call of this rank failed with `status`. If that is STATUS_PEER,
 * it first waits for the abort of the rank that failed, whose text then counts. */
void comm_fail(struct comm *comm, int status);

/* ---- ranks as threads ---- */

/* Opens a world of `ranks` threads in this process. comms[r] is for the thread that will be rank r, which closes it.
 * STATUS_INVALID if `ranks` is below 1; STATUS_MEMORY. */
int comm_local_open(int ranks, struct comm **comms);

/* Runs function(world, context) in one thread for each rank, and joins the threads. A function that fails aborts the
 * world. Returns the status and text of the rank that failed first, with its number before the text. */
int comm_local_run(int ranks, int (*function)(struct comm *world, void *context), void *context);

/* ---- ranks as processes ---- */

/* Returns true if mpirun, prte or srun started this process as one of several. It reads the environment:
 * OMPI_COMM_WORLD_SIZE of mpirun, PMIX_RANK of prte and srun --mpi=pmix, SLURM_STEP_NUM_TASKS of srun. PMIX_RANK does
 * not count in a step of one task. */
bool comm_mpi_is_launched(void);

struct comm_watch_options {
    double seconds; /* the timeout */
    /* As on_end of watch.h, for this rank; NULL: prints the line and ends the process. */
    void (*on_end)(void *context, int rank, const char *line);
    void *context;
};
/* Watches the ranks of the world until comm_close. All ranks call it before they make groups, and call comm_agree
 * afterwards. A rank may die, or give no sign of life for the timeout because it is stopped or cut off. Then one rank
 * prints a line that names it, and all processes end with status 1 (watch.h). Ranks that are threads die and stop
 * together, so there it does nothing. STATUS_IO if no connection can be made; STATUS_MEMORY. */
int comm_watch(struct comm *world, const struct comm_watch_options *options);

/* Signs of life of the thread that is a rank of the world. It gives one with every call and, while it waits in a call,
 * several times a second. A thread that gives none computes, or hangs. */
struct comm_signs {
    bool are_known; /* this process knows about the rank */
    uint64_t count; /* signs so far */
    bool is_failed; /* the rank was the first to call comm_abort, or to have a call fail */
};
/* Returns the signs of a rank of the world. Any thread may call it. Over MPI, signs come with the watch's beats: only
 * rank 0 of a watched world knows about other ranks. */
struct comm_signs comm_signs_of(const struct comm *world, int rank);

/* Initialises MPI, once in a process, and opens the world of all its ranks. comm_close ends MPI. One thread at a time
 * uses the world and its groups. STATUS_UNSUPPORTED in a build without MPI. STATUS_INVALID if the launcher started more
 * ranks than MPI sees, or MPI was initialised before; STATUS_IO, STATUS_MEMORY. */
int comm_mpi_open(struct comm **comm);
