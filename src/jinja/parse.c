/* Tokens into statements. */
#include "parse-internal.h"

/* ---- targets of assignments ---- */

static struct jinja_node *parse_target(struct jinja_parser *parser, bool with_namespace);

static struct jinja_node *parse_one_target(struct jinja_parser *parser, bool with_namespace) {
    int line = parser->at->line;
    struct jinja_node *node = &parser->no_node;
    if (jinja_skip(parser, "(")) {
        if (jinja_parse_enter(parser, "names"))
            node = parse_target(parser, with_namespace);
        parser->depth--;
        jinja_expect(parser, ")");
        return node;
    }
    if (parser->at->kind != TOKEN_NAME)
        jinja_fail_expected(parser, "a name");
    node = jinja_parse_primary(parser);
    if (node->kind == NODE_NAME && with_namespace && jinja_skip(parser, ".")) {
        node->kind = NODE_NAMESPACE;
        node->b = jinja_node_new(parser, NODE_NAME, line);
        node->b->name = jinja_expect_name(parser);
    } else if (node->kind != NODE_NAME) {
        jinja_parse_fail(parser, line, STATUS_INVALID, "nothing can be assigned to a constant");
    }
    return node;
}

static struct jinja_node *parse_target(struct jinja_parser *parser, bool with_namespace) {
    int line = parser->at->line;
    struct jinja_node *first = parse_one_target(parser, with_namespace);
    if (!jinja_at(parser, ","))
        return first;
    struct jinja_node *tuple = jinja_node_new(parser, NODE_TUPLE, line);
    jinja_nodes_add(parser, &tuple->items, first);
    while (!parser->status && jinja_skip(parser, ",") && !jinja_at(parser, "%}") && !jinja_at(parser, "in") &&
           !jinja_at(parser, ")") && !jinja_at(parser, "="))
        jinja_nodes_add(parser, &tuple->items, parse_one_target(parser, with_namespace));
    return tuple;
}

/* ---- statements ---- */

static struct jinja_node *parse_statement(struct jinja_parser *parser);

/* Parses statements up to {% END; its name is then the token. `ends` lists the names, NULL-terminated; NULL: the whole
 * template. */
static void parse_body(struct jinja_parser *parser, struct jinja_nodes *body, const char *const *ends,
                       const char *opened, int line) {
    jinja_parse_enter(parser, "statements");
    while (!parser->status && parser->at->kind != TOKEN_END) {
        const struct jinja_token *token = parser->at;
        struct jinja_node *node;
        if (token->kind == TOKEN_TEXT) {
            node = jinja_node_new(parser, NODE_TEXT, token->line);
            node->value = jinja_new_string(parser, token->bytes, token->length);
            jinja_next(parser);
        } else if (jinja_skip(parser, "{{")) {
            node = jinja_node_new(parser, NODE_PRINT, token->line);
            node->a = jinja_parse_tuple(parser, true, NULL, false);
            jinja_expect(parser, "}}");
        } else {
            jinja_next(parser);
            for (size_t i = 0; ends && ends[i]; i++)
                if (jinja_at(parser, ends[i])) {
                    parser->depth--;
                    return;
                }
            node = parse_statement(parser);
            jinja_expect(parser, "%}");
        }
        jinja_nodes_add(parser, body, node);
    }
    parser->depth--;
    if (ends)
        jinja_parse_fail(parser, parser->at->line, STATUS_INVALID, "{%% %s %%} of line %d has no end", opened, line);
}

/* Parses the items of a statement after its header, up to one of `ends`. Takes the name of the only end. */
static void parse_items(struct jinja_parser *parser, struct jinja_node *node, const char *const *ends,
                        const char *opened) {
    jinja_skip(parser, ":");
    jinja_expect(parser, "%}");
    parse_body(parser, &node->items, ends, opened, node->line);
    if (!ends[1])
        jinja_next(parser);
}

static void parse_others(struct jinja_parser *parser, struct jinja_node *node, const char *end, const char *opened) {
    if (jinja_skip(parser, "else")) {
        jinja_expect(parser, "%}");
        parse_body(parser, &node->others, (const char *[]){end, NULL}, opened, node->line);
    }
    jinja_next(parser);
}

static void parse_set(struct jinja_parser *parser, struct jinja_node *node) {
    static const char *const ends[] = {"endset", NULL};
    node->a = parse_target(parser, true);
    if (jinja_skip(parser, "=")) {
        node->b = jinja_parse_tuple(parser, true, NULL, false);
        return;
    }
    node->kind = NODE_SET_BLOCK;
    node->b = jinja_parse_filters(parser, NULL, false);
    parse_items(parser, node, ends, "set");
}

static bool names_loop(const struct jinja_parser *parser, const struct jinja_node *target) {
    if (target->kind == NODE_NAME)
        return !strcmp(parser->jinja->names[target->name].bytes, "loop");
    for (uint32_t i = 0; i < target->items.count; i++)
        if (names_loop(parser, target->items.items[i]))
            return true;
    return false;
}

static void parse_for(struct jinja_parser *parser, struct jinja_node *node) {
    static const char *const ends[] = {"endfor", "else", NULL};
    node->a = parse_target(parser, false);
    if (!parser->status && names_loop(parser, node->a))
        jinja_parse_fail(parser, node->line, STATUS_INVALID, "nothing can be assigned to 'loop'");
    jinja_expect(parser, "in");
    node->b = jinja_parse_tuple(parser, false, "recursive", false);
    if (jinja_skip(parser, "if"))
        node->c = jinja_parse_expression(parser, true);
    if (jinja_at(parser, "recursive"))
        jinja_parse_fail(parser, node->line, STATUS_UNSUPPORTED, "recursive loops are not supported");
    parser->loops++;
    parse_items(parser, node, ends, "for");
    parser->loops--;
    parse_others(parser, node, "endfor", "for");
}

static void parse_if(struct jinja_parser *parser, struct jinja_node *node) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    while (!parser->status) {
        node->a = jinja_parse_tuple(parser, false, NULL, false);
        parse_items(parser, node, ends, "if");
        int line = parser->at->line;
        if (!jinja_skip(parser, "elif"))
            break;
        node = node->b = jinja_node_new(parser, NODE_IF, line);
    }
    parse_others(parser, node, "endif", "if");
}

static void parse_macro(struct jinja_parser *parser, struct jinja_node *node) {
    bool has_default = false;
    node->name = jinja_expect_name(parser);
    jinja_expect(parser, "(");
    while (!parser->status && !jinja_at(parser, ")")) {
        if (node->others.count)
            jinja_expect(parser, ",");
        struct jinja_node *parameter = jinja_node_new(parser, NODE_KEYWORD, parser->at->line);
        parameter->name = jinja_expect_name(parser);
        if (jinja_skip(parser, "="))
            parameter->a = jinja_parse_expression(parser, true);
        else if (has_default)
            jinja_parse_fail(parser, parameter->line, STATUS_INVALID,
                             "a parameter without a default after one with it");
        has_default |= parameter->a != NULL;
        jinja_nodes_add(parser, &node->others, parameter);
    }
    jinja_expect(parser, ")");
    parser->loops = 0;
}

static void parse_with(struct jinja_parser *parser, struct jinja_node *node) {
    while (!parser->status && !jinja_at(parser, "%}")) {
        if (node->others.count)
            jinja_expect(parser, ",");
        jinja_nodes_add(parser, &node->others, parse_one_target(parser, false));
        jinja_expect(parser, "=");
        jinja_nodes_add(parser, &node->others, jinja_parse_expression(parser, true));
    }
}

static void note_generation(struct jinja_parser *parser, struct jinja_node *node) {
    parser->jinja->has_generation = true;
}

static void parse_filter_block(struct jinja_parser *parser, struct jinja_node *node) {
    node->b = jinja_parse_filters(parser, NULL, true);
}

static void parse_jump(struct jinja_parser *parser, struct jinja_node *node) {
    if (!parser->loops)
        jinja_parse_fail(parser, node->line, STATUS_INVALID, "a '%s' outside a loop",
                         node->kind == NODE_BREAK ? "break" : "continue");
}

static struct jinja_node *parse_statement(struct jinja_parser *parser) {
    static const struct {
        const char *name;
        enum jinja_node_kind kind;
        void (*parse)(struct jinja_parser *parser, struct jinja_node *node);
        const char *end[2]; /* what ends the items that follow; NULL: `parse` takes everything */
    } statements[] = {
        {"if", NODE_IF, parse_if, {NULL}},
        {"for", NODE_FOR, parse_for, {NULL}},
        {"set", NODE_SET, parse_set, {NULL}},
        {"macro", NODE_MACRO, parse_macro, {"endmacro"}},
        {"generation", NODE_GENERATION, note_generation, {"endgeneration"}},
        {"break", NODE_BREAK, parse_jump, {NULL}},
        {"with", NODE_WITH, parse_with, {"endwith"}},
        {"filter", NODE_FILTERED, parse_filter_block, {"endfilter"}},
        {"continue", NODE_CONTINUE, parse_jump, {NULL}},
    };
    static const char *const known[] = {"block", "extends", "print", "include", "from", "import", "call", "autoescape"};
    int line = parser->at->line, loops = parser->loops;
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
        if (jinja_skip(parser, statements[i].name)) {
            struct jinja_node *node = jinja_node_new(parser, statements[i].kind, line);
            statements[i].parse(parser, node);
            if (statements[i].end[0])
                parse_items(parser, node, statements[i].end, statements[i].name);
            parser->loops = loops; /* those around a macro do not count in it */
            return node;
        }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (jinja_at(parser, known[i]))
            jinja_parse_fail(parser, line, STATUS_UNSUPPORTED, "the statement '%s' is not supported", known[i]);
    jinja_fail_expected(parser, "a statement");
    return &parser->no_node;
}

/* ---- the whole ---- */

static int parse(struct jinja *jinja, const struct jinja_token *tokens) {
    struct jinja_parser parser = {.jinja = jinja, .at = tokens};
    jinja->names = jinja_take(&jinja->arena, JINJA_MAX_NAMES * sizeof *jinja->names, sizeof(void *));
    jinja->slots = jinja_take(&jinja->arena, JINJA_NAME_SLOTS * sizeof *jinja->slots, sizeof(void *));
    TRY(status_allocated(jinja->names && jinja->slots));
    memset(jinja->slots, 0, JINJA_NAME_SLOTS * sizeof *jinja->slots);
    parse_body(&parser, &jinja->body, NULL, NULL, 1);
    size_t literals = 0;
    for (const struct jinja_token *token = tokens; token->kind != TOKEN_END; token++)
        literals += token->kind == TOKEN_TEXT || token->kind == TOKEN_STRING;
    jinja->literals = jinja_parser_take(&parser, (literals + 1) * sizeof *jinja->literals);
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
