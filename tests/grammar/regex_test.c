/* Terms of regular expressions: languages against a matcher by definition, and against counts. */
#include "terms-internal.h"

#include "base/utf8.h"
#include "support/test.h"

static struct regexes *open_set(void) {
    struct regexes *regexes;
    test_ok(regexes_open((size_t)1 << 26, 0, &regexes));
    return regexes;
}

static regex text(struct regexes *regexes, const char *bytes) {
    return regex_text(regexes, bytes, strlen(bytes));
}

static bool matches(struct regexes *regexes, regex one, const char *bytes) {
    return regex_matches(regexes, one, bytes, strlen(bytes));
}

/* ---- random languages and their definition ---- */

/* An expression as a tree, and its term. */
struct tree {
    int kind; /* 0 text, 1 range, 2 join, 3 either, 4 both, 5 not, 6 repeat */
    char bytes[3];
    int left, right, least, most;
    regex term;
};
struct random {
    uint64_t state;
    struct tree trees[64];
    int count;
};

static unsigned draw(struct random *random, unsigned below) {
    random->state = random->state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(random->state >> 33) % below;
}

static int make(struct random *random, struct regexes *regexes, int depth) {
    struct tree tree = {.kind = depth ? (int)draw(random, 7) : (int)draw(random, 2)};
    if (tree.kind == 0) {
        for (unsigned i = 0, n = draw(random, 3); i < n; i++)
            tree.bytes[i] = (char)('a' + draw(random, 3));
        tree.term = text(regexes, tree.bytes);
    } else if (tree.kind == 1) {
        tree.bytes[0] = (char)('a' + draw(random, 3));
        tree.bytes[1] = (char)('c' - draw(random, (unsigned)('d' - tree.bytes[0])));
        tree.term = regex_byte(regexes, (uint8_t)tree.bytes[0], (uint8_t)tree.bytes[1]);
    } else {
        tree.left = make(random, regexes, depth - 1);
        regex left = random->trees[tree.left].term;
        if (tree.kind <= 4) {
            tree.right = make(random, regexes, depth - 1);
            regex right = random->trees[tree.right].term;
            tree.term = tree.kind == 2   ? regex_join(regexes, left, right)
                        : tree.kind == 3 ? regex_either(regexes, left, right)
                                         : regex_both(regexes, left, right);
        } else if (tree.kind == 5) {
            tree.term = regex_not(regexes, left);
        } else {
            tree.least = (int)draw(random, 4);
            tree.most = draw(random, 3) ? tree.least + (int)draw(random, 3) : REGEX_ENDLESS;
            tree.term = regex_repeat(regexes, left, tree.least, tree.most);
        }
    }
    random->trees[random->count] = tree;
    return random->count++;
}

/* Whether bytes from..to are a text of the tree, by definition. */
static bool is_text(const struct random *random, int at, const char *bytes, int from, int to) {
    const struct tree *tree = &random->trees[at];
    int length = to - from;
    switch (tree->kind) {
    case 0:
        return length == (int)strlen(tree->bytes) && !memcmp(bytes + from, tree->bytes, (size_t)length);
    case 1:
        return length == 1 && bytes[from] >= tree->bytes[0] && bytes[from] <= tree->bytes[1];
    case 2:
        for (int middle = from; middle <= to; middle++)
            if (is_text(random, tree->left, bytes, from, middle) && is_text(random, tree->right, bytes, middle, to))
                return true;
        return false;
    case 3:
        return is_text(random, tree->left, bytes, from, to) || is_text(random, tree->right, bytes, from, to);
    case 4:
        return is_text(random, tree->left, bytes, from, to) && is_text(random, tree->right, bytes, from, to);
    case 5:
        return !is_text(random, tree->left, bytes, from, to);
    default: {
        /* Times that the bytes up to a place take: empty ones only fill up the minimum. */
        bool empty = is_text(random, tree->left, bytes, from, from);
        bool at_times[8][8] = {{0}};
        at_times[0][0] = true;
        for (int end = 1; end <= length; end++)
            for (int start = 0; start < end; start++)
                if (is_text(random, tree->left, bytes, from + start, from + end))
                    for (int times = 0; times < length; times++)
                        if (at_times[start][times])
                            at_times[end][times + 1] = true;
        for (int times = 0; times <= length; times++)
            if (at_times[length][times] && times <= tree->most && (times >= tree->least || empty))
                return true;
        return false;
    }
    }
}

/* Calls for each text of at most `length` letters. */
static int next_text(char *bytes, int length) {
    for (int i = 0; i < length; i++) {
        if (!bytes[i])
            return bytes[i] = 'a', bytes[i + 1] = 0, 1;
        if (bytes[i] < 'c')
            return bytes[i]++, 1;
        bytes[i] = 'a';
    }
    return 0;
}

static void random_languages_agree_with_their_definition(void **state) {
    (void)state;
    for (unsigned seed = 0; seed < (test_is_long() ? 20000u : 1500u); seed++) {
        struct regexes *regexes = open_set();
        struct random random = {.state = seed};
        int root = make(&random, regexes, 4);
        regex one = random.trees[root].term, near = regex_near(regexes, one, 1);
        test_ok(regexes_status(regexes));
        bool found = false;
        char bytes[8] = "";
        do {
            bool expected = is_text(&random, root, bytes, 0, (int)strlen(bytes));
            if (matches(regexes, one, bytes) != expected)
                fail_msg("seed %u, text '%s': expected %d", seed, bytes, expected);
            found |= expected;
            if (strlen(bytes) < 2 && expected != matches(regexes, near, bytes))
                fail_msg("seed %u, text '%s': the look-ahead differs", seed, bytes);
        } while (next_text(bytes, 5));
        assert_false(found && regex_is_nothing(regexes, one));
        assert_int_equal(regexes->scratch_count, 0);
        /* A term that a sweep keeps has the same language. */
        regexes_sweep_begin(regexes);
        regexes_sweep_keep(regexes, one);
        regexes_sweep_end(regexes);
        memset(bytes, 0, sizeof bytes);
        do
            assert_int_equal(matches(regexes, one, bytes), is_text(&random, root, bytes, 0, (int)strlen(bytes)));
        while (next_text(bytes, 3));
        test_ok(regexes_status(regexes));
        regexes_close(regexes);
    }
}

static void characters_are_their_utf8(void **state) {
    static const struct regex_range ranges[] = {{'a', 'z'},       {0x7e, 0x81},      {0x3b1, 0x3c9},     {0x7fe, 0x805},
                                                {0xd000, 0xe100}, {0xfffe, 0x10003}, {0x1f600, 0x10ffff}};
    struct regexes *regexes = open_set();
    (void)state;
    regex one = regex_characters(regexes, ranges, sizeof ranges / sizeof *ranges);
    for (uint32_t point = 0; point < 0x110000; point += point < 0x11000 || (point & 0xfff) > 0xff0 ? 1 : 13) {
        bool expected = false;
        for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
            expected = expected || (point >= ranges[i].first && point <= ranges[i].last);
        expected = expected && (point < 0xd800 || point >= 0xe000);
        unsigned char bytes[4];
        if (regex_matches(regexes, one, bytes, utf8_encode(point, bytes)) != expected)
            fail_msg("U+%04X", point);
    }
    static const struct regex_range all = {0, 0x10ffff};
    one = regex_characters(regexes, &all, 1);
    assert_false(matches(regexes, one, "\xed\xa0\x80")); /* a surrogate */
    assert_false(matches(regexes, one, "\xc0\x80"));
    assert_false(matches(regexes, one, "\xf4\x90\x80\x80"));
    assert_true(matches(regexes, one, "\xf4\x8f\xbf\xbf"));
    test_ok(regexes_status(regexes));
    regexes_close(regexes);
}

static void one_language_has_one_term_where_that_is_cheap(void **state) {
    struct regexes *regexes = open_set();
    (void)state;
    regex set = regex_byte(regexes, 'a', 'c'), star = regex_repeat(regexes, set, 0, REGEX_ENDLESS);
    assert_int_equal(regex_repeat(regexes, star, 0, REGEX_ENDLESS), star); /* ([abc]*)* */
    assert_int_equal(regex_repeat(regexes, regex_repeat(regexes, set, 1, 5), 0, REGEX_ENDLESS), star);
    assert_int_equal(regex_after(regexes, star, 'b'), star);
    assert_int_equal(regex_join(regexes, star, star), star);
    assert_int_equal(
        regex_either(regexes, text(regexes, "abc"), text(regexes, "abd")),
        regex_sequence(regexes, (regex[]){text(regexes, "a"), text(regexes, "b"), regex_byte(regexes, 'c', 'd')}, 3));
    regex many = regex_repeat(regexes, set, 5, 1000000000);
    assert_int_equal(regex_after(regexes, many, 'a'), regex_repeat(regexes, set, 4, 999999999));
    assert_int_equal(regex_near(regexes, many, 100), regex_repeat(regexes, set, 5, REGEX_ENDLESS));
    /* Overlapping counts under a search stay one member. */
    regex counted = regex_join(regexes, regex_repeat(regexes, text(regexes, "a"), 0, 1000), text(regexes, "b"));
    regex search = regex_sequence(regexes, (regex[]){REGEX_ANY, counted}, 2);
    for (int i = 0; i < 1000; i++)
        search = regex_after(regexes, search, 'a');
    test_ok(regexes_status(regexes));
    assert_true(regexes_bytes(regexes) < 1 << 18);
    regexes_close(regexes);
}

static void bombs_are_bounded(void **state) {
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        struct regexes *regexes;
        test_ok(regexes_open((size_t)1 << 22, clock_seconds() + 20, &regexes));
        regex one = regex_byte(regexes, 'a', 'b');
        if (kind == 0) { /* all 2^40 sets of places */
            one = regex_sequence(regexes,
                                 (regex[]){regex_repeat(regexes, one, 0, REGEX_ENDLESS), text(regexes, "a"),
                                           regex_repeat(regexes, one, 40, 40)},
                                 3);
            struct random random = {.state = 1};
            for (unsigned i = 0; i < 1u << 18; i++)
                one = regex_after(regexes, one, (uint8_t)('a' + draw(&random, 2)));
        } else if (kind == 1) { /* lengths that never meet */
            one = regex_both(
                regexes, regex_repeat(regexes, text(regexes, "aa"), 1, REGEX_ENDLESS),
                regex_join(regexes, text(regexes, "a"), regex_repeat(regexes, text(regexes, "aa"), 500000, 1000000)));
            regex_is_nothing(regexes, one);
        } else if (kind == 2) { /* a text that doubles */
            for (int i = 0; i < 60; i++)
                one = regex_join(regexes, one, one);
        } else { /* depth of a million */
            for (int i = 0; i < 1000000; i++)
                one = regex_either(regexes, regex_join(regexes, text(regexes, "a"), one), text(regexes, "c"));
        }
        if (kind != 2) /* repeats of one set are counted, not copied */
            test_fails(regexes_status(regexes), STATUS_UNSUPPORTED, "too large");
        assert_true(regexes_bytes(regexes) < 1 << 24);
        regexes_close(regexes);
    }
    struct regexes *regexes;
    test_ok(regexes_open((size_t)1 << 30, clock_seconds() - 1, &regexes));
    for (int i = 0; i < 5000; i++)
        regex_repeat(regexes, regex_byte(regexes, 'a', 'b'), 2, 2 + i);
    test_fails(regexes_status(regexes), STATUS_UNSUPPORTED, "too large");
    regexes_resume(regexes, 0);
    test_ok(regexes_status(regexes));
    regexes_close(regexes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_languages_agree_with_their_definition),
        cmocka_unit_test(characters_are_their_utf8),
        cmocka_unit_test(one_language_has_one_term_where_that_is_cheap),
        cmocka_unit_test(bombs_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
