/* AdamW (Loshchilov, Hutter 2019; the formula of torch.optim.AdamW) in one pass over memory: 28 bytes a parameter, 2 to
 * 4 more for a working copy and 4 for clearing the gradient. What a chunk's later loops read is still in the
 * first-level cache. */
#include "cpu/level/rows.h"

#include <math.h>

enum { CHUNK = 1024 };

struct step {
    float scale;                         /* of the gradient */
    float decay, step_size, root_factor; /* 1 - lr wd; lr / (1 - beta1^t); 1 / sqrt(1 - beta2^t) */
    float rest1, rest2;                  /* 1 - beta */
};

static void update_chunk(const struct adamw *a, const struct step *s, int64_t first, int64_t count) {
    float *restrict master = a->master + first, *restrict m = a->m + first, *restrict v = a->v + first;
    const float *restrict gradient = a->gradient + first;
    const float beta2 = a->beta2, epsilon = a->epsilon;
    const struct step k = *s;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float g = gradient[i] * k.scale;
        float mean = m[i] + k.rest1 * (g - m[i]);
        float square = beta2 * v[i] + k.rest2 * g * g;
        m[i] = mean;
        v[i] = square;
        master[i] = master[i] * k.decay - k.step_size * mean / (sqrtf(square) * k.root_factor + epsilon);
    }
    if (a->weights && a->weights_type == DTYPE_BF16) {
        uint16_t *restrict weights = (uint16_t *)a->weights + first;
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            weights[i] = bf16_from_float(master[i]);
    } else if (a->weights) {
        memcpy((float *)a->weights + first, master, (size_t)count * sizeof *master);
    }
    if (a->zero_gradient)
        memset((float *)a->gradient + first, 0, (size_t)count * sizeof *gradient);
}

int LEVEL(cpu_adamw)(const struct exec *exec, const struct adamw *a) {
    if (a->weights && a->weights_type != DTYPE_BF16 && a->weights_type != DTYPE_F32)
        return status_fail(STATUS_UNSUPPORTED, "adamw: no %s weights on the cpu (fp32, bf16)",
                           dtype_name(a->weights_type));
    struct step s = {
        .scale = a->gradient_scale ? *a->gradient_scale : 1.0f,
        .decay = (float)(1.0 - (double)a->lr * (double)a->weight_decay),
        .step_size = (float)((double)a->lr / (1.0 - pow((double)a->beta1, (double)a->step))),
        .root_factor = (float)(1.0 / sqrt(1.0 - pow((double)a->beta2, (double)a->step))),
        .rest1 = (float)(1.0 - (double)a->beta1),
        .rest2 = (float)(1.0 - (double)a->beta2),
    };
    (void)exec;
    if (isnan(s.scale))
        return STATUS_OK;
#pragma omp parallel for num_threads(threads_for(exec, a->count)) schedule(static)
    for (int64_t first = 0; first < a->count; first += CHUNK)
        update_chunk(a, &s, first, a->count - first < CHUNK ? a->count - first : CHUNK);
    return STATUS_OK;
}
