/* Encoding and decoding against what `tokenizers` and `tiktoken` do (golden/, made by tools/golden/tokenizer.py), and
 * what holds for any bytes. */
#include "base/base.h"
#include "base/utf8.h"
#include "text/text.h"

#include "support/test.h"

#include <jansson.h>
#include <pthread.h>

#define GOLDEN TEST_DATA "/text/golden"

struct subject {
    struct tokenizer *tokenizer;
    struct tokenizer_encoder *encoder;
    struct token_buffer ids;
};

static struct subject subject_open(const char *directory) {
    struct subject s = {0};
    test_ok(tokenizer_open(directory, &s.tokenizer));
    test_ok(tokenizer_encoder_new(s.tokenizer, &s.encoder));
    return s;
}

static void subject_close(struct subject *s) {
    tokenizer_encoder_free(s->encoder);
    tokenizer_close(s->tokenizer);
    token_buffer_free(&s->ids);
}

static void encode(struct subject *s, const void *bytes, size_t length, unsigned flags) {
    s->ids.count = 0;
    test_ok(tokenizer_encode(s->encoder, bytes, length, flags, &s->ids));
}

static void assert_round_trip(struct subject *s, const void *bytes, size_t length) {
    struct strbuf text = STRBUF_INIT;
    encode(s, bytes, length, TOKENIZER_PLAIN);
    test_ok(tokenizer_decode(s->tokenizer, s->ids.ids, s->ids.count, &text));
    assert_int_equal(text.length, length);
    if (length > 0)
        assert_memory_equal(text.data, bytes, length);
    strbuf_free(&text);
}

static void assert_ids(const struct subject *s, const json_t *expected, const char *path, int line) {
    bool is_same = json_array_size(expected) == s->ids.count;
    for (size_t i = 0; is_same && i < s->ids.count; i++)
        is_same = json_integer_value(json_array_get(expected, i)) == s->ids.ids[i];
    if (!is_same)
        fail_msg("%s: line %d: other ids (%zu, expected %zu)", path, line, s->ids.count, json_array_size(expected));
}

static void check_golden(const char *directory, const char *path) {
    struct subject s = subject_open(directory);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *line = NULL;
    size_t capacity = 0;
    int number = 0;
    while (getline(&line, &capacity, file) > 0) {
        json_t *entry = json_loads(line, 0, NULL);
        assert_non_null(entry);
        number++;
        const char *hex = json_string_value(json_object_get(entry, "hex"));
        size_t length = strlen(hex) / 2;
        unsigned char *bytes = malloc(length + 1);
        for (size_t i = 0; i < length; i++) {
            unsigned value;
            sscanf(hex + 2 * i, "%2x", &value);
            bytes[i] = (unsigned char)value;
        }
        encode(&s, bytes, length, TOKENIZER_PLAIN);
        assert_ids(&s, json_object_get(entry, "ids"), path, number);
        assert_round_trip(&s, bytes, length);
        if (json_is_array(json_object_get(entry, "special"))) {
            encode(&s, bytes, length, TOKENIZER_ALLOW_SPECIAL);
            assert_ids(&s, json_object_get(entry, "special"), path, number);
        }
        free(bytes);
        json_decref(entry);
    }
    assert_true(number > 800);
    free(line);
    fclose(file);
    subject_close(&s);
}

static void ids_equal_tokenizers_and_tiktoken(void **state) {
    (void)state;
    check_golden(GOLDEN "/small", GOLDEN "/small.jsonl");
}

/* The vocabularies have tokens across all that a pattern holds apart; Llama 3's asks for `ignore_merges`, and has words
 * that no merge leads to. */
static void ids_of_other_patterns_equal_tokenizers_and_tiktoken(void **state) {
    (void)state;
    check_golden(GOLDEN "/llama3", GOLDEN "/llama3.jsonl");
    check_golden(GOLDEN "/qwen2", GOLDEN "/qwen2.jsonl");
}

/* GPT-2's own files are too large to stand here: they are looked for beside the source. */
static void ids_of_gpt2_equal_tokenizers_and_tiktoken(void **state) {
    (void)state;
    const char *directory = TEST_DATA "/../../shared/data/gpt2";
    if (!tokenizer_is_present(directory)) {
        test_skip("GPT-2's vocab.json and merges.txt are not in shared/data/gpt2");
    }
    check_golden(directory, GOLDEN "/gpt2.jsonl");
}

/* GPT-2's alphabet, as the beginning of a vocab.json: the ids 0 to 255. */
static void add_alphabet(struct strbuf *vocab) {
    int id = 0;
    strbuf_add_char(vocab, '{');
    for (uint32_t c = 33; c < 324; c++) { /* these, without 127 to 160 and 173 */
        if ((c >= 127 && c <= 160) || c == 173)
            continue;
        unsigned char name[5] = {0};
        utf8_encode(c, name);
        strbuf_format(vocab, "\"%s%s\":%d,", c == '"' || c == '\\' ? "\\" : "", (char *)name, id++);
    }
    assert_int_equal(id, 256);
}

/* Ends the vocabulary's object in place of its last comma; frees both. */
static void write_vocabulary(const char *directory, struct strbuf *vocab, struct strbuf *merges) {
    char path[256];
    vocab->data[vocab->length - 1] = '}';
    snprintf(path, sizeof path, "%s/vocab.json", directory);
    test_ok(file_write_atomic(path, vocab->data, vocab->length));
    snprintf(path, sizeof path, "%s/merges.txt", directory);
    test_ok(file_write_atomic(path, merges->data, merges->length));
    strbuf_free(vocab);
    strbuf_free(merges);
}

/* A vocabulary that shows where words end: "a", "1" and "!" merge with every first byte of a longer character. */
static void write_probe_vocabulary(const char *directory) {
    struct strbuf vocab = STRBUF_INIT, merges = STRBUF_INIT;
    int id = 256;
    add_alphabet(&vocab);
    for (const char *probe = "a1!"; *probe; probe++) {
        for (uint32_t byte = 0xc2; byte < 0xf5; byte++) {
            unsigned char name[5] = {0};
            utf8_encode(byte, name);
            strbuf_format(&vocab, "\"%c%s\":%d,", *probe, (char *)name, id++);
            strbuf_format(&merges, "%c %s\n", *probe, (char *)name);
        }
    }
    write_vocabulary(directory, &vocab, &merges);
}

static void every_code_point_is_of_the_kind_that_tokenizers_finds(void **state) {
    (void)state;
    char *directory = test_directory();
    write_probe_vocabulary(directory);
    struct subject s = subject_open(directory);
    FILE *kinds = fopen(GOLDEN "/kinds.txt", "r");
    assert_non_null(kinds);
    unsigned next = 0;
    char kind = 'O', next_kind = 'O';
    assert_int_equal(fscanf(kinds, "%x %c", &next, &next_kind), 2);
    for (uint32_t c = 0; c < 0x110000; c++) {
        if (c == next) {
            kind = next_kind;
            if (fscanf(kinds, "%x %c", &next, &next_kind) != 2)
                next = UINT32_MAX;
        }
        if (c < 0x80 || (c >= 0xd800 && c < 0xe000)) /* ASCII is in the golden cases, byte by byte */
            continue;
        char found = 'S';
        for (int probe = 0; probe < 3; probe++) {
            unsigned char text[5] = {(unsigned char)"a1!"[probe]};
            size_t length = 1 + utf8_encode(c, text + 1);
            encode(&s, text, length, TOKENIZER_PLAIN);
            if (s.ids.count < length)
                found = "LNO"[probe];
        }
        if (found != kind)
            fail_msg("U+%04X is taken for %c, but it is %c", c, found, kind);
    }
    fclose(kinds);
    subject_close(&s);
    free(directory);
}

static uint32_t draw(uint32_t *draws, uint32_t below) {
    return (uint32_t)(((uint64_t)philox(7, (*draws)++, 0, 0, (uint32_t)RNG_TEST << 24).word[0] * below) >> 32);
}

static void check_any_bytes(const char *directory) {
    struct subject s = subject_open(directory);
    uint32_t draws = 0;
    unsigned char bytes[600];
    for (int round = 0; round < (test_is_long() ? 200000 : 5000); round++) {
        size_t length = draw(&draws, sizeof bytes);
        uint32_t below = (uint32_t[]){256, 128, 4}[draw(&draws, 3)];
        for (size_t i = 0; i < length; i++)
            bytes[i] = below == 4 ? (unsigned char)" a\n\xff"[draw(&draws, 4)] : (unsigned char)draw(&draws, below);
        assert_round_trip(&s, bytes, length);
    }
    subject_close(&s);
}

static void any_bytes_come_back(void **state) {
    (void)state;
    check_any_bytes(GOLDEN "/small");
    check_any_bytes(GOLDEN "/llama3");
    check_any_bytes(GOLDEN "/qwen2");
}

static void a_megabyte_without_a_space_is_one_word(void **state) {
    (void)state;
    enum { LENGTH = 1 << 20 };
    struct subject s = subject_open(GOLDEN "/small");
    char *text = malloc(LENGTH);
    uint32_t draws = 0;
    memset(text, 'a', LENGTH);
    assert_round_trip(&s, text, LENGTH);
    assert_true(s.ids.count < LENGTH / 4);
    for (size_t i = 0; i < LENGTH; i++)
        text[i] = "etaoinshr"[draw(&draws, 9)];
    assert_round_trip(&s, text, LENGTH);
    memset(text, 0xfe, LENGTH);
    assert_round_trip(&s, text, LENGTH);
    free(text);
    subject_close(&s);
}

/* Merges in any order, several of them of one result: tokens that no word becomes are among them. */
enum { WILD_MERGES = 40, WILD_LONGEST = 20 };
struct wild {
    char names[3 + WILD_MERGES][WILD_LONGEST + 1]; /* "a", "b", "c", then those that are merged */
    int ids[3 + WILD_MERGES];
    int count, merge_count;
    int left[WILD_MERGES], right[WILD_MERGES], result[WILD_MERGES];
};

static void make_wild(struct wild *wild, uint32_t *draws) {
    *wild = (struct wild){.names = {"a", "b", "c"}, .ids = {'a' - 33, 'b' - 33, 'c' - 33}, .count = 3};
    while (wild->merge_count < WILD_MERGES) {
        int left = (int)draw(draws, (uint32_t)wild->count), right = (int)draw(draws, (uint32_t)wild->count), result = 0;
        char name[2 * WILD_LONGEST + 1];
        snprintf(name, sizeof name, "%s%s", wild->names[left], wild->names[right]);
        bool is_new = strlen(name) <= WILD_LONGEST;
        for (int i = 0; i < wild->merge_count; i++)
            is_new &= wild->left[i] != left || wild->right[i] != right;
        if (!is_new)
            continue;
        while (result < wild->count && strcmp(wild->names[result], name) != 0)
            result++;
        if (result == wild->count) {
            memcpy(wild->names[result], name, strlen(name) + 1);
            wild->ids[result] = 256 + wild->count++ - 3;
        }
        /* an earlier merge gives way, so that what is made of others may come before them */
        int at = (int)draw(draws, (uint32_t)++wild->merge_count), last = wild->merge_count - 1;
        at = draw(draws, 2) ? at : last;
        wild->left[last] = wild->left[at];
        wild->right[last] = wild->right[at];
        wild->result[last] = wild->result[at];
        wild->left[at] = left;
        wild->right[at] = right;
        wild->result[at] = result;
    }
}

static void write_wild(const struct wild *wild, const char *directory) {
    struct strbuf vocab = STRBUF_INIT, merges = STRBUF_INIT;
    add_alphabet(&vocab);
    for (int i = 3; i < wild->count; i++)
        strbuf_format(&vocab, "\"%s\":%d,", wild->names[i], wild->ids[i]);
    for (int i = 0; i < wild->merge_count; i++)
        strbuf_format(&merges, "%s %s\n", wild->names[wild->left[i]], wild->names[wild->right[i]]);
    write_vocabulary(directory, &vocab, &merges);
}

/* Merge after merge, each time the first of the list that is found, at its first place; the number of tokens. */
static size_t merge_plainly(const struct wild *wild, const char *word, int *tokens) {
    size_t count = strlen(word);
    for (size_t i = 0; i < count; i++)
        tokens[i] = word[i] - 'a';
    for (int m = 0; m < wild->merge_count;) {
        size_t at = 0;
        while (at + 1 < count && (tokens[at] != wild->left[m] || tokens[at + 1] != wild->right[m]))
            at++;
        if (at + 1 >= count) {
            m++;
            continue;
        }
        tokens[at] = wild->result[m];
        count--;
        memmove(tokens + at + 1, tokens + at + 2, (count - at - 1) * sizeof *tokens);
        m = 0;
    }
    return count;
}

static void words_become_the_tokens_that_merging_makes(void **state) {
    (void)state;
    char *directory = test_directory();
    uint32_t draws = 0;
    int whole = 0, broken = 0;
    for (int round = 0; round < (test_is_long() ? 3000 : 150); round++) {
        struct wild wild;
        make_wild(&wild, &draws);
        write_wild(&wild, directory);
        struct subject s = subject_open(directory);
        for (int i = 0; i < wild.count; i++) {
            int tokens[WILD_LONGEST];
            size_t length = strlen(wild.names[i]), count = merge_plainly(&wild, wild.names[i], tokens);
            encode(&s, wild.names[i], length, TOKENIZER_PLAIN);
            assert_int_equal(s.ids.count, count);
            for (size_t j = 0; j < count; j++)
                assert_int_equal(s.ids.ids[j], wild.ids[tokens[j]]);
            *(count == 1 ? &whole : &broken) += 1;
        }
        subject_close(&s);
    }
    assert_true(whole > 100 && broken > 100);
    free(directory);
}

/* The same word in and out of the caches, in a row of other words, at the end of a block of memory. */
static void caches_do_not_change_the_ids(void **state) {
    (void)state;
    struct subject cold = subject_open(GOLDEN "/small"), warm = subject_open(GOLDEN "/small");
    uint32_t draws = 0;
    for (int round = 0; round < 20000; round++) {
        size_t length = 1 + draw(&draws, 20);
        char *text = malloc(length); /* exactly: a sanitizer sees a read past it */
        for (size_t i = 0; i < length; i++)
            text[i] = "the cat's\0mat 12"[draw(&draws, 16)];
        encode(&warm, text, length, TOKENIZER_PLAIN);
        struct tokenizer_encoder *fresh;
        if (round % 100 == 0) {
            test_ok(tokenizer_encoder_new(cold.tokenizer, &fresh));
            tokenizer_encoder_free(cold.encoder);
            cold.encoder = fresh;
        }
        encode(&cold, text, length, TOKENIZER_PLAIN);
        assert_int_equal(cold.ids.count, warm.ids.count);
        assert_memory_equal(cold.ids.ids, warm.ids.ids, cold.ids.count * sizeof *cold.ids.ids);
        free(text);
    }
    subject_close(&cold);
    subject_close(&warm);
}

static void names_of_special_tokens_are_text_unless_asked_for(void **state) {
    (void)state;
    struct subject s = subject_open(GOLDEN "/small");
    int32_t end = tokenizer_eos_id(s.tokenizer);
    assert_int_equal(end, 0); /* where the trainer of `tokenizers` puts it */
    assert_true(tokenizer_is_special(s.tokenizer, end));
    assert_false(tokenizer_is_special(s.tokenizer, end + 1));
    assert_int_equal(tokenizer_find(s.tokenizer, "<|endoftext|>", 13), end);
    assert_int_equal(tokenizer_find(s.tokenizer, "<|endoftext", 11), -1);
    encode(&s, "<|endoftext|>", 13, TOKENIZER_PLAIN);
    for (size_t i = 0; i < s.ids.count; i++)
        assert_int_not_equal(s.ids.ids[i], end);
    encode(&s, "<|endoftext|>", 13, TOKENIZER_ALLOW_SPECIAL);
    assert_int_equal(s.ids.count, 1);
    assert_int_equal(s.ids.ids[0], end);
    subject_close(&s);
}

static void ids_are_appended(void **state) {
    (void)state;
    struct subject s = subject_open(GOLDEN "/small");
    test_ok(tokenizer_encode(s.encoder, "one", 3, TOKENIZER_PLAIN, &s.ids));
    size_t first = s.ids.count;
    test_ok(tokenizer_encode(s.encoder, "", 0, TOKENIZER_PLAIN, &s.ids));
    assert_int_equal(s.ids.count, first);
    test_ok(tokenizer_encode(s.encoder, " two", 4, TOKENIZER_PLAIN, &s.ids));
    struct strbuf text = STRBUF_INIT;
    test_ok(tokenizer_decode(s.tokenizer, s.ids.ids, s.ids.count, &text));
    assert_string_equal(strbuf_text(&text), "one two");
    strbuf_free(&text);
    subject_close(&s);
}

static void unknown_ids_are_refused(void **state) {
    (void)state;
    struct subject s = subject_open(GOLDEN "/small");
    struct strbuf text = STRBUF_INIT;
    size_t length;
    int32_t size = tokenizer_vocab_size(s.tokenizer);
    assert_int_equal(size, 900);
    test_fails(tokenizer_decode(s.tokenizer, (int32_t[]){1, 900}, 2, &text), STATUS_INVALID, "900");
    test_fails(tokenizer_decode(s.tokenizer, (int32_t[]){-1}, 1, &text), STATUS_INVALID, "-1");
    assert_int_equal(text.length, 0);
    assert_null(tokenizer_token_bytes(s.tokenizer, size, &length));
    assert_null(tokenizer_token_bytes(s.tokenizer, -1, &length));
    subject_close(&s);
}

struct racer {
    const struct tokenizer *tokenizer;
    const struct strbuf *text;
    struct token_buffer ids;
    int status;
};

static void *race(void *argument) {
    struct racer *racer = argument;
    struct tokenizer_encoder *encoder = NULL;
    racer->status = tokenizer_encoder_new(racer->tokenizer, &encoder);
    for (int round = 0; !racer->status && round < 10; round++) {
        racer->ids.count = 0;
        racer->status = tokenizer_encode(encoder, racer->text->data, racer->text->length, 0, &racer->ids);
    }
    tokenizer_encoder_free(encoder);
    return NULL;
}

static void threads_share_a_tokenizer(void **state) {
    (void)state;
    struct subject s = subject_open(GOLDEN "/small");
    struct strbuf text = STRBUF_INIT;
    test_ok(file_read(GOLDEN "/corpus.txt", 1 << 20, &text));
    struct racer racers[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        racers[i] = (struct racer){.tokenizer = s.tokenizer, .text = &text};
        assert_int_equal(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
    }
    encode(&s, text.data, text.length, TOKENIZER_PLAIN);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(racers[i].status, STATUS_OK);
        assert_int_equal(racers[i].ids.count, s.ids.count);
        assert_memory_equal(racers[i].ids.ids, s.ids.ids, s.ids.count * sizeof *s.ids.ids);
        token_buffer_free(&racers[i].ids);
    }
    strbuf_free(&text);
    subject_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_equal_tokenizers_and_tiktoken),
        cmocka_unit_test(ids_of_other_patterns_equal_tokenizers_and_tiktoken),
        cmocka_unit_test(ids_of_gpt2_equal_tokenizers_and_tiktoken),
        cmocka_unit_test(every_code_point_is_of_the_kind_that_tokenizers_finds),
        cmocka_unit_test(any_bytes_come_back),
        cmocka_unit_test(a_megabyte_without_a_space_is_one_word),
        cmocka_unit_test(words_become_the_tokens_that_merging_makes),
        cmocka_unit_test(caches_do_not_change_the_ids),
        cmocka_unit_test(names_of_special_tokens_are_text_unless_asked_for),
        cmocka_unit_test(ids_are_appended),
        cmocka_unit_test(unknown_ids_are_refused),
        cmocka_unit_test(threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
