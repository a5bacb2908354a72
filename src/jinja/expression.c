/* Tokens into expressions, by Jinja2's grammar. */
#include "parse-internal.h"

static struct jinja_node *parse_unary(struct jinja_parser *parser, bool with_filters);

/* Makes a node over another one. */
static struct jinja_node *wrap(struct jinja_parser *parser, enum jinja_node_kind kind, struct jinja_node *inner,
                               int line) {
    struct jinja_node *node = jinja_node_new(parser, kind, line);
    node->a = inner;
    return node;
}

/* Takes a constant, whose last token is the present one. */
static struct jinja_node *take_constant(struct jinja_parser *parser, struct jinja_value value) {
    struct jinja_node *node = jinja_node_new(parser, NODE_CONSTANT, parser->at->line);
    node->value = value;
    jinja_next(parser);
    return node;
}

/* ---- names, literals and brackets ---- */

/* Adjacent strings are joined. */
static struct jinja_node *parse_strings(struct jinja_parser *parser) {
    const struct jinja_token *first = parser->at;
    struct strbuf joined = STRBUF_INIT;
    for (; parser->at->kind == TOKEN_STRING; jinja_next(parser))
        strbuf_add(&joined, parser->at->bytes, parser->at->length);
    struct jinja_node *node = jinja_node_new(parser, NODE_CONSTANT, first->line);
    if (strbuf_status(&joined))
        jinja_parse_fail(parser, first->line, STATUS_MEMORY, "out of memory");
    else
        node->value = jinja_new_string(parser, strbuf_text(&joined), joined.length);
    strbuf_free(&joined);
    return node;
}

/* True when another item comes before `closing`, after the comma between two items. */
static bool has_more(struct jinja_parser *parser, const struct jinja_nodes *items, const char *closing) {
    if (items->count && !jinja_at(parser, closing))
        jinja_expect(parser, ",");
    return !parser->status && !jinja_at(parser, closing);
}

/* Parses a list or a dict after its opening bracket. */
static struct jinja_node *parse_items(struct jinja_parser *parser, enum jinja_node_kind kind, const char *closing,
                                      int line) {
    struct jinja_node *node = jinja_node_new(parser, kind, line);
    while (has_more(parser, &node->items, closing)) {
        jinja_nodes_add(parser, &node->items, jinja_parse_expression(parser, true));
        if (kind == NODE_LIST)
            continue;
        jinja_expect(parser, ":");
        jinja_nodes_add(parser, &node->items, jinja_parse_expression(parser, true));
    }
    jinja_expect(parser, closing);
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
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (jinja_at(parser, constants[i].name))
            return take_constant(parser, constants[i].value);
    struct jinja_node *node = jinja_node_new(parser, NODE_NAME, parser->at->line);
    node->name = jinja_expect_name(parser);
    return node;
}

struct jinja_node *jinja_parse_primary(struct jinja_parser *parser) {
    const struct jinja_token *token = parser->at;
    switch (token->kind) {
    case TOKEN_NAME:
        return parse_name(parser);
    case TOKEN_STRING:
        return parse_strings(parser);
    case TOKEN_INTEGER:
        return take_constant(parser, jinja_integer(token->integer));
    case TOKEN_FLOAT:
        return take_constant(parser, jinja_float(token->real));
    default:
        break;
    }
    if (jinja_skip(parser, "(")) {
        struct jinja_node *node = jinja_parse_tuple(parser, true, NULL, true);
        jinja_expect(parser, ")");
        return node;
    }
    if (jinja_skip(parser, "["))
        return parse_items(parser, NODE_LIST, "]", token->line);
    if (jinja_skip(parser, "{"))
        return parse_items(parser, NODE_DICT, "}", token->line);
    jinja_fail_expected(parser, "an expression");
    return jinja_node_new(parser, NODE_CONSTANT, token->line);
}

struct jinja_node *jinja_parse_tuple(struct jinja_parser *parser, bool with_condition, const char *end,
                                     bool has_parentheses) {
    struct jinja_node *tuple = jinja_node_new(parser, NODE_TUPLE, parser->at->line);
    bool is_tuple = false;
    while (!parser->status) {
        if (tuple->items.count)
            jinja_expect(parser, ",");
        if (jinja_at(parser, "}}") || jinja_at(parser, "%}") || jinja_at(parser, ")") || (end && jinja_at(parser, end)))
            break;
        jinja_nodes_add(parser, &tuple->items, jinja_parse_expression(parser, with_condition));
        if (!jinja_at(parser, ","))
            break;
        is_tuple = true;
    }
    if (!is_tuple && tuple->items.count)
        return tuple->items.items[0];
    if (!is_tuple && !has_parentheses)
        jinja_fail_expected(parser, "an expression");
    return tuple;
}

/* ---- after a primary ---- */

/* Parses the arguments of a call; the token is its "(". */
static void parse_arguments(struct jinja_parser *parser, struct jinja_node *call) {
    bool has_keyword = false, has_star = false, has_stars = false;
    jinja_expect(parser, "(");
    while (has_more(parser, &call->items, ")")) {
        const struct jinja_token *token = parser->at;
        bool is_star = jinja_skip(parser, "*"), is_stars = !is_star && jinja_skip(parser, "**");
        bool is_keyword = !is_star && !is_stars && token->kind == TOKEN_NAME && token[1].kind == TOKEN_OPERATOR &&
                          !strcmp(token[1].bytes, "=");
        bool is_plain = !is_star && !is_stars && !is_keyword;
        if (has_stars || (is_star && has_star) || (is_plain && (has_keyword || has_star)))
            jinja_parse_fail(parser, token->line, STATUS_INVALID, "an argument that may not follow the others");
        has_keyword |= is_keyword;
        has_star |= is_star;
        has_stars |= is_stars;
        if (is_plain) {
            jinja_nodes_add(parser, &call->items, jinja_parse_expression(parser, true));
            continue;
        }
        struct jinja_node *argument = jinja_node_new(parser,
                                                     is_star    ? NODE_STAR
                                                     : is_stars ? NODE_DOUBLE_STAR
                                                                : NODE_KEYWORD,
                                                     parser->at->line);
        if (is_keyword) {
            argument->name = jinja_expect_name(parser);
            argument->value = jinja_new_string(parser, token->bytes, token->length);
            jinja_next(parser);
        }
        argument->a = jinja_parse_expression(parser, true);
        jinja_nodes_add(parser, &call->items, argument);
    }
    jinja_expect(parser, ")");
}

/* Parses the bounds of a slice, or a single key, after "[". */
static struct jinja_node *parse_subscript(struct jinja_parser *parser, struct jinja_node *node, int line) {
    struct jinja_node *bounds[3] = {NULL, NULL, NULL}, *item;
    int colons = 0;
    while (!parser->status && !jinja_at(parser, "]")) {
        if (jinja_skip(parser, ":")) {
            if (++colons > 2)
                break;
        } else if (bounds[colons]) {
            break;
        } else {
            bounds[colons] = jinja_parse_expression(parser, true);
        }
    }
    if (jinja_at(parser, ","))
        jinja_parse_fail(parser, line, STATUS_UNSUPPORTED, "a subscript of several values is not supported");
    jinja_expect(parser, "]");
    if (!colons && !bounds[0])
        jinja_parse_fail(parser, line, STATUS_INVALID, "a subscript without a value");
    item = wrap(parser, colons ? NODE_SLICE : NODE_ITEM, node, line);
    item->b = bounds[0];
    for (int i = 0; i < 3 && colons; i++)
        jinja_nodes_add(parser, &item->items, bounds[i]);
    return item;
}

static struct jinja_node *parse_call(struct jinja_parser *parser, struct jinja_node *node) {
    node = wrap(parser, NODE_CALL, node, parser->at->line);
    parse_arguments(parser, node);
    return node;
}

static struct jinja_node *parse_postfix(struct jinja_parser *parser, struct jinja_node *node) {
    while (!parser->status) {
        int line = parser->at->line;
        if (jinja_at(parser, "(")) {
            node = parse_call(parser, node);
        } else if (jinja_skip(parser, "[")) {
            node = parse_subscript(parser, node, line);
        } else if (!jinja_skip(parser, ".")) {
            break;
        } else if (parser->at->kind == TOKEN_INTEGER) {
            node = wrap(parser, NODE_ITEM, node, line);
            node->b = take_constant(parser, jinja_integer(parser->at->integer));
        } else {
            node = wrap(parser, NODE_ATTRIBUTE, node, line);
            node->name = jinja_expect_name(parser);
        }
    }
    return node;
}

/* ---- filters and tests ---- */

/* Parses the name of a filter or test, which must not have dots, and its arguments in parentheses. */
static struct jinja_node *parse_operation(struct jinja_parser *parser, enum jinja_node_kind kind,
                                          struct jinja_node *node, int line) {
    struct jinja_node *operation = wrap(parser, kind, node, line);
    operation->name = jinja_expect_name(parser);
    if (jinja_at(parser, "."))
        jinja_parse_fail(parser, line, STATUS_UNSUPPORTED, "names of filters and tests with dots are not supported");
    const struct jinja_name *name = &parser->jinja->names[operation->name];
    if (!parser->status)
        operation->operation =
            jinja_operation_find(kind == NODE_FILTER ? JINJA_FILTERS : JINJA_TESTS, name->bytes, name->length);
    if (jinja_at(parser, "("))
        parse_arguments(parser, operation);
    return operation;
}

struct jinja_node *jinja_parse_filters(struct jinja_parser *parser, struct jinja_node *node, bool first) {
    for (; !parser->status && (first || jinja_skip(parser, "|")); first = false)
        node = parse_operation(parser, NODE_FILTER, node, parser->at->line);
    return node;
}

/* A test may have one argument without parentheses. */
static bool has_bare_argument(const struct jinja_parser *parser) {
    enum jinja_token_kind kind = parser->at->kind;
    if (kind == TOKEN_NAME)
        return !jinja_at(parser, "else") && !jinja_at(parser, "or") && !jinja_at(parser, "and") &&
               !jinja_at(parser, "is");
    return kind == TOKEN_STRING || kind == TOKEN_INTEGER || kind == TOKEN_FLOAT || jinja_at(parser, "[") ||
           jinja_at(parser, "{");
}

/* Parses a test after "is". */
static struct jinja_node *parse_test(struct jinja_parser *parser, struct jinja_node *node, int line) {
    bool is_not = jinja_skip(parser, "not");
    const struct jinja_token *name = parser->at;
    node = parse_operation(parser, NODE_TEST, node, line);
    bool is_bare = parser->at == name + 1;
    if (is_bare && has_bare_argument(parser))
        jinja_nodes_add(parser, &node->items, parse_postfix(parser, jinja_parse_primary(parser)));
    else if (is_bare && jinja_at(parser, "is"))
        jinja_parse_fail(parser, line, STATUS_INVALID, "a test after a test; put the first one in brackets");
    return is_not ? wrap(parser, NODE_NOT, node, line) : node;
}

static struct jinja_node *parse_filters_and_tests(struct jinja_parser *parser, struct jinja_node *node) {
    while (!parser->status) {
        int line = parser->at->line;
        if (jinja_at(parser, "|"))
            node = jinja_parse_filters(parser, node, false);
        else if (jinja_skip(parser, "is"))
            node = parse_test(parser, node, line);
        else if (jinja_at(parser, "("))
            node = parse_call(parser, node);
        else
            break;
    }
    return node;
}

/* ---- operators ---- */

/* Every expression passes through here, so its depth is counted here. */
static struct jinja_node *parse_unary(struct jinja_parser *parser, bool with_filters) {
    int line = parser->at->line;
    struct jinja_node *node = &parser->no_node;
    if (jinja_parse_enter(parser, "expressions")) {
        bool is_negative = jinja_skip(parser, "-");
        if (is_negative || jinja_skip(parser, "+"))
            node = wrap(parser, is_negative ? NODE_NEGATIVE : NODE_POSITIVE, parse_unary(parser, false), line);
        else
            node = jinja_parse_primary(parser);
        node = parse_postfix(parser, node);
        if (with_filters)
            node = parse_filters_and_tests(parser, node);
    }
    parser->depth--;
    return node;
}

/* Returns the operator that comes here; OPERATOR_COUNT: none. */
static enum jinja_operator at_operator(const struct jinja_parser *parser) {
    const struct jinja_token *next = parser->at + 1;
    if (jinja_at(parser, "not"))
        return next->kind == TOKEN_NAME && next->length == 2 && !memcmp(next->bytes, "in", 2) ? OPERATOR_NOT_IN
                                                                                              : OPERATOR_COUNT;
    for (size_t i = 0; i < OPERATOR_COUNT; i++)
        if (jinja_at(parser, jinja_operators[i].text))
            return (enum jinja_operator)i;
    return OPERATOR_COUNT;
}

/* Parses from left to right: operators of this level or a higher one between their operands. Comparisons and
 * concatenations are chains of a single node. */
static struct jinja_node *parse_level(struct jinja_parser *parser, int level) {
    enum { LEVEL_NOT = 2 };
    int line = parser->at->line, count = 0;
    while (level <= LEVEL_NOT && jinja_skip(parser, "not"))
        count++;
    struct jinja_node *left = count ? parse_level(parser, LEVEL_NOT + 1) : parse_unary(parser, true), *chain = NULL;
    for (int i = 0; i < (count > 2 ? 2 - count % 2 : count); i++)
        left = wrap(parser, NODE_NOT, left, line);
    enum jinja_operator found;
    while (!parser->status && (found = at_operator(parser)) != OPERATOR_COUNT &&
           jinja_operators[found].level >= level) {
        enum jinja_node_kind kind = jinja_operators[found].kind;
        jinja_next(parser);
        if (found == OPERATOR_NOT_IN)
            jinja_next(parser);
        struct jinja_node *right = parse_level(parser, jinja_operators[found].level + 1);
        if (left != chain || left->kind != kind)
            left = wrap(parser, kind, left, left->line);
        chain = kind == NODE_COMPARE || kind == NODE_CONCAT ? left : NULL;
        if (kind == NODE_COMPARE)
            right = wrap(parser, NODE_OPERAND, right, right->line);
        if (chain)
            jinja_nodes_add(parser, &left->items, right);
        else
            left->b = right;
        (kind == NODE_COMPARE ? right : left)->name = found;
    }
    return left;
}

struct jinja_node *jinja_parse_expression(struct jinja_parser *parser, bool with_condition) {
    struct jinja_node *node = parse_level(parser, 0);
    while (!parser->status && with_condition && jinja_skip(parser, "if")) {
        struct jinja_node *condition = jinja_node_new(parser, NODE_CONDITION, node->line);
        condition->b = node;
        condition->a = parse_level(parser, 0);
        if (jinja_skip(parser, "else")) {
            if (jinja_parse_enter(parser, "expressions"))
                condition->c = jinja_parse_expression(parser, true);
            parser->depth--;
        }
        node = condition;
    }
    return node;
}
