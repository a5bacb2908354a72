/* The tokenizer of a GGUF file. The keys have its tokens, their kinds, and merges or scores. The name in
 * tokenizer.ggml.pre stands for the pattern that splits a text into words, which the file does not have. */
#include "gguf_model-internal.h"

/* Names of patterns, with what else the tokenizers of that name have. */
static const struct pattern {
    const char *name;
    enum tokenizer_list_words words;
    bool has_nfc, ignores_merges, adds_bos;
} patterns[] = {
    {"gpt-2", LIST_BYTE_LEVEL, false, false, false}, {"llama-bpe", LIST_LLAMA3, false, true, true},
    {"llama3", LIST_LLAMA3, false, true, true},      {"llama-v3", LIST_LLAMA3, false, true, true},
    {"qwen2", LIST_QWEN2, true, false, false},       {"deepseek-r1-qwen", LIST_QWEN2, true, false, false},
    {"tekken", LIST_TEKKEN, false, true, true},      {"smollm", LIST_SMOLLM, false, false, false},
    {"gpt-4o", LIST_O200K, false, false, false},
};

const char *gguf_tokenizer_name(bool is_by_characters) {
    return is_by_characters ? "llama" : "gpt2";
}

const char *gguf_pattern_name(enum tokenizer_list_words words) {
    size_t i = 0;
    while (patterns[i].words != words)
        i++;
    return patterns[i].name;
}

/* The kinds of tokens, with the numbers of the format. */
enum { KIND_NORMAL = 1, KIND_UNKNOWN, KIND_CONTROL, KIND_USER, KIND_UNUSED, KIND_BYTE };

int32_t gguf_token_kind(enum tokenizer_list_kind kind, bool is_unknown) {
    static const int32_t kinds[] = {[LIST_NORMAL] = KIND_NORMAL,
                                    [LIST_SPECIAL] = KIND_CONTROL,
                                    [LIST_ADDED] = KIND_USER,
                                    [LIST_BYTE] = KIND_BYTE,
                                    [LIST_UNUSED] = KIND_UNUSED};
    return is_unknown ? KIND_UNKNOWN : kinds[kind];
}

struct reading {
    const struct gguf *file;
    struct gguf_keys keys;
    struct tokenizer_lists lists;
    struct tokenizer_name *tokens, *merges;
    enum tokenizer_list_kind *kinds;
    double *scores;
};

/* Reads an array of texts. */
static struct tokenizer_name *read_names(struct gguf_keys *keys, const char *key, size_t *count) {
    struct gguf_text *texts = gguf_texts(keys, key, count);
    struct tokenizer_name *names = texts ? calloc(*count + 1, sizeof *names) : NULL;
    if (texts && !names)
        keys->status = status_no_memory();
    for (size_t i = 0; names && i < *count; i++)
        names[i] = (struct tokenizer_name){.bytes = texts[i].bytes, .length = texts[i].length};
    free(texts);
    return names;
}

static int check_count(const struct reading *r, const char *what, size_t count) {
    return count == r->lists.count ? STATUS_OK
                                   : status_fail(STATUS_INVALID, "%s: there are %zu tokens, but %zu %s of them",
                                                 gguf_path(r->file), r->lists.count, count, what);
}

/* A token of any other number is a normal one. */
static enum tokenizer_list_kind kind_of(double number) {
    return number == KIND_CONTROL || number == KIND_UNKNOWN ? LIST_SPECIAL
           : number == KIND_USER                            ? LIST_ADDED
           : number == KIND_UNUSED                          ? LIST_UNUSED
           : number == KIND_BYTE                            ? LIST_BYTE
                                                            : LIST_NORMAL;
}

static int read_kinds(struct reading *r) {
    size_t count;
    double *numbers = gguf_numbers(&r->keys, "token_type", &count);
    int status = r->keys.status ? r->keys.status : check_count(r, "kinds", count);
    THEN_IF(status, !(r->kinds = calloc(count + 1, sizeof *r->kinds)), status_no_memory());
    for (size_t i = 0; i < count && !status; i++)
        r->kinds[i] = kind_of(numbers[i]);
    free(numbers);
    return status;
}

static int read_tokens(struct reading *r) {
    gguf_need(&r->keys, "tokens");
    gguf_need(&r->keys, "token_type");
    r->tokens = read_names(&r->keys, "tokens", &r->lists.count);
    int status = r->keys.status ? r->keys.status : read_kinds(r);
    for (size_t i = 0; i < r->lists.count && !status; i++)
        if (!r->tokens[i].length)
            status = status_fail(STATUS_INVALID, "%s: token %zu is empty", gguf_path(r->file), i);
    r->lists.tokens = r->tokens;
    r->lists.kinds = r->kinds;
    return status;
}

/* Words that begin as bytes: merges, and a pattern. */
static int read_bytes(struct reading *r) {
    gguf_need(&r->keys, "pre");
    gguf_need(&r->keys, "merges");
    const char *name = gguf_string(&r->keys, "pre", "");
    r->lists.merges = r->merges = read_names(&r->keys, "merges", &r->lists.merge_count);
    if (r->keys.status)
        return r->keys.status;
    struct strbuf names = STRBUF_INIT;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        if (!strcmp(patterns[i].name, name)) {
            strbuf_free(&names);
            r->lists.words = patterns[i].words;
            r->lists.has_nfc = patterns[i].has_nfc;
            r->lists.ignores_merges = patterns[i].ignores_merges;
            r->lists.adds_bos = patterns[i].adds_bos;
            return STATUS_OK;
        }
        strbuf_format(&names, "%s%s", i ? ", " : "", patterns[i].name);
    }
    int status = status_fail(STATUS_UNSUPPORTED,
                             "%s: the key 'tokenizer.ggml.pre' is %s, which is not supported (supported: %s)",
                             gguf_path(r->file), name, strbuf_text(&names));
    strbuf_free(&names);
    return status;
}

/* Words that begin as characters: scores. */
static int read_characters(struct reading *r) {
    size_t count;
    gguf_need(&r->keys, "scores");
    r->lists.words = LIST_CHARACTERS;
    r->lists.has_space_prefix = gguf_bool(&r->keys, "add_space_prefix", true);
    r->lists.adds_bos = true;
    r->lists.scores = r->scores = gguf_numbers(&r->keys, "scores", &count);
    return r->keys.status ? r->keys.status : check_count(r, "scores", count);
}

static int64_t read_id(struct reading *r, const char *key) {
    return gguf_integer(&r->keys, key, -1, 0, (int64_t)r->lists.count - 1);
}

static int read_lists(struct reading *r) {
    const char *model = gguf_string(&r->keys, "model", "");
    int status = r->keys.status ? r->keys.status : read_tokens(r);
    TRY(status);
    if (!strcmp(model, gguf_tokenizer_name(false)))
        status = read_bytes(r);
    else if (!strcmp(model, gguf_tokenizer_name(true)))
        status = read_characters(r);
    else
        status = status_fail(STATUS_UNSUPPORTED,
                             "%s: the key 'tokenizer.ggml.model' is %s, which is not supported "
                             "(supported: gpt2, llama)",
                             gguf_path(r->file), model);
    TRY(status);
    struct gguf_keys template = gguf_keys(r->file, "tokenizer.");
    r->lists.adds_bos = gguf_bool(&r->keys, "add_bos_token", r->lists.adds_bos);
    r->lists.adds_eos = gguf_bool(&r->keys, "add_eos_token", false);
    r->lists.bos = read_id(r, "bos_token_id");
    r->lists.eos = read_id(r, "eos_token_id");
    r->lists.unk = read_id(r, "unknown_token_id");
    r->lists.pad = read_id(r, "padding_token_id");
    r->lists.chat_template = gguf_string(&template, "chat_template", NULL);
    return r->keys.status ? r->keys.status : template.status;
}

int gguf_read_ends(const struct gguf *file, const struct model_config *config, struct model_text_ends *ends) {
    static const char *const names[] = {"eos_token_id", "eot_token_id", "eom_token_id"};
    struct gguf_keys keys = gguf_keys(file, "tokenizer.ggml.");
    int64_t last = config->vocab_size - 1, bos = gguf_integer(&keys, "bos_token_id", -1, 0, last);
    *ends = (struct model_text_ends){.has_bos = bos >= 0, .bos = (int32_t)(bos < 0 ? 0 : bos)};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int64_t id = gguf_integer(&keys, names[i], -1, 0, last);
        if (id >= 0 && !keys.status)
            model_add_eos(ends, (int32_t)id, false);
    }
    return keys.status;
}

/* Each token must have a row of the embedding. */
static int check_rows(const struct reading *r) {
    const struct gguf_tensor *embedding = gguf_find(r->file, "token_embd.weight");
    int64_t rows = embedding ? embedding->shape[0] : INT64_MAX;
    return (int64_t)r->lists.count <= rows
               ? STATUS_OK
               : status_fail(STATUS_INVALID, "%s: there are %zu tokens, but the embedding has %lld rows",
                             gguf_path(r->file), r->lists.count, (long long)rows);
}

bool gguf_has_tokenizer(const struct gguf *file) {
    struct gguf_keys keys = gguf_keys(file, "tokenizer.ggml.");
    return gguf_has(&keys, "model") && strcmp(gguf_string(&keys, "model", ""), "none") != 0;
}

int gguf_read_tokenizer(const struct gguf *file, struct tokenizer_files *files) {
    struct reading r = {.file = file, .keys = gguf_keys(file, "tokenizer.ggml.")};
    *files = (struct tokenizer_files){0};
    if (!gguf_has_tokenizer(file)) {
        files->directory = strdup(gguf_path(file));
        return status_allocated(files->directory);
    }
    int status = read_lists(&r);
    THEN(status, check_rows(&r));
    THEN(status, tokenizer_files_make(&r.lists, gguf_path(file), files));
    free(r.tokens);
    free(r.merges);
    free(r.kinds);
    free(r.scores);
    return status;
}
