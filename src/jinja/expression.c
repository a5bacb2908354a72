/* Tokens into expressions, by Jinja2's grammar. */
#include "parse-internal.h"

#include <string.h>

static struct jinja_node *parse_unary(struct jinja_parser *parser, bool with_filters);

static struct jinja_node *binary(struct jinja_parser *parser, enum jinja_node_kind kind, struct jinja_node *left,
                                 struct jinja_node *right) {
    struct jinja_node *node = jinja_node_new(parser, kind, left->line);
    node->a = left;
    node->b = right;
    return node;
}

/* ---- after a primary ---- */

/* Parses the arguments of a call; the token is its "(". */
static void parse_arguments(struct jinja_parser *parser, struct jinja_node *call) {
    struct jinja_nodes arguments = {0};
    bool has_keyword = false, has_star = false, has_stars = false;
    jinja_expect_operator(parser, "(");
    while (!parser->status && !jinja_at_operator(parser, ")")) {
        const struct jinja_token *token = parser->at;
        if (arguments.count)
            jinja_expect_operator(parser, ",");
        if (jinja_at_operator(parser, ")"))
            break;
        bool is_star = jinja_skip_operator(parser, "*"), is_stars = !is_star && jinja_skip_operator(parser, "**");
        bool is_keyword = !is_star && !is_stars && parser->at->kind == TOKEN_NAME &&
                          parser->at[1].kind == TOKEN_OPERATOR && !strcmp(parser->at[1].bytes, "=");
        if ((has_stars || (is_star && has_star)) || (!is_star && !is_stars && !is_keyword && (has_keyword || has_star)))
            jinja_parse_fail(parser, token->line, STATUS_INVALID, "an argument that may not follow the others");
        has_keyword |= is_keyword;
        has_star |= is_star;
        has_stars |= is_stars;
        if (!is_star && !is_stars && !is_keyword) {
            jinja_nodes_add(parser, &arguments, jinja_parse_expression(parser, true));
            continue;
        }
        struct jinja_node *argument = jinja_node_new(parser,
                                                     is_star    ? NODE_STAR
                                                     : is_stars ? NODE_DOUBLE_STAR
                                                                : NODE_KEYWORD,
                                                     parser->at->line);
        if (is_keyword) {
            argument->name = jinja_name_of(parser, parser->at->bytes, parser->at->length);
            jinja_next(parser);
            jinja_next(parser);
        }
        argument->a = jinja_parse_expression(parser, true);
        jinja_nodes_add(parser, &arguments, argument);
    }
    jinja_expect_operator(parser, ")");
    jinja_set_items(call, &arguments);
}

struct jinja_node *jinja_parse_call(struct jinja_parser *parser, struct jinja_node *node) {
    struct jinja_node *call = jinja_node_new(parser, NODE_CALL, parser->at->line);
    call->a = node;
    parse_arguments(parser, call);
    return call;
}

/* Parses the bounds of a slice, or a single key, after "[". */
static struct jinja_node *parse_subscript(struct jinja_parser *parser, struct jinja_node *node, int line) {
    struct jinja_node *bounds[3] = {NULL, NULL, NULL};
    int colons = 0;
    while (!parser->status && !jinja_at_operator(parser, "]")) {
        if (jinja_skip_operator(parser, ":")) {
            if (++colons > 2)
                break;
        } else if (bounds[colons]) {
            break;
        } else {
            bounds[colons] = jinja_parse_expression(parser, true);
        }
    }
    if (jinja_at_operator(parser, ","))
        jinja_parse_fail(parser, line, STATUS_UNSUPPORTED, "a subscript of several values is not supported");
    jinja_expect_operator(parser, "]");
    struct jinja_node *item = jinja_node_new(parser, colons ? NODE_SLICE : NODE_ITEM, line);
    item->a = node;
    item->b = bounds[0];
    if (!colons && !bounds[0])
        jinja_parse_fail(parser, line, STATUS_INVALID, "a subscript without a value");
    struct jinja_nodes all = {0};
    for (int i = 0; i < 3 && colons; i++)
        jinja_nodes_add(parser, &all, bounds[i]);
    if (colons)
        jinja_set_items(item, &all);
    return item;
}

static struct jinja_node *parse_postfix(struct jinja_parser *parser, struct jinja_node *node) {
    while (!parser->status) {
        int line = parser->at->line;
        if (jinja_at_operator(parser, "(")) {
            node = jinja_parse_call(parser, node);
        } else if (jinja_skip_operator(parser, "[")) {
            node = parse_subscript(parser, node, line);
        } else if (jinja_skip_operator(parser, ".")) {
            bool is_number = parser->at->kind == TOKEN_INTEGER;
            struct jinja_node *attribute = jinja_node_new(parser, is_number ? NODE_ITEM : NODE_ATTRIBUTE, line);
            attribute->a = node;
            if (is_number) {
                attribute->b = jinja_constant(parser, jinja_integer(parser->at->integer));
                jinja_next(parser);
            } else {
                attribute->name = jinja_expect_name(parser);
            }
            node = attribute;
        } else {
            break;
        }
    }
    return node;
}

/* ---- filters and tests ---- */

/* Takes the name of a filter or test, which must not have dots. */
static void take_name(struct jinja_parser *parser, struct jinja_node *node) {
    node->name = jinja_expect_name(parser);
    if (jinja_at_operator(parser, "."))
        jinja_parse_fail(parser, node->line, STATUS_UNSUPPORTED,
                         "names of filters and tests with dots are not supported");
}

struct jinja_node *jinja_parse_filters(struct jinja_parser *parser, struct jinja_node *node, bool first) {
    while (!parser->status && (first || jinja_skip_operator(parser, "|"))) {
        struct jinja_node *filter = jinja_node_new(parser, NODE_FILTER, parser->at->line);
        filter->a = node;
        take_name(parser, filter);
        const struct jinja_name *name = &parser->jinja->names[filter->name];
        filter->filter = jinja_filter_find(name->bytes, name->length);
        if (jinja_at_operator(parser, "("))
            parse_arguments(parser, filter);
        node = filter;
        first = false;
    }
    return node;
}

/* A test may have one argument without parentheses. */
static bool has_bare_argument(const struct jinja_parser *parser) {
    static const char *const ends[] = {"else", "or", "and", "is"};
    const struct jinja_token *token = parser->at;
    if (token->kind == TOKEN_NAME) {
        for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
            if (jinja_at_name(parser, ends[i]))
                return false;
        return true;
    }
    return token->kind == TOKEN_STRING || token->kind == TOKEN_INTEGER || token->kind == TOKEN_FLOAT ||
           jinja_at_operator(parser, "[") || jinja_at_operator(parser, "{");
}

/* Parses a test after "is". */
static struct jinja_node *parse_test(struct jinja_parser *parser, struct jinja_node *node, int line) {
    bool is_not = jinja_skip_name(parser, "not");
    struct jinja_node *test = jinja_node_new(parser, NODE_TEST, line);
    test->a = node;
    take_name(parser, test);
    const struct jinja_name *name = &parser->jinja->names[test->name];
    test->test = jinja_test_find(name->bytes, name->length);
    if (jinja_at_operator(parser, "(")) {
        parse_arguments(parser, test);
    } else if (has_bare_argument(parser)) {
        struct jinja_nodes argument = {0};
        jinja_nodes_add(parser, &argument, parse_postfix(parser, jinja_parse_primary(parser)));
        jinja_set_items(test, &argument);
    } else if (jinja_at_name(parser, "is")) {
        jinja_parse_fail(parser, line, STATUS_INVALID, "a test after a test; put the first one in brackets");
    }
    if (!is_not)
        return test;
    struct jinja_node *negated = jinja_node_new(parser, NODE_NOT, line);
    negated->a = test;
    return negated;
}

static struct jinja_node *parse_filters_and_tests(struct jinja_parser *parser, struct jinja_node *node) {
    while (!parser->status) {
        int line = parser->at->line;
        if (jinja_at_operator(parser, "|"))
            node = jinja_parse_filters(parser, node, false);
        else if (jinja_skip_name(parser, "is"))
            node = parse_test(parser, node, line);
        else if (jinja_at_operator(parser, "("))
            node = jinja_parse_call(parser, node);
        else
            break;
    }
    return node;
}

/* ---- operators, the tightest first ---- */

static struct jinja_node *parse_signed(struct jinja_parser *parser, bool with_filters) {
    int line = parser->at->line;
    bool is_negative = jinja_skip_operator(parser, "-");
    struct jinja_node *node;
    if (is_negative || jinja_skip_operator(parser, "+")) {
        node = jinja_node_new(parser, is_negative ? NODE_NEGATIVE : NODE_POSITIVE, line);
        node->a = parse_unary(parser, false);
    } else {
        node = jinja_parse_primary(parser);
    }
    node = parse_postfix(parser, node);
    return with_filters ? parse_filters_and_tests(parser, node) : node;
}

/* Every expression passes through here, so its depth is counted here. */
static struct jinja_node *parse_unary(struct jinja_parser *parser, bool with_filters) {
    struct jinja_node *node;
    if (parser->depth >= JINJA_PARSE_DEPTH) {
        jinja_parse_fail(parser, parser->at->line, STATUS_UNSUPPORTED, "expressions more than %d deep",
                         JINJA_PARSE_DEPTH);
        return jinja_constant(parser, jinja_none());
    }
    parser->depth++;
    node = parse_signed(parser, with_filters);
    parser->depth--;
    return node;
}

/* Parses from left to right: one of `operators` between operands that `next` reads. */
struct level {
    const char *texts[4];
    enum jinja_operator operations[4];
    size_t count;
};

static const enum jinja_operator *at_level(struct jinja_parser *parser, const struct level *level) {
    for (size_t i = 0; i < level->count; i++)
        if (jinja_skip_operator(parser, level->texts[i]))
            return &level->operations[i];
    return NULL;
}

static struct jinja_node *parse_level(struct jinja_parser *parser, const struct level *level,
                                      struct jinja_node *(*next)(struct jinja_parser *)) {
    struct jinja_node *left = next(parser);
    const enum jinja_operator *found;
    while (!parser->status && (found = at_level(parser, level))) {
        left = binary(parser, NODE_BINARY, left, next(parser));
        left->name = *found;
    }
    return left;
}

static struct jinja_node *parse_operand(struct jinja_parser *parser) {
    return parse_unary(parser, true);
}

static struct jinja_node *parse_power(struct jinja_parser *parser) {
    static const struct level level = {{"**"}, {OPERATOR_POWER}, 1};
    return parse_level(parser, &level, parse_operand);
}

static struct jinja_node *parse_product(struct jinja_parser *parser) {
    static const struct level level = {
        {"*", "/", "//", "%"}, {OPERATOR_MULTIPLY, OPERATOR_DIVIDE, OPERATOR_FLOOR_DIVIDE, OPERATOR_MODULO}, 4};
    return parse_level(parser, &level, parse_power);
}

static struct jinja_node *parse_concat(struct jinja_parser *parser) {
    struct jinja_node *first = parse_product(parser);
    if (!jinja_at_operator(parser, "~"))
        return first;
    struct jinja_node *node = jinja_node_new(parser, NODE_CONCAT, first->line);
    struct jinja_nodes items = {0};
    jinja_nodes_add(parser, &items, first);
    while (!parser->status && jinja_skip_operator(parser, "~"))
        jinja_nodes_add(parser, &items, parse_product(parser));
    jinja_set_items(node, &items);
    return node;
}

static struct jinja_node *parse_sum(struct jinja_parser *parser) {
    static const struct level level = {{"+", "-"}, {OPERATOR_ADD, OPERATOR_SUBTRACT}, 2};
    return parse_level(parser, &level, parse_concat);
}

static bool skip_comparison(struct jinja_parser *parser, enum jinja_operator *operation) {
    static const struct {
        const char *text;
        enum jinja_operator operation;
    } operators[] = {{"==", OPERATOR_EQUAL},         {"!=", OPERATOR_NOT_EQUAL}, {"<=", OPERATOR_LESS_EQUAL},
                     {">=", OPERATOR_GREATER_EQUAL}, {"<", OPERATOR_LESS},       {">", OPERATOR_GREATER}};
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
        if (jinja_skip_operator(parser, operators[i].text)) {
            *operation = operators[i].operation;
            return true;
        }
    const struct jinja_token *next = parser->at->kind == TOKEN_NAME ? parser->at + 1 : NULL;
    bool is_not =
        jinja_at_name(parser, "not") && next->kind == TOKEN_NAME && next->length == 2 && !memcmp(next->bytes, "in", 2);
    if (is_not)
        jinja_next(parser);
    *operation = is_not ? OPERATOR_NOT_IN : OPERATOR_IN;
    return jinja_skip_name(parser, "in");
}

static struct jinja_node *parse_comparison(struct jinja_parser *parser) {
    struct jinja_node *first = parse_sum(parser), *node = NULL;
    struct jinja_nodes operands = {0};
    enum jinja_operator operation;
    while (!parser->status && skip_comparison(parser, &operation)) {
        struct jinja_node *operand = jinja_node_new(parser, NODE_OPERAND, parser->at->line);
        operand->name = operation;
        operand->a = parse_sum(parser);
        jinja_nodes_add(parser, &operands, operand);
    }
    if (!operands.count)
        return first;
    node = jinja_node_new(parser, NODE_COMPARE, first->line);
    node->a = first;
    jinja_set_items(node, &operands);
    return node;
}

static struct jinja_node *parse_not(struct jinja_parser *parser) {
    int line = parser->at->line, count = 0;
    while (jinja_skip_name(parser, "not"))
        count++;
    struct jinja_node *node = parse_comparison(parser);
    for (int i = 0; i < (count > 2 ? 2 - count % 2 : count); i++) {
        struct jinja_node *negated = jinja_node_new(parser, NODE_NOT, line);
        negated->a = node;
        node = negated;
    }
    return node;
}

static struct jinja_node *parse_and(struct jinja_parser *parser) {
    struct jinja_node *left = parse_not(parser);
    while (!parser->status && jinja_skip_name(parser, "and"))
        left = binary(parser, NODE_AND, left, parse_not(parser));
    return left;
}

static struct jinja_node *parse_or(struct jinja_parser *parser) {
    struct jinja_node *left = parse_and(parser);
    while (!parser->status && jinja_skip_name(parser, "or"))
        left = binary(parser, NODE_OR, left, parse_and(parser));
    return left;
}

struct jinja_node *jinja_parse_expression(struct jinja_parser *parser, bool with_condition) {
    struct jinja_node *node = parse_or(parser);
    while (!parser->status && with_condition && jinja_skip_name(parser, "if")) {
        struct jinja_node *condition = jinja_node_new(parser, NODE_CONDITION, node->line);
        condition->b = node;
        condition->a = parse_or(parser);
        if (jinja_skip_name(parser, "else")) {
            if (++parser->depth > JINJA_PARSE_DEPTH)
                jinja_parse_fail(parser, node->line, STATUS_UNSUPPORTED, "expressions more than %d deep",
                                 JINJA_PARSE_DEPTH);
            else
                condition->c = jinja_parse_expression(parser, true);
            parser->depth--;
        }
        node = condition;
    }
    return node;
}
