/* Names of the registry: valid names, and the index of a name in the list. */
#include "registry-internal.h"

bool registry_name_is_valid(const char *name) {
    size_t length = strlen(name);
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-";
    return length > 0 && length < ADAPTER_NAME_BYTES && *name != '.' && strspn(name, allowed) == length;
}

/* Returns the index of the name, or where it would be inserted. */
int registry_place(const struct registry *registry, const char *name, bool *is_there) {
    int low = 0, high = registry->count;
    while (low < high) {
        int middle = (low + high) / 2, order = strcmp(registry->entries[middle]->name, name);
        if (!order) {
            *is_there = true;
            return middle;
        }
        low = order < 0 ? middle + 1 : low;
        high = order < 0 ? high : middle;
    }
    *is_there = false;
    return low;
}

struct entry *registry_entry(const struct registry *registry, const char *name) {
    bool is_there;
    int place = registry_place(registry, name, &is_there);
    return is_there ? registry->entries[place] : NULL;
}
