/* Key files: what is a key, what is refused and where, and that a damaged file changes nothing. */
#include "base/base.h"
#include "serve/keys.h"
#include "support/test.h"

struct fixture {
    char *directory, path[4096];
    struct keys *keys;
};

static void write_keys(struct fixture *fixture, const char *text) {
    test_ok(file_write_atomic(fixture->path, text, strlen(text)));
}

static int set_up(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    fixture->directory = test_directory();
    test_ok(file_join(fixture->path, sizeof fixture->path, fixture->directory, "keys"));
    write_keys(fixture, "# who may ask\n"
                        "alice sk-alice\n"
                        "\n"
                        "  bob\tsk-bob   2.5 # twice and a half\r\n"
                        "alice sk-alice-new");
    test_ok(keys_open(fixture->path, &fixture->keys));
    *state = fixture;
    return 0;
}

static int tear_down(void **state) {
    struct fixture *fixture = *state;
    keys_close(fixture->keys);
    free(fixture->directory);
    free(fixture);
    return 0;
}

static bool has(const struct fixture *fixture, const char *authorization) {
    struct key_holder holder = {0};
    bool is_found = keys_find(fixture->keys, authorization, &holder);
    assert_true(is_found == (holder.client != 0) && is_found == (holder.name != NULL));
    return is_found;
}

static void a_key_gives_its_name_number_and_weight(void **state) {
    struct fixture *fixture = *state;
    struct key_holder alice, again, bob;
    assert_int_equal(keys_count(fixture->keys), 3);
    assert_true(keys_find(fixture->keys, "Bearer sk-alice", &alice));
    assert_string_equal(alice.name, "alice");
    assert_true(alice.weight == 1 && alice.least_priority == INT32_MIN);
    assert_true(keys_find(fixture->keys, "bearer  sk-alice-new ", &again));
    assert_string_equal(again.name, "alice");
    assert_int_equal(again.client, alice.client);
    assert_true(keys_find(fixture->keys, "Bearer sk-bob", &bob));
    assert_string_equal(bob.name, "bob");
    assert_true(bob.weight == 2.5);
    assert_int_not_equal(bob.client, alice.client);
}

static void a_key_has_a_lowest_priority_beside_its_weight_or_alone(void **state) {
    struct fixture *fixture = *state;
    struct key_holder holder;
    write_keys(fixture, "a sk-1 priority>=0\nb sk-2 3 priority>=-5\nc sk-3 priority>=2147483647 0.5 # both\n");
    test_ok(keys_reload(fixture->keys));
    assert_true(keys_find(fixture->keys, "Bearer sk-1", &holder));
    assert_true(holder.weight == 1 && holder.least_priority == 0);
    assert_true(keys_find(fixture->keys, "Bearer sk-2", &holder));
    assert_true(holder.weight == 3 && holder.least_priority == -5);
    assert_true(keys_find(fixture->keys, "Bearer sk-3", &holder));
    assert_true(holder.weight == 0.5 && holder.least_priority == INT32_MAX);
}

static void a_key_may_tune_within_limits(void **state) {
    struct fixture *fixture = *state;
    struct key_holder holder;
    write_keys(fixture, "a sk-1\nb sk-2 tune\nc sk-3 tuning_bytes=20G tune 2 tuning_jobs=3\nd sk-4 tune tuning_jobs=0 "
                        "tuning_bytes=100\n");
    test_ok(keys_reload(fixture->keys));
    assert_true(keys_find(fixture->keys, "Bearer sk-1", &holder));
    assert_true(!holder.may_tune && holder.tuning_jobs == -1 && holder.tuning_bytes == -1);
    assert_true(keys_find(fixture->keys, "Bearer sk-2", &holder));
    assert_true(holder.may_tune && holder.tuning_jobs == -1 && holder.tuning_bytes == -1);
    assert_true(keys_find(fixture->keys, "Bearer sk-3", &holder));
    assert_true(holder.may_tune && holder.tuning_jobs == 3 && holder.tuning_bytes == (int64_t)20 << 30);
    assert_true(holder.weight == 2);
    assert_true(keys_find(fixture->keys, "Bearer sk-4", &holder));
    assert_true(holder.may_tune && holder.tuning_jobs == 0 && holder.tuning_bytes == 100);
}

static void everything_else_is_none(void **state) {
    static const char *const wrong[] = {NULL,
                                        "",
                                        "Bearer",
                                        "Bearer ",
                                        "Bearer  \t ",
                                        "sk-alice",
                                        "Basic sk-alice",
                                        "Bearersk-alice",
                                        "Bearer sk-alic",
                                        "Bearer sk-alicex",
                                        "Bearer Sk-alice",
                                        "Bearer alice",
                                        "Bearer sk-alice sk-bob",
                                        "Bearer # who may ask"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_false(has(*state, wrong[i]));
}

static void what_is_wrong_is_named_with_file_and_line_and_without_the_key(void **state) {
    struct fixture *fixture = *state;
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"a sk-1\nsk-secret\n", "keys: line 2: expected 'name key [weight] [priority>=N] [tune] "
                                "[tuning_jobs=N] [tuning_bytes=SIZE]'"},
        {"a sk-secret 1 2\n", "keys: line 1: two weights"},
        {"a sk-secret 1 priority>=0 2\n", "keys: line 1: two weights"},
        {"a sk-secret 1 2 3 4 5 6\n", "keys: line 1: expected 'name key [weight] [priority>=N] [tune] "
                                      "[tuning_jobs=N] [tuning_bytes=SIZE]'"},
        {"a sk-secret tuning_jobs=1\n", "keys: line 1: limits of tuning do nothing without the word 'tune'"},
        {"a sk-secret tune tuning_jobs=-1\n", "keys: line 1: expected tuning_jobs=N"},
        {"a sk-secret tune tuning_bytes=G\n", "keys: line 1: expected tuning_bytes=SIZE"},
        {"a sk-secret tune tuning_bytes=9999999T\n", "keys: line 1: expected tuning_bytes=SIZE"},
        {"a sk-secret tune tune\n", "keys: line 1: two times 'tune'"},
        {"a sk-secret tuned\n", "keys: line 1: a weight is a number"},
        {"a sk-secret priority>=0 priority>=1\n", "keys: line 1: two lowest priorities"},
        {"a sk-secret priority>=\n", "keys: line 1: expected priority>=N with an integer N of 32 bits"},
        {"a sk-secret priority>=2147483648\n", "keys: line 1: expected priority>=N"},
        {"a sk-secret priority>=1.5\n", "keys: line 1: expected priority>=N"},
        {"a sk-secret priority>=-\n", "keys: line 1: expected priority>=N"},
        {"a sk-secret priority>0\n", "keys: line 1: a weight is a number"},
        {"a/b sk-secret\n", "keys: line 1: a name has 1 to 64 letters"},
        {"0123456789012345678901234567890123456789012345678901234567890123x sk-secret\n",
         "keys: line 1: a name has 1 to 64 letters"},
        {"a sk-secret\xc3\xa9\n", "keys: line 1: a key has 1 to 1024 printable ASCII characters"},
        {"a sk-secret 0\n", "keys: line 1: a weight is a number from 0.001 to 1000"},
        {"a sk-secret -1\n", "keys: line 1: a weight"},
        {"a sk-secret nan\n", "keys: line 1: a weight"},
        {"a sk-secret 0x2\n", "keys: line 1: a weight"},
        {"a sk-secret 1e9\n", "keys: line 1: a weight"},
        {"a sk-secret 1\n\n#\nb sk-secret 1\n", "keys: line 4: the same key as that of 'a' above"},
        {"# nobody\n", "keys: there is no key in it"},
        {"", "keys: there is no key in it"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct keys *keys;
        write_keys(fixture, cases[i].text);
        test_fails(keys_open(fixture->path, &keys), STATUS_INVALID, cases[i].expected);
        assert_null(keys);
        assert_null(strstr(status_text(), "secret"));
    }
}

static void a_zero_byte_ends_no_file_early(void **state) {
    struct fixture *fixture = *state;
    static const char text[] = "a sk-1\0\nb sk-2\n";
    struct keys *keys;
    test_ok(file_write_atomic(fixture->path, text, sizeof text - 1));
    test_fails(keys_open(fixture->path, &keys), STATUS_INVALID, "line 1: a key has");
}

static void a_damaged_file_changes_nothing(void **state) {
    struct fixture *fixture = *state;
    write_keys(fixture, "carol sk-carol\nbob\n");
    test_fails(keys_reload(fixture->keys), STATUS_INVALID, "line 2");
    assert_true(has(fixture, "Bearer sk-bob"));
    assert_false(has(fixture, "Bearer sk-carol"));
    test_ok(file_remove_tree(fixture->path));
    test_fails(keys_reload(fixture->keys), STATUS_NOT_FOUND, "keys");
    assert_true(has(fixture, "Bearer sk-alice-new"));
    assert_int_equal(keys_count(fixture->keys), 3);
}

static void a_new_file_is_taken_whole_and_names_keep_their_numbers(void **state) {
    struct fixture *fixture = *state;
    struct key_holder before, after;
    assert_true(keys_find(fixture->keys, "Bearer sk-alice", &before));
    write_keys(fixture, "zoe sk-zoe\nalice sk-other 4\n");
    test_ok(keys_reload(fixture->keys));
    assert_false(has(fixture, "Bearer sk-alice"));
    assert_false(has(fixture, "Bearer sk-bob"));
    assert_true(keys_find(fixture->keys, "Bearer sk-other", &after));
    assert_int_equal(after.client, before.client);
    assert_true(after.weight == 4);
    assert_string_equal(before.name, "alice"); /* a request that runs still has it */
}

static void there_may_be_4096_keys(void **state) {
    struct fixture *fixture = *state;
    struct strbuf text = STRBUF_INIT;
    struct keys *keys;
    for (int i = 0; i < KEYS_MAX; i++)
        strbuf_format(&text, "tenant sk-%d\n", i);
    write_keys(fixture, strbuf_text(&text));
    test_ok(keys_reload(fixture->keys));
    assert_true(has(fixture, "Bearer sk-0") && has(fixture, "Bearer sk-4095"));
    strbuf_add_text(&text, "tenant sk-more\n");
    write_keys(fixture, strbuf_text(&text));
    test_fails(keys_open(fixture->path, &keys), STATUS_INVALID, "line 4097: a file has at most 4096 keys");
    strbuf_free(&text);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_key_gives_its_name_number_and_weight),
        TEST(a_key_has_a_lowest_priority_beside_its_weight_or_alone),
        TEST(a_key_may_tune_within_limits),
        TEST(everything_else_is_none),
        TEST(what_is_wrong_is_named_with_file_and_line_and_without_the_key),
        TEST(a_zero_byte_ends_no_file_early),
        TEST(a_damaged_file_changes_nothing),
        TEST(a_new_file_is_taken_whole_and_names_keep_their_numbers),
        TEST(there_may_be_4096_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
