/* Compares paths of `verify serving` with its reference, and prints what was found. */
#include "verify-internal.h"

#include "base/base.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- log-probabilities ---- */

int verify_normalise(struct verify *v, float *logits, int64_t rows) {
    struct cross_entropy_part parts[64];
    int32_t label = 0;
    if (v->tensor > 64)
        return status_fail(STATUS_USAGE, "verify serving: more than 64 tensor ranks");
    for (int64_t i = 0; i < rows; i++, logits += v->vocab) {
        double max = -INFINITY, sum = 0;
        for (int64_t t = 0; t < v->tensor; t++) {
            int64_t first = param_share(v->vocab, (int)t, (int)v->tensor);
            struct cross_entropy call = {.rows = 1,
                                         .vocab = param_share(v->vocab, (int)t + 1, (int)v->tensor) - first,
                                         .stride = v->vocab,
                                         .type = DTYPE_F32,
                                         .logits = logits + first,
                                         .labels = &label,
                                         .part = &parts[t]};
            TRY(v->host_rank.ops->cross_entropy_part(&v->host_rank.exec, &call));
            max = parts[t].max > max ? parts[t].max : max;
        }
        for (int64_t t = 0; t < v->tensor; t++)
            sum += parts[t].sum * exp(parts[t].max - max);
        double log_sum = log(sum);
        for (int64_t id = 0; id < v->vocab; id++)
            logits[id] = -(float)(log_sum + (max - (double)logits[id]));
    }
    return STATUS_OK;
}

float *verify_reference(const struct verify *v, int64_t text, int64_t token) {
    return v->reference + (v->texts[text].tokens - v->ids.ids + token) * v->vocab;
}

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

void verify_compare(const struct verify *v, struct verify_path *path, int64_t text, int64_t token, const float *row) {
    const float *reference = verify_reference(v, text, token);
    path->tokens++;
    for (int64_t id = 0; id < v->vocab && memcmp(reference, row, (size_t)v->vocab * sizeof *row) != 0; id++) {
        if (bits_of(reference[id]) == bits_of(row[id]))
            continue;
        double size = fabs((double)reference[id] - (double)row[id]);
        if (!path->differ++)
            path->first = (struct verify_first){text, token, id, reference[id], row[id]};
        path->max_abs = size > path->max_abs || isnan(size) ? size : path->max_abs;
    }
}

/* ---- output ---- */

int verify_print(json_t *object) {
    char *text;
    struct strbuf out = STRBUF_INIT;
    int status = json_end(object, JSON_COMPACT | JSON_REAL_PRECISION(9), &text);
    strbuf_format(&out, "%s\n", text ? text : "");
    THEN(status, strbuf_status(&out));
    THEN(status, job_print(strbuf_text(&out), out.length));
    free(text);
    strbuf_free(&out);
    return status;
}

/* A number that is not finite has no place in JSON: null. */
static json_t *number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *hexadecimal(float value) {
    char text[32];
    snprintf(text, sizeof text, "%a", (double)value);
    return json_string(text);
}

int verify_tell(struct verify *v, const struct verify_path *p) {
    struct verify_serving *job = v->job;
    const struct verify_first *first = &p->first;
    if (!v->is_first)
        return STATUS_OK;
    job->is_equal &= !p->differ;
    job->gap = p->max_abs > job->gap || isnan(p->max_abs) ? p->max_abs : job->gap;
    if (job->is_quiet)
        return STATUS_OK;
    json_begin();
    json_t *line = json_object();
    json_object_set_new(line, "path", json_string(p->name));
    json_object_set_new(line, "texts", json_integer(v->count));
    json_object_set_new(line, "tokens", json_integer(p->tokens));
    json_object_set_new(line, "vocabulary", json_integer(v->vocab));
    json_object_set_new(line, "differ", json_integer(p->differ));
    json_object_set_new(line, "max_abs", number(p->max_abs));
    if (p->differ) {
        json_t *at = json_object();
        json_object_set_new(at, "text", json_integer(first->text));
        json_object_set_new(at, "token", json_integer(first->token));
        json_object_set_new(at, "id", json_integer(first->id));
        json_object_set_new(at, "training", hexadecimal(first->training));
        json_object_set_new(at, "serving", hexadecimal(first->serving));
        json_object_set_new(line, "first", at);
    }
    return verify_print(line);
}
