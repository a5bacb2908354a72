/* The common part of both protocols: addresses, connections, and the times of a text. */
#include "client-internal.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <time.h>

/* ---- addresses ---- */

/* "http://HOST:PORT/..." or "HOST:PORT"; [V6] in brackets. */
static int read_url(const char *url, struct client *client) {
    static const char scheme[] = "http://";
    const char *at = strncmp(url, scheme, sizeof scheme - 1) ? url : url + sizeof scheme - 1;
    size_t length = strcspn(at, "/");
    const char *end = at + length, *colon = memrchr(at, ':', length);
    if (strstr(at, "://"))
        return status_fail(STATUS_USAGE, "%s: only http:// can be asked", url);
    char *rest = NULL;
    long port = colon ? strtol(colon + 1, &rest, 10) : 0;
    if (!colon || rest != end || port < 1 || port > 65535)
        return status_fail(STATUS_USAGE, "%s: expected http://HOST:PORT", url);
    bool is_bracketed = *at == '[' && colon > at + 1 && colon[-1] == ']';
    at += is_bracketed;
    length = (size_t)(colon - at) - is_bracketed;
    if (length == 0 || length >= sizeof client->host)
        return status_fail(STATUS_USAGE, "%s: expected http://HOST:PORT", url);
    memcpy(client->host, at, length);
    client->host[length] = 0;
    client->port = (int)port;
    return STATUS_OK;
}

struct bufferevent *client_connect(struct client *client) {
    struct bufferevent *stream = bufferevent_socket_new(client->base, -1, BEV_OPT_CLOSE_ON_FREE);
    if (!stream) {
        status_no_memory();
        return NULL;
    }
    if (bufferevent_socket_connect_hostname(stream, NULL, AF_UNSPEC, client->host, client->port)) {
        status_fail(STATUS_IO, "cannot connect to %s:%d", client->host, client->port);
        bufferevent_free(stream);
        return NULL;
    }
    int one = 1;
    setsockopt(bufferevent_getfd(stream), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return stream;
}

/* ---- texts ---- */

void client_text_token(struct client_text *text) {
    double now = clock_seconds(), gap = text->chunks ? now - text->last : -1;
    if (!text->chunks)
        text->first = now;
    text->last = now;
    text->chunks++;
    if (text->on_token)
        text->on_token(text, gap);
}

void client_text_end(struct client_text *text, const char *error) {
    text->is_done = true;
    text->wire = NULL;
    text->has_failed = error != NULL;
    snprintf(text->error, sizeof text->error, "%s", error ? error : "");
    if (!text->tokens)
        text->tokens = text->chunks;
}

/* ---- the client ---- */

int client_open(struct event_base *base, const char *url, enum client_protocol protocol, struct client **out) {
    struct client *client = *out = calloc(1, sizeof *client);
    TRY(status_allocated(client));
    client->base = base;
    client->wire = protocol == CLIENT_GRPC ? &client_grpc : &client_http;
    int status = read_url(url, client);
    if (status) {
        free(client);
        *out = NULL;
    }
    return status;
}

void client_close(struct client *client) {
    if (!client)
        return;
    client_http.close(client);
    client_grpc.close(client);
    free(client);
}

static double thread_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static const struct client_wire *wire_of(const struct client *client, const struct client_text *text) {
    return text->method ? &client_http : client->wire;
}

int client_ask(struct client *client, struct client_text *text) {
    double start = thread_seconds();
    text->asked = clock_seconds();
    text->first = text->last = 0;
    text->chunks = text->tokens = 0;
    text->is_done = text->has_failed = false;
    int status = wire_of(client, text)->ask(client, text);
    client->seconds += thread_seconds() - start;
    return status;
}

void client_leave(struct client *client, struct client_text *text) {
    if (text->wire)
        wire_of(client, text)->leave(client, text);
    client_text_end(text, NULL);
}

int client_turn(struct client *client) {
    double start = thread_seconds();
    int ran = event_base_loop(client->base, EVLOOP_ONCE);
    client->seconds += thread_seconds() - start;
    return ran < 0 ? status_fail(STATUS_IO, "cannot wait for answers") : STATUS_OK;
}

int client_await(struct client *client, const struct client_text *text) {
    int status = STATUS_OK;
    while (!text->is_done && !status)
        status = client_turn(client);
    return status || !text->has_failed ? status : status_fail(STATUS_IO, "a request failed: %s", text->error);
}

void client_url(const struct client *client, const char *path, char *out, size_t bytes) {
    bool is_v6 = strchr(client->host, ':') != NULL;
    snprintf(out, bytes, "http://%s%s%s:%d%s", is_v6 ? "[" : "", client->host, is_v6 ? "]" : "", client->port, path);
}

double client_seconds(const struct client *client) {
    return client->seconds;
}
