/* Parses the innermost parts of expressions: names, literals, and bracketed expressions. */
#include "parse-internal.h"

#include <string.h>

struct jinja_node *jinja_constant(struct jinja_parser *parser, struct jinja_value value) {
    struct jinja_node *node = jinja_node_new(parser, NODE_CONSTANT, parser->at->line);
    node->value = value;
    return node;
}

void jinja_set_items(struct jinja_node *node, const struct jinja_nodes *nodes) {
    node->items = nodes->items;
    node->item_count = nodes->count;
}

/* Adjacent strings are joined. */
static struct jinja_node *parse_strings(struct jinja_parser *parser) {
    const struct jinja_token *first = parser->at;
    size_t length = 0;
    while (parser->at->kind == TOKEN_STRING) {
        length += parser->at->length;
        jinja_next(parser);
    }
    struct jinja *jinja = parser->jinja;
    struct jinja_string *string = jinja_take(&jinja->arena, sizeof *string, sizeof(void *));
    char *bytes = jinja_take(&jinja->arena, length + 1, 1), *out = bytes;
    struct jinja_node *node = jinja_node_new(parser, NODE_CONSTANT, first->line);
    if (!string || !bytes) {
        jinja_parse_fail(parser, first->line, STATUS_MEMORY, "out of memory");
        return node;
    }
    for (const struct jinja_token *token = first; token < parser->at; token++) {
        memcpy(out, token->bytes, token->length);
        out += token->length;
    }
    *string = (struct jinja_string){.bytes = bytes, .length = length};
    node->value = (struct jinja_value){.kind = JINJA_STRING, .string = string};
    return node;
}

/* Parses expressions between brackets, after the opening one. */
static struct jinja_node *parse_list(struct jinja_parser *parser, int line) {
    struct jinja_node *node = jinja_node_new(parser, NODE_LIST, line);
    struct jinja_nodes items = {0};
    while (!parser->status && !jinja_at_operator(parser, "]")) {
        if (items.count)
            jinja_expect_operator(parser, ",");
        if (jinja_at_operator(parser, "]"))
            break;
        jinja_nodes_add(parser, &items, jinja_parse_expression(parser, true));
    }
    jinja_expect_operator(parser, "]");
    jinja_set_items(node, &items);
    return node;
}

static struct jinja_node *parse_dict(struct jinja_parser *parser, int line) {
    struct jinja_node *node = jinja_node_new(parser, NODE_DICT, line);
    struct jinja_nodes items = {0};
    while (!parser->status && !jinja_at_operator(parser, "}")) {
        if (items.count)
            jinja_expect_operator(parser, ",");
        if (jinja_at_operator(parser, "}"))
            break;
        jinja_nodes_add(parser, &items, jinja_parse_expression(parser, true));
        jinja_expect_operator(parser, ":");
        jinja_nodes_add(parser, &items, jinja_parse_expression(parser, true));
    }
    jinja_expect_operator(parser, "}");
    jinja_set_items(node, &items);
    return node;
}

static struct jinja_node *parse_name(struct jinja_parser *parser) {
    static const struct {
        const char *name;
        struct jinja_value value;
    } constants[] = {
        {"true", {.kind = JINJA_BOOL, .truth = true}},
        {"True", {.kind = JINJA_BOOL, .truth = true}},
        {"false", {.kind = JINJA_BOOL, .truth = false}},
        {"False", {.kind = JINJA_BOOL, .truth = false}},
        {"none", {.kind = JINJA_NONE}},
        {"None", {.kind = JINJA_NONE}},
    };
    struct jinja_node *node = NULL;
    for (size_t i = 0; i < sizeof constants / sizeof *constants && !node; i++)
        if (jinja_at_name(parser, constants[i].name))
            node = jinja_constant(parser, constants[i].value);
    if (!node) {
        node = jinja_node_new(parser, NODE_NAME, parser->at->line);
        node->name = jinja_name_of(parser, parser->at->bytes, parser->at->length);
    }
    jinja_next(parser);
    return node;
}

struct jinja_node *jinja_parse_primary(struct jinja_parser *parser) {
    const struct jinja_token *token = parser->at;
    struct jinja_node *node;
    char shown[64];
    switch (token->kind) {
    case TOKEN_NAME:
        return parse_name(parser);
    case TOKEN_STRING:
        return parse_strings(parser);
    case TOKEN_INTEGER:
        node = jinja_constant(parser, jinja_integer(token->integer));
        jinja_next(parser);
        return node;
    case TOKEN_FLOAT:
        node = jinja_constant(parser, jinja_float(token->real));
        jinja_next(parser);
        return node;
    default:
        break;
    }
    if (jinja_skip_operator(parser, "(")) {
        node = jinja_parse_tuple(parser, true, NULL, true);
        jinja_expect_operator(parser, ")");
        return node;
    }
    if (jinja_skip_operator(parser, "["))
        return parse_list(parser, token->line);
    if (jinja_skip_operator(parser, "{"))
        return parse_dict(parser, token->line);
    jinja_parse_fail(parser, token->line, STATUS_INVALID, "expected an expression, found %s",
                     jinja_shown_token(token, shown));
    return jinja_constant(parser, jinja_none());
}

struct jinja_node *jinja_parse_tuple(struct jinja_parser *parser, bool with_condition, const char *end,
                                     bool has_parentheses) {
    struct jinja_nodes items = {0};
    bool is_tuple = false;
    int line = parser->at->line;
    char shown[64];
    while (!parser->status) {
        if (items.count)
            jinja_expect_operator(parser, ",");
        if (parser->at->kind == TOKEN_PRINT_END || parser->at->kind == TOKEN_BLOCK_END ||
            jinja_at_operator(parser, ")") || (end && jinja_at_name(parser, end)))
            break;
        jinja_nodes_add(parser, &items, jinja_parse_expression(parser, with_condition));
        if (!jinja_at_operator(parser, ","))
            break;
        is_tuple = true;
    }
    if (!is_tuple && items.count)
        return items.items[0];
    if (!is_tuple && !has_parentheses)
        jinja_parse_fail(parser, line, STATUS_INVALID, "expected an expression, found %s",
                         jinja_shown_token(parser->at, shown));
    struct jinja_node *node = jinja_node_new(parser, NODE_TUPLE, line);
    jinja_set_items(node, &items);
    return node;
}
