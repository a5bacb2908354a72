/* Texts of the tasks' rows equal those that lm_eval made (golden/, by tools/golden/eval_tasks.py), and so do literals
 * and metrics. A faulty row is refused with the name of its field. */
#include "support/test.h"
#include "tasks/tasks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct strbuf read_golden(const char *name) {
    char path[512];
    struct strbuf text = STRBUF_INIT;
    snprintf(path, sizeof path, "%s/tasks/golden/%s", TEST_DATA, name);
    test_ok(file_read(path, 1 << 24, &text));
    return text;
}

static void assert_span(const struct task_row *row, struct task_span span, const json_t *expected) {
    const char *text = strbuf_text(&row->texts) + span.start;
    if (span.length != json_string_length(expected) || memcmp(text, json_string_value(expected), span.length))
        fail_msg("made \"%.*s\", lm_eval \"%s\"", (int)span.length, text, json_string_value(expected));
}

static void compare_row(const struct task *task, const json_t *line, struct task_row *row) {
    const json_t *requests = json_object_get(line, "requests");
    test_ok(task->build(json_object_get(line, "row"), row));
    assert_int_equal(row->count, json_array_size(requests));
    for (int64_t i = 0; i < row->count; i++) {
        const json_t *request = json_array_get(requests, (size_t)i);
        assert_span(row, row->requests[i].context, json_array_get(request, 0));
        assert_span(row, row->requests[i].continuation, json_array_get(request, 1));
    }
}

static void texts_of_rows_are_those_of_lm_eval(void **state) {
    (void)state;
    for (int t = 0; t < task_count; t++) {
        char name[64];
        snprintf(name, sizeof name, "%s.jsonl", task_list[t].name);
        struct strbuf text = read_golden(name);
        struct task_row row = {0};
        int rows = 0;
        for (char *at = text.data, *end; (end = strchr(at, '\n')); at = end + 1, rows++) {
            json_t *line = json_loadb(at, (size_t)(end - at), 0, NULL);
            compare_row(&task_list[t], line, &row);
            json_decref(line);
        }
        assert_true(rows >= 60);
        task_row_free(&row);
        strbuf_free(&text);
    }
}

/* ---- faulty rows ---- */

static void assert_refused(const char *name, const char *object, const char *message) {
    struct task_row row = {0};
    json_t *root = json_loads(object, 0, NULL);
    test_fails(task_find(name, strlen(name))->build(root, &row), STATUS_INVALID, message);
    json_decref(root);
    task_row_free(&row);
}

static void a_faulty_field_is_named(void **state) {
    (void)state;
    assert_refused("hellaswag", "{\"activity_label\":\"a\",\"ctx_b\":\"\",\"endings\":[\"x\"],\"label\":\"0\"}",
                   "\"ctx_a\": expected a text");
    assert_refused("hellaswag",
                   "{\"activity_label\":\"a\",\"ctx_a\":\"\",\"ctx_b\":\"\",\"endings\":[\"x\",1],\"label\":\"0\"}",
                   "\"endings\": expected a list of at least 1 texts");
    assert_refused("hellaswag",
                   "{\"activity_label\":\"a\",\"ctx_a\":\"\",\"ctx_b\":\"\",\"endings\":[\"x\"],\"label\":\"1\"}",
                   "\"label\": expected a number from 0 to 0");
    assert_refused("hellaswag",
                   "{\"activity_label\":\"a\",\"ctx_a\":\"\",\"ctx_b\":\"\",\"endings\":[\"x\"],\"label\":\"\"}",
                   "\"label\": expected a number from 0 to 0");
    assert_refused("piqa", "{\"goal\":\"g\",\"sol1\":\"a\",\"sol2\":\"b\",\"label\":2}",
                   "\"label\": expected a number from 0 to 1");
    assert_refused("piqa", "{\"goal\":\"g\",\"sol1\":\"a\",\"label\":0}", "\"sol2\": expected a text");
    assert_refused("winogrande", "{\"sentence\":\"none\",\"option1\":\"a\",\"option2\":\"b\",\"answer\":\"1\"}",
                   "\"sentence\": expected a text with \"_\"");
    assert_refused("winogrande", "{\"sentence\":\"_\",\"option1\":\"a\",\"option2\":\"b\",\"answer\":\"3\"}",
                   "\"answer\": expected \"1\" or \"2\"");
    assert_refused("boolq", "{\"passage\":\"p\",\"question\":\"q\",\"label\":true}", "\"label\": expected a number");
    assert_refused("arc_easy", "{\"question\":\"q\",\"answerKey\":\"A\"}", "\"choices\": expected an object");
    assert_refused("arc_easy",
                   "{\"question\":\"q\",\"answerKey\":\"E\",\"choices\":{\"text\":[\"a\"],\"label\":[\"A\"]}}",
                   "\"answerKey\": expected one of the labels");
    assert_refused("race", "{\"article\":\"a\",\"problems\":\"[{'question': f()}]\"}",
                   "\"problems\": byte 14: expected");
    assert_refused("race", "{\"article\":\"a\",\"problems\":\"[]\"}", "\"problems\": expected a list");
    assert_refused(
        "race",
        "{\"article\":\"a\",\"problems\":\"[{'question': 'q', 'answer': 'E', 'options': ['a', 'b', 'c', 'd']}]\"}",
        "\"problems\": expected a list");
    assert_refused("choice", "{\"context\":[\"a\"],\"choices\":[\"b\",\"c\"],\"gold\":0}",
                   "\"context\": expected one text for each choice");
    assert_refused("choice", "{\"context\":\"a\",\"choices\":[],\"gold\":0}", "\"choices\": expected a list");
    assert_refused("choice", "{\"context\":\"a\",\"choices\":[\"b\"],\"gold\":-1}", "\"gold\": expected a number");
    assert_refused("wikitext", "{\"text\":\"a\"}", "\"page\": expected a text");
    assert_refused("text", "{\"text\":[]}", "\"text\": expected a text");
    assert_refused("lambada_openai", "{}", "\"text\": expected a text");
}

static void each_choice_may_have_its_own_context(void **state) {
    (void)state;
    struct task_row row = {0};
    json_t *root = json_loads("{\"context\":[\"one\",\"two\"],\"choices\":[\" \\u00e9\",\"b\"],\"gold\":1}", 0, NULL),
           *texts = json_loads("[\"one\",\" \\u00e9\",\"two\",\"b\"]", 0, NULL);
    test_ok(task_find("choice", 6)->build(root, &row));
    for (int i = 0; i < 2; i++) {
        assert_span(&row, row.requests[i].context, json_array_get(texts, 2 * (size_t)i));
        assert_span(&row, row.requests[i].continuation, json_array_get(texts, 2 * (size_t)i + 1));
    }
    assert_int_equal(row.requests[0].characters, 2);
    assert_int_equal(row.gold, 1);
    json_decref(root);
    json_decref(texts);
    task_row_free(&row);
}

/* ---- literals ---- */

static void literals_are_those_of_python(void **state) {
    (void)state;
    struct strbuf text = read_golden("strings.json");
    json_t *root = json_loads(strbuf_text(&text), JSON_ALLOW_NUL, NULL), *one, *value;
    size_t i, refused = 0;
    json_array_foreach(json_object_get(root, "literals"), i, one) {
        const json_t *source = json_object_get(one, "text"), *expected = json_object_get(one, "value");
        int status = python_literal_read(json_string_value(source), json_string_length(source), &value);
        bool is_right = json_is_null(expected) ? status == STATUS_INVALID && !value
                                               : !status && json_equal(value, json_array_get(expected, 0));
        if (!is_right)
            fail_msg("%s: %s", json_string_value(source), status ? status_text() : "another value");
        refused += json_is_null(expected);
        json_decref(value);
    }
    assert_true(refused > 20 && i - refused > 100);
    json_decref(root);
    strbuf_free(&text);
}

static void assert_literal(const char *text, const char *expected) {
    json_t *value, *wanted = json_loads(expected, JSON_DECODE_ANY, NULL);
    test_ok(python_literal_read(text, strlen(text), &value));
    assert_true(json_equal(value, wanted));
    json_decref(value);
    json_decref(wanted);
}

static void a_comma_makes_a_tuple_whatever_follows_it(void **state) {
    (void)state;
    json_t *value;
    assert_literal("('a', # one\n)", "[\"a\"]");
    assert_literal("('a' # no, none\n)", "\"a\"");
    assert_literal("(['a',])", "[\"a\"]");
    test_fails(python_literal_read("1\0", 2, &value), STATUS_INVALID, "byte 1: expected no zero byte");
}

/* ---- metrics ---- */

static void the_first_of_the_likeliest_choices_counts(void **state) {
    (void)state;
    struct task_request requests[] = {{.characters = 4}, {.characters = 1}, {.characters = 0}, {.characters = 4}};
    struct task_row row = {.requests = requests, .count = 4, .gold = 1};
    const struct task_result results[] = {{-2, false}, {-1, true}, {-3, false}, {-1, false}};
    struct task_sums sums = {0};
    const struct task *task = task_find("piqa", 4);
    task_sums_add(&sums, task, &row, results);
    assert_true(task_sums_value(&sums, TASK_ACC) == 1);      /* not the last one */
    assert_true(task_sums_value(&sums, TASK_ACC_NORM) == 0); /* -1/4 of the last one */
    assert_true(isnan(task_sums_error(&sums, TASK_ACC)));
    row.gold = 0;
    task_sums_add(&sums, task, &row, results);
    task_sums_add(&sums, task, &row, results);
    assert_true(fabs(task_sums_value(&sums, TASK_ACC) - 1. / 3) < 1e-15);
    assert_true(fabs(task_sums_error(&sums, TASK_ACC) - 1. / 3) < 1e-15); /* deviation sqrt(1/3), over sqrt(3) */
}

static void perplexities_are_of_all_words_and_bytes(void **state) {
    (void)state;
    struct task_request request = {.characters = 0};
    struct task_row row = {.requests = &request, .count = 1, .words = 3, .bytes = 10};
    struct task_sums sums = {0};
    const struct task *task = task_find("text", 4);
    task_sums_add(&sums, task, &row, &(struct task_result){-4, false});
    row.words = 1;
    row.bytes = 6;
    task_sums_add(&sums, task, &row, &(struct task_result){-8, false});
    assert_true(fabs(task_sums_value(&sums, TASK_WORD_PERPLEXITY) - exp(3)) < 1e-12);
    assert_true(fabs(task_sums_value(&sums, TASK_BYTE_PERPLEXITY) - exp(12. / 16)) < 1e-14);
    assert_true(fabs(task_sums_value(&sums, TASK_BITS_PER_BYTE) - 12. / 16 / log(2)) < 1e-14);
    assert_true(fabs(task_sums_value(&sums, TASK_PERPLEXITY) - exp(6)) < 1e-11);
    assert_false(isfinite(task_sums_value(&(struct task_sums){0}, TASK_ACC)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_of_rows_are_those_of_lm_eval),
        cmocka_unit_test(a_faulty_field_is_named),
        cmocka_unit_test(each_choice_may_have_its_own_context),
        cmocka_unit_test(literals_are_those_of_python),
        cmocka_unit_test(a_comma_makes_a_tuple_whatever_follows_it),
        cmocka_unit_test(the_first_of_the_likeliest_choices_counts),
        cmocka_unit_test(perplexities_are_of_all_words_and_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
