/* cambium merge: a model and adapters as one model directory. */
#include "commands.h"
#include "model_arguments.h"

#include "base/base.h"
#include "config/config.h"
#include "jobs/receipts.h"
#include "peft/peft.h"

struct options {
    const char *model, *output, *device;
    struct config_list adapters;
    int receipts, dtype;
    bool dequantizes;
};

static const char *const dtype_names[] = {"bf16", "fp16", "fp32", NULL};
static const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};

#define AT(field) offsetof(struct options, field)
static const struct config_row rows[] = {
    ROW_PATH("model", AT(model), "PATH",
             "model directory, GGUF file, or a directory of checkpoints (the newest is taken); it is not changed",
             .is_required = true),
    ROW_PATHS("adapter", AT(adapters), "DIR...",
              "adapters to fold into it, in this order: LoRA, also as rsLoRA and DoRA, and IA3", .is_required = true),
    ROW_PATH("output", AT(output), "DIR", "the model directory to write", .is_required = true),
    ROW_BOOL("dequantize", AT(dequantizes), "false",
             "for a quantised model, whose bits cannot hold what the adapters add: write a plain model"),
    ROW_CHOICE("dtype", AT(dtype), "bf16", dtype_names, "of dequantize: the type of the written weights"),
    CONFIG_DEVICE_ROW(AT(device)),
    RECEIPTS_ROW(AT(receipts)),
};

static const struct config_command command = {
    .name = "merge",
    .synopsis = "cambium merge --model PATH --adapter DIR... --output DIR",
    .description =
        "Folds adapters into a model. The new model directory gives the same results as the model with the "
        "adapters. It is computed in fp32 and has the type of the model's files. A quantised model needs --dequantize.",
    .examples = "  cambium merge --model out/gpt --adapter out/lora --output out/merged\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
};

/* Replays the receipts on one rank, which closes its base before the merge computes. */
static int prove(const struct peft_merge *merge, const void *context) {
    const struct options *options = context;
    const struct job_model model = {.model = options->model, .device = options->device, .receipts = options->receipts};
    struct comm *world;
    TRY(comm_single_open(&world));
    int status = receipts_replay(world, NULL, &model, merge->files);
    comm_close(world);
    return status;
}

/* Merges and writes. Runs in one process of a launch. */
static int merge(const struct options *options) {
    struct peft_files *files = NULL;
    TRY(device_find(options->device));
    log_info("loading %s", options->model);
    int status = peft_files_open(options->adapters.items, options->adapters.count, false, &files);
    if (!status)
        status = peft_merge(&(struct peft_merge){.model = options->model,
                                                 .files = files,
                                                 .output = options->output,
                                                 .device = options->device,
                                                 .dequantizes = options->dequantizes,
                                                 .dtype = dtypes[options->dtype],
                                                 .prove = prove,
                                                 .context = options});
    if (!status)
        log_info("%s is written", options->output);
    peft_files_close(files);
    return status;
}

static int prepare(const struct launch *launch, const struct config *given, void *context) {
    const struct options *options = context;
    return config_is_given(given, "dtype") && !options->dequantizes
               ? status_fail(STATUS_USAGE, "--dtype needs --dequantize")
               : STATUS_OK;
}

static int run(struct launch *launch, void *context) {
    return launch_agree(launch, launch->is_first ? merge(context) : STATUS_OK);
}

int command_merge(int argc, char **argv) {
    struct options options = {0};
    const struct launch_steps steps = {
        .command = &command, .values = &options, .may_disagree = true, .prepare = prepare, .run = run};
    return launch_command(&steps, argc, argv, &options);
}
