/* Rows of tasks with one continuation, or with one whole text. */
#include "tasks-internal.h"

#include "unicode/python.h"

/* The last word is wanted. The space before it belongs to it. */
int build_lambada(const json_t *object, struct task_row *row) {
    struct fields fields = {.object = object};
    struct text text = field_text(&fields, "text");
    const char *space = fields.status ? NULL : memrchr(text.bytes, ' ', text.length);
    size_t context = space ? (size_t)(space - text.bytes) : 0, word = space ? context + 1 : 0;
    row_begin(row);
    row_add(row, (struct text){text.bytes, context});
    struct task_span before = row_span(row, 0);
    row_add_words(row, " ");
    row_add(row, (struct text){text.bytes + word, text.length - word});
    int status = fields.status ? fields.status : row_status(row);
    return status ? status : row_request(row, before, row_span(row, context), 0);
}

/* Counts as len(re.split(r"\s+", text)) does: an empty text is one word, and so is what comes before a first space. */
static int64_t count_words(struct text text) {
    const char *at = text.bytes, *end = at + text.length;
    int64_t words = 1;
    bool was_space = false;
    for (size_t bytes; at < end; at += bytes) {
        bool is_space = python_is_space(at, end, &bytes);
        words += is_space && !was_space;
        was_space = is_space;
    }
    return words;
}

static int build_rolling(struct fields *fields, const char *name, bool is_wikitext, struct task_row *row) {
    struct text text = field_text(fields, name);
    row_begin(row);
    if (is_wikitext)
        wikitext_detokenize(text, &row->texts);
    else
        row_add(row, text);
    row->words = count_words(text);
    row->bytes = (int64_t)text.length;
    int status = fields->status ? fields->status : row_status(row);
    return status ? status : row_request(row, (struct task_span){0, 0}, row_span(row, 0), 0);
}

int build_wikitext(const json_t *object, struct task_row *row) {
    return build_rolling(&(struct fields){.object = object}, "page", true, row);
}

int build_text(const json_t *object, struct task_row *row) {
    return build_rolling(&(struct fields){.object = object}, "text", false, row);
}

/* An answer keeps its white space for examples; what is compared has none around it. */
int build_generate(const json_t *object, struct task_row *row) {
    struct fields fields = {.object = object};
    row_begin(row);
    row_take_context(row, &fields);
    struct task_span context = row_span(row, 0);
    size_t start = row->texts.length;
    row_add(row, field_text(&fields, "answer"));
    return fields.status ? fields.status : row_request(row, context, row_span(row, start), 0);
}
