/* Attach points: the places of the model that methods may change, and the table of what changes them.
 *
 * There are three kinds of places. A struct hook changes rows that a layer computes. A struct prefix_hook gives keys
 * and values before a layer's segments. A struct token_hook gives tokens beyond the vocabulary. A method fills the
 * table once; the model asks the list of a place and never names a method. Lists run in order forward, in reverse order
 * backward. */
#ifndef CAMBIUM_PARALLEL_HOOK_H
#define CAMBIUM_PARALLEL_HOOK_H

#include "parallel/rank.h"
#include "parallel/upload.h"

/* The places of a layer whose rows a method may change. */
enum attach_place {
    ATTACH_NONE,       /* of a parameter that is no linear's */
    ATTACH_QKV,        /* a projection: x its input, y its output, q | k | v */
    ATTACH_PROJECTION, /* the attention's output projection */
    ATTACH_FC1,        /* before or after the activation, as the hook says */
    ATTACH_FC2,
    ATTACH_AFTER_ATTENTION, /* y: the attention's result before its residual; x: the block's normalised input */
    ATTACH_AFTER_MLP,       /* the same for the MLP */
    ATTACH_PLACE_COUNT
};

/* The side of the activation at which a hook runs. */
enum hook_side { HOOK_BEFORE_ACTIVATION, HOOK_AFTER_ACTIVATION };

struct hook_call {
    struct rank *rank;
    int layer;
    enum attach_place place;
    enum dtype dtype;
    int64_t rows, in, out; /* out: the columns of y that are the hook's */
    int64_t first;         /* of these, among the place's on this rank */
    struct row_keys keys;  /* of these rows, for dropout; NULL in a pass without it, and while planning */
    const void *x;         /* [N, in]; NULL where the place has no input of its own */
    void *y;               /* [N, out], changed in place */
    int64_t y_stride;      /* of y and dy, from row to row */
    enum dtype y_dtype;    /* dtype, or of a wide hook fp32 */
    const void *residual;  /* ATTACH_AFTER_*: [N, C], the stream that the result will be added to */
    void *dresidual;       /* its gradient, added to */
    void *saved;           /* what the forward keeps for the backward: saved_bytes of it */
    void *dy;              /* backward: the gradient of y as it left the hook */
    void *dx;              /* backward_input: the gradient of x, added to; NULL when nobody wants it */
    bool has_no_dx;        /* nobody wants it, as planning sees it */
};

/* Keys and values before every segment of a layer: [tokens, G, D] each; gradients fp32, accumulated, or NULL. */
struct hook_prefix {
    int64_t tokens;
    const void *k, *v;
    float *dk, *dv;
};

/* Virtual tokens of the embedding: rows after the vocabulary. The first method's have the ids from vocab_size on. The
 * table, which is borrowed, is whole on every tensor rank. So is its gradient: fp32, accumulated, or NULL. */
struct hook_virtual {
    int64_t tokens;
    const void *table; /* [tokens, C] */
    float *gradient;
};

/* One method at one place. The forward changes y after the base wrote it. The backward has two halves.
 * `backward_output` runs before the base's backward and turns dy into the gradient of what the base wrote.
 * `backward_input` runs after it and adds the method's own part to dx. Members that a method does not need are NULL.
 * They are also called while the rank is planning, and then only record the scratch that they need.
 *
 * At a projection a rank's hook sees all rows, its own share of the columns that are cut over the tensor ranks, and y
 * before it is summed over them. A hook there is linear in y. It may cover a range of these columns, because the files'
 * projections are ranges of what the model computes at once. At ATTACH_AFTER_* it sees whole results, of the rank's
 * rows of the stream. */
struct hook {
    void *self;
    enum hook_side side;
    int64_t first, columns; /* on this rank, of the place's side; columns 0: all. Needed where the sides differ in width
                               and `saved_bytes` depends on it */
    size_t (*saved_bytes)(void *self, const struct hook_call *call);
    int (*forward)(void *self, const struct hook_call *call);
    int (*backward_output)(void *self, const struct hook_call *call);
    int (*backward_input)(void *self, const struct hook_call *call);
    /* At a projection in bf16, training or not: the base's product adds this to y in fp32 before it rounds, and
     * `forward` is left out. Not called where a method in between needs y as it was, or where the backend's product
     * takes no deltas: `forward` runs then. NULL: `forward` always does. */
    int (*delta)(void *self, const struct hook_call *call, struct gemm_delta *delta);
    /* Whether it changes anything in this pass, on its side: where it does not, nothing of it is called, and the place
     * costs what it costs without it. NULL: always. */
    bool (*is_active)(const void *self);
    /* At a projection in bf16: memory for [N, out] in fp32. The base's product goes there, `forward` changes it there,
     * and it is rounded once, after the last hook. NULL: `forward` changes y. */
    float *const *wide;
};

/* Gives a layer's prefix. `image`: whose prefix, where it has several. */
struct prefix_hook {
    void *self;
    int (*prefix)(void *self, int image, int layer, struct hook_prefix *prefix);
};

/* Gives virtual tokens: called before and after a use of the rows. A stage without an embedding asks for the
 * number alone. */
struct token_hook {
    void *self;
    void (*borrow_rows)(void *self, struct hook_virtual *rows);
    void (*return_rows)(void *self);
};

enum { HOOKS_PER_PLACE = 12 }; /* four methods at three projections each */
struct hook_list {
    int count;
    struct hook hook[HOOKS_PER_PLACE]; /* applied in order forward, in reverse order backward */
};

struct prefix_list {
    int count;
    struct prefix_hook hook[HOOKS_PER_PLACE];
};
struct token_list {
    int count;
    struct token_hook hook[HOOKS_PER_PLACE];
};

/* Arrays of the host that the hooks of an inference step need. They go to the device in one copy with the step's own.
 */
struct hook_upload {
    size_t bytes; /* the most, a multiple of ARENA_ALIGNMENT; 0: none */
    void (*add)(void *self, struct upload *upload);
    void *self;
};

struct hook_table {
    int64_t layers;
    struct hook_list *lists;      /* [layers * ATTACH_PLACE_COUNT] */
    struct prefix_list *prefixes; /* [layers] */
    struct token_list tokens;
    struct hook_upload upload;
};

/* Starts an empty table for `layers` layers. STATUS_MEMORY. hook_table_free ends it. */
int hook_table_init(struct hook_table *table, int64_t layers);
void hook_table_free(struct hook_table *table);
/* Adds a hook at a place of a layer. STATUS_MEMORY. */
int hook_table_add(struct hook_table *table, int64_t layer, enum attach_place place, const struct hook *hook);
int hook_table_add_prefix(struct hook_table *table, int64_t layer, const struct prefix_hook *hook);
int hook_table_add_tokens(struct hook_table *table, const struct token_hook *hook);
/* Never NULL: a table without hooks, or no table at all, gives empty lists. */
const struct hook_list *hook_table_list(const struct hook_table *table, int64_t layer, enum attach_place place);
const struct prefix_list *hook_table_prefixes(const struct hook_table *table, int64_t layer);
const struct token_list *hook_table_tokens(const struct hook_table *table);
/* True when anything stands at a place of the layer. */
bool hook_table_changes(const struct hook_table *table, int64_t layer);
bool hook_list_has(const struct hook_list *list, enum hook_side side);
/* The same of the hooks that change something in this pass. */
bool hook_list_is_active(const struct hook_list *list, enum hook_side side);
/* The memory of the list's wide hooks, where one is active before the activation; NULL: none. */
float *const *hook_list_wide(const struct hook_list *list);
/* Bytes the list keeps of a forward, each hook's part aligned; `call` gives the shape. */
size_t hook_list_saved_bytes(const struct hook_list *list, const struct hook_call *call);
/* Run the list's hooks of one side. `call->saved` is the list's block. */
int hook_list_forward(const struct hook_list *list, enum hook_side side, const struct hook_call *call);
/* Gives the product what the first hooks of the list add to it before it rounds, and counts these hooks: none where the
 * backend's product takes no deltas. */
int hook_list_deltas(const struct hook_list *list, const struct hook_call *call, struct gemm *gemm, int *count);
/* hook_list_forward without the first `count`. */
int hook_list_forward_from(const struct hook_list *list, int count, enum hook_side side, const struct hook_call *call);
int hook_list_backward_output(const struct hook_list *list, enum hook_side side, const struct hook_call *call);
int hook_list_backward_input(const struct hook_list *list, enum hook_side side, const struct hook_call *call);

#endif
