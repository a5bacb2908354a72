/* Tuning rows: which tokens are trained, exactly; what is cut, packed, shuffled and padded; what is refused.
 *
 * The tokenizer knows the 256 bytes, <|endoftext|> and, where wanted, chatml's two marks, and merges nothing, so that
 * batches can be read as text. Rows are shown as their tokens, "[...]" around those that are trained, "~" for a virtual
 * token, "$" for the end-of-text, "<" and ">" for chatml's marks; segments are separated by " | ". */
#include "data/tuning.h"
#include "text/text.h"

#include "support/allocations.h"
#include "support/test.h"

#include <unistd.h>
#include <zlib.h>

enum { VOCAB = 300 };
static char *directory;
static struct tokenizer *bytes; /* 257 ids */
static struct tokenizer *marks; /* 259 ids, in DIRECTORY/marks */

static char *path_of(const char *name) {
    char *path = NULL;
    assert_true(asprintf(&path, "%s/%s", directory, name) > 0);
    return path;
}

static char *write_file(const char *name, const char *text) {
    char *path = path_of(name);
    FILE *file = fopen(path, "wb");
    assert_true(file && fwrite(text, 1, strlen(text), file) == strlen(text) && fclose(file) == 0);
    return path;
}

static void write_into(const char *folder, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    free(write_file(path, text));
}

static int make_tokenizers(void **state) {
    (void)state;
    directory = test_directory();
    char *corpus = write_file("corpus.txt", "abcd");
    const char *inputs[] = {corpus};
    struct tokenizer_training training = {.inputs = inputs, .input_count = 1, .vocab_size = 257, .threads = 1};
    test_ok(tokenizer_train(&training, &bytes));
    assert_int_equal(tokenizer_vocab_size(bytes), 257);
    char *folder = path_of("marks");
    test_ok(tokenizer_save(bytes, folder));
    char *json = path_of("marks/tokenizer.json");
    assert_int_equal(unlink(json), 0);
    write_into("marks", "added_tokens.json", "{\"<|im_start|>\": 257, \"<|im_end|>\": 258}");
    write_into("marks", "tokenizer_config.json",
               "{\"eos_token\": \"<|endoftext|>\", \"added_tokens_decoder\": {\"257\": {\"content\": \"<|im_start|>\", "
               "\"special\": true}, \"258\": {\"content\": \"<|im_end|>\", \"special\": true}}}");
    test_ok(tokenizer_open(folder, &marks));
    assert_int_equal(tokenizer_find(marks, "<|im_end|>", 10), 258);
    free(corpus);
    free(folder);
    free(json);
    return 0;
}

static int free_tokenizers(void **state) {
    (void)state;
    tokenizer_close(bytes);
    tokenizer_close(marks);
    free(directory);
    return 0;
}

static struct tuning_options options_of(const char **paths, size_t count) {
    return (struct tuning_options){
        .train = {paths, count}, .tokenizer = bytes, .config_eos = -1, .vocab_size = VOCAB, .seq_length = 1000};
}

static void show_token(struct strbuf *out, int32_t id) {
    size_t length;
    const unsigned char *text = id < 256 ? tokenizer_token_bytes(bytes, id, &length) : NULL;
    if (id >= VOCAB)
        strbuf_add_char(out, '~');
    else
        strbuf_add_char(out, text ? (char)*text : id == 256 ? '$' : id == 257 ? '<' : '>');
}

/* Checks what all batches keep, and shows segments [first, last). */
static char *show_segments(const struct gpt_batch *batch, int64_t first, int64_t last) {
    struct strbuf out = STRBUF_INIT;
    assert_int_equal(batch->segment_start[0], 0);
    assert_int_equal(batch->segment_start[batch->segments], batch->rows);
    for (int64_t s = first; s < last; s++) {
        int64_t begin = batch->segment_start[s], end = batch->segment_start[s + 1];
        bool is_open = false;
        assert_true(begin < end);
        if (s > first)
            strbuf_add_text(&out, " | ");
        show_token(&out, batch->tokens[begin]);
        for (int64_t i = begin; i < end; i++) {
            bool is_trained = batch->loss_mask[i] != 0, is_virtual = i + 1 < end && batch->tokens[i + 1] >= VOCAB;
            assert_true(batch->loss_mask[i] == 0 || batch->loss_mask[i] == 1);
            assert_in_range(batch->labels[i], 0, VOCAB - 1);
            if (is_virtual) {
                assert_false(is_trained);
                assert_int_equal(batch->labels[i], 0);
                assert_int_equal(batch->tokens[i + 1], batch->tokens[i] + 1);
            } else if (i + 1 < end) {
                assert_int_equal(batch->labels[i], batch->tokens[i + 1]);
            }
            assert_int_equal(batch->positions[i], batch->positions[begin] + (int32_t)(i - begin));
            if (is_trained != is_open)
                strbuf_add_char(&out, is_trained ? '[' : ']');
            is_open = is_trained;
            show_token(&out, is_virtual ? batch->tokens[i + 1] : batch->labels[i]);
        }
        if (is_open)
            strbuf_add_char(&out, ']');
    }
    test_ok(strbuf_status(&out));
    return out.data;
}

/* Sample k of the validation or training split. */
static char *show_sample(const struct tuning_data *data, enum data_split split, int64_t k, int64_t seq_length) {
    struct gpt_batch batch;
    test_ok(gpt_batch_init(&batch, 1, seq_length));
    test_ok(tuning_batch_read(&batch, data, split, k));
    char *text = show_segments(&batch, 0, batch.segments);
    for (int64_t i = 0; i < batch.rows; i++) {
        assert_int_equal(batch.sample[i], k);
        assert_int_equal(batch.token[i], i);
    }
    gpt_batch_free(&batch);
    return text;
}

/* Validation rows come in order: the file's rows, one after the other. */
static void check_rows(const char *text, struct tuning_options options, const char *const *expected) {
    char *path = write_file("rows.jsonl", text);
    const char *paths[] = {path};
    struct tuning_data *data;
    options.train = options.valid = (struct config_list){paths, 1};
    test_ok(tuning_data_open(&options, &data));
    int64_t count = 0;
    while (expected[count])
        count++;
    assert_int_equal(tuning_data_length(data, SPLIT_VALID), count);
    for (int64_t k = 0; k < count; k++) {
        char *shown = show_sample(data, SPLIT_VALID, k, options.seq_length);
        assert_string_equal(shown, expected[k]);
        free(shown);
    }
    tuning_data_close(data);
    free(path);
}

#define ROWS(...) ((const char *const[]){__VA_ARGS__, NULL})

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
               options, ROWS("Q: [ yes $]", "Q:[ yes$]", " [no$]", "a[bc$]", "<|endoftext|>[b<|endoftext|>$]"));
}

static void pieces_are_tokenized_apart(void **state) {
    (void)state;
    struct tokenizer *small;
    struct tokenizer_encoder *encoder;
    struct token_buffer ids = TOKEN_BUFFER_INIT;
    struct gpt_batch batch;
    test_ok(tokenizer_open(TEST_DATA "/text/golden/small", &small));
    test_ok(tokenizer_encoder_new(small, &encoder));
    /* "th" + "e" are one token of the whole text */
    test_ok(tokenizer_encode(encoder, " th", 3, TOKENIZER_PLAIN, &ids));
    size_t boundary = ids.count;
    test_ok(tokenizer_encode(encoder, "e cat", 5, TOKENIZER_PLAIN, &ids));
    test_ok(token_buffer_add(&ids, tokenizer_eos_id(small)));
    char *path = write_file("rows.jsonl", "{\"prompt\": \" th\", \"completion\": \"e cat\"}");
    const char *paths[] = {path};
    struct tuning_options options = options_of(paths, 1);
    struct tuning_data *data;
    options.tokenizer = small;
    options.vocab_size = 900;
    test_ok(tuning_data_open(&options, &data));
    assert_int_equal(tuning_data_eos(data), tokenizer_eos_id(small));
    test_ok(gpt_batch_init(&batch, 1, options.seq_length));
    test_ok(tuning_batch_read(&batch, data, SPLIT_TRAIN, 0));
    assert_int_equal(batch.rows, ids.count - 1);
    for (size_t i = 0; i + 1 < ids.count; i++) {
        assert_int_equal(batch.tokens[i], ids.ids[i]);
        assert_int_equal(batch.labels[i], ids.ids[i + 1]);
        assert_int_equal((int)batch.loss_mask[i], i + 1 >= boundary);
    }
    gpt_batch_free(&batch);
    tuning_data_close(data);
    free(path);
    token_buffer_free(&ids);
    tokenizer_encoder_free(encoder);
    tokenizer_close(small);
}

static void whole_texts_are_trained_on_request(void **state) {
    (void)state;
    struct tuning_options options = options_of(NULL, 0);
    options.is_whole_text = true;
    options.template_name = TUNING_TEMPLATE_PLAIN;
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
    options.template_name = TUNING_TEMPLATE_CHATML;
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
    options.template_name = TUNING_TEMPLATE_CHATML;
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
    options.template_name = TUNING_TEMPLATE_ALPACA;
    check_rows(TALK TALK_OF_USER, options,
               ROWS("s\n\n### Instruction:\na\n\n### Response:\n[b$]\n\n### Instruction:\n<|im_end|>\n\n### "
                    "Response:\n[d$]",
                    ALPACA "### Instruction:\na\n\n### Response:\n[b$]"));
}

static void plain_has_lines_alone(void **state) {
    (void)state;
    struct tuning_options options = options_of(NULL, 0);
    options.template_name = TUNING_TEMPLATE_PLAIN;
    check_rows(TALK TALK_OF_USER INSTRUCTION, options, ROWS("s\na\n[b$]<|im_end|>\n[d$]", "a\n[b$]", "i\nj\n[o$]"));
}

/* ---- templates of tokenizers ---- */

static void templates_are_recognised_however_they_are_spelled(void **state) {
    (void)state;
    static const char *const chatml[] = {
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
        "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
        "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% for message "
        "in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% "
        "endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
        "{%- for message in messages -%}\n    {{- \"<|im_start|>\" + message.role + \"\n\" + message.content + "
        "\"<|im_end|>\\n\" -}}\n{%- endfor -%}",
        "{# a comment #}{% for message in messages %}\n  {% if true %}{% endif %}",
        "{% for message in messages %}\n<|im_start|>{{ message['role'] }}\n{{ message[\"content\"] }}<|im_end|>\n"
        "{% endfor %}\n",
    };
    for (size_t i = 0; i < sizeof chatml / sizeof *chatml; i++)
        assert_int_equal(tuning_template_recognise(chatml[i], strlen(chatml[i])),
                         i == 3 ? TUNING_TEMPLATE_AUTO : TUNING_TEMPLATE_CHATML);
    for (int t = TUNING_TEMPLATE_AUTO; t < TUNING_TEMPLATE_COUNT; t++) {
        struct strbuf text = STRBUF_INIT;
        tuning_template_write((enum tuning_template)t, &text);
        assert_int_equal(tuning_template_recognise(strbuf_text(&text), text.length), t);
        for (size_t i = 0; i + 1 < text.length; i++) { /* a template cut short is none, or the part without a request */
            enum tuning_template found = tuning_template_recognise(text.data, i);
            assert_true(found == TUNING_TEMPLATE_AUTO || (int)found == t);
        }
        strbuf_free(&text);
    }
    const char *other = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] "
                        "+ '<|im_end|>' }}{% endfor %}";
    assert_int_equal(tuning_template_recognise(other, strlen(other)), TUNING_TEMPLATE_AUTO);
    assert_int_equal(tuning_template_recognise("{{ 'a", 5), TUNING_TEMPLATE_AUTO);
    assert_int_equal(tuning_template_recognise("", 0), TUNING_TEMPLATE_AUTO);
}

/* The tokenizer's own template is used where it is known, and refused by name where not. */
static void the_tokenizers_own_template_is_used_or_refused(void **state) {
    (void)state;
    struct strbuf plain = STRBUF_INIT;
    char *path = write_file("rows.jsonl", TALK_OF_USER), *folder = path_of("template");
    const char *paths[] = {path};
    struct tuning_options options = options_of(paths, 1);
    struct tuning_data *data;
    test_ok(file_make_directories(folder));
    test_fails(tuning_data_open(&options, &data), STATUS_UNSUPPORTED, "rows.jsonl: line 1: messages need a chat templ");
    options.tokenizer_directory = folder;
    test_fails(tuning_data_open(&options, &data), STATUS_UNSUPPORTED, "name chatml, alpaca or plain");
    write_into("template", "tokenizer_config.json", "{\"chat_template\": \"{{ messages[0] }}\"}");
    test_fails(tuning_data_open(&options, &data), STATUS_UNSUPPORTED, "rows.jsonl: line 1: ");
    test_fails(tuning_data_open(&options, &data), STATUS_UNSUPPORTED,
               "template/tokenizer_config.json: the tokenizer's chat_template is none of chatml, alpaca, plain");
    check_rows(INSTRUCTION, options, ROWS(ALPACA_INPUT "[o$]")); /* needs none of the tokenizer */
    write_into("template", "tokenizer_config.json",
               "{\"chat_template\": [{\"name\": \"tools\", \"template\": \"x\"}, {\"name\": \"default\", \"template\": "
               "\"{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\\\n' + message['content'] + "
               "'<|im_end|>\\\\n' }}{% endfor %}\"}]}");
    test_ok(tuning_data_open(&options, &data));
    assert_int_equal(tuning_data_template(data), TUNING_TEMPLATE_CHATML);
    tuning_data_close(data);
    tuning_template_write(TUNING_TEMPLATE_PLAIN, &plain);
    write_into("template", "chat_template.jinja", plain.data);
    check_rows(TALK_OF_USER INSTRUCTION, options, ROWS("a\n[b$]", "i\nj\n[o$]"));
    write_into("template", "chat_template.jinja", "{{ bos_token }}");
    options.template_name = TUNING_TEMPLATE_PLAIN; /* a name decides */
    check_rows(TALK_OF_USER, options, ROWS("a\n[b$]"));
    strbuf_free(&plain);
    free(folder);
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
    options.virtual_tokens = 0; /* a prefix has no rows, and real tokens stand behind it */
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

/* What tuning_data_warn says. */
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

static void rows_without_a_loss_are_counted_and_left_out(void **state) {
    (void)state;
    struct tuning_options options = options_of(NULL, 0);
    struct tuning_file_count count;
    struct tuning_data *data;
    options.seq_length = 4;
    options.template_name = TUNING_TEMPLATE_PLAIN;
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

/* ---- order ---- */

/* A file of `count` rows "p" + number, and what is trained of them. */
static char *numbered_file(const char *name, int64_t first, int64_t count) {
    struct strbuf text = STRBUF_INIT;
    for (int64_t i = 0; i < count; i++)
        strbuf_format(&text, "{\"prompt\": \"p\", \"completion\": \"%lld%.*s\"}\n", (long long)(first + i),
                      (int)((first + i) * 7 % 11), "..........");
    char *path = write_file(name, text.data);
    strbuf_free(&text);
    return path;
}

/* The number of a row that was shown as "p[12...$]", behind virtual tokens. */
static int64_t number_of(const char *shown) {
    const char *digits = strchr(shown, '[');
    assert_non_null(digits);
    return atoll(digits + 1);
}

static int64_t number_at(const struct tuning_data *data, int64_t k, int64_t seq_length) {
    char *shown = show_sample(data, SPLIT_TRAIN, k, seq_length);
    int64_t number = number_of(shown);
    free(shown);
    return number;
}

static void every_epoch_has_each_row_once_in_another_order(void **state) {
    (void)state;
    enum { ROWS_EACH = 37, ROWS_ALL = 2 * ROWS_EACH, EPOCHS = 3 };
    char *a = numbered_file("a.jsonl", 0, ROWS_EACH), *b = numbered_file("b.jsonl", ROWS_EACH, ROWS_EACH);
    const char *paths[] = {a, b};
    struct tuning_options options = options_of(paths, 2);
    struct tuning_data *data, *other;
    int64_t order[EPOCHS][ROWS_ALL];
    int same = 0, same_seed = 0, moved = 0;
    options.epochs = EPOCHS;
    options.seed = 5;
    test_ok(tuning_data_open(&options, &data));
    options.seed = 6;
    test_ok(tuning_data_open(&options, &other));
    assert_int_equal(tuning_data_length(data, SPLIT_TRAIN), EPOCHS * ROWS_ALL);
    assert_int_equal(tuning_data_epoch(data, SPLIT_TRAIN), ROWS_ALL);
    for (int64_t e = 0; e < EPOCHS; e++) {
        bool is_seen[ROWS_ALL] = {false};
        for (int64_t i = 0; i < ROWS_ALL; i++) {
            order[e][i] = number_at(data, e * ROWS_ALL + i, options.seq_length);
            assert_false(is_seen[order[e][i]]);
            is_seen[order[e][i]] = true;
            same += e > 0 && order[e][i] == order[e - 1][i];
            same_seed += number_at(other, e * ROWS_ALL + i, options.seq_length) == order[e][i];
            moved += order[e][i] != i;
        }
    }
    assert_in_range(same, 0, 12); /* about one a pair of orders */
    assert_in_range(same_seed, 0, 15);
    assert_in_range(moved, EPOCHS * ROWS_ALL - 15, EPOCHS * ROWS_ALL);
    tuning_data_close(other);
    tuning_data_close(data);
    options.samples = 100; /* decides, whatever the epochs */
    test_ok(tuning_data_open(&options, &data));
    assert_int_equal(tuning_data_length(data, SPLIT_TRAIN), 100);
    tuning_data_close(data);
    free(a);
    free(b);
}

static void files_are_drawn_by_their_weights(void **state) {
    (void)state;
    char *a = numbered_file("a.jsonl", 0, 5), *b = numbered_file("b.jsonl", 5, 40);
    const char *paths[] = {"3", a, "1", b};
    struct tuning_options options = options_of(paths, 4);
    struct tuning_data *data;
    int counts[45] = {0};
    options.samples = 80;
    test_ok(tuning_data_open(&options, &data));
    assert_int_equal(tuning_data_epoch(data, SPLIT_TRAIN), 45);
    for (int64_t k = 0; k < 80; k++)
        counts[number_at(data, k, options.seq_length)]++;
    for (int i = 0; i < 5; i++)
        assert_int_equal(counts[i], 12); /* 60 of 5 rows */
    int of_b = 0;
    for (int i = 5; i < 45; i++) {
        assert_in_range(counts[i], 0, 1);
        of_b += counts[i];
    }
    assert_int_equal(of_b, 20);
    tuning_data_close(data);
    options.valid = options.train;
    test_fails(tuning_data_open(&options, &data), STATUS_USAGE, "validation files have no weights");
    paths[2] = "x";
    test_fails(tuning_data_open(&options, &data), STATUS_USAGE, "are weights and some are not");
    free(a);
    free(b);
}

/* Global batches of 8 samples, however they are cut into micro batches and ranks. */
static void samples_do_not_depend_on_the_layout(void **state) {
    (void)state;
    enum { GLOBAL = 8, SAMPLES = 24 };
    static const int64_t layouts[][2] = {{1, 8}, {1, 1}, {2, 2}, {4, 2}, {2, 4}}; /* ranks, micro batch size */
    char *path = numbered_file("a.jsonl", 0, 29);
    const char *paths[] = {path};
    struct tuning_options options = options_of(paths, 1);
    char *expected[SAMPLES];
    options.samples = SAMPLES;
    options.is_packed = true;
    options.seq_length = 30;
    options.virtual_tokens = 2;
    for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
        int64_t ranks = layouts[l][0], size = layouts[l][1];
        struct tuning_data *data; /* each opening gives the same */
        struct gpt_batch batch;
        test_ok(tuning_data_open(&options, &data));
        test_ok(gpt_batch_init(&batch, size, options.seq_length));
        for (int64_t consumed = 0; consumed < SAMPLES; consumed += GLOBAL)
            for (int64_t m = 0; m < GLOBAL / ranks / size; m++)
                for (int64_t rank = 0; rank < ranks; rank++) {
                    int64_t first = gpt_batch_first(consumed, m, size, rank, ranks), segment = 0;
                    test_ok(tuning_batch_read(&batch, data, SPLIT_TRAIN, first));
                    for (int64_t k = first; k < first + size; k++) {
                        int64_t next = segment;
                        while (next < batch.segments && batch.sample[batch.segment_start[next]] == k)
                            next++;
                        char *shown = show_segments(&batch, segment, next);
                        assert_int_equal(batch.token[batch.segment_start[segment]], 0);
                        if (l == 0)
                            expected[k] = strdup(shown);
                        assert_string_equal(shown, expected[k]);
                        free(shown);
                        segment = next;
                    }
                    assert_int_equal(segment, batch.segments);
                }
        gpt_batch_free(&batch);
        tuning_data_close(data);
    }
    for (int k = 0; k < SAMPLES; k++)
        free(expected[k]);
    free(path);
}

/* ---- packing ---- */

static void packing_is_first_fit_with_segments_of_their_own(void **state) {
    (void)state;
    struct tuning_options options = options_of(NULL, 0);
    struct gpt_batch batch;
    struct tuning_data *data;
    options.is_packed = true;
    options.seq_length = 12;
    options.virtual_tokens = 1;                                             /* a row of n tokens takes n rows */
    const char *rows = "{\"prompt\": \"1\", \"completion\": \"abcde\"}\n"   /* 7 */
                       "{\"prompt\": \"2\", \"completion\": \"abcdefg\"}\n" /* 9 */
                       "{\"prompt\": \"3\", \"completion\": \"ab\"}\n"      /* 4: behind the first */
                       "{\"prompt\": \"4\", \"completion\": \"a\"}\n"       /* 3: behind the second */
                       "{\"prompt\": \"5\", \"completion\": \"abcdefghi\"}" /* 11 */;
    check_rows(rows, options, ROWS("~1[abcde$] | ~3[ab$]", "~2[abcdefg$] | ~4[a$]", "~5[abcdefghi$]"));
    char *path = write_file("rows.jsonl", rows);
    const char *paths[] = {path};
    options.train = options.valid = (struct config_list){paths, 1};
    test_ok(tuning_data_open(&options, &data));
    test_ok(gpt_batch_init(&batch, 2, options.seq_length));
    test_ok(tuning_batch_read(&batch, data, SPLIT_VALID, 0));
    assert_int_equal(batch.segments, 4);
    assert_int_equal(batch.rows, 11 + 12);
    for (int64_t s = 0; s < 4; s++)
        assert_int_equal(batch.positions[batch.segment_start[s]], 0);
    for (int64_t i = 0; i < batch.rows; i++) { /* the place is that in the sample, for dropout */
        assert_int_equal(batch.sample[i], i >= 11);
        assert_int_equal(batch.token[i], i < 11 ? i : i - 11);
    }
    gpt_batch_free(&batch);
    tuning_data_close(data);
    free(path);
}

static int compare_texts(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* All segments of the training split, sorted. */
static char **sorted_segments(const struct tuning_options *options, int64_t count) {
    struct tuning_data *data;
    struct gpt_batch batch;
    char **texts = calloc((size_t)count, sizeof *texts);
    int64_t found = 0;
    test_ok(tuning_data_open(options, &data));
    test_ok(gpt_batch_init(&batch, 1, options->seq_length));
    for (int64_t k = 0; k < tuning_data_length(data, SPLIT_TRAIN); k++) {
        test_ok(tuning_batch_read(&batch, data, SPLIT_TRAIN, k));
        assert_in_range(batch.rows, 1, options->seq_length);
        for (int64_t s = 0; s < batch.segments; s++) {
            assert_true(found < count);
            texts[found++] = show_segments(&batch, s, s + 1);
        }
    }
    assert_int_equal(found, count);
    assert_true(!options->is_packed || tuning_data_length(data, SPLIT_TRAIN) < count / 2);
    qsort(texts, (size_t)count, sizeof *texts, compare_texts);
    gpt_batch_free(&batch);
    tuning_data_close(data);
    return texts;
}

static void packs_hold_the_separate_rows(void **state) {
    (void)state;
    enum { COUNT = 83 };
    char *path = numbered_file("a.jsonl", 0, COUNT);
    const char *paths[] = {path};
    struct tuning_options options = options_of(paths, 1);
    options.seq_length = 40;
    options.virtual_tokens = 3;
    char **separate = sorted_segments(&options, COUNT);
    options.is_packed = true;
    char **packed = sorted_segments(&options, COUNT);
    for (int i = 0; i < COUNT; i++) {
        assert_string_equal(separate[i], packed[i]);
        free(separate[i]);
        free(packed[i]);
    }
    free(separate);
    free(packed);
    free(path);
}

/* ---- batches ---- */

static void batches_are_padded_to_their_multiple_without_loss(void **state) {
    (void)state;
    char *path = numbered_file("a.jsonl", 0, 3);
    const char *paths[] = {path};
    struct tuning_options options = options_of(paths, 1);
    struct tuning_data *data;
    struct gpt_batch batch, odd;
    options.seq_length = 24;
    options.row_multiple = 8;
    options.valid = options.train;
    test_ok(tuning_data_open(&options, &data));
    test_ok(gpt_batch_init(&batch, 2, options.seq_length));
    test_ok(gpt_batch_init(&odd, 1, 20));
    for (int64_t first = 0; first < 6; first += 2) { /* behind sample 2 there is none */
        test_ok(tuning_batch_read(&batch, data, SPLIT_VALID, first));
        assert_int_equal(batch.rows % 8, 0);
        assert_in_range(batch.rows, 8, 48);
        char *shown = show_segments(&batch, 0, 0);
        assert_null(shown);
        int64_t start = batch.segment_start[batch.segments - 1];
        assert_int_equal(batch.segments, first == 0 ? 3 : first == 2 ? 2 : 1);
        assert_true(batch.rows - start < 8 || first == 4);
        for (int64_t i = start; i < batch.rows; i++) {
            assert_true(batch.loss_mask[i] == 0);
            assert_int_equal(batch.tokens[i], 0);
            assert_int_equal(batch.labels[i], 0);
            assert_int_equal(batch.positions[i], 0);
        }
    }
    test_fails(tuning_batch_read(&odd, data, SPLIT_VALID, 0), STATUS_INVALID, "of 20 tokens");
    gpt_batch_free(&odd);
    gpt_batch_free(&batch);
    test_ok(gpt_batch_init(&batch, 1, options.seq_length));
    tuning_data_close(data);
    options.row_multiple = 7;
    test_ok(tuning_data_open(&options, &data));
    test_fails(tuning_batch_read(&batch, data, SPLIT_VALID, 0), STATUS_USAGE, "not a multiple of 7 rows");
    gpt_batch_free(&batch);
    tuning_data_close(data);
    free(path);
}

static void reading_a_batch_allocates_nothing(void **state) {
    (void)state;
    char *path = numbered_file("a.jsonl", 0, 50);
    const char *paths[] = {path};
    struct tuning_options options = options_of(paths, 1);
    struct tuning_data *data;
    struct gpt_batch batch;
    if (!allocations_can_be_counted())
        skip();
    options.epochs = 4;
    test_ok(tuning_data_open(&options, &data));
    test_ok(gpt_batch_init(&batch, 4, options.seq_length));
    allocations_start();
    for (int64_t k = 0; k < 200; k += 4)
        test_ok(tuning_batch_read(&batch, data, SPLIT_TRAIN, k));
    assert_int_equal(allocations_stop(), 0);
    gpt_batch_free(&batch);
    tuning_data_close(data);
    free(path);
}

static void wide_and_narrow_tokens_are_the_same(void **state) {
    (void)state;
    char *path = numbered_file("a.jsonl", 0, 20), *packed = path_of("a.jsonl.gz");
    struct strbuf text = STRBUF_INIT;
    test_ok(file_read(path, 1 << 20, &text));
    gzFile file = gzopen(packed, "wb");
    assert_int_equal(gzwrite(file, text.data, (unsigned)text.length), text.length);
    assert_int_equal(gzclose(file), Z_OK);
    const char *paths[] = {path}, *packed_paths[] = {packed};
    struct tuning_options options = options_of(paths, 1), wide = options_of(packed_paths, 1);
    struct tuning_data *a, *b;
    wide.vocab_size = 65537;
    test_ok(tuning_data_open(&options, &a));
    test_ok(tuning_data_open(&wide, &b));
    for (int64_t k = 0; k < 20; k++) {
        char *x = show_sample(a, SPLIT_TRAIN, k, 1000), *y = show_sample(b, SPLIT_TRAIN, k, 1000);
        assert_string_equal(x, y);
        free(x);
        free(y);
    }
    tuning_data_close(a);
    tuning_data_close(b);
    assert_int_equal(truncate(packed, 60), 0);
    test_fails(tuning_data_open(&wide, &b), STATUS_INVALID, "a.jsonl.gz: damaged or truncated gzip data");
    strbuf_free(&text);
    free(packed);
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
        {"{\"text\": \"a\", \"text\": \"b\"}", "bad JSON: duplicate object key"},
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
        {"{\"messages\": {}}", "field \"messages\" is not a list"},
        {"{\"messages\": [1]}", "message 1: expected an object {\"role\", \"content\"}"},
        {"{\"messages\": [" TURN("user", "a") ", {\"role\": \"user\"}]}",
         "message 2: the row has no field \"content\""},
        {"{\"messages\": [{\"role\": \"bot\", \"content\": \"a\"}]}",
         "message 1: \"role\" is none of system, user, as"},
        {"{\"messages\": [" TURN("user", "a") ", " TURN("system", "b") "]}", "message 2: the system's message is not"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": null}]}",
         "message 1: field \"content\" is not a string"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": []}]}",
         "message 1: field \"tool_calls\" is not supported"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct strbuf text = STRBUF_INIT;
        strbuf_format(&text, "{\"text\": \"fine\"}\n\n%s\n{\"text\": \"fine\"}\n", cases[i].line);
        char *path = write_file("bad.jsonl", text.data);
        const char *paths[] = {path};
        struct tuning_options options = options_of(paths, 1);
        struct tuning_data *data;
        options.template_name = TUNING_TEMPLATE_PLAIN;
        test_fails(tuning_data_open(&options, &data), STATUS_INVALID, "bad.jsonl: line 3: ");
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
    test_fails(tuning_data_open(&options, &data), STATUS_INVALID, "bad.jsonl: line 2: column ");
    while (text.length < (1 << 24) + 100)
        strbuf_add_text(&text,
                        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    free(write_file("bad.jsonl", text.data));
    test_fails(tuning_data_open(&options, &data), STATUS_INVALID,
               "bad.jsonl: line 2: longer than the 16777216 bytes that a row may have");
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
    test_fails(tuning_data_open(&options, &data), STATUS_USAGE, "no training file");
    options = good;
    options.seq_length = options.virtual_tokens = 20;
    test_fails(tuning_data_open(&options, &data), STATUS_USAGE, "20 virtual tokens leave no place for a text in a seq");
    options.virtual_tokens = INT64_MAX;
    test_fails(tuning_data_open(&options, &data), STATUS_USAGE, "leave no place");
    options = good;
    options.first_position = 999;
    test_fails(tuning_data_open(&options, &data), STATUS_USAGE, "999 virtual tokens leave no place");
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
    options.template_name = TUNING_TEMPLATE_CHATML;
    free(write_file("rows.jsonl", TALK_OF_USER));
    test_fails(tuning_data_open(&options, &data), STATUS_INVALID,
               "rows.jsonl: line 1: token 257 is outside the model's vocabulary of 257");
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_and_their_ends_are_trained),
        cmocka_unit_test(pieces_are_tokenized_apart),
        cmocka_unit_test(whole_texts_are_trained_on_request),
        cmocka_unit_test(chatml_marks_turns_and_trains_all_answers),
        cmocka_unit_test(an_end_of_turn_that_is_the_end_of_text_stands_once),
        cmocka_unit_test(alpaca_is_stanfords_prompt),
        cmocka_unit_test(plain_has_lines_alone),
        cmocka_unit_test(templates_are_recognised_however_they_are_spelled),
        cmocka_unit_test(the_tokenizers_own_template_is_used_or_refused),
        cmocka_unit_test(rows_are_cut_at_the_side_that_is_asked_for),
        cmocka_unit_test(the_last_virtual_token_predicts_the_first_one),
        cmocka_unit_test(rows_without_a_loss_are_counted_and_left_out),
        cmocka_unit_test(every_epoch_has_each_row_once_in_another_order),
        cmocka_unit_test(files_are_drawn_by_their_weights),
        cmocka_unit_test(samples_do_not_depend_on_the_layout),
        cmocka_unit_test(packing_is_first_fit_with_segments_of_their_own),
        cmocka_unit_test(packs_hold_the_separate_rows),
        cmocka_unit_test(batches_are_padded_to_their_multiple_without_loss),
        cmocka_unit_test(reading_a_batch_allocates_nothing),
        cmocka_unit_test(wide_and_narrow_tokens_are_the_same),
        cmocka_unit_test(bad_lines_are_refused_with_file_and_line),
        cmocka_unit_test(long_lines_and_deep_nesting_are_refused),
        cmocka_unit_test(options_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, make_tokenizers, free_tokenizers);
}
