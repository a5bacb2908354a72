/* cambium pretrain: trains a GPT on preprocessed text. */
#include "commands.h"
#include "training.h"

#include "config/run.h"

struct options {
    const char *config, *init_from;
    struct training_target target;
    int64_t ranks; /* 0: not given */
    bool is_dry_run;
    struct run_config run;
};

#define AT(field) offsetof(struct options, field)
static const struct config_row rows[] = {
    TRAINING_CONFIG_ROW(AT(config)),
    ROW_PATH("init-from", AT(init_from), "PATH",
             "start from the weights of a model directory or GGUF file, which supplies the whole model section"),
    TRAINING_RANKS_ROW(AT(ranks)),
    TRAINING_DRY_RUN_ROWS(AT(is_dry_run), AT(target)),
};

static struct config_command describe(void) {
    return (struct config_command){
        .name = "pretrain",
        .synopsis = "cambium pretrain --config FILE.yaml [--section.key=value ...] [--init-from DIR] [--ranks N] "
                    "[--dry-run [--cluster NAME|FILE --nodes N|--devices N]]",
        .description =
            "Trains a GPT on a dataset of 'cambium preprocess'. FILE.yaml has keys in sections; each can also be "
            "given, or changed, as --section.key=value. SIGTERM and SIGINT finish the step, save and exit with 0; "
            "with checkpoint.load the same command resumes from there, bit for bit. Under mpirun or srun each "
            "process is a rank. The section parallel says how ranks share the model; the remaining ranks are "
            "data-parallel.",
        .examples = "  cambium pretrain --config run.yaml\n"
                    "  cambium pretrain --config run.yaml --optim.lr=3e-4 --train.train_iters=2000\n"
                    "  cambium pretrain --config run.yaml --init-from model --dry-run\n"
                    "  cambium pretrain --config run.yaml --dry-run --cluster h100 --nodes 4\n"
                    "  cambium pretrain --config run.yaml --ranks 4 --parallel.tensor_model_parallel_size=2\n"
                    "  mpirun -n 4 cambium pretrain --config run.yaml --parallel.tensor_model_parallel_size=2\n",
        .rows = rows,
        .row_count = sizeof rows / sizeof *rows,
        .section_rows = run_rows,
        .section_row_count = run_row_count,
        .section_offset = AT(run),
        .config_flag = "config",
    };
}

/* Logs what is read before the first step, which may take long. */
static void say_loading(const struct options *options) {
    const struct config_list *data = &options->run.data.data_path;
    struct strbuf names = STRBUF_INIT;
    for (size_t i = 0; i < data->count; i++)
        strbuf_format(&names, "%s%s", i ? " " : "", data->items[i]);
    if (options->init_from)
        log_info("loading %s", options->init_from);
    if (options->run.checkpoint.load)
        log_info("loading %s", options->run.checkpoint.load);
    if (data->count)
        log_info("loading %s", strbuf_text(&names));
    strbuf_free(&names);
    if (!options->run.checkpoint.save && !options->run.train.skip_train && !options->is_dry_run)
        log_warning("checkpoint.save is not given: nothing of this run will be saved");
}

struct pretraining {
    const struct config_command *command;
    struct options *options;
    struct train_run run;
    struct cluster cluster; /* opened if it was given */
    int ranks;
};

/* Prepares the run, before its ranks are planned. */
static int prepare(const struct launch *launch, const struct config *config, void *context) {
    struct pretraining *p = context;
    struct options *o = p->options;
    int status = training_check_target(&o->target, o->is_dry_run);
    if (!status && o->target.cluster) {
        status = training_prepare_elsewhere(&o->target, &o->run, o->init_from, &p->run, &p->cluster, &p->ranks);
        if (!status)
            o->run = p->run.config;
        return status;
    }
    THEN(status, launch_ranks(launch, o->ranks, &p->ranks));
    THEN_IF(status, !o->is_dry_run, device_find(o->run.device));
    if (!status)
        say_loading(o);
    THEN(status, train_prepare(&p->run, &o->run, o->init_from, config));
    if (!status)
        o->run = p->run.config; /* resolved */
    return status;
}

/* Adds facts about the files that the run names. */
static int add_facts(void *context, struct facts *facts) {
    const struct pretraining *p = context;
    return train_facts(&p->run, facts);
}

static void dump(const void *context) {
    const struct pretraining *p = context;
    config_dump(p->command, p->options, stdout);
}

static int run(struct launch *launch, void *context) {
    const struct pretraining *p = context;
    return training_launch(launch, &(const struct training){.run = &p->run,
                                                            .ranks = p->ranks,
                                                            .is_dry_run = p->options->is_dry_run,
                                                            .cluster = p->options->target.cluster ? &p->cluster : NULL,
                                                            .dump = dump,
                                                            .context = p});
}

static void close_all(void *context) {
    struct pretraining *p = context;
    train_run_free(&p->run);
    cluster_close(&p->cluster);
}

int command_pretrain(int argc, char **argv) {
    const struct config_command command = describe();
    struct options options = {0};
    struct pretraining p = {.command = &command, .options = &options};
    const struct launch_steps steps = {.command = &command,
                                       .values = &options,
                                       .prepare = prepare,
                                       .add_facts = add_facts,
                                       .run = run,
                                       .close = close_all};
    stop_watch_begin();
    int exit_status = launch_command(&steps, argc, argv, &p);
    stop_watch_end();
    return exit_status;
}
