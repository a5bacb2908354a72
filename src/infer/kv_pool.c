/* Pages of the KV cache, counted by reference. */
#include "infer/infer.h"

#include <stdlib.h>

int kv_pool_open(struct kv_pool *pool, int64_t count) {
    *pool = (struct kv_pool){.count = count, .free_count = count};
    pool->free_list = malloc((size_t)count * sizeof *pool->free_list);
    pool->references = calloc((size_t)count, sizeof *pool->references);
    if (!pool->free_list || !pool->references) {
        kv_pool_close(pool);
        return status_fail(STATUS_MEMORY, "out of memory");
    }
    for (int64_t i = 0; i < count; i++)
        pool->free_list[i] = (int32_t)(count - 1 - i); /* low numbers leave first */
    return STATUS_OK;
}

void kv_pool_close(struct kv_pool *pool) {
    free(pool->free_list);
    free(pool->references);
    *pool = (struct kv_pool){0};
}

int32_t kv_pool_take(struct kv_pool *pool) {
    if (pool->free_count == 0)
        return -1;
    int32_t page = pool->free_list[--pool->free_count];
    pool->references[page] = 1;
    return page;
}

void kv_pool_share(struct kv_pool *pool, int32_t page) {
    pool->references[page]++;
}

void kv_pool_release(struct kv_pool *pool, int32_t page) {
    if (--pool->references[page] == 0)
        pool->free_list[pool->free_count++] = page;
}
