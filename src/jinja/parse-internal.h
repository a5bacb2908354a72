/* Turns a template's text into nodes: tokens, and the common part of the parsers of statements and of expressions. */
#ifndef CAMBIUM_JINJA_PARSE_INTERNAL_H
#define CAMBIUM_JINJA_PARSE_INTERNAL_H

#include "jinja-internal.h"

/* ---- tokens ---- */

enum jinja_token_kind {
    TOKEN_END,
    TOKEN_TEXT,
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_PRINT_BEGIN,
    TOKEN_PRINT_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_INTEGER,
    TOKEN_FLOAT,
    TOKEN_OPERATOR, /* `bytes` holds it */
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
/* Never returns NULL: after a failure it returns an unusable node. */
struct jinja_node *jinja_node_new(struct jinja_parser *parser, enum jinja_node_kind kind, int line);
uint32_t jinja_name_of(struct jinja_parser *parser, const char *bytes, size_t length);
/* A growing array of nodes; outgrown arrays stay in the arena. */
struct jinja_nodes {
    struct jinja_node **items;
    uint32_t count, capacity;
};
void jinja_nodes_add(struct jinja_parser *parser, struct jinja_nodes *nodes, struct jinja_node *node);
void jinja_set_items(struct jinja_node *node, const struct jinja_nodes *nodes);
/* These examine or take the present token. */
struct jinja_node *jinja_constant(struct jinja_parser *parser, struct jinja_value value);
void jinja_next(struct jinja_parser *parser);
bool jinja_at_operator(const struct jinja_parser *parser, const char *text);
bool jinja_at_name(const struct jinja_parser *parser, const char *text);
bool jinja_skip_operator(struct jinja_parser *parser, const char *text);
bool jinja_skip_name(struct jinja_parser *parser, const char *text);
void jinja_expect_operator(struct jinja_parser *parser, const char *text);
/* Takes the name that must come here. */
uint32_t jinja_expect_name(struct jinja_parser *parser);
const char *jinja_shown_token(const struct jinja_token *token, char shown[64]);

struct jinja_node *jinja_parse_expression(struct jinja_parser *parser, bool with_condition);
/* Parses one expression, or a tuple of several. `end`: a name that may end it. */
struct jinja_node *jinja_parse_tuple(struct jinja_parser *parser, bool with_condition, const char *end,
                                     bool has_parentheses);
struct jinja_node *jinja_parse_primary(struct jinja_parser *parser);
/* Parses filters after a bar; `first`: without the bar before the first. */
struct jinja_node *jinja_parse_filters(struct jinja_parser *parser, struct jinja_node *node, bool first);
struct jinja_node *jinja_parse_call(struct jinja_parser *parser, struct jinja_node *node);

#endif
