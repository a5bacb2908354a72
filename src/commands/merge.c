/* cambium merge: a model and adapters as one model directory. */
#include "commands.h"
#include "launch.h"

#include "base/base.h"
#include "config/config.h"
#include "peft/peft.h"

struct options {
    const char *model, *output, *device;
    struct config_list adapters;
};

static const struct config_row rows[] = {
    {.path = "model",
     .type = CONFIG_STRING,
     .offset = offsetof(struct options, model),
     .metavar = "DIR",
     .is_path = true,
     .is_required = true,
     .help = "model directory, or a directory of checkpoints (the newest is taken); it is not changed"},
    {.path = "adapter",
     .type = CONFIG_LIST,
     .offset = offsetof(struct options, adapters),
     .metavar = "DIR...",
     .is_path = true,
     .is_required = true,
     .help = "adapters to fold into it, in this order: LoRA, also as rsLoRA and DoRA, and IA3"},
    {.path = "output",
     .type = CONFIG_STRING,
     .offset = offsetof(struct options, output),
     .metavar = "DIR",
     .is_path = true,
     .is_required = true,
     .help = "the model directory to write"},
    CONFIG_DEVICE_ROW(offsetof(struct options, device)),
};

static const struct config_command command = {
    .name = "merge",
    .synopsis = "cambium merge --model DIR --adapter DIR... --output DIR",
    .description = "Folds adapters into a model. The new model directory gives the same results as the model with the "
                   "adapters. It is computed in fp32 and has the type of the model's files.",
    .examples = "  cambium merge --model out/gpt --adapter out/lora --output out/merged\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
    .positional_offset = SIZE_MAX,
};

/* Merges and writes. Runs in one process of a launch. */
static int merge(const struct options *options) {
    struct peft_files *files = NULL;
    TRY(device_find(options->device));
    log_info("loading %s", options->model);
    int status = peft_files_open(options->adapters.items, options->adapters.count, false, &files);
    if (!status)
        status = peft_merge(&(struct peft_merge){
            .model = options->model, .files = files, .output = options->output, .device = options->device});
    if (!status)
        log_info("%s is written", options->output);
    peft_files_close(files);
    return status;
}

static int run(struct launch *launch, void *context) {
    return launch_agree(launch, launch->is_first ? merge(context) : STATUS_OK);
}

int command_merge(int argc, char **argv) {
    struct options options = {0};
    const struct launch_steps steps = {.command = &command, .values = &options, .may_disagree = true, .run = run};
    return launch_command(&steps, argc, argv, &options);
}
