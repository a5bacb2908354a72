/* The terms of regular expressions, for the files that build and follow them (regex.c, regex_walk.c). Terms are nodes
 * of an acyclic graph; equal nodes are one (hash-consing), so a term's number tells its structure. */
#pragma once

#include "regex-internal.h"

enum term_kind {
    TERM_NOTHING,
    TERM_EMPTY,
    TERM_ANY,
    TERM_SET,      /* a: of the sets of bytes */
    TERM_JOIN,     /* a, b; a is no join */
    TERM_EITHER,   /* a, b: at and count of a list, by their heads, then numbers */
    TERM_BOTH,     /* the same, by numbers */
    TERM_NOT,      /* a */
    TERM_REPEAT,   /* a, within bounds; it accepts the empty text only if the lower one is 0 */
    TERM_MULTIPLE, /* a: modulus; b: remainder of the digits before */
    TERM_FREE      /* a place that a sweep has freed */
};
enum term_life { LIFE_UNKNOWN, LIFE_ALIVE, LIFE_DEAD };
struct term {
    uint8_t kind;
    uint8_t life; /* of the language */
    bool accepts_empty;
    bool is_plain;  /* no complement and no intersection in it: so its language has a text */
    bool is_finite; /* no endless repetition in it */
    uint32_t a, b;
    int32_t least, most;
    uint32_t largest;                   /* counter in it, outside of complements and intersections */
    uint32_t row;                       /* of derivatives; 0: none yet */
    uint32_t seen, note, stamp, result; /* of the walk in progress */
    uint32_t next;                      /* in its bucket, or of the free ones */
};
struct byte_set {
    uint64_t bits[4];
};
/* Bytes that a term does not tell apart. */
struct byte_classes {
    uint8_t of[256];
    uint8_t some[256]; /* one byte of each class */
    uint32_t count;
    uint32_t next; /* in its bucket */
};
enum { CLASS_BUCKETS = 256, UNKNOWN = UINT32_MAX };
struct regexes {
    struct term *terms;
    size_t count, capacity;
    uint32_t free;
    size_t free_count;
    uint32_t *heads; /* of buckets */
    size_t bucket_count;
    struct byte_set *sets;
    size_t set_count, set_capacity;
    uint32_t *lists;
    size_t list_count, list_capacity;
    uint32_t *rows; /* each: number of its classes, then a derivative for each class or UNKNOWN */
    size_t row_count, row_capacity;
    struct byte_classes *classes;
    size_t class_count, class_capacity;
    uint32_t class_heads[CLASS_BUCKETS];
    uint32_t *scratch; /* a stack of lists under construction */
    size_t scratch_count, scratch_capacity;
    uint32_t seen, stamp; /* of the last walks */
    size_t limit;         /* bytes */
    double deadline;
    uint64_t work;
    int status;
};

static inline bool set_has(const struct byte_set *set, unsigned byte) {
    return set->bits[byte / 64] >> (byte % 64) & 1;
}
static inline void set_add(struct byte_set *set, unsigned byte) {
    set->bits[byte / 64] |= (uint64_t)1 << (byte % 64);
}
static inline regex term_head(const struct regexes *regexes, regex one) {
    return regexes->terms[one].kind == TERM_JOIN ? regexes->terms[one].a : one;
}
static inline regex term_tail(const struct regexes *regexes, regex one) {
    return regexes->terms[one].kind == TERM_JOIN ? regexes->terms[one].b : REGEX_EMPTY;
}

/* Keeps the first failure. Returns false. */
bool regexes_fail(struct regexes *regexes, int status);
/* Counts a step of work; false when a failure stays, such as a deadline that has passed. */
bool regexes_work(struct regexes *regexes);
/* Makes room in an array of the set; false is a failure that stays. */
bool regexes_reserve(struct regexes *regexes, void *array, size_t *capacity, size_t needed, size_t element);
bool regexes_push(struct regexes *regexes, uint32_t one);
/* Bytes in use, and bytes that are held for it. */
size_t regexes_bytes(const struct regexes *regexes);
size_t regexes_held(const struct regexes *regexes);
/* Forgets a failure and sets a new deadline. */
void regexes_resume(struct regexes *regexes, double deadline);
/* One byte out of a set. */
regex regex_set(struct regexes *regexes, const struct byte_set *set);
/* The union of the scratch from `base` on, which it takes away. */
regex regex_union(struct regexes *regexes, size_t base);
regex regex_all_of(struct regexes *regexes, const regex *list, size_t count);
/* The same language, as far as texts of at most `horizon` bytes can tell: larger counters behave as endless, and a
 * minimum beyond it as one that is not reached. */
regex regex_near(struct regexes *regexes, regex one, uint32_t horizon);
/* The plain term of another set in this one; REGEX_NOTHING when it has more than `largest` parts, or on a failure. */
regex regex_import(struct regexes *to, struct regexes *from, regex one, size_t largest);
/* The bytes with which a text may begin. */
struct byte_set regex_first(struct regexes *regexes, regex one);
/* A sweep: begins, keeps terms with what they consist of, ends. Other terms and all derivatives are dropped. */
void regexes_sweep_begin(struct regexes *regexes);
void regexes_sweep_keep(struct regexes *regexes, regex one);
void regexes_sweep_end(struct regexes *regexes);
