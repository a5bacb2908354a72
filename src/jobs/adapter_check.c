/* The thread that checks the adapters of --adapter-root. */
#include "adapter_check.h"

#include <pthread.h>

struct item {
    char *name, *directory;
};

struct adapter_check {
    pthread_t thread;
    struct peft_limits limits;
    struct item *items; /* [count] copies, because the command changes its list */
    int count;
};

static void free_check(struct adapter_check *check) {
    for (int i = 0; i < check->count; i++) {
        free(check->items[i].name);
        free(check->items[i].directory);
    }
    free(check->items);
    free(check);
}

static void *run(void *context) {
    const struct adapter_check *check = context;
    struct adapter_report report = {0};
    for (int i = 0; i < check->count; i++) {
        const struct item *item = &check->items[i];
        int status = peft_check_directory(&(struct peft_place){.path = item->directory}, &check->limits);
        adapter_report_add(&report, item->name, status ? status_text() : NULL);
    }
    const char *line = adapter_report_line(&report);
    if (line)
        log_warning("%s", line);
    adapter_report_free(&report);
    return NULL;
}

/* Copies the first `count` adapters of the list, which are those of the root. */
static bool copy_items(struct adapter_check *check, const struct adapters *adapters, int count) {
    struct adapter_view view;
    check->items = calloc((size_t)count + 1, sizeof *check->items);
    for (; check->items && check->count < count && adapters_at(adapters, check->count, &view); check->count++) {
        struct item *item = &check->items[check->count];
        item->name = strdup(view.name);
        item->directory = strdup(view.directory);
        if (!item->name || !item->directory) {
            check->count++;
            return false;
        }
    }
    return check->items != NULL;
}

struct adapter_check *adapter_check_begin(const struct adapter_names *names, const struct adapters *adapters) {
    struct adapter_view view;
    int count = 0;
    if (!names->root)
        return NULL;
    struct adapter_check *check = calloc(1, sizeof *check);
    while (adapters_at(adapters, count, &view))
        count++;
    if (!check)
        return NULL;
    check->limits = adapters_limits(adapters);
    if (copy_items(check, adapters, count - (int)names->given.count) &&
        !pthread_create(&check->thread, NULL, run, check))
        return check;
    free_check(check);
    return NULL;
}

void adapter_check_end(struct adapter_check *check) {
    if (!check)
        return;
    pthread_join(check->thread, NULL);
    free_check(check);
}
