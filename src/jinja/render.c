/* Renders a template: from arguments to text. */
#include "jinja-internal.h"

/* The memory that an argument needs as values, and the bytes of its strings. */
struct argument_size {
    size_t objects, bytes;
};

static void measure(const json_t *json, int depth, struct argument_size *size) {
    size_t i;
    json_t *item;
    const char *key;
    if (json_is_string(json)) {
        size->objects += sizeof(struct jinja_string);
        size->bytes += json_string_length(json);
    }
    if (json_is_array(json) || json_is_object(json))
        size->objects += sizeof(struct jinja_dict) + sizeof(struct jinja_entry);
    if (depth > 2048) /* deeper than JSON can be read */
        return;
    json_array_foreach(json, i, item) {
        size->objects += sizeof(struct jinja_value);
        measure(item, depth + 1, size);
    }
    json_object_foreach((json_t *)json, key, item) {
        size->objects += sizeof(struct jinja_entry) + sizeof(struct jinja_string);
        size->bytes += strlen(key);
        measure(item, depth + 1, size);
    }
}

uint32_t *jinja_name_slot(const struct jinja *jinja, const char *bytes, size_t length) {
    uint64_t digest = digest_bytes(DIGEST_START, bytes, length);
    for (;; digest++) {
        uint32_t *slot = &jinja->slots[digest % JINJA_NAME_SLOTS];
        const struct jinja_name *name = *slot ? &jinja->names[*slot - 1] : NULL;
        if (!name || (name->length == length && !memcmp(name->bytes, bytes, length)))
            return slot;
    }
}

/* Returns jinja->name_count when the template does not use the name. */
static uint32_t find_name(const struct jinja *jinja, const char *text) {
    uint32_t slot = *jinja_name_slot(jinja, text, strlen(text));
    return slot ? slot - 1 : jinja->name_count;
}

static void set_globals(struct jinja_run *run, const struct jinja_rendering *rendering) {
    const struct jinja *jinja = run->jinja;
    for (uint32_t i = 0; i < jinja->name_count; i++) {
        const struct jinja_name *name = &jinja->names[i];
        const struct jinja_operation *function = jinja_operation_find(JINJA_FUNCTIONS, name->bytes, name->length);
        run->globals[i] = jinja_missing();
        if (function)
            run->globals[i] = (struct jinja_value){.kind = JINJA_FUNCTION, .function = function};
    }
    for (size_t k = 0; k < rendering->count && jinja_charge(run, 1); k++) {
        const struct jinja_argument *argument = &rendering->arguments[k];
        uint32_t i = argument->value ? find_name(jinja, argument->name) : jinja->name_count;
        if (i < jinja->name_count)
            run->globals[i] = jinja_from_json(run, argument->value, argument);
    }
}

static void give_text(struct jinja_run *run, const struct jinja_builder *built, struct jinja_text *text) {
    text->ranges = malloc((built->count + 1) * sizeof *text->ranges);
    if (!text->ranges || strbuf_reserve(&text->text, built->length)) {
        run->status = status_no_memory();
        return;
    }
    if (jinja_charge_bytes(run, built->length))
        strbuf_add(&text->text, built->bytes, built->length);
    jinja_copy(run, text->ranges, built->ranges, built->count * sizeof *text->ranges);
    text->count = built->count;
}

int jinja_render(const struct jinja *jinja, const struct jinja_rendering *rendering, struct jinja_text *text) {
    const struct jinja_limits *limits = rendering->limits ? rendering->limits : &jinja_default_limits;
    double begin = clock_seconds();
    struct jinja_builder out = {0};
    struct argument_size size = {0};
    for (size_t i = 0; i < rendering->count; i++)
        if (rendering->arguments[i].value)
            measure(rendering->arguments[i].value, 0, &size);
    struct jinja_run run = {.jinja = jinja,
                            .objects = {.limit = limits->memory / 2 + 2 * size.objects},
                            .bytes = {.limit = limits->memory / 2 + 8 * size.bytes},
                            .line = 1,
                            .steps = limits->steps,
                            .seconds = limits->seconds,
                            .deadline = limits->seconds > 0 ? begin + limits->seconds : 0,
                            .max_depth = limits->depth,
                            .now = rendering->now,
                            .loop_name = find_name(jinja, "loop"),
                            .out = &out};
    *text = (struct jinja_text){0};
    run.globals = jinja_object(&run, (jinja->name_count + 1) * sizeof *run.globals);
    if (run.globals)
        set_globals(&run, rendering);
    if (!run.status)
        jinja_run_body(&run);
    if (!run.status)
        jinja_pay_bytes(&run);
    if (!run.status)
        give_text(&run, &out, text);
    if (rendering->steps)
        *rendering->steps = limits->steps - run.steps;
    if (rendering->unwatched)
        *rendering->unwatched = run.most_unwatched;
    jinja_arena_free(&run.objects);
    jinja_arena_free(&run.bytes);
    if (run.status)
        jinja_text_free(text);
    return run.status;
}

void jinja_text_free(struct jinja_text *text) {
    strbuf_free(&text->text);
    free(text->ranges);
    *text = (struct jinja_text){0};
}
