/* The page at /: page.html, as embedded by the build. The browser may run only its one script and its one style, given
 * by their digests. The page gets a list of what its listener offers, so it requests nothing that does not exist. */
#include "route.h"

#include "base/base.h"

#include <openssl/evp.h>
#include <openssl/sha.h>

static const char html[] = {
#include "page.html.inc"
    0};

/* Appends 'sha256-...' of the text between the marks, as a browser computes it. */
static void add_digest(struct strbuf *policy, const char *begin, const char *end) {
    unsigned char digest[SHA256_DIGEST_LENGTH];
    char text[4 * ((SHA256_DIGEST_LENGTH + 2) / 3) + 1];
    const char *from = strstr(html, begin) + strlen(begin), *to = strstr(from, end);
    if (!SHA256((const unsigned char *)from, (size_t)(to - from), digest)) {
        policy->failed = true;
        return;
    }
    EVP_EncodeBlock((unsigned char *)text, digest, sizeof digest);
    strbuf_format(policy, "'sha256-%s'", text);
}

/* Appends the words of <body data-offers>: "control", "metrics" and "tuning" if the listener has them, "chat" if the
 * model has a template, "key" if the listener requires one. */
static void add_offers(struct strbuf *offers, const struct exchange *exchange) {
    const struct server *server = exchange->request->server;
    enum listener_kind listener = exchange->head.listener;
    /* The key of a page's user does not open endpoints with their own keys. */
    bool has_metrics = server->options->metrics_on_data != SERVE_METRICS_OFF && !server->keys[SERVER_METRICS_KEYS];
    if (listener == LISTENER_CONTROL)
        strbuf_add_text(offers, "control ");
    if (listener == LISTENER_CONTROL || has_metrics)
        strbuf_add_text(offers, "metrics ");
    if (server->jobs)
        strbuf_add_text(offers, "tuning ");
    if (server->model.chat_template)
        strbuf_add_text(offers, "chat ");
    if (server->keys[listener])
        strbuf_add_text(offers, "key");
}

void page_get(struct exchange *exchange) {
    static const char mark[] = "<body data-offers=\"";
    const char *rest = strstr(html, mark) + sizeof mark - 1;
    struct strbuf policy = STRBUF_INIT, page = STRBUF_INIT;
    strbuf_add_text(&policy, "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; "
                             "form-action 'none'; frame-ancestors 'none'; trusted-types 'none'; "
                             "require-trusted-types-for 'script'; script-src ");
    add_digest(&policy, "<script>", "</script>");
    strbuf_add_text(&policy, "; style-src ");
    add_digest(&policy, "<style>", "</style>");
    strbuf_add(&page, html, (size_t)(rest - html));
    add_offers(&page, exchange);
    strbuf_add_text(&page, rest);
    const struct field fields[] = {
        field_of("content-type", "text/html; charset=utf-8"),
        field_of("content-security-policy", strbuf_text(&policy)),
        field_of("cache-control", "no-cache"),
        field_of("referrer-policy", "no-referrer"),
        field_of("x-content-type-options", "nosniff"),
    };
    if (policy.failed || page.failed) {
        route_fail(exchange, AN_ERROR(ERROR_INTERNAL, NULL, "out of memory"));
    } else if (!exchange_begin(exchange, 200, fields, sizeof fields / sizeof *fields, (int64_t)page.length) &&
               !exchange_write(exchange, page.data, page.length)) {
        exchange_end(exchange, NULL, 0);
    }
    strbuf_free(&policy);
    strbuf_free(&page);
}
