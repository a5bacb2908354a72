/* Sessions of Tinker's API, and the ways of its requests. */
#include "tinker-internal.h"

#include "log.h"
#include "route-internal.h"

#include "openai/json_in.h"

#include "base/base.h"
#include "base/staging.h"

#include <sys/random.h>

enum { CHUNK_DATA = 256 /* data of one message, which has some 20 parts a datum */ };

/* ---- sessions ---- */

static void end_run(struct tinker_run *run) {
    tinker_forget_snapshots(run);
    tinker_run_end(run);
}

static void end_session(struct tinker_session *session) {
    while (!LIST_EMPTY(&session->runs))
        end_run(LIST_FIRST(&session->runs));
    while (!LIST_EMPTY(&session->futures))
        tinker_future_free(LIST_FIRST(&session->futures));
    while (!LIST_EMPTY(&session->samplers))
        tinker_sampler_free(LIST_FIRST(&session->samplers));
    log_event(session->tinker->server, LOG_INFO, "tuning", "session %s has ended", session->id);
    LIST_REMOVE(session, all);
    free(session);
}

static bool take_session(struct exchange *exchange, const json_t *root, struct error *error) {
    struct tinker *tinker = exchange->request->server->tinker;
    const struct key_holder *client = &exchange->request->client;
    struct tinker_session *session = calloc(1, sizeof *session);
    unsigned char drawn[16];
    if (!session || getrandom(drawn, sizeof drawn, 0) != sizeof drawn) {
        free(session);
        return error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
    }
    *session = (struct tinker_session){
        .tinker = tinker, .client = client->client, .weight = client->weight, .heard = clock_seconds()};
    for (size_t i = 0; i < sizeof drawn; i++)
        snprintf(session->id + 2 * i, 3, "%02x", drawn[i]);
    snprintf(session->owner, sizeof session->owner, "%s", client->name);
    LIST_INSERT_HEAD(&tinker->sessions, session, all);
    log_event(tinker->server, LOG_INFO, "tuning", "session %s begins", session->id);
    route_answer_object(exchange, json_pack("{s:s, s:s}", "type", "create_session", "session_id", session->id));
    return true;
}

/* Its client stops sending these when the answer is 410. */
static bool take_heartbeat(struct exchange *exchange, const json_t *root, struct error *error) {
    const char *id = NULL;
    if (!json_in_string(json_object_get(root, "session_id"), "session_id", &id, error))
        return false;
    if (tinker_session_of(exchange, id ? id : "", error)) {
        route_answer_object(exchange, json_pack("{s:s}", "type", "session_heartbeat"));
        return true;
    }
    static const char gone[] = "{\"error\":{\"message\":\"the session has ended\",\"type\":\"not_found_error\","
                               "\"param\":\"session_id\",\"code\":\"session_ended\"}}";
    exchange_answer(exchange, 410, "application/json", gone, sizeof gone - 1);
    return true;
}

/* POST sessions/ID/finish. */
static bool take_finish(struct exchange *exchange, const json_t *root, struct error *error) {
    char rest[128];
    if (!route_rest(exchange, "/api/v1/sessions/", rest, sizeof rest))
        *rest = 0;
    char *end = strchr(rest, '/');
    if (!end || strcmp(end, "/finish") != 0)
        return error_set(error, ERROR_MODEL_NOT_FOUND, NULL, "expected sessions/ID/finish, not %.200s", rest);
    *end = 0;
    struct tinker_session *session = tinker_session_of(exchange, rest, error);
    if (!session)
        return false;
    end_session(session);
    if (!exchange_begin(exchange, 204, NULL, 0, 0))
        exchange_end(exchange, NULL, 0);
    return true;
}

/* ---- the client's settings ---- */

static bool take_config(struct exchange *exchange, const json_t *root, struct error *error) {
    int64_t body = exchange->request->server->options->limits.body_bytes;
    route_answer_object(exchange,
                        json_pack("{s:b, s:b, s:i, s:I, s:b, s:b, s:b, s:b}", "pjwt_auth_enabled", false,
                                  "parallel_fwdbwd_chunks", true, "fwdbwd_max_chunk_len", CHUNK_DATA,
                                  "fwdbwd_max_chunk_bytes_count", (json_int_t)(body / 2 < 5000000 ? body / 2 : 5000000),
                                  "proto_compress_fwdbwd", false, "sample_use_retrieve_futures", false,
                                  "custom_loss_server_side", false, "sample_join_sampling_session", false));
    return true;
}

static bool take_dynamic_config(struct exchange *exchange, const json_t *root, struct error *error) {
    route_answer_object(exchange, json_pack("{s:i, s:b}", "refresh_interval_sec", 300, "sample_cancel_enabled", true));
    return true;
}

static bool take_telemetry(struct exchange *exchange, const json_t *root, struct error *error) {
    route_answer_object(exchange, json_pack("{s:s}", "status", "accepted"));
    return true;
}

void tinker_capabilities(struct exchange *exchange) {
    const struct openai_model *model = &exchange->request->server->model;
    json_t *models = json_array();
    for (size_t i = 0; i < model->name_count; i++)
        json_array_append_new(models,
                              json_pack("{s:s, s:I, s:b, s:b}", "model_name", model->names[i], "max_context_length",
                                        (json_int_t)model->max_model_len, "trainable", true, "sampleable", true));
    route_answer_object(exchange, json_pack("{s:o}", "supported_models", models));
}

/* ---- bodies ---- */

static const struct {
    const char *path;
    tinker_take *take;
} takers[] = {
    {"/api/v1/client/config", take_config},
    {"/api/v1/client/dynamic_config", take_dynamic_config},
    {"/api/v1/create_session", take_session},
    {"/api/v1/session_heartbeat", take_heartbeat},
    {"/api/v1/sessions/", take_finish},
    {"/api/v1/telemetry", take_telemetry},
    {"/api/v1/create_model", tinker_take_create},
    {"/api/v1/get_info", tinker_take_info},
    {"/api/v1/optim_step", tinker_take_update},
    {"/api/v1/save_weights", tinker_take_save},
    {"/api/v1/save_weights_for_sampler", tinker_take_save_sampler},
    {"/api/v1/load_weights", tinker_take_load},
    {"/api/v1/unload_model", tinker_take_unload},
    {"/api/v1/create_sampling_session", tinker_take_sampler},
    {"/api/v1/asample", tinker_take_sample},
    {"/api/v1/retrieve_future", tinker_take_retrieve},
    {"/api/v1/cancel_future", tinker_take_cancel},
    {"/api/v1/weights_info", tinker_take_weights_info},
};
enum { TAKERS = sizeof takers / sizeof *takers };

static void *read_json(const struct route_reader *reader, const char *bytes, size_t length, struct error *error) {
    json_t *root = NULL;
    json_in_read(bytes, length, false, &root, error);
    return root;
}

static void on_json(struct exchange *exchange, void *made) {
    struct error error;
    size_t i = 0;
    while (i + 1 < TAKERS && strcmp(takers[i].path, exchange->request->route) != 0)
        i++;
    if (!takers[i].take(exchange, made, &error))
        route_fail(exchange, &error);
    json_decref(made);
}

void tinker_post(struct exchange *exchange) {
    static const struct route_body body = {.read = read_json, .on_made = on_json, .drop = route_drop_json};
    route_collect(exchange, &body);
}

static void *read_data(const struct route_reader *reader, const char *bytes, size_t length, struct error *error) {
    return tinker_data_read(bytes, length, reader->server->model.vocab, error);
}

static void drop_data(void *made) {
    tinker_data_free(made);
}

static void on_data(struct exchange *exchange, void *made) {
    struct error error;
    if (!tinker_take_pass(exchange, made, &error))
        route_fail(exchange, &error);
}

void tinker_forward_backward(struct exchange *exchange) {
    static const struct route_body body = {.read = read_data, .on_made = on_data, .drop = drop_data};
    if (route_is_type(exchange_field(exchange, "content-type"), "application/x-protobuf"))
        route_collect(exchange, &body);
    else
        route_fail(exchange, AN_ERROR(ERROR_MEDIA_TYPE, NULL, "expected a body of type application/x-protobuf"));
}

/* ---- opening, and the end ---- */

/* Removes the snapshots of sessions that a killed server had. */
static int forget_snapshots(const char *root) {
    char path[PATH_MAX], **names;
    size_t count;
    TRY(file_list(root, &names, &count));
    int status = STATUS_OK;
    for (size_t i = 0; i < count && !status; i++)
        if (*names[i] != '.' && snprintf(path, sizeof path, "%s/%s/snapshots", root, names[i]) < (int)sizeof path)
            status = file_remove_tree(path);
    file_list_free(names, count);
    return status;
}

int tinker_open(const struct tinker_options *options, struct tinker **out) {
    struct tinker *tinker = *out = calloc(1, sizeof *tinker);
    TRY(status_allocated(tinker));
    tinker->options = *options;
    tinker->server = options->server;
    snprintf(tinker->root, sizeof tinker->root, "%s", options->root);
    tinker->options.root = tinker->root;
    int status = file_make_directories(options->root);
    THEN(status, staging_clean(options->root));
    THEN(status, forget_snapshots(options->root));
    if (status) {
        free(tinker);
        *out = NULL;
    }
    return status;
}

void tinker_tick(struct tinker *tinker) {
    double now = clock_seconds();
    for (struct tinker_session *session = LIST_FIRST(&tinker->sessions), *next; session; session = next) {
        next = LIST_NEXT(session, all);
        if (now - session->heard > tinker->options.silence_seconds)
            end_session(session);
    }
    tinker_futures_tick(tinker, now, false);
}

void tinker_stop(struct tinker *tinker) {
    tinker_futures_tick(tinker, clock_seconds(), true);
    while (!LIST_EMPTY(&tinker->sessions))
        end_session(LIST_FIRST(&tinker->sessions));
}

bool tinker_is_idle(const struct tinker *tinker) {
    return !tinker || !tinker->under_way;
}

void tinker_close(struct tinker *tinker) {
    if (!tinker)
        return;
    while (!LIST_EMPTY(&tinker->sessions))
        end_session(LIST_FIRST(&tinker->sessions));
    free(tinker);
}
