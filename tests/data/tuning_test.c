/* Tuning rows: which tokens are trained, exactly; templates; what is cut and left out; what is refused. */
#include "tuning_files.h"

/* ---- forms ---- */

static void answers_and_their_ends_are_trained(void **state) {
    (void)state;
    struct tuning_options options = options_of(NULL, 0);
    check_rows("{\"prompt\": \"Q: \", \"completion\": \" yes \"}\n"
               "\n  \r\n"
               "{\"input\": \" Q: \", \"output\": \" yes \", \"id\": 7}\r\n"
               "{\"input\": \"\", \"output\": \"no\"}\n"
               "{\"text\": \"abc\"}\n"
               "{\"prompt\": \"<|endoftext|>\", \"completion\": \"b<|endoftext|>\"}",
               options, ROWS("Q: [ yes $]", "Q:[ yes$]", " [no$]", "a[bc$]", "$[b$]"));
}

static void names_of_special_tokens_are_tokens_or_text(void **state) {
    (void)state;
    struct tuning_options options = options_of(NULL, 0);
    options.tokenizer = marks;
    options.template = "chatml";
    const char *rows = "{\"text\": \"<|im_start|>a<|im_end|>\"}\n"
                       "{\"prompt\": \"<|im_start|>q<|im_end|>\", \"completion\": \"b<|im_end|>\"}\n"
                       "{\"input\": \"<|im_start|>\", \"output\": \"<|im_end|>\"}\n"
                       "{\"instruction\": \"<|im_end|>\", \"output\": \"b\"}\n";
    check_rows(rows, options, ROWS("<[a>$]", "<q>[b>$]", "<[ >$]", "<user\n<|im_end|>>\n<assistant\n[b>$]"));
    options.special_tokens = SPECIAL_TOKENS_TEXT;
    check_rows(rows, options,
               ROWS("<[|im_start|>a<|im_end|>$]", "<|im_start|>q<|im_end|>[b<|im_end|>$]", "<|im_start|>[ <|im_end|>$]",
                    "<user\n<|im_end|>>\n<assistant\n[b>$]"));
}

/* White space may follow it; an end in the prompt is none of the answer. */
static void a_row_that_ends_with_the_end_of_text_gets_no_second_one(void **state) {
    (void)state;
    struct tuning_options options = options_of(NULL, 0);
    check_rows("{\"text\": \"ab<|endoftext|>\"}\n"
               "{\"text\": \"ab<|endoftext|>\\r\\n \"}\n"
               "{\"text\": \"a<|endoftext|>b\"}\n"
               "{\"prompt\": \"a\", \"completion\": \"<|endoftext|>\\n\"}\n"
               "{\"prompt\": \"a<|endoftext|>\", \"completion\": \"\\n\"}\n",
               options, ROWS("a[b$]", "a[b$\r\n ]", "a[$b$]", "a[$\n]", "a$[\n$]"));
    options.tokenizer = marks;
    check_rows("{\"text\": \"ab<|im_end|>\\n\"}\n", options, ROWS("a[b>\n$]"));
    options.ends = (const int32_t[]){256, 258}; /* generators stop at this one, too */
    options.end_count = 2;
    check_rows("{\"text\": \"ab<|im_end|>\\n\"}\n", options, ROWS("a[b>\n]"));
    options.special_tokens = SPECIAL_TOKENS_TEXT;
    check_rows("{\"text\": \"ab<|endoftext|>\"}\n", options, ROWS("a[b<|endoftext|>$]"));
}

/* Also where rows are packed; a row of weight 0 is left out. */
static void a_rows_weight_is_that_of_its_losses(void **state) {
    (void)state;
    static const float expected[] = {0.25f, 0.25f, 0, 1, 1, 3e38f, 3e38f, 1, 1, 1, 1};
    char *path = write_file("rows.jsonl", "{\"text\": \"ab\", \"weight\": 0.25}\n"
                                          "{\"text\": \"no\", \"weight\": 0}\n"
                                          "{\"prompt\": \"ab\", \"completion\": \"c\", \"weight\": null}\n"
                                          "{\"text\": \"ab\", \"weight\": 3e38}\n"
                                          "{\"text\": \"ab\", \"weight\": 1, \"weights\": null}\n{\"text\": \"ab\"}\n");
    const char *paths[] = {path};
    struct tuning_options options = options_of(NULL, 0);
    struct tuning_file_count count;
    struct tuning_data *data;
    struct gpt_batch batch;
    options.valid = (struct config_list){paths, 1};
    options.is_packed = true;
    test_ok(tuning_data_open(&options, &data));
    test_ok(gpt_batch_init(&batch, 1, options.seq_length));
    test_ok(tuning_batch_read(&batch, data, SPLIT_VALID, 0));
    assert_int_equal(batch.rows, sizeof expected / sizeof *expected);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        assert_true(batch.loss_mask[i] == expected[i]);
    assert_true(tuning_data_weight(data, SPLIT_VALID, 0) == 0.25);
    assert_true(tuning_data_file(data, 0, &count));
    assert_int_equal(count.empty, 1);
    assert_int_equal(count.weightless, 1);
    gpt_batch_free(&batch);
    tuning_data_close(data);
    free(path);
}

/* Such a tokenizer is asked for them; what a template has made stands for itself. */
static void tokens_before_every_text_stand_before_rows_without_a_template(void **state) {
    (void)state;
    struct tuning_options options = options_of(NULL, 0);
    struct tokenizer *beginning;
    char *folder = path_of("beginning");
    test_ok(tokenizer_save(bytes, folder));
    char *json = path_of("beginning/tokenizer.json");
    assert_int_equal(unlink(json), 0);
    write_into("beginning", "added_tokens.json", "{\"<|im_start|>\": 257}");
    write_into("beginning", "tokenizer_config.json",
               "{\"eos_token\": \"<|endoftext|>\", \"bos_token\": \"<|im_start|>\", \"add_bos_token\": true, "
               "\"add_eos_token\": true}");
    test_ok(tokenizer_open(folder, &beginning));
    options.tokenizer = beginning;
    options.template = "plain";
    check_rows("{\"prompt\": \"Q:\", \"completion\": \"yes\"}\n"
               "{\"input\": \"Q:\", \"output\": \"yes\"}\n"
               "{\"text\": \"abc\"}\n"
               "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": "
               "\"b\"}]}\n"
               "{\"instruction\": \"a\", \"output\": \"b\"}",
               options, ROWS("<Q:[yes$]", "<Q:[ yes$]", "<[abc$]", "a\n[b$]", "a\n[b$]"));
    tokenizer_close(beginning);
    free(json);
    free(folder);
}

/* The ids are those of the whole; the first token that reaches into the answer is trained. */
static void a_row_is_encoded_at_once(void **state) {
    (void)state;
    static const struct {
        const char *row, *text;
        size_t boundary; /* bytes before the answer */
    } cases[] = {
        {"{\"prompt\": \" th\", \"completion\": \"e cat\"}", " the cat", 3}, /* one token over the joint */
        {"{\"prompt\": \"the \", \"completion\": \"cat\"}", "the cat", 4},
        {"{\"prompt\": \"the\", \"completion\": \" cat\"}", "the cat", 3},
        {"{\"input\": \"the \", \"output\": \" cat\"}", "the cat", 3},
    };
    struct tokenizer *small;
    struct tokenizer_encoder *encoder;
    test_ok(tokenizer_open(TEST_DATA "/text/golden/small", &small));
    test_ok(tokenizer_encoder_new(small, &encoder));
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct token_buffer ids = TOKEN_BUFFER_INIT;
        char *path = write_file("rows.jsonl", cases[c].row);
        const char *paths[] = {path};
        struct tuning_options options = options_of(paths, 1);
        struct tuning_data *data;
        int32_t *tokens;
        bool *trained;
        int64_t count;
        size_t at = 0;
        test_ok(tokenizer_encode(encoder, cases[c].text, strlen(cases[c].text), TOKENIZER_PLAIN, &ids));
        test_ok(token_buffer_add(&ids, tokenizer_eos_id(small)));
        options.tokenizer = small;
        options.vocab_size = 900;
        test_ok(tuning_data_open(&options, &data));
        assert_int_equal(tuning_data_eos(data), tokenizer_eos_id(small));
        test_ok(tuning_data_row(data, SPLIT_TRAIN, 0, &tokens, &trained, &count));
        assert_int_equal(count, ids.count);
        assert_memory_equal(tokens, ids.ids, ids.count * sizeof *tokens);
        for (size_t i = 0; i < ids.count; i++) {
            size_t length;
            tokenizer_token_bytes(small, ids.ids[i], &length);
            assert_int_equal(trained[i], at + length > cases[c].boundary);
            at += length;
        }
        free(tokens);
        free(trained);
        tuning_data_close(data);
        free(path);
        token_buffer_free(&ids);
    }
    tokenizer_encoder_free(encoder);
    tokenizer_close(small);
}

static void whole_texts_are_trained_on_request(void **state) {
    (void)state;
    struct tuning_options options = options_of(NULL, 0);
    options.is_whole_text = true;
    options.template = "plain";
    check_rows("{\"prompt\": \"Q:\", \"completion\": \"yes\"}\n"
               "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": "
               "\"b\"}, {\"role\": \"user\", \"content\": \"c\"}]}",
               options, ROWS("Q[:yes$]", "a[\nb$c\n]"));
    options.virtual_tokens = 1;
    check_rows("{\"prompt\": \"Q:\", \"completion\": \"yes\"}", options, ROWS("~[Q:yes$]"));
}

#define TURN(role, content) "{\"role\": \"" role "\", \"content\": \"" content "\"}"
#define TALK                                                                                                           \
    "{\"messages\": [" TURN("system", "s") ", " TURN("user", "a") ", " TURN("assistant", "b") ", " TURN(               \
        "user", "<|im_end|>") ", " TURN("assistant", "d") "]}\n"
#define TALK_OF_USER      "{\"messages\": [" TURN("user", "a") ", " TURN("assistant", "b") ", " TURN("user", "c") "]}\n"
#define INSTRUCTION       "{\"instruction\": \"i\", \"input\": \"j\", \"output\": \"o\"}\n"
#define INSTRUCTION_ALONE "{\"instruction\": \"i\", \"input\": null, \"output\": \"o\"}\n"
#define ALPACA                                                                                                         \
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
#define ALPACA_INPUT                                                                                                   \
    "Below is an instruction that describes a task, paired with an input that provides further context. Write a "      \
    "response that appropriately completes the request.\n\n### Instruction:\ni\n\n### Input:\nj\n\n### Response:\n"

static void chatml_marks_turns_and_trains_all_answers(void **state) {
    (void)state;
    struct tuning_options options = options_of(NULL, 0);
    options.template = "chatml";
    options.tokenizer = marks;
    check_rows(TALK TALK_OF_USER INSTRUCTION, options,
               ROWS("<system\ns>\n<user\na>\n<assistant\n[b>]\n<user\n<|im_end|>>\n<assistant\n[d>$]",
                    "<user\na>\n<assistant\n[b>]", "<user\ni\nj>\n<assistant\n[o>$]"));
    options.tokenizer = bytes; /* the marks are ordinary text there */
    check_rows(TALK_OF_USER, options, ROWS("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>]"));
}

static void an_end_of_turn_that_is_the_end_of_text_stands_once(void **state) {
    (void)state;
    struct tuning_options options = options_of(NULL, 0);
    struct tokenizer *own;
    char *folder = path_of("own");
    test_ok(tokenizer_save(marks, folder));
    char *json = path_of("own/tokenizer.json");
    assert_int_equal(unlink(json), 0);
    write_into("own", "added_tokens.json", "{\"<|im_start|>\": 257, \"<|im_end|>\": 258}");
    write_into("own", "tokenizer_config.json",
               "{\"eos_token\": \"<|im_end|>\", \"added_tokens_decoder\": {\"257\": {\"content\": \"<|im_start|>\", "
               "\"special\": true}, \"258\": {\"content\": \"<|im_end|>\", \"special\": true}}}");
    test_ok(tokenizer_open(folder, &own));
    options.tokenizer = own;
    options.template = "chatml";
    check_rows(INSTRUCTION_ALONE, options, ROWS("<user\ni>\n<assistant\n[o>]"));
    tokenizer_close(own);
    free(json);
    free(folder);
}

static void alpaca_is_stanfords_prompt(void **state) {
    (void)state;
    struct tuning_options options = options_of(NULL, 0); /* instructions need no name */
    check_rows(INSTRUCTION INSTRUCTION_ALONE, options,
               ROWS(ALPACA_INPUT "[o$]", ALPACA "### Instruction:\ni\n\n### Response:\n[o$]"));
    options.template = "alpaca";
    check_rows(TALK TALK_OF_USER, options,
               ROWS("s\n\n### Instruction:\na\n\n### Response:\n[b$]\n\n### Instruction:\n<|im_end|>\n\n### "
                    "Response:\n[d$]",
                    ALPACA "### Instruction:\na\n\n### Response:\n[b$]"));
}

static void plain_has_lines_alone(void **state) {
    (void)state;
    struct tuning_options options = options_of(NULL, 0);
    options.template = "plain";
    check_rows(TALK TALK_OF_USER INSTRUCTION, options, ROWS("s\na\n[b$]<|im_end|>\n[d$]", "a\n[b$]", "i\nj\n[o$]"));
}

static void read_again(const char *folder, struct tokenizer_files *files) {
    tokenizer_files_free(files);
    test_ok(tokenizer_files_read(folder, files));
}

/* The tokenizer's own template is used, and refused where it cannot be. */
static void the_tokenizers_own_template_is_used_or_refused(void **state) {
    (void)state;
    char *path = write_file("rows.jsonl", TALK_OF_USER), *folder = path_of("template");
    const char *paths[] = {path};
    struct tuning_options options = options_of(paths, 1);
    struct tuning_data *data;
    struct tokenizer_files files;
    test_ok(file_make_directories(folder));
    test_fails(tuning_data_open(&options, &data), STATUS_UNSUPPORTED, "rows.jsonl:1: messages need a chat templ");
    test_ok(tokenizer_files_read(folder, &files));
    options.tokenizer_files = &files;
    test_fails(tuning_data_open(&options, &data), STATUS_UNSUPPORTED, "name chatml, alpaca, plain or a file");
    check_rows(INSTRUCTION, options, ROWS(ALPACA_INPUT "[o$]")); /* needs none of the tokenizer */
    write_into("template", "tokenizer_config.json", "{\"chat_template\": \"{{ messages[0] }\"}");
    read_again(folder, &files);
    test_fails(tuning_data_open(&options, &data), STATUS_INVALID,
               "template/tokenizer_config.json: chat_template: line 1: ");
    write_into("template", "tokenizer_config.json",
               "{\"chat_template\": [{\"name\": \"tools\", \"template\": \"x\"}, {\"name\": \"default\", \"template\": "
               "\"{% for message in messages %}{{ message['role'] + ':' + message['content'] + ';\\n' }}{% endfor %}"
               "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}\"}]}");
    read_again(folder, &files);
    check_rows(TALK_OF_USER, options, ROWS("user:a;\nassistant:[b;]"));
    test_ok(tuning_data_open(&options, &data));
    assert_string_equal(chat_template_name(tuning_data_template(data)), "");
    assert_non_null(strstr(strbuf_text(chat_template_text(tuning_data_template(data))), "':'"));
    tuning_data_close(data);
    struct chat_template *plain;
    test_ok(chat_template_open_named("plain", &plain));
    write_into("template", "chat_template.jinja", strbuf_text(chat_template_text(plain)));
    chat_template_close(plain);
    read_again(folder, &files);
    check_rows(TALK_OF_USER INSTRUCTION, options, ROWS("a\n[b$]", "i\nj\n[o$]"));
    write_into("template", "chat_template.jinja", "{{ messages[0].content }}");
    read_again(folder, &files);
    test_fails(tuning_data_open(&options, &data), STATUS_INVALID, "none with an answer within");
    options.template = "plain"; /* a name decides */
    check_rows(TALK_OF_USER, options, ROWS("a\n[b$]"));
    tokenizer_files_free(&files);
    free(folder);
    free(path);
}

/* A template that writes earlier answers differently: all of them cannot be trained, the last one can. */
static void answers_that_change_are_refused_or_the_last_one_is_trained(void **state) {
    (void)state;
    char *jinja = path_of("last.jinja");
    const char *text = "{% for m in messages %}{{ m.role[0] }}{{ m.content if loop.last or m.role == 'user' else '-' }}"
                       "{% endfor %}{% if add_generation_prompt %}a{% endif %}";
    const char *rows =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"assistant\", \"content\": "
        "\"y\"}, {\"role\": \"user\", \"content\": \"z\"}, {\"role\": \"assistant\", \"content\": "
        "\"w\"}]}";
    test_ok(file_write_atomic(jinja, text, strlen(text)));
    char *path = write_file("rows.jsonl", rows);
    const char *paths[] = {path};
    struct tuning_options options = options_of(paths, 1);
    struct tuning_data *data;
    options.template = jinja;
    test_fails(tuning_data_open(&options, &data), STATUS_UNSUPPORTED,
               "rows.jsonl:1: the chat template writes answer 2 differently");
    test_fails(tuning_data_open(&options, &data), STATUS_UNSUPPORTED, "set data.answers to last");
    options.answers = CHAT_ANSWERS_LAST;
    check_rows(rows, options, ROWS("uxa-uza[w$]"));
    free(jinja);
    free(path);
}

/* ---- lengths ---- */

static void rows_are_cut_at_the_side_that_is_asked_for(void **state) {
    (void)state;
    struct tuning_options options = options_of(NULL, 0);
    options.seq_length = 6;
    const char *rows = "{\"prompt\": \"123\", \"completion\": \"ab\"}\n"
                       "{\"prompt\": \"123\", \"completion\": \"abcd\"}\n";
    check_rows(rows, options, ROWS("123[ab$]", "123[abc]"));
    options.truncation = TUNING_TRUNCATE_LEFT;
    check_rows(rows, options, ROWS("123[ab$]", "3[abcd$]"));
    options.virtual_tokens = 2;
    check_rows(rows, options, ROWS("~~3[ab$]", "~~[bcd$]"));
    options.virtual_tokens = 0;
    options.first_position = 2;
    check_rows(rows, options, ROWS("3[ab$]", "b[cd$]"));
    options.truncation = TUNING_TRUNCATE_RIGHT;
    check_rows(rows, options, ROWS("123[a]", "123[a]"));
}

static void the_last_virtual_token_predicts_the_first_one(void **state) {
    (void)state;
    struct gpt_batch batch;
    struct tuning_options options = options_of(NULL, 0);
    options.virtual_tokens = 3;
    check_rows("{\"text\": \"ab\"}\n{\"prompt\": \"a\", \"completion\": \"b\"}\n"
               "{\"prompt\": \"\", \"completion\": \"b\"}\n",
               options, ROWS("~~~[ab$]", "~~~a[b$]", "~~~[b$]"));
    char *path = write_file("rows.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}");
    const char *paths[] = {path};
    struct tuning_data *data;
    options.train = (struct config_list){paths, 1};
    test_ok(tuning_data_open(&options, &data));
    test_ok(gpt_batch_init(&batch, 1, options.seq_length));
    test_ok(tuning_batch_read(&batch, data, SPLIT_TRAIN, 0));
    const int32_t a = tokenizer_find(bytes, "a", 1), b = tokenizer_find(bytes, "b", 1);
    const int32_t tokens[] = {VOCAB, VOCAB + 1, VOCAB + 2, a, b}, labels[] = {0, 0, a, b, 256};
    const float mask[] = {0, 0, 0, 1, 1};
    assert_int_equal(batch.rows, 5);
    assert_int_equal(batch.segments, 1);
    for (int32_t i = 0; i < 5; i++) {
        assert_int_equal(batch.tokens[i], tokens[i]);
        assert_int_equal(batch.labels[i], labels[i]);
        assert_true(batch.loss_mask[i] == mask[i]);
        assert_int_equal(batch.positions[i], i);
    }
    tuning_data_close(data);
    options.virtual_tokens = 0; /* a prefix has no rows, and real tokens come after it */
    options.first_position = 3;
    test_ok(tuning_data_open(&options, &data));
    test_ok(tuning_batch_read(&batch, data, SPLIT_TRAIN, 0));
    assert_int_equal(batch.rows, 2);
    assert_int_equal(batch.positions[0], 3);
    assert_int_equal(batch.positions[1], 4);
    assert_int_equal(batch.token[1], 1);
    tuning_data_close(data);
    gpt_batch_free(&batch);
    free(path);
}

/* Returns the output of tuning_data_warn. */
static struct strbuf warnings_of(const struct tuning_data *data) {
    char *path = path_of("warnings.txt");
    struct strbuf text = STRBUF_INIT;
    int before = dup(STDERR_FILENO);
    FILE *file = fopen(path, "wb");
    assert_true(before >= 0 && file && dup2(fileno(file), STDERR_FILENO) >= 0);
    tuning_data_warn(data);
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    close(before);
    fclose(file);
    test_ok(file_read(path, 1 << 20, &text));
    free(path);
    return text;
}

static void earlier_answers_without_an_end_cause_a_warning(void **state) {
    (void)state;
    static const char text[] = "{% for m in messages %}# {{ m.role }}\n{{ m.content }}\n{% endfor %}"
                               "{% if add_generation_prompt %}# assistant\n{% endif %}";
    char *jinja = path_of("headings.jinja"), *path = write_file("rows.jsonl", TALK INSTRUCTION_ALONE);
    const char *paths[] = {path};
    struct tuning_options options = options_of(paths, 1);
    struct tuning_data *data;
    test_ok(file_write_atomic(jinja, text, sizeof text - 1));
    options.template = jinja;
    check_rows(TALK INSTRUCTION_ALONE, options,
               ROWS("# system\ns\n# user\na\n# assistant\n[b]\n# user\n<|im_end|>\n# assistant\n[d$]",
                    "# user\ni\n# assistant\n[o$]"));
    test_ok(tuning_data_open(&options, &data));
    struct strbuf warnings = warnings_of(data);
    assert_non_null(strstr(strbuf_text(&warnings), "rows.jsonl: in 1 of 2 rows the template writes no end"));
    tuning_data_close(data);
    strbuf_free(&warnings);
    free(jinja);
    free(path);
}

static void messages_of_weight_zero_are_not_trained(void **state) {
    (void)state;
    static const char rows[] =
        "{\"messages\": [" TURN("user", "a") ", {\"role\": \"assistant\", \"content\": \"b\", "
                                             "\"weight\": 0}, " TURN("user", "c") ", " TURN("assistant", "d") "]}\n";
    struct tuning_options options = options_of(NULL, 0);
    options.template = "plain";
    check_rows(rows, options, ROWS("a\nb$c\n[d$]"));
    options.is_whole_text = true;
    check_rows(rows, options, ROWS("a[\n]b$[c\nd$]"));
}

static void rows_without_a_loss_are_counted_and_left_out(void **state) {
    (void)state;
    struct tuning_options options = options_of(NULL, 0);
    struct tuning_file_count count;
    struct tuning_data *data;
    options.seq_length = 4;
    options.template = "plain";
    char *path = write_file("rows.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n"
                                          "{\"prompt\": \"a\", \"completion\": \"\"}\n"
                                          "\n"
                                          "{\"prompt\": \"abcdef\", \"completion\": \"b\"}\n"
                                          "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n"
                                          "{\"messages\": []}\n"
                                          "{\"text\": \"\"}\n"
                                          "{\"text\": \"abcdef\"}\n"
                                          "{\"input\": \"a\", \"output\": \"  \"}\n");
    const char *paths[] = {path};
    options.train = (struct config_list){paths, 1};
    test_ok(tuning_data_open(&options, &data));
    assert_true(tuning_data_file(data, 0, &count));
    assert_false(tuning_data_file(data, 1, &count));
    assert_string_equal(count.path, path);
    assert_int_equal(count.rows, 8);
    assert_int_equal(count.empty, 6);
    assert_int_equal(count.truncated, 1);
    assert_int_equal(count.tokens, 3 + 4);
    assert_int_equal(count.trained, 2 + 3);
    const int64_t lines[TUNING_LINES_SHOWN] = {2, 4, 5, 6, 7};
    assert_memory_equal(count.empty_lines, lines, sizeof lines);
    struct strbuf said = warnings_of(data);
    assert_non_null(strstr(said.data,
                           "rows.jsonl: 6 of 8 rows have no answer within 4 tokens and are left out: lines 2, "
                           "4, 5, 6, 7, ...\n"));
    assert_non_null(strstr(said.data, "rows.jsonl: 1 of 8 rows are longer than 4 tokens and are cut\n"));
    strbuf_free(&said);
    assert_int_equal(tuning_data_length(data, SPLIT_TRAIN), 2);
    assert_int_equal(tuning_data_length(data, SPLIT_VALID), 0);
    tuning_data_close(data);
    free(write_file("rows.jsonl", "{\"text\": \"a\"}\n{\"prompt\": \"a\", \"completion\": \"\"}\n"));
    options.seq_length = 3;
    test_ok(tuning_data_open(&options, &data));
    tuning_data_close(data);
    free(write_file("rows.jsonl", "{\"prompt\": \"a\", \"completion\": \"\"}\n"));
    test_fails(tuning_data_open(&options, &data), STATUS_INVALID, "rows.jsonl: 1 rows, none with an answer within 3");
    free(write_file("rows.jsonl", "\n"));
    test_fails(tuning_data_open(&options, &data), STATUS_INVALID, "rows.jsonl: 0 rows");
    free(path);
}

/* ---- bad input ---- */

static void bad_lines_are_refused_with_file_and_line(void **state) {
    (void)state;
    static const struct {
        const char *line, *error;
    } cases[] = {
        {"{\"prompt\": \"a\"", "column 14: bad JSON: "},
        {"{\"text\": \"\xff\"}", "bad JSON: unable to decode byte 0xff"},
        {"[1]", "expected a JSON object {\"input\", \"output\"}"},
        {"\"text\"", "expected a JSON object"},
        {"{}", "no field of a row is here; expected {\"input\", \"output\"}, {\"prompt\""},
        {"{\"question\": \"a\", \"answer\": \"b\"}", "no field of a row is here; expected"},
        {"{\"prompt\": \"a\"}", "the row has no field \"completion\""},
        {"{\"completion\": \"a\"}", "the row has no field \"prompt\""},
        {"{\"input\": \"a\"}", "the row has no field \"output\""},
        {"{\"output\": \"a\"}", "the row has no field \"input\""},
        {"{\"instruction\": \"a\"}", "the row has no field \"output\""},
        {"{\"instruction\": \"a\", \"input\": 1, \"output\": \"b\"}", "field \"input\" is not a string"},
        {"{\"prompt\": [\"a\"], \"completion\": \"b\"}", "field \"prompt\" is not a string"},
        {"{\"text\": null}", "field \"text\" is not a string"},
        {"{\"text\": \"a\", \"prompt\": \"b\", \"completion\": \"c\"}",
         "fields \"prompt\" and \"text\" are of two forms"},
        {"{\"messages\": [], \"output\": \"c\"}", "fields \"messages\" and \"output\" are of two forms"},
        {"{\"instruction\": \"a\", \"output\": \"b\", \"history\": []}", "field \"history\" is not supported"},
        {"{\"conversations\": []}", "field \"conversations\" is not supported"},
        {"{\"text\": \"a\", \"loss_weight\": 1}", "field \"loss_weight\" is not supported"},
        {"{\"text\": \"a\", \"sample_weight\": 1}", "field \"sample_weight\" is not supported"},
        {"{\"messages\": [], \"weights\": [1]}", "field \"weights\" is not supported"},
        {"{\"text\": \"a\", \"train_detail\": []}", "field \"train_detail\" is not supported"},
        {"{\"text\": \"a\", \"weight\": -0.5}", "field \"weight\" is not a number from 0 to 3.40282e+38"},
        {"{\"text\": \"a\", \"weight\": true}", "field \"weight\" is not a number"},
        {"{\"text\": \"a\", \"weight\": \"1\"}", "field \"weight\" is not a number"},
        {"{\"text\": \"a\", \"weight\": NaN}", "field \"weight\" is not a number"},
        {"{\"text\": \"a\", \"weight\": 1e999}", "field \"weight\" is not a number"},
        {"{\"text\": \"a\", \"weight\": 1e39}", "field \"weight\" is not a number"},
        {"{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}",
         "a row of two answers (\"chosen\", \"rejected\") needs --loss dpo"},
        {"{\"chosen\": [], \"rejected\": []}", "a row of two answers (\"chosen\", \"rejected\") needs --loss dpo"},
        {"{\"messages\": {}}", "field \"messages\" is not a list"},
        {"{\"messages\": [1]}", "message 1: expected an object {\"role\", \"content\"}"},
        {"{\"messages\": [" TURN("user", "a") ", {\"role\": \"user\"}]}", "message 2: there is no field \"content\""},
        {"{\"messages\": [{\"role\": \"bot\", \"content\": \"a\"}]}",
         "message 1: \"role\" is none of system, user, as"},
        {"{\"messages\": [" TURN("user", "a") ", " TURN("system", "b") "]}", "message 2: the system's message is not"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": null}]}",
         "message 1: field \"content\" is not a string"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{}]}]}",
         "message 1: field \"tool_calls\": the chat template "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct strbuf text = STRBUF_INIT;
        strbuf_format(&text, "{\"text\": \"fine\"}\n\n%s\n{\"text\": \"fine\"}\n", cases[i].line);
        char *path = write_file("bad.jsonl", text.data);
        const char *paths[] = {path};
        struct tuning_options options = options_of(paths, 1);
        struct tuning_data *data;
        options.template = "plain";
        test_fails(tuning_data_open(&options, &data), STATUS_INVALID, "bad.jsonl:3: ");
        assert_null(data);
        if (!strstr(status_text(), cases[i].error))
            fail_msg("'%s' is not in '%s'", cases[i].error, status_text());
        assert_null(strchr(status_text(), '\n'));
        strbuf_free(&text);
        free(path);
    }
}

static void long_lines_and_deep_nesting_are_refused(void **state) {
    (void)state;
    struct strbuf text = STRBUF_INIT;
    char *path = path_of("bad.jsonl");
    const char *paths[] = {path};
    struct tuning_options options = options_of(paths, 1);
    struct tuning_data *data;
    strbuf_add_text(&text, "{\"text\": \"a\"}\n{\"text\": ");
    for (int i = 0; i < 100000; i++)
        strbuf_add_char(&text, '[');
    free(write_file("bad.jsonl", text.data));
    test_fails(tuning_data_open(&options, &data), STATUS_INVALID, "bad.jsonl:2: column ");
    while (text.length < (1 << 24) + 100)
        strbuf_add_text(&text,
                        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    free(write_file("bad.jsonl", text.data));
    test_fails(tuning_data_open(&options, &data), STATUS_INVALID,
               "bad.jsonl:2: longer than the 16777216 bytes that a row may have");
    strbuf_free(&text);
    free(path);
}

static void options_that_cannot_be_are_refused(void **state) {
    (void)state;
    char *path = write_file("rows.jsonl", "{\"prompt\": \"a\", \"completion\": \"\xc3\xa9\"}\n");
    const char *paths[] = {path}, *missing[] = {"/nowhere/rows.jsonl"}, *folder[] = {directory};
    struct tuning_options good = options_of(paths, 1), options = good;
    struct tuning_data *data;
    options.train.count = 0;
    test_fails(tuning_data_open(&options, &data), STATUS_USAGE, "no file of rows");
    options = good;
    options.seq_length = options.virtual_tokens = 20;
    test_fails(tuning_data_open(&options, &data), STATUS_USAGE,
               "num_virtual_tokens 20 leaves no place for a text in a seq");
    options.virtual_tokens = INT64_MAX;
    test_fails(tuning_data_open(&options, &data), STATUS_USAGE, "leaves no place");
    options = good;
    options.first_position = 999;
    test_fails(tuning_data_open(&options, &data), STATUS_USAGE, "num_virtual_tokens 999 leaves no place");
    options = good;
    options.vocab_size = 256;
    test_fails(tuning_data_open(&options, &data), STATUS_INVALID, "no end-of-text");
    options = good;
    options.train.items = missing;
    test_fails(tuning_data_open(&options, &data), STATUS_IO, "/nowhere/rows.jsonl");
    options.train.items = folder;
    test_fails(tuning_data_open(&options, &data), STATUS_INVALID, "is a directory");
    options = good;
    options.tokenizer = marks;
    options.vocab_size = 257;
    options.template = "chatml";
    free(write_file("rows.jsonl", TALK_OF_USER));
    test_fails(tuning_data_open(&options, &data), STATUS_INVALID,
               "rows.jsonl:1: token 257 is outside the model's vocabulary of 257");
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_and_their_ends_are_trained),
        cmocka_unit_test(names_of_special_tokens_are_tokens_or_text),
        cmocka_unit_test(a_row_that_ends_with_the_end_of_text_gets_no_second_one),
        cmocka_unit_test(a_rows_weight_is_that_of_its_losses),
        cmocka_unit_test(tokens_before_every_text_stand_before_rows_without_a_template),
        cmocka_unit_test(a_row_is_encoded_at_once),
        cmocka_unit_test(whole_texts_are_trained_on_request),
        cmocka_unit_test(chatml_marks_turns_and_trains_all_answers),
        cmocka_unit_test(an_end_of_turn_that_is_the_end_of_text_stands_once),
        cmocka_unit_test(alpaca_is_stanfords_prompt),
        cmocka_unit_test(plain_has_lines_alone),
        cmocka_unit_test(the_tokenizers_own_template_is_used_or_refused),
        cmocka_unit_test(answers_that_change_are_refused_or_the_last_one_is_trained),
        cmocka_unit_test(rows_are_cut_at_the_side_that_is_asked_for),
        cmocka_unit_test(the_last_virtual_token_predicts_the_first_one),
        cmocka_unit_test(earlier_answers_without_an_end_cause_a_warning),
        cmocka_unit_test(messages_of_weight_zero_are_not_trained),
        cmocka_unit_test(rows_without_a_loss_are_counted_and_left_out),
        cmocka_unit_test(bad_lines_are_refused_with_file_and_line),
        cmocka_unit_test(long_lines_and_deep_nesting_are_refused),
        cmocka_unit_test(options_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, make_tokenizers, free_tokenizers);
}
