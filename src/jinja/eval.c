/* Evaluates expressions. */
#include "jinja-internal.h"

#include <string.h>

static const struct jinja_name *name_of(const struct jinja_run *run, const struct jinja_node *node) {
    return &run->jinja->names[node->name];
}

/* ---- arguments of calls ---- */

static void add_argument(struct jinja_run *run, struct jinja_call *call, struct jinja_value value) {
    if (call->count == call->argument_capacity) {
        size_t capacity = 2 * call->argument_capacity;
        struct jinja_value *grown =
            jinja_grown(run, call->arguments, call->count * sizeof *grown, capacity * sizeof *grown);
        if (!grown)
            return;
        call->arguments = grown;
        call->argument_capacity = capacity;
    }
    call->arguments[call->count++] = value;
}

static void add_keyword(struct jinja_run *run, struct jinja_call *call, struct jinja_keyword keyword) {
    const struct jinja_name *name = &keyword.name;
    for (size_t i = 0; i < call->keyword_count && jinja_charge_bytes(run, sizeof *call->keywords); i++)
        if (call->keywords[i].name.length == name->length &&
            jinja_same(run, call->keywords[i].name.bytes, name->bytes, name->length)) {
            jinja_fail(run, "the argument '%.*s' is given twice", jinja_shown(name->length), name->bytes);
            return;
        }
    if (call->keyword_count == call->keyword_capacity) {
        size_t capacity = 2 * call->keyword_capacity;
        struct jinja_keyword *grown =
            jinja_grown(run, call->keywords, call->keyword_count * sizeof *grown, capacity * sizeof *grown);
        if (!grown)
            return;
        call->keywords = grown;
        call->keyword_capacity = capacity;
    }
    call->keywords[call->keyword_count++] = keyword;
}

static void add_starred(struct jinja_run *run, struct jinja_call *call, const struct jinja_value *value,
                        bool is_keywords) {
    if (is_keywords && value->kind != JINJA_DICT) {
        jinja_fail(run, "** wants a dict, not a %s", jinja_type(value));
        return;
    }
    for (size_t i = 0; is_keywords && i < value->dict->count && jinja_charge(run, 1); i++) {
        const struct jinja_entry *entry = &value->dict->entries[i];
        if (entry->key.kind != JINJA_STRING)
            jinja_fail(run, "** wants a dict whose keys are strings");
        else
            add_keyword(run, call,
                        (struct jinja_keyword){.name = {entry->key.string->bytes, entry->key.string->length},
                                               .string = entry->key.string,
                                               .value = entry->value});
    }
    const struct jinja_list *list = is_keywords ? &run->nothing : jinja_iterate(run, value);
    for (size_t i = 0; i < list->count && jinja_charge(run, 1); i++)
        add_argument(run, call, list->items[i]);
}

/* Evaluates the arguments of a call, filter or test. */
static void eval_arguments(struct jinja_run *run, const struct jinja_node *node, struct jinja_call *call) {
    call->count = call->keyword_count = 0;
    call->arguments = call->few;
    call->keywords = call->few_keywords;
    call->argument_capacity = call->keyword_capacity = JINJA_FEW;
    for (uint32_t i = 0; i < node->item_count && !run->status; i++) {
        const struct jinja_node *item = node->items[i];
        bool is_special = item->kind == NODE_KEYWORD || item->kind == NODE_STAR || item->kind == NODE_DOUBLE_STAR;
        struct jinja_value value = jinja_eval(run, is_special ? item->a : item);
        if (item->kind == NODE_KEYWORD)
            add_keyword(run, call, (struct jinja_keyword){.name = *name_of(run, item), .value = value});
        else if (is_special)
            add_starred(run, call, &value, item->kind == NODE_DOUBLE_STAR);
        else
            add_argument(run, call, value);
    }
}

/* ---- calls ---- */

static struct jinja_value call_value(struct jinja_run *run, const struct jinja_value *callee, struct jinja_call *call) {
    switch (callee->kind) {
    case JINJA_MACRO:
        return jinja_call_macro(run, callee->macro, call);
    case JINJA_FUNCTION:
        return jinja_charge(run, 1) ? callee->function->run(run, call) : jinja_undefined(NULL);
    case JINJA_METHOD:
        return jinja_charge(run, 1) ? callee->bound->method->run(run, callee->bound->self, call)
                                    : jinja_undefined(NULL);
    case JINJA_UNDEFINED:
        return jinja_fail_undefined(run, callee);
    default:
        return jinja_fail(run, "a %s cannot be called", jinja_type(callee));
    }
}

static struct jinja_value eval_call(struct jinja_run *run, const struct jinja_node *node) {
    struct jinja_call call;
    struct jinja_value callee = jinja_eval(run, node->a);
    eval_arguments(run, node, &call);
    run->line = node->line;
    return run->status ? jinja_undefined(NULL) : call_value(run, &callee, &call);
}

static struct jinja_value run_filter(struct jinja_run *run, const struct jinja_node *node, struct jinja_value value) {
    struct jinja_call call;
    if (!node->filter)
        return jinja_fail(run, "there is no filter '%s'", name_of(run, node)->bytes);
    eval_arguments(run, node, &call);
    run->line = node->line;
    return run->status ? jinja_undefined(NULL) : jinja_run_filter(run, node->filter, value, &call);
}

struct jinja_value jinja_eval_filters(struct jinja_run *run, const struct jinja_node *node, struct jinja_value value) {
    if (!node)
        return value;
    if (!jinja_enter(run))
        return jinja_undefined(NULL);
    value = jinja_eval_filters(run, node->a, value);
    jinja_leave(run);
    return run_filter(run, node, value);
}

static struct jinja_value eval_test(struct jinja_run *run, const struct jinja_node *node) {
    struct jinja_call call;
    struct jinja_value value = jinja_eval(run, node->a);
    if (!node->test)
        return jinja_fail(run, "there is no test '%s'", name_of(run, node)->bytes);
    eval_arguments(run, node, &call);
    run->line = node->line;
    return run->status ? jinja_undefined(NULL) : jinja_bool(jinja_run_test(run, node->test, value, &call));
}

/* ---- the rest ---- */

static struct jinja_value eval_items(struct jinja_run *run, const struct jinja_node *node, enum jinja_kind kind) {
    struct jinja_value list = jinja_list_new(run, kind, node->item_count);
    for (uint32_t i = 0; i < node->item_count && !run->status; i++)
        jinja_list_add(run, list.list, jinja_eval(run, node->items[i]));
    return list;
}

static struct jinja_value eval_dict(struct jinja_run *run, const struct jinja_node *node) {
    struct jinja_value dict = jinja_dict_new(run, JINJA_DICT);
    for (uint32_t i = 0; i + 1 < node->item_count && !run->status; i += 2) {
        struct jinja_value key = jinja_eval(run, node->items[i]);
        jinja_dict_put(run, dict.dict, key, jinja_eval(run, node->items[i + 1]));
    }
    return dict;
}

static struct jinja_value eval_slice(struct jinja_run *run, const struct jinja_node *node) {
    struct jinja_value value = jinja_eval(run, node->a), bounds[3];
    for (int i = 0; i < 3; i++)
        bounds[i] = node->items[i] ? jinja_eval(run, node->items[i]) : jinja_none();
    run->line = node->line;
    return run->status ? jinja_undefined(NULL) : jinja_slice(run, &value, bounds);
}

static struct jinja_value eval_concat(struct jinja_run *run, const struct jinja_node *node) {
    struct jinja_builder builder = {0};
    struct jinja_value parts[8], *all = parts;
    if (node->item_count > 8)
        all = jinja_object(run, node->item_count * sizeof *all);
    for (uint32_t i = 0; i < node->item_count && !run->status; i++)
        all[i] = jinja_eval(run, node->items[i]);
    for (uint32_t i = 0; i < node->item_count && !run->status; i++)
        jinja_build_str(run, &builder, &all[i]);
    return jinja_built(run, &builder);
}

static struct jinja_value eval_compare(struct jinja_run *run, const struct jinja_node *node) {
    struct jinja_value left = jinja_eval(run, node->a);
    for (uint32_t i = 0; i < node->item_count && !run->status; i++) {
        struct jinja_value right = jinja_eval(run, node->items[i]->a);
        run->line = node->line;
        if (run->status || !jinja_compare(run, (enum jinja_operator)node->items[i]->name, &left, &right))
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

static struct jinja_value eval_condition(struct jinja_run *run, const struct jinja_node *node) {
    struct jinja_value condition = jinja_eval(run, node->a);
    if (jinja_is_true(&condition))
        return jinja_eval(run, node->b);
    return node->c ? jinja_eval(run, node->c) : jinja_undefined("the value of an 'if' without 'else'");
}

static struct jinja_value eval_logic(struct jinja_run *run, const struct jinja_node *node) {
    struct jinja_value left = jinja_eval(run, node->a);
    if (node->kind == NODE_NOT)
        return jinja_bool(!jinja_is_true(&left));
    return jinja_is_true(&left) == (node->kind == NODE_AND) ? jinja_eval(run, node->b) : left;
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

static struct jinja_value eval_binary(struct jinja_run *run, const struct jinja_node *node) {
    struct jinja_value left = jinja_eval(run, node->a), right = jinja_eval(run, node->b);
    run->line = node->line;
    return run->status ? right : jinja_binary(run, (enum jinja_operator)node->name, &left, &right);
}

static struct jinja_value eval_node(struct jinja_run *run, const struct jinja_node *node) {
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
        return run_filter(run, node, jinja_eval(run, node->a));
    case NODE_TEST:
        return eval_test(run, node);
    case NODE_NEGATIVE:
    case NODE_POSITIVE:
        return eval_sign(run, node);
    case NODE_NOT:
    case NODE_AND:
    case NODE_OR:
        return eval_logic(run, node);
    case NODE_CONDITION:
        return eval_condition(run, node);
    case NODE_COMPARE:
        return eval_compare(run, node);
    case NODE_BINARY:
        return eval_binary(run, node);
    case NODE_CONCAT:
        return eval_concat(run, node);
    case NODE_LIST:
    case NODE_TUPLE:
        return eval_items(run, node, node->kind == NODE_LIST ? JINJA_LIST : JINJA_TUPLE);
    case NODE_DICT:
        return eval_dict(run, node);
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
