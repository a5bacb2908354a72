/* The layouts that a search tries: their enumeration, and the configuration of each. */
#pragma once

#include "planner/search.h"

/* The kinds of recomputation, as the run's keys express them. */
enum space_recompute {
    SPACE_KEEP,
    SPACE_NORMS,       /* selective: layernorm */
    SPACE_ACTIVATIONS, /* selective: mlp_act */
    SPACE_SELECTIVE,   /* selective: both */
    SPACE_ATTENTION,   /* selective: core_attn, which the stack of 2022 stores */
    SPACE_BLOCK,       /* the first layers of each chunk */
    SPACE_FULL,        /* all layers */
    SPACE_RECOMPUTES
};

struct candidate {
    int tensor, pipeline, chunks, micro_batch, last; /* last: layers of the last stage; 0: like the others */
    bool counts_embedding, counts_loss;              /* as layers, when layers are dealt to stages */
    bool is_sequence;
    bool is_fp8; /* besides the same layout in the run's precision */
    enum sharding sharding;
    enum space_recompute recompute;
    int block;    /* layers of SPACE_BLOCK */
    int partial;  /* of SPACE_BLOCK: micro batches that recompute only these, of those held at once; 0: all do */
    double least; /* seconds of a step */
};

/* Calls `add` for every candidate; its failure ends the enumeration and is returned. */
int space_list(const struct search *search, int ranks, int (*add)(void *context, const struct candidate *candidate),
               void *context);
/* Returns the candidate of SEARCH_RUN, with the layout that the run has. */
struct candidate space_of_run(const struct run_config *run);
/* Sets the keys in which candidates of SEARCH_RUN differ: precision and sharding. */
void space_apply_also(const struct candidate *candidate, struct run_config *run);
/* Sets all keys of a candidate. */
void space_apply(const struct candidate *candidate, struct run_config *run);
/* Returns true if the run has the fixed keys' values. */
bool space_has_fixed(const struct search *search, const struct run_config *run);
