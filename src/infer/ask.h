/* A request to a model: the prompt, how its texts are drawn, their ends, and what is reported of their tokens.
 *
 * The values of a request are a table of rows with names and ranges: a line of `generate --requests`, a body of the
 * HTTP API and a message of gRPC all go through it, so that a field means the same everywhere. Requests come from
 * anybody: whatever is given, it is in its range or refused by name. Any thread. */
#ifndef CAMBIUM_INFER_ASK_H
#define CAMBIUM_INFER_ASK_H

#include "infer/engine.h"
#include "infer/writer.h"
#include "text/prompt.h"

#include "base/json.h"

enum {
    ASK_MAX_CHOICES = 128,
    ASK_MAX_TOP = 20, /* likeliest tokens beside one */
    ASK_MAX_ADAPTERS = 4,
    ASK_MAX_BIASES = 1024,
    ASK_MAX_STOP_IDS = 1022
};

/* Strings are those that it was read from. */
struct ask {
    const char *adapters[ASK_MAX_ADAPTERS];
    int64_t adapter_count;
    int64_t max_tokens; /* -1: to the end of the context */
    int64_t min_tokens, choices, priority;
    int64_t logprobs, prompt_logprobs; /* likeliest tokens beside each; -1: not even its own log-probability */
    struct sampling sampling;
    bool has_seed, ignore_eos;
    struct logit_bias *bias; /* [bias_count] */
    int64_t bias_count;
    int32_t *stop_ids; /* [stop_id_count] */
    int64_t stop_id_count;
    struct writer_string *stop; /* [stop_count] */
    int64_t stop_count;
};

/* Everything at its default: temperature 1, one text, to the end of the context. */
void ask_begin(struct ask *ask);
void ask_free(struct ask *ask);

/* Reads the field `name` of JSON; null is as if it were not there. *is_known: it is a field of a request, else nothing
 * happens. STATUS_INVALID says what was expected, without the name; STATUS_MEMORY. */
int ask_read_field(struct ask *ask, const char *name, const json_t *value, int64_t vocab, bool *is_known);
/* The fields' names, from 0; NULL after the last. */
const char *ask_field_name(size_t number);
/* Sets a field that is a number, as ask_read_field. */
int ask_set_integer(struct ask *ask, const char *name, int64_t value);
int ask_set_number(struct ask *ask, const char *name, double value);
/* Makes room for a list of `count`, zeroed, whose elements the caller sets; ask_check looks at them. STATUS_INVALID
 * where that is more than there may be. */
int ask_reserve_bias(struct ask *ask, size_t count);
int ask_reserve_stop_ids(struct ask *ask, size_t count);
int ask_reserve_stops(struct ask *ask, size_t count);
/* Whether a list's elements can be, and the values together. *field: the name of what is wrong. */
int ask_check(const struct ask *ask, int64_t vocab, const char **field);
/* Draws a seed where none was given: below 2^53, so that every reader of JSON gives it back. */
int ask_draw_seed(struct ask *ask);
/* Takes the seed of request `number` of a run with `seed` where none was given: the same again in every such run. */
void ask_derive_seed(struct ask *ask, uint64_t seed, int64_t number);
/* The field nearest to an unknown `name`: one of every request, or one of `others`, [count] names that the form of the
 * request adds; NULL when none is near. The string is the table's or one of `others`. Any thread. */
const char *ask_nearest_field(const char *name, const char *const *others, size_t count);
/* Reads a token id of JSON; `number` is its place in a list. */
int ask_read_id(const json_t *value, size_t number, int64_t vocab, int32_t *id);

/* ---- what ends its texts ---- */

struct ask_ends {
    struct prompt_ends own;
    struct writer_stops *stops; /* its stop strings and the end of a turn; NULL: none */
};
struct ask_model {
    const struct tokenizer *tokenizer; /* NULL: none, and then there are no stop strings */
    const struct model_text_ends *text;
    int64_t vocab;
    struct chat_template *template; /* of messages; NULL: there are no turns */
    double template_seconds;        /* as chat_find_turn_end has them */
};
/* ask_ends_close ends it. STATUS_MEMORY. */
int ask_ends_open(const struct ask *ask, const struct ask_model *model, struct ask_ends *ends);
void ask_ends_close(struct ask_ends *ends);

/* ---- in an engine ---- */

/* Whether stem, prompt and texts fit into `most` tokens; *field: which number of tokens is too large, NULL: the prompt
 * cannot be. STATUS_INVALID. */
int ask_check_length(const struct ask *ask, const struct engine *engine, int slot, int64_t most, const int32_t *prompt,
                     int64_t prompt_length, const char **field);
/* Writes the scheduler's request, without client, salt, deadline and calls. */
void ask_schedule(const struct ask *ask, const struct engine *engine, int slot, const struct ask_ends *ends,
                  const int32_t *prompt, int64_t prompt_length, struct scheduler_request *scheduled);

/* ---- one of its texts ---- */

/* Takes the bytes of a drawn token that is no end: appends to `out` what can go out, and *is_ended: the text ends
 * here. `drawn`: tokens of the text with this one. `tokenizer` NULL: there is no text. */
int ask_write(const struct ask *ask, const struct ask_ends *ends, const struct tokenizer *tokenizer, int32_t token,
              int64_t drawn, struct writer *writer, struct strbuf *out, bool *is_ended);

#endif
