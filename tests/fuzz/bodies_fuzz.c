/* Any bytes as the body of a chat, a response or a message, with its tools and its constraint. It is refused by one
 * line, or its constraint is a grammar whose texts can be followed. An answer with calls and reasoning is JSON, whole
 * and in the events of a stream. */
#include "grammar_fuzz.h"

#include "openai/openai.h"

#include "base/base.h"
#include "openai/json_in.h"

/* An answer in the format hermes. */
static const char answer[] =
    "<think>\nHm.\xff</think>\n\nYes.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n"
    "</tool_call>";

static void check(bool is_right, const char *what) {
    if (is_right)
        return;
    fprintf(stdout, "bodies_fuzz: %s\n", what);
    abort();
}

static void check_error(const struct error *error) {
    check(error->which && *error->text && !strchr(error->text, '\n'), "an error without a line");
}

static void check_json(const char *text, size_t length) {
    json_error_t error;
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    check(json_is_object(root), "an answer that is not JSON");
    json_decref(root);
}

static void check_events(const char *at) {
    while (*at) {
        const char *end = strstr(at, "\n\n"), *data = strstr(at, "data: ");
        check(end && data && data < end, "an event without data");
        if (strncmp(data, "data: [DONE]", 12) != 0)
            check_json(data + 6, (size_t)(end - data) - 6);
        at = end + 2;
    }
}

/* ---- the answer ---- */

/* Takes the answer of a choice in pieces of `step` bytes. */
static void take_choice(struct openai *request, int64_t choice, size_t step, struct strbuf *out) {
    const size_t length = sizeof answer - 1;
    for (size_t at = 0; at < length; at += step) {
        size_t given = step < length - at ? step : length - at;
        struct call_piece piece = {.choice = choice, .length = given};
        struct call_end end = {.choice = choice, .is_stop = true, .completion_tokens = 3};
        struct call_update update = {
            .pieces = &piece, .piece_count = 1, .ends = &end, .end_count = at + given == length};
        strbuf_add(&update.text, answer + at, given);
        if (request->is_stream)
            openai_write_update(request, &update, out);
        else
            openai_take_all(request, &update);
        strbuf_free(&update.text);
    }
}

static void write_answer(struct openai *request, size_t step) {
    struct strbuf out = STRBUF_INIT;
    for (int64_t i = 0; i < request->choice_count; i++)
        take_choice(request, i, step, &out);
    if (request->is_stream) {
        openai_write_end(request, &out);
        check_events(strbuf_text(&out));
    } else {
        openai_build(request, &out);
        check_json(strbuf_text(&out), out.length);
    }
    strbuf_free(&out);
}

static void run(const struct openai_kind *kind, const uint8_t *data, size_t size, uint8_t way) {
    struct openai_model model = {.name = "base",
                                 .vocab = 100,
                                 .max_model_len = 100,
                                 .most_texts = 8,
                                 .precision = "fp32",
                                 .tool_format = &tool_formats[way % TOOL_FORMAT_COUNT]};
    struct call_request asked = {0};
    struct openai request = {0};
    struct ask_constraint made = {0};
    struct error error = {0};
    const int64_t cached = 0;
    const uint64_t generations[ASK_MAX_ADAPTERS] = {0};
    json_t *root;
    if (!json_in_read((const char *)data, size, false, &root, &error)) {
        check_error(&error);
        return;
    }
    if (openai_read(&request, &model, kind, root, &asked, &error)) {
        asked.prompts[0].tool_format = model.tool_format;
        asked.prompts[0].thought = (enum chat_thought)(way / TOOL_FORMAT_COUNT % 3);
        request.model_name = "base";
        request.cached = &cached;
        request.generations = generations;
        check(!call_request_constrain(&asked, &asked.prompts[0], &made), "a constraint without memory");
        if (made.source.field)
            grammar_fuzz_source(&made.source, data, size);
        ask_constraint_free(&made);
        if (!kind->only_counts)
            write_answer(&request, 1 + way % 9);
    } else
        check_error(&error);
    openai_free(&request);
    call_request_free(&asked);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1)
        return 0;
    for (size_t i = 1; openai_kinds[i]; i++) /* all but completions */
        run(openai_kinds[i], data + 1, size - 1, data[0]);
    return 0;
}
