/* Between LoRA (lora.c), its configuration (lora_format.c) and its variant DoRA (dora.c). */
#ifndef CAMBIUM_PEFT_LORA_INTERNAL_H
#define CAMBIUM_PEFT_LORA_INTERNAL_H

#include "method-internal.h"

extern const struct peft_format lora_format;

/* DoRA's magnitude of a projection (arXiv 2402.09353): y = m / n (W x + s B A x) + b with n the norms of the rows of
 * W + s B A, which have no gradient. */
struct dora {
    int magnitude;                    /* id */
    float *squares, *ratio, *inverse; /* [out] of this rank: n^2, m / n, 1 / n */
};

/* One projection's pair. */
struct pair {
    struct peft_adapter *adapter;
    struct model_projection projection;
    int64_t layer;
    bool is_here; /* the layer is this stage's */
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

/* Whether a rank sees a part of the sum that is y. */
static inline bool pair_is_row(const struct pair *pair) {
    return peft_is_row(&pair->projection);
}

/* lora_batch.c */
int lora_make_image(struct image_maker *maker);
int lora_batched(const struct bank_call *call);

/* dora.c */
int dora_add_row(struct pair *pair);
/* Device memory for [out] numbers of each kind. */
int dora_allocate(struct pair *pair);
void dora_free(struct pair *pair);
/* The magnitude of the base: the norms of its rows. */
int dora_initialise(struct pair *pair);
/* Measures the base; all ranks of a tensor group together. */
int dora_begin(struct pair *pair);
/* Its halves: the rank's own part, and what all make of their parts. */
int dora_measure(struct pair *pair);
int dora_finish(struct pair *pair);
/* y, the pair's product added, is scaled; `kept` [N, out] receives what it was, or is NULL. */
int dora_forward(const struct pair *pair, const struct hook_call *call, void *kept);
/* dy: of the scaled y, then of the other. */
int dora_backward(const struct pair *pair, const struct hook_call *call, const void *kept);
/* With dropout the base's product is of the dropped x as well: y = W x + b + (m / n - 1) z + s B A drop(x), where
 * z = (W + s B A) drop(x). */
/* z [N, out] = drop(x) W', or without `is_forward` dx [N, in] += dz W. */
int dora_base_product(const struct pair *pair, const struct hook_call *call, bool is_forward, const void *x, void *z);
/* y += (m / n - 1) z. */
int dora_add(const struct pair *pair, const struct hook_call *call, const void *z);
/* From z to m / n dy, in its place. */
int dora_dropped_backward(const struct pair *pair, const struct hook_call *call, void *z);

#endif
