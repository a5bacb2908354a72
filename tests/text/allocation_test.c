/* Whichever allocation of this room fails, the failure is reported and nothing remains. */
#include "text/text.h"

#include "base/base.h"
#include "jinja/jinja.h"
#include "support/failing.h"
#include "support/test.h"
#include "text/chat.h"

#define GOLDEN TEST_DATA "/text/golden"

static const char sample[] =
    "we'll encode 12 words, caf\xc3\xa9 <|endoftext|> and a word longer thanfifteenbytes <tool> "
    "e\xcc\x82\xcc\xa3";

static int encode_and_decode(const struct tokenizer *tokenizer) {
    struct tokenizer_encoder *encoder = NULL;
    struct token_buffer ids = TOKEN_BUFFER_INIT;
    struct strbuf text = STRBUF_INIT;
    int status = tokenizer_encoder_new(tokenizer, &encoder);
    if (!status)
        status = tokenizer_encode(encoder, sample, strlen(sample), TOKENIZER_ADD_SPECIAL, &ids);
    if (!status)
        status = tokenizer_decode(tokenizer, ids.ids, ids.count, &text);
    tokenizer_encoder_free(encoder);
    token_buffer_free(&ids);
    strbuf_free(&text);
    return status;
}

static int open_and_use(void *context) {
    struct tokenizer *tokenizer = NULL;
    int status = tokenizer_open(context, &tokenizer);
    if (!status)
        status = encode_and_decode(tokenizer);
    tokenizer_close(tokenizer);
    return status;
}

static int learn_and_save(void *context) {
    const char *inputs[] = {GOLDEN "/corpus.txt"};
    struct tokenizer_training training = {.inputs = inputs, .input_count = 1, .vocab_size = 300, .threads = 1};
    struct tokenizer *tokenizer = NULL;
    int status = tokenizer_train(&training, &tokenizer);
    if (!status)
        status = tokenizer_save(tokenizer, context);
    tokenizer_close(tokenizer);
    return status;
}

static void a_tokenizer_opens_and_closes(void **state) {
    (void)state;
    assert_int_equal(failing_try_all(open_and_use, (void *)GOLDEN "/small", 200), 0);
    assert_int_equal(failing_try_all(open_and_use, (void *)GOLDEN "/added", 200), 0);
    assert_int_equal(failing_try_all(open_and_use, (void *)GOLDEN "/llama3_framed", 200), 0);
    assert_int_equal(failing_try_all(open_and_use, (void *)GOLDEN "/behaviors", 200), 0);
    assert_int_equal(failing_try_all(open_and_use, (void *)GOLDEN "/llama2", 200), 0);
    assert_int_equal(failing_try_all(open_and_use, (void *)GOLDEN "/metaspace", 200), 0);
}

static void a_tokenizer_learns_and_is_saved(void **state) {
    (void)state;
    char *directory = test_directory();
    assert_int_equal(failing_try_all(learn_and_save, directory, 100), 0);
    free(directory);
}

static int render_chat(void *context) {
    static const char json[] =
        "{\"messages\": [{\"role\":\"user\",\"content\":\"a\",\"name\":null},{\"role\":\"assistant\",\"content\":"
        "\"b\"},{\"role\":\"user\",\"content\":\"c\"}],\"chat_template_kwargs\":{\"x\": \"y\"}}";
    struct chat_pieces pieces = {0};
    struct chat_template *template = NULL;
    struct tokenizer *tokenizer = NULL;
    struct tokenizer_encoder *encoder = NULL;
    struct token_buffer ids = TOKEN_BUFFER_INIT;
    struct chat_request request = {.eos = 0, .asks = true};
    json_t *root = NULL;
    int status = chat_read_request(json, sizeof json - 1, "here", &root, &request);
    if (!status)
        status = chat_template_open_named(context, &template);
    if (!status)
        status = tokenizer_open(GOLDEN "/small", &tokenizer);
    if (!status)
        status = tokenizer_encoder_new(tokenizer, &encoder);
    request.tokenizer = tokenizer;
    if (!status)
        status = chat_render(template, &request, &pieces);
    if (!status)
        status = chat_pieces_encode(&pieces, encoder, 0, &ids, NULL);
    chat_pieces_clear(&pieces);
    char end[CHAT_TURN_END_BYTES];
    if (!status)
        status = chat_find_turn_end(template, tokenizer, 0, 0, end);
    if (!status)
        status = chat_render_row(template, &request, CHAT_ANSWERS_ALL, &pieces);
    chat_pieces_free(&pieces);
    token_buffer_free(&ids);
    tokenizer_encoder_free(encoder);
    tokenizer_close(tokenizer);
    chat_template_close(template);
    json_decref(root);
    return status;
}

static void a_chat_is_rendered(void **state) {
    (void)state;
    for (int t = 0; chat_template_names[t]; t++)
        assert_int_equal(failing_try_all(render_chat, (void *)chat_template_names[t], 50), 0);
}

/* A row whose last answer is written as it was given, after one that is not trained. */
static int render_thoughts(void *context) {
    static const char jinja[] = "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}"
                                "{% endfor %}{% if add_generation_prompt %}<assistant><think>{% endif %}";
    static const char json[] =
        "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\",\"weight\":0},{\"role\":"
        "\"user\",\"content\":\"c\"},{\"role\":\"assistant\",\"content\":\"d\",\"reasoning\":\"e\"}]";
    struct chat_pieces pieces = {0};
    struct chat_template *template = NULL;
    struct tokenizer_encoder *encoder = NULL;
    struct token_buffer ids = TOKEN_BUFFER_INIT;
    struct strbuf flags = STRBUF_INIT;
    struct chat_request request = {.eos = 0, .tokenizer = context};
    json_t *root = NULL;
    int status = chat_read_request(json, sizeof json - 1, "here", &root, &request);
    if (!status)
        status = chat_template_open(jinja, sizeof jinja - 1, "here", &template);
    if (!status)
        status = tokenizer_encoder_new(context, &encoder);
    if (!status)
        status = chat_render_row(template, &request, CHAT_ANSWERS_ALL, &pieces);
    if (!status)
        status = chat_pieces_encode(&pieces, encoder, 0, &ids, &flags);
    chat_pieces_free(&pieces);
    strbuf_free(&flags);
    token_buffer_free(&ids);
    tokenizer_encoder_free(encoder);
    chat_template_close(template);
    json_decref(root);
    return status;
}

static void a_row_is_rendered(void **state) {
    static const char *const shapes[] = {"qwen2_nfc", "flags_of_marks"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct tokenizer *tokenizer;
        char path[600];
        snprintf(path, sizeof path, GOLDEN "/%s", shapes[i]);
        test_ok(tokenizer_open(path, &tokenizer));
        assert_int_equal(failing_try_all(render_thoughts, tokenizer, 50), 0);
        tokenizer_close(tokenizer);
    }
}

static int render_template(void *context) {
    static const char template[] =
        "{% macro f(x, y='z') %}<{{ x|upper ~ y }}>{% endmacro %}{% set ns = namespace(all=[], text='') %}"
        "{% for a in m %}{% if a is mapping and loop.index > 0 %}{% set ns.all = ns.all + [a.b|trim, a.items()|list] %}"
        "{% set ns.text = ns.text + f(a.b) %}{% else %}{{ a['c'].split(',') }}{% endif %}{% endfor %}"
        "{% set block %}{{ ns.all|tojson(indent=2) }}{% endset %}{{ block|replace('a', 'bb')|indent }}{{ ns.text[1:-1] "
        "}}"
        "{{ [3, 1]|sort|map('string')|join(', ') }}{{ {'k': 1.5}|dictsort }}{% generation %}{{ ns.text }}{% "
        "endgeneration %}";
    struct jinja *jinja = NULL;
    struct jinja_text text = {0};
    struct jinja_argument arguments[] = {{.name = "m", .value = context, .marks = JINJA_FIRST_MARK}};
    int status = jinja_open(template, strlen(template), &jinja);
    if (!status)
        status = jinja_render(jinja, &(struct jinja_rendering){.arguments = arguments, .count = 1}, &text);
    jinja_text_free(&text);
    jinja_close(jinja);
    return status;
}

static void a_template_is_rendered(void **state) {
    json_t *messages = json_pack("[{s:s}, {s:s}]", "b", " text ", "b", "more");
    (void)state;
    assert_int_equal(failing_try_all(render_template, messages, 100), 0);
    json_decref(messages);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tokenizer_opens_and_closes), cmocka_unit_test(a_tokenizer_learns_and_is_saved),
        cmocka_unit_test(a_chat_is_rendered),           cmocka_unit_test(a_row_is_rendered),
        cmocka_unit_test(a_template_is_rendered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
