/* A plan: one step of the ranks that hold a model, or a change of their images, with everything resolved.
 *
 * Only the first rank, the leader, has sequences, pages and samplers. It makes plans and runs them. The other ranks get
 * the plans as messages in the same order and run them; they have the model, the cache and a page table. A plan is a
 * header of fixed size and a block with its arrays, one after the other. */
#pragma once

#include "model/model.h"
#include "peft/bank.h"

enum plan_kind {
    PLAN_STEP,
    PLAN_BYTES, /* a piece of an adapter's files */
    PLAN_LOAD,  /* make an image of the complete files, if all ranks can */
    PLAN_DROP,  /* free an image */
    PLAN_TUNE,  /* work on a tuning run */
    PLAN_END,   /* the last plan */
};

/* Copies positions first .. first + count - 1 of an image's prefix to places[first_place ..]. */
struct plan_prefix {
    int32_t image;
    int64_t first, count, first_place;
};

struct plan_counts {
    int64_t rows, segments, pages, prefixes, places, logit_rows, changes, bytes;
};

struct plan_header {
    int64_t kind, base, number; /* base: of the engine's list */
    struct plan_counts counts;
    bool has_labels, draws, has_top; /* PLAN_STEP: true if it holds for any row */
    int64_t masks;                   /* PLAN_STEP: of its rows; they follow the plan, to the rank that draws */
    int32_t image;                   /* PLAN_DROP */
    int32_t run, task;               /* PLAN_TUNE: number of the run, and enum tuning_task */
    struct slice_limit limit;        /* PLAN_TUNE: of a slice */
    int64_t offset, total;           /* PLAN_BYTES: position of this piece, and size of all files */
};

/* Host memory. */
struct plan {
    struct plan_header header;
    int32_t *tokens, *positions, *sequence, *cached, *place; /* [rows] as in struct model_step */
    struct peft_segment *segments;
    struct id_change *pages; /* of the page table */
    struct plan_prefix *prefixes;
    int32_t *prefix_sequence; /* [prefixes] its sequence; only the leader uses it */
    int32_t *places;
    int32_t *logit_row, *labels; /* [logit_rows] */
    struct sample_row *sample;   /* [logit_rows] */
    struct sample_change *changes;
    char *bytes;
};

/* Returns the bytes of a block with these counts. */
size_t plan_block_bytes(const struct plan_counts *counts);
/* Points the plan's arrays into a block of plan_block_bytes(counts), aligned to ARENA_ALIGNMENT. */
void plan_place(struct plan *plan, const struct plan_counts *counts, void *block);
/* Copies the plan's arrays into a block of plan_block_bytes(&plan->header.counts). */
void plan_pack(const struct plan *plan, void *block);
/* Checks a received header. STATUS_INVALID when a count is negative or above `most`, or there are more than `masks`
 * masks. */
int plan_check(const struct plan_header *header, const struct plan_counts *most, int64_t masks);
