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
    ROW_PATH("output", AT(output), "FILE", "write the cluster file here", .is_required = true),
    ROW_CHOICE("precision", AT(bench.precision), "bf16", plain_precision_names,
               "the precision in which products and steps are measured"),
    RANKS_ROW(AT(bench.ranks), "ranks that work at the same time, as threads of this process; 1 when not given, and "
                               "under mpirun or srun theirs"),
    CONFIG_DEVICE_ROW(AT(bench.device)),
    ROW_INT("threads", AT(bench.threads), "0", 0, 4096,
            "threads of each rank; 0: all cores, or one when ranks share them"),
    ROW_INT("micro-batch-size", AT(bench.micro_batch_size), "1", 1, 4096, "samples of a micro batch"),
    ROW_INT("seq-length", AT(bench.seq_length), "1024", 1, 1 << 20,
            "tokens of a sample; at most the model's positions"),
};

static int prepare(const struct launch *launch, const struct config *config, void *context) {
    struct options *options = context;
    int ranks, status = launch_ranks(launch, options->bench.ranks, &ranks);
    THEN_IF(status, options->words.count > 1, status_fail(STATUS_USAGE, "plan calibrate takes at most one model"));
    options->bench.ranks = ranks;
    options->bench.world = launch->world;
    options->bench.model = options->words.count ? options->words.items[0] : "gpt2-124m";
    return status;
}

static int run(struct launch *launch, void *context) {
    const struct options *options = context;
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
        .takes_words = true,
        .words_offset = AT(words),
    };
    struct options options = {0};
    const struct launch_steps steps = {
        .command = &command, .values = &options, .may_disagree = true, .prepare = prepare, .run = run};
    return launch_command(&steps, argc, argv, &options);
}
