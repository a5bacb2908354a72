/* Texts and chats of calls to ids. Short texts are tokenized on the loop's thread; long ones, every text of a tokenizer
 * that may be slow, and every chat go to a worker, because a template is a program. */
#ifndef CAMBIUM_SERVE_TEXT_JOB_H
#define CAMBIUM_SERVE_TEXT_JOB_H

#include "call.h"
#include "server.h"

/* A tokenizer takes up to thirty bytes for each of a long word. */
enum { TEXT_JOB_BYTES = 1 << 20 };

/* Bytes of text that the loop's thread may tokenize at once. */
size_t text_job_short_bytes(const struct server *server);
/* Appends the ids of a text. STATUS_INVALID for more than TEXT_JOB_BYTES. Any thread; the encoder is the thread's.
 * `adds_special`: with the tokens that the tokenizer puts around every text. */
int text_job_encode(const struct server *server, struct tokenizer_encoder *encoder, const char *text, size_t length,
                    bool adds_special, struct token_buffer *ids);

struct text_job {
    struct server *server;
    uint64_t owner; /* whose turn it is at the worker */
    bool is_short;  /* the loop's thread may do it */
    /* Once, in the loop's thread, never inside text_job_start: with ERROR_NONE and the ids, which are the receiver's to
     * free, or with a failure and the thread's status text. `ends`: what ends the texts of a chat, the receiver's to
     * close; NULL for a text. */
    void (*on_done)(void *context, enum error_case failure, struct token_buffer *ids, struct ask_ends *ends);
    void *context;
};
/* The text is copied. A job cannot be taken back: `context` lives until on_done. STATUS_MEMORY: there is no memory, or
 * the worker's queue is full, and on_done does not come. */
int text_job_start(const struct text_job *job, const char *text, size_t length);

struct text_job_chat {
    struct chat_template *template;
    const struct call_prompt *prompt; /* its messages; the job has references of its own */
    const struct ask *ask;            /* lives, unchanged, until on_done; so does what its strings stand in */
};
/* The same of messages, which are rendered first. */
int text_job_start_chat(const struct text_job *job, const struct text_job_chat *chat);

#endif
