/* Rows of tasks with several continuations. */
#include "tasks-internal.h"

#include "unicode/python.h"

int build_hellaswag(const json_t *object, struct task_row *row) {
    struct fields fields = {.object = object};
    struct strbuf query = STRBUF_INIT;
    size_t count;
    struct text activity = field_text(&fields, "activity_label"), a = field_text(&fields, "ctx_a"),
                b = field_text(&fields, "ctx_b");
    const json_t *endings = field_texts(&fields, "endings", 1, &count);
    row_begin(row);
    row->gold = field_index(&fields, "label", (int64_t)count - 1, true);
    strbuf_add(&query, activity.bytes, activity.length);
    strbuf_add_text(&query, ": ");
    strbuf_add(&query, a.bytes, a.length);
    strbuf_add_text(&query, " ");
    python_capitalize(b.bytes, b.length, &query);
    hellaswag_clean((struct text){strbuf_text(&query), query.length}, &row->texts);
    row->texts.failed |= query.failed;
    strbuf_free(&query);
    struct task_span context = row_span(row, 0);
    for (size_t i = 0; i < count && !fields.status; i++) {
        size_t start = row->texts.length;
        row_add_words(row, " ");
        hellaswag_clean(text_at(endings, i), &row->texts);
        struct task_span ending = row_span(row, start);
        size_t characters = python_length(strbuf_text(&row->texts) + start, ending.length);
        fields.status = row_request(row, context, ending, (int64_t)characters - 1);
    }
    return fields.status ? fields.status : row_status(row);
}

/* Puts a question into the row, as a context. */
static struct task_span add_question(struct task_row *row, struct text question) {
    row_add_words(row, "Question: ");
    row_add(row, question);
    row_add_words(row, "\nAnswer:");
    return row_span(row, 0);
}

int build_piqa(const json_t *object, struct task_row *row) {
    struct fields fields = {.object = object};
    struct text goal = field_text(&fields, "goal");
    const struct text solutions[] = {field_text(&fields, "sol1"), field_text(&fields, "sol2")};
    row_begin(row);
    row->gold = field_index(&fields, "label", 1, false);
    struct task_span context = add_question(row, goal);
    return fields.status ? fields.status : row_choices(row, context, solutions, 2);
}

int build_arc(const json_t *object, struct task_row *row) {
    struct fields fields = {.object = object}, in_choices = {.object = json_object_get(object, "choices")};
    size_t count, labels_count;
    struct text question = field_text(&fields, "question"), key = field_text(&fields, "answerKey");
    const json_t *texts = field_texts(&in_choices, "text", 1, &count);
    const json_t *labels = field_texts(&in_choices, "label", count, &labels_count);
    if (!json_is_object(in_choices.object))
        field_refuse(&fields, "choices", "an object with \"text\" and \"label\"");
    int status = fields.status ? fields.status : in_choices.status;
    row_begin(row);
    row->gold = -1;
    for (size_t i = labels_count; i-- > 0 && !status;)
        if (text_at(labels, i).length == key.length && !memcmp(text_at(labels, i).bytes, key.bytes, key.length))
            row->gold = (int64_t)i;
    if (!status && (row->gold < 0 || row->gold >= (int64_t)count))
        status = status_fail(STATUS_INVALID, "\"answerKey\": expected one of the labels of the choices");
    struct task_span context = add_question(row, question);
    for (size_t i = 0; i < count && !status; i++) {
        struct text choice = text_at(texts, i);
        status = row_choices(row, context, &choice, 1);
    }
    return status ? status : row_status(row);
}

int build_winogrande(const json_t *object, struct task_row *row) {
    struct fields fields = {.object = object};
    struct text sentence = field_text(&fields, "sentence"), answer = field_text(&fields, "answer");
    const struct text options[] = {field_text(&fields, "option1"), field_text(&fields, "option2")};
    const char *blank = memchr(sentence.bytes, '_', sentence.length);
    if (!blank)
        field_refuse(&fields, "sentence", "a text with \"_\"");
    bool is_number = answer.length == 1 && (answer.bytes[0] == '1' || answer.bytes[0] == '2');
    if (!is_number)
        field_refuse(&fields, "answer", "\"1\" or \"2\"");
    if (fields.status)
        return fields.status;
    struct text rest = {blank + 1, sentence.length - (size_t)(blank + 1 - sentence.bytes)};
    python_strip(&rest.bytes, &rest.length);
    row_begin(row);
    row->gold = answer.bytes[0] - '1';
    int status = STATUS_OK;
    for (int i = 0; i < 2 && !status; i++) {
        size_t start = row->texts.length;
        row_add(row, (struct text){sentence.bytes, (size_t)(blank - sentence.bytes)});
        row_add(row, options[i]);
        status = row_choices(row, row_span(row, start), &rest, 1);
    }
    return status;
}

int build_boolq(const json_t *object, struct task_row *row) {
    static const struct text answers[] = {{"no", 2}, {"yes", 3}};
    struct fields fields = {.object = object};
    struct text passage = field_text(&fields, "passage"), question = field_text(&fields, "question");
    row_begin(row);
    row->gold = field_index(&fields, "label", 1, false);
    row_add(row, passage);
    row_add_words(row, "\nQuestion: ");
    row_add(row, question);
    row_add_words(row, "?\nAnswer:");
    return fields.status ? fields.status : row_choices(row, row_span(row, 0), answers, 2);
}

/* ---- a task of the user's own data ---- */

/* Adds choice i after its context: one for all, or one of a list. */
static int add_choice(struct task_row *row, struct task_span shared, const json_t *contexts, struct text choice,
                      size_t i) {
    size_t start = row->texts.length;
    if (contexts) {
        row_add(row, text_at(contexts, i));
        shared = row_span(row, start);
        start = row->texts.length;
    }
    row_add(row, choice);
    return row_request(row, shared, row_span(row, start), (int64_t)python_length(choice.bytes, choice.length));
}

int build_choice(const json_t *object, struct task_row *row) {
    struct fields fields = {.object = object};
    size_t count, context_count = 0;
    const json_t *choices = field_texts(&fields, "choices", 1, &count), *contexts = NULL;
    row_begin(row);
    if (json_is_array(json_object_get(object, "context"))) {
        contexts = field_texts(&fields, "context", 1, &context_count);
        if (context_count != count)
            field_refuse(&fields, "context", "one text for each choice");
    } else {
        row_take_context(row, &fields);
    }
    row->gold = field_index(&fields, "gold", (int64_t)count - 1, false);
    struct task_span shared = row_span(row, 0);
    for (size_t i = 0; i < count && !fields.status; i++)
        fields.status = add_choice(row, shared, contexts, text_at(choices, i), i);
    return fields.status ? fields.status : row_status(row);
}
