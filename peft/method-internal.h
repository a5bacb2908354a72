/* A method is a row of the table (methods.h), made of functions of its own file. None knows another. */
#ifndef CAMBIUM_PEFT_METHOD_INTERNAL_H
#define CAMBIUM_PEFT_METHOD_INTERNAL_H

#include "peft/peft.h"

struct peft_adapter;
struct peft_choice;
struct peft_format;
struct merge;
struct peft_bank;
struct bank_call;
struct image_maker;

/* The files of a stack, as they come into a directory that holds others. */
extern const struct staging_files peft_staging_files;
/* Names in a stack's directory that are no adapter of the stack: checkpoints, the best one, backups. */
bool peft_is_beside(const char *name);

/* The meaning of num_virtual_tokens: rows before those of each sample, or keys and values before its own. */
enum peft_before { PEFT_BEFORE_NOTHING, PEFT_BEFORE_ROWS, PEFT_BEFORE_KEYS };

/* One method. Members that it does not need are NULL. */
struct peft_method {
    const char *title;                /* "bottleneck adapter" */
    const char *noun;                 /* the same in a sentence, where that is another: "a bottleneck adapter" */
    const struct peft_format *format; /* format-internal.h: its configuration */
    enum peft_before before;
    /* target_modules where none are given, NULL behind the last. */
    const char *const *(*targets)(const struct model_family *family);
    const char *file; /* of its values; NULL: CKPT_ADAPTER_PART */
    /* Parts of its tensors' names that older versions call otherwise: pairs of ours and theirs, {0} behind the last.
     * For each tensor the first pair counts that gives a name of the file. NULL: none. */
    const char *const (*other_names)[2];
    /* Whether its values come from an encoder while it trains. NULL: never. */
    bool (*is_encoded)(const struct peft_config *config);
    /* Chooses what goes on training of a directory's adapter: the encoder, where the directory has it, else the table
     * that it made. NULL: there is no encoder. */
    void (*take_encoder)(struct peft_config *config, const char *directory, bool has_encoder);
    /* A variant that measures and scales the base's own projections, by its name: it goes with no other method that
     * changes them. NULL, or NULL returned: none. */
    const char *(*measures)(const struct peft_config *config);
    /* Adds what it does to the base's projections, by merge-internal.h, layer by layer. NULL: it is no change of
     * weights. */
    int (*merge)(const struct peft_adapter *adapter, struct merge *merge);

    /* ---- hooks ---- */
    /* Refuses what cannot be, by the keys' names; adds the rows of the adapter's parameters with peft_add_row. */
    int (*describe)(struct peft_adapter *adapter);
    /* Adds the hooks with peft_add_hook, or hook_table_add; parameters have their ids. Hooks stand at the layers of
     * other stages, too: so the model knows where the backward ends. */
    int (*attach)(struct peft_adapter *adapter);
    /* Allocates what the method keeps on the device, once the store has its memory. */
    int (*allocate)(struct peft_adapter *adapter);
    /* Initial values beyond those of the table. */
    int (*initialise)(struct peft_adapter *adapter, uint64_t seed);
    int (*begin)(struct peft_adapter *adapter);
    int (*end)(struct peft_adapter *adapter);
    /* Fills the table of `to`, which does not train and is fp32, with what the encoder of `from` makes of its weights.
     */
    int (*fold)(const struct peft_adapter *from, struct peft_adapter *to);
    void (*close)(struct peft_adapter *adapter);

    /* ---- for inference: bank-internal.h ---- */
    /* Where an image needs something of the base: it is found after `allocate`, in so many parts by each rank itself
     * (prepare_part), then by all tensor ranks together (begin_image). NULL: nothing is needed, nor allocated. */
    int (*image_parts)(const struct peft_adapter *adapter);
    int (*prepare_part)(struct peft_adapter *adapter, int part);
    int (*begin_image)(struct peft_adapter *adapter);
    /* Puts the adapter into its image, while it is planned and while it is made. */
    int (*make_image)(struct image_maker *maker);
    /* Changes the rows of a list at a site that one of its images changes. NULL: it changes no place. */
    int (*batched)(const struct bank_call *call);
    /* Notes the scratch that it asks of the rank at a place. NULL: none. */
    int (*plan_batched)(struct peft_bank *bank, const struct hook_call *hook);
};

struct peft_adapter {
    struct peft *peft;
    const struct peft_method *method;
    struct peft_config config;
    int number;                   /* in the stack */
    int first_row, end_row;       /* its rows of the table */
    struct param_table own_table; /* in a stack of several: the table in which they alone train */
    struct peft_choice *choices;  /* at projections: what peft_choose_targets found */
    void *own;                    /* the method's */
};

struct peft {
    struct rank *rank;
    struct model_options kept; /* of the base, without its hooks */
    struct model_config base;
    const struct model_family *family;                          /* the base's */
    struct model_projection projections[MODEL_MAX_PROJECTIONS]; /* of each of its blocks */
    enum dtype dtype;
    bool trains;
    int64_t sample;                    /* the first of the global batch under way; below 0: no dropout */
    int64_t max_rows;                  /* of a batch */
    const struct param_store *weights; /* the base's, once they are known */
    size_t scratch_bytes;              /* the most that a method asked for */
    size_t own_bytes;                  /* that methods take on the device themselves */
    void *scratch;                     /* one hook's at a time */
    struct param_table table;
    struct param_table state_table; /* of a stack of several that trains: the table with names that differ */
    struct param_store store;
    bool *is_held; /* [table count] */
    struct hook_table hooks;
    int count;
    struct peft_adapter *adapters;
    struct peft *tables; /* what encoders make: a stack of those adapters that does not train, in fp32; NULL: none */
    struct ckpt_flat table_flat;
    struct ckpt_array table_values;
};

/* Whether a projection's inputs are cut over the tensor ranks, and not its outputs. */
static inline bool peft_is_row(const struct model_projection *projection) {
    return model_linear(projection->place).split == LINEAR_ROW;
}
/* The columns of a projection's place that are the projection's, on this rank. */
struct model_range peft_range(const struct peft *peft, const struct model_projection *projection);
/* Adds a hook of a projection's own outputs. */
int peft_add_hook(struct peft *peft, int64_t layer, const struct model_projection *projection, struct hook hook);
/* PEFT's name of a tensor of a module. */
void peft_tensor_name(const struct peft *peft, int64_t layer, const char *module, const char *kind,
                      char out[PARAM_NAME_BYTES]);

/* A configuration's choice for one projection of one layer: target_modules, exclude_modules, layers_to_transform,
 * feedforward_modules, rank_pattern and alpha_pattern. */
struct peft_choice {
    bool is_target;
    bool is_feedforward; /* where it is a target, it is scaled at its input */
    bool is_named;       /* by target_modules, whatever excludes it */
    double r, alpha;     /* as they stand */
};
/* choices [layers][projections of the family] of a model with so many layers. Each expression is compiled once. */
int peft_choose(const struct peft_config *config, const struct model_family *family, int64_t layers,
                struct peft_choice *choices);
/* The same of the adapter's model, which peft_choice then reads. Fails when no projection of the model is targeted, or
 * an entry of a list is none of them. */
int peft_choose_targets(struct peft_adapter *adapter);
/* Fails where an entry of feedforward_modules is none of the targets that were chosen. */
int peft_check_forwards(const struct peft_adapter *adapter);
const struct peft_choice *peft_choice(const struct peft_adapter *adapter, int64_t layer,
                                      const struct model_projection *projection);
/* Whether layers_to_transform has the layer. */
bool peft_transforms(const struct peft_adapter *adapter, int64_t layer);
/* Fails where it has what is no layer of the model. */
int peft_layers_check(const struct peft_adapter *adapter);

/* Adds a row named "layers.L.NAME" (no layer: "NAME"), with the file's name; layers that another stage has, too, so
 * that every rank has the same table. Rows of several adapters of one stack get the adapter's number before their
 * names. Returns the id, or a negative status. Slices that are not set are one slice of the whole. */
int peft_add_row(struct peft_adapter *adapter, struct param *row);
/* export.c: opens peft->tables where there are encoders. */
int peft_open_tables(struct peft *peft);
int peft_copy_table(const struct param_table *table, struct param_table *copy);
/* Whether its values come from an encoder: then that trains, and not they. */
bool peft_is_encoded(const struct peft_adapter *adapter);
/* The table of the stack, in which only this adapter's rows train. */
const struct param_table *peft_table(const struct peft_adapter *adapter);
/* Whether the layer is this stage's; while the stack opens. */
bool peft_has_layer(const struct peft *peft, int64_t layer);

/* The variant that method->measures names, or NULL. */
const char *peft_measures(const struct peft_config *config);

/* What adapters cannot be together, in the words of errors. */
int peft_check_stack(const struct peft_config *const *configs, int count);
int peft_fail_prefixes(int first, int second);
int peft_fail_positions(const struct peft_config *config, int64_t positions);
/* Of a module whose input is scaled, in a stack. */
int ia3_fail_input(const struct model_projection *projections, const char *module);
/* Fails where num_virtual_tokens, with those of the adapters before, leaves the base no position for a token. */
int peft_check_virtual_tokens(const struct peft_adapter *adapter);

/* Asks for scratch on the device (peft->scratch) while the stack is opened. */
void peft_need_scratch(struct peft *peft, size_t bytes);

#define PEFT_DECLARE(number, name, method) extern const struct peft_method method;
PEFT_METHODS(PEFT_DECLARE)
#undef PEFT_DECLARE
const struct peft_method *peft_method(int type);

#endif
