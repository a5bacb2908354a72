/* The page at /: page.html, as the build has embedded it. The browser is told to run its one script and its one style,
 * by their digests, and nothing else, wherever it may come from. */
#include "route.h"

#include "base/base.h"

#include <openssl/evp.h>
#include <openssl/sha.h>
#include <string.h>

static const char html[] = {
#include "page.html.inc"
    0};

/* Appends 'sha256-...' of what stands between the marks, as a browser counts it. */
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

static void add_policy(struct strbuf *policy) {
    strbuf_add_text(policy, "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; "
                            "form-action 'none'; frame-ancestors 'none'; trusted-types 'none'; "
                            "require-trusted-types-for 'script'; script-src ");
    add_digest(policy, "<script>", "</script>");
    strbuf_add_text(policy, "; style-src ");
    add_digest(policy, "<style>", "</style>");
}

void page_get(struct exchange *exchange) {
    struct strbuf policy = STRBUF_INIT;
    add_policy(&policy);
    const struct field fields[] = {
        field_of("content-type", "text/html; charset=utf-8"),
        field_of("content-security-policy", strbuf_text(&policy)),
        field_of("cache-control", "no-cache"),
        field_of("referrer-policy", "no-referrer"),
        field_of("x-content-type-options", "nosniff"),
    };
    if (policy.failed) {
        struct error error;
        error_set(&error, ERROR_INTERNAL, NULL, "out of memory");
        route_fail(exchange, &error);
    } else if (!exchange_begin(exchange, 200, fields, sizeof fields / sizeof *fields, sizeof html - 1) &&
               !exchange_write(exchange, html, sizeof html - 1)) {
        exchange_end(exchange, NULL, 0);
    }
    strbuf_free(&policy);
}
