/* Rounds the linears of a model, and reports what that cost. */
#include "quantize-internal.h"

#include "parallel/site.h"

#include <math.h>

/* Linears of one kind, in all layers. */
struct kind {
    char name[64];
    int64_t linears;
    double error, size;               /* sums of squares, of what rounding changed and of the weights */
    double output_error, output_size; /* the same of outputs on the samples, for some of the rows */
};
enum { MOST_KINDS = 32 };

struct quantizing {
    const struct quantize_job *job;
    struct comm *world;
    int threads;
    enum quantize_method method;
    struct calibration *calibration; /* NULL: there are no samples */
    double divergence;
    struct pretrained model;
    struct param_table table;
    struct tokenizer_files tokenizer;
    struct strbuf generation;           /* generation_config.json */
    float *factors[ATTACH_PLACE_COUNT]; /* of the inputs of the present layer's linears; NULL: 1 */
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

/* ---- factors of inputs ---- */

enum { FACTOR_WORK = 1 << 26 }; /* multiplications of each trial */

/* Sets the sizes of a place's inputs. Heads that share values share the sizes of these values' columns. */
static void find_sizes(const struct quantizing *q, int place, int64_t in, float *sizes) {
    const struct model_widths w = model_widths(&q->model.config, 1);
    const float *sums = calibration_sums(q->calibration, place);
    int64_t heads = place == ATTACH_PROJECTION ? w.heads / w.query_groups : 1;
    for (int64_t i = 0; i < in; i++) {
        int64_t first = i / (heads * w.head) * heads * w.head + i % w.head;
        sizes[i] = heads > 1 ? 0 : sums[i * (in + 1)];
        for (int64_t h = 0; h < heads && heads > 1; h++)
            sizes[i] += sums[(first + h * w.head) * (in + 1)];
    }
}

/* Finds the factors of a place of the vector's layer: none if a linear there stays as it is, or one at the place
 * `before`, whose outputs would be divided. */
static int find_factors(struct quantizing *q, const struct quantized_vector *vector, enum attach_place place,
                        enum attach_place before) {
    int64_t layer = q->table.rows[vector->param].layer, count;
    int id = model_find_linear(&q->table, layer, place, false);
    bool is_kept = vector->is_kept[id];
    if (before)
        is_kept |= vector->is_kept[model_find_linear(&q->table, layer, before, false)];
    free(q->factors[place]);
    q->factors[place] = NULL;
    if (is_kept)
        return STATUS_OK;
    int64_t in = q->table.rows[id].shape[1], most = FACTOR_WORK / (in * in) > 16 ? FACTOR_WORK / (in * in) : 16;
    float *rows = NULL, *sizes = malloc((size_t)in * sizeof *sizes);
    q->factors[place] = malloc((size_t)in * sizeof *q->factors[place]);
    int status = status_allocated(sizes && q->factors[place]);
    THEN(status, calibration_rows(q->calibration, place, most, &rows, &count));
    if (!status) {
        const struct rounding_call call = {
            .rounding = vector->rounding, .values = rows, .rows = count, .columns = in, .threads = q->threads};
        find_sizes(q, place, in, sizes);
        status = solve_factors(q->world, &call, calibration_sums(q->calibration, place), sizes, q->factors[place]);
    }
    free(rows);
    free(sizes);
    return status;
}

/* Returns the factor of the input that an output of a place becomes. */
static float output_factor(const struct quantizing *q, int place, int64_t output) {
    const struct model_widths w = model_widths(&q->model.config, 1);
    const float *next = place == ATTACH_QKV   ? q->factors[ATTACH_PROJECTION]
                        : place == ATTACH_FC1 ? q->factors[ATTACH_FC2]
                                              : NULL;
    int64_t at = output - (place == ATTACH_QKV ? w.q + w.kv : w.ffn); /* values, and what gates multiply, come last */
    if (!next || at < 0)
        return 1;
    return next[place == ATTACH_QKV ? at / w.head * (w.heads / w.query_groups) * w.head + at % w.head : at];
}

/* Divides the gains of a norm by the factors of the linear that it feeds. The gains are rounded to their type, and the
 * factors become exactly what was divided by. */
static void fold(struct quantized_vector *gains, float *factors) {
    for (int64_t i = 0; i < gains->count; i++) {
        float gain = gains->values[i] / factors[i];
        gain = gains->dtype == DTYPE_BF16  ? bf16_to_float(bf16_from_float(gain))
               : gains->dtype == DTYPE_F16 ? f16_to_float(f16_from_float(gain))
                                           : gain;
        bool is_kept = gain == 0 || !isfinite(gain);
        factors[i] = is_kept ? 1 : gains->values[i] / gain;
        gains->values[i] = is_kept ? gains->values[i] : gain;
    }
}

/* Divides the biases of outputs that become inputs with factors. */
static void change_biases(const struct quantizing *q, struct quantized_vector *vector) {
    const struct param *row = &q->table.rows[vector->param];
    const struct param_slice *slice;
    for (int s = 0; (slice = quantized_slice(row, vector->name, &s));)
        for (int64_t r = 0; r < slice->rows; r++)
            vector->values[slice->file_start + r] /= output_factor(q, row->place, slice->row + r);
    vector->is_changed = true;
}

/* Changes the vectors of a layer. The gains of norms come before the linears that they feed, and before all biases. */
static int change_vector(void *context, struct quantized_vector *vector) {
    static const struct {
        const char *ending;
        int place;
        bool is_gain;
    } norms[] = {{".norm1.weight", ATTACH_QKV, true},
                 {".norm1.bias", ATTACH_QKV, false},
                 {".norm2.weight", ATTACH_FC1, true},
                 {".norm2.bias", ATTACH_FC1, false}};
    struct quantizing *q = context;
    const struct param *row = &q->table.rows[vector->param];
    if (row->place)
        change_biases(q, vector);
    for (size_t i = 0; i < sizeof norms / sizeof *norms && !vector->is_changed; i++) {
        size_t length = strlen(row->name), end = strlen(norms[i].ending);
        int place = norms[i].place;
        if (length <= end || strcmp(row->name + length - end, norms[i].ending))
            continue;
        TRY(calibration_reach(q->calibration, row->layer));
        if (norms[i].is_gain)
            TRY(find_factors(q, vector, place, ATTACH_NONE));
        if (norms[i].is_gain && place == ATTACH_QKV)
            TRY(find_factors(q, vector, ATTACH_PROJECTION, ATTACH_QKV));
        if (norms[i].is_gain && place == ATTACH_FC1 && q->model.config.swiglu)
            TRY(find_factors(q, vector, ATTACH_FC2, ATTACH_FC1));
        if (!q->factors[place])
            break;
        if (norms[i].is_gain)
            fold(vector, q->factors[place]);
        else
            for (int64_t k = 0; k < vector->count; k++)
                vector->values[k] /= q->factors[place][k];
        vector->is_changed = true;
    }
    if (vector->is_changed)
        calibration_set_vector(q->calibration, vector);
    return STATUS_OK;
}

/* Multiplies the inputs of a linear by their factors, and divides the outputs that feed another one by its factors. */
static void scale_linear(const struct quantizing *q, const struct quantized_linear *linear, float *values) {
    const struct param *row = &q->table.rows[linear->param];
    const float *inputs = q->factors[row->place];
    const struct param_slice *slice;
    for (int s = 0; (slice = quantized_slice(row, linear->name, &s));)
        for (int64_t r = 0; r < slice->rows; r++) {
            float *at = values + (slice->file_start + r) * linear->columns;
            float output = output_factor(q, row->place, slice->row + r);
            for (int64_t i = 0; i < linear->columns; i++)
                at[i] = at[i] * (inputs ? inputs[i] : 1) / output;
        }
}

/* ---- linears ---- */

static int round_linear(void *context, const struct quantized_linear *linear, const struct rounding_call *call,
                        float *values) {
    struct quantizing *q = context;
    const struct param *row = &q->table.rows[linear->param];
    struct kind *kind = find_kind(q, linear->name);
    if (linear->number == 0)
        progress_begin(&q->progress, "quantize", linear->count);
    progress_update(&q->progress, linear->number, "%s", linear->name);
    TRY(q->calibration ? calibration_reach(q->calibration, row->layer) : STATUS_OK);
    const float *sums = q->calibration ? calibration_sums(q->calibration, row->place) : NULL;
    if (q->method == QUANTIZE_AWQ)
        scale_linear(q, linear, values);
    if (q->method == QUANTIZE_GPTQ)
        TRY(solve_gptq(q->world, call, sums));
    else
        rounding_rows(call);
    TRY(add_error(kind, call));
    if (!q->calibration)
        return STATUS_OK;
    TRY(solve_errors(q->world, call, sums, q->factors[row->place], &kind->output_error, &kind->output_size));
    TRY(calibration_set(q->calibration, linear, call->to));
    return linear->number + 1 < linear->count ? STATUS_OK : calibration_finish(q->calibration, &q->divergence);
}

static double relative(double error, double size) {
    return size > 0 ? sqrt(error / size) : 0;
}

static void report(struct quantizing *q) {
    progress_end(&q->progress);
    for (int i = 0; i < q->kind_count; i++) {
        const struct kind *kind = &q->kinds[i];
        char outputs[48] = "";
        if (q->calibration)
            snprintf(outputs, sizeof outputs, ", of outputs %.4f", relative(kind->output_error, kind->output_size));
        log_info("%s: %lld linears, relative error of weights %.4f%s", kind->name, (long long)kind->linears,
                 relative(kind->error, kind->size), outputs);
    }
    if (q->calibration)
        log_info("divergence from the model on samples that were held back: %.6f nats a token", q->divergence);
    log_info("%s is written", q->job->output);
}

static int open_model(struct quantizing *q) {
    struct ckpt_array array = {.prefix = "", .dtype = DTYPE_F32};
    TRY(pretrained_open(q->job->model, NULL, &q->model));
    TRY(model_describe(&q->model.config, &q->table));
    TRY(ckpt_check(q->model.tensors, &q->table, &array, 1));
    if (q->model.weights && !strstr(" F32 F16 BF16 ", q->model.weights))
        return status_fail(STATUS_USAGE, "the model is quantised already: %s", q->model.weights);
    TRY(pretrained_read_tokenizer(q->model.directory, &q->tokenizer));
    if (!file_is_directory(q->model.directory))
        return STATUS_OK;
    int status = ckpt_read_generation_config(q->model.directory, &q->generation);
    return status == STATUS_NOT_FOUND ? STATUS_OK : status;
}

static int check_options(struct quantizing *q) {
    static const char *const methods[] = {"auto", "nearest", "awq", "gptq"};
    const struct quantize_job *job = q->job;
    const struct codec_format *format = codec_format_at(job->format);
    const char *name = codec_format_names[job->format];
    unsigned takes = codec_format_methods(format);
    q->method = job->method != QUANTIZE_AUTO ? (enum quantize_method)job->method
                : takes & CODEC_IS_GPTQS     ? QUANTIZE_GPTQ
                                             : QUANTIZE_NEAREST;
    bool fits = q->method == QUANTIZE_AWQ    ? takes & CODEC_TAKES_AWQ
                : q->method == QUANTIZE_GPTQ ? takes & CODEC_TAKES_GPTQ
                                             : true;
    if (!fits)
        return status_fail(STATUS_USAGE, "--method %s cannot be combined with --format %s", methods[q->method], name);
    if (q->method != QUANTIZE_NEAREST && !job->data)
        return status_fail(STATUS_USAGE, "--method %s needs --data: texts whose way through the model it follows",
                           methods[q->method]);
    if (job->group && job->group != -1 && job->group != 32 && job->group != 64 && job->group != 128)
        return status_fail(STATUS_USAGE, "--group %lld: 128, 64, 32 or -1 was expected", (long long)job->group);
    if (job->group && !codec_format_has_groups(format))
        return status_fail(STATUS_USAGE, "--group cannot be combined with --format %s", name);
    if (job->has_zeros && !codec_format_has_zeros(format))
        return status_fail(STATUS_USAGE, "--asymmetric cannot be combined with --format %s", name);
    return STATUS_OK;
}

/* Opens the model, and what follows samples. */
static int open_all(struct quantizing *q) {
    const struct quantize_job *job = q->job;
    int status = check_options(q);
    THEN(status, open_model(q));
    TRY(comm_agree(q->world, status));
    struct rank_site site = {.threads = job->threads ? (int)job->threads : usable_cores()};
    TRY(q->world->size > 1 ? rank_site_find(q->world, (int)job->threads, &site) : STATUS_OK);
    q->threads = site.threads;
    THEN_IF(status, job->data, calibration_open(job, &q->model, &q->table, q->world, q->threads, &q->calibration));
    return comm_agree(q->world, status);
}

int quantize_job_run(struct comm *world, void *context) {
    const struct quantize_job *job = context;
    struct quantizing q = {.job = job, .world = world, .generation = STRBUF_INIT};
    struct ckpt_text text = {.name = "generation_config.json"};
    log_quiet(world->rank > 0);
    int status = open_all(&q);
    text.text = strbuf_text(&q.generation);
    THEN(status, ckpt_quantize(&(struct quantize_request){
                     .output = job->output,
                     .world = world,
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
                     .threads = q.threads,
                     .round = round_linear,
                     .change = q.method == QUANTIZE_AWQ ? change_vector : NULL,
                     .context = &q,
                 }));
    if (!status)
        report(&q);
    else
        comm_fail(world, status);
    calibration_close(q.calibration);
    for (int place = 0; place < ATTACH_PLACE_COUNT; place++)
        free(q.factors[place]);
    pretrained_close(&q.model);
    tokenizer_files_free(&q.tokenizer);
    param_table_free(&q.table);
    strbuf_free(&q.generation);
    return status;
}
