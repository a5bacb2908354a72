/* A request of the OpenAI API, from its body to its answer, without its transport.
 *
 *     request.c      reading a body; freeing
 *     fields.c       fields that completions and chats share, and unknown fields
 *     completions.c  /v1/completions: prompts
 *     chat.c         /v1/chat/completions: messages
 *     logprobs.c     tokens and log-probabilities in the form of either
 *     answer.c       an answer as one JSON text, and the parts of it that streams have too
 *
 * The body stays in memory as JSON as long as the request, because it holds the prompts, stop strings and names. Any
 * thread may use a request, one at a time. */
#pragma once

#include "call_request.h"
#include "kept_tokens.h"
#include "model.h"
#include "update.h"

#include "base/json.h"

/* ---- tokens: logprobs.c ---- */

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
    bool is_first; /* of an answer in a chat, which begins without the space that a decoder removes */
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
    bool has_begun, has_token, is_ended, is_stop;
    int64_t last_piece, end; /* while an update is read: an index plus one; 0: none */
};

struct openai {
    const struct openai_model *model;
    const struct openai_kind *kind;
    json_t *root;
    /* The request: */
    struct call_request *asked;
    bool is_chat, is_stream, tells_usage, echoes, returns_ids, tells_logprobs;
    bool is_plain;                                    /* of no body: tokens are written as numbers */
    bool has_no_head, asks_for_head, continues;       /* for messages */
    int64_t tops, prompt_tops;                        /* likeliest tokens; -1: not requested */
    int64_t longest;                                  /* max_completion_tokens; -1: not given */
    json_t *messages, *tools, *documents, *variables; /* for a chat; NULL: none */
    struct strbuf ignored;                            /* names of unknown fields, for the log */
    struct strbuf ignored_names;                      /* all of them, as elements of a JSON array */
    int64_t ignored_count;
    /* The answer: */
    const char *id;         /* without its prefix */
    const char *model_name; /* the name in the answer: the base, or one adapter */
    int64_t created;
    const uint64_t *generations;   /* of the adapters */
    const int64_t *cached;         /* [prompt_count] tokens */
    struct openai_prompt *prompts; /* [prompt_count] in the request's order */
    int64_t prompt_count;
    struct openai_choice *choices; /* [choice_count] first those of the first prompt, then those of the next */
    int64_t choice_count, completion_tokens;
};

/* A field that ask.h does not have, or has in another form. */
struct openai_field {
    const char *name;
    const char *schema; /* of its values: its name in openapi.json */
    size_t flag;        /* offset of a member of struct openai that is set, true or false; 0: none */
    /* NULL: a flag, or a field that is read before, or changes nothing. */
    bool (*read)(struct openai *request, const char *name, const json_t *value, struct error *error);
};

/* The differences between completions and chats. */
struct openai_kind {
    bool is_chat;
    const char *required; /* the name of the field that every request has */
    const struct openai_kind *other;
    const struct openai_field *fields;
    size_t field_count;
    /* Makes the prompts. */
    bool (*open)(struct openai *request, struct error *error);
    /* Checks the request after all fields were read. */
    bool (*check)(struct openai *request, struct error *error);
};
extern const struct openai_kind openai_completion_kind, openai_chat_kind;
/* Reads all fields of the body, and checks them together. Returns false with *error. */
bool openai_read_fields(struct openai *request, struct error *error);
/* Writes the JSON schema of the kind's bodies. `vocab`: ids are below it. */
void openai_add_schema(const struct openai_kind *kind, int64_t vocab, struct strbuf *out);

/* Reads a body into `asked`, an empty request that is then complete except for its seed. It takes over `root`. Call
 * openai_free in any case. Returns false with *error. */
bool openai_read(struct openai *request, const struct openai_model *model, const struct openai_kind *kind, json_t *root,
                 struct call_request *asked, struct error *error);
/* Makes the answer to a request that was read otherwise. STATUS_MEMORY. */
int openai_open_plain(struct openai *request, const struct openai_model *model, struct call_request *asked);
/* Frees everything except `asked`. */
void openai_free(struct openai *request);

/* Names keywords of a constraint that are not enforced in the answer: the field and each element of `ignored`, a JSON
 * array of texts or NULL. */
void openai_add_ignored(struct openai *request, const char *field, const json_t *ignored);

/* ---- its answer ---- */

/* Takes an update's tokens of prompts, for echoes and for prompt_logprobs. */
void openai_take_prompts(struct openai *request, const struct call_update *update);
/* Adds a piece to a part, and the choice's end unless `end` is NULL. In a stream, the echo precedes a choice's first
 * piece. */
void openai_take(struct openai *request, struct openai_choice *choice, const struct call_update *update,
                 const struct call_piece *piece, const struct call_end *end, struct openai_part *part);
/* Takes an update's pieces and ends, for an answer that is one JSON text. */
void openai_take_all(struct openai *request, const struct call_update *update);
/* Returns the minimum size of the data that the answer is built from. */
size_t openai_known_bytes(const struct openai *request);
/* Writes the kept tokens of prompts into their parts and log-probabilities; openai_build does it too. */
void openai_write_prompts(struct openai *request);
/* Completes the JSON text of an answer that begins with its head. `out` has failed when memory was lacking. */
void openai_build(struct openai *request, struct strbuf *out);

/* Writes "id":...,"object":...,"created":...,"model":...,"system_fingerprint":..., */
void openai_add_head(const struct openai *request, struct strbuf *out);
/* Writes "adapters":...,"seed":..., and the prompt's data for a chat. */
void openai_add_facts(const struct openai *request, struct strbuf *out);
/* Writes the data of the prompt of a completion's choice, each item after a comma. */
void openai_add_prompt_facts(const struct openai *request, const struct openai_choice *choice, struct strbuf *out);
void openai_add_usage(const struct openai *request, struct strbuf *out);
const char *openai_finish_reason(const struct openai_choice *choice);
/* Writes `count` tokens of a prompt into its echo and its log-probabilities. Their first_top counts in `tops`. */
void openai_add_prompt_tokens(const struct openai *request, struct openai_prompt *prompt,
                              const struct call_token *tokens, int64_t count, const struct call_top *tops);
