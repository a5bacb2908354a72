/* The span of a request: its place in the trace, its times, and attributes named by the conventions. */
#include "span.h"

#include "openai/json_out.h"
#include "server.h"

#include <math.h>

enum {
    MAX_PATH = 256, /* reported bytes of a path */
    KIND_SERVER = 2,
    STATUS_ERROR = 2,
    KNOWS_REMOTE = 0x100, /* flags of a span in addition to the trace's */
    PARENT_IS_REMOTE = 0x200
};

/* ---- attributes ---- */

struct attributes {
    struct strbuf *out;
    bool has_one;
};

static void begin_attribute(struct attributes *list, const char *name, const char *type) {
    strbuf_format(list->out, "%s{\"key\":\"%s\",\"value\":{\"%s\":", list->has_one ? "," : "", name, type);
    list->has_one = true;
}

static void add_text(struct attributes *list, const char *name, const char *value) {
    begin_attribute(list, name, "stringValue");
    json_out_text(list->out, value);
    strbuf_add_text(list->out, "}}");
}

/* 64-bit numbers are strings in this JSON. */
static void add_integer(struct attributes *list, const char *name, int64_t value) {
    begin_attribute(list, name, "intValue");
    strbuf_format(list->out, "\"%lld\"}}", (long long)value);
}

static void add_number(struct attributes *list, const char *name, double value) {
    begin_attribute(list, name, "doubleValue");
    strbuf_format(list->out, "%.9g}}", value);
}

/* Adds the items of a comma-separated string as a list. */
static void add_list(struct attributes *list, const char *name, const char *items) {
    begin_attribute(list, name, "arrayValue");
    strbuf_add_text(list->out, "{\"values\":[");
    for (const char *at = items; *at;) {
        size_t length = strcspn(at, ",");
        strbuf_format(list->out, "%s{\"stringValue\":", at == items ? "" : ",");
        json_out_string(list->out, at, length);
        strbuf_add_char(list->out, '}');
        at += length + (at[length] == ',');
    }
    strbuf_add_text(list->out, "]}}}");
}

/* ---- what a request is ---- */

/* A client may send any method; all unknown ones share one name. */
static const char *method_of(const struct exchange *exchange) {
    static const char *const known[] = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(exchange->head.method, known[i]))
            return known[i];
    return "_OTHER";
}

static bool is_grpc(const struct exchange *exchange) {
    const char *type = exchange_field(exchange, "content-type");
    return type && !strncmp(type, "application/grpc", 16);
}

/* Returns the value of gen_ai.operation.name; NULL when the model is not asked. */
static const char *operation_of(const struct exchange *exchange) {
    static const char *const operations[][2] = {
        {"/chat/completions", "chat"},
        {"/completions", "text_completion"},
        {"/cambium.v1.Cambium/Generate", "text_completion"},
        {"/cambium.v1.Cambium/GenerateOnce", "text_completion"},
        {"/cambium.v1.Cambium/Score", "text_completion"},
    };
    const char *path = is_grpc(exchange) ? exchange->head.path : exchange->request->route;
    for (size_t i = 0; path && i < sizeof operations / sizeof *operations; i++)
        if (!strcmp(path, operations[i][0]))
            return operations[i][1];
    return NULL;
}

/* Returns the model's name in answers: the adapter that the request names as its model, or the base. */
static const char *model_of(const struct exchange *exchange) {
    const char *adapters = exchange->request->usage.adapters;
    return *adapters && !strchr(adapters, ',') ? adapters : exchange->request->server->model.name;
}

static const char *error_type(const struct exchange *exchange, bool is_whole) {
    const struct error_row *row = error_row(request_error(exchange));
    if (request_error(exchange) != ERROR_NONE)
        return row->code ? row->code : row->type;
    return is_whole ? NULL : "cancelled";
}

static void add_name(struct strbuf *out, const struct exchange *exchange) {
    const char *operation = operation_of(exchange);
    struct strbuf name = STRBUF_INIT;
    if (operation)
        strbuf_format(&name, "%s %s", operation, model_of(exchange));
    else if (is_grpc(exchange))
        strbuf_format(&name, "%.*s", MAX_PATH, exchange->head.path + (*exchange->head.path == '/'));
    else
        strbuf_format(&name, "%s%s%s", method_of(exchange), exchange->request->route ? " " : "",
                      exchange->request->route ? exchange->request->route : "");
    json_out_text(out, strbuf_text(&name));
    out->failed |= name.failed;
    strbuf_free(&name);
}

static void add_transport(struct attributes *list, const struct exchange *exchange) {
    const struct exchange_head *head = &exchange->head;
    char path[MAX_PATH + 1];
    snprintf(path, sizeof path, "%s", head->path);
    const char *slash = strrchr(path, '/');
    add_text(list, "http.request.method", method_of(exchange));
    add_text(list, "url.path", path);
    add_text(list, "url.scheme", head->is_tls ? "https" : "http");
    if (exchange->request->route)
        add_text(list, "http.route", exchange->request->route);
    if (exchange->status)
        add_integer(list, "http.response.status_code", exchange->status);
    add_text(list, "network.protocol.name", "http");
    add_text(list, "network.protocol.version", head->is_http2 ? "2" : "1.1");
    add_text(list, "client.address", head->peer);
    if (is_grpc(exchange) && slash && slash > path) {
        char service[MAX_PATH + 1];
        snprintf(service, sizeof service, "%.*s", (int)(slash - path - 1), path + 1);
        add_text(list, "rpc.system", "grpc");
        add_text(list, "rpc.service", service);
        add_text(list, "rpc.method", slash + 1);
        add_integer(list, "rpc.grpc.status_code", error_row(request_error(exchange))->grpc);
    }
}

static void add_model(struct attributes *list, const struct exchange *exchange, const char *operation, double now) {
    const struct request_usage *usage = &exchange->request->usage;
    add_text(list, "gen_ai.operation.name", operation);
    add_text(list, "gen_ai.provider.name", "cambium");
    if (!usage->is_there)
        return;
    add_text(list, "gen_ai.request.model", model_of(exchange));
    add_text(list, "gen_ai.response.model", model_of(exchange));
    add_text(list, "gen_ai.response.id", exchange->request->id);
    if (*usage->adapters)
        add_list(list, "cambium.adapters", usage->adapters);
    if (usage->max_tokens >= 0)
        add_integer(list, "gen_ai.request.max_tokens", usage->max_tokens);
    add_number(list, "gen_ai.request.temperature", usage->temperature);
    add_number(list, "gen_ai.request.top_p", usage->top_p);
    if (usage->choices != 1)
        add_integer(list, "gen_ai.request.choice.count", usage->choices);
    add_integer(list, "gen_ai.usage.input_tokens", usage->prompt_tokens);
    add_integer(list, "gen_ai.usage.output_tokens", usage->completion_tokens);
    add_integer(list, "gen_ai.usage.cache_read.input_tokens", usage->cached_tokens);
    struct strbuf reasons = STRBUF_INIT;
    for (int64_t i = 0; i < usage->end_count && i < REQUEST_ENDS; i++)
        strbuf_format(&reasons, "%s%s", i ? "," : "", usage->length_ends >> i & 1 ? "length" : "stop");
    if (reasons.length)
        add_list(list, "gen_ai.response.finish_reasons", strbuf_text(&reasons));
    list->out->failed |= reasons.failed;
    strbuf_free(&reasons);
    if (usage->started > 0)
        add_number(list, "gen_ai.latency.time_in_queue", usage->started - exchange->start);
    if (usage->first_token > 0)
        add_number(list, "gen_ai.server.time_to_first_token", usage->first_token - exchange->start);
    if (usage->first_token > 0 && usage->completion_tokens > 1)
        add_number(list, "gen_ai.server.time_per_output_token",
                   (now - usage->first_token) / (double)(usage->completion_tokens - 1));
}

/* ---- the span ---- */

static void add_place(struct strbuf *out, const struct exchange *exchange) {
    const struct trace *trace = &exchange->request->trace;
    char id[TRACE_ID_TEXT], span[TRACE_SPAN_TEXT], parent[TRACE_SPAN_TEXT], state[TRACE_STATE_TEXT];
    trace_hex(trace->id, sizeof trace->id, id);
    trace_hex(trace->span, sizeof trace->span, span);
    trace_hex(trace->parent, sizeof trace->parent, parent);
    strbuf_format(out, "\"traceId\":\"%s\",\"spanId\":\"%s\",", id, span);
    if (trace->has_parent)
        strbuf_format(out, "\"parentSpanId\":\"%s\",", parent);
    if (trace_state_text(&exchange->head, trace, state)) {
        strbuf_add_text(out, "\"traceState\":");
        json_out_text(out, state);
        strbuf_add_char(out, ',');
    }
    strbuf_format(out, "\"flags\":%d,", trace->flags | KNOWS_REMOTE | (trace->has_parent ? PARENT_IS_REMOTE : 0));
}

static void add_time(struct strbuf *out, const char *name, double seconds) {
    double whole = floor(seconds);
    strbuf_format(out, "\"%s\":\"%lld%09lld\",", name, (long long)whole, (long long)((seconds - whole) * 1e9));
}

void span_add(struct strbuf *out, const struct exchange *exchange, bool is_whole, double now, double wall) {
    struct attributes list = {.out = out};
    const char *operation = operation_of(exchange), *type = error_type(exchange, is_whole);
    strbuf_add_char(out, '{');
    add_place(out, exchange);
    strbuf_add_text(out, "\"name\":");
    add_name(out, exchange);
    strbuf_format(out, ",\"kind\":%d,", KIND_SERVER);
    add_time(out, "startTimeUnixNano", wall - (now - exchange->start));
    add_time(out, "endTimeUnixNano", wall);
    strbuf_add_text(out, "\"attributes\":[");
    add_transport(&list, exchange);
    if (operation)
        add_model(&list, exchange, operation, now);
    add_text(&list, "cambium.request.id", exchange->request->id);
    if (type)
        add_text(&list, "error.type", type);
    strbuf_add_char(out, ']');
    if (exchange->status >= 500 ||
        error_row(request_error(exchange))->http >= 500) /* a client's mistake is not the server's error */
        strbuf_format(out, ",\"status\":{\"code\":%d}", STATUS_ERROR);
    strbuf_add_char(out, '}');
}
