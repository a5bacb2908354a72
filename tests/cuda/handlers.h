/* The functions that execute instructions. `mask` holds the lanes that run; each handler says which operands it has. */
#pragma once

#include "cuda/ptx.h"

/* ---- execute.c ---- */

instruction_run run_lanes;   /* d, then up to three sources: instruction->lanes computes */
instruction_run run_compare; /* p, q or a sink, a, b, and a predicate where mode joins it: enum predicate_join */
instruction_run run_select;  /* d, a, b, p */
instruction_run run_convert; /* d, a: from and type */
instruction_run run_pair;    /* d, high, low: two numbers to one packed register */
instruction_run run_pack;    /* d, elements: the first one lowest */
instruction_run run_unpack;  /* elements, a */
instruction_run run_logic;   /* predicates: d, a, b: enum predicate_logic */
instruction_run run_lop3;    /* d, a, b, c: displacement is the table */
instruction_run run_insert;  /* bfi: d, bits, into, first, length */
instruction_run run_window;  /* cvta: d, a: mode 1 goes to generic addresses; space */
instruction_run run_nothing;

enum predicate_join { JOIN_NONE, JOIN_AND, JOIN_OR, JOIN_XOR };
enum predicate_logic { LOGIC_MOV, LOGIC_NOT, LOGIC_AND, LOGIC_OR, LOGIC_XOR };

/* ---- warp.c ---- */

instruction_run run_branch;
instruction_run run_exit;
instruction_run run_trap;
instruction_run run_barrier;      /* number, and the count of threads or 0 */
instruction_run run_warp_barrier; /* members */
instruction_run run_fence;

/* ---- access.c ---- */

instruction_run run_load;       /* vector destinations, address */
instruction_run run_load_param; /* vector destinations, address among the parameters */
instruction_run run_store;      /* address, vector sources */
instruction_run run_atomic;     /* d or a sink, address, b, and c for cas: enum atomic */
instruction_run run_copy_async; /* to, from, and the bytes to take: vector is the size */
instruction_run run_copy_commit;
instruction_run run_copy_wait; /* displacement: how many groups may stay; -1 waits for the uncommitted, too */

enum atomic {
    ATOMIC_ADD,
    ATOMIC_MIN,
    ATOMIC_MAX,
    ATOMIC_AND,
    ATOMIC_OR,
    ATOMIC_XOR,
    ATOMIC_EXCH,
    ATOMIC_CAS,
    ATOMIC_INC,
    ATOMIC_DEC
};

/* ---- collective.c ---- */

instruction_run run_shuffle; /* d, p or a sink, a, b, c, members: enum shuffle */
instruction_run run_vote;    /* d, p, members: enum vote */
instruction_run run_reduce;  /* d, a, members: enum atomic */
instruction_run run_active;  /* d */

enum shuffle { SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_BFLY, SHUFFLE_IDX };
enum vote { VOTE_BALLOT, VOTE_ANY, VOTE_ALL, VOTE_UNI };

/* ---- matrix.c ---- */

instruction_run run_load_matrix; /* 1, 2 or 4 destinations, address: mode 1 transposes */
instruction_run run_product;     /* d, a, b, c: enum product */

enum product { PRODUCT_BF16_K16, PRODUCT_BF16_K8, PRODUCT_TF32_K8, PRODUCT_TF32_K4, PRODUCT_F16_K16 };
