/* Evaluates expressions. */
#include "jinja-internal.h"

#include <string.h>

static const struct jinja_name *name_of(const struct jinja_run *run, const struct jinja_node *node) {
    return &run->jinja->names[node->name];
}

/* ---- calls ---- */

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
        struct jinja_value value = jinja_eval(run, is_special ? item->a : item);
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
    struct jinja_value callee = jinja_eval(run, node->a);
    if (!eval_arguments(run, node, &call))
        return jinja_undefined(NULL);
    switch (callee.kind) {
    case JINJA_MACRO:
        call.brackets = "";
        return jinja_call_macro(run, callee.macro, &call);
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

struct jinja_value jinja_eval_filters(struct jinja_run *run, const struct jinja_node *node, struct jinja_value value) {
    if (!node)
        return value;
    if (!jinja_enter(run))
        return jinja_undefined(NULL);
    value = jinja_eval_filters(run, node->a, value);
    jinja_leave(run);
    return apply(run, node, value);
}

/* ---- the rest ---- */

static struct jinja_value eval_slice(struct jinja_run *run, const struct jinja_node *node) {
    struct jinja_value value = jinja_eval(run, node->a), bounds[3];
    for (int i = 0; i < 3; i++)
        bounds[i] = node->items.items[i] ? jinja_eval(run, node->items.items[i]) : jinja_none();
    run->line = node->line;
    return run->status ? jinja_undefined(NULL) : jinja_slice(run, &value, bounds);
}

static struct jinja_value eval_concat(struct jinja_run *run, const struct jinja_node *node) {
    struct jinja_builder builder = {0};
    struct jinja_value few[8];
    struct jinja_list parts = {.items = few, .capacity = 8};
    jinja_list_add(run, &parts, jinja_eval(run, node->a));
    for (uint32_t i = 0; i < node->items.count && !run->status; i++)
        jinja_list_add(run, &parts, jinja_eval(run, node->items.items[i]));
    for (size_t i = 0; i < parts.count && !run->status; i++)
        jinja_build_str(run, &builder, &parts.items[i]);
    return jinja_built(run, &builder);
}

static struct jinja_value eval_compare(struct jinja_run *run, const struct jinja_node *node) {
    struct jinja_value left = jinja_eval(run, node->a);
    for (uint32_t i = 0; i < node->items.count && !run->status; i++) {
        struct jinja_value right = jinja_eval(run, node->items.items[i]->a);
        run->line = node->line;
        if (run->status || !jinja_compare(run, (enum jinja_operator)node->items.items[i]->name, &left, &right))
            return jinja_bool(false);
        left = right;
    }
    return jinja_bool(true);
}

static struct jinja_value eval_sign(struct jinja_run *run, const struct jinja_node *node) {
    struct jinja_value value = jinja_eval(run, node->a);
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
    struct jinja_value value = jinja_eval(run, node->a), key;
    if (node->kind == NODE_ATTRIBUTE) {
        run->line = node->line;
        return jinja_attribute(run, &value, name_of(run, node)->bytes, name_of(run, node)->length);
    }
    key = jinja_eval(run, node->b);
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
        return jinja_lookup(run, node->name);
    case NODE_ATTRIBUTE:
    case NODE_ITEM:
        return eval_access(run, node);
    case NODE_SLICE:
        return eval_slice(run, node);
    case NODE_CALL:
        return eval_call(run, node);
    case NODE_FILTER:
    case NODE_TEST:
        return apply(run, node, jinja_eval(run, node->a));
    case NODE_NEGATIVE:
    case NODE_POSITIVE:
        return eval_sign(run, node);
    case NODE_NOT:
        value = jinja_eval(run, node->a);
        return jinja_bool(!jinja_is_true(&value));
    case NODE_AND:
    case NODE_OR:
        value = jinja_eval(run, node->a);
        return jinja_is_true(&value) == (node->kind == NODE_AND) ? jinja_eval(run, node->b) : value;
    case NODE_CONDITION:
        value = jinja_eval(run, node->a);
        if (jinja_is_true(&value))
            return jinja_eval(run, node->b);
        return node->c ? jinja_eval(run, node->c) : jinja_undefined("the value of an 'if' without 'else'");
    case NODE_COMPARE:
        return eval_compare(run, node);
    case NODE_BINARY:
        value = jinja_eval(run, node->a);
        other = jinja_eval(run, node->b);
        run->line = node->line;
        return run->status ? other : jinja_binary(run, (enum jinja_operator)node->name, &value, &other);
    case NODE_CONCAT:
        return eval_concat(run, node);
    case NODE_LIST:
    case NODE_TUPLE:
        value = jinja_list_new(run, node->kind == NODE_LIST ? JINJA_LIST : JINJA_TUPLE, items->count);
        for (uint32_t i = 0; i < items->count && !run->status; i++)
            jinja_list_add(run, value.list, jinja_eval(run, items->items[i]));
        return value;
    case NODE_DICT:
        value = jinja_dict_new(run, JINJA_DICT);
        for (uint32_t i = 0; i + 1 < items->count && !run->status; i += 2) {
            other = jinja_eval(run, items->items[i]);
            jinja_dict_put(run, value.dict, other, jinja_eval(run, items->items[i + 1]));
        }
        return value;
    default:
        return jinja_fail(run, "a statement where a value is expected");
    }
}

struct jinja_value jinja_eval(struct jinja_run *run, const struct jinja_node *node) {
    run->line = node->line;
    struct jinja_value value = jinja_undefined(NULL);
    if (jinja_charge(run, 1) && jinja_enter(run))
        value = eval_node(run, node);
    jinja_leave(run);
    return value;
}
