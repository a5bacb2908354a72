#include "log_sum.h"

#include <math.h>

int log_sum_of(struct rank *host, float *logits, int64_t vocab, int64_t tensor, struct log_sum *out) {
    struct cross_entropy_part parts[64];
    int32_t label = 0;
    double sum = 0;
    *out = (struct log_sum){.max = -INFINITY};
    if (tensor > 64)
        return status_fail(STATUS_USAGE, "more than 64 tensor ranks");
    for (int64_t t = 0; t < tensor; t++) {
        int64_t first = param_share(vocab, (int)t, (int)tensor);
        struct cross_entropy call = {.rows = 1,
                                     .vocab = param_share(vocab, (int)t + 1, (int)tensor) - first,
                                     .stride = vocab,
                                     .type = DTYPE_F32,
                                     .logits = logits + first,
                                     .labels = &label,
                                     .part = &parts[t]};
        TRY(host->ops->cross_entropy_part(&host->exec, &call));
        out->max = parts[t].max > out->max ? parts[t].max : out->max;
    }
    for (int64_t t = 0; t < tensor; t++)
        sum += parts[t].sum * exp(parts[t].max - out->max);
    out->sum = log(sum);
    return STATUS_OK;
}
