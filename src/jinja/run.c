/* Runs a template: names, expressions and statements, which contain one another. */
#include "jinja-internal.h"

/* ---- names ---- */

/* The charge for examining one variable of a scope. */
enum { VARIABLE_BYTES = 4 };

static struct jinja_value lookup(struct jinja_run *run, uint32_t name) {
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

static void define(struct jinja_run *run, struct jinja_scope *scope, uint32_t name, struct jinja_value value) {
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
    struct jinja_value space = lookup(run, target->name);
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
        define(run, scope, target->name, value);
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

static struct jinja_value eval(struct jinja_run *run, const struct jinja_node *node);
static struct jinja_value call_macro(struct jinja_run *run, const struct jinja_macro *macro, struct jinja_call *call);

static const struct jinja_name *name_of(const struct jinja_run *run, const struct jinja_node *node) {
    return &run->jinja->names[node->name];
}

/* ---- expressions: calls ---- */

static void add_keyword(struct jinja_run *run, struct jinja_call *call, const struct jinja_string *name,
                        struct jinja_value value) {
    for (size_t i = 0; i < call->keyword_count && jinja_charge_bytes(run, sizeof *call->keywords); i++)
        if (call->keywords[i].name->length == name->length &&
            jinja_same(run, call->keywords[i].name->bytes, name->bytes, name->length)) {
            jinja_fail(run, "the argument '%.*s' is given twice", jinja_shown(name->length), name->bytes);
            return;
        }
    struct jinja_keyword *keywords =
        jinja_room(run, call->keywords, call->keyword_count, &call->keyword_capacity, sizeof *keywords);
    if (!keywords)
        return;
    call->keywords = keywords;
    call->keywords[call->keyword_count++] = (struct jinja_keyword){.name = name, .value = value};
}

static void add_keywords(struct jinja_run *run, struct jinja_call *call, const struct jinja_value *value) {
    if (value->kind != JINJA_DICT) {
        jinja_fail(run, "** wants a dict, not a %s", jinja_type(value));
        return;
    }
    for (size_t i = 0; i < value->dict->count && jinja_charge(run, 1); i++)
        if (value->dict->entries[i].key.kind != JINJA_STRING)
            jinja_fail(run, "** wants a dict whose keys are strings");
        else
            add_keyword(run, call, value->dict->entries[i].key.string, value->dict->entries[i].value);
}

/* Evaluates the arguments of a call, filter or test. Returns false after a failure. */
static bool eval_arguments(struct jinja_run *run, const struct jinja_node *node, struct jinja_call *call) {
    call->brackets = node->kind == NODE_CALL ? "()" : "";
    call->arguments = (struct jinja_list){.items = call->few, .capacity = JINJA_FEW};
    call->keywords = call->few_keywords;
    call->keyword_count = 0;
    call->keyword_capacity = JINJA_FEW;
    for (uint32_t i = 0; i < node->items.count && !run->status; i++) {
        const struct jinja_node *item = node->items.items[i];
        bool is_special = item->kind == NODE_KEYWORD || item->kind == NODE_STAR || item->kind == NODE_DOUBLE_STAR;
        struct jinja_value value = eval(run, is_special ? item->a : item);
        if (item->kind == NODE_KEYWORD) {
            add_keyword(run, call, item->value.string, value);
        } else if (item->kind == NODE_DOUBLE_STAR) {
            add_keywords(run, call, &value);
        } else if (item->kind == NODE_STAR) {
            const struct jinja_list *list = jinja_iterate(run, &value);
            for (size_t k = 0; k < list->count && jinja_charge(run, 1); k++)
                jinja_list_add(run, &call->arguments, list->items[k]);
        } else {
            jinja_list_add(run, &call->arguments, value);
        }
    }
    run->line = node->line;
    return !run->status;
}

static struct jinja_value eval_call(struct jinja_run *run, const struct jinja_node *node) {
    struct jinja_call call;
    struct jinja_value callee = eval(run, node->a);
    if (!eval_arguments(run, node, &call))
        return jinja_undefined(NULL);
    switch (callee.kind) {
    case JINJA_MACRO:
        call.brackets = "";
        return call_macro(run, callee.macro, &call);
    case JINJA_FUNCTION:
        return jinja_run_operation(run, callee.function, jinja_missing(), &call);
    case JINJA_METHOD:
        return jinja_run_operation(run, callee.bound->method, callee.bound->self, &call);
    case JINJA_UNDEFINED:
        return jinja_fail_undefined(run, &callee);
    default:
        return jinja_fail(run, "a %s cannot be called", jinja_type(&callee));
    }
}

/* Runs a filter or a test over a value. */
static struct jinja_value apply(struct jinja_run *run, const struct jinja_node *node, struct jinja_value value) {
    struct jinja_call call;
    if (!node->operation)
        return jinja_fail(run, "there is no %s '%s'", node->kind == NODE_TEST ? "test" : "filter",
                          name_of(run, node)->bytes);
    return eval_arguments(run, node, &call) ? jinja_run_operation(run, node->operation, value, &call)
                                            : jinja_undefined(NULL);
}

static struct jinja_value eval_filters(struct jinja_run *run, const struct jinja_node *node, struct jinja_value value) {
    if (!node)
        return value;
    if (!jinja_enter(run))
        return jinja_undefined(NULL);
    value = eval_filters(run, node->a, value);
    jinja_leave(run);
    return apply(run, node, value);
}

/* ---- expressions: the rest ---- */

static struct jinja_value eval_slice(struct jinja_run *run, const struct jinja_node *node) {
    struct jinja_value value = eval(run, node->a), bounds[3];
    for (int i = 0; i < 3; i++)
        bounds[i] = node->items.items[i] ? eval(run, node->items.items[i]) : jinja_none();
    run->line = node->line;
    return run->status ? jinja_undefined(NULL) : jinja_slice(run, &value, bounds);
}

static struct jinja_value eval_concat(struct jinja_run *run, const struct jinja_node *node) {
    struct jinja_builder builder = {0};
    struct jinja_value few[8];
    struct jinja_list parts = {.items = few, .capacity = 8};
    jinja_list_add(run, &parts, eval(run, node->a));
    for (uint32_t i = 0; i < node->items.count && !run->status; i++)
        jinja_list_add(run, &parts, eval(run, node->items.items[i]));
    for (size_t i = 0; i < parts.count && !run->status; i++)
        jinja_build_str(run, &builder, &parts.items[i]);
    return jinja_built(run, &builder);
}

static struct jinja_value eval_compare(struct jinja_run *run, const struct jinja_node *node) {
    struct jinja_value left = eval(run, node->a);
    for (uint32_t i = 0; i < node->items.count && !run->status; i++) {
        struct jinja_value right = eval(run, node->items.items[i]->a);
        run->line = node->line;
        if (run->status || !jinja_compare(run, (enum jinja_operator)node->items.items[i]->name, &left, &right))
            return jinja_bool(false);
        left = right;
    }
    return jinja_bool(true);
}

static struct jinja_value eval_sign(struct jinja_run *run, const struct jinja_node *node) {
    struct jinja_value value = eval(run, node->a);
    int64_t integer;
    if (value.kind == JINJA_UNDEFINED)
        return jinja_fail_undefined(run, &value);
    if (!jinja_is_number(&value))
        return jinja_fail(run, "a %s has no sign", jinja_type(&value));
    if (value.kind == JINJA_FLOAT)
        return node->kind == NODE_NEGATIVE ? jinja_float(-value.real) : value;
    integer = jinja_as_integer(&value);
    if (node->kind == NODE_NEGATIVE && __builtin_sub_overflow((int64_t)0, integer, &integer))
        return jinja_fail(run, "an integer outside 64 bits");
    return jinja_integer(integer);
}

static struct jinja_value eval_access(struct jinja_run *run, const struct jinja_node *node) {
    struct jinja_value value = eval(run, node->a), key;
    if (node->kind == NODE_ATTRIBUTE) {
        run->line = node->line;
        return jinja_attribute(run, &value, name_of(run, node)->bytes, name_of(run, node)->length);
    }
    key = eval(run, node->b);
    run->line = node->line;
    return run->status ? key : jinja_item(run, &value, &key);
}

static struct jinja_value eval_node(struct jinja_run *run, const struct jinja_node *node) {
    const struct jinja_nodes *items = &node->items;
    struct jinja_value value, other;
    switch (node->kind) {
    case NODE_CONSTANT:
        return node->value;
    case NODE_NAME:
        return lookup(run, node->name);
    case NODE_ATTRIBUTE:
    case NODE_ITEM:
        return eval_access(run, node);
    case NODE_SLICE:
        return eval_slice(run, node);
    case NODE_CALL:
        return eval_call(run, node);
    case NODE_FILTER:
    case NODE_TEST:
        return apply(run, node, eval(run, node->a));
    case NODE_NEGATIVE:
    case NODE_POSITIVE:
        return eval_sign(run, node);
    case NODE_NOT:
        value = eval(run, node->a);
        return jinja_bool(!jinja_is_true(&value));
    case NODE_AND:
    case NODE_OR:
        value = eval(run, node->a);
        return jinja_is_true(&value) == (node->kind == NODE_AND) ? eval(run, node->b) : value;
    case NODE_CONDITION:
        value = eval(run, node->a);
        if (jinja_is_true(&value))
            return eval(run, node->b);
        return node->c ? eval(run, node->c) : jinja_undefined("the value of an 'if' without 'else'");
    case NODE_COMPARE:
        return eval_compare(run, node);
    case NODE_BINARY:
        value = eval(run, node->a);
        other = eval(run, node->b);
        run->line = node->line;
        return run->status ? other : jinja_binary(run, (enum jinja_operator)node->name, &value, &other);
    case NODE_CONCAT:
        return eval_concat(run, node);
    case NODE_LIST:
    case NODE_TUPLE:
        value = jinja_list_new(run, node->kind == NODE_LIST ? JINJA_LIST : JINJA_TUPLE, items->count);
        for (uint32_t i = 0; i < items->count && !run->status; i++)
            jinja_list_add(run, value.list, eval(run, items->items[i]));
        return value;
    case NODE_DICT:
        value = jinja_dict_new(run, JINJA_DICT);
        for (uint32_t i = 0; i + 1 < items->count && !run->status; i += 2) {
            other = eval(run, items->items[i]);
            jinja_dict_put(run, value.dict, other, eval(run, items->items[i + 1]));
        }
        return value;
    default:
        return jinja_fail(run, "a statement where a value is expected");
    }
}

static struct jinja_value eval(struct jinja_run *run, const struct jinja_node *node) {
    run->line = node->line;
    struct jinja_value value = jinja_undefined(NULL);
    if (jinja_charge(run, 1) && jinja_enter(run))
        value = eval_node(run, node);
    jinja_leave(run);
    return value;
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

static struct jinja_value call_macro(struct jinja_run *run, const struct jinja_macro *macro, struct jinja_call *call) {
    const struct jinja_node *node = macro->node;
    struct jinja_scope *scope = open_scope(run, macro->scope), *before = run->scope;
    int line = run->line;
    for (uint32_t i = 0; i < node->others.count && scope && jinja_charge(run, 1); i++) {
        const struct jinja_node *parameter = node->others.items[i];
        const char *name = run->jinja->names[parameter->name].bytes;
        struct jinja_value value = jinja_argument(run, call, i, name);
        run->scope = scope; /* a default may refer to earlier parameters */
        if (value.kind == JINJA_MISSING)
            value = parameter->a ? eval(run, parameter->a) : jinja_undefined(name);
        run->scope = before;
        define(run, scope, parameter->name, value);
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
    define(run, run->scope, node->name, (struct jinja_value){.kind = JINJA_MACRO, .macro = macro});
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
        struct jinja_value is_kept = eval(run, node->c);
        if (jinja_is_true(&is_kept))
            jinja_list_add(run, kept.list, items->items[i]);
    }
    run->scope = before;
    return kept.list;
}

static enum flow run_for(struct jinja_run *run, const struct jinja_node *node, uint32_t loop_name) {
    struct jinja_value over = eval(run, node->b);
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
            define(run, scope, loop_name, (struct jinja_value){.kind = JINJA_LOOP, .loop = loop});
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
        struct jinja_value condition = eval(run, node->a);
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
        value = eval(run, node->b);
    } else {
        value = capture(run, open_scope(run, run->scope), node);
        value = eval_filters(run, node->b, value);
    }
    run->line = node->line;
    if (!run->status)
        assign(run, run->scope, node->a, value);
}

static enum flow run_with(struct jinja_run *run, const struct jinja_node *node) {
    struct jinja_scope *before = run->scope, *scope = open_scope(run, before);
    for (uint32_t i = 0; i + 1 < node->others.count && scope; i += 2)
        assign(run, scope, node->others.items[i], eval(run, node->others.items[i + 1]));
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
        print(run, eval(run, node->a));
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
        print(run, eval_filters(run, node->b, capture(run, open_scope(run, run->scope), node)));
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

void jinja_run_body(struct jinja_run *run) {
    run_all(run, &run->jinja->body);
}
