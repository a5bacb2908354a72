/* Plans the memory of a job's ranks, and shrinks what may shrink. */
#include "memory.h"

#include "base/smaller.h"

/* A cache that nobody asked for keeps room for this many tokens. The default room for adapters, and for the sequences
 * of a job, is no larger than the weights, or than this where a model is small. Only a server, which touches its cache
 * at once, takes what there is. */
enum { LEAST_TOKENS = 512, ROOM_OF_SMALL = 512 << 20 };

/* Sums up what the ranks of this host take; `of_device`: the host's memory is the device's. */
static int sum(struct comm *world, bool of_device, struct job_memory *memory) {
    const struct engine_plan *plan = &memory->plan;
    int64_t bytes = (int64_t)(engine_plan_host_bytes(plan) + plan->program + memory->beside +
                              (of_device ? engine_plan_device_bytes(plan) : 0));
    memory->program = memory->site.is_first_in_process ? memory_of_program((size_t)bytes) : 0;
    bytes += (int64_t)memory->program;
    int status = rank_site_sum(world, &memory->site, &bytes, 1);
    memory->planned = (size_t)bytes;
    return status;
}

static int plan(struct comm *world, const struct engine_options *options, struct job_memory *memory) {
    int status = comm_agree(world, engine_plan_make(options, world->rank, &memory->plan));
    return status ? status : sum(world, device_uses_host_memory(options->device), memory);
}

/* Finds the room of each rank for cache and adapters, and what they want: the same at all ranks. */
static int find_room(struct comm *world, const struct engine_options *options, const struct job_memory *memory,
                     int64_t *room, int64_t *cache, int64_t *adapters) {
    const struct memory_limit limit = memory_limit_find("");
    const struct engine_plan *plan = &memory->plan;
    const size_t most_of_it = limit.bytes / 20 * 19; /* the kernel holds memory for the process, too */
    size_t usable = limit.available < most_of_it ? limit.available : most_of_it;
    usable = usable < INT64_MAX / 2 ? usable : INT64_MAX / 2;
    int64_t sums[] = {(int64_t)(plan->cache + options->adapter_memory), 1};
    TRY(rank_site_sum(world, &memory->site, sums, 2));
    int64_t room_of_weights = larger((int64_t)plan->weights, ROOM_OF_SMALL);
    int64_t words[] = {-((int64_t)usable - (int64_t)memory->planned + sums[0]) / sums[1], (int64_t)plan->cache,
                       (int64_t)options->adapter_memory};
    if (!memory->cache_is_given && options->cache_bytes && !options->touches_cache)
        words[1] =
            smaller(words[1], larger(room_of_weights, (int64_t)plan->cache / plan->pages * plan->sequence_pages));
    if (!memory->adapters_are_given)
        words[2] = smaller(words[2], room_of_weights);
    struct comm_data data = {.send = words, .receive = words, .count = 3, .dtype = DTYPE_I64};
    int status = comm_all_reduce(world, &data, COMM_MAX);
    *room = -words[0];
    *cache = words[1];
    *adapters = words[2];
    return status;
}

int job_memory_plan(struct comm *world, struct engine_options *options, struct job_memory *memory) {
    int64_t room = 0, cache = 0, adapters = 0;
    int status = plan(world, options, memory);
    if (status || !device_uses_host_memory(options->device))
        return status;
    TRY(find_room(world, options, memory, &room, &cache, &adapters));
    int64_t page = (int64_t)memory->plan.cache / memory->plan.pages;
    int64_t floor = page * smaller(LEAST_TOKENS / KV_PAGE_TOKENS, memory->plan.pages);
    if (cache + adapters > room && !memory->adapters_are_given)
        adapters = smaller(adapters, larger(larger(room - cache, memory->cache_is_given ? 1 : room / 4), 1));
    if (cache + adapters > room && !memory->cache_is_given)
        cache = larger(room - adapters, floor);
    bool is_smaller = cache < (int64_t)memory->plan.cache || adapters < (int64_t)options->adapter_memory;
    if (!is_smaller)
        return STATUS_OK;
    if (cache < (int64_t)memory->plan.cache)
        options->cache_bytes = (size_t)cache;
    options->adapter_memory = (size_t)adapters;
    status = plan(world, options, memory);
    if (!status && cache + adapters == room) /* more than that is refused by job_memory_check */
        log_warning("memory is short: keys and values get %.0f MiB (%lld tokens), adapters %.0f",
                    (double)memory->plan.cache / 1048576, (long long)memory->plan.pages * KV_PAGE_TOKENS,
                    (double)adapters / 1048576);
    return status;
}

int job_memory_check(struct comm *world, const struct job_memory *memory) {
    const struct memory_limit limit = memory_limit_find("");
    return comm_agree(world, memory_check(memory->planned, &limit, memory->help));
}

int job_memory_take(struct comm *world, const struct engine *engine, struct job_memory *memory) {
    engine_read_plan(engine, &memory->plan);
    return sum(world, false, memory);
}

int job_memory_tell(struct comm *world, const struct job_memory *memory) {
    return rank_site_tell_memory(world, &memory->site, memory->planned);
}
