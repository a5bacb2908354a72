/* Patterns without a scanner take steps that are counted over a whole text. The patterns of real tokenizers stay far
 * below the bound in any text, and patterns that do not are refused by name. */
#include "base/base.h"
#include "base/clock.h"
#include "base/rng.h"
#include "text-internal.h"
#include "text/changed.h"

enum { MOST_SECONDS = 10, TEXT = 20000 };

/* ---- the patterns of tokenizers on the hub ---- */

#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define REST        "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER       "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER       "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
static const char *const real_patterns[] = {
    /* GPT-2, Llama 3, o200k and Qwen2: they have scanners, and steps may hold them all the same */
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+" REST,
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" CONTRACTION "?|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" CONTRACTION
    "?" REST,
    /* Qwen3.5 */
    CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+"
                "|\\s+(?!\\S)|\\s+",
    /* DeepSeek's first */
    "[\r\n]", "\\s?[A-Za-z\\u00b5\\u00c0-\\u00d6\\u0370-\\u0373]+", "\\s?[!-/:-~\\uff01-\\uff0f\\u3000-\\u3002]+",
    "\\s+$", "[\\u4e00-\\u9fa5\\u0800-\\u4e00\\uac00-\\ud7ff]+",
    /* DeepSeek-V3 */
    "\\p{N}{1,3}", "[\\u4e00-\\u9fa5\\u3040-\\u309f\\u30a0-\\u30ff]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
    "?[\\p{P}\\p{S}]+"
    "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    /* Falcon, StarCoder */
    "[0-9][0-9][0-9]", "\\d",
    /* Words and punctuation, as in many small ones */
    "\\w+|[^\\w\\s]+", "\\p{P}+|\\s+|\\w+"};

/* Runs of a few characters of every kind, of any length. */
static size_t write_text(char *text, size_t most, uint32_t *draws, uint32_t longest) {
    static const char *const pieces[] = {"a",
                                         "A",
                                         "1",
                                         " ",
                                         "\n",
                                         "\r",
                                         "\t",
                                         "'",
                                         "!",
                                         "/",
                                         "(",
                                         "'s",
                                         "'L",
                                         "  ",
                                         "[",
                                         "|",
                                         "_",
                                         "7",
                                         "aA",
                                         "Aa",
                                         "\xcc\x81",
                                         "\xe4\xb8\xad",
                                         "\xe3\x80\x80",
                                         "\xf0\x9f\x98\x80",
                                         "\xca\xb0",
                                         "\xe3\x81\x82"};
    const size_t count = sizeof pieces / sizeof *pieces;
    size_t length = 0, kinds = 1 + philox(3, (*draws)++, 0, 0, 0).word[0] % 4;
    const char *chosen[4];
    for (size_t i = 0; i < kinds; i++)
        chosen[i] = pieces[philox(3, (*draws)++, 0, 0, 0).word[0] % count];
    while (length + 4 < most) {
        uint32_t run = 1 + philox(3, (*draws)++, 0, 0, 0).word[0] % longest;
        const char *piece = chosen[philox(3, (*draws)++, 0, 0, 0).word[0] % kinds];
        for (; run > 0 && length + 4 < most; run--, length += strlen(piece))
            memcpy(text + length, piece, strlen(piece));
    }
    return length;
}

static int no_word(void *context, const unsigned char *word, size_t length) {
    (void)word;
    *(size_t *)context += length;
    return STATUS_OK;
}

/* Each byte is read a few times by each alternative, and gives a few items to enter. */
static void real_patterns_take_a_quarter_of_the_steps_at_most(void **state) {
    (void)state;
    uint32_t draws = 0;
    char *text = malloc(TEXT);
    struct regex_scratch *scratch;
    test_ok(regex_scratch_new(&scratch));
    for (size_t i = 0; i < sizeof real_patterns / sizeof *real_patterns; i++) {
        struct split_step step = {.kind = SPLIT_REGEX};
        struct tokenizer_rules rules = {.steps = &step, .step_count = 1};
        uint64_t most = 0;
        test_ok(text_regex_open(real_patterns[i], &step.regex));
        for (int round = 0; round < 60; round++) {
            size_t length = write_text(text, TEXT, &draws, round % 3 ? TEXT : 5), read = 0;
            regex_scratch_begin(scratch, length, 1);
            test_ok(split_text(&rules, scratch, (unsigned char *)text, length, no_word, &read));
            uint64_t steps = regex_scratch_steps(scratch) / length;
            most = steps > most ? steps : most;
            assert_int_equal(read, length);
            if (4 * steps > REGEX_STEPS_OF_BYTE)
                fail_msg("'%s' takes %d steps for each byte", real_patterns[i], (int)steps);
        }
        assert_true(most > 0 || strlen(real_patterns[i]) < 80); /* the simplest are not counted */
        text_regex_close(step.regex);
    }
    regex_scratch_free(scratch);
    free(text);
}

/* ---- hostile ones ---- */

/* A golden tokenizer whose words are found by this pattern. */
static struct tokenizer *open_with(const char *pattern) {
    json_t *root = json_load_file(TEST_DATA "/text/golden/llama3_framed/tokenizer.json", 0, NULL);
    json_t *step = json_array_get(json_object_get(json_object_get(root, "pre_tokenizer"), "pretokenizers"), 0);
    json_object_set_new(json_object_get(step, "pattern"), "Regex", json_string(pattern));
    return open_changed(root);
}

static int encode(const struct tokenizer *tokenizer, const struct strbuf *text) {
    struct tokenizer_encoder *encoder;
    struct token_buffer ids = TOKEN_BUFFER_INIT;
    test_ok(tokenizer_encoder_new(tokenizer, &encoder));
    double start = clock_seconds();
    int status = tokenizer_encode(encoder, text->data, text->length, TOKENIZER_ALLOW_SPECIAL, &ids);
    assert_true(clock_seconds() - start < MOST_SECONDS); /* a fraction of a second; without the count, minutes */
    assert_true(!status || ids.count == 0);
    token_buffer_free(&ids);
    tokenizer_encoder_free(encoder);
    return status;
}

static void add_run(struct strbuf *text, const char *piece, size_t count) {
    for (; count > 0; count--)
        strbuf_add_text(text, piece);
}

static void hostile_patterns_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *piece, *last;
        size_t count;
    } cases[] = {
        {"a+a+x|a", "a", "", 4000},    /* cubic */
        {"(a|aa)+x|a", "a", "", 4000}, /* exponential */
        {"a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?[bc]", "a", "", 4000},
        {"a+b|a", "a", "", 60000},                                  /* quadratic: each place reads to the end */
        {"(?=(a+))\\1b|a", "a", "", 60000},                         /* what a group has matched is read again */
        {"a{20000}b|aa", "a", "", 500000},                          /* one item reads 20,000 characters in vain */
        {"(?<=ba{5000})c|a|.", "a", "", 500000},                    /* and one goes back */
        {"(?=[0-9]+x)|[0-9]{1,3}(?=([0-9]{3})*$)", "7", "", 40000}, /* groups of digits, to the end of all */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct strbuf text = STRBUF_INIT;
        struct tokenizer *tokenizer = open_with(cases[i].pattern);
        assert_true(tokenizer_may_be_slow(tokenizer));
        add_run(&text, cases[i].piece, cases[i].count);
        strbuf_add_text(&text, cases[i].last);
        if (encode(tokenizer, &text) != STATUS_INVALID || !strstr(status_text(), cases[i].pattern))
            fail_msg("'%s' gives '%s'", cases[i].pattern, status_text());
        assert_non_null(strstr(status_text(), "steps"));
        strbuf_free(&text);
        tokenizer_close(tokenizer);
    }
}

/* A section after an added token is a text of its own to the pattern, but not to the count. */
static void steps_count_for_a_text_as_a_whole(void **state) {
    (void)state;
    struct tokenizer *tokenizer = open_with("a+a+x|a");
    struct strbuf text = STRBUF_INIT;
    for (int i = 0; i < 10; i++) {
        strbuf_add_text(&text, "<|eot|>");
        add_run(&text, "a", 100);
    }
    test_ok(encode(tokenizer, &text));
    for (int i = 10; i < 400; i++) {
        strbuf_add_text(&text, "<|eot|>");
        add_run(&text, "a", 100);
    }
    assert_int_equal(encode(tokenizer, &text), STATUS_INVALID);
    strbuf_clear(&text);
    strbuf_add_text(&text, "the next text counts anew");
    test_ok(encode(tokenizer, &text));
    strbuf_free(&text);
    tokenizer_close(tokenizer);
}

/* `\\s+$` alone, as DeepSeek's first tokenizers have it, is quadratic as it is written. */
static void a_long_run_of_blanks_is_read_once(void **state) {
    (void)state;
    struct tokenizer *tokenizer = open_with("\\s+$");
    struct strbuf text = STRBUF_INIT;
    add_run(&text, " ", 1 << 20);
    strbuf_add_text(&text, "x");
    test_ok(encode(tokenizer, &text));
    strbuf_free(&text);
    tokenizer_close(tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_patterns_take_a_quarter_of_the_steps_at_most),
        cmocka_unit_test(hostile_patterns_are_refused_by_name),
        cmocka_unit_test(steps_count_for_a_text_as_a_whole),
        cmocka_unit_test(a_long_run_of_blanks_is_read_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
