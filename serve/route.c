/* The table of paths, and the checks of every request before its handler: its id, the origin of a page, its key, then
 * path, method and type, in this order.
 *
 * Paths are listed without /v1; each works with and without it. */
#include "route-internal.h"

#include "jobs-internal.h"
#include "log.h"
#include "metrics.h"
#include "origin.h"
#include "otlp.h"
#include "span.h"

#include <sys/random.h>

enum {
    DATA = 1 << LISTENER_DATA,
    CONTROL = 1 << LISTENER_CONTROL,
    BOTH = DATA | CONTROL,
    METRICS = 1 << 2, /* on the data listener if the option allows it */
    /* flags, for a short table */
    IS_PUBLIC = ROUTE_IS_PUBLIC,
    IS_PROBE = ROUTE_IS_PROBE,
    HAS_REST = ROUTE_HAS_REST,
    MAY_BE_EMPTY = ROUTE_MAY_BE_EMPTY,
    IS_MESSAGES = ROUTE_IS_MESSAGES,
    IS_TUNING = ROUTE_IS_TUNING,
    IS_STREAM = ROUTE_IS_WORK | ROUTE_MAY_BE_STREAM,
    IS_TINKER = ROUTE_IS_WORK | ROUTE_IS_TINKER,
};

static route_begin describe;

/* clang-format off */
static const struct route_row rows[] = {
    {"POST", "/completions", BOTH, IS_STREAM, openai_completions, "Complete prompts", "CompletionBody", "Completion"},
    {"POST", "/chat/completions", BOTH, IS_STREAM, openai_chat, "Answer messages", "ChatBody", "Chat"},
    {"POST", "/responses", BOTH, IS_STREAM, openai_responses, "Make a response", "ResponsesBody", "Response"},
    {"POST", "/messages", BOTH, IS_STREAM | IS_MESSAGES, openai_messages, "Answer messages, as Anthropic",
     "MessagesBody", "Message"},
    {"POST", "/messages/count_tokens", BOTH, ROUTE_IS_WORK | IS_MESSAGES, openai_count_tokens,
     "Count the tokens of messages", "CountBody", "TokenCount"},
    {"POST", "/tokenize", BOTH, 0, openai_tokenize, "Turn a text into token ids", "TokenizeBody", "Tokens"},
    {"POST", "/detokenize", BOTH, 0, openai_detokenize, "Turn token ids into a text", "DetokenizeBody", "Text"},
    {"GET", "/models", BOTH, 0, openai_models, "List the base and its adapters", NULL, "Models"},
    {"GET", "/models/", BOTH, HAS_REST, openai_model, "Show the base or an adapter", NULL, "Model"},
    {"DELETE", "/models/", BOTH, HAS_REST | IS_TUNING, openai_model_delete, "Delete a tuned model", NULL, "Deleted"},
    {"GET", "/files", BOTH, IS_TUNING, files_list, "List files", NULL, "Files"},
    {"POST", "/files", BOTH, IS_TUNING | ROUTE_IS_FORM, files_create, "Upload a file", "FileBody", "File"},
    {"GET", "/files/", BOTH, HAS_REST | IS_TUNING, files_get, "Show a file, or with /content its bytes", NULL, "File"},
    {"DELETE", "/files/", BOTH, HAS_REST | IS_TUNING, files_delete, "Delete a file", NULL, "Deleted"},
    {"GET", "/fine_tuning/jobs", BOTH, IS_TUNING, jobs_list, "List tuning jobs", NULL, "Jobs"},
    {"POST", "/fine_tuning/jobs", BOTH, IS_TUNING | ROUTE_IS_WORK, jobs_create, "Begin a tuning job", "JobBody",
     "Job"},
    {"GET", "/fine_tuning/jobs/", BOTH, HAS_REST | IS_TUNING, jobs_get,
     "Show a job, or with /events or /checkpoints a list", NULL, "JobOrList"},
    {"POST", "/fine_tuning/jobs/", BOTH, HAS_REST | IS_TUNING | MAY_BE_EMPTY, jobs_act,
     "With /cancel, /pause or /resume: change a job", "Empty", "Job"},
    {"GET", "/tokenizer_info", BOTH, 0, openai_tokenizer_info, "Show end-of-text and template", NULL, "TokenizerInfo"},
    {"GET", "/version", BOTH, 0, route_version, "Show the program's version", NULL, "Version"},
    {"GET", "/openapi.json", BOTH, 0, describe, "Describe these routes", NULL, "Description"},
    {"GET", "/health", BOTH, IS_PUBLIC | IS_PROBE, route_health, "Check that the process lives", NULL, "Status"},
    {"GET", "/ready", BOTH, IS_PUBLIC | IS_PROBE, route_ready, "Check that requests are served", NULL, "Status"},
    {"GET", "/", BOTH, IS_PUBLIC, page_get, "Get the page", NULL, "text/html"},
    {"GET", "/metrics", CONTROL | METRICS, IS_PROBE, metrics_get, "Get metrics for Prometheus", NULL, "text/plain"},
    {"GET", "/adapters", CONTROL, 0, control_adapters, "List adapters", NULL, "Adapters"},
    {"POST", "/adapters", CONTROL, 0, control_change, "Load an adapter", "LoadBody", "Adapter"},
    {"PUT", "/adapters/", CONTROL, HAS_REST | MAY_BE_EMPTY, control_change, "Replace an adapter", "ReplaceBody",
     "Adapter"},
    {"DELETE", "/adapters/", CONTROL, HAS_REST, control_change, "Unload an adapter", NULL, "Empty"},
    {"POST", "/drain", CONTROL, MAY_BE_EMPTY, control_drain, "Stop the server in stages", "DrainBody", "Empty"},
    {"POST", "/load_lora_adapter", CONTROL, 0, control_change, "Load an adapter, as vLLM", "VllmLoadBody", "text/plain"},
    {"POST", "/unload_lora_adapter", CONTROL, 0, control_change, "Unload an adapter, as vLLM", "VllmUnloadBody",
     "text/plain"},
    {"POST", "/api/v1/client/config", BOTH, IS_TINKER, tinker_post, "Get settings of Tinker's client", "Anything",
     "Anything"},
    {"POST", "/api/v1/client/dynamic_config", BOTH, IS_TINKER, tinker_post, "Get settings that may change", "Anything",
     "Anything"},
    {"GET", "/api/v1/get_server_capabilities", BOTH, IS_TINKER, tinker_capabilities, "List bases to tune", NULL,
     "Anything"},
    {"POST", "/api/v1/create_session", BOTH, IS_TINKER, tinker_post, "Begin a session", "Anything", "Anything"},
    {"POST", "/api/v1/session_heartbeat", BOTH, IS_TINKER, tinker_post, "Keep a session", "Anything", "Anything"},
    {"POST", "/api/v1/sessions/", BOTH, IS_TINKER | HAS_REST, tinker_post, "End a session", "Anything", "Anything"},
    {"POST", "/api/v1/telemetry", BOTH, IS_TINKER, tinker_post, "Take telemetry, and keep none of it", "Anything",
     "Anything"},
    {"POST", "/api/v1/create_model", BOTH, IS_TINKER, tinker_post, "Make a training run", "Anything", "Anything"},
    {"POST", "/api/v1/get_info", BOTH, IS_TINKER, tinker_post, "Show a training run", "Anything", "Anything"},
    {"POST", "/api/v1/forward_backward", BOTH, IS_TINKER, tinker_forward_backward, "Run a pass over data", NULL,
     "Anything"},
    {"POST", "/api/v1/optim_step", BOTH, IS_TINKER, tinker_post, "Update the weights", "Anything", "Anything"},
    {"POST", "/api/v1/save_weights", BOTH, IS_TINKER, tinker_post, "Save weights and the optimizer", "Anything",
     "Anything"},
    {"POST", "/api/v1/save_weights_for_sampler", BOTH, IS_TINKER, tinker_post, "Save weights for samples", "Anything",
     "Anything"},
    {"POST", "/api/v1/load_weights", BOTH, IS_TINKER, tinker_post, "Load saved weights", "Anything", "Anything"},
    {"POST", "/api/v1/unload_model", BOTH, IS_TINKER, tinker_post, "End a training run", "Anything", "Anything"},
    {"POST", "/api/v1/create_sampling_session", BOTH, IS_TINKER, tinker_post, "Make a sampler", "Anything", "Anything"},
    {"GET", "/api/v1/samplers/", BOTH, IS_TINKER | HAS_REST, tinker_sampler, "Show a sampler", NULL, "Anything"},
    {"POST", "/api/v1/asample", BOTH, IS_TINKER, tinker_post, "Draw samples", "Anything", "Anything"},
    {"POST", "/api/v1/retrieve_future", BOTH, IS_TINKER, tinker_post, "Fetch a result", "Anything", "Anything"},
    {"POST", "/api/v1/cancel_future", BOTH, IS_TINKER, tinker_post, "Cancel a sample", "Anything", "Anything"},
    {"POST", "/api/v1/weights_info", BOTH, IS_TINKER, tinker_post, "Show saved weights", "Anything", "Anything"},
    {"GET", "/api/v1/training_runs", BOTH, IS_TINKER, tinker_training_runs, "List training runs", NULL, "Anything"},
    {"GET", "/api/v1/training_runs/", BOTH, IS_TINKER | HAS_REST, tinker_training_run, "Show a run or its weights", NULL,
     "Anything"},
    {"DELETE", "/api/v1/training_runs/", BOTH, IS_TINKER | HAS_REST, tinker_training_run, "Remove saved weights", NULL,
     "Anything"},
    {"GET", "/api/v1/checkpoints", BOTH, IS_TINKER, tinker_checkpoints, "List saved weights", NULL, "Anything"},
};
/* clang-format on */
enum { ROWS = sizeof rows / sizeof *rows };

static const struct exchange_handler nobody = {.on_close = NULL};

/* ---- the path ---- */

static bool is_offered(const struct exchange *exchange, const struct route_row *row) {
    bool has_metrics = exchange->request->server->options->metrics_on_data != SERVE_METRICS_OFF;
    if (row->flags & ROUTE_IS_TUNING && !exchange->request->server->jobs)
        return false;
    if (row->flags & ROUTE_IS_TINKER && !exchange->request->server->tinker)
        return false;
    return row->listeners & (1u << exchange->head.listener) || (row->listeners & METRICS && has_metrics);
}

/* Finds the row for path and method. Otherwise returns NULL, with the path's methods in *allowed: "" when the path does
 * not exist. */
static const struct route_row *find_row(const struct exchange *exchange, struct strbuf *allowed) {
    const char *path = route_path(exchange);
    for (size_t i = 0; i < ROWS; i++) {
        size_t length = strlen(rows[i].path);
        bool is_same = rows[i].flags & HAS_REST ? !strncmp(path, rows[i].path, length) && path[length]
                                                : !strcmp(path, rows[i].path);
        if (!is_same || !is_offered(exchange, &rows[i]))
            continue;
        /* HEAD is GET; the transport omits the body. */
        if (!strcmp(exchange->head.method, rows[i].method) ||
            (!strcmp(exchange->head.method, "HEAD") && !strcmp(rows[i].method, "GET")))
            return &rows[i];
        strbuf_format(allowed, "%s%s%s", allowed->length ? ", " : "", rows[i].method,
                      strcmp(rows[i].method, "GET") ? "" : ", HEAD");
    }
    return NULL;
}

/* ---- ids ---- */

static void add_hex(char out[17], uint64_t number) {
    for (int i = 15; i >= 0; i--, number >>= 4)
        out[i] = "0123456789abcdef"[number & 15];
    out[16] = 0;
}

static void take_id(struct exchange *exchange) {
    const char *given = exchange_field(exchange, "x-request-id");
    size_t length = given ? strlen(given) : 0;
    bool is_good = length > 0 && length < REQUEST_ID_BYTES;
    for (size_t i = 0; i < length && is_good; i++)
        is_good = given[i] >= 0x20 && given[i] < 0x7f;
    if (is_good) {
        memcpy(exchange->request->id, given, length + 1);
        return;
    }
    struct server *server = exchange->request->server;
    while (!server->first_id) /* random, so that two servers' ids differ */
        if (getrandom(&server->first_id, sizeof server->first_id, 0) != sizeof server->first_id)
            memcpy(&server->first_id, &exchange->start, sizeof exchange->start);
    add_hex(exchange->request->id, server->first_id);
    add_hex(exchange->request->id + 16, ++server->last_id);
}

/* ---- pages of other origins ---- */

static void answer_options(struct exchange *exchange) {
    struct strbuf allowed = STRBUF_INIT;
    find_row(exchange, &allowed); /* no row has this method */
    struct field fields[4] = {field_of("allow", allowed.length ? strbuf_text(&allowed) : "OPTIONS")};
    size_t count = 1;
    const char *asked = exchange_field(exchange, "access-control-request-headers");
    if (exchange->request->cors_origin) {
        fields[count++] = field_of("access-control-allow-methods", "GET, HEAD, POST, PUT, DELETE");
        fields[count++] = field_of("access-control-max-age", "600");
        if (asked)
            fields[count++] = field_of("access-control-allow-headers", asked);
    }
    if (!exchange_begin(exchange, 200, fields, count, 0))
        exchange_end(exchange, NULL, 0);
    strbuf_free(&allowed);
}

/* ---- all together ---- */

/* Sends its span if its trace is sampled. */
static void send_span(const struct exchange *exchange, bool is_whole) {
    struct otlp *otlp = exchange->request->server->otlp;
    struct strbuf span = STRBUF_INIT;
    if (!otlp || !(exchange->request->trace.flags & TRACE_SAMPLED))
        return;
    span_add(&span, exchange, is_whole, clock_seconds(), clock_wall_seconds());
    if (span.failed)
        otlp_drop(otlp);
    else
        otlp_add(otlp, span.data, span.length);
    strbuf_free(&span);
}

static void on_closed(struct exchange *exchange, bool is_whole) {
    if (exchange->head.listener == LISTENER_DATA && !exchange->request->is_endless)
        exchange->request->server->exchanges--;
    bool is_well = is_whole && exchange->status < 400 && !request_error(exchange);
    if (exchange->request->is_probe && is_well)
        return;
    log_request(exchange, is_whole);
    send_span(exchange, is_whole);
}

/* Clients of Anthropic's API send the key as x-api-key. */
static bool is_key_of(const struct keys *keys, struct exchange *exchange) {
    char value[KEYS_KEY_BYTES + 16];
    const char *key = exchange_field(exchange, "x-api-key");
    bool is_found = keys_find(keys, exchange_field(exchange, "authorization"), &exchange->request->client);
    if (!is_found && key && strlen(key) < KEYS_KEY_BYTES) {
        snprintf(value, sizeof value, "Bearer %s", key);
        is_found = keys_find(keys, value, &exchange->request->client);
    }
    exchange->client = exchange->request->client.client;
    return is_found;
}

/* Keys of metrics open /metrics and nothing else. On the data listener only they open it; on control the listener's
 * keys open it too. */
static bool has_key(struct exchange *exchange, const struct route_row *row) {
    const struct server *server = exchange->request->server;
    const struct keys *keys = server->keys[exchange->head.listener];
    const struct keys *metrics_keys = row && row->listeners & METRICS ? server->keys[SERVER_METRICS_KEYS] : NULL;
    if (metrics_keys && exchange->head.listener == LISTENER_DATA)
        return is_key_of(metrics_keys, exchange);
    return !keys || is_key_of(keys, exchange) || (metrics_keys && is_key_of(metrics_keys, exchange));
}

/* Returns whether the server takes work; otherwise *error says why not. */
static bool takes_work(const struct server *server, struct error *error) {
    if (server->has_failed)
        error_set(error, ERROR_ENGINE_FAILED, NULL, "the engine has failed");
    else if (server->is_draining)
        error_set(error, ERROR_DRAINING, NULL, "the server is about to stop");
    return !server->has_failed && !server->is_draining;
}

static void begin_row(struct exchange *exchange, const struct route_row *row, const struct strbuf *allowed) {
    struct error error;
    const char *path = exchange->head.path, *method = exchange->head.method;
    /* A page of another origin can send any other type without a preflight. */
    const char *type = exchange_field(exchange, "content-type");
    if (!row && !allowed->length)
        error_set(&error, ERROR_ROUTE_NOT_FOUND, NULL, "there is no %.200s", path);
    else if (!row)
        error_set(&error, ERROR_METHOD, NULL, "%.200s does not take %.20s", path, method);
    else if (row->body && type && !(row->flags & ROUTE_IS_FORM) && !route_is_type(type, "application/json"))
        error_set(&error, ERROR_MEDIA_TYPE, NULL, "expected a body of type application/json");
    else if ((!(row->flags & ROUTE_IS_TINKER) || jobs_may_tune(exchange, &error)) &&
             (!(row->flags & ROUTE_IS_WORK) || takes_work(exchange->request->server, &error))) {
        exchange->request->is_probe = row->flags & IS_PROBE;
        row->begin(exchange);
        return;
    }
    route_refuse(exchange, &error, row || !allowed->length ? NULL : strbuf_text(allowed));
}

static bool is_public(const struct exchange *exchange, const struct route_row *row) {
    static const char health[] = "/grpc.health.v1.Health/";
    if (route_is_grpc(exchange))
        return !strncmp(exchange->head.path, health, sizeof health - 1);
    bool is_open = exchange->head.listener == LISTENER_DATA &&
                   exchange->request->server->options->metrics_on_data == SERVE_METRICS_OPEN;
    return row && (row->flags & IS_PUBLIC || (row->listeners & METRICS && is_open));
}

/* ---- their description ---- */

static bool needs_key(const struct exchange *exchange, const struct route_row *row) {
    const struct server *server = exchange->request->server;
    bool has_metrics_keys = row->listeners & METRICS && server->keys[SERVER_METRICS_KEYS];
    bool is_data = exchange->head.listener == LISTENER_DATA;
    return !is_public(exchange, row) && (server->keys[exchange->head.listener] || (is_data && has_metrics_keys));
}

/* GET /openapi.json: the routes of this listener. */
static void describe(struct exchange *exchange) {
    struct openapi_route routes[ROWS];
    size_t count = 0;
    for (size_t i = 0; i < ROWS; i++)
        if (is_offered(exchange, &rows[i]))
            routes[count++] = (struct openapi_route){.row = &rows[i], .needs_key = needs_key(exchange, &rows[i])};
    openapi_answer(exchange, routes, count);
}

/* ---- all together ---- */

/* A permitted page's OPTIONS comes without a key, because browsers send none. */
static void begin_http(struct exchange *exchange) {
    struct strbuf allowed = STRBUF_INIT;
    const struct route_row *row = find_row(exchange, &allowed);
    exchange->request->route = row ? row->path : NULL;
    bool is_options = !strcmp(exchange->head.method, "OPTIONS");
    if (!is_public(exchange, row) && !(is_options && exchange->request->cors_origin) && !has_key(exchange, row)) {
        route_fail(exchange, AN_ERROR(ERROR_KEY, NULL,
                                      "there is no key in the authorization field, or not one of this server's"));
    } else if (is_options)
        answer_options(exchange);
    else
        begin_row(exchange, row, &allowed);
    strbuf_free(&allowed);
}

static void begin_grpc(struct exchange *exchange) {
    exchange->request->is_probe = is_public(exchange, NULL);
    if (exchange->request->is_probe || has_key(exchange, NULL)) {
        grpc_begin(exchange);
        return;
    }
    route_fail(exchange,
               AN_ERROR(ERROR_KEY, NULL, "there is no key in the authorization field, or not one of this server's"));
}

/* Returns false when the header is faulty, or when it comes from a page that is not permitted. */
static bool may_ask(const struct exchange *exchange, struct error *error) {
    if (exchange->head.refusal)
        return error_set(error, request_error_of(exchange->head.refusal), NULL, "%s", exchange->head.problem);
    return origin_check(exchange, error);
}

void route_exchange(void *router, struct exchange *exchange) {
    struct server *server = router;
    struct error error;
    exchange->request->server = server;
    exchange->handler = &nobody;
    exchange->request->client = (struct key_holder){
        .name = "", .weight = 1, .least_priority = INT32_MIN, .tuning_jobs = -1, .tuning_bytes = -1};
    exchange->begin = request_begin_answer;
    exchange->on_closed = on_closed;
    server->exchanges += exchange->head.listener == LISTENER_DATA;
    take_id(exchange);
    trace_begin(&exchange->head, server->otlp != NULL, &exchange->request->trace);
    exchange->request->cors_origin = origin_allowed(exchange);
    if (!may_ask(exchange, &error))
        route_refuse(exchange, &error, NULL);
    else if (route_is_grpc(exchange))
        begin_grpc(exchange);
    else
        begin_http(exchange);
}
