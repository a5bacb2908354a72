/* Reading of multipart bodies: what was held from before and the new bytes are one text, in which delimiters are
 * sought. The first delimiter of a body may lack its line break, so one is put before the body. */
#include "multipart.h"

#include "base/base.h"
#include "base/utf8.h"

#include <strings.h>

enum { HEADER_LIMIT = 4096 };

/* ---- parameters of a field: name=token or name="quoted" ---- */

static int hex_of(char c) {
    const char *digits = "0123456789abcdef", *at = c ? strchr(digits, c | 0x20) : NULL;
    return at ? (int)(at - digits) : -1;
}

static bool is_text(const char *text) {
    for (const char *at = text; *at; at++)
        if ((unsigned char)*at < 0x20 || *at == 0x7f)
            return false;
    return utf8_valid_length((const unsigned char *)text, strlen(text)) == strlen(text);
}

/* Copies a parameter's value up to its end. Returns false when it is too long. */
static bool copy_value(const char *at, char *out, size_t bytes) {
    bool is_quoted = *at == '"';
    size_t length = 0;
    for (at += is_quoted; *at && *at != (is_quoted ? '"' : ';') && (is_quoted || !strchr(" \t", *at)); at++) {
        if (is_quoted && *at == '\\' && (at[1] == '"' || at[1] == '\\'))
            at++;
        if (length + 1 >= bytes)
            return false;
        out[length++] = *at;
    }
    out[length] = 0;
    return true;
}

/* Decodes %XX, in an extended value (RFC 8187) without its charset and language. */
static bool decode(char *text, bool is_extended) {
    char *from = text, *to = text;
    if (is_extended) {
        char *first = strchr(text, '\''), *second = first ? strchr(first + 1, '\'') : NULL;
        if (!second || strncasecmp(text, "utf-8'", 6) != 0)
            return false;
        from = second + 1;
    }
    while (*from) {
        int high = *from == '%' ? hex_of(from[1]) : -1, low = high < 0 ? -1 : hex_of(from[2]);
        /* Browsers escape only quotes and line breaks in plain names. */
        bool is_escape = low >= 0 && (is_extended || (high == 2 && low == 2));
        if (is_escape && !(high | low))
            return false;
        *to++ = is_escape ? (char)(high * 16 + low) : *from;
        from += is_escape ? 3 : 1;
    }
    *to = 0;
    return true;
}

/* Finds a parameter and copies its value: 1; 0: it is not there; -1: it is too long or malformed. */
static int find_parameter(const char *field, const char *name, char *out, size_t bytes) {
    size_t length = strlen(name);
    bool is_quoted = false;
    for (const char *at = field; *at; at++) {
        if (*at == '\\' && is_quoted && at[1])
            at++;
        else if (*at == '"')
            is_quoted = !is_quoted;
        if (is_quoted || *at != ';')
            continue;
        const char *word = at + 1 + strspn(at + 1, " \t");
        if (!strncasecmp(word, name, length) && word[length] == '=')
            return copy_value(word + length + 1, out, bytes) ? 1 : -1;
    }
    return 0;
}

/* ---- the reading ---- */

int multipart_open(struct multipart *multipart, const char *type, const struct multipart_sink *sink) {
    static const char wanted[] = "multipart/form-data";
    char *boundary = multipart->delimiter + 4;
    *multipart = (struct multipart){.sink = *sink};
    if (!type || strncasecmp(type, wanted, sizeof wanted - 1) != 0 ||
        find_parameter(type, "boundary", boundary, MULTIPART_BOUNDARY_BYTES) != 1 || !*boundary || !is_text(boundary))
        return status_fail(STATUS_INVALID, "expected a body of type multipart/form-data with a boundary");
    memcpy(multipart->delimiter, "\r\n--", 4);
    multipart->delimiter_length = strlen(multipart->delimiter);
    strbuf_add_text(&multipart->held, "\r\n");
    return strbuf_status(&multipart->held);
}

/* Reads a part's header, which ends with an empty line, and begins the part. */
static int begin_part(struct multipart *multipart, char *header) {
    static const char wanted[] = "content-disposition:";
    char name[MULTIPART_NAME_BYTES] = "", filename[3 * MULTIPART_NAME_BYTES] = "";
    for (char *line = header, *next; line; line = next) {
        next = strstr(line, "\r\n");
        if (next) {
            *next = 0;
            next += 2;
        }
        if (strncasecmp(line, wanted, sizeof wanted - 1) != 0)
            continue;
        int has_name = find_parameter(line, "name", name, sizeof name);
        int is_extended = find_parameter(line, "filename*", filename, sizeof filename);
        int has_file = is_extended ? is_extended : find_parameter(line, "filename", filename, sizeof filename);
        if (has_name < 1 || has_file < 0 || !decode(name, false) || !decode(filename, is_extended) || !is_text(name) ||
            !is_text(filename) || strlen(filename) >= MULTIPART_NAME_BYTES)
            return status_fail(STATUS_INVALID, "a part of the body has no valid name, or a file's name that is not");
    }
    if (!*name)
        return status_fail(STATUS_INVALID, "a part of the body has no name");
    return multipart->sink.begin(multipart->sink.context, name, filename);
}

/* Takes one step in the text [length]. Sets *used to the bytes that are done; 0: more are needed. */
static int step(struct multipart *multipart, char *text, size_t length, size_t *used) {
    const char *found = NULL;
    *used = 0;
    if (multipart->state == MULTIPART_HEADER) {
        /* After a delimiter: "--" ends the body; else the line ends, and the header follows. */
        if (length >= 2 && text[0] == '-' && text[1] == '-') {
            multipart->state = MULTIPART_AFTER;
            *used = length;
            return STATUS_OK;
        }
        found = memmem(text, length, "\r\n\r\n", 4);
        if (!found && length > HEADER_LIMIT)
            return status_fail(STATUS_INVALID, "the header of a part has more than %d bytes", HEADER_LIMIT);
        if (!found)
            return STATUS_OK;
        *used = (size_t)(found - text) + 4;
        text[*used - 4] = 0;
        multipart->state = MULTIPART_PART;
        if (memchr(text, 0, *used - 4))
            return status_fail(STATUS_INVALID, "the header of a part has a NUL");
        return begin_part(multipart, text);
    }
    if (multipart->state == MULTIPART_AFTER) {
        *used = length;
        return STATUS_OK;
    }
    found = memmem(text, length, multipart->delimiter, multipart->delimiter_length);
    size_t whole = found                                  ? (size_t)(found - text)
                   : length > multipart->delimiter_length ? length - multipart->delimiter_length
                                                          : 0;
    *used = found ? whole + multipart->delimiter_length : whole;
    int status = STATUS_OK;
    if (multipart->state == MULTIPART_PART && whole)
        status = multipart->sink.add(multipart->sink.context, text, whole);
    if (found)
        multipart->state = MULTIPART_HEADER;
    return status;
}

int multipart_read(struct multipart *multipart, const void *bytes, size_t length) {
    struct strbuf *held = &multipart->held;
    strbuf_add(held, bytes, length);
    TRY(strbuf_status(held));
    size_t done = 0, used = 1;
    int status = STATUS_OK;
    while (!status && used && done < held->length) {
        status = step(multipart, held->data + done, held->length - done, &used);
        done += used;
    }
    memmove(held->data, held->data + done, held->length - done);
    held->length -= done;
    return status;
}

int multipart_end(const struct multipart *multipart) {
    if (multipart->state != MULTIPART_AFTER)
        return status_fail(STATUS_INVALID, "the body ends before its last boundary");
    return STATUS_OK;
}

void multipart_close(struct multipart *multipart) {
    strbuf_free(&multipart->held);
}
