/* The scheduler inside: requests and their texts, the steps under way, who has had how much, what steps cost. */
#ifndef CAMBIUM_INFER_SCHEDULER_INTERNAL_H
#define CAMBIUM_INFER_SCHEDULER_INTERNAL_H

#include "base/base.h"
#include "infer/scheduler.h"

#include <string.h>

/* ---- fairness: scheduler_share.c ---- */

/* The share that a client (of the root), or an adapter of a client, has had so far. */
struct share {
    uint64_t id;
    double weight, counter; /* virtual cost by weight */
    int64_t texts;          /* that wait or run */
    double last_left;       /* the counter of the child that was active last */
    struct text *least;     /* of a client: the least important of its texts, from which `above` leads to the others */
    struct text *due;       /* of a client: scratch of a plan, the text that begins next */
    struct share *children, *next;
};
/* The child with this id, which is made where there is none; NULL: out of memory. */
struct share *share_find(struct share *parent, uint64_t id, double weight);
/* A text came; a child that was idle begins with no less than the least of the active ones. */
void share_begin(struct share *parent, struct share *share);
void share_end(struct share *parent, struct share *share);
void share_close(struct share *root);

/* ---- costs: scheduler_cost.c ---- */

enum { COST_BUCKETS = 32 };

/* Seconds of steps, learned from steps that were run. */
struct step_cost {
    int64_t max_decode;
    double *decode;       /* [max_decode + 1] a step of this number of decode rows alone; 0: not known */
    double seconds, work; /* sums over the prefill rows of late, older ones counting less */
    int32_t
        mixed[COST_BUCKETS]; /* steps with prefill since one without, by the logarithm of the decode rows; -1: never */
};
int step_cost_open(struct step_cost *cost, int64_t max_decode);
void step_cost_close(struct step_cost *cost);
/* `work` of the prefill rows, in rows with nothing before them. */
void step_cost_learn(struct step_cost *cost, int64_t decode_rows, int64_t prefill_rows, double work, double seconds);
/* For 0 rows the cost that every step has. 0: not known. */
double step_cost_decode(const struct step_cost *cost, int64_t rows);
/* The cost of a row with nothing before it. */
double step_cost_prefill_row(const struct step_cost *cost);
/* Whether a step of `decode_rows` has to be measured without prefill: nearly as many were never, or not of late.
 */
bool step_cost_is_old(const struct step_cost *cost, int64_t decode_rows);

/* ---- requests ---- */

enum text_state { TEXT_WAITS, TEXT_RUNS, TEXT_ENDED };

/* A choice of a request. Its rows are those of its stem and of its tokens, prompt and output. */
struct text {
    struct request *request;
    int64_t choice;
    uint64_t serial; /* in the order of submission */
    /* Importance among all texts, lower numbers first. Submission gives it the serial; a client's text of higher
     * priority takes the place of those below it, which move down by one among the client's own places. */
    uint64_t place;
    struct text *above, *below; /* the neighbours by place among the client's texts */
    enum text_state state;
    struct text *previous, *next; /* while it waits */
    int32_t *tokens;              /* [prompt_length + max_tokens] */
    int64_t count;                /* of them */
    int sequence;                 /* while it runs */
    int64_t submitted;            /* rows of its sequence */
    int64_t under_way;            /* steps */
    int64_t turn;                 /* when it was written last, among all texts */
    int64_t blocked_at;           /* the scheduler's `closed` when there were no pages for it */
    bool is_ending, was_charged;  /* it ends when nothing of it is under way; its input was paid for */
    enum scheduler_end reason;
    struct sampling sampling;
    struct sampler sampler;
};

struct request {
    uint64_t number;
    struct request *previous, *next;
    struct scheduler_request asked; /* its arrays are copies; what was 0 is said */
    struct share *client, *adapter;
    bool is_cancelled, is_paused, has_started;
    int64_t queued_tokens;  /* that are not prefilled, of its first choice */
    int64_t given_logprobs; /* the prompt token whose log-probability is given next */
    int64_t ended;          /* texts */
    int32_t *ids;
    struct text text[];
};

static inline int64_t text_stem(const struct text *text) {
    return text->request->asked.stem_tokens;
}
static inline bool text_has_output(const struct text *text) {
    return text->count > text->request->asked.prompt_length;
}
/* Rows that are known: the last of them draws, where anything is to be drawn. */
static inline int64_t text_goal(const struct text *text) {
    return text_stem(text) + text->count - (text->request->asked.max_tokens == 0);
}
/* It runs, and has at most its next row before it. */
static inline bool text_is_written(const struct text *text) {
    return text->state == TEXT_RUNS && text_has_output(text) && text_goal(text) - text->submitted <= 1;
}
static inline bool text_is_complete(const struct text *text) {
    return text->request->asked.max_tokens == 0 && text->submitted >= text_goal(text);
}
/* Whether the log-probability of a token of the prompt is wanted of this row, and was not given. */
static inline bool text_row_is_scored(const struct text *text, int64_t row) {
    const struct scheduler_request *asked = &text->request->asked;
    int64_t index = row + 1 - asked->stem_tokens;
    return asked->wants_prompt_logprobs && text->choice == 0 && index >= text->request->given_logprobs &&
           index < asked->prompt_length;
}
static inline bool text_row_draws(const struct text *text, int64_t row) {
    return row == text_goal(text) - 1 && text->request->asked.max_tokens > 0;
}

/* ---- the scheduler ---- */

/* The rows of one text in a step. */
struct step_text {
    struct text *text;
    int64_t first_row; /* of the step */
    int64_t start;     /* the first's place in its sequence */
    int64_t rows;
    bool draws;
};

struct step {
    struct step_text *text; /* [max_sequences] */
    int64_t text_count, rows, logit_rows, decode_rows;
    double prefill_work; /* of the other rows, in rows with nothing before them */
    double submitted_at;
};

struct scheduler {
    struct scheduler_engine engine;
    struct scheduler_options options;
    int failure; /* the engine's status; everything ended with it */
    struct request *requests, *last_request;
    struct text *waiting, *last_waiting;
    struct text **running; /* [max_sequences] by importance */
    int64_t running_count, waiting_count;
    struct text **ready; /* [max_sequences] scratch of a plan */
    struct share everybody;
    struct step_cost cost;
    struct step *step; /* [depth] a ring */
    int first, under_way;
    double collected_at;
    struct engine_row *rows; /* [max_rows] */
    struct engine_result *results;
    uint64_t last_number, last_serial;
    int64_t closed; /* sequences so far: when it has changed, there may be more pages */
    int64_t queued_tokens, done_requests;
    int64_t turns;
    int64_t planned_pages; /* of the step that is planned */
    struct text *stalled;  /* the most important text that found no pages in the last plan */
    struct scheduler_stats stats;
};

/* Whether `a` is more important than `b`, as pages and rows go. */
static inline bool text_is_before(const struct text *a, const struct text *b) {
    return a->place < b->place;
}
/* Whether `a` yields to `b`: both are of one client, who says that `b` is more urgent. */
static inline bool text_yields_to(const struct text *a, const struct text *b) {
    return a->request->client == b->request->client && a->request->asked.priority > b->request->asked.priority;
}
/* Puts `first` ones of text[count] first; stable, and quick where they nearly are in order. */
static inline void text_sort(struct text **text, int64_t count,
                             bool (*is_first)(const struct text *a, const struct text *b)) {
    for (int64_t i = 1; i < count; i++) {
        struct text *moved = text[i];
        int64_t at = i;
        for (; at > 0 && is_first(moved, text[at - 1]); at--)
            text[at] = text[at - 1];
        text[at] = moved;
    }
}

/* scheduler_text.c */
/* Gives a new text, with its serial, its place among those of its client and of all. */
void text_take_place(struct scheduler *s, struct text *text);
void text_wait(struct scheduler *s, struct text *text);
/* From waiting to running, with a sequence that is open. */
void text_run(struct scheduler *s, struct text *text, int sequence, int64_t cached);
/* Gives its sequence back; it waits again. Nothing of it is under way. */
void text_preempt(struct scheduler *s, struct text *text);
/* Ends it, now or when nothing of it is under way any more. */
void text_end(struct scheduler *s, struct text *text, enum scheduler_end reason);
/* The results of its rows in a step. */
void text_give(struct scheduler *s, const struct step_text *of, const struct engine_result *results);

/* A virtual cost, to be counted for its client and its adapter. */
void request_charge(struct request *request, double cost);

/* scheduler_plan.c */
/* Plans a step and submits it: 1, 0 when there are no rows, or a negative status. */
int scheduler_plan(struct scheduler *s);

/* scheduler_request.c */
void request_free(struct request *request);

#endif
