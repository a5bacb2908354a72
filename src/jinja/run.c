/* Runs statements, handles names, and renders from arguments to text. */
#include "jinja-internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

/* The charge for examining one variable of a scope. */
enum { VARIABLE_BYTES = 4 };

struct jinja_value jinja_lookup(struct jinja_run *run, uint32_t name) {
    for (const struct jinja_scope *scope = run->scope; scope; scope = scope->parent) {
        if (!jinja_charge_bytes(run, (1 + scope->count) * VARIABLE_BYTES))
            return jinja_undefined(NULL);
        for (size_t i = scope->count; i-- > 0;)
            if (scope->items[i].name == name)
                return scope->items[i].value;
    }
    if (run->globals[name].kind == JINJA_MISSING)
        return jinja_undefined(run->jinja->names[name].bytes);
    return run->globals[name];
}

void jinja_define(struct jinja_run *run, struct jinja_scope *scope, uint32_t name, struct jinja_value value) {
    if (!jinja_charge_bytes(run, VARIABLE_BYTES * (scope ? 1 + scope->count : 1)))
        return;
    if (!scope) {
        run->globals[name] = value;
        return;
    }
    for (size_t i = 0; i < scope->count; i++)
        if (scope->items[i].name == name) {
            scope->items[i].value = value;
            return;
        }
    struct jinja_variable *items = jinja_room(run, scope->items, scope->count, &scope->capacity, sizeof *items);
    if (!items)
        return;
    scope->items = items;
    scope->items[scope->count++] = (struct jinja_variable){name, value};
}

static void set_attribute(struct jinja_run *run, const struct jinja_node *target, struct jinja_value value) {
    struct jinja_value space = jinja_lookup(run, target->name);
    const struct jinja_name *name = &run->jinja->names[target->b->name];
    if (space.kind != JINJA_NAMESPACE)
        jinja_fail(run, "'%s' is no namespace: attributes of others cannot be set",
                   run->jinja->names[target->name].bytes);
    else if (name->bytes[0] == '_')
        jinja_fail(run, "a namespace has no attributes that begin with '_'");
    else
        jinja_dict_put(run, space.dict, jinja_string(run, name->bytes, name->length, 0), value);
}

static void assign(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_node *target,
                   struct jinja_value value) {
    if (target->kind == NODE_NAME) {
        jinja_define(run, scope, target->name, value);
        return;
    }
    if (target->kind == NODE_NAMESPACE) {
        set_attribute(run, target, value);
        return;
    }
    const struct jinja_list *items = jinja_iterate(run, &value);
    if (!run->status && items->count != target->items.count)
        jinja_fail(run, "%zu values for %u names", items->count, (unsigned)target->items.count);
    for (uint32_t i = 0; i < target->items.count && !run->status; i++)
        assign(run, scope, target->items.items[i], items->items[i]);
}

/* ---- statements ---- */

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

static enum flow run_all(struct jinja_run *run, const struct jinja_nodes *nodes);

static struct jinja_scope *open_scope(struct jinja_run *run, struct jinja_scope *parent) {
    struct jinja_scope *scope = jinja_object(run, sizeof *scope);
    if (scope)
        scope->parent = parent;
    return scope;
}

/* Runs statements in a new scope, and returns their output. */
static struct jinja_value capture(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_node *node) {
    struct jinja_builder text = {0}, *out = run->out;
    struct jinja_scope *before = run->scope;
    if (!scope)
        return jinja_undefined(NULL);
    run->scope = scope;
    run->out = &text;
    run_all(run, &node->items);
    run->scope = before;
    run->out = out;
    return jinja_built(run, &text);
}

struct jinja_value jinja_call_macro(struct jinja_run *run, const struct jinja_macro *macro, struct jinja_call *call) {
    const struct jinja_node *node = macro->node;
    struct jinja_scope *scope = open_scope(run, macro->scope), *before = run->scope;
    int line = run->line;
    for (uint32_t i = 0; i < node->others.count && scope && jinja_charge(run, 1); i++) {
        const struct jinja_node *parameter = node->others.items[i];
        const char *name = run->jinja->names[parameter->name].bytes;
        struct jinja_value value = jinja_argument(run, call, i, name);
        run->scope = scope; /* a default may refer to earlier parameters */
        if (value.kind == JINJA_MISSING)
            value = parameter->a ? jinja_eval(run, parameter->a) : jinja_undefined(name);
        run->scope = before;
        jinja_define(run, scope, parameter->name, value);
    }
    run->line = line;
    if (!scope || !jinja_call_end(run, call, node->others.count, run->jinja->names[node->name].bytes))
        return jinja_undefined(NULL);
    unsigned marks = run->marks;
    struct jinja_value text = capture(run, scope, node);
    run->marks = marks;
    run->line = line;
    return text;
}

static void define_macro(struct jinja_run *run, const struct jinja_node *node) {
    struct jinja_macro *macro = jinja_object(run, sizeof *macro);
    if (!macro)
        return;
    *macro = (struct jinja_macro){node, run->scope};
    for (struct jinja_scope *scope = run->scope; scope && !scope->is_kept; scope = scope->parent)
        scope->is_kept = true;
    jinja_define(run, run->scope, node->name, (struct jinja_value){.kind = JINJA_MACRO, .macro = macro});
}

/* Returns the items of a loop that its condition keeps. */
static const struct jinja_list *select_items(struct jinja_run *run, const struct jinja_node *node,
                                             const struct jinja_list *items) {
    struct jinja_value kept = jinja_list_new(run, JINJA_LIST, 0);
    struct jinja_scope *before = run->scope;
    for (size_t i = 0; i < items->count && jinja_charge(run, 1); i++) {
        run->scope = open_scope(run, before);
        if (run->scope)
            assign(run, run->scope, node->a, items->items[i]);
        struct jinja_value is_kept = jinja_eval(run, node->c);
        if (jinja_is_true(&is_kept))
            jinja_list_add(run, kept.list, items->items[i]);
    }
    run->scope = before;
    return kept.list;
}

static enum flow run_for(struct jinja_run *run, const struct jinja_node *node, uint32_t loop_name) {
    struct jinja_value over = jinja_eval(run, node->b);
    const struct jinja_list *items = jinja_iterate(run, &over);
    struct jinja_scope *before = run->scope, *scope = NULL;
    struct jinja_loop *loop = jinja_object(run, sizeof *loop);
    bool has_ended = false; /* an iteration completed without break or continue */
    if (node->c && !run->status)
        items = select_items(run, node, items);
    for (size_t i = 0; i < items->count && jinja_charge(run, 1); i++) {
        if (!scope || scope->is_kept)
            scope = open_scope(run, before);
        if (!scope)
            break;
        scope->count = 0;
        loop->items = items;
        loop->index = i;
        run->scope = scope;
        run->line = node->line;
        assign(run, scope, node->a, items->items[i]);
        if (loop_name < run->jinja->name_count)
            jinja_define(run, scope, loop_name, (struct jinja_value){.kind = JINJA_LOOP, .loop = loop});
        enum flow flow = run_all(run, &node->items);
        has_ended |= flow == FLOW_NEXT;
        if (flow == FLOW_BREAK)
            break;
    }
    run->scope = before;
    if (has_ended || !node->others.count || run->status)
        return FLOW_NEXT;
    run->scope = open_scope(run, before);
    enum flow flow = run->scope ? run_all(run, &node->others) : FLOW_NEXT;
    run->scope = before;
    return flow;
}

static enum flow run_if(struct jinja_run *run, const struct jinja_node *node) {
    for (; node; node = node->b) {
        struct jinja_value condition = jinja_eval(run, node->a);
        if (run->status)
            return FLOW_NEXT;
        if (jinja_is_true(&condition))
            return run_all(run, &node->items);
        if (!node->b)
            return run_all(run, &node->others);
    }
    return FLOW_NEXT;
}

static void run_set(struct jinja_run *run, const struct jinja_node *node) {
    struct jinja_value value;
    if (node->kind == NODE_SET) {
        value = jinja_eval(run, node->b);
    } else {
        value = capture(run, open_scope(run, run->scope), node);
        value = jinja_eval_filters(run, node->b, value);
    }
    run->line = node->line;
    if (!run->status)
        assign(run, run->scope, node->a, value);
}

static enum flow run_with(struct jinja_run *run, const struct jinja_node *node) {
    struct jinja_scope *before = run->scope, *scope = open_scope(run, before);
    for (uint32_t i = 0; i + 1 < node->others.count && scope; i += 2)
        assign(run, scope, node->others.items[i], jinja_eval(run, node->others.items[i + 1]));
    if (!scope)
        return FLOW_NEXT;
    run->scope = scope;
    enum flow flow = run_all(run, &node->items);
    run->scope = before;
    return flow;
}

static void print(struct jinja_run *run, struct jinja_value value) {
    if (!run->marks) {
        jinja_build_str(run, run->out, &value);
        return;
    }
    value = jinja_str(run, &value);
    if (value.kind != JINJA_STRING)
        return;
    const struct jinja_string *string = value.string;
    size_t from = 0;
    for (size_t i = 0; i < string->range_count; i++) {
        jinja_build(run, run->out, string->bytes + from, string->ranges[i].end - from,
                    string->ranges[i].marks | run->marks);
        from = string->ranges[i].end;
    }
    jinja_build(run, run->out, string->bytes + from, string->length - from, string->marks | run->marks);
}

static void run_generation(struct jinja_run *run, const struct jinja_node *node) {
    unsigned before = run->marks;
    struct jinja_value text;
    run->marks |= JINJA_GENERATED;
    text = capture(run, open_scope(run, run->scope), node);
    print(run, text);
    run->marks = before;
}

static enum flow run_node(struct jinja_run *run, const struct jinja_node *node) {
    switch (node->kind) {
    case NODE_TEXT:
        print(run, node->value);
        return FLOW_NEXT;
    case NODE_PRINT:
        print(run, jinja_eval(run, node->a));
        return FLOW_NEXT;
    case NODE_IF:
        return run_if(run, node);
    case NODE_FOR:
        return run_for(run, node, run->loop_name);
    case NODE_SET:
    case NODE_SET_BLOCK:
        run_set(run, node);
        return FLOW_NEXT;
    case NODE_MACRO:
        define_macro(run, node);
        return FLOW_NEXT;
    case NODE_WITH:
        return run_with(run, node);
    case NODE_GENERATION:
        run_generation(run, node);
        return FLOW_NEXT;
    case NODE_FILTERED:
        print(run, jinja_eval_filters(run, node->b, capture(run, open_scope(run, run->scope), node)));
        return FLOW_NEXT;
    case NODE_BREAK:
        return FLOW_BREAK;
    case NODE_CONTINUE:
        return FLOW_CONTINUE;
    default:
        jinja_fail(run, "a value where a statement is expected");
        return FLOW_NEXT;
    }
}

static enum flow run_all(struct jinja_run *run, const struct jinja_nodes *nodes) {
    enum flow flow = FLOW_NEXT;
    if (jinja_enter(run))
        for (uint32_t i = 0; i < nodes->count && flow == FLOW_NEXT && jinja_charge(run, 1); i++) {
            run->line = nodes->items[i]->line;
            flow = run_node(run, nodes->items[i]);
        }
    jinja_leave(run);
    return run->status ? FLOW_NEXT : flow;
}

/* ---- a rendering ---- */

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
        run_all(&run, &jinja->body);
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
