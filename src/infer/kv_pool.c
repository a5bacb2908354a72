/* Pages of the KV cache: a stack of free pages, a hash table of published ones, and a list of findable ones. */
#include "infer/kv_pool.h"

#include <sys/random.h>

enum { NONE = -1 };

/* A parent is identified by its serial, not only by its number: a page that is published again is another parent. */
struct kv_page {
    int32_t references;
    int32_t parent;  /* of a published page: NONE at the beginning of a text */
    uint64_t serial; /* of its publication; 0: not published */
    uint64_t parent_serial;
    uint64_t hash;
    struct kv_root root;
    int32_t next;         /* in its bucket */
    int32_t older, newer; /* findable and held by nobody */
    int32_t tokens[KV_PAGE_TOKENS];
};

static uint64_t hash_of(uint64_t seed, uint64_t parent, const int32_t *tokens) {
    uint64_t hash = parent;
    for (int i = 0; i < KV_PAGE_TOKENS; i += 2) {
        struct philox r =
            philox(seed, (uint32_t)hash, (uint32_t)(hash >> 32), (uint32_t)tokens[i], (uint32_t)tokens[i + 1]);
        hash = (uint64_t)r.word[1] << 32 | r.word[0];
    }
    return hash;
}

static int64_t count_buckets(int64_t pages) {
    int64_t buckets = 1;
    while (buckets < 2 * pages)
        buckets *= 2;
    return buckets;
}

static void place(struct kv_pool *pool, struct arena *arena) {
    pool->free_list = arena_take(arena, (size_t)pool->count * sizeof *pool->free_list);
    pool->page = arena_take(arena, (size_t)pool->count * sizeof *pool->page);
    pool->bucket = arena_take(arena, (size_t)pool->bucket_count * sizeof *pool->bucket);
}

size_t kv_pool_bytes(int64_t count) {
    struct kv_pool pool = {.count = count, .bucket_count = count_buckets(count)};
    struct arena arena = ARENA_PLAN;
    place(&pool, &arena);
    return arena.used;
}

int kv_pool_open(struct kv_pool *pool, int64_t count, bool keeps_findable) {
    *pool = (struct kv_pool){.count = count,
                             .free_count = count,
                             .keeps_findable = keeps_findable,
                             .oldest = NONE,
                             .newest = NONE,
                             .hash = hash_of};
    pool->bucket_count = count_buckets(count);
    size_t bytes = kv_pool_bytes(count);
    pool->memory = calloc(1, bytes); /* pages that were never used take no memory */
    TRY(status_allocated(pool->memory));
    struct arena arena = arena_over(pool->memory, bytes);
    place(pool, &arena);
    if (getrandom(&pool->seed, sizeof pool->seed, GRND_NONBLOCK) < 0)
        pool->seed = (uint64_t)(clock_wall_seconds() * 1e6); /* no random bytes early in a boot: use the time */
    for (int64_t i = 0; i < count; i++)
        pool->free_list[i] = (int32_t)(count - 1 - i); /* low numbers are taken first */
    for (int64_t i = 0; i < pool->bucket_count; i++)
        pool->bucket[i] = NONE;
    return STATUS_OK;
}

void kv_pool_close(struct kv_pool *pool) {
    free(pool->memory);
    *pool = (struct kv_pool){0};
}

static int32_t *bucket_of(struct kv_pool *pool, uint64_t hash) {
    return &pool->bucket[hash & (uint64_t)(pool->bucket_count - 1)];
}

/* ---- findable pages ---- */

static void keep(struct kv_pool *pool, int32_t number) {
    struct kv_page *page = &pool->page[number];
    page->older = pool->newest;
    page->newer = NONE;
    *(pool->newest == NONE ? &pool->oldest : &pool->page[pool->newest].newer) = number;
    pool->newest = number;
    pool->findable_count++;
}

static void keep_no_more(struct kv_pool *pool, int32_t number) {
    struct kv_page *page = &pool->page[number];
    *(page->older == NONE ? &pool->oldest : &pool->page[page->older].newer) = page->newer;
    *(page->newer == NONE ? &pool->newest : &pool->page[page->newer].older) = page->older;
    pool->findable_count--;
}

static void unpublish(struct kv_pool *pool, int32_t number) {
    struct kv_page *page = &pool->page[number];
    int32_t *link = bucket_of(pool, page->hash);
    while (*link != number)
        link = &pool->page[*link].next;
    *link = page->next;
    page->serial = 0;
}

/* ---- references ---- */

int32_t kv_pool_take(struct kv_pool *pool) {
    int32_t number = pool->oldest;
    if (pool->free_count > 0)
        number = pool->free_list[--pool->free_count];
    else if (number != NONE) {
        keep_no_more(pool, number);
        unpublish(pool, number);
    } else
        return NONE;
    pool->page[number].references = 1;
    return number;
}

void kv_pool_release(struct kv_pool *pool, int32_t page) {
    if (--pool->page[page].references > 0)
        return;
    if (pool->page[page].serial)
        keep(pool, page);
    else
        pool->free_list[pool->free_count++] = page;
}

/* ---- contents ---- */

/* The hash of a page starts with that of its parent, or of the root. */
static uint64_t beginning_of(struct kv_pool *pool, const struct kv_root *root, int32_t parent) {
    if (parent != NONE)
        return pool->page[parent].hash;
    struct philox r = philox(pool->seed, (uint32_t)root->slot_key, (uint32_t)(root->slot_key >> 32),
                             (uint32_t)root->salt, (uint32_t)(root->salt >> 32));
    return (uint64_t)r.word[1] << 32 | r.word[0];
}

static bool follows(const struct kv_pool *pool, const struct kv_page *page, const struct kv_root *root,
                    int32_t parent) {
    if (page->parent != parent)
        return false;
    if (parent != NONE)
        return page->parent_serial == pool->page[parent].serial;
    return page->root.slot_key == root->slot_key && page->root.salt == root->salt;
}

static int32_t look_up(struct kv_pool *pool, uint64_t hash, const struct kv_root *root, int32_t parent,
                       const int32_t *tokens) {
    int32_t number = *bucket_of(pool, hash);
    for (; number != NONE; number = pool->page[number].next) {
        const struct kv_page *page = &pool->page[number];
        if (page->hash == hash && follows(pool, page, root, parent) &&
            !memcmp(page->tokens, tokens, sizeof page->tokens))
            return number;
    }
    return NONE;
}

static bool is_published_or_none(const struct kv_pool *pool, int32_t page) {
    return page == NONE || pool->page[page].serial;
}

int32_t kv_pool_find(struct kv_pool *pool, const struct kv_root *root, int32_t parent, const int32_t *tokens) {
    if (!pool->keeps_findable || !is_published_or_none(pool, parent))
        return NONE;
    uint64_t hash = pool->hash(pool->seed, beginning_of(pool, root, parent), tokens);
    int32_t number = look_up(pool, hash, root, parent, tokens);
    if (number != NONE && pool->page[number].references++ == 0)
        keep_no_more(pool, number);
    return number;
}

int32_t kv_pool_publish(struct kv_pool *pool, int32_t number, const struct kv_root *root, int32_t parent,
                        const int32_t *tokens) {
    struct kv_page *page = &pool->page[number];
    if (!pool->keeps_findable || !is_published_or_none(pool, parent) || page->serial)
        return number;
    int32_t other = kv_pool_find(pool, root, parent, tokens);
    if (other != NONE) {
        kv_pool_release(pool, number);
        return other;
    }
    page->serial = ++pool->last_serial;
    page->parent = parent;
    page->parent_serial = parent == NONE ? 0 : pool->page[parent].serial;
    page->root = *root;
    page->hash = pool->hash(pool->seed, beginning_of(pool, root, parent), tokens);
    memcpy(page->tokens, tokens, sizeof page->tokens);
    int32_t *bucket = bucket_of(pool, page->hash);
    page->next = *bucket;
    *bucket = number;
    return number;
}

void kv_pool_forget(struct kv_pool *pool, uint64_t slot_key) {
    for (int32_t number = 0; number < pool->count; number++) {
        struct kv_page *page = &pool->page[number];
        if (!page->serial || page->root.slot_key != slot_key)
            continue;
        unpublish(pool, number);
        if (page->references == 0) {
            keep_no_more(pool, number);
            pool->free_list[pool->free_count++] = number;
        }
    }
}

int64_t kv_pool_available(const struct kv_pool *pool) {
    return pool->free_count + pool->findable_count;
}
