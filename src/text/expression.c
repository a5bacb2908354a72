/* Python's re by PCRE2. A scan of the text comes first. It rewrites the few things that PCRE2 spells otherwise. It
 * refuses constructs that Python's re does not have (verbs, recursion, \K) and those with another meaning in PCRE2. */
#include "text/expression.h"

#include "base/base.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <ctype.h>
#include <pcre2.h>

/* The limits of one match. A path has some 40 bytes; ordinary expressions take up to 200 steps, and the limits amount
 * to milliseconds. Expressions that are matched with every path share the steps, down to a minimum. */
enum { MATCH_STEPS = 100000, MATCH_STEPS_LEAST = 1000, MATCH_DEPTH = 10000, MATCH_KIB = 4096 };
enum { LONGEST = 2048, GROUPS = 100, DEEPEST = 100, SHOWN_BYTES = 200 };

struct text_expression {
    const char *what;
    char shown[SHOWN_BYTES + 1]; /* on one line */
    int steps;
    pcre2_code *code;
    pcre2_match_data *data;
    pcre2_match_context *limits;
};

/* ---- Python's syntax ---- */

enum item { ITEM_NONE /* nothing to repeat */, ITEM_ONE, ITEM_REPEATED };

struct scan {
    const char *at;
    struct strbuf *out;
    const char *why; /* why it cannot be read; NULL so far */
    enum item last;
    int groups, depth;
    int open[DEEPEST];      /* the number of each open group; 0: it captures nothing */
    bool is_closed[GROUPS]; /* by number */
};

static void add(struct scan *s, const char *text) {
    strbuf_add_text(s->out, text);
}

/* Scans \x and two digits. */
static void scan_hex(struct scan *s) {
    if (!isxdigit((unsigned char)s->at[1]) || !isxdigit((unsigned char)s->at[2])) {
        s->why = "\\x without two hexadecimal digits";
        return;
    }
    add(s, "\\");
    strbuf_add(s->out, s->at, 3);
    s->at += 2;
}

/* Scans the escape whose backslash was just read; stops at its last byte. */
static void scan_escape(struct scan *s, bool is_in_class) {
    char c = *s->at;
    s->last = ITEM_ONE;
    if (c == 'x') {
        scan_hex(s);
    } else if (c == 'v') {
        add(s, "\\x0b");
    } else if (c && strchr(is_in_class ? "bdDsSwWafnrt" : "dDsSwWafnrt", c)) {
        add(s, "\\");
        strbuf_add_char(s->out, c);
    } else if (c && !is_in_class && strchr("AbBZ", c)) {
        add(s, "\\");
        strbuf_add_char(s->out, c == 'Z' ? 'z' : c);
        s->last = ITEM_NONE;
    } else if (c >= '1' && c <= '9' && !is_in_class && !isdigit((unsigned char)s->at[1])) {
        if (!s->is_closed[c - '0'])
            s->why = "a reference to a group that is not closed before it";
        add(s, "\\");
        strbuf_add_char(s->out, c);
    } else if (!c) {
        s->why = "a backslash at the end";
    } else if (isalnum((unsigned char)c)) {
        s->why = "an escape that Python's re does not have, or that is not read here";
    } else {
        if ((unsigned char)c < 0x80)
            add(s, "\\");
        strbuf_add_char(s->out, c);
    }
}

/* Scans a class from '[' to ']'. */
static void scan_class(struct scan *s) {
    strbuf_add_char(s->out, *s->at++);
    if (*s->at == '^')
        strbuf_add_char(s->out, *s->at++);
    for (const char *first = s->at; !s->why && (*s->at != ']' || s->at == first); s->at++) {
        if (!*s->at) {
            s->why = "a [ without its ]";
            return;
        }
        if (*s->at == '[') { /* stands for itself; not the start of [:alpha:] */
            add(s, "\\[");
        } else if (*s->at == '\\') {
            s->at++;
            scan_escape(s, true);
        } else
            strbuf_add_char(s->out, *s->at);
    }
    if (!s->why)
        strbuf_add_char(s->out, ']');
    s->last = ITEM_ONE;
}

/* Returns the end of {m}, {m,n}, {m,}, {,n} or {,}; NULL when the brace is an ordinary character. */
static const char *end_of_bounds(const char *at, const char **comma) {
    const char *p = at + 1;
    *comma = NULL;
    if (*p == '}')
        return NULL;
    while (isdigit((unsigned char)*p))
        p++;
    if (*p == ',') {
        *comma = p++;
        while (isdigit((unsigned char)*p))
            p++;
    }
    return *p == '}' ? p : NULL;
}

/* Scans a repetition from *, +, ? or { to its last byte. */
static void scan_repeat(struct scan *s) {
    const char *comma = NULL, *end = *s->at == '{' ? end_of_bounds(s->at, &comma) : s->at;
    if (!end) {
        add(s, "\\{");
        s->last = ITEM_ONE;
        return;
    }
    if (s->last != ITEM_ONE) {
        s->why = s->last == ITEM_NONE ? "nothing to repeat" : "multiple repeat";
        return;
    }
    bool has_no_least = comma == s->at + 1;
    if (has_no_least)
        add(s, "{0");
    strbuf_add(s->out, s->at + has_no_least, (size_t)(end - s->at) + !has_no_least);
    s->at = end;
    if (s->at[1] == '?' || s->at[1] == '+')
        strbuf_add_char(s->out, *++s->at);
    s->last = ITEM_REPEATED;
}

static void open_group(struct scan *s, bool captures) {
    if (s->depth == DEEPEST || (captures && s->groups == GROUPS - 1)) {
        s->why = "too many groups";
        return;
    }
    s->open[s->depth++] = captures ? ++s->groups : 0;
    s->last = ITEM_NONE;
}

static void close_group(struct scan *s) {
    if (!s->depth) {
        s->why = "a ) without its (";
        return;
    }
    int number = s->open[--s->depth];
    s->is_closed[number] = number > 0;
    s->last = ITEM_ONE;
    strbuf_add_char(s->out, ')');
}

/* Scans (?ims) at the beginning of the text, or (?ims-ims:...). Starts at the '?'; stops at the last byte. */
static void scan_flags(struct scan *s, bool is_first) {
    const char *end = s->at + 1 + strspn(s->at + 1, "aimsu-");
    if ((*end != ')' || !is_first || memchr(s->at, '-', (size_t)(end - s->at))) && *end != ':') {
        s->why = "a group of a kind that Python's re does not have, or that is not read here";
        return;
    }
    add(s, "(?");
    for (const char *p = s->at + 1; p <= end; p++)
        if (*p != 'a' && *p != 'u') /* paths are ASCII */
            strbuf_add_char(s->out, *p);
    s->at = end;
    if (*end == ':')
        open_group(s, false);
    else
        s->last = ITEM_NONE;
}

/* Scans (?P<name>, which opens a group, or (?P=name). Starts at the '?'; stops at the last byte. */
static void scan_name(struct scan *s) {
    bool opens = s->at[2] == '<';
    const char *end = s->at + 3;
    while (isalnum((unsigned char)*end) || *end == '_')
        end++;
    if (end == s->at + 3 || *end != (opens ? '>' : ')')) {
        s->why = "a name of a group is letters, digits and _";
        return;
    }
    add(s, "(");
    strbuf_add(s->out, s->at, (size_t)(end - s->at) + 1);
    s->at = end;
    if (opens)
        open_group(s, true);
    else
        s->last = ITEM_ONE;
}

/* Starts at '('; stops at the last byte of the group's opening, or at the end of a comment. */
static void scan_group(struct scan *s, bool is_first) {
    static const char *const plain[] = {"?:", "?=", "?!", "?<=", "?<!", "?>"};
    s->at++;
    if (*s->at != '?') {
        if (*s->at == '*')
            s->why = "nothing to repeat";
        s->at--;
        strbuf_add_char(s->out, '(');
        open_group(s, true);
        return;
    }
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (!strncmp(s->at, plain[i], strlen(plain[i]))) {
            add(s, "(");
            add(s, plain[i]);
            s->at += strlen(plain[i]) - 1;
            open_group(s, false);
            return;
        }
    if (!strncmp(s->at, "?P<", 3) || !strncmp(s->at, "?P=", 3)) {
        scan_name(s);
    } else if (s->at[1] == '#') {
        s->at = strchr(s->at, ')');
        if (!s->at)
            s->why = "a comment without its )";
    } else
        scan_flags(s, is_first);
}

/* Writes `text` as PCRE2 reads it. A key gets "(.*\.)?(" and ")$" around it, two groups. Returns NULL, or the reason
 * why the text cannot be read. */
static const char *translate(const char *text, bool is_key, struct strbuf *out) {
    struct scan s = {.at = text, .out = out, .groups = is_key ? 2 : 0, .is_closed = {[1] = is_key}};
    if (strnlen(text, LONGEST) == LONGEST)
        return "too long";
    add(&s, is_key ? "(.*\\.)?(" : "");
    for (; !s.why && *s.at; s.at++) {
        if (*s.at == '[')
            scan_class(&s);
        else if (*s.at == '(')
            scan_group(&s, s.at == text && !is_key);
        else if (*s.at == ')')
            close_group(&s);
        else if (strchr("*+?{", *s.at))
            scan_repeat(&s);
        else if (*s.at == '\\') {
            s.at++;
            scan_escape(&s, false);
        } else {
            strbuf_add_char(out, *s.at);
            s.last = strchr("|^$", *s.at) ? ITEM_NONE : ITEM_ONE;
        }
        if (s.why || !s.at || !*s.at)
            break;
    }
    add(&s, is_key ? ")$" : "");
    return s.why || !s.depth ? s.why : "a ( without its )";
}

/* ---- compiling and matching ---- */

static int refuse(const struct text_expression *e, const char *why) {
    return status_fail(STATUS_USAGE, "%s \"%s\": an expression that cannot be read here: %s", e->what, e->shown, why);
}

void text_expression_share(struct text_expression *e, size_t sharers) {
    e->steps = sharers < MATCH_STEPS / MATCH_STEPS_LEAST ? MATCH_STEPS / (int)sharers : MATCH_STEPS_LEAST;
    pcre2_set_match_limit(e->limits, (uint32_t)e->steps);
}

static int compile(struct text_expression *e, const struct strbuf *text) {
    int error;
    PCRE2_SIZE offset;
    PCRE2_UCHAR why[160];
    e->code =
        pcre2_compile((PCRE2_SPTR)strbuf_text(text), text->length,
                      PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &error, &offset, NULL);
    if (!e->code && error == PCRE2_ERROR_HEAP_FAILED)
        return status_no_memory();
    if (!e->code) {
        pcre2_get_error_message(error, why, sizeof why);
        return refuse(e, (const char *)why);
    }
    e->data = pcre2_match_data_create(1, NULL);
    e->limits = pcre2_match_context_create(NULL);
    TRY(status_allocated(e->data && e->limits));
    text_expression_share(e, 1);
    pcre2_set_depth_limit(e->limits, MATCH_DEPTH);
    pcre2_set_heap_limit(e->limits, MATCH_KIB);
    return STATUS_OK;
}

static void show(struct text_expression *e, const char *text) {
    size_t length = strnlen(text, SHOWN_BYTES);
    for (size_t i = 0; i < length; i++)
        e->shown[i] = (unsigned char)text[i] < 32 || text[i] == 127 ? '?' : text[i];
}

int text_expression_open(const char *what, const char *text, bool is_key, struct text_expression **expression) {
    struct text_expression *e = *expression = calloc(1, sizeof *e);
    struct strbuf pcre = STRBUF_INIT;
    TRY(status_allocated(e));
    e->what = what;
    show(e, text);
    const char *why = translate(text, is_key, &pcre);
    int status = strbuf_status(&pcre);
    THEN(status, why ? refuse(e, why) : compile(e, &pcre));
    strbuf_free(&pcre);
    if (status) {
        text_expression_close(e);
        *expression = NULL;
    }
    return status;
}

void text_expression_close(struct text_expression *e) {
    if (!e)
        return;
    pcre2_code_free(e->code);
    pcre2_match_data_free(e->data);
    pcre2_match_context_free(e->limits);
    free(e);
}

int text_expression_match(const struct text_expression *e, const char *path, bool *is_match) {
    int found = pcre2_match(e->code, (PCRE2_SPTR)path, strlen(path), 0, 0, e->data, e->limits);
    *is_match = found >= 0;
    if (found >= 0 || found == PCRE2_ERROR_NOMATCH)
        return STATUS_OK;
    if (found == PCRE2_ERROR_NOMEMORY)
        return status_no_memory();
    return status_fail(STATUS_USAGE,
                       "%s \"%s\": an expression that is too complex: it takes more than %d steps, or %d KiB, to "
                       "match %s",
                       e->what, e->shown, e->steps, MATCH_KIB, path);
}
