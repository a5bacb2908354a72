/* Changes of adapters at the engine, one after the other, in pieces between steps.
 *
 * A change that fails leaves everything as it was. An adapter that a call waits for, but that has no room now, is put
 * aside until completions have ended. A change from a client fails at once when there is no room. */
#include "driver-internal.h"

static void end_change(struct driver *driver) {
    struct driver_change *change = STAILQ_FIRST(&driver->changes);
    struct adapter_view view;
    STAILQ_REMOVE_HEAD(&driver->changes, all);
    if (adapters_find(driver->options.adapters, change->name, &view))
        change->generation = view.generation;
    adapter_files_free(&change->files);
    driver->has_room = driver->adapters_changed = true;
    if (change->error.which && change->kind == CHANGE_BRING)
        driver_fail_waiting(driver, change->name, &change->error);
    driver_publish_adapters(driver); /* the requester then sees the current list */
    loop_post(driver->options.loop, &change->note);
}

static void fail_change(struct driver *driver, int status) {
    struct driver_change *change = STAILQ_FIRST(&driver->changes);
    struct error error;
    adapter_error(&error, status, driver->options.server->options->adapter_root);
    change->status = status;
    if (change->is_new)
        adapters_unload(driver->options.adapters, change->name);
    change->error = error;
    end_change(driver);
}

/* Prepares the name of a load: a new name, or one that was never loaded. Returns false when the change has ended. */
static bool prepare_load(struct driver *driver, struct driver_change *change, enum adapter_change *how) {
    struct adapter_view view;
    bool is_known = adapters_find(driver->options.adapters, change->name, &view);
    *how = ADAPTER_BRING;
    if (is_known && view.generation && !change->in_place) {
        error_set(&change->error, ERROR_ADAPTER_EXISTS, "name", "there is an adapter %s already: replace it",
                  change->name);
        end_change(driver);
        return false;
    }
    if (is_known && view.generation) {
        *how = ADAPTER_REPLACE;
        change->is_pinned |= view.is_pinned;
    } else if (is_known && strcmp(view.directory, change->files.bytes.directory)) {
        *how = ADAPTER_REPLACE; /* a first generation from another directory */
    } else if (!is_known) {
        int status = adapters_add(driver->options.adapters, change->name, change->files.bytes.directory);
        change->is_new = !status;
        if (status) {
            fail_change(driver, status);
            return false;
        }
    }
    return true;
}

static bool prepare_replace(struct driver *driver, struct driver_change *change) {
    struct adapter_view view;
    if (!adapters_find(driver->options.adapters, change->name, &view)) {
        error_set(&change->error, ERROR_ADAPTER_NOT_FOUND, "name", "there is no adapter %s", change->name);
        end_change(driver);
        return false;
    }
    if (change->if_generation && change->if_generation != view.generation) {
        error_set(&change->error, ERROR_GENERATION_CHANGED, "if_generation",
                  "adapter %s is of generation %llu, not %llu", change->name, (unsigned long long)view.generation,
                  (unsigned long long)change->if_generation);
        end_change(driver);
        return false;
    }
    change->is_pinned = view.is_pinned;
    return true;
}

/* While a bringing waited, its name may have been brought, replaced or unloaded. Returns false when the change has
 * ended. */
static bool prepare_bring(struct driver *driver, struct driver_change *change) {
    const char *names[ASK_MAX_ADAPTERS];
    const struct call_engine *first = driver_first_waiting(driver, change->name);
    struct adapter_view view;
    change->is_moot = !first || (adapters_find(driver->options.adapters, change->name, &view) &&
                                 (view.state == ADAPTER_RESIDENT || view.generation != change->if_generation));
    if (change->is_moot) {
        change->error = (struct error){0};
        end_change(driver); /* calls that still wait for it ask again */
        return false;
    }
    adapters_spare(driver->options.adapters, names, driver_adapters_of(first, names));
    return true;
}

/* There is no room. While completions run, the change waits. Without them, other adapters of its first call may be in
 * the way: then all begin again side by side. If that does not help, the call fails, and calls that need less ask
 * again. */
static void put_aside(struct driver *driver, struct driver_change *change) {
    struct call_engine *first = driver_first_waiting(driver, change->name);
    change->is_aside = driver->holders > 0;
    change->gives = driver->gives;
    if (change->is_aside) {
        change->since = change->since > 0 ? change->since : clock_seconds();
    } else if (first && first->call->request.ask.adapter_count > 1 && !first->has_cleared) {
        first->has_cleared = true;
        int status = adapters_clear(driver->options.adapters);
        driver->status = driver->status ? driver->status : status;
        driver->adapters_changed = true;
    } else if (first && first->call->request.ask.adapter_count > 1) {
        struct error error;
        error_of_status(&error, ERROR_ADAPTER_MEMORY, "adapters");
        driver_fail_one(driver, first, &error);
        change->is_moot = true;
        end_change(driver);
    } else
        fail_change(driver, STATUS_MEMORY);
}

static void begin_change(struct driver *driver) {
    struct driver_change *change = STAILQ_FIRST(&driver->changes);
    enum adapter_change how = ADAPTER_REPLACE;
    if (change->kind == CHANGE_UNLOAD) {
        int status = adapters_unload(driver->options.adapters, change->name);
        if (status)
            fail_change(driver, status);
        else
            end_change(driver);
        return;
    }
    if (change->kind == CHANGE_LOAD && !prepare_load(driver, change, &how))
        return;
    if (change->kind == CHANGE_REPLACE && !prepare_replace(driver, change))
        return;
    if (change->kind == CHANGE_BRING) {
        how = ADAPTER_BRING;
        if (!prepare_bring(driver, change))
            return;
    } else
        adapters_spare(driver->options.adapters, NULL, 0);
    int status = adapters_begin(driver->options.adapters, change->name, &change->files, how, 0);
    change->is_under_way = !status;
    change->is_aside = false;
    if (status == STATUS_MEMORY && change->kind == CHANGE_BRING)
        put_aside(driver, change);
    else if (status)
        fail_change(driver, status);
}

static void continue_change(struct driver *driver) {
    struct driver_change *change = STAILQ_FIRST(&driver->changes);
    bool is_done;
    int status = adapters_continue(driver->options.adapters, &is_done);
    if (!is_done)
        return;
    change->is_under_way = false;
    if (!status && change->kind != CHANGE_BRING)
        status = adapters_pin(driver->options.adapters, change->name, change->is_pinned);
    if (status)
        fail_change(driver, status);
    else
        end_change(driver);
}

bool driver_continue(struct driver *driver) {
    int64_t count = 0;
    struct driver_change *change = STAILQ_FIRST(&driver->changes);
    for (; change; change = STAILQ_NEXT(change, all))
        count++;
    while ((change = STAILQ_FIRST(&driver->changes)) && change->is_aside && change->gives == driver->gives &&
           driver->holders > 0 && --count) { /* it goes to the end of the list */
        STAILQ_REMOVE_HEAD(&driver->changes, all);
        STAILQ_INSERT_TAIL(&driver->changes, change, all);
    }
    if (!count)
        return false;
    if (change->error.which) { /* its files could not be read */
        if (change->kind != CHANGE_BRING || prepare_bring(driver, change))
            end_change(driver);
    } else if (change->is_under_way)
        continue_change(driver);
    else
        begin_change(driver);
    return true;
}

/* ---- the list ---- */

void driver_take_names(struct driver *driver, struct driver_name *names) {
    for (const struct driver_name *name = names; name; name = name->next)
        if (adapters_add(driver->options.adapters, name->name, name->directory))
            log_warning("%s", status_text()); /* requests that name it get ERROR_MODEL_NOT_FOUND */
    driver->adapters_changed |= names != NULL;
    if (names)
        driver_publish_adapters(driver);
    for (struct driver_name *name = names, *next; name; name = next) {
        next = name->next;
        loop_post(driver->options.loop, &name->note);
    }
}

static struct driver_adapter copy_view(const struct adapter_view *view) {
    struct driver_adapter copy = {.state = view->state,
                                  .generation = view->generation,
                                  .bytes = view->bytes,
                                  .virtual_tokens = view->virtual_tokens,
                                  .is_pinned = view->is_pinned,
                                  .receipt = view->receipt};
    snprintf(copy.name, sizeof copy.name, "%s", view->name);
    snprintf(copy.digest, sizeof copy.digest, "%s", view->digest);
    return copy;
}

static void deliver(struct loop_note *note) {
    struct driver_adapters *list = (struct driver_adapters *)note;
    list->driver->options.on_adapters(list->driver->options.server, list);
}

void driver_publish_adapters(struct driver *driver) {
    struct adapter_view view;
    int count = 0;
    if (!driver->adapters_changed)
        return;
    while (adapters_at(driver->options.adapters, count, &view))
        count++;
    struct driver_adapters *list = malloc(sizeof *list + (size_t)count * sizeof *list->items);
    if (!list)
        return; /* again after the next step */
    *list = (struct driver_adapters){.note = {.run = deliver}, .driver = driver, .count = count};
    for (int i = 0; adapters_at(driver->options.adapters, i, &view); i++)
        list->items[i] = copy_view(&view);
    driver->adapters_changed = false;
    loop_post(driver->options.loop, &list->note);
}
