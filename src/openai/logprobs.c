/* Tokens as JSON. A token is represented by its text if that is UTF-8, else by its bytes. It is represented by its
 * number when it has no text, or the same text as another token of the same place: keys of an object must differ. */
#include "openai.h"

#include "json_out.h"

#include "base/utf8.h"

/* ---- parts ---- */

static void join(struct strbuf *to, const struct strbuf *from) {
    if (to->length && from->length)
        strbuf_add_char(to, ',');
    strbuf_add(to, strbuf_text(from), from->length);
    to->failed |= from->failed;
}

void openai_part_clear(struct openai_part *part) {
    strbuf_clear(&part->text);
    strbuf_clear(&part->ids);
    strbuf_clear(&part->tokens);
    strbuf_clear(&part->logprobs);
    strbuf_clear(&part->tops);
    strbuf_clear(&part->offsets);
    strbuf_clear(&part->content);
}

void openai_part_free(struct openai_part *part) {
    strbuf_free(&part->text);
    strbuf_free(&part->ids);
    strbuf_free(&part->tokens);
    strbuf_free(&part->logprobs);
    strbuf_free(&part->tops);
    strbuf_free(&part->offsets);
    strbuf_free(&part->content);
}

void openai_part_join(struct openai_part *part, const struct openai_part *from) {
    strbuf_add(&part->text, strbuf_text(&from->text), from->text.length);
    part->text.failed |= from->text.failed;
    join(&part->tokens, &from->tokens);
    join(&part->logprobs, &from->logprobs);
    join(&part->tops, &from->tops);
    join(&part->offsets, &from->offsets);
    join(&part->content, &from->content);
}

bool openai_part_failed(const struct openai_part *part) {
    return part->text.failed || part->ids.failed || part->tokens.failed || part->logprobs.failed || part->tops.failed ||
           part->offsets.failed || part->content.failed;
}

/* ---- a token's name ---- */

static const unsigned char *bytes_of(const struct openai_token *token, int32_t id, size_t *length) {
    *length = 0;
    if (!token->tokenizer)
        return NULL;
    return (token->is_first ? tokenizer_first_bytes : tokenizer_token_bytes)(token->tokenizer, id, length);
}

static void add_number(struct strbuf *out, int32_t id) {
    strbuf_format(out, "\"token_id:%d\"", id);
}

static void add_name(struct strbuf *out, const struct openai_token *token, int32_t id) {
    size_t length;
    const unsigned char *bytes = bytes_of(token, id, &length);
    if (!bytes)
        add_number(out, id);
    else if (utf8_valid_length(bytes, length) == length)
        json_out_string(out, bytes, length);
    else {
        strbuf_add_text(out, "\"bytes:");
        for (size_t i = 0; i < length; i++)
            strbuf_format(out, "\\\\x%02x", bytes[i]);
        strbuf_add_char(out, '"');
    }
}

static bool are_alike(const struct openai_token *token, int32_t a, int32_t b) {
    size_t a_length, b_length;
    const unsigned char *a_bytes = bytes_of(token, a, &a_length), *b_bytes = bytes_of(token, b, &b_length);
    return a_bytes && b_bytes && a_length == b_length && !memcmp(a_bytes, b_bytes, a_length);
}

/* ---- completions ---- */

static int64_t reported_tops(const struct openai_token *token) {
    return token->token->top_count < token->most ? token->token->top_count : token->most;
}

static void add_top(struct strbuf *out, const struct openai_token *token, int64_t number, int32_t id, float logprob) {
    bool is_double = false;
    for (int64_t i = 0; i < number && !is_double; i++)
        is_double = are_alike(token, token->tops[i].id, id);
    if (number)
        strbuf_add_char(out, ',');
    if (is_double)
        add_number(out, id);
    else
        add_name(out, token, id);
    strbuf_add_char(out, ':');
    json_out_float(out, logprob);
}

/* The token itself is always included. */
static void add_tops(struct strbuf *out, const struct openai_token *token) {
    const struct call_token *chosen = token->token;
    int64_t count = reported_tops(token);
    bool has_chosen = false;
    if (!chosen->has_logprob) {
        strbuf_add_text(out, "null");
        return;
    }
    strbuf_add_char(out, '{');
    for (int64_t i = 0; i < count; i++) {
        add_top(out, token, i, token->tops[i].id, token->tops[i].logprob);
        has_chosen |= token->tops[i].id == chosen->id;
    }
    if (!has_chosen)
        add_top(out, token, count, chosen->id, chosen->logprob);
    strbuf_add_char(out, '}');
}

/* Counts the characters that end within the tail and these bytes; the rest is the new tail. */
static void move_place(struct openai_place *place, const unsigned char *bytes, size_t length) {
    unsigned char joined[8];
    const unsigned char *at = bytes, *end = bytes + length;
    while (place->tail_length && at < end) { /* the tail grows byte by byte until it is a character, or invalid */
        memcpy(joined, place->tail, place->tail_length);
        joined[place->tail_length] = *at;
        size_t count = place->tail_length + 1;
        if (utf8_unfinished_length(joined, count) == count) {
            place->tail[place->tail_length++] = *at++;
            continue;
        }
        place->characters++;
        place->tail_length = 0;
        if (utf8_length(joined, joined + count))
            at++;
    }
    while (at < end) {
        size_t step = utf8_length(at, end), remaining = (size_t)(end - at);
        if (!step && remaining < 4 && utf8_unfinished_length(at, remaining) == remaining) {
            memcpy(place->tail, at, remaining);
            place->tail_length = remaining;
            return;
        }
        at += step ? step : utf8_bad_length(at, end);
        place->characters++;
    }
}

static void add_comma(struct strbuf *out) {
    if (out->length)
        strbuf_add_char(out, ',');
}

static void add_logprob(struct strbuf *out, const struct call_token *token) {
    if (token->has_logprob)
        json_out_float(out, token->logprob);
    else
        strbuf_add_text(out, "null");
}

void openai_move_place(struct openai_place *place, const struct openai_token *token) {
    size_t length;
    const unsigned char *bytes = bytes_of(token, token->token->id, &length);
    if (bytes)
        move_place(place, bytes, length);
}

void openai_add_completion_token(struct openai_part *part, struct openai_place *place,
                                 const struct openai_token *token) {
    add_comma(&part->tokens);
    add_name(&part->tokens, token, token->token->id);
    add_comma(&part->logprobs);
    add_logprob(&part->logprobs, token->token);
    add_comma(&part->tops);
    add_tops(&part->tops, token);
    add_comma(&part->offsets);
    json_out_integer(&part->offsets, place->characters);
    openai_move_place(place, token);
}

/* ---- chats ---- */

static void add_chat_entry(struct strbuf *out, const struct openai_token *token, int32_t id, float logprob) {
    size_t length;
    const unsigned char *bytes = bytes_of(token, id, &length);
    strbuf_add_text(out, "{\"token\":");
    add_name(out, token, id);
    strbuf_add_text(out, ",\"logprob\":");
    json_out_float(out, logprob);
    strbuf_add_text(out, bytes ? ",\"bytes\":[" : ",\"bytes\":null");
    for (size_t i = 0; bytes && i < length; i++)
        strbuf_format(out, i ? ",%u" : "%u", bytes[i]);
    if (bytes)
        strbuf_add_char(out, ']');
}

void openai_add_chat_token(struct openai_part *part, const struct openai_token *token) {
    struct strbuf *out = &part->content;
    int64_t count = reported_tops(token);
    add_comma(out);
    add_chat_entry(out, token, token->token->id, token->token->logprob);
    strbuf_add_text(out, ",\"top_logprobs\":[");
    for (int64_t i = 0; i < count; i++) {
        if (i)
            strbuf_add_char(out, ',');
        add_chat_entry(out, token, token->tops[i].id, token->tops[i].logprob);
        strbuf_add_char(out, '}');
    }
    strbuf_add_text(out, "]}");
}

/* ---- prompts ---- */

void openai_add_plain_token(struct strbuf *out, const struct openai_token *token) {
    int64_t count = reported_tops(token);
    add_comma(out);
    strbuf_format(out, "{\"id\":%d,\"logprob\":", token->token->id);
    add_logprob(out, token->token);
    strbuf_add_text(out, ",\"top\":[");
    for (int64_t i = 0; i < count; i++) {
        strbuf_format(out, "%s{\"id\":%d,\"logprob\":", i ? "," : "", token->tops[i].id);
        json_out_float(out, token->tops[i].logprob);
        strbuf_add_char(out, '}');
    }
    strbuf_add_text(out, "]}");
}

/* ---- of a choice ---- */

void openai_add_logprobs(struct strbuf *out, const struct openai_part *part, bool is_chat, bool tells) {
    if (!tells)
        strbuf_add_text(out, "\"logprobs\":null");
    else if (is_chat) {
        strbuf_add_text(out, "\"logprobs\":{\"content\":[");
        strbuf_add(out, strbuf_text(&part->content), part->content.length);
        strbuf_add_text(out, "],\"refusal\":null}");
    } else {
        const struct strbuf *const lists[] = {&part->tokens, &part->logprobs, &part->tops, &part->offsets};
        static const char *const names[] = {"\"logprobs\":{\"tokens\":[", "],\"token_logprobs\":[",
                                            "],\"top_logprobs\":[", "],\"text_offset\":["};
        for (int i = 0; i < 4; i++) {
            strbuf_add_text(out, names[i]);
            strbuf_add(out, strbuf_text(lists[i]), lists[i]->length);
        }
        strbuf_add_text(out, "]}");
    }
}

void openai_add_prompt_tokens(const struct openai *request, struct openai_prompt *prompt,
                              const struct call_token *tokens, int64_t count, const struct call_top *tops) {
    for (int64_t i = 0; i < count; i++) {
        struct openai_token token = {.tokenizer = request->model->tokenizer,
                                     .token = &tokens[i],
                                     .tops = tops + tokens[i].first_top,
                                     .most = request->tops};
        if (request->echoes && request->tells_logprobs)
            openai_add_completion_token(&prompt->part, &prompt->place, &token);
        token.most = request->prompt_tops;
        if (request->prompt_tops >= 0)
            openai_add_plain_token(&prompt->logprobs, &token);
    }
}
