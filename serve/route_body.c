/* Bodies that are read as a whole. They are gathered within the common limit. Short ones are read here, long ones on
 * the worker, so that no client's bytes hold up the loop. A reading has its own copy of everything; its client may
 * disconnect. */
#include "route.h"

#include "gunzip.h"
#include "loop.h"
#include "openai/json_in.h"
#include "server.h"

#include "base/base.h"

#include <stdatomic.h>
#include <strings.h>

struct collected {
    struct worker_job job;
    struct exchange *exchange; /* used by the loop; NULL: the client disconnected, or was answered */
    struct server *server;
    const struct route_body *body;
    struct strbuf bytes;
    size_t counted; /* bytes that count in the server's limit */
    bool is_packed, is_control;
    atomic_bool is_abandoned; /* nobody waits for the result */
    void *made;
    struct error error; /* when nothing was made */
};

/* ---- reading: any thread ---- */

static bool unpack(struct collected *collected) {
    struct error *error = &collected->error;
    switch (gunzip_replace(&collected->bytes, (uint64_t)collected->server->options->limits.body_bytes)) {
    case GUNZIP_WHOLE:
        return true;
    case GUNZIP_TOO_LARGE:
        return error_set(error, ERROR_BODY_SIZE, NULL, "the body is larger than the server takes once it is unpacked");
    case GUNZIP_BAD:
        return error_set(error, ERROR_ARGUMENT, NULL, "the body is not gzip, as its content-encoding says");
    default:
        return error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
    }
}

static void read_bytes(struct collected *collected, struct tokenizer_encoder *encoder) {
    const struct route_reader reader = {.server = collected->server, .encoder = encoder, .body = collected->body};
    if (!collected->is_packed || unpack(collected))
        collected->made =
            collected->body->read(&reader, strbuf_text(&collected->bytes), collected->bytes.length, &collected->error);
    strbuf_free(&collected->bytes);
}

static void drop_made(struct collected *collected) {
    if (collected->made)
        collected->body->drop(collected->made);
    collected->made = NULL;
}

static void work(struct worker_job *job) {
    struct collected *collected = (struct collected *)job;
    if (!collected->is_abandoned)
        read_bytes(collected, collected->server->worker_encoder);
    if (collected->is_abandoned)
        drop_made(collected);
}

/* ---- the loop ---- */

/* After an early answer: the rest of the body is dropped. */
static const struct exchange_handler nobody = {.on_close = NULL};

static void give_back(struct collected *collected) {
    gathered_give(&collected->server->gathered, collected->counted);
    collected->counted = 0;
}

static void free_collected(struct collected *collected) {
    give_back(collected);
    strbuf_free(&collected->bytes);
    free(collected);
}

/* Releases the exchange, which belongs to another handler from here on. */
static struct exchange *let_go(struct collected *collected) {
    struct exchange *exchange = collected->exchange;
    collected->exchange = NULL;
    if (exchange) {
        exchange->context = NULL;
        exchange->handler = &nobody;
    }
    return exchange;
}

static void drop_late(struct worker_job *job) {
    struct collected *collected = (struct collected *)job;
    drop_made(collected);
    free_collected(collected);
}

static void done(struct worker_job *job) {
    struct collected *collected = (struct collected *)job;
    struct exchange *exchange = let_go(collected);
    void *made = collected->made;
    give_back(collected);
    if (!exchange && made) { /* the client disconnected, and the result may be large */
        collected->job.work = drop_late;
        worker_drop(collected->server->worker, &collected->job);
        return;
    }
    if (exchange && made)
        collected->body->on_made(exchange, made);
    else if (exchange)
        route_fail(exchange, &collected->error);
    free_collected(collected);
}

static void refuse(struct exchange *exchange, enum error_case which, const char *text) {
    struct collected *collected = exchange->context;
    let_go(collected);
    free_collected(collected);
    route_fail(exchange, AN_ERROR(which, NULL, "%s", text));
}

static void on_body(struct exchange *exchange, const unsigned char *bytes, size_t length) {
    struct collected *collected = exchange->context;
    size_t have = collected->bytes.length;
    if (have + length > (size_t)exchange->request->server->options->limits.body_bytes) {
        refuse(exchange, ERROR_BODY_SIZE, "the body is larger than the server takes");
        return;
    }
    if (!gathered_take(&collected->server->gathered, have, length, collected->is_control)) {
        refuse(exchange, ERROR_OVERLOADED, "too many bodies are on their way: there is no room for this one");
        return;
    }
    collected->counted += length;
    strbuf_add(&collected->bytes, bytes, length);
    if (collected->bytes.failed)
        refuse(exchange, ERROR_OVERLOADED, "out of memory");
}

static void on_closed_early(struct exchange *exchange) {
    struct collected *collected = exchange->context;
    collected->exchange = NULL;
    collected->is_abandoned = true;
}

static const struct exchange_handler reading = {.on_close = on_closed_early};

/* Returns the bytes of a body that the loop reads itself. A packed body may have any contents. */
static size_t short_bytes(const struct collected *collected) {
    size_t (*of)(const struct server *) = collected->body->short_bytes;
    return collected->is_packed ? 0 : of ? of(collected->server) : ROUTE_SHORT_BYTES;
}

static void on_end(struct exchange *exchange) {
    struct collected *collected = exchange->context;
    struct server *server = collected->server;
    if (!server->worker || collected->bytes.length <= short_bytes(collected)) {
        read_bytes(collected, server->encoder);
        done(&collected->job);
        return;
    }
    exchange->handler = &reading;
    collected->job = (struct worker_job){.work = work, .done = done, .owner = request_owner(exchange)};
    if (!worker_add(server->worker, &collected->job))
        refuse(exchange, ERROR_OVERLOADED, "too many long bodies wait to be read");
}

static void on_close(struct exchange *exchange) {
    free_collected(exchange->context);
}

static const struct exchange_handler collecting = {.on_body = on_body, .on_end = on_end, .on_close = on_close};

/* Returns false with *error. */
static bool check_encoding(const struct exchange *exchange, bool *is_packed, struct error *error) {
    const char *encoding = exchange_field(exchange, "content-encoding");
    *is_packed = encoding && (!strcasecmp(encoding, "gzip") || !strcasecmp(encoding, "x-gzip"));
    if (!encoding || *is_packed || !*encoding || !strcasecmp(encoding, "identity"))
        return true;
    return error_set(error, ERROR_MEDIA_TYPE, "content-encoding",
                     "content-encoding: expected gzip or identity, not %.64s", encoding);
}

void route_collect(struct exchange *exchange, const struct route_body *body) {
    struct error error;
    struct collected *collected = NULL;
    bool is_packed;
    /* Such a request is answered before its body arrives; the body is then dropped. */
    const char *promised = exchange_field(exchange, "content-length");
    if (promised &&
        strtoull(promised, NULL, 10) > (unsigned long long)exchange->request->server->options->limits.body_bytes)
        error_set(&error, ERROR_BODY_SIZE, NULL, "the body is larger than the server takes");
    else if (check_encoding(exchange, &is_packed, &error) && !(collected = calloc(1, sizeof *collected)))
        error_set(&error, ERROR_OVERLOADED, NULL, "out of memory");
    if (!collected) {
        route_fail(exchange, &error);
        return;
    }
    collected->exchange = exchange;
    collected->server = exchange->request->server;
    collected->body = body;
    collected->is_packed = is_packed;
    collected->is_control = exchange->head.listener == LISTENER_CONTROL;
    exchange->handler = &collecting;
    exchange->context = collected;
}

void route_continue(struct exchange *exchange, const struct exchange_handler *handler, void *context) {
    exchange->handler = handler;
    exchange->context = context;
}

/* ---- what most bodies are ---- */

void *route_read_json(const struct route_reader *reader, const char *bytes, size_t length, struct error *error) {
    json_t *root = NULL;
    if (length > ROUTE_SHORT_BYTES)
        error_set(error, ERROR_BODY_SIZE, NULL, "the body is larger than the %d bytes that such a request may have",
                  ROUTE_SHORT_BYTES);
    else
        json_in_read(bytes, length, reader->body->may_be_empty, &root, error);
    return root;
}

void route_drop_json(void *made) {
    json_decref(made);
}
