/* Turns texts and chats of calls into ids. Short texts are tokenized on the loop's thread. A worker takes long texts,
 * every text of a tokenizer that may be slow, and every chat, because a template is a program. */
#pragma once

#include "call.h"
#include "server.h"

#include <stdatomic.h>

/* For a long word a tokenizer takes up to thirty bytes per byte. */
enum { TEXT_JOB_BYTES = 1 << 20 };

/* Returns the bytes of text that the loop's thread may tokenize itself. */
size_t text_job_short_bytes(const struct server *server);
/* False, with *error, when the model has no tokenizer. */
bool text_job_may_encode(const struct server *server, struct error *error);
/* Appends the ids of a text by the flags of tokenizer_encode. STATUS_INVALID for more than TEXT_JOB_BYTES; the errors
 * of tokenizer_encode. Any thread, with that thread's encoder. */
int text_job_encode(const struct server *server, struct tokenizer_encoder *encoder, const char *text, size_t length,
                    unsigned flags, struct token_buffer *ids);

struct text_job {
    struct server *server;
    uint64_t owner; /* for taking turns at the worker */
    bool is_short;  /* the loop's thread may do it */
    /* Set when nobody wants the ids any more; the job then fails with ERROR_CANCELLED. NULL: never. */
    const atomic_bool *is_unwanted;
    unsigned flag; /* for a text: TOKENIZER_ALLOW_SPECIAL or TOKENIZER_PLAIN */
    /* Called once in the loop's thread, never inside text_job_start. On success it gets ERROR_NONE and the ids, which
     * the receiver frees. On failure it gets the error, and the thread's status text is set. `ends` holds the ends of a
     * chat's completions and is closed by the receiver; NULL for a text. */
    void (*on_done)(void *context, enum error_case failure, struct token_buffer *ids, struct ask_ends *ends);
    void *context;
};
/* Starts a job; the text is copied. A job cannot be taken back: `context` must live until on_done. STATUS_MEMORY: there
 * is no memory, or the worker's queue is full; on_done is then not called. */
int text_job_start(const struct text_job *job, const char *text, size_t length);

struct text_job_chat {
    struct chat_template *template;
    struct call_prompt
        *prompt;           /* its messages; the job takes references. The loop notes in it what its answer is like */
    const struct ask *ask; /* stays unchanged until on_done, with everything its strings point to */
};
/* The same for messages, which are rendered first. */
int text_job_start_chat(const struct text_job *job, const struct text_job_chat *chat);
