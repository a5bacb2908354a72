/* Collectives of threads. Each rank publishes its call in the group's entry for it. Once all have, the work is cut into
 * tasks. A rank that waits runs tasks until all are taken: first its own, which write its memory, then the others'. So
 * a late rank finds its part done. The result does not depend on which thread runs a task: one task combines each
 * element, in the order of ranks, and writes it to all its places.
 *
 * A call on memory of a GPU has no tasks: the last rank to start it queues the work (local_card.c).
 *
 * An all-reduce writes its results straight into all ranks' buffers. (Reducing each part in its owner's buffer, from
 * which the others fetch it, had a half to a quarter of the speed at 8 MB between two cores.) */
#include "local-internal.h"

enum { TASK_BYTES = 64 * 1024, TASK_BYTES_MIN = 8 * 1024 };

/* ---- tasks ---- */

/* Returns the bytes that a member's tasks write to its receive buffer. In an all-reduce, they are the member's share of
 * one buffer, which the tasks write to all members. */
static size_t member_bytes(const struct comm_call *call, int size) {
    if (call->kind == COMM_BARRIER)
        return 0;
    return comm_call_bytes(call) * (call->kind == COMM_ALL_GATHER ? (size_t)size : 1);
}

/* Returns the bytes of a task. A short all-reduce is one task, which the last rank runs; a longer one has work for
 * every member. */
static size_t task_bytes(const struct comm_call *call, int size) {
    size_t part = call->kind == COMM_ALL_REDUCE ? comm_call_bytes(call) / (size_t)size : TASK_BYTES;
    return part >= TASK_BYTES ? TASK_BYTES : part <= TASK_BYTES_MIN ? TASK_BYTES_MIN : (part + 63) / 64 * 64;
}

/* Returns the first task of a member. For member `size`, that is the number of tasks. */
static uint32_t first_task(const struct comm_call *call, int size, int member) {
    uint64_t bytes = task_bytes(call, size), tasks = (member_bytes(call, size) + bytes - 1) / bytes;
    uint64_t first = tasks * (uint64_t)member;
    return (uint32_t)(call->kind == COMM_ALL_REDUCE ? first / (uint64_t)size : first);
}

static void reduce_range(const struct local_entry *entry, int size, int member, size_t offset, size_t bytes) {
    const struct comm_call *call = &entry->call[0];
    bool is_all = call->kind == COMM_ALL_REDUCE;
    comm_reduce(&(struct comm_reduction){
        .from = entry->send,
        .sources = size,
        .to = is_all ? entry->receive : entry->receive + member,
        .targets = is_all ? size : 1,
        .from_offset = offset + (is_all ? 0 : comm_call_bytes(call) * (size_t)member),
        .to_offset = offset,
        .count = (int64_t)(bytes / dtype_bytes(call->data.dtype)),
        .dtype = call->data.dtype,
        .op = call->op,
    });
}

/* Copies receive[offset .. offset + bytes) of a member from the others' memory. */
static void copy_range(const struct local_entry *entry, int member, size_t offset, size_t bytes) {
    const struct comm_call *call = &entry->call[0];
    size_t part = comm_call_bytes(call);
    char *to = entry->receive[member];
    while (bytes > 0) {
        bool is_broadcast = call->kind == COMM_BROADCAST;
        size_t source = is_broadcast ? (size_t)call->peer : offset / part;
        size_t within = is_broadcast ? offset : offset % part;
        size_t piece = part - within < bytes ? part - within : bytes;
        const char *from = (const char *)entry->send[source] + within;
        if (from != to + offset)
            memcpy(to + offset, from, piece);
        offset += piece;
        bytes -= piece;
    }
}

static void run_task(const struct local_entry *entry, int size, int member, uint32_t index) {
    const struct comm_call *call = &entry->call[0];
    bool is_all_reduce = call->kind == COMM_ALL_REDUCE;
    if (is_all_reduce)
        index += first_task(call, size, member);
    size_t most = task_bytes(call, size), whole = member_bytes(call, size), offset = (size_t)index * most;
    size_t bytes = whole - offset < most ? whole - offset : most;
    if (is_all_reduce || call->kind == COMM_REDUCE_SCATTER)
        reduce_range(entry, size, member, offset, bytes);
    else
        copy_range(entry, member, offset, bytes);
}

/* Runs the remaining tasks of a member. Returns how many it ran. */
static uint32_t run_share(struct local_comm *comm, struct local_entry *entry, int member) {
    int size = comm->base.size;
    uint32_t tasks = first_task(&entry->call[0], size, member + 1) - first_task(&entry->call[0], size, member);
    _Atomic uint32_t *next = &entry->share[member].next;
    uint32_t ran = 0;
    while (atomic_load_explicit(next, memory_order_relaxed) < tasks && !local_has_failed(comm->group->world)) {
        uint32_t index = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
        if (index >= tasks)
            break;
        run_task(entry, size, member, index);
        ran++;
    }
    return ran;
}

/* ---- meeting ---- */

/* Returns a member that has ended before it started this collective, which can then never be complete; else -1. */
static int find_ended(const struct local_group *group, uint64_t sequence) {
    for (int m = 0; m < group->size; m++)
        if (local_has_ended(group, m) && atomic_load(&group->member[m].sequence) <= sequence)
            return m;
    return -1;
}

static int await_started(struct local_comm *comm, struct local_entry *entry, uint64_t sequence) {
    struct local_group *group = comm->group;
    for (int step = 0;;) {
        uint32_t seen = atomic_load(&entry->started.value);
        if (seen == (uint32_t)group->size)
            return STATUS_OK;
        if (local_has_failed(group->world))
            return local_failure(comm);
        if (!meeting_rest(comm, &entry->started, seen, &step))
            continue;
        int ended = find_ended(group, sequence);
        if (ended < 0)
            continue;
        char text[COMM_TEXT_BYTES];
        comm_describe(&entry->call[comm->base.rank], text);
        return local_fail(comm, STATUS_PEER, "rank %d ended while rank %d waits for it in %s", group->world_rank[ended],
                          comm->base.world_rank, text);
    }
}

static int await(struct local_comm *comm, struct meeting *meeting, uint32_t target) {
    struct local_world *world = comm->group->world;
    for (int step = 0;;) {
        uint32_t seen = atomic_load(&meeting->value);
        if (seen == target)
            return STATUS_OK;
        if (local_has_failed(world))
            return local_failure(comm);
        meeting_rest(comm, meeting, seen, &step);
    }
}

static int check_agreement(struct local_comm *comm, const struct local_entry *entry) {
    const struct local_group *group = comm->group;
    for (int m = 1; m < group->size; m++) {
        bool is_on_card = local_is_on_card(&comm->base, &entry->call[0]);
        if (comm_calls_agree(&entry->call[0], &entry->call[m]) &&
            is_on_card == local_is_on_card(&comm->base, &entry->call[m]))
            continue;
        char first[COMM_TEXT_BYTES], other[COMM_TEXT_BYTES];
        comm_describe(&entry->call[0], first);
        comm_describe(&entry->call[m], other);
        return local_fail(comm, STATUS_INVALID, "ranks of one group call different collectives: rank %d %s, rank %d %s",
                          group->world_rank[0], first, group->world_rank[m], other);
    }
    return STATUS_OK;
}

/* Queues the call of all members on their GPU, if this one is the last to start it. */
static int queue_last(struct local_comm *comm, struct local_entry *entry) {
    bool is_last = atomic_load(&entry->started.value) == (uint32_t)comm->base.size &&
                   atomic_fetch_add(&entry->share[0].next, 1) == 0;
    int status = is_last ? check_agreement(comm, entry) : STATUS_OK;
    if (!is_last || status)
        return status;
    if (!local_busy_begin(comm))
        return local_failure(comm);
    status = local_card_run(comm, entry);
    local_busy_end(comm);
    if (!status)
        meeting_add(&entry->done, 1, 1);
    return status;
}

int local_start(struct comm *base, struct comm_request *request) {
    struct local_comm *comm = (struct local_comm *)base;
    struct local_group *group = comm->group;
    local_give_sign(comm);
    if (local_has_failed(group->world))
        return local_failure(comm);
    if (request->call.kind == COMM_SEND || request->call.kind == COMM_RECEIVE)
        return local_message_start(comm, request);

    uint64_t sequence = comm->sequence;
    size_t place = sequence % COMM_STARTED_MAX;
    struct local_entry *entry = &group->entry[place];
    if (comm->is_started[place])
        return status_fail(STATUS_INVALID, "rank %d has started %d collectives without waiting for them",
                           base->world_rank, COMM_STARTED_MAX);
    TRY(await(comm, &entry->turn, (uint32_t)sequence));
    entry->call[base->rank] = request->call;
    entry->send[base->rank] = request->call.data.send;
    entry->receive[base->rank] = request->call.data.receive;
    request->sequence = sequence;
    comm->is_started[place] = true;
    comm->sequence = sequence + 1;
    atomic_store(&group->member[base->rank].sequence, sequence + 1);
    entry->event[base->rank] = request->kept;
    meeting_add(&entry->started, 1, (uint32_t)group->size);
    return local_is_on_card(base, &request->call) ? queue_last(comm, entry) : STATUS_OK;
}

/* Leaves an entry. The last member to leave prepares it for the next collective that uses it. */
static void leave(struct local_comm *comm, struct local_entry *entry, uint64_t sequence) {
    uint32_t size = (uint32_t)comm->base.size;
    comm->is_started[sequence % COMM_STARTED_MAX] = false;
    if (atomic_fetch_add(&entry->left, 1) + 1 != size)
        return;
    atomic_store_explicit(&entry->started.value, 0, memory_order_relaxed);
    atomic_store_explicit(&entry->done.value, 0, memory_order_relaxed);
    atomic_store_explicit(&entry->left, 0, memory_order_relaxed);
    for (uint32_t m = 0; m < size; m++)
        atomic_store_explicit(&entry->share[m].next, 0, memory_order_relaxed);
    meeting_set(&entry->turn, (uint32_t)(sequence + COMM_STARTED_MAX));
}

int local_finish(struct comm *base, struct comm_request *request) {
    struct local_comm *comm = (struct local_comm *)base;
    if (request->call.kind == COMM_SEND || request->call.kind == COMM_RECEIVE)
        return local_message_finish(comm, request);

    struct local_entry *entry = &comm->group->entry[request->sequence % COMM_STARTED_MAX];
    int status = await_started(comm, entry, request->sequence);
    TRY(status ? status : check_agreement(comm, entry));
    bool is_on_card = local_is_on_card(base, &request->call);
    uint32_t tasks = first_task(&entry->call[0], base->size, base->size);
    if (is_on_card) {
        status = await(comm, &entry->done, 1);
    } else if (tasks > 0) {
        if (!local_busy_begin(comm))
            return local_failure(comm);
        uint32_t ran = 0;
        for (int m = 0; m < base->size; m++)
            ran += run_share(comm, entry, (base->rank + m) % base->size);
        if (ran > 0)
            meeting_add(&entry->done, ran, tasks);
        local_busy_end(comm);
        status = await(comm, &entry->done, tasks);
    }
    if (!status)
        leave(comm, entry, request->sequence);
    return status;
}
