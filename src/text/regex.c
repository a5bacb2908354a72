/* Patterns of a pre-tokenizer that has no scanner: by PCRE2, within limits.
 *
 * The patterns are written for Oniguruma with Ruby's syntax, as `tokenizers` runs them. Where PCRE2 would read
 * something else it is written anew (\s, \w, \v, \u, the ends of lines), or refused: what is refused gives no other
 * ids. */
#include "text-internal.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

enum { MATCH_STEPS = 20000000, MATCH_DEPTH = 100000, MATCH_KIB = 65536, STACK_BYTES = 1 << 20 };

struct text_regex {
    pcre2_code *code;
};
struct regex_scratch {
    pcre2_match_data *data;
    pcre2_match_context *limits;
    pcre2_jit_stack *stack;
};

/* Unicode's White_Space, and Alphabetic, marks, decimal digits and connectors, between brackets. */
#define SPACES "\\t-\\r\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define WORD                                                                                                           \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{"    \
    "1f189}"

static int refuse(const char *what, size_t length) {
    return status_fail(STATUS_UNSUPPORTED, "pre_tokenizer.pattern with '%.*s' is not supported", (int)length, what);
}

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* What stands after the backslash at `at`; *next is behind it. */
static int translate_escape(const char *at, bool is_class, struct strbuf *out, const char **next) {
    char c = at[1];
    *next = at + 2;
    if (c == 's' || c == 'w')
        strbuf_format(out, is_class ? "%s" : "[%s]", c == 's' ? SPACES : WORD);
    else if ((c == 'S' || c == 'W') && !is_class)
        strbuf_format(out, "[^%s]", c == 'S' ? SPACES : WORD);
    else if (c == 'v')
        strbuf_add_text(out, "\\x{b}");
    else if (c == 'u' && strspn(at + 2, "0123456789abcdefABCDEF") >= 4) {
        strbuf_format(out, "\\x{%.4s}", at + 2);
        *next = at + 6;
    } else if (c && strchr("pPx", c) && at[2] == '{' && strchr(at, '}')) {
        *next = strchr(at, '}') + 1;
        strbuf_add(out, at, (size_t)(*next - at));
    } else if (is_letter(c) && !strchr("nrtfaexpPdDAzZ", c))
        return refuse(at, 2);
    else if (!c)
        return status_fail(STATUS_INVALID, "pre_tokenizer.pattern ends with a backslash");
    else
        strbuf_add(out, at, 2);
    return STATUS_OK;
}

/* A group that begins at `at`: of the flags, only the one for either case means the same. */
static int check_group(const char *at) {
    if (at[1] != '?' || strchr(":=!><", at[2]))
        return STATUS_OK;
    size_t flags = strspn(at + 2, "i-");
    return flags > 0 && at[2 + flags] && strchr(":)", at[2 + flags]) ? STATUS_OK : refuse(at, 3);
}

/* The end of a class's character at `at`. */
static int translate_in_class(const char *at, struct strbuf *out, const char **next) {
    const char *end = at[1] == ':' && *at == '[' ? strstr(at, ":]") : NULL;
    if ((*at == '[' && !end) || (*at == '&' && at[1] == '&'))
        return refuse(at, *at == '[' ? 1 : 2);
    *next = end ? end + 2 : at + 1;
    strbuf_add(out, at, (size_t)(*next - at));
    return STATUS_OK;
}

static int translate(const char *pattern, struct strbuf *out) {
    bool is_class = false;
    int status = STATUS_OK;
    for (const char *at = pattern; *at && !status;) {
        const char *next = at + 1;
        bool begins_class = !is_class && *at == '[';
        if (*at == '\\') {
            status = translate_escape(at, is_class, out, &next);
        } else if (is_class && *at != ']') {
            status = translate_in_class(at, out, &next);
        } else if (*at == '(' && !is_class) {
            status = check_group(at);
            strbuf_add_char(out, *at);
        } else if (*at == '}' && at[1] == '+' && !is_class) {
            status = refuse(at, 2); /* in Ruby no possessive quantifier, but two */
        } else {
            strbuf_add_char(out, *at);
        }
        if (begins_class && *next == '^')
            strbuf_add_char(out, *next++);
        if (begins_class && *next == ']')
            status = refuse("[]", 2);
        is_class = begins_class || (is_class && *at != ']');
        at = next;
    }
    return status ? status : strbuf_status(out);
}

int text_regex_open(const char *pattern, struct text_regex **regex) {
    struct strbuf text = STRBUF_INIT;
    int error = 0, status = translate(pattern, &text);
    PCRE2_SIZE offset = 0;
    struct text_regex *opened = status ? NULL : calloc(1, sizeof *opened);
    pcre2_compile_context *context = opened ? pcre2_compile_context_create(NULL) : NULL;
    *regex = NULL;
    if (!status && !context)
        status = status_fail(STATUS_MEMORY, "out of memory for a pattern");
    if (!status) {
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        opened->code =
            pcre2_compile((PCRE2_SPTR)strbuf_text(&text), text.length,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context);
        if (opened->code) {
            pcre2_jit_compile(opened->code, PCRE2_JIT_COMPLETE); /* where there is none, patterns are interpreted */
        } else {
            PCRE2_UCHAR why[128] = "";
            pcre2_get_error_message(error, why, sizeof why);
            status = status_fail(STATUS_INVALID, "pre_tokenizer.pattern '%.200s' is no regular expression: %s", pattern,
                                 (char *)why);
        }
    }
    pcre2_compile_context_free(context);
    strbuf_free(&text);
    if (status)
        text_regex_close(opened);
    else
        *regex = opened;
    return status;
}

void text_regex_close(struct text_regex *regex) {
    if (regex)
        pcre2_code_free(regex->code);
    free(regex);
}

int regex_scratch_new(struct regex_scratch **scratch) {
    struct regex_scratch *made = calloc(1, sizeof *made);
    if (made) {
        made->data = pcre2_match_data_create(1, NULL);
        made->limits = pcre2_match_context_create(NULL);
        made->stack = pcre2_jit_stack_create(32 << 10, STACK_BYTES, NULL);
    }
    if (!made || !made->data || !made->limits) {
        regex_scratch_free(made);
        return status_fail(STATUS_MEMORY, "out of memory for a pattern");
    }
    pcre2_set_match_limit(made->limits, MATCH_STEPS);
    pcre2_set_depth_limit(made->limits, MATCH_DEPTH);
    pcre2_set_heap_limit(made->limits, MATCH_KIB);
    pcre2_jit_stack_assign(made->limits, NULL, made->stack);
    *scratch = made;
    return STATUS_OK;
}

void regex_scratch_free(struct regex_scratch *scratch) {
    if (!scratch)
        return;
    pcre2_match_data_free(scratch->data);
    pcre2_match_context_free(scratch->limits);
    pcre2_jit_stack_free(scratch->stack);
    free(scratch);
}

int text_regex_find(const struct text_regex *regex, struct regex_scratch *scratch, const unsigned char *text,
                    size_t length, size_t from, size_t *start, size_t *end) {
    int found =
        pcre2_match(regex->code, (PCRE2_SPTR)text, length, from, PCRE2_NO_UTF_CHECK, scratch->data, scratch->limits);
    if (found == PCRE2_ERROR_NOMATCH)
        return STATUS_NOT_FOUND;
    if (found == PCRE2_ERROR_NOMEMORY)
        return status_fail(STATUS_MEMORY, "out of memory for a pattern");
    if (found < 0) {
        PCRE2_UCHAR why[128] = "";
        pcre2_get_error_message(found, why, sizeof why);
        return status_fail(STATUS_INVALID, "the tokenizer's pattern takes too many steps in a text of %zu bytes: %s",
                           length, (char *)why);
    }
    const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(scratch->data);
    *start = bounds[0];
    *end = bounds[1] > bounds[0] ? bounds[1] : bounds[0]; /* \K might put it behind */
    return STATUS_OK;
}
