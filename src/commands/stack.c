#include "stack.h"

#include "base/base.h"

#include <stdlib.h>
#include <string.h>

static const char lora_plus[] = "peft.loraplus_lr_ratio"; /* of a run, not of an adapter */

/* ---- rows ---- */

/* Keys that several methods have. */
#define OWN(method, index, field)                                                                                      \
    { "peft." method "." #field, "peft." #field, index, offsetof(struct peft_config, field) }
static const struct own_key {
    const char *path, *common;
    int method;
    size_t offset;
} own_keys[] = {
    OWN("lora", PEFT_LORA, target_modules),          OWN("lora", PEFT_LORA, exclude_modules),
    OWN("lora", PEFT_LORA, layers_to_transform),     OWN("ia3", PEFT_IA3, target_modules),
    OWN("ia3", PEFT_IA3, exclude_modules),           OWN("ia3", PEFT_IA3, layers_to_transform),
    OWN("prompt", PEFT_PROMPT, num_virtual_tokens),  OWN("ptuning", PEFT_PTUNING, num_virtual_tokens),
    OWN("prefix", PEFT_PREFIX, num_virtual_tokens),  OWN("ptuning", PEFT_PTUNING, encoder_hidden_size),
    OWN("prefix", PEFT_PREFIX, encoder_hidden_size),
};
enum { OWN_KEYS = sizeof own_keys / sizeof *own_keys };

static const struct config_row *find_common(const char *path) {
    size_t i = 0;
    while (strcmp(peft_keys[i].row.path, path) != 0)
        i++;
    return &peft_keys[i].row;
}

size_t stack_rows(struct config_row *rows, size_t offset) {
    size_t count = 1 + peft_key_count + OWN_KEYS;
    if (!rows)
        return count;
    *rows++ = (struct config_row){.path = "peft.type",
                                  .type = CONFIG_LIST,
                                  .offset = offset + offsetof(struct stack_options, types),
                                  .metavar = "METHOD...",
                                  .default_text = "lora",
                                  .help = "the method, or several that are trained together; --peft says the same"};
    for (size_t i = 0; i < peft_key_count; i++) {
        *rows = peft_keys[i].row;
        rows++->offset += offset + offsetof(struct stack_options, all);
    }
    for (size_t i = 0; i < OWN_KEYS; i++) {
        *rows = *find_common(own_keys[i].common);
        rows->path = own_keys[i].path;
        rows->offset = offset + offsetof(struct stack_options, own) +
                       (size_t)own_keys[i].method * sizeof(struct peft_config) + own_keys[i].offset;
        rows->default_text = NULL;
        if (rows->type == CONFIG_INT)
            rows->minimum = 1;
        rows++->help = "where several methods are trained together: of this one alone";
    }
    return count;
}

/* ---- methods ---- */

/* In the order of their names. */
static int add_method(struct stack *stack, const struct peft_config *config, const char *where) {
    const char *name = peft_method_names[config->type];
    int at = stack->count;
    while (at > 0 && strcmp(peft_method_names[stack->configs[at - 1].type], name) > 0)
        at--;
    if (at > 0 && stack->configs[at - 1].type == config->type)
        return status_fail(STATUS_USAGE, "%s: %s is there twice: a stack has one adapter of a method", where, name);
    memmove(&stack->configs[at + 1], &stack->configs[at], (size_t)(stack->count - at) * sizeof *stack->configs);
    stack->configs[at] = *config;
    stack->count++;
    return STATUS_OK;
}

static int find_method(const char *name, int *type) {
    for (*type = 0; *type < PEFT_TYPE_COUNT; ++*type)
        if (!strcmp(name, peft_method_names[*type]))
            return STATUS_OK;
    return status_fail(STATUS_USAGE, "--peft %s: expected lora, ia3, adapter, prompt, ptuning or prefix, or several",
                       name);
}

/* The common configuration with what was given for this method alone. */
static struct peft_config config_of(int type, const struct stack_options *options, const struct config *given) {
    struct peft_config config = options->all;
    config.type = type;
    for (size_t i = 0; i < OWN_KEYS; i++) {
        bool is_list = find_common(own_keys[i].common)->type == CONFIG_LIST;
        if (own_keys[i].method == type && config_is_given(given, own_keys[i].path))
            memcpy((char *)&config + own_keys[i].offset, (const char *)&options->own[type] + own_keys[i].offset,
                   is_list ? sizeof(struct config_list) : sizeof(int64_t));
    }
    return config;
}

static unsigned methods_of(const struct stack *stack) {
    unsigned methods = 0;
    for (int i = 0; i < stack->count; i++)
        methods |= 1u << stack->configs[i].type;
    return methods;
}

void stack_drop_rows(const struct stack *stack, struct config_row *rows, size_t *count) {
    unsigned methods = methods_of(stack);
    for (size_t k = 0; k < peft_key_count; k++)
        for (size_t i = 0; i < *count; i++)
            if (!(peft_keys[k].methods & methods) && !strcmp(rows[i].path, peft_keys[k].row.path)) {
                memmove(&rows[i], &rows[i + 1], (*count - i - 1) * sizeof *rows);
                --*count;
                break;
            }
}

/* An empty list would be read as one that is not given: as the method's own modules, or all layers. */
static int check_empty_lists(const struct stack *stack, const struct config *given) {
    for (int i = 0; i < stack->count; i++) {
        const struct peft_config *c = &stack->configs[i];
        const struct {
            const char *name;
            const struct config_list *list;
        } lists[] = {{"target_modules", &c->target_modules},
                     {"layers_to_transform", &c->layers_to_transform},
                     {"feedforward_modules", &c->feedforward_modules}};
        for (size_t l = 0; l < sizeof lists / sizeof *lists; l++) {
            char common[64], own[64];
            snprintf(common, sizeof common, "peft.%s", lists[l].name);
            snprintf(own, sizeof own, "peft.%s.%s", peft_method_names[c->type], lists[l].name);
            if (!lists[l].list->count && (config_is_given(given, common) || config_is_given(given, own)))
                return status_fail(STATUS_USAGE, "peft.%s: an empty list: expected at least one entry", lists[l].name);
        }
    }
    return STATUS_OK;
}

/* A key of methods that do not train would do nothing, nor would dropout between layers that are not there. */
static int check_idle_keys(const struct stack *stack, const struct config *given) {
    for (int i = 0; i < stack->count; i++) {
        const struct peft_config *c = &stack->configs[i];
        bool has_layers = c->encoder_reparameterization_type == PEFT_LSTM && c->encoder_num_layers > 1;
        if (c->type == PEFT_PTUNING && c->encoder_dropout > 0 && !has_layers)
            return status_fail(STATUS_USAGE,
                               "peft.encoder_dropout %g: expected with peft.encoder_reparameterization_type LSTM of "
                               "several layers, between which it is",
                               c->encoder_dropout);
    }
    unsigned methods = methods_of(stack);
    int status = check_empty_lists(stack, given);
    for (size_t i = 0; i < peft_key_count && !status; i++)
        if (!(peft_keys[i].methods & methods) && config_is_given(given, peft_keys[i].row.path))
            return status_fail(STATUS_USAGE, "%s is no key of --peft %s", peft_keys[i].row.path,
                               peft_method_names[stack->configs[0].type]);
    for (size_t i = 0; i < OWN_KEYS && !status; i++)
        if (config_is_given(given, own_keys[i].path) && !(methods & 1u << own_keys[i].method))
            return status_fail(STATUS_USAGE, "%s without --peft %s", own_keys[i].path,
                               peft_method_names[own_keys[i].method]);
    return status;
}

int stack_choose(struct stack *stack, const struct config_list *methods, const struct stack_options *options,
                 const struct config *given) {
    const struct config_list *names = methods->count ? methods : &options->types;
    int status = names->count ? STATUS_OK : status_fail(STATUS_USAGE, "peft.type: expected at least one method");
    for (size_t i = 0; i < names->count && !status; i++) {
        int type;
        status = find_method(names->items[i], &type);
        if (status)
            break;
        struct peft_config config = config_of(type, options, given);
        status = add_method(stack, &config, "--peft");
    }
    return status ? status : check_idle_keys(stack, given);
}

/* ---- from a directory ---- */

/* What the adapter is stands in its directory. */
static int check_keys(const struct config *given, const char *flag) {
    struct config_row rows[64];
    size_t count = stack_rows(NULL, 0);
    if (count > sizeof rows / sizeof *rows)
        return status_fail(STATUS_UNSUPPORTED, "more keys of peft than %zu", sizeof rows / sizeof *rows);
    stack_rows(rows, 0);
    for (size_t i = 0; i < count; i++)
        if (strcmp(rows[i].path, lora_plus) != 0 && config_is_given(given, rows[i].path))
            return status_fail(STATUS_USAGE, "%s cannot be given with %s, whose configuration it would change",
                               rows[i].path, flag);
    return STATUS_OK;
}

static int check_same_methods(const struct stack *stack, const struct config_list *methods, const char *directory) {
    bool is_same = !methods->count || methods->count == (size_t)stack->count;
    for (size_t i = 0; i < methods->count && is_same; i++) {
        int type, status = find_method(methods->items[i], &type);
        if (status)
            return status;
        is_same = false;
        for (int k = 0; k < stack->count; k++)
            is_same = is_same || stack->configs[k].type == type;
        if (!is_same)
            return status_fail(STATUS_USAGE, "--peft %s: %s is an adapter of another method", methods->items[i],
                               directory);
    }
    return is_same ? STATUS_OK
                   : status_fail(STATUS_USAGE, "--peft: %s is a stack of %d methods, not of %zu", directory,
                                 stack->count, methods->count);
}

int stack_take(struct stack *stack, const struct config_list *methods, const struct stack_options *options,
               const struct config *given, const char *directory, const char *model) {
    int status = check_keys(given, "--init-adapter");
    if (!status)
        status = peft_files_open(&directory, 1, true, &stack->init);
    if (!status)
        status = peft_files_check_base(stack->init, model);
    for (int i = 0; !status && i < peft_files_count(stack->init); i++) {
        struct peft_config config = peft_files_configs(stack->init)[i];
        config.loraplus_lr_ratio = options->all.loraplus_lr_ratio;
        status = add_method(stack, &config, directory);
        /* Its own order is that of its directories' names, and says which method changes what first. */
        if (!status && stack->configs[i].type != config.type)
            status = status_fail(STATUS_USAGE,
                                 "%s: %s stands behind a method with a later name: finetune keeps a stack in the order "
                                 "of its methods' names, and that would be another",
                                 directory, peft_method_names[config.type]);
    }
    if (!status)
        status = check_same_methods(stack, methods, directory);
    return status ? status_wrap(status, "--init-adapter") : STATUS_OK;
}

int stack_apply(struct stack *stack, const struct config_list *directories, const struct config *given,
                const char *model) {
    int status = check_keys(given, "--adapter");
    if (status || !directories->count)
        return status;
    status = peft_files_open(directories->items, directories->count, true, &stack->init);
    if (!status)
        status = peft_files_check_base(stack->init, model);
    if (!status && peft_files_count(stack->init) > STACK_MAX)
        status = status_fail(STATUS_USAGE, "--adapter: %d adapters, at most %d apply together",
                             peft_files_count(stack->init), STACK_MAX);
    for (int i = 0; !status && i < peft_files_count(stack->init); i++)
        stack->configs[stack->count++] = peft_files_configs(stack->init)[i];
    return status;
}

void stack_free(struct stack *stack) {
    peft_files_close(stack->init);
}
