/* The store of compiled grammars: sharing, turns, memory, refusals and its end. */
#include "infer/grammars.h"
#include "support/test.h"

#include <pthread.h>

enum { IDS = 29, END = 28, ORDERS = 12 };
static struct grammar_vocabulary *vocabulary;

static int open_vocabulary(void **state) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz\"";
    static const int32_t end = END;
    struct grammar_token tokens[IDS] = {{0}};
    (void)state;
    for (int i = 0; i < 27; i++)
        tokens[i] = (struct grammar_token){.bytes = letters + i, .length = 1};
    test_ok(grammar_vocabulary_open(tokens, IDS, &end, 1, &vocabulary));
    return 0;
}

static int close_vocabulary(void **state) {
    (void)state;
    grammar_vocabulary_close(vocabulary);
    return 0;
}

static struct grammars *open(int64_t memory) {
    struct grammars *grammars;
    test_ok(grammars_open(&(struct grammars_options){.threads = 1, .seconds = 10, .memory = memory}, &grammars));
    return grammars;
}

static struct grammar_order order_of(enum grammar_kind kind, const char *text, uint64_t client) {
    return (struct grammar_order){
        .source = {.kind = kind, .text = text, .length = strlen(text)}, .vocabulary = vocabulary, .client = client};
}

static int get(struct grammars *grammars, struct grammar_order *order) {
    if (!grammars_begin(grammars, order))
        assert_true(grammars_end(grammars, order, true));
    return grammars_verdict(order);
}

static struct grammar *get_text(struct grammars *grammars, const char *text) {
    struct grammar_order order = order_of(GRAMMAR_CHOICE, text, 0);
    test_ok(get(grammars, &order));
    grammar_report_free(&order.report);
    return order.grammar;
}

static struct grammars_figures figures_of(struct grammars *grammars) {
    struct grammars_figures figures;
    grammars_read(grammars, &figures);
    return figures;
}

static uint64_t count_of(const struct grammars_times *times) {
    uint64_t count = 0;
    for (int i = 0; i <= GRAMMARS_BUCKETS; i++)
        count += times->counts[i];
    return count;
}

static void equal_constraints_share_a_grammar(void **state) {
    (void)state;
    struct grammars *grammars = open(1 << 26);
    struct grammar *a = get_text(grammars, "[\"cat\"]"), *b = get_text(grammars, "[\"dog\"]"),
                   *c = get_text(grammars, "[\"cat\"]");
    struct grammar_order compact = order_of(GRAMMAR_CHOICE, "[\"cat\"]", 0);
    compact.source.is_compact = true;
    test_ok(get(grammars, &compact));
    assert_ptr_equal(a, c);
    assert_ptr_not_equal(a, b);
    assert_ptr_not_equal(a, compact.grammar);
    struct grammars_figures figures = figures_of(grammars);
    assert_int_equal(figures.hits, 1);
    assert_int_equal(figures.misses, 3);
    assert_int_equal(count_of(&figures.compile), 3);
    assert_true(figures.bytes >= grammar_bytes(a) + grammar_bytes(b));
    struct grammar *all[] = {a, b, c, compact.grammar};
    for (int i = 0; i < 4; i++)
        grammar_release(all[i]);
    grammar_report_free(&compact.report);
    grammars_close(grammars);
}

static void the_least_recently_used_leave_when_memory_is_full(void **state) {
    (void)state;
    struct grammars *grammars = open(1 << 26);
    grammar_release(get_text(grammars, "[\"a\"]"));
    size_t one = figures_of(grammars).bytes;
    grammars_close(grammars);
    grammars = open((int64_t)(GRAMMARS_SHARE * one * 2)); /* each may take an eighth */
    for (int i = 0; i < 200; i++) {
        char text[] = "[\"aa\"]";
        text[2] = (char)('a' + i % 26);
        text[3] = (char)('a' + i / 26);
        grammar_release(get_text(grammars, text));
        grammar_release(get_text(grammars, "[\"a\"]")); /* used all the time */
        assert_true(figures_of(grammars).bytes <= GRAMMARS_SHARE * one * 2);
    }
    assert_int_equal(figures_of(grammars).hits, 199);
    uint64_t misses = figures_of(grammars).misses;
    grammar_release(get_text(grammars, "[\"aa\"]")); /* the first one has left */
    assert_int_equal(figures_of(grammars).misses, misses + 1);
    grammars_close(grammars);
}

/* Orders whose results are noted; the thread of the store waits in the first one until the gate is open. */
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static struct {
    struct grammar_order order[ORDERS];
    atomic_int done;
    uint64_t clients[ORDERS];
} noted;

static void note(struct grammar_order *order) {
    noted.clients[atomic_load(&noted.done)] = order->client;
    grammar_release(order->grammar);
    grammar_report_free(&order->report);
    pthread_mutex_lock(&gate);
    atomic_fetch_add(&noted.done, 1);
    pthread_mutex_unlock(&gate);
}

static void start(struct grammars *grammars, int i, uint64_t client) {
    char text[] = "[\"a\"]";
    text[2] = (char)('a' + i);
    noted.order[i] = order_of(GRAMMAR_CHOICE, text, client);
    noted.order[i].on_done = note;
    assert_false(grammars_order(grammars, &noted.order[i]));
}

static void wait_for(int count) {
    while (atomic_load(&noted.done) < count)
        sched_yield();
}

static void clients_take_turns(void **state) {
    (void)state;
    static const uint64_t expected[] = {1, 1, 2, 3, 1, 2, 1, 1};
    struct grammars *grammars = open(1 << 26);
    atomic_store(&noted.done, 0);
    pthread_mutex_lock(&gate);
    start(grammars, 0, 1);
    while (figures_of(grammars).compile.sum == 0) /* the thread is in the first one */
        sched_yield();
    for (int i = 1; i < 5; i++)
        start(grammars, i, 1);
    start(grammars, 5, 2);
    start(grammars, 6, 2);
    start(grammars, 7, 3);
    pthread_mutex_unlock(&gate);
    wait_for(8);
    assert_memory_equal(noted.clients, expected, sizeof expected);
    grammars_close(grammars);
}

static void an_order_waits_for_one_that_is_being_compiled(void **state) {
    (void)state;
    struct grammars *grammars = open(1 << 26);
    atomic_store(&noted.done, 0);
    pthread_mutex_lock(&gate);
    start(grammars, 0, 1);
    while (figures_of(grammars).compile.sum == 0)
        sched_yield();
    start(grammars, 1, 1);
    noted.order[2] = order_of(GRAMMAR_CHOICE, "[\"b\"]", 7); /* as the one before */
    noted.order[2].on_done = note;
    assert_false(grammars_order(grammars, &noted.order[2]));
    pthread_mutex_unlock(&gate);
    wait_for(3);
    struct grammars_figures figures = figures_of(grammars);
    assert_int_equal(figures.hits, 1);
    assert_int_equal(count_of(&figures.compile), 2);
    grammars_close(grammars);
}

static void nobody_compiles_what_nobody_wants(void **state) {
    (void)state;
    static atomic_bool is_unwanted = true;
    struct grammars *grammars = open(1 << 26);
    struct grammar_order order = order_of(GRAMMAR_CHOICE, "[\"cat\"]", 1);
    order.is_unwanted = &is_unwanted;
    assert_int_equal(get(grammars, &order), STATUS_INTERRUPTED);
    struct grammars_figures figures = figures_of(grammars);
    assert_int_equal(count_of(&figures.compile), 0);
    grammar_report_free(&order.report);
    /* It was forgotten. */
    grammar_release(get_text(grammars, "[\"cat\"]"));
    grammars_close(grammars);
}

static void a_store_that_stops_answers_all_orders(void **state) {
    (void)state;
    struct grammars *grammars = open(1 << 26);
    atomic_store(&noted.done, 0);
    pthread_mutex_lock(&gate);
    for (int i = 0; i < 6; i++)
        start(grammars, i, 1);
    pthread_mutex_unlock(&gate);
    grammars_stop(grammars);
    assert_int_equal(atomic_load(&noted.done), 6);
    struct grammar_order late = order_of(GRAMMAR_CHOICE, "[\"zz\"]", 1);
    assert_int_equal(get(grammars, &late), STATUS_INTERRUPTED);
    grammars_close(grammars);
}

static void refusals_have_a_reason_and_are_not_kept(void **state) {
    (void)state;
    struct grammars *grammars = open(1 << 26);
    for (int i = 0; i < 2; i++) {
        struct grammar_order order = order_of(GRAMMAR_REGEX, "a(b", 0);
        test_fails(get(grammars, &order), STATUS_INVALID, "");
        assert_int_equal(order.report.refusal, GRAMMAR_INVALID);
        assert_true(order.report.message.length > 0);
        assert_null(order.grammar);
        grammar_report_free(&order.report);
    }
    assert_int_equal(figures_of(grammars).misses, 2);
    assert_int_equal(figures_of(grammars).bytes, 0);
    grammars_close(grammars);
}

static void dropped_keywords_are_named_each_time(void **state) {
    (void)state;
    struct grammars *grammars = open(1 << 26);
    for (int i = 0; i < 2; i++) {
        struct grammar_order order = order_of(GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"format\":\"int64\"}", 0);
        order.source.is_lenient = true;
        test_ok(get(grammars, &order));
        assert_int_equal(json_array_size(order.report.ignored), 1);
        assert_string_equal(json_string_value(json_array_get(order.report.ignored, 0)), "/format: int64");
        grammar_release(order.grammar);
        grammar_report_free(&order.report);
    }
    assert_int_equal(figures_of(grammars).hits, 1);
    grammars_close(grammars);
}

/* ---- room ---- */

static void begin(struct grammars *grammars, struct grammar_order *order, const char *text) {
    *order = order_of(GRAMMAR_CHOICE, text, 0);
    assert_false(grammars_begin(grammars, order));
}

static void wait_until_compiled(struct grammars *grammars, uint64_t count) {
    while (count_of(&((struct grammars_figures[]){figures_of(grammars)})->compile) < count)
        sched_yield();
}

/* A store in which one grammar has room, and a second one beside it has not: each needs 128 KB beyond twice its first
 * bytes. */
static struct grammars *open_for_one(void) {
    struct grammars *grammars = open(1 << 26);
    struct grammar *grammar = get_text(grammars, "[\"a\"]");
    size_t needed = 2 * grammar_bytes(grammar) + (1 << 17);
    grammar_release(grammar);
    grammars_close(grammars);
    return open((int64_t)(2 * needed - needed / 5)); /* the allocator may give a few bytes more or less */
}

static void an_order_waits_until_a_grammar_in_use_makes_room(void **state) {
    (void)state;
    struct grammars *grammars = open_for_one();
    struct grammar *first = get_text(grammars, "[\"a\"]");
    struct grammar_order second, third;
    begin(grammars, &second, "[\"b\"]");
    wait_until_compiled(grammars, 2);
    begin(grammars, &third, "[\"c\"]");             /* not even compiled, so that what waits does not fill the memory */
    grammar_release(get_text(grammars, "[\"a\"]")); /* the grammar in use has room */
    assert_false(grammars_end(grammars, &second, false));
    assert_int_equal(count_of(&((struct grammars_figures[]){figures_of(grammars)})->compile), 2);
    grammar_release(first);
    assert_true(grammars_end(grammars, &second, true));
    wait_until_compiled(grammars, 3);
    assert_false(grammars_end(grammars, &third, false));
    /* The one that was first is compiled, but waits for its room like any other. */
    struct grammar_order again;
    begin(grammars, &again, "[\"a\"]");
    grammar_release(second.grammar);
    while (!grammars_end(grammars, &third, false))
        sched_yield();
    assert_false(grammars_end(grammars, &again, false));
    grammar_release(third.grammar);
    while (!grammars_end(grammars, &again, false))
        sched_yield();
    grammar_release(again.grammar);
    grammars_close(grammars);
}

/* Whoever waits may have what would make room. */
static void somebody_who_waits_gets_room_in_any_case(void **state) {
    (void)state;
    struct grammars *grammars = open_for_one();
    struct grammar *first = get_text(grammars, "[\"a\"]");
    struct grammar_order second, third;
    begin(grammars, &second, "[\"b\"]");
    wait_until_compiled(grammars, 2);
    begin(grammars, &third, "[\"c\"]");
    assert_true(grammars_end(grammars, &third, true));
    assert_false(grammars_end(grammars, &second, false));
    grammar_release(third.grammar);
    grammar_release(first);
    assert_true(grammars_end(grammars, &second, true));
    grammar_release(second.grammar);
    grammars_close(grammars);
}

static void an_end_answers_what_waits_for_room(void **state) {
    (void)state;
    struct grammars *grammars = open_for_one();
    struct grammar *first = get_text(grammars, "[\"a\"]");
    struct grammar_order second;
    begin(grammars, &second, "[\"b\"]");
    wait_until_compiled(grammars, 2);
    grammars_stop(grammars);
    assert_true(grammars_end(grammars, &second, true));
    assert_int_equal(grammars_verdict(&second), STATUS_INTERRUPTED);
    grammar_release(first);
    grammars_close(grammars);
}

/* A share that is too small drops caches before each mask, and no mask changes. */
static void a_share_bounds_the_caches(void **state) {
    (void)state;
    enum { LETTERS = 1000 };
    struct grammars *grammars = open(1 << 26);
    struct grammar_order order = order_of(GRAMMAR_REGEX, "a{1000}", 0);
    test_ok(get(grammars, &order));
    size_t least = grammar_bytes(order.grammar), bytes[2];
    for (int is_large = 0; is_large < 2; is_large++) {
        struct grammar_state text;
        grammar_set_share(order.grammar, is_large ? 1 << 20 : 1);
        test_ok(grammar_begin(order.grammar, &text));
        for (int i = 0; i < LETTERS; i++) {
            struct grammar_allowed allowed;
            uint32_t mask;
            test_ok(grammar_mask(&text, 10, &mask, &allowed));
            assert_int_equal(mask, 1);
            test_ok(grammar_accept(&text, 0, NULL));
        }
        assert_true(text.is_over);
        bytes[is_large] = grammar_bytes(order.grammar);
        grammar_end(&text);
    }
    assert_true(bytes[0] < 3 * least);
    assert_true(bytes[1] > 4 * least);
    grammar_release(order.grammar);
    grammars_close(grammars);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_constraints_share_a_grammar),
        cmocka_unit_test(the_least_recently_used_leave_when_memory_is_full),
        cmocka_unit_test(clients_take_turns),
        cmocka_unit_test(an_order_waits_for_one_that_is_being_compiled),
        cmocka_unit_test(nobody_compiles_what_nobody_wants),
        cmocka_unit_test(a_store_that_stops_answers_all_orders),
        cmocka_unit_test(refusals_have_a_reason_and_are_not_kept),
        cmocka_unit_test(dropped_keywords_are_named_each_time),
        cmocka_unit_test(an_order_waits_until_a_grammar_in_use_makes_room),
        cmocka_unit_test(somebody_who_waits_gets_room_in_any_case),
        cmocka_unit_test(an_end_answers_what_waits_for_room),
        cmocka_unit_test(a_share_bounds_the_caches),
    };
    return cmocka_run_group_tests(tests, open_vocabulary, close_vocabulary);
}
