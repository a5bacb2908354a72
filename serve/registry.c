/* The loop's list of adapters, and the way of a change: its files are read on a worker, then the engine's thread makes
 * it, then whoever asked is told. Few are on their way at once, so that files do not fill the memory. */
#include "registry.h"

#include "log.h"
#include "metrics.h"
#include "server-internal.h"

#include "base/base.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { CHANGES_AT_ONCE = 4, MAX_CHANGES = 4096 };

struct entry {
    char name[ADAPTER_NAME_BYTES];
    char directory[PATH_MAX]; /* that its files come from */
    struct driver_adapter at; /* as the engine last said */
    struct adapter_facts facts;
    uint64_t facts_generation; /* whose facts they are; 0: of the files as they were at the start */
    int64_t running, waiting;  /* texts */
    int loading;               /* changes */
    bool is_bringing;          /* a call waits for it, and it has been sent for */
    bool is_there;             /* in the engine's list */
};

struct pending {
    struct worker_job job;
    struct pending *next; /* of those that nobody works on yet, or of those that are worked on */
    struct server *server;
    struct driver_change change;
    char directory[PATH_MAX];
    bool is_named; /* the directory is as somebody named it */
    void (*on_done)(void *context, const struct error *error, const struct registry_adapter *adapter);
    void *context;
};

struct registry {
    struct adapters *adapters;
    struct entry **entries; /* [count] by name */
    int count;
    struct pending *first, **last; /* that nobody works on yet */
    struct pending *working;
    int64_t under_way, waiting;
};

bool registry_name_is_valid(const char *name) {
    size_t length = strlen(name);
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    return length > 0 && length < ADAPTER_NAME_BYTES && *name != '.' && strspn(name, allowed) == length;
}

/* ---- entries ---- */

/* Where the name is, or would be. */
static int place_of(const struct registry *registry, const char *name, bool *is_there) {
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

static struct entry *find(const struct registry *registry, const char *name) {
    bool is_there;
    int place = place_of(registry, name, &is_there);
    return is_there ? registry->entries[place] : NULL;
}

static struct entry *add(struct registry *registry, const char *name, const char *directory) {
    bool is_there;
    int place = place_of(registry, name, &is_there);
    if (is_there)
        return registry->entries[place];
    struct entry *entry = calloc(1, sizeof *entry);
    struct entry **grown = realloc(registry->entries, (size_t)(registry->count + 1) * sizeof(struct entry *));
    registry->entries = grown ? grown : registry->entries;
    if (!entry || !grown) {
        free(entry);
        status_fail(STATUS_MEMORY, "out of memory");
        return NULL;
    }
    snprintf(entry->name, sizeof entry->name, "%s", name);
    snprintf(entry->directory, sizeof entry->directory, "%s", directory);
    memmove(&grown[place + 1], &grown[place], (size_t)(registry->count - place) * sizeof *grown);
    grown[place] = entry;
    registry->count++;
    return entry;
}

static void free_entry(struct entry *entry) {
    chat_template_close(entry->facts.chat_template);
    free(entry);
}

static void remove_entry(struct registry *registry, const char *name) {
    bool is_there;
    int place = place_of(registry, name, &is_there);
    if (!is_there)
        return;
    free_entry(registry->entries[place]);
    registry->count--;
    memmove(&registry->entries[place], &registry->entries[place + 1],
            (size_t)(registry->count - place) * sizeof *registry->entries);
}

/* One that was never loaded is as one that was evicted: its next use brings it. */
static const char *state_of(const struct entry *entry) {
    if (entry->loading)
        return "loading";
    return !entry->is_there ? "retiring" : entry->at.state == ADAPTER_RESIDENT ? "resident" : "evicted";
}

static struct registry_adapter view_of(const struct entry *entry) {
    return (struct registry_adapter){.name = entry->name,
                                     .methods = entry->facts.methods,
                                     .digest = entry->at.digest,
                                     .state = state_of(entry),
                                     .generation = entry->at.generation,
                                     .parameters = entry->facts.parameters,
                                     .bytes = (int64_t)entry->at.bytes,
                                     .virtual_tokens = entry->at.virtual_tokens,
                                     .running = entry->running,
                                     .waiting = entry->waiting,
                                     .chat_template = entry->facts.chat_template,
                                     .template_generation = entry->facts_generation,
                                     .is_pinned = entry->at.is_pinned};
}

bool registry_at(const struct server *server, int number, struct registry_adapter *adapter) {
    const struct registry *registry = server->registry;
    if (number < 0 || number >= registry->count)
        return false;
    *adapter = view_of(registry->entries[number]);
    return true;
}

bool registry_find(const struct server *server, const char *name, struct registry_adapter *adapter) {
    const struct entry *entry = find(server->registry, name);
    if (!entry || !entry->is_there)
        return false;
    *adapter = view_of(entry);
    return true;
}

static void drop_if_over(struct registry *registry, struct entry *entry) {
    if (!entry->is_there && !entry->loading && !entry->running && !entry->waiting)
        remove_entry(registry, entry->name);
}

void registry_count(struct server *server, const char *name, int64_t running, int64_t waiting) {
    struct entry *entry = find(server->registry, name);
    if (!entry)
        return;
    entry->running += running;
    entry->waiting += waiting;
    drop_if_over(server->registry, entry);
}

void registry_take(struct server *server, struct driver_adapters *list) {
    struct registry *registry = server->registry;
    for (int i = 0; i < registry->count; i++)
        registry->entries[i]->is_there = false;
    for (int i = 0; i < list->count; i++) {
        struct entry *entry = add(registry, list->items[i].name, "");
        if (!entry)
            continue; /* known again with the next list */
        entry->at = list->items[i];
        entry->is_there = true;
    }
    for (int i = registry->count - 1; i >= 0; i--)
        drop_if_over(registry, registry->entries[i]);
    free(list);
}

/* ---- files ---- */

/* A directory of the options, or one below the root. */
static int read_files(const struct serve_options *options, const char *directory, struct adapter_files *files) {
    const char *root = options->adapter_root;
    size_t length = root ? strlen(root) : 0;
    if (root && !strncmp(directory, root, length) && directory[length] == '/')
        return adapter_files_read_beneath(root, directory + length + 1, files);
    return adapter_files_read(directory, files);
}

static int read_facts(const struct adapter_files *files, struct adapter_facts *facts) {
    struct peft_files *opened = NULL;
    int status = peft_files_open_bytes(&files->bytes, 1, &opened);
    *facts = (struct adapter_facts){0};
    if (!status) {
        snprintf(facts->methods, sizeof facts->methods, "%s", peft_method_names[peft_files_configs(opened)[0].type]);
        facts->parameters = ckpt_elements(peft_files_tensors(opened, 0));
        if (peft_bytes_chat_template(&files->bytes, &facts->chat_template))
            log_warning("%s: the adapter counts as one without a chat template", status_text());
    }
    peft_files_close(opened);
    return status;
}

static int resolve(struct pending *pending) {
    char *found;
    int status = adapter_files_find(pending->directory, &found);
    if (!status)
        snprintf(pending->directory, sizeof pending->directory, "%s", found);
    free(found);
    return status;
}

static void work(struct worker_job *job) {
    struct pending *pending = (struct pending *)job;
    struct driver_change *change = &pending->change;
    if (change->kind == CHANGE_UNLOAD || change->error.which)
        return;
    int status = pending->is_named ? resolve(pending) : STATUS_OK;
    if (!status)
        status = read_files(pending->server->options, pending->directory, &change->files);
    if (!status)
        status = read_facts(&change->files, &change->facts);
    if (status)
        error_of_status(&change->error, status == STATUS_NOT_FOUND ? ERROR_ADAPTER_NOT_FOUND : ERROR_ADAPTER_INVALID,
                        NULL);
}

/* ---- changes ---- */

static void start_next(struct server *server);

static void log_change(struct server *server, const struct driver_change *change) {
    static const char *const changes[] = {"bring", "load", "replace", "unload"};
    struct registry_adapter adapter;
    struct log_line line;
    bool has_failed = change->error.which != ERROR_NONE;
    log_line_begin(&line, server, has_failed ? LOG_WARNING : LOG_INFO, "adapter");
    log_line_text(&line, "change", changes[change->kind]);
    log_line_text(&line, "name", change->name);
    if (has_failed)
        log_line_text(&line, "error", change->error.text);
    else if (registry_find(server, change->name, &adapter))
        log_line_integer(&line, "generation", (int64_t)adapter.generation);
    log_line_end(&line);
}

static void tell(struct pending *pending) {
    struct server *server = pending->server;
    struct registry *registry = server->registry;
    const struct driver_change *change = &pending->change;
    struct entry *entry = find(registry, change->name);
    if (entry)
        entry->loading--;
    if (entry && change->kind == CHANGE_BRING)
        entry->is_bringing = false;
    if (entry && !change->error.which && !change->is_moot && change->kind != CHANGE_UNLOAD) {
        chat_template_close(entry->facts.chat_template);
        entry->facts = change->facts;
        chat_template_keep(entry->facts.chat_template);
        entry->facts_generation = change->generation;
        snprintf(entry->directory, sizeof entry->directory, "%s", pending->directory);
    }
    log_change(server, change);
    if (change->kind != CHANGE_UNLOAD && !change->is_moot)
        metrics_adapter_load(server->metrics, change->error.which);
    if (pending->on_done) {
        struct registry_adapter view;
        bool has_view = !change->error.which && registry_find(server, change->name, &view);
        pending->on_done(pending->context, &change->error, has_view ? &view : NULL);
    }
    entry = find(registry, change->name);
    if (entry)
        drop_if_over(registry, entry);
    chat_template_close(pending->change.facts.chat_template);
    free(pending);
}

/* The engine has made it, or not; its list of adapters came before. */
static void on_made(struct loop_note *note) {
    struct pending *pending = (struct pending *)((char *)note - offsetof(struct pending, change.note));
    struct server *server = pending->server;
    struct pending **at = &server->registry->working;
    while (*at != pending)
        at = &(*at)->next;
    *at = pending->next;
    server->registry->under_way--;
    tell(pending);
    start_next(server);
}

static void on_read(struct worker_job *job) {
    struct pending *pending = (struct pending *)job;
    pending->change.note.run = on_made;
    driver_change(pending->server->driver, &pending->change);
}

static void start_next(struct server *server) {
    struct registry *registry = server->registry;
    while (registry->first && registry->under_way < CHANGES_AT_ONCE) {
        struct pending *pending = registry->first;
        registry->first = pending->next;
        registry->last = pending->next ? registry->last : &registry->first;
        registry->waiting--;
        registry->under_way++;
        pending->next = registry->working;
        registry->working = pending;
        const struct entry *entry = find(registry, pending->change.name);
        if (!*pending->directory && entry)
            snprintf(pending->directory, sizeof pending->directory, "%s", entry->directory);
        if (pending->change.kind == CHANGE_BRING && entry)
            pending->change.if_generation = entry->at.generation;
        pending->job.work = work;
        pending->job.done = on_read;
        if (!worker_add(server->own->file_worker, &pending->job)) { /* it has room for as many as are under way */
            error_set(&pending->change.error, ERROR_INTERNAL, NULL, "the adapters' worker takes nothing");
            on_read(&pending->job);
        }
    }
}

static void enqueue(struct server *server, struct pending *pending) {
    struct registry *registry = server->registry;
    struct entry *entry = add(registry, pending->change.name, pending->directory);
    pending->server = server;
    pending->next = NULL;
    if (entry)
        entry->loading++;
    else
        error_of_status(&pending->change.error, ERROR_INTERNAL, NULL);
    *registry->last = pending;
    registry->last = &pending->next;
    registry->waiting++;
    start_next(server);
}

void registry_bring(struct server *server, const char *name) {
    struct entry *entry = find(server->registry, name);
    if (entry && entry->is_bringing)
        return;
    struct pending *pending = calloc(1, sizeof *pending);
    if (!pending)
        return; /* the calls that wait for it end by their time */
    if (entry)
        entry->is_bringing = true;
    pending->change.kind = CHANGE_BRING;
    snprintf(pending->change.name, sizeof pending->change.name, "%s", name);
    if (!entry)
        error_set(&pending->change.error, ERROR_ADAPTER_NOT_FOUND, "adapters", "there is no adapter %s", name);
    enqueue(server, pending);
}

static void check_change(const struct server *server, const struct registry_change *asked, struct error *error) {
    const char *root = server->options->adapter_root;
    struct registry_adapter adapter;
    bool has_path = asked->path && *asked->path;
    if (!registry_name_is_valid(asked->name))
        error_set(error, ERROR_ARGUMENT, "name",
                  "an adapter's name is 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-', and "
                  "does not begin with '.'");
    else if (has_path && !registry_name_is_valid(asked->path))
        error_set(error, ERROR_ARGUMENT, "path", "a path is the name of a directory in --adapter-root");
    else if (has_path && !root)
        error_set(error, ERROR_ARGUMENT, "path", "there is no --adapter-root to load adapters from");
    else if (asked->kind == REGISTRY_LOAD && !root && !registry_find(server, asked->name, &adapter))
        error_set(error, ERROR_ARGUMENT, "path", "there is no --adapter-root to load adapters from");
    else if (server->is_draining || server->has_failed)
        error_set(error, server->has_failed ? ERROR_ENGINE_FAILED : ERROR_DRAINING, NULL,
                  "the server is shutting down");
    else if (server->registry->waiting >= MAX_CHANGES)
        error_set(error, ERROR_OVERLOADED, NULL, "too many changes of adapters wait");
    else
        for (size_t i = 0; i < server->model.name_count; i++)
            if (!strcmp(asked->name, server->model.names[i]))
                error_set(error, ERROR_ARGUMENT, "name", "%s is the base model", asked->name);
}

static void tell_refused(struct loop_note *note) {
    struct pending *pending = (struct pending *)((char *)note - offsetof(struct pending, change.note));
    pending->on_done(pending->context, &pending->change.error, NULL);
    free(pending);
}

void registry_start(struct server *server, const struct registry_change *asked) {
    static const enum change_kind kinds[] = {
        [REGISTRY_LOAD] = CHANGE_LOAD, [REGISTRY_REPLACE] = CHANGE_REPLACE, [REGISTRY_UNLOAD] = CHANGE_UNLOAD};
    const char *root = server->options->adapter_root;
    struct pending *pending = calloc(1, sizeof *pending);
    struct registry_adapter adapter;
    if (!pending) {
        struct error error;
        error_set(&error, ERROR_INTERNAL, NULL, "out of memory");
        asked->on_done(asked->context, &error, NULL);
        return;
    }
    struct driver_change *change = &pending->change;
    change->kind = kinds[asked->kind];
    change->is_pinned = asked->is_pinned;
    change->in_place = asked->in_place;
    change->if_generation = asked->if_generation;
    pending->on_done = asked->on_done;
    pending->context = asked->context;
    check_change(server, asked, &change->error);
    snprintf(change->name, sizeof change->name, "%s", change->error.which ? "" : asked->name);
    if (asked->kind == REGISTRY_REPLACE && !change->error.which && !registry_find(server, asked->name, &adapter))
        error_set(&change->error, ERROR_ADAPTER_NOT_FOUND, "name", "there is no adapter %s", asked->name);
    if (asked->kind == REGISTRY_UNLOAD && !change->error.which && !registry_find(server, asked->name, &adapter))
        error_set(&change->error, ERROR_ADAPTER_NOT_FOUND, "name", "there is no adapter %s", asked->name);
    if (asked->path && *asked->path && root && !change->error.which)
        file_join(pending->directory, sizeof pending->directory, root, asked->path);
    else if (asked->kind == REGISTRY_LOAD && root && !registry_find(server, change->name, &adapter))
        file_join(pending->directory, sizeof pending->directory, root, change->name);
    pending->is_named = *pending->directory != 0;
    pending->server = server;
    change->note.run = tell_refused;
    if (change->error.which)
        loop_post(server->own->loop, &change->note);
    else
        enqueue(server, pending);
}

/* ---- opening ---- */

static int add_first(struct registry *registry, const char *name, const char *directory) {
    char *found;
    int status = adapter_files_find(directory, &found);
    if (!status)
        status = adapters_add(registry->adapters, name, found);
    struct entry *entry = status ? NULL : add(registry, name, found);
    if (entry) {
        entry->is_there = true;
        if (peft_chat_template(found, &entry->facts.chat_template))
            log_warning("%s: the adapter counts as one without a chat template", status_text());
    }
    free(found);
    return status || entry ? status : STATUS_MEMORY;
}

static int add_root(struct registry *registry, const char *root) {
    char **names, path[PATH_MAX];
    size_t count;
    int status = file_list(root, &names, &count);
    for (size_t i = 0; i < count && !status; i++) {
        struct stat info;
        if (!registry_name_is_valid(names[i]) || file_join(path, sizeof path, root, names[i]) || lstat(path, &info) ||
            !S_ISDIR(info.st_mode))
            continue;
        status = add_first(registry, names[i], path);
        if (status == STATUS_INVALID || status == STATUS_UNSUPPORTED)
            log_warning("--adapter-root: %s: %s is not among the adapters", status_text(), names[i]);
        status = status == STATUS_MEMORY ? status : STATUS_OK;
    }
    file_list_free(names, count);
    return status;
}

int registry_open(struct server *server, struct adapters *adapters, struct registry **out) {
    const struct serve_options *options = server->options;
    struct registry *registry = *out = calloc(1, sizeof *registry);
    if (!registry)
        return status_fail(STATUS_MEMORY, "out of memory");
    registry->adapters = adapters;
    registry->last = &registry->first;
    int status = options->adapter_root ? add_root(registry, options->adapter_root) : STATUS_OK;
    for (size_t i = 0; i < options->adapter_count && !status; i++) {
        status = add_first(registry, options->adapters[i].name, options->adapters[i].directory);
        if (status)
            status_wrap(status, "--adapter %s", options->adapters[i].name);
    }
    return status;
}

/* Behind a failure of the engine changes are left. */
static void free_list(struct pending *list) {
    for (struct pending *pending = list, *next; pending; pending = next) {
        next = pending->next;
        adapter_files_free(&pending->change.files);
        chat_template_close(pending->change.facts.chat_template);
        free(pending);
    }
}

void registry_close(struct registry *registry) {
    if (!registry)
        return;
    for (int i = 0; i < registry->count; i++)
        free_entry(registry->entries[i]);
    free_list(registry->first);
    free_list(registry->working);
    free(registry->entries);
    free(registry);
}

static void fail_list(struct pending *list, const struct error *error) {
    for (struct pending *pending = list; pending; pending = pending->next) {
        void (*on_done)(void *, const struct error *, const struct registry_adapter *) = pending->on_done;
        pending->on_done = NULL;
        if (on_done)
            on_done(pending->context, error, NULL);
    }
}

void registry_fail_all(struct server *server, const struct error *error) {
    fail_list(server->registry->working, error);
    fail_list(server->registry->first, error);
}

int64_t registry_changes(const struct server *server) {
    return server->registry->under_way + server->registry->waiting;
}
