/* The definition of an adapter: the keys of an adapter_config.json, and of the section `peft` of a run. */
#pragma once

#include "config/config.h"
#include "peft/methods.h"

#define PEFT_NUMBER(number, name, method) number,
enum peft_type { PEFT_METHODS(PEFT_NUMBER) PEFT_TYPE_COUNT };
#undef PEFT_NUMBER

/* [PEFT_TYPE_COUNT + 1] "lora", ..., NULL: the choices of an option's row. */
extern const char *const peft_method_names[];

/* Names and meanings are PEFT's. Lists belong to the parser. A pattern is "KEY=VALUE". */
struct peft_memory;
struct peft_config {
    int type; /* enum peft_type */
    /* projections: LoRA and IA3 */
    struct config_list target_modules;      /* suffixes, one regular expression, "all-linear"; empty: the default */
    struct config_list exclude_modules;     /* suffixes, or one regular expression */
    struct config_list layers_to_transform; /* numbers; empty: all */
    struct config_list feedforward_modules; /* IA3: the targets that are scaled at their input */
    /* LoRA */
    int64_t r;
    double lora_alpha, lora_dropout, loraplus_lr_ratio; /* the ratio of B's learning rate to A's; 1: none */
    bool use_rslora, use_dora;
    struct config_list rank_pattern, alpha_pattern;
    /* bottleneck adapters */
    int64_t bottleneck;     /* dimension */
    int adapter_style;      /* enum peft_adapter_style */
    int adapter_activation; /* enum peft_activation */
    bool adapter_pre_norm;
    double adapter_scaling;
    /* prompts and prefixes */
    int64_t num_virtual_tokens;
    int prompt_tuning_init; /* enum peft_prompt_init */
    const char *prompt_tuning_init_text;
    const int32_t *prompt_tuning_init_ids; /* the text as tokens of the base; must outlive the stack */
    int64_t prompt_tuning_init_count;
    /* the encoder of p-tuning, and of a projected prefix */
    int encoder_reparameterization_type;             /* enum peft_encoder */
    int64_t encoder_hidden_size, encoder_num_layers; /* 0: token_dim; 2 */
    double encoder_dropout;
    bool prefix_projection;
    /* of a configuration that was read from a file */
    const char *where;          /* the file, in errors */
    const char *adapter_name;   /* in AdapterHub's tensor names; NULL: "default" */
    const char *base_name;      /* base_model_name_or_path, or NULL */
    struct peft_memory *memory; /* memory of texts and lists; NULL: they belong to another struct */
};

enum peft_adapter_style { PEFT_HOULSBY, PEFT_PFEIFFER, PEFT_PARALLEL };
enum peft_activation { PEFT_GELU, PEFT_RELU, PEFT_SWISH };
enum peft_prompt_init { PEFT_INIT_SAMPLE_VOCAB, PEFT_INIT_TEXT, PEFT_INIT_RANDOM };
enum peft_encoder { PEFT_MLP, PEFT_LSTM };

/* Return how many positions an adapter puts before each sample: as rows of the batch, or as keys and values only. 0:
 * none. */
int64_t peft_config_virtual_tokens(const struct peft_config *config);
int64_t peft_config_prefix_tokens(const struct peft_config *config);
/* Returns the method in words: "bottleneck adapter". */
const char *peft_title(int type);
/* True when Hugging Face's PEFT has the method. Other methods use the files of another library. */
bool peft_is_of_peft(int type);
/* Adds "method: ..." and a line for each key that defines the adapter. STATUS_MEMORY. */
struct strbuf;
int peft_show(const struct peft_config *config, struct strbuf *text);
/* Finds the configuration whose virtual tokens start as prompt_tuning_init_text. STATUS_USAGE when none does. */
int peft_find_text_start(struct peft_config *configs, int count, struct peft_config **found);

/* The keys of the section `peft`, in the order of --help; NULL past the last. Offsets are within a struct
 * peft_config. */
const struct config_row *peft_key(size_t index);
bool peft_has_key(int type, const char *path);
/* peft_is_run_key is true when the key belongs to a run and does not define the adapter. peft_copy_key copies the key's
 * value. */
bool peft_is_run_key(const struct config_row *key);
void peft_copy_key(const struct config_row *key, const struct peft_config *from, struct peft_config *to);
/* A key for one method only. When several methods that share a key ("peft.num_virtual_tokens") train together, it can
 * be set for one of them ("peft.prompt.num_virtual_tokens"). Ordered as in --help. */
struct peft_alone_key {
    const char *path;
    int type;
    const struct config_row *common; /* the key for all */
};
/* Returns key `index`; false past the last. */
bool peft_alone_key(size_t index, struct peft_alone_key *key);
/* Refuses a key of a run that would have no effect together with the other keys. STATUS_USAGE. */
int peft_check_run(const struct peft_config *config);

/* Reads the text of an adapter_config.json: PEFT's, or AdapterHub's for a bottleneck adapter. `where` names the file in
 * errors.
 *
 * A key that would make PEFT compute something else than this program is refused by its name (STATUS_UNSUPPORTED). One
 * warning names all other unknown keys that are not null, false or empty. Other errors are STATUS_INVALID and
 * STATUS_MEMORY. peft_config_free frees the configuration, after which no copy of the struct may be used. */
int peft_read_config(const char *text, const char *where, struct peft_config *config);
void peft_config_free(struct peft_config *config);

/* Writes the adapter_config.json of an adapter on the base in `base_directory`, as Hugging Face's PEFT writes it. The
 * caller frees *text. STATUS_MEMORY. */
struct model_config;
int peft_write_config(const struct peft_config *config, const struct model_config *base, const char *base_directory,
                      char **text);
