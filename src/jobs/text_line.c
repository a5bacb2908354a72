/* Reads texts of JSON lines as ids. */
#include "text_line.h"

#include "data/json_line.h"
#include "pretrained/pretrained.h"

int text_reader_text(struct text_reader *r, const char *text, size_t length, struct token_buffer *ids) {
    int status = STATUS_OK;
    if (!r->opened) {
        status = pretrained_open_tokenizer(r->tokenizer, &r->opened);
        THEN(status, tokenizer_encoder_new(r->opened, &r->encoder));
    }
    return status ? status
                  : tokenizer_encode(r->encoder, text, length,
                                     TOKENIZER_ADD_SPECIAL | special_tokens_flag(r->special_tokens), ids);
}

static int take_ids(const struct text_reader *r, const json_t *tokens, struct token_buffer *ids) {
    int status = STATUS_OK;
    for (size_t i = 0; i < json_array_size(tokens) && !status; i++) {
        const json_t *id = json_array_get(tokens, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= r->vocab)
            return status_fail(STATUS_INVALID, "token %zu is not an id from 0 to %lld", i, (long long)r->vocab - 1);
        status = token_buffer_add(ids, (int32_t)json_integer_value(id));
    }
    return status;
}

int text_reader_line(struct text_reader *r, const char *line, size_t length, struct token_buffer *ids, json_t **root) {
    TRY(json_line_read(line, length, root));
    const json_t *string = json_object_get(*root, "text"), *tokens = json_object_get(*root, "tokens");
    if (json_is_string(string) && !tokens)
        return text_reader_text(r, json_string_value(string), json_string_length(string), ids);
    if (json_is_array(tokens) && !string)
        return take_ids(r, tokens, ids);
    return status_fail(STATUS_INVALID,
                       "an object with either \"text\" (a string) or \"tokens\" (an array) was expected");
}

void text_reader_close(struct text_reader *r) {
    tokenizer_encoder_free(r->encoder);
    tokenizer_close(r->opened);
}
