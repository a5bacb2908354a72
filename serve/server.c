/* Opening, serving and closing: the parts opened before the ranks, the parts that need the model, readiness, drain and
 * the end.
 *
 * The engine's thread opens the loop's data and then posts a note; from then on the loop owns the data. At the end the
 * driver's thread waits until answers were sent and the loop has finished. */
#include "server-internal.h"

#include "jobs.h"
#include "log.h"
#include "origin.h"
#include "otlp.h"
#include "queue.h"
#include "registry.h"
#include "route.h"
#include "tinker.h"

#include "infer/score.h"
#include "infer/sequences.h"
#include "openai/tools.h"

#include <malloc.h>
#include <signal.h>
#include <sys/stat.h>

enum { TEXT_JOBS = 1024, FILE_JOBS = 64, GRACE_TICKS = 8 };
static const double last_words_seconds = 5; /* for error messages in answers that are broken off */
static const double late_seconds = 1;       /* a tick that is this late means that the process was stopped */

/* ---- the end ---- */

static void on_stop(evutil_socket_t number, short what, void *context) {
    struct server *server = context;
    bool is_loading = !server->driver; /* there are no requests yet */
    char line[96];
    snprintf(line, sizeof line,
             is_loading ? "stopped by %s while the model was loaded" : "a second signal (%s): ending at once",
             is_loading ? stop_name((int)number) : strsignal((int)number));
    if (server->core->stops++ || is_loading)
        server->options->end_process(line);
    else
        server_drain(server, number == SIGINT ? 0 : -1, -1);
}

static ON_EVENT(on_reload) {
    static const char *const names[SERVER_KEYS] = {"--api-key-file", "--control-key-file", "--metrics-key-file"};
    struct server *server = context;
    for (int i = 0; i < SERVER_KEYS; i++)
        if (server->keys[i] && keys_reload(server->keys[i]))
            log_event(server, LOG_ERROR, "reload", "%s: %s; the keys are as they were", names[i], status_text());
        else if (server->keys[i])
            log_event(server, LOG_INFO, "reload", "%s: %zu keys", names[i], keys_count(server->keys[i]));
    if (!server->options->tls_cert)
        return;
    if (transport_reload(server->transport))
        log_event(server, LOG_ERROR, "reload", "%s; the certificate is as it was", status_text());
    else
        log_event(server, LOG_INFO, "reload", "--tls-cert");
}

/* After the engine's end, answers are sent for as long as requests had to end; then their connections close, for a
 * moment. */
static bool must_wait(struct server *server) {
    struct server_core *core = server->core;
    double now = clock_seconds();
    if (server->exchanges && (now < core->drain_deadline || now < core->end_time + last_words_seconds))
        return true;
    return transport_awaited(server->transport) && core->grace++ < GRACE_TICKS;
}

static void close_when_written(struct server *server) {
    struct server_core *core = server->core;
    if (!core->is_ending || must_wait(server))
        return;
    transport_close(server->transport);
    server->transport = NULL;
    event_del(core->tick);
    pthread_mutex_lock(&core->lock);
    core->has_ended = true;
    pthread_cond_signal(&core->ended);
    pthread_mutex_unlock(&core->lock);
}

static void begin_end(struct loop_note *note) {
    struct server_core *core = (struct server_core *)((char *)note - offsetof(struct server_core, end_note));
    struct server *server = core->server;
    core->is_ending = true;
    core->end_time = clock_seconds();
    server->is_leaving = true;
    if (!server->is_draining) {
        server->is_draining = true;
        transport_drain(server->transport);
    }
    close_when_written(server);
}

/* ---- a failure ---- */

static void lose_rank(struct server *server, int rank) {
    if (server->driver)
        metrics_tell_rank(server->metrics, rank, false);
}

static void fail_all(struct server *server, const char *line) {
    struct error error;
    if (server->has_failed)
        return;
    server->has_failed = true;
    snprintf(server->failure, sizeof server->failure, "%s", line);
    error_set(&error, ERROR_ENGINE_FAILED, NULL, "the engine has failed");
    call_fail_all(server, &error);
    if (server->driver) /* from then on the loop owns these */
        registry_fail_all(server, &error);
}

struct failure {
    struct loop_note note;
    struct server *server;
    int rank;
    char line[512];
};

static void on_failure(struct loop_note *note) {
    struct failure *failure = (struct failure *)note;
    lose_rank(failure->server, failure->rank);
    fail_all(failure->server, failure->line);
    free(failure);
}

void server_fail(struct server *server, int rank, const char *line) {
    struct failure *failure = calloc(1, sizeof *failure);
    if (!failure)
        return;
    failure->note.run = on_failure;
    failure->server = server;
    failure->rank = rank;
    snprintf(failure->line, sizeof failure->line, "%s", line);
    loop_post(server->loop, &failure->note);
}

static int rank_count(const struct server *server) {
    return server->options->tensor * server->options->pipeline;
}

/* Names the ranks that hang, and counts them as lost. If all give signs of life, they wait for each other, and none is
 * to blame. */
static void describe_hang(struct server *server) {
    struct strbuf *line = &server->core->hang_line;
    int count = 0;
    for (int r = 0; r < rank_count(server); r++) {
        /* A rank that waits for a hung one gives signs of life all the time. A rank that computed meanwhile was silent
         * for a shorter time than nothing progressed. */
        if (2 * server->core->ranks[r].silent < server->core->still)
            continue;
        strbuf_format(line, count++ ? ", %d" : "rank %d", r);
        lose_rank(server, r);
    }
    strbuf_format(line, count == 1 ? " has" : count ? " have" : "ranks wait for each other, and the engine has");
    strbuf_format(line, " made no progress for %g s", server->options->rank_timeout);
}

/* The engine's thread is stuck and cannot be asked: answers get a moment to be sent. */
static void on_hang(struct server *server) {
    struct server_core *core = server->core;
    if (!core->hang_ticks)
        describe_hang(server);
    fail_all(server, strbuf_text(&core->hang_line));
    core->hang_ticks++;
    if (core->hang_ticks > 2)
        server->options->end_process(strbuf_text(&core->hang_line));
}

/* Counts ticks of the loop, not time: a process that was stopped as a whole and continues is not hung. */
static void watch(struct server *server) {
    struct server_core *core = server->core;
    double now = clock_seconds();
    uint64_t progress = server->driver ? driver_progress(server->driver) : 0;
    bool is_late = now - core->last_tick > SERVER_TICK_SECONDS + late_seconds;
    core->last_tick = now;
    if (server->driver) {
        for (int r = 0; r < rank_count(server); r++) {
            struct rank_signs *rank = &core->ranks[r];
            uint64_t count = engine_signs_of(core->engine, r).count;
            rank->silent = is_late || count != rank->count ? 0 : rank->silent + 1;
            rank->count = count;
        }
    }
    if (core->hang_ticks) { /* its requests got an error: it cannot recover any more */
        on_hang(server);
        return;
    }
    if (!server->is_ready || core->is_ending || progress != core->progress || is_late) {
        core->progress = progress;
        core->still = 0;
        return;
    }
    core->still++;
    if (core->still * SERVER_TICK_SECONDS >= server->options->rank_timeout)
        on_hang(server);
}

static void trim(struct worker_job *job) {
    struct server_core *core = (struct server_core *)((char *)job - offsetof(struct server_core, trimming));
    malloc_trim(0);
    atomic_store(&core->is_trimming, false);
}

/* The allocator keeps memory that was freed between used blocks. After long bodies this gives it back. */
static void release_bodies(struct server *server) {
    enum { WORTH_IT = 16 << 20 };
    static const double pause_seconds = 2;
    struct server_core *core = server->core;
    if (server->gathered.given < WORTH_IT || server->gathered.bytes > server->gathered.given / 4 ||
        core->last_tick < core->last_trim + pause_seconds || atomic_exchange(&core->is_trimming, true))
        return;
    server->gathered.given = 0;
    core->last_trim = core->last_tick;
    core->trimming.work = trim;
    worker_drop(server->worker, &core->trimming);
}

static ON_EVENT(on_tick) {
    struct server *server = context;
    watch(server);
    server_count(server);
    log_tick(server);
    if (server->tinker)
        tinker_tick(server->tinker);
    server_end_if_idle(server);
    release_bodies(server);
    close_when_written(server);
}

/* ---- opening ---- */

static bool has_control(const struct serve_options *options) {
    return strcmp(options->control, "none") != 0;
}

static int bind_all(struct server *server) {
    const struct serve_options *o = server->options;
    struct transport_options transport = {.base = server->base,
                                          .limits = o->limits,
                                          .gathered = &server->gathered,
                                          .tls_cert = o->tls_cert,
                                          .tls_key = o->tls_key,
                                          .request_bytes = sizeof(struct request),
                                          .route = route_exchange,
                                          .refuse = request_refuse,
                                          .router = server};
    if (has_control(o) && !origin_is_local(o->control) && !o->control_key_file)
        return status_fail(STATUS_USAGE,
                           "--control %s is neither loopback nor a unix socket: it needs "
                           "--control-key-file",
                           o->control);
    if (!origin_is_local(o->listen) && !o->api_key_file)
        log_warning("--listen %s without --api-key-file: whoever reaches it may ask", o->listen);
    int status = transport_open(&transport, &server->transport);
    THEN(status, transport_bind(server->transport, LISTENER_DATA, o->listen));
    THEN(status, has_control(o) ? transport_bind(server->transport, LISTENER_CONTROL, o->control) : STATUS_OK);
    for (int kind = 0; kind < LISTENER_COUNT && !status; kind++) {
        const char *address = transport_address(server->transport, kind);
        bool is_open = kind == LISTENER_DATA && o->metrics_on_data == SERVE_METRICS_OPEN;
        server->checks_names[kind] = address && origin_checks_names(o, address, server->keys[kind] && !is_open);
    }
    return status;
}

static int add_events(struct server *server) {
    struct server_core *core = server->core;
    struct timeval tick = {.tv_usec = (suseconds_t)(SERVER_TICK_SECONDS * 1e6)};
    core->tick = event_new(server->base, -1, EV_PERSIST, on_tick, server);
    core->delay_timer = evtimer_new(server->base, server_on_delay_over, server);
    core->drain_timer = evtimer_new(server->base, server_give_up, server);
    core->on_term = evsignal_new(server->base, SIGTERM, on_stop, server);
    core->on_int = evsignal_new(server->base, SIGINT, on_stop, server);
    core->on_hup = evsignal_new(server->base, SIGHUP, on_reload, server);
    TRY(status_allocated(core->tick && core->delay_timer && core->drain_timer && core->on_term && core->on_int &&
                         core->on_hup));
    core->last_tick = clock_seconds();
    if (event_add(core->tick, &tick) || event_add(core->on_term, NULL) || event_add(core->on_int, NULL) ||
        event_add(core->on_hup, NULL))
        return status_fail(STATUS_IO, "cannot watch signals");
    return STATUS_OK;
}

int server_open(const struct serve_options *options, struct server **out) {
    struct server *server = *out = calloc(1, sizeof *server);
    struct server_core *core = calloc(1, sizeof *core);
    if (!server || !core) {
        free(server);
        free(core);
        *out = NULL;
        return status_no_memory();
    }
    signal(SIGPIPE, SIG_IGN);
    *server = (struct server){.options = options, .core = core, .gathered = {.limit = options->limits.gathered_bytes}};
    core->server = server;
    pthread_mutex_init(&core->lock, NULL);
    pthread_cond_init(&core->ended, NULL);
    int status = loop_open(&server->loop);
    THEN(status, queue_open(options->max_queued_requests, &core->queue));
    THEN(status, options->max_queued_tokens ? queue_open(options->max_queued_tokens, &core->token_queue) : STATUS_OK);
    if (!status)
        server->base = loop_base(server->loop);
    const char *const key_files[SERVER_KEYS] = {options->api_key_file, options->control_key_file,
                                                options->metrics_key_file};
    for (int i = 0; i < SERVER_KEYS && !status; i++)
        if (key_files[i])
            status = keys_open(key_files[i], &server->keys[i]);
    THEN(status, bind_all(server));
    THEN(status, add_events(server));
    THEN_IF(status, options->otlp_endpoint, otlp_open(options->otlp_endpoint, CAMBIUM_VERSION, &server->otlp));
    THEN(status, worker_open(server->loop, TEXT_JOBS, &server->worker));
    THEN(status, worker_open(server->loop, FILE_JOBS, &core->file_worker));
    THEN(status, loop_start(server->loop));
    if (status) {
        server_close(server);
        *out = NULL;
    }
    return status;
}

/* ---- the model ---- */

static int describe_model(struct server *server, struct engine *engine, const struct tokenizer *tokenizer,
                          const struct tokenizer_files *files) {
    const struct serve_options *o = server->options;
    struct openai_model *model = &server->model;
    model->names = o->model_names;
    model->name_count = o->model_name_count;
    model->name = o->model_names[0];
    model->most_texts = o->max_queued_requests;
    model->template_seconds = o->template_timeout;
    model->tool_format = o->tool_format;
    model->has_no_reasoning = o->has_no_reasoning;
    if (tokenizer && files && chat_template_of_tokenizer(files, &model->chat_template))
        log_warning("%s: the tokenizer counts as one without a chat template", status_text());
    if (!model->chat_template)
        model->chat_template = chat_template_keep(o->chat_template);
    int status = openai_model_describe(model, engine, tokenizer);
    THEN(status, openai_tools_warn(model, model->chat_template, model->name));
    THEN(status, tokenizer ? tokenizer_encoder_new(tokenizer, &server->encoder) : STATUS_OK);
    THEN(status, tokenizer ? tokenizer_encoder_new(tokenizer, &server->worker_encoder) : STATUS_OK);
    THEN_IF(status, tokenizer,
            tokenizer_vocabulary(tokenizer, model->ends.eos, (size_t)model->ends.count, &server->vocabulary));
    THEN_IF(status, tokenizer, grammars_open(&o->grammars, &server->grammars));
    return status;
}

static int open_books(struct server *server, struct engine *engine) {
    const struct serve_options *o = server->options;
    struct server_core *core = server->core;
    struct driver_options driver = {.server = server,
                                    .loop = server->loop,
                                    .engine = engine,
                                    .tokenizer = server->model.tokenizer,
                                    .on_adapters = registry_take,
                                    .on_absent = registry_bring};
    struct metrics_options metrics = {.model_name = server->model.name,
                                      .cache_dtype = dtype_name(engine_dtype(engine)),
                                      .max_model_len = server->model.max_model_len,
                                      .page_tokens = KV_PAGE_TOKENS,
                                      .pages = engine_pages(engine),
                                      .max_adapters = engine_max_sequences(engine),
                                      .has_prefix_cache = o->has_prefix_cache,
                                      .ranks = o->tensor * o->pipeline};
    int status = metrics_new(&metrics, &server->metrics);
    THEN(status, adapters_open(engine, &core->adapters));
    THEN(status, registry_open(server, core->adapters, &server->registry));
    THEN_IF(status, o->tuning_root, jobs_open(server, &server->jobs));
    THEN_IF(status, o->tuning_root, tinker_start(server, o->tokenizer_id));
    driver.adapters = core->adapters;
    return status ? status : driver_open(&driver, &core->driver);
}

/* ---- serving ---- */

static int print_ready(struct server *server) {
    const char *control = transport_address(server->transport, LISTENER_CONTROL);
    printf("{\"event\":\"ready\",\"listen\":\"%s\",\"control\":\"%s\"}\n",
           transport_address(server->transport, LISTENER_DATA), control ? control : "none");
    if (fflush(stdout))
        return status_fail_errno("cannot tell on standard output that requests are served");
    log_event(server, LOG_INFO, "ready", "%s is served at %s, control at %s", server->model.name,
              transport_address(server->transport, LISTENER_DATA), control ? control : "none");
    return STATUS_OK;
}

static void begin_serving(struct loop_note *note) {
    struct server_core *core = (struct server_core *)((char *)note - offsetof(struct server_core, begin_note));
    struct server *server = core->server;
    server->driver = core->driver;
    if (server->is_draining) { /* a signal came while the model was opened */
        driver_end(server->driver);
        return;
    }
    server->is_ready = true;
    registry_begin_checks(server);
    if (server->jobs)
        jobs_begin(server->jobs);
    if (transport_accept(server->transport) || print_ready(server)) {
        fail_all(server, status_text());
        driver_end(server->driver);
    }
}

static int find_failed_rank(const struct server *server) {
    for (int r = 0; r < rank_count(server); r++)
        if (engine_signs_of(server->core->engine, r).is_failed)
            return r;
    return -1;
}

int server_run(struct server *server, struct engine *engine, const struct tokenizer *tokenizer,
               const struct tokenizer_files *files) {
    struct server_core *core = server->core;
    core->engine = engine;
    core->ranks = calloc((size_t)rank_count(server), sizeof *core->ranks);
    TRY(status_allocated(core->ranks));
    TRY(describe_model(server, engine, tokenizer, files));
    int32_t ids[2] = {0, 0};
    float logprobs[2];
    TRY(score_tokens(engine, ids, 2, logprobs)); /* so that all that a step needs is in place before a request comes */
    TRY(open_books(server, engine));
    core->begin_note.run = begin_serving;
    loop_post(server->loop, &core->begin_note);
    int status = driver_run(core->driver);
    char reason[512];
    snprintf(reason, sizeof reason, "%s", status_text());
    if (status)
        server_fail(server, find_failed_rank(server), reason);
    core->end_note.run = begin_end;
    loop_post(server->loop, &core->end_note);
    pthread_mutex_lock(&core->lock);
    while (!core->has_ended)
        pthread_cond_wait(&core->ended, &core->lock);
    pthread_mutex_unlock(&core->lock); /* the loop has finished: its results can be read */
    if (!status && server->has_failed)
        return status_fail(STATUS_IO, "%s", server->failure);
    return status ? status_fail(status, "%s", reason) : STATUS_OK;
}

void server_close(struct server *server) {
    struct server_core *core = server ? server->core : NULL;
    if (!server)
        return;
    worker_stop(server->worker);
    worker_stop(core->file_worker);
    jobs_end(server->jobs);
    grammars_stop(server->grammars);
    if (server->loop)
        loop_stop(server->loop);
    if (server->transport)
        transport_close(server->transport);
    struct event *events[] = {core->tick,    core->delay_timer, core->drain_timer,
                              core->on_term, core->on_int,      core->on_hup};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i])
            event_free(events[i]);
    tinker_close(server->tinker);
    jobs_close(server->jobs);
    registry_close(server->registry);
    driver_close(core->driver);
    grammars_close(server->grammars);
    grammar_vocabulary_close(server->vocabulary);
    adapters_close(core->adapters);
    metrics_free(server->metrics);
    tokenizer_encoder_free(server->encoder);
    tokenizer_encoder_free(server->worker_encoder);
    otlp_close(server->otlp);
    for (int i = 0; i < SERVER_KEYS; i++)
        keys_close(server->keys[i]);
    worker_close(server->worker);
    worker_close(core->file_worker);
    loop_close(server->loop);
    pthread_mutex_destroy(&core->lock);
    pthread_cond_destroy(&core->ended);
    chat_template_close(server->model.chat_template);
    queue_close(core->queue);
    queue_close(core->token_queue);
    free(core->ranks);
    strbuf_free(&core->hang_line);
    free(core);
    free(server);
}

/* Bodies that are gathered, a few of the largest kind that are read, and the memory of connections (14 KB were measured
 * with HTTP/2). */
size_t server_planned_bytes(const struct serve_options *options) {
    const struct transport_limits *limits = &options->limits;
    size_t spans = options->otlp_endpoint ? OTLP_QUEUE_BYTES : 0;
    return (size_t)limits->gathered_bytes + (size_t)limits->body_bytes * 4 + (size_t)limits->connections * 16384 +
           spans + (size_t)options->grammars.memory;
}
