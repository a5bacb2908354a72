/* Rows of other files than JSON lines: where they end, and how they become lines. */
#pragma once

#include "base/base.h"

enum lines_form { LINES_PLAIN, LINES_ARRAY, LINES_CSV };

/* The search for the end of a row. Starts zeroed for each row. */
struct row_scan {
    int64_t depth;                        /* of brackets in an element of an array */
    bool in_string, is_escaped, is_later; /* is_later: of CSV, a quotation mark here is no field's first */
};
/* Returns how many of bytes[length] belong to the row, with the byte that ends it; *is_whole: it is there. An array's
 * element ends at a comma or a bracket, a row of CSV at a line feed outside of quotation marks. */
size_t row_scan(struct row_scan *scan, enum lines_form form, const char *bytes, size_t length, bool *is_whole);

/* Columns of a file of CSV. Starts zeroed; csv_free frees it. */
struct csv {
    char **names; /* [count] */
    size_t count;
};
void csv_free(struct csv *csv);
/* Turns a row, without its end, into the line of JSON with the header's names; a first row becomes the header, and
 * `out` stays empty. Cells are strings, but those of "messages" and other fields that hold no text are JSON, null if
 * empty. STATUS_INVALID, STATUS_MEMORY. */
int csv_take(struct csv *csv, const char *row, size_t length, struct strbuf *out);
