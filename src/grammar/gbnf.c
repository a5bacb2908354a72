/* Grammars in GBNF, llama.cpp's notation, as rules. Open groups are on a stack, so nothing recurses on a text.
 *
 * A part without the name of a rule is one regular expression, as large as possible: `"a" [b-z]* | "c"` is one
 * terminal. The automaton then sees few rules and long terminals. */
#include "readers-internal.h"

#include "base/utf8.h"

#include <ctype.h>
#include <stdarg.h>

enum {
    MAX_GROUPS = 256,
    MAX_RANGES = 4096,   /* in one class */
    MAX_TIMES = 1 << 30, /* of a repetition */
    MAX_CHARACTER = 0x10ffff,
};

/* A language: alternatives, or parts one after the other. Its terms are apart from its rules. */
struct mixed {
    regex term;
    rule_node node;
};
/* An open group, or the body of a rule. */
struct group {
    const char *at;      /* its parenthesis */
    struct mixed any_of; /* the alternatives before this one */
    rule_node before;    /* of this one: the parts up to the last name, */
    regex after;         /* those after it, */
    struct mixed last;   /* and the last part, which a quantifier may repeat */
    bool has_last;
};
struct named_rule {
    const char *used;    /* where its name stands first */
    const char *defined; /* NULL: not yet */
    size_t length;
    rule_id rule;
};
struct gbnf {
    struct grammar_reading *reading;
    struct rules *rules;
    struct regexes *regexes;
    const char *place, *text, *at, *end;
    json_t *numbers;          /* NAME: the index of its rule */
    struct named_rule *named; /* [named_count] */
    size_t named_count, named_capacity;
    struct group groups[MAX_GROUPS + 1];
    size_t depth; /* open parentheses */
};

/* ---- messages ---- */

static int refuse_at(struct gbnf *gbnf, const char *at, enum grammar_refusal refusal, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static int refuse_at(struct gbnf *gbnf, const char *at, enum grammar_refusal refusal, const char *format, ...) {
    char message[200];
    size_t line = 1, column = 1;
    va_list list;
    va_start(list, format);
    vsnprintf(message, sizeof message, format, list);
    va_end(list);
    for (const char *seen = gbnf->text; seen < at; seen++) {
        bool is_end = *seen == '\n';
        line += is_end;
        column = is_end ? 1 : column + ((*seen & 0xc0) != 0x80);
    }
    return grammar_refuse(gbnf->reading->report, refusal, "%s%sline %zu, column %zu: %s", gbnf->place,
                          *gbnf->place ? ": " : "", line, column, message);
}

static int refuse(struct gbnf *gbnf, const char *message) {
    return refuse_at(gbnf, gbnf->at, GRAMMAR_INVALID, "%s", message);
}

/* ---- characters ---- */

static bool is_at(const struct gbnf *gbnf, char c) {
    return gbnf->at < gbnf->end && *gbnf->at == c;
}

static bool take(struct gbnf *gbnf, char c) {
    bool is_there = is_at(gbnf, c);
    gbnf->at += is_there;
    return is_there;
}

static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static bool is_digit(const struct gbnf *gbnf) {
    return gbnf->at < gbnf->end && *gbnf->at >= '0' && *gbnf->at <= '9';
}

/* Passes white space and comments, on this line or on the next ones too. */
static void skip(struct gbnf *gbnf, bool over_lines) {
    for (; gbnf->at < gbnf->end; gbnf->at++) {
        bool is_end = *gbnf->at == '\n' || *gbnf->at == '\r';
        if (*gbnf->at == '#')
            while (gbnf->at + 1 < gbnf->end && gbnf->at[1] != '\n' && gbnf->at[1] != '\r')
                gbnf->at++;
        else if (is_end ? !over_lines : *gbnf->at != ' ' && *gbnf->at != '\t')
            return;
    }
}

static const char *pass_name(const struct gbnf *gbnf, const char *at) {
    while (at < gbnf->end && is_name(*at))
        at++;
    return at;
}

/* Reads one character of a literal or a class, which may be escaped. */
static int read_character(struct gbnf *gbnf, uint32_t *point) {
    static const char letters[] = "nrt\\\"[]", meanings[] = "\n\r\t\\\"[]", digits[] = "xuU";
    const char *at = gbnf->at, *found;
    unsigned char first = (unsigned char)*at;
    if (first != '\\') {
        size_t length =
            first < 0x80 ? 1 : utf8_decode((const unsigned char *)at, (const unsigned char *)gbnf->end, point);
        if (first < 0x80)
            *point = first;
        gbnf->at += length;
        return length ? STATUS_OK : refuse(gbnf, "the text is not UTF-8");
    }
    if (at + 1 == gbnf->end || !at[1])
        return refuse(gbnf, "an escape without its letter");
    gbnf->at += 2;
    if ((found = strchr(letters, at[1]))) {
        *point = (unsigned char)meanings[found - letters];
        return STATUS_OK;
    }
    if (!(found = strchr(digits, at[1])))
        return refuse_at(gbnf, at, GRAMMAR_INVALID, "unknown escape \\%c", at[1]);
    size_t count = (size_t)2 << (found - digits), i = 0;
    for (*point = 0; i < count && gbnf->at < gbnf->end && isxdigit((unsigned char)*gbnf->at); i++, gbnf->at++)
        *point = *point << 4 | (uint32_t)(*gbnf->at <= '9' ? *gbnf->at - '0' : (*gbnf->at | 32) - 'a' + 10);
    if (i < count)
        return refuse_at(gbnf, at, GRAMMAR_INVALID, "\\%c needs %zu hexadecimal digits", at[1], count);
    if (*point > MAX_CHARACTER || (*point >= 0xd800 && *point < 0xe000))
        return refuse_at(gbnf, at, GRAMMAR_INVALID, "the escape is not a character");
    return STATUS_OK;
}

/* ---- parts of a body ---- */

static rule_node node_of(struct gbnf *gbnf, struct mixed mixed) {
    return mixed.term == REGEX_NOTHING ? mixed.node
                                       : rule_either(gbnf->rules, mixed.node, rule_terminal(gbnf->rules, mixed.term));
}

/* Moves the last part to those before it. */
static void settle(struct gbnf *gbnf, struct group *group) {
    if (!group->has_last)
        return;
    if (group->last.node == RULE_NOTHING) {
        group->after = regex_join(gbnf->regexes, group->after, group->last.term);
    } else {
        rule_node after = rule_terminal(gbnf->rules, group->after);
        group->before = group->after == REGEX_EMPTY ? group->before : rule_join(gbnf->rules, group->before, after);
        group->before = rule_join(gbnf->rules, group->before, node_of(gbnf, group->last));
        group->after = REGEX_EMPTY;
    }
    group->has_last = false;
}

static void add(struct gbnf *gbnf, struct mixed part) {
    struct group *group = &gbnf->groups[gbnf->depth];
    settle(gbnf, group);
    group->last = part;
    group->has_last = true;
}

/* Adds the alternative that ends here to those before it. */
static void end_alternative(struct gbnf *gbnf) {
    struct group *group = &gbnf->groups[gbnf->depth];
    settle(gbnf, group);
    if (group->before == RULE_EMPTY) {
        group->any_of.term = regex_either(gbnf->regexes, group->any_of.term, group->after);
    } else {
        rule_node node = group->before;
        if (group->after != REGEX_EMPTY)
            node = rule_join(gbnf->rules, node, rule_terminal(gbnf->rules, group->after));
        group->any_of.node = rule_either(gbnf->rules, group->any_of.node, node);
    }
    group->before = RULE_EMPTY;
    group->after = REGEX_EMPTY;
}

static void open_group(struct gbnf *gbnf, const char *at) {
    gbnf->groups[gbnf->depth] =
        (struct group){.at = at, .any_of = {REGEX_NOTHING, RULE_NOTHING}, .before = RULE_EMPTY, .after = REGEX_EMPTY};
}

static int read_literal(struct gbnf *gbnf) {
    const char *begin = gbnf->at++;
    struct strbuf bytes = STRBUF_INIT;
    int status = STATUS_OK;
    while (!status && gbnf->at < gbnf->end && *gbnf->at != '"' && *gbnf->at != '\n') {
        unsigned char encoded[4];
        uint32_t point = 0;
        status = read_character(gbnf, &point);
        strbuf_add(&bytes, encoded, utf8_encode(point, encoded));
    }
    if (!status && !take(gbnf, '"'))
        status = refuse_at(gbnf, begin, GRAMMAR_INVALID, "the literal does not end");
    THEN(status, strbuf_status(&bytes));
    if (!status)
        add(gbnf, (struct mixed){regex_text(gbnf->regexes, strbuf_text(&bytes), bytes.length), RULE_NOTHING});
    strbuf_free(&bytes);
    return status;
}

static int compare_ranges(const void *left, const void *right) {
    const struct regex_range *a = left, *b = right;
    return a->first < b->first ? -1 : a->first > b->first;
}

/* Sorts the ranges and joins those that touch; or makes those between them. Returns their number, at most one more. */
static size_t order_ranges(struct regex_range *ranges, size_t count, bool is_negated) {
    size_t kept = 0;
    uint32_t free = 0;
    qsort(ranges, count, sizeof *ranges, compare_ranges);
    for (size_t i = 0; i < count; i++) {
        if (kept && ranges[i].first <= ranges[kept - 1].last + 1) {
            if (ranges[i].last > ranges[kept - 1].last)
                ranges[kept - 1].last = ranges[i].last;
        } else {
            ranges[kept++] = ranges[i];
        }
    }
    if (!is_negated)
        return kept;
    count = kept;
    kept = 0;
    for (size_t i = 0; i < count; i++) {
        struct regex_range range = ranges[i];
        if (range.first > free)
            ranges[kept++] = (struct regex_range){free, range.first - 1};
        free = range.last + 1;
    }
    if (free <= MAX_CHARACTER)
        ranges[kept++] = (struct regex_range){free, MAX_CHARACTER};
    return kept;
}

static int read_ranges(struct gbnf *gbnf, struct regex_range *ranges) {
    const char *begin = gbnf->at++;
    bool is_negated = take(gbnf, '^');
    size_t count = 0;
    while (gbnf->at < gbnf->end && *gbnf->at != ']') {
        const char *at = gbnf->at;
        struct regex_range range = {0};
        if (count == MAX_RANGES)
            return refuse_at(gbnf, begin, GRAMMAR_TOO_LARGE, "a class of more than %d ranges", MAX_RANGES);
        TRY(read_character(gbnf, &range.first));
        range.last = range.first;
        if (is_at(gbnf, '-') && gbnf->at + 1 < gbnf->end && gbnf->at[1] != ']') {
            gbnf->at++;
            TRY(read_character(gbnf, &range.last));
        }
        if (range.last < range.first)
            return refuse_at(gbnf, at, GRAMMAR_INVALID, "the range ends before it begins");
        ranges[count++] = range;
    }
    if (!take(gbnf, ']'))
        return refuse_at(gbnf, begin, GRAMMAR_INVALID, "the class does not end");
    count = order_ranges(ranges, count, is_negated);
    if (!count)
        return refuse_at(gbnf, begin, GRAMMAR_INVALID, "the class has no character");
    add(gbnf, (struct mixed){regex_characters(gbnf->regexes, ranges, count), RULE_NOTHING});
    return STATUS_OK;
}

static int read_class(struct gbnf *gbnf) {
    struct regex_range *ranges = malloc((MAX_RANGES + 1) * sizeof *ranges);
    int status = status_allocated(ranges);
    THEN(status, read_ranges(gbnf, ranges));
    free(ranges);
    return status;
}

/* Finds the rule of a name, or declares it. */
static int find_rule(struct gbnf *gbnf, const char *name, size_t length, struct named_rule **found) {
    json_t *number = json_object_getn(gbnf->numbers, name, length);
    if (!number) {
        TRY(array_reserve(&gbnf->named, &gbnf->named_capacity, gbnf->named_count + 1, sizeof *gbnf->named));
        number = json_integer((json_int_t)gbnf->named_count);
        if (json_object_setn_new(gbnf->numbers, name, length, number))
            return status_no_memory();
        gbnf->named[gbnf->named_count++] =
            (struct named_rule){.used = name, .length = length, .rule = rule_declare(gbnf->rules)};
    }
    *found = &gbnf->named[json_integer_value(number)];
    return STATUS_OK;
}

static int read_name(struct gbnf *gbnf) {
    const char *name = gbnf->at;
    struct named_rule *found;
    gbnf->at = pass_name(gbnf, name);
    TRY(find_rule(gbnf, name, (size_t)(gbnf->at - name), &found));
    add(gbnf, (struct mixed){REGEX_NOTHING, rule_call(gbnf->rules, found->rule)});
    return STATUS_OK;
}

static int read_times(struct gbnf *gbnf, int32_t *times) {
    for (*times = 0; is_digit(gbnf); gbnf->at++) {
        *times = *times * 10 + (*gbnf->at - '0');
        if (*times > MAX_TIMES / 10)
            return refuse_at(gbnf, gbnf->at, GRAMMAR_TOO_LARGE, "the repetition is too large");
    }
    return STATUS_OK;
}

/* Reads * + ? {n} {n,} {n,m} {,m}. */
static int read_quantifier(struct gbnf *gbnf) {
    const char *at = gbnf->at++;
    struct group *group = &gbnf->groups[gbnf->depth];
    int32_t least = *at == '+', most = *at == '?' ? 1 : REGEX_ENDLESS;
    if (!group->has_last)
        return refuse_at(gbnf, at, GRAMMAR_INVALID, "nothing to repeat before %c", *at);
    if (*at == '{') {
        skip(gbnf, false);
        bool has_least = is_digit(gbnf);
        TRY(read_times(gbnf, &least));
        skip(gbnf, false);
        bool has_comma = take(gbnf, ',');
        skip(gbnf, false);
        bool has_most = has_comma && is_digit(gbnf);
        TRY(read_times(gbnf, &most));
        most = has_most ? most : has_comma ? REGEX_ENDLESS : least;
        skip(gbnf, false);
        if (!take(gbnf, '}') || (!has_least && !has_most))
            return refuse_at(gbnf, at, GRAMMAR_INVALID, "expected {n}, {n,}, {n,m} or {,m}");
        if (most < least)
            return refuse_at(gbnf, at, GRAMMAR_INVALID, "the repetition ends before it begins");
    }
    if (group->last.node == RULE_NOTHING)
        group->last.term = regex_repeat(gbnf->regexes, group->last.term, least, most);
    else
        group->last = (struct mixed){REGEX_NOTHING, rule_repeat(gbnf->rules, node_of(gbnf, group->last), least, most)};
    return STATUS_OK;
}

static int open_parenthesis(struct gbnf *gbnf) {
    if (gbnf->depth == MAX_GROUPS)
        return refuse_at(gbnf, gbnf->at, GRAMMAR_TOO_LARGE, "more than %d nested groups", MAX_GROUPS);
    gbnf->depth++;
    open_group(gbnf, gbnf->at++);
    return STATUS_OK;
}

static int close_parenthesis(struct gbnf *gbnf) {
    if (!gbnf->depth)
        return refuse(gbnf, "no group is open here");
    end_alternative(gbnf);
    struct mixed inner = gbnf->groups[gbnf->depth--].any_of;
    gbnf->at++;
    add(gbnf, inner);
    return STATUS_OK;
}

static int read_part(struct gbnf *gbnf) {
    static const struct regex_range any = {0, MAX_CHARACTER};
    switch (*gbnf->at) {
    case '"':
        return read_literal(gbnf);
    case '[':
        return read_class(gbnf);
    case '(':
        return open_parenthesis(gbnf);
    case ')':
        return close_parenthesis(gbnf);
    case '*':
    case '+':
    case '?':
    case '{':
        return read_quantifier(gbnf);
    case '.':
        gbnf->at++;
        add(gbnf, (struct mixed){regex_characters(gbnf->regexes, &any, 1), RULE_NOTHING});
        return STATUS_OK;
    case '|':
        gbnf->at++;
        end_alternative(gbnf);
        skip(gbnf, true);
        return STATUS_OK;
    default:
        return is_name(*gbnf->at) ? read_name(gbnf) : refuse(gbnf, "expected a literal, a class, a name or a group");
    }
}

/* ---- rules ---- */

/* A body ends with its line, except inside parentheses, after |, and before a line that begins with |. */
static int read_body(struct gbnf *gbnf, rule_node *body) {
    gbnf->depth = 0;
    open_group(gbnf, gbnf->at);
    for (;;) {
        skip(gbnf, gbnf->depth > 0);
        const char *line = gbnf->at;
        if (!gbnf->depth && (line == gbnf->end || *line == '\n' || *line == '\r')) {
            skip(gbnf, true);
            if (!is_at(gbnf, '|'))
                break;
        }
        if (gbnf->at == gbnf->end)
            return refuse_at(gbnf, gbnf->groups[gbnf->depth].at, GRAMMAR_INVALID, "the group does not end");
        TRY(read_part(gbnf));
    }
    end_alternative(gbnf);
    *body = node_of(gbnf, gbnf->groups[0].any_of);
    return STATUS_OK;
}

static int read_rule(struct gbnf *gbnf) {
    const char *name = gbnf->at, *end = pass_name(gbnf, name);
    struct named_rule *found;
    rule_node body = RULE_NOTHING;
    gbnf->at = end;
    skip(gbnf, false);
    size_t rest = (size_t)(gbnf->end - gbnf->at);
    if (rest && *gbnf->at == ':' && (rest < 2 || gbnf->at[1] != ':'))
        return refuse_at(gbnf, name, GRAMMAR_UNSUPPORTED,
                         "grammars of Lark are not supported (\"%.*s:\"); write NAME ::= BODY",
                         end - name < 40 ? (int)(end - name) : 40, name);
    if (end == name)
        return refuse(gbnf, "expected the name of a rule");
    if (rest < 3 || memcmp(gbnf->at, "::=", 3) != 0)
        return refuse(gbnf, "expected ::= after the name of a rule");
    TRY(find_rule(gbnf, name, (size_t)(end - name), &found));
    if (found->defined)
        return refuse_at(gbnf, name, GRAMMAR_INVALID, "the rule has another definition");
    found->defined = name;
    rule_id rule = found->rule;
    gbnf->at += 3;
    skip(gbnf, true);
    TRY(read_body(gbnf, &body));
    rule_define(gbnf->rules, rule, body);
    return STATUS_OK;
}

/* Checks that every rule has a body and derives a text. */
static int check_rules(struct gbnf *gbnf, rule_node *node) {
    json_t *root = json_object_get(gbnf->numbers, "root");
    for (size_t i = 0; i < gbnf->named_count; i++) {
        const struct named_rule *named = &gbnf->named[i];
        if (!named->defined)
            return refuse_at(gbnf, named->used, GRAMMAR_INVALID, "no rule is named %.*s",
                             named->length < 64 ? (int)named->length : 64, named->used);
    }
    if (!root)
        return refuse_at(gbnf, gbnf->text, GRAMMAR_INVALID, "no rule is named root");
    TRY(rules_status(gbnf->rules));
    for (size_t i = 0; i < gbnf->named_count; i++) {
        const struct named_rule *named = &gbnf->named[i];
        bool is_nothing = rule_is_nothing(gbnf->rules, named->rule);
        TRY(rules_status(gbnf->rules));
        if (is_nothing)
            return refuse_at(gbnf, named->defined, GRAMMAR_INVALID, "the rule derives no finite text");
    }
    *node = rule_call(gbnf->rules, gbnf->named[json_integer_value(root)].rule);
    return rules_status(gbnf->rules);
}

int gbnf_read_text(struct grammar_reading *reading, const char *text, size_t length, const char *place,
                   rule_node *node) {
    struct gbnf *gbnf = calloc(1, sizeof *gbnf);
    TRY(status_allocated(gbnf));
    *gbnf = (struct gbnf){.reading = reading,
                          .rules = reading->rules,
                          .regexes = rules_regexes(reading->rules),
                          .place = place,
                          .text = text,
                          .at = text,
                          .end = text + length,
                          .numbers = json_object()};
    int status = status_allocated(gbnf->numbers);
    while (!status) {
        skip(gbnf, true);
        if (gbnf->at == gbnf->end)
            break;
        status = read_rule(gbnf);
        THEN(status, rules_status(gbnf->rules));
    }
    THEN(status, check_rules(gbnf, node));
    json_decref(gbnf->numbers);
    free(gbnf->named);
    free(gbnf);
    return status;
}

int gbnf_read(struct grammar_reading *reading, rule_node *node) {
    return gbnf_read_text(reading, reading->source->text, reading->source->length, "", node);
}
