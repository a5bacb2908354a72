/* A constraint from any bytes, and a text that it allows. Each token is one that the mask allows, so it must be
 * accepted. There is always a next one until the text is complete. */
#pragma once

#include "grammar/grammar.h"

#include <assert.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct grammar_vocabulary *grammar_fuzz_vocabulary(void) {
    static struct grammar_vocabulary *vocabulary;
    static char bytes[256];
    static struct grammar_token tokens[258];
    if (vocabulary)
        return vocabulary;
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        tokens[i] = (struct grammar_token){&bytes[i], 1, false};
    }
    tokens[256] = (struct grammar_token){"</s>", 4, true};
    tokens[257] = (struct grammar_token){"<tool>", 6, true};
    if (grammar_vocabulary_open(tokens, 258, (int32_t[]){256}, 1, &vocabulary))
        abort();
    return vocabulary;
}

static void grammar_fuzz_follow(struct grammar *grammar, const uint8_t *data, size_t size) {
    struct grammar_state state = {0};
    if (grammar_begin(grammar, &state))
        return;
    for (size_t i = 0; i < 24 && !state.is_over; i++) {
        uint32_t mask[9] = {0};
        struct grammar_allowed allowed;
        if (grammar_mask(&state, 10, mask, &allowed))
            break;
        assert(allowed.count > 0);
        int32_t id = (int32_t)(size ? data[i % size] : 0);
        while (!(mask[id / 32] >> id % 32 & 1))
            id = (id + 1) % 258;
        assert(!grammar_accept(&state, id, NULL));
        assert(id != 256 || state.is_over);
    }
    grammar_end(&state);
}

/* Compiles a source, and follows a text that the bytes choose. */
static void grammar_fuzz_source(const struct grammar_source *source, const uint8_t *data, size_t size) {
    const struct grammar_limits limits = {.seconds = 10, .bytes = 16 << 20};
    struct grammar_report report = {0};
    struct grammar *grammar = NULL;
    int status = grammar_compile(source, grammar_fuzz_vocabulary(), &limits, &report, &grammar);
    assert(!status == (report.refusal == GRAMMAR_FINE));
    assert(!source->field == !*report.field);
    assert(!status || (report.message.length && !strchr(strbuf_text(&report.message), '\n')));
    if (!status)
        grammar_fuzz_follow(grammar, data, size);
    grammar_release(grammar);
    grammar_report_free(&report);
}

static inline void grammar_fuzz_one(enum grammar_kind kind, const uint8_t *data, size_t size) {
    grammar_fuzz_source(&(struct grammar_source){.kind = kind, .text = (const char *)data, .length = size}, data, size);
}
