/* A row's texts under construction. */
#include "tasks-internal.h"

#include "unicode/python.h"

void task_row_free(struct task_row *row) {
    strbuf_free(&row->texts);
    free(row->requests);
    json_decref(row->messages);
    *row = (struct task_row){0};
}

void row_begin(struct task_row *row) {
    strbuf_clear(&row->texts);
    json_decref(row->messages);
    row->messages = NULL;
    row->count = row->gold = row->words = row->bytes = 0;
}

void row_take_context(struct task_row *row, struct fields *fields) {
    json_t *messages = json_object_get(fields->object, "messages");
    if (!messages)
        row_add(row, field_text(fields, "context"));
    else if (json_object_get(fields->object, "context"))
        field_refuse(fields, "messages", "no \"context\" beside it");
    else if (!json_is_array(messages) || !json_array_size(messages))
        field_refuse(fields, "messages", "a list of at least one message");
    else
        row->messages = json_incref(messages);
}

int task_row_example(const struct task *task, const struct task_row *row, struct strbuf *out) {
    const struct task_request *right = &row->requests[task->kind == TASK_CHOICE ? row->gold : 0];
    const char *texts = strbuf_text(&row->texts);
    if (!row->messages)
        strbuf_add(out, texts + right->context.start, right->context.length);
    if (!row->messages && task->kind != TASK_CHOICE) /* lm_eval's, also before an ending that begins with one */
        strbuf_add_text(out, " ");
    strbuf_add(out, texts + right->continuation.start, right->continuation.length);
    return strbuf_status(out);
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
    TRY(array_reserve(&row->requests, &row->capacity, (size_t)row->count + 1, sizeof *row->requests));
    row->requests[row->count++] = (struct task_request){context, continuation, characters};
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
