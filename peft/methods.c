/* The table of methods, and facts that follow only from a configuration. */
#include "format-internal.h"

#define NAME(number, name, method)   [number] = name,
#define METHOD(number, name, method) [number] = &method,
const char *const peft_method_names[] = {PEFT_METHODS(NAME)[PEFT_TYPE_COUNT] = NULL};
static const struct peft_method *const methods[] = {PEFT_METHODS(METHOD)};

const struct peft_method *peft_method(int type) {
    return methods[type];
}

int64_t peft_config_virtual_tokens(const struct peft_config *config) {
    return methods[config->type]->before == PEFT_BEFORE_ROWS ? config->num_virtual_tokens : 0;
}

int64_t peft_config_prefix_tokens(const struct peft_config *config) {
    return methods[config->type]->before == PEFT_BEFORE_KEYS ? config->num_virtual_tokens : 0;
}

static double default_lr(const struct peft_config *config) {
    const struct peft_method *method = methods[config->type];
    return method->is_encoded && method->is_encoded(config) ? method->encoder_lr : method->lr;
}

double peft_default_lr(const struct peft_config *configs, int count, int *type) {
    const struct peft_config *lowest = configs;
    for (int i = 1; i < count; i++)
        if (default_lr(&configs[i]) < default_lr(lowest))
            lowest = &configs[i];
    *type = lowest->type;
    return default_lr(lowest);
}

const char *peft_title(int type) {
    return methods[type]->title;
}

bool peft_is_of_peft(int type) {
    return methods[type]->format->type != NULL;
}
