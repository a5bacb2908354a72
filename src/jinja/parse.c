/* Tokens into statements. */
#include "parse-internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what both parsers use ---- */

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

static void *take(struct jinja_parser *parser, size_t bytes) {
    void *memory = jinja_take(&parser->jinja->arena, bytes, sizeof(void *));
    if (!memory)
        jinja_parse_fail(parser, parser->at->line, STATUS_MEMORY, "out of memory");
    return memory;
}

struct jinja_node *jinja_node_new(struct jinja_parser *parser, enum jinja_node_kind kind, int line) {
    struct jinja_node *node = take(parser, sizeof *node);
    node = node ? node : &parser->no_node;
    *node = (struct jinja_node){.kind = kind, .line = line};
    return node;
}

void jinja_nodes_add(struct jinja_parser *parser, struct jinja_nodes *nodes, struct jinja_node *node) {
    if (nodes->count == nodes->capacity) {
        uint32_t capacity = nodes->capacity ? 2 * nodes->capacity : 4;
        struct jinja_node **grown = take(parser, capacity * sizeof *grown);
        if (!grown)
            return;
        if (nodes->count)
            memcpy(grown, nodes->items, nodes->count * sizeof *grown);
        nodes->items = grown;
        nodes->capacity = capacity;
    }
    nodes->items[nodes->count++] = node;
}

uint32_t jinja_name_of(struct jinja_parser *parser, const char *bytes, size_t length) {
    struct jinja *jinja = parser->jinja;
    uint32_t *slot = jinja_name_slot(jinja, bytes, length);
    if (*slot)
        return *slot - 1;
    if (jinja->name_count == JINJA_MAX_NAMES) {
        jinja_parse_fail(parser, parser->at->line, STATUS_UNSUPPORTED, "more than %d names", JINJA_MAX_NAMES);
        return 0;
    }
    char *copy = take(parser, length + 1);
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

bool jinja_at_operator(const struct jinja_parser *parser, const char *text) {
    return parser->at->kind == TOKEN_OPERATOR && !strcmp(parser->at->bytes, text);
}

bool jinja_at_name(const struct jinja_parser *parser, const char *text) {
    const struct jinja_token *token = parser->at;
    return token->kind == TOKEN_NAME && strlen(text) == token->length && !memcmp(text, token->bytes, token->length);
}

bool jinja_skip_operator(struct jinja_parser *parser, const char *text) {
    bool is_there = jinja_at_operator(parser, text);
    if (is_there)
        jinja_next(parser);
    return is_there;
}

bool jinja_skip_name(struct jinja_parser *parser, const char *text) {
    bool is_there = jinja_at_name(parser, text);
    if (is_there)
        jinja_next(parser);
    return is_there;
}

const char *jinja_shown_token(const struct jinja_token *token, char shown[64]) {
    static const char *const others[] = {
        [TOKEN_END] = "the end of the template",
        [TOKEN_TEXT] = "text",
        [TOKEN_BLOCK_BEGIN] = "{%",
        [TOKEN_BLOCK_END] = "%}",
        [TOKEN_PRINT_BEGIN] = "{{",
        [TOKEN_PRINT_END] = "}}",
    };
    if (token->kind < sizeof others / sizeof *others)
        return others[token->kind];
    snprintf(shown, 64, "'%.*s'", (int)(token->length < 40 ? token->length : 40), token->bytes);
    return shown;
}

static void fail_expected(struct jinja_parser *parser, const char *what) {
    char shown[64];
    jinja_parse_fail(parser, parser->at->line, STATUS_INVALID, "expected %s, found %s", what,
                     jinja_shown_token(parser->at, shown));
}

void jinja_expect_operator(struct jinja_parser *parser, const char *text) {
    char what[8];
    snprintf(what, sizeof what, "'%s'", text);
    if (!jinja_skip_operator(parser, text))
        fail_expected(parser, what);
}

uint32_t jinja_expect_name(struct jinja_parser *parser) {
    if (parser->at->kind != TOKEN_NAME) {
        fail_expected(parser, "a name");
        return 0;
    }
    uint32_t name = jinja_name_of(parser, parser->at->bytes, parser->at->length);
    jinja_next(parser);
    return name;
}

/* ---- targets of assignments ---- */

static struct jinja_node *parse_target(struct jinja_parser *parser, bool with_namespace);

static struct jinja_node *parse_one_target(struct jinja_parser *parser, bool with_namespace) {
    int line = parser->at->line;
    if (jinja_skip_operator(parser, "(")) {
        struct jinja_node *inner = &parser->no_node;
        if (++parser->depth > JINJA_PARSE_DEPTH)
            jinja_parse_fail(parser, line, STATUS_UNSUPPORTED, "names more than %d deep", JINJA_PARSE_DEPTH);
        else
            inner = parse_target(parser, with_namespace);
        parser->depth--;
        jinja_expect_operator(parser, ")");
        return inner;
    }
    bool has_attribute = with_namespace && parser->at->kind == TOKEN_NAME && parser->at[1].kind == TOKEN_OPERATOR &&
                         !strcmp(parser->at[1].bytes, ".");
    struct jinja_node *node;
    if (has_attribute) {
        node = jinja_node_new(parser, NODE_NAMESPACE, line);
        node->name = jinja_expect_name(parser);
        jinja_next(parser);
        node->b = jinja_node_new(parser, NODE_NAME, line);
        node->b->name = jinja_expect_name(parser);
    } else {
        if (parser->at->kind != TOKEN_NAME)
            fail_expected(parser, "a name");
        node = jinja_parse_primary(parser);
        if (node->kind != NODE_NAME)
            jinja_parse_fail(parser, line, STATUS_INVALID, "nothing can be assigned to a constant");
    }
    return node;
}

static struct jinja_node *parse_target(struct jinja_parser *parser, bool with_namespace) {
    int line = parser->at->line;
    struct jinja_node *first = parse_one_target(parser, with_namespace);
    if (!jinja_at_operator(parser, ","))
        return first;
    struct jinja_node *tuple = jinja_node_new(parser, NODE_TUPLE, line);
    struct jinja_nodes items = {0};
    jinja_nodes_add(parser, &items, first);
    while (!parser->status && jinja_skip_operator(parser, ",") && parser->at->kind != TOKEN_BLOCK_END &&
           !jinja_at_name(parser, "in") && !jinja_at_operator(parser, ")") && !jinja_at_operator(parser, "="))
        jinja_nodes_add(parser, &items, parse_one_target(parser, with_namespace));
    tuple->items = items.items;
    tuple->item_count = items.count;
    return tuple;
}

/* ---- statements ---- */

static void expect_block_end(struct jinja_parser *parser) {
    if (parser->at->kind == TOKEN_BLOCK_END)
        jinja_next(parser);
    else
        fail_expected(parser, "'%}'");
}

static struct jinja_node *parse_statement(struct jinja_parser *parser);

static struct jinja_node *parse_text(struct jinja_parser *parser) {
    const struct jinja_token *token = parser->at;
    struct jinja_node *node = jinja_node_new(parser, NODE_TEXT, token->line);
    struct jinja_string *string = take(parser, sizeof *string);
    if (string) {
        *string = (struct jinja_string){.bytes = token->bytes, .length = token->length};
        node->value = (struct jinja_value){.kind = JINJA_STRING, .string = string};
    }
    jinja_next(parser);
    return node;
}

static struct jinja_node *parse_print(struct jinja_parser *parser) {
    struct jinja_node *node = jinja_node_new(parser, NODE_PRINT, parser->at->line);
    jinja_next(parser);
    node->a = jinja_parse_tuple(parser, true, NULL, false);
    if (parser->at->kind == TOKEN_PRINT_END)
        jinja_next(parser);
    else
        fail_expected(parser, "'}}'");
    return node;
}

/* Parses statements up to {% END; its name is then the token. `ends` lists the names, NULL-terminated; NULL: the whole
 * template. */
static struct jinja_nodes parse_body(struct jinja_parser *parser, const char *const *ends, const char *opened,
                                     int line) {
    struct jinja_nodes body = {0};
    if (++parser->depth > JINJA_PARSE_DEPTH)
        jinja_parse_fail(parser, parser->at->line, STATUS_UNSUPPORTED, "statements more than %d deep",
                         JINJA_PARSE_DEPTH);
    while (!parser->status && parser->at->kind != TOKEN_END) {
        if (parser->at->kind == TOKEN_TEXT) {
            jinja_nodes_add(parser, &body, parse_text(parser));
        } else if (parser->at->kind == TOKEN_PRINT_BEGIN) {
            jinja_nodes_add(parser, &body, parse_print(parser));
        } else {
            jinja_next(parser);
            for (size_t i = 0; ends && ends[i]; i++)
                if (jinja_at_name(parser, ends[i])) {
                    parser->depth--;
                    return body;
                }
            jinja_nodes_add(parser, &body, parse_statement(parser));
            expect_block_end(parser);
        }
    }
    parser->depth--;
    if (ends)
        jinja_parse_fail(parser, parser->at->line, STATUS_INVALID, "{%% %s %%} of line %d has no end", opened, line);
    return body;
}

/* Parses the body after a statement's header; the token is the name that ended it. */
static void parse_items(struct jinja_parser *parser, struct jinja_node *node, const char *const *ends,
                        const char *opened) {
    jinja_skip_operator(parser, ":");
    expect_block_end(parser);
    struct jinja_nodes body = parse_body(parser, ends, opened, node->line);
    node->items = body.items;
    node->item_count = body.count;
}

static void parse_others(struct jinja_parser *parser, struct jinja_node *node, const char *const *ends,
                         const char *opened) {
    expect_block_end(parser);
    struct jinja_nodes body = parse_body(parser, ends, opened, node->line);
    node->others = body.items;
    node->other_count = body.count;
}

static struct jinja_node *parse_set(struct jinja_parser *parser, int line) {
    static const char *const ends[] = {"endset", NULL};
    struct jinja_node *target = parse_target(parser, true);
    bool is_block = !jinja_skip_operator(parser, "=");
    struct jinja_node *node = jinja_node_new(parser, is_block ? NODE_SET_BLOCK : NODE_SET, line);
    node->a = target;
    if (!is_block) {
        node->b = jinja_parse_tuple(parser, true, NULL, false);
        return node;
    }
    node->b = jinja_parse_filters(parser, NULL, false);
    parse_items(parser, node, ends, "set");
    jinja_next(parser);
    return node;
}

static bool names_loop(const struct jinja_parser *parser, const struct jinja_node *target) {
    const struct jinja_name *name = &parser->jinja->names[target->name];
    if (target->kind == NODE_NAME)
        return name->length == 4 && !memcmp(name->bytes, "loop", 4);
    for (uint32_t i = 0; i < target->item_count; i++)
        if (names_loop(parser, target->items[i]))
            return true;
    return false;
}

static struct jinja_node *parse_for(struct jinja_parser *parser, int line) {
    static const char *const ends[] = {"endfor", "else", NULL};
    struct jinja_node *node = jinja_node_new(parser, NODE_FOR, line);
    node->a = parse_target(parser, false);
    if (!parser->status && names_loop(parser, node->a))
        jinja_parse_fail(parser, line, STATUS_INVALID, "nothing can be assigned to 'loop'");
    if (!jinja_skip_name(parser, "in"))
        fail_expected(parser, "'in'");
    node->b = jinja_parse_tuple(parser, false, "recursive", false);
    if (jinja_skip_name(parser, "if"))
        node->c = jinja_parse_expression(parser, true);
    if (jinja_at_name(parser, "recursive"))
        jinja_parse_fail(parser, line, STATUS_UNSUPPORTED, "recursive loops are not supported");
    parser->loops++;
    parse_items(parser, node, ends, "for");
    parser->loops--;
    if (jinja_skip_name(parser, "else"))
        parse_others(parser, node, ends, "for");
    jinja_next(parser);
    return node;
}

static struct jinja_node *parse_if(struct jinja_parser *parser, int line) {
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const end[] = {"endif", NULL};
    struct jinja_node *first = jinja_node_new(parser, NODE_IF, line), *node = first;
    while (!parser->status) {
        node->a = jinja_parse_tuple(parser, false, NULL, false);
        parse_items(parser, node, ends, "if");
        int next = parser->at->line;
        if (!jinja_skip_name(parser, "elif"))
            break;
        node->b = jinja_node_new(parser, NODE_IF, next);
        node = node->b;
    }
    if (jinja_skip_name(parser, "else"))
        parse_others(parser, node, end, "if");
    jinja_next(parser);
    return first;
}

static void parse_parameters(struct jinja_parser *parser, struct jinja_node *macro) {
    struct jinja_nodes parameters = {0};
    bool has_default = false;
    jinja_expect_operator(parser, "(");
    while (!parser->status && !jinja_at_operator(parser, ")")) {
        if (parameters.count)
            jinja_expect_operator(parser, ",");
        struct jinja_node *parameter = jinja_node_new(parser, NODE_KEYWORD, parser->at->line);
        parameter->name = jinja_expect_name(parser);
        if (jinja_skip_operator(parser, "="))
            parameter->a = jinja_parse_expression(parser, true);
        else if (has_default)
            jinja_parse_fail(parser, parameter->line, STATUS_INVALID,
                             "a parameter without a default after one with it");
        has_default |= parameter->a != NULL;
        jinja_nodes_add(parser, &parameters, parameter);
    }
    jinja_expect_operator(parser, ")");
    macro->others = parameters.items;
    macro->other_count = parameters.count;
}

static struct jinja_node *parse_macro(struct jinja_parser *parser, int line) {
    static const char *const ends[] = {"endmacro", NULL};
    struct jinja_node *node = jinja_node_new(parser, NODE_MACRO, line);
    int loops = parser->loops;
    node->name = jinja_expect_name(parser);
    parse_parameters(parser, node);
    parser->loops = 0;
    parse_items(parser, node, ends, "macro");
    parser->loops = loops;
    jinja_next(parser);
    return node;
}

static struct jinja_node *parse_with(struct jinja_parser *parser, int line) {
    static const char *const ends[] = {"endwith", NULL};
    struct jinja_node *node = jinja_node_new(parser, NODE_WITH, line);
    struct jinja_nodes pairs = {0};
    while (!parser->status && parser->at->kind != TOKEN_BLOCK_END) {
        if (pairs.count)
            jinja_expect_operator(parser, ",");
        jinja_nodes_add(parser, &pairs, parse_one_target(parser, false));
        jinja_expect_operator(parser, "=");
        jinja_nodes_add(parser, &pairs, jinja_parse_expression(parser, true));
    }
    node->others = pairs.items;
    node->other_count = pairs.count;
    parse_items(parser, node, ends, "with");
    jinja_next(parser);
    return node;
}

static struct jinja_node *parse_generation(struct jinja_parser *parser, int line) {
    static const char *const ends[] = {"endgeneration", NULL};
    struct jinja_node *node = jinja_node_new(parser, NODE_GENERATION, line);
    parser->jinja->has_generation = true;
    parse_items(parser, node, ends, "generation");
    jinja_next(parser);
    return node;
}

static struct jinja_node *parse_filter_block(struct jinja_parser *parser, int line) {
    static const char *const ends[] = {"endfilter", NULL};
    struct jinja_node *node = jinja_node_new(parser, NODE_FILTERED, line);
    node->b = jinja_parse_filters(parser, NULL, true);
    parse_items(parser, node, ends, "filter");
    jinja_next(parser);
    return node;
}

static struct jinja_node *parse_break(struct jinja_parser *parser, int line) {
    if (!parser->loops)
        jinja_parse_fail(parser, line, STATUS_INVALID, "a 'break' outside a loop");
    return jinja_node_new(parser, NODE_BREAK, line);
}

static struct jinja_node *parse_continue(struct jinja_parser *parser, int line) {
    if (!parser->loops)
        jinja_parse_fail(parser, line, STATUS_INVALID, "a 'continue' outside a loop");
    return jinja_node_new(parser, NODE_CONTINUE, line);
}

static struct jinja_node *parse_statement(struct jinja_parser *parser) {
    static const struct {
        const char *name;
        struct jinja_node *(*parse)(struct jinja_parser *parser, int line);
    } statements[] = {
        {"if", parse_if},
        {"for", parse_for},
        {"set", parse_set},
        {"macro", parse_macro},
        {"generation", parse_generation},
        {"break", parse_break},
        {"with", parse_with},
        {"filter", parse_filter_block},
        {"continue", parse_continue},
    };
    static const char *const known[] = {"block", "extends", "print", "include", "from", "import", "call", "autoescape"};
    int line = parser->at->line;
    char shown[64];
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
        if (jinja_skip_name(parser, statements[i].name))
            return statements[i].parse(parser, line);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (jinja_at_name(parser, known[i]))
            jinja_parse_fail(parser, line, STATUS_UNSUPPORTED, "the statement '%s' is not supported", known[i]);
    jinja_parse_fail(parser, line, STATUS_INVALID, "expected a statement, found %s",
                     jinja_shown_token(parser->at, shown));
    return &parser->no_node;
}

/* ---- the whole ---- */

static int parse(struct jinja *jinja, const struct jinja_token *tokens) {
    struct jinja_parser parser = {.jinja = jinja, .at = tokens};
    jinja->names = jinja_take(&jinja->arena, JINJA_MAX_NAMES * sizeof *jinja->names, sizeof(void *));
    jinja->slots = jinja_take(&jinja->arena, JINJA_NAME_SLOTS * sizeof *jinja->slots, sizeof(void *));
    TRY(status_allocated(jinja->names && jinja->slots));
    memset(jinja->slots, 0, JINJA_NAME_SLOTS * sizeof *jinja->slots);
    struct jinja_nodes body = parse_body(&parser, NULL, NULL, 1);
    jinja->body = body.items;
    jinja->count = body.count;
    size_t literals = 0;
    for (const struct jinja_token *token = tokens; token->kind != TOKEN_END; token++)
        literals += token->kind == TOKEN_TEXT || token->kind == TOKEN_STRING;
    jinja->literals = take(&parser, (literals + 1) * sizeof *jinja->literals);
    for (const struct jinja_token *token = tokens; jinja->literals && token->kind != TOKEN_END; token++)
        if (token->kind == TOKEN_TEXT || token->kind == TOKEN_STRING)
            jinja->literals[jinja->literal_count++] = (struct jinja_name){token->bytes, token->length};
    return parser.status;
}

int jinja_open(const char *text, size_t length, struct jinja **out) {
    struct jinja_token *tokens;
    *out = NULL;
    struct jinja *jinja = calloc(1, sizeof *jinja);
    TRY(status_allocated(jinja));
    int status = jinja_lex(&jinja->arena, text, length, &tokens);
    THEN(status, parse(jinja, tokens));
    free(tokens);
    if (status)
        jinja_close(jinja);
    else
        *out = jinja;
    return status;
}

void jinja_close(struct jinja *jinja) {
    if (!jinja)
        return;
    jinja_arena_free(&jinja->arena);
    free(jinja);
}

bool jinja_has_literal(const struct jinja *jinja, const void *bytes, size_t length) {
    for (size_t i = 0; i < jinja->literal_count; i++)
        if (memmem(jinja->literals[i].bytes, jinja->literals[i].length, bytes, length))
            return true;
    return false;
}

bool jinja_has_generation(const struct jinja *jinja) {
    return jinja->has_generation;
}
