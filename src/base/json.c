/* jansson says "string or '}' expected" where its copy of a key found no memory, and drops a character where the buffer
 * of a text could not grow, without a word. So its allocations leave a note when they fail, each thread its own. The
 * functions are set before main, and mix with malloc's: what was made by either may be freed by the other. */
#include "json.h"

#include "status.h"

#include <stdbool.h>
#include <stdlib.h>

static _Thread_local bool has_failed;

static void *allocate(size_t bytes) {
    void *memory = malloc(bytes);
    if (!memory)
        has_failed = true;
    return memory;
}

__attribute__((constructor)) static void set_functions(void) {
    json_set_alloc_funcs(allocate, free);
}

void json_begin(void) {
    has_failed = false;
}

int json_end(json_t *root, size_t flags, char **text) {
    *text = has_failed || !root ? NULL : json_dumps(root, flags);
    json_decref(root);
    if (*text && !has_failed)
        return STATUS_OK;
    free(*text);
    *text = NULL;
    return has_failed ? status_fail(STATUS_MEMORY, "out of memory")
                      : status_fail(STATUS_INVALID, "a text that is no UTF-8 cannot be written as JSON");
}

int json_read(const char *text, size_t length, size_t flags, json_t **root, json_error_t *error) {
    bool has_failed_before = has_failed; /* this may be called between json_begin and json_end */
    has_failed = false;
    *root = json_loadb(text, length, flags, error);
    bool is_read = !has_failed;
    has_failed = has_failed_before;
    if (is_read)
        return *root ? STATUS_OK : STATUS_INVALID;
    json_decref(*root);
    *root = NULL;
    return status_fail(STATUS_MEMORY, "out of memory");
}
