/* The loop's list of adapters, and the path of a change. Its files are read on a worker, then the engine's thread makes
 * the change, then the result is reported. Only a few changes are in progress at once, so that files do not fill the
 * memory. */
#include "registry-internal.h"

#include "log.h"

enum { CHANGES_AT_ONCE = 4, MAX_CHANGES = 4096, MAX_UNLOADED = 1 << 16 };

/* ---- entries ---- */

static struct entry *add(struct registry *registry, const char *name, const char *directory) {
    bool is_there;
    int place = registry_place(registry, name, &is_there);
    if (is_there)
        return registry->entries[place];
    struct entry *entry = calloc(1, sizeof *entry);
    struct entry **grown = realloc(registry->entries, (size_t)(registry->count + 1) * sizeof(struct entry *));
    registry->entries = grown ? grown : registry->entries;
    if (!entry || !grown) {
        free(entry);
        status_no_memory();
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
    free(entry->learning);
    free(entry);
}

static void remove_entry(struct registry *registry, const char *name) {
    bool is_there;
    int place = registry_place(registry, name, &is_there);
    if (!is_there)
        return;
    free_entry(registry->entries[place]);
    registry->count--;
    memmove(&registry->entries[place], &registry->entries[place + 1],
            (size_t)(registry->count - place) * sizeof *registry->entries);
}

/* True when requests may name it. */
static bool is_known(const struct entry *entry) {
    return entry->is_there || entry->learning;
}

static struct registry_adapter view_of(const struct server *server, const struct entry *entry) {
    bool is_refused = registry_is_refused(server, entry);
    const char *state = entry->loading                        ? "loading"
                        : is_refused                          ? "refused"
                        : !is_known(entry)                    ? "retiring"
                        : entry->at.state == ADAPTER_RESIDENT ? "resident"
                                                              : "evicted"; /* or never loaded: its next use brings it */
    return (struct registry_adapter){.name = entry->name,
                                     .directory = entry->directory,
                                     .methods = entry->facts.methods,
                                     .digest = entry->at.digest,
                                     .state = state,
                                     .generation = entry->at.generation,
                                     .parameters = entry->facts.parameters,
                                     .bytes = (int64_t)entry->at.bytes,
                                     .virtual_tokens = entry->at.virtual_tokens,
                                     .running = entry->running,
                                     .waiting = entry->waiting,
                                     .chat_template = entry->facts.chat_template,
                                     .template_generation = entry->facts_generation,
                                     .receipt = is_refused             ? receipt_words[RECEIPT_REFUSED]
                                                : entry->at.generation ? receipt_words[entry->at.receipt.word]
                                                                       : "",
                                     .receipt_gap = entry->at.receipt.gap,
                                     .is_pinned = entry->at.is_pinned,
                                     .is_resident = is_known(entry) && entry->at.state == ADAPTER_RESIDENT,
                                     .is_refused = is_refused,
                                     .is_retiring = !is_known(entry) && (entry->running || entry->waiting)};
}

bool registry_at(const struct server *server, int number, struct registry_adapter *adapter) {
    const struct registry *registry = server->registry;
    if (number < 0 || number >= registry->count)
        return false;
    *adapter = view_of(server, registry->entries[number]);
    return true;
}

bool registry_find(const struct server *server, const char *name, struct registry_adapter *adapter) {
    const struct entry *entry = registry_entry(server->registry, name);
    if (!entry || !is_known(entry))
        return false;
    *adapter = view_of(server, entry);
    return true;
}

static void drop_if_over(struct registry *registry, struct entry *entry) {
    if (is_known(entry) || entry->loading || entry->running || entry->waiting)
        return;
    metrics_adapter_gone(registry->server->metrics, entry->name);
    remove_entry(registry, entry->name);
}

void registry_count(struct server *server, const char *name, int64_t running, int64_t waiting) {
    struct entry *entry = registry_entry(server->registry, name);
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
            continue; /* the next list will add it */
        entry->at = list->items[i];
        entry->is_there = true;
    }
    for (int i = registry->count - 1; i >= 0; i--)
        drop_if_over(registry, registry->entries[i]);
    free(list);
}

/* ---- a directory that came to the root meanwhile ---- */

static bool was_unloaded(const struct registry *registry, const struct unloaded *identity) {
    for (int i = 0; i < registry->unloaded_count; i++) {
        const struct unloaded *one = &registry->unloaded[i];
        if (!strcmp(one->name, identity->name) && one->identity == identity->identity)
            return true;
    }
    return false;
}

/* Its directory stays, but requests do not find it again. */
static void note_unloaded(struct server *server, const char *name) {
    struct registry *registry = server->registry;
    struct unloaded identity, *grown;
    char path[PATH_MAX];
    if (!registry_is_below(server->options->adapter_root, name, path, &identity))
        return;
    for (int i = 0; i < registry->unloaded_count; i++)
        if (!strcmp(registry->unloaded[i].name, name)) {
            registry->unloaded[i] = identity;
            return;
        }
    if (registry->unloaded_count == MAX_UNLOADED)
        memmove(registry->unloaded, registry->unloaded + 1, (size_t)--registry->unloaded_count * sizeof *grown);
    grown = realloc(registry->unloaded, ((size_t)registry->unloaded_count + 1) * sizeof *grown);
    if (!grown)
        return;
    registry->unloaded = grown;
    grown[registry->unloaded_count++] = identity;
}

static void on_known(struct loop_note *note) {
    struct driver_name *learned = (struct driver_name *)note;
    struct server *server = learned->server;
    struct entry *entry = registry_entry(server->registry, learned->name);
    entry->learning = NULL;
    entry->loading--;
    free(learned);
    drop_if_over(server->registry, entry);
}

/* Makes a new name known. The engine hears of it before any call that uses it. */
static bool learn(struct server *server, const char *name, const char *directory, struct chat_template *template) {
    struct entry *entry = add(server->registry, name, directory);
    struct driver_name *learned = entry ? calloc(1, sizeof *learned) : NULL;
    if (!learned) {
        if (entry)
            drop_if_over(server->registry, entry);
        return false;
    }
    snprintf(learned->name, sizeof learned->name, "%s", name);
    snprintf(learned->directory, sizeof learned->directory, "%s", directory);
    learned->server = server;
    learned->note.run = on_known;
    entry->learning = learned;
    entry->loading++;
    entry->facts.chat_template = chat_template_keep(template);
    driver_know(server->driver, learned);
    return true;
}

int registry_know(struct server *server, const char *name, const char *directory) {
    struct registry_adapter adapter;
    struct chat_template *template;
    char *found;
    if (registry_find(server, name, &adapter))
        return STATUS_OK;
    int status = registry_look(directory, &found, &template);
    if (!status && !learn(server, name, found, template))
        status = status_no_memory();
    chat_template_close(template);
    free(found);
    return status;
}

bool registry_seek(const struct server *server, const char *name, struct registry_adapter *adapter) {
    struct unloaded identity;
    struct chat_template *template;
    char path[PATH_MAX], *found;
    const struct entry *entry = registry_entry(server->registry, name);
    if (registry_find(server, name, adapter))
        return true;
    if ((entry && entry->loading) || !registry_is_below(server->options->adapter_root, name, path, &identity) ||
        was_unloaded(server->registry, &identity) || server->is_draining || server->has_failed)
        return false;
    bool is_learned = !registry_look(path, &found, &template) && learn(server->registry->server, name, found, template);
    chat_template_close(template);
    free(found);
    if (is_learned)
        log_event(server->registry->server, LOG_INFO, "adapters", "%s was found below --adapter-root", name);
    return is_learned && registry_find(server, name, adapter);
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
    struct entry *entry = registry_entry(registry, change->name);
    if (entry)
        entry->loading--;
    if (entry && change->kind == CHANGE_BRING)
        entry->is_bringing = false;
    if (entry && change->kind != CHANGE_UNLOAD && pending->has_stamp && !entry->at.generation) {
        entry->was_refused = change->error.which == ERROR_ADAPTER_INVALID;
        entry->refused_stamp = pending->stamp;
    }
    if (entry && !change->error.which && !change->is_moot && change->kind != CHANGE_UNLOAD) {
        chat_template_close(entry->facts.chat_template);
        entry->facts = change->facts;
        chat_template_keep(entry->facts.chat_template);
        entry->facts_generation = change->generation;
        snprintf(entry->directory, sizeof entry->directory, "%s", pending->directory);
    }
    if (change->kind == CHANGE_UNLOAD && !change->error.which)
        note_unloaded(server, change->name);
    /* The engine's refusal applies to the files that it saw. An adapter that comes back is also compared with its
     * earlier files. */
    if (change->status && change->kind != CHANGE_UNLOAD && (change->kind != CHANGE_BRING || !change->if_generation))
        registry_remember(registry, pending, change->status);
    log_change(server, change);
    if (change->kind != CHANGE_UNLOAD && !change->is_moot)
        metrics_adapter_load(server->metrics, change->error.which);
    if (pending->on_done) {
        struct registry_adapter view;
        bool has_view = !change->error.which && registry_find(server, change->name, &view);
        pending->on_done(pending->context, &change->error, has_view ? &view : NULL);
    }
    entry = registry_entry(registry, change->name);
    if (entry)
        drop_if_over(registry, entry);
    chat_template_close(pending->change.facts.chat_template);
    free(pending);
}

/* The engine has made the change, or failed; its list of adapters came before. */
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
        const struct entry *entry = registry_entry(registry, pending->change.name);
        if (!*pending->directory && entry)
            snprintf(pending->directory, sizeof pending->directory, "%s", entry->directory);
        if (pending->change.kind == CHANGE_BRING && entry)
            pending->change.if_generation = entry->at.generation;
        pending->job.work = registry_read;
        pending->job.done = on_read;
        if (!worker_add(server->core->file_worker,
                        &pending->job)) { /* the queue has room for all changes in progress */
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
    struct entry *entry = registry_entry(server->registry, name);
    if (entry && entry->is_bringing)
        return;
    struct pending *pending = calloc(1, sizeof *pending);
    if (!pending)
        return; /* calls that wait for it end at their deadline */
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
                  "an adapter's name is 1 to 255 of A-Z, a-z, 0-9, '.', '_', ':' and '-', and "
                  "does not begin with '.'");
    else if (has_path && !registry_name_is_valid(asked->path))
        error_set(error, ERROR_ARGUMENT, "path", "a path is the name of a directory in --adapter-root");
    else if (has_path && !root)
        error_set(error, ERROR_ARGUMENT, "path", "there is no --adapter-root to load adapters from");
    else if (asked->kind == REGISTRY_LOAD && !asked->files && !root && !registry_find(server, asked->name, &adapter))
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
    adapter_files_free(&pending->change.files);
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
        if (asked->files)
            adapter_files_free(asked->files);
        error_set(&error, ERROR_INTERNAL, NULL, "out of memory");
        asked->on_done(asked->context, &error, NULL);
        return;
    }
    struct driver_change *change = &pending->change;
    change->kind = kinds[asked->kind];
    change->is_pinned = asked->is_pinned;
    change->in_place = asked->in_place;
    change->if_generation = asked->if_generation;
    if (asked->files) {
        change->files = *asked->files;
        *asked->files = (struct adapter_files){0};
        snprintf(pending->directory, sizeof pending->directory, "%s", change->files.bytes.directory);
    }
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
    pending->is_named = *pending->directory != 0 && !change->files.bytes.data;
    pending->server = server;
    change->note.run = tell_refused;
    if (change->error.which)
        loop_post(server->loop, &change->note);
    else
        enqueue(server, pending);
}

/* ---- opening ---- */

static int add_first(struct registry *registry, const char *name, const char *directory) {
    char *found;
    struct chat_template *template;
    int status = registry_look(directory, &found, &template);
    THEN(status, adapters_add(registry->adapters, name, found));
    struct entry *entry = status ? NULL : add(registry, name, found);
    if (entry) {
        entry->is_there = true;
        entry->facts.chat_template = chat_template_keep(template);
    }
    chat_template_close(template);
    free(found);
    return status || entry ? status : STATUS_MEMORY;
}

static int add_root(struct registry *registry, const char *root) {
    char **names, path[PATH_MAX];
    size_t count;
    int status = file_list(root, &names, &count);
    for (size_t i = 0; i < count && !status; i++) {
        struct unloaded identity;
        if (!registry_is_below(root, names[i], path, &identity))
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
    TRY(status_allocated(registry));
    registry->server = server;
    registry->adapters = adapters;
    registry->last = &registry->first;
    registry->limits = adapters_limits(adapters);
    int status = refusals_open(&registry->refusals);
    THEN(status, options->adapter_root ? add_root(registry, options->adapter_root) : STATUS_OK);
    for (size_t i = 0; i < options->adapter_count && !status; i++) {
        status = add_first(registry, options->adapters[i].name, options->adapters[i].directory);
        THEN(status, adapters_check(adapters, options->adapters[i].name));
        if (status)
            status_wrap(status, "--adapter %s", options->adapters[i].name);
    }
    return status;
}

/* After a failure of the engine some changes remain. */
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
    registry_free_checks(registry->checks);
    refusals_close(registry->refusals);
    free(registry->unloaded);
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
