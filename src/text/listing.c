/* The lists of an opened tokenizer: its tokens by id, their kinds, merges and scores. See lists.h. */
#include "lists.h"

#include "text-internal.h"

void token_name_write(const struct tokenizer *tokenizer, int32_t id, struct strbuf *out) {
    size_t length;
    const unsigned char *bytes = tokenizer_token_bytes(tokenizer, id, &length);
    if (tokenizer->kinds[id] & TOKEN_RAW)
        strbuf_add(out, bytes, length);
    else if (tokenizer->kinds[id] & TOKEN_BYTE && length == 1)
        strbuf_format(out, "<0x%02X>", bytes[0]);
    else if (tokenizer->rules.is_by_characters)
        space_marks_write(bytes, length, out);
    else
        byte_alphabet_encode(bytes, length, out);
}

/* Finds the pattern's place among those that lists can name. */
static int find_words(const struct tokenizer *tokenizer, enum tokenizer_list_words *words) {
    const struct tokenizer_rules *rules = &tokenizer->rules;
    static const struct {
        enum word_pattern pattern;
        enum tokenizer_list_words words;
    } named[] = {
        {WORDS_BYTE_LEVEL, LIST_BYTE_LEVEL}, {WORDS_LLAMA3, LIST_LLAMA3}, {WORDS_QWEN2, LIST_QWEN2},
        {WORDS_O200K, LIST_O200K},           {WORDS_TEKKEN, LIST_TEKKEN}, {WORDS_SMOLLM, LIST_SMOLLM},
    };
    if (rules->is_by_characters && rules->has_byte_fallback) {
        *words = LIST_CHARACTERS;
        return STATUS_OK;
    }
    for (size_t i = 0; i < sizeof named / sizeof *named && !rules->is_by_characters; i++)
        if (named[i].pattern == rules->pattern) {
            *words = named[i].words;
            return STATUS_OK;
        }
    return status_fail(STATUS_UNSUPPORTED, "the tokenizer splits texts in a way that has no name in lists of tokens");
}

static enum tokenizer_list_kind kind_of(const struct tokenizer *tokenizer, int32_t id) {
    uint16_t kind = tokenizer->kinds[id];
    return kind & TOKEN_SPECIAL ? LIST_SPECIAL
           : kind & TOKEN_ADDED ? LIST_ADDED
           : kind & TOKEN_BYTE  ? LIST_BYTE
                                : LIST_NORMAL;
}

/* Adds a text that ends at the end of `text`; its bytes are found once the text stays in place. */
static void end_name(const struct strbuf *text, size_t start, struct tokenizer_name *name) {
    *name = (struct tokenizer_name){.length = text->length - start};
}

static void place_names(const char *at, struct tokenizer_name *names, size_t count) {
    for (size_t i = 0; i < count; i++) {
        names[i].bytes = at;
        at += names[i].length;
    }
}

static void add_merges(const struct tokenizer *tokenizer, struct tokenizer_listing *l) {
    for (size_t i = 0; i < tokenizer->merge_count; i++) {
        size_t start = l->text.length;
        token_name_write(tokenizer, tokenizer->merges[i].left, &l->text);
        strbuf_add_char(&l->text, ' ');
        token_name_write(tokenizer, tokenizer->merges[i].right, &l->text);
        end_name(&l->text, start, &l->merges[i]);
    }
}

/* The score of a token is minus the rank of the first merge that makes it; others come after all of these. */
static void set_scores(const struct tokenizer *tokenizer, double *scores) {
    for (int32_t id = 0; id < tokenizer->size; id++)
        scores[id] = kind_of(tokenizer, id) == LIST_NORMAL ? -(double)tokenizer->merge_count : 0;
    for (size_t i = tokenizer->merge_count; i-- > 0;)
        scores[tokenizer->merges[i].result] = -(double)i;
}

int tokenizer_list(const struct tokenizer *tokenizer, struct tokenizer_listing *l) {
    struct tokenizer_lists *lists = &l->lists;
    *l = (struct tokenizer_listing){0};
    TRY(find_words(tokenizer, &lists->words));
    lists->count = (size_t)tokenizer->size;
    lists->merge_count = tokenizer->merge_count;
    l->tokens = calloc(lists->count + 1, sizeof *l->tokens);
    l->merges = calloc(lists->merge_count + 1, sizeof *l->merges);
    l->kinds = calloc(lists->count + 1, sizeof *l->kinds);
    l->scores = calloc(lists->count + 1, sizeof *l->scores);
    TRY(status_allocated(l->tokens && l->merges && l->kinds && l->scores));
    for (int32_t id = 0; id < tokenizer->size; id++) {
        size_t start = l->text.length;
        token_name_write(tokenizer, id, &l->text);
        end_name(&l->text, start, &l->tokens[id]);
        l->kinds[id] = l->tokens[id].length ? kind_of(tokenizer, id) : LIST_UNUSED;
    }
    size_t merges_start = l->text.length;
    add_merges(tokenizer, l);
    TRY(strbuf_status(&l->text));
    place_names(l->text.data, l->tokens, lists->count);
    place_names(l->text.data + merges_start, l->merges, lists->merge_count);
    set_scores(tokenizer, l->scores);
    lists->tokens = l->tokens;
    lists->merges = l->merges;
    lists->kinds = l->kinds;
    lists->scores = l->scores;
    lists->has_nfc = tokenizer->rules.has_nfc;
    lists->ignores_merges = tokenizer->rules.ignore_merges;
    lists->has_space_prefix = tokenizer->rules.prefix != PREFIX_NEVER;
    lists->adds_bos = tokenizer->rules.begin.count > 0;
    lists->adds_eos = tokenizer->rules.end.count > 0;
    lists->eos = tokenizer->roles[ROLE_EOS];
    lists->bos = tokenizer->roles[ROLE_BOS];
    lists->unk = tokenizer->roles[ROLE_UNK];
    lists->pad = tokenizer->roles[ROLE_PAD];
    return STATUS_OK;
}

void tokenizer_listing_free(struct tokenizer_listing *l) {
    free(l->tokens);
    free(l->merges);
    free(l->kinds);
    free(l->scores);
    strbuf_free(&l->text);
}
