/* Compares paths of `verify serving` with its reference, and prints what was found. */
#include "verify-internal.h"

#include "log_sum.h"

#include <math.h>

/* ---- log-probabilities ---- */

int verify_normalise(struct verify *v, float *logits, int64_t rows) {
    for (int64_t i = 0; i < rows; i++, logits += v->vocab) {
        struct log_sum sum;
        TRY(log_sum_of(&v->host_rank, logits, v->vocab, v->tensor, &sum));
        for (int64_t id = 0; id < v->vocab; id++)
            logits[id] = log_sum_logprob(&sum, logits[id]);
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
