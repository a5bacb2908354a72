/* Training rows: finds the answers in a rendering. */
#include "chat-internal.h"
#include "tool_format.h"

#include "text-internal.h"

#include <ctype.h>

const char *const chat_answers_names[] = {"all", "last", NULL};

#define CHATML_END "<|im_end|>"

/* ---- pieces ---- */

/* Adds bytes [begin, end) of other pieces, with more flags and without those in `cleared`. */
static int copy_pieces(const struct chat_pieces *from, size_t begin, size_t end, unsigned more, unsigned cleared,
                       struct chat_pieces *to) {
    int status = STATUS_OK;
    for (size_t i = 0, at = 0; i < from->count && !status; at += from->items[i++].length) {
        size_t first = begin > at ? begin : at, last = at + from->items[i].length;
        last = end < last ? end : last;
        if (first < last)
            status =
                chat_pieces_add(to, from->text.data + first, last - first, (from->items[i].flags & ~cleared) | more);
    }
    return status;
}

/* Adds flags to bytes [begin, end), and clears others. */
static int mark(struct chat_pieces *pieces, size_t begin, size_t end, unsigned more, unsigned cleared) {
    struct chat_pieces marked = {.template = chat_template_keep(pieces->template), .endless = pieces->endless};
    int status = copy_pieces(pieces, 0, begin, 0, 0, &marked);
    THEN(status, copy_pieces(pieces, begin, end, more, cleared, &marked));
    THEN(status, copy_pieces(pieces, end, pieces->text.length, 0, 0, &marked));
    chat_pieces_free(pieces);
    *pieces = marked;
    return status;
}

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* A text that came from a message, within some pieces. */
struct words {
    size_t piece, begin, end;
};

/* Moves to the next words that end after `from`; false past the last ones. Starts zeroed. */
static bool next_words(const struct chat_pieces *pieces, size_t from, struct words *words) {
    for (size_t at = words->end; words->piece < pieces->count;) {
        const struct chat_piece *piece = &pieces->items[words->piece++];
        *words = (struct words){words->piece, at > from ? at : from, at + piece->length};
        at = words->end;
        if (!(piece->flags & CHAT_SPECIAL) && at > from)
            return true;
    }
    return false;
}

/* Returns the end of the last words; 0 when there are none. */
static size_t after_words(const struct chat_pieces *pieces) {
    struct words words = {0};
    size_t after = 0;
    while (next_words(pieces, 0, &words))
        after = words.end;
    return after;
}

/* Returns how many bytes two texts have in common from these places on. */
static size_t common_length(const struct chat_pieces *a, const struct chat_pieces *b, size_t at_a, size_t at_b) {
    enum { STEP = 256 };
    const char *x = strbuf_text(&a->text) + at_a, *y = strbuf_text(&b->text) + at_b;
    size_t common = 0,
           most = a->text.length - at_a < b->text.length - at_b ? a->text.length - at_a : b->text.length - at_b;
    while (most - common >= STEP && !memcmp(x + common, y + common, STEP))
        common += STEP;
    while (common < most && x[common] == y[common])
        common++;
    return common;
}

/* ---- by difference ---- */

/* A row whose answers are being searched. `part` is a rendering of some messages, `ask` the one that requests an
 * answer: the whole begins with `head` bytes of it. */
struct row {
    struct chat_template *template;
    const struct chat_request *request;
    struct chat_pieces *pieces, ask, part;
    size_t head;
    bool is_asked; /* the whole begins as the request does, except for the template's words at its end */
};

/* Renders the first `count` messages. */
static int render_part(struct row *row, size_t count, bool asks, struct chat_pieces *pieces) {
    struct chat_request request = *row->request;
    json_t *messages = json_array();
    int failed = !messages;
    for (size_t i = 0; i < count && !failed; i++)
        failed = json_array_append(messages, json_array_get(row->request->messages, i));
    request.messages = messages;
    request.asks = asks;
    chat_pieces_clear(pieces);
    int status = failed ? status_no_memory() : chat_render_by(row->template, NULL, &request, false, pieces);
    json_decref(messages);
    return status;
}

/* A special token or an end-of-text in some pieces. */
struct special {
    size_t begin, end;
    int32_t id;
};

/* Finds the first one in the template's words [from, to). */
static bool next_special(const struct row *row, const struct chat_pieces *pieces, size_t from, size_t to,
                         struct special *special) {
    const struct tokenizer *tokenizer = row->request->tokenizer;
    const char *text = strbuf_text(&pieces->text) + from;
    size_t bytes = 0, found = tokenizer ? added_tokens_first_special(tokenizer, text, to - from, &bytes) : SIZE_MAX;
    size_t first = found == SIZE_MAX ? to : from + found;
    *special = (struct special){first, first + bytes, -1};
    for (size_t i = 0, at = 0; i < pieces->count && at < first; at += pieces->items[i++].length)
        if (pieces->items[i].flags & CHAT_END && at >= from) {
            *special = (struct special){at, at + pieces->items[i].length, row->request->eos};
            return true;
        }
    if (found != SIZE_MAX)
        special->id = tokenizer_find(tokenizer, text + found, bytes);
    return found != SIZE_MAX;
}

/* Finds the end of an answer in the whole: its words are those in `part`, which ends with it. After them comes what
 * both have, without white space at its end. A template may end a text differently, from a special token on, or from
 * what looks like one after white space. Returns false for other differences. */
static bool find_end(const struct row *row, size_t *end) {
    const struct chat_pieces *whole = row->pieces, *part = &row->part;
    struct words ours = {0}, theirs = {0};
    size_t from = common_length(&row->ask, part, 0, 0), words = row->head, after = from, common;
    while (next_words(part, from, &theirs)) {
        size_t length = theirs.end - theirs.begin;
        if (!next_words(whole, row->head, &ours) || ours.end - ours.begin < length ||
            memcmp(whole->text.data + ours.begin, part->text.data + theirs.begin, length) != 0)
            return false;
        words = ours.begin + length;
        after = theirs.end;
    }
    bool has_more = words < ours.end || next_words(whole, words, &ours);
    size_t limit = has_more ? (ours.begin > words ? ours.begin - words : 0) : whole->text.length - words;
    common = common_length(whole, part, words, after);
    if (common < part->text.length - after) {
        struct special special = {.end = after};
        bool is_special;
        do
            is_special = next_special(row, part, special.end, part->text.length, &special);
        while (is_special && special.end <= after + common);
        is_special = is_special && special.begin <= after + common;
        while (!is_special && common > 0 && !is_space(part->text.data[after + common - 1]))
            common--;
        common = is_special ? special.begin - after : common;
        if (!is_special && !strchr("<[", part->text.data[after + common]))
            return false;
    }
    common = common < limit ? common : limit;
    while (common > 0 && is_space(whole->text.data[words + common - 1]))
        common--;
    *end = words + common;
    return true;
}

/* Finds out whether the whole has some words of the template that request answer `i`, and differs after them. */
static int find_header(struct row *row, size_t i) {
    const char *text = strbuf_text(&row->ask.text);
    size_t head = row->head;
    int status = render_part(row, i, false, &row->part);
    size_t before = status ? head : common_length(&row->ask, &row->part, 0, 0);
    if (before == row->ask.text.length) /* the template always requests an answer */
        before = after_words(&row->ask);
    while (head > before && (isalnum((unsigned char)text[head - 1]) || strchr("<|[/_", text[head - 1])))
        head--; /* the beginning of another name */
    row->is_asked = head > before;
    return status;
}

/* Finds the answer of message `i` in the whole: it extends from the end of the text that requests it, or from where the
 * template continues that text otherwise. Clears is_found when the whole is written differently. */
static int find_answer(struct row *row, size_t i, size_t *end, bool *is_found) {
    *is_found = row->is_asked = false;
    row->head = 0;
    int status = render_part(row, i, true, &row->ask);
    if (!status) {
        row->head = common_length(row->pieces, &row->ask, 0, 0);
        row->is_asked = row->head == row->ask.text.length;
        if (!row->is_asked && row->head > after_words(&row->ask))
            status = find_header(row, i);
    }
    THEN(status, render_part(row, i + 1, false, &row->part));
    *is_found = !status && row->is_asked && find_end(row, end) && *end >= row->head;
    return status == STATUS_MEMORY ? status : STATUS_OK;
}

/* ---- thoughts ---- */

/* An answer as it was given: <think> or nothing in the first bytes, then thoughts up to `end`, where </think> is; with
 * `end` 0 there are none. */
struct given {
    struct strbuf text;
    size_t begin, end;
};

static int find_given(const json_t *message, struct given *given) {
    const json_t *content = json_object_get(message, "content"), *reasoning = chat_find_reasoning(message);
    const char *text = json_is_string(content) ? json_string_value(content) : "", *mark;
    struct strbuf *out = &given->text;
    if (json_string_length(reasoning) && !strstr(text, THINK_END)) {
        strbuf_add_text(out, THINK_BEGIN "\n");
        strbuf_add(out, json_string_value(reasoning), json_string_length(reasoning));
        strbuf_add_text(out, "\n" THINK_END "\n\n");
    }
    strbuf_add(out, text, json_is_string(content) ? json_string_length(content) : 0);
    mark = memmem(strbuf_text(out), out->length, THINK_END, strlen(THINK_END));
    given->end = mark ? (size_t)(mark - out->data) : 0;
    given->begin = given->end && !strncmp(out->data, THINK_BEGIN, strlen(THINK_BEGIN)) ? strlen(THINK_BEGIN) : 0;
    return strbuf_status(out);
}

/* True when the thoughts of an answer are missing in the whole between its head and `after`. */
static bool loses_thoughts(const struct row *row, const struct given *given, size_t after) {
    const char *text = strbuf_text(&row->pieces->text);
    size_t begin = given->begin, end = given->end;
    while (begin < end && is_space(given->text.data[begin]))
        begin++;
    while (begin < end && is_space(given->text.data[end - 1]))
        end--;
    return row->ask.count && begin < end &&
           !memmem(text + row->head, after - row->head, given->text.data + begin, end - begin);
}

/* Adds an answer as it was given; marks of thoughts are the template's words. */
static int add_given(const struct given *given, struct chat_pieces *pieces) {
    const struct strbuf *text = &given->text;
    const size_t cuts[] = {0, given->begin, given->end, given->end ? given->end + strlen(THINK_END) : 0, text->length};
    int status = STATUS_OK;
    for (int i = 0; i < 4 && !status; i++)
        status = chat_pieces_add(pieces, text->data + cuts[i], cuts[i + 1] - cuts[i],
                                 CHAT_ANSWER | (i % 2 ? 0 : CHAT_SPECIAL));
    return status;
}

/* Writes the last message as it was given, after the text that requests it and before what the template writes after
 * it. The request is whole where thoughts begin in it, or where the template writes earlier messages differently now.
 */
static int write_given(struct row *row, const struct given *given) {
    struct chat_pieces made = {.template = chat_template_keep(row->pieces->template)};
    size_t after = after_words(row->pieces), words = after_words(&row->ask), length = row->ask.text.length;
    struct words first = {0};
    after = after > row->head ? after : row->head;
    bool is_open = given->end && !given->begin &&
                   memmem(row->ask.text.data + words, length - words, THINK_BEGIN, strlen(THINK_BEGIN));
    if (row->is_asked && !is_open) {
        length = row->head;
        if (next_words(row->pieces, words, &first) && first.begin < length)
            length = first.begin;
    }
    int status = copy_pieces(row->pieces, 0, row->head < length ? row->head : length, 0, 0, &made);
    THEN(status, copy_pieces(&row->ask, row->head, length, 0, 0, &made));
    THEN(status, add_given(given, &made));
    THEN(status, copy_pieces(row->pieces, after, row->pieces->text.length, CHAT_ANSWER, 0, &made));
    chat_pieces_free(row->pieces);
    *row->pieces = made;
    return status;
}

/* ---- answers of a row ---- */

/* An empty answer does not count, unless the message holds more. */
static bool is_answer(const json_t *message) {
    const json_t *content = json_object_get(message, "content"), *calls = json_object_get(message, "tool_calls");
    bool is_empty = !content || json_is_null(content) || (json_is_string(content) && !json_string_length(content));
    return chat_is_assistants(message) && (!is_empty || json_array_size(calls) > 0);
}

#define WAY_OUT "name a template that writes it alike by --tuning.template FILE"

static int refuse(size_t i, bool is_last, bool is_lost) {
    return status_fail(STATUS_UNSUPPORTED,
                       !is_last  ? "the chat template writes answer %zu differently when more messages follow, so it "
                                   "cannot be trained in its place: set data.answers to last, which trains only the "
                                   "last one, or " WAY_OUT
                       : is_lost ? "the chat template leaves out the thoughts of answer %zu: " WAY_OUT
                                 : "the chat template writes the text before answer %zu differently when the answer "
                                   "follows, so that the answer cannot be found: " WAY_OUT,
                       i + 1);
}

/* Marks the answer of message `i`, `last` being that of the last answer. */
static int mark_found(struct row *row, size_t i, size_t last, enum chat_answers which, bool is_silent,
                      bool has_blocks) {
    const json_t *message = json_array_get(row->request->messages, i);
    struct given given = {.text = STRBUF_INIT};
    size_t end = 0;
    bool is_found = false;
    int status = find_given(message, &given);
    THEN(status, find_answer(row, i, &end, &is_found));
    bool is_lost = !is_silent && loses_thoughts(row, &given, is_found ? end : row->pieces->text.length);
    bool can_write = !is_silent && json_is_string(json_object_get(message, "content")) &&
                     i + 1 == json_array_size(row->request->messages) && row->ask.count &&
                     !json_array_size(json_object_get(message, "tool_calls"));
    bool is_other = !row->is_asked && (which == CHAT_ANSWERS_LAST || row->head >= after_words(&row->ask));
    if (!status && is_found && !is_lost)
        status = mark(row->pieces, row->head, end, is_silent ? CHAT_SILENT : CHAT_ANSWER, is_silent ? CHAT_ANSWER : 0);
    else if (!status && can_write && (row->is_asked ? is_lost : is_other))
        status = write_given(row, &given);
    else if (!status && (!is_silent || has_blocks))
        status = refuse(i, i == last && (!can_write || row->is_asked), is_lost);
    strbuf_free(&given.text);
    return status;
}

static int find_answers(struct row *row, enum chat_answers which, bool has_blocks) {
    size_t last = json_array_size(row->request->messages);
    int status = STATUS_OK;
    while (last > 0 && !is_answer(json_array_get(row->request->messages, last - 1)))
        last--;
    for (size_t i = 0; i < last && !status; i++) {
        const json_t *message = json_array_get(row->request->messages, i);
        bool is_silent = chat_is_silent(message);
        if (is_answer(message) && (is_silent || (!has_blocks && (which == CHAT_ANSWERS_ALL || i + 1 == last))))
            status = mark_found(row, i, last - 1, which, is_silent, has_blocks);
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

/* ---- ends ---- */

/* Finds the next answer from `from` on: adjacent pieces. Returns false past the last one. */
static bool next_answer(const struct chat_pieces *pieces, size_t from, size_t *begin, size_t *end) {
    size_t at = 0, i = 0;
    while (i < pieces->count && (at < from || !(pieces->items[i].flags & CHAT_ANSWER)))
        at += pieces->items[i++].length;
    *begin = *end = at;
    for (; i < pieces->count && pieces->items[i].flags & CHAT_ANSWER; i++)
        *end += pieces->items[i].length;
    return *end > *begin;
}

static bool stops(const struct row *row, const char *turn_end, const struct special *special) {
    const struct chat_request *request = row->request;
    const char *text = row->pieces->text.data + special->begin;
    size_t length = special->end - special->begin;
    bool is_stop = special->id == request->eos || (strlen(turn_end) == length && !memcmp(text, turn_end, length));
    for (size_t i = 0; i < request->end_count; i++)
        is_stop |= special->id == request->ends[i];
    return is_stop;
}

/* Adds an end after the last answer: the template's end of a turn if that is a token, else the end-of-text. */
static int add_end(struct row *row, const char *turn_end, size_t begin) {
    const struct chat_request *request = row->request;
    int32_t id = *turn_end && request->tokenizer ? tokenizer_find(request->tokenizer, turn_end, strlen(turn_end)) : -1;
    if (id < 0 || !tokenizer_is_special(request->tokenizer, id))
        return request->eos < 0 ? STATUS_OK
                                : chat_pieces_add(row->pieces, NULL, 0, CHAT_END | CHAT_ANSWER | CHAT_ADDED);
    int status = mark(row->pieces, begin, row->pieces->text.length, CHAT_ANSWER, 0);
    return status ? status : chat_pieces_add(row->pieces, turn_end, strlen(turn_end), CHAT_ANSWER | CHAT_SPECIAL);
}

/* Finds the token at which generators stop in the template's words from `after` on. It is in the answer, which extends
 * to `end`, or the first special token after it and before `limit`. Returns its end; 0: there is none. *has_special:
 * the answer has other special tokens. */
static size_t find_stop(const struct row *row, const char *turn_end, size_t after, size_t end, size_t limit,
                        bool *has_special) {
    const char *text = strbuf_text(&row->pieces->text), *found;
    struct special special = {.end = after};
    *has_special = false;
    while (next_special(row, row->pieces, special.end, limit, &special)) {
        if (stops(row, turn_end, &special))
            return special.end;
        if (special.begin >= end)
            break;
        *has_special = true;
    }
    found = *turn_end ? memmem(text + after, end - after, turn_end, strlen(turn_end)) : NULL;
    return found ? (size_t)(found - text) + strlen(turn_end) : 0;
}

/* Extends each answer to the token at which generators stop, where that comes next. The last answer gets one if it has
 * none; others without one are counted. */
static int mark_ends(struct row *row) {
    struct chat_pieces *pieces = row->pieces;
    char turn_end[CHAT_TURN_END_BYTES];
    int status =
        chat_find_turn_end(row->template, row->request->tokenizer, row->request->eos, row->request->seconds, turn_end);
    for (size_t begin, end = 0; !status && next_answer(pieces, end, &begin, &end);) {
        struct words words = {0};
        size_t after = begin;
        bool has_more, has_special;
        while ((has_more = next_words(pieces, begin, &words)) && words.begin < end)
            after = words.end < end ? words.end : end;
        size_t stop = find_stop(row, turn_end, after, end, has_more ? words.begin : pieces->text.length, &has_special);
        if (stop > end)
            status = mark(pieces, begin, end = stop, CHAT_ANSWER, 0);
        else if (!stop && !has_more && !has_special)
            return add_end(row, turn_end, begin);
        else
            pieces->endless += !stop && has_more;
    }
    return status;
}

#define NO_TOOLS "the template of this model renders no tools: name one that does by --tuning.template FILE"

static bool has_name(const struct strbuf *text, const json_t *call) {
    const json_t *function = json_object_get(call, "function");
    const char *name = json_string_value(json_object_get(function ? function : call, "name"));
    return !name || memmem(strbuf_text(text), text->length, name, strlen(name));
}

/* Refuses tools and calls that the template leaves out. A call without text is refused before it is rendered, as the
 * template may expect a text: `pieces` is then NULL. */
static int check_tools(const struct chat_template *template, const struct chat_request *request,
                       const struct chat_pieces *pieces) {
    const json_t *message;
    size_t i;
    if (json_array_size(request->tools) &&
        (!chat_mentions(template, "tools") || (pieces && !has_name(&pieces->text, json_array_get(request->tools, 0)))))
        return status_fail(STATUS_UNSUPPORTED, "field \"tools\": " NO_TOOLS);
    json_array_foreach(request->messages, i, message) {
        const json_t *calls = json_object_get(message, "tool_calls");
        bool is_left_out = pieces ? !has_name(&pieces->text, json_array_get(calls, 0))
                                  : !json_is_string(json_object_get(message, "content"));
        if (json_array_size(calls) && !chat_mentions(template, "tool_calls") &&
            (json_array_size(request->tools) || is_left_out))
            return status_fail(STATUS_UNSUPPORTED, "message %zu: field \"tool_calls\": " NO_TOOLS, i + 1);
    }
    return STATUS_OK;
}

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
    THEN(status, chat_check_weights(request->messages));
    THEN(status, check_tools(template, request, NULL));
    THEN(status, chat_render_by(template, NULL, request, has_blocks, pieces));
    if (!status && has_blocks && which == CHAT_ANSWERS_LAST)
        keep_last(pieces);
    THEN(status, check_tools(template, request, pieces));
    THEN(status, find_answers(&row, which, has_blocks));
    THEN(status, mark_ends(&row));
    chat_pieces_free(&row.ask);
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
    int status = variables ? jinja_open(chat_alpaca_input, strlen(chat_alpaca_input), &jinja) : status_no_memory();
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
    THEN_IF(status, !messages, status_no_memory());
    filled.messages = messages;
    THEN(status, chat_render_row(template, &filled, CHAT_ANSWERS_ALL, pieces));
    json_decref(messages);
    strbuf_free(&joined);
    return status;
}
