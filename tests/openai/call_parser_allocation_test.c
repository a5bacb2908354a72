/* Whichever allocation of the parser of calls fails, the failure is reported and nothing remains. */
#include "openai/tools.h"

#include "support/failing.h"
#include "support/test.h"

static int keep(void *context, const struct call_event *event) {
    struct strbuf *out = context;
    strbuf_add(out, event->text, event->length);
    return strbuf_status(out);
}

static int read_calls(void *context) {
    json_t *parameters =
        json_pack("{s:{s:{s:s}, s:{s:s}}}", "properties", "city", "type", "string", "days", "type", "integer");
    const struct call_tool tools[] = {{.name = "f", .parameters = parameters}, {.name = "g"}};
    struct strbuf out = STRBUF_INIT;
    struct call_parser *parser = NULL;
    const char *text = context;
    int status = parameters ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
    for (int i = 0; i < TOOL_FORMAT_COUNT && !status; i++) {
        status = call_parser_open(&(struct call_parser_options){.format = &tool_formats[i],
                                                                .tools = tools,
                                                                .tool_count = 2,
                                                                .thought = THOUGHT_MAY,
                                                                .on_event = keep,
                                                                .context = &out},
                                  &parser);
        for (const char *at = text; *at && !status; at++)
            status = call_parser_add(parser, at, 1);
        if (!status)
            status = call_parser_end(parser, true);
        call_parser_close(parser);
        parser = NULL;
    }
    strbuf_free(&out);
    json_decref(parameters);
    return status;
}

static void calls_are_read_or_memory_is_lacking(void **state) {
    static const char *const texts[] = {
        "<think>a</think> b <tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"x\"}}\n</tool_call> c",
        "<tool_call>\n<function=f>\n<parameter=city>\nx\n</parameter>\n<parameter=days>\n1\n</parameter>\n</function>\n"
        "</tool_call>",
        "[TOOL_CALLS][{\"arguments\": {}, \"id\": 1, \"name\": \"g\"}] [TOOL_CALLS]g[ARGS]{}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_int_equal(failing_try_all(read_calls, (void *)texts[i], 300), 0);
}

static int read_tools(void *context) {
    json_error_t failed;
    struct error error;
    struct openai_tools tools = {0};
    json_t *list =
        json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"a\"}},{\"type\":\"function\",\"function\":{"
                   "\"name\":\"b\",\"parameters\":{}}}]",
                   0, &failed);
    json_t *choice =
        json_loads("{\"type\":\"allowed_tools\",\"mode\":\"auto\",\"tools\":[{\"type\":\"function\",\"name\":"
                   "\"b\"}]}",
                   0, &failed);
    bool is_right = list && choice && openai_tools_read(&tools, list, choice, NULL, &error);
    if (is_right)
        assert_int_equal(tools.count, 1);
    int status = is_right ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
    openai_tools_free(&tools);
    json_decref(list);
    json_decref(choice);
    return status;
}

static void tools_are_read_or_memory_is_lacking(void **state) {
    assert_int_equal(failing_try_all(read_tools, NULL, 300), 0);
}

static int check_template(void *context) {
    static const char text[] =
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}<tool_call>{{ c.function "
        "}}{% endfor %}{% endfor %}{{ tools }}";
    struct chat_template *template = NULL;
    struct strbuf difference = STRBUF_INIT;
    struct openai_model model = {.ends = {.eos = {0}, .count = 1}};
    int status = chat_template_open(text, strlen(text), "here", &template);
    if (!status)
        status = openai_tools_check(&model, template, &difference);
    if (!status)
        assert_true(difference.length > 0);
    strbuf_free(&difference);
    chat_template_close(template);
    return status;
}

static void templates_are_checked_or_memory_is_lacking(void **state) {
    assert_int_equal(failing_try_all(check_template, NULL, 300), 0);
}

/* A template without a place for tools. */
static int render_tools(void *context) {
    struct chat_request request = {.eos = 0};
    struct chat_pieces pieces = {0};
    struct chat_template *template = NULL;
    json_t *root = NULL;
    const char *text = context;
    int status = chat_template_open_named("chatml", &template);
    if (!status)
        status = chat_read_request(text, strlen(text), "here", &root, &request);
    if (!status)
        status = chat_render(template, &request, &pieces);
    chat_pieces_free(&pieces);
    chat_template_close(template);
    json_decref(root);
    return status;
}

static void tools_are_written_or_memory_is_lacking(void **state) {
    static const char text[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\", "
        "\"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": \"{}\"}}]}, {\"role\": \"tool\", "
        "\"content\": "
        "\"c\"}], \"tools\": [{\"type\": \"function\"}]}";
    assert_int_equal(failing_try_all(render_tools, (void *)text, 300), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_are_read_or_memory_is_lacking),
        cmocka_unit_test(tools_are_read_or_memory_is_lacking),
        cmocka_unit_test(templates_are_checked_or_memory_is_lacking),
        cmocka_unit_test(tools_are_written_or_memory_is_lacking),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
