/* --help from the rows: names and values on the left; meaning, range and default on the right. */
#include "config-internal.h"

#include <stdlib.h>
#include <string.h>

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

static const char *type_name(const struct config_row *row) {
    static const char *const names[] = {"N", "X", "SIZE", "", "TEXT", "NAME", "WORD..."};
    return row->metavar ? row->metavar : names[row->type];
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
    const char *value = type_name(row);
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

static int write_sections(const struct config_command *command, FILE *out) {
    const char *section = "";
    size_t length = 0;
    int status = STATUS_OK;
    for (size_t i = 0; i < config_row_total(command) && !status; i++) {
        const struct config_row *row = config_row_at(command, i);
        if (!config_row_is_section(command, i))
            continue;
        if (!length || strncmp(row->path, section, length) || strcspn(row->path, ".") != length) {
            section = row->path;
            length = strcspn(section, ".");
            fprintf(out, "\n%.*s:\n", (int)length, section);
        }
        status = write_row(out, row);
    }
    return status;
}

int config_help(const struct config_command *command, FILE *out) {
    int status = STATUS_OK;
    fprintf(out, "usage: ");
    write_wrapped(out, command->synopsis, 7, 7);
    fputc('\n', out);
    if (command->description) {
        write_wrapped(out, command->description, 0, 0);
        fputc('\n', out);
    }
    fprintf(out, "options:\n");
    bool has_sections = false, has_sizes = false;
    for (size_t i = 0; i < config_row_total(command) && !status; i++) {
        has_sections |= config_row_is_section(command, i);
        has_sizes |= config_row_at(command, i)->type == CONFIG_SIZE;
        if (!config_row_is_section(command, i))
            status = write_row(out, config_row_at(command, i));
    }
    if (status)
        return status;
    fprintf(out, "  --help%*sprint this text\n", TEXT_COLUMN - 8, "");
    if (has_sections) {
        if (command->config_flag) {
            fputc('\n', out);
            write_wrapped(
                out,
                "Each of the following stands in the YAML file (SECTION: on a line of its own, 'KEY: VALUE' lines "
                "indented below it) or on the command line as --SECTION.KEY=VALUE, which goes over the file. "
                "An empty path (--SECTION.KEY=) takes back what the file gives.",
                0, 0);
        }
        status = write_sections(command, out);
    }
    if (!status && has_sizes) {
        fputc('\n', out);
        write_wrapped(
            out,
            "A SIZE is bytes, or a number with a unit: K, M, G, T or KiB, MiB, GiB, TiB (powers of 1,024), or "
            "KB, MB, GB, TB (powers of 1,000).",
            0, 0);
    }
    if (!status && command->examples)
        fprintf(out, "\nexamples:\n%s%s", command->examples,
                *command->examples && command->examples[strlen(command->examples) - 1] == '\n' ? "" : "\n");
    return status;
}
