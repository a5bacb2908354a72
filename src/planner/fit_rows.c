/* Reads the rows of a fit: a YAML list of mappings with scalars. */
#include "planner/fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum { MOST_KEYS = 64, MOST_BYTES = 1 << 20 };

/* One row of the list. */
struct entry {
    char *config, *keys[MOST_KEYS];
    size_t count;
    double nodes, step_seconds;
    size_t line;
};

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

static int read_number(const struct reader *reader, const char *text, double *number) {
    char *end;
    *number = strtod(text, &end);
    return *text && !*end && isfinite(*number) && *number > 0 ? STATUS_OK
                                                              : fail_at(reader, "expected a number above 0");
}

/* Takes a key with its value, the current event. */
static int take(struct reader *reader, const char *key, struct entry *entry) {
    const char *text = (const char *)reader->event.data.scalar.value;
    if (reader->event.type != YAML_SCALAR_EVENT)
        return fail_at(reader, "expected a single value");
    if (!strcmp(key, "nodes"))
        return read_number(reader, text, &entry->nodes);
    if (!strcmp(key, "step_seconds"))
        return read_number(reader, text, &entry->step_seconds);
    if (!strcmp(key, "config")) {
        free(entry->config);
        entry->config = strdup(text);
        return entry->config ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
    }
    if (!strchr(key, '.'))
        return status_fail(STATUS_USAGE,
                           "%s:%zu: unknown key '%.80s': expected config, nodes, step_seconds, or a key of a run file",
                           reader->name, reader->event.start_mark.line + 1, key);
    if (entry->count == MOST_KEYS)
        return fail_at(reader, "too many keys in a row");
    return asprintf(&entry->keys[entry->count++], "%s=%s", key, text) < 0 ? status_fail(STATUS_MEMORY, "out of memory")
                                                                          : STATUS_OK;
}

static int read_entry(struct reader *reader, struct entry *entry) {
    int status = STATUS_OK;
    entry->line = reader->event.start_mark.line + 1;
    while (!status && !(status = advance(reader)) && reader->event.type != YAML_MAPPING_END_EVENT) {
        if (reader->event.type != YAML_SCALAR_EVENT)
            return fail_at(reader, "a key must be a name");
        char *key = strdup((const char *)reader->event.data.scalar.value);
        status = key ? advance(reader) : status_fail(STATUS_MEMORY, "out of memory");
        if (!status)
            status = take(reader, key, entry);
        free(key);
    }
    if (!status && (!entry->config || entry->nodes == 0 || entry->step_seconds == 0))
        status =
            status_fail(STATUS_USAGE, "%s:%zu: a row needs config, nodes and step_seconds", reader->name, entry->line);
    return status;
}

static void free_entry(struct entry *entry) {
    free(entry->config);
    for (size_t i = 0; i < entry->count; i++)
        free(entry->keys[i]);
}

/* Opens the run of a row. */
static int open_row(const struct reader *reader, const struct cluster *cluster, const struct entry *entry,
                    struct fit_row *row) {
    char directory[PATH_MAX], path[PATH_MAX];
    struct strbuf label = STRBUF_INIT;
    int status = file_parent(reader->name, directory, sizeof directory);
    if (!status)
        status = file_join(path, sizeof path, *entry->config == '/' ? "" : directory, entry->config);
    if (!status)
        status = run_file_read(path, (const char *const *)entry->keys, entry->count, &row->file);
    if (!status)
        status = run_file_resolve(&row->file.run, &row->run);
    if (!status)
        status = cost_work_make(&row->run, cluster, &row->work);
    strbuf_format(&label, "%s, %.0f nodes", entry->config, entry->nodes);
    for (size_t i = 0; i < entry->count; i++)
        strbuf_format(&label, ", %s", entry->keys[i]);
    row->label = label.data;
    row->nodes = (int64_t)entry->nodes;
    row->seconds = entry->step_seconds;
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
        } else if (!status) {
            status = status_fail(STATUS_MEMORY, "out of memory");
        }
        free_entry(&entry);
    }
    return !status && !rows->count ? status_fail(STATUS_USAGE, "%s has no rows", reader->name) : status;
}

int fit_rows_read(const char *path, const struct cluster *cluster, struct fit_rows *rows) {
    struct strbuf text = STRBUF_INIT;
    struct reader reader = {.name = path};
    *rows = (struct fit_rows){0};
    int status = file_read(path, MOST_BYTES, &text);
    if (!status && !yaml_parser_initialize(&reader.parser))
        status = status_fail(STATUS_MEMORY, "out of memory");
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
    }
    free(rows->rows);
    *rows = (struct fit_rows){0};
}
