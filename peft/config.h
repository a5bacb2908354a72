/* What an adapter is: the keys of an adapter_config.json, and of the section `peft` of a run. */
#ifndef CAMBIUM_PEFT_CONFIG_H
#define CAMBIUM_PEFT_CONFIG_H

#include "config/config.h"
#include "peft/methods.h"

#include <stdbool.h>
#include <stdint.h>

#define PEFT_NUMBER(number, name, method) number,
enum peft_type { PEFT_METHODS(PEFT_NUMBER) PEFT_TYPE_COUNT };
#undef PEFT_NUMBER

/* [PEFT_TYPE_COUNT + 1] "lora", ..., NULL: what an option's row of choices wants. */
extern const char *const peft_method_names[];

/* Names and meanings are PEFT's; lists are the parser's. A pattern is "KEY=VALUE". */
struct peft_memory;
struct peft_config {
    int type; /* enum peft_type */
    /* which projections: LoRA and IA3 */
    struct config_list target_modules;      /* suffixes, one regular expression, "all-linear"; empty: the default */
    struct config_list exclude_modules;     /* suffixes, or one regular expression */
    struct config_list layers_to_transform; /* numbers; empty: all */
    struct config_list feedforward_modules; /* IA3: those of them that are scaled at their input */
    /* LoRA */
    int64_t r;
    double lora_alpha, lora_dropout, loraplus_lr_ratio; /* the ratio is of B's learning rate to A's; 1: none */
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
    /* of one that was read from a file */
    const char *where;          /* the file, in errors */
    const char *adapter_name;   /* in AdapterHub's tensor names; NULL: "default" */
    const char *base_name;      /* base_model_name_or_path, or NULL */
    struct peft_memory *memory; /* what texts and lists stand in; NULL: they are another's */
};

enum peft_adapter_style { PEFT_HOULSBY, PEFT_PFEIFFER, PEFT_PARALLEL };
enum peft_activation { PEFT_GELU, PEFT_RELU, PEFT_SWISH };
enum peft_prompt_init { PEFT_INIT_SAMPLE_VOCAB, PEFT_INIT_TEXT, PEFT_INIT_RANDOM };
enum peft_encoder { PEFT_MLP, PEFT_LSTM };

/* What an adapter puts before each sample: rows of its own, or keys and values alone. 0: none. */
int64_t peft_config_virtual_tokens(const struct peft_config *config);
int64_t peft_config_prefix_tokens(const struct peft_config *config);
/* The method in words: "bottleneck adapter". */
const char *peft_title(int type);
/* Whether Hugging Face's PEFT has it; what it has not comes in files of another library. */
bool peft_is_of_peft(int type);
/* Adds "method: ..." and a line for each key that says what the adapter is. */
struct strbuf;
int peft_show(const struct peft_config *config, struct strbuf *text);
/* The one of the configurations whose virtual tokens start as prompt_tuning_init_text; STATUS_USAGE where none does. */
int peft_find_text_start(struct peft_config *configs, int count, struct peft_config **found);

/* The keys of the section `peft`, in the order of --help; offsets are within a struct peft_config. NULL behind the
 * last. */
const struct config_row *peft_key(size_t index);
bool peft_has_key(int type, const char *path);
/* Whether the key is of a run: it does not say what an adapter is. */
bool peft_is_run_key(const struct config_row *key);
void peft_copy_key(const struct config_row *key, const struct peft_config *from, struct peft_config *to);
/* Where several methods train together a key that more than one has ("peft.num_virtual_tokens") may be given for one of
 * them ("peft.prompt.num_virtual_tokens"). In the order of --help; false behind the last. */
struct peft_alone_key {
    const char *path;
    int type;
    const struct config_row *common; /* the key of all */
};
bool peft_alone_key(size_t index, struct peft_alone_key *key);
/* Fails on a key of a run that would do nothing beside the others. */
int peft_check_run(const struct peft_config *config);

/* Reads the text of an adapter_config.json: of PEFT's, or of AdapterHub's for a bottleneck adapter. `where` names the
 * file in errors. A key that would compute something else than PEFT does is refused by its name; other unknown keys are
 * told in one warning, where they are neither null, false nor empty. peft_config_free ends it, and with it all copies
 * of the struct. */
int peft_read_config(const char *text, const char *where, struct peft_config *config);
void peft_config_free(struct peft_config *config);

/* adapter_config.json, as Hugging Face's PEFT writes it, of an adapter on the base in `base_directory`. The caller
 * frees *text. */
struct model_config;
int peft_write_config(const struct peft_config *config, const struct model_config *base, const char *base_directory,
                      char **text);

#endif
