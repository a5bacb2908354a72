/* The engine inside: what its opening, its slots and sequences, its plans and the ranks' messages share. */
#ifndef CAMBIUM_INFER_ENGINE_INTERNAL_H
#define CAMBIUM_INFER_ENGINE_INTERNAL_H

#include "base/opening.h"
#include "infer/engine.h"
#include "infer/images.h"
#include "infer/plan.h"
#include "infer/sequences.h"
#include "infer/slots.h"
#include "pretrained/pretrained.h"

#include <limits.h>

/* An ordered set of images that texts use. */
struct slot {
    int references;
    int count;
    int images[PEFT_SLOT_IMAGES];
    uint64_t key; /* of its pages; 0: the slot is free */
    int64_t prefix_tokens, virtual_tokens;
};

/* A text whose keys and values are cached, with the slot's stem before it. */
struct sequence {
    bool is_used;
    int slot;             /* -1: the bare base */
    struct kv_root root;  /* of its pages */
    int64_t length;       /* tokens in the cache, the stem's with them */
    int64_t told;         /* of its pages, how many the plans so far have said */
    int64_t left;         /* of its pages, how many lie before every layer's window: they are others' by now */
    int32_t *pages;       /* [max_pages] a row of the page table */
    int32_t *page_tokens; /* [KV_PAGE_TOKENS] of the page that is not full */
};

/* A step that was submitted and not yet collected. */
struct flight {
    int64_t rows, wanted;
    bool is_here; /* its results are this rank's own, and not read yet */
    bool has_top;
    double start;        /* by clock_seconds */
    int32_t *result_row; /* [max_logit_rows] the row of each result */
    void *results;       /* the results, as a block: struct results_block */
    struct comm_request arriving;
};

/* Plans on their way to the other ranks. */
struct plan_message {
    struct plan_header header;
    void *block;
    struct comm_request *sent; /* [2 * (holders - 1)] header and block, of each */
};

/* The results of a step, as arrays in one block (results_at). */
struct results_block {
    int32_t *token;
    float *logprob, *label_logprob;
    int32_t *top_token;
    float *top_logprob;
};

/* An adapter that is being made an image on this rank. */
struct engine_loading {
    bool has_begun, is_ready;
    int status; /* of this rank; then why: */
    char reason[512];
    struct peft_files *files;
};

/* Only the rank that makes the plans has texts, slots and pages, and plans that travel to the others. */
struct engine_leader {
    struct kv_pool pool;
    struct sequence *sequences; /* [max_sequences] */
    struct slot *slots;         /* [slot_count] */
    int slot_count;
    uint64_t last_key;
    int opened_slot; /* of options.adapters; -1: none */
    struct plan built;
    int64_t plan_number;
    struct plan_message *messages;    /* [depth + 1] by turns; NULL where nobody follows */
    struct flight *flights;           /* [depth + 1] by turns */
    int64_t submitted, collected;     /* steps */
    double step_seconds;              /* of the last */
    const struct peft_bytes *sending; /* an adapter's files; the others have sent_bytes of them */
    size_t sent_bytes;
    bool has_ended;
};

/* A rank that follows has only what the leader sends, and the results that it sends back. */
struct engine_follower {
    void *received;             /* a plan */
    struct peft_bytes arriving; /* an adapter's files, so far */
    struct results_block made;
};

/* Every rank's part. An open engine has either a leader's part or a follower's. */
struct engine {
    struct engine_options options;
    struct pretrained base; /* the model's files, until its weights are read */
    char directory[PATH_MAX];
    struct model_text_ends ends;
    struct device *device;
    struct rank rank;
    struct comm *holders;     /* the ranks that hold this model together, the leader first; NULL: this one alone */
    int holder_count, holder; /* how many they are; this one's number among them: 0 leads */
    enum dtype dtype;
    struct model_plan plan;
    struct peft_bank *bank; /* NULL: no adapters, ever */
    struct model *model;
    struct model_kv kv;
    size_t kv_bytes;
    int64_t max_pages;   /* of a sequence */
    int64_t window;      /* tokens that a row of any layer sees; 0: all before it */
    int64_t max_changes; /* of logits, of a step */
    int32_t *page_table; /* [max_sequences, max_pages] as the plans so far say it */
    int32_t *changed;    /* [max_sequences] rows of it that the model does not have yet */
    bool *is_changed;    /* [max_sequences] */
    int64_t changed_count;
    struct plan_counts most; /* of a plan */
    void *host;              /* what the arrays of steps stand in */
    struct engine_loading loading;
    struct engine_leader *leader;     /* NULL on ranks that follow */
    struct engine_follower *follower; /* NULL on the leader */
};

/* Whether this rank makes the plans: known from the grid, also of an engine that is only planned. */
static inline bool engine_is_leader(const struct engine *engine) {
    return engine->holder == 0;
}
/* Pages that this number of a sequence's tokens fill. */
static inline int64_t engine_pages_of(int64_t tokens) {
    return (tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
}
/* Steps that may be under way at once: one a stage. */
static inline int engine_flights(const struct engine *engine) {
    return engine_depth(engine) + 1;
}

/* engine_open.c */
/* The steps of the opening. The errors of a step are those of what it opens. */
extern const struct opening engine_opening;

/* The opening's code that planning runs too, in this order. Steps take an engine as void. */
/* Opens the model's files, or takes random weights: then there are no tensors. Fixes the sizes that follow from the
 * options and the model. No rank is needed. */
int engine_find_model(void *engine);
/* The number of the rank, open or sketched, among those that hold the model. */
void engine_find_holders(struct engine *engine);
/* The bank of the rank, if it has one. */
int engine_open_bank(void *engine);
/* The options of the rank's model. They have the bank's hooks. */
int engine_model_options(const struct engine *engine, struct model_options *options);
/* Bytes of the host for the arrays of steps, of an engine that is open or only planned. */
size_t engine_array_bytes(const struct engine *engine);
/* Pages that this rank can have, of what all sequences fill at most. */
int64_t engine_count_pages(const struct engine *engine);
/* STATUS_USAGE where there are none. */
int engine_check_pages(const struct engine *engine, int64_t pages);

/* engine_plan.c */
/* The plan of an engine whose rank, bank and model are open or sketched, with its pages and the bytes of its images. */
void engine_fill_plan(const struct engine *engine, int64_t pages, size_t images, struct engine_plan *plan);

/* sequence.c */
/* Gives back the pages of a sequence that lie before the window of its next row; the steps that read them have been
 * submitted. */
void engine_leave_pages(struct engine *engine, struct sequence *sequence);

/* slot.c */
const struct slot *engine_slot(const struct engine *engine, int slot); /* of -1 one without images */
/* No slot has the image any more, and none of its pages can be found. */
void engine_forget_slots(struct engine *engine, int image);
/* The id of a slot's virtual token. */
int32_t slot_virtual_id(const struct engine *engine, const struct slot *slot, int64_t number);

/* images.c */
int64_t engine_piece_bytes(void);
/* A step of the opening: the adapters of the options, all ranks together. */
int engine_open_images(void *engine);
void engine_close_images(void *engine);
/* Bytes of this rank's images of the adapters that the options name, and of those to come. */
int engine_plan_images(struct engine *engine, size_t *bytes);
/* A follower's part of plans about images. */
int engine_take_bytes(struct engine *engine, const struct plan *plan);
int engine_make_image(struct engine *engine);
/* Goes on with an image that is being made, for an eighth of a step. */
void engine_load_beside(struct engine *engine, double step_seconds);
int engine_forget_image(struct engine *engine, int image);

/* run.c */
/* The results of a step as a block: sets the arrays' places in it. */
struct results_block results_at(void *block, int64_t wanted);
/* Queues a plan of a step on this rank; rows of prefixes alone have run when it returns. */
int engine_run_plan(struct engine *engine, const struct plan *plan);
/* Waits for the oldest plan of this rank with results to read, where model_gives_results. */
int engine_read_results(struct engine *engine, const struct results_block *made);

/* link.c */
/* A step of the opening: memory for plans on their way. */
int engine_open_link(void *engine);
void engine_close_link(void *engine);
/* Bytes of the host that it takes for plans. */
size_t engine_link_bytes(const struct engine *engine);
/* The leader's plan to all others; `plan` may change when it returns. */
int engine_send_plan(struct engine *engine, const struct plan *plan);
/* The leader is ready for a step's results before it sends the plan, else ranks that send rows and results would wait
 * for each other. */
int engine_expect_results(struct engine *engine, struct flight *flight);

#endif
