/* Templates, against Jinja2 as `transformers` sets it up (tools/golden/jinja.py), and what Jinja2 does not have: marks,
 * bounds and lines of errors. */
#include "jinja/jinja.h"

#include "support/test.h"

#define GOLDEN TEST_DATA "/jinja/golden/cases.json"

static json_t *golden;

static int load(void **state) {
    json_error_t error;
    (void)state;
    golden = json_load_file(GOLDEN, JSON_ALLOW_NUL, &error);
    if (!golden)
        fail_msg("%s", error.text);
    return 0;
}

static int unload(void **state) {
    (void)state;
    json_decref(golden);
    return 0;
}

enum { DATA = JINJA_FIRST_MARK };

static int render(const char *template, size_t length, const json_t *values, const struct jinja_limits *limits,
                  struct jinja_text *text) {
    struct jinja_argument arguments[32];
    struct tm now = {.tm_year = 126, .tm_mon = 2, .tm_mday = 1, .tm_hour = 13};
    struct jinja *jinja;
    const char *name;
    json_t *value;
    size_t count = 0;
    int status = jinja_open(template, length, &jinja);
    json_object_foreach((json_t *)values, name, value) arguments[count++] =
        (struct jinja_argument){.name = name, .value = value, .marks = DATA};
    if (!status)
        status = jinja_render(
            jinja, &(struct jinja_rendering){.arguments = arguments, .count = count, .now = &now, .limits = limits},
            text);
    jinja_close(jinja);
    return status;
}

static void check_case(const json_t *values, const json_t *one) {
    const json_t *template = json_object_get(one, "template"), *expected = json_object_get(one, "text");
    const char *source = json_string_value(template);
    struct jinja_text text = {0};
    int status = render(source, json_string_length(template), values, NULL, &text);
    if (expected && status)
        fail_msg("%s: %s", source, status_text());
    if (!expected && !status)
        fail_msg("%s: no error, but %s", source, strbuf_text(&text.text));
    if (expected && (text.text.length != json_string_length(expected) ||
                     memcmp(strbuf_text(&text.text), json_string_value(expected), text.text.length) != 0))
        fail_msg("%s: %s, expected %s", source, strbuf_text(&text.text), json_string_value(expected));
    char line[32];
    json_int_t number = json_integer_value(json_object_get(one, "error"));
    snprintf(line, sizeof line, "line %lld: ", (long long)number);
    if (!expected && strncmp(status_text(), number ? line : "line ", number ? strlen(line) : 5) != 0)
        fail_msg("%s: %s, expected %s", source, status_text(), line);
    jinja_text_free(&text);
}

static void cases_are_those_of_jinja2(void **state) {
    const json_t *values = json_object_get(golden, "arguments");
    json_t *cases = json_object_get(golden, "cases"), *one;
    size_t i;
    (void)state;
    assert_true(json_array_size(cases) > 700);
    json_array_foreach(cases, i, one) check_case(values, one);
}

/* ---- errors ---- */

static void errors_name_their_line(void **state) {
    static const struct {
        const char *template;
        int status;
        const char *expected;
    } cases[] = {
        {"a\n{{ nope.x }}", STATUS_INVALID, "line 2: 'nope' is undefined"},
        {"{% macro m(x) %}\n{{ x.y.z }}\n{% endmacro %}\n{{ m({}) }}", STATUS_INVALID, "line 2: 'y' is undefined"},
        {"{% for m in messages %}\n{{ m\n + 1 }}{% endfor %}", STATUS_INVALID, "line 2: '+' is not supported between"},
        {"\n\n{{ raise_exception('roles must ' ~\n 'alternate') }}", STATUS_INVALID,
         "line 3: the template refuses: roles must alternate"},
        {"{{ raise_exception('a\nb') }}", STATUS_INVALID, "line 1: the template refuses: a?b"},
        {"{% if true %}\n{{ 1|nope }}{% endif %}", STATUS_INVALID, "line 2: there is no filter 'nope'"},
        {"{{ 1 is nope }}", STATUS_INVALID, "line 1: there is no test 'nope'"},
        {"{{ messages.append(1) }}", STATUS_INVALID, "line 1: 'append' is undefined"},
        {"{{ 'a'.center(5) }}", STATUS_INVALID, "the method 'center' of a string is not supported"},
        {"{{ 'a'|upper(1) }}", STATUS_INVALID, "1 arguments, and it takes 0"},
        {"{{ 'a'|trim(nope=1) }}", STATUS_INVALID, "trim: there is no argument 'nope'"},
        {"{{ lipsum() }}", STATUS_INVALID, "line 1: 'lipsum' is undefined"},
        {"{{ range(5) }}", STATUS_INVALID, "a range cannot be written"},
        {"{{ 9223372036854775807 + 1 }}", STATUS_INVALID, "an integer outside 64 bits"},
        {"a\n{% include 'x' %}", STATUS_UNSUPPORTED, "line 2: the statement 'include' is not supported"},
        {"{% extends 'x' %}", STATUS_UNSUPPORTED, "the statement 'extends' is not supported"},
        {"{% call m() %}{% endcall %}", STATUS_UNSUPPORTED, "the statement 'call' is not supported"},
        {"{% for a in b recursive %}{% endfor %}", STATUS_UNSUPPORTED, "line 1: recursive loops are not supported"},
        {"{% nope %}", STATUS_INVALID, "line 1: expected a statement, found 'nope'"},
        {"{% if a %}\n\n", STATUS_INVALID, "{% if %} of line 1 has no end"},
        {"{{ a b }}", STATUS_INVALID, "expected '}}', found 'b'"},
        {"{{ '\\N{DASH}' }}", STATUS_INVALID, "names of characters"},
        {"{{ '\\ud83d' }}", STATUS_INVALID, "an escape that is no character"},
        {"\xff", STATUS_INVALID, "not UTF-8"},
    };
    const json_t *values = json_object_get(golden, "arguments");
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct jinja_text text;
        test_fails(render(cases[i].template, strlen(cases[i].template), values, NULL, &text), cases[i].status,
                   cases[i].expected);
    }
}

static void what_is_not_given_is_undefined(void **state) {
    static const char template[] = "{{ a is defined }}{{ b is defined }}{{ b }}{{ strftime_now('%Y') }}";
    struct jinja_argument arguments[] = {{.name = "a", .value = json_null()}, {.name = "b"}};
    struct jinja_rendering rendering = {.arguments = arguments, .count = 2};
    struct jinja_text text;
    struct jinja *jinja;
    struct tm now = {.tm_year = 126};
    (void)state;
    test_ok(jinja_open(template, strlen(template), &jinja));
    test_fails(jinja_render(jinja, &rendering, &text), STATUS_INVALID, "there is no time here");
    rendering.now = &now;
    test_ok(jinja_render(jinja, &rendering, &text));
    assert_string_equal(strbuf_text(&text.text), "TrueFalse2026");
    jinja_text_free(&text);
    jinja_close(jinja);
}

static void literals_are_found(void **state) {
    static const char template[] = "<a>{{ '<b>' ~ \"<\\x63>\" }}{# <d> #}{% generation %}{% endgeneration %}";
    struct jinja *jinja;
    (void)state;
    test_ok(jinja_open(template, strlen(template), &jinja));
    assert_true(jinja_has_literal(jinja, "<a>", 3) && jinja_has_literal(jinja, "<b>", 3) &&
                jinja_has_literal(jinja, "<c>", 3));
    assert_false(jinja_has_literal(jinja, "<d>", 3) || jinja_has_literal(jinja, "<a><b>", 6));
    assert_true(jinja_has_generation(jinja));
    jinja_close(jinja);
}

/* ---- marks ---- */

/* Each range as [text] from data, (text) from {% generation %}, {text} from both, and as it is from the template. */
static void show(const struct jinja_text *text, struct strbuf *shown) {
    static const char brackets[4][2] = {{0, 0}, {'(', ')'}, {'[', ']'}, {'{', '}'}};
    size_t from = 0;
    for (size_t i = 0; i < text->count; i++) {
        const char *pair = brackets[text->ranges[i].marks];
        assert_true(text->ranges[i].end > from);
        assert_true(i == 0 || text->ranges[i].marks != text->ranges[i - 1].marks);
        if (*pair)
            strbuf_add_char(shown, pair[0]);
        strbuf_add(shown, text->text.data + from, text->ranges[i].end - from);
        if (*pair)
            strbuf_add_char(shown, pair[1]);
        from = text->ranges[i].end;
    }
    assert_int_equal(from, text->text.length);
}

static void marks_travel_with_their_characters(void **state) {
    static const struct {
        const char *template, *expected;
    } cases[] = {
        {"<{{ a }}>", "<[ Ab ]>"},
        {"{{ '<' + a + '>' }}", "<[ Ab ]>"},
        {"{{ '<' ~ a ~ 1 }}", "<[ Ab ]1"},
        {"{{ '<' ~ a|trim ~ '>' }}", "<[Ab]>"},
        {"{{ ('<' ~ a)|trim }}", "<[ Ab]"},
        {"{{ ('<' ~ a ~ '>')[1:-2] }}", "[ Ab]"},
        {"{{ ('<' ~ a ~ '>')[::-1] }}", ">[ bA ]<"},
        {"{{ ('x' ~ a)|upper }}", "X[ AB ]"},
        {"{{ a|replace('A', 'x') }}", "[ ]x[b ]"},
        {"{{ 'x y'|replace('x', a) }}", "[ Ab ] y"},
        {"{{ ('<' ~ a ~ '>').split('A')|join('|') }}", "<[ ]|[b ]>"},
        {"{{ [a, 'x']|join(',') }}", "[ Ab ],x"},
        {"{{ [a, 'x'] }}", "[[' Ab '], 'x']"},
        {"{{ o|tojson }}", "{\"[k]\": \"[v\\n]\"}"},
        {"{{ o|tojson(indent=1) }}", "{\n \"[k]\": \"[v\\n]\"\n}"},
        {"{% for k, v in o.items() %}{{ k }}={{ v|trim }}{% endfor %}", "[k]=[v]"},
        {"{% for c in 'x' ~ a|trim %}{{ c }}{% endfor %}", "x[Ab]"},
        {"{% set x %}<{{ a }}>{% endset %}{{ x|trim('<') }}", "[ Ab ]>"},
        {"{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(a) }}", "<[ Ab ]>"},
        {"{% set ns = namespace(x='') %}{% for i in range(2) %}{% set ns.x = ns.x + '<' + a %}{% endfor %}{{ ns.x }}",
         "<[ Ab ]<[ Ab ]"},
        {"{{ a.format() }}{{ '{}!'.format(a) }}", "[ Ab  Ab ]!"},
        {"{{ ('<' ~ a)|indent(1, true) }}", " <[ Ab ]"},
        {"{{ a|length }}{{ a == ' Ab ' }}", "4True"},
        {"{{ a * 2 }}", "[ Ab  Ab ]"},
        {"{{ (a|safe) + '<' }}", "[ Ab ]&lt;"},
        {"{{ ('<' ~ a)|escape }}", "&lt;[ Ab ]"},
        {"a{% generation %}b{{ a }}c{% endgeneration %}d", "a(b){ Ab }(c)d"},
        {"{% macro m(x) %}<{{ x }}>{% endmacro %}{% generation %}{{ m('x') }}{% endgeneration %}{{ m('y') }}",
         "(<x>)<y>"},
    };
    json_t *values = json_pack("{s:s, s:{s:s}}", "a", " Ab ", "o", "k", "v\n");
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct jinja_text text;
        struct strbuf shown = STRBUF_INIT;
        test_ok(render(cases[i].template, strlen(cases[i].template), values, NULL, &text));
        show(&text, &shown);
        assert_string_equal(strbuf_text(&shown), cases[i].expected);
        strbuf_free(&shown);
        jinja_text_free(&text);
    }
    json_decref(values);
}

/* ---- bounds ---- */

static void hostile_templates_end_with_one_line(void **state) {
    static const struct {
        const char *template, *expected;
    } cases[] = {
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "deeper than it may"},
        {"{% macro m() %}{{ n() }}{% endmacro %}{% macro n() %}{% if 1 %}{{ m() }}{% endif %}{% endmacro %}{{ n() }}",
         "deeper than it may"},
        {"{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}", "more steps"},
        {"{% for a in range(100000) %}{% for b in range(100000) %}{{ a }}{% endfor %}{% endfor %}", "more"},
        {"{{ 'ab' * 999999999999 }}", "more"},
        {"{{ [1] * 999999999999 }}", "more"},
        {"{{ range(1000000000) }}", "a range of more than 100000"},
        {"{{ 'a'|indent(999999999) }}", "more"},
        {"{{ [1]|tojson(indent=999999999) }}", "more"},
        {"{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}", "more"},
        {"{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s|replace('x', 'xx') %}{% endfor %}",
         "more"},
        {"{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", "more"},
        {"{% set ns = namespace(s=[]) %}{% for i in range(9999) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}",
         "deeper than it may"},
        {"{% set ns = namespace(s=[]) %}{% for i in range(9999) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s|tojson }}",
         "deeper than it may"},
        {"{% set ns = namespace(s=[], r=[]) %}{% for i in range(9999) %}{% set ns.s = [ns.s] %}{% set ns.r = [ns.r] %}"
         "{% endfor %}{{ ns.s == ns.r }}",
         "deeper than it may"},
        {"{% set ns = namespace(s=[], r=[]) %}{% for i in range(9999) %}{% set ns.s = [ns.s] %}{% set ns.r = [ns.r] %}"
         "{% endfor %}{{ ns.s < ns.r }}",
         "deeper than it may"},
        {"{% set ns = namespace() %}{% set ns.a = ns %}{{ [ns] }}", "a namespace cannot be written"},
        {"{{ 2 ** 64 }}", "an integer outside 64 bits"},
        {"{{ (-9223372036854775807 - 1) // -1 }}", "an integer outside 64 bits"},
        {"{{ 'x'|map('map', 'map', 'map')|list }}", "map: expected the name of a filter"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct jinja_text text;
        test_fails(render(cases[i].template, strlen(cases[i].template), NULL,
                          &(struct jinja_limits){.steps = 1000000, .memory = 1 << 26, .depth = 500}, &text),
                   STATUS_INVALID, cases[i].expected);
        assert_null(strchr(status_text(), '\n'));
    }
}

static void a_rendering_ends_at_its_deadline(void **state) {
    static const char template[] =
        "{#\n#}{% set r = range(100000) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}"; /* all in line 2 */
    const struct jinja_limits limits = {.steps = INT64_MAX, .memory = 1 << 26, .depth = 500, .seconds = 0.5};
    struct jinja_text text;
    (void)state;
    test_ends_within(60); /* without a deadline: minutes */
    test_fails(render(template, strlen(template), NULL, &limits, &text), STATUS_INVALID,
               "line 2: the template takes longer than the 0.5 s that it may take");
    test_ends_within(0);
    assert_true(jinja_default_limits.seconds == 1);
}

/* `count` times `open`, then `middle`, then as often `close`. */
static void nest(struct strbuf *out, const char *open, const char *middle, const char *close, int count) {
    strbuf_clear(out);
    for (int i = 0; i < count; i++)
        strbuf_add_text(out, open);
    strbuf_add_text(out, middle);
    for (int i = 0; i < count; i++)
        strbuf_add_text(out, close);
}

static void deep_templates_are_refused(void **state) {
    static const struct {
        const char *open, *middle, *close;
    } cases[] = {
        {"{% if 1 %}", "", "{% endif %}"},
        {"{% for a in b %}", "", "{% endfor %}"},
    };
    struct strbuf text = STRBUF_INIT, whole = STRBUF_INIT;
    static const char *const expressions[][3] = {
        {"(", "1", ")"},         {"[", "", "]"},      {"{1:", "1", "}"},         {"-", "1", ""},
        {"a[", "1", "]"},        {"f(", "1", ")"},    {"1 if 1 else ", "1", ""}, {"a|f(", "1", ")"},
        {"(1 is eq ", "1", ")"}, {"a + (", "1", ")"}, {"not (", "1", ")"},
    };
    struct jinja_text out;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        nest(&text, cases[i].open, cases[i].middle, cases[i].close, 5000);
        test_fails(render(text.data, text.length, NULL, NULL, &out), STATUS_UNSUPPORTED, "more than 200 deep");
    }
    for (size_t i = 0; i < sizeof expressions / sizeof *expressions; i++) {
        nest(&text, expressions[i][0], expressions[i][1], expressions[i][2], 5000);
        strbuf_clear(&whole);
        strbuf_format(&whole, "{{ %s }}", text.data);
        int status = render(whole.data, whole.length, NULL, NULL, &out);
        assert_true(status == STATUS_UNSUPPORTED || status == STATUS_INVALID);
        assert_true(strstr(status_text(), "deep") || strstr(status_text(), "too many brackets"));
    }
    /* what is long and not deep is taken, up to the depth of its evaluation */
    nest(&text, "1 + ", "1", "", 400);
    strbuf_clear(&whole);
    strbuf_format(&whole, "{{ %s }}", text.data);
    test_ok(render(whole.data, whole.length, NULL, NULL, &out));
    assert_string_equal(strbuf_text(&out.text), "401");
    jinja_text_free(&out);
    nest(&text, "1 + ", "1", "", 5000);
    strbuf_clear(&whole);
    strbuf_format(&whole, "{{ %s }}", text.data);
    test_fails(render(whole.data, whole.length, NULL, NULL, &out), STATUS_INVALID, "deeper than it may");
    strbuf_free(&text);
    strbuf_free(&whole);
}

static void a_template_has_a_largest_size(void **state) {
    struct strbuf text = STRBUF_INIT;
    struct jinja *jinja;
    (void)state;
    while (text.length <= JINJA_TEMPLATE_BYTES)
        strbuf_add_text(&text, "0123456789abcdef");
    test_fails(jinja_open(text.data, text.length, &jinja), STATUS_INVALID, "at most 1048576 are read");
    strbuf_clear(&text);
    for (int i = 0; i < 3000; i++)
        strbuf_format(&text, "{{ a%d }}\n", i);
    test_fails(jinja_open(text.data, text.length, &jinja), STATUS_UNSUPPORTED, "line 2049: more than 2048 names");
    strbuf_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cases_are_those_of_jinja2),          cmocka_unit_test(errors_name_their_line),
        cmocka_unit_test(what_is_not_given_is_undefined),     cmocka_unit_test(literals_are_found),
        cmocka_unit_test(marks_travel_with_their_characters), cmocka_unit_test(hostile_templates_end_with_one_line),
        cmocka_unit_test(deep_templates_are_refused),         cmocka_unit_test(a_template_has_a_largest_size),
        cmocka_unit_test(a_rendering_ends_at_its_deadline),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
