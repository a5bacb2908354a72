/* cambium pretrain: trains a GPT on preprocessed text. */
#include "commands.h"

#include "config/run.h"
#include "train/train.h"

struct options {
    const char *config, *init_from;
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
    {.path = "dry-run",
     .type = CONFIG_BOOL,
     .offset = offsetof(struct options, is_dry_run),
     .default_text = "false",
     .help = "print the resolved run and its memory plan, and end"},
};

static struct config_command describe(void) {
    return (struct config_command){
        .name = "pretrain",
        .synopsis = "cambium pretrain --config FILE.yaml [--section.key=value ...] [--init-from DIR] [--dry-run]",
        .description =
            "Trains a GPT on a dataset of 'cambium preprocess'. Keys stand in the sections of FILE.yaml, and each "
            "can be given, or changed, as --section.key=value. SIGTERM and SIGINT finish the step, save and "
            "exit with 0; with checkpoint.load the same command goes on from there, bit for bit.",
        .examples = "  cambium pretrain --config run.yaml\n"
                    "  cambium pretrain --config run.yaml --optim.lr=3e-4 --train.train_iters=2000\n"
                    "  cambium pretrain --config run.yaml --init-from model --dry-run\n",
        .rows = rows,
        .row_count = sizeof rows / sizeof *rows,
        .section_rows = run_rows,
        .section_row_count = run_row_count,
        .section_offset = offsetof(struct options, run),
        .config_flag = "config",
        .positional_offset = SIZE_MAX,
    };
}

static int dry_run(const struct config_command *command, struct options *options, const struct train_run *run) {
    struct train_plan plan;
    int status = train_plan_make(run, &plan);
    if (status)
        return status;
    options->run = run->config;
    config_dump(command, options, stdout);
    train_plan_print(&plan, "# ", stdout); /* a comment, so that the output is a configuration as it stands */
    return fflush(stdout) || ferror(stdout) ? status_fail_errno("cannot write standard output") : STATUS_OK;
}

static int train(const struct train_run *run) {
    struct trainer *trainer;
    struct train_plan plan;
    int status = train_plan_make(run, &plan);
    if (status)
        return status;
    train_plan_print(&plan, "cambium: ", stderr);
    status = trainer_open(run, &trainer);
    if (status)
        return status;
    status = trainer_run(trainer);
    trainer_close(trainer);
    return status;
}

int command_pretrain(int argc, char **argv) {
    const struct config_command command = describe();
    struct options options = {0};
    struct config *config = NULL;
    struct train_run run;
    bool is_help = false;
    int status = config_parse(&command, argc, argv, &options, &config, &is_help);
    if (!status && !is_help) {
        status = train_prepare(&run, &options.run, options.init_from, config);
        if (!status)
            status = options.is_dry_run ? dry_run(&command, &options, &run) : train(&run);
    }
    config_free(config);
    return command_exit_status(status);
}
