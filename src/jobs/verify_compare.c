/* Compares paths of `verify serving` with its reference, and prints what was found. */
#include "verify-internal.h"

#include <math.h>

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
    json_t *line = json_pack("{s:s, s:I, s:I, s:I, s:I, s:o}", "path", p->name, "texts", (json_int_t)v->count, "tokens",
                             (json_int_t)p->tokens, "vocabulary", (json_int_t)v->vocab, "differ", (json_int_t)p->differ,
                             "max_abs", json_number(p->max_abs));
    if (p->differ)
        json_object_set_new(line, "first",
                            json_pack("{s:I, s:I, s:I, s:o, s:o}", "text", (json_int_t)first->text, "token",
                                      (json_int_t)first->token, "id", (json_int_t)first->id, "training",
                                      hexadecimal(first->training), "serving", hexadecimal(first->serving)));
    return json_print(line);
}
