/* The automaton of a program: Earley's sets as lazily made, hash-consed states.
 *
 * A *place* is a set of items that have begun a terminal. An item's continuation follows from the place where its rule
 * was called (its origin); that place knows its waiting calls. Equal sets are one place, so that the next character of
 * a string, or the next element of a list, often leads to a place that exists. Every item has a continuation that
 * completes the text: terms with an empty language and rules that derive nothing are dropped. */
#pragma once

#include "program-internal.h"

struct item {
    uint32_t step;
    uint32_t term;   /* what is left of the terminal; of an entry under construction: 1 when no byte was taken in this
                        round of a repeat */
    int32_t counter; /* rounds of the repeat that the step is in */
    uint32_t used;   /* a term: texts of unique terminals in the scope */
    uint32_t text;   /* of a unique terminal in progress: number of its bytes' chain; 0: none */
    uint32_t origin; /* the place where the rule was called */
    uint32_t rule, before; /* the rule, and `used` when it was called (REGEX_NOTHING for a scope) */
};
enum { PLACE_NONE = 0, PLACE_FIRST = 1 };

struct place_mask {
    size_t count;
    int32_t only;
    uint32_t words[];
};
struct place {
    struct item *kernel;   /* [kernel_count] sorted */
    struct item *scans;    /* [scan_count] the kernel's items that may continue, and the terminals that may begin */
    struct item *calls;    /* [call_count] waiting for a rule to end, sorted by rule */
    struct item *specials; /* [special_count] at steps of special tokens */
    uint32_t kernel_count, scan_count, call_count, special_count;
    uint32_t next;   /* in its bucket, or of the free ones */
    uint32_t users;  /* states of texts */
    uint32_t near;   /* by automaton_near; PLACE_NONE: unknown */
    uint32_t caller; /* of a near place: one that stands for all with the same waiting calls; PLACE_NONE: unknown */
    bool is_closed, is_complete, has_unique, is_marked, is_free;
    struct byte_set live;    /* bytes that may follow */
    uint32_t *after;         /* by rank in `live`: a place, or UNKNOWN; NULL: none is known yet */
    struct place_mask *mask; /* NULL: none is kept */
};
struct text_link {
    uint32_t before, next; /* next: in its bucket */
    uint8_t byte;
};
struct automaton {
    const struct program *program;
    struct regexes *regexes;
    size_t limit, bytes;
    int status; /* a failure that stays until automaton_resume */
    struct place *places;
    size_t count, capacity;
    uint32_t free;
    uint32_t *buckets; /* [bucket_count] */
    size_t bucket_count;
    struct text_link *texts;
    size_t text_count, text_capacity;
    uint32_t text_buckets[1 << 10];
    struct item *entries; /* of the place that is closed */
    size_t entry_count, entry_capacity;
    uint32_t *seen; /* hash table of entries, [seen_count] */
    size_t seen_count;
    struct item *fresh; /* the items of a new place */
    size_t fresh_count, fresh_capacity;
    uint32_t *way; /* places whose near ones are being found */
    size_t way_capacity;
};

/* Opens the automaton of rules that are finished; they outlive it. STATUS_MEMORY, STATUS_UNSUPPORTED (too large). */
int automaton_open(const struct rules *rules, struct regexes *regexes, size_t bytes, struct automaton **automaton);
/* NULL is allowed. */
void automaton_close(struct automaton *automaton);
/* Forgets failures and sets a deadline for what follows. */
void automaton_resume(struct automaton *automaton, double deadline);
/* STATUS_OK, STATUS_MEMORY or STATUS_UNSUPPORTED, with its text. */
int automaton_status(const struct automaton *automaton);

/* The place after a byte; PLACE_NONE: the byte is forbidden, or a failure, which stays. */
uint32_t automaton_after(struct automaton *automaton, uint32_t place, uint8_t byte);
/* The same for a special token. */
uint32_t automaton_after_special(struct automaton *automaton, uint32_t place, int32_t id);
/* The number of a unique terminal's text of one more byte; 0 is a failure. `before` is UNKNOWN for the first byte. */
uint32_t automaton_text(struct automaton *automaton, uint32_t before, uint8_t byte);
/* Finds what may follow a place. False is a failure. References to places end here. */
bool automaton_close_place(struct automaton *automaton, uint32_t place);
/* The place of these items (one of them at least), which are sorted by this call. */
uint32_t automaton_place(struct automaton *automaton, struct item *items, size_t count);
/* A place that has the same texts, as far as those of at most `horizon` bytes can tell. Its terms are near ones.
 * Counters are not told apart far from their bounds, nor are origins with the same waiting calls. The horizon is the
 * same in each call. PLACE_NONE is a failure, which stays. */
uint32_t automaton_near(struct automaton *automaton, uint32_t place, uint32_t horizon);
/* Frees places that no user's place needs, all masks and all transitions. */
void automaton_sweep(struct automaton *automaton);
/* Takes memory that counts as the automaton's; NULL is a failure, which stays. */
void *automaton_take(struct automaton *automaton, size_t bytes);
/* Lets memory that was allocated otherwise count, too. NULL is allowed. */
void automaton_keep(struct automaton *automaton, void *memory);
/* Frees memory that counts. NULL is allowed. */
void automaton_give(struct automaton *automaton, void *memory);

static inline unsigned set_count(const struct byte_set *set) {
    return (unsigned)(__builtin_popcountll(set->bits[0]) + __builtin_popcountll(set->bits[1]) +
                      __builtin_popcountll(set->bits[2]) + __builtin_popcountll(set->bits[3]));
}
/* The number of bytes in the set below `byte`. */
static inline unsigned set_rank(const struct byte_set *set, unsigned byte) {
    unsigned rank = 0;
    for (unsigned word = 0; word < byte / 64; word++)
        rank += (unsigned)__builtin_popcountll(set->bits[word]);
    return rank + (unsigned)__builtin_popcountll(set->bits[byte / 64] & (((uint64_t)1 << byte % 64) - 1));
}
