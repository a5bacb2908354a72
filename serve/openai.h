/* A request of the OpenAI API, from its body to its answer: what openai_*.c share.
 *
 *     openai_request.c      the call; what its news leads to
 *     openai_fields.c       fields that completions and chats have alike, and those that are none
 *     openai_completions.c  POST /v1/completions: prompts
 *     openai_chat.c         POST /v1/chat/completions: messages
 *     openai_logprobs.c     tokens and log-probabilities in the shapes of both
 *     openai_answer.c       an answer as one JSON text
 *     openai_stream.c       an answer as server-sent events
 *
 * A body is read on any thread (openai_read), and then the model is asked on the loop's (openai_ask). The text of the
 * body stays, as JSON, as long as the call: prompts, stop strings and names stand in it. */
#ifndef CAMBIUM_SERVE_OPENAI_H
#define CAMBIUM_SERVE_OPENAI_H

#include "call.h"
#include "kept_tokens.h"
#include "loop.h"
#include "request.h"
#include "route.h"
#include "server.h"

#include "base/json.h"

/* ---- tokens: openai_logprobs.c ---- */

/* Where the next token begins in a text, in characters, when bytes that are none count as one each that they become. */
struct openai_place {
    int64_t characters;
    unsigned char tail[4]; /* the beginning of a character */
    size_t tail_length;
};

/* What a choice, or a chunk of one, tells; the lists are the elements of JSON arrays. */
struct openai_part {
    struct strbuf text;                            /* any bytes */
    struct strbuf ids;                             /* numbers */
    struct strbuf tokens, logprobs, tops, offsets; /* a completion's */
    struct strbuf content;                         /* a chat's */
};
void openai_part_clear(struct openai_part *part);
void openai_part_free(struct openai_part *part);
/* Appends `from`, but for its ids. */
void openai_part_join(struct openai_part *part, const struct openai_part *from);
bool openai_part_failed(const struct openai_part *part);

/* A token with its likeliest ones, of which at most `most` are told. */
struct openai_token {
    const struct tokenizer *tokenizer; /* NULL: none */
    const struct call_token *token;
    const struct call_top *tops; /* of the token */
    int64_t most;
};
/* Moves a place past a token's bytes. */
void openai_move_place(struct openai_place *place, const struct openai_token *token);
/* To the four lists. */
void openai_add_completion_token(struct openai_part *part, struct openai_place *place,
                                 const struct openai_token *token);
/* To `content`. */
void openai_add_chat_token(struct openai_part *part, const struct openai_token *token);
/* {"id","logprob","top":[{"id","logprob"}]}, behind a comma where there is something. */
void openai_add_plain_token(struct strbuf *out, const struct openai_token *token);
/* Appends "logprobs":... of a choice; null where none are asked for. */
void openai_add_logprobs(struct strbuf *out, const struct openai_part *part, bool is_chat, bool tells);

/* ---- the request ---- */

struct openai_prompt {
    struct kept_tokens
        kept; /* of an answer that is not streamed: its tokens until they are written into the next two */
    struct openai_part part;   /* the echo */
    struct strbuf logprobs;    /* for prompt_logprobs */
    struct openai_place place; /* after the prompt */
};

struct openai_choice {
    struct openai_part part; /* of an answer that is not streamed */
    struct openai_place place;
    bool has_begun, is_ended, is_stop;
    int64_t last_piece, end; /* of the news that is read: indices and one more; 0: none */
};

struct openai {
    struct exchange *exchange; /* NULL until the model is asked */
    struct server *server;
    const struct openai_kind *kind;
    struct call *call;
    json_t *root;
    bool is_long; /* its body was */
    /* asked */
    bool is_chat, is_stream, tells_usage, echoes, returns_ids, tells_logprobs;
    bool has_no_head, asks_for_head, continues;       /* of messages */
    int64_t tops, prompt_tops;                        /* likeliest tokens; -1: not asked for */
    int64_t longest;                                  /* max_completion_tokens; -1: not given */
    const char *model;                                /* that answers name */
    json_t *messages, *tools, *documents, *variables; /* of a chat; NULL: none */
    struct strbuf ignored;                            /* names of fields that are none of ours, for the log */
    struct strbuf ignored_names;                      /* all of them, as elements of a JSON array */
    int64_t ignored_count;
    /* told */
    int64_t created;
    bool has_begun, has_answered, is_paused;
    struct openai_prompt *prompts; /* [prompt_count] as the call */
    int64_t prompt_count;
    struct openai_choice *choices; /* [choice_count] those of the first prompt, then those of the next */
    int64_t choice_count, completion_tokens;
    struct error error;
    /* a stream's */
    struct event *timer;
    bool has_written, has_chunk; /* has_written: since the timer's last turn */
    struct strbuf head;          /* what every chunk begins with */
    struct strbuf out;
    struct openai_part chunk;
    /* an answer of one text while it is built (openai_answer.c), and as much of it as was sent */
    bool is_building;
    struct worker_job building;
    struct loop_note built;
    struct strbuf answer;
    size_t sent;
    struct worker_job dropping;
};

/* A field that ask.h does not have, or has otherwise. */
struct openai_field {
    const char *name;
    bool (*read)(struct openai *request, const char *name, const json_t *value, struct error *error);
};

/* What completions and chats have of their own. */
struct openai_kind {
    bool is_chat;
    const struct openai_kind *other;
    const struct openai_field *fields;
    size_t field_count;
    /* Makes the call, with its prompts. */
    bool (*open)(struct openai *request, struct error *error);
    /* Behind all fields. */
    bool (*check)(struct openai *request, struct error *error);
};
extern const struct openai_kind openai_completion_kind, openai_chat_kind;
/* Reads all fields of the body into the request and its call, and checks them together. Any thread. */
bool openai_read_fields(struct openai *request, const struct openai_kind *kind, struct error *error);

/* The functions of struct route_body: they make a struct openai. */
void *openai_read(const struct route_reader *reader, const struct openai_kind *kind, const char *bytes, size_t length,
                  struct error *error);
void openai_ask(struct exchange *exchange, void *made);
void openai_drop(void *made);

/* Reads what names a base or an adapter. *adapter: NULL for the base. */
bool openai_find_model(const struct server *server, const json_t *value, const char **adapter, struct error *error);

/* ---- its answer ---- */

int64_t openai_prompt_of(const struct openai *request, const struct openai_choice *choice);
const char *openai_finish_reason(const struct openai_choice *choice);
/* Takes a piece, and the choice's end where `end` is not NULL, into a part; what comes first in a choice has the echo
 * before it. */
void openai_take(struct openai *request, struct openai_choice *choice, const struct call_news *news,
                 const struct call_piece *piece, const struct call_end *end, struct openai_part *part);
/* "id":...,"object":...,"created":...,"model":...,"system_fingerprint":...,  */
void openai_add_head(const struct openai *request, struct strbuf *out);
/* "adapters":...,"seed":..., and of a chat what is told of its prompt. */
void openai_add_facts(const struct openai *request, struct strbuf *out);
/* Of a completion: what is told of the prompt of a choice. Each begins with a comma. */
void openai_add_prompt_facts(const struct openai *request, int64_t prompt, struct strbuf *out);
void openai_add_usage(const struct openai *request, struct strbuf *out);

void openai_answer_news(struct openai *request, const struct call_news *news);
/* Writes more of a long answer, as far as the client reads it. */
void openai_answer_room(struct openai *request);
/* Writes `count` tokens of a prompt, whose tops count from `tops`, into its echo and its log-probabilities. */
void openai_add_prompt_tokens(const struct openai *request, struct openai_prompt *prompt,
                              const struct call_token *tokens, int64_t count, const struct call_top *tops);
/* Frees a request whose exchange has gone. */
void openai_free(struct openai *request, enum error_case why);
void openai_stream_news(struct openai *request, const struct call_news *news);
void openai_stream_free(struct openai *request);

#endif
