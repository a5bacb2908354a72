/* Attach points: the places of the model that methods may change, and the table of the hooks that change them.
 *
 * There are three kinds of hooks. A struct hook changes rows that a layer computes. A struct prefix_hook gives keys and
 * values before a layer's segments. A struct token_hook gives tokens beyond the vocabulary. A method fills the table
 * once. The model asks for the list of a place, and never names a method. Lists run in order forward, and in reverse
 * order backward. */
#pragma once

#include "parallel/rank.h"
#include "parallel/upload.h"

/* The places whose rows a method may change: of a layer, and the head. */
enum attach_place {
    ATTACH_NONE,       /* the place of parameters that belong to no linear */
    ATTACH_QKV,        /* a projection: x is its input, y its output q | k | v */
    ATTACH_PROJECTION, /* the attention's output projection */
    ATTACH_FC1,        /* before or after the activation, as the hook says */
    ATTACH_FC2,
    ATTACH_AFTER_ATTENTION, /* y: the attention's result before its residual; x: the block's normalised input */
    ATTACH_AFTER_MLP,       /* the same for the MLP */
    ATTACH_HEAD,            /* y: logits of the head's rows, some at a time. Its layer is the one after the last */
    ATTACH_PLACE_COUNT
};

/* The side of the activation at which a hook runs. */
enum hook_side { HOOK_BEFORE_ACTIVATION, HOOK_AFTER_ACTIVATION };

struct hook_call {
    struct rank *rank;
    int layer;
    enum attach_place place;
    enum dtype dtype;
    int64_t rows, in, out;          /* out: the number of columns of y that the hook covers */
    int64_t first_row;              /* at the head: the first row, among all rows of the head */
    int64_t first;                  /* the first of these columns, among the place's on this rank */
    const struct param_store *base; /* of the place's weight; NULL if the place is no linear */
    struct row_keys keys;           /* of these rows, for dropout; NULL in a pass without dropout, and while planning */
    const void *x;                  /* [N, in]; NULL if the place has no input of its own */
    void *y;                        /* [N, out], changed in place */
    int64_t y_stride;               /* of y and dy, from row to row */
    enum dtype y_dtype;             /* dtype, or fp32 with hook.fp32_y */
    const void *residual;           /* ATTACH_AFTER_*: [N, C], the stream that the result will be added to */
    void *dresidual;                /* the gradient of residual, to be added to */
    void *saved;                    /* saved_bytes that the forward writes for the backward */
    void *dy;                       /* backward: the gradient of y after the hook */
    void *dx;                       /* backward_input: the gradient of x, to be added to; NULL if it is not needed */
    bool has_no_dx;                 /* while planning, when all pointers are NULL: dx is not needed */
};

/* Keys and values before every segment of a layer: [tokens, G, D] each. Gradients are fp32 and added to, or NULL. */
struct hook_prefix {
    int64_t tokens;
    const void *k, *v;
    float *dk, *dv;
};

/* Virtual tokens of the embedding: rows after the vocabulary. Those of the first method have the ids from vocab_size
 * on. The table, which is borrowed, is whole on every tensor rank. So is its gradient, which is fp32 and added to, or
 * NULL.
 */
struct hook_virtual {
    int64_t tokens;
    const void *table; /* [tokens, C] */
    float *gradient;
};

/* One method at one place. The forward changes y after the base wrote it. The backward has two halves.
 * `backward_output` runs before the base's backward and turns dy into the gradient of what the base wrote.
 * `backward_input` runs after it and adds the method's part to dx. Members that a method does not need are NULL. They
 * are also called while the rank is planning, and then only record the scratch that they need.
 *
 * At a projection, a rank's hook sees all rows, its share of the columns that are cut over the tensor ranks, and y
 * before it is summed over them. So it does at the head, whose rows come in chunks, each with its backward right after
 * its forward. A hook there is linear in y. It may cover a range of these columns, because one
 * product of the model may compute several projections of the files. At ATTACH_AFTER_*, it sees whole results, for the
 * rank's rows of the stream. */
struct hook {
    void *self;
    int owner; /* the table's when it was added, or HOOK_OF_ANOTHER */
    enum hook_side side;
    int64_t first, columns; /* the columns that it covers, of the place's side on this rank; columns 0: all. Required if
                               the sides differ in width, and `saved_bytes` depends on that */
    size_t (*saved_bytes)(void *self, const struct hook_call *call);
    int (*forward)(void *self, const struct hook_call *call);
    int (*backward_output)(void *self, const struct hook_call *call);
    int (*backward_input)(void *self, const struct hook_call *call);
    /* Returns true if the hook changes anything in this pass, on its side. If not, none of its functions is called, and
     * the place costs the same as without it. NULL: always active. */
    bool (*is_active)(const void *self);
    /* At a projection in bf16: memory for y as [N, out] in fp32. The base's product is written there, `forward` changes
     * it there, and it is rounded to y once, after the last hook. NULL: `forward` changes y. */
    float *const *fp32_y;
};

/* Gives a layer's prefix. If it has several, `image` selects one. */
struct prefix_hook {
    void *self;
    int owner;
    int (*prefix)(void *self, int image, int layer, struct hook_prefix *prefix);
};

/* Gives virtual tokens. The model calls it before and after it uses the rows. A stage without an embedding reads only
 * their number. */
struct token_hook {
    void *self;
    int owner;
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

/* Arrays of the host that the hooks of an inference step need. They are uploaded in one copy with the step's arrays.
 *
 * A recorded step can have hooks by row: their operations are the same in every step, and arrays of the device say what
 * they do. Its level tells how many operations it has: those of the level below, and more. At level 0 it has none. */
enum {
    HOOK_LEVELS_MOST = 5,
    HOOK_LEVEL_EACH = -1 /* not recorded: each kind of operation of the highest level */
};
struct hook_upload {
    size_t bytes; /* the most, a multiple of ARENA_ALIGNMENT; 0: none */
    void (*add)(void *self, struct upload *upload);
    int levels; /* the highest; at most HOOK_LEVELS_MOST */
    /* Returns the lowest level that has the operations of the present step. It is above `levels` if none has them. */
    int (*level)(const void *self);
    /* Adds the arrays of a recorded step instead. Their places depend only on the level and the number of rows. */
    void (*add_by_row)(void *self, struct upload *upload, int level, int64_t rows);
    /* Until it is called with level 0, the hooks act as in every step of the level by `rows` rows. Its arrays were
     * uploaded last. */
    void (*act_by_row)(void *self, int level, int64_t rows);
    void *self;
};

struct hook_table {
    int64_t layers;
    struct hook_list *lists;      /* [layers + 1][ATTACH_PLACE_COUNT] */
    struct prefix_list *prefixes; /* [layers] */
    struct token_list tokens;
    struct hook_upload upload;
    int owner; /* of the hooks that are added next */
};

/* Starts an empty table for `layers` layers. The caller frees it. STATUS_MEMORY. */
int hook_table_init(struct hook_table *table, int64_t layers);
/* Adds the hooks of another stack's table before any others. They get the owner HOOK_OF_ANOTHER. STATUS_INVALID if a
 * list is full. */
enum { HOOK_OF_ANOTHER = -1 };
int hook_table_stand_on(struct hook_table *table, const struct hook_table *below);
/* Makes a table of only one owner's hooks. The caller frees it. STATUS_MEMORY. */
int hook_table_of(const struct hook_table *all, int owner, struct hook_table *table);
/* Frees the table; a zeroed one is allowed. */
void hook_table_free(struct hook_table *table);
/* Add a copy of a hook: at a place of a layer, to a layer's prefixes, or to the virtual tokens. STATUS_INVALID if the
 * list is full. */
int hook_table_add(struct hook_table *table, int64_t layer, enum attach_place place, const struct hook *hook);
int hook_table_add_prefix(struct hook_table *table, int64_t layer, const struct prefix_hook *hook);
int hook_table_add_tokens(struct hook_table *table, const struct token_hook *hook);
/* Return the hooks of a place, never NULL: a table without hooks, or a NULL table, gives empty lists. */
const struct hook_list *hook_table_list(const struct hook_table *table, int64_t layer, enum attach_place place);
const struct prefix_list *hook_table_prefixes(const struct hook_table *table, int64_t layer);
const struct token_list *hook_table_tokens(const struct hook_table *table);
/* Returns true if the layer has any hook. */
bool hook_table_changes(const struct hook_table *table, int64_t layer);
/* Returns true if the list has hooks of this side. */
bool hook_list_has(const struct hook_list *list, enum hook_side side);
/* Returns true if the list has hooks of this side that are active in this pass. */
bool hook_list_is_active(const struct hook_list *list, enum hook_side side);
/* Returns fp32_y of the list's first hook that has it and is active before the activation; NULL if there is none. */
float *const *hook_list_fp32_y(const struct hook_list *list);
/* Returns the bytes that the list's hooks save in a forward, each hook's part aligned. `call` gives the shape. */
size_t hook_list_saved_bytes(const struct hook_list *list, const struct hook_call *call);
/* Runs the list's hooks of one side. `call->saved` is the list's block. Returns the first error of a hook. */
int hook_list_forward(const struct hook_list *list, enum hook_side side, const struct hook_call *call);
/* Run the two halves of the backward, in reverse order. Return the first error of a hook. */
int hook_list_backward_output(const struct hook_list *list, enum hook_side side, const struct hook_call *call);
int hook_list_backward_input(const struct hook_list *list, enum hook_side side, const struct hook_call *call);
