/* Pages of the KV cache, counted by reference and found by their contents.
 *
 * A page is free, held by sequences, or findable. A findable page is full and held by no sequence; it is kept until its
 * memory is needed. The least recently used findable page is evicted first.
 *
 * The contents of a full page depend on its tokens, the tokens before it and the adapters. Its key therefore consists
 * of its tokens and its parent, the page before it. The first page of a sequence has a root instead of a parent. The
 * hash of a key is seeded, so no client can predict it. A hit compares the parent and the tokens, so a collision never
 * gives a wrong page.
 *
 * A page whose parent was evicted can no longer be found and is evicted in its turn. This is rare when a sequence's
 * pages are released from the last to the first. Only opening allocates memory. One thread at a time may call. */
#pragma once

#include "kernels/ops.h"

/* The root of sequences that may share pages. `slot_key` identifies an ordered set of generations of adapters and is
 * never used for another. Sequences of different salts share nothing. */
struct kv_root {
    uint64_t slot_key, salt;
};

struct kv_page;

/* Page numbers 0 .. count-1. */
struct kv_pool {
    int64_t count;
    int64_t free_count;     /* pages that are neither held nor findable */
    int64_t findable_count; /* findable pages, which no sequence holds */
    bool keeps_findable;
    void *memory;           /* kv_pool_bytes, for the arrays below */
    int32_t *free_list;     /* [count] a stack */
    struct kv_page *page;   /* [count] */
    int32_t *bucket;        /* [bucket_count] first page of each chain; -1: none */
    int64_t bucket_count;   /* a power of two */
    int32_t oldest, newest; /* findable pages by their last use; -1: none */
    uint64_t last_serial, seed;
    uint64_t (*hash)(uint64_t seed, uint64_t parent,
                     const int32_t *tokens); /* tests may replace it right after opening */
};

/* Returns the host bytes of a pool of `count` pages. */
size_t kv_pool_bytes(int64_t count);
/* Opens a pool. With keeps_findable false, no page becomes findable. STATUS_MEMORY. */
int kv_pool_open(struct kv_pool *pool, int64_t count, bool keeps_findable);
void kv_pool_close(struct kv_pool *pool);
/* Returns a free page, else the oldest findable one, with one reference; -1 when all are held. */
int32_t kv_pool_take(struct kv_pool *pool);
/* Adds a reference to a held page. */
void kv_pool_share(struct kv_pool *pool, int32_t page);
/* Removes a reference. After the last one a published page becomes findable, another one free. */
void kv_pool_release(struct kv_pool *pool, int32_t page);

/* Publishes a full page that the caller holds. tokens[KV_PAGE_TOKENS] are the page's tokens. `parent` is the page
 * before it, which the caller holds too, or -1 for the first page. Returns the page that the caller now holds instead:
 * an equal page if one was published before, else `page`. In the first case `page` is free, so a step must take all its
 * pages before it publishes any. */
int32_t kv_pool_publish(struct kv_pool *pool, int32_t page, const struct kv_root *root, int32_t parent,
                        const int32_t *tokens);
/* Finds the published page that follows `parent` (-1: the first page) with these tokens. Adds a reference and returns
 * it; -1 when there is none. */
int32_t kv_pool_find(struct kv_pool *pool, const struct kv_root *root, int32_t parent, const int32_t *tokens);
/* Withdraws all pages of a slot key whose sequences are all closed; findable ones become free. */
void kv_pool_forget(struct kv_pool *pool, uint64_t slot_key);

/* Returns how many pages kv_pool_take can return: free and findable ones. */
int64_t kv_pool_available(const struct kv_pool *pool);
/* Returns how many pages sequences hold. */
int64_t kv_pool_held(const struct kv_pool *pool);
