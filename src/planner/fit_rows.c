/* Reads the rows of a fit: a YAML list of mappings with scalars. */
#include "planner/fit.h"

#include <math.h>
#include <yaml.h>

enum { MOST_KEYS = 64, MOST_BYTES = 1 << 20 };

/* One row of the list. */
struct entry {
    char *config, *keys[MOST_KEYS];
    size_t count;
    double numbers[8]; /* in the order of number_keys; 0: absent */
    size_t line;
};

enum { NODES, STEP_SECONDS, TENSOR, PIPELINE, BATCH, INPUT_LEN, OUTPUT_LEN, LATENCY_MS, NUMBERS };
static const char *const number_keys[NUMBERS] = {"nodes", "step_seconds", "tensor",     "pipeline",
                                                 "batch", "input_len",    "output_len", "latency_ms"};

struct reader {
    const char *name;
    yaml_parser_t parser;
    yaml_event_t event;
};

static int fail_at(const struct reader *reader, const char *text) {
    return status_fail(STATUS_USAGE, "%s:%zu: %s", reader->name, reader->event.start_mark.line + 1, text);
}

static int advance(struct reader *reader) {
    yaml_event_delete(&reader->event);
    if (yaml_parser_parse(&reader->parser, &reader->event))
        return STATUS_OK;
    memset(&reader->event, 0, sizeof reader->event);
    return status_fail(STATUS_USAGE, "%s:%zu: %s", reader->name, reader->parser.problem_mark.line + 1,
                       reader->parser.problem ? reader->parser.problem : "bad YAML");
}

/* Times have parts; other numbers are counts. */
static int read_number(const struct reader *reader, int key, const char *text, double *number) {
    enum { MOST = 1 << 20 };
    bool is_time = key == STEP_SECONDS || key == LATENCY_MS;
    double least = is_time ? 1e-6 : 1, most = is_time ? 1e9 : MOST;
    char *end;
    *number = strtod(text, &end);
    bool is_right = *text && !*end && *number >= least && *number <= most && (is_time || *number == floor(*number));
    return is_right ? STATUS_OK
                    : status_fail(STATUS_USAGE, "%s:%zu: %s is %.40s: expected a %s from %g to %.7g", reader->name,
                                  reader->event.start_mark.line + 1, number_keys[key], text,
                                  is_time ? "number" : "whole number", least, most);
}

/* Takes a key with its value, the current event. */
static int take(struct reader *reader, const char *key, struct entry *entry) {
    const char *text = (const char *)reader->event.data.scalar.value;
    if (reader->event.type != YAML_SCALAR_EVENT)
        return fail_at(reader, "expected a single value");
    for (int i = 0; i < NUMBERS; i++)
        if (!strcmp(key, number_keys[i]))
            return read_number(reader, i, text, &entry->numbers[i]);
    if (!strcmp(key, "config")) {
        free(entry->config);
        entry->config = strdup(text);
        return status_allocated(entry->config);
    }
    if (!strchr(key, '.'))
        return status_fail(STATUS_USAGE,
                           "%s:%zu: unknown key '%.80s': expected config, nodes and step_seconds, keys of serving, or "
                           "a key of a run file",
                           reader->name, reader->event.start_mark.line + 1, key);
    if (entry->count == MOST_KEYS)
        return fail_at(reader, "too many keys in a row");
    return asprintf(&entry->keys[entry->count++], "%s=%s", key, text) < 0 ? status_no_memory() : STATUS_OK;
}

static int read_entry(struct reader *reader, struct entry *entry) {
    int status = STATUS_OK;
    entry->line = reader->event.start_mark.line + 1;
    while (!status && !(status = advance(reader)) && reader->event.type != YAML_MAPPING_END_EVENT) {
        if (reader->event.type != YAML_SCALAR_EVENT)
            return fail_at(reader, "a key must be a name");
        char *key = strdup((const char *)reader->event.data.scalar.value);
        status = key ? advance(reader) : status_no_memory();
        THEN(status, take(reader, key, entry));
        free(key);
    }
    const double *n = entry->numbers;
    bool is_serving =
        n[LATENCY_MS] > 0 && n[TENSOR] > 0 && n[PIPELINE] > 0 && n[BATCH] > 0 && n[INPUT_LEN] > 0 && n[OUTPUT_LEN] > 0;
    bool is_training = n[NODES] > 0 && n[STEP_SECONDS] > 0;
    if (!status && (!entry->config || is_serving == is_training))
        status = status_fail(STATUS_USAGE,
                             "%s:%zu: a row needs config, nodes and step_seconds, or config, tensor, pipeline, batch, "
                             "input_len, output_len and latency_ms",
                             reader->name, entry->line);
    return status;
}

/* Opens the run of a row. */
static int open_row(const struct reader *reader, const struct cluster *cluster, const struct entry *entry,
                    struct fit_row *row) {
    char directory[PATH_MAX], path[PATH_MAX];
    struct strbuf label = STRBUF_INIT;
    int status = file_parent(reader->name, directory, sizeof directory);
    THEN(status, file_join(path, sizeof path, *entry->config == '/' ? "" : directory, entry->config));
    THEN(status, run_file_read(path, (const char *const *)entry->keys, entry->count, &row->file));
    THEN(status, run_file_resolve(&row->file.run, &row->run));
    const double *n = entry->numbers;
    const struct serve_layout layout = {.tensor = (int)n[TENSOR],
                                        .pipeline = (int)n[PIPELINE],
                                        .batch = (int64_t)n[BATCH],
                                        .input_len = (int64_t)n[INPUT_LEN],
                                        .output_len = (int64_t)n[OUTPUT_LEN],
                                        .precision = PRECISION_BF16};
    if (!status && layout.batch)
        status = serve_work_make(&row->run.config.model, &layout, cluster, &row->serving);
    else if (!status)
        status = cost_work_make(&row->run, cluster, &row->work);
    strbuf_add_text(&label, entry->config);
    for (int i = 0; i < NUMBERS; i++)
        if (n[i] > 0 && i != STEP_SECONDS && i != LATENCY_MS)
            strbuf_format(&label, ", %s %.0f", number_keys[i], n[i]);
    for (size_t i = 0; i < entry->count; i++)
        strbuf_format(&label, ", %s", entry->keys[i]);
    row->label = label.data;
    row->nodes = (int64_t)n[NODES];
    row->seconds = layout.batch ? n[LATENCY_MS] / 1e3 : n[STEP_SECONDS];
    row->is_fitted = true;
    if (!status)
        return strbuf_status(&label);
    return status_wrap(status, "%s:%zu", reader->name, entry->line);
}

static int read_list(struct reader *reader, const struct cluster *cluster, struct fit_rows *rows) {
    int status = STATUS_OK;
    for (int i = 0; i < 3 && !status; i++) /* stream, document, sequence */
        status = advance(reader);
    if (!status && reader->event.type != YAML_SEQUENCE_START_EVENT)
        return fail_at(reader, "expected a list of rows");
    while (!status && !(status = advance(reader)) && reader->event.type != YAML_SEQUENCE_END_EVENT) {
        struct entry entry = {0};
        if (reader->event.type != YAML_MAPPING_START_EVENT)
            return fail_at(reader, "expected a row {config: FILE, nodes: N, step_seconds: T}");
        status = read_entry(reader, &entry);
        struct fit_row *more = status ? NULL : realloc(rows->rows, (size_t)(rows->count + 1) * sizeof *rows->rows);
        if (more) {
            rows->rows = more;
            more[rows->count] = (struct fit_row){0};
            status = open_row(reader, cluster, &entry, &more[rows->count++]);
            bool is_serving = more[rows->count - 1].serving.layout.batch > 0;
            if (!status && rows->count > 1 && is_serving != rows->is_serving)
                status = fail_at(reader, "rows of training and of serving in one list");
            rows->is_serving = is_serving;
        } else if (!status) {
            status = status_no_memory();
        }
        free(entry.config);
        for (size_t i = 0; i < entry.count; i++)
            free(entry.keys[i]);
    }
    return !status && !rows->count ? status_fail(STATUS_USAGE, "%s has no rows", reader->name) : status;
}

int fit_rows_read(const char *path, const struct cluster *cluster, struct fit_rows *rows) {
    struct strbuf text = STRBUF_INIT;
    struct reader reader = {.name = path};
    *rows = (struct fit_rows){0};
    int status = file_read(path, MOST_BYTES, &text);
    if (!status && !yaml_parser_initialize(&reader.parser))
        status = status_no_memory();
    else if (!status) {
        yaml_parser_set_input_string(&reader.parser, (const unsigned char *)strbuf_text(&text), text.length);
        status = read_list(&reader, cluster, rows);
        yaml_event_delete(&reader.event);
        yaml_parser_delete(&reader.parser);
    }
    strbuf_free(&text);
    if (status)
        fit_rows_free(rows);
    return status;
}

void fit_rows_free(struct fit_rows *rows) {
    for (int i = 0; i < rows->count; i++) {
        free(rows->rows[i].label);
        run_file_close(&rows->rows[i].file);
        cost_work_free(&rows->rows[i].work);
        serve_work_free(&rows->rows[i].serving);
    }
    free(rows->rows);
    *rows = (struct fit_rows){0};
}
