/* Plans all ranks of a run in one process: finds the rank that takes most memory, and the sum of this host. */
#include "train-internal.h"

#include "parallel/algorithms.h"

/* The input and the result of planning a run's ranks. */
struct survey {
    const struct train_run *run;
    struct rank_grid grid;
    struct rank_seat *seats; /* [ranks] */
    bool is_one_process;
    struct gpt_data data;    /* its files are open; no index maps are built */
    struct train_plan *plan; /* of the rank that takes most so far */
};

/* Returns the bytes that a second rank of this host shares with the first: the ranks are threads of one process, or
 * processes that map the same caches. */
static size_t shared_bytes(const struct survey *survey, const struct train_plan *rank_plan) {
    const char *cache = survey->run->config.data.data_cache_path;
    if (survey->is_one_process)
        return rank_plan->of_data.maps + rank_plan->of_data.process;
    return cache && !*cache ? 0 : rank_plan->of_data.maps;
}

static void take_rank(struct survey *survey, const struct train_plan *rank_plan, bool is_here) {
    struct train_plan *plan = survey->plan;
    struct train_bytes bytes = train_plan_bytes(rank_plan), here = plan->here;
    int ranks_here = plan->ranks_here + is_here;
    size_t most = bytes.device > plan->most_on_device ? bytes.device : plan->most_on_device;
    if (is_here) {
        here.device += bytes.device;
        here.host += bytes.host - (plan->ranks_here > 0 ? shared_bytes(survey, rank_plan) : 0);
    }
    if (train_plan_total(rank_plan) > train_plan_total(plan))
        *plan = *rank_plan;
    plan->here = here;
    plan->ranks_here = ranks_here;
    plan->most_on_device = most;
}

/* A rank that plans. */
struct sketched {
    struct train_plan plan;
    struct rank rank;
    struct train_model model;
};

/* Plans rank `number`. The caller forgets *sketched, even after a failure. */
static int plan_sketched(const struct train_run *run, const struct rank_grid *grid, int number, struct device *device,
                         const struct gpt_data *data, struct sketched *sketched) {
    *sketched = (struct sketched){0};
    rank_sketch(&sketched->rank, grid, number, device);
    if (run->config.batch_invariant)
        rank_make_batch_invariant(&sketched->rank);
    return train_plan_fill(run, &sketched->rank, data, &sketched->model, &sketched->plan);
}

static void forget(const struct train_run *run, struct sketched *sketched) {
    train_model_close(run, &sketched->model);
    rank_close(&sketched->rank);
}

int train_plan_grid(const struct train_run *run, int ranks, struct rank_grid *grid, struct pipeline_shape *shape) {
    int status = train_grid(&run->config, ranks, grid);
    *shape = train_pipeline_shape(&run->config, grid);
    return status;
}

int train_plan_rank(const struct train_run *run, int ranks, int number, struct device *device, struct train_plan *plan,
                    struct work_list *work) {
    struct sketched sketched;
    struct rank_grid grid;
    TRY(train_grid(&run->config, ranks, &grid));
    int status = plan_sketched(run, &grid, number, device, NULL, &sketched);
    *plan = sketched.plan;
    if (work && !status) {
        *work = sketched.rank.work;
        sketched.rank.work = (struct work_list){0};
    }
    forget(run, &sketched);
    return status;
}

/* Plans the first rank at a place of the tensor and pipeline axes. The other ranks there have the same part of the
 * model, and differ only in the memory for saving. */
static int plan_place(struct survey *survey, int first) {
    struct sketched sketched;
    struct device *device;
    const struct rank_grid *grid = &survey->grid;
    struct device_facts facts = {.kind = survey->run->config.device, .threads = survey->seats[first].threads};
    TRY(device_sketch(&facts, &device));
    int status = plan_sketched(survey->run, grid, first, device, &survey->data, &sketched);
    struct rank *rank = &sketched.rank;
    THEN_IF(status, survey->run->config.train.precision == PRECISION_TF32, rank_use_tf32(rank));
    const struct rank_grid place = rank->place;
    for (int r = first; r < rank_grid_size(grid) && !status; r += grid->tensor) {
        rank->place = sketched.plan.place = rank_grid_place(grid, r);
        if (rank->place.pipeline != place.pipeline)
            break;
        status = r > first ? train_saver_bytes(survey->run, rank, &sketched.model.tuner, &sketched.plan.checkpoint)
                           : STATUS_OK;
        if (!status)
            take_rank(survey, &sketched.plan, survey->seats[r].is_here);
    }
    forget(survey->run, &sketched);
    device_close(device);
    return status;
}

static int plan_places(struct survey *survey) {
    struct gpt_data_options options = train_data_options(survey->run);
    int status = STATUS_OK;
    for (int split = 0; split < SPLIT_COUNT; split++)
        options.samples[split] = GPT_NOT_WANTED;
    if (!survey->run->tuning)
        status = gpt_data_open(&survey->data, &options);
    int stage = rank_grid_size(&survey->grid) / survey->grid.pipeline;
    for (int p = 0; p < survey->grid.pipeline; p++)
        for (int t = 0; t < survey->grid.tensor && !status; t++)
            status = plan_place(survey, p * stage + t);
    gpt_data_close(&survey->data);
    return status;
}

/* Notes how many threads a rank of this process has, and why. */
static void plan_threads(const struct rank_seat *seat, int asked, struct train_plan *plan) {
    struct cores cores = cores_find("");
    plan->threads = seat->threads;
    cores_explain(&cores, seat->threads, asked, seat->sharing, plan->cores, sizeof plan->cores);
}

int train_plan_make(const struct train_run *run, int ranks, struct comm *world, struct train_plan *plan) {
    struct survey survey = {
        .run = run, .plan = plan, .is_one_process = !world, .seats = calloc((size_t)ranks, sizeof *survey.seats)};
    *plan = (struct train_plan){.ranks = ranks};
    int status = survey.seats ? rank_site_survey(world, ranks, (int)run->config.parallel.threads_per_rank, survey.seats)
                              : status_no_memory();
    THEN(status, train_grid(&run->config, ranks, &survey.grid));
    THEN(status, plan_places(&survey));
    if (!status)
        plan_threads(&survey.seats[world ? world->rank : 0], (int)run->config.parallel.threads_per_rank, plan);
    free(survey.seats);
    return status;
}
