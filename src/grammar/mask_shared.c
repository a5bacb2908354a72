/* Masks of terms that grammars of one vocabulary have in common. They are kept with the vocabulary, in its own set of
 * terms: a term that is copied there has a number, which finds the mask without a doubt. */
#include "mask-internal.h"

#include <pthread.h>
#include <stdatomic.h>

enum { SHARED = 48, LARGEST_TERM = 400 /* nodes */, TERM_BYTES = 1 << 20 };
struct shared_masks {
    pthread_mutex_t lock;
    struct regexes *regexes;
    struct term_mask list[SHARED];
    size_t count; /* in all: the next one takes the place of the oldest */
    atomic_size_t bytes;
};

int shared_masks_open(struct shared_masks **out) {
    struct shared_masks *shared = calloc(1, sizeof *shared);
    *out = NULL;
    TRY(status_allocated(shared));
    int status = regexes_open(TERM_BYTES, 0, &shared->regexes);
    if (!status && pthread_mutex_init(&shared->lock, NULL)) {
        regexes_close(shared->regexes);
        status = status_no_memory();
    }
    if (status)
        free(shared);
    else
        *out = shared;
    return status;
}

static void clear(struct shared_masks *shared) {
    for (size_t i = 0; i < SHARED; i++) {
        free(shared->list[i].within);
        free(shared->list[i].ends);
        shared->list[i] = (struct term_mask){0};
    }
}

void shared_masks_close(struct shared_masks *shared) {
    if (!shared)
        return;
    clear(shared);
    regexes_close(shared->regexes);
    pthread_mutex_destroy(&shared->lock);
    free(shared);
}

/* The term's number in the shared set; REGEX_NOTHING: it is not for sharing. Old terms are dropped when there are many.
 */
static regex shared_number(struct shared_masks *shared, struct regexes *regexes, regex term) {
    if (!regexes->terms[term].is_plain)
        return REGEX_NOTHING;
    regex number = regex_import(shared->regexes, regexes, term, LARGEST_TERM);
    if (shared->regexes->status) {
        clear(shared);
        regexes_resume(shared->regexes, 0);
        regexes_sweep_begin(shared->regexes);
        regexes_sweep_end(shared->regexes);
        return REGEX_NOTHING;
    }
    return number;
}

bool shared_masks_find(struct masks *masks, regex term, bool is_deep, struct finding *finding) {
    struct shared_masks *shared = masks->vocabulary->shared;
    bool is_found = false;
    pthread_mutex_lock(&shared->lock);
    regex number = shared_number(shared, masks->automaton->regexes, term);
    for (size_t i = 0; i < SHARED && number != REGEX_NOTHING; i++) {
        const struct term_mask *own = &shared->list[i];
        if (own->term != number || own->is_deep != is_deep)
            continue;
        is_found = regexes_reserve(masks->automaton->regexes, &finding->ends, &finding->end_capacity,
                                   own->end_count + 1, sizeof *own->ends);
        if (is_found) {
            memcpy(finding->words, own->within, vocabulary_words(masks->vocabulary) * sizeof *own->within);
            memcpy(finding->ends, own->ends, own->end_count * sizeof *own->ends);
            finding->end_count = own->end_count;
        }
        break;
    }
    pthread_mutex_unlock(&shared->lock);
    return is_found;
}

void shared_masks_keep(struct masks *masks, regex term, bool is_deep, const struct finding *finding) {
    struct shared_masks *shared = masks->vocabulary->shared;
    size_t words = vocabulary_words(masks->vocabulary);
    pthread_mutex_lock(&shared->lock);
    regex number = shared_number(shared, masks->automaton->regexes, term);
    struct term_mask own = {number, is_deep, NULL, NULL, finding->end_count};
    if (number != REGEX_NOTHING) {
        own.within = malloc(words * sizeof *own.within + 1);
        own.ends = malloc(finding->end_count * sizeof *own.ends + 1);
    }
    if (own.within && own.ends) { /* else it is made again */
        memcpy(own.within, finding->words, words * sizeof *own.within);
        if (own.end_count)
            memcpy(own.ends, finding->ends, own.end_count * sizeof *own.ends);
        struct term_mask *place = &shared->list[shared->count++ % SHARED];
        free(place->within);
        free(place->ends);
        *place = own;
    } else {
        free(own.within);
        free(own.ends);
    }
    size_t bytes = sizeof *shared + regexes_held(shared->regexes);
    for (size_t i = 0; i < SHARED; i++)
        if (shared->list[i].within)
            bytes += (words + shared->list[i].end_count) * sizeof *own.within;
    atomic_store_explicit(&shared->bytes, bytes, memory_order_relaxed);
    pthread_mutex_unlock(&shared->lock);
}

size_t grammar_vocabulary_shared_bytes(const struct grammar_vocabulary *vocabulary) {
    return atomic_load_explicit(&vocabulary->shared->bytes, memory_order_relaxed);
}
