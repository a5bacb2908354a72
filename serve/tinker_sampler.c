/* Samplers of Tinker's API: the base, or an adapter that a run has published or saved. */
#include "tinker-internal.h"

#include "registry.h"

#include "openai/json_in.h"

#include "base/base.h"

struct tinker_sampler *tinker_sampler_new(struct tinker_session *session, int64_t number, const char *adapter,
                                          const char *path) {
    struct tinker_sampler *sampler = calloc(1, sizeof *sampler);
    if (!sampler)
        return NULL;
    snprintf(sampler->id, sizeof sampler->id, "%s:sample:%lld", session->id, (long long)number);
    snprintf(sampler->adapter, sizeof sampler->adapter, "%s", adapter ? adapter : "");
    snprintf(sampler->path, sizeof sampler->path, "%s", path ? path : "");
    LIST_INSERT_HEAD(&session->samplers, sampler, all);
    return sampler;
}

void tinker_sampler_free(struct tinker_sampler *sampler) {
    LIST_REMOVE(sampler, all);
    free(sampler);
}

struct tinker_sampler *tinker_sampler_of(struct exchange *exchange, const char *id, struct error *error) {
    char session_id[33];
    struct tinker_sampler *sampler;
    snprintf(session_id, sizeof session_id, "%.*s", (int)strcspn(id, ":"), id);
    struct tinker_session *session = tinker_session_of(exchange, session_id, error);
    if (session)
        LIST_FOREACH(sampler, &session->samplers, all)
    if (!strcmp(sampler->id, id))
        return sampler;
    error_set(error, ERROR_MODEL_NOT_FOUND, "sampling_session_id", "there is no sampler \"%.128s\"", id);
    return NULL;
}

/* GET samplers/ID. */
void tinker_sampler(struct exchange *exchange) {
    const char *base = exchange->request->server->model.name;
    char id[TINKER_ID_BYTES];
    struct error error;
    struct tinker_sampler *sampler =
        tinker_sampler_of(exchange, route_rest(exchange, "/api/v1/samplers/", id, sizeof id) ? id : "", &error);
    if (sampler)
        route_answer_object(exchange, json_pack("{s:s, s:s, s:s?}", "sampler_id", sampler->id, "base_model", base,
                                                "model_path", *sampler->path ? sampler->path : NULL));
    else
        route_fail(exchange, &error);
}

/* A sampler of saved weights, whose files its first sample loads. */
struct opening {
    struct worker_job job; /* the first */
    struct tinker *tinker;
    struct exchange *exchange; /* NULL: its client has left */
    char session[33], path[TINKER_PATH_BYTES], adapter[ADAPTER_NAME_BYTES], owner[KEYS_NAME_BYTES + 1];
    char directory[PATH_MAX];
    int64_t number;
    struct tinker_saved saved;
    struct error error;
};

static void on_opening_closed(struct exchange *exchange) {
    struct opening *opening = exchange->context;
    if (opening)
        opening->exchange = NULL;
}

static void answer_sampler(struct exchange *exchange, const struct tinker_sampler *sampler) {
    route_answer_object(exchange,
                        json_pack("{s:s, s:s}", "type", "create_sampling_session", "sampling_session_id", sampler->id));
}

static void after_reading(struct worker_job *job) {
    struct opening *opening = (struct opening *)job;
    struct exchange *exchange = opening->exchange;
    struct tinker_session *session = NULL;
    struct tinker_sampler *sampler = NULL;
    opening->tinker->under_way--;
    if (exchange)
        exchange->context = NULL;
    if (exchange && !opening->error.which)
        session = tinker_session_of(exchange, opening->session, &opening->error);
    if (session && registry_know(opening->tinker->server, opening->adapter, opening->directory))
        adapter_error(&opening->error, STATUS_INVALID, opening->tinker->options.root);
    else if (session && !(sampler = tinker_sampler_new(session, opening->number, opening->adapter, opening->path)))
        error_set(&opening->error, ERROR_OVERLOADED, NULL, "out of memory");
    if (sampler)
        answer_sampler(exchange, sampler);
    else if (exchange)
        route_fail(exchange, &opening->error);
    tinker_saved_free(&opening->saved);
    free(opening);
}

static void read_weights(struct worker_job *job) {
    struct opening *opening = (struct opening *)job;
    opening->error = (struct error){0};
    int status = tinker_directory(opening->tinker->options.root, &opening->saved, opening->directory);
    THEN(status, tinker_read(opening->directory, opening->owner, &opening->saved));
    if (status) {
        error_set(&opening->error, ERROR_MODEL_NOT_FOUND, "model_path", "there are no weights %s", opening->path);
        return;
    }
    /* Other weights under the same name were saved at another time. */
    uint64_t digest = digest_bytes(DIGEST_START, opening->path, strlen(opening->path));
    digest = digest_bytes(digest, &opening->saved.created, sizeof opening->saved.created);
    snprintf(opening->adapter, sizeof opening->adapter, "tinker.%016llx", (unsigned long long)digest);
}

static bool open_weights(struct exchange *exchange, struct tinker_session *session, const char *path, int64_t number,
                         struct error *error) {
    static const struct exchange_handler waiting = {.on_close = on_opening_closed};
    struct opening *opening = calloc(1, sizeof *opening);
    if (!opening)
        return error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
    if (!tinker_parse_path(path, &opening->saved)) {
        free(opening);
        return error_set(error, ERROR_ARGUMENT, "model_path", "model_path: expected tinker://RUN/sampler_weights/NAME");
    }
    opening->tinker = session->tinker;
    opening->exchange = exchange;
    opening->number = number;
    snprintf(opening->session, sizeof opening->session, "%s", session->id);
    snprintf(opening->owner, sizeof opening->owner, "%s", session->owner);
    snprintf(opening->path, sizeof opening->path, "%s", path);
    opening->job = (struct worker_job){.work = read_weights, .done = after_reading};
    error_set(&opening->error, ERROR_OVERLOADED, NULL, "too many files wait to be read");
    route_continue(exchange, &waiting, opening);
    tinker_work(session->tinker, &opening->job);
    return true;
}

bool tinker_take_sampler(struct exchange *exchange, const json_t *root, struct error *error) {
    const struct openai_model *model = &exchange->request->server->model;
    const char *id = NULL, *base = NULL, *path = NULL;
    char sampler_id[TINKER_ID_BYTES];
    struct error absent;
    int64_t number = 0;
    if (!json_in_string(json_object_get(root, "session_id"), "session_id", &id, error) ||
        !json_in_string(json_object_get(root, "base_model"), "base_model", &base, error) ||
        !json_in_string(json_object_get(root, "model_path"), "model_path", &path, error) ||
        !json_in_integer(json_object_get(root, "sampling_session_seq_id"), "sampling_session_seq_id", 0, INT64_MAX,
                         &number, error))
        return false;
    struct tinker_session *session = tinker_session_of(exchange, id ? id : "", error);
    if (!session)
        return false;
    snprintf(sampler_id, sizeof sampler_id, "%s:sample:%lld", session->id, (long long)number);
    struct tinker_sampler *sampler = tinker_sampler_of(exchange, sampler_id, &absent);
    if (!sampler && path)
        return open_weights(exchange, session, path, number, error);
    bool is_base = !base; /* without either, it is the base */
    for (size_t i = 0; i < model->name_count && base; i++)
        is_base |= !strcmp(model->names[i], base);
    if (!is_base)
        return error_set(error, ERROR_MODEL_NOT_FOUND, "base_model", "base_model: \"%.128s\" is not served here", base);
    if (!sampler && !(sampler = tinker_sampler_new(session, number, NULL, NULL)))
        return error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
    answer_sampler(exchange, sampler);
    return true;
}
