/* Templates that the grammar makes, each byte of the input a choice: statements in statements, and every operation over
 * every kind of value. Each is parsed, and its rendering ends within its steps, its time and its memory, with a text or
 * with one line. */
#include "jinja-internal.h"

#include "support/jinja_operations.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_DEPTH = 7, MAX_BYTES = 1 << 14, MAX_OPERATIONS = 256 };
#define SECONDS 1.0
#define SLACK   30.0 /* of a machine that runs much else */

struct choices {
    const uint8_t *at, *end;
    struct strbuf text;
    struct operation operations[MAX_OPERATIONS];
    size_t count;
};

/* A choice below `below`; 0, the simplest, after the last byte. */
static unsigned choose(struct choices *c, unsigned below) {
    return c->at < c->end ? *c->at++ % below : 0;
}

static void add(struct choices *c, const char *text) {
    strbuf_add_text(&c->text, text);
}

static void add_expression(struct choices *c, int depth);

static void add_leaf(struct choices *c) {
    static const char *const leaves[] = {
        "x",    "messages", "1", "'a'", "s.v",  "[]",  "()",           "{}",          "loop",     "-7", "2.5",
        "none", "true",     "m", "m0",  "nope", "'%'", "' a b\\n,c '", "messages[0]", "range(9)", "s",  "'' ~ x"};
    add(c, leaves[choose(c, sizeof leaves / sizeof *leaves)]);
}

static void add_list(struct choices *c, int depth, const char *open, const char *close) {
    add(c, open);
    for (unsigned i = 0, count = choose(c, 4); i < count; i++) {
        if (i)
            add(c, ", ");
        add_expression(c, depth + 1);
    }
    add(c, close);
}

/* A filter, test, method, function, operator or access of the table. */
static void add_operation(struct choices *c, int depth) {
    const struct operation *operation = &c->operations[choose(c, (unsigned)c->count)];
    const char *group = operation->group, *name = operation->name;
    bool is_word = (*name >= 'a' && *name <= 'z') && !strchr(name, '[') && !strchr(name, ' ') && !strchr(name, '.');
    add(c, "(");
    if (!strcmp(group, "function")) {
        add(c, name);
        add_list(c, depth, "(", ")");
    } else if (!strcmp(group, "operator")) {
        add_expression(c, depth + 1);
        strbuf_format(&c->text, " %s ", name);
        add_expression(c, depth + 1);
    } else if (!strcmp(group, "access")) {
        add_expression(c, depth + 1);
        if (!strcmp(name, "a.name")) {
            add(c, choose(c, 2) ? ".v" : ".content");
        } else {
            add(c, "[");
            add_expression(c, depth + 1);
            if (!strcmp(name, "a[from:to:step]")) {
                add(c, ":");
                add_expression(c, depth + 1);
                add(c, choose(c, 2) ? ":-1" : "");
            }
            add(c, "]");
        }
    } else if (!strncmp(group, "method", 6)) {
        add_expression(c, depth + 1);
        strbuf_format(&c->text, ".%s", name);
        add_list(c, depth, "(", ")");
    } else {
        add_expression(c, depth + 1);
        strbuf_format(&c->text, !strcmp(group, "test") ? " is %s" : "|%s", is_word ? name : "string");
        if (choose(c, 2))
            add_list(c, depth, "(", ")");
    }
    add(c, ")");
}

static void add_expression(struct choices *c, int depth) {
    unsigned kind = depth > MAX_DEPTH || c->text.length > MAX_BYTES ? 0 : choose(c, 8);
    switch (kind) {
    case 0:
    case 1:
        add_leaf(c);
        break;
    case 2:
        add_list(c, depth, "[", "]");
        break;
    case 3:
        add(c, "(");
        add_expression(c, depth + 1);
        add_list(c, depth, ", ", ")");
        break;
    case 4:
        add(c, "{");
        add_expression(c, depth + 1);
        add(c, ": ");
        add_expression(c, depth + 1);
        add(c, "}");
        break;
    case 5:
        add(c, "(");
        add_expression(c, depth + 1);
        add(c, " if ");
        add_expression(c, depth + 1);
        add(c, choose(c, 2) ? ")" : " else 1)");
        break;
    default:
        add_operation(c, depth);
    }
}

static void add_statements(struct choices *c, int depth);

static void add_statement(struct choices *c, int depth) {
    static const char *const heads[] = {"{{ ",
                                        "{% set x = ",
                                        "{% set s.v = ",
                                        "{% for x in ",
                                        "{% if ",
                                        "{% with m0 = ",
                                        "{% set x %}",
                                        "{% macro m(a, b=1) %}",
                                        "{% filter upper %}",
                                        "{% generation %}",
                                        "{% set s.v = s.v, "};
    static const char *const ends[] = {" }}",
                                       " %}",
                                       " %}",
                                       "{% endfor %}",
                                       "{% endif %}",
                                       "{% endwith %}",
                                       "{% endset %}",
                                       "{% endmacro %}",
                                       "{% endfilter %}",
                                       "{% endgeneration %}",
                                       " %}"};
    unsigned kind = depth > MAX_DEPTH || c->text.length > MAX_BYTES ? 0 : choose(c, sizeof heads / sizeof *heads);
    add(c, heads[kind]);
    if (kind < 6 || kind == 10)
        add_expression(c, 0);
    if (kind >= 3 && kind < 10) {
        if (kind < 6)
            add(c, " %}");
        add_statements(c, depth + 1);
    }
    add(c, ends[kind]);
}

static void add_statements(struct choices *c, int depth) {
    for (unsigned i = 0, count = 1 + choose(c, 4); i < count; i++)
        add_statement(c, depth);
}

static void check(bool is_right, const char *what, const struct strbuf *text) {
    if (is_right)
        return;
    fprintf(stderr, "jinja_grammar_fuzz: %s (%s)\n%s\n", what, status_text(), strbuf_text(text));
    abort();
}

static void render(const struct jinja *jinja, const struct strbuf *template) {
    static const char values[] =
        "[{\"role\": \"user\", \"content\": \" A \\n b\"}, {\"role\": \"tool\", \"n\": [1, 2.5, null]}]";
    const struct jinja_limits limits = {.steps = 1000000, .memory = 1 << 22, .depth = 200, .seconds = SECONDS};
    json_error_t error;
    json_t *messages = json_loads(values, 0, &error);
    struct tm now = {.tm_year = 126};
    struct jinja_argument arguments[] = {{.name = "messages", .value = messages, .marks = JINJA_FIRST_MARK}};
    struct jinja_text text;
    int64_t steps = -1;
    double begin = clock_seconds();
    int status = jinja_render(
        jinja,
        &(struct jinja_rendering){.arguments = arguments, .count = 1, .now = &now, .limits = &limits, .steps = &steps},
        &text);
    check(clock_seconds() - begin < SECONDS + SLACK, "a rendering that goes on after its deadline", template);
    check(steps >= 0 && steps <= limits.steps, "more steps than there may be", template);
    check(!status || (*status_text() && !strchr(status_text(), '\n')), "refused without one line that says why",
          template);
    if (!status)
        jinja_text_free(&text);
    json_decref(messages);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct choices c = {.at = data, .end = data + size};
    struct jinja *jinja;
    while (c.count < MAX_OPERATIONS && find_operation(c.count, &c.operations[c.count]))
        c.count++;
    add(&c, "{% set s = namespace(v=[1]) %}{% set x = 'ab' %}");
    while (c.at < c.end && c.text.length < MAX_BYTES)
        add_statements(&c, 0);
    status_fail(STATUS_OK, "%s", "");
    if (!jinja_open(strbuf_text(&c.text), c.text.length, &jinja))
        render(jinja, &c.text);
    else
        check(*status_text() && !strchr(status_text(), '\n'), "refused without one line that says why", &c.text);
    jinja_close(jinja);
    strbuf_free(&c.text);
    return 0;
}
