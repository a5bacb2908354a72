/* Any bytes through the tokenizer: they must come back, and the ids must be those of the slow, plain way -- the
 * alternatives of GPT-2's pattern tried one behind the other on code points, and in each word the pair with the lowest
 * rank merged until none is left. The kinds of characters come from the golden file, not from the tokenizer's table. */
#include "base/base.h"
#include "text/text.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_POINTS = 1200, POINTS = 0x110000 };

static struct tokenizer *tokenizer;
static struct tokenizer_encoder *encoder;
static struct token_buffer ids;
static char kinds[POINTS]; /* O, L, N or S */

static void check(bool is_right, const char *what) {
    if (is_right)
        return;
    fprintf(stderr, "bpe_fuzz: %s (%s)\n", what, status_text());
    abort();
}

static void start(void) {
    check(!tokenizer_open(TEST_DATA "/text/golden/small", &tokenizer), "no tokenizer");
    check(!tokenizer_encoder_new(tokenizer, &encoder), "no encoder");
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

/* How many points the pattern matches at `i`, alternative by alternative. */
static size_t match(const struct points *p, size_t i) {
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

/* The rank of a pair in the small tokenizer is the id of what it merges to; -1 when it does not. */
static int32_t merged(const uint8_t *data, size_t from, size_t to) {
    int32_t id = tokenizer_find(tokenizer, data + from, to - from);
    return tokenizer_is_special(tokenizer, id) ? -1 : id;
}

/* Checks that the ids from *used on are those of the word. */
static void check_word(const uint8_t *data, size_t from, size_t to, size_t *used) {
    size_t bounds[4 * MAX_POINTS + 1], count = to - from;
    for (size_t i = 0; i <= count; i++)
        bounds[i] = from + i;
    for (;;) {
        size_t best = SIZE_MAX;
        int32_t best_id = INT32_MAX;
        for (size_t i = 0; i + 2 <= count; i++) {
            int32_t id = merged(data, bounds[i], bounds[i + 2]);
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
        check(*used < ids.count && ids.ids[(*used)++] == merged(data, bounds[i], bounds[i + 1]), "other ids");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!tokenizer)
        start();
    struct strbuf text = STRBUF_INIT;
    for (unsigned flags = 0; flags < 2; flags++) {
        ids.count = 0;
        strbuf_clear(&text);
        check(!tokenizer_encode(encoder, data, size, flags, &ids), "not encoded");
        check(!tokenizer_decode(tokenizer, ids.ids, ids.count, &text), "not decoded");
        check(text.length == size && (size == 0 || !memcmp(text.data, data, size)), "other bytes come back");
        struct points points;
        if (flags || !decode(data, size, &points))
            continue;
        size_t used = 0;
        for (size_t i = 0, n; i < points.count; i += n) {
            n = match(&points, i);
            check_word(data, points.at[i], points.at[i + n], &used);
        }
        check(used == ids.count, "more ids");
    }
    strbuf_free(&text);
    return 0;
}
