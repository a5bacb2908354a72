/* cambium verify serving: the forward that trains and the engine compute the same bits. */
#include "launch.h"
#include "model_arguments.h"
#include "verify.h"

#include "config/run.h"
#include "jobs/verify_serving.h"

struct verify_command {
    struct job_model base; /* first, for model_facts */
    const char *input, *dump;
    int special_tokens; /* enum special_tokens */
    bool differs;       /* the result, on the first rank */
};

/* Those of every command, and one that is refused by its name. */
static const char *const precisions[] = {"auto", "fp32", "bf16", "tf32", "fp8", NULL};
enum { FP8 = 4 };

#define AT(field) offsetof(struct verify_command, field)
static const struct config_row rows[] = {
    MODEL_ROW(AT(base)),
    MODEL_ADAPTER_ROW(AT(base), "adapters on the model, from finetune or PEFT, or a directory of several; all apply"),
    ROW_PATH(
        "input", AT(input), "FILE.jsonl",
        "texts to compare, as JSON lines with \"text\" or \"tokens\", plain or packed by gzip; 8 random texts when "
        "not given"),
    ROW_PATH("dump", AT(dump), "DIR",
             "a new or empty directory for training.safetensors and serving.safetensors: all log-probabilities"),
    SPECIAL_TOKENS_ROW("special-tokens", AT(special_tokens), "\"text\""),
    MODEL_DEVICE_ROW(AT(base)),
    CONFIG_INVARIANT_ROW(AT(base.batch_invariant)),
    CONFIG_COLLECTIVES_ROW(AT(base.collectives)),
    CONFIG_ALGORITHMS_ROW(AT(base.gemm_algorithms)),
    MODEL_LOAD_IN_ROW(AT(base)),
    ROW_CHOICE("precision", AT(base.precision), "auto", precisions,
               "precision of the computation; auto: the files' type; fp8 has no zero gap"),
    MODEL_THREADS_ROW(AT(base)),
    RECEIPTS_ROW(AT(base.receipts)),
    MODEL_TOKENIZER_ROW(AT(base)),
    MODEL_RANKS_ROW(AT(base)),
    MODEL_LAYOUT_ROW(AT(base), tensor, "tensor_model_parallel_size", "1", 1, "ranks that share each layer"),
};

static const struct config_command command = {
    .name = "verify serving",
    .synopsis = "cambium verify serving --model PATH [--adapter DIR...] [OPTIONS]",
    .description =
        "Computes log-probabilities over the whole vocabulary twice: in the forward that trains, and in the engine. "
        "The engine runs prefill, prefill in chunks, decode, a prefix hit, and rows among those of other texts. "
        "Prints one JSON line for each path, then a summary. Exits with 0 if all bits are equal, else with 1.",
    .examples = "  cambium verify serving --model out/gpt\n"
                "  cambium verify serving --model model --adapter adapter --precision bf16 --input texts.jsonl\n"
                "  cambium verify serving --model model --ranks 2 --parallel.tensor_model_parallel_size=2\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
};

static int prepare(const struct launch *launch, const struct config *config, void *context) {
    struct verify_command *c = context;
    c->base.pipeline = 1;
    if (c->base.precision == FP8)
        return status_fail(STATUS_USAGE, "fp8 has no zero gap: its scales follow the batch");
    TRY(verify_check_dump(c->dump));
    return model_grid(&c->base, launch, false);
}

static int run(struct launch *launch, void *context) {
    struct verify_command *c = context;
    struct verify_serving job = {
        .model = &c->base, .input = c->input, .dump = c->dump, .special_tokens = c->special_tokens};
    TRY(launch_run(launch, rank_grid_size(&c->base.grid), verify_serving_run, &job));
    c->differs = launch->is_first && !job.is_equal;
    return STATUS_OK;
}

int verify_serving_command(int argc, char **argv) {
    struct verify_command values = {0};
    const struct launch_steps steps = {.command = &command,
                                       .values = &values,
                                       .watches = true,
                                       .prepare = prepare,
                                       .add_facts = model_facts,
                                       .run = run};
    int exit_status = launch_command(&steps, argc, argv, &values);
    return exit_status ? exit_status : values.differs;
}
