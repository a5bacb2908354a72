/* Lists of saved weights and of runs, which a worker reads from the disk. */
#include "tinker-internal.h"

#include "openai/json_in.h"

#include "base/base.h"
#include "base/staging.h"

#include <time.h>

enum { PATH_MOST = 512 };

/* A request that the worker answers. */
struct listing {
    struct worker_job job; /* the first */
    struct tinker *tinker;
    struct exchange *exchange; /* NULL: its client has left */
    /* On the worker: makes the answer, or sets the error. */
    json_t *(*make)(struct listing *listing);
    char owner[KEYS_NAME_BYTES + 1], path[PATH_MOST + 16]; /* path: the rest of the URL, or a tinker:// path */
    int64_t limit, offset;
    json_t *live; /* runs of open sessions, as objects of the answer */
    json_t *answer;
    struct error error;
    /* While the list is read: */
    struct tinker_saved *saved; /* [count] */
    size_t count;
};

/* ---- reading ---- */

static void add_saved(struct listing *listing, const char *run, const char *kind, const char *name) {
    struct tinker_saved saved = {.is_sampler = *kind == 's'};
    char directory[PATH_MAX];
    snprintf(saved.run, sizeof saved.run, "%s", run);
    snprintf(saved.name, sizeof saved.name, "%s", name);
    if (!tinker_name_is_valid(name) || tinker_directory(listing->tinker->options.root, &saved, directory) ||
        tinker_read(directory, listing->owner, &saved))
        return; /* another's, or no saved weights */
    struct tinker_saved *grown = realloc(listing->saved, (listing->count + 1) * sizeof *grown);
    if (grown) {
        listing->saved = grown;
        grown[listing->count++] = saved;
    } else
        tinker_saved_free(&saved);
}

/* Adds the weights of one kind of a run. */
static void add_kind(struct listing *listing, const char *run, const char *kind) {
    char directory[PATH_MAX], **names;
    size_t count;
    int length = snprintf(directory, sizeof directory, "%s/%s/%s", listing->tinker->options.root, run, kind);
    if (length >= (int)sizeof directory || !file_is_directory(directory) || file_list(directory, &names, &count))
        return;
    for (size_t i = 0; i < count; i++)
        add_saved(listing, run, kind, names[i]);
    file_list_free(names, count);
}

static int compare_times(const void *a, const void *b) {
    const struct tinker_saved *x = a, *y = b;
    return (x->created < y->created) - (x->created > y->created);
}

/* Reads what is saved of a run, or (NULL) of all; the newest first. */
static void read_all(struct listing *listing, const char *run) {
    char **names;
    size_t count;
    if (file_list(listing->tinker->options.root, &names, &count))
        return;
    for (size_t i = 0; i < count; i++)
        if (run ? !strcmp(run, names[i]) : *names[i] != '.') {
            add_kind(listing, names[i], "weights");
            add_kind(listing, names[i], "sampler_weights");
        }
    file_list_free(names, count);
    if (listing->count)
        qsort(listing->saved, listing->count, sizeof *listing->saved, compare_times);
}

/* ---- objects ---- */

static json_t *time_object(double seconds) {
    char text[32];
    time_t whole = (time_t)seconds;
    struct tm parts;
    gmtime_r(&whole, &parts);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    return json_string(text);
}

static json_t *checkpoint_object(const struct tinker_saved *saved) {
    char id[TINKER_NAME_BYTES + 20], path[TINKER_PATH_BYTES];
    snprintf(id, sizeof id, "%s/%s", saved->is_sampler ? "sampler_weights" : "weights", saved->name);
    snprintf(path, sizeof path, "tinker://%s/%s", saved->run, id);
    return json_pack("{s:s, s:s, s:o, s:s, s:I, s:b, s:O?, s:o?}", "checkpoint_id", id, "checkpoint_type",
                     saved->is_sampler ? "sampler" : "training", "time", time_object(saved->created), "tinker_path",
                     path, "size_bytes", (json_int_t)saved->bytes, "public", false, "user_metadata", saved->metadata,
                     "expires_at", saved->expires > 0 ? time_object(saved->expires) : NULL);
}

static json_t *run_object(const char *id, const char *base, const char *owner, int64_t rank, double last) {
    return json_pack("{s:s, s:s, s:s, s:b, s:b, s:I, s:o, s:n, s:n, s:n}", "training_run_id", id, "base_model", base,
                     "model_owner", owner, "is_lora", true, "corrupted", false, "lora_rank", (json_int_t)rank,
                     "last_request_time", time_object(last), "last_checkpoint", "last_sampler_checkpoint",
                     "user_metadata");
}

static json_t *find_run(json_t *runs, const char *id) {
    size_t i;
    json_t *run;
    json_array_foreach(runs, i, run) if (json_in_is(json_object_get(run, "training_run_id"), id)) return run;
    return NULL;
}

/* Makes the runs of a list: those of open sessions, then others by their newest weights. */
static json_t *all_runs(struct listing *listing) {
    json_t *runs = json_incref(listing->live);
    for (size_t i = 0; i < listing->count; i++) {
        const struct tinker_saved *saved = &listing->saved[i];
        const char *last = saved->is_sampler ? "last_sampler_checkpoint" : "last_checkpoint";
        json_t *run = find_run(runs, saved->run);
        if (!run) {
            run = run_object(saved->run, saved->base, saved->owner, saved->shape.rank, saved->created);
            json_array_append_new(runs, run);
        }
        if (json_is_null(json_object_get(run, last)))
            json_object_set_new(run, last, checkpoint_object(saved));
    }
    return runs;
}

/* Cuts a list to the page that is wanted, and adds the cursor. */
static json_t *page(const struct listing *listing, const char *name, json_t *all) {
    json_t *some = json_array();
    for (int64_t i = listing->offset; i < listing->offset + listing->limit && i < (int64_t)json_array_size(all); i++)
        json_array_append(some, json_array_get(all, (size_t)i));
    json_t *answer = json_pack("{s:o, s:{s:I, s:I, s:I}}", name, some, "cursor", "offset", (json_int_t)listing->offset,
                               "limit", (json_int_t)listing->limit, "total_count", (json_int_t)json_array_size(all));
    json_decref(all);
    return answer;
}

static json_t *checkpoints_of(const struct listing *listing) {
    json_t *all = json_array();
    for (size_t i = 0; i < listing->count; i++)
        json_array_append_new(all, checkpoint_object(&listing->saved[i]));
    return all;
}

/* ---- answers, on the worker ---- */

static json_t *make_checkpoints(struct listing *listing) {
    read_all(listing, NULL);
    return page(listing, "checkpoints", checkpoints_of(listing));
}

static json_t *make_runs(struct listing *listing) {
    read_all(listing, NULL);
    return page(listing, "training_runs", all_runs(listing));
}

/* training_runs/ID, and training_runs/ID/checkpoints. */
static json_t *make_run(struct listing *listing) {
    char *end = strchr(listing->path, '/');
    bool wants_checkpoints = end && !strcmp(end, "/checkpoints");
    if (end)
        *end = 0;
    read_all(listing, listing->path);
    json_t *runs = all_runs(listing), *run = json_incref(find_run(runs, listing->path));
    json_decref(runs);
    if (!run || (end && !wants_checkpoints)) {
        error_set(&listing->error, ERROR_MODEL_NOT_FOUND, NULL, "there is no training run \"%.128s\"", listing->path);
        json_decref(run);
        return NULL;
    }
    if (!wants_checkpoints)
        return run;
    json_decref(run);
    listing->limit = INT32_MAX;
    return page(listing, "checkpoints", checkpoints_of(listing));
}

/* Finds saved weights by listing->path, RUN/KIND/NAME. */
static bool find_saved(struct listing *listing, struct tinker_saved *saved, char directory[PATH_MAX]) {
    bool is_path = tinker_parse_path(listing->path, saved);
    int status = is_path ? tinker_directory(listing->tinker->options.root, saved, directory) : STATUS_INVALID;
    THEN(status, tinker_read(directory, listing->owner, saved));
    return !status ||
           error_set(&listing->error, ERROR_MODEL_NOT_FOUND, NULL, "there are no weights %.200s", listing->path);
}

static json_t *make_info(struct listing *listing) {
    struct tinker_saved saved = {0};
    char directory[PATH_MAX];
    if (!find_saved(listing, &saved, directory))
        return NULL;
    tinker_saved_free(&saved);
    return json_pack("{s:s, s:b, s:I, s:b, s:b, s:b}", "base_model", saved.base, "is_lora", true, "lora_rank",
                     (json_int_t)saved.shape.rank, "train_unembed", saved.shape.trains_head, "train_mlp",
                     saved.shape.trains_mlp, "train_attn", saved.shape.trains_attention);
}

/* DELETE training_runs/ID/checkpoints/KIND/NAME. */
static json_t *make_deletion(struct listing *listing) {
    struct tinker_saved saved = {0};
    char directory[PATH_MAX], path[PATH_MOST + 16];
    char *end = strstr(listing->path, "/checkpoints/");
    if (end) {
        *end = 0;
        snprintf(path, sizeof path, "tinker://%.200s/%.200s", listing->path, end + sizeof "/checkpoints/" - 1);
        memcpy(listing->path, path, sizeof path);
    }
    if (!find_saved(listing, &saved, directory))
        return NULL;
    tinker_saved_free(&saved);
    if (staging_remove(directory))
        error_set(&listing->error, ERROR_INTERNAL, NULL, "the weights cannot be removed");
    return json_object();
}

/* ---- the loop ---- */

static void work(struct worker_job *job) {
    struct listing *listing = (struct listing *)job;
    listing->error = (struct error){0};
    listing->answer = listing->make(listing);
    for (size_t i = 0; i < listing->count; i++)
        tinker_saved_free(&listing->saved[i]);
    free(listing->saved);
}

static void done(struct worker_job *job) {
    struct listing *listing = (struct listing *)job;
    listing->tinker->under_way--;
    if (listing->exchange) {
        listing->exchange->context = NULL;
        if (listing->error.which)
            route_fail(listing->exchange, &listing->error);
        else
            route_answer_object(listing->exchange, json_incref(listing->answer));
    }
    json_decref(listing->answer);
    json_decref(listing->live);
    free(listing);
}

static void on_close(struct exchange *exchange) {
    struct listing *listing = exchange->context;
    if (listing)
        listing->exchange = NULL;
}

static int64_t query_number(const struct exchange *exchange, const char *name, int64_t otherwise) {
    size_t length = strlen(name);
    for (const char *at = exchange->head.query; at && *at; at = strchr(at, '&') ? strchr(at, '&') + 1 : NULL)
        if (!strncmp(at, name, length) && at[length] == '=') {
            long long value = strtoll(at + length + 1, NULL, 10);
            return value < 0 ? 0 : value > INT32_MAX ? INT32_MAX : value;
        }
    return otherwise;
}

static json_t *live_runs(struct exchange *exchange) {
    const struct tinker *tinker = exchange->request->server->tinker;
    const struct tinker_session *session;
    const struct tinker_run *run;
    json_t *runs = json_array();
    LIST_FOREACH(session, &tinker->sessions, all)
    if (tinker_is_owner(session, exchange))
        LIST_FOREACH(run, &session->runs, all) {
            json_t *object =
                run_object(run->id, tinker->server->model.name, run->owner, run->shape.rank, clock_wall_seconds());
            if (run->metadata)
                json_object_set(object, "user_metadata", run->metadata);
            json_array_append_new(runs, object);
        }
    return runs;
}

static void list(struct exchange *exchange, json_t *(*make)(struct listing *listing), const char *path) {
    static const struct exchange_handler waiting = {.on_close = on_close};
    struct listing *listing = calloc(1, sizeof *listing);
    if (!listing) {
        route_fail(exchange, AN_ERROR(ERROR_OVERLOADED, NULL, "out of memory"));
        return;
    }
    *listing = (struct listing){.job = {.work = work, .done = done, .owner = request_owner(exchange)},
                                .tinker = exchange->request->server->tinker,
                                .exchange = exchange,
                                .make = make,
                                .limit = query_number(exchange, "limit", 20),
                                .offset = query_number(exchange, "offset", 0),
                                .live = live_runs(exchange)};
    snprintf(listing->owner, sizeof listing->owner, "%s", exchange->request->client.name);
    snprintf(listing->path, sizeof listing->path, "%s", path);
    error_set(&listing->error, ERROR_OVERLOADED, NULL, "too many files wait to be read");
    route_continue(exchange, &waiting, listing);
    tinker_work(listing->tinker, &listing->job);
}

bool tinker_take_weights_info(struct exchange *exchange, const json_t *root, struct error *error) {
    const char *path = NULL;
    if (!json_in_string(json_object_get(root, "tinker_path"), "tinker_path", &path, error))
        return false;
    list(exchange, make_info, path ? path : "");
    return true;
}

void tinker_checkpoints(struct exchange *exchange) {
    list(exchange, make_checkpoints, "");
}

void tinker_training_runs(struct exchange *exchange) {
    list(exchange, make_runs, "");
}

void tinker_training_run(struct exchange *exchange) {
    char rest[PATH_MOST];
    bool is_text = route_rest(exchange, "/api/v1/training_runs/", rest, sizeof rest);
    list(exchange, strcmp(exchange->head.method, "DELETE") != 0 ? make_run : make_deletion, is_text ? rest : "");
}
