/* The fields of a request: sampling, ends of completions, log-probabilities, adapters.
 *
 * A table gives each field a name and a range. Lines of `generate --requests`, bodies of the HTTP API and messages of
 * gRPC all use it, so a field means the same everywhere. Requests are not trusted: each value is in range or is refused
 * with the name of its field. Any thread may call these functions. */
#pragma once

#include "infer/ask_constraint.h"
#include "infer/engine.h"
#include "infer/writer.h"
#include "text/prompt.h"

#include "base/json.h"

enum {
    ASK_MAX_CHOICES = 128,
    ASK_MAX_TOP = 20, /* maximum number of alternatives reported for a token */
    ASK_MAX_ADAPTERS = 4,
    ASK_MAX_BIASES = 1024,
    ASK_MAX_STOP_IDS = 1022
};

/* The values of a request. Strings point into the message that was read. */
struct ask {
    const char *adapters[ASK_MAX_ADAPTERS];
    int64_t adapter_count;
    int64_t max_tokens; /* -1: up to the end of the context */
    int64_t min_tokens, choices, priority;
    int64_t logprobs, prompt_logprobs; /* alternatives to report for each token; -1: no log-probabilities at all */
    struct sampling sampling;
    bool has_seed, ignore_eos;
    bool has_parse_special, parse_special; /* whether names of special tokens in a text are these tokens; if given */
    struct logit_bias *bias;               /* [bias_count] */
    int64_t bias_count;
    int32_t *stop_ids; /* [stop_id_count] */
    int64_t stop_id_count;
    struct writer_string *stop; /* [stop_count] */
    int64_t stop_count;
    struct ask_constraint constraint;
};

/* Sets the defaults: temperature 1, one completion, up to the end of the context. Free it with ask_free. */
void ask_begin(struct ask *ask);
void ask_free(struct ask *ask);

/* Reads the field `name` from JSON; null counts as absent. *is_known is false, and nothing happens, when a request has
 * no such field. `vocab`: ids are below it. STATUS_INVALID, whose message says what was expected, without the name;
 * STATUS_MEMORY. */
int ask_read_field(struct ask *ask, const char *name, const json_t *value, int64_t vocab, bool *is_known);
/* Returns the name of field `number`, from 0; NULL after the last. */
const char *ask_field_name(size_t number);
/* Writes "NAME":{...}, the JSON schema of that field's values. `vocab`: ids are below it. */
void ask_add_schema(size_t number, int64_t vocab, struct strbuf *out);
/* Sets a numeric field. STATUS_INVALID as ask_read_field. */
int ask_set_integer(struct ask *ask, const char *name, int64_t value);
int ask_set_number(struct ask *ask, const char *name, double value);
/* Allocates a zeroed list of `count` elements, which the caller sets and ask_check checks. STATUS_INVALID when the list
 * may not be so long; STATUS_MEMORY. */
int ask_reserve_bias(struct ask *ask, size_t count);
int ask_reserve_stop_ids(struct ask *ask, size_t count);
int ask_reserve_stops(struct ask *ask, size_t count);
/* Sets the stop strings [count], which stay the caller's. STATUS_INVALID as writer_stops_open; STATUS_MEMORY. */
int ask_take_stops(struct ask *ask, const char *const *strings, size_t count);
/* Checks the elements of lists, and the fields in combination. STATUS_INVALID sets *field to the name of the faulty
 * field. */
int ask_check(const struct ask *ask, int64_t vocab, const char **field);
/* Returns the flag of tokenizer_encode for the request's text. `otherwise`: when the request has no parse_special. */
unsigned ask_special_flag(const struct ask *ask, enum special_tokens otherwise);
/* Draws a seed below 2^53, which every JSON reader reproduces, if the request has none. STATUS_IO. */
int ask_draw_seed(struct ask *ask);
/* Derives a seed from a run's seed and the request's number, if the request has none. Equal runs get equal seeds. */
void ask_derive_seed(struct ask *ask, uint64_t seed, int64_t number);
/* Returns the known field nearest to an unknown `name`: one of the table, or one of the `others` [count], which this
 * form of request adds. NULL when none is near. */
const char *ask_nearest_field(const char *name, const char *const *others, size_t count);
/* Reads a token id from JSON; `number` is its index in a list, for the message. STATUS_INVALID. */
int ask_read_id(const json_t *value, size_t number, int64_t vocab, int32_t *id);

/* ---- ends of its completions ---- */

struct ask_ends {
    struct prompt_ends prompt;
    struct writer_stops *stops; /* stop strings and the end of a turn; NULL: none */
    bool is_answer; /* of a chat: a text on its own, which a tokenizer's decoder may begin without a space */
};
struct ask_model {
    const struct tokenizer *tokenizer; /* NULL: none; stop strings then are refused */
    const struct model_text_ends *text;
    int64_t vocab;
    struct chat_template *template; /* renders the messages; NULL: the prompt has no turns */
    double template_seconds;        /* limit, see chat_find_turn_end */
    bool continues;                 /* the completion continues the last message */
};
/* Finds the ends. Close them with ask_ends_close. STATUS_MEMORY, STATUS_INVALID. */
int ask_ends_open(const struct ask *ask, const struct ask_model *model, struct ask_ends *ends);
void ask_ends_close(struct ask_ends *ends);

/* ---- scheduling ---- */

/* The prompt of a request, with the slot of its adapters in an engine. */
struct ask_prompt {
    const struct engine *engine;
    int slot;
    const int32_t *ids; /* [count] */
    int64_t count;
};

/* Checks that virtual tokens, prompt and completion fit into `most` tokens. STATUS_INVALID sets *field to the number of
 * tokens that is too large; NULL: the prompt itself is invalid. */
int ask_check_length(const struct ask *ask, const struct ask_prompt *prompt, int64_t most, const char **field);
/* Fills the scheduler's request. The caller sets client, salt, deadline and calls. */
void ask_schedule(const struct ask *ask, const struct ask_ends *ends, const struct ask_prompt *prompt,
                  struct scheduler_request *scheduled);

/* ---- writing a completion ---- */

/* A completion of a request. */
struct ask_completion {
    const struct ask *ask;
    const struct ask_ends *ends;
    const struct tokenizer *tokenizer; /* NULL: nothing is written */
    struct writer *writer;
    int64_t drawn; /* tokens of the completion, including the one that is written */
};

/* Writes a drawn token that is no end: appends to `out` the bytes that are ready. *is_ended: the completion ends here.
 * STATUS_MEMORY. */
int ask_write(const struct ask_completion *completion, int32_t token, struct strbuf *out, bool *is_ended);
/* Returns the number of the request's stop string that ended a completion, from 1; 0: none did. */
int64_t ask_find_stop(const struct ask *ask, const struct writer *writer);
