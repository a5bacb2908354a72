/* Plans a run, prints its plan, and trains on all ranks. */
#include "training.h"

#include "planner/run_file.h"
#include "train/plan.h"

/* ---- another machine ---- */

int training_prepare_elsewhere(const struct training_target *target, struct run_config *config, const char *model,
                               struct train_run *run, struct cluster *cluster, int *ranks) {
    int status = cluster_open(target->cluster, cluster);
    if (!status)
        *ranks = (int)(target->devices ? target->devices : target->nodes * cluster->per_node);
    THEN_IF(status, model, run_file_take_model(model, config));
    THEN(status, run_file_resolve(config, run));
    if (!status)
        run->config.checkpoint = config->checkpoint; /* its copies are in the plan */
    return status;
}

int training_check_target(const struct training_target *target, bool is_dry_run) {
    if (target->cluster && (!is_dry_run || !target->nodes == !target->devices))
        return status_fail(STATUS_USAGE, "--cluster is for --dry-run, with one of --nodes and --devices");
    if (!target->cluster && (target->nodes || target->devices))
        return status_fail(STATUS_USAGE, "--nodes and --devices are of --cluster");
    return STATUS_OK;
}

/* ---- the plan ---- */

static void group_digits(int64_t value, char out[32]) {
    char digits[32];
    int n = snprintf(digits, sizeof digits, "%lld", (long long)value), used = 0;
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0)
            out[used++] = ',';
        out[used++] = digits[i];
    }
    out[used] = 0;
}

/* Prints the line that PEFT prints. */
static void print_parameters(const struct train_plan *plan) {
    char trainable[32], all[32];
    group_digits(plan->trainable_parameters, trainable);
    group_digits(plan->parameters, all);
    log_info("trainable params: %s || all params: %s || trainable%%: %.4f", trainable, all,
             100.0 * (double)plan->trainable_parameters / (double)plan->parameters);
}

static int print(const struct training *training, const struct train_plan *plan) {
    if (training->run->tuning || training->run->tuner)
        print_parameters(plan);
    if (!training->is_dry_run) {
        train_plan_print(plan, "cambium: ", stderr);
        return STATUS_OK;
    }
    training->dump(training->context);
    train_plan_print(plan, "# ", stdout); /* a comment, so that the output is a valid configuration */
    return fflush(stdout) || ferror(stdout) ? status_fail_errno("cannot write standard output") : STATUS_OK;
}

/* Plans the stage that takes most of a device of the cluster, and refuses it if the cluster has too little memory. */
static int plan_elsewhere(const struct training *training) {
    const struct cluster *cluster = training->cluster;
    struct train_plan most = {0};
    struct rank_grid grid;
    struct pipeline_shape shape;
    int status = train_plan_grid(training->run, training->ranks, &grid, &shape);
    for (int stage = 0; stage < shape.stages && !status; stage++) {
        struct train_plan plan;
        int first = stage * grid.tensor * grid.data;
        status = train_plan_rank(training->run, training->ranks, first, cluster->device, &plan, NULL);
        if (!status && train_plan_bytes(&plan).device > train_plan_bytes(&most).device)
            most = plan;
    }
    const struct train_bytes bytes = train_plan_bytes(&most);
    int64_t on_node = training->ranks < cluster->per_node ? training->ranks : cluster->per_node;
    most.device_memory = (size_t)cluster->memory.value;
    most.most_on_device = bytes.device;
    most.here.host = bytes.host * (size_t)on_node;
    THEN(status, print(training, &most));
    double host = cluster->host_memory.value;
    const struct memory_limit limit = {.bytes = host > 0 ? (size_t)host : SIZE_MAX};
    return status ? status : train_plan_check(training->run, &most, &limit);
}

/* ---- the run ---- */

static int train(struct comm *world, void *context) {
    const struct training *training = context;
    struct trainer *trainer = NULL;
    log_quiet(world->rank > 0);
    int status = training->before ? training->before(world, training->run, training->context) : STATUS_OK;
    THEN(status, trainer_open(training->run, world, &trainer));
    if (status == STATUS_INTERRUPTED) {
        log_info("%s", status_text());
        return STATUS_OK;
    }
    THEN(status, trainer_run(trainer));
    THEN_IF(status, training->finish, training->finish(trainer, training->run));
    THEN(status, trainer_tell_memory(trainer, training->program));
    if (status)
        comm_fail(world, status); /* the others no longer touch this rank's memory */
    int64_t iteration = status ? 0 : trainer_iteration(trainer);
    bool is_stopped = !status && trainer_is_stopped(trainer);
    trainer_close(trainer);
    return status || !training->after ? status : training->after(world, training->run, iteration, is_stopped);
}

static int make_plan(struct launch *launch, const struct training *training, struct train_plan *plan) {
    int status = launch_agree(launch, train_plan_make(training->run, training->ranks, launch->world, plan));
    if (!status)
        train_plan_add_program(training->run, launch->world, plan);
    return status;
}

/* Plans without references that are kept, where they have no memory. */
static int plan_lean(struct launch *launch, struct training *own, struct train_run *lean, struct train_plan *plan) {
    const struct memory_limit limit = memory_limit_find("");
    TRY(make_plan(launch, own, plan));
    int status = own->run->reference_bytes ? train_plan_check(own->run, plan, &limit) : STATUS_OK;
    if (!(launch->world ? comm_agree(launch->world, status) : status))
        return STATUS_OK;
    *lean = *own->run;
    lean->reference_bytes = 0;
    own->run = lean;
    if (launch->is_first)
        log_info("there is no memory to keep the reference's log-probabilities: every batch computes its own");
    return make_plan(launch, own, plan);
}

int training_launch(struct launch *launch, const struct training *training) {
    struct training own = *training;
    struct train_run lean;
    struct train_plan plan;
    if (own.cluster)
        return launch_agree(launch, plan_elsewhere(&own));
    int status = plan_lean(launch, &own, &lean, &plan);
    own.program = plan.program;
    /* A call of GPUs never returns where a rank is missing. */
    THEN_IF(status, !device_uses_host_memory(own.run->config.device), launch_agree(launch, launch_watch(launch)));
    TRY(status);
    if (launch->is_first)
        status = print(training, &plan);
    const struct memory_limit limit = memory_limit_find("");
    status = launch_agree(launch, status ? status : train_plan_check(own.run, &plan, &limit));
    return status || own.is_dry_run ? status : launch_run(launch, own.ranks, train, &own);
}
