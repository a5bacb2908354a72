#include "stack.h"

static const char type_path[] = "peft.type";

/* From Li and Liang, 2021, who fine-tune GPT-2: XiangLi1999/PrefixTuning, README. */
static const double full_lr = 5e-5;
static const char full_name[] = "full";

/* ---- rows ---- */

/* Returns the row of a key for one method only. Unlike the key for all methods it has no default and no value that
 * means none. */
static struct config_row alone_row(const struct peft_alone_key *key, size_t offset) {
    struct config_row row = *key->common;
    row.path = key->path;
    row.offset += offset + offsetof(struct stack_options, alone) + (size_t)key->type * sizeof(struct peft_config);
    row.default_text = NULL;
    if (row.type == CONFIG_INT)
        row.minimum = 1;
    row.help = "where several methods are trained together: only of this one";
    return row;
}

size_t stack_rows(struct config_row *rows, size_t offset) {
    const struct config_row *key;
    struct peft_alone_key alone;
    size_t count = 1;
    if (rows)
        *rows++ = (struct config_row)ROW_LIST(type_path, offset + offsetof(struct stack_options, types), "METHOD...",
                                              "the method, or several that are trained together; --peft says the same",
                                              .default_text = PEFT_DEFAULT_METHOD);
    for (size_t i = 0; (key = peft_key(i)); i++, count++)
        if (rows) {
            *rows = *key;
            rows++->offset += offset + offsetof(struct stack_options, all);
        }
    for (size_t i = 0; peft_alone_key(i, &alone); i++, count++)
        if (rows)
            *rows++ = alone_row(&alone, offset);
    return count;
}

/* ---- methods ---- */

/* Inserts a method in the order of names. */
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

void stack_names(char out[STACK_NAMES_BYTES]) {
    size_t used = 0;
    for (int type = 0; type < PEFT_TYPE_COUNT && used < STACK_NAMES_BYTES; type++)
        used += (size_t)snprintf(out + used, STACK_NAMES_BYTES - used, "%s%s", peft_method_names[type],
                                 type + 1 < PEFT_TYPE_COUNT ? ", " : " or ");
    if (used < STACK_NAMES_BYTES)
        snprintf(out + used, STACK_NAMES_BYTES - used, "%s", full_name);
}

void stack_rates(char out[STACK_NAMES_BYTES]) {
    size_t used = 0;
    for (int type = 0; type < PEFT_TYPE_COUNT && used < STACK_NAMES_BYTES; type++) {
        const struct peft_config config = {.type = type};
        used += (size_t)snprintf(out + used, STACK_NAMES_BYTES - used, "%g for %s, ",
                                 peft_default_lr(&config, 1, &(int){0}), peft_method_names[type]);
    }
    if (used < STACK_NAMES_BYTES)
        snprintf(out + used, STACK_NAMES_BYTES - used, "%g for %s", full_lr, full_name);
}

double stack_default_lr(const struct stack *stack, const char **title) {
    int type;
    *title = "full fine-tuning";
    if (stack->is_full)
        return full_lr;
    double lr = peft_default_lr(stack->configs, stack->count, &type);
    *title = peft_title(type);
    return lr;
}

bool stack_lists_full(const struct config_list *methods) {
    for (size_t i = 0; i < methods->count; i++)
        if (!strcmp(methods->items[i], full_name))
            return true;
    return false;
}

static int find_method(const char *name, int *type) {
    char names[STACK_NAMES_BYTES];
    for (*type = 0; *type < PEFT_TYPE_COUNT; ++*type)
        if (!strcmp(name, peft_method_names[*type]))
            return STATUS_OK;
    stack_names(names);
    return status_fail(STATUS_USAGE, "--peft %s: expected %s, or several", name, names);
}

/* Returns the configuration for all methods, overridden by the keys given for this method only. */
static struct peft_config config_of(int type, const struct stack_options *options, const struct config *given) {
    struct peft_config config = options->all;
    config.type = type;
    struct peft_alone_key key;
    for (size_t i = 0; peft_alone_key(i, &key); i++)
        if (key.type == type && config_is_given(given, key.path))
            peft_copy_key(key.common, &options->alone[type], &config);
    return config;
}

static bool has_method(const struct stack *stack, int type) {
    for (int i = 0; i < stack->count; i++)
        if (stack->configs[i].type == type)
            return true;
    return false;
}

/* True when any method of the stack has the key. */
static bool has_key(const struct stack *stack, const char *path) {
    for (int i = 0; i < stack->count; i++)
        if (peft_has_key(stack->configs[i].type, path))
            return true;
    return false;
}

void stack_drop_rows(const struct stack *stack, struct config_row *rows, size_t *count) {
    const struct config_row *key;
    for (size_t k = 0; (key = peft_key(k)); k++)
        for (size_t i = 0; i < *count; i++)
            if (!has_key(stack, key->path) && !strcmp(rows[i].path, key->path)) {
                memmove(&rows[i], &rows[i + 1], (*count - i - 1) * sizeof *rows);
                --*count;
                break;
            }
}

/* Refuses empty lists. They would be read as not given: as the method's default modules, or as all layers. */
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
            char common[64], alone[64];
            snprintf(common, sizeof common, "peft.%s", lists[l].name);
            snprintf(alone, sizeof alone, "peft.%s.%s", peft_method_names[c->type], lists[l].name);
            if (!lists[l].list->count && (config_is_given(given, common) || config_is_given(given, alone)))
                return status_fail(STATUS_USAGE, "peft.%s: an empty list: expected at least one entry", lists[l].name);
        }
    }
    return STATUS_OK;
}

/* Refuses keys of methods that are not trained: they would do nothing. */
static int check_idle_keys(const struct stack *stack, const struct config *given) {
    const struct config_row *key;
    struct peft_alone_key alone;
    int status = STATUS_OK;
    for (int i = 0; i < stack->count && !status; i++)
        status = peft_check_run(&stack->configs[i]);
    THEN(status, check_empty_lists(stack, given));
    for (size_t i = 0; !status && (key = peft_key(i)); i++)
        if (!has_key(stack, key->path) && config_is_given(given, key->path))
            return status_fail(STATUS_USAGE, "%s is not a key of --peft %s", key->path,
                               stack->is_full ? full_name : peft_method_names[stack->configs[0].type]);
    for (size_t i = 0; !status && peft_alone_key(i, &alone); i++)
        if (config_is_given(given, alone.path) && !has_method(stack, alone.type))
            return status_fail(STATUS_USAGE, "%s without --peft %s", alone.path, peft_method_names[alone.type]);
    return status;
}

int stack_choose(struct stack *stack, const struct config_list *methods, const struct stack_options *options,
                 const struct config *given) {
    const struct config_list *names = methods->count ? methods : &options->types;
    int status = names->count ? STATUS_OK : status_fail(STATUS_USAGE, "peft.type: expected at least one method");
    stack->is_full = stack_lists_full(names);
    if (stack->is_full && names->count > 1)
        return status_fail(STATUS_USAGE, "--peft %s trains all weights, and cannot be combined with another method",
                           full_name);
    for (size_t i = 0; i < names->count && !status && !stack->is_full; i++) {
        int type;
        status = find_method(names->items[i], &type);
        if (status)
            break;
        struct peft_config config = config_of(type, options, given);
        status = add_method(stack, &config, "--peft");
    }
    return status ? status : check_idle_keys(stack, given);
}

const char *stack_find_given(const struct config *given, bool with_run_keys) {
    const struct config_row *key;
    struct peft_alone_key alone;
    const char *found = NULL;
    for (size_t i = 0; !found && (key = peft_key(i)); i++)
        if ((with_run_keys || !peft_is_run_key(key)) && config_is_given(given, key->path))
            found = key->path;
    for (size_t i = 0; !found && peft_alone_key(i, &alone); i++)
        if (config_is_given(given, alone.path))
            found = alone.path;
    return found;
}

/* ---- from a directory ---- */

/* Refuses keys that define an adapter, because its directory defines it. */
static int check_keys(const struct config *given, const char *flag) {
    const char *found = config_is_given(given, type_path) ? type_path : stack_find_given(given, false);
    return found ? status_fail(STATUS_USAGE, "%s cannot be given with %s, whose configuration it would change", found,
                               flag)
                 : STATUS_OK;
}

static int check_same_methods(const struct stack *stack, const struct config_list *methods, const char *directory) {
    bool is_same = !methods->count || methods->count == (size_t)stack->count;
    for (size_t i = 0; i < methods->count && is_same; i++) {
        int type, status = find_method(methods->items[i], &type);
        TRY(status);
        is_same = has_method(stack, type);
        if (!is_same)
            return status_fail(STATUS_USAGE, "--peft %s: %s is an adapter of another method", methods->items[i],
                               directory);
    }
    return is_same ? STATUS_OK
                   : status_fail(STATUS_USAGE, "--peft: %s is a stack of %d methods, not of %zu", directory,
                                 stack->count, methods->count);
}

static void take_run_keys(struct peft_config *config, const struct peft_config *all) {
    const struct config_row *key;
    for (size_t i = 0; (key = peft_key(i)); i++)
        if (peft_is_run_key(key))
            peft_copy_key(key, all, config);
}

int stack_take(struct stack *stack, const struct config_list *methods, const struct stack_options *options,
               const struct config *given, const char *directory, const struct stack_base *base) {
    int status = check_keys(given, "--init-adapter");
    THEN(status, peft_files_open(&directory, 1, true, &stack->init));
    THEN(status, peft_files_check_base(stack->init, base->model, base->load_in));
    for (int i = 0; !status && i < peft_files_count(stack->init); i++) {
        struct peft_config config = peft_files_configs(stack->init)[i];
        take_run_keys(&config, &options->all);
        status = add_method(stack, &config, directory);
        /* The directories' names give the order in which methods apply. */
        if (!status && stack->configs[i].type != config.type)
            status = status_fail(STATUS_USAGE,
                                 "%s: %s stands after a method with a later name: finetune keeps a stack in the order "
                                 "of its methods' names, and that would be another",
                                 directory, peft_method_names[config.type]);
    }
    THEN(status, check_same_methods(stack, methods, directory));
    return status ? status_wrap(status, "--init-adapter") : STATUS_OK;
}

/* Opens adapters that go together with `others` more. */
static int open_together(const struct config_list *directories, const struct stack_base *base, bool trains, int others,
                         struct peft_files **files) {
    int status = peft_files_open(directories->items, directories->count, trains, files);
    THEN(status, peft_files_check_base(*files, base->model, base->load_in));
    if (!status && others + peft_files_count(*files) > PEFT_MAX_STACK)
        status = status_fail(STATUS_USAGE, "--adapter: %d adapters, at most %d apply together",
                             others + peft_files_count(*files), PEFT_MAX_STACK);
    return status;
}

int stack_freeze(struct stack *stack, const struct config_list *directories, const struct stack_base *base) {
    return directories->count ? open_together(directories, base, false, stack->count, &stack->frozen) : STATUS_OK;
}

int stack_apply(struct stack *stack, const struct config_list *directories, const struct config *given,
                const struct stack_base *base) {
    int status = check_keys(given, "--adapter");
    if (status || !directories->count)
        return status;
    status = open_together(directories, base, true, 0, &stack->init);
    for (int i = 0; !status && i < peft_files_count(stack->init); i++)
        stack->configs[stack->count++] = peft_files_configs(stack->init)[i];
    return status;
}

void stack_free(struct stack *stack) {
    peft_files_close(stack->init);
    peft_files_close(stack->frozen);
}
