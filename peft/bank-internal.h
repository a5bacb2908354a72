/* The bank inside: what its opening, its images and the methods share. */
#ifndef CAMBIUM_PEFT_BANK_INTERNAL_H
#define CAMBIUM_PEFT_BANK_INTERNAL_H

#include "method-internal.h"
#include "parallel/upload.h"
#include "peft/bank.h"

/* The entries of an image, layer by layer: for each projection these, then for each half of the block those. */
enum projection_entry { ENTRY_DOWN, ENTRY_UP, ENTRY_OUTPUT, ENTRY_INPUT, PROJECTION_ENTRIES };
enum half_entry { ENTRY_NORM, ENTRY_HALF_DOWN, ENTRY_HALF_UP, HALF_ENTRIES };

struct peft_image {
    const struct peft_method *method; /* NULL: none stands here */
    struct peft_config config;        /* numbers and choices alone: texts and lists are gone */
    char *memory;                     /* device: `bytes` of the bank's */
    size_t bytes;
    struct group_entry *entries;              /* host: [layers of the stage][bank->entries]; norms have gain and bias */
    const struct group_entry *device_entries; /* the same */
    uint16_t *sites;                          /* [layers of the stage] bits of the sites that it changes */
    int64_t columns;                          /* the most that an inner product makes of a row */
    const char *scaled_input;                 /* a module whose input is scaled, and has other readers; NULL: none */
    int64_t virtual_tokens, prefix_tokens;
    int64_t first_virtual; /* row of the bank's memory */
    const void **prefix;   /* device: [layers of the stage][2] keys and values, [prefix_tokens, width] each */
};

/* A place and side of a layer. */
struct bank_site {
    struct peft_bank *bank;
    int64_t layer; /* counted from the stage's first */
    enum attach_place place;
    enum hook_side side;
};
enum { BANK_SITES = 2 * ATTACH_PLACE_COUNT };
static inline uint16_t bank_site_bit(enum attach_place place, enum hook_side side) {
    return (uint16_t)(1u << (2 * place + side));
}

/* Rows of a step that go through an image. */
struct bank_rows {
    int64_t first_row, rows;
    const struct peft_image *image;
    int64_t first_own; /* the first of them among the rows of its list */
};

/* The rows of a step whose slots have an adapter of one method in one place of their order. */
struct bank_list {
    int64_t count, total; /* runs, and rows of all */
    int64_t columns;      /* the most of any image */
    uint16_t *sites;      /* [layers] those that any of the images changes */
    struct bank_rows *rows;
    struct group_segment *host;           /* for the upload */
    const struct group_segment *segments; /* device: [count] in the batch, then [count] in the order of own_index */
    int32_t *host_index;
    const int32_t *own_index; /* device: [total] rows of the batch, where the method asks for them */
};

struct peft_bank {
    struct rank *rank;
    struct model_options model; /* of the base, without hooks */
    const struct model_family *family;
    struct model_projection projections[MODEL_MAX_PROJECTIONS];
    int64_t first_layer, layers; /* of the stage */
    int64_t entries;             /* of a layer */
    struct hook_table hooks;
    struct bank_site *sites; /* [layers][BANK_SITES] */
    const struct param_store *base;
    bool is_allocated; /* peft_bank_allocate has decided the memory of images: */
    char *memory;      /* device */
    size_t memory_bytes, used_bytes;
    int image_count;
    struct peft_image **images;   /* [image_count] NULL: none */
    struct peft_loading *loading; /* NULL: none */
    /* Of the step. */
    bool is_active;
    struct bank_list lists[PEFT_SLOT_IMAGES][PEFT_TYPE_COUNT];
    void *host; /* the lists' arrays */
    struct upload upload;
    void *uploaded;
    size_t uploaded_bytes;
    float *wide; /* [max_rows, widest output] a base's product in bf16 models; NULL in fp32 ones */
    size_t wide_bytes;
    char *scratch; /* one hook's at a time */
    size_t scratch_bytes;
};

/* The number of an entry. */
static inline int64_t bank_projection_entry(const struct peft_bank *bank, int64_t layer, int projection,
                                            enum projection_entry entry) {
    return layer * bank->entries + projection * PROJECTION_ENTRIES + (int64_t)entry;
}
static inline int64_t bank_half_entry(const struct peft_bank *bank, int64_t layer, bool is_mlp, enum half_entry entry) {
    return layer * bank->entries + bank->family->projection_count * PROJECTION_ENTRIES + is_mlp * HALF_ENTRIES +
           (int64_t)entry;
}
/* The number of a projection in the family's order. */
int bank_projection(const struct peft_bank *bank, const struct model_projection *projection);

/* The first of a projection's outputs on this rank, among those of its place. */
int64_t bank_first_column(const struct peft_bank *bank, const struct model_projection *projection);

/* One call of a method: all rows of the step in one list. */
struct bank_call {
    struct peft_bank *bank;
    const struct bank_list *list;
    const struct bank_site *site;
    const struct hook_call *hook;
};

/* Scales the call's y by the vectors that the images have as this entry of a projection. */
int bank_scale_rows(const struct bank_call *call, int projection, enum projection_entry entry);

/* What a method says of an image: while it is planned, when nothing is copied; then again and again while it is made, a
 * bounded time each, each time from where the last one ended; and once to finish it. */
enum maker_phase { MAKER_PLANS, MAKER_COPIES, MAKER_FINISHES };
struct image_maker {
    struct peft_bank *bank;
    struct peft_image *image;
    const struct peft_adapter *adapter; /* alone in its stack, which has its values */
    struct arena arena;                 /* over the image's memory */
    enum maker_phase phase;
    int64_t puts, copied; /* of this pass; of all passes so far */
    double end;           /* of the time for this pass, by clock_seconds */
};
static inline bool maker_plans(const struct image_maker *maker) {
    return maker->phase == MAKER_PLANS;
}
/* A dense [rows, cols] from device memory into the image; its place. `is_turned`: [cols, rows] arrives. */
int image_put(struct image_maker *maker, const void *from, int64_t rows, int64_t cols, enum dtype type, bool is_turned,
              const void **place);
/* [count] of what begin_image finds: while the image is finished. */
int image_put_late(struct image_maker *maker, const void *from, int64_t count, enum dtype type, const void **place);
/* The same of a parameter of the adapter, of this rank's part. */
int image_put_param(struct image_maker *maker, int id, bool is_turned, const void **place);
/* A table of virtual tokens, a parameter of the adapter. */
int image_put_virtual(struct image_maker *maker, int table_id, int64_t tokens);
static inline struct group_entry *image_entry(struct image_maker *maker, int64_t number) {
    return &maker->image->entries[number];
}

/* At a projection: rows [first, first + count) at a time, so that `bytes` a row fit the scratch. */
static inline int64_t bank_piece(const struct peft_bank *bank, size_t bytes_a_row) {
    int64_t rows = bytes_a_row ? (int64_t)(bank->scratch_bytes / bytes_a_row) : 1;
    return rows > 1 ? rows : 1;
}

#endif
