/* cambium grammar: checks constraints without a model. */
#include "commands.h"
#include "launch.h"

#include "config/config.h"
#include "jobs/grammar.h"

#define AT(field) offsetof(struct grammar_job, field)
static const struct config_row rows[] = {
    ROW_PATH("tokenizer", AT(tokenizer), "DIR", "a tokenizer's or a model's directory", .is_required = true),
    ROW_PATH("input", AT(input), "FILE.jsonl",
             "JSON lines with a constraint in one of the fields of requests, \"texts\" or \"tokens\" (lists of ids) to "
             "check, \"counts\" and \"id\"; - is standard input",
             .is_required = true),
    ROW_PATH("output", AT(output), "FILE.jsonl", "the answers, a line each, in order (default: standard output)"),
    ROW_INT("threads", AT(threads), "1", 1, 1024, "lines that are checked at once"),
    ROW_FLOAT("grammar-timeout", AT(timeout), "2", 0.001, 3600, "seconds in which a constraint must be compiled"),
};

static const struct config_command command = {
    .name = "grammar",
    .synopsis = "cambium grammar --tokenizer DIR --input FILE.jsonl [--output FILE.jsonl] [--threads N] "
                "[--grammar-timeout S]",
    .description =
        "Checks constraints on completions without a model: before a deployment, or when a request was refused. Each "
        "line's answer says whether the constraint compiles, why not, and which keywords are ignored. For each text "
        "it says whether all tokens are allowed, whether the text may end there, and how many ids were allowed.",
    .examples = "  echo '{\"regex\": \"[0-9]{2}\", \"texts\": [\"42\", \"4x\"]}' | cambium grammar --tokenizer model "
                "--input -\n"
                "  cambium grammar --tokenizer model --input schemas.jsonl --output answers.jsonl --threads 4\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
};

static int run(const void *values, const struct config *given) {
    return grammar_job_run(values);
}

int command_grammar(int argc, char **argv) {
    return command_run(&command, argc, argv, &(struct grammar_job){0}, run);
}
