/* libnccl.so.2 for tests: the calls of NCCL that the program makes, between GPUs of the stand-in for the driver. Ranks
 * are threads or processes of one machine.
 *
 * Calls that are captured are issued at each launch of their graph. Calls run in the order of their stream and of their
 * communicator, and meet on a board (nccl_board.h). Four faults end the process with a report. Ranks' calls differ, or
 * ranks wait for each other. A buffer changes while it is sent. Two threads use a communicator at once. Sums are taken
 * in an order that CAMBIUM_CUDA_SEED and the number of the call decide, with a rounding at each addition.
 *
 * CAMBIUM_NCCL_VERSION is the version, 22809 when not given. CAMBIUM_NCCL_FAIL lists calls that fail, by function and
 * number, and by rank if one is given: "ncclAllReduce:3@1" is the third of rank 1; all fail where there is no number.
 * "async:3" is a call that never runs and gives its communicator an asynchronous error. "kill-ncclSend:3" kills the
 * process in that call, and "stop-ncclSend:3" stops it. CAMBIUM_NCCL_PAUSE is how long a call takes, in milliseconds
 * below a second. CAMBIUM_NCCL_REPORT names a file for counts, written at the end. */
#include "comm/nccl-internal.h"
#include "cuda/library.h"
#include "cuda/nccl_board.h"

#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define API                                         __attribute__((visibility("default")))

#define PROTOTYPE(member, result, name, parameters) result name parameters;
NCCL_FUNCTIONS(PROTOTYPE)
unsigned cuCtxGetDevice(int *device);
unsigned cuDeviceGetPCIBusId(char *id, int bytes, int device);

enum { CALLS_MOST = 64, NAMES_MOST = 32 };

static atomic_ulong launches, sent_bytes, communicators; /* groups of calls; what ranks send at least; that are open */
static atomic_int most_blocks;                           /* that the last communicator may take */

/* ---- communicators ---- */

enum state { READY, JOINING, SPLITTING, FINALIZING };

struct ncclComm {
    struct board *board; /* of the world's communicator, which the others share */
    atomic_int *users;   /* communicators on it, in this mapping */
    int group, rank, size;
    int world_rank;
    enum state state;
    uint64_t splits;
    struct ncclComm **part; /* of a split under way: where its result goes */
    unsigned error;         /* asynchronous */
    uint64_t issued, ended; /* calls, one after the other */
    uint64_t collectives;
    uint64_t sent[BOARD_RANKS], received[BOARD_RANKS];
    _Atomic(const char *) in_use; /* the function that a thread has called */
    atomic_int references;
    atomic_bool is_aborted;
};

static void release(struct ncclComm *comm) {
    if (atomic_fetch_sub(&comm->references, 1) > 1) {
        return;
    }
    atomic_fetch_sub(&communicators, 1);
    if (atomic_fetch_sub(comm->users, 1) == 1) {
        board_close(comm->board);
        free((void *)comm->users);
    }
    free(comm);
}

static struct ncclComm *make(struct board *board, atomic_int *users, int group, int world_rank) {
    struct ncclComm *comm = calloc(1, sizeof *comm);
    if (!comm) {
        board_end("out of memory");
    }
    comm->board = board;
    comm->users = users;
    atomic_fetch_add(users, 1);
    atomic_fetch_add(&communicators, 1);
    comm->group = group;
    comm->world_rank = world_rank;
    comm->references = 1;
    return comm;
}

static void find_place(struct ncclComm *comm) {
    const struct board_group *group = &comm->board->groups[comm->group];
    comm->size = group->size;
    for (int r = 0; r < group->size; r++) {
        comm->rank = group->rank[r] == comm->world_rank ? r : comm->rank;
    }
}

/* ---- failures on command ---- */

static struct {
    const char *name;
    unsigned long calls;
} counts[NAMES_MOST];
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

/* Counts a call of a function. True where this one shall fail. */
static bool fails(const char *name, int rank) {
    const char *at = getenv("CAMBIUM_NCCL_FAIL");
    unsigned long number = 0;
    pthread_mutex_lock(&counting);
    for (int i = 0; i < NAMES_MOST; i++) {
        if (!counts[i].name) {
            counts[i].name = name;
        }
        if (!strcmp(counts[i].name, name)) {
            number = ++counts[i].calls;
            break;
        }
    }
    pthread_mutex_unlock(&counting);
    size_t length = strlen(name);
    for (; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        int sign = !strncmp(at, "kill-", 5) ? SIGKILL : !strncmp(at, "stop-", 5) ? SIGSTOP : 0;
        char *end = (char *)(uintptr_t)(at += sign ? 5 : 0) + length;
        bool is_asked = !strncmp(at, name, length) && (*end != ':' || strtoul(end + 1, &end, 10) == number);
        if (!is_asked || !strchr("@,", *end) || (*end == '@' && atoi(end + 1) != rank)) {
            continue;
        }
        if (!sign) {
            return true;
        }
        raise(sign);
    }
    return false;
}

static void pause_on_command(void) {
    const char *text = getenv("CAMBIUM_NCCL_PAUSE");
    if (text) {
        nanosleep(&(const struct timespec){.tv_nsec = 1000000 * atol(text)}, NULL);
    }
}

/* ---- sums ---- */

static float from_bf16(uint16_t bits) {
    uint32_t whole = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &whole, sizeof value);
    return value;
}

static uint16_t to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (isnan(value)) {
        return (uint16_t)(bits >> 16 | 0x40);
    }
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void add(void *to, const void *from, uint64_t count, uint32_t type) {
    for (uint64_t i = 0; i < count; i++) {
        switch (type) {
        case NCCL_FLOAT32:
            ((float *)to)[i] += ((const float *)from)[i];
            break;
        case NCCL_FLOAT64:
            ((double *)to)[i] += ((const double *)from)[i];
            break;
        case NCCL_INT64:
            ((int64_t *)to)[i] += ((const int64_t *)from)[i];
            break;
        default:
            ((uint16_t *)to)[i] = to_bf16(from_bf16(((uint16_t *)to)[i]) + from_bf16(((const uint16_t *)from)[i]));
        }
    }
}

/* ---- work of a stream ---- */

enum progress { NEW, POSTED, DONE };

struct part {
    struct board_call call;
    uint64_t send, receive; /* addresses on the GPU */
    uint64_t number;
    enum progress progress;
    struct board_post *post;
};

/* The calls of one group of NCCL's in one communicator, on one stream. */
struct meet {
    struct ncclComm *comm;
    uint64_t turn;
    bool never; /* on command */
    int count;
    struct part parts[];
};

static uint64_t send_bytes(const struct ncclComm *comm, const struct board_call *call) {
    uint64_t bytes = call->count * board_type_bytes(call->type);
    bool reads = call->kind == BOARD_BROADCAST ? call->peer == comm->rank : call->kind != BOARD_RECEIVE;
    return !reads ? 0 : call->kind == BOARD_REDUCE_SCATTER ? bytes * (uint64_t)comm->size : bytes;
}

static char *data_of(const struct ncclComm *comm, int rank, const struct board_post *post) {
    return board_data(comm->board, comm->board->groups[comm->group].rank[rank], post);
}

static struct board_post *find(const struct ncclComm *comm, int rank, uint64_t number, int peer) {
    return board_find(comm->board, comm->group, comm->board->groups[comm->group].rank[rank], number, peer);
}

/* The rank comes to the call. False where its part of the board is full. */
static bool arrive(struct ncclComm *comm, struct machine *machine, struct part *part) {
    uint64_t bytes = send_bytes(comm, &part->call);
    struct board_post *post = board_post(comm->board, comm->world_rank, bytes);
    if (!post) {
        return false;
    }
    post->group = comm->group;
    post->number = part->number;
    post->call = part->call;
    post->readers = part->call.kind == BOARD_SEND ? 1 : comm->size;
    memory_read(machine, data_of(comm, comm->rank, post), part->send, bytes);
    part->post = post;
    part->progress = POSTED;
    comm->board->progress++;
    return true;
}

/* The numbers that a rank sends must stay as they are until the call has run. */
static void check_unchanged(struct ncclComm *comm, struct machine *machine, const struct part *part) {
    uint64_t bytes = part->post->bytes;
    char text[BOARD_TEXT], *now = malloc(bytes + 1);
    if (!now || memory_read(machine, now, part->send, bytes)) {
        free(now);
        return;
    }
    if (memcmp(now, data_of(comm, comm->rank, part->post), bytes)) {
        board_describe(&part->call, text);
        board_end("rank %d: the numbers of its %s changed while it was under way", comm->world_rank, text);
    }
    free(now);
}

static void check_same(const struct ncclComm *comm, const struct part *part, int rank, const struct board_post *post) {
    const struct board_call *a = &part->call, *b = &post->call;
    if (a->kind == b->kind && a->type == b->type && a->op == b->op && a->peer == b->peer && a->count == b->count) {
        return;
    }
    char mine[BOARD_TEXT], theirs[BOARD_TEXT];
    board_describe(a, mine);
    board_describe(b, theirs);
    board_end("different calls in communicator %d, call %llu: rank %d %s, rank %d %s", comm->group,
              (unsigned long long)part->number, comm->world_rank, mine, comm->board->groups[comm->group].rank[rank],
              theirs);
}

static uint64_t seed(void) {
    const char *text = getenv("CAMBIUM_CUDA_SEED");
    return text ? strtoull(text, NULL, 10) : 1;
}

/* The sum over ranks of what lies `offset` bytes into their data. */
static void sum(struct ncclComm *comm, struct machine *machine, const struct part *part, uint64_t offset) {
    uint64_t bytes = part->call.count * board_type_bytes(part->call.type);
    int first = (int)((seed() + part->number) % (uint64_t)comm->size);
    char *total = malloc(bytes + 1);
    if (!total) {
        board_end("out of memory");
    }
    for (int i = 0; i < comm->size; i++) {
        int rank = (first + i) % comm->size;
        const char *from = data_of(comm, rank, find(comm, rank, part->number, -1)) + offset;
        if (i) {
            add(total, from, part->call.count, part->call.type);
        } else {
            memcpy(total, from, bytes);
        }
    }
    memory_write(machine, part->receive, total, bytes);
    free(total);
}

static void run_collective(struct ncclComm *comm, struct machine *machine, const struct part *part) {
    uint64_t bytes = part->call.count * board_type_bytes(part->call.type);
    switch (part->call.kind) {
    case BOARD_ALL_REDUCE:
        sum(comm, machine, part, 0);
        break;
    case BOARD_REDUCE_SCATTER:
        sum(comm, machine, part, bytes * (uint64_t)comm->rank);
        break;
    case BOARD_BROADCAST:
        memory_write(machine, part->receive,
                     data_of(comm, part->call.peer, find(comm, part->call.peer, part->number, -1)), bytes);
        break;
    default:
        for (int r = 0; r < comm->size; r++) {
            memory_write(machine, part->receive + bytes * (uint64_t)r,
                         data_of(comm, r, find(comm, r, part->number, -1)), bytes);
        }
    }
}

static bool meet_all(struct ncclComm *comm, struct machine *machine, struct part *part) {
    struct board_post *posts[BOARD_RANKS];
    for (int r = 0; r < comm->size; r++) {
        posts[r] = find(comm, r, part->number, -1);
        if (!posts[r]) {
            return false;
        }
    }
    for (int r = 0; r < comm->size; r++) {
        check_same(comm, part, r, posts[r]);
    }
    check_unchanged(comm, machine, part);
    run_collective(comm, machine, part);
    for (int r = 0; r < comm->size; r++) {
        posts[r]->is_live = --posts[r]->readers > 0;
    }
    return true;
}

static bool meet_sender(struct ncclComm *comm, struct machine *machine, struct part *part) {
    struct board_post *post = find(comm, part->call.peer, part->number, comm->rank);
    if (!post || !post->readers) {
        return false;
    }
    if (post->call.count != part->call.count || post->call.type != part->call.type) {
        char mine[BOARD_TEXT], theirs[BOARD_TEXT];
        board_describe(&part->call, mine);
        board_describe(&post->call, theirs);
        board_end("different messages in communicator %d: rank %d %s, rank %d %s", comm->group, comm->rank, mine,
                  part->call.peer, theirs);
    }
    memory_write(machine, part->receive, data_of(comm, part->call.peer, post), post->bytes);
    post->readers = 0;
    return true;
}

static bool meet_receiver(struct ncclComm *comm, struct machine *machine, struct part *part) {
    if (part->post->readers) {
        return false;
    }
    check_unchanged(comm, machine, part);
    part->post->is_live = false;
    return true;
}

static bool advance(struct ncclComm *comm, struct machine *machine, struct part *part) {
    bool is_receive = part->call.kind == BOARD_RECEIVE;
    if (part->progress == DONE || (part->progress == NEW && !is_receive && !arrive(comm, machine, part))) {
        return part->progress == DONE;
    }
    bool is_done = is_receive                      ? meet_sender(comm, machine, part)
                   : part->call.kind == BOARD_SEND ? meet_receiver(comm, machine, part)
                                                   : meet_all(comm, machine, part);
    if (is_done) {
        part->progress = DONE;
        comm->board->progress++;
    }
    return is_done;
}

static bool attend(struct machine *machine, void *context) {
    struct meet *meet = context;
    struct ncclComm *comm = meet->comm;
    bool is_done = true;
    if (atomic_load(&comm->is_aborted)) {
        release(comm);
        return true;
    }
    board_lock(comm->board);
    if (meet->never || comm->ended != meet->turn) {
        is_done = false;
    } else {
        for (int i = 0; i < meet->count; i++) {
            is_done &= advance(comm, machine, &meet->parts[i]);
        }
        comm->ended += is_done;
    }
    board_unlock(comm->board);
    if (is_done) {
        release(comm);
    }
    return is_done;
}

/* The ranks that have not come to calls of a stream, a bit each. Calls whose turn has not come wait for this rank. */
static uint32_t find_missing(const struct meet *meet) {
    const struct ncclComm *comm = meet->comm;
    const int *world = comm->board->groups[comm->group].rank;
    uint32_t missing = comm->ended != meet->turn ? UINT32_C(1) << comm->world_rank : 0;
    for (int i = 0; i < meet->count && comm->ended == meet->turn; i++) {
        const struct part *part = &meet->parts[i];
        bool is_message = part->call.kind >= BOARD_SEND;
        for (int r = 0; r < comm->size && part->progress != DONE; r++) {
            bool is_missing = is_message ? r == part->call.peer : !find(comm, r, part->number, -1);
            missing |= is_missing ? UINT32_C(1) << world[r] : 0;
        }
    }
    return missing;
}

static void stand(void *context, bool is_first, bool is_last) {
    const struct meet *meet = context;
    struct ncclComm *comm = meet->comm;
    struct board_rank *own = &comm->board->ranks[comm->world_rank];
    const struct part *part = meet->parts;
    while (part->progress == DONE && part + 1 < meet->parts + meet->count) {
        part++;
    }
    board_lock(comm->board);
    own->wait_count = is_first ? 0 : own->wait_count;
    own->stands = own->stands && !is_first;
    if (own->wait_count == BOARD_WAITS) {
        board_end("there are more streams than it has room for");
    }
    struct board_wait *wait = &own->waits[own->wait_count++];
    char call[BOARD_TEXT];
    board_describe(&part->call, call);
    wait->ranks = meet->never ? 0 : find_missing(meet);
    snprintf(wait->call, sizeof wait->call, "%.120s in communicator %d", call, comm->group);
    if (is_last) {
        board_stand(comm->board, comm->world_rank);
    }
    board_unlock(comm->board);
}

/* ---- groups of calls ---- */

struct pending {
    struct ncclComm *comm;
    void *stream;
    struct part part;
};

static _Thread_local struct {
    int depth, count;
    struct pending calls[CALLS_MOST];
} group;

/* The bytes that a rank sends in a call, if no rank sends more than it must. */
static uint64_t least_bytes(const struct ncclComm *comm, const struct board_call *call) {
    uint64_t bytes = call->count * board_type_bytes(call->type), others = (uint64_t)comm->size - 1;
    switch (call->kind) {
    case BOARD_ALL_REDUCE:
        return 2 * bytes * others / (uint64_t)comm->size;
    case BOARD_REDUCE_SCATTER:
    case BOARD_ALL_GATHER:
        return bytes * others;
    case BOARD_BROADCAST:
        return call->peer == comm->rank ? bytes * others : 0;
    default:
        return call->kind == BOARD_SEND ? bytes : 0;
    }
}

/* The rank issues the calls, which take the next numbers of their communicator. */
static void enter(struct meet *meet) {
    struct ncclComm *comm = meet->comm;
    for (int i = 0; i < meet->count; i++) {
        struct part *part = &meet->parts[i];
        uint64_t *number = part->call.kind == BOARD_SEND      ? &comm->sent[part->call.peer]
                           : part->call.kind == BOARD_RECEIVE ? &comm->received[part->call.peer]
                                                              : &comm->collectives;
        part->number = (*number)++;
        atomic_fetch_add(&sent_bytes, least_bytes(comm, &part->call));
    }
    atomic_fetch_add(&launches, 1);
    meet->turn = comm->issued++;
    meet->never = fails("async", comm->world_rank);
    if (meet->never) {
        comm->error = NCCL_REMOTE_ERROR;
    }
    board_lock(comm->board);
    comm->board->progress++;
    board_unlock(comm->board);
}

/* A graph with calls is launched: they are issued anew. */
static void *again(const void *context) {
    const struct meet *captured = context;
    size_t bytes = sizeof *captured + (size_t)captured->count * sizeof *captured->parts;
    struct meet *meet = malloc(bytes);
    if (meet) {
        memcpy(meet, captured, bytes);
        atomic_fetch_add(&meet->comm->references, 1);
        enter(meet);
    }
    return meet;
}

static void drop(void *context) {
    struct meet *captured = context;
    release(captured->comm);
    free(captured);
}

/* Queues the pending calls of the first one's communicator and stream, and forgets them. */
static unsigned queue_first(void) {
    struct ncclComm *comm = group.calls[0].comm;
    void *stream = group.calls[0].stream;
    struct meet *meet = calloc(1, sizeof *meet + (size_t)group.count * sizeof *meet->parts);
    int kept = 0;
    if (!meet) {
        board_end("out of memory");
    }
    meet->comm = comm;
    for (int i = 0; i < group.count; i++) {
        if (group.calls[i].comm == comm && group.calls[i].stream == stream) {
            meet->parts[meet->count++] = group.calls[i].part;
        } else {
            group.calls[kept++] = group.calls[i];
        }
    }
    group.count = kept;
    atomic_fetch_add(&comm->references, 1);
    if (!cuda_stand_in_captures(stream)) {
        enter(meet);
    }
    const struct meeting meeting = {.attend = attend, .stand = stand, .again = again, .drop = drop};
    return cuda_stand_in_meet(stream, &meeting, meet) ? NCCL_SYSTEM_ERROR : NCCL_SUCCESS;
}

API unsigned ncclGroupStart(void) {
    group.depth++;
    return fails("ncclGroupStart", -1) ? NCCL_SYSTEM_ERROR : NCCL_SUCCESS;
}

API unsigned ncclGroupEnd(void) {
    unsigned result = fails("ncclGroupEnd", -1) ? NCCL_SYSTEM_ERROR : NCCL_SUCCESS;
    if (--group.depth > 0) {
        return result;
    }
    while (group.count && !result) {
        result = queue_first();
    }
    group.count = 0;
    return result;
}

static unsigned call(const char *name, struct ncclComm *comm, void *stream, uint64_t send, uint64_t receive,
                     struct board_call asked) {
    bool is_message = asked.kind >= BOARD_SEND;
    const char *other = atomic_exchange(&comm->in_use, name);
    if (other) {
        board_end("rank %d: two threads use communicator %d at once, in %s and %s", comm->world_rank, comm->group,
                  other, name);
    }
    pause_on_command();
    unsigned result = fails(name, comm->world_rank)         ? NCCL_SYSTEM_ERROR
                      : comm->state != READY || comm->error ? NCCL_INVALID_USAGE
                      : !board_type_bytes(asked.type) || asked.op || group.count == CALLS_MOST ||
                              (is_message && (asked.peer < 0 || asked.peer >= comm->size))
                          ? NCCL_INVALID_ARGUMENT
                          : NCCL_SUCCESS;
    if (!result) {
        group.calls[group.count++] =
            (struct pending){.comm = comm, .stream = stream, .part = {.call = asked, .send = send, .receive = receive}};
        result = group.depth ? NCCL_SUCCESS : queue_first();
    }
    atomic_store(&comm->in_use, NULL);
    return result;
}

API unsigned ncclAllReduce(const void *send, void *receive, size_t count, unsigned type, unsigned op,
                           struct ncclComm *comm, struct CUstream_st *stream) {
    return call(__func__, comm, stream, (uintptr_t)send, (uintptr_t)receive,
                (struct board_call){BOARD_ALL_REDUCE, type, op, 0, count});
}

API unsigned ncclReduceScatter(const void *send, void *receive, size_t count, unsigned type, unsigned op,
                               struct ncclComm *comm, struct CUstream_st *stream) {
    return call(__func__, comm, stream, (uintptr_t)send, (uintptr_t)receive,
                (struct board_call){BOARD_REDUCE_SCATTER, type, op, 0, count});
}

API unsigned ncclAllGather(const void *send, void *receive, size_t count, unsigned type, struct ncclComm *comm,
                           struct CUstream_st *stream) {
    return call(__func__, comm, stream, (uintptr_t)send, (uintptr_t)receive,
                (struct board_call){BOARD_ALL_GATHER, type, 0, 0, count});
}

API unsigned ncclBroadcast(const void *send, void *receive, size_t count, unsigned type, int root,
                           struct ncclComm *comm, struct CUstream_st *stream) {
    return call(__func__, comm, stream, (uintptr_t)send, (uintptr_t)receive,
                (struct board_call){BOARD_BROADCAST, type, 0, root, count});
}

API unsigned ncclSend(const void *send, size_t count, unsigned type, int peer, struct ncclComm *comm,
                      struct CUstream_st *stream) {
    return call(__func__, comm, stream, (uintptr_t)send, 0, (struct board_call){BOARD_SEND, type, 0, peer, count});
}

API unsigned ncclRecv(void *receive, size_t count, unsigned type, int peer, struct ncclComm *comm,
                      struct CUstream_st *stream) {
    return call(__func__, comm, stream, 0, (uintptr_t)receive,
                (struct board_call){BOARD_RECEIVE, type, 0, peer, count});
}

/* ---- making and ending communicators ---- */

API unsigned ncclGetVersion(int *version) {
    const char *text = getenv("CAMBIUM_NCCL_VERSION");
    *version = text ? atoi(text) : 22809;
    return NCCL_SUCCESS;
}

API const char *ncclGetErrorString(unsigned result) {
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "in progress"};
    return result < sizeof texts / sizeof *texts ? texts[result] : "unknown result code";
}

API const char *ncclGetLastError(struct ncclComm *comm) {
    return comm && comm->error == NCCL_INVALID_USAGE ? "Duplicate GPU detected" : "";
}

API unsigned ncclGetUniqueId(struct nccl_id *id) {
    return fails(__func__, 0) || board_make(id->bytes) ? NCCL_SYSTEM_ERROR : NCCL_SUCCESS;
}

/* Any number of ranks may ask again and again; the state changes when all ranks have come. */
static void join(struct ncclComm *comm) {
    struct board *board = comm->board;
    for (int r = 0; r < board->groups[0].size; r++) {
        if (!board->ranks[r].has_joined) {
            return;
        }
    }
    for (int r = 0; r < board->groups[0].size; r++) {
        if (r != comm->world_rank && !strcmp(board->ranks[r].card, board->ranks[comm->world_rank].card)) {
            comm->error = NCCL_INVALID_USAGE;
        }
    }
    find_place(comm);
    comm->state = READY;
}

static void split(struct ncclComm *comm) {
    struct board_split *split = board_split(comm->board, comm->group, comm->splits - 1);
    if (split->posted < comm->size) {
        return;
    }
    if (split->posted == comm->size) {
        board_make_groups(comm->board, split);
        split->posted++; /* made */
    }
    *comm->part = NULL;
    if (split->made[comm->rank] >= 0) {
        *comm->part = make(comm->board, comm->users, split->made[comm->rank], comm->world_rank);
        find_place(*comm->part);
    }
    comm->state = READY;
}

static unsigned look(struct ncclComm *comm) {
    board_lock(comm->board);
    if (comm->state == JOINING) {
        join(comm);
    } else if (comm->state == SPLITTING) {
        split(comm);
    } else if (comm->state == FINALIZING && comm->ended == comm->issued) {
        comm->state = READY;
    }
    board_unlock(comm->board);
    return comm->error ? comm->error : comm->state == READY ? NCCL_SUCCESS : NCCL_IN_PROGRESS;
}

/* Waits for a communicator that blocks. */
static unsigned block(struct ncclComm *comm, const struct nccl_config *config) {
    unsigned result = look(comm);
    while (result == NCCL_IN_PROGRESS && (!config || config->blocking)) {
        nanosleep(&(const struct timespec){.tv_nsec = 100000}, NULL);
        result = look(comm);
    }
    return result;
}

API unsigned ncclCommInitRankConfig(struct ncclComm **out, int ranks, struct nccl_id id, int rank,
                                    struct nccl_config *config) {
    atomic_int *users = calloc(1, sizeof *users);
    int device = 0;
    struct board *board = board_open(id.bytes);
    *out = NULL;
    if (fails(__func__, rank) || !users || !board || ranks > BOARD_RANKS || cuCtxGetDevice(&device)) {
        if (board) {
            board_close(board);
        }
        free((void *)users);
        return NCCL_SYSTEM_ERROR;
    }
    board_lock(board);
    board->groups[0].size = ranks;
    for (int r = 0; r < ranks; r++) {
        board->groups[0].rank[r] = r;
    }
    cuDeviceGetPCIBusId(board->ranks[rank].card, sizeof board->ranks[rank].card, device);
    board->ranks[rank].has_joined = true;
    board_unlock(board);
    *out = make(board, users, 0, rank);
    (*out)->state = JOINING;
    return block(*out, config);
}

API unsigned ncclCommSplit(struct ncclComm *comm, int color, int key, struct ncclComm **part,
                           struct nccl_config *config) {
    *part = NULL;
    if (fails(__func__, comm->world_rank) || comm->state != READY || comm->issued != comm->ended) {
        return NCCL_INVALID_USAGE;
    }
    board_lock(comm->board);
    struct board_split *split = board_split(comm->board, comm->group, comm->splits++);
    split->color[comm->rank] = color;
    split->key[comm->rank] = key;
    split->has_posted[comm->rank] = true;
    split->posted++;
    board_unlock(comm->board);
    comm->part = part;
    comm->state = SPLITTING;
    atomic_store(&most_blocks, config->max_blocks);
    return block(comm, config);
}

API unsigned ncclCommGetAsyncError(struct ncclComm *comm, unsigned *result) {
    *result = look(comm);
    return fails(__func__, comm->world_rank) ? NCCL_INTERNAL_ERROR : NCCL_SUCCESS;
}

API unsigned ncclCommFinalize(struct ncclComm *comm) {
    if (fails(__func__, comm->world_rank)) {
        return NCCL_SYSTEM_ERROR;
    }
    comm->state = FINALIZING;
    return look(comm);
}

API unsigned ncclCommDestroy(struct ncclComm *comm) {
    bool is_failing = fails(__func__, comm->world_rank);
    release(comm);
    return is_failing ? NCCL_SYSTEM_ERROR : NCCL_SUCCESS;
}

API unsigned ncclCommAbort(struct ncclComm *comm) {
    atomic_store(&comm->is_aborted, true);
    board_lock(comm->board);
    comm->board->progress++;
    board_unlock(comm->board);
    release(comm);
    return NCCL_SUCCESS;
}

/* One line for each function that was called, and three for what it came to. */
__attribute__((destructor)) static void report(void) {
    const char *path = getenv("CAMBIUM_NCCL_REPORT");
    FILE *file = path && counts[0].name ? fopen(path, "a") : NULL;
    for (int i = 0; file && i < NAMES_MOST && counts[i].name; i++) {
        fprintf(file, "{\"name\": \"%s\", \"calls\": %lu}\n", counts[i].name, counts[i].calls);
    }
    if (file) {
        fprintf(file, "{\"name\": \"launches\", \"calls\": %lu}\n{\"name\": \"bytes\", \"calls\": %lu}\n", launches,
                sent_bytes);
        fprintf(file, "{\"name\": \"communicators\", \"calls\": %lu}\n", communicators);
        fprintf(file, "{\"name\": \"most blocks\", \"calls\": %d}\n", most_blocks);
        fclose(file);
    }
}
