/* Rows of RACE: an article and its problems, which are a text in Python's syntax. The last problem is asked; those
 * before it are shown with their answers. */
#include "tasks-internal.h"

enum { OPTIONS = 4 };

/* A problem of a row. */
struct problem {
    struct text question, options[OPTIONS];
    int answer;
};

static int refuse(void) {
    return status_fail(STATUS_INVALID, "\"problems\": expected a list of dicts with \"question\", \"answer\" (A to D) "
                                       "and four \"options\"");
}

static int read_problem(const json_t *value, struct problem *problem) {
    struct fields fields = {.object = value};
    size_t count;
    struct text answer = field_text(&fields, "answer");
    const json_t *options = field_texts(&fields, "options", OPTIONS, &count);
    problem->question = field_text(&fields, "question");
    problem->answer = answer.length == 1 ? answer.bytes[0] - 'A' : -1;
    if (fields.status || problem->answer < 0 || problem->answer >= OPTIONS)
        return refuse();
    for (size_t i = 0; i < OPTIONS; i++)
        problem->options[i] = text_at(options, i);
    return STATUS_OK;
}

/* Adds a problem with its answer: in the blank that ends the question, or after the question. */
static void add_answered(struct task_row *row, const struct problem *problem) {
    struct text question = problem->question;
    const char *end = question.bytes + question.length;
    bool has_blank = question.length >= 6 && !memcmp(end - 6, "  _  .", 6);
    if (has_blank) {
        row_add(row, (struct text){question.bytes, question.length - 5});
    } else {
        row_add_words(row, "Question: ");
        row_add(row, question);
        row_add_words(row, "\nAnswer: ");
    }
    row_add(row, problem->options[problem->answer]);
    row_add_words(row, "\n");
}

static int add_problems(struct task_row *row, const json_t *problems) {
    size_t count = json_is_array(problems) ? json_array_size(problems) : 0;
    struct problem problem;
    int status = count ? STATUS_OK : refuse();
    for (size_t i = 0; i < count && !status; i++) {
        status = read_problem(json_array_get(problems, i), &problem);
        if (!status && i + 1 < count)
            add_answered(row, &problem);
    }
    TRY(status);
    row_add(row, problem.question);
    row->gold = problem.answer;
    return row_choices(row, row_span(row, 0), problem.options, OPTIONS);
}

int build_race(const json_t *object, struct task_row *row) {
    struct fields fields = {.object = object};
    struct text article = field_text(&fields, "article"), text = field_text(&fields, "problems");
    json_t *problems = NULL;
    row_begin(row);
    row_add_words(row, "Article: ");
    row_add(row, article);
    row_add_words(row, "\n\n");
    int status = fields.status;
    if (!status && (status = python_literal_read(text.bytes, text.length, &problems)))
        status_wrap(status, "\"problems\"");
    THEN(status, add_problems(row, problems));
    json_decref(problems);
    return status;
}
