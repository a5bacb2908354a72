/* cambium bench WHAT: measures this machine and this program. */
#include "commands.h"

#include "base/base.h"
#include "bench.h"

#include <string.h>

static const char *const precisions[] = {"fp32", "bf16", NULL};
#define AT(field) offsetof(struct bench_options, field)
static const struct config_row rows[] = {
    {.path = "model",
     .type = CONFIG_STRING,
     .offset = AT(model),
     .default_text = "gpt2-124m",
     .metavar = "DIR",
     .is_path = true,
     .help = "gpt2-124m (random weights) or a model directory"},
    {.path = "micro-batch-size",
     .type = CONFIG_INT,
     .offset = AT(micro_batch_size),
     .default_text = "1",
     .minimum = 1,
     .maximum = 4096,
     .help = "samples of a training step, sequences of a decode step"},
    {.path = "seq-length",
     .type = CONFIG_INT,
     .offset = AT(seq_length),
     .default_text = "1024",
     .minimum = 1,
     .maximum = 1 << 20,
     .help = "tokens of each sample or prompt"},
    {.path = "precision",
     .type = CONFIG_CHOICE,
     .offset = AT(precision),
     .default_text = "fp32",
     .choices = precisions,
     .help = "to compute in; bench gemm and ops measure both when it is not given"},
    {.path = "steps",
     .type = CONFIG_INT,
     .offset = AT(steps),
     .default_text = "5",
     .minimum = 1,
     .maximum = 1e6,
     .help = "measured steps of train, prefill, decode and tokenizer; the median counts"},
    {.path = "threads",
     .type = CONFIG_INT,
     .offset = AT(threads),
     .default_text = "0",
     .minimum = 0,
     .maximum = 4096,
     .help = "to compute with; 0 is all cores"},
    {.path = "dropout",
     .type = CONFIG_BOOL,
     .offset = AT(has_dropout),
     .default_text = "true",
     .help = "train with the model's dropout"},
    {.path = "tokenizer",
     .type = CONFIG_STRING,
     .offset = AT(tokenizer),
     .metavar = "DIR",
     .is_path = true,
     .help = "bench tokenizer: the tokenizer"},
    {.path = "input",
     .type = CONFIG_STRING,
     .offset = AT(input),
     .metavar = "FILE",
     .is_path = true,
     .help = "bench tokenizer: the text"},
    {.path = "filter",
     .type = CONFIG_STRING,
     .offset = AT(filter),
     .metavar = "NAME",
     .help = "bench ops, gemm: only operations with this in their names"},
};

static const struct config_command command = {
    .name = "bench",
    .synopsis = "cambium bench gemm|ops|tokenizer|train|prefill|decode [OPTIONS]",
    .description =
        "Measures one thing and prints JSON lines, the summary last. Each figure stands beside a ceiling that was "
        "measured just before and after in the same run (FLOP/s of plain matrix products, or the streaming read); "
        "ratio is the share of it that was reached.",
    .examples = "  cambium bench train --micro-batch-size 4 --seq-length 256 --precision bf16\n"
                "  cambium bench decode --precision bf16 --micro-batch-size 16 --steps 64\n"
                "  cambium bench ops --filter layernorm\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
    .positional_offset = SIZE_MAX,
};

static const struct {
    const char *name;
    int (*run)(const struct bench_options *options);
} benches[] = {
    {"gemm", bench_gemm},   {"ops", bench_ops},         {"tokenizer", bench_tokenizer},
    {"train", bench_train}, {"prefill", bench_prefill}, {"decode", bench_decode},
};

int command_bench(int argc, char **argv) {
    struct bench_options values = {0};
    struct config *config = NULL;
    bool is_help = false, has_what = argc > 0 && argv[0][0] != '-';
    int status = config_parse(&command, argc - has_what, argv + has_what, &values, &config, &is_help);
    if (!status && !is_help) {
        values.has_precision = config_is_given(config, "precision");
        status = has_what ? status_fail(STATUS_USAGE,
                                        "bench: '%s' is not gemm, ops, tokenizer, train, prefill or decode", argv[0])
                          : status_fail(STATUS_USAGE, "bench wants gemm, ops, tokenizer, train, prefill or decode");
        for (size_t i = 0; i < sizeof benches / sizeof *benches; i++)
            if (has_what && !strcmp(argv[0], benches[i].name))
                status = benches[i].run(&values);
    }
    config_free(config);
    return command_exit_status(status);
}
