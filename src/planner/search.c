/* Bounds first: every candidate gets a bound of its time, and all are tried in this order. A candidate whose bound
 * exceeds enough rows that fit ends the search. */
#include "planner/search.h"

#include "planner/run_file.h"
#include "planner/space.h"
#include "train/plan.h"

#include <math.h>

const char *const search_features[] = {"fp8", "fsdp", NULL};

/* The work of units that many candidates share. */
struct shared_work {
    int tensor, micro_batch;
    bool is_sequence, is_fp8;
    enum space_recompute selective; /* SPACE_KEEP for all that are not selective */
    struct cost_work work;
};

struct candidates {
    struct candidate *items;
    int count, capacity;
};

struct searching {
    const struct search *search;
    struct search_result *result;
    struct candidates kept, without; /* without: they lack memory, and `least` is a bound of their bytes */
    struct shared_work *works;
    int work_count;
    double limit; /* bytes of a device */
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
    TRY(status_allocated(works));
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
    THEN(status, find_work(s, candidate, &row->run, work));
    return status ? status : train_plan_grid(&row->run, s->result->ranks, &row->grid, &row->shape);
}

/* Adds a candidate with its bound. */
static int push(struct candidates *list, const struct candidate *candidate, double least) {
    if (list->count == list->capacity) {
        int capacity = list->capacity ? 2 * list->capacity : 256;
        struct candidate *more = realloc(list->items, (size_t)capacity * sizeof *more);
        TRY(status_allocated(more));
        list->items = more;
        list->capacity = capacity;
    }
    list->items[list->count] = *candidate;
    list->items[list->count++].least = least;
    return STATUS_OK;
}

/* Counts a candidate without memory. They are kept until one fits, to find the one that misses least. */
static int count_no_memory(struct searching *s, const struct candidate *candidate, double bytes) {
    s->result->counts.no_memory++;
    return s->result->counts.listed ? STATUS_OK : push(&s->without, candidate, bytes);
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

/* Returns why a candidate is refused; NULL: it is possible, *run is resolved, and it has all fixed keys. *is_other: it
 * has other values of the fixed keys. */
static const char *find_obstacle(const struct searching *s, const struct candidate *candidate, struct train_run *run,
                                 bool *is_other, int *status) {
    *status = resolve(s, candidate, run);
    *is_other = !*status && s->search->space != SEARCH_RUN && !space_has_fixed(s->search, &run->config);
    if (*is_other || (*status && *status != STATUS_USAGE))
        return NULL;
    const char *obstacle = *status ? "keys that contradict each other" : train_plan_obstacle(run, s->result->ranks);
    *status = STATUS_OK;
    return obstacle;
}

/* Takes a candidate of the space: counts it if it is impossible or exceeds the memory by the quick bound, and else
 * keeps it with its bound of time. */
static int consider(void *context, const struct candidate *candidate) {
    struct searching *s = context;
    struct train_run run;
    const struct cost_work *work;
    struct rank_grid grid;
    struct pipeline_shape shape;
    bool is_other;
    double least = 0;
    int status;
    const char *obstacle = find_obstacle(s, candidate, &run, &is_other, &status);
    if (status || is_other)
        return status;
    s->result->counts.all++;
    double state = obstacle ? 0 : least_state(s, candidate, &run);
    if (state > s->limit)
        return count_no_memory(s, candidate, state);
    if (!obstacle)
        status = find_work(s, candidate, &run, &work);
    if (status == STATUS_USAGE && candidate->is_fp8) {
        obstacle = "linears that are no multiples of 16 (fp8)";
        status = STATUS_OK;
    }
    if (obstacle) {
        int at = 0;
        while (at < SEARCH_REFUSALS - 1 && s->result->counts.refusals[at].name &&
               strcmp(s->result->counts.refusals[at].name, obstacle))
            at++;
        s->result->counts.refusals[at].name = obstacle;
        s->result->counts.refusals[at].count++;
        s->result->counts.refused++;
        return STATUS_OK;
    }
    THEN(status, train_plan_grid(&run, s->result->ranks, &grid, &shape));
    TRY(status);
    double bytes = s->search->cluster->train == CLUSTER_TRAINS_CAMBIUM ? memory_least(&run, &grid, &shape, work) : 0;
    if (bytes > s->limit)
        return count_no_memory(s, candidate, bytes);
    status = cost_least(&run, s->result->ranks, work, s->search->cluster, &least);
    return status ? status : push(&s->kept, candidate, least);
}

/* Equal bounds come in the order of recomputation, so that none comes before a kind that changes nothing. */
static int by_least(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    return x->least < y->least ? -1 : x->least > y->least ? 1 : (int)x->recompute - (int)y->recompute;
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
    THEN(status, cost_step(&other.run, s->result->ranks, work, s->search->cluster, &other.step, NULL));
    THEN(status, memory_find(&other.run, s->result->ranks, work, s->search->cluster, 0, &other.memory));
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

/* Returns true if a row has the same layout, time and memory, and only recomputes other modules. FP8 keeps no outputs
 * of norms and activations, so their recomputation makes no difference. */
static bool is_listed(const struct search_result *result, const struct search_row *row) {
    for (int64_t i = 0; i < result->counts.listed; i++) {
        const struct search_row *other = &result->rows[i];
        struct run_config a = row->run.config, b = other->run.config;
        b.parallel.recompute_granularity = a.parallel.recompute_granularity;
        b.parallel.recompute_modules = a.parallel.recompute_modules;
        if (row->step.seconds == other->step.seconds && row->memory.device == other->memory.device &&
            a.train.precision == b.train.precision && a.train.micro_batch_size == b.train.micro_batch_size &&
            !memcmp(&a.parallel, &b.parallel, sizeof a.parallel))
            return true;
    }
    return false;
}

static int try_candidate(struct searching *s, const struct candidate *candidate) {
    struct search_result *result = s->result;
    const struct cost_work *work;
    struct search_row row = {0};
    int status = open_candidate(s, candidate, &row, &work);
    THEN(status, cost_step(&row.run, result->ranks, work, s->search->cluster, &row.step, NULL));
    if (!status && row.step.seconds >= slowest(s)) {
        result->counts.slower++;
        return STATUS_OK;
    }
    THEN(status, memory_find(&row.run, result->ranks, work, s->search->cluster, s->limit, &row.memory));
    if (!status && (double)row.memory.device > s->limit)
        return count_no_memory(s, candidate, (double)row.memory.device);
    if (!status && is_listed(result, &row)) {
        result->counts.slower++;
        return STATUS_OK;
    }
    THEN(status, find_savings(s, candidate, &row));
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
        TRY(cost_work_make(&row->run, s->search->cluster, &work));
        status = cost_step(&row->run, s->result->ranks, &work, s->search->cluster, &row->step, &walk);
        cost_work_free(&work);
        walk_free(&walk);
    }
    return status;
}

/* ---- nothing fits ---- */

/* Compares layouts apart from micro batch and recomputation. */
static int compare_groups(const struct candidate *x, const struct candidate *y) {
    const int differences[] = {x->tensor - y->tensor,
                               x->pipeline - y->pipeline,
                               x->chunks - y->chunks,
                               x->last - y->last,
                               x->counts_embedding - y->counts_embedding,
                               x->counts_loss - y->counts_loss,
                               x->is_sequence - y->is_sequence,
                               x->is_fp8 - y->is_fp8,
                               (int)x->sharding - (int)y->sharding};
    for (size_t i = 0; i < sizeof differences / sizeof *differences; i++)
        if (differences[i])
            return differences[i];
    return 0;
}

/* Orders by group; in each, the smallest micro batch that recomputes most comes first. */
static int by_group(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    int order = compare_groups(x, y);
    if (!order)
        order = x->micro_batch - y->micro_batch;
    return order ? order : (int)y->recompute - (int)x->recompute;
}

/* Keeps a candidate as the nearest if it takes less memory than the one before. */
static int try_nearest(struct searching *s, const struct candidate *candidate, struct candidate *nearest) {
    struct search_result *result = s->result;
    const struct cost_work *work;
    struct search_row row = {0};
    double least = result->has_nearest ? (double)result->nearest.memory.device : 0;
    if (result->has_nearest && candidate->least >= least)
        return STATUS_OK;
    int status = open_candidate(s, candidate, &row, &work);
    if (status == STATUS_USAGE)
        return STATUS_OK; /* FP8 lacks such linears */
    THEN(status, memory_find(&row.run, result->ranks, work, s->search->cluster, least, &row.memory));
    if (status || (result->has_nearest && (double)row.memory.device >= least))
        return status;
    *nearest = *candidate;
    result->nearest = row;
    result->has_nearest = true;
    return cost_step(&row.run, result->ranks, work, s->search->cluster, &result->nearest.step, NULL);
}

/* Finds the candidate that misses the memory least. The first of each group is tried, in the order of their bounds, and
 * then the others of the nearest group. */
static int find_nearest(struct searching *s) {
    struct candidates firsts = {0};
    struct candidate nearest = {0};
    int status = STATUS_OK;
    qsort(s->without.items, (size_t)s->without.count, sizeof *s->without.items, by_group);
    for (int i = 0; i < s->without.count && !status; i++) {
        const struct candidate *candidate = &s->without.items[i];
        if (i == 0 || compare_groups(candidate - 1, candidate))
            status = push(&firsts, candidate, candidate->least);
    }
    if (firsts.count)
        qsort(firsts.items, (size_t)firsts.count, sizeof *firsts.items, by_least);
    for (int i = 0; i < firsts.count && !status; i++)
        status = try_nearest(s, &firsts.items[i], &nearest);
    for (int i = 0; i < s->without.count && !status; i++)
        if (!compare_groups(&s->without.items[i], &nearest))
            status = try_nearest(s, &s->without.items[i], &nearest);
    free(firsts.items);
    return status;
}

/* Ends the enumeration at the first possible candidate. */
enum { IS_POSSIBLE = 1 };
static int stop_at_possible(void *context, const struct candidate *candidate) {
    struct train_run run;
    bool is_other;
    int status;
    const char *obstacle = find_obstacle(context, candidate, &run, &is_other, &status);
    return status || obstacle || is_other ? status : IS_POSSIBLE;
}

/* Finds the nearest numbers of devices with a possible layout; whole nodes where the devices are whole nodes. */
static int find_works(const struct search *search, struct search_result *result) {
    enum { FARTHEST = 128 };
    int per_node = (int)search->cluster->per_node, status = STATUS_OK;
    int by = result->ranks % per_node ? 1 : per_node;
    for (int is_above = 0; is_above < 2; is_above++)
        for (int i = 1; i <= FARTHEST && !result->works[is_above] && status >= 0; i++) {
            struct search_result other = {.ranks = result->ranks + (is_above ? i : -i) * by};
            struct searching s = {.search = search, .result = &other};
            if (other.ranks < 1)
                break;
            status = space_list(search, other.ranks, stop_at_possible, &s);
            result->works[is_above] = status == IS_POSSIBLE ? other.ranks : 0;
        }
    return status < 0 ? status : STATUS_OK;
}

static int find_point(struct searching *s, const struct candidate *candidate, struct search_point *point) {
    const struct cost_work *work;
    struct search_row row = {0};
    int status = open_candidate(s, candidate, &row, &work);
    THEN(status, cost_step(&row.run, s->result->ranks, work, s->search->cluster, &row.step, NULL));
    THEN(status, memory_find(&row.run, s->result->ranks, work, s->search->cluster, 0, &row.memory));
    if (!status)
        *point = search_point_of(&row);
    return status;
}

/* Plans some layouts in the order of their bounds, evenly. */
static int find_points(struct searching *s) {
    struct search_result *result = s->result;
    int wanted = s->search->points < s->kept.count ? s->search->points : s->kept.count, status = STATUS_OK;
    result->points = wanted ? calloc((size_t)wanted, sizeof *result->points) : NULL;
    if (wanted && !result->points)
        return status_no_memory();
    for (int i = 0; i < wanted && !status; i++) {
        status = find_point(s, &s->kept.items[(int64_t)i * s->kept.count / wanted], &result->points[i]);
        result->point_count += !status;
    }
    return status;
}

static int search_all(struct searching *s) {
    struct search_result *result = s->result;
    int status = space_list(s->search, result->ranks, consider, s);
    const struct candidates *kept = &s->kept;
    if (!status && kept->count > 0)
        qsort(kept->items, (size_t)kept->count, sizeof *kept->items, by_least);
    for (int i = 0; i < kept->count && !status; i++) {
        if (kept->items[i].least >= slowest(s)) {
            result->counts.slower += kept->count - i;
            break;
        }
        status = try_candidate(s, &kept->items[i]);
    }
    order_ties(result);
    THEN(status, explain(s));
    THEN(status, !result->counts.listed && result->counts.no_memory ? find_nearest(s) : STATUS_OK);
    return status ? status : find_points(s);
}

int search_run(const struct search *search, int ranks, struct search_result *result) {
    double start = clock_seconds();
    struct searching s = {
        .search = search, .result = result, .limit = search->cluster->memory.value * search->memory_share};
    *result = (struct search_result){.ranks = ranks, .rows = calloc((size_t)search->top, sizeof *result->rows)};
    int status = result->rows ? search_all(&s) : status_no_memory();
    for (int i = 0; i < s.work_count; i++)
        cost_work_free(&s.works[i].work);
    free(s.works);
    free(s.kept.items);
    free(s.without.items);
    result->seconds = clock_seconds() - start;
    return status;
}

int search_find_fit(const struct search *search, struct search_result *result) {
    enum { MOST_RANKS = 1 << 20, DOUBLINGS = 8 };
    struct search wider = *search;
    bool is_all = search->space == SEARCH_ALL && !search->fixed_count;
    int64_t ranks = is_all ? 2 * (int64_t)result->ranks : result->ranks;
    int status = result->counts.refused == result->counts.all ? find_works(search, result) : STATUS_OK;
    wider.space = SEARCH_ALL;
    wider.fixed_count = 0;
    wider.top = 1;
    wider.points = 0;
    if (is_all && (result->works[0] || result->works[1]))
        ranks = result->works[1] ? result->works[1] : result->works[0];
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
