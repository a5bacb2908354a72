/* Pages of the KV cache: counted by reference, and findable by what is in them.
 *
 * A page is free, held by one or more sequences, or findable: full, held by nobody, and kept until its room is needed;
 * of findable pages the least recently used goes first. What a full page has in it is a function of the tokens before
 * it, its own tokens and the adapters of the text, so its key is its parent (the page before it in its text), its
 * tokens and, where a text begins, its root. The hash of a key, which nobody can foresee, only leads to a page: a hit
 * compares the parent and the tokens themselves, so a collision never gives a wrong page.
 *
 * A page whose parent is gone can no longer be found and is evicted in its turn; whoever releases a text's pages from
 * its last to its first makes that rare. Nothing is allocated after the opening. One thread at a time. */
#ifndef CAMBIUM_INFER_KV_POOL_H
#define CAMBIUM_INFER_KV_POOL_H

#include "kernels/ops.h"

/* The root of texts that may share pages. `slot_key` is one number for each ordered set of generations of adapters,
 * never used again for another. Texts of different salts share nothing. */
struct kv_root {
    uint64_t slot_key, salt;
};

struct kv_page;

/* Page numbers 0 .. count-1. */
struct kv_pool {
    int64_t count;
    int64_t free_count;     /* neither held nor findable */
    int64_t findable_count; /* held by nobody */
    bool keeps_findable;
    void *memory;           /* of these: kv_pool_bytes */
    int32_t *free_list;     /* [count] a stack */
    struct kv_page *page;   /* [count] */
    int32_t *bucket;        /* [bucket_count] the first page of a chain, -1: none */
    int64_t bucket_count;   /* a power of two */
    int32_t oldest, newest; /* of the findable pages that nobody holds, by their last use; -1: none */
    uint64_t last_serial, seed;
    uint64_t (*hash)(uint64_t seed, uint64_t parent, const int32_t *tokens); /* a test may put a bad one here at once */
};

/* Bytes of the host that a pool of `count` pages takes. */
size_t kv_pool_bytes(int64_t count);
/* With keeps_findable false no page is ever findable. STATUS_MEMORY. */
int kv_pool_open(struct kv_pool *pool, int64_t count, bool keeps_findable);
void kv_pool_close(struct kv_pool *pool);
/* A page with one reference, which may have been findable; -1 when all are held. */
int32_t kv_pool_take(struct kv_pool *pool);
void kv_pool_share(struct kv_pool *pool, int32_t page);
/* Gives one reference back. With the last one a published page stays findable; another is free. */
void kv_pool_release(struct kv_pool *pool, int32_t page);

/* Makes a page findable, which the caller holds and which is full: `tokens` [KV_PAGE_TOKENS] are its own, `parent` is
 * the page before it, which the caller holds too, or -1 at the beginning of a text. Returns the page that the caller
 * holds from now on instead of `page`: another one, where one with the same contents was published before; `page` may
 * then be taken again at once, so a step takes all its pages before it publishes any. */
int32_t kv_pool_publish(struct kv_pool *pool, int32_t page, const struct kv_root *root, int32_t parent,
                        const int32_t *tokens);
/* The published page that goes on after `parent` (-1: begins a text) with these tokens, with one more reference; -1
 * when there is none. */
int32_t kv_pool_find(struct kv_pool *pool, const struct kv_root *root, int32_t parent, const int32_t *tokens);
/* Pages of this slot key are found no more; those that nobody holds are free. For a key whose texts have all ended. */
void kv_pool_forget(struct kv_pool *pool, uint64_t slot_key);

/* Pages that kv_pool_take can give: free or findable. */
int64_t kv_pool_available(const struct kv_pool *pool);
/* Pages that sequences hold. */
int64_t kv_pool_held(const struct kv_pool *pool);

#endif
