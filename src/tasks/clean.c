/* Texts of data sets as people would have written them. The order of the steps counts. */
#include "tasks-internal.h"

#include "unicode/python.h"

/* Puts `made` in the place of a text. */
static void put(struct strbuf *text, struct strbuf made) {
    made.failed |= text->failed;
    strbuf_free(text);
    *text = made;
}

/* Appends a text and frees it. */
static void give(struct strbuf *text, struct strbuf *out) {
    strbuf_add(out, strbuf_text(text), text->length);
    out->failed |= text->failed;
    strbuf_free(text);
}

/* Replaces each `from`, from left to right, by `to`. */
static void replace(struct strbuf *text, const char *from, const char *to) {
    size_t from_length = strlen(from), to_length = strlen(to);
    struct strbuf out = STRBUF_INIT;
    const char *at = strbuf_text(text), *end = at + text->length, *found;
    if (!memmem(at, text->length, from, from_length))
        return;
    while ((found = memmem(at, (size_t)(end - at), from, from_length))) {
        strbuf_add(&out, at, (size_t)(found - at));
        strbuf_add(&out, to, to_length);
        at = found + from_length;
    }
    strbuf_add(&out, at, (size_t)(end - at));
    put(text, out);
}

/* Returns the place of the next such byte, or `end`. */
static const char *find(const char *at, const char *end, char byte) {
    const char *found = memchr(at, byte, (size_t)(end - at));
    return found ? found : end;
}

/* Removes what matches \[.*?\]: a pair of brackets with no line end between them. */
static void remove_brackets(struct strbuf *text) {
    struct strbuf out = STRBUF_INIT;
    const char *at = strbuf_text(text), *end = at + text->length, *close = at, *line_end = at;
    while (at < end) {
        close = *at == '[' && close <= at ? find(at, end, ']') : close;
        line_end = *at == '[' && line_end <= at ? find(at, end, '\n') : line_end;
        if (*at == '[' && close < line_end)
            at = close + 1;
        else
            strbuf_add_char(&out, *at++);
    }
    put(text, out);
}

void hellaswag_clean(struct text text, struct strbuf *out) {
    struct strbuf cleaned = STRBUF_INIT;
    python_strip(&text.bytes, &text.length);
    strbuf_add(&cleaned, text.bytes, text.length);
    replace(&cleaned, " [title]", ". ");
    remove_brackets(&cleaned);
    replace(&cleaned, "  ", " ");
    give(&cleaned, out);
}

/* Removes white space after each `open` and before the next `close`. */
static void close_pairs(struct strbuf *text, char open, char close) {
    struct strbuf out = STRBUF_INIT;
    const char *at = strbuf_text(text), *end = at + text->length;
    for (;;) {
        const char *first = memchr(at, open, (size_t)(end - at));
        const char *last = first ? memchr(first + 1, close, (size_t)(end - first - 1)) : NULL;
        if (!last)
            break;
        const char *inner = first + 1;
        size_t length = (size_t)(last - inner);
        strbuf_add(&out, at, (size_t)(inner - at));
        python_strip(&inner, &length);
        strbuf_add(&out, inner, length);
        strbuf_add_char(&out, close);
        at = last + 1;
    }
    strbuf_add(&out, at, (size_t)(end - at));
    put(text, out);
}

/* The pattern /' [0-9]/ has slashes in it, and its replacement is no digit but the text of the pattern. */
static void replace_slashed(struct strbuf *text) {
    struct strbuf out = STRBUF_INIT;
    const char *at = strbuf_text(text), *end = at + text->length;
    while (at < end) {
        bool matches = end - at > 4 && !memcmp(at, "/' ", 3) && at[3] >= '0' && at[3] <= '9' && at[4] == '/';
        if (matches)
            strbuf_add_text(&out, "/'[0-9]/");
        else
            strbuf_add_char(&out, *at);
        at += matches ? 5 : 1;
    }
    put(text, out);
}

void wikitext_detokenize(struct text page, struct strbuf *out) {
    static const char *const before[][2] = {{" @-@ ", "-"}, {" @,@ ", ","}, {" @.@ ", "."},
                                            {" : ", ": "},  {" ; ", "; "},  {" . ", ". "},
                                            {" ! ", "! "},  {" ? ", "? "},  {" , ", ", "}};
    static const char pairs[][2] = {{'(', ')'}, {'[', ']'}, {'{', '}'}, {'"', '"'}, {'\'', '\''}};
    static const char *const after[][2] = {
        {"= = = =", "===="}, {"= = =", "==="}, {"= =", "=="},  {" \xc2\xb0 ", "\xc2\xb0"},
        {" \n", "\n"},       {"\n ", "\n"},    {" N ", " 1 "}, {" 's", "'s"}};
    struct strbuf text = STRBUF_INIT;
    strbuf_add(&text, page.bytes, page.length);
    replace(&text, "s '", "s'");
    replace_slashed(&text);
    for (size_t i = 0; i < sizeof before / sizeof *before; i++)
        replace(&text, before[i][0], before[i][1]);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        close_pairs(&text, pairs[i][0], pairs[i][1]);
    for (size_t i = 0; i < sizeof after / sizeof *after; i++)
        replace(&text, after[i][0], after[i][1]);
    give(&text, out);
}
