/* cambium score: the log-probability of every token of given texts. */
#include "commands.h"
#include "model_arguments.h"

#include "config/run.h"
#include "jobs/score.h"

struct score_command {
    struct job_model base; /* first, for model_facts */
    struct adapter_names names;
    const char *input;
    int special_tokens; /* enum special_tokens */
};

#define AT(field) offsetof(struct score_command, field)
static const struct config_row rows[] = {
    MODEL_ROW(AT(base)),
    ROW_PATH("input", AT(input), "FILE.jsonl",
             "JSON lines with \"text\" or \"tokens\", and \"adapters\" (names) where other ones than --adapter's "
             "apply, as they are or packed by gzip; - is standard input",
             .is_required = true),
    SPECIAL_TOKENS_ROW("special-tokens", AT(special_tokens), "\"text\""),
    MODEL_ADAPTER_ROW(AT(base), MODEL_ADAPTER_OR_NAMED),
    ADAPTER_ROOT_ROW(AT(names)),
    MODEL_DEVICE_ROW(AT(base)),
    MODEL_COMPUTE_ROWS(AT(base)),
    MODEL_MAX_LEN_ROW(AT(base)),
    ADAPTER_MEMORY_ROW(AT(names)),
    MODEL_TOKENIZER_ROW(AT(base)),
    MODEL_RANKS_ROW(AT(base)),
    MODEL_LAYOUT_ROWS(AT(base)),
};

static const struct config_command command = {
    .name = "score",
    .synopsis = "cambium score --model PATH --input FILE.jsonl [OPTIONS]",
    .description =
        "Writes {\"tokens\":[...],\"logprobs\":[null,...]} for each line of the input: natural logarithms of the "
        "probability of each token after those before it. The first token of a line has one where an adapter of prompt "
        "tuning or p-tuning predicts it, else null. Several ranks, threads or processes of mpirun or srun, hold the "
        "model together; data-parallel ones share the lines.",
    .examples = "  echo '{\"text\":\"To be or not to be\"}' | cambium score --model out/gpt --input -\n"
                "  cambium score --model out/gpt --adapter-root adapters --input texts.jsonl\n"
                "  mpirun -n 2 cambium score --model out/gpt --input texts.jsonl "
                "--parallel.tensor_model_parallel_size=2\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
};

static int prepare(const struct launch *launch, const struct config *config, void *context) {
    struct score_command *c = context;
    int status = adapter_names_take(&c->base.adapters, &c->names);
    THEN(status, adapter_memory_check(&c->names, config));
    return status ? status : model_grid(&c->base, launch, true);
}

static int run(struct launch *launch, void *context) {
    const struct score_command *c = context;
    struct score_job job = {
        .model = &c->base, .names = &c->names, .input = c->input, .special_tokens = c->special_tokens};
    return launch_run(launch, rank_grid_size(&c->base.grid), score_job_run, &job);
}

int command_score(int argc, char **argv) {
    struct score_command values = {0};
    const struct launch_steps steps = {.command = &command,
                                       .values = &values,
                                       .watches = true,
                                       .prepare = prepare,
                                       .add_facts = model_facts,
                                       .run = run};
    return launch_command(&steps, argc, argv, &values);
}
