/* Masks of places. */
#pragma once

#include "automaton-internal.h"
#include "vocabulary-internal.h"

/* What a term allows, whatever follows its terminal. */
struct term_mask {
    regex term;       /* by regex_near; REGEX_NOTHING: a free slot */
    uint32_t *within; /* the ids that stay in the terminal, or end with it */
    uint32_t *ends;   /* [end_count] nodes where the terminal may end, and tokens go on */
    size_t end_count;
};
struct masks {
    const struct grammar_vocabulary *vocabulary;
    struct automaton *automaton;
    struct term_mask *terms; /* [term_slots], a hash table */
    size_t term_count, term_slots;
    uint32_t *places; /* [longest + 1] on the way to a node */
};

/* Borrows both. STATUS_MEMORY. Free it with masks_close, also after a failure. */
int masks_open(struct masks *masks, const struct grammar_vocabulary *vocabulary, struct automaton *automaton);
void masks_close(struct masks *masks);
/* Forgets what terms allow: before a sweep. */
void masks_clear(struct masks *masks);
/* Returns the mask of a place, which the place keeps; NULL is a failure of the automaton. */
const struct place_mask *masks_of(struct masks *masks, uint32_t place);
