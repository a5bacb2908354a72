/* --help and --version. The help comes from the rows: names and values on the left; meaning, range and default on the
 * right. */
#include "config-internal.h"

enum { LINE_COLUMNS = 96, TEXT_COLUMN = 38 };

/* Writes the words of `text` from column `column`, and indents each further line. Keeps line feeds. */
static void write_wrapped(FILE *out, const char *text, size_t column, size_t indent) {
    bool is_first = true;
    while (*text) {
        if (*text == '\n') {
            fprintf(out, "\n%*s", (int)indent, "");
            column = indent;
            is_first = true;
            text++;
            continue;
        }
        if (*text == ' ') {
            text++;
            continue;
        }
        size_t length = strcspn(text, " \n");
        if (!is_first && column + 1 + length > LINE_COLUMNS) {
            fprintf(out, "\n%*s", (int)indent, "");
            column = indent;
            is_first = true;
        }
        fprintf(out, "%s%.*s", is_first ? "" : " ", (int)length, text);
        column += length + !is_first;
        is_first = false;
        text += length;
    }
    fputc('\n', out);
}

static int add_facts(const struct config_row *row, struct strbuf *text) {
    char range[80];
    config_range_text(row, range, sizeof range);
    struct strbuf facts = STRBUF_INIT;
    if (row->type == CONFIG_CHOICE) {
        for (size_t i = 0; row->choices[i]; i++)
            strbuf_format(&facts, "%s%s", i ? ", " : "one of ", row->choices[i]);
        strbuf_add_text(&facts, "; ");
    }
    if (*range && row->type != CONFIG_STRING)
        strbuf_format(&facts, "%s; ", range);
    bool is_number = row->type == CONFIG_INT || row->type == CONFIG_FLOAT;
    if (row->is_required)
        strbuf_add_text(&facts, "required; ");
    else if (row->default_text && *row->default_text &&
             !(is_number && !config_is_in_range(row, strtod(row->default_text, NULL))))
        strbuf_format(&facts, "default %s; ", row->default_text);
    if (facts.length > 2)
        strbuf_format(text, " (%.*s)", (int)facts.length - 2, facts.data);
    int status = strbuf_status(&facts);
    strbuf_free(&facts);
    return status ? status : strbuf_status(text);
}

static int write_row(FILE *out, const struct config_row *row) {
    static const char *const names[] = {"N", "X", "SIZE", "QUANTITY", "", "TEXT", "NAME", "WORD..."};
    const char *value = row->metavar ? row->metavar : names[row->type];
    struct strbuf text = STRBUF_INIT;
    strbuf_add_text(&text, row->help);
    int status = add_facts(row, &text);
    bool is_switch_off = row->type == CONFIG_BOOL && row->default_text && !strcmp(row->default_text, "true");
    const char *before = is_switch_off ? "=false" : row->bare_text ? " [" : *value ? " " : "";
    int width = fprintf(out, "  --%s%s%s%s", row->path, before, value, row->bare_text ? "]" : "");
    if (width + 2 > TEXT_COLUMN) {
        fputc('\n', out);
        width = 0;
    }
    fprintf(out, "%*s", TEXT_COLUMN - width, "");
    write_wrapped(out, strbuf_text(&text), TEXT_COLUMN, TEXT_COLUMN);
    strbuf_free(&text);
    return status;
}

/* ---- sections ---- */

static size_t section_length(const struct config_row *row) {
    return strcspn(row->path, ".");
}

static bool is_in_section(const struct config_row *row, const char *section, size_t length) {
    return section_length(row) == length && !strncmp(row->path, section, length);
}

/* Returns the next row, from *index on, that begins a section of the command; NULL when there is none. */
static const struct config_row *next_section(const struct config_command *command, size_t *index) {
    while (*index < config_row_total(command)) {
        const struct config_row *row = config_row_at(command, *index);
        const struct config_row *before = *index ? config_row_at(command, *index - 1) : NULL;
        bool continues = before && is_in_section(row, before->path, section_length(before));
        if (config_row_is_section(command, (*index)++) && !continues)
            return row;
    }
    return NULL;
}

static int write_section(const struct config_command *command, const char *section, size_t length, FILE *out) {
    int status = STATUS_OK;
    fprintf(out, "%.*s:\n", (int)length, section);
    for (size_t i = 0; i < config_row_total(command) && !status; i++)
        if (config_row_is_section(command, i) && is_in_section(config_row_at(command, i), section, length))
            status = write_row(out, config_row_at(command, i));
    return status;
}

static int fail_section(const struct config_command *command, const char *section) {
    const struct config_row *row;
    struct strbuf names = STRBUF_INIT;
    for (size_t i = 0; (row = next_section(command, &i));)
        strbuf_format(&names, "%s%.*s", names.length ? ", " : "", (int)section_length(row), row->path);
    int status = strbuf_status(&names);
    THEN(status, status_fail(STATUS_USAGE, "--help=%s: 'cambium %s' has no such section%s%s", section, command->name,
                             names.length ? ": expected " : "", strbuf_text(&names)));
    strbuf_free(&names);
    return status;
}

static bool has_section(const struct config_command *command, const char *section) {
    const struct config_row *row;
    for (size_t i = 0; (row = next_section(command, &i));)
        if (is_in_section(row, section, strlen(section)))
            return true;
    return false;
}

/* ---- the text ---- */

static int write_options(const struct config_command *command, bool has_sections, FILE *out) {
    int status = STATUS_OK;
    fprintf(out, "options:\n");
    for (size_t i = 0; i < config_row_total(command) && !status; i++)
        if (!config_row_is_section(command, i))
            status = write_row(out, config_row_at(command, i));
    fprintf(out, "  --help%-*s%s (also -h)\n", TEXT_COLUMN - 8, has_sections ? "[=SECTION]" : "",
            has_sections ? "print this text, or one section of it" : "print this text");
    fprintf(out, "  --version%*sprint the version (also -V)\n", TEXT_COLUMN - 11, "");
    return status;
}

/* Adds a note that explains the sizes, when one of the rows has one. */
static void write_notes(const struct config_command *command, const char *section, FILE *out) {
    bool has_sizes = false;
    for (size_t i = 0; i < config_row_total(command); i++) {
        const struct config_row *row = config_row_at(command, i);
        has_sizes |= row->type == CONFIG_SIZE && (!section || is_in_section(row, section, strlen(section)));
    }
    if (!has_sizes)
        return;
    fputc('\n', out);
    write_wrapped(out,
                  "A SIZE is bytes, or a number with a unit: K, M, G, T or KiB, MiB, GiB, TiB (powers of 1,024), or "
                  "KB, MB, GB, TB (powers of 1,000).",
                  0, 0);
}

int config_help(const struct config_command *command, const char *section, FILE *out) {
    size_t first = 0;
    bool has_sections = next_section(command, &first);
    if (section && !has_section(command, section))
        return fail_section(command, section);
    int status = STATUS_OK;
    if (section) {
        status = write_section(command, section, strlen(section), out);
    } else {
        fprintf(out, "usage: ");
        write_wrapped(out, command->synopsis, 7, 7);
        fputc('\n', out);
        if (command->description) {
            write_wrapped(out, command->description, 0, 0);
            fputc('\n', out);
        }
        status = write_options(command, has_sections, out);
    }
    if (!status && !section && command->config_flag && has_sections) {
        fputc('\n', out);
        write_wrapped(
            out,
            "Each of the following stands in the YAML file (SECTION: on a separate line, 'KEY: VALUE' lines "
            "indented below it) or on the command line as --SECTION.KEY=VALUE. The command line overrides the file. "
            "An empty path (--SECTION.KEY=) removes the file's value.",
            0, 0);
    }
    const struct config_row *row;
    for (size_t i = 0; !status && !section && (row = next_section(command, &i));) {
        fputc('\n', out);
        status = write_section(command, row->path, section_length(row), out);
    }
    if (!status)
        write_notes(command, section, out);
    if (!status && !section && command->examples)
        fprintf(out, "\nexamples:\n%s%s", command->examples,
                *command->examples && command->examples[strlen(command->examples) - 1] == '\n' ? "" : "\n");
    return status;
}

void config_print_version(FILE *out) {
    fprintf(out, "cambium %s\n", CAMBIUM_VERSION);
}
