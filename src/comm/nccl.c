/* The device channel over NCCL. Each group has a communicator, which ncclCommSplit makes of its parent's.
 *
 * Calls that nobody has started ahead run on the caller's stream. Started ones run on a stream of the group, between
 * two events: one of the caller's work before the call, and one that comm_wait makes a stream wait for. NCCL promises
 * no progress of one message before another on a stream. So started messages are held back until someone waits for one
 * of them or calls comm_post, and then go in one group of NCCL's.
 *
 * Communicators do not block: a call that is not finished yet is asked about until it is. Ranks that are threads share
 * a struct nccl_process, so that one that fails can abort the communicators of the others. Its guard is a thread that
 * looks for errors of calls that run, because the ranks only wait for their streams. */
#include "comm-internal.h"
#include "kernels/handle.h"
#include "nccl-internal.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

/* The ranks of a process share this. */
struct nccl_process {
    struct nccl_library library;
    int most_blocks;      /* 0: the library decides */
    pthread_mutex_t lock; /* guards the members after it */
    int references;       /* channels */
    struct channel *channels;
    atomic_bool is_aborted; /* read without the lock, too */
    pthread_t guard;
    bool has_guard, is_ending;
    pthread_cond_t end; /* of the guard */
};

/* An event of the group's stream, for the calls that it ends. */
struct mark {
    struct event *event;
    int requests;    /* that have not been waited for */
    uint64_t number; /* marks of a group's stream are reached in this order */
    struct mark *next;
};

/* The state of a group. */
struct channel {
    struct nccl_process *process;
    struct channel *next; /* of the process */
    struct device *device;
    struct stream *stream; /* of started calls */
    struct event *turn;    /* orders the group's stream and a caller's */
    bool is_ahead;         /* the group's stream has calls that no later call's stream waits for */
    uint64_t marks;        /* so far */
    uint64_t seen_mark;    /* the last one that seen_by waits for */
    const struct stream *seen_by;
    struct mark *unused;
    struct comm_request *held, **last_held; /* started messages */
    char *room; /* device memory for the numbers of all ranks, of which a maximum is taken */
    size_t room_bytes;
    pthread_mutex_t lock;    /* guards the members after it */
    struct ncclComm *handle; /* NULL: aborted, or not made */
    struct comm *comm;       /* the group */
    char last_call[COMM_TEXT_BYTES];
    int looks; /* of the guard that saw an error */
};

enum { FAILURE_BYTES = 512 };

static struct channel *channel_of(const struct comm *comm) {
    return comm->device_state;
}

/* ---- results ---- */

/* Writes "all-reduce ... over NCCL failed: NCCL's message". Those that report it name the rank. */
static void describe_failure(const struct channel *channel, unsigned result, const char *what,
                             char text[FAILURE_BYTES]) {
    const struct nccl_library *library = &channel->process->library;
    const char *last = library->last_error(channel->handle);
    snprintf(text, FAILURE_BYTES, "%s over NCCL failed: %s (%u)%s%s", what, library->error_text(result), result,
             last && *last ? ": " : "", last ? last : "");
}

/* Calls of an aborted communicator end, and leave the memory as it was. */
static int check(struct comm *comm) {
    if (!channel_of(comm)->process->is_aborted)
        return STATUS_OK;
    comm_barrier(comm); /* fails with the text of the rank that failed first */
    return STATUS_PEER;
}

static int fail(struct comm *comm, unsigned result, const char *what) {
    struct channel *channel = channel_of(comm);
    TRY(check(comm));
    char text[FAILURE_BYTES];
    describe_failure(channel, result, what, text);
    return status_fail(STATUS_IO, "%s", text);
}

/* Asks until a call of the communicator has ended. */
static unsigned settle(struct channel *channel, unsigned result) {
    while (result == NCCL_IN_PROGRESS) {
        nanosleep(&(const struct timespec){.tv_nsec = 20000}, NULL);
        pthread_mutex_lock(&channel->lock);
        unsigned asked =
            channel->handle ? channel->process->library.async_error(channel->handle, &result) : NCCL_REMOTE_ERROR;
        result = asked ? asked : result;
        pthread_mutex_unlock(&channel->lock);
    }
    return result;
}

/* ---- streams ---- */

/* Makes `later` run after what is on `earlier` now. */
static int follow(struct channel *channel, struct stream *later, struct stream *earlier) {
    int status = event_record(channel->turn, earlier);
    return status ? status : stream_wait_event(later, channel->turn);
}

static int take_mark(struct channel *channel, struct mark **out) {
    *out = channel->unused;
    if (*out) {
        channel->unused = (*out)->next;
        return STATUS_OK;
    }
    struct mark *mark = calloc(1, sizeof *mark);
    TRY(status_allocated(mark));
    int status = event_open(channel->device, &mark->event);
    if (status)
        free(mark);
    else
        *out = mark;
    return status;
}

static void give_mark(struct channel *channel, struct comm_request *request) {
    struct mark *mark = request->kept;
    request->kept = NULL;
    if (--mark->requests > 0)
        return;
    mark->next = channel->unused;
    channel->unused = mark;
}

/* ---- calls ---- */

static unsigned type_of(enum dtype dtype) {
    switch (dtype) {
    case DTYPE_F32:
        return NCCL_FLOAT32;
    case DTYPE_BF16:
        return NCCL_BFLOAT16;
    case DTYPE_F64:
        return NCCL_FLOAT64;
    default:
        return NCCL_INT64;
    }
}

static bool is_maximum(const struct comm_call *call) {
    return call->kind == COMM_ALL_REDUCE && call->op == COMM_MAX;
}

/* Sums have types; all else moves bytes. The numbers of a maximum are gathered. */
static unsigned issue(const struct channel *channel, const struct comm_call *call, struct CUstream_st *stream) {
    const struct nccl_library *nccl = &channel->process->library;
    struct ncclComm *handle = channel->handle;
    const struct comm_data *data = &call->data;
    size_t count = (size_t)data->count, bytes = comm_call_bytes(call);
    if (is_maximum(call))
        return nccl->all_gather(data->send, channel->room, bytes, NCCL_UINT8, handle, stream);
    switch (call->kind) {
    case COMM_ALL_REDUCE:
        return nccl->all_reduce(data->send, data->receive, count, type_of(data->dtype), NCCL_SUM, handle, stream);
    case COMM_REDUCE_SCATTER:
        return nccl->reduce_scatter(data->send, data->receive, count, type_of(data->dtype), NCCL_SUM, handle, stream);
    case COMM_ALL_GATHER:
        return nccl->all_gather(data->send, data->receive, bytes, NCCL_UINT8, handle, stream);
    case COMM_BROADCAST:
        return nccl->broadcast(data->send ? data->send : data->receive, data->receive, bytes, NCCL_UINT8, call->peer,
                               handle, stream);
    case COMM_SEND:
        return nccl->send(data->send, bytes, NCCL_UINT8, call->peer, handle, stream);
    case COMM_RECEIVE:
        return nccl->receive(data->receive, bytes, NCCL_UINT8, call->peer, handle, stream);
    default:
        return NCCL_INVALID_ARGUMENT;
    }
}

/* Issues a list of calls as one group of NCCL's, on one stream. */
static int issue_group(struct comm *comm, const struct comm_request *first, struct stream *stream) {
    struct channel *channel = channel_of(comm);
    const struct nccl_library *nccl = &channel->process->library;
    void *handle;
    TRY(comm_check_calls(comm, first));
    TRY(stream_handle(stream, &handle));
    pthread_mutex_lock(&channel->lock);
    comm_describe(&first->call, channel->last_call);
    unsigned result = channel->handle ? nccl->group_start() : NCCL_REMOTE_ERROR;
    if (!result) {
        for (const struct comm_request *at = first; at && !result; at = at->next) {
            result = issue(channel, &at->call, handle);
            result = result == NCCL_IN_PROGRESS ? NCCL_SUCCESS : result;
        }
        unsigned ended = nccl->group_end();
        result = result ? result : ended;
    }
    pthread_mutex_unlock(&channel->lock);
    result = settle(channel, result);
    return result ? fail(comm, result, channel->last_call) : STATUS_OK;
}

/* Issues a list of calls on the group's stream, and marks their end. */
static int issue_ahead(struct comm *comm, struct comm_request *first) {
    struct channel *channel = channel_of(comm);
    struct mark *mark;
    TRY(take_mark(channel, &mark));
    int status = issue_group(comm, first, channel->stream);
    THEN(status, event_record(mark->event, channel->stream));
    if (status) { /* the run is over, and no one will wait for the calls */
        mark->next = channel->unused;
        channel->unused = mark;
        return status;
    }
    channel->is_ahead = true;
    mark->requests = 0;
    mark->number = ++channel->marks;
    for (struct comm_request *at = first, *next; at; at = next) {
        next = at->next;
        at->next = NULL;
        at->kept = mark;
        mark->requests++;
    }
    return STATUS_OK;
}

/* ---- the table ---- */

static int post(struct comm *comm) {
    struct channel *channel = channel_of(comm);
    struct comm_request *first = channel->held;
    channel->held = NULL;
    channel->last_held = &channel->held;
    return first ? issue_ahead(comm, first) : STATUS_OK;
}

/* On the caller's stream, after what the group's stream has. */
static int run_at_once(struct comm *comm, const struct comm_request *request) {
    struct channel *channel = channel_of(comm);
    struct stream *stream = request->call.data.stream;
    int status = post(comm);
    bool is_seen = stream == channel->seen_by && channel->seen_mark == channel->marks;
    THEN(status, channel->is_ahead && !is_seen ? follow(channel, stream, channel->stream) : STATUS_OK);
    channel->is_ahead = false;
    return status ? status : issue_group(comm, request, stream);
}

/* ---- maxima: NCCL's of a NaN and a number is the number. The maximum of a reduction keeps the NaN, so all ranks'
 * numbers are gathered, and each rank reduces them. Both run on the group's stream, which orders the uses of the room.
 * ---- */

static int make_room(struct channel *channel, size_t bytes) {
    if (bytes <= channel->room_bytes)
        return STATUS_OK;
    TRY(channel->room ? stream_wait(channel->stream) : STATUS_OK);
    device_free(channel->device, channel->room);
    channel->room = NULL;
    channel->room_bytes = 0;
    void *memory;
    int status = device_alloc_zeroed(channel->device, bytes, &memory); /* reduced after an abort, too */
    TRY(status);
    channel->room = memory;
    channel->room_bytes = bytes;
    return STATUS_OK;
}

/* Reduces the gathered numbers of `ranks`, as many as a reduction takes at a time. */
static int reduce_room(const struct channel *channel, const struct comm_call *call, int ranks) {
    struct reduce_call reduction = {
        .to = {call->data.receive}, .targets = 1, .count = call->data.count, .dtype = call->data.dtype, .is_max = true};
    int status = STATUS_OK;
    for (int r = 0; r < ranks && !status;) {
        reduction.sources = 0;
        if (r > 0)
            reduction.from[reduction.sources++] = call->data.receive;
        while (r < ranks && reduction.sources < REDUCE_MOST)
            reduction.from[reduction.sources++] = channel->room + comm_call_bytes(call) * (size_t)r++;
        status = stream_reduce(channel->stream, &reduction);
    }
    return status;
}

static int maximum(struct comm *comm, const struct comm_request *request) {
    struct channel *channel = channel_of(comm);
    const struct comm_call *call = &request->call;
    int status = make_room(channel, comm_call_bytes(call) * (size_t)comm->size);
    THEN(status, post(comm));
    THEN(status, follow(channel, channel->stream, call->data.stream));
    THEN(status, issue_group(comm, request, channel->stream));
    THEN(status, reduce_room(channel, call, comm->size));
    channel->is_ahead = false;
    return status ? status : follow(channel, call->data.stream, channel->stream);
}

static int nccl_start(struct comm *comm, struct comm_request *request) {
    struct channel *channel = channel_of(comm);
    const struct comm_call *call = &request->call;
    bool is_message = call->kind == COMM_SEND || call->kind == COMM_RECEIVE;
    if (call->data.count == 0)
        return STATUS_OK;
    if (is_maximum(call))
        return maximum(comm, request);
    if (request->is_waited_for && !is_message)
        return run_at_once(comm, request);
    int status = follow(channel, channel->stream, call->data.stream);
    if (!status && is_message) {
        *channel->last_held = request;
        channel->last_held = &request->next;
        return STATUS_OK;
    }
    THEN(status, post(comm));
    return status ? status : issue_ahead(comm, request);
}

static int nccl_wait(struct comm *comm, struct comm_request *request, struct stream *stream) {
    struct channel *channel = channel_of(comm);
    bool is_message = request->call.kind == COMM_SEND || request->call.kind == COMM_RECEIVE;
    int status = is_message && !request->kept ? post(comm) : STATUS_OK;
    const struct mark *mark = request->kept;
    if (!mark) /* it ran on the caller's stream, or has no elements */
        return status || stream == request->call.data.stream ? status
                                                             : follow(channel, stream, request->call.data.stream);
    bool is_seen = stream == channel->seen_by && mark->number <= channel->seen_mark;
    if (!status && !is_seen) {
        status = stream_wait_event(stream, mark->event);
        channel->seen_by = stream;
        channel->seen_mark = mark->number;
    }
    give_mark(channel, request);
    return status;
}

static void nccl_forget(struct comm_request *request) {
    give_mark(channel_of(request->comm), request);
}

/* ---- aborts ---- */

/* Under the process's lock. */
static void abort_all(struct nccl_process *process) {
    process->is_aborted = true;
    for (struct channel *channel = process->channels; channel; channel = channel->next) {
        pthread_mutex_lock(&channel->lock);
        if (channel->handle)
            process->library.abort(channel->handle);
        channel->handle = NULL;
        pthread_mutex_unlock(&channel->lock);
    }
}

/* True if a call of the channel failed while it ran, and its rank has not noticed since the look before. */
static bool has_failed(struct channel *channel, char text[FAILURE_BYTES]) {
    unsigned result = NCCL_SUCCESS;
    pthread_mutex_lock(&channel->lock);
    if (channel->handle && channel->process->library.async_error(channel->handle, &result))
        result = NCCL_INTERNAL_ERROR;
    bool has_error = result != NCCL_SUCCESS && result != NCCL_IN_PROGRESS;
    channel->looks = has_error ? channel->looks + 1 : 0;
    if (has_error)
        describe_failure(channel, result, channel->last_call, text);
    pthread_mutex_unlock(&channel->lock);
    return channel->looks > 1;
}

static void *guard(void *context) {
    struct nccl_process *process = context;
    char text[FAILURE_BYTES];
    pthread_mutex_lock(&process->lock);
    while (!process->is_ending) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 200000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&process->end, &process->lock, &until);
        for (struct channel *channel = process->channels; channel && !process->is_aborted; channel = channel->next)
            if (has_failed(channel, text)) {
                channel->comm->host->abort(channel->comm, text);
                abort_all(process);
            }
    }
    pthread_mutex_unlock(&process->lock);
    return NULL;
}

/* ---- joining and leaving ---- */

static void close_process(struct nccl_process *process) {
    if (process->has_guard) {
        pthread_mutex_lock(&process->lock);
        process->is_ending = true;
        pthread_cond_signal(&process->end);
        pthread_mutex_unlock(&process->lock);
        pthread_join(process->guard, NULL);
    }
    nccl_library_close(&process->library);
    pthread_cond_destroy(&process->end);
    pthread_mutex_destroy(&process->lock);
    free(process);
}

static void release_process(struct nccl_process *process, struct channel *channel) {
    pthread_mutex_lock(&process->lock);
    for (struct channel **at = &process->channels; *at; at = &(*at)->next)
        if (*at == channel) {
            *at = channel->next;
            break;
        }
    bool is_last = --process->references == 0;
    pthread_mutex_unlock(&process->lock);
    if (is_last)
        close_process(process);
}

static void close_channel(struct channel *channel) {
    stream_close(channel->stream);
    device_free(channel->device, channel->room);
    event_close(channel->turn);
    for (struct mark *mark = channel->unused, *next; mark; mark = next) {
        next = mark->next;
        event_close(mark->event);
        free(mark);
    }
    pthread_mutex_destroy(&channel->lock);
    release_process(channel->process, channel);
    free(channel);
}

/* Makes the state without a communicator. It takes a reference of the process. */
static int open_channel(struct nccl_process *process, struct device *device, struct comm *comm, struct channel **out) {
    struct channel *channel = *out = calloc(1, sizeof *channel);
    TRY(status_allocated(channel));
    *channel = (struct channel){.process = process, .device = device, .comm = comm, .last_call = "joining"};
    channel->last_held = &channel->held;
    pthread_mutex_init(&channel->lock, NULL);
    pthread_mutex_lock(&process->lock);
    process->references++;
    channel->next = process->channels;
    process->channels = channel;
    pthread_mutex_unlock(&process->lock);
    int status = stream_open_urgent(device, &channel->stream);
    THEN(status, event_open(device, &channel->turn));
    if (status) {
        close_channel(channel);
        *out = NULL;
    }
    return status;
}

/* Takes a communicator that was just made. An abort of the process meanwhile ends it, too. */
static int take_handle(struct comm *comm, struct ncclComm *handle, unsigned result, const char *what) {
    struct channel *channel = channel_of(comm);
    pthread_mutex_lock(&channel->process->lock);
    pthread_mutex_lock(&channel->lock);
    if (handle && channel->process->is_aborted)
        channel->process->library.abort(handle);
    else
        channel->handle = handle;
    pthread_mutex_unlock(&channel->lock);
    pthread_mutex_unlock(&channel->process->lock);
    if (!result || result == NCCL_IN_PROGRESS)
        result = settle(channel, NCCL_IN_PROGRESS);
    return result ? fail(comm, result, what) : STATUS_OK;
}

static struct nccl_config config_of(const struct nccl_process *process) {
    struct nccl_config config = NCCL_CONFIG_UNBLOCKED;
    if (process->most_blocks)
        config.max_blocks = process->most_blocks;
    return config;
}

/* All ranks of the parent's communicator call ncclCommSplit. Those that are in no group give no color. */
static int nccl_join(struct comm *parent, const int *ranks, struct comm *group) {
    struct channel *above = channel_of(parent);
    const struct nccl_library *nccl = &above->process->library;
    struct nccl_config config = config_of(above->process);
    struct ncclComm *handle = NULL;
    struct channel *channel = NULL;
    int status = group ? open_channel(above->process, above->device, group, &channel) : STATUS_OK;
    void *stream = NULL;
    THEN(status, stream_handle(above->stream, &stream)); /* makes the GPU current */
    TRY(status);
    if (group)
        group->device_state = channel;
    pthread_mutex_lock(&above->lock);
    unsigned result = above->handle ? nccl->split(above->handle, group ? ranks[0] : NCCL_NO_COLOR,
                                                  group ? group->rank : 0, &handle, &config)
                                    : NCCL_REMOTE_ERROR;
    pthread_mutex_unlock(&above->lock);
    result = settle(above, result);
    if (result)
        return fail(parent, result, "making a group");
    return group ? take_handle(group, handle, result, "making a group") : STATUS_OK;
}

/* A communicator with calls under way ends when they have run. */
static void nccl_leave(struct comm *comm) {
    struct channel *channel = channel_of(comm);
    if (!channel)
        return;
    const struct nccl_library *nccl = &channel->process->library;
    void *stream;
    bool is_entered = !stream_handle(channel->stream, &stream);
    pthread_mutex_lock(&channel->lock);
    unsigned result = channel->handle && is_entered ? nccl->finalize(channel->handle) : NCCL_SYSTEM_ERROR;
    pthread_mutex_unlock(&channel->lock);
    result = settle(channel, result);
    pthread_mutex_lock(&channel->lock);
    if (channel->handle && result)
        nccl->abort(channel->handle);
    else if (channel->handle)
        nccl->destroy(channel->handle);
    channel->handle = NULL;
    pthread_mutex_unlock(&channel->lock);
    close_channel(channel);
}

static void nccl_abort(struct comm *comm) {
    struct nccl_process *process = channel_of(comm)->process;
    pthread_mutex_lock(&process->lock);
    abort_all(process);
    pthread_mutex_unlock(&process->lock);
}

static const struct comm_device_channel comm_device_nccl = {.name = "NCCL",
                                                            .is_work = true,
                                                            .start = nccl_start,
                                                            .post = post,
                                                            .wait = nccl_wait,
                                                            .check = check,
                                                            .forget = nccl_forget,
                                                            .join = nccl_join,
                                                            .leave = nccl_leave,
                                                            .abort = nccl_abort};

/* ---- the world ---- */

/* A rank sends this to the others. */
struct introduction {
    int64_t process; /* id; with the pointer only within it */
    struct nccl_process *shared;
    char host[64];
};

static int open_process(int most_blocks, struct nccl_process **out) {
    struct nccl_process *process = *out = calloc(1, sizeof *process);
    TRY(status_allocated(process));
    pthread_mutex_init(&process->lock, NULL);
    pthread_cond_init(&process->end, NULL);
    process->references = 1;
    process->most_blocks = most_blocks;
    return nccl_library_open(&process->library);
}

/* The first rank that gets here starts its process's guard. */
static int start_guard(struct nccl_process *process) {
    pthread_mutex_lock(&process->lock);
    if (!process->has_guard)
        process->has_guard = !pthread_create(&process->guard, NULL, guard, process);
    bool has_guard = process->has_guard;
    pthread_mutex_unlock(&process->lock);
    return has_guard ? STATUS_OK : status_fail(STATUS_MEMORY, "cannot start a thread that looks for errors of NCCL");
}

/* The first rank of a process opens the library; the others of the process take a reference. */
static int find_process(struct comm *world, int most_blocks, struct nccl_process **out) {
    struct introduction mine = {.process = getpid()};
    struct introduction *all = calloc((size_t)world->size, sizeof *all);
    int status = all ? open_process(most_blocks, &mine.shared) : status_no_memory();
    gethostname(mine.host, sizeof mine.host - 1);
    status = comm_agree(world, status);
    struct comm_data data = {.send = &mine, .receive = all, .count = sizeof mine, .dtype = DTYPE_U8};
    THEN(status, comm_all_gather(world, &data));
    *out = mine.shared;
    for (int r = world->size - 1; r >= 0 && !status; r--)
        if (all[r].process == mine.process && !strcmp(all[r].host, mine.host))
            *out = all[r].shared;
    free(all);
    if (!status && *out != mine.shared) {
        pthread_mutex_lock(&(*out)->lock);
        (*out)->references++;
        pthread_mutex_unlock(&(*out)->lock);
    }
    if (mine.shared && (status || *out != mine.shared))
        release_process(mine.shared, NULL);
    return status;
}

static int join_world(struct comm *world) {
    struct channel *channel = channel_of(world);
    const struct nccl_library *nccl = &channel->process->library;
    struct nccl_config config = config_of(channel->process);
    struct ncclComm *handle = NULL;
    struct nccl_id id = {{0}};
    void *stream;
    int status = stream_handle(channel->stream, &stream); /* makes the GPU current */
    unsigned result = !status && world->rank == 0 ? nccl->make_id(&id) : NCCL_SUCCESS;
    if (result)
        status = status_fail(STATUS_IO, "NCCL cannot begin: %s (%u)", nccl->error_text(result), result);
    status = comm_agree(world, status);
    struct comm_data data = {.send = &id, .receive = &id, .count = sizeof id, .dtype = DTYPE_U8};
    THEN(status, comm_broadcast(world, &data, 0));
    TRY(status);
    result = nccl->join(&handle, world->size, id, world->rank, &config);
    status = take_handle(world, handle, result, "joining the ranks");
    return status ? status : comm_barrier(world); /* a rank that failed does not wait for those that wait for it */
}

int comm_nccl_open(struct comm *world, struct device *device, int most_blocks) {
    if (world->size == 1)
        return STATUS_OK;
    struct nccl_process *process = NULL;
    TRY(find_process(world, most_blocks, &process));
    struct channel *channel = NULL;
    int status = comm_agree(world, open_channel(process, device, world, &channel));
    release_process(process, NULL); /* the channel has its own reference */
    if (status) {
        if (channel)
            close_channel(channel);
        return status;
    }
    comm_leave_device_channel(world);
    world->device = &comm_device_nccl;
    world->device_state = channel;
    status = join_world(world);
    THEN(status, comm_agree(world, start_guard(channel->process)));
    if (status) {
        char text[FAILURE_BYTES];
        snprintf(text, sizeof text, "%s", status_text());
        nccl_abort(world);
        comm_leave_device_channel(world);
        return status_fail(status, "%s", text);
    }
    return STATUS_OK;
}
