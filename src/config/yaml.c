/* YAML by libyaml, read as plain data: a mapping of sections, each a mapping of keys to scalars or lists of scalars.
 *
 * The event stream is walked by hand, two levels deep. Hostile nesting, aliases and tags are therefore refused at the
 * first event that shows them. Every error names file:line:column. */
#include "config-internal.h"

#include <stdarg.h>
#include <yaml.h>

enum { MAX_FILE_BYTES = 1 << 20 };

struct reader {
    struct config *config;
    const char *name; /* of the file, for errors */
    yaml_parser_t parser;
    yaml_event_t event; /* the current one */
};

static int fail_at(const struct reader *reader, yaml_mark_t mark, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static int fail_at(const struct reader *reader, yaml_mark_t mark, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return status_fail(STATUS_USAGE, "%s:%zu:%zu: %s", reader->name, mark.line + 1, mark.column + 1, text);
}

/* Moves to the next event. Refuses events that no valid file contains. */
static int advance(struct reader *reader) {
    yaml_event_delete(&reader->event);
    yaml_parser_t *parser = &reader->parser;
    if (!yaml_parser_parse(parser, &reader->event)) {
        memset(&reader->event, 0, sizeof reader->event);
        if (parser->error == YAML_MEMORY_ERROR)
            return status_no_memory();
        if (parser->error == YAML_READER_ERROR)
            return status_fail(STATUS_USAGE, "%s: byte %zu: %s", reader->name, parser->problem_offset, parser->problem);
        return fail_at(reader, parser->problem_mark, "%s%s%s", parser->problem ? parser->problem : "bad YAML",
                       parser->context ? " " : "", parser->context ? parser->context : "");
    }
    yaml_event_t *event = &reader->event;
    const yaml_char_t *anchor = NULL, *tag = NULL;
    switch (event->type) {
    case YAML_ALIAS_EVENT:
        return fail_at(reader, event->start_mark, "alias *%s: aliases are not accepted, write the value out",
                       event->data.alias.anchor);
    case YAML_SCALAR_EVENT:
        anchor = event->data.scalar.anchor;
        tag = event->data.scalar.tag;
        break;
    case YAML_SEQUENCE_START_EVENT:
        anchor = event->data.sequence_start.anchor;
        tag = event->data.sequence_start.tag;
        break;
    case YAML_MAPPING_START_EVENT:
        anchor = event->data.mapping_start.anchor;
        tag = event->data.mapping_start.tag;
        break;
    default:
        break;
    }
    if (anchor)
        return fail_at(reader, event->start_mark, "anchor &%s: anchors are not accepted, write the value out", anchor);
    if (tag)
        return fail_at(reader, event->start_mark, "tag %s: tags are not accepted, the type is known from the key", tag);
    return STATUS_OK;
}

/* Returns the scalar of the current event as C text. Refuses null and zero bytes. `what` names it in errors. */
static int scalar_text(struct reader *reader, const char *what, const char **text, bool *is_quoted) {
    const yaml_event_t *event = &reader->event;
    *text = (const char *)event->data.scalar.value;
    *is_quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    if (strlen(*text) != event->data.scalar.length)
        return fail_at(reader, event->start_mark, "%s: a zero byte in the text", what);
    if (!*is_quoted && (!**text || !strcmp(*text, "~") || !strcasecmp(*text, "null")))
        return fail_at(reader, event->start_mark, "%s: no value (null); give one, or leave the key out", what);
    return STATUS_OK;
}

static int read_list(struct reader *reader, size_t index, const char *path) {
    config_clear_list(reader->config, index);
    for (;;) {
        int status = advance(reader);
        if (status || reader->event.type == YAML_SEQUENCE_END_EVENT)
            return status;
        if (reader->event.type != YAML_SCALAR_EVENT)
            return fail_at(reader, reader->event.start_mark, "%s: a %s within the list; expected texts or numbers",
                           path, reader->event.type == YAML_SEQUENCE_START_EVENT ? "list" : "mapping");
        const char *text;
        bool is_quoted;
        status = scalar_text(reader, path, &text, &is_quoted);
        if (!status && (status = config_add_item(reader->config, index, text)) == STATUS_USAGE)
            return fail_at(reader, reader->event.start_mark, "%s: an empty path within the list", path);
        TRY(status);
    }
}

/* Reads the value of the key of row `index`, starting at the current event. */
static int read_value(struct reader *reader, size_t index, yaml_mark_t key_mark) {
    struct config *config = reader->config;
    const struct config_row *row = config_row_at(&config->command, index);
    if (config->lines[index])
        return fail_at(reader, key_mark, "%s is given twice, first on line %zu", row->path, config->lines[index]);
    config->lines[index] = key_mark.line + 1;
    config->sources[index] = CONFIG_SOURCE_FILE;
    yaml_mark_t mark = reader->event.start_mark;
    if (reader->event.type == YAML_SEQUENCE_START_EVENT && row->type == CONFIG_LIST)
        return read_list(reader, index, row->path);
    if (reader->event.type != YAML_SCALAR_EVENT)
        return fail_at(reader, mark, "%s: expected a single value, found a %s", row->path,
                       reader->event.type == YAML_SEQUENCE_START_EVENT ? "list" : "mapping");
    const char *text;
    bool is_quoted;
    TRY(scalar_text(reader, row->path, &text, &is_quoted));
    int status = row->type == CONFIG_LIST && !is_quoted ? config_split_list(config, index, text)
                                                        : config_set_text(config, index, text);
    if (status == STATUS_USAGE) {
        char problem[1024];
        snprintf(problem, sizeof problem, "%s", status_text());
        return fail_at(reader, mark, "%s: %s", row->path, problem);
    }
    return status;
}

/* Returns the index of the row with this path, or the number of rows. */
static size_t find_row(const struct config_command *command, const char *path) {
    size_t index = config_find_row(command, path, strlen(path)), total = config_row_total(command);
    return index < total && config_row_is_section(command, index) ? index : total;
}

static bool is_section(const struct config_command *command, const char *name) {
    size_t length = strlen(name);
    for (size_t i = 0; i < config_row_total(command); i++) {
        const char *path = config_row_at(command, i)->path;
        if (config_row_is_section(command, i) && !strncmp(path, name, length) && path[length] == '.')
            return true;
    }
    return false;
}

/* Finds a section with a similar name. */
static bool near_section(const struct config_command *command, const char *word, char section[CONFIG_MAX_WORD + 1]) {
    bool is_near = false;
    for (size_t i = 0; i < config_row_total(command) && strlen(word) <= CONFIG_MAX_WORD && !is_near; i++) {
        const char *path = config_row_at(command, i)->path;
        snprintf(section, CONFIG_MAX_WORD + 1, "%.*s", (int)strcspn(path, "."), path);
        is_near = config_row_is_section(command, i) && config_distance(word, section) <= config_mistakes(word, section);
    }
    return is_near;
}

static int fail_unknown(struct reader *reader, yaml_mark_t mark, const char *path, bool is_top) {
    const struct config_command *command = &reader->config->command;
    char explained[256], section[CONFIG_MAX_WORD + 1];
    const char *absence = config_absence(command->absent, command->absent_count, path);
    if (absence)
        return fail_at(reader, mark, "%.200s does nothing here: %s", path, absence);
    if (is_top && !config_other_name(command, path) && near_section(command, path, section))
        return fail_at(reader, mark, "unknown section '%.200s' (did you mean %s?)", path, section);
    config_explain(command, path, true, explained, sizeof explained);
    return fail_at(reader, mark, "unknown %s '%.200s'%s", is_top ? "section" : "key", path, explained);
}

/* Copies the text of a key, the current event, into `key`. */
static int read_key(struct reader *reader, const char *section, char *key, size_t bytes) {
    if (reader->event.type != YAML_SCALAR_EVENT)
        return fail_at(reader, reader->event.start_mark, "a key must be a name");
    const char *text;
    bool is_quoted;
    int status = scalar_text(reader, "a key", &text, &is_quoted);
    if (!status && (size_t)snprintf(key, bytes, "%s%s%s", section, *section ? "." : "", text) >= bytes)
        return fail_at(reader, reader->event.start_mark, "a key of %zu characters", strlen(text));
    return status;
}

/* Reads the keys of one section, from the start of its mapping at the current event. */
static int read_section(struct reader *reader, const char *section) {
    const struct config_command *command = &reader->config->command;
    for (;;) {
        int status = advance(reader);
        if (status || reader->event.type == YAML_MAPPING_END_EVENT)
            return status;
        yaml_mark_t mark = reader->event.start_mark;
        char path[256];
        TRY(read_key(reader, section, path, sizeof path));
        size_t index = find_row(command, path);
        if (index == config_row_total(command))
            return fail_unknown(reader, mark, path, false);
        TRY(advance(reader));
        TRY(read_value(reader, index, mark));
    }
}

/* Reads a top-level key, the current event, and its contents. */
static int read_top(struct reader *reader, struct strbuf *seen) {
    const struct config_command *command = &reader->config->command;
    yaml_mark_t mark = reader->event.start_mark;
    char name[256], entry[300];
    TRY(read_key(reader, "", name, sizeof name));
    size_t index = find_row(command, name);
    bool is_known_section = index == config_row_total(command) && is_section(command, name);
    if (index == config_row_total(command) && !is_known_section)
        return fail_unknown(reader, mark, name, true);
    int status = advance(reader);
    if (status || !is_known_section)
        return status ? status : read_value(reader, index, mark);
    snprintf(entry, sizeof entry, "\n%s:", name); /* `seen` is "\nmodel:3\ntrain:9": each section and its line */
    const char *first = strstr(strbuf_text(seen), entry);
    if (first)
        return fail_at(reader, mark, "section %s is given twice, first on line %ld", name,
                       strtol(first + strlen(entry), NULL, 10));
    strbuf_format(seen, "%s%zu", entry, mark.line + 1);
    if (reader->event.type != YAML_MAPPING_START_EVENT)
        return fail_at(reader, reader->event.start_mark, "section %s: expected 'key: value' lines, found a %s", name,
                       reader->event.type == YAML_SEQUENCE_START_EVENT ? "list" : "single value");
    status = read_section(reader, name);
    return status ? status : strbuf_status(seen);
}

static int expect_one_document(struct reader *reader) {
    int status = advance(reader); /* the end of the document */
    THEN(status, advance(reader));
    if (!status && reader->event.type != YAML_STREAM_END_EVENT)
        return fail_at(reader, reader->event.start_mark, "a second document; one file holds one configuration");
    return status;
}

static int read_document(struct reader *reader) {
    int status = advance(reader); /* the start of the stream */
    THEN(status, advance(reader));
    if (status || reader->event.type == YAML_STREAM_END_EVENT) /* an empty file gives nothing */
        return status;
    if (reader->event.data.document_start.tag_directives.start != reader->event.data.document_start.tag_directives.end)
        return fail_at(reader, reader->event.start_mark, "%%TAG: tags are not accepted");
    TRY(advance(reader));
    if (reader->event.type != YAML_MAPPING_START_EVENT)
        return fail_at(reader, reader->event.start_mark, "expected sections ('model:', 'train:', ...), found a %s",
                       reader->event.type == YAML_SEQUENCE_START_EVENT ? "list" : "single value");
    struct strbuf seen = STRBUF_INIT;
    while (!(status = advance(reader)) && reader->event.type != YAML_MAPPING_END_EVENT)
        if ((status = read_top(reader, &seen)))
            break;
    strbuf_free(&seen);
    return status ? status : expect_one_document(reader);
}

static int with_reader(struct config *config, const char *name, const char *text, size_t length,
                       int (*body)(struct reader *, size_t), size_t index) {
    struct reader reader = {.config = config, .name = name};
    TRY(status_allocated(yaml_parser_initialize(&reader.parser)));
    yaml_parser_set_input_string(&reader.parser, (const unsigned char *)text, length);
    int status = body(&reader, index);
    yaml_event_delete(&reader.event);
    yaml_parser_delete(&reader.parser);
    return status;
}

static int file_body(struct reader *reader, size_t index) {
    return read_document(reader);
}

static int flow_body(struct reader *reader, size_t index) {
    int status = STATUS_OK;
    for (int i = 0; i < 3 && !status; i++) /* stream, document, sequence */
        status = advance(reader);
    if (!status && reader->event.type != YAML_SEQUENCE_START_EVENT)
        return fail_at(reader, reader->event.start_mark, "expected a list [a, b]");
    THEN(status, read_list(reader, index, config_row_at(&reader->config->command, index)->path));
    return status ? status : expect_one_document(reader);
}

int config_read_yaml_text(struct config *config, const char *name, const char *text, size_t length) {
    return with_reader(config, name, text, length, file_body, 0);
}

int config_read_flow_list(struct config *config, size_t index, const char *text) {
    return with_reader(config, "list", text, strlen(text), flow_body, index);
}

int config_read_yaml(struct config *config, const char *path) {
    struct strbuf text = STRBUF_INIT;
    int status = file_read(path, MAX_FILE_BYTES, &text);
    THEN(status, config_read_yaml_text(config, path, strbuf_text(&text), text.length));
    strbuf_free(&text);
    return status;
}
