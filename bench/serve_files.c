/* The files of a measured server: a model, adapters, and the program itself. */
#include "serve.h"

enum { MOST_ADAPTERS = 4096, ADAPTER_NAME = 32 };

/* ---- a model of random weights ---- */

static int write_weights(const struct serve_bench *bench, struct rank *rank, struct base *base, enum dtype dtype) {
    const struct param_store *store = base_store(base);
    struct ckpt_flat flat = ckpt_flat_weights(store, rank->exec.stream);
    struct ckpt_array weights = ckpt_flat_array(&flat, "", false);
    char *text = NULL;
    int status = model_write_config(&bench->engine.config, dtype, &(const struct model_text_ends){0}, &text);
    if (!status)
        status = ckpt_write_model(
            bench->model, &(struct ckpt_model){.table = store->map.table, .weights = &weights, .config_text = text});
    free(text);
    return status;
}

/* Writes a model. Runs in a separate process, because it starts threads. */
static int write_model(const void *context) {
    const struct serve_bench *bench = context;
    const struct bench_options *o = &bench->engine_options;
    enum dtype dtype = precision_dtype(o->precision);
    struct base_options options = {.config = bench->engine.config, .dtype = dtype};
    struct device *device;
    struct rank rank;
    struct base *base = NULL;
    TRY(device_open(o->device, DEVICE_FIRST, (int)o->threads, &device));
    int status = rank_open_single(&rank, device, 1);
    THEN(status, base_open(&options, &rank, &base));
    THEN(status, base_initialise(base, 1));
    THEN(status, write_weights(bench, &rank, base, dtype));
    base_close(base);
    rank_close(&rank);
    device_close(device);
    return status;
}

/* ---- adapters ---- */

/* Counts --adapters: a number of adapters to make, or words. */
static int count_adapters(struct serve_bench *bench, bool *are_ours) {
    const struct config_list *list = &bench->options->adapters;
    char *end = NULL;
    bench->adapter_count = list->count == 1 ? strtol(list->items[0], &end, 10) : 0;
    *are_ours = list->count == 0 || (end && end != list->items[0] && !*end);
    if (list->count == 0)
        bench->adapter_count = ADAPTER_KINDS;
    if (!*are_ours)
        bench->adapter_count = (int64_t)list->count;
    if (bench->adapter_count < 1 || bench->adapter_count > MOST_ADAPTERS)
        return status_fail(STATUS_USAGE, "--adapters: expected 1 to %d of them", MOST_ADAPTERS);
    return *are_ours && bench->options->url
               ? status_fail(STATUS_USAGE, "--adapters: of a server at --url expected names that it has")
               : STATUS_OK;
}

static int name_adapters(struct serve_bench *bench) {
    bench->adapters = calloc((size_t)bench->adapter_count, sizeof *bench->adapters);
    bench->names = calloc((size_t)bench->adapter_count, ADAPTER_NAME);
    TRY(status_allocated(bench->adapters && bench->names));
    for (int64_t i = 0; i < bench->adapter_count; i++) {
        char *name = bench->names + i * ADAPTER_NAME;
        snprintf(name, ADAPTER_NAME, "adapter-%lld", (long long)i);
        bench->adapters[i] = bench->options->url ? bench->options->adapters.items[i] : name;
    }
    return STATUS_OK;
}

int serve_files_write(struct serve_bench *bench) {
    size_t unused;
    bool are_ours = false;
    int status = bench_make_directory(bench->engine.directory, "models and adapters");
    if (!status && !bench->options->url && !bench->options->engine.model) {
        snprintf(bench->model, sizeof bench->model, "%s/random", bench->engine.directory);
        status = bench_peak_of(write_model, bench, &unused);
    }
    const char *scenario = bench_scenarios[bench->options->scenario];
    if (status || (strcmp(scenario, "bank") && strcmp(scenario, "swap")))
        return status;
    status = count_adapters(bench, &are_ours);
    THEN(status, name_adapters(bench));
    return status || !are_ours ? status : engine_adapters_write(&bench->engine);
}

/* ---- the server ---- */

static int list_adapters(const struct serve_bench *bench, char ***out) {
    char **words = *out = calloc((size_t)bench->adapter_count + 1, sizeof *words);
    char path[PATH_MAX];
    for (int64_t i = 0; words && i < bench->adapter_count; i++) {
        struct strbuf word = STRBUF_INIT;
        char made[96]; /* all kinds in turn, or the method's only */
        bool are_ours = bench->adapter_count != (int64_t)bench->options->adapters.count;
        engine_adapters_path(&bench->engine, bench->options->is_mixed ? (int)(i % ADAPTER_KINDS) : ADAPTER_GIVEN, made);
        snprintf(path, PATH_MAX, "%s", are_ours ? made : bench->options->adapters.items[i]);
        strbuf_format(&word, "%s=%s", bench->adapters[i], path);
        words[i] = word.data;
        if (strbuf_status(&word))
            return strbuf_status(&word);
    }
    return status_allocated(words);
}

/* Reports the server's messages before it ended. */
static int report_end(struct program *program) {
    struct strbuf text = STRBUF_INIT;
    int ending = program_end(program, false);
    program_errors(program, &text);
    fputs(strbuf_text(&text), stderr);
    strbuf_free(&text);
    return status_fail(ending == 2 ? STATUS_USAGE : STATUS_IO, "the server ended with status %d", ending);
}

static int open_client(struct serve_bench *bench, const char *line, int number) {
    json_t *ready = line ? json_loads(line, 0, NULL) : NULL;
    const char *listen = json_string_value(json_object_get(ready, "listen"));
    const char *control = json_string_value(json_object_get(ready, "control"));
    int status = STATUS_OK;
    if (!listen || !control)
        status = report_end(bench->program[number]);
    else
        status =
            client_open(bench->base, listen, (enum client_protocol)bench->options->protocol, &bench->client[number]);
    THEN(status, !bench->control ? client_open(bench->base, control, CLIENT_HTTP, &bench->control) : STATUS_OK);
    json_decref(ready);
    return status;
}

int serve_start(struct serve_bench *bench, int number, const char *const *more) {
    static const char *const first[] = {"/proc/self/exe", "serve",       "--listen",      "127.0.0.1:0",
                                        "--control",      "127.0.0.1:0", "--drain-delay", "0"};
    enum { FIRST = sizeof first / sizeof *first, ROOM = FIRST + 3 };
    const struct bench_serve_options *o = bench->options;
    size_t count = FIRST, extra = 0;
    char **adapters = NULL;
    while (more && more[extra])
        extra++;
    const char **words = calloc(ROOM + (size_t)o->word_count + extra + (size_t)bench->adapter_count + 1, sizeof *words);
    int status = words ? list_adapters(bench, &adapters) : status_no_memory();
    if (!status) {
        memcpy(words, first, sizeof first);
        words[count++] = "--model";
        words[count++] = bench->model;
        for (int i = 0; i < o->word_count; i++)
            words[count++] = o->words[i];
        for (size_t i = 0; i < extra; i++)
            words[count++] = more[i];
        if (bench->adapter_count)
            words[count++] = "--adapter";
        for (int64_t i = 0; i < bench->adapter_count; i++)
            words[count++] = adapters[i];
        status = program_start(words, &bench->program[number]);
    }
    for (int64_t i = 0; adapters && i < bench->adapter_count; i++)
        free(adapters[i]);
    free(adapters);
    free(words);
    return status ? status : open_client(bench, program_line(bench->program[number]), number);
}
