/* The proof: steps of one rank and of the layout side by side, a save, a resume in the other layout, and the report. */
#include "verify-internal.h"

#include <math.h>

/* ---- one rank ---- */

static int open_one(struct verify *v, const struct train_run *run) {
    struct verify_layout *job = v->job;
    if (!v->is_first)
        return STATUS_OK;
    job->one = calloc(1, sizeof *job->one);
    TRY(status_allocated(job->one));
    return verify_open(job->one, run, NULL, v->mine.trainer->rank.data->size);
}

static void close_one(struct verify_seen **one) {
    if (*one)
        verify_close(*one);
    free(*one);
    *one = NULL;
}

/* Returns the run, or that of one rank, which resumes from a directory below the job's; NULL: from the start. */
static struct train_run make_run(const struct verify *v, bool is_one, const char *resumes) {
    struct train_run run = v->job->run;
    run.source = &v->texts.source;
    if (is_one)
        run.config = verify_one_rank(&run.config);
    if (resumes) {
        snprintf(run.checkpoint, sizeof run.checkpoint, "%s/%s/iter_%07d", v->job->directory, resumes, v->job->steps);
        run.iteration = run.optimizer_step = v->job->steps;
        run.consumed_samples = v->job->steps * run.config.train.global_batch_size;
    }
    return run;
}

/* Saves below the job's directory. A saver checks its plan of the layout, so it is opened after the comparisons. */
static int save(const struct verify *v, struct trainer *trainer, const char *name) {
    char path[PATH_MAX];
    TRY(file_join(path, sizeof path, v->job->directory, name));
    trainer->run.config.checkpoint.save = path;
    int status = train_saver_open(trainer);
    THEN(status, trainer_save(trainer));
    train_saver_close(trainer);
    trainer->run.config.checkpoint.save = NULL;
    return status;
}

/* ---- steps ---- */

/* Both runs make a step from one rank's weights, and are compared. */
static int step(struct verify *v) {
    v->step++;
    TRY(verify_take(&v->mine, v->one));
    TRY(comm_barrier(v->world)); /* all have read what one rank's step changes */
    TRY(v->is_first ? verify_step(v->job->one) : STATUS_OK);
    TRY(verify_step(&v->mine));
    TRY(comm_barrier(v->world));
    TRY(verify_compare_step(v));
    return verify_agree(v);
}

/* Opens the layout, and one rank unless it has resumed already, and makes `steps` steps. */
static int train(struct verify *v, int steps, const char *resumes) {
    const struct train_run run = make_run(v, false, resumes), one = make_run(v, true, NULL);
    TRY(verify_open(&v->mine, &run, v->world, 1));
    v->is_first = v->mine.trainer->site.is_first_in_process;
    if (!resumes)
        TRY(open_one(v, &one));
    TRY(comm_barrier(v->world));
    v->one = v->job->one;
    TRY(verify_find_places(&v->mine, v->one));
    TRY(verify_compare_state(v, &v->mine, true));
    TRY(verify_agree(v));
    for (int i = 0; i < steps && !v->difference.is_found; i++)
        TRY(step(v));
    return STATUS_OK;
}

/* One rank resumes from the layout's checkpoint, and saves its own. The first rank of the world compares them. */
static int resume_on_one_rank(struct verify *v) {
    struct verify_seen *before = v->is_first ? v->job->one : NULL;
    const struct train_run run = make_run(v, true, "layout");
    TRY(save(v, v->mine.trainer, "layout"));
    TRY(comm_barrier(v->world));
    int status = open_one(v, &run);
    THEN_IF(status, v->world->rank == 0, verify_find_places(v->job->one, before));
    THEN_IF(status, v->world->rank == 0, verify_compare_state(v, v->job->one, false));
    THEN_IF(status, v->world->rank == 0, save(v, v->job->one->trainer, "one"));
    close_one(&before);
    return status ? status : comm_barrier(v->world);
}

static int prove(struct verify *v) {
    TRY(train(v, v->job->steps, NULL));
    if (v->difference.is_found)
        return STATUS_OK;
    TRY(resume_on_one_rank(v));
    verify_close(&v->mine);
    TRY(verify_agree(v));
    return v->difference.is_found ? STATUS_OK : train(v, 1, "one");
}

/* ---- the report ---- */

static int print_kind(const char *name, const struct verify_count *count) {
    json_begin();
    return json_print(json_pack("{s:s, s:I, s:o, s:f}", "check", name, "tensors", (json_int_t)count->tensors, "worst",
                                json_number(count->worst), "bound", count->bound));
}

static int print_summary(const struct verify *v, double seconds) {
    const struct verify_difference *found = &v->difference;
    json_begin();
    json_t *line = json_pack("{s:s, s:b}", "verify", "layout", "equal", !found->is_found);
    if (found->is_found)
        json_object_update_new(line, json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:o, s:o}", "check", found->check,
                                               "tensor", found->tensor, "step", (json_int_t)found->step, "micro_batch",
                                               (json_int_t)found->micro_batch, "rank", (json_int_t)found->rank, "index",
                                               (json_int_t)found->index, "one_rank", json_number(found->one_rank),
                                               "layout", json_number(found->layout)));
    if (found->has_ratio)
        json_object_set_new(line, "ratio", json_number(found->ratio));
    json_object_set_new(line, "seconds", json_real(floor(seconds * 100) / 100));
    return json_print(line);
}

/* Adds up what the ranks have compared, and prints it on the first. */
static int report(struct verify *v, double seconds) {
    for (int k = 0; k < VERIFY_KINDS; k++) {
        struct verify_count *count = &v->counts[k];
        double numbers[] = {count->worst, count->bound};
        struct comm_data sums = {.send = &count->tensors, .receive = &count->tensors, .count = 1, .dtype = DTYPE_I64};
        struct comm_data most = {.send = numbers, .receive = numbers, .count = 2, .dtype = DTYPE_F64};
        TRY(comm_all_reduce(v->world, &sums, COMM_SUM));
        TRY(comm_all_reduce(v->world, &most, COMM_MAX));
        *count = (struct verify_count){count->tensors, numbers[0], numbers[1]};
        if (v->world->rank == 0 && count->tensors)
            TRY(print_kind(verify_kind_names[k], count));
    }
    if (v->world->rank > 0)
        return STATUS_OK;
    v->job->is_equal = !v->difference.is_found;
    return print_summary(v, seconds);
}

int verify_layout_run(struct comm *world, void *context) {
    struct verify_layout *job = context;
    struct verify v = {.job = job, .world = world, .texts = verify_texts_of(job), .rate = job->run.config.optim.lr};
    double start = clock_seconds();
    log_quiet(true);
    int status = prove(&v);
    THEN(status, report(&v, clock_seconds() - start));
    if (status) {
        char cause[2048]; /* keeps the text of the failure */
        snprintf(cause, sizeof cause, "%s", status_text());
        file_remove_tree(job->directory); /* here, because over MPI the last line ends all processes */
        status_fail(status, "%s", cause);
        comm_fail(world, status); /* the others no longer touch this rank's memory */
    }
    THEN(status, comm_barrier(world));
    verify_close(&v.mine);
    return status;
}

void verify_layout_close(struct verify_layout *job) {
    close_one(&job->one);
}
