/* cambium eval: benchmarks of a model, with the figures of EleutherAI's lm_eval. */
#include "commands.h"
#include "model_arguments.h"

#include "base/stop.h"
#include "jobs/eval.h"

struct eval_command {
    struct job_model base; /* first, for model_facts */
    struct config_list tasks;
    struct eval_job job;
    struct eval_task *read; /* [tasks.count] */
};

#define AT(field) offsetof(struct eval_command, field)
static const struct config_row rows[] = {
    MODEL_ROW(AT(base)),
    ROW_LIST("task", AT(tasks), "NAME=FILE.jsonl...",
             "a task and the file of its rows, JSON lines, plain or packed by gzip. Names are hellaswag, "
             "lambada_openai, lambada_standard, wikitext, piqa, winogrande, boolq, arc_easy, arc_challenge and race. "
             "choice, text and generate take your own data",
             .is_required = true),
    ROW_PATH("output", AT(job.output), "FILE.json", "write the metrics as JSON"),
    ROW_PATH("samples", AT(job.samples), "FILE.jsonl",
             "write each request: its tokens, the sum of their log-probabilities, and whether each is the likeliest; "
             "or the completion"),
    MODEL_ADAPTER_ROW(AT(base), "adapters on the model, from finetune or PEFT, or a directory of several; all apply"),
    ROW_INT("limit", AT(job.limit), "0", 0, 1e15, "rows of each task; 0: all"),
    ROW_INT("num-fewshot", AT(job.shots), "0", 0, 1000,
            "examples before each row, with an empty line between them: the first rows, never the row itself",
            .metavar = "K"),
    ROW_PATH("fewshot-data", AT(job.shots_path), "FILE.jsonl",
             "rows to take the examples from; the task's own rows when not given"),
    ROW_INT("fewshot-seed", AT(job.shots_seed), "-1", -1, 4294967295,
            "draw the examples, as lm_eval does with this seed; -1: take the first rows", .metavar = "N"),
    ROW_LIST("until", AT(job.until), "TEXT...",
             "texts that end a completion of the task generate; an empty line when not given"),
    ROW_INT("max-gen-toks", AT(job.max_gen_toks), "0", 0, 1e9,
            "tokens of a completion; 0: 256, or half of what the model sees where that is less", .metavar = "N"),
    CHAT_TEMPLATE_ROW("chat-template", AT(job.chat_template), "messages",
                      "as the adapter's training had it, or the tokenizer's own"),
    SPECIAL_TOKENS_ROW("special-tokens", AT(job.special_tokens), "rows"),
    ROW_INT("max-length", AT(base.max_model_len), "0", 0, 1e9,
            "tokens that the model sees at once; 0: the model's positions"),
    MODEL_DEVICE_ROW(AT(base)),
    MODEL_COMPUTE_ROWS(AT(base)),
    MODEL_TOKENIZER_ROW(AT(base)),
    MODEL_RANKS_ROW(AT(base)),
    MODEL_LAYOUT_ROWS(AT(base)),
};

static const struct config_command command = {
    .name = "eval",
    .synopsis = "cambium eval --model PATH --task NAME=FILE.jsonl... [OPTIONS]",
    .description =
        "Runs standard benchmarks, with or without examples, and prints their metrics; tokens, texts and metrics are "
        "those of EleutherAI's lm_eval. Rows come from your files, with the field names of the data sets; nothing is "
        "fetched. The task choice takes {\"context\", \"choices\", \"gold\"}, text takes {\"text\"}, and "
        "generate takes {\"context\", \"answer\"}; \"messages\" may take the place of \"context\". On Ctrl-C it "
        "prints and writes what is finished. Several ranks, threads or processes of mpirun or srun, hold the model "
        "together; data-parallel ones share the rows.",
    .examples =
        "  cambium eval --model out/gpt --task hellaswag=hellaswag_val.jsonl --output metrics.json\n"
        "  cambium eval --model out/gpt --task wikitext=wikitext.jsonl lambada_openai=lambada.jsonl.gz\n"
        "  cambium eval --model out/gpt --adapter out/adapter --task choice=mine.jsonl --samples requests.jsonl\n"
        "  cambium eval --model out/gpt --task generate=questions.jsonl --num-fewshot 5 --fewshot-data solved.jsonl\n"
        "  cambium eval --model out/gpt --task arc_easy=arc.jsonl --limit 100 --ranks 2 "
        "--parallel.tensor_model_parallel_size=2\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
};

/* Refuses options that do nothing for these tasks. */
static int check(const struct eval_command *c, const struct config *config) {
    static const char *const of_completions[] = {"until", "max-gen-toks"}, *const of_shots[] = {"fewshot-data",
                                                                                                "fewshot-seed"};
    bool generates = false;
    for (size_t i = 0; i < c->tasks.count; i++) {
        generates |= c->read[i].task->kind == TASK_GENERATE;
        if (c->job.shots && c->read[i].task->kind == TASK_ROLLING)
            return status_fail(STATUS_USAGE, "--num-fewshot does nothing for %s, whose texts have no questions",
                               c->read[i].task->name);
    }
    for (int i = 0; i < 2; i++) {
        if (!generates && config_is_given(config, of_completions[i]))
            return status_fail(STATUS_USAGE, "--%s is for the task generate", of_completions[i]);
        if (!c->job.shots && config_is_given(config, of_shots[i]))
            return status_fail(STATUS_USAGE, "--%s does nothing without --num-fewshot", of_shots[i]);
    }
    return STATUS_OK;
}

static int prepare(const struct launch *launch, const struct config *config, void *context) {
    struct eval_command *c = context;
    c->read = calloc(c->tasks.count, sizeof *c->read);
    TRY(status_allocated(c->read));
    int status = eval_tasks_read(&c->tasks, c->read);
    THEN(status, check(c, config));
    return status ? status : model_grid(&c->base, launch, true);
}

static int run(struct launch *launch, void *context) {
    struct eval_command *c = context;
    c->job.model = &c->base;
    c->job.tasks = c->read;
    c->job.task_count = (int64_t)c->tasks.count;
    c->job.version = CAMBIUM_VERSION;
    stop_watch_begin();
    int status = launch_run(launch, rank_grid_size(&c->base.grid), eval_job_run, &c->job);
    stop_watch_end();
    if (!status && c->job.signal)
        status = status_fail(STATUS_INTERRUPTED, "interrupted by %s: the figures are of the rows before it",
                             stop_name(c->job.signal));
    return status;
}

static void close_command(void *context) {
    free(((struct eval_command *)context)->read);
}

int command_eval(int argc, char **argv) {
    struct eval_command values = {0};
    const struct launch_steps steps = {.command = &command,
                                       .values = &values,
                                       .watches = true,
                                       .prepare = prepare,
                                       .add_facts = model_facts,
                                       .run = run,
                                       .close = close_command};
    return launch_command(&steps, argc, argv, &values);
}
