/* The sums of the loss, on the host, for logits of any device. */
#pragma once

#include "parallel/rank.h"
#include "tensor/param_part.h"

/* The logarithm of a sum of exponentials is `sum` + `max`. */
struct log_sum {
    double max, sum;
};
/* Sums a row of logits in fp32 as the loss of `tensor` ranks does. `host`: a rank on the CPU. STATUS_USAGE for more
 * than 64 ranks. */
int log_sum_of(struct rank *host, float *logits, int64_t vocab, int64_t tensor, struct log_sum *out);
/* Returns a log-probability, with the bits that the loss has. */
static inline float log_sum_logprob(const struct log_sum *sum, float logit) {
    return -(float)(sum->sum + (sum->max - (double)logit));
}
