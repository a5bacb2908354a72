/* Reads the cases of tests/peft/golden and tests/peft/families. */
#include "golden.h"

#include "pretrained/pretrained.h"
#include "support/test.h"

#include <dirent.h>
#include <jansson.h>

/* ---- texts that the configuration points to ---- */

enum { TEXTS_MAX = 128 };
struct golden_texts {
    size_t count;
    void *memory[TEXTS_MAX];
};

static void *keep(struct golden *g, void *memory) {
    assert_non_null(memory);
    assert_true(g->texts->count < TEXTS_MAX);
    return g->texts->memory[g->texts->count++] = memory;
}

static json_t *load(const char *directory, const char *name) {
    char path[600];
    json_error_t error;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    json_t *json = json_load_file(path, 0, &error);
    if (!json)
        fail_msg("%s: %s", path, error.text);
    return json;
}

/* ---- the configuration ---- */

static double number(const json_t *json, const char *key) {
    return json_number_value(json_object_get(json, key));
}

static void read_config(struct golden *g) {
    struct strbuf text = STRBUF_INIT;
    test_ok(ckpt_read_adapter_config(g->directory, &text));
    test_ok(peft_read_config(strbuf_text(&text), g->directory, &g->config));
    strbuf_free(&text);
    g->config.adapter_name = NULL; /* rows have a name of their own; see file_name */
    if (g->config.type == PEFT_PROMPT || g->config.type == PEFT_PTUNING)
        g->virtual_tokens = g->config.num_virtual_tokens;
}

/* ---- the batch ---- */

struct golden_batch {
    int32_t *tokens, *positions, *labels;
    uint32_t *sample, *token;
    float *weight;
    int64_t *starts; /* [samples + 1] */
    int64_t *own;    /* [samples][2]: the starts of a batch of one sample */
};

static void *array(struct golden *g, int64_t count, size_t bytes) {
    return keep(g, calloc((size_t)count, bytes));
}

/* One sample's rows from row `at` on: the label of a row is the token after it. */
static int64_t fill_sample(const struct golden *g, const json_t *row, int64_t sample, int64_t at) {
    struct golden_batch *b = g->batch;
    const json_t *tokens = json_object_get(row, "tokens"), *labels = json_object_get(row, "labels");
    int64_t V = g->virtual_tokens, T = V + (int64_t)json_array_size(tokens), counted = 0;
    int64_t prefix = g->config.type == PEFT_PREFIX ? g->config.num_virtual_tokens : 0;
    for (int64_t i = 0; i < T; i++) {
        const json_t *next = i + 1 >= V && i + 1 < T ? json_array_get(labels, (size_t)(i + 1 - V)) : NULL;
        bool is_trained = next && json_integer_value(next) >= 0;
        b->tokens[at + i] = i < V ? (int32_t)(g->model.vocab_size + i)
                                  : (int32_t)json_integer_value(json_array_get(tokens, (size_t)(i - V)));
        b->positions[at + i] = (int32_t)(prefix + i);
        b->labels[at + i] = is_trained ? (int32_t)json_integer_value(next) : 0;
        b->weight[at + i] = is_trained;
        b->sample[at + i] = (uint32_t)sample;
        b->token[at + i] = (uint32_t)i;
        counted += is_trained;
    }
    b->starts[sample + 1] = at + T;
    b->own[2 * sample + 1] = T;
    return counted;
}

static void read_batch(struct golden *g, const char *root) {
    json_t *json = load(root, "batch.json");
    const json_t *rows = json_object_get(json, "rows"), *optimizer = json_object_get(json, "optimizer");
    g->optimizer = (struct optimizer_numbers){.steps = (int64_t)number(optimizer, "steps"),
                                              .lr = number(optimizer, "lr"),
                                              .beta1 = number(optimizer, "beta1"),
                                              .beta2 = number(optimizer, "beta2"),
                                              .epsilon = number(optimizer, "eps"),
                                              .weight_decay = number(optimizer, "weight_decay")};
    g->samples = (int64_t)json_array_size(rows);
    g->rows = g->samples * g->virtual_tokens;
    for (int64_t i = 0; i < g->samples; i++)
        g->rows += (int64_t)json_array_size(json_object_get(json_array_get(rows, (size_t)i), "tokens"));
    g->batch = array(g, 1, sizeof *g->batch);
    *g->batch = (struct golden_batch){.tokens = array(g, g->rows, sizeof(int32_t)),
                                      .positions = array(g, g->rows, sizeof(int32_t)),
                                      .labels = array(g, g->rows, sizeof(int32_t)),
                                      .sample = array(g, g->rows, sizeof(uint32_t)),
                                      .token = array(g, g->rows, sizeof(uint32_t)),
                                      .weight = array(g, g->rows, sizeof(float)),
                                      .starts = array(g, g->samples + 1, sizeof(int64_t)),
                                      .own = array(g, 2 * g->samples, sizeof(int64_t))};
    int64_t counted = 0;
    for (int64_t i = 0; i < g->samples; i++)
        counted += fill_sample(g, json_array_get(rows, (size_t)i), i, g->batch->starts[i]);
    for (int64_t i = 0; i < g->rows; i++)
        g->batch->weight[i] /= (float)counted;
    json_decref(json);
}

struct model_batch golden_batch(const struct golden *g, int64_t sample) {
    const struct golden_batch *b = g->batch;
    int64_t at = sample < 0 ? 0 : b->starts[sample];
    return (struct model_batch){.rows = sample < 0 ? g->rows : b->starts[sample + 1] - at,
                                .tokens = b->tokens + at,
                                .positions = b->positions + at,
                                .sample = b->sample + at,
                                .token = b->token + at,
                                .segments = sample < 0 ? g->samples : 1,
                                .segment_start = sample < 0 ? b->starts : b->own + 2 * sample,
                                .labels = b->labels + at,
                                .loss_weight = b->weight + at};
}

/* ---- a case ---- */

static struct safetensors *open_file(const char *directory, const char *name, bool is_optional) {
    struct safetensors *file = NULL;
    char path[600];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int status = safetensors_open(path, &file);
    if (!is_optional || status != STATUS_NOT_FOUND)
        test_ok(status);
    return file;
}

void golden_open(struct golden *g, const char *name) {
    static const char root[] = TEST_DATA "/peft/golden";
    const char *slash = strchr(name, '/');
    struct pretrained base;
    *g = (struct golden){.name = name, .texts = calloc(1, sizeof *g->texts)};
    assert_non_null(g->texts);
    if (slash)
        snprintf(g->base, sizeof g->base, "%s/peft/families/%.*s/base", TEST_DATA, (int)(slash - name), name);
    else
        snprintf(g->base, sizeof g->base, "%s/base", root);
    snprintf(g->directory, sizeof g->directory, "%s/%s", slash ? TEST_DATA "/peft/families" : root, name);
    test_ok(pretrained_read_config(g->base, &base));
    g->model = base.config;
    pretrained_close(&base);
    read_config(g);
    read_batch(g, root);
    g->adapter = open_file(g->directory,
                           g->config.type == PEFT_ADAPTER ? "adapter.safetensors" : "adapter_model.safetensors", false);
    g->encoder = open_file(g->directory, "encoder.safetensors", true);
    g->expected = open_file(g->directory, "expected.safetensors", false);
}

void golden_close(struct golden *g) {
    safetensors_close(g->adapter);
    safetensors_close(g->encoder);
    safetensors_close(g->expected);
    for (size_t i = 0; i < g->texts->count; i++)
        free(g->texts->memory[i]);
    free(g->texts);
    peft_config_free(&g->config);
}

/* ---- values ---- */

static double *read_values(const struct safetensors *file, const struct safetensor *tensor) {
    float *narrow = malloc((size_t)tensor->elements * sizeof *narrow);
    double *wide = malloc((size_t)tensor->elements * sizeof *wide);
    assert_true(narrow && wide);
    test_ok(safetensors_read(file, tensor, 0, tensor->elements, DTYPE_F32, narrow));
    for (int64_t i = 0; i < tensor->elements; i++)
        wide[i] = narrow[i];
    free(narrow);
    return wide;
}

double *golden_expected(const struct golden *g, const char *name, int64_t *count) {
    const struct safetensor *tensor = safetensors_find(g->expected, name);
    if (!tensor)
        fail_msg("%s: nothing is expected of %s", g->name, name);
    *count = tensor->elements;
    return read_values(g->expected, tensor);
}

/* Returns a slice's name in the case's files. AdapterHub's names contain the adapter's own name, which is the case's
 * there; those of an encoder's file begin inside the encoder. */
static void file_name(const struct golden *g, const char *prefix, const char *slice, char out[256]) {
    static const char encoder[] = "prompt_encoder.default.";
    slice += strncmp(slice, encoder, sizeof encoder - 1) ? 0 : sizeof encoder - 1;
    const char *before = strstr(slice, ".adapters."), *after = strstr(slice, ".adapter_");
    while (after && strstr(after + 1, ".adapter_"))
        after = strstr(after + 1, ".adapter_");
    const char *slash = strchr(g->name, '/'), *own = slash ? slash + 1 : g->name;
    if (before && after)
        snprintf(out, 256, "%s%.*s.adapters.%s%s", prefix, (int)(before - slice), slice, own, after);
    else
        snprintf(out, 256, "%s%s", prefix, slice);
}

double *golden_param(const struct golden *g, const struct param *row, enum golden_kind kind) {
    static const char *const prefixes[] = {[GOLDEN_START] = "", [GOLDEN_GRADIENT] = "grad.", [GOLDEN_AFTER] = "after."};
    int64_t columns = row->shape[1];
    double *out = malloc((size_t)(row->shape[0] * columns) * sizeof *out);
    assert_non_null(out);
    for (int s = 0; s < row->slice_count; s++) {
        const struct param_slice *slice = &row->slices[s];
        const struct safetensors *file = kind == GOLDEN_START ? g->encoder ? g->encoder : g->adapter : g->expected;
        char name[256];
        file_name(g, prefixes[kind], slice->name, name);
        const struct safetensor *tensor = safetensors_find(file, name);
        if (!tensor)
            fail_msg("%s: %s has no tensor %s, which %s is to come from", g->name, safetensors_path(file), name,
                     row->name);
        if (tensor->elements != slice->file_rows * columns)
            fail_msg("%s: %s has %lld elements in the file, %lld in the table", g->name, name,
                     (long long)tensor->elements, (long long)(slice->file_rows * columns));
        double *values = read_values(file, tensor);
        for (int64_t r = 0; r < slice->rows; r++)
            for (int64_t c = 0; c < columns; c++)
                out[(slice->row + r) * columns + c] = slice->is_transposed
                                                          ? values[c * slice->file_rows + slice->file_start + r]
                                                          : values[(slice->file_start + r) * columns + c];
        free(values);
    }
    return out;
}

void golden_covers(const struct golden *g, const struct param_table *table) {
    for (size_t i = 0; i < safetensors_count(g->expected); i++) {
        const struct safetensor *tensor = safetensors_at(g->expected, i);
        bool is_found = strncmp(tensor->name, "grad.", 5) != 0;
        for (int p = 0; p < table->count && !is_found; p++)
            for (int s = 0; s < table->rows[p].slice_count && !is_found; s++) {
                char name[256];
                file_name(g, "grad.", table->rows[p].slices[s].name, name);
                is_found = !strcmp(name, tensor->name);
            }
        if (!is_found)
            fail_msg("%s: nothing trains %s", g->name, tensor->name + 5);
    }
}

/* Adds the names of the cases in a directory, each after the prefix. */
static void add_cases(const char *directory, const char *prefix, char ***names, size_t *count) {
    struct dirent **entries;
    int found = scandir(directory, &entries, NULL, alphasort);
    assert_true(found > 0);
    *names = realloc(*names, (*count + (size_t)found) * sizeof **names);
    assert_non_null(*names);
    for (int i = 0; i < found; i++) {
        if (!strchr(entries[i]->d_name, '.') && strcmp(entries[i]->d_name, "base") != 0)
            assert_true(asprintf(&(*names)[(*count)++], "%s%s", prefix, entries[i]->d_name) > 0);
        free(entries[i]);
    }
    free(entries);
}

size_t golden_cases(char ***names) {
    size_t count = 0;
    *names = NULL;
    add_cases(TEST_DATA "/peft/golden", "", names, &count);
    return count;
}

size_t golden_family_cases(char ***names) {
    char **families = NULL;
    size_t count = 0, family_count = 0;
    *names = NULL;
    add_cases(TEST_DATA "/peft/families", "", &families, &family_count);
    for (size_t i = 0; i < family_count; i++) {
        char directory[600], prefix[64];
        snprintf(directory, sizeof directory, "%s/peft/families/%s", TEST_DATA, families[i]);
        snprintf(prefix, sizeof prefix, "%s/", families[i]);
        add_cases(directory, prefix, names, &count);
    }
    golden_free_cases(families, family_count);
    return count;
}

void golden_free_cases(char **names, size_t count) {
    for (size_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
}
