/* From a JSON line to the pieces of a row. What is known of a form is its two or three fields; what would change the
 * meaning of a row and is not built is refused by name, the rest is metadata. */
#include "json_line.h"
#include "tuning-internal.h"

#include <stdlib.h>
#include <string.h>

#define FORMS                                                                                                          \
    "{\"input\", \"output\"}, {\"prompt\", \"completion\"}, {\"messages\"}, {\"instruction\", \"output\"} or "         \
    "{\"text\"}"

void tuning_pieces_free(struct tuning_pieces *pieces) {
    json_decref(pieces->root);
    strbuf_free(&pieces->joined);
    free(pieces->items);
    *pieces = (struct tuning_pieces){0};
}

int tuning_pieces_add(struct tuning_pieces *pieces, const char *text, size_t length, unsigned flags) {
    if (length == 0 && !(flags & PIECE_END))
        return STATUS_OK;
    if (pieces->count == pieces->capacity) {
        size_t capacity = pieces->capacity ? 2 * pieces->capacity : 16;
        struct tuning_piece *grown = realloc(pieces->items, capacity * sizeof *grown);
        if (!grown)
            return status_fail(STATUS_MEMORY, "out of memory");
        pieces->items = grown;
        pieces->capacity = capacity;
    }
    pieces->items[pieces->count++] = (struct tuning_piece){text, length, flags};
    return STATUS_OK;
}

int tuning_pieces_add_answer(struct tuning_pieces *pieces, const char *text, size_t length) {
    int status = tuning_pieces_add(pieces, text, length, PIECE_TRAINED);
    return status ? status : tuning_pieces_add(pieces, NULL, 0, PIECE_END | (length > 0 ? PIECE_TRAINED : 0));
}

/* A field that must be a string. */
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
static int parse_input_output(const json_t *root, struct tuning_format *format, struct tuning_pieces *pieces) {
    const char *input = NULL, *output = NULL;
    size_t input_length = 0, output_length = 0;
    (void)format;
    int status = get_string(root, "input", &input, &input_length);
    if (!status)
        status = get_string(root, "output", &output, &output_length);
    if (status)
        return status;
    strip_spaces(&input, &input_length);
    strip_spaces(&output, &output_length);
    if ((status = tuning_pieces_add(pieces, input, input_length, 0)))
        return status;
    if (output_length == 0)
        return tuning_pieces_add_answer(pieces, NULL, 0);
    strbuf_add_char(&pieces->joined, ' ');
    strbuf_add(&pieces->joined, output, output_length);
    if ((status = strbuf_status(&pieces->joined)))
        return status;
    return tuning_pieces_add_answer(pieces, pieces->joined.data, pieces->joined.length);
}

static int parse_prompt_completion(const json_t *root, struct tuning_format *format, struct tuning_pieces *pieces) {
    const char *prompt = NULL, *completion = NULL;
    size_t prompt_length = 0, completion_length = 0;
    (void)format;
    int status = get_string(root, "prompt", &prompt, &prompt_length);
    if (!status)
        status = get_string(root, "completion", &completion, &completion_length);
    if (!status)
        status = tuning_pieces_add(pieces, prompt, prompt_length, 0);
    return status ? status : tuning_pieces_add_answer(pieces, completion, completion_length);
}

static int parse_text(const json_t *root, struct tuning_format *format, struct tuning_pieces *pieces) {
    const char *text = NULL;
    size_t length = 0;
    (void)format;
    int status = get_string(root, "text", &text, &length);
    return status ? status : tuning_pieces_add_answer(pieces, text, length);
}

/* Fixes the template when a row needs it. `otherwise`: what is used where the tokenizer has none that we know. */
static int choose_template(struct tuning_format *format, enum tuning_template otherwise) {
    enum tuning_template own = format->named;
    int status = STATUS_OK;
    if (format->used != TUNING_TEMPLATE_AUTO)
        return STATUS_OK;
    if (own == TUNING_TEMPLATE_AUTO && format->tokenizer_files)
        status = tuning_template_of_tokenizer(format->tokenizer_files, &own);
    if (status && (status != STATUS_UNSUPPORTED || otherwise == TUNING_TEMPLATE_AUTO))
        return status;
    if (own == TUNING_TEMPLATE_AUTO)
        own = otherwise;
    if (own == TUNING_TEMPLATE_AUTO)
        return status_fail(STATUS_UNSUPPORTED,
                           "messages need a chat template, and the tokenizer has none: name chatml, alpaca or plain");
    format->used = own;
    return STATUS_OK;
}

static int parse_instruction(const json_t *root, struct tuning_format *format, struct tuning_pieces *pieces) {
    struct tuning_instruction row = {0};
    const json_t *input = json_object_get(root, "input");
    int status = get_string(root, "instruction", &row.instruction, &row.instruction_length);
    if (!status && input && !json_is_null(input))
        status = get_string(root, "input", &row.input, &row.input_length);
    if (!status)
        status = get_string(root, "output", &row.output, &row.output_length);
    if (!status)
        status = choose_template(format, TUNING_TEMPLATE_ALPACA);
    return status ? status : tuning_template_add_instruction(format, &row, pieces);
}

static int parse_turn(const json_t *message, struct tuning_turn *turn) {
    static const char *const roles[TUNING_ROLE_COUNT] = {"system", "user", "assistant"};
    static const char *const refused[] = {"tool_calls", "function_call", "weight"};
    const char *role = NULL;
    size_t length = 0, r = 0;
    if (!json_is_object(message))
        return status_fail(STATUS_INVALID, "expected an object {\"role\", \"content\"}");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (json_object_get(message, refused[i]))
            return status_fail(STATUS_INVALID, "field \"%s\" is not supported", refused[i]);
    int status = get_string(message, "role", &role, &length);
    if (!status)
        status = get_string(message, "content", &turn->text, &turn->length);
    if (status)
        return status;
    while (r < TUNING_ROLE_COUNT && (strlen(roles[r]) != length || memcmp(roles[r], role, length) != 0))
        r++;
    if (r == TUNING_ROLE_COUNT)
        return status_fail(STATUS_INVALID, "\"role\" is none of system, user, assistant");
    turn->role = (enum tuning_role)r;
    return turn->role == TUNING_ROLE_SYSTEM && !turn->is_first
               ? status_fail(STATUS_INVALID, "the system's message is not the first")
               : STATUS_OK;
}

static int parse_messages(const json_t *root, struct tuning_format *format, struct tuning_pieces *pieces) {
    const json_t *messages = json_object_get(root, "messages");
    size_t count = json_array_size(messages);
    if (!json_is_array(messages))
        return status_fail(STATUS_INVALID, "field \"messages\" is not a list");
    int status = choose_template(format, TUNING_TEMPLATE_AUTO);
    for (size_t i = 0; i < count && !status; i++) {
        struct tuning_turn turn = {.is_first = i == 0, .is_last = i + 1 == count};
        status = parse_turn(json_array_get(messages, i), &turn);
        if (status)
            return status_wrap(status, "message %zu", i + 1);
        status = tuning_template_add_turn(format, &turn, pieces);
    }
    return status;
}

struct row_form {
    const char *fields[2]; /* one of them names the form */
    int (*parse)(const json_t *root, struct tuning_format *format, struct tuning_pieces *pieces);
};
/* "instruction" owns "input" and "output" where they meet. */
static const struct row_form forms[] = {
    {{"instruction", NULL}, parse_instruction},          {{"messages", NULL}, parse_messages},
    {{"prompt", "completion"}, parse_prompt_completion}, {{"text", NULL}, parse_text},
    {{"input", "output"}, parse_input_output},
};

static const struct row_form *find_form(const json_t *root, const char **field) {
    static const char *const refused[] = {"system", "history", "conversations", "tools", "functions", "images"};
    const struct row_form *found = NULL;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (json_object_get(root, refused[i])) {
            status_fail(STATUS_INVALID, "field \"%s\" is not supported; expected " FORMS, refused[i]);
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

int tuning_parse_line(const char *line, size_t length, bool is_first, struct tuning_format *format,
                      struct tuning_pieces *pieces) {
    const char *field = NULL;
    json_decref(pieces->root);
    pieces->count = 0;
    strbuf_clear(&pieces->joined);
    int status = json_line_read(line, length, is_first, &pieces->root);
    if (status)
        return status;
    if (!json_is_object(pieces->root))
        return status_fail(STATUS_INVALID, "expected a JSON object " FORMS);
    const struct row_form *form = find_form(pieces->root, &field);
    return form ? form->parse(pieces->root, format, pieces) : STATUS_INVALID;
}
