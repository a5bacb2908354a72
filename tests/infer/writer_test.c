/* Completions while they are written. Whatever tokens a completion comes in, it ends where a plain search says. Nothing
 * is sent that may have to be taken back, and nothing is held without need. */
#include "infer/writer.h"

#include "base/utf8.h"
#include "support/test.h"

#define STOP(text)                                                                                                     \
    { text, sizeof text - 1 }

static struct writer_stops *compile(const struct writer_string *strings, size_t count) {
    struct writer_stops *stops;
    test_ok(writer_stops_open(strings, count, &stops));
    return stops;
}

/* ---- a plain search, which looks at the whole text after every token ---- */

/* The place of the first stop string in the text, or its length; *held: bytes at the end that may begin one. */
static size_t search(const struct writer_string *strings, size_t count, const char *text, size_t length, size_t *held) {
    size_t first = length;
    *held = 0;
    for (size_t i = 0; i < count; i++)
        for (size_t at = 0; at < length; at++) {
            size_t left = length - at, n = left < strings[i].length ? left : strings[i].length;
            if (memcmp(text + at, strings[i].bytes, n) != 0)
                continue;
            if (n == strings[i].length)
                first = at < first ? at : first;
            else
                *held = n > *held ? n : *held;
        }
    return first;
}

/* Writes the text in tokens that end at the bits of `cuts` (its length at most 64), and holds every step against the
 * search. */
static void check(const struct writer_string *strings, size_t count, const char *text, size_t length, uint64_t cuts) {
    struct writer_stops *stops = compile(strings, count);
    struct writer writer;
    struct strbuf out = STRBUF_INIT;
    writer_begin(&writer, stops);
    for (size_t from = 0, to; from < length; from = to) {
        size_t held;
        for (to = from + 1; to < length && !(cuts >> (to - 1) & 1);)
            to++;
        test_ok(writer_add(&writer, text + from, to - from, &out));
        size_t stop = search(strings, count, text, to, &held);
        size_t half = utf8_unfinished_length((const unsigned char *)text, to);
        size_t expected = stop < to ? stop : to - (held > half ? held : half);
        assert_int_equal(writer.is_stopped, stop < to);
        assert_int_equal(out.length, expected);
        assert_int_equal(writer.given, out.length);
        assert_int_equal(writer.added, stop < to ? stop : to);
        if (expected)
            assert_memory_equal(out.data, text, expected);
        if (writer.is_stopped) {
            test_ok(writer_add(&writer, text, length, &out));
            test_ok(writer_end(&writer, &out));
            assert_int_equal(out.length, expected);
            break;
        }
    }
    test_ok(writer_end(&writer, &out));
    assert_int_equal(out.length, writer.added);
    if (!writer.is_stopped)
        assert_int_equal(out.length, length);
    if (out.length)
        assert_memory_equal(out.data, text, out.length);
    strbuf_free(&out);
    writer_free(&writer);
    writer_stops_close(stops);
}

static void check_all_cuts(const struct writer_string *strings, size_t count, const char *text) {
    size_t length = strlen(text);
    assert_in_range(length, 1, 14);
    for (uint64_t cuts = 0; cuts < (uint64_t)1 << (length - 1); cuts++)
        check(strings, count, text, length, cuts);
}

/* ---- by hand ---- */

static void stops_and_characters_are_cut_at_every_byte(void **state) {
    static const struct writer_string stops[] = {STOP("\xe4\xb8\x8d\xe8\xa7\x89"), STOP("END"), STOP("\xc3\xbc.")};
    (void)state;
    check_all_cuts(stops, 3, "a\xe4\xb8\x8d\xe8\xa7\x89z"); /* the stop string itself */
    check_all_cuts(stops, 3, "a\xe4\xb8\x8d\xe8\xa7\x8az"); /* all but its last byte */
    check_all_cuts(stops, 3,
                   "\xf0\x9f\x98\x80"
                   "ENEND!");
    check_all_cuts(stops, 3, "gr\xc3\xbcn \xc3\xbc. x");
    check_all_cuts(stops, 3, "\xe4\xb8\x8d\xe4\xb8\x8d\xe8");
    check_all_cuts(NULL, 0,
                   "\xf0\x9f\x98\xc3\xbc\xff\xe2\x82"
                   "a\xc2");
}

static void overlapping_stops_end_at_the_first(void **state) {
    static const struct writer_string one[] = {STOP("abcd"), STOP("bc")}, two[] = {STOP("aab"), STOP("ab"), STOP("b")},
                                      three[] = {STOP("aaa"), STOP("aaab"), STOP("aaa")},
                                      four[] = {STOP("he"), STOP("she"), STOP("his"), STOP("hers")};
    (void)state;
    check_all_cuts(one, 2, "xabcdx");
    check_all_cuts(one, 2, "xabcx");
    check_all_cuts(two, 3, "aaaab");
    check_all_cuts(two, 3, "aacab");
    check_all_cuts(three, 3, "aabaaaab");
    check_all_cuts(four, 4, "ushishers");
    check_all_cuts(four, 4, "hishhersh");
}

/* The text that the user sees. */
static void a_stop_string_takes_its_beginning_with_it(void **state) {
    static const struct writer_string strings[] = {STOP("\n\nUser:")};
    static const char *const tokens[] = {"Yes", ".\n", "\n", "Us", "er", ":", " more"};
    struct writer_stops *stops = compile(strings, 1);
    struct strbuf out = STRBUF_INIT;
    struct writer writer;
    (void)state;
    writer_begin(&writer, stops);
    for (int i = 0; i < 7; i++) {
        assert_int_equal(writer.is_stopped, i > 5);
        test_ok(writer_add(&writer, tokens[i], strlen(tokens[i]), &out));
        assert_string_equal(strbuf_text(&out), i < 1 ? "Yes" : "Yes.");
    }
    strbuf_clear(&out);
    writer_free(&writer);
    writer_begin(&writer, stops); /* the same strings, another text */
    test_ok(writer_add(&writer, "Yes.\n\nUse it", 12, &out));
    assert_string_equal(strbuf_text(&out), "Yes.\n\nUse it");
    test_ok(writer_add(&writer, "\n\n", 2, &out));
    assert_int_equal(out.length, 12);
    test_ok(writer_end(&writer, &out));
    assert_string_equal(strbuf_text(&out), "Yes.\n\nUse it\n\n");
    strbuf_free(&out);
    writer_free(&writer);
    writer_stops_close(stops);
}

/* ---- by chance ---- */

static uint32_t draw(uint64_t *draws, uint32_t below) {
    struct philox r = philox(20261122, (uint32_t)*draws, 0, 0, (uint32_t)RNG_TEST << 24);
    ++*draws;
    return (uint32_t)(((uint64_t)r.word[0] * below) >> 32);
}

/* Few letters, so that strings overlap; among them bytes of one character. */
static void fill(uint64_t *draws, char *out, size_t length) {
    static const char letters[] = "aab\xe4\xb8\x8d";
    uint32_t kinds = 2 + draw(draws, sizeof letters - 2);
    for (size_t i = 0; i < length; i++)
        out[i] = letters[draw(draws, kinds)];
}

static void random_texts_end_as_a_search_says(void **state) {
    uint64_t draws = 0;
    (void)state;
    for (int round = 0; round < (test_is_long() ? 200000 : 20000); round++) {
        char text[64], bytes[6][8];
        struct writer_string strings[6];
        size_t count = draw(&draws, 7), length = 1 + draw(&draws, 64);
        for (size_t i = 0; i < count; i++) {
            strings[i] = (struct writer_string){bytes[i], 1 + draw(&draws, 8)};
            fill(&draws, bytes[i], strings[i].length);
        }
        fill(&draws, text, length);
        uint64_t cuts = (uint64_t)draw(&draws, UINT32_MAX) << 32 | draw(&draws, UINT32_MAX);
        check(strings, count, text, length, draw(&draws, 2) ? cuts : cuts & cuts >> 7);
    }
}

static void parts_are_repaired_one_by_one(void **state) {
    static const struct writer_string strings[] = {STOP("ab"), STOP("b\xe4\xb8\x8d")};
    static const unsigned char letters[] = {'a', 'b', 0xe4, 0xb8, 0x8d, 0xf0, 0x9f, 0xc3, 0xff};
    struct writer_stops *stops = compile(strings, 2);
    uint64_t draws = 0;
    (void)state;
    for (int round = 0; round < 20000; round++) {
        struct strbuf text = STRBUF_INIT, parts = STRBUF_INIT, whole = STRBUF_INIT, part = STRBUF_INIT;
        struct writer writer;
        writer_begin(&writer, stops);
        for (int i = 0; i < 24 && !writer.is_stopped; i++) {
            char byte = (char)letters[draw(&draws, sizeof letters)];
            strbuf_clear(&part);
            test_ok(writer_add(&writer, &byte, 1, &part));
            strbuf_add(&text, strbuf_text(&part), part.length);
            utf8_add_repaired(&parts, strbuf_text(&part), part.length);
        }
        strbuf_clear(&part);
        test_ok(writer_end(&writer, &part));
        strbuf_add(&text, strbuf_text(&part), part.length);
        utf8_add_repaired(&parts, strbuf_text(&part), part.length);
        utf8_add_repaired(&whole, strbuf_text(&text), text.length);
        assert_int_equal(parts.length, whole.length);
        assert_string_equal(strbuf_text(&parts), strbuf_text(&whole));
        assert_int_equal(utf8_valid_length((const unsigned char *)strbuf_text(&whole), whole.length), whole.length);
        strbuf_free(&text);
        strbuf_free(&parts);
        strbuf_free(&whole);
        strbuf_free(&part);
        writer_free(&writer);
    }
    writer_stops_close(stops);
}

/* ---- limits ---- */

static void too_many_and_too_long_ones_are_refused(void **state) {
    static char longest[WRITER_MAX_STOP_BYTES + 1];
    struct writer_string strings[WRITER_MAX_STOPS + 1];
    struct writer_stops *stops;
    (void)state;
    memset(longest, 'a', sizeof longest);
    for (int i = 0; i <= WRITER_MAX_STOPS; i++)
        strings[i] = (struct writer_string){longest, (size_t)(WRITER_MAX_STOP_BYTES - i)};
    writer_stops_close(compile(strings, WRITER_MAX_STOPS));
    test_fails(writer_stops_open(strings, WRITER_MAX_STOPS + 1, &stops), STATUS_INVALID, "65 stop strings, at most 64");
    assert_null(stops);
    strings[3].length = WRITER_MAX_STOP_BYTES + 1;
    test_fails(writer_stops_open(strings, 4, &stops), STATUS_INVALID, "stop string 4 has 1025 bytes, at most 1024");
    strings[3].length = 0;
    test_fails(writer_stops_open(strings, 4, &stops), STATUS_INVALID, "stop string 4 is empty");
    assert_null(stops);
}

/* 64 strings of 1 KiB that nearly match everywhere, and a text that follows them: a search that looks at each string at
 * each byte would take minutes. */
static void a_byte_costs_the_same_whatever_the_strings(void **state) {
    enum { TEXT = 1 << 21 };
    static char bytes[WRITER_MAX_STOPS][WRITER_MAX_STOP_BYTES], text[TEXT];
    struct writer_string strings[WRITER_MAX_STOPS];
    double seconds[2];
    (void)state;
    memset(text, 'a', sizeof text);
    for (int i = 0; i < WRITER_MAX_STOPS; i++) {
        memset(bytes[i], 'a', sizeof bytes[i]);
        bytes[i][WRITER_MAX_STOP_BYTES - 1 - i] = 'b'; /* after the others' last one of these */
        strings[i] = (struct writer_string){bytes[i], WRITER_MAX_STOP_BYTES};
    }
    for (int i = WRITER_MAX_STOP_BYTES / 2; i < TEXT; i += WRITER_MAX_STOP_BYTES / 2)
        text[i] = 'b'; /* and back to the start again */
    test_ends_within(60);
    for (int many = 0; many < 2; many++) {
        struct writer_stops *stops = compile(strings, many ? WRITER_MAX_STOPS : 1);
        struct strbuf out = STRBUF_INIT;
        struct writer writer;
        writer_begin(&writer, stops);
        seconds[many] = clock_seconds();
        for (int at = 0; at < TEXT; at += 4)
            test_ok(writer_add(&writer, text + at, 4, &out));
        seconds[many] = clock_seconds() - seconds[many];
        assert_false(writer.is_stopped);
        strbuf_free(&out);
        writer_free(&writer);
        writer_stops_close(stops);
    }
    test_ends_within(0);
    assert_true(seconds[1] < 50 * seconds[0] + 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stops_and_characters_are_cut_at_every_byte),
        cmocka_unit_test(overlapping_stops_end_at_the_first),
        cmocka_unit_test(a_stop_string_takes_its_beginning_with_it),
        cmocka_unit_test(random_texts_end_as_a_search_says),
        cmocka_unit_test(parts_are_repaired_one_by_one),
        cmocka_unit_test(too_many_and_too_long_ones_are_refused),
        cmocka_unit_test(a_byte_costs_the_same_whatever_the_strings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
