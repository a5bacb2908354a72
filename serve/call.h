/* A call: a client's request to the model and its results, independent of the protocol.
 *
 * A protocol makes a call, fills in the request (struct ask, prompts), and passes it to call_submit. Results arrive as
 * updates: on_update is called whenever the engine has new results, until `is_done`. The functions here run on the
 * loop's thread; a call that was not submitted may be made and freed on any thread. Between submission and updates,
 * tokenizing (long texts on a worker) and the engine (driver.c) run on their own threads. The engine never waits for a
 * client: a call whose client does not read is paused. */
#ifndef CAMBIUM_SERVE_CALL_H
#define CAMBIUM_SERVE_CALL_H

#include "error.h"
#include "keys.h"

#include "infer/ask.h"
#include "infer/scheduler.h"
#include "text/chat.h"

struct server;
struct call;

/* A prompt of a call: a text, messages, or ids. The caller keeps the texts until the call is done. */
struct call_prompt {
    const char *text;
    size_t length;
    struct chat_request chat; /* with its messages when the prompt is made of them, else NULL */
    size_t chat_bytes;        /* of their texts */
    bool has_no_head;         /* messages: no header of an answer follows them (add_generation_prompt false) */
    bool continues;          /* messages: the answer continues the last one, the assistant's (continue_final_message) */
    struct token_buffer ids; /* given, or made by call_submit */
};

struct call_top {
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
    /* With is_done, for call.c alone: an adapter's generation changed since the chat was rendered, and nothing ran. The
     * loop renders the chat again. */
    bool is_outdated;
};

struct call {
    /* The request: */
    struct server *server;
    struct ask ask;              /* all settings; the seed is drawn when none is given */
    struct call_prompt *prompts; /* [prompt_count] */
    int64_t prompt_count;
    bool is_chat;
    const char *id;           /* of the exchange, for use in answers */
    struct key_holder client; /* number 0 without a key */
    double deadline;          /* monotonic seconds; 0: the server's default */
    const char *cache_salt;   /* NULL: none */
    size_t cache_salt_length;
    json_t *texts;       /* JSON that holds the request's strings: a reference of the call; NULL: none */
    uint64_t turn_owner; /* for taking turns at the worker for texts: exchange_owner */
    void (*on_update)(struct call *call, const struct call_update *update);
    void *context; /* for the protocol */
    /* The results: */
    uint64_t generations[ASK_MAX_ADAPTERS];
    int64_t *cached;        /* [prompt_count] tokens */
    struct call_loop *loop; /* call_loop.h */
};

/* Makes a call with `prompt_count` zeroed prompts and default settings. NULL: no memory. */
struct call *call_new(struct server *server, int64_t prompt_count);
/* Passes the call to the engine. on_update is called later, never inside this function; errors come as an update
 * too. */
void call_submit(struct call *call);
/* Pauses the call while its client does not read, and resumes it. */
void call_pause(struct call *call, bool is_paused);
/* Frees the call, and ends it if it still runs; no more updates come. It must not be called inside on_update, except
 * with is_done. A call that still ran is counted as not read (`why` ERROR_SLOW_READER), else as cancelled. */
void call_free(struct call *call, enum error_case why);

#endif
