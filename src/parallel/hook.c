/* The hook table: the hooks of each place, and how they run. */
#include "parallel/hook.h"

static const struct hook_list empty_list;
static const struct prefix_list no_prefixes;
static const struct token_list no_tokens;

int hook_table_init(struct hook_table *table, int64_t layers) {
    *table = (struct hook_table){.layers = layers};
    table->lists = calloc((size_t)(layers + 1) * ATTACH_PLACE_COUNT, sizeof *table->lists);
    table->prefixes = calloc((size_t)layers, sizeof *table->prefixes);
    if (table->lists && table->prefixes)
        return STATUS_OK;
    hook_table_free(table);
    return status_no_memory();
}

void hook_table_free(struct hook_table *table) {
    free(table->lists);
    free(table->prefixes);
    *table = (struct hook_table){0};
}

static int check_room(int count, int64_t layer) {
    return count < HOOKS_PER_PLACE ? STATUS_OK
                                   : status_fail(STATUS_INVALID, "more than %d hooks at one place of layer %lld",
                                                 HOOKS_PER_PLACE, (long long)layer);
}

int hook_table_add(struct hook_table *table, int64_t layer, enum attach_place place, const struct hook *hook) {
    struct hook_list *list = &table->lists[layer * ATTACH_PLACE_COUNT + place];
    int status = check_room(list->count, layer);
    TRY(status);
    list->hook[list->count] = *hook;
    list->hook[list->count++].owner = table->owner;
    return STATUS_OK;
}

int hook_table_add_prefix(struct hook_table *table, int64_t layer, const struct prefix_hook *hook) {
    struct prefix_list *list = &table->prefixes[layer];
    int status = check_room(list->count, layer);
    TRY(status);
    list->hook[list->count] = *hook;
    list->hook[list->count++].owner = table->owner;
    return STATUS_OK;
}

int hook_table_add_tokens(struct hook_table *table, const struct token_hook *hook) {
    struct token_list *list = &table->tokens;
    int status = check_room(list->count, 0);
    TRY(status);
    list->hook[list->count] = *hook;
    list->hook[list->count++].owner = table->owner;
    return STATUS_OK;
}

/* Adds the hooks of `from` that one owner has, or all of them. */
static int add_hooks(struct hook_table *table, const struct hook_table *from, bool is_all, int owner) {
    int status = STATUS_OK;
    for (int64_t i = 0; i < (from->layers + 1) * ATTACH_PLACE_COUNT && !status; i++)
        for (int k = 0; k < from->lists[i].count && !status; k++)
            if (is_all || from->lists[i].hook[k].owner == owner)
                status = hook_table_add(table, 0, i, &from->lists[i].hook[k]);
    for (int64_t i = 0; i < from->layers && !status; i++)
        for (int k = 0; k < from->prefixes[i].count && !status; k++)
            if (is_all || from->prefixes[i].hook[k].owner == owner)
                status = hook_table_add_prefix(table, i, &from->prefixes[i].hook[k]);
    for (int k = 0; k < from->tokens.count && !status; k++)
        if (is_all || from->tokens.hook[k].owner == owner)
            status = hook_table_add_tokens(table, &from->tokens.hook[k]);
    return status;
}

int hook_table_of(const struct hook_table *all, int owner, struct hook_table *table) {
    int status = hook_table_init(table, all->layers);
    return status ? status : add_hooks(table, all, false, owner);
}

int hook_table_stand_on(struct hook_table *table, const struct hook_table *below) {
    table->owner = HOOK_OF_ANOTHER;
    return add_hooks(table, below, true, 0);
}

const struct hook_list *hook_table_list(const struct hook_table *table, int64_t layer, enum attach_place place) {
    return table && table->lists ? &table->lists[layer * ATTACH_PLACE_COUNT + place] : &empty_list;
}

const struct prefix_list *hook_table_prefixes(const struct hook_table *table, int64_t layer) {
    return table && table->prefixes ? &table->prefixes[layer] : &no_prefixes;
}

const struct token_list *hook_table_tokens(const struct hook_table *table) {
    return table ? &table->tokens : &no_tokens;
}

bool hook_table_changes(const struct hook_table *table, int64_t layer) {
    for (int place = 0; place < ATTACH_PLACE_COUNT; place++)
        if (hook_table_list(table, layer, (enum attach_place)place)->count)
            return true;
    return hook_table_prefixes(table, layer)->count > 0;
}

bool hook_list_has(const struct hook_list *list, enum hook_side side) {
    for (int i = 0; i < list->count; i++)
        if (list->hook[i].side == side)
            return true;
    return false;
}

static bool is_active(const struct hook *hook, enum hook_side side) {
    return hook->side == side && (!hook->is_active || hook->is_active(hook->self));
}

bool hook_list_is_active(const struct hook_list *list, enum hook_side side) {
    for (int i = 0; i < list->count; i++)
        if (is_active(&list->hook[i], side))
            return true;
    return false;
}

float *const *hook_list_fp32_y(const struct hook_list *list) {
    for (int i = 0; i < list->count; i++)
        if (list->hook[i].fp32_y && is_active(&list->hook[i], HOOK_BEFORE_ACTIVATION))
            return list->hook[i].fp32_y;
    return NULL;
}

/* Returns the address of column `first` in an array's first row; NULL stays NULL. */
static void *column_of(void *array, int64_t first, enum dtype type) {
    return array ? (char *)array + (size_t)first * dtype_bytes(type) : NULL;
}

/* Returns the call, narrowed to the hook's columns. */
static struct hook_call narrowed(const struct hook *hook, const struct hook_call *call) {
    struct hook_call part = *call;
    if (!hook->columns)
        return part;
    part.first = hook->first;
    part.out = hook->columns;
    part.y = column_of(call->y, hook->first, call->y_dtype);
    part.dy = column_of(call->dy, hook->first, call->dtype);
    return part;
}

static size_t saved_bytes(const struct hook *hook, const struct hook_call *call) {
    struct hook_call part = narrowed(hook, call);
    size_t bytes = hook->saved_bytes ? hook->saved_bytes(hook->self, &part) : 0;
    return (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
}

size_t hook_list_saved_bytes(const struct hook_list *list, const struct hook_call *call) {
    size_t bytes = 0;
    for (int i = 0; i < list->count; i++)
        bytes += saved_bytes(&list->hook[i], call);
    return bytes;
}

/* Returns the call for hook `index`: narrowed to its columns, with `saved` at its part. */
static struct hook_call call_of(const struct hook_list *list, int index, const struct hook_call *call) {
    struct hook_call part = narrowed(&list->hook[index], call);
    char *saved = call->saved;
    for (int i = 0; i < index && saved; i++)
        saved += saved_bytes(&list->hook[i], call);
    part.saved = saved;
    return part;
}

int hook_list_forward(const struct hook_list *list, enum hook_side side, const struct hook_call *call) {
    int status = STATUS_OK;
    for (int i = 0; i < list->count && !status; i++) {
        const struct hook *hook = &list->hook[i];
        struct hook_call part = call_of(list, i, call);
        if (hook->forward && is_active(hook, side))
            status = hook->forward(hook->self, &part);
    }
    return status;
}

int hook_list_backward_output(const struct hook_list *list, enum hook_side side, const struct hook_call *call) {
    int status = STATUS_OK;
    for (int i = list->count - 1; i >= 0 && !status; i--) {
        const struct hook *hook = &list->hook[i];
        struct hook_call part = call_of(list, i, call);
        if (hook->side == side && hook->backward_output)
            status = hook->backward_output(hook->self, &part);
    }
    return status;
}

int hook_list_backward_input(const struct hook_list *list, enum hook_side side, const struct hook_call *call) {
    int status = STATUS_OK;
    for (int i = list->count - 1; i >= 0 && !status; i--) {
        const struct hook *hook = &list->hook[i];
        struct hook_call part = call_of(list, i, call);
        if (hook->side == side && hook->backward_input)
            status = hook->backward_input(hook->self, &part);
    }
    return status;
}
