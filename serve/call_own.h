/* What call.c (the loop's side) and driver_call.c (the engine's) share of a call. Fields name the thread that has them.
 *
 * News is made by the engine's thread in `making`, changes places with `published` under the driver's lock, and from
 * there with `reading` on the loop's thread: three blocks, so that nobody copies or waits. */
#ifndef CAMBIUM_SERVE_CALL_OWN_H
#define CAMBIUM_SERVE_CALL_OWN_H

#include "call.h"
#include "loop.h"

#include "infer/adapters.h"

struct driver;

/* A drawn token whose last byte has not gone out. */
struct call_held {
    struct call_token token;
    size_t end; /* bytes of the text behind it */
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

/* A prompt and its texts, in the scheduler. */
struct call_run {
    struct call_own *own;
    int64_t prompt;
    uint64_t number;         /* of the scheduler */
    bool is_running;         /* there */
    bool has_prompt;         /* a token of the prompt was told */
    struct call_text *texts; /* [ask.choices] */
};

/* CALL_STOP: cancelled as the server drains. CALL_YIELD: its place in the queue is another client's. */
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
    /* the loop's */
    bool is_linked;    /* in the server's list of calls */
    bool is_submitted; /* the engine has it, until is_done */
    bool is_abandoned; /* nobody wants it any more: freed when it is done */
    bool was_not_read; /* that is why */
    bool is_paused, is_failing, is_failed;
    bool must_stop;             /* the server's time is over: cancelled as soon as the engine has it */
    bool has_entered, has_left; /* the server's books */
    bool has_started;           /* a prompt of it was taken up */
    bool has_yielded;           /* its places in the queue are others' already */
    int64_t queued_tokens;      /* its places in the queue of tokens */
    int64_t texts_left;         /* to be tokenized */
    struct error failure;       /* before the engine had it */
    double submitted;           /* time */
    struct call_counts *counts; /* call_count.c */
    struct call_news *reading;
    struct call_own *next, *previous; /* of all calls */
    /* set before it is submitted, read by both */
    char names[ASK_MAX_ADAPTERS][72];
    struct chat_template *chat_template;             /* that a chat was rendered with; NULL: none */
    uint64_t template_generations[ASK_MAX_ADAPTERS]; /* of the adapters whose templates were looked at for it */
    uint64_t salt;
    struct ask_ends ends;
    /* the engine's */
    struct call_own *next_waiting; /* for its adapters */
    struct call_run *runs;         /* [prompt_count] */
    int64_t running;
    int slot;
    bool has_slot, is_waiting, is_cancelled, is_ended, is_changed, must_pause;
    bool has_begun;                /* a prompt of it was taken up */
    bool has_cleared;              /* all memory of adapters once, to have its own beside each other */
    bool is_outdated;              /* an adapter has another generation than the chat was rendered for, and nothing ran:
                                    * the loop renders it again when it has it back */
    enum error_case cause;         /* why it is cancelled, where not by its client */
    struct call_own *next_changed; /* with news that is not published */
    struct error error;
    struct call_news *making;
    /* under the driver's lock */
    unsigned commands; /* enum call_command */
    struct call_own *next_command;
    bool is_told;   /* in the list of commands */
    bool is_posted; /* `published` has news that the loop has not taken */
    bool is_over;   /* the last news is out: the engine is told nothing more */
    struct call_news *published;
    struct loop_note note;
};

/* ---- news.c: making it; STATUS_MEMORY ---- */

int news_add_start(struct call_news *news, const struct call_start *start);
int news_add_draw(struct call_news *news, const struct call_draw *draw);
/* A piece without tokens, of text that was appended from `begin` on. */
int news_add_piece(struct call_news *news, int64_t prompt, int64_t choice, size_t begin);
/* Adds a token to the last piece. */
int news_add_token(struct call_news *news, const struct call_token *token, const struct call_top *tops);
/* `tops`: of its token. */
int news_add_end(struct call_news *news, const struct call_end *end, const struct call_top *tops);
/* Keeps the memory. */
void news_clear(struct call_news *news);
void news_free(struct call_news *news);

/* A call whose last news was taken may be submitted once more. The loop's thread. */
void driver_take_back(struct driver *driver, struct call_own *own);
/* The news that was published; it lives until the next. The loop's thread. */
struct call_news *driver_take_news(struct driver *driver, struct call_own *own);

/* ---- call_count.c: metrics, the log and the registry's counts ---- */

int call_count_begin(struct call_own *own);
void call_count_news(struct call_own *own, const struct call_news *news);
void call_count_done(struct call_own *own, const struct error *error);
void call_count_close(struct call_own *own);

/* ---- call.c ---- */

/* Every call ends: at the engine, as the server is draining; or at once with this error, whatever the engine does. */
void call_stop_all(struct server *server);
void call_fail_all(struct server *server, const struct error *error);

#endif
