/* The channel `local`: making and leaving worlds and groups, and the threads of comm_local_run. */
#include "local-internal.h"

enum { SPINS = 2000 };

/* ---- memory ---- */

/* Returns `count` zeroed pieces of `bytes`, at a cache line if `bytes` is a multiple of one; NULL without memory. */
static void *take(size_t count, size_t bytes) {
    size_t total = (count * bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    void *memory = aligned_alloc(CACHE_LINE, total);
    return memory ? memset(memory, 0, total) : NULL;
}

static void group_free(struct local_group *group) {
    for (int i = 0; i < COMM_STARTED_MAX; i++) {
        free(group->entry[i].call);
        free(group->entry[i].send);
        free(group->entry[i].receive);
        free(group->entry[i].event);
        free(group->entry[i].share);
    }
    for (int i = 0; group->mailbox && i < group->size * group->size; i++)
        pthread_mutex_destroy(&group->mailbox[i].lock);
    free(group->mailbox);
    free(group->world_rank);
    free(group->member);
    free(group->has_joined);
    free(group);
}

static struct local_group *group_new(struct local_world *world, int ranks) {
    struct local_group *group = take(1, sizeof *group);
    if (!group)
        return NULL;
    size_t size = (size_t)ranks;
    group->world = world;
    group->size = ranks;
    group->world_rank = take(size, sizeof *group->world_rank);
    group->member = take(size, sizeof *group->member);
    group->has_joined = take(size, sizeof *group->has_joined);
    group->mailbox = take(size * size, sizeof *group->mailbox);
    bool is_whole = group->world_rank && group->member && group->has_joined && group->mailbox;
    for (size_t i = 0; group->mailbox && i < size * size; i++)
        pthread_mutex_init(&group->mailbox[i].lock, NULL);
    for (uint32_t i = 0; i < COMM_STARTED_MAX; i++) {
        struct local_entry *entry = &group->entry[i];
        entry->turn.value = i;
        entry->call = take(size, sizeof *entry->call);
        entry->send = take(size, sizeof *entry->send);
        entry->receive = take(size, sizeof *entry->receive);
        entry->event = take(size, sizeof *entry->event);
        entry->share = take(size, sizeof *entry->share);
        is_whole = is_whole && entry->call && entry->send && entry->receive && entry->event && entry->share;
    }
    if (is_whole)
        return group;
    group_free(group);
    return NULL;
}

static void world_free(struct local_world *world) {
    pthread_mutex_destroy(&world->lock);
    free(world->rank);
    free(world);
}

/* Releases a member's reference. The last one frees the group, and the last group frees the world. */
static void group_release(struct local_group *group) {
    struct local_world *world = group->world;
    pthread_mutex_lock(&world->lock);
    bool is_last = --group->references == 0;
    if (is_last) {
        struct local_group **at = &world->forming;
        while (*at && *at != group)
            at = &(*at)->next_forming;
        if (*at)
            *at = group->next_forming;
    }
    bool is_empty = is_last && --world->references == 0;
    pthread_mutex_unlock(&world->lock);
    if (is_last)
        group_free(group);
    if (is_empty)
        world_free(world);
}

static struct local_comm *comm_of(struct local_group *group, int rank) {
    struct local_comm *comm = calloc(1, sizeof *comm);
    if (comm) {
        comm->base = (struct comm){.host = &comm_host_local,
                                   .device = &comm_device_over_host,
                                   .rank = rank,
                                   .size = group->size,
                                   .world_rank = group->world_rank[rank]};
        comm->group = group;
    }
    return comm;
}

/* ---- leaving ---- */

static void local_abort(struct comm *base, const char *reason) {
    char text[FAILURE_BYTES];
    snprintf(text, sizeof text, "rank %d failed: %s", base->world_rank, reason);
    local_set_failure((struct local_comm *)base, STATUS_PEER, text);
}

static void local_close(struct comm *base) {
    struct local_comm *comm = (struct local_comm *)base;
    struct local_world *world = comm->group->world;
    for (int i = 0; i < COMM_STARTED_MAX; i++)
        if (comm->is_started[i] && !local_has_failed(world))
            local_abort(base, "it left a group without waiting for what it had started");
    if (!comm->group->parent) /* the world itself */
        atomic_store(&world->rank[base->world_rank].has_ended, true);
    group_release(comm->group);
    free(comm);
}

/* ---- subgroups ---- */

/* Returns the forming group of `parent` with this list, or NULL. Under the world's lock. */
static struct local_group *find_forming(struct local_world *world, const struct local_group *parent, const int *ranks,
                                        int count) {
    for (struct local_group *group = world->forming; group; group = group->next_forming) {
        bool is_same = group->parent == parent && group->size == count;
        for (int i = 0; is_same && i < count; i++)
            is_same = group->world_rank[i] == parent->world_rank[ranks[i]];
        if (is_same)
            return group;
    }
    return NULL;
}

static int index_of(const struct local_group *group, int world_rank) {
    for (int i = 0; i < group->size; i++)
        if (group->world_rank[i] == world_rank)
            return i;
    return -1;
}

/* Returns a member that waits for this rank in another list, or -1. The two would wait for each other for ever. Under
 * the world's lock. */
static int find_crossed(const struct local_world *world, const struct local_group *mine, int world_rank) {
    for (const struct local_group *other = world->forming; other; other = other->next_forming) {
        if (other == mine || other->parent != mine->parent || index_of(other, world_rank) < 0)
            continue;
        for (int i = 0; i < other->size; i++)
            if (other->has_joined[i] && index_of(mine, other->world_rank[i]) >= 0)
                return other->world_rank[i];
    }
    return -1;
}

/* Finds or makes the group, and counts this rank in. Sets *crossed to a rank that waits in another list, or -1. */
static int join(struct local_comm *parent, const int *ranks, int count, struct local_group **out, int *crossed) {
    struct local_world *world = parent->group->world;
    int status = STATUS_OK;
    pthread_mutex_lock(&world->lock);
    struct local_group *group = find_forming(world, parent->group, ranks, count);
    if (!group) {
        group = group_new(world, count);
        if (group) {
            group->parent = parent->group;
            for (int i = 0; i < count; i++)
                group->world_rank[i] = parent->group->world_rank[ranks[i]];
            group->next_forming = world->forming;
            world->forming = group;
            world->references++;
        } else {
            status = STATUS_MEMORY;
        }
    }
    if (group) {
        group->references++;
        group->has_joined[index_of(group, parent->base.world_rank)] = true;
        *crossed = find_crossed(world, group, parent->base.world_rank);
        if (group->references == count) { /* complete: the same list may be asked for again */
            struct local_group **at = &world->forming;
            while (*at != group)
                at = &(*at)->next_forming;
            *at = group->next_forming;
        }
    }
    pthread_mutex_unlock(&world->lock);
    *out = group;
    return status;
}

static int await_members(struct local_comm *parent, struct local_group *group) {
    for (int step = 0;;) {
        uint32_t seen = atomic_load(&group->joined.value);
        if (seen == (uint32_t)group->size)
            return STATUS_OK;
        if (local_has_failed(group->world))
            return local_failure(parent);
        if (!meeting_rest(parent, &group->joined, seen, &step))
            continue;
        for (int m = 0; m < group->size; m++) {
            if (!local_has_ended(group, m) || atomic_load(&group->joined.value) == (uint32_t)group->size)
                continue;
            return local_fail(parent, STATUS_PEER, "rank %d ended while rank %d waits to make a group with it",
                              group->world_rank[m], parent->base.world_rank);
        }
    }
}

static int local_subgroup(struct comm *base, const int *ranks, int count, struct comm **out) {
    struct local_comm *parent = (struct local_comm *)base;
    if (local_has_failed(parent->group->world))
        return local_failure(parent);
    struct local_group *group;
    int crossed = -1;
    int status = join(parent, ranks, count, &group, &crossed);
    if (status) /* the other members wait for this one */
        return local_fail(parent, status, "no memory for a group of %d ranks", count);
    if (crossed >= 0)
        status = local_fail(parent, STATUS_INVALID,
                            "ranks %d and %d make a group with each other, but give different lists of ranks", crossed,
                            base->world_rank);
    meeting_add(&group->joined, 1, (uint32_t)count);
    status = status ? status : await_members(parent, group);
    struct local_comm *comm = status ? NULL : comm_of(group, index_of(group, base->world_rank));
    THEN(status, status_allocated(comm));
    if (status) {
        group_release(group);
        return status;
    }
    *out = &comm->base;
    return STATUS_OK;
}

const struct comm_host_channel comm_host_local = {.name = "local",
                                                  .start = local_start,
                                                  .finish = local_finish,
                                                  .subgroup = local_subgroup,
                                                  .use_device = local_use_device,
                                                  .signs_of = local_signs_of,
                                                  .abort = local_abort,
                                                  .close = local_close};

/* ---- worlds ---- */

static struct local_world *world_new(int ranks) {
    struct local_world *world = calloc(1, sizeof *world);
    if (!world)
        return NULL;
    pthread_mutex_init(&world->lock, NULL);
    world->size = ranks;
    world->spins = ranks <= usable_cores() ? SPINS : 0; /* a spinning rank must not take the core from a working one */
    world->rank = take((size_t)ranks, sizeof *world->rank);
    if (world->rank)
        return world;
    world_free(world);
    return NULL;
}

int comm_local_open(int ranks, struct comm **comms) {
    if (ranks < 1)
        return status_fail(STATUS_INVALID, "a world of %d ranks", ranks);
    if (ranks == 1)
        return comm_single_open(comms);
    struct local_world *world = world_new(ranks);
    struct local_group *group = world ? group_new(world, ranks) : NULL;
    int made = 0;
    while (group && made < ranks) {
        group->world_rank[made] = made;
        struct local_comm *comm = comm_of(group, made);
        if (!comm)
            break;
        comms[made++] = &comm->base;
    }
    if (made == ranks) {
        group->references = ranks;
        world->references = 1;
        return STATUS_OK;
    }
    while (made > 0)
        free(comms[--made]);
    if (group)
        group_free(group);
    if (world)
        world_free(world);
    return status_fail(STATUS_MEMORY, "no memory for %d ranks", ranks);
}

/* ---- threads ---- */

struct runner {
    pthread_t thread;
    struct comm *comm;
    int (*function)(struct comm *world, void *context);
    void *context;
    _Atomic int *first_failed; /* the rank, or -1; shared */
    int status;
    char text[FAILURE_BYTES];
};

static void *runner_main(void *argument) {
    struct runner *runner = argument;
    char name[16]; /* for tools that show threads; threads that it starts inherit the name */
    snprintf(name, sizeof name, "rank %d", runner->comm->rank);
    pthread_setname_np(pthread_self(), name);
    runner->status = runner->function(runner->comm, runner->context);
    if (runner->status) {
        snprintf(runner->text, sizeof runner->text, "%s", status_text());
        int none = -1;
        if (runner->status != STATUS_PEER) /* STATUS_PEER is never the cause */
            atomic_compare_exchange_strong(runner->first_failed, &none, runner->comm->rank);
        comm_abort(runner->comm, runner->text);
    }
    comm_close(runner->comm);
    return NULL;
}

static int run_threads(struct runner *runners, int ranks) {
    int started = 0, error = 0;
    while (started < ranks && !error) {
        error = pthread_create(&runners[started].thread, NULL, runner_main, &runners[started]);
        started += !error;
    }
    if (error)
        comm_abort(runners[started].comm, "its thread could not be started");
    for (int r = started; r < ranks; r++)
        comm_close(runners[r].comm);
    for (int r = 0; r < started; r++)
        pthread_join(runners[r].thread, NULL);
    if (error)
        return status_fail(STATUS_MEMORY, "cannot start a thread for rank %d of %d", started, ranks);
    int first = *runners->first_failed;
    if (first >= 0)
        return status_fail(runners[first].status, "rank %d: %s", first, runners[first].text);
    for (int r = 0; r < ranks; r++)
        if (runners[r].status) /* STATUS_PEER, whose text names the failed rank */
            return status_fail(runners[r].status, "%s", runners[r].text);
    return STATUS_OK;
}

int comm_local_run(int ranks, int (*function)(struct comm *world, void *context), void *context) {
    struct comm **comms = calloc(ranks > 0 ? (size_t)ranks : 1, sizeof *comms);
    struct runner *runners = calloc(ranks > 0 ? (size_t)ranks : 1, sizeof *runners);
    int status = comms && runners ? comm_local_open(ranks, comms) : status_no_memory();
    if (!status && ranks == 1) {
        status = function(comms[0], context);
        comm_close(comms[0]);
    } else if (!status) {
        _Atomic int first_failed = -1;
        for (int r = 0; r < ranks; r++)
            runners[r] = (struct runner){
                .comm = comms[r], .function = function, .context = context, .first_failed = &first_failed};
        status = run_threads(runners, ranks);
    }
    free(runners);
    free(comms);
    return status;
}
