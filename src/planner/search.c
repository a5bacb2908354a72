/* Bounds first: every candidate gets a bound of its time, and all are tried in this order. A candidate whose bound
 * exceeds enough rows that fit ends the search. */
#include "planner/search.h"

#include "planner/run_file.h"
#include "planner/space.h"
#include "train/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const search_features[] = {"fp8", "fsdp", NULL};

/* The work of units that many candidates share. */
struct shared_work {
    int tensor, micro_batch;
    bool is_sequence, is_fp8;
    enum space_recompute selective; /* SPACE_KEEP for all that are not selective */
    struct cost_work work;
};

struct searching {
    const struct search *search;
    struct search_result *result;
    struct candidate *candidates;
    int count, capacity;
    struct shared_work *works;
    int work_count;
    double limit;              /* bytes of a device */
    struct candidate smallest; /* of those without memory, by the bound */
    double smallest_bytes;
};

/* ---- candidates ---- */

static int resolve(const struct searching *s, const struct candidate *candidate, struct train_run *run) {
    struct run_config config = s->search->base;
    if (s->search->space == SEARCH_RUN)
        space_apply_also(candidate, &config);
    else
        space_apply(candidate, &config);
    int status = run_file_resolve(&config, run);
    run->tuner = s->search->tuner;
    return status;
}

static int find_work(struct searching *s, const struct candidate *candidate, const struct train_run *run,
                     const struct cost_work **work) {
    bool is_selective = candidate->recompute >= SPACE_NORMS && candidate->recompute <= SPACE_SELECTIVE;
    struct shared_work wanted = {.tensor = candidate->tensor,
                                 .micro_batch = candidate->micro_batch,
                                 .is_sequence = candidate->is_sequence,
                                 .is_fp8 = candidate->is_fp8,
                                 .selective = is_selective ? candidate->recompute : SPACE_KEEP};
    for (int i = 0; i < s->work_count; i++)
        if (s->works[i].tensor == wanted.tensor && s->works[i].micro_batch == wanted.micro_batch &&
            s->works[i].is_sequence == wanted.is_sequence && s->works[i].selective == wanted.selective &&
            s->works[i].is_fp8 == wanted.is_fp8) {
            *work = &s->works[i].work;
            return STATUS_OK;
        }
    struct shared_work *works = realloc(s->works, (size_t)(s->work_count + 1) * sizeof *works);
    if (!works)
        return status_fail(STATUS_MEMORY, "out of memory");
    s->works = works;
    works[s->work_count] = wanted;
    int status = cost_work_make(run, s->search->cluster, &works[s->work_count].work);
    s->work_count += !status;
    *work = status ? NULL : &works[s->work_count - 1].work;
    return status;
}

/* Fills a candidate's run, grid and schedule into *row, and finds its work. */
static int open_candidate(struct searching *s, const struct candidate *candidate, struct search_row *row,
                          const struct cost_work **work) {
    int status = resolve(s, candidate, &row->run);
    if (!status)
        status = find_work(s, candidate, &row->run, work);
    return status ? status : train_plan_grid(&row->run, s->result->ranks, &row->grid, &row->shape);
}

static int push(struct searching *s, const struct candidate *candidate) {
    if (s->count == s->capacity) {
        int capacity = s->capacity ? 2 * s->capacity : 256;
        struct candidate *more = realloc(s->candidates, (size_t)capacity * sizeof *more);
        if (!more)
            return status_fail(STATUS_MEMORY, "out of memory");
        s->candidates = more;
        s->capacity = capacity;
    }
    s->candidates[s->count++] = *candidate;
    return STATUS_OK;
}

/* Counts a candidate without memory, and remembers the one that misses least. */
static void count_no_memory(struct searching *s, const struct candidate *candidate, double bytes) {
    s->result->counts.no_memory++;
    if (s->smallest_bytes == 0 || bytes < s->smallest_bytes) {
        s->smallest = *candidate;
        s->smallest_bytes = bytes;
    }
}

/* Returns bytes that weights, gradients and optimizer of the first stage take at least, if a work of as many tensor
 * ranks tells the size of a layer; else 0. */
static double least_state(const struct searching *s, const struct candidate *candidate, const struct train_run *run) {
    if (s->search->space == SEARCH_RUN || candidate->last)
        return 0;
    const struct cost_work *work = NULL;
    for (int i = 0; i < s->work_count && !work; i++)
        work = s->works[i].tensor == candidate->tensor ? &s->works[i].work : NULL;
    if (!work)
        return 0;
    int data = s->result->ranks / (candidate->tensor * candidate->pipeline);
    double layers = (double)(run->config.model.num_layers / candidate->pipeline);
    return layers * memory_layer_state(work, candidate->sharding, data);
}

/* Takes a candidate of the space: counts it if it is impossible or exceeds the memory by the quick bound, and else
 * keeps it with its bound of time. */
static int consider(void *context, const struct candidate *candidate) {
    struct searching *s = context;
    struct train_run run;
    const struct cost_work *work;
    struct rank_grid grid;
    struct pipeline_shape shape;
    struct candidate kept = *candidate;
    int status = resolve(s, candidate, &run);
    if (!status && s->search->space != SEARCH_RUN && !space_has_fixed(s->search, &run.config))
        return STATUS_OK;
    s->result->counts.all++;
    if (status == STATUS_USAGE || (!status && !train_plan_is_possible(&run, s->result->ranks))) {
        s->result->counts.refused++;
        return STATUS_OK;
    }
    double state = status ? 0 : least_state(s, candidate, &run);
    if (state > s->limit) {
        count_no_memory(s, candidate, state);
        return STATUS_OK;
    }
    if (!status)
        status = find_work(s, candidate, &run, &work);
    if (status == STATUS_USAGE && candidate->is_fp8) { /* its linears are no multiples of 16 */
        s->result->counts.refused++;
        return STATUS_OK;
    }
    if (!status)
        status = train_plan_grid(&run, s->result->ranks, &grid, &shape);
    if (status)
        return status;
    double bytes = s->search->cluster->train == CLUSTER_TRAINS_CAMBIUM ? memory_least(&run, &grid, &shape, work) : 0;
    if (bytes > s->limit) {
        count_no_memory(s, candidate, bytes);
        return STATUS_OK;
    }
    status = cost_least(&run, s->result->ranks, work, s->search->cluster, &kept.least);
    return status ? status : push(s, &kept);
}

static int by_least(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    return x->least < y->least ? -1 : x->least > y->least;
}

/* ---- rows ---- */

static double slowest(const struct searching *s) {
    const struct search_result *result = s->result;
    return result->counts.listed < s->search->top ? INFINITY : result->rows[result->counts.listed - 1].step.seconds;
}

/* Inserts a row in the order of time. The slowest one gives way when there are enough. */
static void insert(struct searching *s, const struct search_row *row) {
    struct search_result *result = s->result;
    bool is_full = result->counts.listed == s->search->top;
    result->counts.slower += is_full;
    int64_t at = result->counts.listed - is_full;
    for (; at > 0 && result->rows[at - 1].step.seconds > row->step.seconds; at--)
        result->rows[at] = result->rows[at - 1];
    result->rows[at] = *row;
    result->counts.listed += !is_full;
}

/* Finds what a feature of a row saves: plans the same layout without it. */
static int find_saving(struct searching *s, struct candidate without, const struct search_row *row,
                       struct search_saving *saving) {
    const struct cost_work *work;
    struct search_row other = {0};
    int status = open_candidate(s, &without, &other, &work);
    if (status == STATUS_USAGE)
        return STATUS_OK;
    if (!status)
        status = cost_step(&other.run, s->result->ranks, work, s->search->cluster, &other.step, NULL);
    if (!status)
        status = memory_find(&other.run, s->result->ranks, work, s->search->cluster, 0, &other.memory);
    if (!status)
        *saving = (struct search_saving){true, other.step.seconds - row->step.seconds,
                                         (double)other.memory.device - (double)row->memory.device};
    return status;
}

static int find_savings(struct searching *s, const struct candidate *candidate, struct search_row *row) {
    const struct search *search = s->search;
    struct candidate without = *candidate;
    int status = STATUS_OK;
    if (candidate->is_fp8) {
        without.is_fp8 = false;
        status = find_saving(s, without, row, &row->saved[SEARCH_FP8]);
    }
    if (!status && search->also_fsdp && candidate->sharding == SHARDING_OPTIM_GRADS_PARAMS) {
        without = *candidate;
        without.sharding = run_sharding(&search->base);
        status = find_saving(s, without, row, &row->saved[SEARCH_FSDP]);
    }
    return status;
}

static int try_candidate(struct searching *s, const struct candidate *candidate) {
    struct search_result *result = s->result;
    const struct cost_work *work;
    struct search_row row = {0};
    int status = open_candidate(s, candidate, &row, &work);
    if (!status)
        status = cost_step(&row.run, result->ranks, work, s->search->cluster, &row.step, NULL);
    if (!status && row.step.seconds >= slowest(s)) {
        result->counts.slower++;
        return STATUS_OK;
    }
    if (!status)
        status = memory_find(&row.run, result->ranks, work, s->search->cluster, s->limit, &row.memory);
    if (!status && (double)row.memory.device > s->limit) {
        count_no_memory(s, candidate, (double)row.memory.device);
        return STATUS_OK;
    }
    if (!status)
        status = find_savings(s, candidate, &row);
    if (!status)
        insert(s, &row);
    return status;
}

/* Puts rows within 1% of the fastest of them in the order of their memory. */
static void order_ties(struct search_result *result) {
    for (int64_t first = 0, end; first < result->counts.listed; first = end) {
        for (end = first + 1;
             end < result->counts.listed && result->rows[end].step.seconds <= 1.01 * result->rows[first].step.seconds;)
            end++;
        for (int64_t i = first + 1; i < end; i++)
            for (int64_t j = i; j > first && result->rows[j].memory.device < result->rows[j - 1].memory.device; j--) {
                struct search_row row = result->rows[j];
                result->rows[j] = result->rows[j - 1];
                result->rows[j - 1] = row;
            }
    }
}

/* Divides the times of the rows by cause. */
static int explain(struct searching *s) {
    int status = STATUS_OK;
    for (int64_t i = 0; i < s->result->counts.listed && !status; i++) {
        struct search_row *row = &s->result->rows[i];
        struct walk walk = {0};
        struct cost_work work;
        status = cost_work_make(&row->run, s->search->cluster, &work);
        if (status)
            return status;
        status = cost_step(&row->run, s->result->ranks, &work, s->search->cluster, &row->step, &walk);
        cost_work_free(&work);
        walk_free(&walk);
    }
    return status;
}

/* Describes the candidate that misses the memory least. */
static int find_nearest(struct searching *s) {
    struct search_row *row = &s->result->nearest;
    const struct cost_work *work;
    int status = open_candidate(s, &s->smallest, row, &work);
    if (!status)
        status = memory_find(&row->run, s->result->ranks, work, s->search->cluster, 0, &row->memory);
    s->result->has_nearest = !status;
    return status;
}

static int find_point(struct searching *s, const struct candidate *candidate, struct search_point *point) {
    const struct cost_work *work;
    struct search_row row = {0};
    int status = open_candidate(s, candidate, &row, &work);
    if (!status)
        status = cost_step(&row.run, s->result->ranks, work, s->search->cluster, &row.step, NULL);
    if (!status)
        status = memory_find(&row.run, s->result->ranks, work, s->search->cluster, 0, &row.memory);
    if (!status)
        *point = search_point_of(&row);
    return status;
}

/* Plans some layouts in the order of their bounds, evenly. */
static int find_points(struct searching *s) {
    struct search_result *result = s->result;
    int wanted = s->search->points < s->count ? s->search->points : s->count, status = STATUS_OK;
    result->points = wanted ? calloc((size_t)wanted, sizeof *result->points) : NULL;
    if (wanted && !result->points)
        return status_fail(STATUS_MEMORY, "out of memory");
    for (int i = 0; i < wanted && !status; i++) {
        status = find_point(s, &s->candidates[(int64_t)i * s->count / wanted], &result->points[i]);
        result->point_count += !status;
    }
    return status;
}

static int search_all(struct searching *s) {
    struct search_result *result = s->result;
    int status = space_list(s->search, result->ranks, consider, s);
    if (!status && s->count > 0)
        qsort(s->candidates, (size_t)s->count, sizeof *s->candidates, by_least);
    for (int i = 0; i < s->count && !status; i++) {
        if (s->candidates[i].least >= slowest(s)) {
            result->counts.slower += s->count - i;
            break;
        }
        status = try_candidate(s, &s->candidates[i]);
    }
    order_ties(result);
    if (!status)
        status = explain(s);
    if (!status && !result->counts.listed && result->counts.no_memory)
        status = find_nearest(s);
    return status ? status : find_points(s);
}

int search_run(const struct search *search, int ranks, struct search_result *result) {
    double start = clock_seconds();
    struct searching s = {
        .search = search, .result = result, .limit = search->cluster->memory.value * search->memory_share};
    *result = (struct search_result){.ranks = ranks, .rows = calloc((size_t)search->top, sizeof *result->rows)};
    int status = result->rows ? search_all(&s) : status_fail(STATUS_MEMORY, "out of memory");
    for (int i = 0; i < s.work_count; i++)
        cost_work_free(&s.works[i].work);
    free(s.works);
    free(s.candidates);
    result->seconds = clock_seconds() - start;
    return status;
}

int search_find_fit(const struct search *search, struct search_result *result) {
    enum { MOST_RANKS = 1 << 20, DOUBLINGS = 8 };
    struct search wider = *search;
    bool is_all = search->space == SEARCH_ALL && !search->fixed_count;
    int64_t ranks = is_all ? 2 * (int64_t)result->ranks : result->ranks;
    int status = STATUS_OK;
    wider.space = SEARCH_ALL;
    wider.fixed_count = 0;
    wider.top = 1;
    wider.points = 0;
    for (int i = 0; i < DOUBLINGS && ranks <= MOST_RANKS && !result->fit_ranks && !status; i++, ranks *= 2) {
        struct search_result found;
        status = search_run(&wider, (int)ranks, &found);
        if (!status && found.counts.listed) {
            result->fit_ranks = (int)ranks;
            result->fit = found.rows[0];
        }
        search_free(&found);
    }
    return status;
}

void search_free(struct search_result *result) {
    free(result->rows);
    free(result->points);
    *result = (struct search_result){0};
}
