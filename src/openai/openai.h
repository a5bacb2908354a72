/* A request of the OpenAI API, from its body to its answer, without its transport.
 *
 *     request.c      reading a body; freeing
 *     fields.c       fields that completions and chats share, and unknown fields
 *     completions.c  /v1/completions: prompts
 *     chat.c         /v1/chat/completions: messages
 *     tools.c        tools and the choice among them; tools_check.c compares templates with formats of calls
 *     call_*.c       the parser of calls and reasoning; reading.c lets it read a choice
 *     logprobs.c     tokens and log-probabilities in the form of either
 *     answer.c       an answer as one JSON text, and the parts of it that streams have too
 *     chunks.c       an answer as a stream
 *     items.c        answers of dialects that are items: text, reasoning, calls
 *     translate.c    requests of other dialects: their contents and tools
 *     responses.c, responses_answer.c    /v1/responses
 *     messages.c, messages_answer.c      /v1/messages, of Anthropic
 *
 * The body stays in memory as JSON as long as the request, because it holds the prompts, stop strings and names. Any
 * thread may use a request, one at a time. */
#pragma once

#include "call_request.h"
#include "kept_tokens.h"
#include "model.h"
#include "tools.h"
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

/* A call of a tool in an answer that is not streamed. */
struct openai_call {
    char id[TOOL_ID_BYTES];
    const char *name;
    struct strbuf arguments;
};

/* A part of an answer in a dialect that has items. */
struct openai_item {
    enum call_event_kind kind; /* CALL_TEXT, CALL_REASONING, CALL_BEGINS */
    struct strbuf text;        /* a call's is its arguments */
    char id[TOOL_ID_BYTES];    /* of a call, with its name */
    const char *name;
};

struct openai_choice {
    struct openai_part part;      /* for an answer that is not streamed; in a stream, tokens that no chunk has yet */
    struct openai_reader *reader; /* NULL: its text is read as it is */
    struct strbuf reasoning;      /* for an answer that is not streamed, with the calls */
    struct openai_call *calls;    /* [call_count] */
    size_t call_count, call_capacity;
    bool has_calls;
    struct openai_place place;
    bool has_begun, has_token, is_ended, is_stop;
    int64_t stop;            /* the stop string that ended it, from 1; 0: none did */
    int64_t last_piece, end; /* while an update is read: an index plus one; 0: none */
};

enum { OPENAI_ID_BYTES = 129 };
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
    json_t *tool_choice, *parallel_calls;             /* the same, until the tools are read */
    const char *tool_schema;                          /* the name of a tool's parameters; NULL: that of a chat */
    struct openai_tools calls;                        /* that the answer may have */
    struct strbuf ignored;                            /* names of unknown fields, for the log */
    struct strbuf ignored_names;                      /* all of them, as elements of a JSON array */
    int64_t ignored_count;
    /* The answer: */
    char id[OPENAI_ID_BYTES]; /* without its prefix */
    const char *model_name;   /* the name in the answer: the base, or one adapter */
    int64_t created;
    const uint64_t *generations;   /* of the adapters */
    const int64_t *cached;         /* [prompt_count] tokens */
    struct openai_prompt *prompts; /* [prompt_count] in the request's order */
    int64_t prompt_count;
    struct openai_choice *choices; /* [choice_count] first those of the first prompt, then those of the next */
    int64_t choice_count, completion_tokens, reasoning_tokens;
    /* Gets calls, reasoning and text of a choice as they come; NULL: the choice keeps them. */
    int (*on_event)(void *context, struct openai_choice *choice, const struct call_event *event);
    void *event_context;
    /* A stream: */
    struct strbuf *out; /* gets its bytes; NULL: the answer is sent whole */
    struct strbuf head; /* the beginning of every chunk */
    struct openai_part chunk;
    bool has_chunk;
    /* A dialect: */
    bool hides_reasoning;
    struct strbuf given;       /* members of the request that the answer repeats, each before a comma */
    struct openai_item *items; /* [item_count] */
    size_t item_count, item_capacity;
    bool is_item_open; /* the last one */
    int64_t sequence;  /* events of the stream */
};

/* A field that ask.h does not have, or has in another form. */
struct openai_field {
    const char *name;
    const char *schema; /* of its values: its name in openapi.json */
    size_t flag;        /* offset of a member of struct openai that is set, true or false; 0: none */
    /* NULL: a flag, or a field that is read before, or changes nothing. */
    bool (*read)(struct openai *request, const char *name, const json_t *value, struct error *error);
};

/* How a dialect writes an answer of items. Events of a stream go to request->out. */
struct openai_dialect {
    const char *waiting;                   /* sent when nothing else comes for long */
    void (*begin)(struct openai *request); /* before the first item */
    void (*open)(struct openai *request, const struct openai_item *item);
    void (*add)(struct openai *request, const struct openai_item *item, const char *text, size_t length);
    void (*close)(struct openai *request, const struct openai_item *item);
    void (*end)(struct openai *request); /* after the last item */
    void (*fail)(struct openai *request, const struct error *error, struct strbuf *out);
    /* Writes an answer that is sent whole. */
    void (*build)(struct openai *request, struct strbuf *out);
};

extern const struct openai_dialect openai_responses_dialect, openai_messages_dialect;

/* The differences between kinds of requests. */
struct openai_kind {
    const char *url, *schema;             /* schema: the name of its bodies' in openapi.json */
    bool is_chat, only_counts;            /* only_counts: the answer is the number of the prompt's tokens */
    const char *required;                 /* the name of the field that every request has */
    const struct openai_kind *other;      /* whose fields are refused by name; NULL: none */
    const struct openai_dialect *dialect; /* NULL: that of completions and chats */
    const struct openai_field *fields;
    size_t field_count;
    /* Makes the prompts. */
    bool (*open)(struct openai *request, struct error *error);
    /* Checks the request after all fields were read. */
    bool (*check)(struct openai *request, struct error *error);
};
extern const struct openai_kind openai_completion_kind, openai_chat_kind, openai_responses_kind, openai_messages_kind,
    openai_count_kind;
/* All kinds, up to a NULL. */
extern const struct openai_kind *const openai_kinds[];
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

/* ---- chats, for kinds that are translated to them: chat.c ---- */

/* Takes over `list`, messages of a chat, as those of the request. `list` NULL: there was no memory. */
bool openai_take_messages(struct openai *request, json_t *list, struct error *error);
/* Readers of fields. */
bool openai_read_longest(struct openai *request, const char *name, const json_t *value, struct error *error);
bool openai_read_tools(struct openai *request, const char *name, const json_t *value, struct error *error);
bool openai_read_tool_choice(struct openai *request, const char *name, const json_t *value, struct error *error);
bool openai_read_parallel(struct openai *request, const char *name, const json_t *value, struct error *error);
bool openai_read_tops(struct openai *request, const char *name, const json_t *value, struct error *error);
bool openai_read_variables(struct openai *request, const char *name, const json_t *value, struct error *error);
bool openai_check_chat(struct openai *request, struct error *error);
/* Refuses a field that is neither null nor false. */
bool openai_refuse_field(struct openai *request, const char *name, const json_t *value, struct error *error);
/* Names keywords of a constraint that are not enforced in the answer: `ignored`, a JSON array of texts or NULL. */
void openai_add_ignored(struct openai *request, const json_t *ignored);

/* ---- its answer ---- */

/* Takes an update's tokens of prompts, for echoes and for prompt_logprobs. */
void openai_take_prompts(struct openai *request, const struct call_update *update);
/* Adds a piece to a part, and the choice's end unless `end` is NULL. In a stream, the echo precedes a choice's first
 * piece. */
void openai_take(struct openai *request, struct openai_choice *choice, const struct call_update *update,
                 const struct call_piece *piece, const struct call_end *end, struct openai_part *part);
/* True when calls or reasoning are read out of the choices. The messages were rendered. */
bool openai_reads(const struct openai *request);
/* Reads a piece and the end of a choice, each unless NULL. STATUS_MEMORY. */
int openai_read_piece(struct openai *request, struct openai_choice *choice, const struct call_update *update,
                      const struct call_piece *piece, const struct call_end *end);
void openai_reading_free(struct openai_choice *choice);
/* Takes an update's pieces and ends, for an answer that is one JSON text. */
void openai_take_all(struct openai *request, const struct call_update *update);
/* Returns the minimum size of the data that the answer is built from. */
size_t openai_known_bytes(const struct openai *request);
/* Writes the kept tokens of prompts into their parts and log-probabilities; openai_build does it too. */
void openai_write_prompts(struct openai *request);
/* Writes the JSON text of an answer. `out` has failed when memory was lacking. */
void openai_build(struct openai *request, struct strbuf *out);

/* Writes "id":...,"object":...,"created":...,"model":...,"system_fingerprint":..., */
void openai_add_head(const struct openai *request, struct strbuf *out);
/* Writes "adapters":...,"seed":..., and the prompt's data for a chat. */
void openai_add_facts(const struct openai *request, struct strbuf *out);
/* Writes the data of the prompt of a completion's choice, each item after a comma. */
void openai_add_prompt_facts(const struct openai *request, const struct openai_choice *choice, struct strbuf *out);
void openai_add_usage(const struct openai *request, struct strbuf *out);
const char *openai_finish_reason(const struct openai_choice *choice);
/* Writes ,"tool_calls":[...] of a choice that has calls, and ,"NAME":... with its reasoning, if it has any. */
void openai_add_message_parts(const struct openai_choice *choice, const char *reasoning, struct strbuf *out);
/* Writes `count` tokens of a prompt into its echo and its log-probabilities. Their first_top counts in `tops`. */
void openai_add_prompt_tokens(const struct openai *request, struct openai_prompt *prompt,
                              const struct call_token *tokens, int64_t count, const struct call_top *tops);

/* ---- streams: chunks.c ---- */

/* Appends the events of an update, of the end, and of an error that ends a stream. */
void openai_write_update(struct openai *request, const struct call_update *update, struct strbuf *out);
void openai_write_end(struct openai *request, struct strbuf *out);
void openai_write_failure(struct openai *request, const struct error *error, struct strbuf *out);
/* The bytes of a stream when nothing else comes for long. */
const char *openai_waiting(const struct openai *request);

/* ---- items: items.c ---- */

/* Takes an event; the type of openai.on_event, whose context is the request. */
int openai_items_take(void *context, struct openai_choice *choice, const struct call_event *event);
/* Begin and end the items of a stream. */
void openai_items_begin(struct openai *request);
void openai_items_end(struct openai *request);
void openai_items_free(struct openai *request);
/* Writes an id with its prefix as a JSON string: that of the request, or that of the item unless it is NULL. */
void openai_add_id(const struct openai *request, const char *prefix, const struct openai_item *item,
                   struct strbuf *out);
/* The tokens of the prompt, and those of them that the cache gave. */
int64_t openai_prompt_tokens(const struct openai *request, int64_t *cached);
