/* A deadline may pass at any step of a mask. The mask then fails, and changes no later one. */
#include "mask-internal.h"
#include "readers-internal.h"

#include "support/test.h"

enum { IDS = 256 + 6, STEPS = 1 << 10 /* between two looks at the clock */ };

static struct grammar_vocabulary *open_vocabulary(void) {
    static const char *const words[] = {"\":", "\",\"", "\"}", "key", "\": \"", "ab"};
    struct grammar_token tokens[IDS];
    char bytes[256];
    struct grammar_vocabulary *vocabulary;
    const int32_t end = IDS - 1;
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        tokens[i] = (struct grammar_token){.bytes = &bytes[i], .length = 1};
    }
    for (int i = 256; i < IDS; i++)
        tokens[i] = (struct grammar_token){.bytes = words[i - 256], .length = strlen(words[i - 256])};
    test_ok(grammar_vocabulary_open(tokens, IDS, &end, 1, &vocabulary));
    return vocabulary;
}

struct fixture {
    struct rules *rules;
    struct automaton *automaton;
    struct masks masks;
};

static void open_fixture(struct fixture *fixture, const struct grammar_vocabulary *vocabulary) {
    static const char schema[] =
        "{\"properties\": {\"key\": {\"type\": \"string\", \"maxLength\": 9}, \"b\": {\"pattern\": "
        "\"^[a-k]+x?$\"}}, \"additionalProperties\": {\"type\": \"string\"}}";
    struct grammar_source source = {.kind = GRAMMAR_JSON_SCHEMA, .text = schema, .length = sizeof schema - 1};
    struct grammar_report report = {0};
    rule_node node;
    test_ok(rules_open(1 << 24, 0, &fixture->rules));
    test_ok(schema_read(
        &(struct grammar_reading){
            .source = &source, .vocabulary = vocabulary, .rules = fixture->rules, .report = &report},
        &node));
    rule_id root = rule_declare(fixture->rules);
    rule_define(fixture->rules, root, node);
    rules_finish(fixture->rules, root);
    test_ok(rules_status(fixture->rules));
    test_ok(automaton_open(fixture->rules, rules_regexes(fixture->rules), 1 << 24, &fixture->automaton));
    test_ok(masks_open(&fixture->masks, vocabulary, fixture->automaton));
    grammar_report_free(&report);
}

static void close_fixture(struct fixture *fixture) {
    masks_close(&fixture->masks);
    automaton_close(fixture->automaton);
    rules_close(fixture->rules);
}

/* Follows a text with a mask before each byte. The first `count` masks have a deadline that has passed: the step that
 * looks at it is `step` steps away. Returns how many failed; `all` receives the others, or is compared with them. */
static int follow(struct fixture *fixture, int step, int count, uint32_t (*all)[(IDS + 31) / 32], bool is_reference) {
    static const char text[] = "{\"key\": \"ab\", \"b\": \"ax\", \"other\": \"v\"}";
    struct automaton *automaton = fixture->automaton;
    uint32_t place = PLACE_FIRST;
    int failures = 0;
    for (size_t i = 0; i < sizeof text - 1; i++) {
        if ((int)i < count) {
            automaton_resume(automaton, 1e-9);
            automaton->regexes->work = (uint64_t)(STEPS - step);
            failures += !masks_of(&fixture->masks, place);
        }
        automaton_resume(automaton, 0);
        const struct place_mask *mask = masks_of(&fixture->masks, place);
        assert_non_null(mask);
        if (is_reference)
            memcpy(all[i], mask->words, sizeof all[i]);
        else
            assert_memory_equal(all[i], mask->words, sizeof all[i]);
        place = automaton_after(automaton, place, (uint8_t)text[i]);
        assert_int_not_equal(place, PLACE_NONE);
    }
    return failures;
}

static void a_mask_that_was_late_is_as_any_other(void **state) {
    struct fixture fixture;
    uint32_t all[64][(IDS + 31) / 32];
    int failures = 0;
    (void)state;
    struct grammar_vocabulary *vocabulary = open_vocabulary();
    open_fixture(&fixture, vocabulary);
    follow(&fixture, 1, 0, all, true);
    close_fixture(&fixture);
    grammar_vocabulary_close(vocabulary);
    for (int step = 1; step < STEPS; step++) {
        vocabulary = open_vocabulary(); /* it has masks of earlier grammars */
        open_fixture(&fixture, vocabulary);
        failures += follow(&fixture, step, 64, all, false);
        close_fixture(&fixture);
        grammar_vocabulary_close(vocabulary);
    }
    assert_true(failures > STEPS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mask_that_was_late_is_as_any_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
