/* Shared by IA3 (ia3.c), its part of a bank (ia3_batch.c) and its configuration (ia3_format.c). */
#pragma once

#include "method-internal.h"

extern const struct peft_format ia3_format;

/* One vector. */
struct scale {
    struct peft_adapter *adapter;
    int64_t layer;
    struct model_projection projection;
    int id;
};

struct ia3 {
    int count;
    struct scale *scales;
};

/* True when the projection's input is itself a place: that of the activation before the projection. */
static inline bool ia3_has_input_place(const struct model_projection *p) {
    return p->place == ATTACH_FC2;
}

/* In ia3_batch.c: see struct peft_method. */
int ia3_make_image(struct image_maker *maker);
int ia3_forward(const struct bank_call *call);
uint16_t ia3_sites(void);
int ia3_plan_forward(struct peft_bank *bank, const struct hook_call *hook);
