/* Any bytes through the tokenizers: decoding must restore them, and the ids must be those of the slow, plain way. That
 * way tries the alternatives of the pattern one after the other on code points, and in each word merges the pair with
 * the lowest rank until none remains. The kinds of characters come from the golden file, not from the tokenizer's
 * table, and the normal form from libutf8proc as a whole. */
#include "base/base.h"
#include "base/utf8.h"
#include "text/text.h"

#include "new_marks.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_POINTS = 1200, POINTS = 0x110000 };

enum pattern { GPT2, LLAMA3, O200K, SMOLLM };

/* One of the golden tokenizers. Llama 3's and Qwen2's patterns differ in the numbers of a word, o200k's and Tekken's in
 * contractions, too. */
struct subject {
    const char *directory;
    enum pattern pattern;
    size_t most_numbers;
    bool has_contractions;
    bool has_ignore_merges; /* and words that no merge leads to */
    bool has_nfc;           /* and two tokens that are found in any text */
    struct tokenizer *tokenizer;
    struct tokenizer_encoder *encoder;
};
static struct subject subjects[] = {
    {.directory = TEST_DATA "/text/golden/small"},
    {.directory = TEST_DATA "/text/golden/llama3", .pattern = LLAMA3, .most_numbers = 3, .has_ignore_merges = true},
    {.directory = TEST_DATA "/text/golden/qwen2", .pattern = LLAMA3, .most_numbers = 1},
    {.directory = TEST_DATA "/text/golden/qwen2_nfc", .pattern = LLAMA3, .most_numbers = 1, .has_nfc = true},
    {.directory = TEST_DATA "/text/golden/o200k", .pattern = O200K, .most_numbers = 3, .has_contractions = true},
    {.directory = TEST_DATA "/text/golden/tekken", .pattern = O200K, .most_numbers = 1},
    {.directory = TEST_DATA "/text/golden/smollm", .pattern = SMOLLM},
};
enum { SUBJECTS = sizeof subjects / sizeof *subjects };
static struct token_buffer ids;
static bool is_started;
static char kinds[POINTS]; /* O, L, N or S */

static void check(bool is_right, const char *what) {
    if (is_right)
        return;
    fprintf(stderr, "bpe_fuzz: %s (%s)\n", what, status_text());
    abort();
}

static void start(void) {
    for (int i = 0; i < SUBJECTS; i++) {
        check(!tokenizer_open(subjects[i].directory, &subjects[i].tokenizer), "no tokenizer");
        check(!tokenizer_encoder_new(subjects[i].tokenizer, &subjects[i].encoder), "no encoder");
    }
    is_started = true;
    FILE *file = fopen(TEST_DATA "/text/golden/kinds.txt", "r");
    check(file, "no kinds.txt");
    unsigned from;
    char kind;
    while (fscanf(file, "%x %c", &from, &kind) == 2)
        memset(kinds + from, kind, POINTS - from);
    fclose(file);
}

/* A text as code points: where each begins, and its kind. The last one is a sentinel of kind 0. */
struct points {
    size_t count, at[MAX_POINTS + 1];
    uint32_t point[MAX_POINTS + 1];
    char kind[MAX_POINTS + 1];
};

/* Whether the text is UTF-8 and short enough. */
static bool decode(const uint8_t *data, size_t size, struct points *out) {
    out->count = 0;
    for (size_t i = 0; i < size;) {
        uint32_t c = data[i];
        size_t bytes = c < 0x80                ? 1
                       : c >= 0xc2 && c < 0xe0 ? 2
                       : (c & 0xf0) == 0xe0    ? 3
                       : c >= 0xf0 && c < 0xf5 ? 4
                                               : 0;
        if (bytes == 0 || i + bytes > size || out->count == MAX_POINTS)
            return false;
        c = bytes == 1 ? c : c & (0x7fu >> bytes);
        for (size_t j = 1; j < bytes; j++) {
            if ((data[i + j] & 0xc0) != 0x80)
                return false;
            c = c << 6 | (data[i + j] & 0x3f);
        }
        static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
        if (c < smallest[bytes] || c >= POINTS || (c >= 0xd800 && c < 0xe000))
            return false;
        out->at[out->count] = i;
        out->point[out->count] = c;
        out->kind[out->count++] = kinds[c];
        i += bytes;
    }
    out->at[out->count] = size;
    out->point[out->count] = 0;
    out->kind[out->count] = 0;
    return true;
}

/* How many points GPT-2's pattern matches at `i`, alternative by alternative. */
static size_t match_gpt2(const struct points *p, size_t i) {
    static const char *const endings[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    for (size_t e = 0; p->point[i] == '\'' && e < sizeof endings / sizeof *endings; e++) {
        size_t n = strlen(endings[e]), same = 0;
        while (same < n && i + 1 + same < p->count && p->point[i + 1 + same] == (unsigned char)endings[e][same])
            same++;
        if (same == n)
            return n + 1;
    }
    for (const char *kind = "LNO"; *kind; kind++) {
        for (size_t space = p->point[i] == ' '; space != SIZE_MAX; space--) { /* with the space, then without */
            size_t n = space;
            while (p->kind[i + n] == *kind)
                n++;
            if (n > space)
                return n;
        }
    }
    size_t n = 0;
    while (p->kind[i + n] == 'S')
        n++;
    for (size_t shorter = n; shorter > 0; shorter--) /* \s+(?!\S), giving back */
        if (i + shorter == p->count || p->kind[i + shorter] == 'S')
            return shorter;
    return n; /* \s+ */
}

static bool is_line_end(const struct points *p, size_t i) {
    return p->kind[i] && (p->point[i] == '\r' || p->point[i] == '\n');
}

/* The points from `i` on that are of the kind. */
static size_t run(const struct points *p, size_t i, char kind) {
    size_t n = 0;
    while (p->kind[i + n] == kind)
        n++;
    return n;
}

/* The points of a contraction in either case at `i`; 0: there is none. */
static size_t match_contraction(const struct points *p, size_t i) {
    static const char *const endings[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    for (size_t e = 0; p->point[i] == '\'' && e < sizeof endings / sizeof *endings; e++) {
        size_t n = strlen(endings[e]), same = 0;
        for (; same < n && i + 1 + same < p->count; same++) {
            uint32_t c = p->point[i + 1 + same], small = (unsigned char)endings[e][same];
            if (c != small && c != small - 32 && !(small == 's' && c == 0x17f))
                break;
        }
        if (same == n)
            return n + 1;
    }
    return 0;
}

/* \s*[\r\n]+ and \s+(?!\S), giving back, and \s+. */
static size_t match_spaces(const struct points *p, size_t i) {
    size_t n = run(p, i, 'S');
    for (size_t shorter = n; shorter > 0; shorter--)
        if (is_line_end(p, i + shorter - 1))
            return shorter;
    for (size_t shorter = n; shorter > 0; shorter--)
        if (i + shorter == p->count || p->kind[i + shorter] == 'S')
            return shorter;
    return n;
}

/* How many points Llama 3's or Qwen2's pattern matches at `i`, alternative by alternative. */
static size_t match_llama3(const struct points *p, size_t i, size_t most_numbers) {
    if (match_contraction(p, i) > 0)
        return match_contraction(p, i);
    /* [^\r\n\p{L}\p{N}]?\p{L}+ */
    bool has_first = p->kind[i] != 'L' && p->kind[i] != 'N' && !is_line_end(p, i);
    if (has_first && run(p, i + 1, 'L') > 0)
        return 1 + run(p, i + 1, 'L');
    if (p->kind[i] == 'L')
        return run(p, i, 'L');
    /* \p{N}{1,3} or \p{N} */
    size_t n = run(p, i, 'N');
    if (n > 0)
        return n < most_numbers ? n : most_numbers;
    /*  ?[^\s\p{L}\p{N}]+[\r\n]* */
    size_t space = p->point[i] == ' ';
    n = space + run(p, i + space, 'O');
    if (n > space) {
        while (is_line_end(p, i + n))
            n++;
        return n;
    }
    return match_spaces(p, i);
}

/* Whether the point is of the first or the second class of o200k's words, by libutf8proc. */
static bool is_cased(const struct points *p, size_t i, bool is_first) {
    if (!p->kind[i])
        return false;
    switch (utf8proc_category((utf8proc_int32_t)p->point[i])) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
        return is_first;
    case UTF8PROC_CATEGORY_LL:
        return !is_first;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
        return true;
    default:
        return false;
    }
}

/* How many points o200k's or Tekken's pattern matches at `i`, alternative by alternative. */
static size_t match_o200k(const struct points *p, size_t i, const struct subject *s) {
    for (size_t least_second = 1; least_second != SIZE_MAX; least_second--) { /* U*W+, then U+W* */
        size_t has_lead = p->kind[i] != 'L' && p->kind[i] != 'N' && !is_line_end(p, i);
        for (size_t lead = has_lead; lead != SIZE_MAX; lead--) {
            size_t from = i + lead, first = 0, second;
            while (is_cased(p, from + first, true))
                first++;
            for (; first != SIZE_MAX; first--) { /* giving back */
                for (second = 0; is_cased(p, from + first + second, false);)
                    second++;
                if (second >= least_second && first >= 1 - least_second) {
                    size_t n = lead + first + second;
                    return n + (s->has_contractions ? match_contraction(p, i + n) : 0);
                }
            }
        }
    }
    size_t n = run(p, i, 'N');
    if (n > 0)
        return n < s->most_numbers ? n : s->most_numbers;
    size_t space = p->point[i] == ' ';
    n = space + run(p, i + space, 'O');
    if (n > space) {
        while (is_line_end(p, i + n) || (p->kind[i + n] && p->point[i + n] == '/'))
            n++;
        return n;
    }
    return match_spaces(p, i);
}

/* GPT-2's pattern on what stands between numbers, which stand alone. */
static size_t match_smollm(const struct points *p, size_t i) {
    static struct points part;
    if (p->kind[i] == 'N')
        return 1;
    part = *p;
    part.count = i;
    while (part.count < p->count && p->kind[part.count] != 'N')
        part.count++;
    part.kind[part.count] = 0;
    part.point[part.count] = 0;
    return match_gpt2(&part, i);
}

static size_t match(const struct subject *s, const struct points *p, size_t i) {
    switch (s->pattern) {
    case LLAMA3:
        return match_llama3(p, i, s->most_numbers);
    case O200K:
        return match_o200k(p, i, s);
    case SMOLLM:
        return match_smollm(p, i);
    default:
        return match_gpt2(p, i);
    }
}

/* The libraries disagree about the newest characters. */
static bool is_of_one_mind(const struct points *p) {
    for (size_t i = 0; i < p->count; i++)
        if (p->point[i] >= 0x10e80 && !(p->point[i] >= 0x1f000 && p->point[i] < 0x2a6e0))
            return false;
    return true;
}

/* The rank of a pair in the golden tokenizers is the id of what it merges to; -1 when it does not. */
static int32_t merged(const struct subject *s, const uint8_t *data, size_t from, size_t to) {
    int32_t id = tokenizer_find(s->tokenizer, data + from, to - from);
    return tokenizer_is_special(s->tokenizer, id) ? -1 : id;
}

/* Checks that the ids from *used on are those of the word. */
static void check_word(const struct subject *s, const uint8_t *data, size_t from, size_t to, size_t *used) {
    size_t bounds[4 * MAX_POINTS + 1], count = to - from;
    if (s->has_ignore_merges && merged(s, data, from, to) >= 0) {
        check(*used < ids.count && ids.ids[(*used)++] == merged(s, data, from, to), "another id");
        return;
    }
    for (size_t i = 0; i <= count; i++)
        bounds[i] = from + i;
    for (;;) {
        size_t best = SIZE_MAX;
        int32_t best_id = INT32_MAX;
        for (size_t i = 0; i + 2 <= count; i++) {
            int32_t id = merged(s, data, bounds[i], bounds[i + 2]);
            if (id >= 0 && id < best_id) {
                best = i;
                best_id = id;
            }
        }
        if (best == SIZE_MAX)
            break;
        memmove(bounds + best + 1, bounds + best + 2, (count - best - 1) * sizeof *bounds);
        count--;
    }
    for (size_t i = 0; i < count; i++)
        check(*used < ids.count && ids.ids[(*used)++] == merged(s, data, bounds[i], bounds[i + 1]), "other ids");
}

/* The normal form of what is UTF-8, and the rest. */
static uint8_t *normalize(const uint8_t *data, size_t *size) {
    size_t valid = utf8_valid_length(data, *size);
    utf8proc_uint8_t *normal = NULL;
    utf8proc_ssize_t length = utf8proc_map(data, (utf8proc_ssize_t)valid, &normal, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    check(length >= 0, "not normalized");
    uint8_t *whole = malloc((size_t)length + *size - valid + 1);
    check(whole, "no memory");
    memcpy(whole, normal, (size_t)length);
    memcpy(whole + length, data + valid, *size - valid);
    *size = (size_t)length + *size - valid;
    free(normal);
    return whole;
}

static void check_subject(const struct subject *s, const uint8_t *given, size_t given_size) {
    struct strbuf text = STRBUF_INIT;
    size_t size = given_size;
    uint8_t *normal = s->has_nfc ? normalize(given, &size) : NULL;
    const uint8_t *data = s->has_nfc ? normal : given;
    /* Both tokens end in this way, and so do special ones; the text after one is normalized separately. */
    bool is_left_out = s->has_nfc && given_size > 0 && memchr(given, '>', given_size);
    /* libutf8proc as a whole takes U+11A7 for the end of a syllable, and drops it. */
    is_left_out |= s->has_nfc && has_new_mark(given, given_size);
    is_left_out |= s->has_nfc && memmem(given, given_size, "\xe1\x86\xa7", 3);
    for (unsigned flags = 0; flags < 2; flags++) {
        ids.count = 0;
        strbuf_clear(&text);
        check(!tokenizer_encode(s->encoder, given, given_size, flags, &ids), "not encoded");
        check(!tokenizer_decode(s->tokenizer, ids.ids, ids.count, &text), "not decoded");
        if (is_left_out)
            continue;
        check(text.length == size && (size == 0 || !memcmp(text.data, data, size)), "other bytes come back");
        struct points points;
        if (flags || !decode(data, size, &points) || (s->pattern == O200K && !is_of_one_mind(&points)))
            continue;
        size_t used = 0;
        for (size_t i = 0, n; i < points.count; i += n) {
            n = match(s, &points, i);
            check_word(s, data, points.at[i], points.at[i + n], &used);
        }
        check(used == ids.count, "more ids");
    }
    strbuf_free(&text);
    free(normal);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!is_started)
        start();
    for (int i = 0; i < SUBJECTS; i++)
        check_subject(&subjects[i], data, size);
    return 0;
}
