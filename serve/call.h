/* A call: what a client asks of the model, and what comes of it, whatever protocol it speaks.
 *
 * A protocol makes a call, fills in what is asked (struct ask, prompts), and gives it to call_submit; news comes by
 * on_news, as often as the engine has made something, until `is_done`. The functions here are the loop's thread; one
 * that was not submitted may be made and freed on any. What happens between is tokenizing (on a worker where it is
 * long) and the engine (driver.c), on threads of their own. The engine never waits for a client: a call whose client
 * does not read is paused. */
#ifndef CAMBIUM_SERVE_CALL_H
#define CAMBIUM_SERVE_CALL_H

#include "error.h"
#include "keys.h"

#include "infer/ask.h"
#include "infer/scheduler.h"
#include "text/chat.h"

struct server;
struct call;

/* A prompt of a call: one of text, messages and ids. Texts stay the caller's until the call is done. */
struct call_prompt {
    const char *text;
    size_t length;
    struct chat_request chat; /* with its messages, where it is made of them: NULL else */
    size_t chat_bytes;        /* of their texts */
    bool has_no_head;         /* messages: no head of an answer behind them (add_generation_prompt false) */
    bool continues;           /* messages: the last one, the assistant's, goes on (continue_final_message) */
    struct token_buffer ids;  /* given, or made by call_submit */
};

struct call_top {
    int32_t id;
    float logprob;
};
struct call_token {
    int32_t id;
    bool has_logprob; /* nothing predicts the first token of a prompt */
    float logprob;
    int64_t first_top, top_count; /* of news->tops */
};
/* What was added to one text. Prompts' tokens, where prompt_logprobs are asked for, come in order as choice -1, before
 * the first token of choice 0. A token travels with the text that completes it: its last byte, where no stop string can
 * begin in it any more. */
struct call_piece {
    int64_t prompt, choice;
    size_t begin, length; /* of news->text; whole characters, or bytes that are none */
    int64_t first_token, token_count;
};
struct call_end {
    int64_t prompt, choice;
    bool is_stop;              /* else the length */
    int64_t completion_tokens; /* every drawn token */
    /* The id that ended it, an end-of-text or a stop id, which is none of the text and in no piece: a completion's
     * log-probabilities tell of it, too. */
    bool has_token;
    struct call_token token;
};

struct call_start {
    int64_t prompt, cached; /* cached: of its tokens */
    double time;
};
struct call_draw { /* a token was drawn, whether or not it can be told yet */
    int64_t prompt, choice;
    double time; /* seconds of the monotonic clock */
};

struct call_news {
    bool is_accepted; /* names, lengths and room are right: an answer can begin; generations of the call are set */
    uint64_t generations[ASK_MAX_ADAPTERS];
    struct call_start *starts; /* [start_count] prompts that were taken up; call->cached has them, too */
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
    struct call_end *ends; /* [end_count]; the tops of their tokens are of `tops` */
    int64_t end_count, end_capacity;
    bool is_done;
    struct error error; /* with is_done; ERROR_NONE: all is well */
};

struct call {
    /* asked: */
    struct server *server;
    struct ask ask;              /* all settings; seed drawn where none is given */
    struct call_prompt *prompts; /* [prompt_count] */
    int64_t prompt_count;
    bool is_chat;
    const char *id;           /* of the exchange, for answers */
    struct key_holder client; /* number 0 without a key */
    double deadline;          /* monotonic seconds; 0: the server's own */
    const char *cache_salt;   /* NULL: none */
    size_t cache_salt_length;
    json_t *texts;       /* what the strings of a request in JSON stand in: the call's reference; NULL: none */
    uint64_t turn_owner; /* whose turn it takes at the worker for texts: exchange_owner */
    void (*on_news)(struct call *call, const struct call_news *news);
    void *context; /* the protocol's */
    /* told: */
    uint64_t generations[ASK_MAX_ADAPTERS];
    int64_t *cached;      /* [prompt_count] tokens */
    struct call_own *own; /* of call.c and driver.c */
};

/* A call with room for so many prompts, zeroed, settings at their defaults; NULL: no memory. */
struct call *call_new(struct server *server, int64_t prompt_count);
/* Gives it to the engine. on_news comes later, never inside this function; what is wrong comes as news, too. */
void call_submit(struct call *call);
/* Its client does not read, or reads again. */
void call_pause(struct call *call, bool is_paused);
/* Frees the call, which ends where it still runs; nothing comes any more. Not inside on_news, but for is_done. Of one
 * that still ran is counted that its client did not read (`why` ERROR_SLOW_READER), or else that it was cancelled. */
void call_free(struct call *call, enum error_case why);

#endif
