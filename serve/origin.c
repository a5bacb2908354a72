/* Origins and names: what a browser's request reveals about its page (Fetch Standard; RFC 6454). */
#include "origin.h"

#include <strings.h>

static const char *skip_scheme(const char *origin) {
    if (!strncmp(origin, "http://", 7))
        return origin + 7;
    return strncmp(origin, "https://", 8) ? NULL : origin + 8;
}

/* Returns the length of the name in "NAME:PORT"; an invalid port counts as part of the name. */
static size_t name_length(const char *host) {
    const char *bracket = strchr(host, ']'), *colon = strchr(bracket ? bracket : host, ':');
    bool has_port = colon && colon[1] && strspn(colon + 1, "0123456789") == strlen(colon + 1);
    return has_port ? (size_t)(colon - host) : strlen(host);
}

static bool is_name(const char *host, const char *name) {
    size_t length = name_length(host);
    return length == strlen(name) && !strncasecmp(host, name, length);
}

/* Addresses of 127/8 are safe: nobody else can own them. */
static bool is_loopback(const char *host) {
    bool is_number = !strncmp(host, "127.", 4) && strspn(host, "0123456789.") == name_length(host);
    return is_number || is_name(host, "localhost") || is_name(host, "[::1]");
}

const char *origin_allowed(const struct exchange *exchange) {
    const struct serve_options *options = exchange->request->server->options;
    const char *origin = exchange_field(exchange, "origin"), *host = origin ? skip_scheme(origin) : NULL;
    for (size_t i = 0; origin && i < options->cors_origins.count; i++) {
        const char *allowed = options->cors_origins.items[i];
        if (strcmp(allowed, "localhost") ? !strcmp(allowed, origin) : host && is_loopback(host))
            return origin;
    }
    return NULL;
}

bool origin_is_local(const char *address) {
    return !strncmp(address, "unix:", 5) || !strncmp(address, "127.", 4) || !strncmp(address, "[::1]:", 6) ||
           !strncmp(address, "localhost:", 10);
}

bool origin_checks_names(const struct serve_options *options, const char *address, bool has_keys) {
    if (has_keys || !strncmp(address, "unix:", 5))
        return false;
    return origin_is_local(address) || options->allowed_hosts.count > 0;
}

static bool is_named(const struct serve_options *options, const char *host) {
    for (size_t i = 0; i < options->allowed_hosts.count; i++)
        if (is_name(host, options->allowed_hosts.items[i]))
            return true;
    return is_loopback(host);
}

/* True when the page is not from this server. The origin of a file or a sandbox is "null", which belongs to nobody. */
static bool is_foreign(const struct exchange *exchange) {
    const char *origin = exchange_field(exchange, "origin"), *named = origin ? skip_scheme(origin) : NULL;
    const char *host = exchange_field(exchange, "host"), *site = exchange_field(exchange, "sec-fetch-site");
    if (exchange->request->cors_origin)
        return false;
    return (origin && !(host && named && !strcasecmp(host, named))) || (site && !strcasecmp(site, "cross-site"));
}

/* A link to a page may be followed from anywhere. */
static bool is_change(const char *method) {
    return strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0 && strcmp(method, "OPTIONS") != 0;
}

bool origin_check(const struct exchange *exchange, struct error *error) {
    const struct exchange_head *head = &exchange->head;
    const char *host = exchange_field(exchange, "host");
    bool is_control = head->listener == LISTENER_CONTROL;
    if (exchange->request->server->checks_names[head->listener] && host &&
        !is_named(exchange->request->server->options, host))
        return error_set(error, ERROR_HOST, NULL, "'%.200s' is not a name of this server; --allowed-host adds names",
                         host);
    bool asks_control = is_control && exchange_field(exchange, "origin") && strcmp(head->method, "OPTIONS") != 0;
    if (!(is_change(head->method) || asks_control) || !is_foreign(exchange))
        return true;
    return error_set(error, ERROR_PERMISSION, NULL, "a page of another origin may not ask %s",
                     is_control ? "the control listener" : "this server; --cors-origin names those that may");
}
