/* cambium bench WHAT: measures this machine and this program. */
#include "commands.h"

#include "base/json.h"
#include "bench.h"
#include "bench/bench.h"
#include "infer/tuner.h"
#include "launch.h"

#include "pretrained/encodings.h"

#define AT(field) offsetof(struct bench_options, field)
static const struct config_row rows[] = {
    ROW_PATH("model", AT(model), "PATH",
             "gpt2-124m, gpt2-1.5b, smollm2-135m, qwen2.5-0.5b or llama-3.1-8b (random weights), or a model directory "
             "or GGUF file",
             .default_text = "gpt2-124m"),
    ROW_INT("layers", AT(layers), "0", 0, 10000, "layers of a model with random weights; 0: its own number"),
    ROW_CHOICE("load-in", AT(load_in), "none", load_in_names,
               "bench prefill, decode, load, engine, finetune: as --load-in of generate and finetune"),
    ROW_CHOICE("precision", AT(precision), "fp32", precision_names,
               "precision of the computation; fp8 is for train, finetune and gemm --tune; bench gemm and ops measure "
               "all when it is not given"),
    ROW_INT("micro-batch-size", AT(micro_batch_size), "1", 1, 4096,
            "samples of a training step, or sequences of a decode step"),
    ROW_INT("seq-length", AT(seq_length), "1024", 1, 1 << 20, "tokens of each sample or prompt"),
    ROW_INT("steps", AT(steps), "5", 1, 1e6,
            "number of measurements: steps of train, finetune, prefill, decode and tokenizer, saves of checkpoint, "
            "rounds of engine; the median counts"),
    CONFIG_DEVICE_ROW(AT(device)),
    ROW_INT("threads", AT(threads), "0", 0, 4096, "threads of each rank; 0: all cores, or one when ranks share them"),
    RANKS_ROW(AT(ranks), "bench train, checkpoint: ranks, as threads of this process; 1 when not given, and under "
                         "mpirun or srun theirs"),
    ROW_CHOICE("method", AT(peft.type), PEFT_DEFAULT_METHOD, peft_method_names,
               "bench finetune, engine: the method; the section peft has its keys"),
    ROW_TEXT("filter", AT(filter), "NAME",
             "bench ops, gemm, engine: only operations or figures whose names contain this"),
    ROW_BOOL("check", AT(only_checks), "false",
             "bench ops: do not measure, but compare the operations' test cases with fp64 on the device"),
    ROW_BOOL("peer", AT(has_peer), "false",
             "bench train, finetune, prefill, decode: compare with PyTorch (compiled), PEFT or transformers on the "
             "same shape, in --peer-python, a step of each in turn"),
    ROW_TEXT("peer-python", AT(peer_python), "PYTHON",
             "bench tokenizer: a Python with tiktoken and tokenizers, which are measured if it has them; with --peer: "
             "a Python with torch, transformers and peft",
             .default_text = "python3"),
    ROW_INT(
        "global-batch-size", AT(global_batch_size), NULL, 1, 1 << 20,
        "bench train, finetune, checkpoint: samples of a step; by default one micro batch of each data-parallel rank"),
    ROW_BOOL("baseline", AT(has_baseline), "true",
             "bench train: compare with a single rank that has as many threads and keeps all activations, a step of "
             "each in turn; not under mpirun or srun"),
    ROW_BOOL("dropout", AT(has_dropout), "true", "train with the model's dropout"),
    CONFIG_ALGORITHMS_ROW(AT(gemm_algorithms)),
    ROW_PATH("tune", AT(tune), "FILE",
             "bench gemm: do not measure cases, but the algorithms that a GPU's library proposes for the products of "
             "--model: a training step, decode steps and a prompt. Writes a file for --gemm-algorithms"),
    ROW_BOOL("batch-invariant", AT(is_batch_invariant), "false",
             "bench prefill, decode: as --batch-invariant on of generate and serve"),
    ROW_PATH("tokenizer", AT(tokenizer), "DIR", "bench tokenizer: the tokenizer"),
    ROW_PATH("input", AT(input), "FILE", "bench tokenizer: the text"),
};

struct config_row *bench_section_rows(bool has_layouts, size_t *count) {
    const struct config_row *key;
    size_t keys = 0;
    while (peft_key(keys))
        keys++;
    struct config_row *all = malloc((run_row_count + keys) * sizeof *all);
    *count = 0;
    for (size_t i = 0; all && has_layouts && i < run_row_count; i++)
        if (!strncmp(run_rows[i].path, "parallel.", 9)) {
            all[*count] = run_rows[i];
            all[(*count)++].offset += AT(run);
        }
    for (size_t i = 0; all && (key = peft_key(i)); i++) {
        all[*count] = *key;
        all[(*count)++].offset += AT(peft);
    }
    return all;
}

static struct config_command describe(const struct config_row *sections, size_t count) {
    return (struct config_command){
        .name = "bench",
        .synopsis =
            "cambium bench gemm|ops|tokenizer|train|finetune|checkpoint|load|prefill|decode|engine|serve [OPTIONS]",
        .description =
            "Measures one thing and prints JSON lines, the summary last. Each figure is compared with a ceiling that "
            "is measured before and after it in the same run: FLOP/s of plain matrix products, or a streaming read. "
            "`ratio` is the share of the ceiling that was reached. 'train' accepts the layouts of pretrain, and "
            "reports their cost compared with one rank. For data-parallel processes it reports what the overlap of "
            "communication and computation saves. 'finetune' accepts a method and the keys of peft, and compares its "
            "step, on any layout, with one that trains the whole model. 'checkpoint' saves in $TMPDIR or /tmp; its "
            "ceiling is a plain "
            "write there. 'load' opens a model that is in the page cache; its ceiling is a plain read. "
            "'decode' measures after 32, 512 and 1,000 tokens. 'engine' compares scheduling, adapters, prefix caching, "
            "swapping and pipelining with bare steps of the engine. 'serve' measures a server; 'cambium bench serve "
            "--help' lists its options.",
        .examples = "  cambium bench train --micro-batch-size 4 --seq-length 256 --precision bf16\n"
                    "  cambium bench train --precision bf16 --ranks 2 --parallel.tensor_model_parallel_size=2\n"
                    "  cambium bench train --precision bf16 --ranks 2 --parallel.use_distributed_optimizer\n"
                    "  cambium bench train --precision bf16 --parallel.recompute_granularity=full\n"
                    "  mpirun -n 2 cambium bench train --precision bf16 --parallel.use_distributed_optimizer\n"
                    "  cambium bench finetune --method lora --precision bf16\n"
                    "  cambium bench checkpoint --precision bf16 --ranks 2\n"
                    "  cambium bench decode --precision bf16 --micro-batch-size 16 --steps 64\n"
                    "  cambium bench engine --precision bf16 --steps 5\n"
                    "  cambium bench serve --precision bf16 --threads 2\n"
                    "  cambium bench gemm --device cuda --precision bf16 --micro-batch-size 16 --tune gpu.json\n"
                    "  cambium bench ops --filter layernorm\n"
                    "  cambium bench ops --check\n",
        .rows = rows,
        .row_count = sizeof rows / sizeof *rows,
        .section_rows = sections,
        .section_row_count = count,
    };
}

static const struct {
    const char *name;
    int (*run)(const struct bench_options *options);
} benches[] = {
    {"gemm", bench_gemm},     {"ops", bench_ops},           {"tokenizer", bench_tokenizer},
    {"train", bench_train},   {"finetune", bench_finetune}, {"checkpoint", bench_checkpoint},
    {"load", bench_load},     {"prefill", bench_prefill},   {"decode", bench_decode},
    {"engine", bench_engine},
};

/* The benchmarks of a whole model that peers and measured algorithms are for. */
static bool is_of_model(const char *what) {
    return !strcmp(what, "train") || !strcmp(what, "finetune") || !strcmp(what, "prefill") || !strcmp(what, "decode");
}

/* FP8 is a precision of training. */
static int check_fp8(const char *what, const struct bench_options *values) {
    if (values->precision != PRECISION_FP8 || !what || !strcmp(what, "train") || !strcmp(what, "finetune"))
        return STATUS_OK;
    if (!strcmp(what, "gemm") && values->tune)
        return STATUS_OK;
    return status_fail(STATUS_USAGE, "--precision fp8: bench %s has none; train, finetune and gemm --tune have it",
                       what);
}

/* Refuses the options of algorithms where they would do nothing. */
static int check_algorithms(const char *what, const struct bench_options *values) {
    if (values->tune && what && strcmp(what, "gemm"))
        return status_fail(STATUS_USAGE, "--tune: bench %s has nothing to tune; gemm has", what);
    if (values->gemm_algorithms && what && !is_of_model(what))
        return status_fail(STATUS_USAGE,
                           "--gemm-algorithms: bench %s takes none; train, finetune, prefill and decode do", what);
    return STATUS_OK;
}

static int measure(const char *what, struct bench_options *values) {
    TRY(check_fp8(what, values));
    TRY(check_algorithms(what, values));
    json_begin(); /* each printed line ends it */
    if (values->has_peer && what && !is_of_model(what))
        return status_fail(STATUS_USAGE, "--peer: bench %s has no peer; train, finetune, prefill and decode have one",
                           what);
    if (values->only_checks && what && strcmp(what, "ops"))
        return status_fail(STATUS_USAGE, "--check: bench %s checks nothing; ops does", what);
    for (size_t i = 0; i < sizeof benches / sizeof *benches; i++)
        if (what && !strcmp(what, benches[i].name))
            return benches[i].run(values);
    return what ? status_fail(
                      STATUS_USAGE,
                      "bench: '%s' is not gemm, ops, tokenizer, train, finetune, checkpoint, load, prefill, decode, "
                      "engine or serve",
                      what)
                : status_fail(STATUS_USAGE, "bench needs gemm, ops, tokenizer, train, finetune, checkpoint, load, "
                                            "prefill, decode, engine or serve");
}

struct benching {
    const char *what; /* NULL: not given */
    struct bench_options *values;
};

static int prepare(const struct launch *launch, const struct config *config, void *context) {
    struct bench_options *values = ((struct benching *)context)->values;
    int ranks, status = launch_ranks(launch, values->ranks, &ranks);
    values->has_precision = config_is_given(config, "precision");
    values->ranks = ranks;
    values->world = launch->world;
    return status;
}

static int run(struct launch *launch, void *context) {
    struct benching *benching = context;
    struct tuner_adapters adapter = {.configs = &benching->values->peft, .count = 1};
    struct tuner tuner = tuner_of_adapters(&adapter);
    benching->values->tuner = &tuner;
    return measure(benching->what, benching->values);
}

int command_bench(int argc, char **argv) {
    if (argc > 0 && !strcmp(argv[0], "serve"))
        return bench_serve_command(argc - 1, argv + 1);
    size_t count;
    struct config_row *sections = bench_section_rows(true, &count);
    if (!sections)
        return command_exit_status(status_no_memory());
    const struct config_command command = describe(sections, count);
    struct bench_options values = {0};
    bool has_what = argc > 0 && argv[0][0] != '-';
    struct benching benching = {.what = has_what ? argv[0] : NULL, .values = &values};
    bool has_ranks = has_what && (!strcmp(argv[0], "train") || !strcmp(argv[0], "checkpoint"));
    const struct launch_steps steps = {.command = &command,
                                       .values = &values,
                                       .is_alone = !has_ranks,
                                       .may_disagree = true,
                                       .prepare = prepare,
                                       .run = run};
    int exit_status = launch_command(&steps, argc - has_what, argv + has_what, &benching);
    free(sections);
    return exit_status;
}
