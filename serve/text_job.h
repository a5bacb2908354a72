/* Texts to ids, on the loop's thread where they are short (4 KiB), on a worker where they are long. */
#ifndef CAMBIUM_SERVE_TEXT_JOB_H
#define CAMBIUM_SERVE_TEXT_JOB_H

#include "server.h"

#include "text/chat.h"

/* A tokenizer takes up to thirty bytes for each of a long word. */
enum { TEXT_JOB_BYTES = 1 << 20 };

/* `on_done` comes once, in the loop's thread, never inside this function: with status 0 and the ids, which are the
 * receiver's to free, or with a failure and the thread's status text. The text is copied. A job cannot be taken back:
 * `context` lives until then. STATUS_INVALID for more than TEXT_JOB_BYTES, STATUS_MEMORY, or the worker's queue is
 * full: then on_done does not come. `adds_special`: with the tokens that the tokenizer puts around every text. */
int text_job_start(struct server *server, const char *text, size_t length, bool adds_special,
                   void (*on_done)(void *context, int status, struct token_buffer *ids), void *context);
/* The same of a chat that was rendered, whose pieces are taken over unless it has too many bytes. */
int text_job_start_chat(struct server *server, struct chat_pieces *pieces,
                        void (*on_done)(void *context, int status, struct token_buffer *ids), void *context);

#endif
