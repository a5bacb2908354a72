/* cambium pretrain: trains a GPT on preprocessed text. */
#include "commands.h"

#include "comm/comm.h"
#include "config/run.h"
#include "train/train.h"

#include <stdlib.h>

struct options {
    const char *config, *init_from;
    int64_t ranks; /* 0: not given */
    bool is_dry_run;
    struct run_config run;
};

static const struct config_row rows[] = {
    {.path = "config",
     .type = CONFIG_STRING,
     .offset = offsetof(struct options, config),
     .metavar = "FILE.yaml",
     .is_path = true,
     .help = "read the run's keys from this file first"},
    {.path = "init-from",
     .type = CONFIG_STRING,
     .offset = offsetof(struct options, init_from),
     .metavar = "DIR",
     .is_path = true,
     .help = "start from the weights of a model directory, whose config.json supplies the whole model section"},
    {.path = "ranks",
     .type = CONFIG_INT,
     .offset = offsetof(struct options, ranks),
     .minimum = 1,
     .maximum = 1024,
     .help = "ranks to train on, as threads of this process; 1 when not given, and under mpirun or srun theirs"},
    {.path = "dry-run",
     .type = CONFIG_BOOL,
     .offset = offsetof(struct options, is_dry_run),
     .default_text = "false",
     .help = "print the resolved run and the memory plan of its first rank, and end"},
};

static struct config_command describe(void) {
    return (struct config_command){
        .name = "pretrain",
        .synopsis = "cambium pretrain --config FILE.yaml [--section.key=value ...] [--init-from DIR] [--ranks N] "
                    "[--dry-run]",
        .description =
            "Trains a GPT on a dataset of 'cambium preprocess'. Keys stand in the sections of FILE.yaml, and each "
            "can be given, or changed, as --section.key=value. SIGTERM and SIGINT finish the step, save and "
            "exit with 0; with checkpoint.load the same command goes on from there, bit for bit. Under mpirun or "
            "srun each process is a rank; how ranks share the work is said in the section parallel, and data "
            "parallelism is what is left of them.",
        .examples = "  cambium pretrain --config run.yaml\n"
                    "  cambium pretrain --config run.yaml --optim.lr=3e-4 --train.train_iters=2000\n"
                    "  cambium pretrain --config run.yaml --init-from model --dry-run\n"
                    "  cambium pretrain --config run.yaml --ranks 4 --parallel.tensor_model_parallel_size=2\n"
                    "  mpirun -n 4 cambium pretrain --config run.yaml --parallel.tensor_model_parallel_size=2\n",
        .rows = rows,
        .row_count = sizeof rows / sizeof *rows,
        .section_rows = run_rows,
        .section_row_count = run_row_count,
        .section_offset = offsetof(struct options, run),
        .config_flag = "config",
        .positional_offset = SIZE_MAX,
    };
}

static int dry_run(const struct config_command *command, struct options *options, const struct train_run *run,
                   const struct train_plan *plan) {
    options->run = run->config;
    config_dump(command, options, stdout);
    train_plan_print(plan, "# ", stdout); /* a comment, so that the output is a configuration as it stands */
    return fflush(stdout) || ferror(stdout) ? status_fail_errno("cannot write standard output") : STATUS_OK;
}

/* ---- ranks ---- */

static int train(struct comm *world, void *context) {
    const struct train_run *run = context;
    struct trainer *trainer;
    log_quiet(world->rank > 0);
    int status = trainer_open(run, world, &trainer);
    if (!status)
        status = trainer_run(trainer);
    if (status)
        comm_abort(world, status_text()); /* the others no longer touch this rank's memory */
    trainer_close(trainer);
    return status;
}

/* Whether all processes of the launcher have come as far as this, and mean the same run: the first one that has not
 * says why. */
static int agree(struct comm *world, int status, const struct train_run *run, bool *is_told) {
    int64_t own[2] = {status, run->iteration}, *all = calloc((size_t)world->size * 2, sizeof *all);
    struct comm_data data = {.send = own, .receive = all, .count = 2, .dtype = DTYPE_I64};
    int gathered = all ? comm_all_gather(world, NULL, &data) : status_fail(STATUS_MEMORY, "out of memory");
    int first = 0, same = 0;
    for (int r = world->size - 1; r >= 0 && !gathered; r--) {
        first = all[2 * r] ? r : first;
        same += all[2 * r] == all[0];
        if (!status && !all[2 * r] && all[2 * r + 1] != all[1])
            status = status_fail(STATUS_INVALID,
                                 "rank 0 would go on from iteration %lld and rank %d from %lld: checkpoint.load must "
                                 "be one directory that all hosts see",
                                 (long long)all[1], r, (long long)all[2 * r + 1]);
    }
    if (!gathered && all[2 * first]) {
        if (world->rank == first && same == world->size)
            log_error("%s", status_text());
        else if (world->rank == first)
            log_error("rank %d: %s", first, status_text());
        *is_told = true;
        status = (int)all[2 * first];
    } else if (status) {
        *is_told = world->rank > 0;
    }
    free(all);
    return gathered ? gathered : status;
}

/* Everything that is said and done before a rank starts. */
static int prepare(struct options *options, struct config *config, const struct comm *world, struct train_run *run,
                   struct train_plan *plan) {
    int ranks = world ? world->size : options->ranks ? (int)options->ranks : 1;
    if (options->ranks && options->ranks != ranks)
        return status_fail(STATUS_USAGE, "--ranks %lld in a launch of %d processes: each of them is a rank",
                           (long long)options->ranks, ranks);
    int status = train_prepare(run, &options->run, options->init_from, config);
    return status ? status : train_plan_make(run, ranks, plan);
}

int command_pretrain(int argc, char **argv) {
    const struct config_command command = describe();
    struct options options = {0};
    struct config *config = NULL;
    struct train_run run = {0};
    struct train_plan plan;
    struct comm *world = NULL; /* of processes; NULL when there is this one alone */
    bool is_help = false, is_told = false;
    int status = comm_mpi_is_launched() ? comm_mpi_open(&world) : STATUS_OK;
    bool is_first = !world || world->rank == 0;
    log_quiet(!is_first);
    if (!status && !is_first && !freopen("/dev/null", "w", stdout)) /* results, and --help, are the first rank's */
        status = status_fail_errno("cannot open /dev/null");
    if (!status)
        status = config_parse(&command, argc, argv, &options, &config, &is_help);
    if (!status && !is_help)
        status = prepare(&options, config, world, &run, &plan);
    if (world)
        status = agree(world, status, &run, &is_told);
    if (!status && !is_help && options.is_dry_run) {
        status = is_first ? dry_run(&command, &options, &run, &plan) : STATUS_OK;
    } else if (!status && !is_help) {
        if (is_first)
            train_plan_print(&plan, "cambium: ", stderr);
        status = world ? train(world, &run) : comm_local_run(plan.ranks, train, &run);
    }
    config_free(config);
    comm_close(world);
    return is_told && status ? (status == STATUS_USAGE ? 2 : 1) : command_exit_status(status);
}
