/* cambium quantize: a model in few bits. */
#include "commands.h"
#include "launch.h"

#include "ckpt/quantize.h"
#include "config/config.h"
#include "jobs/quantize.h"

#define AT(field) offsetof(struct quantize_job, field)
static const struct config_row rows[] = {
    ROW_PATH("model", AT(model), "DIR|FILE", "a model directory, or a GGUF file with plain weights",
             .is_required = true),
    ROW_PATH("output", AT(output), "DIR", "the directory to write", .is_required = true),
    ROW_CHOICE("format", AT(format), NULL, codec_format_names,
               "int4 and int8 for compressed-tensors (pack-quantized); fp8 in blocks of 128 x 128; nf4 for "
               "bitsandbytes, in blocks of 64, scaled twice; gptq in 4 bits (version 1)",
               .is_required = true),
    ROW_INT("group", AT(group), "0", -1, 128,
            "inputs that share a scale, for int4, int8 and gptq: 128, 64, 32, or -1 for whole rows. 0: the largest of "
            "these that divides every row; int8: -1"),
    ROW_BOOL("asymmetric", AT(has_zeros), "false", "give each group a zero too, for int4, int8 and gptq"),
    ROW_LIST("ignore", AT(ignore), "PATTERN...",
             "linears that stay as they are: names of modules, or re: and an expression of Python's for the beginning "
             "of a name"),
    ROW_INT("threads", AT(threads), "0", 0, 4096, "0: all cores"),
};

static const struct config_command command = {
    .name = "quantize",
    .synopsis = "cambium quantize --model DIR --output DIR --format int4|int8|fp8|nf4|gptq [OPTIONS]",
    .description =
        "Writes a model whose linears have 4 or 8 bits a weight, as transformers, vLLM and the formats' own libraries "
        "read it. Embedding, head, norms and biases stay as they are. Every command of Cambium opens the result. Equal "
        "input gives equal bytes.",
    .examples = "  cambium quantize --model out/gpt --output out/gpt-int4 --format int4\n"
                "  cambium quantize --model out/gpt --output out/gpt-nf4 --format nf4 --ignore 're:.*layers.0.'\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
};

static int run(const void *values, const struct config *given) {
    return quantize_job_run(values);
}

int command_quantize(int argc, char **argv) {
    return command_run(&command, argc, argv, &(struct quantize_job){0}, run);
}
