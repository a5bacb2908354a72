/* Runs of jobs: a job's words become a run, and the run a sequence of asks of the engine.
 *
 * A new job is prepared twice where its automatic values depend on its rows. It then opens a run once, to learn whether
 * it fits. A run is prepared on the worker and opened. Each step is a pass and an update. A validation follows the end
 * of an epoch, and a snapshot follows where a save is due. A close ends it. One ask or errand of a run is under way at
 * a time, besides a save. */
#include "jobs-internal.h"

#include "log.h"

#include "base/base.h"

#include <math.h>

enum { AUTO_BATCH = 4, STATE_MOST = INT32_MAX };
#define BATCH_WORD  "--train.global_batch_size="
#define EPOCHS_WORD "--tuning.epochs="

static void run_continue(struct job_run *run);

/* ---- preparing: the worker ---- */

static int read_rows(const struct train_source *source, struct gpt_batch *batch, const struct train_samples *samples) {
    const struct job_run *run = (const void *)((const char *)source - offsetof(struct job_run, source));
    const struct tuning_options *rows = run->made->run->tuning;
    const struct tuning_view view = {.virtual_tokens = samples->is_reference ? 0 : rows->virtual_tokens,
                                     .first_position = samples->is_reference ? 0 : rows->first_position,
                                     .cycle_first = samples->batch_first,
                                     .cycle = samples->is_mismatched ? samples->batch_samples : 0};
    return tuning_batch_view(batch, run->data, samples->split, samples->first, &view);
}

static void free_made(struct job_run *run) {
    tuning_data_close(run->data);
    run->job->jobs->options->jobs_maker->free(run->made);
    run->data = NULL;
    run->made = NULL;
}

static int make(struct job_run *run) {
    size_t count = json_array_size(run->job->words);
    char **words = calloc(count + 1, sizeof *words);
    TRY(status_allocated(words));
    for (size_t i = 0; i < count; i++)
        words[i] = (char *)json_string_value(json_array_get(run->job->words, i));
    int status = run->job->jobs->options->jobs_maker->make(words, (int)count, &run->made);
    free(words);
    THEN(status, tuning_data_open(run->made->run->tuning, &run->data));
    if (!status && run->made->adapter_count != 1)
        status = status_fail(STATUS_USAGE, "--peft: a job trains one adapter of one method");
    return status;
}

/* Finds the word that begins with `prefix`; -1: there is none. */
static int find_word(const json_t *words, const char *prefix) {
    for (size_t i = 0; i < json_array_size(words); i++)
        if (!strncmp(json_string_value(json_array_get(words, i)), prefix, strlen(prefix)))
            return (int)i;
    return -1;
}

static void set_word(json_t *words, const char *prefix, double value) {
    char word[96];
    int at = find_word(words, prefix);
    snprintf(word, sizeof word, "%s%.15g", prefix, value);
    if (strtod(word + strlen(prefix), NULL) != value)
        snprintf(word, sizeof word, "%s%.17g", prefix, value);
    if (at < 0)
        json_array_append_new(words, json_string(word));
    else
        json_array_set_new(words, (size_t)at, json_string(word));
}

static const json_t *value_of(const struct job *job, const char *name) {
    return json_object_get(json_object_get(job->object, "hyperparameters"), name);
}

/* Replaces automatic values by those that follow from the rows and the method. *has_changed: the run must be made
 * again. */
static void choose_values(struct job_run *run, bool *has_changed) {
    struct job *job = run->job;
    const struct run_config *config = &run->made->run->config;
    int64_t batch = config->train.global_batch_size, rows = tuning_data_epoch(run->data, SPLIT_TRAIN);
    const json_t *rate = value_of(job, "learning_rate_multiplier");
    *has_changed = false;
    if (!json_is_number(value_of(job, "batch_size")) && batch == AUTO_BATCH && rows < batch) {
        batch = rows;
        set_word(job->words, BATCH_WORD, (double)batch);
        *has_changed = true;
    }
    if (find_word(job->words, "--train.eval_interval=") >= 0) {
        set_word(job->words, "--train.eval_interval=", (double)((rows + batch - 1) / batch));
        *has_changed = true;
    }
    if (json_is_number(rate) && json_number_value(rate) != 1) {
        set_word(job->words, "--optim.lr=", json_number_value(rate) * config->optim.lr);
        *has_changed = true;
    }
}

/* Reads the adapter to start from, and the optimizer's state of a save. */
static int read_start(struct job_run *run) {
    struct job *job = run->job;
    char path[PATH_MAX], state[PATH_MAX];
    const char *directory = run->made->init_directory;
    int status = STATUS_OK;
    if (job->saved_step) {
        status = job_directory(job, job->saved_step, path);
        THEN(status, file_join(state, sizeof state, path, "optimizer.safetensors"));
        THEN(status, file_read(state, STATE_MOST, &run->state));
        directory = path;
    }
    if (!status && directory) {
        status = peft_bytes_read(directory, STATE_MOST, &run->start[0]);
        run->start_count = !status;
    }
    return status;
}

/* Sets the error of a run that could not be prepared. One of a file's line begins with the line. */
static void explain(struct job_run *run, int status) {
    static const char *const members[] = {"training_file", "validation_file"};
    struct error *error = &run->errand.error;
    bool is_asked = status == STATUS_USAGE || status == STATUS_INVALID || status == STATUS_UNSUPPORTED;
    error_of_status(error, is_asked ? ERROR_ARGUMENT : ERROR_INTERNAL, NULL);
    for (int i = 0; i < 2 && is_asked; i++) {
        const char *id = json_string_value(json_object_get(run->job->object, members[i]));
        const char *at = id ? strstr(error->text, id) : NULL;
        char line[sizeof error->text + 8];
        if (!at)
            continue;
        run->is_of_rows = true;
        at = strchr(at, ':');
        bool has_line = at && at[1] >= '0' && at[1] <= '9';
        snprintf(line, sizeof line, "%s%s", has_line ? "line " : "", at ? at + 1 + !has_line : error->text);
        error_set(error, ERROR_ARGUMENT, members[i], "%s", line);
    }
}

static int prepare(struct errand *errand) {
    struct job_run *run = (struct job_run *)errand;
    bool has_changed = false;
    int status = make(run);
    if (!status && run->only_checks) {
        choose_values(run, &has_changed);
        if (has_changed) {
            free_made(run);
            status = make(run);
        }
    }
    THEN(status, read_start(run));
    if (status)
        explain(run, status);
    if (!status) {
        const struct run_config *config = &run->made->run->config;
        run->rows = tuning_data_epoch(run->data, SPLIT_TRAIN);
        run->batch = config->train.global_batch_size;
        run->total = config->train.train_iters;
        run->schedule = stepper_schedule(config);
        run->source.read = read_rows;
    }
    return status;
}

/* ---- ends ---- */

static int discard(struct errand *errand) {
    struct job_run *run = (struct job_run *)errand;
    free_made(run);
    for (int i = 0; i < PEFT_MAX_STACK; i++)
        peft_bytes_free(&run->start[i]);
    strbuf_free(&run->state);
    return STATUS_OK;
}

/* Forgets a job that was never there for clients. */
static void drop_job(struct job *job) {
    TAILQ_REMOVE(&job->jobs->jobs, job, all);
    job_free(job);
}

/* Gives a job without a run the status of its wish. */
static void take_wish(struct job *job) {
    enum job_wish wish = job->wish;
    job->wish = JOB_NO_WISH;
    if (job_has_ended(job))
        return;
    if (wish == JOB_CANCEL)
        job_change(job, "cancelled", "info", NULL);
    else if (wish == JOB_PAUSE)
        job_change(job, "paused", "info", NULL);
    else if (wish == JOB_STOP)
        job_write(job); /* it continues after a restart */
}

static void on_discarded(struct errand *errand) {
    struct job_run *run = (struct job_run *)errand;
    struct job *job = run->job;
    struct jobs *jobs = job->jobs;
    job->run = NULL;
    free(run);
    if (!job->object)
        drop_job(job);
    else
        take_wish(job);
    jobs_start(jobs);
}

static void end_run(struct job_run *run) {
    run->errand.work = discard;
    run->errand.done = on_discarded;
    jobs_send(run->job->jobs, &run->errand);
}

/* ---- a new job: its answer ---- */

static const struct exchange_handler nobody = {.on_close = NULL};

static struct exchange *take_asker(struct job *job) {
    struct exchange *exchange = job->asker;
    job->asker = NULL;
    if (exchange)
        route_continue(exchange, &nobody, NULL);
    return exchange;
}

/* Refuses a new job, which leaves nothing. */
static void refuse(struct job_run *run, const struct error *error) {
    struct exchange *exchange = take_asker(run->job);
    if (exchange)
        route_fail(exchange, error);
    json_decref(run->job->object);
    run->job->object = NULL;
    end_run(run);
}

/* Names the key of `cambium` that an error of finetune is about, if the text has it. */
static void name_param(const struct job *job, struct error *error) {
    const json_t *values = json_object_get(job->object, "cambium");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)values, key, value) {
        if (strstr(error->text, key))
            snprintf(error->param, sizeof error->param, "cambium.%.50s", key);
    }
}

/* True when fewer jobs run than may. */
static bool jobs_have_place(const struct jobs *jobs) {
    const struct job *job;
    int64_t running = 0;
    TAILQ_FOREACH(job, &jobs->jobs, all) {
        running += job->run && !job->run->only_checks && job_is(job, "running");
    }
    return running < jobs->options->tuning_jobs && !jobs->is_stopping;
}

struct creation {
    struct errand errand; /* first */
    struct job *job;
    char path[PATH_MAX], *text;
};

static int create_directory(struct errand *errand) {
    struct creation *creation = (struct creation *)errand;
    char path[PATH_MAX];
    struct staging staging = {.mark = -1};
    int status = staging_begin(&staging, creation->path);
    THEN(status, file_join(path, sizeof path, staging.directory, "job.json"));
    THEN(status, file_write_atomic(path, creation->text, strlen(creation->text)));
    THEN(status, staging_commit(&staging));
    staging_abort(&staging);
    return status;
}

static void tell_command(struct job *job) {
    struct strbuf line = STRBUF_INIT;
    size_t i;
    json_t *word;
    strbuf_add_text(&line, "cambium finetune");
    json_array_foreach(job->words, i, word) {
        const char *text = json_string_value(word);
        bool is_plain = *text && !text[strcspn(text, " \t\n'\"\\$`*?[](){}<>|&;!#~")];
        strbuf_add_text(&line, is_plain ? " " : " '");
        for (const char *at = text; *at; at++)
            if (*at == '\'')
                strbuf_add_text(&line, "'\\''");
            else
                strbuf_add_char(&line, *at);
        strbuf_add_text(&line, is_plain ? "" : "'");
    }
    job_tell(job, "info", "%s", strbuf_text(&line));
    strbuf_free(&line);
}

/* The job is on disk: its client learns of it. */
static void on_created(struct errand *errand) {
    struct creation *creation = (struct creation *)errand;
    struct job *job = creation->job;
    struct job_run *run = job->run;
    if (errand->error.which) {
        refuse(run, &errand->error);
    } else {
        struct exchange *exchange = take_asker(job);
        tell_command(job);
        if (run->error.which) {
            bool is_valid = !strcmp(run->error.param, "validation_file");
            job_fail(job, is_valid ? "invalid_validation_file" : "invalid_training_file", run->error.param,
                     run->error.text);
            run->must_close = true;
        } else
            job_change(job, "queued", "info", NULL);
        if (exchange)
            route_answer_object(exchange, json_incref(job->object));
        run->only_checks = false;
        if (!job_has_ended(job) && jobs_have_place(job->jobs))
            job_change(job, "running", "info", NULL);
        run_continue(run);
    }
    free(creation->text);
    free(creation);
}

static void create(struct job_run *run) {
    struct job *job = run->job;
    struct creation *creation = calloc(1, sizeof *creation);
    if (!creation || jobs_path(job->jobs, creation->path, "jobs/%s", job->id) || job_text(job, &creation->text)) {
        free(creation);
        refuse(run, AN_ERROR(ERROR_OVERLOADED, NULL, "out of memory"));
        return;
    }
    creation->job = job;
    creation->errand.work = create_directory;
    creation->errand.done = on_created;
    jobs_send(job->jobs, &creation->errand);
}

/* Writes the values that a job got into its object. */
static void fill_values(struct job_run *run) {
    json_t *object = run->job->object, *values = json_object_get(object, "hyperparameters");
    json_t *method = json_object_get(object, "method");
    const char *name = json_string_value(json_object_get(method, "type"));
    json_t *own = json_object_get(json_object_get(method, name), "hyperparameters");
    json_t *lists[] = {values, own};
    int word = find_word(run->job->words, EPOCHS_WORD);
    int64_t epochs =
        word < 0 ? run->total * run->batch / run->rows
                 : atoll(json_string_value(json_array_get(run->job->words, (size_t)word)) + sizeof EPOCHS_WORD - 1);
    for (int i = 0; i < 2; i++) {
        if (!json_is_number(json_object_get(lists[i], "n_epochs")))
            json_object_set_new(lists[i], "n_epochs", json_integer(epochs));
        if (!json_is_number(json_object_get(lists[i], "batch_size")))
            json_object_set_new(lists[i], "batch_size", json_integer(run->batch));
        if (!json_is_number(json_object_get(lists[i], "learning_rate_multiplier")))
            json_object_set_new(lists[i], "learning_rate_multiplier", json_integer(1));
    }
    if (json_is_string(json_object_get(own, "beta")))
        json_object_set_new(own, "beta", json_real(run->made->run->loss_options.beta));
}

/* ---- asks ---- */

static void on_answered(struct loop_note *note);

static void ask(struct job_run *run, enum tuning_kind kind) {
    struct jobs *jobs = run->job->jobs;
    run->ask.kind = kind;
    run->ask.run = run->run;
    run->ask.is_unwanted = run->ask.is_under_way = false;
    run->ask.error = (struct error){0};
    run->ask.status = 0;
    run->ask.spent = (struct tuning_spent){0};
    run->ask.note.run = on_answered;
    jobs->under_way++;
    driver_tune(jobs->server->driver, &run->ask);
}

static void ask_open(struct job_run *run) {
    const struct jobs_run *made = run->made;
    run->ask.open = (struct tuning_run_options){.config = &made->run->config,
                                                .adapters = made->adapters,
                                                .adapter_count = made->adapter_count,
                                                .texts = made->texts,
                                                .text_count = made->text_count,
                                                .loss = made->run->loss,
                                                .loss_options = made->run->loss_options,
                                                .start = run->start,
                                                .start_count = run->start_count,
                                                .state = run->state.length ? run->state.data : NULL,
                                                .state_bytes = run->state.length,
                                                .weight = (int64_t)fmax(1, run->job->weight)};
    ask(run, TUNING_OPEN);
}

static void ask_pass(struct job_run *run, bool is_validation) {
    int64_t rows = is_validation ? tuning_data_length(run->data, SPLIT_VALID) : run->batch;
    run->ask.pass = (struct tuning_pass){.source = &run->source,
                                         .first = is_validation ? 0 : run->step * run->batch,
                                         .batches = (rows + run->batch - 1) / run->batch,
                                         .is_forward_only = is_validation};
    ask(run, TUNING_PASS);
}

static void ask_update(struct job_run *run) {
    const struct run_config *config = &run->made->run->config;
    run->ask.update = (struct tuning_update){.iteration = run->step,
                                             .lr = schedule_lr(&run->schedule, run->step + 1),
                                             .beta1 = config->optim.adam_beta1,
                                             .beta2 = config->optim.adam_beta2,
                                             .eps = config->optim.adam_eps,
                                             .weight_decay = config->optim.weight_decay,
                                             .clip = config->optim.clip_grad};
    ask(run, TUNING_UPDATE);
}

/* ---- steps ---- */

static bool is_validated_run(const struct job_run *run) {
    return tuning_data_length(run->data, SPLIT_VALID) > 0;
}

/* A step is complete, with its validation. */
static void finish_step(struct job_run *run) {
    struct job *job = run->job;
    struct jobs *jobs = job->jobs;
    char line[128];
    double now = clock_seconds();
    snprintf(line, sizeof line, ",\"lr\":%.17g,\"seconds\":%.6g,\"tokens\":%lld",
             schedule_lr(&run->schedule, run->step), now - run->began, (long long)run->tokens);
    job_tell_step(job, &run->figures, line);
    jobs->steps++;
    for (int i = 0; i < JOBS_BUCKETS; i++)
        if (now - run->began <= jobs_buckets[i]) {
            jobs->step_counts[i]++;
            break;
        }
    jobs->step_seconds += now - run->began;
    run->wants_save = run_is_epoch(run) || now - run->saved >= jobs->options->tuning_save;
    run->is_validated = false;
    run->last = run->figures;
    run->figures.step = 0;
}

static void on_updated(struct job_run *run) {
    const struct stepper_result *result = &run->ask.update.result;
    run->step++;
    run->figures = (struct openai_figures){
        .step = run->step, .total = run->total, .train_loss = result->loss, .valid_loss = (double)NAN};
    run->is_validated = !(run_is_epoch(run) && is_validated_run(run));
}

/* Ends a run whose asks are done: the job takes the status of its wish. */
static void settle(struct job_run *run) {
    struct job *job = run->job;
    if (run->error.which && !job_has_ended(job)) {
        job->wish = JOB_NO_WISH;
        job_fail(job, run->error.which == ERROR_ARGUMENT ? "training_failed" : "server_error", NULL, run->error.text);
    }
    take_wish(job);
    if (job_has_ended(job) && job->saved_step) {
        job_drop_state(job);
        job_write(job);
    }
    end_run(run);
}

static void on_opened(struct job_run *run) {
    struct job *job = run->job;
    struct jobs *jobs = job->jobs;
    run->run = run->ask.run;
    jobs->memory = (double)run->ask.open.bytes;
    run->step = job->saved_step;
    run->tokens = job->saved_tokens;
    run->saved = clock_seconds();
    if (run->only_checks) {
        fill_values(run);
        create(run);
        return;
    }
    if (job->saved_step)
        job_tell(job, "info", "Training continues after step %lld", (long long)job->saved_step);
    job_change(job, "running", "info", NULL);
    run_continue(run);
}

/* An ask is done. */
static void on_answered(struct loop_note *note) {
    struct tuning_ask *ask = (struct tuning_ask *)((char *)note - offsetof(struct tuning_ask, note));
    struct job_run *run = (struct job_run *)((char *)ask - offsetof(struct job_run, ask));
    struct jobs *jobs = run->job->jobs;
    jobs->under_way--;
    jobs->spent.slices += ask->spent.slices;
    jobs->spent.seconds += ask->spent.seconds;
    if (ask->kind == TUNING_CLOSE) {
        run->run = NULL;
        jobs->memory = 0;
        settle(run);
        return;
    }
    if (ask->error.which == ERROR_CANCELLED) { /* by a wish */
        run_continue(run);
        return;
    }
    if (ask->error.which) {
        if (run->only_checks) {
            refuse(run, &ask->error);
            return;
        }
        if (ask->error.which == ERROR_ENGINE_FAILED || ask->error.which == ERROR_DRAINING)
            run->job->wish = JOB_STOP; /* it resumes after a restart */
        else
            run->error = ask->error;
        run->must_close = true;
        run_continue(run);
        return;
    }
    if (ask->kind == TUNING_OPEN) {
        on_opened(run);
        return;
    }
    if (ask->kind == TUNING_PASS && ask->pass.is_forward_only) {
        run->figures.valid_loss = ask->pass.result.loss;
        run->is_validated = true;
    } else if (ask->kind == TUNING_PASS) {
        run->tokens += ask->pass.result.tokens;
        ask_update(run);
        return;
    } else if (ask->kind == TUNING_UPDATE)
        on_updated(run);
    else if (ask->kind == TUNING_SNAPSHOT)
        run_save(run, &ask->snapshot);
    if (run->figures.step && run->is_validated)
        finish_step(run);
    run_continue(run);
}

static void run_continue(struct job_run *run) {
    struct job *job = run->job;
    bool must_wait = !job_is(job, "running");
    if (run->only_checks)
        return;
    bool must_save = job->wish == JOB_PAUSE || job->wish == JOB_STOP;
    if (must_save && !run->must_close && run->step > job->saved_step && !run->is_saving && !run->figures.step)
        run->wants_save = true;
    bool must_end = job->wish != JOB_NO_WISH || run->error.which || run->must_close || job_has_ended(job);
    if (run->figures.step && !run->is_validated && !must_end) {
        ask_pass(run, true);
    } else if (run->wants_save && !run->error.which && !run->must_close && job->wish != JOB_CANCEL) {
        run->waits = run->is_saving;
        if (run->waits)
            return;
        run->wants_save = false;
        run->ask.snapshot = (struct tuning_snapshot){.wants_state = run->step < run->total};
        ask(run, TUNING_SNAPSHOT);
    } else if (must_end || run->step == run->total || must_wait) {
        run->waits = run->is_saving;
        if (run->waits)
            return;
        if (run->run)
            ask(run, TUNING_CLOSE);
        else
            settle(run);
    } else {
        run->began = clock_seconds();
        ask_pass(run, false);
    }
}

/* ---- beginning ---- */

static void on_prepared(struct errand *errand) {
    struct job_run *run = (struct job_run *)errand;
    struct job *job = run->job;
    if (!errand->error.which && (run->only_checks || job->wish == JOB_NO_WISH)) {
        ask_open(run);
        return;
    }
    run->error = errand->error;
    if (run->only_checks && run->is_of_rows) {
        create(run);
    } else if (run->only_checks) {
        name_param(job, &run->error);
        refuse(run, &run->error);
    } else {
        run->must_close = true;
        run_continue(run);
    }
}

static struct job_run *new_run(struct job *job) {
    struct job_run *run = job->run = calloc(1, sizeof *run);
    if (!run)
        return NULL;
    run->job = job;
    run->errand.work = prepare;
    run->errand.done = on_prepared;
    run->proceed = run_continue;
    return run;
}

void job_begin(struct job *job) {
    struct job_run *run = new_run(job);
    if (!run) {
        struct exchange *exchange = take_asker(job);
        route_fail(exchange, AN_ERROR(ERROR_OVERLOADED, NULL, "out of memory"));
        drop_job(job);
        return;
    }
    run->only_checks = true;
    jobs_send(job->jobs, &run->errand);
}

void jobs_start(struct jobs *jobs) {
    struct job *job;
    if (!jobs->has_begun)
        return;
    TAILQ_FOREACH(job, &jobs->jobs, all) {
        bool must_run = job_is(job, "queued") || job_is(job, "running"); /* running: before a restart */
        if (job->run || !must_run || !jobs_have_place(jobs) || !new_run(job))
            continue;
        job_set(job, "status", json_string("running")); /* reported when it is open */
        jobs_send(jobs, &job->run->errand);
    }
}

void job_wish(struct job *job, enum job_wish wish) {
    struct job_run *run = job->run;
    job->wish = wish;
    if (run && wish != JOB_NO_WISH && run->run && run->ask.kind == TUNING_PASS)
        run->ask.is_unwanted = true;
}
