/* Programs of rules: what the automaton follows. A step has one meaning; the steps of a rule end in STEP_END. */
#pragma once

#include "rules-internal.h"
#include "terms-internal.h"

enum step_kind {
    STEP_FINISH,   /* the rule is complete */
    STEP_TERMINAL, /* a: a term */
    STEP_UNIQUE,   /* a: a term; its text is new in the scope */
    STEP_SPECIAL,  /* a: an id */
    STEP_CALL,     /* a: a rule */
    STEP_SPLIT,    /* continues at a and at next */
    STEP_REPEAT,   /* by the counter: a (the body), next (the end), or both */
    STEP_AGAIN,    /* counts a body, then next (the repeat) */
};
enum { STEP_END = 0 /* the number of the one step that ends rules */ };
struct step {
    uint8_t kind;
    bool is_last; /* a call that nothing follows */
    uint32_t a, next;
    uint32_t rule; /* that has it */
    int32_t least, most;
};
struct program_rule {
    rule_node node;
    uint32_t first;
    bool is_scope, is_repeat, is_nullable;
    int32_t least, most; /* of a repeat */
    uint32_t round;      /* of a repeat: a round that counts has at least this number of bytes, which is 1 or more */
};
struct program {
    struct step *steps;
    size_t step_count;
    struct program_rule *rules;
    size_t rule_count;
    uint32_t root;
};

/* The program, after rules_finish. It stays the rules'. */
const struct program *rules_program(const struct rules *rules);
/* Bytes in use. */
size_t rules_bytes(const struct rules *rules);
