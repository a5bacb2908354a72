/* Refused adapters: a ring of the latest. */
#include "refusals.h"

#include "base/base.h"

#include <pthread.h>

struct refusal {
    char *directory; /* NULL: none */
    uint64_t stamp;
    struct error error;
};

struct refusals {
    pthread_mutex_t lock;
    struct refusal items[REFUSALS_MAX];
    int next; /* the next place to use, which holds the oldest */
};

int refusals_open(struct refusals **refusals) {
    *refusals = calloc(1, sizeof **refusals);
    TRY(status_allocated(*refusals));
    pthread_mutex_init(&(*refusals)->lock, NULL);
    return STATUS_OK;
}

void refusals_close(struct refusals *refusals) {
    if (!refusals)
        return;
    for (int i = 0; i < REFUSALS_MAX; i++)
        free(refusals->items[i].directory);
    pthread_mutex_destroy(&refusals->lock);
    free(refusals);
}

static struct refusal *find(struct refusals *refusals, const char *directory) {
    for (int i = 0; i < REFUSALS_MAX; i++)
        if (refusals->items[i].directory && !strcmp(refusals->items[i].directory, directory))
            return &refusals->items[i];
    return NULL;
}

void refusals_add(struct refusals *refusals, const char *directory, uint64_t stamp, const struct error *error) {
    pthread_mutex_lock(&refusals->lock);
    struct refusal *item = find(refusals, directory);
    char *copy = item ? NULL : strdup(directory);
    if (copy) {
        item = &refusals->items[refusals->next];
        refusals->next = (refusals->next + 1) % REFUSALS_MAX;
        free(item->directory);
        item->directory = copy;
    }
    if (item) {
        item->stamp = stamp;
        item->error = *error;
    }
    pthread_mutex_unlock(&refusals->lock);
}

bool refusals_find(struct refusals *refusals, const char *directory, uint64_t stamp, struct error *error) {
    pthread_mutex_lock(&refusals->lock);
    const struct refusal *item = find(refusals, directory);
    bool is_refused = item && item->stamp == stamp;
    if (is_refused)
        *error = item->error;
    pthread_mutex_unlock(&refusals->lock);
    return is_refused;
}
