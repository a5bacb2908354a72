/* Families of models: what a `model_type` of Hugging Face's config.json means here.
 *
 * A family is a file and a row. It gives the meaning of its config.json, the names of the model's parameters in its
 * files, and the default targets of adapters. Nothing outside its file uses any of these names. The parameters
 * themselves are the model's own, whatever the family (describe.c). Rows are constant: any thread may read them. */
#ifndef CAMBIUM_MODEL_FAMILY_H
#define CAMBIUM_MODEL_FAMILY_H

#include "config/run.h"
#include "parallel/linear.h"

struct json_keys;
struct json_t; /* jansson's */

enum { MODEL_MAX_PROJECTIONS = 8, MODEL_MAX_PARTS = 3 };

/* A linear of a block as the family's files have it: a range of the outputs of the model's linear at a place. A fused
 * weight is one projection of several parts; one that the model alone fuses is several projections of one place. */
struct model_projection {
    enum attach_place place;
    const char *module;            /* its path in the layer */
    int64_t first, out, in;        /* it makes the place's outputs first .. first + out - 1 */
    int parts;                     /* of them, each of which is cut over the tensor ranks by itself: q, k and v */
    int64_t part[MODEL_MAX_PARTS]; /* where there are several: the outputs of each */
};

struct model_family {
    const char *name;       /* model_type */
    const char *class_name; /* of `transformers`, in "architectures" */
    struct param_files files;
    bool is_transposed; /* files hold a linear's weight as [in, out] */
    bool keeps_biases;  /* files have a bias of every linear; zeros where the model has none */
    const char *layers; /* the list of layers: the fourth is LAYERS.3 */
    struct {
        const char *token, *position, *final_norm, *head;
        const char *norm1, *norm2, *q_norm, *k_norm; /* in their layer; the last two NULL: no heads have norms */
    } modules;
    int32_t eos_id;       /* where config.json has no such key; -1: none */
    int projection_count; /* of a block, in the order of the forward */
    void (*projections)(const struct model_config *config, struct model_projection out[MODEL_MAX_PROJECTIONS]);
    /* The default targets of Hugging Face's PEFT, from its constants: modules whose weights change, modules that are
     * scaled, and which of these are scaled at their input. By suffix, NULL-terminated. */
    struct {
        const char *const *weights, *const *scales, *const *scaled_inputs;
    } targets;
    /* The keys of config.json that are the family's, with the defaults of `transformers`. What changes the mathematics
     * and is not built is refused by its key. */
    void (*read)(const struct model_family *family, struct json_keys *keys, struct model_config *config);
    /* The same keys as an object, a new reference; called between json_begin and json_end. */
    struct json_t *(*write)(const struct model_family *family, const struct model_config *config);
    /* The first key of a run's configuration that the object cannot say; NULL: it says them all. */
    const char *(*unfit)(const struct model_family *family, const struct model_config *config);
    const void *kin; /* where families share these functions: in what they differ */
};

/* Returns a family by its number, from 0; NULL past the last. */
const struct model_family *model_family_at(int number);
/* The family of a model. */
const struct model_family *model_family(const struct model_config *config);
/* The family of a model_type: its number, for model_config.family; below 0: there is none. */
int model_family_find(const char *name);
/* Gives a resolved configuration the first family that can say all of its keys. Where none can, the text of
 * STATUS_USAGE names for each the key in the way. */
int model_family_choose(struct model_config *config);
/* The path of a module of a layer in the whole model: what PEFT matches its targets with. */
void model_module_path(const struct model_family *family, int64_t layer, const char *module,
                       char out[PARAM_NAME_BYTES]);

/* ---- what ends a text: text_ends.c ---- */

/* The tokens at the ends of texts, as config.json and generation_config.json have them: all zero where they have none.
 */
enum { MODEL_MAX_TEXT_ENDS = 8 }; /* of files */
struct model_text_ends {
    bool has_bos;
    int32_t bos; /* what stands before a text */
    int count;
    int32_t eos[MODEL_MAX_TEXT_ENDS + 1]; /* each of them ends a text; the first is what is written between documents */
};
/* -1: there is none. */
static inline int32_t model_first_eos(const struct model_text_ends *ends) {
    return ends->count ? ends->eos[0] : -1;
}
/* Adds one where it is not there yet, first or last. */
void model_add_eos(struct model_text_ends *ends, int32_t id, bool is_first);
/* Adds those of a generation_config.json, which `where` names. */
int model_read_generation_config(const char *text, const char *where, const struct model_config *config,
                                 struct model_text_ends *ends);

/* ---- config.json ---- */

/* Its text; `dtype`: of the files. The caller frees *text. */
int model_write_config(const struct model_config *config, enum dtype dtype, const struct model_text_ends *ends,
                       char **text);
/* `where` names the file in errors. A model_type that is none of the families is refused by its name. *dtype: of the
 * files ("dtype" or "torch_dtype"), DTYPE_COUNT when absent. Ends that are no tokens are none. */
int model_read_config(const char *text, const char *where, struct model_config *config, enum dtype *dtype,
                      struct model_text_ends *ends);

/* ---- widths: describe.c ---- */

/* Columns of a block's results between two states of the residual stream, on each tensor rank. */
struct model_widths {
    int64_t head; /* of one head */
    int64_t heads, query_groups;
    int64_t q, kv, qkv; /* of the heads side by side; of the keys, or the values; of these three together */
    int64_t fc1, ffn;   /* of fc1's output (a gate and up side by side where the MLP is gated); of what fc2 takes */
};
/* A config that says nothing has no columns. */
struct model_widths model_widths(const struct model_config *config, int tensors);
/* The columns of a place that a projection makes, on each tensor rank. */
struct model_range {
    int64_t first, columns;
};
/* Returns the range of a projection. */
struct model_range model_range(const struct model_config *config, int tensors,
                               const struct model_projection *projection);
/* Whether the model's linear at a place has a bias. */
bool model_has_bias(const struct model_config *config, enum attach_place place);

/* ---- the parameters: describe.c ---- */

/* The model's own linear at a place: the name of its parameters, and how it is cut. */
struct model_linear {
    const char *name;
    enum linear_split split;
};
/* Returns the linear of a place. */
struct model_linear model_linear(enum attach_place place);
/* The slices of a parameter that has a row for each output of a projection: their rows, and those of its file. The
 * names are the caller's. Returns their number. */
int model_projection_slices(const struct model_config *config, const struct model_projection *projection,
                            struct param_slice slices[PARAM_MAX_SLICES]);
/* The id of its weight in a layer, or of its bias. */
int model_find_linear(const struct param_table *table, int64_t layer, enum attach_place place, bool is_bias);
/* True when a tensor without a row is a parameter of a model of any family: the member `claims` of every family's
 * files. A layer of the table's own family that the table does not have is claimed whatever follows its number. */
bool model_claims_name(const struct param_table *table, const char *name, char reason[PARAM_REASON_BYTES]);
/* Adds the model's rows to a table, which gets the family's names of files. */
int model_describe(const struct model_config *config, struct param_table *table);

#endif
