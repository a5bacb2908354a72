/* Rows for losses of preferences: their forms, their batches, and what is refused. */
#include "data/tuning_files.h"

static struct tuning_options preferences(const char **path, enum tuning_form form) {
    struct tuning_options options = options_of(path, 1);
    options.valid = options.train;
    options.train = (struct config_list){0};
    options.form = form;
    options.template = "plain";
    return options;
}

/* Shows all rows in order; `view`: NULL for that of the options. */
static char *show(const struct tuning_options *options, const struct tuning_view *view) {
    struct tuning_data *data;
    struct gpt_batch batch;
    test_ok(tuning_data_open(options, &data));
    int64_t count = tuning_data_length(data, SPLIT_VALID);
    test_ok(gpt_batch_init(&batch, count, tuning_sample_rows(options->form, options->seq_length)));
    if (view)
        test_ok(tuning_batch_view(&batch, data, SPLIT_VALID, 0, view));
    else
        test_ok(tuning_batch_read(&batch, data, SPLIT_VALID, 0));
    assert_int_equal(batch.padding, 0);
    char *text = show_segments(&batch, 0, batch.segments);
    gpt_batch_free(&batch);
    tuning_data_close(data);
    return text;
}

static void expect(const char *lines, const struct tuning_options *asked, const struct tuning_view *view,
                   const char *expected) {
    char *path = write_file("preferences.jsonl", lines);
    struct tuning_options options = *asked;
    options.valid = (struct config_list){.items = (const char **)&path, .count = 1};
    char *found = show(&options, view);
    assert_string_equal(found, expected);
    free(found);
    free(path);
}

#define USER(text)      "{\"role\": \"user\", \"content\": \"" text "\"}"
#define ASSISTANT(text) "{\"role\": \"assistant\", \"content\": \"" text "\"}"

static void pairs_have_the_forms_of_trl_and_openai(void **state) {
    (void)state;
    const struct tuning_options options = preferences(NULL, TUNING_PAIRS);
    expect("{\"prompt\": \"ab\", \"chosen\": \"cd\", \"rejected\": \"e\"}\n", &options, NULL, "ab[cd$] | ab{e$}");
    expect("{\"prompt\": [" USER("a") "], \"chosen\": [" ASSISTANT("b") "], \"rejected\": [" ASSISTANT("c") "]}",
           &options, NULL, "a\n[b$] | a\n{c$}");
    expect("{\"chosen\": [" USER("a") ", " ASSISTANT("b") "], \"rejected\": [" USER("a") ", " ASSISTANT("c") "]}",
           &options, NULL, "a\n[b$] | a\n{c$}");
    expect("{\"input\": {\"messages\": [" USER("a") ", " ASSISTANT("x") ", " USER(
               "b") "], \"tools\": []}, "
                    "\"preferred_output\": [" ASSISTANT("c") "], \"non_preferred_output\": [" ASSISTANT("d") "]}",
           &options, NULL, "a\nx$b\n[c$] | a\nx$b\n{d$}");
    /* of several answers, those of the prompt are context */
    expect("{\"prompt\": [" USER("a") ", " ASSISTANT("x") ", " USER("b") "], \"chosen\": [" ASSISTANT("c") ", " USER(
               "d") ", " ASSISTANT("e") "], \"rejected\": [" ASSISTANT("f") "]}",
           &options, NULL, "a\nx$b\n[c$]d\n[e$] | a\nx$b\n{f$}");
}

static void labels_say_which_answers_are_wanted(void **state) {
    (void)state;
    const struct tuning_options options = preferences(NULL, TUNING_LABELS);
    expect("{\"prompt\": \"ab\", \"completion\": \"cd\", \"label\": true}\n"
           "{\"prompt\": [" USER("a") "], \"completion\": [" ASSISTANT("b") "], \"label\": false}\n",
           &options, NULL, "ab[cd$] | a\n{b$}");
}

/* The reference model has other tokens before a text. */
static void a_view_has_its_own_virtual_tokens(void **state) {
    (void)state;
    struct tuning_options options = preferences(NULL, TUNING_PAIRS);
    const char *row = "{\"prompt\": \"ab\", \"chosen\": \"cd\", \"rejected\": \"e\"}\n";
    options.virtual_tokens = 3;
    expect(row, &options, NULL, "~~~ab[cd$] | ~~~ab{e$}");
    expect(row, &options, &(const struct tuning_view){0}, "ab[cd$] | ab{e$}");
    expect(row, &options, &(const struct tuning_view){.virtual_tokens = 1}, "~ab[cd$] | ~ab{e$}");
}

static void mismatched_rows_take_the_answer_of_the_next(void **state) {
    (void)state;
    struct tuning_options options = preferences(NULL, TUNING_LABELS);
    const char *rows = "{\"prompt\": \"a\", \"completion\": \"12345\", \"label\": true}\n"
                       "{\"prompt\": \"b\", \"completion\": \"6\", \"label\": false}\n"
                       "{\"prompt\": \"cdef\", \"completion\": \"78\", \"label\": true}\n";
    const struct tuning_view all = {.cycle = 3}, beyond = {.cycle = 5};
    expect(rows, &options, &all, "a[6$] | b{78$} | cdef[12345$]");
    expect(rows, &options, &beyond, "a[6$] | b{78$} | cdef[12345$]");
    options.seq_length = 7; /* the longest row; a mismatched one is cut */
    expect(rows, &options, &all, "a[6$] | b{78$} | cdef[123]");
    options.seq_length = 40;
    options.is_packed = true;
    expect(rows, &options, &all, "a[6$] | b{78} | cdef[123]"); /* no longer than the row itself */
}

static void packs_hold_both_answers_of_a_pair(void **state) {
    (void)state;
    struct tuning_options options = preferences(NULL, TUNING_PAIRS);
    options.seq_length = 8;
    options.is_packed = true;
    const char *rows = "{\"prompt\": \"a\", \"chosen\": \"123\", \"rejected\": \"4\"}\n"
                       "{\"prompt\": \"b\", \"chosen\": \"56\", \"rejected\": \"789\"}\n"
                       "{\"prompt\": \"c\", \"chosen\": \"12\", \"rejected\": \"34\"}\n";
    /* 4 + 2 and 3 + 4 rows fill 13 of 16; the last pair has 6 */
    expect(rows, &options, NULL, "a[123$] | a{4$} | b[56$] | b{789$} | c[12$] | c{34$}");
    char *path = write_file("packs.jsonl", rows);
    struct tuning_data *data;
    options.valid = (struct config_list){.items = (const char **)&path, .count = 1};
    test_ok(tuning_data_open(&options, &data));
    assert_int_equal(tuning_data_length(data, SPLIT_VALID), 2);
    tuning_data_close(data);
    free(path);
}

static void bad_rows_are_refused_with_file_and_line(void **state) {
    (void)state;
    static const struct {
        enum tuning_form form;
        const char *line, *error;
    } cases[] = {
        {TUNING_ANSWERS, "{\"prompt\": \"a\", \"completion\": \"b\", \"label\": false}",
         "an answer that is not wanted (\"label\": false) needs --loss kto"},
        {TUNING_PAIRS, "{\"prompt\": \"a\", \"completion\": \"b\"}", "not a row of two answers; expected {\"prompt\""},
        {TUNING_PAIRS, "{\"prompt\": \"a\", \"chosen\": \"b\"}", "the row has no field \"rejected\""},
        {TUNING_PAIRS, "{\"prompt\": \"a\", \"rejected\": \"b\"}", "the row has no field \"chosen\""},
        {TUNING_PAIRS, "{\"prompt\": \"a\", \"chosen\": 1, \"rejected\": \"b\"}", "field \"chosen\" is neither"},
        {TUNING_PAIRS, "{\"chosen\": \"b\", \"rejected\": \"b\"}", "the prompt of \"chosen\" is neither"},
        {TUNING_PAIRS, "{\"prompt\": [" USER("a") "], \"chosen\": \"b\", \"rejected\": \"c\"}",
         "field \"chosen\" does not end with a message of the assistant"},
        {TUNING_PAIRS, "{\"input\": \"a\", \"preferred_output\": [], \"non_preferred_output\": []}",
         "field \"input\" has no list of \"messages\""},
        {TUNING_PAIRS,
         "{\"input\": {\"messages\": [" USER("a") "]}, \"preferred_output\": [" USER(
             "b") "], "
                  "\"non_preferred_output\": []}",
         "field \"preferred_output\" does not end with"},
        {TUNING_PAIRS, "\"text\"", "expected a JSON object"},
        {TUNING_LABELS, "{\"prompt\": \"a\", \"completion\": \"b\"}", "not a row of an answer with a label"},
        {TUNING_LABELS, "{\"prompt\": \"a\", \"completion\": \"b\", \"label\": 1}", "\"label\" is neither true nor"},
        {TUNING_LABELS, "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}", "expected {\"prompt\", \"compl"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *path = write_file("bad.jsonl", "");
        FILE *file = fopen(path, "wb");
        assert_true(file && fprintf(file, "\n%s\n", cases[i].line) > 0 && fclose(file) == 0);
        struct tuning_options options = preferences((const char **)&path, cases[i].form);
        struct tuning_data *data;
        test_fails(tuning_data_open(&options, &data), STATUS_INVALID, "bad.jsonl:2: ");
        if (!strstr(status_text(), cases[i].error))
            fail_msg("'%s' is not in '%s'", cases[i].error, status_text());
        assert_null(strchr(status_text(), '\n'));
        free(path);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_have_the_forms_of_trl_and_openai),
        cmocka_unit_test(labels_say_which_answers_are_wanted),
        cmocka_unit_test(a_view_has_its_own_virtual_tokens),
        cmocka_unit_test(mismatched_rows_take_the_answer_of_the_next),
        cmocka_unit_test(packs_hold_both_answers_of_a_pair),
        cmocka_unit_test(bad_rows_are_refused_with_file_and_line),
    };
    return cmocka_run_group_tests(tests, make_tokenizers, free_tokenizers);
}
