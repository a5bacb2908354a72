/* Turns a JSON line into the texts of a preference row: a prompt with two answers, or with one answer and a label. A
 * prompt and its answers are texts, or messages that a chat template writes. */
#include "tuning-internal.h"

#define PAIRS  "{\"prompt\", \"chosen\", \"rejected\"} or {\"input\", \"preferred_output\", \"non_preferred_output\"}"
#define LABELS "{\"prompt\", \"completion\", \"label\"}"

/* A prompt and the fields that belong to it. */
struct prompt {
    const json_t *value;  /* a string or a list of messages; NULL: the answers are whole chats */
    const json_t *fields; /* the object with tools and documents */
};

static const json_t *given(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

/* Adds a copy of the prompt's messages. Where the answer is several messages, only those are trained. */
static int add_prompt(json_t *messages, const json_t *prompt, bool is_silent) {
    size_t i;
    json_t *message;
    json_array_foreach((json_t *)prompt, i, message) {
        json_t *copy = json_copy(message);
        if (copy && is_silent && chat_is_assistants(message)) {
            json_object_del(copy, "train");
            json_object_set_new(copy, "weight", json_integer(0));
        }
        if (!copy || json_array_append_new(messages, copy))
            return status_no_memory();
    }
    return STATUS_OK;
}

static int render_answer(const struct prompt *prompt, const char *field, const json_t *answer,
                         struct tuning_format *format, struct chat_pieces *pieces) {
    size_t count = json_array_size(answer);
    struct chat_request request = tuning_request(format);
    bool has_one = count == 1 || !prompt->value;
    if (!json_is_array(answer) || !chat_is_assistants(json_array_get(answer, count - 1)))
        return status_fail(STATUS_INVALID, "field \"%s\" does not end with a message of the assistant", field);
    json_t *object = json_copy((json_t *)prompt->fields), *messages = json_array();
    int status = object && messages ? tuning_choose_template(format, NULL) : status_no_memory();
    THEN_IF(status, prompt->value, add_prompt(messages, prompt->value, !has_one));
    if (!status && (json_array_extend(messages, (json_t *)answer) || json_object_set(object, "messages", messages)))
        status = status_no_memory();
    THEN(status, chat_take_request(object, &request));
    THEN(status, chat_render_row(format->used, &request, has_one ? CHAT_ANSWERS_LAST : CHAT_ANSWERS_ALL, pieces));
    json_decref(object);
    json_decref(messages);
    return status;
}

/* Writes the prompt with one answer, which is the field of `object`. */
static int take_answer(const struct prompt *prompt, const json_t *object, const char *field,
                       struct tuning_format *format, struct chat_pieces *pieces) {
    const json_t *answer = given(object, field);
    if (!answer)
        return status_fail(STATUS_INVALID, "the row has no field \"%s\"", field);
    if (prompt->value ? json_is_array(prompt->value) : json_is_array(answer))
        return render_answer(prompt, field, answer, format, pieces);
    if (!json_is_string(prompt->value) || !json_is_string(answer))
        return status_fail(STATUS_INVALID, "%s \"%s\" is neither a string nor a list of messages",
                           json_is_string(prompt->value) ? "field" : "the prompt of", field);
    int status = chat_pieces_add(pieces, json_string_value(prompt->value), json_string_length(prompt->value), 0);
    return status ? status : chat_pieces_add_answer(pieces, json_string_value(answer), json_string_length(answer), 0);
}

static int take_pair(const json_t *root, struct tuning_format *format, struct tuning_row *row) {
    static const char *const names[2][2] = {{"chosen", "rejected"}, {"preferred_output", "non_preferred_output"}};
    const json_t *input = given(root, "input");
    bool is_openai = given(root, names[1][0]) || given(root, names[1][1]);
    struct prompt prompt = {.value = given(root, "prompt"), .fields = root};
    if (is_openai)
        prompt = (struct prompt){.value = given(input, "messages"), .fields = input};
    if (is_openai && !json_is_array(prompt.value))
        return status_fail(STATUS_INVALID, "field \"input\" has no list of \"messages\"");
    if (!is_openai && !given(root, names[0][0]) && !given(root, names[0][1]))
        return status_fail(STATUS_INVALID, "not a row of two answers; expected " PAIRS);
    int status = STATUS_OK;
    for (int i = 0; i < 2 && !status; i++)
        status = take_answer(&prompt, root, names[is_openai][i], format, &row->pieces[i]);
    row->is_chat = !json_is_string(prompt.value);
    return status;
}

static int take_labelled(const json_t *root, struct tuning_format *format, struct tuning_row *row) {
    const struct prompt prompt = {.value = given(root, "prompt"), .fields = root};
    const json_t *label = given(root, "label");
    if (!prompt.value || !given(root, "completion") || !label)
        return status_fail(STATUS_INVALID, "not a row of an answer with a label; expected " LABELS);
    if (!json_is_boolean(label))
        return status_fail(STATUS_INVALID, "field \"label\" is neither true nor false");
    row->weight = json_is_true(label) ? row->weight : -row->weight;
    row->is_chat = !json_is_string(prompt.value);
    return take_answer(&prompt, root, "completion", format, &row->pieces[0]);
}

int tuning_parse_preference(struct tuning_format *format, struct tuning_row *row) {
    return format->form == TUNING_PAIRS ? take_pair(row->root, format, row) : take_labelled(row->root, format, row);
}
