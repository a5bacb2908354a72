/* The memory of a late device: poisoned when it is new, and closed to the whole process except while work runs. */
#include "late/late-internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A failure would show anyway: work on closed memory crashes. */
static void protect_block(const struct late_block *block, int protection) {
    int refused = mprotect(block->start, block->bytes, protection);
    assert(!refused);
    (void)refused;
}

void late_protect(struct late_device *device, int protection) {
    for (const struct late_block *block = device->blocks; block; block = block->next)
        protect_block(block, protection);
}

int late_alloc(struct device *device, size_t bytes, bool is_zeroed, void **memory) {
    struct late_device *own = late(device);
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page) / page * page;
    struct late_block *block = malloc(sizeof *block);
    void *start = block && whole > bytes ? mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                                         : MAP_FAILED;
    *memory = NULL;
    if (start == MAP_FAILED) {
        free(block);
        return status_fail(STATUS_MEMORY, "cannot allocate %.1f MB", (double)bytes / 1e6);
    }
    madvise(start, whole, MADV_HUGEPAGE); /* makes opening and closing much faster; it may fail */
    if (!is_zeroed)
        memset(start, LATE_POISON, whole);
    pthread_mutex_lock(&own->lock);
    *block = (struct late_block){.start = start, .bytes = whole, .requested = bytes, .next = own->blocks};
    own->blocks = block;
    own->counts.allocated += (int64_t)bytes;
    if (!own->is_working)
        protect_block(block, PROT_NONE);
    pthread_mutex_unlock(&own->lock);
    *memory = start;
    return STATUS_OK;
}

void late_free(struct device *device, void *memory) {
    struct late_device *own = late(device);
    pthread_mutex_lock(&own->lock);
    struct late_block **at = &own->blocks;
    while (*at && (*at)->start != memory)
        at = &(*at)->next;
    struct late_block *block = *at;
    assert(block); /* neither foreign nor freed twice */
    *at = block->next;
    own->counts.allocated -= (int64_t)block->requested;
    pthread_mutex_unlock(&own->lock);
    munmap(block->start, block->bytes);
    free(block);
}

bool late_owns(struct late_device *own, const void *pointer) {
    const char *at = pointer;
    bool is_ours = false;
    pthread_mutex_lock(&own->lock);
    for (const struct late_block *block = own->blocks; block && !is_ours; block = block->next)
        is_ours = at >= block->start && at < block->start + block->bytes;
    pthread_mutex_unlock(&own->lock);
    return is_ours;
}
