/* /v1/fine_tuning/jobs, and DELETE /v1/models/NAME.
 *
 * A request for a job becomes words of `cambium finetune`. The answer waits until its rows were read and the engine
 * has said that it fits. */
#include "jobs-internal.h"

#include "openai/json_in.h"
#include "registry.h"

#include "base/base.h"

#include <sys/random.h>

enum { EVENTS = 20, CHECKPOINTS = 10, JOBS = 20, LIST_MOST = 10000, REST_BYTES = 128 };
static const char path_of_jobs[] = "/fine_tuning/jobs/";

/* ---- words ---- */

/* Keys that a job may not set: the server decides them, or they would not do what they say. */
static bool is_key(const char *key) {
    static const char *const allowed[] = {"peft.", "optim.", "train.", "tuning.", "data."};
    static const char *const refused[] = {"tuning.template",
                                          "tuning.template_timeout",
                                          "train.precision",
                                          "train.skip_train",
                                          "train.exit_interval",
                                          "train.early_stop",
                                          "train.eval_interval",
                                          "train.eval_iters",
                                          "train.fp8_format",
                                          "train.fp8_margin",
                                          "peft.type",
                                          "train.fp8_amax_history_len",
                                          "train.fp8_amax_compute_algo"};
    if (!strcmp(key, "peft") || !strcmp(key, "loss"))
        return true;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (!strcmp(key, refused[i]))
            return false;
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
        if (!strncmp(key, allowed[i], strlen(allowed[i])) && !strpbrk(key, "= "))
            return true;
    return false;
}

static void add_word(json_t *words, const char *text) {
    json_array_append_new(words, json_string(text));
}

__attribute__((format(printf, 2, 3))) static void add_line(json_t *words, const char *format, ...) {
    char line[PATH_MAX + 64];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    add_word(words, line);
}

/* Adds the words of `cambium`. Keys that the request has elsewhere, too, are refused. */
static bool add_keys(json_t *words, const struct openai_job *asked, struct error *error) {
    const struct {
        const char *key, *other;
        bool is_given;
    } others[] = {{"tuning.epochs", "n_epochs", asked->values.epochs > 0},
                  {"train.train_iters", "n_epochs", asked->values.epochs > 0},
                  {"train.global_batch_size", "batch_size", asked->values.batch_size > 0},
                  {"optim.lr", "learning_rate_multiplier", asked->values.rate > 0},
                  {"tuning.beta", "beta", asked->values.beta > 0},
                  {"train.seed", "seed", asked->has_seed}};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)asked->keys, key, value) {
        char param[64];
        snprintf(param, sizeof param, "cambium.%.50s", key);
        if (!is_key(key))
            return error_set(error, ERROR_ARGUMENT, param, "%s: jobs do not take this key", param);
        for (size_t i = 0; i < sizeof others / sizeof *others; i++)
            if (!strcmp(key, others[i].key) && others[i].is_given)
                return error_set(error, ERROR_ARGUMENT, param, "%s: %s is given already", param, others[i].other);
        if (!openai_job_add_words(words, key, value, error))
            return false;
    }
    return true;
}

static bool has_key(const struct openai_job *asked, const char *key) {
    return json_object_get(asked->keys, key) != NULL;
}

/* Makes the command line of a job, with the first method when none is named. `start`: the directory of the adapter to
 * start from; "": none. */
static bool make_words(struct job *job, const struct openai_job *asked, const char *start, struct error *error) {
    const struct jobs *jobs = job->jobs;
    json_t *words = job->words;
    char path[PATH_MAX];
    bool has_steps = has_key(asked, "train.train_iters") || has_key(asked, "tuning.epochs");
    for (size_t i = 0; i < jobs->options->tuning_word_count; i++)
        add_word(words, jobs->options->tuning_words[i]);
    if (*start)
        add_line(words, "--init-adapter=%s", start);
    else if (!has_key(asked, "peft")) {
        add_word(words, "--peft");
        add_word(words, peft_method_names[0]);
    }
    if (asked->method == OPENAI_DPO && !has_key(asked, "loss"))
        add_word(words, "--loss=dpo");
    if (!has_steps)
        add_line(words, "--tuning.epochs=%lld", (long long)(asked->values.epochs ? asked->values.epochs : 3));
    if (!has_key(asked, "train.global_batch_size"))
        add_line(words, "--train.global_batch_size=%lld",
                 (long long)(asked->values.batch_size ? asked->values.batch_size : 4));
    if (!has_key(asked, "train.seed"))
        add_line(words, "--train.seed=%lld", (long long)asked->seed);
    if (asked->values.beta > 0)
        add_line(words, "--tuning.beta=%.17g", asked->values.beta);
    if (!add_keys(words, asked, error))
        return false;
    if (asked->validation_file && !jobs_path(jobs, path, "files/%s/rows.jsonl", asked->validation_file)) {
        add_word(words, "--train.eval_interval=1");
        add_word(words, "--valid-data");
        add_word(words, path);
    }
    if (jobs_path(jobs, path, "files/%s/rows.jsonl", asked->training_file))
        return error_of_status(error, ERROR_INTERNAL, NULL);
    add_word(words, "--data");
    add_word(words, path);
    if (jobs_path(jobs, path, "jobs/%s/adapter", job->id))
        return error_of_status(error, ERROR_INTERNAL, NULL);
    add_line(words, "--output=%s", path);
    return true;
}

/* ---- creating ---- */

static bool check_files(const struct exchange *exchange, const struct openai_job *asked, struct error *error) {
    const char *ids[] = {asked->training_file, asked->validation_file};
    static const char *const names[] = {"training_file", "validation_file"};
    for (int i = 0; i < 2; i++)
        if (ids[i] && !jobs_find_file(exchange, ids[i]))
            return error_set(error, ERROR_ARGUMENT, names[i], "%s: there is no file %.64s", names[i], ids[i]);
    return true;
}

static bool check_limits(const struct exchange *exchange, struct error *error) {
    const struct jobs *jobs = exchange->request->server->jobs;
    int64_t most = exchange->request->client.tuning_jobs, own = 0, waiting = 0;
    const struct job *job;
    TAILQ_FOREACH(job, &jobs->jobs, all) {
        bool is_open = !job_has_ended(job) && !job_is(job, "paused");
        own += is_open && !strcmp(job->owner, jobs_owner(exchange));
        waiting += job_is(job, "queued");
    }
    if (waiting >= JOBS_WAITING_MOST)
        return error_set(error, ERROR_OVERLOADED, NULL, "%lld tuning jobs wait already", (long long)waiting);
    if (most >= 0 && own >= most)
        return error_set(error, ERROR_OVERLOADED, NULL, "%lld jobs of this key have not ended, of its tuning_jobs=%lld",
                         (long long)own, (long long)most);
    return jobs_have_room(exchange, 0, error);
}

/* Finds what a job starts from: *start is "" for the base. */
static bool find_start(const struct server *server, const char *model, const char **start, struct error *error) {
    struct registry_adapter adapter;
    *start = "";
    for (size_t i = 0; i < server->model.name_count; i++)
        if (!strcmp(server->model.names[i], model))
            return true;
    if (!registry_seek(server, model, &adapter))
        return error_set(error, ERROR_MODEL_NOT_FOUND, "model", "there is no model \"%.200s\"", model);
    *start = adapter.directory;
    return true;
}

static void on_left(struct exchange *exchange) {
    ((struct job *)exchange->context)->asker = NULL;
}

static const struct exchange_handler creating = {.on_close = on_left};

static bool create(struct exchange *exchange, const json_t *root, struct error *error) {
    struct server *server = exchange->request->server;
    struct jobs *jobs = server->jobs;
    struct openai_job asked;
    const char *start;
    uint32_t drawn = 0;
    if (!openai_job_read(root, &asked, error) || !find_start(server, asked.model, &start, error) ||
        !check_files(exchange, &asked, error) || !check_limits(exchange, error))
        return false;
    if (!asked.has_seed && getrandom(&drawn, sizeof drawn, 0) == sizeof drawn)
        asked.seed = drawn >> 1;
    struct job *job = job_new(jobs);
    if (!job)
        return error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
    jobs_draw_id("ftjob-", job->id);
    job->number = jobs->next_number++;
    job->weight = exchange->request->client.weight;
    snprintf(job->owner, sizeof job->owner, "%s", jobs_owner(exchange));
    job->object = openai_job_object(&asked, job->id, jobs_now());
    if (!job->object || !make_words(job, &asked, start, error)) {
        if (!job->object)
            error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
        job_free(job);
        return false;
    }
    job->asker = exchange;
    route_continue(exchange, &creating, job);
    TAILQ_INSERT_TAIL(&jobs->jobs, job, all);
    job_begin(job);
    return true;
}

static void on_body(struct exchange *exchange, void *made) {
    struct error error;
    if (!create(exchange, made, &error))
        route_fail(exchange, &error);
    json_decref(made);
}

void jobs_create(struct exchange *exchange) {
    static const struct route_body body = {.read = route_read_json, .on_made = on_body, .drop = route_drop_json};
    struct error error;
    if (jobs_may_tune(exchange, &error))
        route_collect(exchange, &body);
    else
        route_fail(exchange, &error);
}

/* ---- lists ---- */

void jobs_list(struct exchange *exchange) {
    const struct jobs *jobs = exchange->request->server->jobs;
    struct openai_page page;
    struct openai_list list;
    struct error error;
    const struct job *job;
    if (!jobs_may_tune(exchange, &error) || !openai_page_read(exchange->head.query, JOBS, LIST_MOST, &page, &error)) {
        route_fail(exchange, &error);
        return;
    }
    openai_list_begin(&list, &page);
    TAILQ_FOREACH_REVERSE(job, &jobs->jobs, job_list, all) {
        bool is_seen = !strcmp(job->owner, jobs_owner(exchange)) && !(job->run && job->run->only_checks);
        if (is_seen && openai_list_takes(&list, job->id))
            json_add(&list.out, job->object);
    }
    openai_list_end(&list);
    route_answer_json(exchange, &list.out);
}

static void list_events(struct exchange *exchange, const struct job *job, const struct openai_page *page) {
    struct openai_list list;
    openai_list_begin(&list, page);
    for (size_t i = job->event_count; i-- > 0 && !list.has_more;) {
        const struct job_event *own = &job->events[i];
        struct openai_event event = {.created = own->created, .level = own->level, .message = own->message};
        char line[96];
        job_event_id(job, own, event.id);
        if (!openai_list_takes(&list, event.id))
            continue;
        if (!own->message) {
            snprintf(line, sizeof line, "Step %lld/%lld: training loss=%.4f", (long long)own->figures.step,
                     (long long)own->figures.total, own->figures.train_loss);
            event.message = line;
            event.figures = &own->figures;
        }
        openai_event_add(&event, &list.out);
    }
    openai_list_end(&list);
    route_answer_json(exchange, &list.out);
}

static void list_checkpoints(struct exchange *exchange, const struct job *job, const struct openai_page *page) {
    struct openai_list list;
    openai_list_begin(&list, page);
    for (size_t i = json_array_size(job->checkpoints); i-- > 0;) {
        const json_t *checkpoint = json_array_get(job->checkpoints, i);
        const char *id = json_string_value(json_object_get(checkpoint, "id"));
        if (openai_list_takes(&list, id ? id : ""))
            json_add(&list.out, checkpoint);
    }
    openai_list_end(&list);
    route_answer_json(exchange, &list.out);
}

/* ---- one job ---- */

static bool refuse_status(const struct job *job, const char *verb, struct error *error) {
    return error_set(error, ERROR_ARGUMENT, NULL, "the job is %s: it cannot be %s", job_status(job), verb);
}

static bool act(struct job *job, const char *verb, struct error *error) {
    bool is_running = job->run && !job_is(job, "paused"); /* a run of a paused job is about to be freed */
    if (!strcmp(verb, "resume")) {
        if (!job_is(job, "paused"))
            return refuse_status(job, "resumed", error);
        job_change(job, "queued", "info", NULL);
        jobs_start(job->jobs);
        return true;
    }
    bool is_cancel = !strcmp(verb, "cancel");
    if (job_has_ended(job) || job->wish == JOB_CANCEL || (!is_cancel && job_is(job, "paused")))
        return refuse_status(job, is_cancel ? "cancelled" : "paused", error);
    if (is_running)
        job_wish(job, is_cancel ? JOB_CANCEL : JOB_PAUSE);
    else
        job_change(job, is_cancel ? "cancelled" : "paused", "info", NULL);
    if (!is_running && is_cancel)
        job_drop_state(job);
    return true;
}

/* Splits "ID/verb", and finds the job; answers with an error otherwise. */
static struct job *find(struct exchange *exchange, char rest[REST_BYTES], const char **verb) {
    struct error error;
    struct job *job = NULL;
    *verb = "";
    *rest = 0;
    if (jobs_may_tune(exchange, &error)) {
        bool is_id = route_rest(exchange, path_of_jobs, rest, REST_BYTES);
        char *slash = strchr(rest, '/');
        if (slash) {
            *slash = 0;
            *verb = slash + 1;
        }
        job = is_id ? jobs_find_job(exchange, rest) : NULL;
        error_set(&error, ERROR_OBJECT_NOT_FOUND, "id", "there is no job %.64s", rest);
    }
    if (!job)
        route_fail(exchange, &error);
    return job;
}

static void fail_path(struct exchange *exchange) {
    route_fail(exchange, AN_ERROR(ERROR_ROUTE_NOT_FOUND, NULL, "there is no %.200s", exchange->head.path));
}

void jobs_get(struct exchange *exchange) {
    char rest[REST_BYTES];
    const char *verb;
    const struct job *job = find(exchange, rest, &verb);
    struct openai_page page;
    struct error error;
    bool is_events = !strcmp(verb, "events"), is_checkpoints = !strcmp(verb, "checkpoints");
    if (!job)
        return;
    if (!*verb)
        route_answer_object(exchange, json_incref(job->object));
    else if (!is_events && !is_checkpoints)
        fail_path(exchange);
    else if (!openai_page_read(exchange->head.query, is_events ? EVENTS : CHECKPOINTS, LIST_MOST, &page, &error))
        route_fail(exchange, &error);
    else
        (is_events ? list_events : list_checkpoints)(exchange, job, &page);
}

void jobs_act(struct exchange *exchange) {
    char rest[REST_BYTES];
    const char *verb;
    struct job *job = find(exchange, rest, &verb);
    struct error error;
    if (!job)
        return;
    if (strcmp(verb, "cancel") && strcmp(verb, "pause") && strcmp(verb, "resume"))
        fail_path(exchange);
    else if (!act(job, verb, &error))
        route_fail(exchange, &error);
    else
        route_answer_object(exchange, json_incref(job->object));
}

/* ---- models ---- */

void openai_model_delete(struct exchange *exchange) {
    struct error error;
    char name[2 * OPENAI_MODEL_BYTES];
    if (!jobs_may_tune(exchange, &error)) {
        route_fail(exchange, &error);
        return;
    }
    bool is_name = route_rest(exchange, "/models/", name, sizeof name);
    if (!is_name || !jobs_delete_model(exchange, name))
        route_fail(exchange, AN_ERROR(ERROR_MODEL_NOT_FOUND, "model", "there is no tuned model \"%.255s\" of this key",
                                      is_name ? name : ""));
}
