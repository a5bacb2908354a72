/* The engine inside: what its opening, its sequences and its step share. */
#ifndef CAMBIUM_INFER_ENGINE_INTERNAL_H
#define CAMBIUM_INFER_ENGINE_INTERNAL_H

#include "infer/infer.h"
#include "peft/bank.h"

#include <limits.h>

/* A text whose keys and values are cached. Slots of adapters have one each, their stem: what stands before the texts,
 * the prefix and the virtual tokens. It is computed at the opening; texts start as forks of it. */
struct sequence {
    bool is_used;
    int slot;       /* of its rows' adapters; -1: the bare base */
    int64_t length; /* tokens in the cache */
    int32_t *pages; /* [max_pages] a row of the page table */
    uint64_t *seen; /* [seen_words] ids that were run, for the repetition penalty */
};

struct engine {
    struct engine_options options;
    char directory[PATH_MAX];
    int32_t eos_id;
    struct device *device;
    struct rank rank;
    struct comm *holders; /* the ranks that hold this model together; NULL: this one alone */
    struct model_plan plan;
    struct peft_files *files; /* of the adapters; NULL: none */
    struct peft_bank *bank;
    int images[PEFT_SLOT_IMAGES];
    int image_count;
    struct model *model;
    struct kv_pool pool;
    struct model_kv kv;
    size_t kv_bytes;
    int64_t max_pages;  /* of a sequence */
    int64_t seen_words; /* of a bit set over the vocabulary */
    int slot_count;     /* of adapters: 0 or 1 */
    int64_t sequence_count;
    struct sequence *sequences; /* [sequence_count] the callers' max_sequences, behind them the slots' stems */
    int32_t *page_table;        /* [sequence_count, max_pages] */
    uint64_t *seen;             /* host: [sequence_count, seen_words] */
    /* One step's arrays, [max_rows] and [max_logit_rows]. */
    int32_t *tokens, *positions, *row_sequence, *places, *logit_row, *labels, *drawn, *result_row;
    struct peft_segment *segments;
    struct sample_row *sample;
    struct sample_change *changes; /* [model_max_changes] */
    float *logprob, *label_logprob;
    struct engine_result *given; /* [max_logit_rows] */
};

/* sequence.c */
/* Makes room for one token more; the place of its key and value, as in struct model_step. There is a free page. */
int32_t engine_extend(struct engine *engine, struct sequence *sequence);

/* stem.c */
/* The number of the sequence that is a slot's stem. */
int engine_stem(const struct engine *engine, int slot);
/* Tokens of a stem: those of the prefix, which have no rows of their own, and the virtual ones. */
int64_t engine_prefix_tokens(const struct engine *engine);
int64_t engine_virtual_tokens(const struct engine *engine);
/* The id of a virtual token, counted over all adapters. */
int32_t engine_virtual_id(const struct engine *engine, int64_t number);
int64_t engine_stem_tokens(const struct engine *engine);
/* Computes the stems of all slots, when everything else is open. All ranks together. */
int engine_make_stems(struct engine *engine);

/* step.c */
/* engine_step of rows that are known to fit, and of the virtual tokens: ids behind the vocabulary. */
int engine_run_rows(struct engine *engine, const struct engine_row *rows, int64_t count, struct engine_result *results);

#endif
