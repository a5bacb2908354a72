/* Any bytes as a completion with calls and reasoning. Pieces of any size give the same events. The arguments of a call
 * are JSON, unless the completion was cut. A completion without calls and reasoning is there byte for byte. */
#include "openai/call_parser.h"

#include "base/base.h"
#include "base/json.h"
#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct heard {
    struct strbuf text, reasoning, calls, arguments;
    bool checks; /* the arguments are whole */
};

static void check(bool is_right, const char *what) {
    if (is_right)
        return;
    fprintf(stdout, "calls_fuzz: %s\n", what);
    abort();
}

static void check_arguments(const struct strbuf *arguments) {
    struct strbuf repaired = STRBUF_INIT;
    json_error_t error;
    utf8_add_repaired(&repaired, strbuf_text(arguments), arguments->length);
    json_t *root = json_loadb(strbuf_text(&repaired), repaired.length, JSON_ALLOW_NUL, &error);
    /* jansson knows no lone surrogates and no large numbers */
    check(json_is_object(root) || strstr(repaired.data, "\\u") || strlen(repaired.data) > 300 ||
              strstr(error.text, "too big") || strstr(error.text, "overflow"),
          "arguments that are no JSON");
    json_decref(root);
    strbuf_free(&repaired);
}

static int hear(void *context, const struct call_event *event) {
    struct heard *heard = context;
    switch (event->kind) {
    case CALL_TEXT:
        strbuf_add(&heard->text, event->text, event->length);
        break;
    case CALL_REASONING:
        strbuf_add(&heard->reasoning, event->text, event->length);
        break;
    case CALL_BEGINS:
        strbuf_format(&heard->calls, "%lld %s %s\n", (long long)event->index, event->id, event->name);
        break;
    case CALL_ARGUMENTS:
        strbuf_add(&heard->calls, event->text, event->length);
        strbuf_add(&heard->arguments, event->text, event->length);
        break;
    default:
        if (heard->checks)
            check_arguments(&heard->arguments);
        strbuf_clear(&heard->arguments);
        strbuf_add_text(&heard->calls, "\n");
    }
    return STATUS_OK;
}

static void forget(struct heard *heard) {
    strbuf_free(&heard->text);
    strbuf_free(&heard->reasoning);
    strbuf_free(&heard->calls);
    strbuf_free(&heard->arguments);
}

static struct heard read_text(struct call_parser_options options, const char *text, size_t length, size_t step,
                              bool is_stop) {
    struct heard heard = {.checks = is_stop && !options.is_constrained};
    struct call_parser *parser;
    options.on_event = hear;
    options.context = &heard;
    check(!call_parser_open(&options, &parser), "a parser that does not open");
    for (size_t at = 0; at < length; at += step)
        check(!call_parser_add(parser, text + at, step < length - at ? step : length - at), "a failure");
    check(!call_parser_end(parser, is_stop), "a failure at the end");
    call_parser_close(parser);
    return heard;
}

static void check_same(const struct strbuf *a, const struct strbuf *b) {
    check(a->length == b->length && !memcmp(strbuf_text(a), strbuf_text(b), a->length), "pieces give other events");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char schema[] = "{\"properties\":{\"s\":{\"type\":\"string\"},\"n\":{\"type\":[\"integer\",\"null\"]},"
                                 "\"o\":{\"type\":\"object\"},\"a\":{}}}";
    static json_t *parameters;
    if (!parameters)
        parameters = json_loads(schema, 0, NULL);
    if (size < 2)
        return 0;
    const struct call_tool tools[] = {{.name = "f", .parameters = parameters}, {.name = "g.h"}};
    const struct call_parser_options options = {
        .format = &tool_formats[data[0] % TOOL_FORMAT_COUNT],
        .tools = tools,
        .tool_count = 2,
        .thought = (enum chat_thought)(data[1] % 3),
        .is_constrained = data[1] & 8,
        .is_single = data[1] & 16,
    };
    bool is_stop = data[1] & 32;
    const char *text = (const char *)data + 2;
    size_t length = size - 2;
    struct heard whole = read_text(options, text, length, length + 1, is_stop);
    struct heard bytes = read_text(options, text, length, 1, is_stop);
    struct heard pieces = read_text(options, text, length, 1 + data[0] / TOOL_FORMAT_COUNT, is_stop);
    check_same(&whole.text, &bytes.text);
    check_same(&whole.text, &pieces.text);
    check_same(&whole.reasoning, &bytes.reasoning);
    check_same(&whole.calls, &bytes.calls);
    check_same(&whole.calls, &pieces.calls);
    if (!whole.calls.length && options.thought == THOUGHT_NEVER)
        check(whole.text.length == length && !memcmp(strbuf_text(&whole.text), text, length),
              "a text that is not there");
    forget(&whole);
    forget(&bytes);
    forget(&pieces);
    return 0;
}
