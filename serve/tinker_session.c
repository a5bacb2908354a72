/* Requests of all kinds: their session, their answers, and what they ask of the worker and of the engine. */
#include "tinker-internal.h"

#include "route-internal.h"

#include "base/base.h"

bool tinker_is_owner(const struct tinker_session *session, const struct exchange *exchange) {
    return session->client == exchange->request->client.client;
}

struct tinker_session *tinker_session_of(struct exchange *exchange, const char *id, struct error *error) {
    struct tinker_session *session;
    LIST_FOREACH(session, &exchange->request->server->tinker->sessions, all)
    if (!strcmp(session->id, id) && tinker_is_owner(session, exchange)) {
        session->heard = clock_seconds();
        return session;
    }
    error_set(error, ERROR_MODEL_NOT_FOUND, "session_id", "there is no session \"%.64s\"", id);
    return NULL;
}

bool tinker_work(struct tinker *tinker, struct worker_job *job) {
    tinker->under_way++;
    if (worker_add(tinker->options.worker, job))
        return true;
    job->done(job);
    return false;
}

void tinker_ask(struct tinker *tinker, struct tuning_ask *ask, enum tuning_kind kind, void (*run)(struct loop_note *)) {
    tinker->under_way++;
    ask->kind = kind;
    ask->error = (struct error){0};
    ask->note.run = run;
    driver_tune(tinker->server->driver, ask);
}
