/* Shared by the parsers of statements and of expressions: failures, nodes, names, and the present token. */
#include "parse-internal.h"

#include <stdarg.h>

void jinja_parse_fail(struct jinja_parser *parser, int line, int status, const char *format, ...) {
    char text[256];
    va_list arguments;
    if (parser->status)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    parser->status = status_fail(status, "line %d: %s", line, text);
}

void *jinja_parser_take(struct jinja_parser *parser, size_t bytes) {
    void *memory = jinja_take(&parser->jinja->arena, bytes, sizeof(void *));
    if (!memory)
        jinja_parse_fail(parser, parser->at->line, STATUS_MEMORY, "out of memory");
    return memory;
}

struct jinja_node *jinja_node_new(struct jinja_parser *parser, enum jinja_node_kind kind, int line) {
    struct jinja_node *node = jinja_parser_take(parser, sizeof *node);
    node = node ? node : &parser->no_node;
    *node = (struct jinja_node){.kind = kind, .line = line};
    return node;
}

struct jinja_value jinja_new_string(struct jinja_parser *parser, const char *bytes, size_t length) {
    struct jinja_string *string = jinja_parser_take(parser, sizeof *string + length + 1);
    if (!string)
        return jinja_none();
    *string = (struct jinja_string){.bytes = memcpy(string + 1, bytes, length), .length = length};
    return jinja_string_value(string);
}

bool jinja_parse_enter(struct jinja_parser *parser, const char *what) {
    if (++parser->depth > JINJA_PARSE_DEPTH)
        jinja_parse_fail(parser, parser->at->line, STATUS_UNSUPPORTED, "%s more than %d deep", what, JINJA_PARSE_DEPTH);
    return !parser->status;
}

void jinja_nodes_add(struct jinja_parser *parser, struct jinja_nodes *nodes, struct jinja_node *node) {
    if (nodes->count == nodes->capacity) {
        uint32_t capacity = nodes->capacity ? 2 * nodes->capacity : 4;
        struct jinja_node **grown = jinja_parser_take(parser, capacity * sizeof *grown);
        if (!grown)
            return;
        if (nodes->count)
            memcpy(grown, nodes->items, nodes->count * sizeof *grown);
        nodes->items = grown;
        nodes->capacity = capacity;
    }
    nodes->items[nodes->count++] = node;
}

static uint32_t jinja_name_of(struct jinja_parser *parser, const char *bytes, size_t length) {
    struct jinja *jinja = parser->jinja;
    uint32_t *slot = jinja_name_slot(jinja, bytes, length);
    if (*slot)
        return *slot - 1;
    if (jinja->name_count == JINJA_MAX_NAMES) {
        jinja_parse_fail(parser, parser->at->line, STATUS_UNSUPPORTED, "more than %d names", JINJA_MAX_NAMES);
        return 0;
    }
    char *copy = jinja_parser_take(parser, length + 1);
    if (!copy)
        return 0;
    memcpy(copy, bytes, length);
    copy[length] = 0;
    jinja->names[jinja->name_count] = (struct jinja_name){copy, length};
    *slot = ++jinja->name_count;
    return *slot - 1;
}

void jinja_next(struct jinja_parser *parser) {
    if (parser->at->kind != TOKEN_END)
        parser->at++;
}

bool jinja_at(const struct jinja_parser *parser, const char *text) {
    const struct jinja_token *token = parser->at;
    return token->kind >= TOKEN_NAME && *text == *token->bytes && strlen(text) == token->length &&
           !memcmp(text, token->bytes, token->length);
}

bool jinja_skip(struct jinja_parser *parser, const char *text) {
    bool is_there = jinja_at(parser, text);
    if (is_there)
        jinja_next(parser);
    return is_there;
}

void jinja_fail_expected(struct jinja_parser *parser, const char *what) {
    const struct jinja_token *token = parser->at;
    const char *quote = token->kind == TOKEN_END || token->kind == TOKEN_TEXT || token->kind == TOKEN_TAG ? "" : "'";
    jinja_parse_fail(parser, token->line, STATUS_INVALID, "expected %s, found %s%.*s%s", what, quote,
                     (int)(token->length < 40 ? token->length : 40), token->kind == TOKEN_TEXT ? "text" : token->bytes,
                     quote);
}

void jinja_expect(struct jinja_parser *parser, const char *text) {
    char what[8];
    snprintf(what, sizeof what, "'%s'", text);
    if (!jinja_skip(parser, text))
        jinja_fail_expected(parser, what);
}

uint32_t jinja_expect_name(struct jinja_parser *parser) {
    if (parser->at->kind != TOKEN_NAME) {
        jinja_fail_expected(parser, "a name");
        return 0;
    }
    uint32_t name = jinja_name_of(parser, parser->at->bytes, parser->at->length);
    jinja_next(parser);
    return name;
}
