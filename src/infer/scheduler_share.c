/* Virtual token counters (arXiv 2401.00588): among those that wait, the one with the lowest counter is next. A child
 * that becomes active again is raised to the lowest active counter: it saves up no service, and keeps a higher
 * counter. */
#include "scheduler-internal.h"

/* Returns the lowest counter with which a child becomes active. */
static double least_active(const struct share *parent) {
    double least = parent->last_counter;
    bool is_found = false;
    for (const struct share *child = parent->children; child; child = child->next)
        if (child->completions && (!is_found || child->counter < least)) {
            least = child->counter;
            is_found = true;
        }
    return least;
}

static void free_children(struct share *share) {
    for (struct share *child = share->children, *next; child; child = next) {
        next = child->next;
        free_children(child);
        free(child);
    }
    share->children = NULL;
}

/* Returns an idle child that can be reused: its counter would be raised anyway, so nothing is lost. */
static struct share *find_spare(struct share *parent) {
    double least = least_active(parent);
    for (struct share *child = parent->children; child; child = child->next)
        if (!child->completions && child->counter <= least)
            return child;
    return NULL;
}

struct share *share_find(struct share *parent, uint64_t id, double weight) {
    struct share *share = parent->children;
    while (share && share->id != id)
        share = share->next;
    if (!share && (share = find_spare(parent))) {
        free_children(share);
        share->counter = share->last_counter = 0;
    }
    if (!share) {
        share = calloc(1, sizeof *share);
        if (!share)
            return NULL;
        share->next = parent->children;
        parent->children = share;
    }
    share->id = id;
    share->weight = weight;
    return share;
}

void share_begin(struct share *parent, struct share *share) {
    double least = least_active(parent);
    if (share->completions == 0 && share->counter < least)
        share->counter = least;
    share->completions++;
}

void share_end(struct share *parent, struct share *share) {
    if (--share->completions == 0)
        parent->last_counter = share->counter;
}

void share_close(struct share *root) {
    free_children(root);
}
