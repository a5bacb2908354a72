/* Renders messages by a template into pieces, and turns pieces into tokens. */
#include "chat-internal.h"

#include "base/utf8.h"
#include "text-internal.h"
#include "tool_format.h"

/* ---- pieces ---- */

void chat_pieces_clear(struct chat_pieces *pieces) {
    pieces->count = pieces->endless = 0;
    strbuf_clear(&pieces->text);
    chat_template_close(pieces->template);
    pieces->template = NULL;
}

void chat_pieces_free(struct chat_pieces *pieces) {
    chat_template_close(pieces->template);
    strbuf_free(&pieces->text);
    free(pieces->items);
    *pieces = (struct chat_pieces){0};
}

/* Adds a piece for text that is already in pieces->text. */
static int note_piece(struct chat_pieces *pieces, size_t length, unsigned flags) {
    TRY(array_reserve(&pieces->items, &pieces->capacity, pieces->count + 1, sizeof *pieces->items));
    pieces->items[pieces->count++] = (struct chat_piece){length, flags};
    return STATUS_OK;
}

/* The same, merged with the last piece when their flags are equal. */
static int note_joined(struct chat_pieces *pieces, size_t length, unsigned flags) {
    struct chat_piece *last = pieces->count ? &pieces->items[pieces->count - 1] : NULL;
    if (!length)
        return STATUS_OK;
    if (!last || last->flags != flags || flags & CHAT_END)
        return note_piece(pieces, length, flags);
    last->length += length;
    return STATUS_OK;
}

static int add_text(struct chat_pieces *pieces, const char *text, size_t length) {
    strbuf_add(&pieces->text, text, length);
    return strbuf_status(&pieces->text);
}

int chat_pieces_add(struct chat_pieces *pieces, const char *text, size_t length, unsigned flags) {
    int status = length ? add_text(pieces, text, length) : STATUS_OK;
    if (!status && !length && flags & CHAT_END)
        return note_piece(pieces, 0, flags);
    return status ? status : note_joined(pieces, length, flags);
}

int chat_pieces_add_answer(struct chat_pieces *pieces, const char *text, size_t length, unsigned flags) {
    int status = chat_pieces_add(pieces, text, length, flags | CHAT_ANSWER);
    return status ? status : chat_pieces_add(pieces, NULL, 0, CHAT_END | (length > 0 ? CHAT_ANSWER : 0));
}

/* ---- rendering ---- */

/* Roles that templates know. For these, '<|' + role + '|>' is the template's own text. */
static const char *const roles[] = {"system",  "user",  "assistant",   "tool",     "developer", "function",
                                    "ipython", "model", "observation", "document", "context",   NULL};

/* Sets *name to the name of a special token, or to NULL when there is none. */
static int name_special(const struct chat_request *request, int role, json_t **name) {
    int32_t id = role == ROLE_EOS ? request->eos : request->tokenizer ? request->tokenizer->roles[role] : -1;
    size_t length = 0;
    const unsigned char *bytes =
        request->tokenizer && id >= 0 ? tokenizer_token_bytes(request->tokenizer, id, &length) : NULL;
    bool is_text = bytes && utf8_valid_length(bytes, length) == length;
    if (is_text)
        *name = json_stringn((const char *)bytes, length);
    else if (role == ROLE_EOS && id >= 0)
        *name = json_string(END_OF_TEXT); /* it has an id but no name */
    else
        return STATUS_OK;
    return status_allocated(*name);
}

enum { FIXED_ARGUMENTS = 4 + ROLE_COUNT };

struct arguments {
    struct jinja_argument *items;
    size_t count;
    json_t *names[ROLE_COUNT], *messages;
    int status;
};

static void close_arguments(struct arguments *arguments) {
    for (int role = 0; role < ROLE_COUNT; role++)
        json_decref(arguments->names[role]);
    json_decref(arguments->messages);
    free(arguments->items);
}

/* Special tokens come first, so that variables may override them; the messages come last. */
static int open_arguments(const struct chat_request *request, struct arguments *arguments) {
    size_t variables = json_object_size(request->variables);
    const char *key;
    json_t *value;
    *arguments = (struct arguments){.items = calloc(FIXED_ARGUMENTS + variables, sizeof *arguments->items)};
    TRY(status_allocated(arguments->items));
    int status = request->messages ? chat_normalize_messages(request->messages, &arguments->messages) : STATUS_OK;
    for (int role = 0; role < ROLE_COUNT && !status; role++) {
        status = name_special(request, role, &arguments->names[role]);
        arguments->items[arguments->count++] = (struct jinja_argument){.name = token_role_names[role],
                                                                       .value = arguments->names[role],
                                                                       .marks = role == ROLE_EOS ? CHAT_MARK_EOS : 0};
    }
    json_object_foreach((json_t *)request->variables, key, value) arguments->items[arguments->count++] =
        (struct jinja_argument){key, value, CHAT_MARK_DATA, NULL, NULL};
    const struct jinja_argument fixed[] = {
        {"tools", request->tools ? request->tools : json_null(), CHAT_MARK_DATA, NULL, NULL},
        {"documents", request->documents ? request->documents : json_null(), CHAT_MARK_DATA, NULL, NULL},
        {"add_generation_prompt", request->asks ? json_true() : json_false(), 0, NULL, NULL},
        {"messages", arguments->messages, CHAT_MARK_DATA, "role", roles},
    };
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        if (fixed[i].value)
            arguments->items[arguments->count++] = fixed[i];
    return status;
}

/* True when the end-of-text is found by its name in the text, like every other special token. */
static bool is_found_by_name(const struct chat_request *request, const json_t *eos) {
    return request->tokenizer && eos &&
           tokenizer_find(request->tokenizer, json_string_value(eos), json_string_length(eos)) == request->eos &&
           tokenizer_is_special(request->tokenizer, request->eos);
}

/* Appends a rendering's text. It may be large, so it is moved rather than copied when nothing precedes it. */
static int take_text(struct chat_pieces *pieces, struct strbuf *text) {
    if (pieces->text.length)
        return add_text(pieces, strbuf_text(text), text->length);
    strbuf_free(&pieces->text);
    pieces->text = *text;
    *text = STRBUF_INIT;
    return STATUS_OK;
}

/* Adds the pieces of a range whose text was taken. `eos`: the name of an end-of-text that its name does not find; NULL:
 * none. */
static int note_range(struct chat_pieces *pieces, const char *text, size_t length, unsigned marks, const json_t *eos,
                      bool keep_generated) {
    unsigned flags =
        (marks & CHAT_MARK_DATA ? 0 : CHAT_SPECIAL) | (marks & JINJA_GENERATED && keep_generated ? CHAT_ANSWER : 0);
    size_t each = json_string_length(eos);
    int status = STATUS_OK;
    if (!(marks & CHAT_MARK_EOS) || marks & CHAT_MARK_DATA || !each || length % each ||
        memcmp(text, json_string_value(eos), each) != 0)
        return note_joined(pieces, length, flags);
    for (size_t at = 0; at < length && !status; at += each)
        status = note_joined(pieces, each, (flags & CHAT_ANSWER) | CHAT_SPECIAL | CHAT_END);
    return status;
}

int chat_render_by(struct chat_template *template, const struct jinja *jinja, const struct chat_request *request,
                   bool keep_generated, struct chat_pieces *pieces) {
    struct arguments arguments;
    struct jinja_text text = {0};
    struct jinja_limits limits = jinja_default_limits;
    struct tm now;
    time_t seconds = time(NULL);
    int status = open_arguments(request, &arguments);
    if (request->seconds > 0)
        limits.seconds = request->seconds;
    if (!jinja)
        jinja = request->tools && template->with_tools ? template->with_tools : template->jinja;
    const struct jinja_rendering rendering = {.arguments = arguments.items,
                                              .count = arguments.count,
                                              .limits = &limits,
                                              .now = request->now ? request->now : localtime_r(&seconds, &now)};
    THEN(status, jinja_render(jinja, &rendering, &text));
    if (status && status != STATUS_MEMORY)
        status_wrap(status, "the chat template");
    const json_t *eos = is_found_by_name(request, arguments.names[ROLE_EOS]) ? NULL : arguments.names[ROLE_EOS];
    size_t from = 0, begin = pieces->text.length;
    THEN(status, take_text(pieces, &text.text));
    for (size_t i = 0; i < text.count && !status; i++) {
        status = note_range(pieces, strbuf_text(&pieces->text) + begin + from, text.ranges[i].end - from,
                            text.ranges[i].marks, eos, keep_generated);
        from = text.ranges[i].end;
    }
    if (!pieces->template)
        pieces->template = chat_template_keep(template);
    jinja_text_free(&text);
    close_arguments(&arguments);
    return status;
}

int chat_render(struct chat_template *template, const struct chat_request *request, struct chat_pieces *pieces) {
    struct chat_request asked = *request;
    json_t *written = NULL;
    int status = STATUS_OK;
    if (request->messages && !chat_knows_tools(template)) {
        status = chat_write_tools(request, &written);
        asked.messages = written;
        asked.tools = NULL;
    }
    THEN_IF(status, template->name != CHAT_OTHER, chat_check_plain(&asked, chat_template_name(template)));
    THEN(status, chat_render_by(template, NULL, &asked, false, pieces));
    json_decref(written);
    return status;
}

/* ---- tokens ---- */

/* A name in the template is a token only where the template writes it. */
static bool is_control(const void *context, const void *bytes, size_t length) {
    const struct chat_template *template = context;
    return template && (jinja_has_literal(template->jinja, bytes, length) ||
                        (template->with_tools && jinja_has_literal(template->with_tools, bytes, length)));
}

/* Appends the flags of the pieces that each token has bytes of. A token without bytes stands before a text. */
static int add_flags(const struct chat_piece *pieces, size_t count, const struct token_spans *spans,
                     struct strbuf *flags) {
    size_t first = 0, from = 0; /* the first piece that ends after the token's beginning */
    for (size_t i = 0; i < spans->count; i++) {
        struct token_span span = spans->items[i];
        unsigned found = 0;
        size_t end = span.end > span.begin ? span.end : span.begin + 1;
        for (; first < count && from + pieces[first].length <= span.begin; first++)
            from += pieces[first].length;
        for (size_t k = first, at = from; k < count && at < end; at += pieces[k++].length)
            found |= pieces[k].flags;
        strbuf_add_char(flags, (char)found);
    }
    return strbuf_status(flags);
}

/* The encoder of pieces, and what receives their tokens. */
struct encoding {
    struct tokenizer_encoder *encoder;
    int32_t eos;
    struct token_buffer *ids;
    struct strbuf *flags; /* NULL: not wanted */
};

/* Encodes `count` pieces from piece `at` on, without an end-of-text among them. Their text begins at `byte`. */
static int encode_together(const struct chat_pieces *pieces, size_t at, size_t count, size_t byte,
                           const struct encoding *to) {
    const struct chat_piece *first = &pieces->items[at];
    struct tokenizer_part *items = malloc(count * sizeof *items);
    struct token_spans spans = {0};
    struct tokenizer_parts parts = {items, count, is_control, pieces->template, &spans};
    size_t end = 0;
    TRY(status_allocated(items));
    for (size_t i = 0; i < count; i++)
        items[i] = (struct tokenizer_part){.end = end += first[i].length, .has_special = first[i].flags & CHAT_SPECIAL};
    int status = tokenizer_encode_parts(to->encoder, strbuf_text(&pieces->text) + byte, end,
                                        at > 0 ? TOKENIZER_AFTER_TOKEN : TOKENIZER_PLAIN, &parts, to->ids);
    THEN_IF(status, to->flags, add_flags(first, count, &spans, to->flags));
    token_spans_free(&spans);
    free(items);
    return status;
}

static int encode_end(const struct chat_piece *piece, const struct encoding *to) {
    struct strbuf *flags = to->flags;
    if (to->eos < 0)
        return status_fail(STATUS_INVALID,
                           "the template puts an end-of-text after an answer, and there is no such token");
    while (flags && piece->flags & CHAT_ADDED && flags->length && !(flags->data[flags->length - 1] & CHAT_ANSWER)) {
        flags->data[--flags->length] = 0;
        to->ids->count--;
    }
    if (flags)
        strbuf_add_char(flags, (char)piece->flags);
    return flags && strbuf_status(flags) ? STATUS_MEMORY : token_buffer_add(to->ids, to->eos);
}

int chat_pieces_encode(const struct chat_pieces *pieces, struct tokenizer_encoder *encoder, int32_t eos,
                       struct token_buffer *ids, struct strbuf *flags) {
    const struct encoding to = {encoder, eos, ids, flags};
    int status = STATUS_OK;
    for (size_t at = 0, byte = 0, end = 0; at < pieces->count && !status; byte = end) {
        size_t first = at;
        for (; at < pieces->count && !(pieces->items[at].flags & CHAT_END); at++)
            end += pieces->items[at].length;
        if (at > first)
            status = encode_together(pieces, first, at - first, byte, &to);
        if (!status && at < pieces->count) {
            end += pieces->items[at].length;
            status = encode_end(&pieces->items[at++], &to);
        }
    }
    return status;
}

/* ---- the end of a turn ---- */

/* Returns the template's text after the answer, up to an end-of-text or to the next message. */
static size_t find_tail(const struct chat_pieces *pieces, bool has_next, size_t *begin, bool *has_end) {
    size_t at = 0, length = 0, last = pieces->count;
    bool has_words = false;
    *has_end = false;
    while (has_next && last > 0 && pieces->items[last - 1].flags & CHAT_SPECIAL)
        last--;
    last -= has_next && last > 0; /* the words of the next message */
    for (size_t i = 0; i < last; at += pieces->items[i++].length) {
        unsigned flags = pieces->items[i].flags;
        if (!(flags & CHAT_SPECIAL)) {
            has_words = true;
            *has_end = false;
            *begin = at + pieces->items[i].length;
            length = 0;
        } else if (!*has_end && !(*has_end = flags & CHAT_END)) {
            length += pieces->items[i].length;
        }
    }
    return has_words ? length : 0;
}

/* Bytes after an answer that are searched for the end of a turn, because a template may write any amount. */
enum { TAIL_BYTES = 1024 };

/* Returns false when there is neither a special token nor an end-of-text. `has_next`: another message follows, whose
 * first special token counts. */
static bool take_turn_end(const struct tokenizer *tokenizer, int32_t eos, const struct chat_pieces *pieces,
                          bool has_next, char text[CHAT_TURN_END_BYTES]) {
    bool has_end;
    size_t begin = 0, length = find_tail(pieces, has_next, &begin, &has_end), bytes = 0;
    const char *at = strbuf_text(&pieces->text) + begin;
    length = length < TAIL_BYTES ? length : TAIL_BYTES;
    size_t found = tokenizer ? added_tokens_first_special(tokenizer, at, length, &bytes) : SIZE_MAX, space = 0, end;
    has_end |= found != SIZE_MAX;
    if (has_next && found == SIZE_MAX)
        return false;
    if (found != SIZE_MAX && tokenizer_find(tokenizer, at + found, bytes) == eos) {
        length = has_next ? 0 : found; /* the text before it ends the turn, or there is nothing else */
        found = SIZE_MAX;
    }
    if (found != SIZE_MAX) {
        space = found;
        end = found + bytes;
    } else {
        while (space < length && strchr(" \t\r\n", at[space]))
            space++;
        for (end = space; end < length && at[end] != '\r' && at[end] != '\n';)
            end++;
        while (end > space && (at[end - 1] == ' ' || at[end - 1] == '\t'))
            end--;
    }
    if (end - space < CHAT_TURN_END_BYTES)
        snprintf(text, CHAT_TURN_END_BYTES, "%.*s", (int)(end - space), at + space);
    return has_end;
}

static bool recall_turn_end(struct chat_template *template, const struct tokenizer *tokenizer, int32_t eos,
                            char text[CHAT_TURN_END_BYTES]) {
    pthread_mutex_lock(&template->lock);
    bool is_known =
        template->turn_end.is_known && template->turn_end.tokenizer == tokenizer && template->turn_end.eos == eos;
    if (is_known)
        memcpy(text, template->turn_end.text, CHAT_TURN_END_BYTES);
    pthread_mutex_unlock(&template->lock);
    return is_known;
}

static void keep_turn_end(struct chat_template *template, const struct tokenizer *tokenizer, int32_t eos,
                          const char text[CHAT_TURN_END_BYTES]) {
    pthread_mutex_lock(&template->lock);
    template->turn_end.is_known = true;
    template->turn_end.tokenizer = tokenizer;
    template->turn_end.eos = eos;
    memcpy(template->turn_end.text, text, CHAT_TURN_END_BYTES);
    pthread_mutex_unlock(&template->lock);
}

int chat_find_turn_end(struct chat_template *template, const struct tokenizer *tokenizer, int32_t eos, double seconds,
                       char text[CHAT_TURN_END_BYTES]) {
    memset(text, 0, CHAT_TURN_END_BYTES);
    if (recall_turn_end(template, tokenizer, eos, text))
        return STATUS_OK;
    json_t *messages = json_pack("[{s:s, s:s}, {s:s, s:s}]", "role", "user", "content", "question", "role", "assistant",
                                 "content", "answer");
    struct chat_request request = {.messages = messages, .tokenizer = tokenizer, .eos = eos, .seconds = seconds};
    struct chat_pieces pieces = {0};
    int status = messages ? chat_render(template, &request, &pieces) : status_no_memory();
    bool is_known = !status;
    if (is_known && !take_turn_end(tokenizer, eos, &pieces, false, text) && !*text) {
        chat_pieces_clear(&pieces);
        if (json_array_append(messages, json_array_get(messages, 0)))
            status = status_no_memory();
        else if (!(status = chat_render(template, &request, &pieces)))
            take_turn_end(tokenizer, eos, &pieces, true, text);
    }
    if (is_known && status != STATUS_MEMORY)
        keep_turn_end(template, tokenizer, eos, text);
    chat_pieces_free(&pieces);
    json_decref(messages);
    return status == STATUS_MEMORY ? status : STATUS_OK;
}
