/* Names of adapters from the command line and from a directory. */
#include "adapter_names.h"

/* ---- NAME=DIR ---- */

static size_t name_length(const char *item) {
    return strcspn(item, "=");
}

static int check_given(const struct config_list *given) {
    for (size_t i = 0; i < given->count; i++) {
        const char *item = given->items[i];
        size_t length = name_length(item);
        if (!length || !item[length + 1])
            return status_fail(STATUS_USAGE, "--adapter %s: expected NAME=DIR", item);
        for (size_t k = 0; k < i; k++)
            if (name_length(given->items[k]) == length && !memcmp(given->items[k], item, length))
                return status_fail(STATUS_USAGE, "--adapter: the name %.*s is given twice", (int)length, item);
    }
    return STATUS_OK;
}

int adapter_names_take(struct config_list *directories, struct adapter_names *names) {
    const char **items = directories->items;
    size_t named = 0, kept = 0;
    const char **taken = directories->count ? calloc(directories->count, sizeof *taken) : NULL;
    if (directories->count && !taken)
        return status_no_memory();
    for (size_t i = 0; i < directories->count; i++) {
        if (items[i][strcspn(items[i], "=/")] == '=')
            taken[named++] = items[i];
        else
            items[kept++] = items[i];
    }
    if (named)
        memcpy(items + kept, taken, named * sizeof *taken);
    free(taken);
    directories->count = kept;
    names->given = (struct config_list){.items = items + kept, .count = named};
    return check_given(&names->given);
}

/* ---- directories ---- */

static int add_given(const char *item, struct adapters *adapters) {
    char name[NAME_MAX + 1], *found;
    size_t length = name_length(item);
    if (length > NAME_MAX)
        return status_fail(STATUS_USAGE, "--adapter: a name of %zu bytes: at most %d", length, NAME_MAX);
    memcpy(name, item, length);
    name[length] = 0;
    int status = adapter_files_find(item + length + 1, &found);
    THEN(status, adapters_add(adapters, name, found));
    THEN(status, adapters_check(adapters, name));
    free(found);
    return status ? status_wrap(status, "--adapter %s", name) : STATUS_OK;
}

/* ---- a root ---- */

/* True when `path`, with all links followed, is the real path `root` or lies in it. */
static bool is_beneath(const char *root, const char *path) {
    char real[PATH_MAX];
    size_t length = strlen(root);
    return realpath(path, real) && !strncmp(real, root, length) && (real[length] == '/' || !real[length]);
}

static int check_beneath(const char *root, const char *directory) {
    char **names, path[PATH_MAX];
    size_t count;
    int status = is_beneath(root, directory) ? file_list(directory, &names, &count)
                                             : status_fail(STATUS_INVALID, "%s leads out of %s", directory, root);
    TRY(status);
    for (size_t i = 0; i < count && !status; i++) {
        status = file_join(path, sizeof path, directory, names[i]);
        THEN_IF(status, !is_beneath(root, path), status_fail(STATUS_INVALID, "%s leads out of %s", path, root));
    }
    file_list_free(names, count);
    return status;
}

static int add_entry(const char *root, const char *name, struct adapters *adapters) {
    char path[PATH_MAX], *found = NULL;
    int status = file_join(path, sizeof path, root, name);
    if (status || *name == '.' || !file_is_directory(path))
        return status;
    if (!is_beneath(root, path))
        status = status_fail(STATUS_INVALID, "%s leads out of %s", path, root);
    THEN(status, adapter_files_find(path, &found));
    THEN(status, check_beneath(root, found));
    THEN(status, adapters_add(adapters, name, found));
    free(found);
    if (status == STATUS_INVALID)
        log_warning("--adapter-root: %s: %s is not among the adapters", status_text(), name);
    return status == STATUS_NOT_FOUND || status == STATUS_INVALID ? STATUS_OK : status;
}

static int add_root(const char *given, struct adapters *adapters) {
    char **names, root[PATH_MAX];
    size_t count;
    if (!realpath(given, root))
        return status_fail_errno("cannot open %s", given);
    int status = file_list(root, &names, &count);
    TRY(status);
    for (size_t i = 0; i < count && !status; i++)
        status = add_entry(root, names[i], adapters);
    file_list_free(names, count);
    return status;
}

int adapter_names_open(const struct adapter_names *names, struct engine *engine, struct adapters **adapters) {
    int status = adapters_open(engine, adapters);
    if (!status && names->root) {
        status = add_root(names->root, *adapters);
        if (status)
            status_wrap(status, "--adapter-root");
    }
    for (size_t i = 0; i < names->given.count && !status; i++)
        status = add_given(names->given.items[i], *adapters);
    return status;
}
