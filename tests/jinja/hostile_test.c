/* Templates and arguments that try to take all of the time, the memory or the stack. Each ends at a limit, in one line,
 * none ends the process, and the clock is checked all the time. CAMBIUM_TEST_LONG=1 runs them over texts of 16 MB with
 * the limits of a program, and prints the processor time of each. */
#include "jinja/jinja.h"

#include "support/test.h"

#include <stdlib.h>

struct hostile {
    const char *name, *template;
};
/* NAMES stands for 2,000 assignments, PARAMETERS for 100,000 parameters. */
static const struct hostile templates[] = {
    {"a tuple in itself, as a key", "{% set s = namespace(t=()) %}{% for i in r %}{% for j in [1,2,3,4] %}{% set s.t = "
                                    "(s.t,) %}{% endfor %}{% endfor %}{{ s.t in {} }}"},
    {"pairs of pairs, as a key",
     "{% set s = namespace(t=(1,)) %}{% for i in range(60) %}{% set s.t = (s.t, s.t) %}{% endfor %}{{ s.t in {} }}"},
    {"pairs of pairs, put into a dict", "{% set s = namespace(t=(1,)) %}{% for i in range(60) %}{% set s.t = (s.t, "
                                        "s.t) %}{% endfor %}{{ {s.t: 1}|length }}"},
    {"pairs of pairs are compared", "{% set s = namespace(t=[1], u=[1]) %}{% for i in range(60) %}{% set s.t = [s.t, "
                                    "s.t] %}{% set s.u = [s.u, s.u] %}{% endfor %}{{ s.t == s.u }}"},
    {"pairs of pairs are ordered", "{% set s = namespace(t=[1], u=[1]) %}{% for i in range(60) %}{% set s.t = [s.t, "
                                   "s.t] %}{% set s.u = [s.u, s.u] %}{% endfor %}{{ s.t < s.u }}"},
    {"pairs of pairs are written",
     "{% set s = namespace(t=[1]) %}{% for i in range(60) %}{% set s.t = [s.t, s.t] %}{% endfor %}{{ s.t }}"},
    {"pairs of pairs as JSON", "{% set s = namespace(t=[1]) %}{% for i in range(60) %}{% set s.t = {'a': s.t, 'b': "
                               "s.t} %}{% endfor %}{{ s.t|tojson }}"},
    {"pairs of pairs in a set", "{% set s = namespace(t=(1,)) %}{% for i in range(60) %}{% set s.t = (s.t, s.t) %}{% "
                                "endfor %}{{ [s.t, s.t]|unique|list }}"},
    {"empty lists in lists are compared",
     "{% set s = namespace(t=[], u=[]) %}{% for i in range(60) %}{% set s.t = [s.t, s.t] %}{% set s.u = [s.u, s.u] "
     "%}{% endfor %}{{ [s.t]|select('in', [s.u])|list|length }}"},
    {"isdigit", "{% for i in r %}{% if d.isdigit() %}{% endif %}{% endfor %}"},
    {"startswith", "{% for i in r %}{% if t.startswith(u) %}{% endif %}{% endfor %}"},
    {"endswith a tuple", "{% set p = (u, u, u, u) %}{% for i in r %}{% if t.endswith(p) %}{% endif %}{% endfor %}"},
    {"removeprefix", "{% for i in r %}{% set x = t.removeprefix(u) %}{% endfor %}"},
    {"splitlines", "{% for i in r %}{% set x = t.splitlines() %}{% endfor %}"},
    {"count of nothing", "{% for i in r %}{% set x = t.count('') %}{% endfor %}"},
    {"int and float", "{% for i in r %}{% set x = w|int + w|float %}{% endfor %}"},
    {"rsplit of a period", "{% for i in r %}{% set x = t.rsplit(half ~ 'b') %}{% endfor %}"},
    {"rfind in a period", "{% for i in r %}{% set x = t.rfind('b' ~ half) %}{% endfor %}"},
    {"find in a period", "{% set p = 'b' ~ half[:255] %}{% for i in r %}{% set x = t.find(p) %}{% endfor %}"},
    {"replace of nothing", "{% for i in r %}{% set x = t|replace('', '') %}{% endfor %}"},
    {"replace multiplies",
     "{% set s = namespace(x='aa') %}{% for i in r %}{% set s.x = s.x|replace('a', s.x) %}{% endfor %}"},
    {"escape", "{% for i in r %}{% set x = t|escape %}{% endfor %}"},
    {"JSON of a text of many sources", "{% set s = namespace(x='') %}{% for i in range(2000) %}{% set s.x = s.x ~ 'a' "
                                       "~ quote %}{% endfor %}{% for i in r %}{% set x = s.x|tojson %}{% endfor %}"},
    {"a name among 2,000",
     "{% with NAMES %}{% for i in r %}{% for j in r %}{{ b }}{% endfor %}{% endfor %}{% endwith %}"},
    {"long keys that begin alike",
     "{% set o = {t ~ '1': 1, t ~ '2': 2, t ~ '3': 3} %}{% for i in r %}{% set x = o[t ~ '4'] %}{% endfor %}"},
    {"text times a number", "{% set s = namespace(x='a') %}{% for i in r %}{% set s.x = s.x * 1000 %}{% endfor %}"},
    {"lists times a number", "{% set s = namespace(x=[1]) %}{% for i in r %}{% set s.x = s.x * 1000 %}{% endfor %}"},
    {"join of a long text", "{% for i in r %}{% set x = r|join(t) %}{% endfor %}"},
    {"sort of long texts", "{% set l = [t ~ 'a', t ~ 'b', t ~ 'c', t ~ 'd'] * 100 %}{% for i in r %}{% set x = "
                           "l|sort(case_sensitive=true) %}{% endfor %}"},
    {"unique of many", "{% for i in r %}{% set x = r|unique|list %}{% endfor %}"},
    {"dictsort in upper case", "{% for i in r %}{% set x = {t: 1, u: 2}|dictsort %}{% endfor %}"},
    {"a slice backwards", "{% for i in r %}{% set x = t[::-1] %}{% endfor %}"},
    {"the last character", "{% for i in r %}{% set x = t[-1] %}{% endfor %}"},
    {"format with many names",
     "{% set f = '{a}' * 10000 %}{% for i in r %}{% set x = f.format(a=1, b=2, c=3, d=4, e=5, f=6) %}{% endfor %}"},
    {"indent", "{% for i in r %}{% set x = lines|indent(100000, true, true) %}{% endfor %}"},
    {"JSON with a wide indent", "{% for i in r %}{% set x = r|list|tojson(indent=100000) %}{% endfor %}"},
    {"floats are written",
     "{% set l = [0.1, 1e300, 2.5e-9] * 1000 %}{% for i in r %}{% set x = l|string %}{% endfor %}"},
    {"macros that call macros",
     "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(100) }}"},
    {"a macro with many parameters", "{% macro m(PARAMETERS) %}{% endmacro %}{% for i in r %}{{ m() }}{% endfor %}"},
    {"many keywords", "{% for i in r %}{% set x = dict(**names) %}{% endfor %}"},
    {"a namespace that holds itself",
     "{% set s = namespace() %}{% set s.a = [s] %}{% set s.b = [s] %}{% for i in r %}{% for j in r %}{% if s.a == s.b "
     "%}{% endif %}{% endfor %}{% endfor %}{{ s.a|tojson }}"},
    {"loops in loops", "{% for a in r %}{% for b in r %}{% for c in r %}{% endfor %}{% endfor %}{% endfor %}"},
    {"white space is split", "{% for i in r %}{% set x = w.split() %}{% endfor %}"},
    {"letters change their case", "{% for i in r %}{% set x = t|title|upper|lower|capitalize %}{% endfor %}"},
    {"a range is compared", "{% set q = range(100000) %}{% for i in r %}{% if r == q %}{% endif %}{% endfor %}"},
    {"paths with many dots",
     "{% set s = namespace() %}{% set s.x = s %}{% set p = '.'.join(['x'] * 10000) %}{% for i in r %}"
     "{% set x = ([s] * 100)|map(attribute=p)|list %}{% endfor %}"},
    {"texts are written with quotes", "{% for i in r %}{% set x = [t]|string %}{% endfor %}"},
    {"find of a long part", "{% set p = half ~ 'b' %}{% for i in r %}{% set x = t.find(p) %}{% endfor %}"},
    {"count of a long part", "{% set p = half ~ 'b' %}{% for i in r %}{% set x = (t ~ p ~ t).count(p) %}{% endfor %}"},
    {"strip of many characters", "{% for i in r %}{% set x = w.strip(t) %}{% endfor %}"},
    {"lists are joined", "{% set l = [1] * 90000 %}{% for i in r %}{% set x = l + l %}{% endfor %}"},
    {"a sorted list is sorted", "{% for i in r %}{% set x = r|sort %}{% endfor %}"},
    {"a key of many bytes", "{% for i in r %}{% set x = names[t] %}{% endfor %}"},
    {"a path of many bytes", "{% for i in r %}{% set x = [names]|map(attribute=d)|list %}{% endfor %}"},
    {"quotes are looked for", "{% for i in r %}{% set x = [t, u, d]|string|length %}{% endfor %}"},
    {"texts are ordered", "{% for i in r %}{% if t ~ 'a' < u %}{% endif %}{% endfor %}"},
    {"a brace that does not end", "{% for i in r %}{% set x = (t ~ '{{}}').format() %}{% endfor %}"},
    {"text is printed", "{% for i in r %}{{ t }}{% endfor %}"},
    {"a text of two sources is printed", "{% for i in r %}{{ t[0] }}b{% endfor %}"},
    {"a key among many", "{% for i in r %}{% for j in r %}{% set x = names['zz'] %}{% endfor %}{% endfor %}"},
};
enum { TEMPLATES = sizeof templates / sizeof *templates };

static json_t *repeat(const char *text, size_t bytes) {
    struct strbuf all = STRBUF_INIT;
    while (all.length < bytes)
        strbuf_add_text(&all, text);
    json_t *string = json_stringn(all.data, all.length);
    assert_non_null(string);
    strbuf_free(&all);
    return string;
}

/* t and u are texts, half is one of half their bytes, d digits, w white space, lines line ends, names a dict. */
static json_t *make_arguments(size_t bytes) {
    json_t *all = json_object(), *names = json_object();
    char key[16];
    for (int i = 0; i < 20000; i++) {
        snprintf(key, sizeof key, "k%d", i);
        json_object_set_new(names, key, json_integer(i));
    }
    json_object_set_new(all, "t", repeat("aaaaaaaa", bytes));
    json_object_set_new(all, "u", repeat("aaaaaaaa", bytes));
    json_object_set_new(all, "half", repeat("aaaaaaaa", bytes / 2));
    json_object_set_new(all, "d", repeat("12345678", bytes));
    json_object_set_new(all, "w", repeat("        ", bytes));
    json_object_set_new(all, "lines", repeat("\n\n\n\n\n\n\n\n", bytes));
    json_object_set_new(all, "quote", json_string("\""));
    json_object_set_new(all, "names", names);
    return all;
}

static void write_template(struct strbuf *out, const char *text) {
    const char *names = strstr(text, "NAMES"), *parameters = strstr(text, "PARAMETERS"),
               *at = names ? names : parameters;
    strbuf_clear(out);
    strbuf_add_text(out, "{% set r = range(100000) %}");
    if (!at) {
        strbuf_add_text(out, text);
        return;
    }
    strbuf_add(out, text, (size_t)(at - text));
    for (int i = 0; names && i < 2000; i++)
        strbuf_format(out, "%sa%d=1", i ? ", " : "", i);
    for (int i = 0; !names && i < 100000; i++)
        strbuf_add_text(out, i ? ", p" : "p");
    strbuf_add_text(out, at + (names ? strlen("NAMES") : strlen("PARAMETERS")));
}

static double processor_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* The seconds of the processor that it took. */
static double run(const struct hostile *hostile, const json_t *values, const struct jinja_limits *limits) {
    struct jinja_argument arguments[16];
    struct strbuf template = STRBUF_INIT;
    struct jinja *jinja;
    struct jinja_text text;
    const char *name;
    json_t *value;
    size_t count = 0;
    int64_t steps = 0, unwatched = 0;
    json_object_foreach((json_t *)values, name, value) arguments[count++] =
        (struct jinja_argument){.name = name, .value = value, .marks = JINJA_FIRST_MARK};
    write_template(&template, hostile->template);
    test_ok(jinja_open(template.data, template.length, &jinja));
    double begin = processor_seconds();
    int status = jinja_render(
        jinja,
        &(struct jinja_rendering){
            .arguments = arguments, .count = count, .limits = limits, .steps = &steps, .unwatched = &unwatched},
        &text);
    double seconds = processor_seconds() - begin;
    if (!status)
        fail_msg("%s: it ends without a limit, after %lld steps", hostile->name, (long long)steps);
    if (status != STATUS_INVALID || strchr(status_text(), '\n') || !strstr(status_text(), "than it may"))
        if (!strstr(status_text(), "takes longer than"))
            fail_msg("%s: %s", hostile->name, status_text());
    if (test_is_long())
        printf("%6.3f s, %9lld steps: %s: %s\n", seconds, (long long)steps, hostile->name, status_text());
    assert_true(steps <= limits->steps);
    if (unwatched <= 0 || unwatched >= JINJA_UNWATCHED_STEPS)
        fail_msg("%s: %lld steps between two looks at the clock", hostile->name, (long long)unwatched);
    strbuf_free(&template);
    jinja_close(jinja);
    return seconds;
}

static void hostile_templates_end_at_a_limit(void **state) {
    bool is_long = test_is_long();
    struct jinja_limits limits = jinja_default_limits;
    json_t *values = make_arguments(is_long ? 16 << 20 : 1 << 20);
    const char *slowest = "";
    double most = 0;
    (void)state;
    assert_true(TEMPLATES >= 40);
    if (!is_long)
        limits = (struct jinja_limits){.steps = 200000, .memory = 1 << 24, .depth = 600, .seconds = 1};
    for (size_t i = 0; i < TEMPLATES; i++) {
        double seconds = run(&templates[i], values, &limits);
        if (seconds > most) {
            most = seconds;
            slowest = templates[i].name;
        }
    }
    printf("the slowest of %d hostile templates took %.3f s: %s\n", (int)TEMPLATES, most, slowest);
    assert_true(most < 60); /* each would take hours */
    json_decref(values);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(hostile_templates_end_at_a_limit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
