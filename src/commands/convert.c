/* cambium convert: a model of another system as a model directory. */
#include "commands.h"
#include "launch.h"

#include "base/base.h"
#include "config/config.h"
#include "convert/convert.h"

enum { WRITE_AUTO, WRITE_FP32, WRITE_BF16 };
static const char *const precisions[] = {"auto", "fp32", "bf16", NULL};

struct options {
    const char *from, *to;
    int precision;
};

static const struct config_row rows[] = {
    {.path = "from",
     .type = CONFIG_STRING,
     .offset = offsetof(struct options, from),
     .metavar = "FILE",
     .is_path = true,
     .is_required = true,
     .help = "a GGUF file of llama, mistral, qwen2, qwen3, phi3 or gpt2"},
    {.path = "to",
     .type = CONFIG_STRING,
     .offset = offsetof(struct options, to),
     .metavar = "DIR",
     .is_path = true,
     .is_required = true,
     .help = "the model directory to write"},
    {.path = "precision",
     .type = CONFIG_CHOICE,
     .offset = offsetof(struct options, precision),
     .choices = precisions,
     .default_text = "auto",
     .help = "of the written weights. auto keeps every value: bf16 if most of the file is bf16, else fp32"},
};

static const struct config_command command = {
    .name = "convert",
    .synopsis = "cambium convert --from FILE.gguf --to DIR",
    .description = "Converts a model with its tokenizer into a model directory, which every other command and "
                   "transformers open. It reads GGUF with weights of F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, "
                   "Q4_K, Q5_K and Q6_K; quantised weights become numbers.",
    .examples = "  cambium convert --from SmolLM2-135M-Instruct.Q4_1.gguf --to out/smollm2\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
    .positional_offset = SIZE_MAX,
};

/* Converts. Runs in one process of a launch. */
static int convert(const struct options *options) {
    static const enum dtype dtypes[] = {
        [WRITE_AUTO] = DTYPE_COUNT, [WRITE_FP32] = DTYPE_F32, [WRITE_BF16] = DTYPE_BF16};
    int status = convert_gguf(
        &(struct convert_request){.from = options->from, .to = options->to, .dtype = dtypes[options->precision]});
    if (!status)
        log_info("%s is written", options->to);
    return status;
}

static int run(struct launch *launch, void *context) {
    return launch_agree(launch, launch->is_first ? convert(context) : STATUS_OK);
}

int command_convert(int argc, char **argv) {
    struct options options = {0};
    const struct launch_steps steps = {.command = &command, .values = &options, .may_disagree = true, .run = run};
    return launch_command(&steps, argc, argv, &options);
}
