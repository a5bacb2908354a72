/* A request of the OpenAI API, from its body to its answer; shared by openai_*.c.
 *
 *     openai_request.c      the call and its updates
 *     openai_free.c         freeing a request
 *     openai_fields.c       fields that completions and chats share, and unknown fields
 *     openai_completions.c  POST /v1/completions: prompts
 *     openai_chat.c         POST /v1/chat/completions: messages
 *     openai_logprobs.c     tokens and log-probabilities in the form of either
 *     openai_answer.c       an answer as one JSON text
 *     openai_stream.c       an answer as server-sent events
 *
 * A body is read on any thread (openai_read); then the loop passes the request to the model (openai_ask). The body
 * stays in memory as JSON as long as the call, because it holds the prompts, stop strings and names. */
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

/* The place of the next token in a text, in characters. An invalid byte counts as the character that replaces it. */
struct openai_place {
    int64_t characters;
    unsigned char tail[4]; /* the first bytes of a character */
    size_t tail_length;
};

/* The contents of a choice, or of one chunk of it. Lists are the elements of JSON arrays. */
struct openai_part {
    struct strbuf text;                            /* arbitrary bytes */
    struct strbuf ids;                             /* numbers */
    struct strbuf tokens, logprobs, tops, offsets; /* for a completion */
    struct strbuf content;                         /* for a chat */
};
/* openai_part_clear keeps the memory, openai_part_free does not. */
void openai_part_clear(struct openai_part *part);
void openai_part_free(struct openai_part *part);
/* Appends `from`, except its ids. */
void openai_part_join(struct openai_part *part, const struct openai_part *from);
bool openai_part_failed(const struct openai_part *part);

/* A token with its likeliest alternatives, of which at most `most` are written. */
struct openai_token {
    const struct tokenizer *tokenizer; /* NULL: none */
    const struct call_token *token;
    const struct call_top *tops; /* the token's */
    int64_t most;
};
/* Moves a place past a token's bytes. */
void openai_move_place(struct openai_place *place, const struct openai_token *token);
/* Writes to the four lists. */
void openai_add_completion_token(struct openai_part *part, struct openai_place *place,
                                 const struct openai_token *token);
/* Writes to `content`. */
void openai_add_chat_token(struct openai_part *part, const struct openai_token *token);
/* Writes {"id","logprob","top":[{"id","logprob"}]}, after a comma unless `out` is empty. */
void openai_add_plain_token(struct strbuf *out, const struct openai_token *token);
/* Appends "logprobs":... of a choice; null unless `tells`. */
void openai_add_logprobs(struct strbuf *out, const struct openai_part *part, bool is_chat, bool tells);

/* ---- the request ---- */

struct openai_prompt {
    struct kept_tokens
        kept; /* for an answer that is not streamed: its tokens until they are written into the next two */
    struct openai_part part;   /* the echo */
    struct strbuf logprobs;    /* for prompt_logprobs */
    struct openai_place place; /* after the prompt */
};

struct openai_choice {
    struct openai_part part; /* for an answer that is not streamed */
    struct openai_place place;
    bool has_begun, is_ended, is_stop;
    int64_t last_piece, end; /* while an update is read: an index plus one; 0: none */
};

struct openai {
    struct exchange *exchange; /* NULL before the model is asked */
    struct server *server;
    const struct openai_kind *kind;
    struct call *call;
    json_t *root;
    bool is_long; /* its body was long */
    /* The request: */
    bool is_chat, is_stream, tells_usage, echoes, returns_ids, tells_logprobs;
    bool has_no_head, asks_for_head, continues;       /* for messages */
    int64_t tops, prompt_tops;                        /* likeliest tokens; -1: not requested */
    int64_t longest;                                  /* max_completion_tokens; -1: not given */
    const char *model;                                /* the name in answers */
    json_t *messages, *tools, *documents, *variables; /* for a chat; NULL: none */
    struct strbuf ignored;                            /* names of unknown fields, for the log */
    struct strbuf ignored_names;                      /* all of them, as elements of a JSON array */
    int64_t ignored_count;
    /* The answer: */
    int64_t created;
    bool has_begun, has_answered, is_paused;
    struct openai_prompt *prompts; /* [prompt_count] in the call's order */
    int64_t prompt_count;
    struct openai_choice *choices; /* [choice_count] first those of the first prompt, then those of the next */
    int64_t choice_count, completion_tokens;
    struct error error;
    /* A stream: */
    struct event *timer;
    bool has_written, has_chunk; /* has_written: since the timer last ran */
    struct strbuf head;          /* the beginning of every chunk */
    struct strbuf out;
    struct openai_part chunk;
    /* A single JSON text while it is built (openai_answer.c), and how much of it was sent: */
    bool is_building;
    struct worker_job building;
    struct loop_note built;
    struct strbuf answer;
    size_t sent;
    struct worker_job dropping;
};

/* A field that ask.h does not have, or has in another form. */
struct openai_field {
    const char *name;
    const char *schema; /* of its values: its name in openapi.json */
    bool (*read)(struct openai *request, const char *name, const json_t *value, struct error *error);
};

/* The differences between completions and chats. */
struct openai_kind {
    bool is_chat;
    const char *required; /* the name of the field that every request has */
    const struct openai_kind *other;
    const struct openai_field *fields;
    size_t field_count;
    /* Makes the call with its prompts. */
    bool (*open)(struct openai *request, struct error *error);
    /* Checks the request after all fields were read. */
    bool (*check)(struct openai *request, struct error *error);
};
extern const struct openai_kind openai_completion_kind, openai_chat_kind;
/* Reads all fields of the body into the request and its call, and checks them together. Returns false with *error. Any
 * thread. */
bool openai_read_fields(struct openai *request, const struct openai_kind *kind, struct error *error);

/* Writes the JSON schema of the kind's bodies. `vocab`: ids are below it. */
void openai_add_schema(const struct openai_kind *kind, int64_t vocab, struct strbuf *out);

/* The functions of struct route_body; they make a struct openai. */
void *openai_read(const struct route_reader *reader, const struct openai_kind *kind, const char *bytes, size_t length,
                  struct error *error);
void openai_ask(struct exchange *exchange, void *made);
void openai_drop(void *made);

/* Finds the base or adapter that a value names. *adapter is NULL for the base. Returns false with *error. */
bool openai_find_model(const struct server *server, const json_t *value, const char **adapter, struct error *error);

/* ---- its answer ---- */

int64_t openai_prompt_of(const struct openai *request, const struct openai_choice *choice);
const char *openai_finish_reason(const struct openai_choice *choice);
/* Adds a piece to a part, and the choice's end unless `end` is NULL. In a stream, the echo precedes a choice's first
 * piece. */
void openai_take(struct openai *request, struct openai_choice *choice, const struct call_update *update,
                 const struct call_piece *piece, const struct call_end *end, struct openai_part *part);
/* Writes "id":...,"object":...,"created":...,"model":...,"system_fingerprint":..., */
void openai_add_head(const struct openai *request, struct strbuf *out);
/* Writes "adapters":...,"seed":..., and the prompt's data for a chat. */
void openai_add_facts(const struct openai *request, struct strbuf *out);
/* Writes the data of a completion's prompt, each item after a comma. */
void openai_add_prompt_facts(const struct openai *request, int64_t prompt, struct strbuf *out);
void openai_add_usage(const struct openai *request, struct strbuf *out);

/* Takes an update, for an answer that is one JSON text. */
void openai_answer_update(struct openai *request, const struct call_update *update);
/* Sends more of a long answer, as far as the client reads it. */
void openai_answer_room(struct openai *request);
/* Writes `count` tokens of a prompt into its echo and its log-probabilities. Their first_top counts in `tops`. */
void openai_add_prompt_tokens(const struct openai *request, struct openai_prompt *prompt,
                              const struct call_token *tokens, int64_t count, const struct call_top *tops);
/* Frees a request whose exchange has closed. `why`: see call_free. */
void openai_free(struct openai *request, enum error_case why);
/* Takes an update, for an answer that is a stream; frees a stream. */
void openai_stream_update(struct openai *request, const struct call_update *update);
void openai_stream_free(struct openai *request);

#endif
