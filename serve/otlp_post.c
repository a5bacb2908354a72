/* A small client of HTTP/1.1: one request on a connection that closes after it; every wait is limited. */
#include "otlp_post.h"

#include "base/base.h"
#include "base/json.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

static const double post_seconds = 5, ending_seconds = 1;
enum { SLICE_MS = 50, MAX_ANSWER = 65536 };

/* ---- the URL ---- */

static int fail_url(const char *url, const char *what) {
    return status_fail(STATUS_USAGE, "--otlp-endpoint %.200s: %s", url, what);
}

static bool is_port(const char *text, size_t length) {
    long value = 0;
    for (size_t i = 0; i < length; i++)
        value = text[i] >= '0' && text[i] <= '9' && value < 100000 ? value * 10 + text[i] - '0' : 100000;
    return length && value > 0 && value < 65536;
}

/* Finds the end of the host: the port, or `end`. Brackets belong to the authority, not to the host. */
static bool read_host(const char *at, const char *end, struct otlp_target *target, const char **port) {
    const char *close = *at == '[' ? memchr(at, ']', (size_t)(end - at)) : NULL;
    const char *colon = close ? close + 1 : memchr(at, ':', (size_t)(end - at));
    if (*at == '[' && !close)
        return false;
    if (!colon || colon > end)
        colon = end;
    target->host = close ? strndup(at + 1, (size_t)(close - at - 1)) : strndup(at, (size_t)(colon - at));
    *port = colon;
    return !target->host || (*target->host && (colon == end || *colon == ':'));
}

int otlp_target_read(const char *url, struct otlp_target *target) {
    static const char scheme[] = "http://", route[] = "/v1/traces";
    const char *at = url + sizeof scheme - 1, *port;
    *target = (struct otlp_target){0};
    if (!strncasecmp(url, "https://", 8))
        return fail_url(url, "https is not spoken here; name a collector on this host or network by http://");
    if (strncasecmp(url, scheme, sizeof scheme - 1))
        return fail_url(url, "expected http://HOST[:PORT][/PATH]");
    for (const char *c = url; *c; c++)
        if (*c <= ' ' || *c >= 0x7f || strchr("@?#\"\\", *c))
            return fail_url(url, "expected http://HOST[:PORT][/PATH], without a user, a query or blanks");
    const char *end = at + strcspn(at, "/");
    size_t length = strlen(end);
    if (!read_host(at, end, target, &port))
        return fail_url(url, "expected a host after http://");
    if (port < end && !is_port(port + 1, (size_t)(end - port - 1)))
        return fail_url(url, "expected a port from 1 to 65535 after the host");
    while (length && end[length - 1] == '/')
        length--;
    bool is_whole = length >= sizeof route - 1 && !memcmp(end + length - sizeof route + 1, route, sizeof route - 1);
    struct strbuf path = STRBUF_INIT;
    strbuf_format(&path, "%.*s%s", (int)length, end, is_whole ? "" : route);
    target->path = path.failed ? NULL : path.data;
    target->authority = strndup(at, (size_t)(end - at));
    target->port = port < end ? strndup(port + 1, (size_t)(end - port - 1)) : strdup("80");
    if (target->host && target->path && target->authority && target->port)
        return STATUS_OK;
    return status_no_memory();
}

void otlp_target_free(struct otlp_target *target) {
    free(target->host);
    free(target->port);
    free(target->authority);
    free(target->path);
    *target = (struct otlp_target){0};
}

/* ---- the connection ---- */

struct post {
    const struct otlp_target *target;
    const atomic_bool *is_ending;
    double start;
    int socket;
};

/* Waits in slices, because the end of the server may come meanwhile. */
static bool wait_for(const struct post *post, short events) {
    for (;;) {
        double limit = atomic_load(post->is_ending) ? ending_seconds : post_seconds;
        struct pollfd ready = {.fd = post->socket, .events = events};
        int count = poll(&ready, 1, SLICE_MS);
        if (count > 0)
            return true;
        if ((count < 0 && errno != EINTR) || clock_seconds() - post->start > limit)
            return false;
    }
}

static bool connect_to(struct post *post, const struct addrinfo *address) {
    int error = 0;
    socklen_t bytes = sizeof error;
    post->socket = socket(address->ai_family, address->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (post->socket < 0)
        return false;
    bool is_there = !connect(post->socket, address->ai_addr, address->ai_addrlen) ||
                    (errno == EINPROGRESS && wait_for(post, POLLOUT) &&
                     !getsockopt(post->socket, SOL_SOCKET, SO_ERROR, &error, &bytes) && !error);
    if (!is_there)
        close(post->socket);
    return is_there;
}

static bool open_connection(struct post *post) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    bool is_there = false;
    if (getaddrinfo(post->target->host, post->target->port, &hints, &list))
        return false;
    post->start = clock_seconds();
    for (const struct addrinfo *at = list; at && !is_there; at = at->ai_next)
        is_there = connect_to(post, at);
    freeaddrinfo(list);
    return is_there;
}

static bool send_all(const struct post *post, const char *bytes, size_t length) {
    while (length) {
        ssize_t sent = send(post->socket, bytes, length, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            return false;
        if (sent < 0 && !wait_for(post, POLLOUT))
            return false;
        bytes += sent > 0 ? sent : 0;
        length -= sent > 0 ? (size_t)sent : 0;
    }
    return true;
}

/* ---- the answer ---- */

/* Finds the start of the body; NULL: the header is incomplete. */
static const char *find_body(const struct strbuf *answer) {
    const char *end = strstr(strbuf_text(answer), "\r\n\r\n");
    return end ? end + 4 : NULL;
}

static bool is_whole(const struct strbuf *answer) {
    const char *body = find_body(answer), *field = strcasestr(strbuf_text(answer), "\r\ncontent-length:");
    if (!body)
        return false;
    return field && field < body && strtoull(field + 17, NULL, 10) <= answer->length - (size_t)(body - answer->data);
}

/* Reads until the answer is complete, the connection closes, or time runs out. The status line decides what it
 * means. */
static void read_answer(const struct post *post, struct strbuf *answer) {
    char bytes[4096];
    while (answer->length < MAX_ANSWER && !is_whole(answer)) {
        ssize_t count = recv(post->socket, bytes, sizeof bytes, 0);
        if (count > 0)
            strbuf_add(answer, bytes, (size_t)count);
        else if (count == 0 || (errno != EAGAIN && errno != EINTR) || !wait_for(post, POLLIN))
            return;
        if (answer->failed)
            return;
    }
}

/* Reads {"partialSuccess":{"rejectedSpans":"2"}}; 64-bit numbers may be strings. */
static uint64_t rejected_spans(const struct strbuf *answer) {
    const char *body = find_body(answer);
    json_t *root = body ? json_loads(body, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
    const json_t *count = json_object_get(json_object_get(root, "partialSuccess"), "rejectedSpans");
    long long value = json_is_integer(count)  ? json_integer_value(count)
                      : json_is_string(count) ? strtoll(json_string_value(count), NULL, 10)
                                              : 0;
    json_decref(root);
    return value > 0 ? (uint64_t)value : 0;
}

static enum otlp_result judge(const struct strbuf *answer, uint64_t *rejected) {
    const char *text = strbuf_text(answer);
    int status = !strncmp(text, "HTTP/1.", 7) && text[7] && text[8] == ' ' ? atoi(text + 9) : 0;
    if (status >= 200 && status < 300) {
        *rejected = rejected_spans(answer);
        return OTLP_SENT;
    }
    return status == 0 || status == 429 || (status >= 502 && status <= 504) ? OTLP_FAILED : OTLP_REFUSED;
}

enum otlp_result otlp_post(const struct otlp_target *target, const char *body, size_t length,
                           const atomic_bool *is_ending, uint64_t *rejected) {
    struct post post = {.target = target, .is_ending = is_ending, .start = clock_seconds()};
    struct strbuf head = STRBUF_INIT, answer = STRBUF_INIT;
    enum otlp_result result = OTLP_FAILED;
    *rejected = 0;
    strbuf_format(&head,
                  "POST %s HTTP/1.1\r\nhost: %s\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n"
                  "user-agent: cambium\r\nconnection: close\r\n\r\n",
                  target->path, target->authority, length);
    if (!head.failed && open_connection(&post)) {
        if (send_all(&post, head.data, head.length) && send_all(&post, body, length))
            read_answer(&post, &answer);
        close(post.socket);
        result = judge(&answer, rejected);
    }
    strbuf_free(&head);
    strbuf_free(&answer);
    return result;
}
