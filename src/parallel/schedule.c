/* 1F1B and interleaved 1F1B.
 *
 * A stage has v m virtual micro batches, one for each (chunk, micro batch). Their forwards run in the order of a table:
 * groups of micro batches, in a group chunk by chunk. Backwards run in the same order with the chunks reversed. A stage
 * first runs `warm_up` forwards, then one forward and one backward in turn, then the remaining backwards. With one
 * chunk that is 1F1B. */
#include "parallel/schedule.h"

#include "base/base.h"
#include "base/smaller.h"

/* The division of m micro batches into groups: `large` groups of `large_size`, then groups of `small_size`. */
struct groups {
    int large, large_size, small_size;
};

struct virtual_step {
    int chunk, micro_batch;
};

/* Returns the groups. Groups of at least p micro batches keep every stage busy: a micro batch is back at the first
 * stage when its next chunk's turn comes. A remainder of at least p is a last group, as in Megatron-LM. A smaller
 * remainder would stall, and could deadlock, so it is spread over the groups. */
static struct groups groups_of(const struct pipeline_shape *shape) {
    int m = shape->micro_batches;
    if (shape->chunks == 1)
        return (struct groups){m, 1, 1};
    int size = shape->group_size ? shape->group_size : shape->stages;
    if (m % size == 0 || m % size >= shape->stages)
        return (struct groups){m / size, size, m % size};
    int count = m < size ? 1 : m / size;
    return (struct groups){m % count, m / count + 1, m / count};
}

static int largest_group(struct groups groups) {
    return groups.large ? groups.large_size : groups.small_size;
}

/* Returns entry k of the table, 0 <= k < v m. */
static struct virtual_step table_entry(const struct pipeline_shape *shape, struct groups groups, int k) {
    int size = groups.large_size, first = 0;
    if (k >= groups.large * size * shape->chunks) {
        k -= groups.large * size * shape->chunks;
        first = groups.large * size;
        size = groups.small_size;
    }
    int in_group = k % (size * shape->chunks);
    first += k / (size * shape->chunks) * size;
    return (struct virtual_step){in_group / size, first + in_group % size};
}

/* Returns the number of an entry; the inverse of table_entry. */
static int table_index(const struct pipeline_shape *shape, struct groups groups, struct virtual_step step) {
    int size = groups.large_size, first = 0, i = step.micro_batch;
    if (i >= groups.large * size) {
        first = groups.large * size;
        i -= first;
        size = groups.small_size;
    }
    first += i / size * size;
    return first * shape->chunks + step.chunk * size + i % size;
}

static int warm_up_of(const struct pipeline_shape *shape, struct groups groups, int stage) {
    int all = shape->chunks * shape->micro_batches, behind = shape->stages - 1 - stage;
    if (shape->is_forward_only)
        return all;
    if (shape->chunks == 1)
        return (int)smaller(behind, all);
    int64_t steps = 2 * (int64_t)behind + (int64_t)(shape->chunks - 1) * largest_group(groups);
    return steps < all ? (int)steps : all;
}

int pipeline_shape_check(const struct pipeline_shape *shape) {
    int p = shape->stages, v = shape->chunks, m = shape->micro_batches;
    if (p < 1 || v < 1 || m < 1)
        return status_fail(
            STATUS_USAGE,
            "a pipeline of %d stages, %d chunks a stage and %d micro batches: expected at least 1 of each", p, v, m);
    if (v > 1 && p < 2)
        return status_fail(
            STATUS_USAGE,
            "parallel.virtual_pipeline_model_parallel_size %d with parallel.pipeline_model_parallel_size "
            "1: chunks need at least 2 stages",
            v);
    if ((int64_t)v * m > INT_MAX / 2)
        return status_fail(STATUS_USAGE,
                           "%d micro batches in %d chunks a stage are more than the %d that a step can have", m, v,
                           INT_MAX / 2);
    int most = m > p ? m : p;
    if (v > 1 && shape->group_size && (shape->group_size < p || shape->group_size > most))
        return status_fail(
            STATUS_USAGE,
            "groups of %d micro batches in a pipeline of %d stages with %d micro batches: expected %d to %d",
            shape->group_size, p, m, p, most);
    return STATUS_OK;
}

int pipeline_step_count(const struct pipeline_shape *shape) {
    int forwards = shape->chunks * shape->micro_batches;
    return shape->is_forward_only ? forwards : 2 * forwards;
}

/* Returns the neighbour that an activation comes from or goes to, one place before or after along the model. Places run
 * through the stages of chunk 0, then those of chunk 1, and so on. */
static struct pipeline_message neighbour(const struct pipeline_shape *shape, enum pipeline_step_kind kind, int from,
                                         int places, int *number) {
    int place = from + places, lower = (int)smaller(from, place);
    bool is_wanted = kind == PIPELINE_FORWARD || lower >= shape->first_backward;
    if (place < 0 || place >= shape->chunks * shape->stages || !is_wanted)
        return (struct pipeline_message){.stage = PIPELINE_NO_MESSAGE, .chunk = PIPELINE_NO_MESSAGE};
    return (struct pipeline_message){place % shape->stages, place / shape->stages, (*number)++};
}

/* The stashes of a list while it is made. The first to become free are the first to be reused. */
struct stashes {
    int count, freed; /* in use so far; index in the list after the last backward whose stash was reused */
};

/* Returns a stash for a forward at place `at` of the list. */
static int take_stash(struct stashes *stashes, const struct pipeline_step *steps, int at) {
    for (; stashes->freed < at; stashes->freed++)
        if (steps[stashes->freed].kind == PIPELINE_BACKWARD && steps[stashes->freed].stash != PIPELINE_NO_STASH)
            return steps[stashes->freed++].stash;
    return stashes->count++;
}

void pipeline_steps(const struct pipeline_shape *shape, int stage, struct pipeline_step *steps) {
    struct groups groups = groups_of(shape);
    int all = shape->chunks * shape->micro_batches, warm_up = warm_up_of(shape, groups, stage);
    int count = pipeline_step_count(shape);
    int forward = 0, backward = 0, received[2] = {0}, sent[2] = {0}; /* so far; messages by kind */
    struct stashes stashes = {0};
    for (int i = 0; i < count; i++) {
        struct pipeline_step *step = &steps[i];
        bool is_forward = forward < all && (forward < warm_up || forward - warm_up == backward);
        struct virtual_step at = table_entry(shape, groups, is_forward ? forward : backward);
        if (is_forward) {
            bool is_held = at.chunk * shape->stages + stage >= shape->first_backward;
            step->kind = PIPELINE_FORWARD;
            step->stash = shape->is_forward_only ? 0 : is_held ? take_stash(&stashes, steps, i) : PIPELINE_NO_STASH;
            forward++;
        } else {
            at.chunk = shape->chunks - 1 - at.chunk;
            int made =
                table_index(shape, groups, at); /* the number of the forward, which gives its place in the list */
            step->kind = PIPELINE_BACKWARD;
            step->stash = steps[made < warm_up ? made : 2 * made - warm_up].stash;
            backward++;
        }
        step->chunk = at.chunk;
        step->micro_batch = at.micro_batch;
        int on = is_forward ? 1 : -1, place = at.chunk * shape->stages + stage;
        step->receive = neighbour(shape, step->kind, place, -on, &received[step->kind]);
        step->send = neighbour(shape, step->kind, place, on, &sent[step->kind]);
    }
}

/* Returns the highest place of the stage that has another one after it. */
static int highest_inner_place(const struct pipeline_shape *shape, int stage) {
    int chunk = stage == shape->stages - 1 ? shape->chunks - 2 : shape->chunks - 1;
    return chunk * shape->stages + stage;
}

bool pipeline_has_sends(const struct pipeline_shape *shape, int stage, enum pipeline_step_kind kind) {
    int end = kind == PIPELINE_FORWARD ? shape->stages - 1 : 0, highest = (shape->chunks - 1) * shape->stages + stage;
    if (shape->stages == 1 || (kind == PIPELINE_BACKWARD && highest <= shape->first_backward))
        return false;
    return shape->chunks > 1 || stage != end;
}

int pipeline_receive_buffers(const struct pipeline_shape *shape, int stage, enum pipeline_step_kind kind) {
    if (shape->stages == 1 || (shape->is_forward_only && kind == PIPELINE_BACKWARD))
        return 0;
    if (kind == PIPELINE_BACKWARD && highest_inner_place(shape, stage) < shape->first_backward)
        return 0;
    int end = kind == PIPELINE_FORWARD ? 0 : shape->stages - 1;
    if (stage != end)
        return 2;
    if (shape->chunks == 1)
        return 0;
    /* Micro batch 0 comes back after p steps, but its turn in the next chunk is after the whole group. */
    int waiting = largest_group(groups_of(shape)) - shape->stages;
    return waiting > 0 ? waiting + 2 : 2;
}

int pipeline_in_flight(const struct pipeline_step *steps, int count, int chunk) {
    bool is_held = count && steps[count - 1].kind == PIPELINE_BACKWARD; /* with forward only, just in its own step */
    int held = 0, most = 0;
    for (int i = 0; i < count; i++) {
        if ((chunk != -1 && steps[i].chunk != chunk) || steps[i].stash == PIPELINE_NO_STASH)
            continue;
        held += steps[i].kind == PIPELINE_FORWARD ? 1 : -1;
        most = held > most ? held : most;
    }
    return is_held ? most : (int)smaller(most, 1);
}
