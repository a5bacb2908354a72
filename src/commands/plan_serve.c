/* cambium plan serve: layouts that serve a model on a cluster. */
#include "launch.h"
#include "model_arguments.h"
#include "plan.h"

#include "config/config.h"
#include "planner/page.h"
#include "planner/report.h"
#include "planner/run_file.h"
#include "planner/sizes.h"

struct options {
    struct config_list words; /* the model and the cluster */
    int64_t devices, input_len, output_len, batch, tensor, pipeline, top, adapters, rank, max_batch_tokens;
    double max_latency_ms, min_tokens_per_s, memory_share;
    const char *json, *html;
    int space, load_in, precision;
};

#define AT(field) offsetof(struct options, field)
static const char *const spaces[] = {"all", "hp-tool", NULL};
static const struct config_row rows[] = {
    ROW_INT("devices", AT(devices), NULL, 1, 4096,
            "maximum number of devices for one model; more devices serve replicas of it", .is_required = true),
    ROW_INT("input-len", AT(input_len), "60", 1, 1 << 20, "tokens of a prompt"),
    ROW_INT("output-len", AT(output_len), "20", 1, 1 << 20, "tokens of a completion"),
    ROW_INT("batch", AT(batch), NULL, 1, 1 << 16, "requests of a batch; when not given, 1, 2, 4, ... 256 are tried"),
    ROW_INT("max-batch-tokens", AT(max_batch_tokens), "512", 1, 1 << 20,
            "rows of a step, as of `serve`; a larger batch raises it"),
    ROW_INT("tensor", AT(tensor), NULL, 1, 4096, "tensor ranks; when not given, all sizes within a node"),
    ROW_INT("pipeline", AT(pipeline), NULL, 1, 4096, "stages; when not given, all sizes"),
    ROW_INT("adapters", AT(adapters), NULL, 1, 1 << 20, "LoRA adapters in memory, which the requests use in turn"),
    ROW_INT("rank", AT(rank), "8", 1, 4096, "with --adapters: their rank, on the family's default targets"),
    ROW_FLOAT("max-latency-ms", AT(max_latency_ms), NULL, 0, 1e9, "the longest time of a whole request"),
    ROW_FLOAT("min-tokens-per-s", AT(min_tokens_per_s), NULL, 0, 1e12,
              "minimum number of completion tokens per second, of a model's devices together"),
    LOAD_IN_ROW(AT(load_in)),
    ROW_CHOICE("precision", AT(precision), "bf16", plain_precision_names,
               "precision of the weights and of the computation"),
    ROW_CHOICE("space", AT(space), "all", spaces, "layouts to try: all, or those of NVIDIA's tool"),
    ROW_TEXT("html", AT(html), "FILE", "write the plan as one page with a picture; - is standard output"),
    ROW_TEXT("json", AT(json), "FILE", "write the plan as JSON; - is standard output, and then nothing else is there"),
    ROW_INT("top", AT(top), "10", 1, 1000, "rows to print"),
    PLAN_MEMORY_SHARE_ROW(AT(memory_share)),
};

/* Takes the model: a size or a name, or a directory or a file. The caller closes *model. */
static int find_model(const struct options *options, struct pretrained *model) {
    const char *word = options->words.items[0];
    struct ckpt_quantization quantization;
    struct run_file file = {0};
    struct train_run run = {0};
    double billions;
    if (file_exists(word)) {
        TRY(pretrained_open_encoded(word, model));
        return pretrained_quantization(model, options->load_in, &quantization);
    }
    int status = run_file_read(NULL, NULL, 0, &file);
    if (!status && (status = size_take(word, SIZE_SEQ_LENGTH, &file.run, &billions)))
        status_wrap(status, "%.80s is not a model directory", word);
    THEN(status, run_file_resolve(&file.run, &run));
    model->config = run.config.model;
    run_file_close(&file);
    return status;
}

/* Prints a word as a shell reads it. */
static void print_word(const char *word) {
    bool is_plain =
        *word && !word[strspn(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./+:,")];
    if (is_plain) {
        printf("%s", word);
        return;
    }
    putchar('\'');
    for (; *word; word++)
        printf(*word == '\'' ? "'\\''" : "%c", *word);
    putchar('\'');
}

/* Prints the command that serves the best row. Limits of the server whose defaults are below the batch come with it. */
static void print_command(const struct serve_row *row, const char *model, const struct cluster *cluster) {
    enum { DEFAULT_QUEUED = 256 };
    long long batch = (long long)row->layout.batch, rows_of_step = (long long)row->layout.step_rows;
    rows_of_step = rows_of_step > batch ? rows_of_step : batch;
    printf("\ncambium serve --model ");
    print_word(model);
    printf("%s --precision %s --max-batch-size %lld", strncmp(cluster->kind, "cuda", 4) ? "" : " --device cuda",
           precision_names[row->layout.precision], batch);
    if (row->layout.load_in)
        printf(" --load-in %s", load_in_names[row->layout.load_in]);
    if (rows_of_step != SERVE_STEP_ROWS)
        printf(" --max-batch-tokens %lld", rows_of_step);
    if (batch > DEFAULT_QUEUED)
        printf(" --max-queued-requests %lld", batch);
    if (row->layout.tensor * row->layout.pipeline > 1)
        printf(" --ranks %d --parallel.tensor_model_parallel_size=%d --parallel.pipeline_model_parallel_size=%d",
               row->layout.tensor * row->layout.pipeline, row->layout.tensor, row->layout.pipeline);
    if (row->plan.adapters)
        printf(" --adapter-root ADAPTERS --adapter-memory %zu", (size_t)row->layout.adapters * row->image_bytes);
    printf("\n");
}

static int fail_limits(const struct serve_result *result, const struct cluster *cluster) {
    const struct serve_row *least = &result->smallest;
    if (!result->count && !result->no_memory)
        return status_fail(STATUS_USAGE,
                           "no layout is possible: %d refused, whose tensor ranks and stages do not divide "
                           "heads, widths or layers",
                           result->refused);
    if (!result->count)
        return status_fail(STATUS_MEMORY,
                           "no layout fits: %d without memory, %d refused; nearest: tensor %d, pipeline %d, batch %lld "
                           "takes %.1f GB of %.1f GB",
                           result->no_memory, result->refused, least->layout.tensor, least->layout.pipeline,
                           (long long)least->layout.batch, (double)engine_plan_device_bytes(&least->plan) / 1e9,
                           cluster->memory.value / 1e9);
    const struct serve_row *row = &result->rows[result->nearest];
    return status_fail(STATUS_INVALID,
                       "no layout is within the limits; nearest: tensor %d, pipeline %d, batch %lld takes %.0f ms and "
                       "gives %.0f tokens/s",
                       row->layout.tensor, row->layout.pipeline, (long long)row->layout.batch, 1e3 * row->times.latency,
                       row->times.tokens_per_s);
}

static int write_page(const struct options *options, const struct cluster *cluster, const struct serve_result *result) {
    const struct page_limits limits = {options->max_latency_ms / 1e3, options->min_tokens_per_s};
    struct strbuf text = STRBUF_INIT;
    return plan_write_made(options->html, page_serving(result, cluster, &limits, &text), &text);
}

static int plan(const struct options *options, const struct cluster *cluster, const struct pretrained *model) {
    const struct serve_search search = {.cluster = cluster,
                                        .model = &model->config,
                                        .encoded = model->tensors,
                                        .devices = (int)options->devices,
                                        .input_len = options->input_len,
                                        .output_len = options->output_len,
                                        .batch = options->batch,
                                        .tensor = (int)options->tensor,
                                        .pipeline = (int)options->pipeline,
                                        .adapters = options->adapters,
                                        .adapter_rank = options->rank,
                                        .load_in = options->load_in,
                                        .precision = options->precision,
                                        .step_rows = options->max_batch_tokens,
                                        .is_tool = options->space == 1,
                                        .max_latency = options->max_latency_ms / 1e3,
                                        .min_tokens_per_s = options->min_tokens_per_s,
                                        .memory_share = options->memory_share};
    struct serve_result result;
    int status = serve_search_run(&search, &result);
    json_begin();
    THEN_IF(status, options->json, plan_write_json(options->json, report_serving(&result, cluster)));
    THEN_IF(status, options->html, write_page(options, cluster, &result));
    if (!status && !plan_is_output(options->json) && !plan_is_output(options->html)) {
        report_serving_print(&result, (int)options->top, stdout);
        if (result.best >= 0)
            print_command(&result.rows[result.best], options->words.items[0], cluster);
    }
    THEN_IF(status, result.best < 0, fail_limits(&result, cluster));
    free(result.rows);
    return status;
}

static int run(const void *values, const struct config *given) {
    const struct options *options = values;
    struct cluster cluster;
    struct pretrained model = {0};
    int64_t positions = options->input_len + options->output_len;
    if (config_is_given(given, "rank") && !options->adapters)
        return status_fail(STATUS_USAGE, "--rank does nothing without --adapters");
    if (options->words.count != 2)
        return status_fail(STATUS_USAGE, "plan serve needs a model and a cluster");
    TRY(cluster_open(options->words.items[1], &cluster));
    int status = cluster_check_precision(&cluster, options->precision);
    THEN(status, find_model(options, &model));
    if (!status && positions > model_positions(&model.config))
        status =
            status_fail(STATUS_USAGE, "--input-len and --output-len together are %lld; the model has %lld positions",
                        (long long)positions, (long long)model_positions(&model.config));
    THEN(status, plan(options, &cluster, &model));
    pretrained_close(&model);
    cluster_close(&cluster);
    return status;
}

int plan_serve_command(int argc, char **argv) {
    static const struct config_command command = {
        .name = "plan serve",
        .synopsis = "cambium plan serve MODEL CLUSTER --devices N [--input-len T] [--output-len T] [--batch B] "
                    "[--max-batch-tokens N] [--tensor T] [--pipeline P] [--adapters K [--rank R]] [--precision "
                    "fp32|bf16|tf32] [--max-latency-ms X] "
                    "[--min-tokens-per-s "
                    "Y] "
                    "[--space all|hp-tool] [--json FILE] "
                    "[--html FILE] [--top N]",
        .description =
            "Finds the layouts that serve a model on a cluster: latency of a request, tokens per second, memory. MODEL "
            "is a model directory, a GGUF file, a size such as 20B, or an open model's name such as llama-3.1-8b. Of a "
            "directory, only config.json is read, and the headers of quantised tensors. CLUSTER is a shipped cluster "
            "or a file. The best row within the limits serves more requests per second and device than any other. Exit "
            "status 1: no "
            "layout is within them.",
        .examples = "  cambium plan serve 20B h100 --devices 8 --max-latency-ms 1000\n"
                    "  cambium plan serve Qwen3-8B h100 --devices 4 --input-len 1024 --output-len 256 --json -\n",
        .rows = rows,
        .row_count = sizeof rows / sizeof *rows,
        .takes_words = true,
        .words_offset = AT(words),
    };
    return command_run(&command, argc, argv, &(struct options){0}, run);
}
