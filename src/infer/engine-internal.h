/* Internals of the engine, shared by its opening, slots, sequences, plans and messages. */
#pragma once

#include "base/opening.h"
#include "infer/engine.h"
#include "infer/images.h"
#include "infer/plan.h"
#include "infer/receipt.h"
#include "infer/sequences.h"
#include "infer/slots.h"
#include "pretrained/encodings.h"

/* An ordered set of images that sequences use. */
struct slot {
    int references;
    int count;
    int images[PEFT_SLOT_IMAGES];
    uint64_t key;          /* of its pages; 0: the slot is free */
    int64_t prefix_tokens; /* virtual tokens of prefix tuning, which come first: keys and values without rows of the
                              model */
    int64_t row_tokens;    /* virtual tokens of the other methods, which run as rows */
};

/* A text whose keys and values are cached, after the slot's virtual tokens. */
struct sequence {
    bool is_used;
    int slot;             /* -1: the bare base */
    struct kv_root root;  /* of its pages */
    int64_t length;       /* tokens in the cache, including virtual tokens */
    int64_t planned;      /* number of its pages that plans have sent to the other ranks */
    int64_t released;     /* number of its pages before every layer's window, already given back */
    int32_t *pages;       /* [max_pages] a row of the page table */
    int32_t *page_tokens; /* [KV_PAGE_TOKENS] tokens of the last page, which is not full */
};

/* A step that was submitted and not yet collected. */
struct flight {
    int64_t rows, wanted;
    bool is_here;    /* its results are on this rank, and not read yet */
    bool has_landed; /* its results are in `results` */
    bool has_top;
    double start;                    /* clock_seconds */
    int32_t *result_row;             /* [max_logit_rows] index of each result's row */
    struct constraint **constraints; /* [max_masks] of the step's masks */
    void *results;                   /* the results, as a block: model_results_at */
    struct comm_request arriving;
};

/* Plans on their way to the other ranks. */
struct plan_message {
    struct plan_header header;
    void *block;
    struct comm_request *sent; /* [2 * (holders - 1)] header and block for each rank */
    void *masks;               /* after the block, for a later stage, which draws; else NULL */
    struct comm_request masks_sent;
};

/* An image that is being made on this rank. */
struct engine_loading {
    bool has_begun, is_ready;
    int status; /* of this rank, and its message: */
    char reason[512];
    struct peft_files *files;
};

/* The leader's part: sequences, slots, pages, and plans on their way to the other ranks. */
struct engine_leader {
    struct kv_pool pool;
    struct sequence *sequences; /* [sequences] of the engine */
    struct slot *slots;         /* [slot_count] */
    int slot_count;
    uint64_t last_key;
    int opened_slot;           /* of options.adapters; -1: none */
    struct peft_bytes *opened; /* [opened_count] their files, until their receipts are replayed */
    size_t opened_count;
    struct receipt_text *base; /* the base's log-probabilities of golden texts; NULL: not computed yet */
    struct plan built;
    int64_t plan_number;
    struct plan_message *messages;    /* [depth + 1] a ring; NULL when no rank follows */
    struct flight *flights;           /* [depth + 1] a ring */
    int64_t submitted, collected;     /* steps */
    double step_seconds;              /* of the last */
    double patience;                  /* about the minimum seconds of recent steps; masks may take them */
    const struct peft_bytes *sending; /* an adapter's files, of which sent_bytes were sent */
    size_t sent_bytes;
    bool has_ended;
};

/* A follower's part: what the leader sent, and the results to return. */
struct engine_follower {
    void *received;             /* a plan */
    struct peft_bytes arriving; /* the part of an adapter's files that has arrived */
    void *results;              /* of a step, as a block */
    int64_t masks;              /* of the last plan */
};

enum { ENGINE_RUNS = 64 };
struct tuning_run;

/* A base of an engine on any rank. When open it has either a leader's part or a follower's. */
struct engine {
    struct engine_options options;
    struct engine_shared *shared;
    struct pretrained files; /* the model's files; closed after the weights are read */
    struct pretrained_encodings encodings;
    struct peft_quantization quantization;
    char quantization_text[sizeof((struct ckpt_quantization){0}.text)];
    char directory[PATH_MAX];
    struct model_text_ends ends;
    enum dtype dtype;
    struct model_plan plan;
    struct peft_bank *bank; /* NULL: no adapters can be loaded */
    struct base *base;      /* the model on this rank */
    struct inference_runner *runner;
    size_t images;           /* bytes of the options' adapters and of adapter_memory on this rank */
    int64_t pages;           /* of the cache */
    int64_t kept;            /* pages, and sequences, that only golden texts take (receipt.h); 0 without adapters */
    int64_t sequences;       /* options.max_sequences, and those kept */
    int64_t max_pages;       /* of a sequence */
    int64_t window;          /* tokens that a row sees in every layer; 0: all before it */
    int64_t max_changes;     /* limit of changes of logits in a step */
    int64_t max_masks;       /* limit of masks in a step */
    int64_t mask_words;      /* of each */
    struct plan_counts most; /* limits of a plan */
    void *host;              /* memory of the arrays of steps */
    struct engine_loading loading;
    struct engine_graphs graphs;
    struct tuning_run *runs[ENGINE_RUNS]; /* by number; NULL: free */
    struct engine_leader *leader;         /* NULL on ranks that follow */
    struct engine_follower *follower;     /* NULL on the leader */
};

/* The part of an engine on this rank that its bases share. The first base's options say how it opens. */
struct engine_shared {
    struct device *device;
    struct rank rank;
    struct comm *holders;     /* the ranks that hold the models, the leader first; NULL: only this one */
    int holder_count, holder; /* their number, and this rank's number among them; 0 leads */
    int number;               /* of the rank, where it is only planned */
    size_t tuned;             /* bytes of the tuning runs of all bases on this rank */
    int count;
    struct engine bases[]; /* [count] */
};

/* Returns the pages that this number of tokens takes. */
static inline int64_t engine_pages_of(int64_t tokens) {
    return (tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
}
/* Returns how many steps may be under way or being collected: one for each stage, and one more. */
static inline int engine_flights(const struct engine *engine) {
    return engine_depth(engine) + 1;
}

/* ---- engine.c ---- */

/* Makes an engine with a base for each of the options' list, without opening any. *engine is the first one; free its
 * `shared`. STATUS_MEMORY. */
int engine_allocate(const struct engine_options *options, struct engine **engine);

/* ---- engine_open.c ---- */

/* The steps of the opening. A step returns the errors of what it opens. */
extern const struct opening engine_opening;
/* The opening of an engine that is only planned: the models' files, and a sketch of the device. */
extern const struct opening engine_planned_opening;
/* Its second part: sketches of rank `shared->number`, and of the banks and models on it. */
extern const struct opening engine_sketch_opening;

/* Returns the host bytes of the arrays of steps, for an engine that is open or only planned. */
size_t engine_array_bytes(const struct engine *engine);
/* Returns the number of pages that this rank can hold, at most as many as all sequences need. */
int64_t engine_count_pages(const struct engine *engine);
/* Refuses an engine without pages. STATUS_USAGE. */
int engine_check_pages(const struct engine *engine, int64_t pages);

/* ---- step.c ---- */

/* Submits a step of golden texts and collects it, also while other steps are under way. */
int engine_step_between(struct engine *engine, const struct engine_row *rows, int64_t count,
                        struct engine_result *results);

/* Writes the masks of the leader's last step, as struct model_masks has it. It waits for them while the step runs. */
int engine_fill_masks(void *engine, uint32_t *masks);

/* ---- sequence.c ---- */

/* Releases the pages of a sequence before the window of its next row, whose position is `next`. The steps that read
 * them were submitted. */
void engine_leave_pages(struct engine *engine, struct sequence *sequence, int64_t next);

/* ---- slot.c ---- */

/* Returns a slot; for -1 one without images. */
const struct slot *engine_slot(const struct engine *engine, int slot);
/* Removes all slots with the image, and makes their pages unfindable. */
void engine_forget_slots(struct engine *engine, int image);
/* Returns the id of a slot's virtual token; `number` counts those that run as rows. */
int32_t slot_virtual_id(const struct engine *engine, const struct slot *slot, int64_t number);

/* ---- images.c ---- */

enum { ENGINE_PIECE_BYTES = 256 << 10 }; /* of the pieces in which files are sent */
/* A step of the opening: loads the options' adapters on all ranks together. */
int engine_open_images(void *engine);
void engine_close_images(void *engine);
/* Computes engine->images. */
int engine_plan_images(struct engine *engine);
/* Run a follower's part of PLAN_BYTES and PLAN_LOAD. */
int engine_take_bytes(struct engine *engine, const struct plan *plan);
int engine_make_image(struct engine *engine);
/* Continues an image that is being made, for an eighth of a step's time. */
void engine_load_beside(struct engine *engine, double step_seconds);
/* Frees an image on this rank. */
int engine_forget_image(struct engine *engine, int image);

/* ---- run.c ---- */

/* Queues the plan of a step on this rank. A plan with only positions of prefixes is complete when this returns. */
int engine_run_plan(struct engine *engine, const struct plan *plan);

/* ---- tuning.c ---- */

/* Runs a follower's part of PLAN_TUNE. A run's own failures are the leader's to report. */
int engine_tune(struct engine *engine, const struct plan_header *header);
/* Frees what is left of the runs on this rank. */
void engine_close_runs(void *engine);

/* ---- link.c ---- */

/* A step of the opening: allocates memory for plans on their way. */
int engine_open_link(void *engine);
void engine_close_link(void *engine);
/* Returns the host bytes of that memory. */
size_t engine_link_bytes(const struct engine *engine);
/* Sends the leader's plan to all other ranks; `plan` may change afterwards. */
int engine_send_plan(struct engine *engine, const struct plan *plan);
/* Sends the masks of the leader's last plan to the rank that draws, which is another one. */
int engine_send_masks(struct engine *engine);
/* Receives the masks of a follower's last plan, as struct model_masks has it. */
int engine_receive_masks(void *engine, uint32_t *masks);
/* Posts the leader's receive for a step's results. It must do so before it sends the plan: otherwise ranks that send
 * rows and results would wait for each other. */
int engine_expect_results(struct engine *engine, struct flight *flight);
