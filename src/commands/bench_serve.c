/* cambium bench serve: reads its options, and passes options of serve to the server that it starts. */
#include "bench.h"
#include "commands.h"
#include "launch.h"
#include "model_arguments.h"

#include "base/base.h"
#include "base/json.h"
#include "bench/serve.h"

struct values {
    struct bench_serve_options options; /* first: bench_section_rows counts from its `engine` */
    int64_t ranks;
    int precision; /* index into model_precisions */
};
_Static_assert(offsetof(struct values, options.engine) == 0, "where bench_section_rows begins");

#define AT(field) offsetof(struct values, field)
static const struct config_row rows[] = {
    ROW_TEXT("url", AT(options.url), "URL",
             "a running server, http://HOST:PORT, of any program with /v1/completions; by default one is started"),
    ROW_PATH("model", AT(options.engine.model), "PATH",
             "model directory or GGUF file; by default GPT-2 124M with random weights. With --url the model whose "
             "vocabulary and "
             "positions the prompts fit"),
    ROW_CHOICE("scenario", AT(options.scenario), "streams", bench_scenarios, "scenario to measure"),
    ROW_INT("streams", AT(options.streams), "0", 0, 1e9, "completions at once; 0: 16"),
    ROW_INT("requests", AT(options.requests), "0", 0, 1e9,
            "number of requests: streams, bank, pipeline: in rounds of one for each stream; long-prompt: arriving "
            "prompts; swap: replacements; health: calls in a round; 0: the scenario's default"),
    ROW_INT("input-len", AT(options.input_len), "0", 0, 1e9,
            "tokens of a prompt; prefix: after the shared ones; long-prompt: of the arriving prompts; 0: 128, 16 and "
            "1,000 of 1,024 positions"),
    ROW_INT("output-len", AT(options.output_len), "0", 0, 1e9,
            "tokens of a completion; 0: 128 of 1,024 positions; long-prompt and swap: all remaining positions"),
    ROW_CHOICE("protocol", AT(options.protocol), "http", bench_protocols, "protocol of the requests"),
    ROW_CHOICE("precision", AT(precision), "auto", model_precisions,
               "precision of the computation; auto: the files' type, or fp32 for random weights"),
    CONFIG_DEVICE_ROW(AT(options.engine.device)),
    ROW_INT("threads", AT(options.engine.threads), "0", 0, 4096,
            "threads of each rank; 0: all cores, or one when ranks share them"),
    RANKS_ROW(AT(ranks), "ranks of the server, as threads of its process; 1 when not given"),
    ROW_INT("shared-prefix", AT(options.shared_prefix), "0", 0, 1e9,
            "prefix: tokens with which all prompts begin; 0: 512 of 1,024"),
    ROW_LIST("adapters", AT(options.adapters), "N|DIR...",
             "bank and swap: a number of adapters with random values, or directories, or names at --url; by default "
             "one of each kind"),
    ROW_CHOICE("method", AT(options.engine.peft.type), PEFT_DEFAULT_METHOD, peft_method_names,
               "method of adapters with random values; by default all kinds in turn. The section peft has its keys"),
    ROW_FLOAT("seconds", AT(options.seconds), "5", 0.1, 1e5, "idle: seconds without a request"),
};
/* Options that both get. Options that are not in `rows` are the server's. */
static const char *const shared[] = {"device", "precision", "threads", "ranks"};

static struct config_command describe(const struct config_row *sections, size_t count) {
    return (struct config_command){
        .name = "bench serve",
        .synopsis = "cambium bench serve [--url URL | --model PATH] [--scenario NAME] [OPTIONS] [OPTIONS OF SERVE]",
        .description =
            "Measures a server from a client in another process, and prints JSON lines, the summary last. Its keys are "
            "those of vLLM's server benchmark. The server is this program, started with all options that are not "
            "listed here, or a running one at --url. There are eight scenarios. 'streams' compares completions at once "
            "on the base with bare steps of the engine on the same rows. 'prefix' compares the time to the first "
            "token after a shared beginning with that after a new one. 'long-prompt' compares the gaps between tokens "
            "of all streams but one while a prompt arrives with their median afterwards. It also compares the "
            "prompts' first token with that of a single prompt. 'swap' compares the gaps while adapters are replaced "
            "with those without. 'bank' compares completions on adapters with as many on the base. 'pipeline' "
            "compares two stages with one. 'health' compares gRPC's health check, measured by h2load, with nghttpd's "
            "answers to GET of an empty file. 'idle' measures each rank's processor time without requests.",
        .examples = "  cambium bench serve --precision bf16 --threads 2\n"
                    "  cambium bench serve --precision bf16 --protocol grpc --streams 1\n"
                    "  cambium bench serve --model out/gpt --scenario bank --adapters 512 --method lora\n"
                    "  cambium bench serve --scenario idle --ranks 2 --parallel.tensor_model_parallel_size=2\n"
                    "  cambium bench serve --url http://127.0.0.1:8000 --streams 16 --input-len 16 --output-len 240\n",
        .rows = rows,
        .row_count = sizeof rows / sizeof *rows,
        .section_rows = sections,
        .section_row_count = count,
    };
}

/* ---- dividing the options ---- */

struct words {
    const char **benchmark, **server; /* [benchmark_count], [server_count] */
    int benchmark_count, server_count;
};

static bool is_named(const char *word, const char *path) {
    size_t length = strcspn(word + 2, "=");
    return !strncmp(word + 2, path, length) && !path[length];
}

/* Divides the words: each option, with its values, is the benchmark's, the server's, or both. */
static void divide(int argc, char **argv, const struct config_command *command, struct words *words) {
    bool is_benchmarks = true, is_servers = false;
    for (int i = 0; i < argc; i++) {
        bool is_option = !strncmp(argv[i], "--", 2);
        if (is_option || !strcmp(argv[i], "-h") || !strcmp(argv[i], "-V")) {
            is_benchmarks = !is_option || is_named(argv[i], "help") || is_named(argv[i], "version");
            is_servers = false;
            for (size_t k = 0; k < command->row_count; k++)
                is_benchmarks |= is_option && is_named(argv[i], command->rows[k].path);
            for (size_t k = 0; k < command->section_row_count; k++)
                is_benchmarks |= is_option && is_named(argv[i], command->section_rows[k].path);
            for (size_t k = 0; k < sizeof shared / sizeof *shared; k++)
                is_servers |= is_option && is_named(argv[i], shared[k]);
        }
        if (is_benchmarks)
            words->benchmark[words->benchmark_count++] = argv[i];
        if (is_servers || !is_benchmarks)
            words->server[words->server_count++] = argv[i];
    }
}

static int measure(struct values *values, const struct config *config, const struct words *words) {
    struct bench_serve_options *options = &values->options;
    options->engine.precision = values->precision - 1;
    options->ranks = (int)values->ranks;
    options->is_mixed = !config_is_given(config, "method");
    options->words = words->server;
    options->word_count = words->server_count;
    json_begin(); /* ended by each line that is printed */
    return bench_serve(options);
}

int bench_serve_command(int argc, char **argv) {
    size_t count;
    struct config_row *sections = bench_section_rows(false, &count);
    const struct config_command command = describe(sections, count);
    struct values values = {0};
    struct config *config = NULL;
    struct words words = {.benchmark = calloc((size_t)argc + 1, sizeof *words.benchmark),
                          .server = calloc((size_t)argc + 1, sizeof *words.server)};
    bool is_answered = false;
    int status = status_allocated(sections && words.benchmark && words.server);
    if (!status) {
        divide(argc, argv, &command, &words);
        status =
            config_parse(&command, words.benchmark_count, (char **)words.benchmark, &values, &config, &is_answered);
    }
    THEN_IF(status, !is_answered, measure(&values, config, &words));
    config_free(config);
    free(sections);
    free(words.benchmark);
    free(words.server);
    return command_exit_status(status);
}
