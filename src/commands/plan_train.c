/* cambium plan train: the fastest layouts of a training run on a cluster. */
#include "finetune.h"
#include "infer/tuner.h"
#include "launch.h"
#include "plan.h"
#include "plan_measure.h"
#include "stack.h"

#include "config/config.h"
#include "planner/page.h"
#include "planner/report.h"
#include "planner/run_file.h"
#include "planner/sizes.h"

#include <math.h>

enum { MOST_COUNTS = 16, POINTS = 300, MOST_DEVICES = 1 << 20 };

struct options {
    const char *model_size, *config, *model, *cluster, *nodes, *devices;
    const char *html, *json, *svg, *trace, *yaml, *also;
    struct config_list fixed, methods;
    struct stack_options peft; /* of section rows */
    double tokens, days, memory_share;
    int64_t global_batch_size, seq_length, top, row, measure, steps;
    const char *output;
    int space, precision;
};

#define AT(field) offsetof(struct options, field)
static const char *const spaces[] = {"all", "hp-tool", "run", NULL}; /* enum search_space */
static const struct config_row rows[] = {
    PLAN_CLUSTER_ROW(AT(cluster), "the cluster: a shipped one or a file; see 'cambium plan show --help'"),
    ROW_TEXT("model-size", AT(model_size), "SIZE",
             "parameters, such as 20B or 126M, of a GPT in the shape of NVIDIA's tables. Open models have names: "
             "llama-3.1-8b, -70b, -405b, qwen3-0.6b, -1.7b, -4b, -8b, -14b, -32b"),
    ROW_PATH("config", AT(config), "FILE.yaml",
             "a run file of cambium pretrain; the files that it names need not exist"),
    ROW_PATH("model", AT(model), "PATH", "a model directory, of which only config.json is read, or a GGUF file"),
    ROW_TEXT("nodes", AT(nodes), "N[,N...]",
             "numbers of nodes; each has a search, and efficiency is compared with the first"),
    ROW_TEXT("devices", AT(devices), "N[,N...]", "numbers of devices, in place of --nodes"),
    ROW_CHOICE("space", AT(space), "all", spaces,
               "layouts to try: all, those of NVIDIA's tool, or only the run file's"),
    ROW_LIST("fix", AT(fixed), "KEY=VALUE...",
             "keys of a run file that every layout has, such as parallel.tensor_model_parallel_size=4"),
    ROW_TEXT("also", AT(also), "fp8,fsdp",
             "further candidates: each layout in FP8, or with sharded weights as well (which space all has by itself); "
             "their rows tell what that saves"),
    ROW_LIST("method", AT(methods), "METHOD...",
             "plan a fine-tuning with these methods, as finetune's --peft; keys of the section peft set them up"),
    ROW_FLOAT("tokens", AT(tokens), NULL, 1, 1e18, "tokens of the whole training, for its days"),
    ROW_FLOAT("days", AT(days), NULL, 0.01, 1e6,
              "in place of a model: find the largest size whose training ends in so few days"),
    ROW_INT("top", AT(top), "10", 1, 1000, "rows to list"),
    ROW_TEXT("html", AT(html), "FILE", "write the plan as one page with pictures; - is standard output"),
    ROW_TEXT("json", AT(json), "FILE", "write the plan as JSON; - is standard output, and then nothing else is there"),
    ROW_TEXT("yaml", AT(yaml), "FILE", "write the run file of a row; - is standard output"),
    ROW_INT("row", AT(row), "1", 1, 1000, "the row of --yaml and of timelines, for the first number of nodes"),
    ROW_TEXT("svg", AT(svg), "FILE", "draw the row's timeline; - is standard output"),
    ROW_TEXT("trace", AT(trace), "FILE", "write the row's timeline as Chrome's trace events; - is standard output"),
    ROW_INT("measure", AT(measure), NULL, 1, 1000, "train this many of the rows here, on random tokens"),
    ROW_INT("steps", AT(steps), "20", 1, 1 << 20, "with --measure: the steps of each row that count"),
    ROW_PATH("output", AT(output), "DIR", "with --measure: write a summary, run files, and rows for plan fit here"),
    ROW_INT("global-batch-size", AT(global_batch_size), NULL, 1, 1 << 24,
            "samples of a step; else the run file's, or the tables'"),
    ROW_INT("seq-length", AT(seq_length), NULL, 1, 1 << 20, "tokens of a sample; else the run file's, or 2,048"),
    ROW_CHOICE("precision", AT(precision), "bf16", precision_names, "precision, without a run file"),
    PLAN_MEMORY_SHARE_ROW(AT(memory_share)),
};

struct planning {
    const struct options *options;
    struct cluster cluster;
    struct run_file file;
    struct train_run run; /* resolved, with the layout that the file has */
    const struct config *given;
    struct search search;
    bool is_tuning; /* run files are for finetune */
    struct stack stack;
    struct tuner_adapters adapters;
    struct tuner tuner;
    char *fixed[64]; /* paths */
    int devices[MOST_COUNTS];
    struct search_result results[MOST_COUNTS];
    int wanted, count; /* of `devices`, of `results` */
    double billions;
};

/* ---- the model ---- */

static void take_batch(struct planning *p) {
    if (p->options->global_batch_size)
        p->file.run.train.global_batch_size = p->options->global_batch_size;
}

static int take_size(struct planning *p, double billions, int64_t seq_length) {
    struct size_shape shape;
    int status = size_shape(billions, SIZE_VOCABULARY, seq_length, &shape);
    p->search.billions = billions;
    TRY(status);
    size_apply(&shape, SIZE_VOCABULARY, seq_length, &p->file.run);
    take_batch(p);
    return STATUS_OK;
}

/* Stores the days of the best layout of a size; infinity if none fits. */
static int find_days_of(struct planning *p, double billions, int64_t seq_length, double *days) {
    struct search_result result = {0};
    int status = take_size(p, billions, seq_length);
    struct search search = p->search;
    search.base = p->file.run;
    search.top = 1;
    THEN(status, search_run(&search, p->devices[0], &result));
    *days = !status && result.counts.listed ? report_days(&result.rows[0], p->options->tokens) : INFINITY;
    search_free(&result);
    return status;
}

/* Finds the largest size that ends in time: bounds around the size that the rule gives come together to 1%. */
static int find_size(struct planning *p, int64_t seq_length) {
    const double least = 0.1, most = 1000, closest = 1.01;
    double rule = size_rule_billions(p->options->days, p->options->tokens, p->devices[0], REPORT_RULE_FLOPS);
    double size = fmin(fmax(rule, least), most), low = 0, high = 0, days;
    while (low == 0 || high == 0 || high / low > closest) {
        TRY(find_days_of(p, size, seq_length, &days));
        *(days <= p->options->days ? &low : &high) = size;
        if ((low == 0 && size <= least) || (high == 0 && size >= most))
            break;
        size = high == 0 ? fmin(low * 1.5, most) : low == 0 ? fmax(high / 1.5, least) : sqrt(low * high);
    }
    return low > 0 ? take_size(p, low, seq_length)
                   : status_fail(STATUS_MEMORY, "no size from %g billion parameters on ends in %g days on %d devices",
                                 least, p->options->days, p->devices[0]);
}

static int count_parameters(struct planning *p) {
    struct param_table table = {0};
    int status = model_describe(&p->run.config.model, &table);
    p->billions = status ? 0 : (double)param_table_elements(&table, false) / 1e9;
    param_table_free(&table);
    if (p->options->model || p->options->config)
        p->search.billions = p->billions;
    return status;
}

/* Makes the configuration without its layout. */
static int find_model(struct planning *p) {
    const struct options *o = p->options;
    int64_t seq_length = o->seq_length ? o->seq_length : SIZE_SEQ_LENGTH;
    if (!!o->model_size + !!o->config + !!o->model + (o->days > 0) != 1)
        return status_fail(STATUS_USAGE, "plan train needs one of --model-size, --config and --model, or --days");
    if (o->days > 0 && o->tokens == 0)
        return status_fail(STATUS_USAGE, "--days is not enough without --tokens");
    int status = run_file_read(o->config, o->fixed.items, o->fixed.count, &p->file);
    TRY(status);
    if (!o->config)
        p->file.run.train.precision = o->precision;
    if (o->days > 0)
        status = find_size(p, seq_length);
    else if (o->model_size)
        status = size_take(o->model_size, seq_length, &p->file.run, &p->search.billions);
    else if (o->model) {
        struct run_config *run = &p->file.run;
        status = run_file_take_model(o->model, run);
        run->data.seq_length = seq_length < model_positions(&run->model) ? seq_length : model_positions(&run->model);
    }
    if (o->config && o->seq_length)
        p->file.run.data.seq_length = o->seq_length;
    take_batch(p);
    if (!status && !p->file.run.train.global_batch_size)
        status = status_fail(STATUS_USAGE, "--global-batch-size is not given, nor train.global_batch_size");
    THEN(status, run_file_resolve(&p->file.run, &p->run));
    return status ? status : count_parameters(p);
}

static bool is_fixed(const struct planning *p, const char *key) {
    for (size_t i = 0; i < p->search.fixed_count; i++)
        if (!strcmp(p->fixed[i], key))
            return true;
    return false;
}

/* Refuses a feature that changes nothing, or that the cluster lacks. */
static int check_feature(const struct planning *p, enum search_feature feature) {
    const struct run_config *run = &p->file.run;
    const char *name = search_features[feature];
    const char *key = feature == SEARCH_FP8 ? "train.precision" : "parallel.data_parallel_sharding_strategy";
    if (p->cluster.train != CLUSTER_TRAINS_CAMBIUM)
        return status_fail(STATUS_USAGE, "--also %s: the cluster's stack.train is %s, which has none", name,
                           cluster_training_stacks[p->cluster.train]);
    if (is_fixed(p, key))
        return status_fail(STATUS_USAGE, "--also %s and --fix %s contradict each other", name, key);
    if (feature == SEARCH_FP8 ? run->train.precision == PRECISION_FP8
                              : run_sharding(run) == SHARDING_OPTIM_GRADS_PARAMS)
        return status_fail(STATUS_USAGE, "--also %s: the run has it already", name);
    if (feature == SEARCH_FP8 && cluster_peak(&p->cluster, PRECISION_FP8) == 0)
        return status_fail(STATUS_USAGE, "--also fp8: the cluster file has no device.peak_fp8");
    return STATUS_OK;
}

/* Reads --also: names with commas between them. */
static int find_also(struct planning *p) {
    int status = STATUS_OK;
    for (const char *at = p->options->also ? p->options->also : ""; *at && !status;) {
        size_t length = strcspn(at, ",");
        int feature = 0;
        while (feature < SEARCH_FEATURES &&
               (strlen(search_features[feature]) != length || strncmp(at, search_features[feature], length)))
            feature++;
        if (feature == SEARCH_FEATURES)
            return status_fail(STATUS_USAGE, "--also %.40s: expected fp8, fsdp, or both with a comma", at);
        *(feature == SEARCH_FP8 ? &p->search.also_fp8 : &p->search.also_fsdp) = true;
        status = check_feature(p, (enum search_feature)feature);
        at += length + (at[length] == ',');
    }
    return status;
}

/* Chooses the methods of a fine-tuning. */
static int find_methods(struct planning *p) {
    const struct options *o = p->options;
    if (o->methods.count || config_is_given(p->given, "peft.type")) {
        if (p->cluster.train != CLUSTER_TRAINS_CAMBIUM)
            return status_fail(STATUS_USAGE, "--method: the cluster's stack.train is %s, which has no adapters",
                               cluster_training_stacks[p->cluster.train]);
        int status = stack_choose(&p->stack, &o->methods, &o->peft, p->given);
        p->adapters = (struct tuner_adapters){.configs = p->stack.configs, .count = p->stack.count};
        p->tuner = tuner_of_adapters(&p->adapters);
        p->search.tuner = p->stack.count ? &p->tuner : NULL;
        p->is_tuning = true;
        return status;
    }
    const char *idle = stack_find_given(p->given, true);
    return idle ? status_fail(STATUS_USAGE, "%s does nothing without --method", idle) : STATUS_OK;
}

/* ---- the searches ---- */

static int list_fixed(struct planning *p) {
    const struct config_list *fixed = &p->options->fixed;
    if (fixed->count > sizeof p->fixed / sizeof *p->fixed)
        return status_fail(STATUS_USAGE, "--fix has %zu keys", fixed->count);
    for (size_t i = 0; i < fixed->count; i++) {
        p->fixed[i] = strndup(fixed->items[i], strcspn(fixed->items[i], "="));
        TRY(status_allocated(p->fixed[i]));
        p->search.fixed_count = i + 1;
    }
    p->search.fixed = (const char *const *)p->fixed;
    return STATUS_OK;
}

static int read_devices(struct planning *p) {
    double counts[MOST_COUNTS];
    const struct options *o = p->options;
    if (!o->nodes == !o->devices)
        return status_fail(STATUS_USAGE, "plan train needs one of --nodes and --devices");
    int status = plan_read_numbers(o->nodes ? "nodes" : "devices", o->nodes ? o->nodes : o->devices, counts,
                                   MOST_COUNTS, &p->wanted);
    for (int i = 0; i < p->wanted && !status; i++) {
        double devices = counts[i] * (o->nodes ? (double)p->cluster.per_node : 1);
        if (devices < 1 || devices > MOST_DEVICES || devices != floor(devices)) {
            double least = o->nodes ? 1 / (double)p->cluster.per_node : 1;
            return status_fail(STATUS_USAGE, "--%s %.10g is %.10g devices: expected a number from %g to %.7g%s",
                               o->nodes ? "nodes" : "devices", counts[i], devices, least, MOST_DEVICES * least,
                               o->nodes ? " that is a whole number of devices" : "");
        }
        p->devices[i] = (int)devices;
    }
    return status;
}

static int search_all(struct planning *p) {
    int status = STATUS_OK;
    for (int i = 0; i < p->wanted && !status; i++) {
        p->search.points = i == 0 && p->options->html ? POINTS : 0;
        status = search_run(&p->search, p->devices[i], &p->results[p->count++]);
        THEN_IF(status, !p->results[i].counts.listed, search_find_fit(&p->search, &p->results[i]));
    }
    return status;
}

/* ---- results ---- */

static int write_yaml(const void *planning, const struct search_row *row, const char *path) {
    const struct planning *p = planning;
    struct strbuf text = STRBUF_INIT;
    struct run_config config = row->run.config;
    config.train.train_iters = p->options->tokens > 0
                                   ? (int64_t)ceil(p->options->tokens / (double)config.data.seq_length /
                                                   (double)config.train.global_batch_size)
                                   : p->file.run.train.train_iters;
    config.optim.lr_decay_iters = 0;
    config.checkpoint = p->file.run.checkpoint;
    struct stack_options peft = p->options->peft;
    if (p->options->methods.count)
        peft.types = p->options->methods;
    if (p->is_tuning && (!p->options->config || p->file.run.optim.lr < 0)) { /* the tables' rate is for pretraining */
        config.optim.lr = stack_default_lr(&p->stack, &(const char *){NULL});
        config.optim.min_lr = 0;
    }
    int status =
        p->is_tuning ? finetune_write_run_file(&config, &p->stack, &peft, &text) : run_file_write(&config, &text);
    return plan_write_made(path, status, &text);
}

static int write_page(const struct planning *p, const struct report_training *report, const struct search_row *row,
                      const struct cost_work *work, const struct walk *walk) {
    struct strbuf text = STRBUF_INIT;
    int stages = walk->shape.stages;
    struct plan_memory *memory = calloc((size_t)stages, sizeof *memory);
    int status = status_allocated(memory);
    for (int stage = 0; stage < stages && !status; stage++)
        status = memory_stage(&row->run, p->results[0].ranks, work, &p->cluster, stage, &memory[stage]);
    if (!status)
        status = page_training(report, &(const struct page_row){p->options->row, *walk, memory}, &text);
    free(memory);
    return plan_write_made(p->options->html, status, &text);
}

static int write_pictures(const struct planning *p, const struct report_training *report,
                          const struct search_row *row) {
    struct walk walk = {0};
    struct cost_work work;
    struct cost_step step;
    const struct options *o = p->options;
    TRY(cost_work_make(&row->run, &p->cluster, &work));
    int status = cost_step(&row->run, p->results[0].ranks, &work, &p->cluster, &step, &walk);
    THEN(status, plan_write_timelines(o->svg, o->trace, &walk));
    THEN_IF(status, o->html, write_page(p, report, row, &work, &walk));
    walk_free(&walk);
    cost_work_free(&work);
    return status;
}

static int write_row(const struct planning *p, const struct report_training *report) {
    const struct options *o = p->options;
    const struct search_result *first = &p->results[0];
    bool has_pictures = o->svg || o->trace || o->html;
    if ((!o->yaml && !has_pictures) || !first->counts.listed)
        return STATUS_OK;
    if (o->row > first->counts.listed)
        return status_fail(STATUS_USAGE, "--row %lld: %lld rows are listed", (long long)o->row,
                           (long long)first->counts.listed);
    const struct search_row *row = &first->rows[o->row - 1];
    int status = o->yaml ? write_yaml(p, row, o->yaml) : STATUS_OK;
    return !status && has_pictures ? write_pictures(p, report, row) : status;
}

/* Measures rows of the first search. */
static int measure_rows(const struct planning *p) {
    const struct options *o = p->options;
    const struct plan_measuring measuring = {.cluster = &p->cluster,
                                             .result = &p->results[0],
                                             .count = o->measure,
                                             .steps = o->steps,
                                             .output = o->output,
                                             .billions = p->billions,
                                             .write = write_yaml,
                                             .context = p};
    return o->measure ? plan_measure(&measuring) : STATUS_OK;
}

static int write_all(const struct planning *p) {
    const struct options *o = p->options;
    const struct report_training report = {.cluster = &p->cluster,
                                           .model = &p->run,
                                           .billions = p->billions,
                                           .results = p->results,
                                           .count = p->count,
                                           .tokens = o->tokens,
                                           .days = o->days};
    int status = write_row(p, &report);
    json_begin();
    THEN_IF(status, o->json, plan_write_json(o->json, report_training(&report)));
    if (!plan_is_output(o->html) && !plan_is_output(o->json) && !plan_is_output(o->yaml) && !plan_is_output(o->svg) &&
        !plan_is_output(o->trace))
        report_training_print(&report, stdout);
    if (p->cluster.train == CLUSTER_TRAINS_CAMBIUM && device_uses_host_memory(p->cluster.kind))
        log_info("workspaces are those of operations on %s, the cluster's device.kind", p->cluster.kind);
    for (int i = 0; i < p->count && !status; i++)
        if (!p->results[i].counts.listed)
            status = status_fail(STATUS_MEMORY, "no layout fits on %d devices", p->results[i].ranks);
    return status;
}

static int run(const void *values, const struct config *given) {
    const struct options *options = values;
    struct planning p = {.options = options, .given = given};
    int status = cluster_open(options->cluster, &p.cluster);
    TRY(status);
    p.search = (struct search){.cluster = &p.cluster,
                               .space = (enum search_space)options->space,
                               .memory_share = options->memory_share,
                               .top = (int)options->top};
    status =
        options->measure || !(options->output || config_is_given(given, "steps"))
            ? find_methods(&p)
            : status_fail(STATUS_USAGE, "--%s does nothing without --measure", options->output ? "output" : "steps");
    THEN(status, list_fixed(&p));
    THEN(status, read_devices(&p));
    THEN(status, find_model(&p));
    p.search.base = p.file.run;
    THEN(status, find_also(&p));
    THEN(status, search_all(&p));
    THEN(status, write_all(&p));
    THEN(status, measure_rows(&p));
    for (int i = 0; i < p.count; i++)
        search_free(&p.results[i]);
    for (size_t i = 0; i < p.search.fixed_count; i++)
        free(p.fixed[i]);
    run_file_close(&p.file);
    cluster_close(&p.cluster);
    return status;
}

int plan_train_command(int argc, char **argv) {
    struct config_row *peft = malloc(stack_rows(NULL, 0) * sizeof *peft);
    if (!peft)
        return command_exit_status(status_no_memory());
    const struct config_command command = {
        .name = "plan train",
        .synopsis =
            "cambium plan train --cluster NAME|FILE --model-size SIZE|--config FILE.yaml|--model PATH|--days D "
            "--nodes N[,N...]|--devices N[,N...] [--space all|hp-tool|run] [--fix KEY=VALUE...] [--also fp8,fsdp] "
            "[--tokens X] "
            "[--method METHOD... [--peft.KEY=VALUE ...]] [--top N] [--html FILE] [--json FILE] [--yaml FILE] [--row R] "
            "[--svg FILE] [--trace FILE] [--measure K [--steps S] [--output DIR]]",
        .description =
            "Finds the layouts, micro batches and recomputations that train a model fastest on a cluster and fit into "
            "its memory, and says how long a step takes. Memory is that of the trainer's own plan. docs/planning.md "
            "describes the prediction and its errors. Exit status 1: nothing fits.",
        .examples =
            "  cambium plan train --cluster h100 --model-size 20B --nodes 8,16,32 --tokens 300e9\n"
            "  cambium plan train --cluster h100 --days 5 --tokens 300e9 --nodes 20\n"
            "  cambium plan train --cluster ours.yaml --config run.yaml --nodes 4 --yaml best.yaml\n"
            "  cambium plan train --cluster h100 --model-size 5B --nodes 1 --also fp8,fsdp\n"
            "  cambium plan train --cluster h100 --model Qwen3-8B --devices 64 --global-batch-size 512 --json -\n"
            "  cambium plan train --cluster h100 --model Qwen3-8B --nodes 1 --global-batch-size 64 --method lora "
            "--peft.r=16\n",
        .rows = rows,
        .row_count = sizeof rows / sizeof *rows,
        .section_rows = peft,
        .section_row_count = stack_rows(peft, offsetof(struct options, peft)),
    };
    int exit_status = command_run(&command, argc, argv, &(struct options){0}, run);
    free(peft);
    return exit_status;
}
