/* Fields of a row's JSON object. A failure names the field and says what was expected. */
#include "tasks-internal.h"

void field_refuse(struct fields *fields, const char *name, const char *expected) {
    if (!fields->status)
        fields->status = status_fail(STATUS_INVALID, "\"%s\": expected %s", name, expected);
}

static struct text text_of(const json_t *value) {
    return (struct text){json_string_value(value), json_string_length(value)};
}

struct text field_text(struct fields *fields, const char *name) {
    const json_t *value = json_object_get(fields->object, name);
    if (!json_is_string(value))
        field_refuse(fields, name, "a text");
    return fields->status ? (struct text){"", 0} : text_of(value);
}

/* Returns the number that a text of one to nine digits is; -1 for another value. */
static int64_t number_of_digits(const json_t *value) {
    struct text text = json_is_string(value) ? text_of(value) : (struct text){"", 0};
    int64_t number = 0;
    if (text.length < 1 || text.length > 9)
        return -1;
    for (size_t i = 0; i < text.length; i++) {
        if (text.bytes[i] < '0' || text.bytes[i] > '9')
            return -1;
        number = number * 10 + text.bytes[i] - '0';
    }
    return number;
}

int64_t field_index(struct fields *fields, const char *name, int64_t most, bool takes_digits) {
    const json_t *value = json_object_get(fields->object, name);
    int64_t number = json_is_integer(value) ? json_integer_value(value) : -1;
    char expected[64];
    if (takes_digits && !json_is_integer(value))
        number = number_of_digits(value);
    snprintf(expected, sizeof expected, "a number from 0 to %lld", (long long)most);
    if (number < 0 || number > most)
        field_refuse(fields, name, expected);
    return fields->status ? 0 : number;
}

const json_t *field_texts(struct fields *fields, const char *name, size_t least, size_t *count) {
    const json_t *texts = json_object_get(fields->object, name);
    bool is_list = json_is_array(texts) && json_array_size(texts) >= least;
    char expected[64];
    *count = is_list ? json_array_size(texts) : 0;
    for (size_t i = 0; i < *count; i++)
        is_list &= json_is_string(json_array_get(texts, i));
    snprintf(expected, sizeof expected, "a list of at least %zu texts", least);
    if (!is_list)
        field_refuse(fields, name, expected);
    *count = fields->status ? 0 : *count;
    return fields->status ? NULL : texts;
}

struct text text_at(const json_t *texts, size_t i) {
    return text_of(json_array_get(texts, i));
}
