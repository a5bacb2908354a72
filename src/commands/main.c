/* cambium COMMAND ...: finds the command and runs it. */
#include "commands.h"
#include "launch.h"

#include "base/base.h"
#include "config/config.h"

#include <signal.h>
#include <unistd.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} commands[] = {
    {"tokenizer", command_tokenizer, "train a byte-level BPE tokenizer on text files"},
    {"tokenize", command_tokenize, "text lines to token ids, standard input to standard output"},
    {"detokenize", command_detokenize, "token ids to text lines, standard input to standard output"},
    {"preprocess", command_preprocess, "texts to a tokenized dataset (.bin and .idx)"},
    {"data", command_data, "show what the trainer will see of a dataset"},
    {"pretrain", command_pretrain, "train a GPT"},
    {"finetune", command_finetune, "train an adapter, or all weights, of a model"},
    {"generate", command_generate, "write completions with a trained model"},
    {"chat", command_chat, "talk with a model in a terminal"},
    {"serve", command_serve, "answer requests over HTTP and gRPC"},
    {"grammar", command_grammar, "check constraints on completions without a model"},
    {"score", command_score, "log-probability of every token of given texts"},
    {"eval", command_eval, "run benchmarks on a model"},
    {"adapter", command_adapter, "show what an adapter is"},
    {"merge", command_merge, "fold adapters into a model"},
    {"convert", command_convert, "convert models and checkpoints of other systems"},
    {"quantize", command_quantize, "write a model in 4 or 8 bits"},
    {"plan", command_plan, "find what a cluster would do, without the cluster"},
    {"verify", command_verify, "prove that trainer and server compute the same bits"},
    {"bench", command_bench, "measure this machine and this program"},
};
enum { COMMAND_COUNT = sizeof commands / sizeof *commands };

static void print_help(FILE *out) {
    fprintf(out, "usage: cambium COMMAND [OPTIONS]\n\n"
                 "Pretrains a GPT on your text, tunes it with adapters and serves it. The usual order:\n\n");
    for (int i = 0; i < COMMAND_COUNT; i++)
        fprintf(out, "  %-12s %s\n", commands[i].name, commands[i].summary);
    fprintf(out, "\n'cambium help COMMAND' explains a command, and 'cambium --version' prints the version.\n"
                 "tools/quickstart runs them all once.\n\n"
                 "examples:\n"
                 "  cambium help finetune\n"
                 "  cambium finetune --model model --peft lora --data rows.jsonl --output adapter\n"
                 "  cambium generate --model model --adapter adapter --prompt 'Once upon a time'\n");
}

static int flush_output(void) {
    bool is_written = !fflush(stdout) && !ferror(stdout);
    return command_exit_status(is_written ? STATUS_OK : status_fail_errno("cannot write to standard output"));
}

/* SIGTERM ends the program with a line, unless a command watches for it. */
static void end_at_once(int signal_number) {
    static const char line[] = "cambium: stopped by SIGTERM\n";
    ssize_t written = write(STDERR_FILENO, line, sizeof line - 1);
    (void)written;
    _exit(1);
}

/* Runs before main, because the libraries take some milliseconds to start. */
__attribute__((constructor(101))) static void begin(void) {
    signal(SIGTERM, end_at_once);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    signal(SIGXFSZ, SIG_IGN); /* exceeding the limit of a file's size is then an error, like a full disk */
    static char help[] = "--help";
    if (argc > 2 && !strcmp(argv[1], "help")) { /* "help COMMAND ..." becomes "COMMAND ... --help" */
        memmove(argv + 1, argv + 2, (size_t)(argc - 2) * sizeof *argv);
        argv[argc - 1] = help;
    }
    const char *word = argv[1];
    if (!strcmp(word, "--help") || !strcmp(word, "-h") || !strcmp(word, "help")) {
        print_help(stdout);
        return flush_output();
    }
    if (!strcmp(word, "--version") || !strcmp(word, "-V")) {
        config_print_version(stdout);
        return flush_output();
    }
    const char *names[COMMAND_COUNT];
    for (int i = 0; i < COMMAND_COUNT; i++) {
        names[i] = commands[i].name;
        if (!strcmp(word, commands[i].name)) {
            int status = stop_handle_apart();
            return status ? command_exit_status(status) : commands[i].run(argc - 2, argv + 2);
        }
    }
    const char *nearest = config_nearest(word, names, COMMAND_COUNT);
    log_error("unknown command '%s'%s%s%s; 'cambium --help' lists them", word, nearest ? " (did you mean '" : "",
              nearest ? nearest : "", nearest ? "'?)" : "");
    return 2;
}
