/* AdamW (Loshchilov, Hutter 2019; the formula of torch.optim.AdamW) in one pass over memory. It moves 28 bytes a
 * parameter, 2 to 4 more for a working copy, and 4 more to clear the gradient. The later loops over a chunk read from
 * the first-level cache. */
#include "cpu/level/ranges.h"

#include <math.h>

/* The constants of a step, the same in all ranges. */
struct step {
    const struct adamw *arguments;
    float scale;        /* of the gradient */
    double correction;  /* 1 - beta1^t */
    float root_factor;  /* 1 / sqrt(1 - beta2^t) */
    float rest1, rest2; /* 1 - beta */
};

static void update_chunk(const void *call, const struct flat_range *range, int64_t first, int64_t count) {
    const struct step k = *(const struct step *)call;
    const struct adamw *a = k.arguments;
    float *restrict master = a->master + range->master + first;
    float *restrict m = a->m + range->state + first, *restrict v = a->v + range->state + first;
    const float *restrict gradient = a->gradient + range->first + first;
    const float beta2 = a->beta2, epsilon = a->epsilon;
    const float lr = (float)(range->lr_factor > 0 ? a->lr * (double)range->lr_factor : a->lr);
    const float decay = (float)(1.0 - (double)lr * (double)range->weight_decay);
    const float step_size = (float)((double)lr / k.correction);
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float g = gradient[i] * k.scale;
        float mean = m[i] + k.rest1 * (g - m[i]);
        float square = beta2 * v[i] + k.rest2 * g * g;
        m[i] = mean;
        v[i] = square;
        master[i] = master[i] * decay - step_size * mean / (sqrtf(square) * k.root_factor + epsilon);
    }
    if (a->weights && a->weights_type == DTYPE_BF16) {
        uint16_t *restrict weights = (uint16_t *)a->weights + range->first + first;
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            weights[i] = bf16_from_float(master[i]);
    } else if (a->weights) {
        memcpy((float *)a->weights + range->first + first, master, (size_t)count * sizeof *master);
    }
    if (a->zero_gradient)
        memset((float *)a->gradient + range->first + first, 0, (size_t)count * sizeof *gradient);
}

int LEVEL(cpu_adamw)(const struct exec *exec, const struct adamw *a) {
    if (a->weights && a->weights_type != DTYPE_BF16 && a->weights_type != DTYPE_F32)
        return status_fail(STATUS_UNSUPPORTED, "adamw: no %s weights on the cpu (fp32, bf16)",
                           dtype_name(a->weights_type));
    struct step step = {
        .arguments = a,
        .scale = a->gradient_scale ? *a->gradient_scale : 1.0f,
        .correction = 1.0 - pow((double)a->beta1, (double)a->step),
        .root_factor = (float)(1.0 / sqrt(1.0 - pow((double)a->beta2, (double)a->step))),
        .rest1 = (float)(1.0 - (double)a->beta1),
        .rest2 = (float)(1.0 - (double)a->beta2),
    };
    if (isnan(step.scale))
        return STATUS_OK;
    return every_range(exec, &(const struct range_work){
                                 .ranges = a->ranges, .count = a->range_count, .call = &step, .chunk = update_chunk});
}
