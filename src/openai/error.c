/* The table of errors, and their JSON. */
#include "error.h"

#include "json_out.h"

#include "base/base.h"

#include <stdarg.h>

static const char invalid[] = "invalid_request_error", not_found[] = "not_found_error", server_fault[] = "server_error";

static const struct error_row rows[ERROR_COUNT] = {
    [ERROR_NONE] = {200, "", NULL, 0},
    [ERROR_ARGUMENT] = {400, invalid, NULL, 3},
    [ERROR_CONTEXT_LENGTH] = {400, invalid, "context_length_exceeded", 11},
    [ERROR_CONSTRAINT_INVALID] = {400, invalid, "constraint_invalid", 3},
    [ERROR_CONSTRAINT_UNSUPPORTED] = {400, invalid, "constraint_unsupported", 3},
    [ERROR_CONSTRAINT_TOO_LARGE] = {400, invalid, "constraint_too_large", 3},
    [ERROR_KEY] = {401, "authentication_error", "invalid_api_key", 16},
    [ERROR_PERMISSION] = {403, "authentication_error", "permission_denied", 7},
    [ERROR_MODEL_NOT_FOUND] = {404, not_found, "model_not_found", 5},
    [ERROR_ADAPTER_NOT_FOUND] = {404, not_found, "adapter_not_found", 5},
    [ERROR_OBJECT_NOT_FOUND] = {404, not_found, "object_not_found", 5},
    [ERROR_ROUTE_NOT_FOUND] = {404, not_found, "route_not_found", 12},
    [ERROR_METHOD] = {405, invalid, "method_not_allowed", 12},
    [ERROR_ADAPTER_EXISTS] = {409, "conflict_error", "adapter_exists", 6},
    [ERROR_GENERATION_CHANGED] = {409, "conflict_error", "generation_changed", 10},
    [ERROR_BODY_SIZE] = {413, invalid, "body_too_large", 8},
    [ERROR_HEADER_SIZE] = {431, invalid, "headers_too_large", 8},
    [ERROR_MEDIA_TYPE] = {415, invalid, "unsupported_media_type", 13},
    [ERROR_ADAPTER_INVALID] = {422, invalid, "adapter_invalid", 9},
    [ERROR_HOST] = {421, invalid, "host_not_allowed", 7},
    [ERROR_OVERLOADED] = {429, "rate_limit_error", "overloaded", 8},
    [ERROR_SLOW_READER] = {503, server_fault, "slow_reader", 8},
    [ERROR_DRAINING] = {503, server_fault, "draining", 14},
    [ERROR_ENGINE_FAILED] = {503, server_fault, "engine_failed", 14},
    [ERROR_DEADLINE] = {504, "timeout_error", "deadline", 4},
    [ERROR_ADAPTER_MEMORY] = {507, server_fault, "adapter_memory_full", 8},
    [ERROR_TUNING_DISK] = {507, server_fault, "tuning_disk_full", 8},
    [ERROR_CANCELLED] = {499, server_fault, "cancelled", 1},
    [ERROR_INTERNAL] = {500, server_fault, "internal_error", 13},
};

const struct error_row *error_row(enum error_case which) {
    return &rows[which];
}

static void set(struct error *error, enum error_case which, const char *param, const char *format, va_list list) {
    *error = (struct error){.which = which, .retry_after_ms = which == ERROR_OVERLOADED ? 1000 : 0};
    snprintf(error->param, sizeof error->param, "%s", param ? param : "");
    vsnprintf(error->text, sizeof error->text, format, list);
    text_make_line(error->text); /* it may quote a request */
}

bool error_set(struct error *error, enum error_case which, const char *param, const char *format, ...) {
    va_list list;
    va_start(list, format);
    set(error, which, param, format, list);
    va_end(list);
    return false;
}

const struct error *error_make(struct error *error, enum error_case which, const char *param, const char *format, ...) {
    va_list list;
    va_start(list, format);
    set(error, which, param, format, list);
    va_end(list);
    return error;
}

enum error_case error_of_refusal(enum grammar_refusal refusal) {
    static const enum error_case cases[] = {[GRAMMAR_FINE] = ERROR_INTERNAL,
                                            [GRAMMAR_INVALID] = ERROR_CONSTRAINT_INVALID,
                                            [GRAMMAR_UNSUPPORTED] = ERROR_CONSTRAINT_UNSUPPORTED,
                                            [GRAMMAR_TOO_LARGE] = ERROR_CONSTRAINT_TOO_LARGE};
    return cases[refusal];
}

bool error_of_status(struct error *error, enum error_case which, const char *param) {
    return error_set(error, which, param, "%s", status_text());
}

/* ---- paths ---- */

static bool begins_word(const char *text, const char *at) {
    return at == text || strchr(" '\"([=:,", at[-1]);
}

/* Returns how many bytes of the path at `at` are removed: the root and its slash, or everything before an absolute
 * path's last name. */
static size_t hidden_length(const char *at, const char *root) {
    size_t length = root ? strlen(root) : 0, whole = strcspn(at, " '\":,)]");
    while (length > 1 && root[length - 1] == '/')
        length--;
    if (length && !strncmp(at, root, length) && at[length] == '/')
        return length + strspn(at + length, "/");
    if (*at != '/' || whole == 1)
        return 0;
    while (whole > 0 && at[whole - 1] != '/')
        whole--;
    return whole;
}

void error_hide_paths(struct error *error, const char *root) {
    char *to = error->text;
    for (const char *at = error->text; *at;) {
        size_t hidden = begins_word(error->text, at) ? hidden_length(at, root) : 0;
        at += hidden;
        if (*at)
            *to++ = *at++;
    }
    *to = '\0';
}

/* ---- JSON: texts may repeat a client's bytes, cut at any place ---- */

static void add_string_or_null(struct strbuf *out, const char *text) {
    if (text && *text)
        json_out_text(out, text);
    else
        strbuf_add_text(out, "null");
}

void error_add_json(const struct error *error, struct strbuf *out) {
    const struct error_row *row = &rows[error->which];
    strbuf_add_text(out, "{\"error\":{\"message\":");
    json_out_text(out, error->text);
    strbuf_format(out, ",\"type\":\"%s\",\"param\":", row->type);
    add_string_or_null(out, error->param);
    strbuf_add_text(out, ",\"code\":");
    add_string_or_null(out, row->code);
    strbuf_add_text(out, "}}");
}

void error_add_message(const struct error *error, struct strbuf *out) {
    static const struct {
        int http;
        const char *type;
    } types[] = {{401, "authentication_error"},
                 {403, "permission_error"},
                 {404, "not_found_error"},
                 {413, "request_too_large"},
                 {429, "rate_limit_error"},
                 {503, "overloaded_error"},
                 {0, NULL}};
    int http = rows[error->which].http, i = 0;
    while (types[i].http && types[i].http != http)
        i++;
    strbuf_format(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":",
                  types[i].type ? types[i].type
                  : http < 500  ? "invalid_request_error"
                                : "api_error");
    json_out_text(out, error->text);
    strbuf_add_text(out, "}}");
}
