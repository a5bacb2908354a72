/* A request of the OpenAI API over HTTP; shared by openai_*.c. The body and the answer are openai/openai.h.
 *
 *     openai_request.c  the call and its updates
 *     openai_free.c     freeing
 *     openai_answer.c   sending an answer that is one JSON text
 *     openai_stream.c   an answer as server-sent events
 *
 * A body is read on any thread; then the loop passes the request to the model. */
#pragma once

#include "call.h"
#include "loop.h"
#include "request.h"
#include "route.h"
#include "server.h"

#include "openai/openai.h"

struct openai_exchange {
    struct openai request;
    struct exchange *exchange; /* NULL before the model is asked */
    struct server *server;
    struct call *call;
    bool is_long; /* its body was long */
    bool has_begun, has_answered, is_paused;
    struct error error;
    /* A stream: */
    struct event *timer;
    bool has_written; /* since the timer last ran */
    struct strbuf out;
    /* A single JSON text while it is built (openai_answer.c), and how much of it was sent: */
    bool is_building;
    struct worker_job building;
    struct loop_note built;
    struct strbuf answer;
    size_t sent;
    struct worker_job dropping;
};

/* Takes an update, for an answer that is one JSON text. */
void openai_answer_update(struct openai_exchange *self, const struct call_update *update);
/* Sends more of a long answer, as far as the client reads it. */
void openai_answer_room(struct openai_exchange *self);
/* Frees a request that was read and not passed to the model; its type is struct openai_exchange. Any thread. */
void openai_exchange_drop(void *made);
/* Frees a request whose exchange has closed. `why`: see call_free. */
void openai_exchange_free(struct openai_exchange *self, enum error_case why);
/* Takes an update, for an answer that is a stream; frees a stream. */
void openai_stream_update(struct openai_exchange *self, const struct call_update *update);
void openai_stream_free(struct openai_exchange *self);
