/* Shares of a queue. There are few clients (those with a key and places), so their list is walked. */
#include "queue.h"

#include "base/base.h"

static const double missed_seconds = 5;

struct member {
    uint64_t client;
    double weight;
    int64_t places;
    double missed_until; /* it was refused a place within its share: until then others get no more than theirs */
};

struct queue {
    int64_t places, used;
    struct member *members; /* [count] clients with places, or that recently missed one */
    size_t count;
};

int queue_open(int64_t places, struct queue **queue) {
    *queue = calloc(1, sizeof **queue);
    TRY(status_allocated(*queue));
    (*queue)->places = places;
    return STATUS_OK;
}

void queue_close(struct queue *queue) {
    if (queue)
        free(queue->members);
    free(queue);
}

int64_t queue_used(const struct queue *queue) {
    return queue->used;
}

static struct member *find(const struct queue *queue, uint64_t client) {
    for (size_t i = 0; i < queue->count; i++)
        if (queue->members[i].client == client)
            return &queue->members[i];
    return NULL;
}

/* Returns the member, adding it if needed; NULL: out of memory. */
static struct member *find_or_add(struct queue *queue, uint64_t client, double weight) {
    struct member *member = find(queue, client);
    if (!member) {
        struct member *grown = realloc(queue->members, (queue->count + 1) * sizeof *grown);
        if (!grown) {
            status_no_memory();
            return NULL;
        }
        queue->members = grown;
        member = &grown[queue->count++];
        *member = (struct member){.client = client};
    }
    member->weight = weight;
    return member;
}

/* Forgets members without places that have not missed one recently. */
static void forget_idle(struct queue *queue, double now) {
    for (size_t i = 0; i < queue->count;) {
        struct member *member = &queue->members[i];
        if (member->missed_until <= now)
            member->missed_until = 0;
        if (member->places || member->missed_until > 0)
            i++;
        else
            *member = queue->members[--queue->count];
    }
}

static double sum_of_weights(const struct queue *queue) {
    double sum = 0;
    for (size_t i = 0; i < queue->count; i++)
        sum += queue->members[i].weight;
    return sum;
}

/* Returns at least one place, however many clients there are. */
static double share_of(const struct queue *queue, double weight, double weights) {
    double share = (double)queue->places * weight / weights;
    return share < 1 ? 1 : share;
}

/* True when another client was refused a place within its share, and has not come in since. */
static bool has_missed(const struct queue *queue, uint64_t but) {
    for (size_t i = 0; i < queue->count; i++)
        if (queue->members[i].missed_until > 0 && queue->members[i].client != but)
            return true;
    return false;
}

enum queue_answer queue_ask(struct queue *queue, uint64_t client, double weight, int64_t count, double now) {
    forget_idle(queue, now);
    const struct member *member = find(queue, client);
    double weights = sum_of_weights(queue) + weight - (member ? member->weight : 0);
    int64_t places = member ? member->places : 0;
    bool is_over = (double)(places + count) > share_of(queue, weight, weights);
    bool has_room = count <= queue->places - queue->used;
    if (has_room)
        return is_over && has_missed(queue, client) ? QUEUE_OVER_SHARE : QUEUE_HAS_ROOM;
    /* It counts as a member from here on, so that others exceed their shares. */
    return is_over || !find_or_add(queue, client, weight) ? QUEUE_IS_FULL : QUEUE_MUST_MAKE_ROOM;
}

double queue_excess(const struct queue *queue, uint64_t client) {
    const struct member *member = find(queue, client);
    if (!member)
        return 0;
    double excess = (double)member->places - share_of(queue, member->weight, sum_of_weights(queue));
    return excess > 0 ? excess / member->weight : 0;
}

int queue_miss(struct queue *queue, uint64_t client, double weight, double now) {
    struct member *member = find_or_add(queue, client, weight);
    if (!member)
        return STATUS_MEMORY;
    member->missed_until = now + missed_seconds;
    return STATUS_OK;
}

int queue_add(struct queue *queue, uint64_t client, double weight, int64_t count) {
    struct member *member = find_or_add(queue, client, weight);
    if (!member)
        return STATUS_MEMORY;
    member->missed_until = 0;
    member->places += count;
    queue->used += count;
    return STATUS_OK;
}

void queue_remove(struct queue *queue, uint64_t client, int64_t count) {
    struct member *member = find(queue, client);
    if (!member)
        return;
    member->places -= count;
    queue->used -= count;
}
