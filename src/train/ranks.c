/* A run on several ranks: the grid that its configuration asks for, which ranks share a machine and its cores, and what
 * all of them agree on. */
#include "train-internal.h"

#include "parallel/layout.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int train_grid(const struct run_config *run, int ranks, struct rank_grid *grid) {
    *grid = (struct rank_grid){.tensor = (int)run->parallel.tensor_model_parallel_size,
                               .context = (int)run->parallel.context_parallel_size,
                               .expert = (int)run->parallel.expert_model_parallel_size,
                               .data = 1,
                               .pipeline = (int)run->parallel.pipeline_model_parallel_size};
    int status = rank_grid_fill(grid, ranks);
    if (status)
        return status;
    struct pipeline_split split = train_pipeline_split(run, grid);
    struct parallel_layout layout = {.grid = *grid,
                                     .chunks = split.chunks,
                                     .first = split.first,
                                     .last = split.last,
                                     .sequence_parallel = run->parallel.sequence_parallel,
                                     .layers = run->model.num_layers,
                                     .heads = run->model.num_attention_heads,
                                     .query_groups = run->model.num_query_groups,
                                     .ffn_hidden = run->model.ffn_hidden_size,
                                     .seq_length = run->data.seq_length,
                                     .micro_batch = run->train.micro_batch_size,
                                     .global_batch = run->train.global_batch_size};
    status = parallel_layout_check(&layout);
    struct pipeline_shape shape = train_pipeline_shape(run, grid);
    return status ? status : pipeline_shape_check(&shape);
}

/* ---- who shares what ---- */

enum { HOST_BYTES = 64, CORES_BYTES = 168 };

/* What a rank tells the others of where it runs; ranks with equal cores of one host share them. */
struct whereabouts {
    char host[HOST_BYTES], boot[HOST_BYTES], cores[CORES_BYTES];
    int64_t core_count, process;
};

/* "0-3,8": longer lists end in "...", and then only the count tells them apart. */
static void list_cores(const cpu_set_t *set, char out[CORES_BYTES]) {
    size_t used = 0;
    for (int first = 0; first < CPU_SETSIZE; first++) {
        int last = first;
        if (!CPU_ISSET(first, set))
            continue;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, set))
            last++;
        if (used > CORES_BYTES - 24) {
            snprintf(out + used, CORES_BYTES - used, ",...");
            return;
        }
        used += (size_t)snprintf(out + used, CORES_BYTES - used, last > first ? "%s%d-%d" : "%s%d", used ? "," : "",
                                 first, last);
        first = last;
    }
}

static struct whereabouts find_whereabouts(void) {
    struct whereabouts own = {.process = getpid(), .core_count = 1};
    cpu_set_t set;
    gethostname(own.host, sizeof own.host - 1);
    FILE *boot = fopen("/proc/sys/kernel/random/boot_id", "re"); /* hosts may have the same name */
    if (boot) {
        if (!fgets(own.boot, sizeof own.boot, boot))
            own.boot[0] = 0;
        fclose(boot);
    }
    if (!sched_getaffinity(0, sizeof set, &set)) {
        own.core_count = CPU_COUNT(&set);
        list_cores(&set, own.cores);
    }
    return own;
}

static bool same_host(const struct whereabouts *a, const struct whereabouts *b) {
    return !strcmp(a->host, b->host) && !strcmp(a->boot, b->boot);
}

static bool same_cores(const struct whereabouts *a, const struct whereabouts *b) {
    return same_host(a, b) && a->core_count == b->core_count && !strcmp(a->cores, b->cores);
}

static int threads_of(const struct whereabouts *all, int ranks, int rank) {
    int sharing = 0;
    for (int r = 0; r < ranks; r++)
        sharing += same_cores(&all[r], &all[rank]);
    return all[rank].core_count > sharing ? (int)all[rank].core_count / sharing : 1;
}

/* A line for each set of cores. */
static void tell(const struct whereabouts *all, int ranks, const struct rank_grid *grid) {
    log_info("%d ranks: tensor %d, data %d, pipeline %d", ranks, grid->tensor, grid->data, grid->pipeline);
    for (int first = 0; first < ranks; first++) {
        struct strbuf text = STRBUF_INIT;
        int count = 0;
        bool is_told = false;
        for (int r = 0; r < ranks; r++) {
            if (!same_cores(&all[r], &all[first]))
                continue;
            is_told = is_told || r < first;
            strbuf_format(&text, "%s%d", count++ ? ", " : "", r);
        }
        if (!is_told && !strbuf_status(&text))
            log_info("rank%s %s on %s: %d thread%s%s, cores %s", count > 1 ? "s" : "", strbuf_text(&text),
                     all[first].host, threads_of(all, ranks, first), threads_of(all, ranks, first) > 1 ? "s" : "",
                     count > 1 ? " each" : "", all[first].cores);
        strbuf_free(&text);
    }
}

int train_find_site(struct comm *world, const struct rank_grid *grid, struct train_site *site) {
    struct whereabouts *all = calloc((size_t)world->size, sizeof *all), own = find_whereabouts();
    if (!all)
        return status_fail(STATUS_MEMORY, "out of memory");
    struct comm_data data = {.send = &own, .receive = all, .count = sizeof own / sizeof(int64_t), .dtype = DTYPE_I64};
    int status = comm_all_gather(world, NULL, &data);
    if (!status) {
        *site = (struct train_site){.threads = threads_of(all, world->size, world->rank)};
        int first_on_host = world->rank, first_in_process = world->rank;
        for (int r = world->size - 1; r >= 0; r--) {
            if (!same_host(&all[r], &own))
                continue;
            first_on_host = r;
            if (all[r].process != own.process)
                continue;
            first_in_process = r;
            site->in_process++;
        }
        site->is_first_on_host = first_on_host == world->rank;
        site->is_first_in_process = first_in_process == world->rank;
        if (world->size > 1)
            tell(all, world->size, grid);
    }
    free(all);
    return status;
}

/* ---- agreement ---- */

int train_agree_stop(struct trainer *trainer) {
    int64_t wish = stop_requested();
    struct comm_data data = {.send = &wish, .receive = &wish, .count = 1, .dtype = DTYPE_I64};
    int status = comm_all_reduce(trainer->world, NULL, &data, COMM_MAX);
    trainer->stop = (int)wish;
    return status;
}

int train_sum_over_data(struct trainer *trainer, void *value, enum dtype dtype) {
    struct comm_data data = {.send = value, .receive = value, .count = 1, .dtype = dtype};
    return comm_all_reduce(trainer->rank.data, NULL, &data, COMM_SUM);
}
