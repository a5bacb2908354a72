/* Training runs: their requests, and what each asks of the engine. */
#include "tinker-internal.h"

#include "openai/json_in.h"

#include "base/base.h"

#include <math.h>

/* ---- passes and updates ---- */

static void after_pass(struct tinker_op *op) {
    struct tinker_run *run = op->run;
    const struct tuning_pass *pass = &op->ask.pass;
    struct strbuf answer = STRBUF_INIT;
    if (op->ask.error.which) {
        run->has_gradients &= op->data->is_forward_only; /* those before are not whole any more */
        tinker_op_fail(op, &op->ask.error);
        return;
    }
    run->has_gradients |= !op->data->is_forward_only;
    if (op->future) {
        tinker_data_answer(op->data, pass->result.loss * (double)pass->batches, &answer);
        tinker_future_message(op->future, &answer);
    }
    tinker_op_end(op);
}

static void begin_pass(struct tinker_op *op) {
    struct tinker_run *run = op->run;
    struct tinker_data *data = op->data;
    if (!data->error.which)
        tinker_data_pack(data, run->longest);
    if (data->error.which) {
        tinker_op_fail(op, &data->error);
        return;
    }
    op->ask.pass = (struct tuning_pass){.source = &data->source,
                                        .batches = data->pack_count,
                                        .is_forward_only = data->is_forward_only,
                                        .adds_gradients = run->has_gradients,
                                        .loss = data->loss,
                                        .loss_options = data->options};
    tinker_op_ask(op, TUNING_PASS, after_pass);
}

static void after_update(struct tinker_op *op) {
    struct tinker_run *run = op->run;
    run->has_gradients = false;
    if (op->ask.error.which) {
        tinker_op_fail(op, &op->ask.error);
        return;
    }
    run->updates++;
    tinker_op_done(op,
                   json_pack("{s:{s:o}}", "metrics", "grad_norm:mean", json_number(op->ask.update.result.grad_norm)));
}

static void begin_update(struct tinker_op *op) {
    op->ask.update.iteration = op->run->updates;
    if (op->run->has_gradients)
        tinker_op_ask(op, TUNING_UPDATE, after_update);
    else
        tinker_op_fail(
            op, AN_ERROR(ERROR_ARGUMENT, "seq_id", "optim_step: there was no forward_backward since the last update"));
}

/* ---- the end of a model ---- */

static void after_unload(struct tinker_op *op) {
    struct tinker_run *run = op->run;
    run->run = NULL;
    if (run->described)
        run->described->free(run->described);
    run->described = NULL;
    tinker_op_done(op, json_pack("{s:s, s:s}", "type", "unload_model", "model_id", run->id));
}

static void begin(struct tinker_op *op) {
    if (op->error.which) {
        tinker_op_fail(op, &op->error);
        return;
    }
    if (!op->run->run && op->kind != TINKER_CREATE && op->kind != TINKER_LOAD) {
        tinker_op_fail(
            op, AN_ERROR(ERROR_ARGUMENT, "model_id", "model_id: %s was not created, or is unloaded", op->run->id));
        return;
    }
    switch (op->kind) {
    case TINKER_CREATE:
    case TINKER_LOAD:
        tinker_begin_open(op);
        return;
    case TINKER_PASS:
        begin_pass(op);
        return;
    case TINKER_UPDATE:
        begin_update(op);
        return;
    case TINKER_SAVE:
    case TINKER_SAVE_SAMPLER:
        tinker_begin_save(op);
        return;
    case TINKER_UNLOAD:
        tinker_op_ask(op, TUNING_CLOSE, after_unload);
        return;
    }
}

/* ---- requests ---- */

struct tinker_run *tinker_run_of(struct exchange *exchange, const char *id, struct error *error) {
    char session_id[33];
    struct tinker_run *run;
    snprintf(session_id, sizeof session_id, "%.*s", (int)strcspn(id, ":"), id);
    struct tinker_session *session = tinker_session_of(exchange, session_id, error);
    if (session)
        LIST_FOREACH(run, &session->runs, all)
    if (!strcmp(run->id, id))
        return run;
    error_set(error, ERROR_MODEL_NOT_FOUND, "model_id", "there is no model \"%.128s\"", id);
    return NULL;
}

/* Takes over a request: its future is the answer, and it waits for its turn. A number that came before is the same
 * request again. Frees it when it returns false. */
static bool submit(struct exchange *exchange, struct tinker_run *run, struct tinker_op *op, struct error *error) {
    char id[TINKER_PATH_BYTES];
    snprintf(id, sizeof id, "%s:%lld", run->id, (long long)op->seq);
    struct tinker_future *future = tinker_future_find(exchange, id);
    bool is_new = !future && op->seq >= run->next && run->tinker->waiting < TINKER_WAITING;
    if (is_new)
        future = tinker_future_new(run->session, id, run->id);
    if (is_new && future) {
        op->run = run;
        op->future = future;
        op->begin = begin;
        tinker_op_wait(run, op);
    } else {
        bool is_late = op->seq < run->next;
        tinker_op_free(op);
        if (!future)
            return is_late ? error_set(error, ERROR_ARGUMENT, "seq_id",
                                       "seq_id: %s is done, and its result was fetched", id)
                           : error_set(error, ERROR_OVERLOADED, NULL, "too many requests wait for their turn");
    }
    tinker_future_answer(exchange, future);
    tinker_run_next(run);
    return true;
}

/* Makes a request of the run that the body names. NULL with *error. */
static struct tinker_op *new_op(struct exchange *exchange, const json_t *root, enum tinker_kind kind,
                                struct tinker_run **run, struct error *error) {
    const char *id = NULL;
    int64_t seq = 0;
    if (!json_in_string(json_object_get(root, "model_id"), "model_id", &id, error) ||
        !json_in_integer(json_object_get(root, "seq_id"), "seq_id", 1, INT32_MAX, &seq, error) ||
        !(*run = tinker_run_of(exchange, id ? id : "", error)))
        return NULL;
    /* unload_model may come without a number: it is the next one. */
    const struct tinker_op *last = TAILQ_LAST(&(*run)->waiting, tinker_ops);
    if (!seq && kind == TINKER_UNLOAD)
        seq = last ? last->seq + 1 : (*run)->next;
    struct tinker_op *op = seq ? calloc(1, sizeof *op) : NULL;
    if (!seq)
        error_set(error, ERROR_ARGUMENT, "seq_id", "seq_id: expected a number from 1");
    else if (!op)
        error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
    if (op) {
        op->kind = kind;
        op->seq = seq;
        op->sampler_seq = -1;
    }
    return op;
}

bool tinker_take_pass(struct exchange *exchange, struct tinker_data *data, struct error *error) {
    struct tinker_run *run = tinker_run_of(exchange, data->model_id, error);
    if (run && data->seq_id < 1)
        error_set(error, ERROR_ARGUMENT, "seq_id", "seq_id: expected a number from 1");
    struct tinker_op *op = run && data->seq_id >= 1 ? calloc(1, sizeof *op) : NULL;
    if (!op) {
        if (run && data->seq_id >= 1)
            error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
        tinker_data_free(data);
        return false;
    }
    op->kind = TINKER_PASS;
    op->seq = data->seq_id;
    op->data = data;
    return submit(exchange, run, op, error);
}

static void read_adam(struct tinker_op *op, const json_t *adam) {
    struct tuning_update *update = &op->ask.update;
    *update = (struct tuning_update){.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-12};
    const struct {
        const char *name;
        double high, *value;
    } fields[] = {{"learning_rate", 1e6, &update->lr},          {"beta1", 1 - 1e-9, &update->beta1},
                  {"beta2", 1 - 1e-9, &update->beta2},          {"eps", 1e6, &update->eps},
                  {"weight_decay", 1e6, &update->weight_decay}, {"grad_clip_norm", 1e30, &update->clip}};
    char name[64];
    for (size_t i = 0; i < sizeof fields / sizeof *fields && !op->error.which; i++) {
        snprintf(name, sizeof name, "adam_params.%s", fields[i].name);
        json_in_number(json_object_get(adam, fields[i].name), name, 0, fields[i].high, fields[i].value, &op->error);
    }
}

bool tinker_take_update(struct exchange *exchange, const json_t *root, struct error *error) {
    struct tinker_run *run;
    struct tinker_op *op = new_op(exchange, root, TINKER_UPDATE, &run, error);
    if (!op)
        return false;
    op->error = (struct error){0};
    const json_t *adam = json_object_get(root, "adam_params");
    if (json_is_object(adam))
        read_adam(op, adam);
    else
        error_set(&op->error, ERROR_ARGUMENT, "adam_params", "adam_params: expected those of adamw");
    return submit(exchange, run, op, error);
}

bool tinker_take_unload(struct exchange *exchange, const json_t *root, struct error *error) {
    struct tinker_run *run;
    struct tinker_op *op = new_op(exchange, root, TINKER_UNLOAD, &run, error);
    return op && submit(exchange, run, op, error);
}

/* ---- saving and loading ---- */

static bool take_saving(struct exchange *exchange, const json_t *root, enum tinker_kind kind, struct error *error) {
    struct tinker_run *run;
    struct tinker_op *op = new_op(exchange, root, kind, &run, error);
    const char *name = NULL, *how = NULL;
    int64_t ttl = 0;
    if (!op)
        return false;
    struct error *fault = &op->error;
    const json_t *metadata = json_object_get(root, "user_metadata");
    if (json_in_string(json_object_get(root, "path"), "path", &name, fault) &&
        json_in_string(json_object_get(root, "kind"), "kind", &how, fault) &&
        json_in_bool(json_object_get(root, "overwrite"), "overwrite", &op->overwrites, fault) &&
        json_in_integer(json_object_get(root, "ttl_seconds"), "ttl_seconds", 1, INT32_MAX, &ttl, fault) &&
        json_in_integer(json_object_get(root, "sampling_session_seq_id"), "sampling_session_seq_id", 0, INT64_MAX,
                        &op->sampler_seq, fault)) {
        op->is_inflight = how && !strcmp(how, "inflight");
        if (how && strcmp(how, "snapshot") != 0 && !op->is_inflight)
            error_set(fault, ERROR_ARGUMENT, "kind", "kind: expected snapshot or inflight, not \"%.64s\"", how);
        if (name && !tinker_name_is_valid(name))
            error_set(fault, ERROR_ARGUMENT, "path",
                      "path: expected a name of at most %d letters, digits and ._- that begins with no dot",
                      TINKER_NAME_BYTES - 1);
    }
    if (name)
        op->sampler_seq = -1;
    if (!fault->which) {
        snprintf(op->saved.run, sizeof op->saved.run, "%s", run->id);
        snprintf(op->saved.name, sizeof op->saved.name, "%s", name ? name : "");
        if (!name)
            snprintf(op->saved.name, sizeof op->saved.name, "seq-%lld", (long long)op->seq);
        op->saved.created = clock_wall_seconds();
        op->saved.expires = ttl ? op->saved.created + (double)ttl : 0;
        op->saved.is_sampler = kind == TINKER_SAVE_SAMPLER;
        op->saved.metadata = json_is_object(metadata) ? json_deep_copy(metadata) : NULL;
    }
    return submit(exchange, run, op, error);
}

bool tinker_take_save(struct exchange *exchange, const json_t *root, struct error *error) {
    return take_saving(exchange, root, TINKER_SAVE, error);
}

bool tinker_take_save_sampler(struct exchange *exchange, const json_t *root, struct error *error) {
    return take_saving(exchange, root, TINKER_SAVE_SAMPLER, error);
}

/* Makes a run of a session; the number is the client's. */
static struct tinker_run *new_run(struct tinker_session *session, int64_t number) {
    struct tinker_run *run = calloc(1, sizeof *run);
    if (!run)
        return NULL;
    run->tinker = session->tinker;
    run->session = session;
    snprintf(run->id, sizeof run->id, "%s:train:%lld", session->id, (long long)number);
    snprintf(run->owner, sizeof run->owner, "%s", session->owner);
    run->weight = session->weight > 1 ? (int64_t)session->weight : 1;
    TAILQ_INIT(&run->waiting);
    LIST_INSERT_HEAD(&session->runs, run, all);
    return run;
}

/* Takes the first request of a new run, or the same one again. */
static bool submit_first(struct exchange *exchange, const json_t *root, struct tinker_op *op, struct error *error) {
    const char *id = NULL;
    char run_id[TINKER_ID_BYTES];
    int64_t number = 0;
    struct tinker_session *session = NULL;
    struct tinker_run *run = NULL;
    struct error absent;
    if (json_in_string(json_object_get(root, "session_id"), "session_id", &id, error) &&
        json_in_integer(json_object_get(root, "model_seq_id"), "model_seq_id", 0, INT64_MAX, &number, error))
        session = tinker_session_of(exchange, id ? id : "", error);
    if (session) {
        snprintf(run_id, sizeof run_id, "%s:train:%lld", session->id, (long long)number);
        run = tinker_run_of(exchange, run_id, &absent);
        run = run ? run : new_run(session, number);
        if (!run)
            error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
    }
    if (!run) {
        tinker_op_free(op);
        return false;
    }
    const json_t *metadata = json_object_get(root, "user_metadata");
    if (!run->metadata && json_is_object(metadata))
        run->metadata = json_deep_copy(metadata);
    return submit(exchange, run, op, error);
}

/* Checks that the base is the one that is served. */
static bool check_base(const struct server *server, const json_t *root, struct error *error) {
    const char *name = NULL;
    if (!json_in_string(json_object_get(root, "base_model"), "base_model", &name, error))
        return false;
    for (size_t i = 0; name && i < server->model.name_count; i++)
        if (!strcmp(server->model.names[i], name))
            return true;
    return !name || error_set(error, ERROR_ARGUMENT, "base_model", "base_model: \"%.128s\" is not served here, but %s",
                              name, server->model.name);
}

static void read_shape(struct tinker_op *op, const json_t *root) {
    struct tinker_shape *shape = &op->saved.shape;
    const json_t *lora = json_object_get(root, "lora_config"), *optimizer = json_object_get(root, "optimizer_config");
    struct error *fault = &op->error;
    *shape = (struct tinker_shape){.trains_head = true, .trains_mlp = true, .trains_attention = true};
    if (!json_object_get(root, "base_model"))
        error_set(fault, ERROR_ARGUMENT, "base_model", "base_model: expected a name");
    else if (!json_is_object(lora))
        error_set(fault, ERROR_ARGUMENT, "lora_config", "lora_config: only LoRA trains here");
    else if (optimizer && !json_in_is(json_object_get(optimizer, "type"), "adamw"))
        error_set(fault, ERROR_ARGUMENT, "optimizer_config", "optimizer_config.type: expected adamw");
    else if (json_in_integer(json_object_get(lora, "rank"), "lora_config.rank", 1, TINKER_MOST_RANK, &shape->rank,
                             fault) &&
             json_in_integer(json_object_get(lora, "seed"), "lora_config.seed", 0, INT64_MAX, &shape->seed, fault) &&
             json_in_bool(json_object_get(lora, "train_unembed"), "lora_config.train_unembed", &shape->trains_head,
                          fault) &&
             json_in_bool(json_object_get(lora, "train_mlp"), "lora_config.train_mlp", &shape->trains_mlp, fault) &&
             json_in_bool(json_object_get(lora, "train_attn"), "lora_config.train_attn", &shape->trains_attention,
                          fault)) {
        if (!shape->rank)
            error_set(fault, ERROR_ARGUMENT, "lora_config.rank", "lora_config.rank: expected 1 to %d",
                      TINKER_MOST_RANK);
        else if (!shape->trains_head && !shape->trains_mlp && !shape->trains_attention)
            error_set(fault, ERROR_ARGUMENT, "lora_config", "lora_config: nothing trains");
    }
}

/* The first request of a run, or (with a model_id) a load of an older client. */
static bool take_first(struct exchange *exchange, const json_t *root, enum tinker_kind kind, struct error *error) {
    struct tinker_run *run = NULL;
    bool is_old = kind == TINKER_LOAD && json_is_string(json_object_get(root, "model_id"));
    struct tinker_op *op = is_old ? new_op(exchange, root, kind, &run, error) : calloc(1, sizeof *op);
    const char *path = NULL;
    if (!op)
        return !is_old ? error_set(error, ERROR_OVERLOADED, NULL, "out of memory") : false;
    op->kind = kind;
    op->sampler_seq = -1;
    if (!check_base(exchange->request->server, root, &op->error)) {
    } else if (kind == TINKER_CREATE)
        read_shape(op, root);
    else if (json_in_string(json_object_get(root, "path"), "path", &path, &op->error) &&
             json_in_bool(json_object_get(root, "optimizer"), "optimizer", &op->wants_state, &op->error) &&
             !tinker_parse_path(path ? path : "", &op->saved))
        error_set(&op->error, ERROR_ARGUMENT, "path", "path: expected tinker://RUN/weights/NAME, not \"%.200s\"",
                  path ? path : "");
    return is_old ? submit(exchange, run, op, error) : submit_first(exchange, root, op, error);
}

bool tinker_take_create(struct exchange *exchange, const json_t *root, struct error *error) {
    return take_first(exchange, root, TINKER_CREATE, error);
}

bool tinker_take_load(struct exchange *exchange, const json_t *root, struct error *error) {
    return take_first(exchange, root, TINKER_LOAD, error);
}

/* ---- what is known of a run ---- */

bool tinker_take_info(struct exchange *exchange, const json_t *root, struct error *error) {
    const struct openai_model *model = &exchange->request->server->model;
    const char *tokenizer = exchange->request->server->tinker->options.tokenizer_id, *id = NULL;
    if (!json_in_string(json_object_get(root, "model_id"), "model_id", &id, error))
        return false;
    const struct tinker_run *run = tinker_run_of(exchange, id ? id : "", error);
    if (!run)
        return false;
    route_answer_object(exchange, json_pack("{s:s, s:s, s:{s:s, s:s, s:s}, s:b, s:I, s:s}", "type", "get_info",
                                            "model_id", run->id, "model_data", "arch", "transformer", "model_name",
                                            model->name, "tokenizer_id", tokenizer ? tokenizer : model->name, "is_lora",
                                            true, "lora_rank", (json_int_t)run->shape.rank, "model_name", model->name));
    return true;
}
