/* The costs and gains of scheduling: compared with bare steps, with a shared beginning, with prompts that arrive during
 * decoding, and with several steps in progress. */
#include "engine.h"

#include "parallel/site.h"

enum { PROMPT = 1000 /* of 1,024 positions */, STAGES = 2 };
static const double stretch = 2.5; /* of a step, caused by arriving prompts: the setting of generate --requests */

/* ---- the same rows in bare steps ---- */

int engine_figure_scheduler(struct engine_bench *bench, json_t **figure) {
    struct engine *engine = NULL;
    struct engine_pairs pairs = {0};
    struct engine_options options = {.max_sequences = ENGINE_TEXTS, .has_no_prefix_cache = true};
    double measured, bare;
    int status = engine_bench_open(bench, options, &engine);
    THEN(status, engine_group_run(engine, ENGINE_TEXTS, bench->in, bench->out, &bare));
    for (int64_t i = 0; i < bench->options->steps && !status; i++) {
        status = engine_load_run(bench, engine, 0, &measured);
        THEN(status, engine_group_run(engine, ENGINE_TEXTS, bench->in, bench->out, &bare));
        THEN(status, engine_pairs_add(bench, &pairs, measured, bare));
    }
    *figure = engine_pairs_figure(bench, &pairs, true, (double)(ENGINE_TEXTS * bench->out));
    engine_close(engine);
    return status;
}

/* ---- a shared beginning ---- */

/* Measures the time to the first token of a text with ENGINE_SHARED tokens that may be cached, and ENGINE_UNSHARED that
 * are not. */
static int time_first_token(struct engine_bench *bench, struct engine_load *load, uint64_t salt, uint64_t unshared,
                            double *seconds) {
    int64_t shared = engine_bench_share(bench, ENGINE_SHARED), in = shared + engine_bench_share(bench, ENGINE_UNSHARED);
    struct engine_load_text text;
    int32_t *prompt = calloc((size_t)in, sizeof *prompt);
    TRY(status_allocated(prompt));
    for (int64_t i = 0; i < in; i++)
        prompt[i] = engine_token(&bench->config, i < shared ? 0 : unshared, i);
    struct engine_load_request request = {.slot = -1, .prompt = prompt, .in = in, .out = 1, .salt = salt};
    int status = engine_load_submit(load, &request, &text);
    THEN(status, engine_load_finish(load, &text));
    *seconds = text.first - text.submitted;
    free(prompt);
    return status;
}

int engine_figure_prefix(struct engine_bench *bench, json_t **figure) {
    struct engine *engine = NULL;
    struct engine_load load = {0};
    struct engine_pairs pairs = {0};
    double cached, uncached;
    int status = engine_bench_open(bench, (struct engine_options){.max_sequences = ENGINE_TEXTS}, &engine);
    THEN(status, engine_load_open(&load, engine, 0, 0));
    THEN(status, time_first_token(bench, &load, 0, 1, &uncached));
    for (int64_t i = 1; i <= bench->options->steps && !status; i++) {
        status = time_first_token(bench, &load, 0, 1 + (uint64_t)i, &cached);
        THEN(status, time_first_token(bench, &load, (uint64_t)i, 1 + (uint64_t)i, &uncached));
        THEN(status, engine_pairs_add(bench, &pairs, cached, uncached));
    }
    *figure = engine_pairs_figure(bench, &pairs, false, 0);
    engine_load_close(&load);
    engine_close(engine);
    return status;
}

/* ---- prompts that arrive ---- */

enum { QUIET, BUSY };

struct incoming {
    struct engine_bench *bench;
    struct engine_load load;
    struct engine_load_text texts[ENGINE_TEXTS - 1];
    struct engine_pairs first_token; /* of a prompt during other completions, and of one on its own */
    int64_t prompts;
    int32_t *prompt;
};

/* Runs a prompt; *steps is the number of steps until its first token. */
static int run_prompt(struct incoming *in, double *seconds, int64_t *steps) {
    int64_t length = engine_bench_share(in->bench, PROMPT);
    struct engine_load_text text;
    in->prompts++;
    for (int64_t i = 0; i < length; i++)
        in->prompt[i] = engine_token(&in->bench->config, (uint64_t)(ENGINE_TEXTS + in->prompts), i);
    struct engine_load_request request = {.slot = -1, .prompt = in->prompt, .in = length, .out = 1};
    int status = engine_load_submit(&in->load, &request, &text);
    for (*steps = 0; !text.is_done && !status; ++*steps)
        status = engine_load_step(&in->load);
    *seconds = text.first - text.submitted;
    return status;
}

static int run_quiet(struct incoming *in, int gap_class, int64_t steps) {
    int status = STATUS_OK;
    in->load.gap_class = gap_class;
    for (int64_t i = 0; i < steps && !status; i++)
        status = engine_load_step(&in->load);
    return status;
}

/* Runs a prompt during other texts, as many steps without one, and a prompt while the texts pause. */
static int run_round(struct incoming *in) {
    double beside, alone;
    int64_t steps, unused;
    in->load.gap_class = BUSY;
    int status = run_prompt(in, &beside, &steps);
    THEN(status, run_quiet(in, QUIET, steps));
    in->load.gap_class = LOAD_NO_CLASS;
    for (int k = 0; k < ENGINE_TEXTS - 1; k++)
        scheduler_pause(in->load.scheduler, in->texts[k].number);
    THEN(status, run_prompt(in, &alone, &unused));
    for (int k = 0; k < ENGINE_TEXTS - 1; k++)
        scheduler_resume(in->load.scheduler, in->texts[k].number);
    THEN(status, run_quiet(in, LOAD_NO_CLASS, 1));
    return status ? status : engine_pairs_add(in->bench, &in->first_token, beside, alone);
}

static int finish_prompts(struct incoming *in, json_t **figure) {
    struct engine_load *load = &in->load;
    double median = bench_median(load->gaps[QUIET].values, load->gaps[QUIET].count);
    double p99 = bench_quantile(load->gaps[BUSY].values, load->gaps[BUSY].count, 0.99);
    json_t *first = engine_pairs_figure(in->bench, &in->first_token, false, 0);
    if (!first)
        return STATUS_OK;
    *figure = json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:o}", "figure", in->bench->figure, "ratio", p99 / median,
                        "p99_seconds", p99, "median_seconds", median, "median_beside_prompts_seconds",
                        bench_median(load->gaps[BUSY].values, load->gaps[BUSY].count), "p99_without_prompts_seconds",
                        bench_quantile(load->gaps[QUIET].values, load->gaps[QUIET].count, 0.99), "first_token", first);
    return STATUS_OK;
}

int engine_figure_prompts(struct engine_bench *bench, json_t **figure) {
    struct engine *engine = NULL;
    struct incoming in = {.bench = bench};
    struct engine_options options = {.max_sequences = ENGINE_TEXTS, .has_no_prefix_cache = true};
    int status = engine_bench_open(bench, options, &engine);
    in.prompt = calloc((size_t)model_positions(&bench->config), sizeof *in.prompt);
    THEN(status, status_allocated(in.prompt));
    THEN(status, engine_load_open(&in.load, engine, 0, stretch));
    THEN(status, engine_load_write(bench, &in.load, NULL, ENGINE_TEXTS - 1, model_positions(&bench->config) - bench->in,
                                   in.texts));
    THEN(status, run_quiet(&in, QUIET, 1)); /* the duration of a step without prompts */
    for (int64_t i = 0; i < bench->options->steps && !status && !in.texts[0].is_done; i++)
        status = run_round(&in);
    THEN(status, finish_prompts(&in, figure));
    engine_load_close(&in.load);
    engine_close(engine);
    free(in.prompt);
    return status;
}

/* ---- two stages, with one step under way and with two ---- */

struct stages {
    struct engine_bench *bench;
    struct engine_pairs pairs;
};

int64_t engine_first_layers(const struct model_config *c) {
    struct model_widths widths = model_widths(c, 1);
    double layer = (double)(widths.qkv + widths.q + widths.fc1 + widths.ffn) * (double)c->hidden_size;
    double head = (double)c->vocab_size * (double)c->hidden_size / layer;
    int64_t first = (int64_t)(((double)c->num_layers + head) / 2 + 0.5);
    return first < c->num_layers ? first : c->num_layers - 1;
}

static int lead(struct stages *stages, struct engine *engine) {
    double measured, other;
    int status = engine_load_run(stages->bench, engine, 1, &other);
    for (int64_t i = 0; i < stages->bench->options->steps && !status; i++) {
        status = engine_load_run(stages->bench, engine, STAGES, &measured);
        THEN(status, engine_load_run(stages->bench, engine, 1, &other));
        THEN(status, engine_pairs_add(stages->bench, &stages->pairs, measured, other));
    }
    return status;
}

static int run_stage(struct comm *world, void *context) {
    struct stages *stages = context;
    struct engine *engine = NULL;
    struct rank_site site;
    log_quiet(world->rank > 0);
    int status = rank_site_find(world, (int)stages->bench->options->threads, &site);
    struct engine_options options = {.max_sequences = ENGINE_TEXTS,
                                     .has_no_prefix_cache = true,
                                     .world = world,
                                     .grid = {1, 1, 1, 1, STAGES},
                                     .first_layers = engine_first_layers(&stages->bench->config),
                                     .device_number = rank_site_device(&site, stages->bench->options->device),
                                     .threads = site.threads};
    THEN(status, engine_bench_open(stages->bench, options, &engine));
    THEN(status, engine_leads(engine) ? lead(stages, engine) : engine_follow(engine));
    THEN(status, engine_end(engine));
    if (status)
        comm_abort(world, status_text());
    engine_close(engine);
    return status;
}

int engine_figure_pipeline(struct engine_bench *bench, json_t **figure) {
    struct stages stages = {.bench = bench};
    int status = comm_local_run(STAGES, run_stage, &stages);
    *figure = engine_pairs_figure(bench, &stages.pairs, true, (double)(ENGINE_TEXTS * bench->out));
    return status;
}
