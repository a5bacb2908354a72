/* The control listener over HTTP: adapters are listed, loaded, replaced and unloaded, and the server is drained. A
 * change is answered when all ranks have made it. It is made even if its client disconnects before. */
#include "openai/json_in.h"
#include "openai/json_out.h"
#include "registry.h"
#include "route.h"

#include "base/base.h"
#include "config/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    strbuf_format(out, ",\"pinned\":%s,\"running\":%lld,\"waiting\":%lld}", adapter->is_pinned ? "true" : "false",
                  (long long)adapter->running, (long long)adapter->waiting);
}

static void list_adapters(struct exchange *exchange) {
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

/* ---- changes ---- */

struct job {
    struct exchange *exchange; /* NULL: its client disconnected */
    enum registry_change_kind kind;
    bool is_vllms;
    char name[NAME_BYTES];
};

static void on_close(struct exchange *exchange, bool is_whole) {
    struct job *job = exchange->context;
    (void)is_whole;
    if (job)
        job->exchange = NULL;
}

static const struct exchange_handler waiting = {.on_close = on_close};

static void on_done(void *context, const struct error *error, const struct registry_adapter *adapter) {
    struct job *job = context;
    struct error reported = *error;
    if (job->exchange) {
        job->exchange->context = NULL;
        if (job->is_vllms && reported.which == ERROR_ADAPTER_EXISTS) /* vLLM answers 400 for it */
            reported.which = ERROR_ARGUMENT;
        if (reported.which)
            route_fail(job->exchange, &reported);
        else if (job->is_vllms) {
            struct strbuf out = STRBUF_INIT;
            strbuf_format(&out, "Success: LoRA adapter '%s' %s successfully.", job->name,
                          job->kind == REGISTRY_UNLOAD ? "removed" : "added");
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

static void start(struct exchange *exchange, const struct registry_change *asked, bool is_vllms) {
    struct registry_change change = *asked;
    struct job *job = calloc(1, sizeof *job);
    if (!job) {
        route_fail(exchange, AN_ERROR(ERROR_OVERLOADED, NULL, "out of memory"));
        return;
    }
    job->exchange = exchange;
    job->kind = change.kind;
    job->is_vllms = is_vllms;
    snprintf(job->name, sizeof job->name, "%s", change.name);
    change.on_done = on_done;
    change.context = job;
    route_continue(exchange, &waiting, job);
    registry_start(exchange->request->server, &change);
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
#define HAS_ONLY(root, error, ...)                                                                                     \
    check_fields(root, (const char *const[]){__VA_ARGS__},                                                             \
                 sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *), error)

/* ---- POST /v1/adapters, PUT and DELETE /v1/adapters/NAME ---- */

static void on_load(struct exchange *exchange, void *made) {
    struct registry_change change = {.kind = REGISTRY_LOAD};
    struct error error;
    json_t *root = made;
    if (HAS_ONLY(root, &error, "name", "path", "pinned") &&
        json_in_string(json_object_get(root, "name"), "name", &change.name, &error) &&
        json_in_string(json_object_get(root, "path"), "path", &change.path, &error) &&
        json_in_bool(json_object_get(root, "pinned"), "pinned", &change.is_pinned, &error) &&
        check_name(exchange->request->server, change.name, "name", &error))
        start(exchange, &change, false);
    else
        route_fail(exchange, &error);
    json_decref(root);
}

void control_adapters(struct exchange *exchange) {
    static const struct route_body body = {.read = route_read_json, .on_made = on_load, .drop = route_drop_json};
    if (!strcmp(exchange->head.method, "POST"))
        route_collect(exchange, &body);
    else
        list_adapters(exchange);
}

/* Reads the name in the path; returns false after answering with an error. */
static bool read_path_name(struct exchange *exchange, char name[NAME_BYTES]) {
    if (route_rest(exchange, "/adapters/", name, NAME_BYTES) && registry_name_is_valid(name))
        return true;
    route_fail(exchange, AN_ERROR(ERROR_ADAPTER_NOT_FOUND, NULL, "the path does not end with the name of an adapter"));
    return false;
}

static void on_change(struct exchange *exchange, void *made) {
    bool replaces = !strcmp(exchange->head.method, "PUT"); /* DELETE has no fields */
    char name[NAME_BYTES];
    struct registry_change change = {.kind = replaces ? REGISTRY_REPLACE : REGISTRY_UNLOAD, .name = name};
    struct error error;
    int64_t generation = 0;
    json_t *root = made;
    if (!read_path_name(exchange, name)) {
        json_decref(root);
        return;
    }
    if (check_fields(root, (const char *const[]){"path", "if_generation"}, replaces ? 2 : 0, &error) &&
        json_in_string(json_object_get(root, "path"), "path", &change.path, &error) &&
        json_in_integer(json_object_get(root, "if_generation"), "if_generation", 0, INT64_MAX, &generation, &error)) {
        change.if_generation = (uint64_t)generation;
        start(exchange, &change, false);
    } else
        route_fail(exchange, &error);
    json_decref(root);
}

void control_adapter(struct exchange *exchange) {
    static const struct route_body body = {
        .read = route_read_json_or_nothing, .on_made = on_change, .drop = route_drop_json};
    route_collect(exchange, &body);
}

/* ---- vLLM's routes ---- */

static void on_vllm_load(struct exchange *exchange, void *made) {
    struct registry_change change = {.kind = REGISTRY_LOAD};
    struct error error;
    json_t *root = made;
    if (HAS_ONLY(root, &error, "lora_name", "lora_path", "load_inplace") &&
        json_in_string(json_object_get(root, "lora_name"), "lora_name", &change.name, &error) &&
        json_in_string(json_object_get(root, "lora_path"), "lora_path", &change.path, &error) &&
        json_in_bool(json_object_get(root, "load_inplace"), "load_inplace", &change.in_place, &error) &&
        check_name(exchange->request->server, change.name, "lora_name", &error)) {
        if (change.path && *change.path)
            start(exchange, &change, true);
        else {
            route_fail(exchange,
                       AN_ERROR(ERROR_ARGUMENT, "lora_path", "lora_path: expected a name under --adapter-root"));
        }
    } else
        route_fail(exchange, &error);
    json_decref(root);
}

void control_vllm_load(struct exchange *exchange) {
    static const struct route_body body = {.read = route_read_json, .on_made = on_vllm_load, .drop = route_drop_json};
    route_collect(exchange, &body);
}

static void on_vllm_unload(struct exchange *exchange, void *made) {
    struct registry_change change = {.kind = REGISTRY_UNLOAD};
    struct error error;
    json_t *root = made;
    if (HAS_ONLY(root, &error, "lora_name", "lora_int_id") &&
        json_in_string(json_object_get(root, "lora_name"), "lora_name", &change.name, &error) &&
        check_name(exchange->request->server, change.name, "lora_name", &error))
        start(exchange, &change, true);
    else
        route_fail(exchange, &error);
    json_decref(root);
}

void control_vllm_unload(struct exchange *exchange) {
    static const struct route_body body = {.read = route_read_json, .on_made = on_vllm_unload, .drop = route_drop_json};
    route_collect(exchange, &body);
}

/* ---- the end of service ---- */

/* Answers before the listeners close: accepted requests still run. */
static void on_drain(struct exchange *exchange, void *made) {
    struct error error;
    double delay = -1, timeout = -1;
    json_t *root = made;
    if (HAS_ONLY(root, &error, "delay_s", "timeout_s") &&
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
        .read = route_read_json_or_nothing, .on_made = on_drain, .drop = route_drop_json};
    route_collect(exchange, &body);
}
