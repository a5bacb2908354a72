/* Patterns of a pre-tokenizer without a scanner, matched by PCRE2 within limits.
 *
 * The steps of all matches in a text are counted, so the time is linear in its bytes. PCRE2's own limit starts anew at
 * each place where a match may begin, and ignores repetitions of one character. Therefore a callout precedes each item
 * of a pattern, also in compiled code, unless the pattern is too simple to take long. It counts one for itself, the
 * maximum number of characters that an item may read without success, and the distance from the previous callout, which
 * a repeated item has read.
 *
 * The patterns are written for Oniguruma with Ruby's syntax, as `tokenizers` runs them. Constructs that PCRE2 would
 * read differently are rewritten (\s, \w, \v, \u, line ends) or refused. A pattern is never accepted with other ids. */
#include "text-internal.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <inttypes.h>
#include <pcre2.h>

enum { MATCH_DEPTH = 100000, MATCH_KIB = 65536, STACK_BYTES = 1 << 20, MOST_REPEATS = 65535 };

struct text_regex {
    pcre2_code *code;
    char *pattern;       /* as written, for messages */
    uint64_t step;       /* what a callout counts, except the distance */
    bool has_references; /* each item may reread the text of a group */
};
struct regex_scratch {
    pcre2_match_data *data;
    pcre2_match_context *limits;
    pcre2_jit_stack *stack;
    uint64_t steps, most;           /* of a text, and its limit */
    const struct text_regex *regex; /* in use now */
    size_t last;                    /* the place of the last callout */
};

/* Unicode's White_Space; Alphabetic, marks, decimal digits and connectors. For use between brackets. */
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

/* Translates the escape whose backslash is at `at`; *next is the place after it. */
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

/* Checks a group that begins at `at`. Of the flags, only the one that ignores case has the same meaning. */
static int check_group(const char *at) {
    if (at[1] != '?' || strchr(":=!><", at[2]))
        return STATUS_OK;
    size_t flags = strspn(at + 2, "i-");
    return flags > 0 && at[2 + flags] && strchr(":)", at[2 + flags]) ? STATUS_OK : refuse(at, 3);
}

/* Translates a character of a class at `at`. */
static int translate_in_class(const char *at, struct strbuf *out, const char **next) {
    const char *end = at[1] == ':' && *at == '[' ? strstr(at, ":]") : NULL;
    if ((*at == '[' && !end) || (*at == '&' && at[1] == '&'))
        return refuse(at, *at == '[' ? 1 : 2);
    *next = end ? end + 2 : at + 1;
    strbuf_add(out, at, (size_t)(*next - at));
    return STATUS_OK;
}

/* Returns the length of the escape or class at the start of a pattern; 0: it starts with something else. */
static size_t first_set(const char *pattern) {
    const char *end = pattern;
    if (*pattern == '\\' && pattern[1])
        end = strchr("pP", pattern[1]) && pattern[2] == '{' ? strchr(pattern, '}') : pattern + 1;
    else if (*pattern == '[')
        for (end = pattern + 1; *end && *end != ']'; end++)
            end += *end == '\\' && end[1];
    return end && end > pattern && *end ? (size_t)(end + 1 - pattern) : 0;
}

/* A pattern like `\s+$` fails at each place of a run, each time after reading to the run's end. If it fails at one
 * place of the run it also fails at those after it, where it can only match less. So a match may begin only at the
 * first place of a run, or where the search begins. Returns the length of the run's set; 0: the pattern is not of this
 * kind. */
static size_t run_set(const char *pattern) {
    size_t set = first_set(pattern);
    return set && pattern[set] == '+' && !strchr("+?*{", pattern[set + 1]) && !strchr(pattern, '|') ? set : 0;
}

static int translate_all(const char *pattern, size_t length, struct strbuf *out) {
    bool is_class = false;
    int status = STATUS_OK;
    for (const char *at = pattern; at < pattern + length && !status;) {
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
            status = refuse(at, 2); /* two quantifiers in Ruby, not a possessive one */
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

static int translate(const char *pattern, struct strbuf *out) {
    size_t set = run_set(pattern);
    int status = STATUS_OK;
    if (set) {
        strbuf_add_text(out, "(?:\\G|(?<!");
        status = translate_all(pattern, set, out);
        strbuf_add_text(out, "))");
    }
    return status ? status : translate_all(pattern, strlen(pattern), out);
}

/* True when a pattern is a short sequence of characters, of which only the last may repeat without limit. At each place
 * it fails after a few steps, or consumes everything that it has read: no counting is needed. */
static bool is_flat(const char *pattern) {
    int quantified = 0;
    for (const char *at = pattern; *at;) {
        size_t set = first_set(at);
        if ((!set && strchr("()|*+?{[\\", *at)) || (*at == '\\' && at[1] >= '0' && at[1] <= '9'))
            return false;
        at += set ? set : 1;
        if ((*at == '+' || *at == '*') && !at[1])
            return true;
        if (*at == '{' && at[1] >= '0' && at[1] <= '9' && at[2] == ',' && at[3] >= '0' && at[3] <= '9' &&
            at[4] == '}') {
            at += 5;
            quantified++;
        } else if (*at == '?') {
            at++;
            quantified++;
        }
        if (quantified > 2 || (*at && strchr("+*?{", *at)))
            return false;
    }
    return true;
}

/* Returns the largest number of repeats in a pattern. */
static unsigned long most_repeats(const char *pattern) {
    unsigned long most = 0;
    for (const char *at = pattern; *at; at++) {
        if (*at == '\\' && at[1]) {
            const char *end = strchr("pPx", at[1]) && at[2] == '{' ? strchr(at, '}') : NULL;
            at = end ? end : at + 1;
        } else if (*at == '{' || *at == ',') {
            unsigned long number = strtoul(at + 1, NULL, 10);
            most = number > most && number <= MOST_REPEATS ? number : most;
        }
    }
    return most;
}

/* Compiles the pattern to machine code if possible; otherwise it is interpreted. */
static void prepare(struct text_regex *regex) {
    uint32_t references = 0, lookbehind = 0;
    pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE);
    pcre2_pattern_info(regex->code, PCRE2_INFO_BACKREFMAX, &references);
    pcre2_pattern_info(regex->code, PCRE2_INFO_MAXLOOKBEHIND, &lookbehind);
    regex->step = 1 + most_repeats(regex->pattern) + lookbehind;
    regex->has_references = references > 0;
}

int text_regex_open(const char *pattern, struct text_regex **regex) {
    struct strbuf text = STRBUF_INIT;
    int error = 0, status = translate(pattern, &text);
    PCRE2_SIZE offset = 0;
    struct text_regex *opened = status ? NULL : calloc(1, sizeof *opened);
    pcre2_compile_context *context = opened ? pcre2_compile_context_create(NULL) : NULL;
    *regex = NULL;
    if (!status && (!context || !(opened->pattern = strdup(pattern))))
        status = status_fail(STATUS_MEMORY, "out of memory for a pattern");
    if (!status) {
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        opened->code = pcre2_compile((PCRE2_SPTR)strbuf_text(&text), text.length,
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C |
                                         (is_flat(pattern) ? 0 : PCRE2_AUTO_CALLOUT),
                                     &error, &offset, context);
        if (opened->code) {
            prepare(opened);
        } else {
            PCRE2_UCHAR why[128] = "";
            pcre2_get_error_message(error, why, sizeof why);
            status = status_fail(STATUS_INVALID, "pre_tokenizer.pattern '%.200s' is not a regular expression: %s",
                                 pattern, (char *)why);
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
    if (regex) {
        pcre2_code_free(regex->code);
        free(regex->pattern);
    }
    free(regex);
}

/* Returns the total length of all groups' matches. */
static uint64_t group_bytes(const pcre2_callout_block *block) {
    uint64_t bytes = 0;
    for (uint32_t i = 1; i < block->capture_top; i++) {
        const PCRE2_SIZE *bounds = block->offset_vector + 2 * (size_t)i;
        bytes += 1 + (bounds[1] > bounds[0] ? bounds[1] - bounds[0] : 0);
    }
    return bytes;
}

static int count_step(pcre2_callout_block *block, void *context) {
    struct regex_scratch *scratch = context;
    size_t at = block->current_position, last = scratch->last;
    scratch->steps += scratch->regex->step + (at > last ? at - last : last - at);
    if (scratch->regex->has_references)
        scratch->steps += group_bytes(block);
    scratch->last = at;
    return scratch->steps > scratch->most ? PCRE2_ERROR_CALLOUT : 0;
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
    made->most = UINT64_MAX;
    pcre2_set_callout(made->limits, count_step, made);
    pcre2_set_match_limit(made->limits, UINT32_MAX); /* steps are counted instead */
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

void regex_scratch_begin(struct regex_scratch *scratch, size_t length, size_t patterns) {
    scratch->steps = 0;
    scratch->most = REGEX_STEPS + (uint64_t)REGEX_STEPS_OF_BYTE * length * patterns;
}

uint64_t regex_scratch_steps(const struct regex_scratch *scratch) {
    return scratch->steps;
}

int text_regex_find(const struct text_regex *regex, struct regex_scratch *scratch, const unsigned char *text,
                    size_t length, size_t from, size_t *start, size_t *end) {
    scratch->regex = regex;
    scratch->last = from;
    int found =
        pcre2_match(regex->code, (PCRE2_SPTR)text, length, from, PCRE2_NO_UTF_CHECK, scratch->data, scratch->limits);
    if (found == PCRE2_ERROR_NOMATCH)
        return STATUS_NOT_FOUND;
    if (found == PCRE2_ERROR_NOMEMORY)
        return status_fail(STATUS_MEMORY, "out of memory for a pattern");
    if (found == PCRE2_ERROR_CALLOUT)
        return status_fail(STATUS_INVALID,
                           "the tokenizer's pattern '%.200s' takes more than %" PRIu64 " steps in this text",
                           regex->pattern, scratch->most);
    if (found < 0) {
        PCRE2_UCHAR why[128] = "";
        pcre2_get_error_message(found, why, sizeof why);
        return status_fail(STATUS_INVALID, "the tokenizer's pattern '%.200s' fails in a text of %zu bytes: %s",
                           regex->pattern, length, (char *)why);
    }
    const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(scratch->data);
    *start = bounds[0];
    *end = bounds[1] > bounds[0] ? bounds[1] : bounds[0]; /* \K might put it after the end */
    return STATUS_OK;
}
