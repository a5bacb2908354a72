/* Turns a JSON line into the pieces of a row. Each form has two or three known fields. Fields that would change a row's
 * meaning and are not supported are refused by name; all others are metadata. */
#include "json_line.h"
#include "tuning-internal.h"

#include <float.h>

#define FORMS                                                                                                          \
    "{\"input\", \"output\"}, {\"prompt\", \"completion\"}, {\"messages\"}, {\"instruction\", \"output\"} or "         \
    "{\"text\"}"

void tuning_row_free(struct tuning_row *row) {
    json_decref(row->root);
    for (int i = 0; i < 2; i++)
        chat_pieces_free(&row->pieces[i]);
    *row = (struct tuning_row){0};
}

/* Reads a field that must be a string. */
static int get_string(const json_t *object, const char *key, const char **text, size_t *length) {
    const json_t *value = json_object_get(object, key);
    if (!value)
        return status_fail(STATUS_INVALID, "the row has no field \"%s\"", key);
    if (!json_is_string(value))
        return status_fail(STATUS_INVALID, "field \"%s\" is not a string", key);
    *text = json_string_value(value);
    *length = json_string_length(value);
    return STATUS_OK;
}

static void strip_spaces(const char **text, size_t *length) {
    for (; *length > 0 && **text == ' '; (*text)++)
        (*length)--;
    while (*length > 0 && (*text)[*length - 1] == ' ')
        (*length)--;
}

/* NeMo's prompt template "{input} {output}", cut before the space. */
static int parse_input_output(const json_t *root, struct tuning_format *format, struct chat_pieces *pieces) {
    const char *input = NULL, *output = NULL;
    size_t input_length = 0, output_length = 0;
    int status = get_string(root, "input", &input, &input_length);
    THEN(status, get_string(root, "output", &output, &output_length));
    TRY(status);
    strip_spaces(&input, &input_length);
    strip_spaces(&output, &output_length);
    if ((status = chat_pieces_add(pieces, input, input_length, 0)))
        return status;
    if (output_length == 0)
        return chat_pieces_add_answer(pieces, NULL, 0, 0);
    struct strbuf spaced = STRBUF_INIT;
    strbuf_add_char(&spaced, ' ');
    strbuf_add(&spaced, output, output_length);
    status = strbuf_status(&spaced);
    THEN(status, chat_pieces_add_answer(pieces, spaced.data, spaced.length, 0));
    strbuf_free(&spaced);
    return status;
}

static int parse_prompt_completion(const json_t *root, struct tuning_format *format, struct chat_pieces *pieces) {
    const char *prompt = NULL, *completion = NULL;
    size_t prompt_length = 0, completion_length = 0;
    int status = get_string(root, "prompt", &prompt, &prompt_length);
    THEN(status, get_string(root, "completion", &completion, &completion_length));
    THEN(status, chat_pieces_add(pieces, prompt, prompt_length, 0));
    return status ? status : chat_pieces_add_answer(pieces, completion, completion_length, 0);
}

static int parse_text(const json_t *root, struct tuning_format *format, struct chat_pieces *pieces) {
    const char *text = NULL;
    size_t length = 0;
    int status = get_string(root, "text", &text, &length);
    return status ? status : chat_pieces_add_answer(pieces, text, length, 0);
}

static int get_value(const json_t *object, const char *key, const json_t **value) {
    const char *text;
    size_t length;
    *value = json_object_get(object, key);
    return get_string(object, key, &text, &length);
}

static int parse_instruction(const json_t *root, struct tuning_format *format, struct chat_pieces *pieces) {
    struct chat_instruction row = {0};
    struct chat_request request = tuning_request(format);
    int status = get_value(root, "instruction", &row.instruction);
    if (!status && json_object_get(root, "input") && !json_is_null(json_object_get(root, "input")))
        status = get_value(root, "input", &row.input);
    THEN(status, get_value(root, "output", &row.output));
    THEN(status, tuning_choose_template(format, "alpaca"));
    return status ? status : chat_render_instruction(format->used, &row, &request, pieces);
}

/* Reads the weight of a row's losses: 1 where none is given. A float holds it. */
static int take_weight(const json_t *root, float *weight) {
    const json_t *value = json_object_get(root, "weight");
    double number = json_number_value(value);
    *weight = 1;
    if (!value || json_is_null(value))
        return STATUS_OK;
    if (!json_is_number(value) || !(number >= 0 && number <= (double)FLT_MAX))
        return status_fail(STATUS_INVALID, "field \"weight\" is not a number from 0 to %g", (double)FLT_MAX);
    *weight = (float)number;
    return STATUS_OK;
}

static int parse_messages(const json_t *root, struct tuning_format *format, struct chat_pieces *pieces) {
    struct chat_request request = tuning_request(format);
    const json_t *list = json_object_get(root, "messages");
    if (!json_is_array(list))
        return status_fail(STATUS_INVALID, "field \"messages\" is not a list");
    int status = tuning_choose_template(format, NULL);
    THEN_IF(status, json_array_size(list), chat_take_request(root, &request));
    return status || !request.messages ? status : chat_render_row(format->used, &request, format->answers, pieces);
}

static bool is_given(const json_t *root, const char *field) {
    const json_t *value = json_object_get(root, field);
    return value && !json_is_null(value);
}

/* True when a field holds what a row trains. */
static bool has_answer(const json_t *root) {
    return json_object_get(root, "completion") || json_object_get(root, "messages") ||
           json_object_get(root, "output") || json_object_get(root, "text");
}

struct row_form {
    const char *fields[2]; /* the presence of either selects the form */
    int (*parse)(const json_t *root, struct tuning_format *format, struct chat_pieces *pieces);
    bool is_chat;
};
/* When several forms match, "instruction" takes "input" and "output". */
static const struct row_form forms[] = {
    {{"instruction", NULL}, parse_instruction, true},           {{"messages", NULL}, parse_messages, true},
    {{"prompt", "completion"}, parse_prompt_completion, false}, {{"text", NULL}, parse_text, false},
    {{"input", "output"}, parse_input_output, false},
};

static const struct row_form *find_form(const json_t *root, const char **field) {
    static const char *const refused[] = {"system",  "history",     "conversations", "functions",   "images",
                                          "weights", "loss_weight", "sample_weight", "train_detail"};
    const struct row_form *found = NULL;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (is_given(root, refused[i])) {
            status_fail(STATUS_INVALID, "field \"%s\" is not supported; expected " FORMS ", and \"weight\" at most",
                        refused[i]);
            return NULL;
        }
    if ((is_given(root, "chosen") || is_given(root, "preferred_output")) && !has_answer(root)) {
        status_fail(STATUS_INVALID, "a row of two answers (\"chosen\", \"rejected\") needs --loss dpo or --loss orpo");
        return NULL;
    }
    if (json_is_false(json_object_get(root, "label")) && is_given(root, "completion")) {
        status_fail(STATUS_INVALID, "an answer that is not wanted (\"label\": false) needs --loss kto");
        return NULL;
    }
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        for (size_t k = 0; k < 2 && forms[i].fields[k]; k++) {
            const char *name = forms[i].fields[k];
            bool is_shared = found == &forms[0] && forms[i].parse == parse_input_output;
            if (!json_object_get(root, name) || found == &forms[i] || is_shared)
                continue;
            if (found) {
                status_fail(STATUS_INVALID, "fields \"%s\" and \"%s\" are of two forms; expected one of " FORMS, *field,
                            name);
                return NULL;
            }
            found = &forms[i];
            *field = name;
        }
    if (!found)
        status_fail(STATUS_INVALID, "no field of a row is here; expected " FORMS);
    return found;
}

int tuning_parse_line(const char *line, size_t length, struct tuning_format *format, struct tuning_row *row) {
    const char *field = NULL;
    json_decref(row->root);
    for (int i = 0; i < 2; i++)
        chat_pieces_clear(&row->pieces[i]);
    int status = json_line_read(line, length, &row->root);
    TRY(status);
    if (!json_is_object(row->root))
        return status_fail(STATUS_INVALID, "expected a JSON object " FORMS);
    if ((status = take_weight(row->root, &row->weight)))
        return status;
    if (format->form == TUNING_ANSWERS) {
        const struct row_form *form = find_form(row->root, &field);
        row->is_chat = form && form->is_chat;
        if (form && form->parse != parse_messages && is_given(row->root, "tools"))
            return status_fail(STATUS_INVALID, "field \"tools\" goes with \"messages\" alone");
        status = form ? form->parse(row->root, format, &row->pieces[0]) : STATUS_INVALID;
    } else {
        status = tuning_parse_preference(format, row);
    }
    for (int t = 0; t < 2 && !status && !row->is_chat && format->special_tokens == SPECIAL_TOKENS_PARSE; t++)
        for (size_t i = 0; i < row->pieces[t].count; i++)
            row->pieces[t].items[i].flags |= CHAT_SPECIAL;
    return status;
}
