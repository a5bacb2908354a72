/* A method is a row of the table (methods.h); its functions are in its file. No method knows another. */
#pragma once

#include "peft/peft.h"

struct peft_adapter;
struct peft_choice;
struct peft_format;
struct merge;
struct peft_bank;
struct peft_image;
struct bank_call;
struct image_maker;
struct stack_image;

/* Publishes the files of a stack into a directory that has other files. */
extern const struct staging_files peft_staging_files;
/* True for names in a stack's directory that are not adapters of the stack: checkpoints, the best stack, backups. */
bool peft_is_no_adapter(const char *name);

/* Returns the name in a base's files of the embedding or the head that a tensor beside an adapter repeats, as PEFT
 * saves them; NULL for other tensors. */
const char *peft_copied_name(const struct param_files *files, const char *name);

/* The meaning of num_virtual_tokens: rows before each sample's rows, or keys and values before its keys and values. */
enum peft_before { PEFT_BEFORE_NOTHING, PEFT_BEFORE_ROWS, PEFT_BEFORE_KEYS };

/* The bit of a place's side in a set of sites. */
static inline uint16_t peft_site_bit(enum attach_place place, enum hook_side side) {
    return (uint16_t)(1u << (2 * place + side));
}

/* One method. Members that it does not need are NULL. */
struct peft_method {
    const char *title;                /* "bottleneck adapter" */
    const char *noun;                 /* the same in a sentence, if that differs: "a bottleneck adapter" */
    const struct peft_format *format; /* its configuration: format-internal.h */
    enum peft_before before;
    double lr;         /* the learning rate when none is given */
    double encoder_lr; /* the same where an encoder makes the values; 0: there is no encoder */
    /* Returns the default of target_modules, NULL-terminated. */
    const char *const *(*targets)(const struct model_family *family);
    const char *file; /* the file of its values; NULL: CKPT_ADAPTER_PART */
    /* Parts of its tensors' names that older versions spell otherwise: pairs of our spelling and theirs, ending with
     * {0}. For each tensor the first pair that gives a name of the file counts. NULL: none. */
    const char *const (*other_names)[2];
    /* True when an encoder makes its values during training. NULL: never. */
    bool (*is_encoded)(const struct peft_config *config);
    /* Chooses the part of a directory's adapter that continues to train: the encoder if the directory has it, else the
     * table that the encoder made. NULL: there is no encoder. */
    void (*take_encoder)(struct peft_config *config, const char *directory, bool has_encoder);
    /* Returns the name of a variant that measures and scales the base's projections. It cannot be combined with another
     * method that changes them. NULL, or a NULL result: none. */
    const char *(*measures)(const struct peft_config *config);
    /* Adds its changes to the base's projections, layer by layer, with the functions of merge-internal.h. NULL: it does
     * not change weights. */
    int (*merge)(const struct peft_adapter *adapter, struct merge *merge);

    /* ---- hooks ---- */
    /* Refuses impossible values by their keys' names (STATUS_USAGE). Adds the rows of the adapter's parameters with
     * peft_add_row. */
    int (*describe)(struct peft_adapter *adapter);
    /* Adds the hooks with peft_add_hook or hook_table_add; parameters have their ids. Layers of other stages get hooks
     * too, so that the model knows where the backward ends. */
    int (*attach)(struct peft_adapter *adapter);
    /* Allocates the method's memory on the device, once the store has its memory. */
    int (*allocate)(struct peft_adapter *adapter);
    /* initialise: sets initial values that the table does not describe. begin and end: see peft_begin and peft_end. */
    int (*initialise)(struct peft_adapter *adapter, uint64_t seed);
    int (*begin)(struct peft_adapter *adapter);
    int (*end)(struct peft_adapter *adapter);
    /* fold: fills the table of `to`, which does not train and is fp32, with the encoder's output for the weights of
     * `from`. */
    int (*fold)(const struct peft_adapter *from, struct peft_adapter *to);
    void (*close)(struct peft_adapter *adapter);

    /* ---- the forward, in training and inference: bank-internal.h ---- */
    /* For an image that needs something computed from the base. After `allocate`, prepare_part computes the parts that
     * a rank can do by itself, image_parts in number; then all tensor ranks call begin_image together. NULL: nothing is
     * needed or allocated. */
    int (*image_parts)(const struct peft_adapter *adapter);
    int (*prepare_part)(struct peft_adapter *adapter, int part);
    int (*begin_image)(struct peft_adapter *adapter);
    /* Describes the adapter's image, both while it is planned and while it is made. */
    int (*make_image)(struct image_maker *maker);
    /* Refuses an image that cannot share a slot with others. NULL: it can share with any. */
    int (*check_together)(const struct peft_bank *bank, const struct peft_image *image);
    /* Computes the rows of a list at one projection of a site, or after a half of a block; in training, too. Images of
     * the list without entries there are unchanged. NULL: it changes no place. */
    int (*forward)(const struct bank_call *call);
    /* Returns the sites that `forward` may change. */
    uint16_t (*sites)(void);
    /* Reports the scratch that it needs from the rank at a place. NULL: none. */
    int (*plan_forward)(struct peft_bank *bank, const struct hook_call *hook);
};

struct peft_adapter {
    struct peft *peft;
    const struct peft_method *method;
    struct peft_config config;
    int number;                        /* in the stack */
    int first_row, end_row;            /* its rows in the table */
    struct param_table training_table; /* in a stack of several: a copy of the table in which only these rows train */
    struct peft_choice *choices;       /* at projections: the result of peft_choose_targets */
    void *state;                       /* the method's data, which it allocates and frees */
    struct stack_image *image;         /* stack_image.c; NULL without a forward */
};

struct peft {
    struct rank *rank;
    struct model_options base_options; /* of the base, without its hooks */
    struct model_config base;
    const char *directory;                                          /* the base's; NULL: unknown */
    const struct model_family *family;                              /* the base's */
    struct model_projection projections[MODEL_MAX_PROJECTIONS + 1]; /* of each block of the base, and its head */
    enum dtype dtype;
    bool trains, takes_tables;         /* as in the options */
    bool has_backward;                 /* it trains, or a stack above it does */
    int others;                        /* adapters of the stack above or below */
    struct peft *frozen;               /* the stack below; NULL: none */
    bool is_begun;                     /* a stack below: what it computes from its values is there */
    int64_t sample;                    /* the first of the current global batch; below 0: no dropout */
    int64_t max_rows;                  /* of a batch */
    const struct param_store *weights; /* the base's, once they are set */
    size_t scratch_bytes;              /* the largest request of a method */
    size_t method_bytes;               /* device memory that methods allocate themselves */
    void *scratch;                     /* one hook's at a time */
    struct peft_bank *bank;            /* of the stack's images, without slots; NULL: no method has a forward */
    size_t image_bytes;                /* of these images */
    struct param_table table;
    struct param_table state_table; /* of a stack of several that trains: the table with distinct names */
    struct param_store store;
    bool *is_held; /* [table count] */
    struct hook_table hooks;
    int count;
    struct peft_adapter *adapters;
    struct peft *tables; /* the tables that encoders make, as a stack of those adapters that does not train, in fp32;
                            NULL: none */
    struct ckpt_flat table_flat;
    struct ckpt_array table_values;
};

/* True when a projection's inputs, not its outputs, are cut over the tensor ranks. */
static inline bool peft_is_row(const struct model_projection *projection) {
    return model_linear(projection->place).split == LINEAR_ROW;
}
/* Lists the projections of a family's blocks in their order, and the head after them. */
void peft_list_projections(const struct model_config *base, struct model_projection out[MODEL_MAX_PROJECTIONS + 1]);
/* Returns the columns of a projection's place that belong to the projection, on this rank. */
struct model_range peft_range(const struct peft *peft, const struct model_projection *projection);
/* Adds a hook on the outputs of a projection only, not of its whole place. STATUS_MEMORY. */
int peft_add_hook(struct peft *peft, int64_t layer, const struct model_projection *projection, struct hook hook);
/* Writes PEFT's name of a tensor of a module. The head's layer is the one after the last. */
void peft_tensor_name(const struct peft *peft, int64_t layer, const char *module, const char *kind,
                      char out[PARAM_NAME_BYTES]);

/* The choices of a configuration for one projection of one layer, from target_modules, exclude_modules,
 * layers_to_transform, feedforward_modules, rank_pattern and alpha_pattern. */
struct peft_choice {
    bool is_target;
    bool is_feedforward; /* when it is a target: it is scaled at its input */
    bool is_named;       /* by target_modules, even if something excludes it */
    double r, alpha;     /* as given */
};
/* Fills choices [layers][projections of the family], and one of the head after them, for a model with `layers` layers.
 * Compiles each expression once. STATUS_USAGE, STATUS_MEMORY. */
int peft_choose(const struct peft_config *config, const struct model_family *family, int64_t layers,
                struct peft_choice *choices);
/* The same for the adapter's model; peft_choice then reads the result. STATUS_USAGE when it targets no projection of
 * the model, or an entry of a list names none. */
int peft_choose_targets(struct peft_adapter *adapter);
/* Fails with STATUS_USAGE when an entry of feedforward_modules is not one of the chosen targets. */
int peft_check_forwards(const struct peft_adapter *adapter);
/* Returns the choice for one projection, after peft_choose_targets. The head's layer is the one after the last. */
const struct peft_choice *peft_choice(const struct peft_adapter *adapter, int64_t layer,
                                      const struct model_projection *projection);
/* True when layers_to_transform has the layer. */
bool peft_transforms(const struct peft_adapter *adapter, int64_t layer);
/* Fails with STATUS_USAGE when layers_to_transform has a number that is no layer of the model. */
int peft_layers_check(const struct peft_adapter *adapter);

/* Adds a row named "layers.L.NAME" ("NAME" without a layer), with the file's name. Rows for layers of other stages are
 * added too, so that every rank has the same table. In a stack of several, the adapter's number precedes the names.
 * Slices that are not set are one slice of the whole. Returns the id, or a negative status. */
int peft_add_row(struct peft_adapter *adapter, struct param *row);
/* In export.c: opens peft->tables if there are encoders. STATUS_MEMORY. */
int peft_open_tables(struct peft *peft);
/* True when an encoder makes its values; then the encoder trains, and they do not. */
bool peft_is_encoded(const struct peft_adapter *adapter);
/* Returns the table of the stack in which only this adapter's rows train. */
const struct param_table *peft_table(const struct peft_adapter *adapter);
/* True when the layer (-1: the embedding) belongs to this stage; valid while the stack opens. */
bool peft_has_layer(const struct peft *peft, int64_t layer);

/* Returns the variant that method->measures names, or NULL. */
const char *peft_measures(const struct peft_config *config);

/* Combinations of adapters that are refused (STATUS_USAGE), and their error texts. */
int peft_check_stack(const struct peft_config *const *configs, int count);
int peft_fail_prefixes(int first, int second);
int peft_fail_positions(const struct peft_config *config, int64_t positions);
/* Fails with STATUS_USAGE when num_virtual_tokens, together with earlier adapters, leaves the base no position for a
 * token. */
int peft_check_virtual_tokens(const struct peft_adapter *adapter);

/* Runs a product whose B is the base's weight of the call's linear: the rows of the call's outputs. */
int peft_multiply_base(const struct peft *peft, int64_t layer, const struct hook_call *call, struct gemm *gemm);

/* Requests scratch on the device (peft->scratch) while the stack is being opened. */
void peft_need_scratch(struct peft *peft, size_t bytes);

#define PEFT_DECLARE(number, name, method) extern const struct peft_method method;
PEFT_METHODS(PEFT_DECLARE)
#undef PEFT_DECLARE
const struct peft_method *peft_method(int type);
