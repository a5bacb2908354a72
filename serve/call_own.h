/* The parts of a call that call.c (the loop's side) and driver_call.c (the engine's) share. Comments name the thread
 * that owns a group of fields.
 *
 * The engine's thread collects an update in `making`. Under the driver's lock it is exchanged with `published`, and
 * from there with `reading` on the loop's thread. With three blocks nobody copies or waits. */
#ifndef CAMBIUM_SERVE_CALL_OWN_H
#define CAMBIUM_SERVE_CALL_OWN_H

#include "call.h"
#include "loop.h"

#include "infer/adapters.h"

struct driver;

/* A drawn token whose last byte was not sent yet. */
struct call_held {
    struct call_token token;
    size_t end; /* bytes of the text up to its end */
    struct call_top tops[ASK_MAX_TOP];
};

struct call_text {
    struct writer writer;
    struct call_held *held; /* [held_count] */
    int64_t held_count, held_capacity;
    struct call_held end; /* the id that ended it, with has_end */
    bool has_end;
    int64_t drawn;
};

/* A prompt and its completions, in the scheduler. */
struct call_run {
    struct call_own *own;
    int64_t prompt;
    uint64_t number;         /* the scheduler's number */
    bool is_running;         /* the scheduler has it */
    bool has_prompt;         /* a token of the prompt was reported */
    struct call_text *texts; /* [ask.choices] */
};

/* CALL_STOP: cancelled because the server drains. CALL_YIELD: its place in the queue goes to another client. */
enum call_command {
    CALL_SUBMIT = 1,
    CALL_CANCEL = 2,
    CALL_PAUSE = 4,
    CALL_RESUME = 8,
    CALL_STOP = 16,
    CALL_YIELD = 32
};
#define CALL_GIVES_WAY                                                                                                 \
    "the queue is full, this client has more than its share of it, and another client needed the place of this "       \
    "request"

struct call_own {
    struct call *call;
    struct driver *driver;
    /* the loop's: */
    bool is_linked;    /* in the server's list of calls */
    bool is_submitted; /* the engine has it, until is_done */
    bool is_abandoned; /* nobody waits for it any more: freed when it is done */
    bool was_not_read; /* the reason for that */
    bool is_paused, is_failing, is_failed;
    bool must_stop;             /* the server's time is over: cancelled when the engine has it */
    bool has_entered, has_left; /* counted by the server */
    bool has_started;           /* one of its prompts began to run */
    bool has_yielded;           /* its places in the queue were already given away */
    int64_t queued_tokens;      /* its places in the queue of tokens */
    int64_t texts_left;         /* not tokenized yet */
    struct error failure;       /* an error before the engine had the call */
    double submitted;           /* time */
    struct call_counts *counts; /* call_count.c */
    struct call_update *reading;
    struct call_own *next, *previous; /* list of all calls */
    /* set before submission, read by both threads: */
    char names[ASK_MAX_ADAPTERS][72];
    struct chat_template *chat_template;             /* used to render a chat; NULL: none */
    uint64_t template_generations[ASK_MAX_ADAPTERS]; /* of the adapters whose templates were considered for it */
    uint64_t salt;
    struct ask_ends ends;
    /* the engine's: */
    struct call_own *next_waiting; /* list of calls that wait for adapters */
    struct call_run *runs;         /* [prompt_count] */
    int64_t running;
    int slot;
    bool has_slot, is_waiting, is_cancelled, is_ended, is_changed, must_pause;
    bool has_begun;   /* one of its prompts began to run */
    bool has_cleared; /* once it cleared all adapter memory, so that its own adapters fit side by side */
    bool is_outdated; /* an adapter's generation changed since the chat was rendered, and nothing ran: the loop renders
                         the chat again when it gets the call back */
    enum error_case cause;         /* why it is cancelled, unless its client did so */
    struct call_own *next_changed; /* list of calls with an unpublished update */
    struct error error;
    struct call_update *making;
    /* under the driver's lock: */
    unsigned commands; /* enum call_command */
    struct call_own *next_command;
    bool is_told;   /* in the list of commands */
    bool is_posted; /* `published` has an update that the loop has not taken */
    bool is_over;   /* the last update is published: the engine ignores further commands */
    struct call_update *published;
    struct loop_note note;
};

/* ---- filling an update; STATUS_MEMORY: call_update.c ---- */

int update_add_start(struct call_update *update, const struct call_start *start);
int update_add_draw(struct call_update *update, const struct call_draw *draw);
/* Adds a piece without tokens; its text was appended from `begin` on. */
int update_add_piece(struct call_update *update, int64_t prompt, int64_t choice, size_t begin);
/* Adds a token to the last piece. */
int update_add_token(struct call_update *update, const struct call_token *token, const struct call_top *tops);
/* `tops` are those of its token. */
int update_add_end(struct call_update *update, const struct call_end *end, const struct call_top *tops);
/* update_clear keeps the memory, update_free does not. */
void update_clear(struct call_update *update);
void update_free(struct call_update *update);

/* Lets a call whose last update was taken be submitted once more. The loop's thread. */
void driver_take_back(struct driver *driver, struct call_own *own);
/* Returns the published update, valid until the next call. The loop's thread. */
struct call_update *driver_take_update(struct driver *driver, struct call_own *own);

/* ---- call_count.c: metrics, the log and the registry's counts ---- */

int call_count_begin(struct call_own *own);
void call_count_update(struct call_own *own, const struct call_update *update);
void call_count_done(struct call_own *own, const struct error *error);
void call_count_close(struct call_own *own);

/* ---- call.c ---- */

/* End every call. call_stop_all lets the engine end them because the server drains. call_fail_all ends them at once
 * with an error, whatever the engine does. */
void call_stop_all(struct server *server);
void call_fail_all(struct server *server, const struct error *error);

#endif
