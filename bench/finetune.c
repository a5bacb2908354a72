/* A training step of an adapter on a frozen base, in turn with one that trains the whole model on as many rows: one
 * rank with the threads of all. Rows are random letters, a token each. */
#include "training.h"

#include "peft/peft.h"
#include "pretrained/encodings.h"
#include "text/text.h"

enum { ROWS = 64, TOKENS = 257, LOADS = 9, PEAK_STEPS = 2 };

struct measurement {
    const struct bench_options *options;
    struct bench_dataset dataset; /* of the whole model */
    char rows[128];               /* file of the adapter */
    const char *rows_item;
    struct tokenizer *tokenizer;
    struct tuning_options tuning;
    struct train_run run, whole;
    struct bench_contest contest;
    bool has_baseline;
};

/* ---- opening ---- */

/* Writes rows of the greatest length, with an end-of-text. */
static int write_rows(const struct measurement *m) {
    const struct peft_config *peft = &m->options->peft;
    int64_t length = m->options->seq_length - 1 - peft_config_virtual_tokens(peft) - peft_config_prefix_tokens(peft);
    struct strbuf text = STRBUF_INIT;
    for (uint32_t row = 0; row < ROWS; row++) {
        strbuf_add_text(&text, "{\"text\": \"");
        for (int64_t i = 0; i < length; i++)
            strbuf_add_char(&text, (char)('a' + philox(1, (uint32_t)i, row, 0, (uint32_t)RNG_TEST << 24).word[0] % 26));
        strbuf_add_text(&text, "\"}\n");
    }
    int status =
        strbuf_status(&text) ? strbuf_status(&text) : file_write_atomic(m->rows, strbuf_text(&text), text.length);
    strbuf_free(&text);
    return status;
}

/* A quantised model, or a directory with --load-in, trains on its own weights in their bits. No whole model trains in
 * few bits, so there is no baseline. */
static int take_bits(struct measurement *m) {
    const struct bench_options *o = m->options;
    struct pretrained model = {0};
    int status = bench_is_shape(o->model) ? STATUS_OK : pretrained_open(o->model, NULL, &model);
    m->run.load_in = o->load_in;
    m->run.is_quantised = !status && model.tensors && ckpt_quantization(model.tensors)->method;
    if (status == STATUS_NOT_FOUND && !o->load_in) /* of a directory without tensors, the shape counts */
        status = STATUS_OK;
    m->has_baseline = o->has_baseline && !o->load_in && !m->run.is_quantised;
    if (o->load_in || m->run.is_quantised)
        memcpy(m->run.model_directory, model.directory, sizeof m->run.model_directory);
    pretrained_close(&model);
    return status;
}

/* The run that trains the adapter; seq_length counts its virtual tokens. */
static int describe_run(struct measurement *m) {
    const struct bench_options *o = m->options;
    TRY(bench_training_run(o, false, bench_contest_iterations(o->steps), &m->dataset, &m->run));
    const struct run_config *run = &m->run.config;
    m->tuning = (struct tuning_options){
        .train = {&m->rows_item, 1},
        .tokenizer = m->tokenizer,
        .config_eos = -1,
        .vocab_size = run->model.vocab_size,
        .seq_length = o->seq_length,
        .virtual_tokens = peft_config_virtual_tokens(&o->peft),
        .first_position = peft_config_prefix_tokens(&o->peft),
        .has_few_sizes = true,
        .seed = run->data.seed,
        .samples = run->train.train_iters * run->train.global_batch_size,
    };
    TRY(take_bits(m));
    m->run.tuner = o->tuner;
    m->run.tuning = &m->tuning;
    return STATUS_OK;
}

static int open_files(struct measurement *m) {
    const struct bench_options *o = m->options;
    struct model_config model;
    int status = bench_model_config(o->model, o->layers, &model);
    if (!status && model.vocab_size < TOKENS)
        status = status_fail(STATUS_USAGE, "bench finetune needs a vocabulary of %d or more, and %s has %lld", TOKENS,
                             o->model, (long long)model.vocab_size);
    THEN(status, bench_dataset_open(&m->dataset, 8 * o->seq_length + 1, model.vocab_size));
    snprintf(m->rows, sizeof m->rows, "%s/rows.jsonl", m->dataset.directory);
    m->rows_item = m->rows;
    struct tokenizer_training training = {
        .inputs = &m->rows_item, .input_count = 1, .vocab_size = TOKENS, .threads = 1};
    THEN(status, write_rows(m));
    THEN(status, tokenizer_train(&training, &m->tokenizer));
    THEN(status, describe_run(m));
    struct bench_options plain = *o;
    plain.threads = bench_baseline_threads(o);
    plain.global_batch_size = m->run.config.train.global_batch_size;
    THEN(status, bench_training_run(&plain, true, bench_contest_iterations(o->steps), &m->dataset, &m->whole));
    return status;
}

/* ---- memory ---- */

struct trial {
    const struct train_run *run;
    int ranks;
};

static int train_a_little(const void *context) {
    const struct trial *trial = context;
    struct bench_runner *runner;
    int status = bench_runner_open(trial->run, trial->ranks, NULL, PEAK_STEPS, 1, &runner);
    for (int i = 0; i < PEAK_STEPS && !status; i++)
        status = bench_runner_obey(runner, ORDER_WARM_UP);
    bench_runner_close(runner);
    return status;
}

/* ---- loading ---- */

/* Measures from a closed directory to parameters that can serve, for one rank. */
static int load_once(struct measurement *m, const char *directory, double *seconds) {
    struct rank *rank = trainer_rank(bench_runner_trainer(m->contest.runner));
    const struct run_config *run = &m->run.config;
    struct model_options base = {.base = {.config = run->model, .dtype = run_dtype(run)}, .max_rows = 1};
    struct peft_files *files = NULL;
    struct peft *peft = NULL;
    double start = clock_seconds();
    int status = peft_files_open(&directory, 1, false, &files);
    struct peft_options options = {.adapters = status ? NULL : peft_files_configs(files), .count = 1, .model = &base};
    THEN(status, peft_open(&options, rank, &peft));
    THEN(status, peft_allocate(peft));
    THEN(status, peft_load(peft, files));
    *seconds = clock_seconds() - start;
    peft_close(peft);
    peft_files_close(files);
    return status;
}

static int time_loading(struct measurement *m, double *seconds) {
    char directory[PATH_MAX];
    double times[LOADS];
    struct peft_texts texts = {0};
    int status = file_join(directory, sizeof directory, m->dataset.directory, "adapter");
    if (!status)
        status = peft_texts_make(&m->options->peft, 1, &m->run.config.model, m->dataset.directory,
                                 &(struct peft_notes){0}, &texts);
    struct peft_export export = {.texts = texts.items, .text_count = texts.count, .directory = directory};
    THEN(status, peft_export(trainer_tuner(bench_runner_trainer(m->contest.runner)), &export));
    for (int i = 0; i < LOADS && !status; i++)
        status = load_once(m, directory, &times[i]);
    peft_texts_free(&texts);
    if (!status)
        *seconds = bench_median(times, LOADS);
    return status;
}

/* ---- the summary ---- */

struct figures {
    size_t peak, whole_peak;
    double load_seconds;
};

static int print_summary(struct measurement *m, const struct figures *figures) {
    const struct bench_options *o = m->options;
    struct bench_findings *f = bench_runner_findings(m->contest.runner);
    double seconds = bench_median(f->seconds, f->steps), ceiling = bench_mean(f->before, f->after).gemm;
    double tokens = (double)(m->run.config.train.global_batch_size * o->seq_length);
    double flops = f->flops_per_token * tokens / seconds;
    json_t *object =
        json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:b, s:f, s:f, s:f, s:f, s:f}", "bench", "finetune", "method",
                  peft_method_names[o->peft.type], "device", f->device, "precision", precision_names[o->precision],
                  "trainable_parameters", (json_int_t)f->trainable_parameters, "micro_batch_size",
                  (json_int_t)o->micro_batch_size, "seq_length", (json_int_t)o->seq_length, "dropout", o->has_dropout,
                  "seconds", seconds, "tokens_per_s", tokens / seconds, "model_tflops", flops / 1e12, "ceiling",
                  ceiling / 1e12, "ratio", flops / ceiling);
    TRY(status_allocated(object));
    json_object_set_new(object, "peak_rss_bytes", json_integer((json_int_t)figures->peak));
    bench_add_device_bytes(object, f->device_bytes);
    json_object_set_new(object, "planned_bytes", json_integer((json_int_t)f->planned_bytes));
    if (o->ranks == 1)
        json_object_set_new(object, "load_seconds", json_real(figures->load_seconds));
    else
        bench_add_layout(object, &m->run.config, f);
    json_object_set_new(object, "phases", bench_phases(f->phases, f->total, f->steps));
    if (m->contest.baseline) {
        struct bench_findings *b = bench_runner_findings(m->contest.baseline);
        double whole = bench_median(b->seconds, b->steps);
        json_object_set_new(object, "baseline",
                            json_pack("{s:f, s:I, s:o}", "seconds", whole, "peak_rss_bytes",
                                      (json_int_t)figures->whole_peak, "phases",
                                      bench_phases(b->phases, b->total, b->steps)));
        json_object_set_new(object, "step_time_over_baseline", json_real(seconds / whole));
        json_object_set_new(object, "peak_rss_over_baseline",
                            json_real((double)figures->peak / (double)figures->whole_peak));
    }
    return bench_transformers_print(&m->contest.peer, seconds, object);
}

/* ---- all of it ---- */

static int measure_time(struct measurement *m) {
    const struct bench_options *o = m->options;
    struct bench_contest *contest = &m->contest;
    int status = bench_runner_open(&m->run, (int)o->ranks, NULL, o->steps, 1, &contest->runner);
    THEN(status, m->has_baseline ? bench_runner_open(&m->whole, 1, NULL, o->steps, 1, &contest->baseline) : STATUS_OK);
    int64_t virtual_tokens = peft_config_virtual_tokens(&o->peft) + peft_config_prefix_tokens(&o->peft);
    THEN(status, bench_contest_open_peer(contest, o, &m->run.config, &o->peft, o->seq_length - virtual_tokens));
    THEN(status, bench_contest_measure(contest, o->steps));
    return status ? status : bench_runner_obey(contest->runner, ORDER_CEILING_AFTER);
}

int bench_finetune(const struct bench_options *options) {
    struct measurement m = {.options = options};
    struct figures figures = {0};
    int status = STATUS_OK;
    if (options->world)
        status = status_fail(STATUS_USAGE, "bench finetune is one process, not a launch of %d: --ranks N has N threads",
                             options->world->size);
    if (!status && options->has_peer && !peft_is_of_peft(options->peft.type))
        status = status_fail(STATUS_USAGE, "--peer: PEFT has no %ss", peft_title(options->peft.type));
    THEN(status, open_files(&m));
    const struct trial mine = {&m.run, (int)options->ranks}, whole = {&m.whole, 1};
    THEN(status, bench_peak_of(train_a_little, &mine, &figures.peak));
    THEN(status, m.has_baseline ? bench_peak_of(train_a_little, &whole, &figures.whole_peak) : STATUS_OK);
    THEN(status, measure_time(&m));
    THEN(status, options->ranks == 1 ? time_loading(&m, &figures.load_seconds) : STATUS_OK);
    THEN(status, print_summary(&m, &figures));
    bench_contest_close(&m.contest);
    tokenizer_close(m.tokenizer);
    bench_dataset_close(&m.dataset);
    return status;
}
