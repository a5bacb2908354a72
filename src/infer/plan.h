/* A plan: one step of the ranks that hold a model together, or a change of what they hold, with everything resolved.
 *
 * The first rank, the leader, alone has sequences, pages and samplers; it makes plans and runs them itself. The others
 * get them as messages, in the same order, and run them: they have the model, the cache and a page table, and know no
 * text. A plan is a header of fixed size and a block that holds its arrays, one after the other. */
#ifndef CAMBIUM_INFER_PLAN_H
#define CAMBIUM_INFER_PLAN_H

#include "model/model.h"
#include "peft/bank.h"

enum plan_kind {
    PLAN_STEP,
    PLAN_BYTES, /* a piece of an adapter's files */
    PLAN_LOAD,  /* the adapter whose files have all come becomes an image, if all ranks can make it */
    PLAN_DROP,  /* an image goes */
    PLAN_END,   /* there are no more plans */
};

/* Page `page` stands at `index` in the row `sequence` of the page table. */
struct plan_page {
    int32_t sequence, index, page;
};
/* Tokens first .. first + count - 1 of an image's prefix go to places[first_place ..]. */
struct plan_prefix {
    int32_t image;
    int64_t first, count, first_place;
};

struct plan_counts {
    int64_t rows, segments, pages, prefixes, places, logit_rows, changes, bytes;
};

struct plan_header {
    int64_t kind, number;
    struct plan_counts counts;
    bool has_labels, draws, has_top; /* of a step: some row does */
    int32_t image;                   /* PLAN_DROP */
    int64_t offset, total;           /* PLAN_BYTES: where the bytes stand, and how many come in all */
};

/* Host memory. */
struct plan {
    struct plan_header header;
    int32_t *tokens, *positions, *sequence, *cached, *place; /* [rows] as in struct model_step */
    struct peft_segment *segments;
    struct plan_page *pages;
    struct plan_prefix *prefixes;
    int32_t *prefix_sequence; /* [prefixes] of each; the leader's to know */
    int32_t *places;
    int32_t *logit_row, *labels; /* [logit_rows] */
    struct sample_row *sample;   /* [logit_rows] */
    struct sample_change *changes;
    char *bytes;
};

/* Bytes of a block with these counts of each array. */
size_t plan_block_bytes(const struct plan_counts *counts);
/* Points the plan's arrays into a block, which is aligned to ARENA_ALIGNMENT, as the counts say. */
void plan_place(struct plan *plan, const struct plan_counts *counts, void *block);
/* The arrays, as far as the header counts them, into a block of plan_block_bytes(&plan->header.counts). */
void plan_pack(const struct plan *plan, void *block);
/* STATUS_INVALID where a header counts more than `most`, or less than nothing. */
int plan_check(const struct plan_header *header, const struct plan_counts *most);

#endif
