/* cambium convert: models and checkpoints, from one system's form into another's. */
#include "commands.h"
#include "launch.h"

#include "base/base.h"
#include "config/config.h"
#include "convert/convert.h"

static const char *const dtypes[] = {[CONVERT_AUTO] = "auto",     [CONVERT_FP32] = "fp32",
                                     [CONVERT_BF16] = "bf16",     [CONVERT_FP16] = "fp16",
                                     [CONVERT_Q8_0] = "q8_0",     [CONVERT_Q5_0] = "q5_0",
                                     [CONVERT_Q4_0] = "q4_0",     [CONVERT_Q6_K] = "q6_k",
                                     [CONVERT_Q4_K_M] = "q4_k_m", NULL};
static const char *const targets[] = {
    [CONVERT_MODEL] = "model",       [CONVERT_TENSORS] = "tensors", [CONVERT_DCP] = "dcp",
    [CONVERT_MEGATRON] = "megatron", [CONVERT_GGUF] = "gguf",       NULL};

struct options {
    const char *from, *output, *config, *tokenizer, *prefix;
    int to, dtype;
    int64_t files, tensor, max_shard_size;
};

#define AT(field) offsetof(struct options, field)
static const struct config_row rows[] = {
    ROW_PATH("from", AT(from), "PATH",
             "a GGUF file; or a directory: a distributed checkpoint of PyTorch or Megatron core, files of safetensors, "
             "a model, checkpoints (the newest is taken)",
             .is_required = true),
    ROW_CHOICE(
        "to", AT(to), NULL, targets,
        "model: a directory for every command; tensors: as they are, but quantised weights as plain values; dcp: the "
        "same for PyTorch; megatron; gguf: for llama.cpp",
        .is_required = true),
    ROW_PATH("output", AT(output), "PATH", "the directory to write, or the file", .is_required = true),
    ROW_PATH("config", AT(config), "FILE", "the model's config.json, if the source has none"),
    ROW_PATH("tokenizer", AT(tokenizer), "DIR", "the tokenizer's directory, if the source has none"),
    ROW_TEXT("prefix", AT(prefix), "TEXT",
             "before the model's names in the source; without it, the one prefix after which all parameters are found"),
    ROW_CHOICE(
        "dtype", AT(dtype), "auto", dtypes,
        "of a model's written weights, and of tensors that were quantised. auto keeps every value: bf16 if most of "
        "the source is bf16, else fp32. Those from q8_0 on are for GGUF. q4_k_m is llama.cpp's mixture"),
    ROW_INT("files", AT(files), "1", 1, 10000, "to divide the tensors of a distributed checkpoint into"),
    ROW_INT("tensor", AT(tensor), "1", 1, 1024,
            "tensor ranks of Megatron's run: zero rows pad the vocabulary to a multiple of 128 for each"),
    ROW_INT("max-shard-size", AT(max_shard_size), NULL, 1, 1e9,
            "of a file of safetensors in the output, its largest tensor permitting; 50000 if not given",
            .metavar = "MB"),
};

static const struct config_command command = {
    .name = "convert",
    .synopsis = "cambium convert --from PATH --to KIND --output PATH",
    .description =
        "Converts models and checkpoints of other systems. It reads distributed checkpoints of PyTorch and "
        "Megatron core, and the files of HuggingFaceStorageWriter. It also reads GGUF with weights of F32, F16, BF16, "
        "Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL and IQ4_XS; quantised weights become numbers. Pickles are "
        "read as data, and nothing in them is executed.",
    .examples = "  cambium convert --from SmolLM2-135M-Instruct.Q4_1.gguf --to model --output out/smollm2\n"
                "  cambium convert --from run/step-1000 --to model --output out/gpt --config config.json\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
};

/* Converts. Runs in one process of a launch. */
static int convert_once(const struct options *options) {
    int status = convert(&(struct convert_request){.from = options->from,
                                                   .to = (enum convert_target)options->to,
                                                   .output = options->output,
                                                   .config = options->config,
                                                   .tokenizer = options->tokenizer,
                                                   .prefix = options->prefix,
                                                   .type = (enum convert_type)options->dtype,
                                                   .files = (int)options->files,
                                                   .tensor = (int)options->tensor,
                                                   .max_shard_bytes = options->max_shard_size * 1000000});
    if (!status)
        log_info("%s is written", options->output);
    return status;
}

static int run(struct launch *launch, void *context) {
    return launch_agree(launch, launch->is_first ? convert_once(context) : STATUS_OK);
}

int command_convert(int argc, char **argv) {
    struct options options = {0};
    const struct launch_steps steps = {.command = &command, .values = &options, .may_disagree = true, .run = run};
    return launch_command(&steps, argc, argv, &options);
}
