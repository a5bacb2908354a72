/* Each operation of a template is charged for what it looks at: the table of all of them is walked, and each is run
 * over little and over much. An operation that is not in the test's own table fails it, too. */
#include "jinja-internal.h"

#include "support/jinja_operations.h"
#include "support/test.h"

struct operation_case {
    const char *group, *name;
    const char *expression; /* over the arguments below */
    bool is_constant;       /* it looks at kinds, numbers and short names alone, however large its value is */
};

static const struct operation_case cases[] = {
    {"filter", "capitalize", "t|capitalize", false},
    {"filter", "count", "t|count", false},
    {"filter", "e", "t|e", false},
    {"filter", "escape", "t|escape", false},
    {"filter", "float", "w|float", false},
    {"filter", "indent", "t|indent", false},
    {"filter", "int", "w|int", false},
    {"filter", "length", "t|length", false},
    {"filter", "lower", "t|lower", false},
    {"filter", "title", "t|title", false},
    {"filter", "tojson", "t|tojson", false},
    {"filter", "trim", "w|trim", false},
    {"filter", "upper", "t|upper", false},
    {"filter", "abs", "n|abs", true},
    {"filter", "d", "n|d", true},
    {"filter", "default", "n|default", true},
    {"filter", "round", "n|round", true},
    {"filter", "replace", "t|replace('a', 'b')", false},
    {"filter", "safe", "l|safe", false},
    {"filter", "string", "l|string", false},
    {"filter", "join", "l|join", false},
    {"filter", "list", "l|list", false},
    {"filter", "reject", "l|reject", false},
    {"filter", "reverse", "l|reverse", false},
    {"filter", "select", "l|select", false},
    {"filter", "sort", "l|sort", false},
    {"filter", "max", "l|max", false},
    {"filter", "min", "l|min", false},
    {"filter", "unique", "l|unique", false},
    {"filter", "dictsort", "o|dictsort", false},
    {"filter", "first", "o|first", false},
    {"filter", "items", "o|items", false},
    {"filter", "last", "t|last", false},
    {"filter", "map", "l|map('upper')", false},
    {"filter", "rejectattr", "q|rejectattr('a')", false},
    {"filter", "selectattr", "q|selectattr('a')", false},
    {"filter", "sum", "k|sum", false},
    {"test", "odd", "n is odd", true},
    {"test", "even", "n is even", true},
    {"test", "defined", "n is defined", true},
    {"test", "undefined", "n is undefined", true},
    {"test", "filter", "n is filter", true},
    {"test", "test", "n is test", true},
    {"test", "none", "n is none", true},
    {"test", "boolean", "n is boolean", true},
    {"test", "false", "n is false", true},
    {"test", "true", "n is true", true},
    {"test", "integer", "n is integer", true},
    {"test", "float", "n is float", true},
    {"test", "string", "n is string", true},
    {"test", "mapping", "n is mapping", true},
    {"test", "number", "n is number", true},
    {"test", "sequence", "n is sequence", true},
    {"test", "iterable", "n is iterable", true},
    {"test", "callable", "n is callable", true},
    {"test", "divisibleby", "n is divisibleby(3)", true},
    {"test", "sameas", "n is sameas(n)", true},
    {"test", "lower", "t is lower", false},
    {"test", "upper", "t is upper", false},
    {"test", "in", "t is in([u])", false},
    {"test", "==", "[t]|select('==', u)|list", false},
    {"test", "eq", "[t]|select('eq', u)|list", false},
    {"test", "equalto", "[t]|select('equalto', u)|list", false},
    {"test", "!=", "[t]|select('!=', u)|list", false},
    {"test", "ne", "[t]|select('ne', u)|list", false},
    {"test", ">", "[t]|select('>', u)|list", false},
    {"test", "gt", "[t]|select('gt', u)|list", false},
    {"test", "greaterthan", "[t]|select('greaterthan', u)|list", false},
    {"test", ">=", "[t]|select('>=', u)|list", false},
    {"test", "ge", "[t]|select('ge', u)|list", false},
    {"test", "<", "[t]|select('<', u)|list", false},
    {"test", "lt", "[t]|select('lt', u)|list", false},
    {"test", "lessthan", "[t]|select('lessthan', u)|list", false},
    {"test", "<=", "[t]|select('<=', u)|list", false},
    {"test", "le", "[t]|select('le', u)|list", false},
    {"function", "dict", "dict(o)", false},
    {"function", "namespace", "namespace(o)", false},
    {"function", "raise_exception", "raise_exception(l)", false},
    {"function", "range", "range(n)", false},
    {"function", "strftime_now", "strftime_now('%Y')", true},
    {"method str", "capitalize", "w.capitalize()", false},
    {"method str", "format", "w.format()", false},
    {"method str", "isdigit", "d.isdigit()", false},
    {"method str", "lower", "w.lower()", false},
    {"method str", "lstrip", "w.lstrip()", false},
    {"method str", "rstrip", "w.rstrip()", false},
    {"method str", "split", "w.split()", false},
    {"method str", "splitlines", "w.splitlines()", false},
    {"method str", "strip", "w.strip()", false},
    {"method str", "title", "w.title()", false},
    {"method str", "upper", "w.upper()", false},
    {"method str", "count", "t.count('b')", false},
    {"method str", "find", "t.find('b')", false},
    {"method str", "rfind", "t.rfind('b')", false},
    {"method str", "rsplit", "t.rsplit('b')", false},
    {"method str", "endswith", "t.endswith(u)", false},
    {"method str", "startswith", "t.startswith(u)", false},
    {"method str", "removeprefix", "t.removeprefix(u)", false},
    {"method str", "removesuffix", "t.removesuffix(u)", false},
    {"method str", "join", "','.join(l)", false},
    {"method str", "replace", "t.replace('a', 'b')", false},
    {"method dict", "copy", "o.copy()", true},
    {"method dict", "get", "o.get('zz')", false},
    {"method dict", "items", "o.items()", false},
    {"method dict", "keys", "o.keys()", false},
    {"method dict", "values", "o.values()", false},
    {"method list", "copy", "l.copy()", true},
    {"method list", "count", "l.count('b')", false},
    {"method list", "index", "l.index('b')", false},
    {"method loop", "cycle", "loop.cycle(1)", true},
    {"operator", "-", "n - 1", true},
    {"operator", "/", "n / 1", true},
    {"operator", "//", "n // 1", true},
    {"operator", "%", "n % 1", true},
    {"operator", "**", "n ** 1", true},
    {"operator", "==", "t == u", false},
    {"operator", "!=", "t != u", false},
    {"operator", "<", "t < u", false},
    {"operator", "<=", "t <= u", false},
    {"operator", ">", "t > u", false},
    {"operator", ">=", "t >= u", false},
    {"operator", "+", "t + u", false},
    {"operator", "*", "t * 2", false},
    {"operator", "and", "n and n", true},
    {"operator", "or", "n or n", true},
    {"operator", "~", "t ~ u", false},
    {"operator", "in", "'b' in t", false},
    {"operator", "not in", "'b' not in t", false},
    {"access", "a.name", "o.zz", false},
    {"access", "a[key]", "t[-1]", false},
    {"access", "a[from:to:step]", "t[1:]", false},
};
enum { CASES = sizeof cases / sizeof *cases, MUCH = 1 << 16 };

/* Arguments of `bytes` bytes each. Texts: t and u of letters, d of digits, w of white space. Lists: l of texts, q of
 * dicts, k of numbers. A dict: o. A number: n. */
static json_t *make_arguments(size_t bytes) {
    static const char *const texts[] = {"t", "u", "d", "w"};
    static const char letters[] = "aa1 ";
    json_t *all = json_object(), *l = json_array(), *q = json_array(), *k = json_array(), *o = json_object();
    char *text = malloc(bytes), key[32];
    assert_non_null(text);
    for (int i = 0; i < 4; i++) {
        memset(text, letters[i], bytes);
        json_object_set_new(all, texts[i], json_stringn(text, bytes));
    }
    for (size_t i = 0; i < bytes / 16; i++) {
        json_array_append_new(l, json_string("a"));
        json_array_append_new(q, json_pack("{s:i}", "a", 1));
        json_array_append_new(k, json_integer(1));
        snprintf(key, sizeof key, "k%zu", i);
        json_object_set_new(o, key, json_integer(1));
    }
    json_object_set_new(all, "l", l);
    json_object_set_new(all, "q", q);
    json_object_set_new(all, "k", k);
    json_object_set_new(all, "o", o);
    json_object_set_new(all, "n", json_integer((json_int_t)(bytes / 4)));
    free(text);
    return all;
}

/* Steps of an expression, with the arguments made into values and the loop around it. */
static int64_t count_steps(const char *expression, const json_t *values) {
    struct jinja_argument arguments[16];
    struct tm now = {.tm_year = 126};
    const struct jinja_limits limits = {.steps = INT64_MAX, .memory = (size_t)1 << 28, .depth = 100}; /* no deadline */
    struct strbuf template = STRBUF_INIT;
    struct jinja *jinja;
    struct jinja_text text;
    const char *name;
    json_t *value;
    size_t count = 0;
    int64_t steps = 0;
    json_object_foreach((json_t *)values, name, value) arguments[count++] =
        (struct jinja_argument){.name = name, .value = value};
    strbuf_format(&template,
                  "{%% set all = [t, u, d, w, l, q, k, o, n] %%}{%% for i in [1] %%}{%% set x = %s %%}"
                  "{%% endfor %%}",
                  expression);
    test_ok(jinja_open(template.data, template.length, &jinja));
    const struct jinja_rendering rendering = {
        .arguments = arguments, .count = count, .now = &now, .limits = &limits, .steps = &steps};
    int status = jinja_render(jinja, &rendering, &text);
    if (!status)
        jinja_text_free(&text);
    else if (!strstr(expression, "index") && !strstr(expression, "raise"))
        fail_msg("%s: %s", expression, status_text());
    jinja_close(jinja);
    strbuf_free(&template);
    return steps;
}

static const struct operation_case *find_case(const struct operation *operation) {
    for (size_t i = 0; i < CASES; i++)
        if (!strcmp(cases[i].group, operation->group) && !strcmp(cases[i].name, operation->name))
            return &cases[i];
    return NULL;
}

static void every_operation_is_charged_for_what_it_looks_at(void **state) {
    json_t *little = make_arguments(64), *much = make_arguments(MUCH);
    int64_t base = count_steps("1", much) - count_steps("1", little);
    struct operation operation;
    size_t count = 0;
    (void)state;
    for (; find_operation(count, &operation); count++) {
        const struct operation_case *one = find_case(&operation);
        if (!one)
            fail_msg("%s %s is not in this test: say what it is charged", operation.group, operation.name);
        int64_t more = count_steps(one->expression, much) - count_steps(one->expression, little) - base;
        if (one->is_constant ? more > 2 : more < MUCH / JINJA_STEP_BYTES * 9 / 10)
            fail_msg("%s %s: %lld steps more over %d bytes", one->group, one->name, (long long)more, MUCH);
    }
    assert_int_equal(count, CASES);
    json_decref(little);
    json_decref(much);
}

/* Small pieces add up, and a name among many is looked for. */
static void small_pieces_add_up(void **state) {
    json_t *values = json_object();
    struct strbuf names = STRBUF_INIT;
    (void)state;
    for (int i = 0; i < 2000; i++)
        strbuf_format(&names, "%sa%d=1", i ? ", " : "", i);
    struct strbuf template = STRBUF_INIT;
    struct jinja *jinja;
    int64_t steps[2];
    for (int i = 0; i < 2; i++) {
        struct jinja_text text;
        strbuf_clear(&template);
        strbuf_format(&template, "{%% with %s %%}{%% for i in range(1000) %%}{{ %s }}{%% endfor %%}{%% endwith %%}",
                      i ? names.data : "a0=1", i ? "b" : "a0");
        test_ok(jinja_open(template.data, template.length, &jinja));
        test_ok(jinja_render(jinja, &(struct jinja_rendering){.steps = &steps[i]}, &text));
        jinja_text_free(&text);
        jinja_close(jinja);
    }
    assert_true(steps[1] - steps[0] > 1000 * 2000 / 16);
    strbuf_free(&template);
    strbuf_free(&names);
    json_decref(values);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_is_charged_for_what_it_looks_at),
        cmocka_unit_test(small_pieces_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
