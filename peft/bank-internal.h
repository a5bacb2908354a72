/* The bank inside: shared by its opening, its images and the methods. */
#pragma once

#include "method-internal.h"
#include "peft/bank.h"

/* The entries of an image, layer by layer: the first list for each projection, the second for each half of the
 * block. The head, which is one more projection, follows the last layer. */
enum projection_entry { ENTRY_DOWN, ENTRY_UP, ENTRY_OUTPUT, ENTRY_INPUT, PROJECTION_ENTRIES };
enum half_entry { ENTRY_NORM, ENTRY_HALF_DOWN, ENTRY_HALF_UP, HALF_ENTRIES };

struct peft_image {
    const struct peft_method *method; /* NULL: the number is free */
    struct peft_config config;        /* numbers and choices only, without texts and lists */
    char *memory;                     /* device: `bytes` of the bank's memory */
    size_t bytes;
    struct group_entry *entries;              /* host: [bank_entry_count]; norms have gain and bias */
    const struct group_entry *device_entries; /* the same on the device */
    uint16_t *sites;                          /* [layers of the stage + 1] bits of the sites that the image changes */
    int64_t columns;                          /* the widest inner product of a row */
    const char *scaled_input;                 /* a module whose input is scaled and has other readers; NULL: none */
    bool reads_half, reads_stream; /* of a half of a block: its output, and the stream to which that is added */
    bool has_norm;                 /* of these inputs */
    int64_t virtual_tokens, prefix_tokens;
    int64_t first_virtual; /* row of the bank's memory */
    const void **prefix;   /* device: [layers of the stage][2] keys and values, [prefix_tokens, width] each */
};

/* Arrays of the hook's type that the backward reads; NULL: they are not kept. */
struct bank_kept {
    void *in;    /* [N, out] a bottleneck's input */
    void *inner; /* [N, columns] the inner product */
    void *y;     /* [N, columns of the projection] y before it is scaled */
};

/* One side of a place of a layer. */
struct bank_site {
    struct peft_bank *bank;
    int64_t layer; /* counted from the stage's first; at the head, the one after the last */
    enum attach_place place;
    enum hook_side side;
};
enum { BANK_SITES = 2 * ATTACH_PLACE_COUNT };

/* A run of rows of a step that go through one image. */
struct bank_rows {
    int64_t first_row, rows;
    const struct peft_image *image;
    int64_t first_listed;         /* position of the first one among the rows of its list */
    int64_t first_wanted, wanted; /* those that go through the head, among all of the step that do */
};

/* Rows of a step whose slots have an adapter of the same method at the same position. */
struct bank_list {
    int64_t count, total; /* runs; rows of all runs */
    int64_t columns;      /* the maximum of any image */
    uint16_t *sites;      /* [layers + 1] sites that any of the images changes */
    struct bank_rows *rows;
    struct group_segment *host;           /* for the upload */
    const struct group_segment *segments; /* device: [count] in the batch */
    const struct group_segment *listed;   /* device: [count] in the order of row_index */
    const struct group_segment *wanted;   /* device: [count] among the rows of the head, if an image changes it */
    int32_t *host_index;
    const int32_t *row_index;    /* device: [total] rows of the batch, for methods that ask for them */
    bool has_ratios, has_inputs; /* some image may scale outputs by ratios; inputs that have other readers */
    bool has_norm;
    /* device, in a step by row: [total] each row's number, or -1 where its image does not read that input */
    const int32_t *half_index, *stream_index;
};

/* The operations of recorded steps. A higher level has those of the levels below it. */
struct bank_level {
    int rounds;      /* for images of one slot at the same sites */
    bool has_halves; /* changes of the outputs of attention and MLP */
    bool has_head;   /* changes of the logits */
    bool has_inputs; /* scaled inputs that have other readers; such an image is the only one in its slot */
};

enum { BANK_LISTS = PEFT_SLOT_IMAGES * PEFT_TYPE_COUNT };
struct peft_bank {
    struct rank *rank;
    struct model_options model; /* of the base, without hooks */
    const struct model_family *family;
    struct model_projection projections[MODEL_MAX_PROJECTIONS + 1]; /* of a block, and the head */
    int64_t first_layer, layers;                                    /* of the stage */
    int64_t entries;                                                /* of a layer */
    struct hook_table hooks;
    struct bank_site *sites; /* [layers + 1][BANK_SITES] */
    const struct param_store *base;
    const char *directory; /* of the base; NULL: unknown */
    bool is_allocated;     /* peft_bank_allocate has set the memory of images: */
    char *memory;          /* device */
    size_t memory_bytes, used_bytes;
    int image_count;
    struct peft_image **images;   /* [image_count] NULL: none */
    struct peft_loading *loading; /* NULL: none */
    /* The current step: */
    bool is_active;
    bool is_by_row;         /* a step is being recorded: rows get their images later */
    int64_t columns_by_row; /* the widest inner product of such a step */
    struct bank_list lists[PEFT_SLOT_IMAGES][PEFT_TYPE_COUNT];
    void *host; /* [list_bytes] the lists' arrays */
    size_t list_bytes;
    float *fp32_product; /* [max_rows, widest output] the base's product in a bf16 model; NULL in fp32 */
    size_t fp32_product_bytes;
    char *scratch; /* one hook's at a time */
    size_t scratch_bytes;
};

/* Returns a list by its number, in the order of rounds. */
static inline struct bank_list *bank_list_at(struct peft_bank *bank, int number) {
    return &bank->lists[number / PEFT_TYPE_COUNT][number % PEFT_TYPE_COUNT];
}
/* Returns the number of an entry; the head has the same in any layer. */
static inline int64_t bank_projection_entry(const struct peft_bank *bank, int64_t layer, int projection,
                                            enum projection_entry entry) {
    bool is_head = projection == bank->family->projection_count;
    int64_t first = is_head ? bank->layers * bank->entries : layer * bank->entries + projection * PROJECTION_ENTRIES;
    return first + (int64_t)entry;
}
/* Returns the number of entries of an image. */
static inline int64_t bank_entry_count(const struct peft_bank *bank) {
    return bank->layers * bank->entries + PROJECTION_ENTRIES;
}
static inline int64_t bank_half_entry(const struct peft_bank *bank, int64_t layer, bool is_mlp, enum half_entry entry) {
    return layer * bank->entries + bank->family->projection_count * PROJECTION_ENTRIES + is_mlp * HALF_ENTRIES +
           (int64_t)entry;
}
/* Returns the number of a projection in the family's order; the head is the last. */
int bank_projection(const struct peft_bank *bank, const struct model_projection *projection);

/* Returns the projection's first output on this rank, counted among the outputs of its place. */
int64_t bank_first_column(const struct peft_bank *bank, const struct model_projection *projection);

/* bank_records.c: sets how recorded steps have hooks, and returns the maximum number of bytes of their upload. */
void bank_set_levels(struct peft_bank *bank);
size_t bank_recorded_bytes(const struct peft_bank *bank);

/* One call of a method's forward for all rows of one list: at one projection, or after a half of a block. */
struct bank_call {
    struct peft_bank *bank;
    const struct bank_list *list;
    const struct bank_site *site;
    const struct hook_call *hook;
    int projection;        /* its number; unused after a half */
    int64_t columns;       /* of the inner product: the maximum of any image */
    struct bank_kept kept; /* training only */
    bool is_unscaled;      /* ratios do not scale y */
};

/* Scales the call's y by the images' vectors for this entry of its projection, after y was kept if the call keeps it.
 * Returns the device's errors. */
int bank_scale_rows(const struct bank_call *call, enum projection_entry entry);

/* Opens a bank without hooks, lists and memory. STATUS_MEMORY. */
int bank_new(const struct model_options *model, struct rank *rank, struct peft_bank **out);

/* ---- the images of a stack: stack_image.c ---- */

/* Runs or plans the forward of a stack's adapter for a hook. The caller sets what the call keeps, its projection and
 * columns. */
int peft_image_forward(const struct peft_adapter *adapter, const struct hook_call *hook, struct bank_call call);
/* Plan, free and take the memory of a stack's images, and make them at the beginning of a global batch. */
int peft_open_images(struct peft *peft);
void peft_close_images(struct peft *peft);
int peft_allocate_images(struct peft *peft);
int peft_make_images(struct peft *peft);

/* ---- making images: image.c ---- */

/* Passed to a method that describes its image. First the image is planned, and nothing is copied. Then it is made in
 * bounded passes, each of which continues after the one before. A last pass finishes it. */
enum maker_phase { MAKER_PLANS, MAKER_COPIES, MAKER_FINISHES };
struct image_maker {
    struct peft_bank *bank;
    struct peft_image *image;
    const struct peft_adapter *adapter; /* the only one in its stack, which holds its values */
    struct arena arena;                 /* over the image's memory */
    enum maker_phase phase;
    int64_t puts, copied; /* of this pass; of all passes so far */
    double end;           /* of this pass's time, by clock_seconds */
    bool is_stack; /* for the stack itself: where the order is the same, entries lead to the store's parameters */
};
static inline bool maker_plans(const struct image_maker *maker) {
    return maker->phase == MAKER_PLANS;
}
/* Puts a dense matrix of device memory into the image, or with `is_turned` its transposition, and returns its place.
 * STATUS_MEMORY, or the device's errors. */
int image_put(struct image_maker *maker, struct matrix_view from, bool is_turned, const void **place);
/* Puts [count] values that begin_image computes; only while the image is finished. */
int image_put_late(struct image_maker *maker, const void *from, int64_t count, enum dtype type, const void **place);
/* Puts this rank's part of a parameter of the adapter. */
int image_put_param(struct image_maker *maker, int id, bool is_turned, const void **place);
/* Puts a table of virtual tokens, a parameter of the adapter. */
int image_put_virtual(struct image_maker *maker, int table_id, int64_t tokens);
/* Allocates an image that is not made; image_free frees it. NULL: no memory. */
struct peft_image *image_new(const struct peft_bank *bank, const struct peft_config *config);
void image_free(struct peft_image *image);
/* Makes one pass over a planned arena, or over the image's memory. Fails as image_put. */
int image_make(struct image_maker *maker);
static inline struct group_entry *image_entry(struct image_maker *maker, int64_t number) {
    return &maker->image->entries[number];
}

/* For a projection: returns how many rows can be processed at a time, when each takes `bytes_a_row` of the scratch. */
static inline int64_t bank_piece(const struct peft_bank *bank, size_t bytes_a_row) {
    int64_t rows = bytes_a_row ? (int64_t)(bank->scratch_bytes / bytes_a_row) : 1;
    return rows > 1 ? rows : 1;
}
