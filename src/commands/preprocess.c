/* cambium preprocess: texts to tokenized datasets. */
#include "commands.h"
#include "launch.h"

#include "base/base.h"
#include "config/config.h"
#include "data/data.h"
#include "parallel/site.h"
#include "pretrained/pretrained.h"
#include "text/text.h"

struct options {
    struct preprocess_options preprocess;
    const char *tokenizer;
    int64_t ranks; /* 0: not given */
};

#define AT(field) offsetof(struct options, field)
static const char *const formats[] = {"auto", "jsonl", "file", "line", "delimiter", NULL}; /* enum corpus_format */
static const struct config_row rows[] = {
    ROW_PATHS("input", AT(preprocess.inputs), "FILE...", "JSON lines or plain text, uncompressed or gzip",
              .is_required = true),
    ROW_PATH("tokenizer", AT(tokenizer), "DIR", "tokenizer directory (tokenizer.json, or vocab.json and merges.txt)",
             .is_required = true),
    ROW_PATH("output-prefix", AT(preprocess.output_prefix), "P",
             "writes P_KEY_document.bin and .idx for each JSON key (KEY is text for plain text)", .is_required = true),
    ROW_BOOL("append-eod", AT(preprocess.append_eod), "false",
             "put the tokenizer's end-of-text token after each document that is not empty"),
    ROW_INT("workers", AT(preprocess.workers), "0", 0, 256,
            "tokenizing threads of each rank; 0: one for each processor, shared by the ranks of a machine",
            .may_differ = true),
    ROW_LIST("json-keys", AT(preprocess.json_keys), "K...",
             "keys of the JSON objects with the texts (a string, or a list of strings); each becomes a dataset",
             .default_text = "text"),
    ROW_CHOICE("format", AT(preprocess.format), "auto", formats,
               "jsonl: an object a line; plain text: a document a file, a document a line, or documents between "
               "delimiter lines; auto: file for names in .txt and .text, else jsonl"),
    ROW_TEXT("delimiter", AT(preprocess.delimiter), "LINE", "with format delimiter: the line between documents",
             .default_text = "%"),
    RANKS_ROW(AT(ranks),
              "ranks that share the input, as threads of this process; 1 when not given, and under mpirun or "
              "srun theirs"),
};
static const struct config_command preprocess_command = {
    .name = "preprocess",
    .synopsis = "cambium preprocess --input FILE... --tokenizer DIR --output-prefix P [--append-eod] [--workers N]",
    .description = "Tokenizes texts into datasets of Megatron's format (.bin and .idx), in the order of the files "
                   "whatever the number of workers. Prints the prefixes to give as data_path. A dataset appears "
                   "whole or not at all, and is the same whatever the number of ranks.",
    .examples =
        "  cambium preprocess --input corpus.jsonl.gz --tokenizer tokenizer --output-prefix corpus --append-eod\n"
        "  cambium preprocess --input *.jsonl --json-keys title body --tokenizer tokenizer --output-prefix papers\n"
        "  cambium preprocess --input /usr/share/games/fortunes/fortunes --format delimiter --append-eod \\\n"
        "      --tokenizer tokenizer --output-prefix fortunes\n"
        "  mpirun -n 4 cambium preprocess --input *.jsonl --tokenizer tokenizer --output-prefix corpus --append-eod\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
};

static void report(const struct preprocess_options *options, const struct preprocess_count *counts, double seconds) {
    for (size_t k = 0; k < preprocess_key_count(options); k++) {
        const char *key = preprocess_key(options, k);
        log_info("%s_%s_document: %lld documents, %lld tokens, %.1f s", options->output_prefix, key,
                 (long long)counts[k].documents, (long long)counts[k].tokens, seconds);
        printf("%s_%s_document\n", options->output_prefix, key);
    }
}

/* Runs one rank. */
static int run_rank(struct comm *world, void *context) {
    struct options options = *(const struct options *)context;
    struct rank_site site;
    double start = clock_seconds();
    struct preprocess_count *counts = calloc(options.preprocess.json_keys.count + 1, sizeof *counts);
    int status = comm_agree(world, status_allocated(counts));
    log_quiet(world->rank > 0);
    if (!status && world->size > 1) {
        status = rank_site_find(world, (int)options.preprocess.workers, &site);
        options.preprocess.workers = site.threads;
    }
    THEN(status, preprocess_run(&options.preprocess, world, counts));
    if (!status && world->rank == 0)
        report(&options.preprocess, counts, clock_seconds() - start);
    free(counts);
    return status;
}

/* Adds a fact about an input file. Only the first rank reads a pipe. */
static int add_input(const char *path, struct facts *facts) {
    bool is_pipe = file_size(path) == STATUS_INVALID && !file_is_directory(path);
    return is_pipe ? facts_add(facts, FACT_FILES, "--input", path, "a pipe") : facts_add_file(facts, "--input", path);
}

struct preprocessing {
    struct options *options;
    int ranks;
    struct tokenizer_files files;
    struct tokenizer *tokenizer;
};

static int prepare(const struct launch *launch, const struct config *config, void *context) {
    struct preprocessing *p = context;
    int status = launch_ranks(launch, p->options->ranks, &p->ranks);
    THEN(status, pretrained_read_tokenizer(p->options->tokenizer, &p->files));
    THEN(status, tokenizer_open_files(&p->files, &p->tokenizer));
    p->options->preprocess.tokenizer = p->tokenizer;
    return status ? status : preprocess_check(&p->options->preprocess);
}

/* Adds facts about the files that it reads. */
static int add_facts(void *context, struct facts *facts) {
    const struct preprocessing *p = context;
    const struct config_list *inputs = &p->options->preprocess.inputs;
    int status = tokenizer_files_facts(&p->files, facts);
    for (size_t i = 0; i < inputs->count && !status; i++)
        status = add_input(inputs->items[i], facts);
    return status;
}

static int run(struct launch *launch, void *context) {
    struct preprocessing *p = context;
    int status = launch_run(launch, p->ranks, run_rank, p->options);
    launch->is_reported |= launch->world && status == STATUS_PEER;
    if (status && launch->world && !launch->is_reported)
        status_wrap(status, "rank %d", launch->world->rank);
    THEN_IF(status, (fflush(stdout) || ferror(stdout)), status_fail_errno("cannot write standard output"));
    return status;
}

static void close_all(void *context) {
    struct preprocessing *p = context;
    tokenizer_close(p->tokenizer);
    tokenizer_files_free(&p->files);
}

int command_preprocess(int argc, char **argv) {
    struct options options = {0};
    struct preprocessing p = {.options = &options};
    const struct launch_steps steps = {.command = &preprocess_command,
                                       .values = &options,
                                       .prepare = prepare,
                                       .add_facts = add_facts,
                                       .run = run,
                                       .close = close_all};
    stop_watch_begin();
    int exit_status = launch_command(&steps, argc, argv, &p);
    stop_watch_end();
    return exit_status;
}
