/* JSON arrays, and CSV as in RFC 4180: with quotation marks, which are doubled inside, and line ends between them. */
#include "json_line.h"
#include "lines-internal.h"

#include "base/json.h"
#include "base/utf8.h"

static bool ends_element(struct row_scan *scan, char c) {
    if (scan->in_string) {
        scan->in_string = c != '"' || scan->is_escaped;
        scan->is_escaped = c == '\\' && !scan->is_escaped;
        return false;
    }
    if (scan->depth == 0 && (c == ',' || c == ']'))
        return true;
    scan->in_string = c == '"';
    scan->depth += c == '[' || c == '{' ? 1 : (c == ']' || c == '}') && scan->depth > 0 ? -1 : 0;
    return false;
}

/* After the mark that closes a field, another one opens it again: it is a doubled one. */
static bool ends_csv(struct row_scan *scan, char c) {
    if (scan->in_string) {
        scan->in_string = c != '"';
        return false;
    }
    scan->in_string = c == '"' && !scan->is_later;
    scan->is_later = c != ',' && !scan->in_string;
    return c == '\n';
}

size_t row_scan(struct row_scan *scan, enum lines_form form, const char *bytes, size_t length, bool *is_whole) {
    if (form == LINES_PLAIN) {
        const char *newline = memchr(bytes, '\n', length);
        *is_whole = newline != NULL;
        return newline ? (size_t)(newline - bytes) + 1 : length;
    }
    for (size_t i = 0; i < length; i++)
        if ((*is_whole = form == LINES_ARRAY ? ends_element(scan, bytes[i]) : ends_csv(scan, bytes[i])))
            return i + 1;
    *is_whole = false;
    return length;
}

/* ---- CSV ---- */

void csv_free(struct csv *csv) {
    for (size_t i = 0; i < csv->count; i++)
        free(csv->names[i]);
    free(csv->names);
    *csv = (struct csv){0};
}

/* Reads the next cell, and moves *at past its comma. *at is NULL after the last. */
static int next_cell(const char **at, const char *end, struct strbuf *cell) {
    const char *from = *at, *comma;
    strbuf_clear(cell);
    if (from < end && *from == '"') {
        const char *mark = from;
        while ((mark = memchr(from + 1, '"', (size_t)(end - from - 1)))) {
            strbuf_add(cell, from + 1, (size_t)(mark - from - 1));
            from = mark + 1;
            if (from == end || *from != '"')
                break;
            strbuf_add_char(cell, '"');
        }
        if (!mark || (from < end && *from != ','))
            return status_fail(STATUS_INVALID, mark ? "a cell has text after its quotation marks"
                                                    : "a cell has no quotation mark at its end");
        comma = from < end ? from : NULL;
    } else {
        comma = memchr(from, ',', (size_t)(end - from));
        strbuf_add(cell, from, (size_t)((comma ? comma : end) - from));
    }
    *at = comma ? comma + 1 : NULL;
    if (utf8_valid_length((const unsigned char *)strbuf_text(cell), cell->length) != cell->length)
        return status_fail(STATUS_INVALID, "a cell is not UTF-8: save the file as UTF-8");
    return strbuf_status(cell);
}

static int add_name(struct csv *csv, const struct strbuf *cell) {
    enum { MOST_COLUMNS = 1024 };
    if (csv->count == MOST_COLUMNS)
        return status_fail(STATUS_INVALID, "the header has more than %d columns", MOST_COLUMNS);
    for (size_t i = 0; i < csv->count; i++)
        if (cell->length && !strcmp(csv->names[i], strbuf_text(cell)))
            return status_fail(STATUS_INVALID, "the header has the column \"%s\" twice", csv->names[i]);
    char **grown = realloc(csv->names, (csv->count + 1) * sizeof *grown), *name = strdup(strbuf_text(cell));
    if (grown)
        csv->names = grown;
    if (grown && name)
        csv->names[csv->count++] = name;
    else
        free(name);
    return status_allocated(grown && name);
}

/* Adds a cell as a member of the line's object. */
static int add_cell(const char *name, const struct strbuf *cell, struct strbuf *out) {
    static const char *const others[] = {"messages", "tools",  "documents", "chat_template_kwargs",
                                         "tokens",   "weight", "label"};
    bool is_json = false;
    int status = STATUS_OK;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        is_json |= !strcmp(name, others[i]);
    if (is_json && cell->length) {
        json_t *value;
        status = json_line_read(strbuf_text(cell), cell->length, &value);
        json_decref(value);
    }
    json_add_string(out, name, strlen(name));
    strbuf_add_char(out, ':');
    if (is_json && !status)
        strbuf_add_text(out, cell->length ? strbuf_text(cell) : "null");
    else
        json_add_string(out, strbuf_text(cell), cell->length);
    return status == STATUS_MEMORY ? status : strbuf_status(out);
}

int csv_take(struct csv *csv, const char *row, size_t length, struct strbuf *out) {
    struct strbuf cell = STRBUF_INIT;
    const char *at = row, *end = row + length;
    size_t count = 0, columns = csv->count;
    int status = STATUS_OK;
    strbuf_clear(out);
    for (; at && !status; count++) {
        status = next_cell(&at, end, &cell);
        if (status || columns == 0)
            status = status ? status : add_name(csv, &cell);
        else if (count < columns) {
            strbuf_add_char(out, count ? ',' : '{');
            status = add_cell(csv->names[count], &cell, out);
        }
    }
    strbuf_free(&cell);
    if (!status && columns && count != columns)
        status = status_fail(STATUS_INVALID, "%zu fields, and the header has %zu", count, columns);
    if (columns)
        strbuf_add_char(out, '}');
    return status ? status : strbuf_status(out);
}
