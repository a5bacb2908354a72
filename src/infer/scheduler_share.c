/* Virtual token counters (arXiv 2401.00588): who waits and has had least is next. A child that comes back from idleness
 * is lifted to the least of the active ones, so that nobody saves up, and keeps what it owes. */
#include "scheduler-internal.h"

#include <stdlib.h>

/* The counter that a child which becomes active begins with, unless it has more. */
static double least_active(const struct share *parent) {
    double least = parent->last_left;
    bool is_found = false;
    for (const struct share *child = parent->children; child; child = child->next)
        if (child->texts && (!is_found || child->counter < least)) {
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

/* An idle child that owes nothing: it would be lifted, so that nothing is lost with it. */
static struct share *find_spare(struct share *parent) {
    double least = least_active(parent);
    for (struct share *child = parent->children; child; child = child->next)
        if (!child->texts && child->counter <= least)
            return child;
    return NULL;
}

struct share *share_find(struct share *parent, uint64_t id, double weight) {
    struct share *share = parent->children;
    while (share && share->id != id)
        share = share->next;
    if (!share && (share = find_spare(parent))) {
        free_children(share);
        share->counter = share->last_left = 0;
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
    if (share->texts == 0 && share->counter < least)
        share->counter = least;
    share->texts++;
}

void share_end(struct share *parent, struct share *share) {
    if (--share->texts == 0)
        parent->last_left = share->counter;
}

void share_close(struct share *root) {
    free_children(root);
}
