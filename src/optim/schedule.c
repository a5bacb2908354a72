/* Learning rates by iteration, equal to those of Megatron-LM's OptimizerParamScheduler. */
#include "optim/optim.h"

#include <math.h>

/* Returns the factor between min_lr (0) and lr (1) of a WSD schedule after `ratio` of its decay. */
static double wsd_coefficient(enum schedule_wsd decay, double ratio) {
    switch (decay) {
    case SCHEDULE_WSD_LINEAR:
        return 1 - ratio;
    case SCHEDULE_WSD_COSINE:
        return 0.5 * (cos(M_PI * ratio) + 1);
    case SCHEDULE_WSD_EXPONENTIAL:
        return 2 * pow(0.5, ratio) - 1;
    case SCHEDULE_WSD_MINUS_SQRT:
        return 1 - sqrt(ratio);
    }
    return 0;
}

double schedule_lr(const struct schedule *s, int64_t iteration) {
    double batch = (double)s->global_batch_size, seen = (double)(iteration - 1) * batch;
    double warmup = (double)s->warmup_iters * batch, end = (double)s->decay_iters * batch;
    if (warmup > 0 && seen <= warmup)
        return s->warmup_init + (s->lr - s->warmup_init) * seen / warmup;
    if (s->decay == SCHEDULE_CONSTANT)
        return s->lr;
    if (seen > end)
        return s->min_lr;
    if (s->decay == SCHEDULE_INVERSE_SQUARE_ROOT)
        return fmax(s->min_lr, s->lr * sqrt(fmax(warmup, 1)) / sqrt(fmax(seen, 1)));
    double ratio = end > warmup ? (seen - warmup) / (end - warmup) : 1, coefficient = 1;
    if (s->decay == SCHEDULE_LINEAR) {
        coefficient = 1 - ratio;
    } else if (s->decay == SCHEDULE_COSINE) {
        coefficient = 0.5 * (cos(M_PI * ratio) + 1);
    } else {
        double decay = (double)s->wsd_decay_iters * batch, start = end - decay;
        if (seen > start)
            coefficient = wsd_coefficient(s->wsd_decay, decay > 0 ? (seen - start) / decay : 1);
    }
    return s->min_lr + coefficient * (s->lr - s->min_lr);
}
