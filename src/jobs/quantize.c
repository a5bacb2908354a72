/* Rounds the linears of a model, and reports what that cost. */
#include "quantize.h"

#include "ckpt/quantize.h"
#include "pretrained/pretrained.h"

#include <math.h>

/* Linears of one kind, in all layers. */
struct kind {
    char name[64];
    int64_t linears;
    double error, size; /* sums of squares, of what rounding changed and of the weights */
};
enum { MOST_KINDS = 32 };

struct quantizing {
    const struct quantize_job *job;
    struct pretrained model;
    struct param_table table;
    struct tokenizer_files tokenizer;
    struct strbuf generation; /* generation_config.json */
    struct kind kinds[MOST_KINDS];
    int kind_count;
    struct progress progress;
};

/* Returns the kind of a linear: its module without the names of the layers. */
static struct kind *find_kind(struct quantizing *q, const char *module) {
    const char *digits = module + strcspn(module, "0123456789"), *name = strchr(digits, '.');
    name = name ? name + 1 : module;
    for (int i = 0; i < q->kind_count; i++)
        if (!strncmp(q->kinds[i].name, name, sizeof q->kinds->name - 1))
            return &q->kinds[i];
    struct kind *kind = &q->kinds[q->kind_count < MOST_KINDS ? q->kind_count++ : MOST_KINDS - 1];
    snprintf(kind->name, sizeof kind->name, "%.63s", name);
    return kind;
}

static int add_error(struct kind *kind, const struct rounding_call *call) {
    float *row = malloc((size_t)call->columns * sizeof *row);
    TRY(status_allocated(row));
    for (int64_t r = 0; r < call->rows; r++) {
        const float *exact = call->values + r * call->columns;
        double error = 0, size = 0;
        encoded_row_values(call->to, r, row);
        for (int64_t i = 0; i < call->columns; i++) {
            error += ((double)row[i] - exact[i]) * ((double)row[i] - exact[i]);
            size += (double)exact[i] * exact[i];
        }
        kind->error += error;
        kind->size += size;
    }
    kind->linears++;
    free(row);
    return STATUS_OK;
}

static int round_linear(void *context, const struct quantized_linear *linear, const struct rounding_call *call) {
    struct quantizing *q = context;
    if (linear->number == 0)
        progress_begin(&q->progress, "quantize", linear->count);
    progress_update(&q->progress, linear->number, "%s", linear->name);
    rounding_rows(call);
    return add_error(find_kind(q, linear->name), call);
}

static void report(struct quantizing *q) {
    progress_end(&q->progress);
    for (int i = 0; i < q->kind_count; i++) {
        const struct kind *kind = &q->kinds[i];
        log_info("%s: %lld linears, relative error of weights %.4f", kind->name, (long long)kind->linears,
                 kind->size > 0 ? sqrt(kind->error / kind->size) : 0);
    }
    log_info("%s is written", q->job->output);
}

static int open_model(struct quantizing *q) {
    struct ckpt_array array = {.prefix = "", .dtype = DTYPE_F32};
    TRY(pretrained_open(q->job->model, NULL, &q->model));
    TRY(model_describe(&q->model.config, &q->table));
    TRY(ckpt_check(q->model.tensors, &q->table, &array, 1));
    TRY(tokenizer_files_read(q->model.directory, &q->tokenizer));
    int status = ckpt_read_generation_config(q->model.directory, &q->generation);
    return status == STATUS_NOT_FOUND ? STATUS_OK : status;
}

static int check_options(const struct quantize_job *job) {
    const struct codec_format *format = codec_format_at(job->format);
    const char *name = codec_format_names[job->format];
    if (job->group && job->group != -1 && job->group != 32 && job->group != 64 && job->group != 128)
        return status_fail(STATUS_USAGE, "--group %lld: 128, 64, 32 or -1 was expected", (long long)job->group);
    if (job->group && !codec_format_has_groups(format))
        return status_fail(STATUS_USAGE, "--group cannot be combined with --format %s", name);
    if (job->has_zeros && !codec_format_has_zeros(format))
        return status_fail(STATUS_USAGE, "--asymmetric cannot be combined with --format %s", name);
    return STATUS_OK;
}

int quantize_job_run(const struct quantize_job *job) {
    struct quantizing q = {.job = job, .generation = STRBUF_INIT};
    struct ckpt_text text = {.name = "generation_config.json"};
    int status = check_options(job);
    THEN(status, open_model(&q));
    text.text = strbuf_text(&q.generation);
    THEN(status, ckpt_quantize(&(struct quantize_request){
                     .output = job->output,
                     .tensors = q.model.tensors,
                     .table = &q.table,
                     .config_text = strbuf_text(&q.model.config_text),
                     .tokenizer = &q.tokenizer,
                     .texts = &text,
                     .text_count = q.generation.length > 0,
                     .format = codec_format_at(job->format),
                     .group = job->group,
                     .has_zeros = job->has_zeros,
                     .ignore = job->ignore.items,
                     .ignore_count = (int64_t)job->ignore.count,
                     .threads = job->threads ? (int)job->threads : usable_cores(),
                     .round = round_linear,
                     .context = &q,
                 }));
    if (!status)
        report(&q);
    pretrained_close(&q.model);
    tokenizer_files_free(&q.tokenizer);
    param_table_free(&q.table);
    strbuf_free(&q.generation);
    return status;
}
