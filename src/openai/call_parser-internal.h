/* Shared by the files of the parser of calls.
 *
 * A completion is a sequence of units: a byte, or a special token as 256 plus its id. */
#pragma once

#include "call_parser.h"
#include "json_scan.h"

typedef int32_t unit;
enum { UNIT_MARK = 256 };
struct units {
    unit *items; /* [count] */
    size_t count, capacity;
};

enum { LITERAL_UNITS = 64, CALL_STEPS = 10 };
/* A text of a format. */
struct literal {
    unit units[LITERAL_UNITS];
    size_t count;
};
/* A part of a call, as tool_format.h has them; 'T' is a text. White space may stand before each. */
struct call_step {
    char kind;
    struct literal text;
};

enum taken {
    TAKEN,
    AGAIN,  /* the unit belongs to the next state */
    BAD,    /* this is no call */
    FAILED, /* parser->status, or there is no memory */
};

enum object_place { OBJECT_BEGIN, OBJECT_KEY, OBJECT_IN_KEY, OBJECT_COLON, OBJECT_VALUE, OBJECT_IN_VALUE, OBJECT_NEXT };
enum parameter_place { PARAMETER_NEXT, PARAMETER_KEY, PARAMETER_VALUE };

/* The call that is being read. */
struct call_reading {
    size_t step;
    struct units tried; /* units of a literal that has begun */
    char name[TOOL_NAME_BYTES + 1];
    size_t name_length;
    const struct call_tool *tool; /* NULL: the name is not known yet */
    bool has_arguments;           /* they have begun */
    struct strbuf arguments;      /* those that were not passed on */
    struct json_scan scan;        /* of the value that is being read */
    /* %O */
    enum object_place object;
    char key[16];
    size_t key_length;
    bool is_name, is_arguments, has_ended;
    /* %P */
    enum parameter_place parameter;
    struct strbuf parameter_key, keys, value; /* keys: those that came, each with a zero byte */
    unsigned types;                           /* of the value: enum value_type */
    bool is_first_line, is_nested, is_value_complete;
};

struct call_parser {
    struct call_parser_options options;
    struct call_step steps[CALL_STEPS];
    size_t step_count;
    struct literal begin, other, more, end, think, think_end, call_id, parameter, parameter_end;
    enum parser_place { IN_TEXT, IN_THOUGHT, IN_CALL, AFTER_CALL, OVER } place;
    struct units held; /* what may become a call, or a mark */
    size_t spaces;     /* of them: white space before it */
    bool may_think;    /* nothing but white space has come */
    bool is_fresh;     /* no text has come since the beginning, the reasoning, or a call */
    bool has_thought;  /* white space is dropped: it follows the reasoning */
    /* A section of calls: */
    bool is_other, is_list, has_list, is_complete, has_begun;
    struct call_reading call;
    int64_t calls, reasoning_tokens;
    int status;
    uint64_t digest; /* of seed, prompt and choice */
    bool has_digest;
    /* Not yet passed on: */
    enum call_event_kind writes;
    struct strbuf out;
    struct strbuf waiting; /* bytes whose tokens have not come */
    bool has_token;
};

bool unit_is_space(unit one);
/* A character of a function's name. */
bool unit_is_of_name(unit one);
int units_add(struct units *units, unit one);
/* Translates a text without white space. STATUS_MEMORY cannot happen; too long a text is a programmer's error. */
void literal_set(struct literal *literal, const struct tokenizer *tokenizer, const char *text, size_t length);
/* Compares units [count] with the beginning of a literal: 0 no, 1 a part of it, 2 all of it. */
int literal_match(const struct literal *literal, const unit *units, size_t count);
/* Follows one of several literals, with white space before it. TAKEN: *found is its index when it is complete, else -1.
 */
enum taken literals_take(struct call_reading *call, const struct literal *const *literals, int count, unit one,
                         int *found);
/* Appends the bytes of a unit. */
void unit_add_bytes(const struct call_parser *parser, unit one, struct strbuf *out);
/* Takes the name's next unit; AGAIN after its last. */
enum taken name_take(struct call_parser *parser, unit one);
/* Takes a unit of the arguments, a JSON object; sets has_ended with its last. */
enum taken arguments_take(struct call_parser *parser, unit one);

/* Take a unit of %O and of %P; they set call->has_ended with the last. */
enum taken object_take(struct call_parser *parser, unit one);
enum taken parameters_take(struct call_parser *parser, unit one);
