/* A row's texts under construction. */
#include "tasks-internal.h"

#include "unicode/python.h"

#include <stdlib.h>
#include <string.h>

void task_row_free(struct task_row *row) {
    strbuf_free(&row->texts);
    free(row->requests);
    *row = (struct task_row){0};
}

void row_begin(struct task_row *row) {
    strbuf_clear(&row->texts);
    row->count = row->gold = row->words = row->bytes = 0;
}

void row_add(struct task_row *row, struct text text) {
    strbuf_add(&row->texts, text.bytes, text.length);
}

void row_add_words(struct task_row *row, const char *words) {
    strbuf_add_text(&row->texts, words);
}

struct task_span row_span(const struct task_row *row, size_t start) {
    return (struct task_span){start, row->texts.length - start};
}

int row_request(struct task_row *row, struct task_span context, struct task_span continuation, int64_t characters) {
    struct task_request *requests = array_grow(row->requests, &row->capacity, (size_t)row->count + 1, sizeof *requests);
    if (!requests)
        return STATUS_MEMORY;
    row->requests = requests;
    requests[row->count++] = (struct task_request){context, continuation, characters};
    return STATUS_OK;
}

int row_choices(struct task_row *row, struct task_span context, const struct text *choices, int64_t count) {
    int status = STATUS_OK;
    for (int64_t i = 0; i < count && !status; i++) {
        size_t start = row->texts.length;
        row_add_words(row, " ");
        row_add(row, choices[i]);
        status = row_request(row, context, row_span(row, start),
                             (int64_t)python_length(choices[i].bytes, choices[i].length));
    }
    return status ? status : row_status(row);
}

int row_status(const struct task_row *row) {
    return strbuf_status(&row->texts);
}
