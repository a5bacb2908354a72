/* Families of models: the meaning of a `model_type` in Hugging Face's config.json.
 *
 * A family is a file and a row. It gives the meaning of its config.json, the names of the model's parameters in its
 * files, and the default targets of adapters. Nothing outside its file uses any of these names. The parameters
 * themselves are the same for all families (describe.c). Rows are constant: any thread may read them. */
#pragma once

#include "config/run.h"
#include "parallel/linear.h"

struct json_keys;
struct json_t; /* jansson's */

enum { MODEL_MAX_PROJECTIONS = 8, MODEL_MAX_PARTS = 3 };

/* A linear of a block as the family's files have it: a range of the outputs of the model's linear at a place. A weight
 * that the files fuse is one projection of several parts. A weight that only the model fuses is several projections of
 * one place. */
struct model_projection {
    enum attach_place place;
    const char *module;            /* its path within the layer */
    int64_t first, out, in;        /* it computes outputs first .. first + out - 1 of the place */
    int parts;                     /* in the outputs, each cut over the tensor ranks separately: q, k and v */
    int64_t part[MODEL_MAX_PARTS]; /* the outputs of each part, if there are several */
};

struct model_family {
    const char *name;       /* model_type */
    const char *class_name; /* of `transformers`, in "architectures" */
    struct param_files files;
    bool is_transposed;         /* files hold a linear's weight as [in, out] */
    const char *gguf_name;      /* the architecture in GGUF files; NULL: `name` */
    bool has_paired_gguf_heads; /* GGUF files hold the rows of each head of q and k in pairs, one of each half */
    bool has_gguf_window;       /* the architecture in GGUF files has one window for all layers */
    bool keeps_biases;          /* files have a bias for every linear: zeros if the model has none */
    const char *layers;         /* the name of the list of layers: the fourth layer is LAYERS.3 */
    struct {
        const char *token, *position, *final_norm, *head;
        const char *norm1, *norm2, *q_norm,
            *k_norm; /* within the layer; the last two are NULL if heads have no norms */
    } modules;
    int32_t eos_id;       /* when config.json has no such key; -1: none */
    int projection_count; /* of a block, in the order of the forward */
    void (*projections)(const struct model_config *config, struct model_projection out[MODEL_MAX_PROJECTIONS]);
    /* The default targets of Hugging Face's PEFT, from its constants: modules whose weights change, modules that are
     * scaled, and which of these are scaled at their input. Suffixes, NULL-terminated. */
    struct {
        const char *const *weights, *const *scales, *const *scaled_inputs;
    } targets;
    /* Reads the family's keys of config.json, with the defaults of `transformers`. A key that would change the
     * mathematics in a way that is not built is refused by name. Errors go to keys->status. */
    void (*read)(const struct model_family *family, struct json_keys *keys, struct model_config *config);
    /* Returns the same keys as an object, a new reference. Called between json_begin and json_end. */
    struct json_t *(*write)(const struct model_family *family, const struct model_config *config);
    /* Returns the reason why the family's config.json cannot express a configuration: a sentence that names the first
     * such key. NULL: it can. */
    const char *(*unfit)(const struct model_family *family, const struct model_config *config);
    const void *variant; /* for families that share these functions: their differences */
};

/* Returns a family by its number, from 0; NULL past the last. */
const struct model_family *model_family_at(int number);
/* Returns the family of a model. */
const struct model_family *model_family(const struct model_config *config);
/* Returns the number of the family with a model_type, for model_config.family; below 0: there is none. */
int model_family_find(const char *name);
/* Gives a resolved configuration the first family whose config.json can express it. If none can, returns STATUS_USAGE
 * with each family's reason. STATUS_MEMORY. */
int model_family_choose(struct model_config *config);
/* Writes the path of a layer's module within the whole model. PEFT matches its targets with this path. */
void model_module_path(const struct model_family *family, int64_t layer, const char *module,
                       char out[PARAM_NAME_BYTES]);

/* ---- the tokens at the ends of a text: text_ends.c ---- */

/* The tokens at the ends of a text, from config.json and generation_config.json; all zero if they name none. */
enum { MODEL_MAX_TEXT_ENDS = 8 }; /* of files */
struct model_text_ends {
    bool has_bos;
    int32_t bos; /* the token before a text */
    int count;
    int32_t eos[MODEL_MAX_TEXT_ENDS + 1]; /* each of them ends a text; the first one separates documents */
};
/* Returns the token that separates documents; -1: there is none. */
static inline int32_t model_first_eos(const struct model_text_ends *ends) {
    return ends->count ? ends->eos[0] : -1;
}
/* Adds an id as the first or the last. An id that is already there is not repeated: it only moves to the front with
 * `is_first`. There must be room for it. */
void model_add_eos(struct model_text_ends *ends, int32_t id, bool is_first);
/* Adds the ids of a generation_config.json; `where` names the file in errors. STATUS_INVALID, STATUS_UNSUPPORTED for
 * more than MODEL_MAX_TEXT_ENDS, STATUS_MEMORY. */
int model_read_generation_config(const char *text, const char *where, const struct model_config *config,
                                 struct model_text_ends *ends);

/* ---- config.json ---- */

/* Makes the text of config.json; `dtype` is the type of the weights' files. The caller frees *text. STATUS_MEMORY. */
int model_write_config(const struct model_config *config, enum dtype dtype, const struct model_text_ends *ends,
                       char **text);
/* Reads the text of a config.json; `where` names the file in errors. *dtype is the type of the weights' files ("dtype"
 * or "torch_dtype"), or DTYPE_COUNT when absent. Ends that are not ids of the vocabulary are ignored.
 * STATUS_UNSUPPORTED for an unknown model_type, and for keys that are not built; STATUS_INVALID; STATUS_MEMORY. */
int model_read_config(const char *text, const char *where, struct model_config *config, enum dtype *dtype,
                      struct model_text_ends *ends);

/* ---- widths: describe.c ---- */

/* The numbers of columns inside a block, on each tensor rank. */
struct model_widths {
    int64_t head; /* of one head */
    int64_t heads, query_groups;
    int64_t q, kv, qkv; /* of all queries; of all keys, and of all values; of queries, keys and values together */
    int64_t fc1, ffn;   /* of fc1's output (gate and up side by side in a gated MLP); of fc2's input */
};
/* Returns the widths; all zero for a zeroed configuration. */
struct model_widths model_widths(const struct model_config *config, int tensors);
/* The columns of a place that one projection computes, on each tensor rank. */
struct model_range {
    int64_t first, columns;
};
/* Returns the range of a projection. */
struct model_range model_range(const struct model_config *config, int tensors,
                               const struct model_projection *projection);
/* True when the model's linear at a place has a bias. */
bool model_has_bias(const struct model_config *config, enum attach_place place);

/* ---- the parameters: describe.c ---- */

/* The model's linear at a place: the name of its parameters, and how it is cut over tensor ranks. */
struct model_linear {
    const char *name;
    enum linear_split split;
};
/* Returns the linear of a place. */
struct model_linear model_linear(enum attach_place place);
/* Sets the slices of a parameter with one row per output of a projection: their rows in the parameter and in the file.
 * The caller sets their names. Returns the number of slices. */
int model_projection_slices(const struct model_config *config, const struct model_projection *projection,
                            struct param_slice slices[PARAM_MAX_SLICES]);
/* Returns the id of the linear's weight, or bias, in a layer; PARAM_NONE when there is none. A tied head's weight is
 * the embedding's. */
int model_find_linear(const struct param_table *table, int64_t layer, enum attach_place place, bool is_bias);
/* The member `claims` of every family's files. True when a tensor without a row is a parameter of some model of any
 * family; `reason` says why. Every name in a layer of the table's family that the table lacks is claimed. */
bool model_claims_name(const struct param_table *table, const char *name, char reason[PARAM_REASON_BYTES]);
/* Adds the model's rows to a table, with the family's names in files. STATUS_MEMORY. */
int model_describe(const struct model_config *config, struct param_table *table);
