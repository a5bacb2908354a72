/* Lists of tokens and merges into tokenizer.json and tokenizer_config.json: see lists.h. */
#include "lists.h"

#include "read-internal.h"
#include "score_merges-internal.h"

#define BYTE_LEVEL(use_regex)                                                                                          \
    "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": " use_regex "}"

static bool is_added(enum tokenizer_list_kind kind) {
    return kind == LIST_SPECIAL || kind == LIST_ADDED;
}

static void add_name(const struct tokenizer_lists *lists, size_t id, struct strbuf *out) {
    json_add_string(out, lists->tokens[id].bytes, lists->tokens[id].length);
}

/* ---- the parts of tokenizer.json ---- */

static void add_added(const struct tokenizer_lists *lists, struct strbuf *out) {
    bool is_first = true;
    strbuf_add_text(out, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n"
                         "  \"added_tokens\": [");
    for (size_t id = 0; id < lists->count; id++) {
        if (!is_added(lists->kinds[id]))
            continue;
        strbuf_format(out, "%s\n    {\"id\": %zu, \"content\": ", is_first ? "" : ",", id);
        add_name(lists, id, out);
        for (size_t i = 0; i < ADDED_FLAG_COUNT; i++)
            strbuf_format(out, ", \"%s\": %s", added_flags[i].key,
                          added_flags[i].kind == TOKEN_SPECIAL && lists->kinds[id] == LIST_SPECIAL ? "true" : "false");
        strbuf_add_char(out, '}');
        is_first = false;
    }
    strbuf_add_text(out, "\n  ]");
}

/* The normalizer, the pre-tokenizer and the decoder of words that begin as characters. */
static void add_character_steps(const struct tokenizer_lists *lists, struct strbuf *out) {
    strbuf_format(out, ",\n  \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [%s",
                  lists->has_space_prefix ? "{\"type\": \"Prepend\", \"prepend\": \"" SPACE_MARK "\"}, " : "");
    strbuf_add_text(out, "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"" SPACE_MARK
                         "\"}]},\n  \"pre_tokenizer\": null,\n"
                         "  \"decoder\": {\"type\": \"Sequence\", \"decoders\": ["
                         "{\"type\": \"Replace\", \"pattern\": {\"String\": \"" SPACE_MARK "\"}, \"content\": \" \"}, "
                         "{\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}");
    if (lists->has_space_prefix)
        strbuf_add_text(out, ", {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}");
    strbuf_add_text(out, "]}");
}

/* The same of words that begin as bytes. */
static void add_byte_steps(const struct tokenizer_lists *lists, struct strbuf *out) {
    static const enum word_pattern patterns[] = {[LIST_LLAMA3] = WORDS_LLAMA3,
                                                 [LIST_QWEN2] = WORDS_QWEN2,
                                                 [LIST_TEKKEN] = WORDS_TEKKEN,
                                                 [LIST_O200K] = WORDS_O200K};
    strbuf_format(out,
                  ",\n  \"normalizer\": %s,\n  \"pre_tokenizer\": ", lists->has_nfc ? "{\"type\": \"NFC\"}" : "null");
    if (lists->words == LIST_BYTE_LEVEL) {
        strbuf_add_text(out, BYTE_LEVEL("true"));
    } else if (lists->words == LIST_SMOLLM) {
        strbuf_add_text(out, "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\", "
                             "\"individual_digits\": true}, " BYTE_LEVEL("true") "]}");
    } else {
        const char *text = settings_pattern_text(patterns[lists->words]);
        strbuf_add_text(out, "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": "
                             "{\"Regex\": ");
        json_add_string(out, text, strlen(text));
        strbuf_add_text(out, "}, \"behavior\": \"Isolated\", \"invert\": false}, " BYTE_LEVEL("false") "]}");
    }
    strbuf_add_text(out, ",\n  \"decoder\": " BYTE_LEVEL("true"));
}

/* Adds a token of the template, before or after the text, and its definition. */
static void add_template_token(const struct tokenizer_lists *lists, int64_t id, struct strbuf *out) {
    strbuf_add_text(out, "{\"SpecialToken\": {\"id\": ");
    add_name(lists, (size_t)id, out);
    strbuf_add_text(out, ", \"type_id\": 0}}");
}

static void define_token(const struct tokenizer_lists *lists, int64_t id, struct strbuf *out) {
    add_name(lists, (size_t)id, out);
    strbuf_add_text(out, ": {\"id\": ");
    add_name(lists, (size_t)id, out);
    strbuf_format(out, ", \"ids\": [%lld], \"tokens\": [", (long long)id);
    add_name(lists, (size_t)id, out);
    strbuf_add_text(out, "]}");
}

static void add_post_processor(const struct tokenizer_lists *lists, struct strbuf *out) {
    int64_t begin = lists->adds_bos ? lists->bos : -1, end = lists->adds_eos ? lists->eos : -1;
    strbuf_add_text(out, ",\n  \"post_processor\": ");
    if (begin < 0 && end < 0) {
        strbuf_add_text(out, "null");
        return;
    }
    strbuf_add_text(out, "{\"type\": \"TemplateProcessing\", \"single\": [");
    if (begin >= 0) {
        add_template_token(lists, begin, out);
        strbuf_add_text(out, ", ");
    }
    strbuf_add_text(out, "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}");
    if (end >= 0) {
        strbuf_add_text(out, ", ");
        add_template_token(lists, end, out);
    }
    strbuf_add_text(out, "], \"pair\": [{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, {\"Sequence\": {\"id\": "
                         "\"B\", \"type_id\": 1}}], \"special_tokens\": {");
    if (begin >= 0)
        define_token(lists, begin, out);
    if (begin >= 0 && end >= 0 && begin != end)
        strbuf_add_text(out, ", ");
    if (end >= 0 && begin != end)
        define_token(lists, end, out);
    strbuf_add_text(out, "}}");
}

/* Added tokens after all others are no words, and the vocabulary of byte-level BPE does not list them. */
static void add_vocab(const struct tokenizer_lists *lists, struct strbuf *out) {
    size_t count = lists->count;
    while (count && lists->words != LIST_CHARACTERS && is_added(lists->kinds[count - 1]))
        count--;
    for (size_t id = 0; id < count; id++) {
        strbuf_add_text(out, id ? ",\n      " : "\n      ");
        add_name(lists, id, out);
        strbuf_format(out, ": %zu", id);
    }
}

static void add_model(const struct tokenizer_lists *lists, struct strbuf *out) {
    bool has_bytes = false, is_by_characters = lists->words == LIST_CHARACTERS;
    for (size_t id = 0; id < lists->count; id++)
        has_bytes |= lists->kinds[id] == LIST_BYTE;
    strbuf_add_text(out, ",\n  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": ");
    if (is_by_characters && lists->unk >= 0)
        add_name(lists, (size_t)lists->unk, out);
    else
        strbuf_add_text(out, "null");
    strbuf_format(out,
                  ",\n    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n"
                  "    \"fuse_unk\": %s,\n    \"byte_fallback\": %s,\n    \"ignore_merges\": %s,\n    \"vocab\": {",
                  is_by_characters ? "true" : "false", is_by_characters && has_bytes ? "true" : "false",
                  lists->ignores_merges ? "true" : "false");
    add_vocab(lists, out);
    strbuf_add_text(out, "\n    },\n    \"merges\": [");
}

static int add_merges(const struct tokenizer_lists *lists, struct strbuf *out) {
    int status = STATUS_OK;
    if (lists->scores)
        status = score_merges_add(lists, out);
    for (size_t i = 0; i < lists->merge_count && !lists->scores; i++) {
        strbuf_add_text(out, i ? ",\n      " : "\n      ");
        json_add_string(out, lists->merges[i].bytes, lists->merges[i].length);
    }
    strbuf_add_text(out, "\n    ]\n  }\n}\n");
    return status;
}

static int add_tokenizer(const struct tokenizer_lists *lists, struct strbuf *out) {
    add_added(lists, out);
    if (lists->words == LIST_CHARACTERS)
        add_character_steps(lists, out);
    else
        add_byte_steps(lists, out);
    add_post_processor(lists, out);
    add_model(lists, out);
    return add_merges(lists, out);
}

/* ---- tokenizer_config.json ---- */

static void add_config(const struct tokenizer_lists *lists, struct strbuf *out) {
    const int64_t roles[ROLE_COUNT] = {
        [ROLE_EOS] = lists->eos, [ROLE_BOS] = lists->bos, [ROLE_UNK] = lists->unk, [ROLE_PAD] = lists->pad};
    strbuf_add_text(out, "{\n  \"add_prefix_space\": false,\n");
    for (int role = 0; role < ROLE_COUNT; role++) {
        if (roles[role] < 0)
            continue;
        strbuf_format(out, "  \"%s\": ", token_role_names[role]);
        add_name(lists, (size_t)roles[role], out);
        strbuf_add_text(out, ",\n");
    }
    if (lists->chat_template) {
        strbuf_add_text(out, "  \"chat_template\": ");
        json_add_string(out, lists->chat_template, strlen(lists->chat_template));
        strbuf_add_text(out, ",\n");
    }
    strbuf_add_text(out, "  \"clean_up_tokenization_spaces\": false,\n"
                         "  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n");
}

/* ---- both ---- */

static int check_ids(const struct tokenizer_lists *lists, const char *where) {
    const int64_t ids[] = {lists->eos, lists->bos, lists->unk, lists->pad};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        if (ids[i] >= 0 && (uint64_t)ids[i] >= lists->count)
            return status_fail(STATUS_INVALID, "%s: a special token has the id %lld, but there are %zu tokens", where,
                               (long long)ids[i], lists->count);
    return STATUS_OK;
}

static int make(const struct tokenizer_lists *lists, const char *where, struct tokenizer_files *files) {
    struct strbuf *json = &files->texts[TOKENIZER_JSON], *config = &files->texts[TOKENIZER_CONFIG];
    TRY(check_ids(lists, where));
    if (!(files->directory = strdup(where)))
        return status_no_memory();
    files->is_there[TOKENIZER_JSON] = files->is_there[TOKENIZER_CONFIG] = true;
    int status = add_tokenizer(lists, json);
    add_config(lists, config);
    return status ? status : strbuf_status(json->failed ? json : config);
}

int tokenizer_files_make(const struct tokenizer_lists *lists, const char *where, struct tokenizer_files *files) {
    struct tokenizer_lists used = *lists;
    *files = (struct tokenizer_files){0};
    while (used.count && used.kinds[used.count - 1] == LIST_UNUSED) /* the embedding's rows are padded with them */
        used.count--;
    int status = make(&used, where, files);
    if (status)
        tokenizer_files_free(files);
    return status;
}
