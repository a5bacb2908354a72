/* The keys of a tokenizer in a GGUF file. */
#include "convert-internal.h"

#include "text/chat.h"

/* The arrays of the keys: a token for each row of the embedding. */
struct arrays {
    struct gguf_text *tokens, *merges;
    int32_t *kinds;
    float *scores;
    char (*paddings)[16]; /* names of rows without a token */
    size_t count;
};

static void free_arrays(struct arrays *a) {
    free(a->tokens);
    free(a->merges);
    free(a->kinds);
    free(a->scores);
    free(a->paddings);
}

static int fill(const struct tokenizer_lists *lists, struct arrays *a) {
    size_t padded = a->count - lists->count;
    a->tokens = calloc(a->count + 1, sizeof *a->tokens);
    a->merges = calloc(lists->merge_count + 1, sizeof *a->merges);
    a->kinds = calloc(a->count + 1, sizeof *a->kinds);
    a->scores = calloc(a->count + 1, sizeof *a->scores);
    a->paddings = calloc(padded + 1, sizeof *a->paddings);
    TRY(status_allocated(a->tokens && a->merges && a->kinds && a->scores && a->paddings));
    for (size_t i = 0; i < lists->count; i++) {
        a->tokens[i] = (struct gguf_text){.bytes = lists->tokens[i].bytes, .length = lists->tokens[i].length};
        a->kinds[i] = gguf_token_kind(lists->kinds[i], lists->words == LIST_CHARACTERS && (int64_t)i == lists->unk);
        a->scores[i] = (float)lists->scores[i];
    }
    for (size_t i = 0; i < padded; i++) {
        int length = snprintf(a->paddings[i], sizeof *a->paddings, "[PAD%zu]", lists->count + i);
        a->tokens[lists->count + i] = (struct gguf_text){.bytes = a->paddings[i], .length = (size_t)length};
        a->kinds[lists->count + i] = gguf_token_kind(LIST_UNUSED, false);
    }
    for (size_t i = 0; i < lists->merge_count; i++)
        a->merges[i] = (struct gguf_text){.bytes = lists->merges[i].bytes, .length = lists->merges[i].length};
    return STATUS_OK;
}

/* The keys of the ids that end a text or a turn. */
enum { GGUF_ENDS = 3 };
static const char *const end_keys[GGUF_ENDS] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                                "tokenizer.ggml.eom_token_id"};

static void put_id(struct gguf_output *output, const char *key, int64_t id) {
    if (id >= 0)
        gguf_put_integer(output, key, (uint32_t)id);
}

/* The ids that end a text are the model's, and then the tokenizer's: where they differ, a chat may end with either. */
static void put_ids(const struct model_source *m, const struct tokenizer_lists *lists, struct gguf_output *output) {
    put_id(output, "tokenizer.ggml.bos_token_id", m->ends.has_bos ? m->ends.bos : lists->bos);
    struct model_text_ends ends = m->ends;
    if (lists->eos >= 0 && ends.count < GGUF_ENDS)
        model_add_eos(&ends, (int32_t)lists->eos, false);
    for (int i = 0; i < GGUF_ENDS && i < ends.count; i++)
        put_id(output, end_keys[i], ends.eos[i]);
    put_id(output, "tokenizer.ggml.unknown_token_id", lists->unk);
    put_id(output, "tokenizer.ggml.padding_token_id", lists->pad);
    gguf_put_bool(output, "tokenizer.ggml.add_bos_token", lists->adds_bos);
    gguf_put_bool(output, "tokenizer.ggml.add_eos_token", lists->adds_eos);
}

static int put_lists(const struct model_source *m, const struct tokenizer_lists *lists, struct gguf_output *output) {
    struct arrays a = {.count = (size_t)m->config.vocab_size};
    bool is_by_characters = lists->words == LIST_CHARACTERS;
    if (lists->count > a.count)
        return status_fail(STATUS_INVALID, "%s: the tokenizer has %zu tokens, but the embedding has %zu rows",
                           m->source->directory, lists->count, a.count);
    int status = fill(lists, &a);
    if (!status) {
        gguf_put_text(output, "tokenizer.ggml.model", gguf_tokenizer_name(is_by_characters));
        gguf_put_text(output, "tokenizer.ggml.pre", is_by_characters ? "default" : gguf_pattern_name(lists->words));
        gguf_put_texts(output, "tokenizer.ggml.tokens", a.tokens, a.count);
        gguf_put_integers(output, "tokenizer.ggml.token_type", a.kinds, a.count);
        if (is_by_characters) {
            gguf_put_numbers(output, "tokenizer.ggml.scores", a.scores, a.count);
            gguf_put_bool(output, "tokenizer.ggml.add_space_prefix", lists->has_space_prefix);
        } else {
            gguf_put_texts(output, "tokenizer.ggml.merges", a.merges, lists->merge_count);
        }
        put_ids(m, lists, output);
    }
    free_arrays(&a);
    return status;
}

static int put_template(const struct model_source *m, struct gguf_output *output) {
    struct chat_template *template = NULL;
    int status = chat_template_of_tokenizer(&m->tokenizer, &template);
    if (!status && template)
        gguf_put_text(output, "tokenizer.chat_template", strbuf_text(chat_template_text(template)));
    chat_template_close(template);
    return status;
}

int gguf_put_tokenizer(const struct model_source *m, struct gguf_output *output) {
    struct tokenizer *tokenizer = NULL;
    struct tokenizer_listing listing = {0};
    if (!m->tokenizer.is_there[TOKENIZER_JSON] && !m->tokenizer.is_there[TOKENIZER_VOCAB])
        return STATUS_OK;
    int status = tokenizer_open_files(&m->tokenizer, &tokenizer);
    THEN(status, tokenizer_list(tokenizer, &listing));
    THEN(status, put_lists(m, &listing.lists, output));
    THEN(status, put_template(m, output));
    tokenizer_listing_free(&listing);
    tokenizer_close(tokenizer);
    return status;
}
