/* Turns a template's text into nodes: tokens, and the common part of the parsers of statements and of expressions. */
#pragma once

#include "jinja-internal.h"

/* ---- tokens ---- */

enum jinja_token_kind {
    TOKEN_END,
    TOKEN_TEXT,
    TOKEN_STRING,
    TOKEN_INTEGER,
    TOKEN_FLOAT,
    TOKEN_NAME,
    TOKEN_OPERATOR,
    TOKEN_TAG, /* "{%", "%}", "{{" or "}}" */
};
struct jinja_token {
    enum jinja_token_kind kind;
    int line;
    const char *bytes;
    size_t length;
    int64_t integer;
    double real;
};

/* Makes the tokens of a template; the last one is TOKEN_END. STATUS_INVALID, STATUS_UNSUPPORTED, STATUS_MEMORY. */
int jinja_lex(struct jinja_arena *arena, const char *text, size_t length, struct jinja_token **tokens);

/* ---- parsing ---- */

enum { JINJA_PARSE_DEPTH = 200 };

struct jinja_parser {
    struct jinja *jinja;
    const struct jinja_token *at;
    int status;
    int depth, loops;
    struct jinja_node no_node; /* the result of failed allocations */
};
/* Reports a failure with the token's "line N: "; only the first one is kept. */
void jinja_parse_fail(struct jinja_parser *parser, int line, int status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Takes memory of the template's arena. Fails with NULL when there is none. */
void *jinja_parser_take(struct jinja_parser *parser, size_t bytes);
/* Never returns NULL: after a failure it returns an unusable node. */
struct jinja_node *jinja_node_new(struct jinja_parser *parser, enum jinja_node_kind kind, int line);
void jinja_nodes_add(struct jinja_parser *parser, struct jinja_nodes *nodes, struct jinja_node *node);
/* Makes the string of a node: a copy of bytes[length]. */
struct jinja_value jinja_new_string(struct jinja_parser *parser, const char *bytes, size_t length);
/* Enters one more level of `what`. Returns false after a failure; parser->depth must be lowered in either case. */
bool jinja_parse_enter(struct jinja_parser *parser, const char *what);
/* These examine or take the present token: a name, an operator or a part of a tag. */
void jinja_next(struct jinja_parser *parser);
bool jinja_at(const struct jinja_parser *parser, const char *text);
bool jinja_skip(struct jinja_parser *parser, const char *text);
void jinja_expect(struct jinja_parser *parser, const char *text);
/* Takes the name that must come here. */
uint32_t jinja_expect_name(struct jinja_parser *parser);
/* Fails with what is here instead. */
void jinja_fail_expected(struct jinja_parser *parser, const char *what);

struct jinja_node *jinja_parse_expression(struct jinja_parser *parser, bool with_condition);
/* Parses one expression, or a tuple of several. `end`: a name that may end it. */
struct jinja_node *jinja_parse_tuple(struct jinja_parser *parser, bool with_condition, const char *end,
                                     bool has_parentheses);
struct jinja_node *jinja_parse_primary(struct jinja_parser *parser);
/* Parses filters after a bar; `first`: without the bar before the first. */
struct jinja_node *jinja_parse_filters(struct jinja_parser *parser, struct jinja_node *node, bool first);
