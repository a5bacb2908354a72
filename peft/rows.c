/* The section `peft` of a run: a row each key. */
#include "peft/config.h"

#include <stddef.h>

const char *const peft_method_names[] = {"lora", "ia3", "adapter", "prompt", "ptuning", "prefix", NULL};
static const char *const styles[] = {"houlsby", "pfeiffer", "parallel", NULL};
static const char *const activations[] = {"gelu", "relu", "swish", NULL};
static const char *const inits[] = {"SAMPLE_VOCAB", "TEXT", "RANDOM", NULL};
static const char *const encoders[] = {"MLP", "LSTM", NULL};

#define AT(field) offsetof(struct peft_config, field)
#define INT(name, fallback, low, high, text)                                                                           \
    {                                                                                                                  \
        .path = "peft." #name, .type = CONFIG_INT, .offset = AT(name), .default_text = fallback, .minimum = low,       \
        .maximum = high, .help = text                                                                                  \
    }
#define FLOAT(name, fallback, low, high, text)                                                                         \
    {                                                                                                                  \
        .path = "peft." #name, .type = CONFIG_FLOAT, .offset = AT(name), .default_text = fallback, .minimum = low,     \
        .maximum = high, .help = text                                                                                  \
    }
#define BOOL(name, fallback, text)                                                                                     \
    { .path = "peft." #name, .type = CONFIG_BOOL, .offset = AT(name), .default_text = fallback, .help = text }
#define LIST(name, what, text)                                                                                         \
    { .path = "peft." #name, .type = CONFIG_LIST, .offset = AT(name), .metavar = what, .help = text }
#define CHOICE(name, fallback, names, text)                                                                            \
    {                                                                                                                  \
        .path = "peft." #name, .type = CONFIG_CHOICE, .offset = AT(name), .default_text = fallback, .choices = names,  \
        .help = text                                                                                                   \
    }

const struct config_row peft_rows[] = {
    LIST(target_modules, "NAME...",
         "projections by suffix (c_attn, mlp.c_proj), one regular expression, or all-linear; the method's own when not "
         "given"),
    LIST(exclude_modules, "NAME...", "projections that are left as they are, in the same words"),
    LIST(layers_to_transform, "N...", "layers, from 0; all when not given"),
    LIST(feedforward_modules, "NAME...",
         "of ia3: those of target_modules that are scaled at their input, mlp.c_proj when not given; none: none"),
    INT(r, "8", 1, 65536, "of lora: rank"),
    FLOAT(lora_alpha, "8", 0, 1e6, "of lora: the update counts lora_alpha / r"),
    FLOAT(lora_dropout, "0", 0, 1, "of lora: dropout of its input, below 1"),
    FLOAT(loraplus_lr_ratio, "1", 1e-6, 1e6, "of lora: learning rate of B over that of A (LoRA+)"),
    BOOL(use_rslora, "false", "of lora: the update counts lora_alpha / sqrt(r)"),
    BOOL(use_dora, "false", "of lora: train magnitudes beside (DoRA)"),
    LIST(rank_pattern, "KEY=R...", "of lora: ranks of the modules that match"),
    LIST(alpha_pattern, "KEY=A...", "of lora: alphas of the modules that match"),
    INT(bottleneck, "48", 1, 65536, "of adapter: inner width"),
    CHOICE(adapter_style, "houlsby", styles, "of adapter: where it stands"),
    CHOICE(adapter_activation, "swish", activations, "of adapter: between its two layers"),
    BOOL(adapter_pre_norm, "false", "of adapter: normalise its input"),
    FLOAT(adapter_scaling, "1", 0, 1e6, "of adapter: factor of its output"),
    INT(num_virtual_tokens, "20", 1, 65536, "of prompt, ptuning and prefix"),
    CHOICE(prompt_tuning_init, "SAMPLE_VOCAB", inits, "of prompt: what the virtual tokens are at first"),
    {.path = "peft.prompt_tuning_init_text",
     .type = CONFIG_STRING,
     .offset = AT(prompt_tuning_init_text),
     .metavar = "TEXT",
     .help = "of prompt with TEXT: its tokens, repeated or cut"},
    CHOICE(encoder_reparameterization_type, "MLP", encoders, "of ptuning: the encoder"),
    INT(encoder_hidden_size, "0", 0, 1 << 20, "of ptuning and a projected prefix: inner width; 0: the model's"),
    INT(encoder_num_layers, "2", 1, 64, "of ptuning with LSTM"),
    FLOAT(encoder_dropout, "0", 0, 1, "of ptuning with LSTM: dropout between its layers, below 1"),
    BOOL(prefix_projection, "false", "of prefix: train it through an encoder"),
};
const size_t peft_row_count = sizeof peft_rows / sizeof *peft_rows;
