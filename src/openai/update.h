/* New results of a request, as they are reported: drawn tokens, text, ends. One thread at a time. */
#pragma once

#include "error.h"

#include "infer/ask.h"
#include "infer/scheduler.h"

struct call_top { /* one of the likeliest tokens */
    int32_t id;
    float logprob;
};
struct call_token {
    int32_t id;
    bool has_logprob; /* nothing predicts the first token of a prompt */
    float logprob;
    int64_t first_top, top_count; /* indices of update->tops */
};
/* An addition to one completion. With prompt_logprobs, a prompt's tokens come in order as choice -1, before the first
 * token of choice 0. A token arrives with the text that completes it: with its last byte, once no stop string can begin
 * there. */
struct call_piece {
    int64_t prompt, choice;
    size_t begin, length; /* in update->text; whole characters, or invalid bytes */
    int64_t first_token, token_count;
};
struct call_end {
    int64_t prompt, choice;
    bool is_stop;              /* else it ended by its length */
    int64_t stop;              /* the request's stop string that ended it, from 1; 0: none did */
    int64_t completion_tokens; /* all drawn tokens */
    /* The id that ended it: an end-of-text or a stop id. It is not part of the text and in no piece, but a completion's
     * log-probabilities include it. */
    bool has_token;
    struct call_token token;
};

struct call_start {
    int64_t prompt, cached; /* cached: of the prompt's tokens */
    double time;
};
struct call_draw { /* a token was drawn, even if it cannot be reported yet */
    int64_t prompt, choice;
    double time; /* monotonic seconds */
};

struct call_update {
    bool is_accepted; /* names, lengths and room were checked: an answer can begin; the call's generations are set */
    uint64_t generations[ASK_MAX_ADAPTERS];
    struct call_start *starts; /* [start_count] prompts that began to run; call->cached has the numbers too */
    int64_t start_count, start_capacity;
    struct call_draw *draws; /* [draw_count] */
    int64_t draw_count, draw_capacity;
    struct strbuf text;
    struct call_piece *pieces; /* [piece_count] */
    int64_t piece_count, piece_capacity;
    struct call_token *tokens; /* [token_count] */
    int64_t token_count, token_capacity;
    struct call_top *tops; /* [top_count] */
    int64_t top_count, top_capacity;
    struct call_end *ends; /* [end_count]; the tops of their tokens are in `tops` */
    int64_t end_count, end_capacity;
    bool is_done;
    struct error error; /* with is_done; ERROR_NONE: success */
    /* With is_done, only for call.c: an adapter's generation changed since the chat was rendered, and nothing ran. The
     * loop renders the chat again. */
    bool is_outdated;
};

/* ---- filling an update; STATUS_MEMORY ---- */

/* Add the start of a prompt, and a drawn token. */
int update_add_start(struct call_update *update, const struct call_start *start);
int update_add_draw(struct call_update *update, const struct call_draw *draw);
/* Adds a piece without tokens; its text was appended from `begin` on. */
int update_add_piece(struct call_update *update, int64_t prompt, int64_t choice, size_t begin);
/* Adds a token to the last piece. */
int update_add_token(struct call_update *update, const struct call_token *token, const struct call_top *tops);
/* Converts a token of the scheduler with its likeliest alternatives, tops[ASK_MAX_TOP]. `has_logprob`: false for a
 * token that nothing predicts. Returns false when a log-probability is not finite. */
bool update_read_token(const struct scheduler_token *drawn, bool has_logprob, struct call_token *token,
                       struct call_top *tops);
/* Adds the end of a completion; `tops` are those of its token. */
int update_add_end(struct call_update *update, const struct call_end *end, const struct call_top *tops);
/* update_clear keeps the memory, update_free does not. */
void update_clear(struct call_update *update);
void update_free(struct call_update *update);
