/* Starting and ending a command that runs on the processes of a launcher or on threads. */
#include "launch.h"

/* A rank that gives no sign of life for this time counts as stopped. */
enum { RANK_SECONDS = 5 };

/* Joins the other processes, if a launcher started several. All but the first are quiet, and their standard output is
 * discarded. */
static int begin(struct launch *launch, const struct launch_steps *steps) {
    *launch = (struct launch){0};
    int status = !steps->is_alone && comm_mpi_is_launched() ? comm_mpi_open(&launch->world) : STATUS_OK;
    launch->is_first = !launch->world || launch->world->rank == 0;
    log_quiet(!launch->is_first);
    if (!status && !launch->is_first && !freopen("/dev/null", "w", stdout))
        status = status_fail_errno("cannot open /dev/null");
    return !status && steps->watches ? launch_watch(launch) : status;
}

int launch_watch(const struct launch *launch) {
    return launch->world ? comm_watch(launch->world, &(struct comm_watch_options){.seconds = RANK_SECONDS}) : STATUS_OK;
}

int launch_ranks(const struct launch *launch, int64_t asked, int *ranks) {
    *ranks = launch->world ? launch->world->size : asked ? (int)asked : 1;
    if (asked && asked != *ranks)
        return status_fail(STATUS_USAGE, "--ranks %lld in a launch of %d processes: each of them is a rank",
                           (long long)asked, *ranks);
    return STATUS_OK;
}

/* Finds the first rank with a failure (-1: none), and whether all ranks have the same status. */
static int find_failure(struct comm *world, int status, int *first, bool *is_same) {
    int64_t words[3] = {status ? world->size - world->rank : 0, status, -(int64_t)status};
    struct comm_data data = {.send = words, .receive = words, .count = 3, .dtype = DTYPE_I64};
    int result = comm_all_reduce(world, &data, COMM_MAX);
    *first = words[0] ? world->size - (int)words[0] : -1;
    *is_same = words[1] == -words[2];
    return result;
}

int launch_agree(struct launch *launch, int status) {
    struct comm *world = launch->world;
    int first;
    bool is_same;
    if (!world)
        return status;
    int found = find_failure(world, status, &first, &is_same);
    if (found || first < 0)
        return found;
    if (world->rank == first && is_same)
        log_error("%s", status_text());
    else if (world->rank == first)
        log_error("rank %d: %s", first, status_text());
    launch->is_reported = true;
    launch->is_reporter = world->rank == first;
    int64_t theirs = status;
    struct comm_data data = {.send = &theirs, .receive = &theirs, .count = 1, .dtype = DTYPE_I64};
    found = comm_broadcast(world, &data, first);
    return found ? found : (int)theirs;
}

/* ---- facts that all processes share ---- */

/* Adds the program's digest. Copies of weights are equal on all ranks only if the same instructions computed them. */
static int add_program(struct facts *facts) {
    static const char because[] = "all ranks need the same build of cambium";
    int64_t bytes;
    uint64_t digest;
    char text[96];
    if (digest_file("/proc/self/exe", &bytes, &digest))
        return facts_add(facts, because, "the program", CAMBIUM_VERSION, NULL);
    snprintf(text, sizeof text, CAMBIUM_VERSION " of %lld bytes (digest %016llx)", (long long)bytes,
             (unsigned long long)digest);
    return facts_add(facts, because, "the program", text, NULL);
}

/* Lists the program, --help or --version, the options of the command, and the command's facts. Without a launch the
 * list stays empty, because threads share everything. */
static int list_facts(const struct launch *launch, const struct launch_steps *steps, bool is_answered, void *context,
                      struct facts *facts) {
    if (!launch->world || steps->may_disagree)
        return STATUS_OK;
    int status = add_program(facts);
    THEN(status, facts_add(facts, FACT_CONFIGURATION, "the command", steps->command->name, NULL));
    THEN(status,
         facts_add(facts, FACT_CONFIGURATION, "--help or --version", is_answered ? "given" : "not given", NULL));
    THEN_IF(status, !is_answered, config_facts(steps->command, steps->values, facts));
    return status || is_answered || !steps->add_facts ? status : steps->add_facts(context, facts);
}

/* ---- ranks ---- */

int launch_run(const struct launch *launch, int ranks, int (*function)(struct comm *world, void *context),
               void *context) {
    return launch->world ? function(launch->world, context) : comm_local_run(ranks, function, context);
}

/* ---- the end ---- */

int command_exit_status(int status) {
    if (status == STATUS_OK)
        return 0;
    log_error("%s", status_text());
    return status == STATUS_USAGE ? 2 : 1;
}

int command_run(const struct config_command *command, int argc, char **argv, void *values,
                int (*run)(const void *values, const struct config *given)) {
    struct config *config = NULL;
    bool is_answered = false;
    int status = config_parse(command, argc, argv, values, &config, &is_answered);
    THEN_IF(status, !is_answered, run(values, config));
    config_free(config);
    return command_exit_status(status);
}

/* Leaves the launch and returns the exit status. When one process has printed the failure, only that process exits with
 * an error. */
static int end(struct launch *launch, int status) {
    comm_close(launch->world);
    launch->world = NULL;
    if (!status || !launch->is_reported)
        return command_exit_status(status);
    /* mpirun kills the other processes as soon as one exits with an error, and their output may be lost. Therefore the
     * process that printed the error is the one that exits with an error. */
    if (!launch->is_reporter)
        return 0;
    return status == STATUS_USAGE ? 2 : 1;
}

int launch_command(const struct launch_steps *steps, int argc, char **argv, void *context) {
    struct config *config = NULL;
    struct launch launch;
    struct facts facts = FACTS_INIT;
    bool is_answered = false;
    int status = begin(&launch, steps);
    THEN(status, config_parse(steps->command, argc, argv, steps->values, &config, &is_answered));
    THEN_IF(status, !is_answered && steps->prepare, steps->prepare(&launch, config, context));
    THEN(status, list_facts(&launch, steps, is_answered, context, &facts));
    status = launch_agree(&launch, status);
    if (!status && launch.world && !steps->may_disagree) /* the error names the first difference */
        status = launch_agree(&launch, comm_same(launch.world, &facts));
    facts_free(&facts);
    THEN_IF(status, !is_answered, steps->run(&launch, context));
    if (steps->close)
        steps->close(context);
    config_free(config);
    return end(&launch, status);
}
