/* The control listener over HTTP: adapters are listed, loaded, replaced and unloaded, and the server is drained. A
 * change is answered when all ranks have made it. It is made even if its client disconnects before. */
#include "openai/json_in.h"
#include "openai/json_out.h"
#include "registry.h"
#include "route.h"

#include "base/base.h"
#include "config/config.h"

enum { NAME_BYTES = 128 };

/* ---- adapters as JSON ---- */

static void add_methods(const char *methods, struct strbuf *out) {
    strbuf_add_text(out, ",\"methods\":[");
    for (const char *at = methods; *at;) {
        size_t length = strcspn(at, ",");
        if (at > methods)
            strbuf_add_char(out, ',');
        json_out_string(out, at, length);
        at += length + (at[length] == ',');
    }
    strbuf_add_char(out, ']');
}

static void add_adapter(const struct registry_adapter *adapter, struct strbuf *out) {
    strbuf_add_text(out, "{\"name\":");
    json_out_text(out, adapter->name);
    add_methods(adapter->methods, out);
    strbuf_format(out, ",\"generation\":%llu,\"digest\":", (unsigned long long)adapter->generation);
    json_out_text(out, adapter->digest);
    strbuf_format(out, ",\"parameters\":%lld,\"bytes\":%lld,\"virtual_tokens\":%lld,\"state\":",
                  (long long)adapter->parameters, (long long)adapter->bytes, (long long)adapter->virtual_tokens);
    json_out_text(out, adapter->state);
    strbuf_add_text(out, ",\"receipt\":");
    json_out_text(out, adapter->receipt);
    strbuf_format(out, ",\"receipt_gap\":%.9g", adapter->receipt_gap);
    strbuf_format(out, ",\"pinned\":%s,\"running\":%lld,\"waiting\":%lld}", adapter->is_pinned ? "true" : "false",
                  (long long)adapter->running, (long long)adapter->waiting);
}

/* ---- routes that change an adapter, and vLLM's forms of them ---- */

/* The fields of such a route's body; NULL: it has none. Where the body has no name, the path does. */
static const struct change_row {
    const char *method, *route;
    enum registry_change_kind kind;
    bool is_vllms;
    const char *name, *path, *pinned, *in_place, *generation, *ignored;
} rows[] = {
    {"POST", "/adapters", REGISTRY_LOAD, .name = "name", .path = "path", .pinned = "pinned"},
    {"PUT", "/adapters/", REGISTRY_REPLACE, .path = "path", .generation = "if_generation"},
    {"DELETE", "/adapters/", REGISTRY_UNLOAD, .is_vllms = false},
    {"POST", "/load_lora_adapter", REGISTRY_LOAD, true, "lora_name", "lora_path", .in_place = "load_inplace"},
    {"POST", "/unload_lora_adapter", REGISTRY_UNLOAD, true, "lora_name", .ignored = "lora_int_id"},
};

struct job {
    struct exchange *exchange; /* NULL: its client disconnected */
    const struct change_row *row;
    char name[NAME_BYTES];
};

static void on_close(struct exchange *exchange) {
    struct job *job = exchange->context;
    if (job)
        job->exchange = NULL;
}

static const struct exchange_handler waiting = {.on_close = on_close};

static void on_done(void *context, const struct error *error, const struct registry_adapter *adapter) {
    struct job *job = context;
    struct error reported = *error;
    if (job->exchange) {
        job->exchange->context = NULL;
        if (job->row->is_vllms && reported.which == ERROR_ADAPTER_EXISTS) /* vLLM answers 400 for it */
            reported.which = ERROR_ARGUMENT;
        if (reported.which)
            route_fail(job->exchange, &reported);
        else if (job->row->is_vllms) {
            struct strbuf out = STRBUF_INIT;
            strbuf_format(&out, "Success: LoRA adapter '%s' %s successfully.", job->name,
                          job->row->kind == REGISTRY_UNLOAD ? "removed" : "added");
            exchange_answer(job->exchange, 200, "text/plain; charset=utf-8", strbuf_text(&out), out.length);
            strbuf_free(&out);
        } else {
            struct strbuf out = STRBUF_INIT;
            if (adapter)
                add_adapter(adapter, &out);
            else
                strbuf_add_text(&out, "{}");
            route_answer_json(job->exchange, &out);
        }
    }
    free(job);
}

static bool check_name(const struct server *server, const char *name, const char *field, struct error *error) {
    for (size_t i = 0; name && i < server->model.name_count; i++)
        if (!strcmp(server->model.names[i], name))
            return error_set(error, ERROR_ARGUMENT, field, "%s: \"%.200s\" is the base model", field, name);
    if (name && registry_name_is_valid(name))
        return true;
    return error_set(error, ERROR_ARGUMENT, field,
                     "%s: expected a name of letters, digits and ._- that begins with no dot", field);
}

/* Refuses a field that the route does not have: a misspelt one would count as absent. */
static bool check_fields(json_t *root, const char *const *fields, size_t count, struct error *error) {
    const char *name, *nearest;
    json_t *value;
    json_object_foreach(root, name, value) {
        bool is_known = json_is_null(value);
        for (size_t i = 0; i < count; i++)
            is_known |= !strcmp(name, fields[i]);
        if (is_known)
            continue;
        nearest = config_nearest(name, fields, count);
        return error_set(error, ERROR_ARGUMENT, name, "%.64s: there is no such field%s%s%s", name,
                         nearest ? " (did you mean " : "", nearest ? nearest : "", nearest ? "?)" : "");
    }
    return true;
}

static const struct change_row *row_of(const struct exchange *exchange) {
    const struct change_row *row = rows;
    while (strcmp(row->route, exchange->request->route) || strcmp(row->method, exchange->head.method))
        row++;
    return row;
}

static bool read_change(struct exchange *exchange, const struct change_row *row, json_t *root,
                        char path_name[NAME_BYTES], struct registry_change *change, struct error *error) {
    const char *const all[] = {row->name, row->path, row->pinned, row->in_place, row->generation, row->ignored};
    const char *fields[sizeof all / sizeof *all];
    size_t count = 0;
    int64_t generation = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i])
            fields[count++] = all[i];
    change->name = row->name ? NULL : path_name;
    if (!row->name && !(route_rest(exchange, "/adapters/", path_name, NAME_BYTES) && registry_name_is_valid(path_name)))
        return error_set(error, ERROR_ADAPTER_NOT_FOUND, NULL, "the path does not end with the name of an adapter");
    if (!check_fields(root, fields, count, error) ||
        !json_in_string(json_object_get(root, row->name), row->name, &change->name, error) ||
        !json_in_string(json_object_get(root, row->path), row->path, &change->path, error) ||
        !json_in_bool(json_object_get(root, row->pinned), row->pinned, &change->is_pinned, error) ||
        !json_in_bool(json_object_get(root, row->in_place), row->in_place, &change->in_place, error) ||
        !json_in_integer(json_object_get(root, row->generation), row->generation, 0, INT64_MAX, &generation, error) ||
        (row->name && !check_name(exchange->request->server, change->name, row->name, error)))
        return false;
    change->if_generation = (uint64_t)generation;
    return !row->is_vllms || !row->path || (change->path && *change->path) ||
           error_set(error, ERROR_ARGUMENT, row->path, "%s: expected a name under --adapter-root", row->path);
}

static void on_change(struct exchange *exchange, void *made) {
    const struct change_row *row = row_of(exchange);
    struct registry_change change = {.kind = row->kind, .on_done = on_done};
    struct error error;
    char name[NAME_BYTES];
    struct job *job = NULL;
    if (read_change(exchange, row, made, name, &change, &error) && !(job = calloc(1, sizeof *job)))
        error_set(&error, ERROR_OVERLOADED, NULL, "out of memory");
    if (job) {
        *job = (struct job){.exchange = exchange, .row = row};
        snprintf(job->name, sizeof job->name, "%s", change.name);
        change.context = job;
        route_continue(exchange, &waiting, job);
        registry_start(exchange->request->server, &change);
    } else
        route_fail(exchange, &error);
    json_decref(made);
}

void control_adapters(struct exchange *exchange) {
    struct registry_adapter adapter;
    struct strbuf out = STRBUF_INIT;
    strbuf_add_text(&out, "{\"adapters\":[");
    for (int i = 0; registry_at(exchange->request->server, i, &adapter); i++) {
        if (i)
            strbuf_add_char(&out, ',');
        add_adapter(&adapter, &out);
    }
    strbuf_add_text(&out, "]}");
    route_answer_json(exchange, &out);
}

void control_change(struct exchange *exchange) {
    static const struct route_body body = {.read = route_read_json, .on_made = on_change, .drop = route_drop_json};
    static const struct route_body may_be_empty = {
        .read = route_read_json, .on_made = on_change, .drop = route_drop_json, .may_be_empty = true};
    route_collect(exchange, row_of(exchange)->name ? &body : &may_be_empty);
}

/* ---- the end of service ---- */

/* Answers before the listeners close: accepted requests still run. */
static void on_drain(struct exchange *exchange, void *made) {
    struct error error;
    double delay = -1, timeout = -1;
    json_t *root = made;
    if (check_fields(root, (const char *const[]){"delay_s", "timeout_s"}, 2, &error) &&
        json_in_number(json_object_get(root, "delay_s"), "delay_s", 0, 1e6, &delay, &error) &&
        json_in_number(json_object_get(root, "timeout_s"), "timeout_s", 0, 1e6, &timeout, &error)) {
        exchange_answer(exchange, 200, "application/json", "{}", 2);
        server_drain(exchange->request->server, delay, timeout);
    } else
        route_fail(exchange, &error);
    json_decref(root);
}

void control_drain(struct exchange *exchange) {
    static const struct route_body body = {
        .read = route_read_json, .on_made = on_drain, .drop = route_drop_json, .may_be_empty = true};
    route_collect(exchange, &body);
}
