/* Training rows: finds the answers in a rendering. */
#include "chat-internal.h"

#include <stdlib.h>
#include <string.h>

const char *const chat_answers_names[] = {"all", "last", NULL};

#define CHATML_END "<|im_end|>"

/* ---- by difference ---- */

/* Marks bytes [begin, end) as an answer, and cuts pieces as needed. */
static int mark_answer(struct chat_pieces *pieces, size_t begin, size_t end) {
    struct chat_pieces marked = {.template = chat_template_keep(pieces->template)};
    const char *text = strbuf_text(&pieces->text);
    size_t from = 0;
    int status = STATUS_OK;
    for (size_t i = 0; i < pieces->count; i++) {
        unsigned flags = pieces->items[i].flags;
        size_t to = from + pieces->items[i].length;
        const size_t cuts[] = {from,
                               begin < from ? from
                               : begin > to ? to
                                            : begin,
                               end < from ? from
                               : end > to ? to
                                          : end,
                               to};
        for (int k = 0; k < 3 && !status; k++)
            status =
                chat_pieces_add(&marked, text + cuts[k], cuts[k + 1] - cuts[k], k == 1 ? flags | CHAT_ANSWER : flags);
        from = to;
    }
    chat_pieces_free(pieces);
    *pieces = marked;
    return status;
}

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Returns the end of [begin, end) without the template's white space after its other text. */
static size_t cut_space(const struct chat_pieces *pieces, size_t begin, size_t end) {
    size_t from = 0, stop = end;
    const char *text = strbuf_text(&pieces->text);
    for (size_t i = 0; i < pieces->count && from < end; from += pieces->items[i++].length)
        if (!(pieces->items[i].flags & CHAT_SPECIAL) && from + pieces->items[i].length > begin)
            begin = from + pieces->items[i].length; /* text from a message */
    while (stop > begin && is_space(text[stop - 1]))
        stop--;
    return stop > begin ? stop : end;
}

static bool begins_with(const struct strbuf *text, const struct strbuf *start) {
    return text->length >= start->length && !memcmp(strbuf_text(text), strbuf_text(start), start->length);
}

/* A row whose answers are being searched. */
struct row {
    struct chat_template *template;
    const struct chat_request *request;
    struct chat_pieces *pieces, part; /* the whole; a rendering of some messages */
};

/* Renders the first `count` messages. */
static int render_part(struct row *row, size_t count, bool asks) {
    struct chat_request request = *row->request;
    json_t *messages = json_array();
    int failed = !messages;
    for (size_t i = 0; i < count && !failed; i++)
        failed = json_array_append(messages, json_array_get(row->request->messages, i));
    request.messages = messages;
    request.asks = asks;
    chat_pieces_clear(&row->part);
    int status = failed ? status_fail(STATUS_MEMORY, "out of memory")
                        : chat_render_by(row->template, NULL, &request, false, &row->part);
    json_decref(messages);
    return status;
}

/* Returns the end of the last text that came from a message. */
static size_t after_words(const struct chat_pieces *pieces) {
    size_t from = 0, after = 0;
    for (size_t i = 0; i < pieces->count; i++) {
        from += pieces->items[i].length;
        if (!(pieces->items[i].flags & CHAT_SPECIAL))
            after = from;
    }
    return after;
}

/* Returns how much of `part` is the beginning of the whole. A template may end a text differently, with an end-of-text.
 * The template then wrote the difference, and the common part ends with white space. SIZE_MAX: messages differ. */
static size_t common_length(const struct chat_pieces *whole, const struct chat_pieces *part) {
    const char *a = strbuf_text(&whole->text), *b = strbuf_text(&part->text);
    size_t least = whole->text.length < part->text.length ? whole->text.length : part->text.length, common = 0;
    size_t words = after_words(part);
    while (common < least && a[common] == b[common])
        common++;
    if (common == part->text.length)
        return common;
    while (common > words && !is_space(b[common - 1]))
        common--;
    return common >= words ? common : SIZE_MAX;
}

/* Finds the answer of message `i` in the whole: it extends from the end of the text that requests it to the end of the
 * text with it. Clears is_found when the whole begins differently. */
static int find_answer(struct row *row, size_t i, size_t *begin, size_t *end, bool *is_found) {
    *is_found = false;
    int status = render_part(row, i, true);
    *begin = row->part.text.length;
    bool is_start = !status && begins_with(&row->pieces->text, &row->part.text);
    if (!status && is_start)
        status = render_part(row, i + 1, false);
    if (status == STATUS_MEMORY)
        return status;
    *end = status ? SIZE_MAX : common_length(row->pieces, &row->part);
    *is_found = is_start && *end != SIZE_MAX && *end >= *begin;
    return STATUS_OK;
}

/* An empty answer does not count, unless the message holds more. */
static bool is_answer(const json_t *message) {
    const json_t *content = json_object_get(message, "content"), *calls = json_object_get(message, "tool_calls");
    bool is_empty = !content || json_is_null(content) || (json_is_string(content) && !json_string_length(content));
    return chat_is_assistants(message) && (!is_empty || json_array_size(calls) > 0);
}

static int find_answers(struct row *row, enum chat_answers which) {
    size_t count = json_array_size(row->request->messages), last = count, begin, end;
    int status = STATUS_OK;
    bool is_found;
    while (last > 0 && !is_answer(json_array_get(row->request->messages, last - 1)))
        last--;
    for (size_t i = which == CHAT_ANSWERS_LAST && last ? last - 1 : 0; i < last && !status; i++) {
        if (!is_answer(json_array_get(row->request->messages, i)))
            continue;
        status = find_answer(row, i, &begin, &end, &is_found);
        if (!status && is_found)
            status = mark_answer(row->pieces, begin, cut_space(row->pieces, begin, end));
        else if (!status)
            status = status_fail(
                STATUS_UNSUPPORTED,
                i + 1 < last
                    ? "the chat template writes answer %zu differently when more messages follow, so it "
                      "cannot be trained in its place: set data.answers to last, which trains only the last one"
                    : "the chat template writes the text before answer %zu differently when the "
                      "answer follows, so that the answer cannot be found",
                i + 1);
    }
    return status;
}

/* ---- by {% generation %} ---- */

/* Keeps only the last run of answers. */
static void keep_last(struct chat_pieces *pieces) {
    size_t i = pieces->count;
    while (i > 0 && !(pieces->items[i - 1].flags & CHAT_ANSWER))
        i--;
    while (i > 0 && pieces->items[i - 1].flags & CHAT_ANSWER)
        i--;
    while (i > 0)
        pieces->items[--i].flags &= ~(unsigned)CHAT_ANSWER;
}

/* ---- rows ---- */

/* Replaces the line end after chatml's last turn by the end-of-text. */
static int end_chatml(const struct chat_request *request, struct chat_pieces *pieces) {
    struct chat_piece *last = pieces->count ? &pieces->items[pieces->count - 1] : NULL;
    int32_t turn_end = request->tokenizer ? tokenizer_find(request->tokenizer, CHATML_END, strlen(CHATML_END)) : -1;
    if (!last || !(last->flags & CHAT_SPECIAL))
        return STATUS_OK;
    last->length--;
    pieces->text.length--;
    pieces->text.data[pieces->text.length] = 0;
    if (!last->length)
        pieces->count--;
    unsigned answer = pieces->count ? pieces->items[pieces->count - 1].flags & CHAT_ANSWER : 0;
    return turn_end == request->eos ? STATUS_OK : chat_pieces_add(pieces, NULL, 0, CHAT_END | answer);
}

int chat_render_row(struct chat_template *template, const struct chat_request *request, enum chat_answers which,
                    struct chat_pieces *pieces) {
    const struct jinja *jinja = request->tools && template->with_tools ? template->with_tools : template->jinja;
    size_t count = json_array_size(request->messages);
    struct row row = {.template = template, .request = request, .pieces = pieces};
    bool has_blocks = jinja_has_generation(jinja);
    int status = template->name == CHAT_OTHER ? STATUS_OK : chat_check_plain(request, chat_template_name(template));
    if (!status)
        status = chat_render_by(template, NULL, request, has_blocks, pieces);
    if (!status && has_blocks && which == CHAT_ANSWERS_LAST)
        keep_last(pieces);
    else if (!status && !has_blocks)
        status = find_answers(&row, which);
    chat_pieces_free(&row.part);
    if (!status && template->name == CHAT_CHATML && chat_is_assistants(json_array_get(request->messages, count - 1)))
        status = end_chatml(request, pieces);
    return status;
}

static int render_alpaca_input(struct chat_template *template, const struct chat_instruction *row,
                               const struct chat_request *request, struct chat_pieces *pieces) {
    struct chat_request filled = *request;
    struct jinja *jinja;
    json_t *variables =
        json_pack("{s:O, s:O, s:O}", "instruction", row->instruction, "input", row->input, "output", row->output);
    int status = variables ? jinja_open(chat_alpaca_input, strlen(chat_alpaca_input), &jinja)
                           : status_fail(STATUS_MEMORY, "out of memory");
    filled.variables = variables;
    if (!status) {
        status = chat_render_by(template, jinja, &filled, json_string_length(row->output) > 0, pieces);
        jinja_close(jinja);
    }
    json_decref(variables);
    return status;
}

int chat_render_instruction(struct chat_template *template, const struct chat_instruction *row,
                            const struct chat_request *request, struct chat_pieces *pieces) {
    struct chat_request filled = *request;
    struct strbuf joined = STRBUF_INIT;
    bool has_input = row->input && json_string_length(row->input);
    if (has_input && template->name == CHAT_ALPACA)
        return render_alpaca_input(template, row, request, pieces);
    strbuf_add(&joined, json_string_value(row->instruction), json_string_length(row->instruction));
    if (has_input) {
        strbuf_add_char(&joined, '\n');
        strbuf_add(&joined, json_string_value(row->input), json_string_length(row->input));
    }
    int status = strbuf_status(&joined);
    json_t *messages = status ? NULL
                              : json_pack("[{s:s, s:s%}, {s:s, s:O}]", "role", "user", "content", strbuf_text(&joined),
                                          joined.length, "role", "assistant", "content", row->output);
    if (!status && !messages)
        status = status_fail(STATUS_MEMORY, "out of memory");
    filled.messages = messages;
    if (!status)
        status = chat_render_row(template, &filled, CHAT_ANSWERS_ALL, pieces);
    json_decref(messages);
    strbuf_free(&joined);
    return status;
}
