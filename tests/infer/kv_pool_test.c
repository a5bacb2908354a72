/* Pages are held, shared, found again by their contents, and evicted in the order of their last use. */
#include "infer/kv_pool.h"

#include "base/base.h"
#include "support/allocations.h"
#include "support/test.h"

enum { PAGE = KV_PAGE_TOKENS };
static const struct kv_root base_root = {0};

static void open_pool(struct kv_pool *pool, int64_t count) {
    test_ok(kv_pool_open(pool, count, true));
}

/* The tokens of a page, all alike. */
static const int32_t *tokens_of(int32_t token, int32_t tokens[PAGE]) {
    for (int i = 0; i < PAGE; i++)
        tokens[i] = token;
    return tokens;
}

static int32_t publish(struct kv_pool *pool, int32_t page, int32_t parent, int32_t token) {
    int32_t tokens[PAGE];
    return kv_pool_publish(pool, page, &base_root, parent, tokens_of(token, tokens));
}

static int32_t find(struct kv_pool *pool, int32_t parent, int32_t token) {
    int32_t tokens[PAGE];
    return kv_pool_find(pool, &base_root, parent, tokens_of(token, tokens));
}

/* A page that is published and let go. */
static int32_t put(struct kv_pool *pool, int32_t parent, int32_t token) {
    int32_t page = kv_pool_take(pool);
    assert_int_equal(publish(pool, page, parent, token), page);
    kv_pool_release(pool, page);
    return page;
}

static uint64_t bad_hash(uint64_t seed, uint64_t parent, const int32_t *tokens) {
    (void)seed, (void)parent, (void)tokens;
    return 5;
}

static void assert_counts(const struct kv_pool *pool, int64_t free_pages, int64_t findable, int64_t held) {
    assert_int_equal(pool->free_count, free_pages);
    assert_int_equal(pool->findable_count, findable);
    assert_int_equal(pool->count - kv_pool_available(pool), held);
    assert_int_equal(kv_pool_available(pool), free_pages + findable);
}

static void pages_are_held_shared_and_given_back(void **state) {
    (void)state;
    struct kv_pool pool;
    open_pool(&pool, 2);
    int32_t a = kv_pool_take(&pool), b = kv_pool_take(&pool);
    assert_int_not_equal(a, b);
    assert_int_equal(kv_pool_take(&pool), -1);
    assert_int_equal(publish(&pool, a, -1, 1), a);
    assert_int_equal(find(&pool, -1, 1), a);
    kv_pool_release(&pool, a);
    assert_counts(&pool, 0, 0, 2);
    kv_pool_release(&pool, a);
    assert_counts(&pool, 0, 1, 1);
    assert_int_equal(kv_pool_take(&pool), a);
    kv_pool_close(&pool);
}

static void published_pages_are_found_while_held_and_after(void **state) {
    (void)state;
    struct kv_pool pool;
    open_pool(&pool, 4);
    int32_t a = kv_pool_take(&pool), b = kv_pool_take(&pool);
    assert_int_equal(find(&pool, -1, 1), -1);
    assert_int_equal(publish(&pool, a, -1, 1), a);
    assert_int_equal(publish(&pool, b, a, 2), b);
    assert_int_equal(find(&pool, -1, 1), a);
    assert_int_equal(find(&pool, -1, 2), -1); /* it continues a, it begins nothing */
    assert_int_equal(find(&pool, b, 2), -1);
    kv_pool_release(&pool, b);
    kv_pool_release(&pool, a);
    assert_counts(&pool, 2, 1, 1); /* a was found, and is held once more */
    assert_int_equal(find(&pool, a, 2), b);
    assert_counts(&pool, 2, 0, 2);
    kv_pool_close(&pool);
}

static void slots_and_salts_share_nothing(void **state) {
    (void)state;
    struct kv_pool pool;
    open_pool(&pool, 4);
    int32_t tokens[PAGE];
    tokens_of(7, tokens);
    static const struct kv_root roots[] = {{1, 0}, {2, 0}, {1, 1}};
    int32_t page[3];
    for (int i = 0; i < 3; i++) {
        page[i] = kv_pool_take(&pool);
        assert_int_equal(kv_pool_find(&pool, &roots[i], -1, tokens), -1);
        assert_int_equal(kv_pool_publish(&pool, page[i], &roots[i], -1, tokens), page[i]);
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(kv_pool_find(&pool, &roots[i], -1, tokens), page[i]);
    kv_pool_close(&pool);
}

static void the_same_contents_are_kept_once(void **state) {
    (void)state;
    struct kv_pool pool;
    open_pool(&pool, 3);
    int32_t a = kv_pool_take(&pool), b = kv_pool_take(&pool);
    assert_int_equal(publish(&pool, a, -1, 1), a);
    assert_int_equal(publish(&pool, b, -1, 1), a);
    assert_counts(&pool, 2, 0, 1);
    kv_pool_release(&pool, a);
    assert_counts(&pool, 2, 0, 1);
    kv_pool_release(&pool, a);
    assert_counts(&pool, 2, 1, 0);
    kv_pool_close(&pool);
}

static void the_least_recently_used_goes_first(void **state) {
    (void)state;
    struct kv_pool pool;
    open_pool(&pool, 4);
    int32_t page[4];
    for (int32_t i = 0; i < 4; i++)
        page[i] = put(&pool, -1, i); /* a free page goes before a findable one */
    assert_counts(&pool, 0, 4, 0);
    assert_int_equal(find(&pool, -1, 0), page[0]);
    assert_int_equal(find(&pool, -1, 2), page[2]);
    kv_pool_release(&pool, page[2]);
    kv_pool_release(&pool, page[0]);
    static const int order[] = {1, 3, 2, 0};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(kv_pool_take(&pool), page[order[i]]);
        assert_int_equal(find(&pool, -1, order[i]), -1);
    }
    assert_int_equal(kv_pool_take(&pool), -1);
    assert_counts(&pool, 0, 0, 4);
    kv_pool_close(&pool);
}

static void children_of_an_evicted_parent_are_not_found_and_not_lost(void **state) {
    (void)state;
    struct kv_pool pool;
    open_pool(&pool, 2);
    int32_t parent = kv_pool_take(&pool), child = kv_pool_take(&pool);
    publish(&pool, parent, -1, 1);
    publish(&pool, child, parent, 2);
    kv_pool_release(&pool, parent); /* the wrong way round: the parent is older */
    kv_pool_release(&pool, child);
    assert_int_equal(kv_pool_take(&pool), parent);
    assert_int_equal(publish(&pool, parent, -1, 1), parent); /* the same number, tokens and place: another parent */
    assert_int_equal(find(&pool, parent, 2), -1);
    assert_counts(&pool, 0, 1, 1);
    assert_int_equal(kv_pool_take(&pool), child);
    assert_counts(&pool, 0, 0, 2);
    kv_pool_close(&pool);
}

static void colliding_keys_lead_to_their_own_pages(void **state) {
    (void)state;
    struct kv_pool pool;
    enum { COUNT = 20 };
    open_pool(&pool, 2 * COUNT);
    pool.hash = bad_hash;
    int32_t first[COUNT], second[COUNT];
    for (int32_t i = 0; i < COUNT; i++) {
        first[i] = kv_pool_take(&pool);
        second[i] = kv_pool_take(&pool);
        assert_int_equal(publish(&pool, first[i], -1, i), first[i]);
        assert_int_equal(publish(&pool, second[i], first[i], 99), second[i]); /* their parent alone tells them apart */
    }
    for (int32_t i = 0; i < COUNT; i++) {
        assert_int_equal(find(&pool, -1, i), first[i]);
        assert_int_equal(find(&pool, first[i], 99), second[i]);
        assert_int_equal(find(&pool, first[i], 98), -1);
        assert_int_equal(find(&pool, second[i], 99), -1);
    }
    kv_pool_close(&pool);
}

static void one_other_token_is_another_page(void **state) {
    (void)state;
    struct kv_pool pool;
    open_pool(&pool, 2);
    pool.hash = bad_hash; /* the tokens alone tell pages apart */
    int32_t tokens[PAGE], page = kv_pool_take(&pool);
    tokens_of(-1, tokens); /* of virtual tokens */
    assert_int_equal(kv_pool_publish(&pool, page, &base_root, -1, tokens), page);
    for (int i = 0; i < PAGE; i++) {
        tokens[i]++;
        assert_int_equal(kv_pool_find(&pool, &base_root, -1, tokens), -1);
        tokens[i]--;
    }
    assert_int_equal(kv_pool_find(&pool, &base_root, -1, tokens), page);
    kv_pool_close(&pool);
}

static void a_forgotten_slot_is_not_found(void **state) {
    (void)state;
    struct kv_pool pool;
    open_pool(&pool, 4);
    int32_t tokens[PAGE], page[3];
    static const struct kv_root roots[] = {{1, 0}, {2, 0}, {1, 9}};
    tokens_of(3, tokens);
    for (int i = 0; i < 3; i++) {
        page[i] = kv_pool_take(&pool);
        kv_pool_publish(&pool, page[i], &roots[i], -1, tokens);
    }
    kv_pool_release(&pool, page[0]);
    kv_pool_release(&pool, page[1]);
    kv_pool_forget(&pool, 1);
    assert_counts(&pool, 2, 1, 1); /* the held one is free when it is let go */
    assert_int_equal(kv_pool_find(&pool, &roots[0], -1, tokens), -1);
    assert_int_equal(kv_pool_find(&pool, &roots[2], -1, tokens), -1);
    assert_int_equal(kv_pool_find(&pool, &roots[1], -1, tokens), page[1]);
    assert_int_equal(publish(&pool, kv_pool_take(&pool), page[2], 1), page[0]); /* no child of it is published */
    kv_pool_release(&pool, page[2]);
    kv_pool_release(&pool, page[0]);
    assert_counts(&pool, 3, 0, 1);
    kv_pool_close(&pool);
}

static void nothing_is_findable_when_that_is_off(void **state) {
    (void)state;
    struct kv_pool pool;
    test_ok(kv_pool_open(&pool, 2, false));
    int32_t page = kv_pool_take(&pool);
    assert_int_equal(publish(&pool, page, -1, 1), page);
    assert_int_equal(find(&pool, -1, 1), -1);
    kv_pool_release(&pool, page);
    assert_counts(&pool, 2, 0, 0);
    kv_pool_close(&pool);
}

/* ---- against a naive reference ---- */

/* Pages by their whole contents: the root and all tokens up to their end, and when they were last let go. */
enum { PAGES = 24, DEPTH = 4, TEXTS = 8, OPERATIONS = 200000 };

struct naive_page {
    bool is_published;
    int references;
    uint64_t slot_key, salt;
    int length; /* pages of the text up to the end of this one */
    int32_t word[DEPTH];
    int32_t ancestor[DEPTH]; /* their pages */
    int64_t birth[DEPTH];    /* and when these were published */
    int64_t used;
};

struct naive_text {
    struct kv_root root;
    int length;
    int32_t word[DEPTH], page[DEPTH];
};

struct naive {
    struct kv_pool pool;
    struct naive_page page[PAGES];
    struct naive_text text[TEXTS];
    int64_t clock;
    uint64_t random;
};

static uint32_t draw(struct naive *n, uint32_t below) {
    return philox(n->random++, 1, 2, 3, 4).word[0] % below;
}

/* The published page of these contents whose ancestors are published still. */
static int32_t naive_find(const struct naive *n, const struct naive_text *text, int length) {
    for (int32_t p = 0; p < PAGES; p++) {
        const struct naive_page *page = &n->page[p];
        bool is_it = page->is_published && page->length == length && page->slot_key == text->root.slot_key &&
                     page->salt == text->root.salt && !memcmp(page->word, text->word, (size_t)length * sizeof(int32_t));
        for (int i = 0; i + 1 < length && is_it; i++)
            is_it = page->ancestor[i] == text->page[i] && n->page[page->ancestor[i]].is_published &&
                    n->page[page->ancestor[i]].birth[i] == page->birth[i];
        if (is_it)
            return p;
    }
    return -1;
}

static int64_t naive_findable(const struct naive *n) {
    int64_t count = 0;
    for (int p = 0; p < PAGES; p++)
        count += n->page[p].is_published && !n->page[p].references;
    return count;
}

static int64_t naive_held(const struct naive *n) {
    int64_t count = 0;
    for (int p = 0; p < PAGES; p++)
        count += n->page[p].references > 0;
    return count;
}

static void naive_release(struct naive *n, int32_t page) {
    kv_pool_release(&n->pool, page);
    n->page[page].references--;
    n->page[page].used = ++n->clock;
}

static void end_text(struct naive *n, struct naive_text *text) {
    bool backwards = draw(n, 4) > 0;
    for (int i = 0; i < text->length; i++)
        naive_release(n, text->page[backwards ? text->length - 1 - i : i]);
    text->length = 0;
}

static void take_page(struct naive *n, struct naive_text *text) {
    int64_t free_pages = PAGES - naive_findable(n) - naive_held(n);
    int32_t oldest = -1;
    for (int32_t p = 0; p < PAGES; p++)
        if (n->page[p].is_published && !n->page[p].references && (oldest < 0 || n->page[p].used < n->page[oldest].used))
            oldest = p;
    int32_t page = kv_pool_take(&n->pool);
    if (free_pages == 0) {
        assert_int_equal(page, oldest);
    } else {
        assert_true(page >= 0);
        assert_false(n->page[page].is_published || n->page[page].references);
    }
    if (page < 0)
        return;
    n->page[page] = (struct naive_page){.references = 1};
    int at = text->length++;
    text->page[at] = page;
    int32_t tokens[PAGE], parent = at ? text->page[at - 1] : -1;
    bool can_publish = at == 0 || n->page[parent].is_published;
    int32_t other = can_publish ? naive_find(n, text, at + 1) : -1;
    int32_t held = kv_pool_publish(&n->pool, page, &text->root, parent, tokens_of(text->word[at], tokens));
    assert_int_equal(held, other >= 0 ? other : page);
    if (other >= 0) {
        n->page[page].references = 0;
        n->page[other].references++;
        text->page[at] = other;
    } else if (can_publish) {
        struct naive_page *published = &n->page[page];
        published->is_published = true;
        published->slot_key = text->root.slot_key;
        published->salt = text->root.salt;
        published->length = at + 1;
        memcpy(published->word, text->word, sizeof published->word);
        memcpy(published->ancestor, text->page, sizeof published->ancestor);
        for (int i = 0; i < at; i++)
            published->birth[i] = n->page[text->page[i]].birth[i];
        published->birth[at] = ++n->clock;
    }
}

static void begin_text(struct naive *n, struct naive_text *text) {
    text->root = (struct kv_root){.slot_key = draw(n, 2), .salt = draw(n, 2)};
    for (int i = 0; i < DEPTH; i++)
        text->word[i] = (int32_t)draw(n, 3);
    for (int i = 0; i < DEPTH; i++) {
        int32_t tokens[PAGE], expected = naive_find(n, text, i + 1);
        int32_t found =
            kv_pool_find(&n->pool, &text->root, i ? text->page[i - 1] : -1, tokens_of(text->word[i], tokens));
        assert_int_equal(found, expected);
        if (found < 0)
            return;
        n->page[found].references++;
        text->page[text->length++] = found;
    }
}

static void forget_slot(struct naive *n, uint64_t slot_key) {
    for (int t = 0; t < TEXTS; t++)
        if (n->text[t].root.slot_key == slot_key && draw(n, 2))
            end_text(n, &n->text[t]);
    kv_pool_forget(&n->pool, slot_key);
    for (int p = 0; p < PAGES; p++)
        if (n->page[p].slot_key == slot_key)
            n->page[p].is_published = false;
}

static void random_use_equals_a_naive_pool(void **state) {
    (void)state;
    for (int hash = 0; hash < 2; hash++) {
        struct naive n = {.random = 17 + (uint64_t)hash};
        open_pool(&n.pool, PAGES);
        n.pool.hash = hash ? bad_hash : n.pool.hash;
        allocations_start();
        for (int i = 0; i < OPERATIONS; i++) {
            struct naive_text *text = &n.text[draw(&n, TEXTS)];
            if (draw(&n, 1000) == 0)
                forget_slot(&n, draw(&n, 2));
            else if (text->length == DEPTH || (text->length && draw(&n, 4) == 0))
                end_text(&n, text);
            else if (text->length == 0)
                begin_text(&n, text);
            else
                take_page(&n, text);
            if (text->length == 0 || (text->length < DEPTH && draw(&n, 2)))
                take_page(&n, text);
            assert_counts(&n.pool, PAGES - naive_findable(&n) - naive_held(&n), naive_findable(&n), naive_held(&n));
        }
        int allocated = allocations_stop();
        if (allocations_can_be_counted())
            assert_int_equal(allocated, 0);
        for (int t = 0; t < TEXTS; t++)
            end_text(&n, &n.text[t]);
        assert_int_equal(kv_pool_available(&n.pool), PAGES);
        kv_pool_close(&n.pool);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_are_held_shared_and_given_back),
        cmocka_unit_test(published_pages_are_found_while_held_and_after),
        cmocka_unit_test(slots_and_salts_share_nothing),
        cmocka_unit_test(the_same_contents_are_kept_once),
        cmocka_unit_test(the_least_recently_used_goes_first),
        cmocka_unit_test(children_of_an_evicted_parent_are_not_found_and_not_lost),
        cmocka_unit_test(colliding_keys_lead_to_their_own_pages),
        cmocka_unit_test(one_other_token_is_another_page),
        cmocka_unit_test(a_forgotten_slot_is_not_found),
        cmocka_unit_test(nothing_is_findable_when_that_is_off),
        cmocka_unit_test(random_use_equals_a_naive_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
