/* Masks of places. */
#pragma once

#include "automaton-internal.h"
#include "vocabulary-internal.h"

/* A term's mask, whatever follows its terminal. */
struct term_mask {
    regex term;       /* by regex_near; REGEX_NOTHING: a free slot */
    bool is_deep;     /* of tokens of more than SHALLOW_BYTES; else of the others */
    uint32_t *within; /* the ids that stay in the terminal, or end with it */
    uint32_t *ends;   /* [end_count] nodes where the terminal may end, and tokens continue */
    size_t end_count;
};
struct masks {
    const struct grammar_vocabulary *vocabulary;
    struct automaton *automaton;
    struct term_mask *terms; /* [term_slots], a hash table */
    size_t term_count, term_slots;
    uint32_t *places; /* [longest + 1] on the way to a node */
    regex *others;    /* the same, of a second term */
};

/* Borrows both. STATUS_MEMORY. Free it with masks_close, also after a failure. */
int masks_open(struct masks *masks, const struct grammar_vocabulary *vocabulary, struct automaton *automaton);
void masks_close(struct masks *masks);
/* Forgets what terms allow: before a sweep. */
void masks_clear(struct masks *masks);
/* Returns the mask of a place, which its near place keeps; NULL is a failure of the automaton. */
const struct place_mask *masks_of(struct masks *masks, uint32_t place);

/* The findings of a walk: ids, and nodes in order where the term accepts. */
struct finding {
    uint32_t *words, *ends;
    size_t end_count, end_capacity;
};
/* Masks of terms that all grammars of a vocabulary share (mask_shared.c): strings of JSON above all. A find copies into
 * the finding; what cannot be kept or found is made anew. */
bool shared_masks_find(struct masks *masks, regex term, bool is_deep, struct finding *finding);
void shared_masks_keep(struct masks *masks, regex term, bool is_deep, const struct finding *finding);
