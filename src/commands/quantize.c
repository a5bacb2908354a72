/* cambium quantize: a model in few bits. */
#include "commands.h"
#include "launch.h"

#include "ckpt/quantize.h"
#include "config/config.h"
#include "jobs/quantize.h"
#include "pretrained/pretrained.h"

static const char *const precisions[] = {"auto", "fp32", "bf16", NULL};
static const char *const methods[] = {"auto", "nearest", "awq", "gptq", NULL};

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
    ROW_CHOICE(
        "method", AT(method), "auto", methods,
        "how codes are chosen. nearest rounds each weight. awq, for int4, first scales inputs (arXiv 2306.00978). "
        "gptq, for "
        "int4 and gptq, spreads each error over later inputs (arXiv 2210.17323). Both follow --data. auto: gptq for "
        "gptq, else nearest"),
    ROW_PATH(
        "data", AT(data), "FILE.jsonl|FILE.txt",
        "texts to run through the model: JSON lines with \"text\", \"tokens\" or \"messages\", or plain text. A tenth "
        "is held back to measure what was lost"),
    ROW_INT("samples", AT(samples), "128", 10, 1000000, "pieces of --data"),
    ROW_INT("seq-length", AT(seq_length), "2048", 16, 1 << 20, "tokens of a piece, within the model's positions"),
    ROW_INT("seed", AT(seed), "0", 0, INT32_MAX, "of the choice of pieces"),
    ROW_CHOICE("precision", AT(precision), "auto", precisions,
               "of the samples' way through the model: fp32 or bf16; auto: bf16 for a model in bf16, else fp32"),
    ROW_INT("threads", AT(threads), "0", 0, 4096, "of each rank; 0: all cores, which ranks share"),
    RANKS_ROW(AT(ranks), "ranks that share the samples of --data, as threads of this process; 1 when not given, and "
                         "under mpirun or srun theirs. The files have the same bytes for any number of them"),
};

static const struct config_command command = {
    .name = "quantize",
    .synopsis = "cambium quantize --model DIR --output DIR --format int4|int8|fp8|nf4|gptq [OPTIONS]",
    .description =
        "Writes a model whose linears have 4 or 8 bits a weight, as transformers, vLLM and the formats' own libraries "
        "read it. Embedding, head, norms and biases stay as they are. Every command of Cambium opens the result. Equal "
        "input gives equal bytes.",
    .examples = "  cambium quantize --model out/gpt --output out/gpt-int4 --format int4\n"
                "  cambium quantize --model out/gpt --output out/gpt-nf4 --format nf4 --ignore 're:.*[.]0[.]'\n"
                "  mpirun -n 4 cambium quantize --model out/gpt --output out/gpt-gptq --format gptq --data a.txt\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
};

struct quantizing {
    struct quantize_job job; /* first, as the values of the options */
    int ranks;
};

static int prepare(const struct launch *launch, const struct config *config, void *context) {
    struct quantizing *q = context;
    int status = launch_ranks(launch, q->job.ranks, &q->ranks);
    if (!status && q->ranks > 1 && !q->job.data)
        status = status_fail(STATUS_USAGE, "--ranks %d needs --data, whose samples ranks share", q->ranks);
    return status;
}

static int add_facts(void *context, struct facts *facts) {
    const struct quantizing *q = context;
    int status = pretrained_facts(q->job.model, facts);
    THEN_IF(status, q->job.data, facts_add_file(facts, "--data", q->job.data));
    return status;
}

static int run(struct launch *launch, void *context) {
    struct quantizing *q = context;
    return launch_run(launch, q->ranks, quantize_job_run, &q->job);
}

int command_quantize(int argc, char **argv) {
    struct quantizing values = {0};
    const struct launch_steps steps = {.command = &command,
                                       .values = &values,
                                       .watches = true,
                                       .prepare = prepare,
                                       .add_facts = add_facts,
                                       .run = run};
    return launch_command(&steps, argc, argv, &values);
}
