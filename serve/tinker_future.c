/* Futures: results that are fetched. A fetch waits a while for one that is not done. A result may be fetched again,
 * because an answer can be lost. */
#include "tinker-internal.h"

#include "openai/json_in.h"
#include "openai/json_out.h"

#include "base/base.h"

#include <math.h>

static struct tinker_bucket *bucket_of(struct tinker *tinker, const char *id) {
    return &tinker->futures[digest_bytes(DIGEST_START, id, strlen(id)) % TINKER_BUCKETS];
}

struct tinker_future *tinker_future_new(struct tinker_session *session, const char *id, const char *model_id) {
    struct tinker_future *future = calloc(1, sizeof *future);
    if (!future)
        return NULL;
    future->session = session;
    snprintf(future->id, sizeof future->id, "%s", id);
    snprintf(future->model_id, sizeof future->model_id, "%s", model_id);
    LIST_INSERT_HEAD(bucket_of(session->tinker, id), future, bucket);
    LIST_INSERT_HEAD(&session->futures, future, of_session);
    return future;
}

struct tinker_future *tinker_future_find(struct exchange *exchange, const char *id) {
    struct tinker_future *future;
    LIST_FOREACH(future, bucket_of(exchange->request->server->tinker, id), bucket)
    if (!strcmp(future->id, id) && tinker_is_owner(future->session, exchange))
        return future;
    return NULL;
}

void tinker_future_answer(struct exchange *exchange, const struct tinker_future *future) {
    json_t *object = json_pack("{s:s}", "request_id", future->id);
    if (*future->model_id)
        json_object_set_new(object, "model_id", json_string(future->model_id));
    route_answer_object(exchange, object);
}

/* ---- fetching ---- */

static void tell(struct exchange *exchange, struct tinker_future *future) {
    future->is_fetched = true;
    future->since = clock_seconds();
    if (future->error.which) {
        bool is_users = error_row(future->error.which)->http < 500;
        route_answer_object(
            exchange, json_pack("{s:s, s:s}", "error", future->error.text, "category", is_users ? "user" : "server"));
    } else
        exchange_answer(exchange, 200, future->is_protobuf ? "application/x-protobuf" : "application/json",
                        strbuf_text(&future->result), future->result.length);
}

/* Ends a wait; its exchange is answered by the caller. */
static struct exchange *end_wait(struct tinker_waiter *waiter) {
    static const struct exchange_handler nobody = {.on_close = NULL};
    struct exchange *exchange = waiter->exchange;
    route_continue(exchange, &nobody, NULL);
    LIST_REMOVE(waiter, all);
    free(waiter);
    return exchange;
}

static void on_close(struct exchange *exchange) {
    end_wait(exchange->context);
}

bool tinker_take_retrieve(struct exchange *exchange, const json_t *root, struct error *error) {
    static const struct exchange_handler waiting = {.on_close = on_close};
    struct tinker *tinker = exchange->request->server->tinker;
    const char *id = NULL;
    if (!json_in_string(json_object_get(root, "request_id"), "request_id", &id, error))
        return false;
    struct tinker_future *future = id ? tinker_future_find(exchange, id) : NULL;
    if (!future)
        return error_set(error, ERROR_MODEL_NOT_FOUND, "request_id", "there is no request \"%.200s\"", id ? id : "");
    future->session->heard = clock_seconds();
    if (future->is_done) {
        tell(exchange, future);
        return true;
    }
    struct tinker_waiter *waiter = calloc(1, sizeof *waiter);
    if (!waiter)
        return error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
    *waiter = (struct tinker_waiter){
        .exchange = exchange, .future = future, .until = clock_seconds() + tinker->options.hold_seconds};
    LIST_INSERT_HEAD(&tinker->waiters, waiter, all);
    route_continue(exchange, &waiting, waiter);
    return true;
}

/* ---- the end of a future ---- */

static void answer_all(struct tinker_future *future) {
    struct tinker *tinker = future->session->tinker;
    future->is_done = true;
    for (struct tinker_waiter *waiter = LIST_FIRST(&tinker->waiters), *next; waiter; waiter = next) {
        next = LIST_NEXT(waiter, all);
        if (waiter->future == future)
            tell(end_wait(waiter), future);
    }
}

void tinker_future_fail(struct tinker_future *future, const struct error *error) {
    future->error = *error;
    answer_all(future);
}

void tinker_future_json(struct tinker_future *future, json_t *object) {
    json_add(&future->result, object);
    json_decref(object);
    if (future->result.failed)
        error_set(&future->error, ERROR_INTERNAL, NULL, "out of memory");
    answer_all(future);
}

void tinker_future_message(struct tinker_future *future, struct strbuf *message) {
    future->is_protobuf = true;
    future->result = *message;
    if (message->failed)
        error_set(&future->error, ERROR_INTERNAL, NULL, "out of memory");
    answer_all(future);
}

/* Fetches of a future that goes are told to ask again; they then learn that there is none. */
static void tell_again(struct tinker *tinker, const struct tinker_future *future, double now) {
    for (struct tinker_waiter *waiter = LIST_FIRST(&tinker->waiters), *next; waiter; waiter = next) {
        next = LIST_NEXT(waiter, all);
        if (future ? waiter->future != future : waiter->until > now)
            continue;
        json_t *answer = json_pack("{s:s, s:s, s:s}", "type", "try_again", "request_id", waiter->future->id,
                                   "queue_state", "active");
        route_answer_object(end_wait(waiter), answer);
    }
}

void tinker_future_free(struct tinker_future *future) {
    tell_again(future->session->tinker, future, 0);
    if (future->sample)
        future->cancel(future->sample);
    LIST_REMOVE(future, bucket);
    LIST_REMOVE(future, of_session);
    strbuf_free(&future->result);
    free(future);
}

void tinker_futures_tick(struct tinker *tinker, double now, bool is_end) {
    tell_again(tinker, NULL, is_end ? HUGE_VAL : now);
    for (int b = 0; b < TINKER_BUCKETS; b++)
        for (struct tinker_future *future = LIST_FIRST(&tinker->futures[b]), *next; future; future = next) {
            next = LIST_NEXT(future, bucket);
            if (future->is_fetched && now - future->since > tinker->options.keep_seconds)
                tinker_future_free(future);
        }
}

/* Only samples can be cancelled. */
bool tinker_take_cancel(struct exchange *exchange, const json_t *root, struct error *error) {
    const char *id = NULL;
    if (!json_in_string(json_object_get(root, "request_id"), "request_id", &id, error))
        return false;
    struct tinker_future *future = id ? tinker_future_find(exchange, id) : NULL;
    if (future && future->sample) {
        future->cancel(future->sample);
        future->sample = NULL;
        tinker_future_fail(future, AN_ERROR(ERROR_CANCELLED, NULL, "the request was cancelled"));
    }
    route_answer_object(exchange, json_object());
    return true;
}
