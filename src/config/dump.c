/* The resolved run as YAML that gives the same values when it is read. */
#include "config-internal.h"

#include "base/utf8.h"

/* True for characters that YAML takes unchanged between double quotes: no control, no line separator, no byte order
 * mark. */
static bool is_printable(uint32_t c) {
    return c >= 0x20 && c != 0x7f && !(c >= 0x80 && c < 0xa0) && c != 0x2028 && c != 0x2029 && c != 0xfeff &&
           c != 0xfffe && c != 0xffff;
}

/* Puts a text between double quotes when YAML, or our reader, would not take it unchanged. */
static void write_text(FILE *out, const char *text) {
    static const char safe[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-";
    bool is_plain = *text && !strchr("+-", *text) && !text[strspn(text, safe)] && strcmp(text, "~") &&
                    strcasecmp(text, "null") && strcmp(text, "...");
    if (is_plain) {
        fputs(text, out);
        return;
    }
    fputc('"', out);
    const unsigned char *at = (const unsigned char *)text, *end = at + strlen(text);
    while (at < end) {
        uint32_t c = *at;
        size_t length = c < 0x80 ? 1 : utf8_decode(at, end, &c);
        if (!length) /* a byte that is not UTF-8 is written as it is: YAML cannot hold it */
            c = *at;
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", (char)c);
        else if (is_printable(c) && length > 0)
            fwrite(at, 1, length, out);
        else
            fprintf(out, c < 0x100 ? "\\x%02x" : "\\u%04x", c);
        at += length ? length : 1;
    }
    fputc('"', out);
}

/* Returns item `index` of a list, as typed or as resolved; NULL past the last. */
static const char *item_at(const struct config_row *row, const void *field, size_t index,
                           char text[CONFIG_ITEM_BYTES]) {
    const struct config_list *list = field;
    if (list->count)
        return index < list->count ? list->items[index] : NULL;
    return row->item && row->item(field, index, text) ? text : NULL;
}

bool config_has_value(const struct config_row *row, const void *field) {
    char text[CONFIG_ITEM_BYTES];
    switch (row->type) {
    case CONFIG_INT:
    case CONFIG_SIZE:
        return config_is_in_range(row, (double)*(const int64_t *)field);
    case CONFIG_FLOAT:
        return config_is_in_range(row, *(const double *)field);
    case CONFIG_QUANTITY:
        return ((const struct config_quantity *)field)->value != 0;
    case CONFIG_STRING:
        return *(const char *const *)field;
    case CONFIG_LIST:
        return item_at(row, field, 0, text);
    case CONFIG_BOOL:
    case CONFIG_CHOICE:
        break;
    }
    return true;
}

/* Writes the shortest decimal text that gives `value` when it is read. */
static void float_text(double value, char *out, size_t bytes) {
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(out, bytes, "%.*g", digits, value);
        if (strtod(out, NULL) == value)
            break;
    }
}

/* Writes a size in the largest unit that gives a whole number. */
static void size_text(int64_t bytes, char *out, size_t room) {
    static const char *const units[] = {"", "K", "M", "G", "T"};
    int unit = 0;
    for (; unit < 4 && bytes && bytes % 1024 == 0; unit++)
        bytes /= 1024;
    snprintf(out, room, "%lld%s", (long long)bytes, units[unit]);
}

void config_value_text(const struct config_row *row, const void *field, char *out, size_t bytes) {
    const char *text = NULL, *item;
    char number[CONFIG_ITEM_BYTES];
    *out = 0;
    switch (row->type) {
    case CONFIG_INT:
        snprintf(out, bytes, "%lld", (long long)*(const int64_t *)field);
        break;
    case CONFIG_FLOAT:
        float_text(*(const double *)field, out, bytes);
        break;
    case CONFIG_SIZE:
        size_text(*(const int64_t *)field, out, bytes);
        break;
    case CONFIG_QUANTITY:
        config_quantity_text(row, field, out, bytes);
        break;
    case CONFIG_BOOL:
        text = *(const bool *)field ? "true" : "false";
        break;
    case CONFIG_CHOICE:
        text = row->choices[*(const int *)field];
        break;
    case CONFIG_STRING:
        text = *(const char *const *)field;
        break;
    case CONFIG_LIST:
        for (size_t i = 0, used = 0; used < bytes && (item = item_at(row, field, i, number)); i++)
            used += (size_t)snprintf(out + used, bytes - used, "%s%s", i ? " " : "", item);
    }
    if (text)
        snprintf(out, bytes, "%s", text);
}

void config_write_value(FILE *out, const struct config_row *row, const void *field) {
    char text[64]; /* for a number or a choice */
    const char *item;
    if (row->type == CONFIG_STRING) {
        write_text(out, *(const char *const *)field);
    } else if (row->type == CONFIG_LIST) {
        fputc('[', out);
        for (size_t i = 0; (item = item_at(row, field, i, text)); i++) {
            fputs(i ? ", " : "", out);
            write_text(out, item);
        }
        fputc(']', out);
    } else {
        config_value_text(row, field, text, sizeof text);
        fputs(text, out);
    }
}

void config_dump(const struct config_command *command, const void *values, FILE *out) {
    const char *section = "";
    size_t length = 0;
    for (size_t i = 0; i < config_row_total(command); i++) {
        const struct config_row *row = config_row_at(command, i);
        const void *field = (const char *)values + config_field_offset(command, i);
        if (!config_row_is_section(command, i) || !config_has_value(row, field))
            continue;
        size_t name = strcspn(row->path, ".");
        bool has_section = row->path[name] == '.';
        if (has_section && (name != length || strncmp(row->path, section, name)))
            fprintf(out, "%.*s:\n", (int)name, row->path);
        section = row->path;
        length = name;
        fprintf(out, "%s%s: ", has_section ? "    " : "", has_section ? row->path + name + 1 : row->path);
        config_write_value(out, row, field);
        fputc('\n', out);
    }
}

int config_dump_text(const struct config_command *command, const void *values, struct strbuf *out) {
    char *text = NULL;
    size_t length;
    FILE *stream = open_memstream(&text, &length);
    if (stream)
        config_dump(command, values, stream);
    bool is_written = stream && !fclose(stream);
    if (is_written)
        strbuf_add(out, text, length);
    free(text);
    return is_written ? strbuf_status(out) : status_no_memory();
}
