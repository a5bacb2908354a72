/* The section `peft` of a run: one row per key, from the methods that declare them. */
#include "format-internal.h"

/* Keys of methods at projections; targets.c reads them. */
static const struct config_row projection_keys[] = {
    PEFT_LIST(target_modules, "NAME...",
              "projections by suffix (c_attn, mlp.down_proj), with lora also the head, one regular expression, or "
              "all-linear; default: those of the method for the base's family"),
    PEFT_LIST(exclude_modules, "NAME...", "projections that do not change, named in the same way"),
    PEFT_LIST(layers_to_transform, "N...", "numbers of layers, from 0; default: all"),
    PEFT_LIST(
        feedforward_modules, "NAME...",
        "ia3: the target_modules that are scaled at their input; default: those of the base's family; none: none"),
};

/* First the keys of projections (0), then the keys of each method; --help lists options in this order. */
enum { GROUPS = 1 + PEFT_TYPE_COUNT };
static const struct config_row *group(int number, size_t *count) {
    const struct peft_format *format = number ? peft_method(number - 1)->format : NULL;
    *count = format ? format->key_count : sizeof projection_keys / sizeof *projection_keys;
    return format ? format->keys : projection_keys;
}

static const struct config_row *find_in_group(int number, const char *path) {
    size_t count;
    const struct config_row *rows = group(number, &count);
    for (size_t i = 0; i < count; i++)
        if (!strcmp(rows[i].path, path))
            return &rows[i];
    return NULL;
}

const struct config_row *peft_key(size_t index) {
    for (int g = 0; g < GROUPS; g++) {
        size_t count;
        const struct config_row *rows = group(g, &count);
        if (index < count)
            return &rows[index];
        index -= count;
    }
    return NULL;
}

bool peft_has_key(int type, const char *path) {
    const struct peft_shared_key *shared = peft_method(type)->format->shared;
    for (size_t i = 0; shared && shared[i].path; i++)
        if (!strcmp(shared[i].path, path))
            return true;
    return find_in_group(1 + type, path) != NULL;
}

bool peft_is_run_key(const struct config_row *key) {
    for (int type = 0; type < PEFT_TYPE_COUNT; type++) {
        const char *const *paths = peft_method(type)->format->run_keys;
        for (size_t i = 0; paths && paths[i]; i++)
            if (!strcmp(paths[i], key->path))
                return true;
    }
    return false;
}

void peft_copy_key(const struct config_row *key, const struct peft_config *from, struct peft_config *to) {
    static const size_t bytes[] = {
        [CONFIG_INT] = sizeof(int64_t),   [CONFIG_FLOAT] = sizeof(double), [CONFIG_BOOL] = sizeof(bool),
        [CONFIG_STRING] = sizeof(char *), [CONFIG_CHOICE] = sizeof(int),   [CONFIG_LIST] = sizeof(struct config_list)};
    memcpy((char *)to + key->offset, (const char *)from + key->offset, bytes[key->type]);
}

bool peft_alone_key(size_t index, struct peft_alone_key *key) {
    for (int g = 0; g < GROUPS; g++)
        for (int type = 0; type < PEFT_TYPE_COUNT; type++) {
            const struct peft_shared_key *shared = peft_method(type)->format->shared;
            for (size_t i = 0; shared && shared[i].path; i++) {
                const struct config_row *common = shared[i].alone ? find_in_group(g, shared[i].path) : NULL;
                if (common && index-- == 0) {
                    *key = (struct peft_alone_key){.path = shared[i].alone, .type = type, .common = common};
                    return true;
                }
            }
        }
    return false;
}

int peft_check_run(const struct peft_config *config) {
    const struct peft_format *format = peft_method(config->type)->format;
    return format->check_run ? format->check_run(config) : STATUS_OK;
}
