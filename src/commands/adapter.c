/* cambium adapter show: what an adapter is. */
#include "commands.h"

#include "base/base.h"
#include "config/config.h"
#include "peft/peft.h"

#include <string.h>

struct options {
    struct config_list directories;
};

static const struct config_command command = {
    .name = "adapter show",
    .synopsis = "cambium adapter show DIR...",
    .description = "Prints of each adapter its method, what it changes, its parameters, and the model that it is for.",
    .examples = "  cambium adapter show out/lora\n",
    .positional_offset = offsetof(struct options, directories),
};

static void print_list(const char *what, const struct config_list *list, const char *fallback) {
    if (!list->count && !fallback)
        return;
    printf("%s: ", what);
    for (size_t i = 0; i < list->count; i++)
        printf("%s%s", i ? ", " : "", list->items[i]);
    printf("%s\n", list->count ? "" : fallback);
}

static void print_lora(const struct peft_config *config) {
    print_list("target_modules", &config->target_modules, "c_attn");
    print_list("exclude_modules", &config->exclude_modules, NULL);
    print_list("layers_to_transform", &config->layers_to_transform, NULL);
    printf("r: %lld\nlora_alpha: %g\n", (long long)config->r, config->lora_alpha);
    print_list("rank_pattern", &config->rank_pattern, NULL);
    print_list("alpha_pattern", &config->alpha_pattern, NULL);
}

static void print_bottleneck(const struct peft_config *config) {
    static const char *const styles[] = {[PEFT_HOULSBY] = "houlsby, behind attention and MLP",
                                         [PEFT_PFEIFFER] = "pfeiffer, behind the MLP",
                                         [PEFT_PARALLEL] = "parallel to the MLP"};
    static const char *const activations[] = {[PEFT_GELU] = "gelu", [PEFT_RELU] = "relu", [PEFT_SWISH] = "swish"};
    printf("style: %s\nbottleneck: %lld\nactivation: %s\n", styles[config->adapter_style],
           (long long)config->bottleneck, activations[config->adapter_activation]);
    if (config->adapter_pre_norm)
        printf("pre_norm: true\n");
    printf("scaling: %g\n", config->adapter_scaling);
}

static int print_adapter(const struct peft_files *files, int index) {
    static const char *const methods[PEFT_TYPE_COUNT] = {[PEFT_LORA] = "LoRA",
                                                         [PEFT_IA3] = "IA3",
                                                         [PEFT_ADAPTER] = "bottleneck adapter",
                                                         [PEFT_PROMPT] = "prompt tuning",
                                                         [PEFT_PTUNING] = "p-tuning",
                                                         [PEFT_PREFIX] = "prefix tuning"};
    const struct peft_config *config = &peft_files_configs(files)[index];
    const struct ckpt_tensors *tensors = peft_files_tensors(files, index);
    struct peft_notes notes;
    int status = peft_read_notes(peft_files_directory(files, index), &notes);
    if (status)
        return status;
    printf("%sadapter: %s\n", index ? "\n" : "", peft_files_directory(files, index));
    printf("method: %s%s%s\n", methods[config->type], config->use_dora ? ", DoRA" : "",
           config->use_rslora ? ", rsLoRA" : "");
    if (config->type == PEFT_LORA)
        print_lora(config);
    else if (config->type == PEFT_IA3) {
        print_list("target_modules", &config->target_modules, "c_attn, mlp.c_proj");
        print_list("feedforward_modules", &config->feedforward_modules, "mlp.c_proj");
    } else if (config->type == PEFT_ADAPTER)
        print_bottleneck(config);
    else
        printf("num_virtual_tokens: %lld\n", (long long)config->num_virtual_tokens);
    printf("parameters: %lld in %zu tensor%s, %s\n", (long long)ckpt_elements(tensors), ckpt_count(tensors),
           ckpt_count(tensors) == 1 ? "" : "s", dtype_name(ckpt_dtype(tensors)));
    printf("base: %s\n", config->base_name ? config->base_name : "not recorded");
    printf("base digest: %s\n", *notes.base_digest ? notes.base_digest : "not recorded");
    if (*notes.chat_template)
        printf("chat template: %s\n", notes.chat_template);
    return STATUS_OK;
}

int command_adapter(int argc, char **argv) {
    if (argc == 0 || (strcmp(argv[0], "show") != 0 && argv[0][0] != '-'))
        return command_exit_status(status_fail(STATUS_USAGE, "unknown command 'adapter%s%s' (expected '%s')",
                                               argc ? " " : "", argc ? argv[0] : "", command.synopsis));
    bool is_show = !strcmp(argv[0], "show"), is_help = false;
    struct options options = {0};
    struct config *config = NULL;
    struct peft_files *files = NULL;
    int status = config_parse(&command, argc - is_show, argv + is_show, &options, &config, &is_help);
    if (!status && !is_help && !options.directories.count)
        status = status_fail(STATUS_USAGE, "adapter show: no directory is given");
    if (!status && !is_help)
        status = peft_files_open(options.directories.items, options.directories.count, false, &files);
    for (int i = 0; !status && !is_help && i < peft_files_count(files); i++)
        status = print_adapter(files, i);
    if (!status && (fflush(stdout) || ferror(stdout)))
        status = status_fail_errno("cannot write to standard output");
    peft_files_close(files);
    config_free(config);
    return command_exit_status(status);
}
