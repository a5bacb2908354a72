/* TLS by OpenSSL on the transport's sockets: certificate and key, ALPN, reading and writing. */
#include "connection-internal.h"

#include "base/base.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

struct tls {
    char *cert, *key;
    SSL_CTX *context; /* each connection keeps the context with which it began */
};

struct tls_socket {
    SSL *ssl;
    bool wants_write;
};

/* Reports the last error of OpenSSL's queue, and empties the queue. */
static int fail(const char *what, const char *file) {
    unsigned long code = ERR_peek_last_error();
    const char *reason = code ? ERR_reason_error_string(code) : NULL;
    ERR_clear_error();
    return status_fail(STATUS_INVALID, "%s: %s: %s", file, what, reason ? reason : "unknown failure");
}

static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_length, const unsigned char *in,
                           unsigned in_length, void *context) {
    static const unsigned char ours[] = "\x02h2\x08http/1.1";
    unsigned char *chosen;
    if (SSL_select_next_proto(&chosen, out_length, ours, sizeof ours - 1, in, in_length) != OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

/* TLS 1.2 has only the cipher suites that HTTP/2 allows (RFC 9113, 9.2.2); TLS 1.3 allows all of its own. */
static int context_open(const char *cert, const char *key, SSL_CTX **made) {
    static const char suites[] = "ECDHE+AESGCM:ECDHE+CHACHA20";
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    if (!context)
        return status_fail(STATUS_MEMORY, "%s: out of memory", cert);
    int status = 0;
    /* A client may close without ending TLS: both protocols can tell whether a message is complete. */
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE |
                                     SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_mode(context,
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_alpn_select_cb(context, choose_protocol, NULL);
    if (SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1 || SSL_CTX_set_cipher_list(context, suites) != 1)
        status = fail("cannot set up TLS", cert);
    else if (SSL_CTX_use_certificate_chain_file(context, cert) != 1)
        status = fail("no certificate can be read", cert);
    else if (SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1)
        status = fail("no key can be read", key);
    else if (SSL_CTX_check_private_key(context) != 1)
        status = fail("the key is not that of the certificate", key);
    if (status)
        SSL_CTX_free(context);
    else
        *made = context;
    return status;
}

int tls_open(const char *cert, const char *key, struct tls **made) {
    struct tls *tls = calloc(1, sizeof *tls);
    int status = 0;
    if (!tls || !(tls->cert = strdup(cert)) || !(tls->key = strdup(key)))
        status = status_fail(STATUS_MEMORY, "%s: out of memory", cert);
    else
        status = context_open(cert, key, &tls->context);
    if (status)
        tls_close(tls);
    else
        *made = tls;
    return status;
}

int tls_reload(struct tls *tls) {
    SSL_CTX *context;
    TRY(context_open(tls->cert, tls->key, &context));
    SSL_CTX_free(tls->context);
    tls->context = context;
    return 0;
}

void tls_close(struct tls *tls) {
    if (!tls)
        return;
    SSL_CTX_free(tls->context);
    free(tls->cert);
    free(tls->key);
    free(tls);
}

struct tls_socket *tls_socket_new(struct tls *tls, int fd) {
    struct tls_socket *socket = calloc(1, sizeof *socket);
    if (!socket)
        return NULL;
    socket->ssl = SSL_new(tls->context);
    if (!socket->ssl || SSL_set_fd(socket->ssl, fd) != 1) {
        tls_socket_free(socket);
        return NULL;
    }
    SSL_set_accept_state(socket->ssl);
    return socket;
}

void tls_socket_free(struct tls_socket *socket) {
    if (!socket)
        return;
    SSL_free(socket->ssl);
    free(socket);
}

static ssize_t result(struct tls_socket *socket, int n, bool is_read) {
    if (n > 0)
        return n;
    int error = SSL_get_error(socket->ssl, n);
    ERR_clear_error();
    if (error == SSL_ERROR_WANT_WRITE && is_read)
        socket->wants_write = true;
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE)
        return TLS_AGAIN;
    return error == SSL_ERROR_ZERO_RETURN ? TLS_EOF : TLS_FAILED;
}

ssize_t tls_handshake(struct tls_socket *socket, bool *is_http2) {
    const unsigned char *protocol;
    unsigned length;
    ERR_clear_error();
    socket->wants_write = false;
    ssize_t n = result(socket, SSL_accept(socket->ssl), true);
    if (n == TLS_EOF)
        return TLS_FAILED;
    if (n > 0) {
        SSL_get0_alpn_selected(socket->ssl, &protocol, &length);
        *is_http2 = length == 2 && !memcmp(protocol, "h2", 2);
    }
    return n;
}

ssize_t tls_read(struct tls_socket *socket, void *bytes, size_t length) {
    ERR_clear_error();
    socket->wants_write = false;
    return result(socket, SSL_read(socket->ssl, bytes, (int)length), true);
}

ssize_t tls_write(struct tls_socket *socket, const void *bytes, size_t length) {
    ERR_clear_error();
    ssize_t n = result(socket, SSL_write(socket->ssl, bytes, (int)length), false);
    return n == TLS_EOF ? TLS_FAILED : n;
}

bool tls_wants_write(const struct tls_socket *socket) {
    return socket->wants_write;
}

void tls_shutdown(struct tls_socket *socket) {
    ERR_clear_error();
    SSL_shutdown(socket->ssl);
    ERR_clear_error();
}
