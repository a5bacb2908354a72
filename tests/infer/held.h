/* Counts the memory that each thread took and nobody has given back. The linker puts the counting functions below in
 * the place of the real ones (tests/CMakeLists.txt). The function that allocates device memory tells its purpose. */
#pragma once

#include "infer/kv_pool.h"

#include "comm/comm.h"
#include "kernels/device.h"
#include "model/model.h"
#include "peft/bank.h"
#include "tensor/tensor.h"

#include <pthread.h>
#include <stdlib.h>

/* The purposes of device memory; what no function below takes is the cache's. */
enum held_part { HELD_CACHE, HELD_WEIGHTS, HELD_ADAPTERS, HELD_WORKSPACE, HELD_PARTS };
struct held {
    size_t device[HELD_PARTS], pinned, blocks; /* blocks: of the host, aligned; and a pool's */
};
static _Thread_local struct held held;
static _Thread_local enum held_part taken_for;
static _Thread_local bool opens_pool, opens_group, takes_pinned;

enum { LIVE = 4096 };
static struct {
    void *memory;
    size_t bytes, *count;
} live[LIVE];
static int live_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void take(void *memory, size_t bytes, size_t *count) {
    pthread_mutex_lock(&lock);
    if (live_count == LIVE)
        abort();
    live[live_count].memory = memory;
    live[live_count].bytes = bytes;
    live[live_count++].count = count;
    *count += bytes;
    pthread_mutex_unlock(&lock);
}

static void give_back(const void *memory) {
    pthread_mutex_lock(&lock);
    for (int i = live_count - 1; memory && i >= 0; i--)
        if (live[i].memory == memory) {
            *live[i].count -= live[i].bytes;
            live[i] = live[--live_count];
            break;
        }
    pthread_mutex_unlock(&lock);
}

#define COUNTED(result, name, ...)                                                                                     \
    result __real_##name(__VA_ARGS__);                                                                                 \
    result __wrap_##name(__VA_ARGS__);                                                                                 \
    result __wrap_##name(__VA_ARGS__)

COUNTED(int, device_alloc, struct device *device, size_t bytes, void **memory) {
    int status = __real_device_alloc(device, bytes, memory);
    if (!status)
        take(*memory, bytes, &held.device[taken_for]);
    return status;
}

COUNTED(int, device_alloc_zeroed, struct device *device, size_t bytes, void **memory) {
    int status = __real_device_alloc_zeroed(device, bytes, memory);
    if (!status)
        take(*memory, bytes, &held.device[taken_for]);
    return status;
}

COUNTED(void, device_free, struct device *device, void *memory) {
    give_back(memory);
    __real_device_free(device, memory);
}

COUNTED(int, inference_allocate, struct inference_runner *inference) {
    taken_for = HELD_WORKSPACE;
    int status = __real_inference_allocate(inference);
    taken_for = HELD_CACHE;
    return status;
}

COUNTED(int, rank_allocate_workspace, struct rank *rank) {
    taken_for = HELD_WORKSPACE;
    int status = __real_rank_allocate_workspace(rank);
    taken_for = HELD_CACHE;
    return status;
}

COUNTED(int, param_store_open, struct param_store *store, const struct param_fill *fill) {
    enum held_part before = taken_for;
    taken_for = HELD_WEIGHTS;
    int status = __real_param_store_open(store, fill);
    taken_for = before;
    return status;
}

COUNTED(int, peft_bank_allocate, struct peft_bank *bank, size_t memory) {
    taken_for = HELD_ADAPTERS;
    int status = __real_peft_bank_allocate(bank, memory);
    taken_for = HELD_CACHE;
    return status;
}

COUNTED(int, device_host_alloc, struct device *device, size_t bytes, void **memory) {
    bool is_outer = !takes_pinned; /* a backend may ask another one for the memory */
    takes_pinned = true;
    int status = __real_device_host_alloc(device, bytes, memory);
    takes_pinned = !is_outer;
    if (!status && is_outer)
        take(*memory, bytes, &held.pinned);
    return status;
}

COUNTED(void, device_host_free, struct device *device, void *memory) {
    give_back(memory);
    __real_device_host_free(device, memory);
}

COUNTED(void *, aligned_alloc, size_t alignment, size_t bytes) {
    void *memory = __real_aligned_alloc(alignment, bytes);
    if (memory && !opens_group)
        take(memory, bytes, &held.blocks);
    return memory;
}

/* The memory that ranks of a group share is the group's. */
COUNTED(int, comm_subgroup, struct comm *world, const int *ranks, int count, struct comm **group) {
    opens_group = true;
    int status = __real_comm_subgroup(world, ranks, count, group);
    opens_group = false;
    return status;
}

COUNTED(void *, calloc, size_t count, size_t bytes) {
    void *memory = __real_calloc(count, bytes);
    if (memory && opens_pool)
        take(memory, count * bytes, &held.blocks);
    return memory;
}

COUNTED(int, kv_pool_open, struct kv_pool *pool, int64_t count, bool keeps_findable) {
    opens_pool = true;
    int status = __real_kv_pool_open(pool, count, keeps_findable);
    opens_pool = false;
    return status;
}

COUNTED(void, free, void *memory) {
    give_back(memory);
    __real_free(memory);
}

/* Returns the device memory of all purposes. */
static inline size_t held_on_device(const struct held *taken) {
    size_t bytes = 0;
    for (int i = 0; i < HELD_PARTS; i++)
        bytes += taken->device[i];
    return bytes;
}
