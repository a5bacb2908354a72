/* cambium serve: answers requests with a trained model and its adapters. */
#include "batch_arguments.h"
#include "commands.h"
#include "finetune.h"
#include "grammar_arguments.h"
#include "model_arguments.h"

#include "serve/serve.h"

#include "base/base.h"
#include "base/utf8.h"
#include "infer/sequences.h"
#include "pretrained/pretrained.h"

#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

struct serve_command {
    struct job_model base;
    struct batch_arguments batch;
    struct adapter_names names;
    struct serve_options options; /* those that the rows name; fill_options sets the others */
    const char *chat_template;
    int log_format;             /* index into log_formats */
    int tool_format, reasoning; /* of the choices */
    struct tuning_words {
        char text[7][PATH_MAX + 48];
        const char *words[7];
    } tuning_words;
    bool is_dry_run, cache_is_given;
    int64_t tuning_memory;
};

static const double mib = 1 << 20;

static const char *const log_formats[] = {"text", "json", NULL};
static const char *const metrics_choices[] = {"false", "true", "open", NULL}; /* enum serve_metrics */

#define AT(field) offsetof(struct serve_command, field)
static const struct config_row rows[] = {
    MODEL_ROW(AT(base)),
    ADAPTER_ROOT_ROW(AT(names)),
    ROW_TEXT("listen", AT(options.listen), "HOST:PORT",
             "address for requests, HTTP/1.1 and HTTP/2; port 0: any free port; unix:PATH: a socket",
             .default_text = "127.0.0.1:8000"),
    ROW_PATHS("adapter", AT(base.adapters), "NAME=DIR...", "adapters that requests may name"),
    ROW_TEXT("control", AT(options.control), "HOST:PORT",
             "address for changing adapters and reading metrics; unix:PATH, or none", .default_text = "127.0.0.1:8001"),
    ROW_PATH(
        "api-key-file", AT(options.api_key_file), "FILE",
        "keys of --listen, one line \"name key [weight] [priority>=N] [tune] [tuning_jobs=N] [tuning_bytes=SIZE]\" for "
        "each; without it anybody may send requests"),
    ROW_PATH("tuning-root", AT(options.tuning_root), "DIR",
             "directory of uploaded files and tuning jobs; with it, clients may tune adapters"),
    ROW_INT("tuning-jobs", AT(options.tuning_jobs), "1", 1, 64, "tuning jobs that run at a time; 64 may wait"),
    ROW_SIZE("tuning-disk", AT(options.tuning_disk), "10G", 1, 1e15, "bytes that --tuning-root may have"),
    ROW_FLOAT("tuning-save", AT(options.tuning_save), "60", 0, 1e9,
              "seconds between saves of a tuning job, which resumes from the last one"),
    ROW_PATH("control-key-file", AT(options.control_key_file), "FILE", "keys of --control"),
    ROW_PATH("tls-cert", AT(options.tls_cert), "FILE", "certificate chain (PEM); the listeners then accept only TLS"),
    ROW_PATH("tls-key", AT(options.tls_key), "FILE", "its private key (PEM)"),
    MODEL_NAME_ROW(AT(base),
                   "names of the base for clients; answers report the first. The directory's name when not given"),
    ROW_TEXT("chat-template", AT(chat_template), "NAME|FILE",
             "template of messages when neither an adapter nor the tokenizer has one: " CHAT_TEMPLATE_CHOICES
             " in Jinja",
             .default_text = "auto"),
    CALLS_ROWS(AT(tool_format), AT(reasoning), ""),
    MODEL_MAX_LEN_ROW(AT(base)),
    MODEL_DEVICE_ROW(AT(base)),
    MODEL_GRAPHS_ROW(AT(base)),
    MODEL_COMPUTE_ROWS(AT(base)),
    BATCH_ROWS(
        AT(batch), "", NULL,
        "memory for keys and values on each rank, at most as much as all completions can fill. By default it is a "
        "quarter of the host's free memory, shared by the ranks, or less where that does not fit. On a GPU it is nine "
        "tenths of what is left beside the model"),
    ROW_SIZE("adapter-memory", AT(names) + offsetof(struct adapter_names, memory), NULL, 1, 1e15,
             "memory for adapters on each rank; unused ones make room for others. By default 512M, less where that "
             "does not fit, and none where no adapter can come"),
    ROW_SIZE(
        "tuning-memory", AT(tuning_memory), NULL, 1, 1e15,
        "memory for tuning runs on each rank: what trains, its optimizer and activations; 256M with --tuning-root, "
        "and none without"),
    ROW_FLOAT("tuning-share", AT(options.tuning_share), "0.1", 0.001, 10,
              "time for tuning beside completions, as a share of a decode step"),
    ROW_FLOAT("tuning-slice", AT(options.tuning_slice), "0.01", 0.0005, 10,
              "seconds that tuning may take at a time while nothing else runs"),
    ROW_BOOL("dry-run", AT(is_dry_run), NULL, "print the memory plan and exit"),
    ROW_INT("max-queued-requests", AT(options.max_queued_requests), "256", 1, 1e6,
            "completions that may wait or run; more are refused"),
    ROW_INT("max-queued-tokens", AT(options.max_queued_tokens), "0", 0, 1e12,
            "tokens of waiting prompts; more are refused; 0: no limit"),
    ROW_FLOAT("request-timeout", AT(options.request_timeout), "0", 0, 1e6,
              "seconds that a request may take; 0: no limit"),
    ROW_FLOAT("drain-delay", AT(options.drain_delay), "5", 0, 1e6,
              "seconds for which a stopping server, no longer ready, still accepts requests; 0: none"),
    ROW_FLOAT("drain-timeout", AT(options.drain_timeout), "30", 0, 1e6,
              "seconds in which running requests must end when the server stops"),
    ROW_LIST("cors-origin", AT(options.cors_origins), "ORIGIN...",
             "origins of pages that may send requests from a browser; localhost: any page of this machine"),
    ROW_LIST(
        "allowed-host", AT(options.allowed_hosts), "NAME...",
        "names of this server in Host, checked when no key is required; localhost, 127.0.0.1 and [::1] always are"),
    ROW_CHOICE("metrics-on-data", AT(options.metrics_on_data), "false", metrics_choices,
               "serve /metrics on --listen, too; true: to clients with a key; open: to anybody", .metavar = "WHO",
               .bare_text = "true"),
    ROW_PATH("metrics-key-file", AT(options.metrics_key_file), "FILE",
             "keys for /metrics only, on --listen instead of those of --api-key-file"),
    ROW_TEXT("otlp-endpoint", AT(options.otlp_endpoint), "URL",
             "http://HOST:PORT of an OpenTelemetry collector, which gets a span for each request"),
    ROW_CHOICE("log-format", AT(log_format), "text", log_formats, "format of the lines on standard error"),
    MODEL_TOKENIZER_ROW(AT(base)),
    TEMPLATE_TIMEOUT_ROW("template-timeout", AT(options.template_timeout)),
    GRAMMAR_ROWS(AT(options.grammars), ""),
    MODEL_RANKS_ROW(AT(base)),
    ROW_FLOAT("rank-timeout", AT(options.rank_timeout), "10", 1, 1e6,
              "seconds without a sign of life after which a rank counts as hung"),
    ROW_INT("limits.connections", AT(options.limits.connections), "1024", 1, 1e6,
            "places for connections of each listener"),
    ROW_INT("limits.streams", AT(options.limits.streams), "100", 1, 1e6, "streams of an HTTP/2 connection"),
    ROW_SIZE("limits.header_bytes", AT(options.limits.header_bytes), "16K", 1024, 1e12,
             "bytes of a request's header: names, values and 32 for each field"),
    ROW_INT("limits.headers", AT(options.limits.headers), "100", 1, 1e4, "fields of a request's header"),
    ROW_SIZE("limits.body_bytes", AT(options.limits.body_bytes), "8M", 1024, 1e12,
             "bytes of a request's body, and of a gRPC message"),
    ROW_SIZE("limits.gathered_bytes", AT(options.limits.gathered_bytes), "64M", 1024, 1e12,
             "bytes of all bodies that have not been read yet"),
    ROW_SIZE("limits.stream_window", AT(options.limits.stream_window), "256K", 1024, 1e12, "HTTP/2 window of a stream"),
    ROW_SIZE("limits.connection_window", AT(options.limits.connection_window), "4M", 1024, 1e12,
             "HTTP/2 window of a connection"),
    ROW_SIZE("limits.output_bytes", AT(options.limits.output_bytes), "64K", 1024, 1e12,
             "bytes that may wait to be sent on a connection"),
    ROW_SIZE("limits.stream_output_bytes", AT(options.limits.stream_output_bytes), "256K", 1024, 1e12,
             "bytes of one answer that may wait"),
    ROW_FLOAT("limits.header_timeout", AT(options.limits.header_timeout), "10", 0.1, 1e6,
              "seconds for a request's header"),
    ROW_FLOAT("limits.idle_timeout", AT(options.limits.idle_timeout), "300", 0.1, 1e6,
              "seconds for which a connection may be idle"),
    ROW_FLOAT("limits.write_timeout", AT(options.limits.write_timeout), "30", 0.1, 1e6,
              "seconds for which a client may not read"),
    ROW_INT("limits.glitches", AT(options.limits.glitches), "1000", 1, 1e9,
            "useless frames of a connection in a burst"),
    ROW_INT("limits.glitches_per_s", AT(options.limits.glitches_per_s), "100", 1, 1e9, "useless frames per second"),
    ROW_INT("limits.resets", AT(options.limits.resets), "1000", 1, 1e9,
            "requests that a client gives up in a burst, on all of its connections"),
    ROW_INT("limits.resets_per_s", AT(options.limits.resets_per_s), "200", 1, 1e9,
            "requests that a client gives up per second"),
    ROW_INT("limits.requests_per_connection", AT(options.limits.requests_per_connection), "1000", 1, 1e9,
            "requests of an HTTP/1.1 connection"),
    MODEL_LAYOUT_ROWS(AT(base)),
};

static const struct config_command command = {
    .name = "serve",
    .synopsis = "cambium serve --model PATH [--adapter-root DIR] [--listen HOST:PORT] [OPTIONS]",
    .description =
        "Serves a trained model and its adapters: OpenAI-style HTTP and gRPC on one port, and control on another. "
        "It prints one line to standard output when it serves requests. A plan that needs more memory than the host or "
        "its control group has is refused. SIGTERM stops it: it is no longer ready, "
        "accepts requests for a while, and lets them end. SIGHUP reads keys and certificates again.",
    .examples = "  cambium serve --model out/gpt\n"
                "  cambium serve --model out/gpt --adapter-root adapters --listen 0.0.0.0:8000 --api-key-file keys\n"
                "  curl localhost:8000/v1/completions --json '{\"prompt\": \"Once\", \"max_tokens\": 20}'\n"
                "  mpirun -n 2 cambium serve --model out/gpt --parallel.tensor_model_parallel_size=2\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
};

/* ---- options ---- */

struct serving {
    struct serve_command *command;
    struct serve_name *adapters;
    char *names;                /* memory of the adapters' names */
    const char *directory_name; /* name of the base's directory, when no name was given */
    struct config_list base_names;
    struct chat_template *template; /* the option's; NULL: none */
    struct server *server;          /* first rank only */
    atomic_bool is_lost;            /* a rank is lost; the watch's thread ends the process */
};

/* Splits each "NAME=DIR" into two strings. */
static int split_names(struct serving *serving) {
    const struct config_list *given = &serving->command->names.given;
    size_t bytes = 1;
    for (size_t i = 0; i < given->count; i++)
        bytes += strlen(given->items[i]) + 1;
    serving->adapters = calloc(given->count + 1, sizeof *serving->adapters);
    serving->names = malloc(bytes);
    TRY(status_allocated(serving->adapters && serving->names));
    char *at = serving->names;
    for (size_t i = 0; i < given->count; i++) {
        size_t length = strlen(given->items[i]);
        memcpy(at, given->items[i], length + 1);
        char *directory = strchr(at, '=');
        *directory++ = 0;
        serving->adapters[i] = (struct serve_name){.name = at, .directory = directory};
        at += length + 1;
    }
    return STATUS_OK;
}

/* Ends the process without waiting, because the engine's thread may be blocked in MPI. Nothing may block here, not even
 * the write of the line to a full pipe. */
static void end_process(const char *line) {
    if (log_is_writable())
        log_error("%s", line);
    _exit(1);
}

static int fill_options(struct serving *serving) {
    struct serve_command *c = serving->command;
    int status = split_names(serving);
    THEN(status, job_model_names(&c->base, &serving->directory_name, &serving->base_names));
    THEN(status, chat_template_open_option(c->chat_template, &serving->template));
    struct serve_options *o = &c->options;
    o->model_names = serving->base_names.items;
    o->model_name_count = serving->base_names.count;
    o->adapters = serving->adapters;
    o->adapter_count = c->names.given.count;
    o->adapter_root = c->names.root;
    o->has_prefix_cache = c->batch.prefix_cache == 0;
    o->chat_template = serving->template;
    o->tool_format = tool_format_named(tool_format_choices[c->tool_format]);
    o->has_no_reasoning = c->reasoning == 1;
    o->prefill_stretch = c->batch.prefill_stretch;
    o->logs_json = c->log_format == 1;
    o->tensor = c->base.grid.tensor;
    o->pipeline = c->base.grid.pipeline;
    o->end_process = end_process;
    return status;
}

/* Checks the base's names, which appear in answers, logs and metrics. */
static int check_model_names(const struct config_list *names) {
    for (size_t i = 0; i < names->count; i++) {
        const unsigned char *at = (const unsigned char *)names->items[i], *end = at + strlen(names->items[i]);
        uint32_t point = 0;
        bool is_plain = at < end;
        for (size_t length; is_plain && at < end; at += length) {
            length = utf8_length(at, end);
            point = *at;
            if (length > 1)
                utf8_decode(at, end, &point);
            is_plain = length && point >= 0x20 && (point < 0x7f || point > 0x9f);
        }
        if (!is_plain)
            return status_fail(STATUS_USAGE, "--model-name: name %zu is empty, not UTF-8, or has a control character",
                               i + 1);
    }
    return STATUS_OK;
}

/* Checks names of hosts, which have no port. */
static int check_hosts(const struct config_list *hosts) {
    for (size_t i = 0; i < hosts->count; i++) {
        const char *name = hosts->items[i];
        if (!*name || name[strcspn(name, "/@*, ")] || (*name != '[' && strchr(name, ':')))
            return status_fail(STATUS_USAGE, "--allowed-host %s: expected a name without scheme, port and path", name);
    }
    return STATUS_OK;
}

/* Refuses a file of keys for metrics that are not served, or that anybody may read. */
static int check_metrics(const struct serve_command *c) {
    if (c->options.metrics_key_file && c->options.metrics_on_data == SERVE_METRICS_OPEN)
        return status_fail(STATUS_USAGE, "--metrics-key-file: --metrics-on-data open lets anybody read /metrics");
    if (c->options.metrics_key_file && c->options.metrics_on_data == SERVE_METRICS_OFF && !c->options.control_key_file)
        return status_fail(STATUS_USAGE,
                           "--metrics-key-file: it needs --metrics-on-data, or --control-key-file beside it");
    return STATUS_OK;
}

static int check(struct serve_command *c) {
    int status = adapter_names_take(&c->base.adapters, &c->names);
    THEN(status, check_model_names(&c->base.names));
    THEN(status, check_hosts(&c->options.allowed_hosts));
    if (!status && c->base.adapters.count)
        status = status_fail(STATUS_USAGE, "--adapter %s: requests name their adapters, so NAME=DIR was expected",
                             c->base.adapters.items[0]);
    if (!status && !c->options.tls_cert != !c->options.tls_key)
        status = status_fail(STATUS_USAGE, "--tls-cert and --tls-key belong together");
    THEN(status, check_metrics(c));
    return status ? status : batch_check(&c->batch);
}

/* Chooses the memory for keys and values when none is given: the first rank's choice, for all. The same for adapters:
 * none where neither an option nor a client of control can name one. */
static int choose_memory(struct serve_command *c, const struct launch *launch, int ranks) {
    struct memory_limit limit = memory_limit_find("");
    int64_t bytes = limit.available == SIZE_MAX ? (int64_t)4 << 30 : (int64_t)(limit.available / 4) / ranks;
    struct comm_data data = {.send = &bytes, .receive = &bytes, .count = 1, .dtype = DTYPE_I64};
    if (!c->names.memory_is_given &&
        (adapter_names_are_given(&c->names) || c->options.tuning_root || strcmp(c->options.control, "none")))
        c->names.memory = (int64_t)512 << 20;
    if (c->cache_is_given || !device_uses_host_memory(c->base.device)) /* the engine sees what is free */
        return STATUS_OK;
    int status = launch->world ? comm_broadcast(launch->world, &data, 0) : STATUS_OK;
    c->batch.kv_cache_memory = bytes;
    return status;
}

/* ---- ranks ---- */

static void explain_cores(const struct serving *serving, const struct engine_plan *plan, char *why, size_t bytes) {
    const struct cores cores = cores_find("");
    cores_explain(&cores, plan->threads, (int)serving->command->base.threads,
                  rank_grid_size(&serving->command->base.grid), why, bytes);
}

static void print_plan(const struct serving *serving, const struct engine *engine, const struct job_memory *memory) {
    struct engine_plan plan;
    char why[80];
    engine_read_plan(engine, &plan);
    explain_cores(serving, &plan, why, sizeof why);
    log_info(
        "memory of each rank: weights %.0f MiB, %lld pages of keys and values %.0f, adapters %.0f, activations and "
        "workspace %.0f; server %.0f; program %.0f; %d thread%s (%s); planned %.1f MiB",
        (double)plan.weights / mib, (long long)engine_pages(engine), (double)plan.cache / mib,
        (double)plan.adapters / mib, (double)plan.workspace / mib, (double)memory->beside / mib,
        (double)(plan.program + memory->program) / mib, plan.threads, plan.threads > 1 ? "s" : "", why,
        (double)memory->planned / mib);
    const struct engine_graphs graphs = engine_graphs(engine);
    if (graphs.count)
        log_info("%d graphs of decode steps: %.1f MiB of the device, recorded in %.2f s", graphs.count,
                 (double)graphs.bytes / mib, graphs.seconds);
}

/* Prints the plan of a dry run: a line for each part of this rank, and what the ranks of its host take together. */
static int print_dry_run(const struct serving *serving, const struct job_memory *memory) {
    const struct engine_plan *plan = &memory->plan;
    char why[80];
    const struct {
        const char *name;
        size_t bytes;
    } parts[] = {
        {"weights", plan->weights},   {"keys and values", plan->cache},
        {"adapters", plan->adapters}, {"workspace", plan->workspace + engine_plan_host_bytes(plan)},
        {"server", memory->beside},   {"program", plan->program + memory->program},
        {"tuning", plan->tuning},
    };
    explain_cores(serving, plan, why, sizeof why);
    printf("memory plan of the first rank, %d thread%s (%s):\n", plan->threads, plan->threads > 1 ? "s" : "", why);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        printf("  %-16s %10.1f MiB\n", parts[i].name, (double)parts[i].bytes / mib);
    printf("planned %.1f MiB on this host: %lld pages of %d tokens\n", (double)memory->planned / mib,
           (long long)plan->pages, KV_PAGE_TOKENS);
    return fflush(stdout) || ferror(stdout) ? status_fail_errno("cannot write standard output") : STATUS_OK;
}

/* Makes the words of `cambium finetune` for the base as it is served. */
static int describe_base(struct serve_command *c, const struct engine *engine) {
    struct tuning_words *all = &c->tuning_words;
    char ranks[16];
    snprintf(ranks, sizeof ranks, "%d", c->base.grid.tensor);
    const char *precision = c->base.precision ? model_precisions[c->base.precision] : dtype_name(engine_dtype(engine));
    const struct {
        const char *name, *value;
        bool is_needed;
    } words[] = {{"model", c->base.model, true},
                 {"tokenizer", c->base.tokenizer, c->base.tokenizer},
                 {"load-in", load_in_names[c->base.load_in], c->base.load_in},
                 {"train.precision", precision, strcmp(precision, "fp32") != 0},
                 {"ranks", ranks, c->base.grid.tensor > 1},
                 {"parallel.tensor_model_parallel_size", ranks, c->base.grid.tensor > 1},
                 {"tuning.template", c->chat_template, strcmp(c->chat_template, "auto") != 0}};
    size_t count = 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (words[i].is_needed) {
            int length = snprintf(all->text[count], sizeof *all->text, "--%s=%s", words[i].name, words[i].value);
            if (length >= (int)sizeof *all->text)
                return status_fail(STATUS_USAGE, "--%s: the path is too long", words[i].name);
            all->words[count] = all->text[count];
            count++;
        }
    c->options.tuning_words = all->words;
    c->options.tuning_word_count = count;
    c->options.jobs_maker = &finetune_maker;
    c->options.tokenizer_id = c->base.tokenizer ? c->base.tokenizer : engine_directory(engine);
    return STATUS_OK;
}

static int serve(struct serving *serving, struct engine *engine, const struct job_memory *memory) {
    struct serve_command *c = serving->command;
    const char *directory = c->base.tokenizer ? c->base.tokenizer : engine_directory(engine);
    struct tokenizer_files files = {0};
    struct tokenizer *tokenizer = NULL;
    int status = describe_base(c, engine);
    if (!status && (c->base.tokenizer || pretrained_has_tokenizer(directory))) {
        status = pretrained_read_tokenizer(directory, &files);
        THEN(status, tokenizer_open_files(&files, &tokenizer));
    }
    if (!status) {
        print_plan(serving, engine, memory);
        status = server_run(serving->server, engine, tokenizer, tokenizer ? &files : NULL);
    }
    while (status && atomic_load(&serving->is_lost)) /* a rank prints the reason, and the watch ends the process */
        pause();
    server_close(serving->server); /* it uses engine and tokenizer */
    serving->server = NULL;
    tokenizer_close(tokenizer);
    tokenizer_files_free(&files);
    return status;
}

static int run_rank(struct comm *world, void *context) {
    struct serving *serving = context;
    struct serve_command *c = serving->command;
    struct engine_options options = batch_engine_options(&c->batch, (size_t)c->names.memory);
    options.tuning_memory = (size_t)c->tuning_memory;
    struct job_memory memory = {.help = "a smaller " JOB_MEMORY_SIZES ", " JOB_MEMORY_RANKS,
                                .beside = world->rank == 0 ? server_planned_bytes(&serving->command->options) : 0,
                                .cache_is_given = c->cache_is_given,
                                .adapters_are_given = c->names.memory_is_given};
    struct engine *engine = NULL;
    options.touches_cache = true;
    log_quiet(world->rank != 0);
    if (c->is_dry_run) {
        int status = job_model_plan(&c->base, world, true, &options, &memory);
        THEN_IF(status, world->rank == 0, print_dry_run(serving, &memory));
        return status || !device_uses_host_memory(c->base.device) ? status : job_memory_check(world, &memory);
    }
    int status = job_model_open(&c->base, world, options, &memory, &engine);
    THEN(status, world->rank == 0 ? serve(serving, engine, &memory) : engine_follow(engine));
    THEN(status, engine_end(engine));
    THEN(status, job_memory_tell(world, &memory));
    if (status)
        comm_fail(world, status);
    engine_close(engine);
    return status;
}

/* Gives pending answers a moment to be sent, then ends the process. */
static void on_lost_rank(void *context, int rank, const char *line) {
    struct serving *serving = context;
    struct timespec moment = {.tv_nsec = 300000000};
    atomic_store(&serving->is_lost, true);
    if (serving->server)
        server_fail(serving->server, rank, line ? line : "a rank has failed");
    clock_nanosleep(CLOCK_MONOTONIC, 0, &moment, NULL);
    if (line)
        end_process(line);
    _exit(1);
}

/* Begins the server's loop before the first rank is bound to its cores. Only the first rank handles signals. */
static int begin(struct serving *serving, struct launch *launch) {
    int status = fill_options(serving);
    bool listens = launch->is_first && !serving->command->is_dry_run;
    if (!status && listens)
        transport_fit_descriptors(&serving->command->options.limits,
                                  strcmp(serving->command->options.control, "none") ? 2 : 1);
    THEN_IF(status, listens, server_open(&serving->command->options, &serving->server));
    if (!launch->is_first) {
        signal(SIGTERM, SIG_IGN);
        signal(SIGINT, SIG_IGN);
        signal(SIGHUP, SIG_IGN);
    }
    status = launch_agree(launch, status);
    if (status || !launch->world)
        return status;
    return launch_agree(launch, comm_watch(launch->world, &(struct comm_watch_options){
                                                              .seconds = serving->command->options.rank_timeout,
                                                              .on_end = launch->is_first ? on_lost_rank : NULL,
                                                              .context = serving}));
}

static int prepare(const struct launch *launch, const struct config *config, void *context) {
    struct serve_command *c = ((struct serving *)context)->command;
    c->cache_is_given = config_is_given(config, "kv-cache-memory");
    c->names.memory_is_given = config_is_given(config, "adapter-memory");
    if (c->options.tuning_root && !config_is_given(config, "tuning-memory"))
        c->tuning_memory = (int64_t)256 << 20;
    grammar_choose_memory(&c->options.grammars, config);
    if (c->log_format == 1)
        log_as_json();
    int status = check(c);
    return status ? status : model_grid(&c->base, launch, false);
}

static int add_facts(void *context, struct facts *facts) {
    return model_facts(&((struct serving *)context)->command->base, facts);
}

static int run(struct launch *launch, void *context) {
    struct serving *serving = context;
    int ranks = rank_grid_size(&serving->command->base.grid);
    int status = choose_memory(serving->command, launch, ranks);
    THEN(status, begin(serving, launch));
    return status ? status : launch_run(launch, ranks, run_rank, serving);
}

static void close_all(void *context) {
    struct serving *serving = context;
    server_close(serving->server);
    free(serving->adapters);
    free(serving->names);
    free((char *)serving->directory_name);
    chat_template_close(serving->template);
}

int command_serve(int argc, char **argv) {
    struct serve_command values = {0};
    struct serving serving = {.command = &values};
    const struct launch_steps steps = {.command = &command,
                                       .values = &values,
                                       .prepare = prepare,
                                       .add_facts = add_facts,
                                       .run = run,
                                       .close = close_all};
    return launch_command(&steps, argc, argv, &serving);
}
