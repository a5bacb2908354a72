/* The section `peft` of a run: a row each key, and the methods that have it. */
#include "peft/config.h"

#include <stddef.h>

static const char *const styles[] = {"houlsby", "pfeiffer", "parallel", NULL};
static const char *const activations[] = {"gelu", "relu", "swish", NULL};
static const char *const inits[] = {"SAMPLE_VOCAB", "TEXT", "RANDOM", NULL};
static const char *const encoders[] = {"MLP", "LSTM", NULL};

enum {
    LORA = 1 << PEFT_LORA,
    IA3 = 1 << PEFT_IA3,
    ADAPTER = 1 << PEFT_ADAPTER,
    PROMPT = 1 << PEFT_PROMPT,
    PTUNING = 1 << PEFT_PTUNING,
    PREFIX = 1 << PEFT_PREFIX,
};
#define AT(field) offsetof(struct peft_config, field)
#define KEY(of, name, kind, ...)                                                                                       \
    { {.path = "peft." #name, .type = kind, .offset = AT(name), __VA_ARGS__}, of }
#define INT(of, name, fallback, low, high, text)                                                                       \
    KEY(of, name, CONFIG_INT, .default_text = fallback, .minimum = low, .maximum = high, .help = text)
#define FLOAT(of, name, fallback, low, high, text)                                                                     \
    KEY(of, name, CONFIG_FLOAT, .default_text = fallback, .minimum = low, .maximum = high, .help = text)
#define BOOL(of, name, fallback, text) KEY(of, name, CONFIG_BOOL, .default_text = fallback, .help = text)
#define LIST(of, name, what, text)     KEY(of, name, CONFIG_LIST, .metavar = what, .help = text)
#define CHOICE(of, name, fallback, names, text)                                                                        \
    KEY(of, name, CONFIG_CHOICE, .default_text = fallback, .choices = names, .help = text)

const struct peft_key peft_keys[] = {
    LIST(LORA | IA3, target_modules, "NAME...",
         "projections by suffix (c_attn, mlp.c_proj), one regular expression, or all-linear; the method's own when not "
         "given"),
    LIST(LORA | IA3, exclude_modules, "NAME...", "projections that are left as they are, in the same words"),
    LIST(LORA | IA3 | ADAPTER, layers_to_transform, "N...", "layers, from 0; all when not given"),
    LIST(IA3, feedforward_modules, "NAME...",
         "of ia3: those of target_modules that are scaled at their input, mlp.c_proj when not given; none: none"),
    INT(LORA, r, "8", 1, 65536, "of lora: rank"),
    FLOAT(LORA, lora_alpha, "8", 0, 1e6, "of lora: the update counts lora_alpha / r"),
    FLOAT(LORA, lora_dropout, "0", 0, 1, "of lora: dropout of its input, below 1"),
    FLOAT(LORA, loraplus_lr_ratio, "1", 1e-6, 1e6, "of lora: learning rate of B over that of A (LoRA+)"),
    BOOL(LORA, use_rslora, "false", "of lora: the update counts lora_alpha / sqrt(r)"),
    BOOL(LORA, use_dora, "false", "of lora: train magnitudes beside (DoRA)"),
    LIST(LORA, rank_pattern, "KEY=R...", "of lora: ranks of the modules that match"),
    LIST(LORA, alpha_pattern, "KEY=A...", "of lora: alphas of the modules that match"),
    INT(ADAPTER, bottleneck, "48", 1, 65536, "of adapter: inner width"),
    CHOICE(ADAPTER, adapter_style, "houlsby", styles, "of adapter: where it stands"),
    CHOICE(ADAPTER, adapter_activation, "swish", activations, "of adapter: between its two layers"),
    BOOL(ADAPTER, adapter_pre_norm, "false", "of adapter: normalise its input"),
    FLOAT(ADAPTER, adapter_scaling, "1", 0, 1e6, "of adapter: factor of its output"),
    INT(PROMPT | PTUNING | PREFIX, num_virtual_tokens, "20", 1, 65536, "of prompt, ptuning and prefix"),
    CHOICE(PROMPT, prompt_tuning_init, "SAMPLE_VOCAB", inits, "of prompt: what the virtual tokens are at first"),
    KEY(PROMPT, prompt_tuning_init_text, CONFIG_STRING, .metavar = "TEXT",
        .help = "of prompt with TEXT: its tokens, repeated or cut"),
    CHOICE(PTUNING, encoder_reparameterization_type, "MLP", encoders, "of ptuning: the encoder"),
    INT(PTUNING | PREFIX, encoder_hidden_size, "0", 0, 1 << 20,
        "of ptuning and a projected prefix: inner width; 0: the model's"),
    INT(PTUNING, encoder_num_layers, "2", 1, 64, "of ptuning with LSTM"),
    FLOAT(PTUNING, encoder_dropout, "0", 0, 1, "of ptuning with LSTM: dropout between its layers, below 1"),
    BOOL(PREFIX, prefix_projection, "false", "of prefix: train it through an encoder"),
};
const size_t peft_key_count = sizeof peft_keys / sizeof *peft_keys;
