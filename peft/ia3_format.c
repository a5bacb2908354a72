/* IA3's configuration, in a run and in PEFT's files. */
#include "format-internal.h"
#include "ia3-internal.h"

static const struct peft_shared_key shared[] = {PEFT_SHARED("ia3", target_modules),
                                                PEFT_SHARED("ia3", exclude_modules),
                                                PEFT_SHARED("ia3", layers_to_transform),
                                                {.path = "peft.feedforward_modules"},
                                                {0}};
static const char *const known[] = {"target_modules", "exclude_modules",  "feedforward_modules",
                                    "fan_in_fan_out", "init_ia3_weights", NULL};
static const char *const refused[] = {"modules_to_save", NULL};

static void read_keys(struct peft_reader *r) {
    struct peft_config *config = r->config;
    reader_targets(r);
    reader_names(r, "exclude_modules", &config->exclude_modules);
    reader_names(r, "feedforward_modules", &config->feedforward_modules);
    if (!r->keys.status && json_keys_find(&r->keys, "feedforward_modules") && !config->feedforward_modules.count)
        reader_add_item(r, &config->feedforward_modules, "none");
}

/* True when the targets include a module, in some layer, that is scaled at its input by default. */
static int targets_forward(const struct peft_config *config, const struct model_family *family, bool *is_any) {
    enum { LAYERS = 1024 };                                     /* the layers whose numbers expressions may name */
    int64_t count = (int64_t)LAYERS * family->projection_count; /* and the head */
    struct peft_config anywhere = *config;
    struct peft_choice *choices = calloc((size_t)count + 1, sizeof *choices);
    anywhere.layers_to_transform = (struct config_list){0};
    int status = choices ? peft_choose(&anywhere, family, LAYERS, choices) : status_no_memory();
    *is_any = false;
    for (int64_t i = 0; i < count && !status; i++)
        *is_any = *is_any || (choices[i].is_target && choices[i].is_feedforward);
    free(choices);
    return status;
}

/* Makes one regular expression of modules. */
static json_t *expression_of(const char *const *modules) {
    struct strbuf text = STRBUF_INIT;
    for (int i = 0; modules[i]; i++) {
        strbuf_add_text(&text, i ? "|.*\\." : ".*\\.");
        for (const char *at = modules[i]; *at; at++)
            strbuf_format(&text, *at == '.' ? "\\%c" : "%c", *at);
    }
    json_t *value = strbuf_status(&text) ? NULL : json_string(strbuf_text(&text));
    strbuf_free(&text);
    return value;
}

static int write_keys(const struct peft_config *config, const struct model_config *base, const char *base_directory,
                      json_t *object) {
    const struct model_family *family = model_family(base);
    const struct config_list *modules = &config->feedforward_modules;
    bool is_default = !config->target_modules.count, is_targeted = false;
    int status = modules->count || is_default ? STATUS_OK : targets_forward(config, family, &is_targeted);
    bool is_none =
        modules->count ? modules->count == 1 && !strcmp(modules->items[0], "none") : !is_default && !is_targeted;
    writer_targets(object, config, family);
    /* PEFT accepts a list only if each entry equals one of the targets. */
    writer_set(object, "feedforward_modules",
               is_none                        ? json_array()
               : modules->count || is_default ? writer_names(modules, family->targets.scaled_inputs)
                                              : expression_of(family->targets.scaled_inputs));
    writer_set(object, "fan_in_fan_out", json_boolean(family->is_transposed));
    writer_set(object, "init_ia3_weights", json_true());
    writer_set(object, "modules_to_save", json_null());
    return status;
}

static void show(const struct peft_config *config, struct strbuf *text) {
    strbuf_add_char(text, '\n');
    show_list(text, "target_modules", &config->target_modules, show_default);
    show_list(text, "feedforward_modules", &config->feedforward_modules, show_default);
}

/* ---- shapes ---- */

/* True when the list has the last names of a path of `length` bytes. */
static bool is_named(const struct config_list *list, const char *path, size_t length) {
    for (size_t i = 0; i < list->count; i++) {
        size_t tail = strlen(list->items[i]);
        if (tail && tail <= length && !strncmp(path + length - tail, list->items[i], tail) &&
            (tail == length || path[length - tail - 1] == '.'))
            return true;
    }
    return false;
}

/* A vector is [outputs, 1], or [1, inputs] in feedforward_modules. When these are the base's default, or an expression,
 * either form is valid. */
static int check_shape(struct peft_shape *shape) {
    const struct config_list *list = &shape->config->feedforward_modules;
    const int64_t *size = shape->tensor->shape;
    const char *end = strstr(shape->tensor->name, ".ia3_l");
    int status = end ? shape_check_dims(shape, 2) : STATUS_OK;
    if (status || !end)
        return status;
    bool is_input = is_named(list, shape->tensor->name, (size_t)(end - shape->tensor->name));
    bool is_free = !list->count || (list->count == 1 && strpbrk(list->items[0], "*+?[]()|\\^$"));
    if (size[!is_input] == 1 || (is_free && size[is_input] == 1))
        return STATUS_OK;
    return shape_fail(shape, "%s was expected%s",
                      is_free    ? "[outputs, 1] or [1, inputs]"
                      : is_input ? "[1, inputs]"
                                 : "[outputs, 1]",
                      size[is_input] == 1 ? ": it is transposed" : "");
}

const struct peft_format ia3_format = {.shared = shared,
                                       .type = "IA3",
                                       .known = known,
                                       .refused = refused,
                                       .read = read_keys,
                                       .write = write_keys,
                                       .check_shape = check_shape,
                                       .show = show};
