/* Files and tuning jobs, with a trainer, a worker and a registry that the test plays. All is in one thread, one errand
 * or ask after the other, so that the test can stop the server after each. The trainer is a number that depends on
 * every sample, rate and update; an adapter is its text. */
#include "serve/fake_rows.h"

#include "jobs-internal.h"

#include "serve/fake_exchange.h"
#include "serve/fake_server.h"

#include "base/base.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

static struct server server;
static struct serve_options options;
static char *root;

/* ---- the worker, and notes ---- */

static struct worker_job *first_job;
static struct tuning_ask *asks[64];
static int ask_count;

int worker_open(struct loop *loop, size_t capacity, struct worker **worker) {
    (void)loop;
    (void)capacity;
    *worker = NULL;
    return STATUS_OK;
}

bool worker_add(struct worker *worker, struct worker_job *job) {
    struct worker_job **at = &first_job;
    (void)worker;
    while (*at)
        at = &(*at)->next;
    job->next = NULL;
    *at = job;
    return true;
}

void worker_drop(struct worker *worker, struct worker_job *job) {
    (void)worker;
    job->work(job);
}

void worker_stop(struct worker *worker) {
    (void)worker;
}

void worker_close(struct worker *worker) {
    (void)worker;
}

/* ---- finetune ---- */

struct made {
    struct jobs_run shown;
    struct train_run run;
    struct tuning_options rows;
    const char *files[2];
};

static const char *word_of(char **words, int count, const char *prefix) {
    for (int i = 0; i < count; i++)
        if (!strncmp(words[i], prefix, strlen(prefix)))
            return words[i] + strlen(prefix);
    return NULL;
}

static const char *word_after(char **words, int count, const char *word) {
    for (int i = 0; i + 1 < count; i++)
        if (!strcmp(words[i], word))
            return words[i + 1];
    return NULL;
}

static int make(char **words, int count, struct jobs_run **out) {
    static const struct peft_config config = {.type = PEFT_LORA};
    const char *data = word_after(words, count, "--data"), *valid = word_after(words, count, "--valid-data");
    const char *lr = word_of(words, count, "--optim.lr=");
    *out = NULL;
    if (word_of(words, count, "--peft.nothing="))
        return status_fail(STATUS_USAGE, "unknown option --peft.nothing");
    struct strbuf text = STRBUF_INIT;
    assert_int_equal(file_read(data, 1 << 20, &text), 0);
    bool is_bad = strstr(strbuf_text(&text), "bad") != NULL;
    strbuf_free(&text);
    if (is_bad)
        return status_fail(STATUS_INVALID, "%s:2: the row has no field \"messages\"", data);
    struct made *made = calloc(1, sizeof *made);
    made->files[0] = strdup(data);
    made->files[1] = valid ? strdup(valid) : NULL;
    made->rows.train = (struct config_list){.items = &made->files[0], .count = 1};
    made->rows.valid = (struct config_list){.items = &made->files[1], .count = valid ? 1 : 0};
    struct run_config *run = &made->run.config;
    int64_t rows = count_lines(&made->rows.train), batch = atoll(word_of(words, count, "--train.global_batch_size="));
    run->train.global_batch_size = batch;
    run->train.train_iters = (rows * atoll(word_of(words, count, "--tuning.epochs=")) + batch - 1) / batch;
    run->train.seed = atoll(word_of(words, count, "--train.seed="));
    run->optim.lr = lr ? atof(lr) : 0.25;
    run->optim.lr_decay_style = LR_LINEAR;
    run->optim.lr_decay_iters = run->train.train_iters;
    made->run.tuning = &made->rows;
    made->shown = (struct jobs_run){.run = &made->run, .adapters = &config, .adapter_count = 1};
    *out = &made->shown;
    return STATUS_OK;
}

static void free_made(struct jobs_run *run) {
    struct made *made = (struct made *)run;
    if (!made)
        return;
    free((char *)made->files[0]);
    free((char *)made->files[1]);
    free(made);
}

static const struct jobs_maker maker = {.make = make, .free = free_made};

/* ---- the trainer ---- */

struct tuning_run {
    double value, gradient;
};
static int64_t memory_left = 1000;
static double bad_at; /* the value after which the loss is not finite; 0: never */

void driver_tune(struct driver *driver, struct tuning_ask *ask) {
    (void)driver;
    assert_true(ask_count < 64);
    asks[ask_count++] = ask;
}

static void add_frame(struct strbuf *block, const char *name, const char *text) {
    char padded[56] = "";
    uint64_t length = strlen(text);
    memcpy(padded, name, strlen(name));
    strbuf_add(block, padded, sizeof padded);
    strbuf_add(block, &length, sizeof length);
    strbuf_add(block, text, length);
}

static void open_run(struct tuning_ask *ask) {
    const struct tuning_run_options *asked = &ask->open;
    if (memory_left < 100) {
        error_set(&ask->error, ERROR_ARGUMENT, NULL, "the run takes 100 bytes, and %lld are left",
                  (long long)memory_left);
        return;
    }
    memory_left -= 100;
    ask->run = calloc(1, sizeof *ask->run);
    ask->run->value = (double)asked->config->train.seed;
    if (asked->start_count) { /* the number is the last thing in the block */
        const char *text = asked->start[0].data;
        size_t at = asked->start[0].length;
        char number[64];
        while (at > 0 && text[at - 1] != '=')
            at--;
        snprintf(number, sizeof number, "%.*s", (int)(asked->start[0].length - at), text + at);
        ask->run->value = atof(number);
        assert_memory_equal(asked->state, "state", 5);
    }
}

static void do_ask(struct tuning_ask *ask) {
    struct tuning_run *run = ask->run;
    if (ask->is_unwanted) {
        error_set(&ask->error, ERROR_CANCELLED, NULL, "cancelled");
        return;
    }
    switch (ask->kind) {
    case TUNING_OPEN:
        open_run(ask);
        break;
    case TUNING_PASS:
        run->gradient = (double)(ask->pass.first + 1) / 7;
        ask->pass.result = (struct stepper_result){.tokens = 10, .loss = run->value};
        break;
    case TUNING_UPDATE:
        if (bad_at > 0 && run->value > bad_at) {
            error_set(&ask->error, ERROR_ARGUMENT, NULL, "the loss is nan");
            break;
        }
        ask->update.result = (struct stepper_result){.loss = run->value, .grad_norm = 1};
        run->value += ask->update.lr * run->gradient + 0.001 * (double)ask->update.iteration;
        break;
    case TUNING_SNAPSHOT: {
        struct strbuf block = STRBUF_INIT;
        char text[64];
        snprintf(text, sizeof text, "value=%.17g", run->value);
        add_frame(&block, "adapter_config.json", "{}");
        add_frame(&block, "adapter_model.safetensors", text);
        ask->snapshot.files[0].bytes =
            (struct peft_bytes){.directory = strdup("here"), .data = block.data, .length = block.length};
        ask->snapshot.count = 1;
        ask->snapshot.state = ask->snapshot.wants_state ? strdup("state") : NULL;
        ask->snapshot.state_bytes = ask->snapshot.wants_state ? 5 : 0;
        break;
    }
    case TUNING_CLOSE:
        memory_left += 100;
        free(run);
        ask->run = NULL;
        break;
    default:
        fail_msg("an ask that jobs do not make");
    }
}

/* ---- the registry ---- */

static char served[8][OPENAI_MODEL_BYTES];
static int served_count;
static struct registry_change changes[16];
static int change_count;

static void note_change(const struct registry_change *change) {
    if (change->kind == REGISTRY_LOAD) {
        snprintf(served[served_count++ & 7], sizeof *served, "%s", change->name);
        adapter_files_free(change->files);
        *change->files = (struct adapter_files){0};
    }
    changes[change_count++] = *change;
}

/* ---- the loop ---- */

/* Does one thing; false: there is none. */
static bool turn(void) {
    struct worker_job *job = first_job;
    if (change_count) {
        struct registry_change change = changes[--change_count];
        change.on_done(change.context, &(struct error){0}, NULL);
    } else if (job) {
        first_job = job->next;
        job->work(job);
        job->done(job);
    } else if (ask_count) {
        struct tuning_ask *ask = asks[0];
        memmove(asks, asks + 1, (size_t)--ask_count * sizeof *asks);
        do_ask(ask);
        ask->note.run(&ask->note);
    } else
        return false;
    return true;
}

static void run_all(void) {
    for (int i = 0; turn(); i++)
        assert_true(i < 100000);
}

static void begin(void) {
    assert_int_equal(jobs_open(&server, &server.jobs), 0);
    jobs_begin(server.jobs);
}

static int start(void **state) {
    (void)state;
    root = test_directory();
    options = fake_options;
    options.limits.body_bytes = 1 << 16;
    options.tuning_root = root;
    options.tuning_jobs = 1;
    options.tuning_disk = 1 << 20;
    options.tuning_save = 1e9;
    options.jobs_maker = &maker;
    server = fake_server();
    server.options = &options;
    fake_on_change = note_change;
    memory_left = 1000;
    served_count = 0;
    bad_at = 0;
    begin();
    return 0;
}

/* Forgets everything in memory, as a killed process does. Nothing of it runs again, and nothing of it is freed. */
static void kill_server(void) {
    static struct lost {
        struct jobs *jobs;
        struct worker_job *errands;
    } lost[256];
    static int count;
    assert_true(count < 256);
    lost[count++] = (struct lost){server.jobs, first_job};
    close(lost[count - 1].jobs->lock);
    first_job = NULL;
    ask_count = change_count = 0;
    memory_left = 1000;
    server.jobs = NULL;
}

static int stop(void **state) {
    (void)state;
    run_all();
    jobs_close(server.jobs);
    free(root);
    return 0;
}

/* ---- requests ---- */

static json_t *request(const char *method, const char *path, const char *type, const char *body, int status) {
    static char query[128], plain[256];
    struct fake fake;
    json_error_t error;
    const char *mark = strchr(path, '?');
    snprintf(plain, sizeof plain, "%.*s", (int)(mark ? (size_t)(mark - path) : strlen(path)), path);
    snprintf(query, sizeof query, "%s", mark ? mark + 1 : "");
    fake_open(&fake, &server, LISTENER_DATA, method, plain);
    fake.exchange.head.query = query;
    fake_field(&fake, "host", "127.0.0.1:8000");
    if (type)
        fake_field(&fake, "content-type", type);
    route_exchange(&server, &fake.exchange);
    if (!fake.begun)
        fake_send(&fake, body, 7);
    for (int i = 0; !fake.ended && turn(); i++)
        assert_true(i < 1000);
    if (fake.status != status)
        fail_msg("%s %s: %d %s", method, path, fake.status, strbuf_text(&fake.body));
    json_t *answer = json_loadb(fake.body.data, fake.body.length, 0, &error);
    if (!answer)
        answer = json_stringn(strbuf_text(&fake.body), fake.body.length);
    fake_close(&fake);
    return answer;
}

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

#define FORM   "multipart/form-data; boundary=edge"
#define EDGE   "--edge\r\nContent-Disposition: form-data; name="
#define ROWS_5 "{\"a\":1}\n{\"a\":2}\n{\"a\":3}\n{\"a\":4}\n{\"a\":5}\n"

static json_t *upload(const char *rows, int status) {
    struct strbuf body = STRBUF_INIT;
    strbuf_format(&body,
                  EDGE "\"purpose\"\r\n\r\nfine-tune\r\n" EDGE
                       "\"file\"; filename=\"r\xc3\xb6ws \\\"1\\\".jsonl\"\r\nContent-Type: "
                       "application/octet-stream\r\n\r\n%s\r\n--edge--\r\n",
                  rows);
    json_t *answer = request("POST", "/v1/files", FORM, strbuf_text(&body), status);
    strbuf_free(&body);
    return answer;
}

static char file_id[OPENAI_ID_BYTES];

static void upload_rows(const char *rows) {
    json_t *file = upload(rows, 200);
    snprintf(file_id, sizeof file_id, "%s", text_of(file, "id"));
    json_decref(file);
}

/* Asks for a job; `more` are further members. */
static json_t *ask_job(const char *more, int status) {
    struct strbuf body = STRBUF_INIT;
    strbuf_format(&body, "{\"model\":\"tiny\",\"training_file\":\"%s\",\"seed\":3%s}", file_id, more);
    json_t *answer = request("POST", "/v1/fine_tuning/jobs", "application/json", strbuf_text(&body), status);
    strbuf_free(&body);
    return answer;
}

static char job_id[OPENAI_ID_BYTES];

static void begin_job(const char *more) {
    json_t *job = ask_job(more, 200);
    snprintf(job_id, sizeof job_id, "%s", text_of(job, "id"));
    json_decref(job);
}

static json_t *get_job(const char *verb, const char *method, int status) {
    char path[128];
    snprintf(path, sizeof path, "/v1/fine_tuning/jobs/%s%s", job_id, verb);
    return request(method, path, NULL, "", status);
}

static void assert_status(const char *status) {
    json_t *job = get_job("", "GET", 200);
    assert_string_equal(text_of(job, "status"), status);
    json_decref(job);
}

static void assert_refused(json_t *answer, const char *param, const char *words) {
    const json_t *error = json_object_get(answer, "error");
    if (!strstr(text_of(error, "message"), words) || strcmp(text_of(error, "param"), param) != 0)
        fail_msg("'%s' at '%s', expected '%s' at '%s'", text_of(error, "message"), text_of(error, "param"), words,
                 param);
    json_decref(answer);
}

static void read_below(const char *name, struct strbuf *text) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/jobs/%s/%s", root, job_id, name);
    strbuf_clear(text);
    if (file_read(path, 1 << 20, text))
        strbuf_add_text(text, "-");
}

/* ---- files ---- */

static void a_file_comes_back_as_it_was_sent(void **state) {
    char path[128];
    (void)state;
    json_t *file = upload("\xef\xbb\xbf{\"a\":1}\r\n\r\n{\"b\":\"--edge\"}", 200);
    assert_string_equal(text_of(file, "filename"), "r\xc3\xb6ws \"1\".jsonl");
    assert_string_equal(text_of(file, "status"), "processed");
    assert_int_equal(json_integer_value(json_object_get(file, "bytes")), 28);
    snprintf(path, sizeof path, "/v1/files/%s/content", text_of(file, "id"));
    json_t *content = request("GET", path, NULL, "", 200);
    assert_string_equal(json_string_value(content), "\xef\xbb\xbf{\"a\":1}\r\n\r\n{\"b\":\"--edge\"}");
    json_decref(content);
    run_all();
    kill_server();
    begin();
    json_t *list = request("GET", "/v1/files?purpose=fine-tune&limit=5", NULL, "", 200);
    assert_true(json_equal(json_array_get(json_object_get(list, "data"), 0), file));
    json_decref(list);
    snprintf(path, sizeof path, "/v1/files/%s", text_of(file, "id"));
    json_decref(request("DELETE", path, NULL, "", 200));
    json_decref(request("GET", path, NULL, "", 404));
    json_decref(file);
}

static void a_bad_upload_is_refused_and_leaves_nothing(void **state) {
    char path[PATH_MAX], **names;
    size_t count;
    (void)state;
    assert_refused(upload("{\"a\":1}\n{\"a\"}\n", 400), "file", "line 2: expected a JSON object");
    assert_refused(upload("{\"a\":\"\xff\"}\n", 400), "file", "line 1: expected a JSON object, but it is not UTF-8");
    assert_refused(upload("[1]\n", 400), "file", "line 1");
    assert_refused(upload("", 400), "file", "it has no line");
    assert_refused(request("POST", "/v1/files", FORM, EDGE "\"purpose\"\r\n\r\nvision\r\n--edge--\r\n", 400), "purpose",
                   "expected fine-tune");
    assert_refused(request("POST", "/v1/files", FORM, EDGE "\"purpose\"\r\n\r\nfine-tune\r\n--edge--\r\n", 400), "file",
                   "there is none");
    assert_refused(request("POST", "/v1/files", FORM, EDGE "\"purpose\"\r\n\r\nfine-tune", 400), "", "last boundary");
    assert_refused(request("POST", "/v1/files", "application/json", "{}", 415), "", "multipart/form-data");
    options.tuning_disk = 100;
    assert_refused(upload(ROWS_5 ROWS_5 ROWS_5, 507), "", "of --tuning-disk");
    run_all();
    snprintf(path, sizeof path, "%s/files", root);
    assert_int_equal(file_list(path, &names, &count), 0);
    assert_int_equal(count, 0);
    file_list_free(names, count);
}

static void lists_have_pages(void **state) {
    char path[128];
    (void)state;
    for (int i = 0; i < 3; i++)
        upload_rows(ROWS_5);
    json_t *page = request("GET", "/v1/files?limit=2", NULL, "", 200);
    assert_true(json_is_true(json_object_get(page, "has_more")));
    assert_string_equal(text_of(page, "first_id"), file_id); /* the newest */
    snprintf(path, sizeof path, "/v1/files?after=%s", text_of(page, "last_id"));
    json_t *rest = request("GET", path, NULL, "", 200);
    assert_int_equal(json_array_size(json_object_get(rest, "data")), 1);
    assert_true(json_is_false(json_object_get(rest, "has_more")));
    json_t *ascending = request("GET", "/v1/files?order=asc&limit=1", NULL, "", 200);
    assert_string_equal(text_of(ascending, "first_id"), text_of(rest, "first_id"));
    json_decref(page);
    json_decref(rest);
    json_decref(ascending);
    assert_refused(request("GET", "/v1/files?limit=0", NULL, "", 400), "limit", "expected an integer");
}

/* ---- jobs ---- */

static void a_job_runs_to_its_end_and_is_served(void **state) {
    struct strbuf text = STRBUF_INIT;
    (void)state;
    upload_rows(ROWS_5);
    begin_job(",\"suffix\":\"my model\",\"hyperparameters\":{\"n_epochs\":4,\"batch_size\":2}");
    run_all();
    json_t *job = get_job("", "GET", 200);
    assert_string_equal(text_of(job, "status"), "succeeded");
    assert_string_equal(text_of(job, "object"), "fine_tuning.job");
    assert_memory_equal(text_of(job, "fine_tuned_model"), "ft:tiny:my-model:", 17);
    assert_int_equal(json_integer_value(json_object_get(job, "trained_tokens")), 100);
    assert_int_equal(memory_left, 1000);
    json_t *events = get_job("/events?limit=100", "GET", 200), *all = json_object_get(events, "data");
    assert_int_equal(json_array_size(all), 1 + 1 + 1 + 10 + 4 + 1);
    assert_memory_equal(text_of(json_array_get(all, 17), "message"), "cambium finetune --peft lora ", 29);
    assert_string_equal(text_of(json_array_get(all, 0), "message"), "Job is succeeded");
    /* epochs end with steps 3, 5, 8 and 10; the last three checkpoints stay */
    json_t *list = get_job("/checkpoints", "GET", 200), *kept = json_object_get(list, "data");
    static const int steps[] = {10, 8, 5};
    assert_int_equal(json_array_size(kept), 3);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(json_integer_value(json_object_get(json_array_get(kept, i), "step_number")), steps[i]);
    assert_string_equal(text_of(json_array_get(kept, 0), "fine_tuned_model_checkpoint"),
                        text_of(job, "fine_tuned_model"));
    assert_int_equal(served_count, 4);
    assert_string_equal(served[3], text_of(job, "fine_tuned_model"));
    read_below("adapter/adapter_config.json", &text);
    assert_string_equal(strbuf_text(&text), "{}");
    read_below("checkpoints/step-3/adapter_config.json", &text);
    assert_string_equal(strbuf_text(&text), "-");
    read_below("checkpoints/step-8/optimizer.safetensors", &text);
    assert_string_equal(strbuf_text(&text), "-");
    char path[128];
    snprintf(path, sizeof path, "/v1/files/%s/content",
             json_string_value(json_array_get(json_object_get(job, "result_files"), 0)));
    json_t *csv = request("GET", path, NULL, "", 200);
    assert_memory_equal(json_string_value(csv), "step,train_loss\n1,3\n", 20);
    snprintf(path, sizeof path, "/v1/models/%s", text_of(job, "fine_tuned_model"));
    json_decref(request("DELETE", path, NULL, "", 200));
    run_all();
    json_decref(request("DELETE", path, NULL, "", 404));
    read_below("adapter/adapter_config.json", &text);
    assert_string_equal(strbuf_text(&text), "-");
    json_decref(csv);
    json_decref(list);
    json_decref(events);
    json_decref(job);
    strbuf_free(&text);
}

static void automatic_values_follow_from_the_rows(void **state) {
    (void)state;
    upload_rows("{\"a\":1}\n{\"a\":2}\n");
    json_t *job = ask_job(",\"method\":{\"type\":\"dpo\",\"dpo\":{\"hyperparameters\":{\"n_epochs\":\"auto\","
                          "\"learning_rate_multiplier\":2}}}",
                          200);
    const json_t *values = json_object_get(job, "hyperparameters");
    assert_int_equal(json_integer_value(json_object_get(values, "n_epochs")), 3);
    assert_int_equal(json_integer_value(json_object_get(values, "batch_size")), 2);
    snprintf(job_id, sizeof job_id, "%s", text_of(job, "id"));
    run_all();
    json_t *events = get_job("/events?limit=50", "GET", 200), *all = json_object_get(events, "data");
    const char *line = text_of(json_array_get(all, json_array_size(all) - 1), "message");
    assert_non_null(strstr(line, " --loss=dpo --tuning.epochs=3 --train.global_batch_size=2 --train.seed=3 "));
    assert_non_null(strstr(line, " --optim.lr=0.5"));
    json_decref(events);
    json_decref(job);
}

static void a_killed_job_ends_with_the_same_bits(void **state) {
    struct strbuf whole = STRBUF_INIT, other = STRBUF_INIT;
    static const char hyperparameters[] = ",\"hyperparameters\":{\"n_epochs\":2,\"batch_size\":3}";
    (void)state;
    options.tuning_save = 0; /* after each step */
    upload_rows(ROWS_5);
    begin_job(hyperparameters);
    run_all();
    read_below("adapter/adapter_model.safetensors", &whole);
    assert_memory_equal(strbuf_text(&whole), "value=", 6);
    for (int turns = 1;; turns += test_is_long() ? 1 : 4) {
        bool is_over = false;
        begin_job(hyperparameters);
        for (int i = 0; i < turns && !is_over; i++)
            is_over = !turn();
        kill_server();
        begin();
        run_all();
        assert_status("succeeded");
        read_below("adapter/adapter_model.safetensors", &other);
        if (strcmp(strbuf_text(&whole), strbuf_text(&other)))
            fail_msg("killed after %d turns: %s, not %s", turns, strbuf_text(&other), strbuf_text(&whole));
        json_t *events = get_job("/events?limit=1000", "GET", 200), *all = json_object_get(events, "data");
        int64_t last = 5;
        for (size_t i = 0; i < json_array_size(all); i++) {
            const json_t *step = json_object_get(json_object_get(json_array_get(all, i), "data"), "step");
            if (step)
                assert_int_equal(json_integer_value(step), --last);
        }
        assert_int_equal(last, 1);
        json_decref(events);
        if (is_over)
            break;
    }
    strbuf_free(&whole);
    strbuf_free(&other);
}

static void a_job_is_paused_resumed_and_cancelled(void **state) {
    struct strbuf whole = STRBUF_INIT, other = STRBUF_INIT;
    static const char hyperparameters[] = ",\"hyperparameters\":{\"n_epochs\":3,\"batch_size\":2}";
    (void)state;
    upload_rows(ROWS_5);
    begin_job(hyperparameters);
    run_all();
    read_below("adapter/adapter_model.safetensors", &whole);
    begin_job(hyperparameters);
    for (int i = 0; i < 9; i++)
        turn();
    json_decref(get_job("/pause", "POST", 200));
    run_all();
    assert_status("paused");
    assert_int_equal(memory_left, 1000);
    assert_refused(get_job("/pause", "POST", 400), "", "the job is paused");
    kill_server();
    begin();
    run_all();
    assert_status("paused");
    json_decref(get_job("/resume", "POST", 200));
    run_all();
    read_below("adapter/adapter_model.safetensors", &other);
    assert_string_equal(strbuf_text(&whole), strbuf_text(&other));
    assert_refused(get_job("/cancel", "POST", 400), "", "the job is succeeded");
    begin_job(hyperparameters); /* each verb as soon as the status permits it */
    json_decref(get_job("/pause", "POST", 200));
    while (!job_is(TAILQ_LAST(&server.jobs->jobs, job_list), "paused"))
        assert_true(turn());
    json_decref(get_job("/resume", "POST", 200));
    while (!job_is(TAILQ_LAST(&server.jobs->jobs, job_list), "running"))
        assert_true(turn());
    json_decref(get_job("/pause", "POST", 200));
    while (!job_is(TAILQ_LAST(&server.jobs->jobs, job_list), "paused"))
        assert_true(turn());
    json_decref(get_job("/cancel", "POST", 200));
    run_all();
    assert_status("cancelled");
    begin_job(hyperparameters);
    for (int i = 0; i < 9; i++)
        turn();
    json_decref(get_job("/cancel", "POST", 200));
    run_all();
    assert_status("cancelled");
    assert_int_equal(memory_left, 1000);
    strbuf_free(&whole);
    strbuf_free(&other);
}

static void refusals_name_the_place(void **state) {
    static const struct {
        const char *more, *param, *words;
    } rows[] = {
        {",\"method\":{\"type\":\"reinforcement\"}", "method.type", "expected supervised or dpo"},
        {",\"method\":{\"type\":\"supervised\",\"supervised\":{\"hyperparameters\":{\"n_epochs\":0}}}",
         "method.supervised.hyperparameters.n_epochs", "1"},
        {",\"hyperparameters\":{\"epochs\":2}", "hyperparameters.epochs", "does not know"},
        {",\"integrations\":[{\"type\":\"wandb\"}]", "integrations", "none"},
        {",\"suffix\":\"12345678901234567890123456789012345678901234567890123456789012345\"", "suffix", "64"},
        {",\"validation_file\":\"file-none\"", "validation_file", "there is no file"},
        {",\"cambium\":{\"peft.nothing\":1}", "cambium.peft.nothing", "unknown option"},
        {",\"cambium\":{\"checkpoint.load\":\"/etc\"}", "cambium.checkpoint.load", "do not take"},
        {",\"cambium\":{\"tuning.template\":\"/etc/passwd\"}", "cambium.tuning.template", "do not take"},
        {",\"hyperparameters\":{\"n_epochs\":1},\"cambium\":{\"tuning.epochs\":1}", "cambium.tuning.epochs",
         "given already"},
        {",\"grader\":1", "grader", "does not know"},
    };
    (void)state;
    upload_rows(ROWS_5);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_refused(ask_job(rows[i].more, 400), rows[i].param, rows[i].words);
    assert_refused(request("POST", "/v1/fine_tuning/jobs", "application/json",
                           "{\"model\":\"none\",\"training_file\":\"file-1\"}", 404),
                   "model", "there is no model");
    assert_refused(request("POST", "/v1/fine_tuning/jobs", "application/json",
                           "{\"model\":\"tiny\",\"training_file\":\"file-1\"}", 400),
                   "training_file", "there is no file");
    assert_refused(request("GET", "/v1/fine_tuning/jobs/ftjob-1", NULL, "", 404), "id", "there is no job");
    memory_left = 50;
    assert_refused(ask_job("", 400), "", "the run takes 100 bytes");
    json_t *list = request("GET", "/v1/fine_tuning/jobs", NULL, "", 200);
    assert_int_equal(json_array_size(json_object_get(list, "data")), 0);
    json_decref(list);
}

static void rows_that_cannot_be_read_fail_the_job(void **state) {
    (void)state;
    upload_rows("{\"a\":1}\n{\"bad\":2}\n");
    json_t *job = ask_job("", 200), *error = json_object_get(job, "error");
    assert_string_equal(text_of(job, "status"), "failed");
    assert_string_equal(text_of(error, "code"), "invalid_training_file");
    assert_string_equal(text_of(error, "param"), "training_file");
    assert_memory_equal(text_of(error, "message"), "line 2: ", 8);
    json_decref(job);
}

static void a_loss_that_is_not_finite_keeps_the_last_checkpoint(void **state) {
    (void)state;
    upload_rows(ROWS_5);
    bad_at = 3.9;
    begin_job(",\"hyperparameters\":{\"n_epochs\":9,\"batch_size\":2}");
    run_all();
    assert_status("failed");
    json_t *list = get_job("/checkpoints", "GET", 200);
    assert_true(json_array_size(json_object_get(list, "data")) > 0);
    assert_true(served_count > 0);
    json_decref(list);
    json_t *job = get_job("", "GET", 200);
    assert_string_equal(text_of(json_object_get(job, "error"), "message"), "the loss is nan");
    json_decref(job);
}

static void jobs_wait_for_their_turn(void **state) {
    char first[OPENAI_ID_BYTES];
    (void)state;
    upload_rows(ROWS_5);
    begin_job("");
    memcpy(first, job_id, sizeof first);
    begin_job("");
    assert_status("queued");
    json_decref(get_job("/cancel", "POST", 200));
    run_all();
    assert_status("cancelled");
    memcpy(job_id, first, sizeof first);
    assert_status("succeeded");
}

static void a_damaged_job_has_failed(void **state) {
    char path[PATH_MAX];
    (void)state;
    upload_rows(ROWS_5);
    begin_job("");
    run_all();
    snprintf(path, sizeof path, "%s/jobs/%s/job.json", root, job_id);
    kill_server();
    assert_int_equal(file_write_atomic(path, "{", 1), 0);
    begin();
    assert_status("failed");
}

static void a_stopping_server_saves_first(void **state) {
    (void)state;
    upload_rows(ROWS_5);
    begin_job(",\"hyperparameters\":{\"n_epochs\":3,\"batch_size\":2}");
    for (int i = 0; i < 9; i++)
        turn();
    jobs_stop(server.jobs, false);
    run_all();
    assert_true(jobs_are_idle(server.jobs));
    struct job *job = TAILQ_FIRST(&server.jobs->jobs);
    assert_true(job->saved_step > 0);
    kill_server();
    begin();
    run_all();
    assert_status("succeeded");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_file_comes_back_as_it_was_sent, start, stop),
        cmocka_unit_test_setup_teardown(a_bad_upload_is_refused_and_leaves_nothing, start, stop),
        cmocka_unit_test_setup_teardown(lists_have_pages, start, stop),
        cmocka_unit_test_setup_teardown(a_job_runs_to_its_end_and_is_served, start, stop),
        cmocka_unit_test_setup_teardown(automatic_values_follow_from_the_rows, start, stop),
        cmocka_unit_test_setup_teardown(a_killed_job_ends_with_the_same_bits, start, stop),
        cmocka_unit_test_setup_teardown(a_job_is_paused_resumed_and_cancelled, start, stop),
        cmocka_unit_test_setup_teardown(refusals_name_the_place, start, stop),
        cmocka_unit_test_setup_teardown(rows_that_cannot_be_read_fail_the_job, start, stop),
        cmocka_unit_test_setup_teardown(a_loss_that_is_not_finite_keeps_the_last_checkpoint, start, stop),
        cmocka_unit_test_setup_teardown(jobs_wait_for_their_turn, start, stop),
        cmocka_unit_test_setup_teardown(a_damaged_job_has_failed, start, stop),
        cmocka_unit_test_setup_teardown(a_stopping_server_saves_first, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
