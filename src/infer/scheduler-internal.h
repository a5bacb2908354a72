/* Internals of the scheduler: requests and their completions, steps under way, shares of clients, cost of steps. */
#pragma once

#include "base/base.h"
#include "infer/scheduler.h"

/* ---- fairness: scheduler_share.c ---- */

/* The service that a client, or an adapter of a client, has received. Clients are the children of a root. */
struct share {
    uint64_t id;
    double weight, counter;   /* counter: virtual cost divided by weight */
    int64_t completions;      /* number that waits or runs */
    double last_counter;      /* the counter of the child that was active last */
    struct completion *least; /* of a client: its least important completion; `above` links the others */
    /* A client's, scratch of a plan: */
    struct completion *due;    /* the completion to start next */
    struct completion *prompt; /* the completion whose prefill begins or continues next */
    double rows, work;         /* its prefill in the step */
    struct share *children, *next;
};
/* Returns the child with this id, after making it if necessary; NULL: out of memory. */
struct share *share_find(struct share *parent, uint64_t id, double weight);
/* Counts one more completion. An idle child's counter is raised to the minimum counter of the active ones. */
void share_begin(struct share *parent, struct share *share);
/* Counts one completion less. */
void share_end(struct share *parent, struct share *share);
void share_close(struct share *root);

/* ---- costs: scheduler_cost.c ---- */

enum { COST_BUCKETS = 32 };

/* The cost of steps in seconds, learned from steps that ran. */
struct step_cost {
    int64_t max_decode;
    double *decode;              /* [max_decode + 1] of a step with only this many decode rows; 0: not known */
    double seconds, work;        /* decaying sums over prefill rows */
    int32_t mixed[COST_BUCKETS]; /* steps with prefill since the last without, by the logarithm of the decode rows; -1:
                                    none without yet */
};
/* Prepares for steps of up to max_decode decode rows. STATUS_MEMORY. */
int step_cost_open(struct step_cost *cost, int64_t max_decode);
void step_cost_close(struct step_cost *cost);
/* Learns from a step. `work`: cost of its prefill rows, in units of a row without earlier rows. */
void step_cost_learn(struct step_cost *cost, int64_t decode_rows, int64_t prefill_rows, double work, double seconds);
/* Returns the seconds of a step with `rows` decode rows; for 0 rows, the cost that every step has. 0: not known. */
double step_cost_decode(const struct step_cost *cost, int64_t rows);
/* Returns the seconds of a prefill row without earlier rows; 0: not known. */
double step_cost_prefill_row(const struct step_cost *cost);
/* True when a step of about `decode_rows` rows was not measured without prefill, or not recently. */
bool step_cost_is_old(const struct step_cost *cost, int64_t decode_rows);

/* ---- requests ---- */

enum completion_state { COMPLETION_WAITS, COMPLETION_RUNS, COMPLETION_ENDED };

/* A completion: a choice of a request. Its rows are those of the virtual tokens, the prompt and the output. */
struct completion {
    struct request *request;
    int64_t choice;
    uint64_t serial; /* number in the order of submission */
    /* Importance among all completions; lower numbers are more important. At first it is the serial. A client's
     * completion of higher priority takes the place of a less urgent one, and those below it move down by one among the
     * client's places. */
    uint64_t place;
    struct completion *above, *below; /* neighbours by place among the client's completions */
    enum completion_state state;
    struct completion *previous, *next; /* links of the waiting list */
    int32_t *tokens;                    /* [prompt_length + max_tokens] */
    int64_t count;                      /* tokens so far */
    int sequence;                       /* while it runs */
    int64_t submitted;                  /* rows of its sequence that steps have had */
    int64_t under_way;                  /* steps with its rows that were not collected */
    int64_t turn;                       /* the scheduler's `turns` when it last had a decode row */
    int64_t blocked_at;                 /* the scheduler's `closed` when no pages were free for it */
    int64_t charged;                    /* rows of its input that its client was charged for end here */
    struct step_completion *part;       /* its part of the step being planned; NULL: none */
    bool is_ending;                     /* it ends when none of its steps is under way */
    enum scheduler_end reason;
    struct sampling sampling;
    struct sampler sampler;
    struct constraint *constraint; /* NULL: none */
    bool is_again;                 /* the next row had no mask when it ran before */
    bool is_full;                  /* it has max_tokens, and its constraint says whether that is its end */
    bool is_held;                  /* in the step being planned it waits for the mask */
};

struct request {
    uint64_t number;
    struct request *previous, *next;
    struct scheduler_request asked; /* with copied arrays and defaults filled in */
    struct share *client, *adapter;
    bool is_cancelled, is_paused, has_started;
    int64_t queued_tokens;  /* of its first choice, not yet prefilled */
    int64_t given_logprobs; /* the next prompt token to report */
    int64_t ended;          /* completions that have ended */
    int32_t *ids;
    struct completion completion[];
};

static inline int64_t completion_virtual_tokens(const struct completion *completion) {
    return completion->request->asked.virtual_tokens;
}
static inline bool completion_has_output(const struct completion *completion) {
    return completion->count > completion->request->asked.prompt_length;
}
/* Returns the number of rows whose tokens are known. The last of them draws the next token, if one is wanted. */
static inline int64_t completion_goal(const struct completion *completion) {
    return completion_virtual_tokens(completion) + completion->count - (completion->request->asked.max_tokens == 0);
}
/* True when it is decoding: it runs, has output, and needs at most one row to draw the next token. */
static inline bool completion_is_decoding(const struct completion *completion) {
    return completion->state == COMPLETION_RUNS && completion_has_output(completion) &&
           completion_goal(completion) - completion->submitted <= 1;
}
static inline bool completion_is_complete(const struct completion *completion) {
    return completion->request->asked.max_tokens == 0 && completion->submitted >= completion_goal(completion);
}
/* True when this row must report the log-probability of a prompt token that was not reported before. */
static inline bool completion_row_is_scored(const struct completion *completion, int64_t row) {
    const struct scheduler_request *asked = &completion->request->asked;
    int64_t index = row + 1 - asked->virtual_tokens;
    return asked->wants_prompt_logprobs && completion->choice == 0 && index >= completion->request->given_logprobs &&
           index < asked->prompt_length;
}
static inline bool completion_row_draws(const struct completion *completion, int64_t row) {
    return row == completion_goal(completion) - 1 && completion->request->asked.max_tokens > 0;
}

/* ---- the scheduler ---- */

/* The rows of one completion in a step. */
struct step_completion {
    struct completion *completion;
    int64_t first_row; /* index in the step */
    int64_t start;     /* index of that row in the sequence */
    int64_t rows;
    bool draws;
};

struct step {
    struct step_completion *completion; /* [max_sequences] */
    int64_t completion_count, rows, logit_rows, decode_rows;
    double prefill_work; /* cost of the prefill rows, in units of a row without earlier rows */
    double submitted_at;
};

struct scheduler {
    struct scheduler_engine engine;
    struct scheduler_options options;
    int failure; /* status of a failed engine; all requests have ended */
    struct request *requests, *last_request;
    struct completion *waiting, *last_waiting;
    struct completion **running; /* [max_sequences] by importance */
    int64_t running_count, waiting_count;
    struct completion **ready; /* [max_sequences] scratch of a plan: completions that can decode */
    struct share everybody;
    struct step_cost cost;
    struct step *step; /* [depth] a ring */
    int first, under_way;
    double collected_at, last_seconds; /* of the last step that was collected */
    double planned_at;                 /* clock_seconds of the plan */
    bool has_settled;                  /* planning gave a completion tokens, or ended it */
    struct engine_row *rows;           /* [max_rows] */
    struct engine_result *results;
    uint64_t last_number, last_serial;
    int64_t closed; /* sequences closed so far; after a change more pages may be free */
    int64_t queued_tokens, done_requests;
    int64_t turns;
    int64_t planned_pages;      /* pages that the step being planned takes */
    struct completion *stalled; /* the most important completion that found no pages in the last plan */
    struct scheduler_stats stats;
};

/* True when `a` is more important than `b` and gets pages and rows first. */
static inline bool completion_is_before(const struct completion *a, const struct completion *b) {
    return a->place < b->place;
}
/* True when both belong to one client and `b` has the higher priority. */
static inline bool completion_yields_to(const struct completion *a, const struct completion *b) {
    return a->request->client == b->request->client && a->request->asked.priority > b->request->asked.priority;
}
/* Sorts completion[count] by is_first; stable, and fast when nearly sorted. */
static inline void completion_sort(struct completion **completion, int64_t count,
                                   bool (*is_first)(const struct completion *a, const struct completion *b)) {
    for (int64_t i = 1; i < count; i++) {
        struct completion *moved = completion[i];
        int64_t at = i;
        for (; at > 0 && is_first(moved, completion[at - 1]); at--)
            completion[at] = completion[at - 1];
        completion[at] = moved;
    }
}

/* ---- completions: scheduler_completion.c ---- */ /* Gives a new completion, whose serial is set, its place among its
                                                 client's and among all. */
void completion_take_place(struct scheduler *s, struct completion *completion);
/* Puts it into the waiting list. */
void completion_wait(struct scheduler *s, struct completion *completion);
/* Moves it from waiting to running, with an open sequence. */
void completion_run(struct scheduler *s, struct completion *completion, int sequence, int64_t cached);
/* Closes its sequence and puts it back into the waiting list. None of its steps is under way. */
void completion_preempt(struct scheduler *s, struct completion *completion);
/* Ends it, now or when none of its steps is under way. */
void completion_end(struct scheduler *s, struct completion *completion, enum scheduler_end reason);
/* Gives a running completion what its constraint decides without a draw, forced tokens and the end. It waits for the
 * mask until then (clock_seconds). */
void completion_settle(struct scheduler *s, struct completion *completion, double until);
/* Reports the results of its rows in a step. */
void completion_report(struct scheduler *s, const struct step_completion *of, const struct engine_result *results);

/* Adds a virtual cost to the counters of its client and its adapter. */
void request_charge(struct request *request, double cost);

/* ---- planning: scheduler_plan.c ---- */ /* Plans a step and submits it. Returns 1, 0 when there are no rows, or a
                                              negative status. */
int scheduler_plan(struct scheduler *s);

/* Frees a request whose completions have ended: scheduler_request.c. */
void request_free(struct request *request);
