/* Shared by LoRA (lora.c), its configuration (lora_format.c) and its variant DoRA (dora.c). Functions that return a
 * status return the device's errors, or STATUS_MEMORY. */
#pragma once

#include "method-internal.h"

extern const struct peft_format lora_format;

/* DoRA's magnitude m of a projection (arXiv 2402.09353): y = m / n (W x + s B A x) + b. The norms n of the rows of W +
 * s B A have no gradient. */
struct dora {
    int magnitude;                    /* id */
    float *squares, *ratio, *inverse; /* [out] of this rank: n^2, m / n, 1 / n */
    void *bias;                       /* [out] a copy of b, if dora_has_bias */
};

/* The pair of matrices of one projection. */
struct pair {
    struct peft_adapter *adapter;
    struct model_projection projection;
    int64_t layer;
    bool is_here; /* the layer belongs to this stage */
    int a, b;     /* ids */
    int64_t r;
    float scale;
    uint32_t dropout_site;
    struct dora dora;
};

struct lora {
    int count;
    struct pair *pairs;
};

/* True when each rank sees a part of the sum that is y. */
static inline bool pair_is_row(const struct pair *pair) {
    return peft_is_row(&pair->projection);
}

/* Writes our name of a parameter of the pair. */
static inline void pair_name(const struct pair *pair, const char *kind, char out[PARAM_NAME_BYTES]) {
    if (pair->projection.place == ATTACH_HEAD)
        snprintf(out, PARAM_NAME_BYTES, "%s.%s", pair->projection.module, kind);
    else
        snprintf(out, PARAM_NAME_BYTES, "layers.%lld.%s.%s", (long long)pair->layer, pair->projection.module, kind);
}

/* In lora_batch.c: see struct peft_method. */
int lora_make_image(struct image_maker *maker);
int lora_forward(const struct bank_call *call);
uint16_t lora_sites(void);

/* DoRA, in dora.c. Adds the row of the magnitude; returns its id or a negative status. */
int dora_add_row(struct pair *pair);
/* Allocates [out] numbers of each kind on the device. */
int dora_allocate(struct pair *pair);
void dora_free(struct pair *pair);
/* Returns true if this rank's part of y has the base's bias. Of parts that are summed, only the first rank's has it. */
bool dora_has_bias(const struct pair *pair, const struct param_store *base);
/* Sets the magnitude to the norms of the base's rows. */
int dora_initialise(struct pair *pair);
/* Measures the base; all ranks of a tensor group call it together. */
int dora_begin(struct pair *pair);
/* The two halves of dora_begin: this rank measures its part, then all ranks combine their parts. */
int dora_measure(struct pair *pair);
int dora_finish(struct pair *pair);
/* Converts dy from the gradient of the scaled y to that of the unscaled y. */
int dora_backward(const struct pair *pair, const struct hook_call *call, const void *kept);
/* With dropout the base's product takes the dropped x too. With z = (W + s B A) drop(x) it is y = W x + b + (m / n - 1)
 * z + s B A drop(x). */
/* Computes z [N, out] = drop(x) W', or without `is_forward` adds dz W to dx [N, in]. */
int dora_base_product(const struct pair *pair, const struct hook_call *call, bool is_forward, const void *x, void *z);
/* Computes y += (m / n - 1) z. */
int dora_add(const struct pair *pair, const struct hook_call *call, const void *z);
/* Replaces z by m / n dy. */
int dora_dropped_backward(const struct pair *pair, const struct hook_call *call, void *z);
