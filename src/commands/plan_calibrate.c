/* cambium plan calibrate: a cluster file of this machine, from measurements. */
#include "launch.h"
#include "plan.h"

#include "bench/bench.h"

struct options {
    struct bench_options bench;
    struct config_list words; /* the model */
    const char *output;
};

#define AT(field) offsetof(struct options, field)
static const struct config_row rows[] = {
    {.path = "output",
     .type = CONFIG_STRING,
     .offset = AT(output),
     .metavar = "FILE",
     .is_path = true,
     .is_required = true,
     .help = "write the cluster file here"},
    {.path = "precision",
     .type = CONFIG_CHOICE,
     .offset = AT(bench.precision),
     .default_text = "bf16",
     .choices = plain_precision_names,
     .help = "the precision in which products and steps are measured"},
    RANKS_ROW(AT(bench.ranks), "ranks that work at the same time, as threads of this process; 1 when not given, and "
                               "under mpirun or srun theirs"),
    CONFIG_DEVICE_ROW(AT(bench.device)),
    {.path = "threads",
     .type = CONFIG_INT,
     .offset = AT(bench.threads),
     .default_text = "0",
     .minimum = 0,
     .maximum = 4096,
     .help = "threads of each rank; 0: all cores, or one when ranks share them"},
    PLAN_COUNT_ROW("micro-batch-size", AT(bench.micro_batch_size), "1", 4096, "samples of a micro batch"),
    PLAN_COUNT_ROW("seq-length", AT(bench.seq_length), "1024", 1 << 20,
                   "tokens of a sample; at most the model's positions"),
};

static int prepare(const struct launch *launch, const struct config *config, void *context) {
    struct options *options = context;
    int ranks, status = launch_ranks(launch, options->bench.ranks, &ranks);
    (void)config;
    if (!status && options->words.count > 1)
        status = status_fail(STATUS_USAGE, "plan calibrate takes at most one model");
    options->bench.ranks = ranks;
    options->bench.world = launch->world;
    options->bench.model = options->words.count ? options->words.items[0] : "gpt2-124m";
    return status;
}

static int run(struct launch *launch, void *context) {
    const struct options *options = context;
    (void)launch;
    return bench_calibrate(&options->bench, options->output);
}

int plan_calibrate_command(int argc, char **argv) {
    static const struct config_command command = {
        .name = "plan calibrate",
        .synopsis =
            "cambium plan calibrate --output FILE [MODEL] [--precision fp32|bf16|tf32] [--ranks N] [--threads N] "
            "[--micro-batch-size B] [--seq-length T] [--device NAME]",
        .description =
            "Measures this machine and writes its cluster file, of which a device is what one rank has while all ranks "
            "work. Products have the shapes of MODEL: a model directory, or gpt2-124m (when not given), gpt2-1.5b, "
            "smollm2-135m or qwen2.5-0.5b. Also measures steps of a few layers, and between ranks sums and messages by "
            "size and what "
            "computation hides of them. A predicted step next to a measured one ends the output.",
        .examples = "  cambium plan calibrate --output one.yaml\n"
                    "  cambium plan calibrate --output two.yaml --ranks 2\n"
                    "  mpirun -n 4 cambium plan calibrate --output four.yaml smollm2-135m\n",
        .rows = rows,
        .row_count = sizeof rows / sizeof *rows,
        .positional_offset = AT(words),
    };
    struct options options = {0};
    const struct launch_steps steps = {
        .command = &command, .values = &options, .may_disagree = true, .prepare = prepare, .run = run};
    return launch_command(&steps, argc, argv, &options);
}
