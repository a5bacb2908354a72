/* How messages and instructions are put in words. Texts of ours may name special tokens, those of messages may not. */
#include "chat-internal.h"

#include <stdlib.h>
#include <string.h>

const char *const chat_template_names[] = {"auto", "chatml", "alpaca", "plain", NULL};

enum chat_template chat_template_named(const char *name) {
    for (int t = CHAT_TEMPLATE_AUTO + 1; t < CHAT_TEMPLATE_COUNT; t++)
        if (!strcmp(chat_template_names[t], name))
            return (enum chat_template)t;
    return CHAT_TEMPLATE_AUTO;
}

#define CHATML_END "<|im_end|>"

const char *chat_turn_end(enum chat_template which) {
    return which == CHAT_TEMPLATE_CHATML ? CHATML_END : NULL;
}

/* ---- pieces ---- */

void chat_pieces_clear(struct chat_pieces *pieces) {
    pieces->count = 0;
    strbuf_clear(&pieces->joined);
}

void chat_pieces_free(struct chat_pieces *pieces) {
    strbuf_free(&pieces->joined);
    free(pieces->items);
    *pieces = (struct chat_pieces){0};
}

int chat_pieces_add(struct chat_pieces *pieces, const char *text, size_t length, unsigned flags) {
    if (length == 0 && !(flags & CHAT_END))
        return STATUS_OK;
    if (pieces->count == pieces->capacity) {
        size_t capacity = pieces->capacity ? 2 * pieces->capacity : 16;
        struct chat_piece *grown = realloc(pieces->items, capacity * sizeof *grown);
        if (!grown)
            return status_fail(STATUS_MEMORY, "out of memory");
        pieces->items = grown;
        pieces->capacity = capacity;
    }
    pieces->items[pieces->count++] = (struct chat_piece){text, length, flags};
    return STATUS_OK;
}

int chat_pieces_add_answer(struct chat_pieces *pieces, const char *text, size_t length) {
    int status = chat_pieces_add(pieces, text, length, CHAT_ANSWER);
    return status ? status : chat_pieces_add(pieces, NULL, 0, CHAT_END | (length > 0 ? CHAT_ANSWER : 0));
}

static int add_ours(struct chat_pieces *pieces, const char *text) {
    return chat_pieces_add(pieces, text, strlen(text), CHAT_SPECIAL);
}

int chat_pieces_text(const struct chat_pieces *pieces, const char *eos, size_t eos_length, struct strbuf *text) {
    for (size_t i = 0; i < pieces->count; i++) {
        const struct chat_piece *piece = &pieces->items[i];
        if (piece->flags & CHAT_END)
            strbuf_add(text, eos, eos_length);
        else
            strbuf_add(text, piece->text, piece->length);
    }
    return strbuf_status(text);
}

int chat_piece_encode(const struct chat_piece *piece, struct tokenizer_encoder *encoder, int32_t eos,
                      struct token_buffer *ids) {
    unsigned flags = piece->flags & CHAT_SPECIAL ? TOKENIZER_ALLOW_SPECIAL : TOKENIZER_PLAIN;
    if (!(piece->flags & CHAT_END))
        return tokenizer_encode(encoder, piece->text, piece->length, flags, ids);
    return eos >= 0 ? token_buffer_add(ids, eos)
                    : status_fail(STATUS_INVALID, "the template puts an end-of-text behind an answer, and there is no "
                                                  "such token");
}

int chat_pieces_encode(const struct chat_pieces *pieces, struct tokenizer_encoder *encoder, int32_t eos,
                       struct token_buffer *ids) {
    int status = STATUS_OK;
    for (size_t i = 0; i < pieces->count && !status; i++)
        status = chat_piece_encode(&pieces->items[i], encoder, eos, ids);
    return status;
}

/* ---- turns ---- */

/* A message at its place. */
struct turn {
    const struct chat_message *message;
    bool is_first, is_last;
};

/* Every turn ends with <|im_end|>, which is part of an answer. */
static int add_chatml(const struct turn *turn, struct chat_pieces *pieces) {
    static const char *const heads[CHAT_ROLE_COUNT] = {"<|im_start|>system\n", "<|im_start|>user\n",
                                                       "<|im_start|>assistant\n"};
    const struct chat_message *message = turn->message;
    unsigned answer = message->role == CHAT_ASSISTANT && message->length > 0 ? CHAT_ANSWER : 0;
    int status = add_ours(pieces, heads[message->role]);
    if (!status)
        status = chat_pieces_add(pieces, message->text, message->length, answer);
    if (!status)
        status = chat_pieces_add(pieces, CHATML_END, sizeof CHATML_END - 1, CHAT_SPECIAL | answer);
    return status ? status : add_ours(pieces, "\n");
}

static int add_alpaca(const struct turn *turn, struct chat_pieces *pieces) {
    static const char *const heads[CHAT_ROLE_COUNT] = {"", "### Instruction:\n", ALPACA_REQUEST};
    const struct chat_message *message = turn->message;
    int status = STATUS_OK;
    if (turn->is_first && message->role != CHAT_SYSTEM)
        status = add_ours(pieces, ALPACA_PREAMBLE);
    if (!status)
        status = add_ours(pieces, heads[message->role]);
    if (!status)
        status = message->role == CHAT_ASSISTANT ? chat_pieces_add_answer(pieces, message->text, message->length)
                                                 : chat_pieces_add(pieces, message->text, message->length, 0);
    if (!status && !(turn->is_last && message->role == CHAT_ASSISTANT))
        status = add_ours(pieces, "\n\n");
    return status;
}

static int add_plain(const struct turn *turn, struct chat_pieces *pieces) {
    const struct chat_message *message = turn->message;
    if (message->role == CHAT_ASSISTANT)
        return chat_pieces_add_answer(pieces, message->text, message->length);
    int status = chat_pieces_add(pieces, message->text, message->length, 0);
    return status ? status : add_ours(pieces, "\n");
}

static int add_turn(enum chat_template which, const struct turn *turn, struct chat_pieces *pieces) {
    switch (which) {
    case CHAT_TEMPLATE_CHATML:
        return add_chatml(turn, pieces);
    case CHAT_TEMPLATE_ALPACA:
        return add_alpaca(turn, pieces);
    default:
        return add_plain(turn, pieces);
    }
}

int chat_render(enum chat_template which, const struct chat_message *messages, size_t count, bool asks,
                struct chat_pieces *pieces) {
    static const char *const requests[CHAT_TEMPLATE_COUNT] = {
        [CHAT_TEMPLATE_AUTO] = "",
        [CHAT_TEMPLATE_CHATML] = "<|im_start|>assistant\n",
        [CHAT_TEMPLATE_ALPACA] = ALPACA_REQUEST,
        [CHAT_TEMPLATE_PLAIN] = "",
    };
    int status = STATUS_OK;
    for (size_t i = 0; i < count && !status; i++)
        status = add_turn(which, &(struct turn){&messages[i], i == 0, i + 1 == count}, pieces);
    return status || !asks ? status : add_ours(pieces, requests[which]);
}

/* ---- instructions ---- */

static int add_alpaca_input(const struct chat_instruction *row, struct chat_pieces *pieces) {
    int status = add_ours(pieces, ALPACA_PREAMBLE_INPUT "### Instruction:\n");
    if (!status)
        status = chat_pieces_add(pieces, row->instruction, row->instruction_length, 0);
    if (!status)
        status = add_ours(pieces, "\n\n### Input:\n");
    if (!status)
        status = chat_pieces_add(pieces, row->input, row->input_length, 0);
    if (!status)
        status = add_ours(pieces, "\n\n" ALPACA_REQUEST);
    return status ? status : chat_pieces_add_answer(pieces, row->output, row->output_length);
}

int chat_render_instruction(enum chat_template which, const struct chat_instruction *row, struct chat_pieces *pieces) {
    struct chat_message messages[] = {{CHAT_USER, row->instruction, row->instruction_length},
                                      {CHAT_ASSISTANT, row->output, row->output_length}};
    if (row->input_length > 0 && which == CHAT_TEMPLATE_ALPACA)
        return add_alpaca_input(row, pieces);
    if (row->input_length > 0) {
        strbuf_add(&pieces->joined, row->instruction, row->instruction_length);
        strbuf_add_char(&pieces->joined, '\n');
        strbuf_add(&pieces->joined, row->input, row->input_length);
        int status = strbuf_status(&pieces->joined);
        if (status)
            return status;
        messages[0].text = pieces->joined.data;
        messages[0].length = pieces->joined.length;
    }
    return chat_render(which, messages, 2, false, pieces);
}
