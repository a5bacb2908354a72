/* Questions about the nodes that pickle.c has made. */
#include "pickle-internal.h"

#include <stdarg.h>

const struct pickle_node *pickle_root(const struct pickle *pickle) {
    return pickle->root;
}

void pickle_free(struct pickle *pickle) {
    if (!pickle)
        return;
    pickle_memory_return(&pickle->memory, (struct pickle_place){0});
    free(pickle->where);
    free(pickle);
}

int pickle_refuse(const struct pickle *pickle, const struct pickle_node *node, const char *expected, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, expected);
    vsnprintf(text, sizeof text, expected, arguments);
    va_end(arguments);
    long long at = pickle->start + (node ? (long long)node->at : 0);
    return status_fail(STATUS_INVALID, "%s: byte %lld: expected %s", pickle->where, at, text);
}

bool pickle_is_text(const struct pickle_node *node, const char *text) {
    return node && node->kind == PICKLE_TEXT && strlen(text) == node->count && !memcmp(node->text, text, node->count);
}

bool pickle_is_global(const struct pickle_node *node, const char *module, const char *name) {
    return node && node->kind == PICKLE_GLOBAL && strlen(module) == node->count && strlen(name) == node->capacity &&
           !memcmp(node->text, module, node->count) && !memcmp(node->name, name, node->capacity);
}

bool pickle_is_object(const struct pickle_node *node, const char *module, const char *name) {
    return node && node->kind == PICKLE_OBJECT && pickle_is_global(node->callee, module, name);
}

int pickle_find(const struct pickle *pickle, const struct pickle_node *node, const char *key,
                const struct pickle_node **value) {
    const struct pickle_node *dict = node->kind == PICKLE_OBJECT && node->state ? node->state : node;
    *value = NULL;
    if (dict->kind != PICKLE_DICT && dict->kind != PICKLE_OBJECT)
        return pickle_refuse(pickle, dict, "a dict with the key '%s'", key);
    for (uint32_t i = 0; i + 1 < dict->count; i += 2)
        if (pickle_is_text(dict->items[i], key)) {
            if (*value)
                return pickle_refuse(pickle, dict->items[i], "the key '%s' once", key);
            *value = dict->items[i + 1];
        }
    return STATUS_OK;
}

int pickle_sizes(const struct pickle *pickle, const struct pickle_node *node, int most, int64_t *sizes, int *count) {
    const struct pickle_node *tuple = node;
    if (pickle_is_object(node, "torch", "Size"))
        tuple = node->arguments->count == 1 ? node->arguments->items[0] : NULL;
    if (!tuple || (tuple->kind != PICKLE_TUPLE && tuple->kind != PICKLE_LIST) || tuple->count > (uint32_t)most)
        return pickle_refuse(pickle, node, "a torch.Size of at most %d sizes", most);
    for (uint32_t i = 0; i < tuple->count; i++) {
        if (tuple->items[i]->kind != PICKLE_INTEGER || tuple->items[i]->integer < 0)
            return pickle_refuse(pickle, node, "sizes that are integers of at least 0");
        sizes[i] = tuple->items[i]->integer;
    }
    *count = (int)tuple->count;
    return STATUS_OK;
}

int pickle_copy_text(const struct pickle *pickle, const struct pickle_node *node, const char *what, char *out,
                     size_t bytes) {
    if (!node || node->kind != PICKLE_TEXT || !node->count || node->count >= bytes)
        return pickle_refuse(pickle, node, "%s: a text of 1 to %zu bytes", what, bytes - 1);
    for (uint32_t i = 0; i < node->count; i++)
        if ((unsigned char)node->text[i] < 0x20 || node->text[i] == 0x7f)
            return pickle_refuse(pickle, node, "%s: a text without control characters", what);
    memcpy(out, node->text, node->count);
    out[node->count] = 0;
    return STATUS_OK;
}
