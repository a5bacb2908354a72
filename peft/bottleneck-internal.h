/* Shared by bottleneck adapters (bottleneck.c), their configuration (bottleneck_format.c) and their rows in a bank
 * (bottleneck_batch.c). */
#pragma once

#include "method-internal.h"

extern const struct peft_format bottleneck_format;

enum bottleneck_parameter { NORM_GAIN, NORM_BIAS, DOWN, DOWN_BIAS, UP, UP_BIAS, PARAMETERS };

/* The adapter at one place of a layer. */
struct bottleneck {
    struct peft_adapter *adapter;
    enum attach_place place;
    int64_t layer;
    int id[PARAMETERS];
};

struct bottlenecks {
    int count;
    struct bottleneck *of;
};

static const float bottleneck_norm_epsilon = 1e-5f; /* torch's */

int bottleneck_make_image(struct image_maker *maker);
int bottleneck_forward(const struct bank_call *call);
uint16_t bottleneck_sites(void);
