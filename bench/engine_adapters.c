/* The cost of adapters: all kinds in one batch, hundreds of them, none with an open bank, and replacements. */
#include "engine.h"

enum { TRAIN_ROWS = 16, MANY = 512, NAME_BYTES = 24, PAIRS = 16 /* a step of the options */ };
enum { WINDOW = 32 /* steps, at most */, BEGUN = 8 /* tokens that a text has before the first window, at most */ };

static int first_with(const char *key) {
    int type = 0;
    while (!peft_has_key(type, key))
        type++;
    return type;
}

static int type_of(const struct engine_bench *bench, int kind) {
    int given = bench->options->peft.type, other = kind - ADAPTER_OTHERS;
    return kind == ADAPTER_GIVEN        ? given
           : kind == ADAPTER_LARGE      ? first_with("peft.r")
           : kind == ADAPTER_MAGNITUDES ? first_with("peft.use_dora")
                                        : other + (other >= given);
}

/* A kind's name, and the place of its files. */
static void name_of(int kind, char name[NAME_BYTES]) {
    snprintf(name, NAME_BYTES, "kind-%d", kind);
}

void engine_adapters_path(const struct engine_bench *bench, int kind, char path[96]) {
    char name[NAME_BYTES];
    name_of(kind, name);
    snprintf(path, 96, "%s/%s", bench->directory, name);
}

/* ---- their files ---- */

/* `all` means all projections. */
static struct peft_config config_of(const struct engine_bench *bench, int kind, const char **all) {
    struct peft_config config = bench->options->peft;
    config.type = type_of(bench, kind);
    config.prompt_tuning_init = PEFT_INIT_RANDOM;
    config.use_dora = kind == ADAPTER_MAGNITUDES;
    if (kind == ADAPTER_LARGE) {
        config.r = 16;
        config.target_modules = (struct config_list){.items = all, .count = 1};
    }
    return config;
}

static int export(const struct engine_bench *bench, int kind, struct peft_config *config, struct peft *peft) {
    struct peft_texts texts;
    char path[96];
    engine_adapters_path(bench, kind, path);
    int status = peft_texts_make(config, 1, &bench->config, bench->options->model, &(struct peft_notes){0}, &texts);
    if (!status)
        status = peft_export(peft,
                             &(struct peft_export){.texts = texts.items, .text_count = texts.count, .directory = path});
    peft_texts_free(&texts);
    return status;
}

/* A base of random weights, which DoRA measures, and a fresh adapter on it. */
static int write_adapter(const struct engine_bench *bench, int kind, struct device *device) {
    struct model_options options = {.base = {.config = bench->config, .dtype = DTYPE_F32}, .max_rows = TRAIN_ROWS};
    const char *all = "all-linear";
    struct peft_config config = config_of(bench, kind, &all);
    struct peft_options adapters = {.adapters = &config, .count = 1, .model = &options, .trains = true};
    struct rank rank;
    struct peft *peft = NULL;
    struct base *base = NULL;
    int status = rank_open_single(&rank, device, 1);
    THEN(status, peft_open(&adapters, &rank, &peft));
    THEN(status, base_open(&options.base, &rank, &base));
    THEN(status, base_initialise(base, 1));
    THEN(status, peft_allocate(peft));
    if (!status)
        peft_set_base(peft, base_store(base));
    THEN(status, peft_initialise(peft, 3));
    THEN(status, export(bench, kind, &config, peft));
    base_close(base);
    peft_close(peft);
    rank_close(&rank);
    return status;
}

static int write_all(const void *context) {
    const struct engine_bench *bench = context;
    struct device *device;
    int status = device_open(bench->options->device, DEVICE_FIRST, (int)bench->options->threads, &device);
    for (int kind = 0; kind < ADAPTER_KINDS && !status; kind++)
        status = write_adapter(bench, kind, device);
    device_close(device);
    return status;
}

int engine_adapters_write(struct engine_bench *bench) {
    size_t unused;
    return bench_peak_of(write_all, bench, &unused);
}

/* ---- engines that have them ---- */

struct bank {
    struct engine *engine;
    struct adapters *adapters;
};

/* Adds more room than the images of `count` adapters of the kind take. */
static int add_room(const struct engine_bench *bench, int kind, size_t count, size_t *room) {
    struct peft_bytes bytes;
    char path[96];
    engine_adapters_path(bench, kind, path);
    TRY(peft_bytes_read(path, ENGINE_ADAPTER_BYTES, &bytes));
    *room += count * (2 * bytes.length + (64 << 10));
    peft_bytes_free(&bytes);
    return STATUS_OK;
}

static int add(struct bank *bank, const struct engine_bench *bench, const char *name, int kind) {
    char path[96];
    engine_adapters_path(bench, kind, path);
    int status = adapters_add(bank->adapters, name, path);
    return status ? status : adapters_load(bank->adapters, name, false);
}

/* Loads all kinds, with room for a second version of each. */
static int open_kinds(struct engine_bench *bench, int64_t sequences, struct bank *bank) {
    struct engine_options options = {.max_sequences = sequences, .has_no_prefix_cache = true};
    int status = STATUS_OK;
    for (int kind = 0; kind < ADAPTER_KINDS && !status; kind++)
        status = add_room(bench, kind, 2, &options.adapter_memory);
    THEN(status, engine_bench_open(bench, options, &bank->engine));
    THEN(status, adapters_open(bank->engine, &bank->adapters));
    for (int kind = 0; kind < ADAPTER_KINDS && !status; kind++) {
        char name[NAME_BYTES];
        name_of(kind, name);
        status = add(bank, bench, name, kind);
    }
    return status;
}

static void close_bank(struct bank *bank) {
    adapters_close(bank->adapters);
    engine_close(bank->engine);
}

static int take_slot(struct bank *bank, const char *name, int *slot) {
    uint64_t generations[PEFT_SLOT_IMAGES];
    return adapters_take(bank->adapters, &name, 1, slot, generations);
}

/* Texts of one kind are not adjacent. */
static int take_kinds(struct bank *bank, int slots[ENGINE_TEXTS]) {
    int status = STATUS_OK;
    for (int k = 0; k < ENGINE_TEXTS && !status; k++) {
        char name[NAME_BYTES];
        name_of(k % ADAPTER_KINDS, name);
        status = take_slot(bank, name, &slots[k]);
    }
    return status;
}

/* ---- decode steps in turn with those of the base ---- */

/* Takes steps of two groups of texts with `in` tokens in turn: on `slots` of an engine (NULL: the base), and on the
 * base of the other. */
static int contest(struct engine_bench *bench, struct engine *engine, const int *slots, struct engine *other,
                   int64_t in, int64_t count, struct engine_pairs *pairs) {
    struct engine_group measured = {0}, base = {0};
    int status = engine_group_open(&measured, engine, slots, ENGINE_TEXTS, in);
    THEN(status, engine_group_open(&base, other, NULL, ENGINE_TEXTS, in));
    for (int64_t i = 0; i < count && !status; i++) {
        double seconds, baseline;
        status = engine_group_step(&measured, &seconds);
        THEN(status, engine_group_step(&base, &baseline));
        THEN(status, engine_pairs_add(bench, pairs, seconds, baseline));
    }
    engine_group_close(&measured);
    engine_group_close(&base);
    return status;
}

/* Returns how many steps texts with `in` tokens can take. */
static int64_t count_steps(const struct engine_bench *bench, int64_t in) {
    int64_t remaining = model_positions(&bench->config) - bench->options->peft.num_virtual_tokens - in,
            steps = PAIRS * bench->options->steps;
    return steps < remaining ? steps : remaining;
}

int engine_figure_adapters(struct engine_bench *bench, json_t **figure) {
    struct bank bank = {0};
    struct engine_pairs pairs = {0};
    int slots[ENGINE_TEXTS];
    int status = open_kinds(bench, 2 * ENGINE_TEXTS, &bank);
    THEN(status, take_kinds(&bank, slots));
    THEN(status, contest(bench, bank.engine, slots, bank.engine, bench->in, count_steps(bench, bench->in), &pairs));
    *figure = engine_pairs_figure(bench, &pairs, true, ENGINE_TEXTS);
    close_bank(&bank);
    return status;
}

/* ---- many of one kind ---- */

/* Uses one file, and an image for each name. */
static int open_many(struct engine_bench *bench, struct bank *bank, char (*name)[NAME_BYTES]) {
    struct engine_options options = {.max_sequences = 2 * ENGINE_TEXTS, .has_no_prefix_cache = true};
    int status = add_room(bench, ADAPTER_GIVEN, MANY, &options.adapter_memory);
    THEN(status, engine_bench_open(bench, options, &bank->engine));
    THEN(status, adapters_open(bank->engine, &bank->adapters));
    for (int i = 0; i < MANY && !status; i++) {
        snprintf(name[i], sizeof name[i], "adapter-%d", i);
        status = add(bank, bench, name[i], ADAPTER_GIVEN);
    }
    return status;
}

/* Takes a few steps of texts with ENGINE_TEXTS of the adapters, one each. */
static int contest_of_some(struct engine_bench *bench, struct bank *bank, char (*name)[NAME_BYTES],
                           struct engine_pairs *pairs) {
    int slots[ENGINE_TEXTS], status = STATUS_OK;
    int64_t in = engine_bench_share(bench, ENGINE_UNSHARED), steps = count_steps(bench, in);
    steps = bench->options->steps < steps ? bench->options->steps : steps;
    for (int k = 0; k < ENGINE_TEXTS && !status; k++)
        status = take_slot(bank, name[k], &slots[k]);
    THEN(status, contest(bench, bank->engine, slots, bank->engine, in, steps, pairs));
    for (int k = 0; k < ENGINE_TEXTS && !status; k++)
        status = adapters_give(bank->adapters, slots[k]);
    return status;
}

int engine_figure_bank(struct engine_bench *bench, json_t **figure) {
    struct bank bank = {0};
    struct engine_pairs pairs = {0};
    char name[MANY][NAME_BYTES];
    int status = open_many(bench, &bank, name);
    for (int first = 0; first < MANY && !status; first += ENGINE_TEXTS)
        status = contest_of_some(bench, &bank, &name[first], &pairs);
    *figure = engine_pairs_figure(bench, &pairs, true, ENGINE_TEXTS);
    close_bank(&bank);
    return status;
}

/* ---- none ---- */

int engine_figure_idle_bank(struct engine_bench *bench, json_t **figure) {
    struct bank bank = {0};
    struct engine *plain = NULL;
    struct engine_pairs pairs = {0};
    struct engine_options options = {.max_sequences = ENGINE_TEXTS, .has_no_prefix_cache = true};
    int status = open_kinds(bench, ENGINE_TEXTS, &bank);
    THEN(status, engine_bench_open(bench, options, &plain));
    THEN(status, contest(bench, bank.engine, NULL, plain, bench->in, count_steps(bench, bench->in), &pairs));
    *figure = engine_pairs_figure(bench, &pairs, true, ENGINE_TEXTS);
    engine_close(plain);
    close_bank(&bank);
    return status;
}

/* ---- replacing ---- */

enum { UNDISTURBED, SWAPPING };

struct swaps {
    int kind; /* of the adapter that is replaced */
    int64_t window, steps;
    double *seconds;      /* [steps] of each part of a replacement */
    int64_t parts, count; /* of replacements that were completed */
    bool is_under_way;
};

/* Begins to replace the adapter by the files that it has already. */
static int begin_replacement(struct bank *bank, const char *name) {
    struct adapter_view view;
    struct adapter_files files;
    adapters_find(bank->adapters, name, &view);
    struct peft_limits limits = {.bytes = ENGINE_ADAPTER_BYTES};
    int status = adapter_files_read(&(struct peft_place){.path = view.directory}, &limits, &files);
    THEN(status, adapters_begin(bank->adapters, name, &files, ADAPTER_REPLACE, 0));
    adapter_files_free(&files);
    return status;
}

/* Continues a replacement, or begins the next one. */
static int continue_replacing(struct bank *bank, const char *name, struct swaps *swaps) {
    bool is_done = false;
    double start = clock_seconds();
    int status = swaps->is_under_way ? adapters_continue(bank->adapters, &is_done) : begin_replacement(bank, name);
    swaps->seconds[swaps->parts++] = clock_seconds() - start;
    swaps->is_under_way = !is_done;
    swaps->count += is_done;
    return status;
}

/* Takes steps; in every second window one replacement after the other is in progress. Texts keep the generations with
 * which they started. */
static int swap(struct bank *bank, struct engine_load *load, struct swaps *swaps) {
    char name[NAME_BYTES];
    int status = STATUS_OK;
    name_of(swaps->kind, name);
    for (int64_t i = 0; i < swaps->steps && !status; i++) {
        load->gap_class = i / swaps->window % 2 ? SWAPPING : UNDISTURBED;
        if (load->gap_class == SWAPPING)
            status = continue_replacing(bank, name, swaps);
        THEN(status, engine_load_step(load));
    }
    while (swaps->is_under_way && !status) { /* the last one, outside of all windows */
        bool is_done;
        status = adapters_continue(bank->adapters, &is_done);
        swaps->is_under_way = !is_done;
        swaps->count += is_done;
    }
    return status;
}

static json_t *swap_figure(const struct engine_bench *bench, struct engine_load *load, struct swaps *swaps) {
    double p99[LOAD_CLASSES], median[LOAD_CLASSES];
    for (int c = 0; c < LOAD_CLASSES; c++) {
        p99[c] = bench_quantile(load->gaps[c].values, load->gaps[c].count, 0.99);
        median[c] = bench_median(load->gaps[c].values, load->gaps[c].count);
    }
    return json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:I, s:f, s:f}", "figure", bench->figure, "ratio",
                     p99[SWAPPING] / p99[UNDISTURBED], "p99_seconds", p99[SWAPPING], "baseline_p99_seconds",
                     p99[UNDISTURBED], "median_seconds", median[SWAPPING], "baseline_median_seconds",
                     median[UNDISTURBED], "swaps", (json_int_t)swaps->count, "part_seconds",
                     bench_median(swaps->seconds, swaps->parts), "longest_part_seconds",
                     bench_quantile(swaps->seconds, swaps->parts, 1));
}

int engine_figure_swap(struct engine_bench *bench, json_t **figure) {
    struct bank bank = {0};
    struct engine_load load = {0};
    struct engine_load_text texts[ENGINE_TEXTS];
    int slots[ENGINE_TEXTS];
    int64_t out = model_positions(&bench->config) - bench->in - bench->options->peft.num_virtual_tokens;
    struct swaps swaps = {.kind = bench->variant};
    /* Plans as many windows with replacements as requested, if the model has positions for them. */
    int64_t windows = 2 * bench->options->steps, remaining = out - BEGUN;
    swaps.window = remaining / windows < WINDOW ? remaining / windows : WINDOW;
    swaps.window = swaps.window ? swaps.window : 1;
    swaps.steps = windows * swaps.window < remaining ? windows * swaps.window : remaining;
    swaps.seconds = calloc((size_t)swaps.steps, sizeof *swaps.seconds);
    int status = status_allocated(swaps.seconds);
    THEN(status, open_kinds(bench, ENGINE_TEXTS, &bank));
    THEN(status, take_kinds(&bank, slots));
    THEN(status, engine_load_open(&load, bank.engine, 0, 0));
    THEN(status, engine_load_write(bench, &load, slots, ENGINE_TEXTS, out, texts));
    THEN(status, swap(&bank, &load, &swaps));
    if (!status)
        *figure = swap_figure(bench, &load, &swaps);
    engine_load_close(&load);
    close_bank(&bank);
    free(swaps.seconds);
    return status ? status : bench_print(json_incref(*figure));
}
