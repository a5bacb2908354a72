/* Any bytes through the tokenizers whose words begin as characters: the ids of a UTF-8 text must be those of the slow,
 * plain way. That way puts marks for spaces, uses the files' own names, and repeats the first merge in the whole text,
 * or in each part that begins with a mark. It reads the files with jansson alone. */
#include "base/base.h"
#include "base/utf8.h"
#include "text/text.h"

#include "new_marks.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_BYTES = 400, MARK_BYTES = 3 };
#define MARK "\xe2\x96\x81"

enum prefix { NEVER, FIRST, ALWAYS };
struct subject {
    const char *name;
    enum prefix prefix;
    bool is_split, has_nfc, fuses_unk;
    struct tokenizer *tokenizer;
    struct tokenizer_encoder *encoder;
    json_t *root, *vocab, *ranks; /* of "left right" */
};
static struct subject subjects[] = {
    {.name = "llama2", .prefix = ALWAYS, .fuses_unk = true},
    {.name = "mistral", .prefix = FIRST, .fuses_unk = true},
    {.name = "gemma", .fuses_unk = true},
    {.name = "whole"},
    {.name = "metaspace", .prefix = FIRST, .is_split = true, .has_nfc = true, .fuses_unk = true},
};
enum { SUBJECTS = sizeof subjects / sizeof *subjects };
static bool is_started;

static void check(bool is_right, const char *what, const struct subject *s) {
    if (is_right)
        return;
    fprintf(stderr, "characters_fuzz: %s: %s (%s)\n", s->name, what, status_text());
    abort();
}

static void start(struct subject *s) {
    char path[512];
    size_t i;
    json_t *merge;
    snprintf(path, sizeof path, TEST_DATA "/text/golden/%s", s->name);
    check(!tokenizer_open(path, &s->tokenizer) && !tokenizer_encoder_new(s->tokenizer, &s->encoder), "not open", s);
    snprintf(path, sizeof path, TEST_DATA "/text/golden/%s/tokenizer.json", s->name);
    check((s->root = json_load_file(path, 0, NULL)) != NULL, "no file", s);
    json_t *model = json_object_get(s->root, "model");
    s->vocab = json_object_get(model, "vocab");
    s->ranks = json_object();
    json_array_foreach(json_object_get(model, "merges"), i, merge) {
        snprintf(path, sizeof path, "%s %s", json_string_value(json_array_get(merge, 0)),
                 json_string_value(json_array_get(merge, 1)));
        json_object_set_new(s->ranks, path, json_integer((json_int_t)i));
    }
}

/* A word as the names of its tokens. */
struct word {
    char *names[MOST_BYTES * 8];
    size_t count;
};

static void add_name(struct word *word, const char *name, size_t length) {
    word->names[word->count++] = strndup(name, length);
}

static bool has_bytes(const struct subject *s, const char *at, size_t length) {
    for (size_t i = 0; i < length; i++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", (unsigned char)at[i]);
        if (!json_object_get(s->vocab, name))
            return false;
    }
    return true;
}

/* As `tokenizers` begins a word: what stands for unknown characters is written late. */
static void begin(const struct subject *s, const char *at, size_t length, struct word *word) {
    const char *end = at + length;
    bool is_unknown = false;
    for (word->count = 0; at < end;) {
        char name[8] = "";
        size_t bytes = utf8_length((const unsigned char *)at, (const unsigned char *)end);
        memcpy(name, at, bytes);
        if (json_object_get(s->vocab, name)) {
            if (is_unknown)
                add_name(word, "<unk>", 5);
            is_unknown = false;
            add_name(word, at, bytes);
        } else if (has_bytes(s, at, bytes)) {
            for (size_t i = 0; i < bytes; i++) {
                snprintf(name, sizeof name, "<0x%02X>", (unsigned char)at[i]);
                add_name(word, name, 6);
            }
        } else {
            if (is_unknown && !s->fuses_unk)
                add_name(word, "<unk>", 5);
            is_unknown = true;
        }
        at += bytes;
    }
    if (is_unknown)
        add_name(word, "<unk>", 5);
}

static void merge(const struct subject *s, struct word *word) {
    for (;;) {
        size_t best = SIZE_MAX;
        json_int_t best_rank = 0;
        for (size_t i = 0; i + 1 < word->count; i++) {
            char pair[1024];
            snprintf(pair, sizeof pair, "%s %s", word->names[i], word->names[i + 1]);
            const json_t *rank = json_object_get(s->ranks, pair);
            if (rank && (best == SIZE_MAX || json_integer_value(rank) < best_rank)) {
                best = i;
                best_rank = json_integer_value(rank);
            }
        }
        if (best == SIZE_MAX)
            return;
        char *joined = NULL;
        check(asprintf(&joined, "%s%s", word->names[best], word->names[best + 1]) > 0, "no memory", s);
        free(word->names[best]);
        free(word->names[best + 1]);
        word->names[best] = joined;
        memmove(word->names + best + 1, word->names + best + 2, (word->count - best - 2) * sizeof *word->names);
        word->count--;
    }
}

/* Checks that the ids from *used on are those of the piece. */
static void check_piece(const struct subject *s, const char *at, size_t length, const struct token_buffer *ids,
                        size_t *used) {
    static struct word word;
    begin(s, at, length, &word);
    merge(s, &word);
    for (size_t i = 0; i < word.count; i++) {
        json_int_t id = json_integer_value(json_object_get(s->vocab, word.names[i]));
        check(*used < ids->count && ids->ids[(*used)++] == id, "other ids", s);
        free(word.names[i]);
    }
}

/* The text with marks for its spaces, and one before it. */
static struct strbuf mark(const struct subject *s, const char *at, size_t length) {
    struct strbuf marked = STRBUF_INIT;
    bool begins = (length > 0 && *at == ' ') || (length >= MARK_BYTES && !memcmp(at, MARK, MARK_BYTES));
    if (s->prefix == ALWAYS || (s->prefix == FIRST && !begins))
        strbuf_add_text(&marked, MARK);
    for (size_t i = 0; i < length; i++)
        if (at[i] == ' ')
            strbuf_add_text(&marked, MARK);
        else
            strbuf_add_char(&marked, at[i]);
    return marked;
}

static void check_text(const struct subject *s, const char *at, size_t length, const struct token_buffer *ids) {
    struct strbuf marked = mark(s, at, length);
    size_t used = 0;
    for (size_t from = 0, to; from < marked.length; from = to) {
        const char *next =
            s->is_split ? memmem(marked.data + from + 1, marked.length - from - 1, MARK, MARK_BYTES) : NULL;
        to = next ? (size_t)(next - marked.data) : marked.length;
        check_piece(s, marked.data + from, to - from, ids, &used);
    }
    check(used == ids->count, "more ids", s);
    strbuf_free(&marked);
}

/* Whether an added token, none of which is asked for here unless it is of every text, may be in it. */
static bool may_hold_added(const char *at, size_t length) {
    static const char *const parts[] = {"<", "of", "plain", "gap", "x", "\xc3\xa9t", "\xe1\x86\xa7"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (length > 0 && memmem(at, length, parts[i], strlen(parts[i])))
            return true;
    return false;
}

static void check_subject(const struct subject *s, const uint8_t *data, size_t size) {
    struct token_buffer ids = TOKEN_BUFFER_INIT;
    struct strbuf text = STRBUF_INIT;
    utf8proc_uint8_t *normal = NULL;
    check(!tokenizer_encode(s->encoder, data, size, TOKENIZER_ALLOW_SPECIAL | TOKENIZER_ADD_SPECIAL, &ids) &&
              !tokenizer_decode(s->tokenizer, ids.ids, ids.count, &text),
          "not encoded and decoded", s);
    ids.count = 0;
    check(!tokenizer_encode(s->encoder, data, size, TOKENIZER_PLAIN, &ids), "not encoded", s);
    if (size > 0 && size <= MOST_BYTES && utf8_valid_length(data, size) == size) {
        utf8proc_ssize_t length = (utf8proc_ssize_t)size;
        if (s->has_nfc)
            length = utf8proc_map(data, length, &normal, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        check(length > 0, "not normalized", s);
        const char *given = s->has_nfc ? (const char *)normal : (const char *)data;
        if (!may_hold_added(given, (size_t)length) && !may_hold_added((const char *)data, size) &&
            !memchr(data, 0, size) && !(s->has_nfc && has_new_mark(data, size)))
            check_text(s, given, (size_t)length, &ids);
    }
    free(normal);
    strbuf_free(&text);
    token_buffer_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    for (int i = 0; i < SUBJECTS; i++) {
        if (!is_started)
            start(&subjects[i]);
    }
    is_started = true;
    for (int i = 0; i < SUBJECTS; i++)
        check_subject(&subjects[i], data, size);
    return 0;
}
