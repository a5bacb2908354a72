/* The fields of a request, a row each. A field that is null counts as absent. */
#include "requests_line.h"

#include "base/json.h"
#include "data/json_line.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct field {
    const char *name;
    int (*read)(const struct field *field, const json_t *value, struct request_line *line, int64_t vocab);
    size_t offset;
    double low, high; /* both included */
};

/* ---- values ---- */

static int read_integer(const struct field *field, const json_t *value, struct request_line *line, int64_t vocab) {
    (void)vocab;
    json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || (double)number < field->low || (double)number > field->high)
        return status_fail(STATUS_INVALID, "expected an integer from %.0f to %.0f", field->low, field->high);
    *(int64_t *)((char *)line + field->offset) = number;
    return STATUS_OK;
}

static int read_number(const struct field *field, const json_t *value, struct request_line *line, int64_t vocab) {
    (void)vocab;
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= field->low && number <= field->high))
        return status_fail(STATUS_INVALID, "expected a number from %g to %g", field->low, field->high);
    *(double *)((char *)line + field->offset) = number;
    return STATUS_OK;
}

static int read_bool(const struct field *field, const json_t *value, struct request_line *line, int64_t vocab) {
    (void)vocab;
    if (!json_is_boolean(value))
        return status_fail(STATUS_INVALID, "expected true or false");
    *(bool *)((char *)line + field->offset) = json_is_true(value);
    return STATUS_OK;
}

static int read_id(const struct field *field, const json_t *value, struct request_line *line, int64_t vocab) {
    (void)field;
    (void)vocab;
    if (!json_is_string(value) && !json_is_integer(value))
        return status_fail(STATUS_INVALID, "expected a string or an integer");
    line->id = value;
    return STATUS_OK;
}

static int read_seed(const struct field *field, const json_t *value, struct request_line *line, int64_t vocab) {
    int64_t seed = 0;
    (void)field;
    (void)vocab;
    if (!json_is_integer(value) || (seed = json_integer_value(value)) < 0)
        return status_fail(STATUS_INVALID, "expected an integer from 0 to %lld", (long long)INT64_MAX);
    line->sampling.seed = (uint64_t)seed;
    line->has_seed = true;
    return STATUS_OK;
}

/* ---- lists ---- */

static int check_token(const json_t *value, size_t number, int64_t vocab) {
    if (json_is_integer(value) && json_integer_value(value) >= 0 && json_integer_value(value) < vocab)
        return STATUS_OK;
    return status_fail(STATUS_INVALID, "token %zu is not an id from 0 to %lld", number, (long long)vocab - 1);
}

static int read_prompt(const struct field *field, const json_t *value, struct request_line *line, int64_t vocab) {
    (void)field;
    int status = STATUS_OK;
    if (json_is_string(value)) {
        line->prompt = json_string_value(value);
        line->prompt_length = json_string_length(value);
        return STATUS_OK;
    }
    if (!json_is_array(value) || !json_array_size(value))
        return status_fail(STATUS_INVALID, "expected a text, or a list of token ids, at least one");
    for (size_t i = 0; i < json_array_size(value) && !status; i++) {
        status = check_token(json_array_get(value, i), i, vocab);
        if (!status)
            status = token_buffer_add(&line->ids, (int32_t)json_integer_value(json_array_get(value, i)));
    }
    return status;
}

static int read_messages(const struct field *field, const json_t *value, struct request_line *line, int64_t vocab) {
    (void)field;
    (void)vocab;
    return chat_read_messages(value, &line->messages, &line->message_count);
}

static int read_adapters(const struct field *field, const json_t *value, struct request_line *line, int64_t vocab) {
    (void)field;
    (void)vocab;
    size_t count = json_array_size(value);
    if (!json_is_array(value) || count > REQUEST_MAX_ADAPTERS)
        return status_fail(STATUS_INVALID, "expected a list of names of adapters, at most %d", REQUEST_MAX_ADAPTERS);
    for (size_t i = 0; i < count; i++) {
        const json_t *name = json_array_get(value, i);
        if (!json_is_string(name) || strlen(json_string_value(name)) != json_string_length(name))
            return status_fail(STATUS_INVALID, "adapter %zu is not a name", i);
        line->adapters[line->adapter_count++] = json_string_value(name);
    }
    return STATUS_OK;
}

/* A string, or a list of them. */
static int read_stop(const struct field *field, const json_t *value, struct request_line *line, int64_t vocab) {
    (void)field;
    (void)vocab;
    size_t count = json_is_string(value) ? 1 : json_array_size(value);
    if (!json_is_string(value) && !json_is_array(value))
        return status_fail(STATUS_INVALID, "expected a string, or a list of strings");
    line->stop = calloc(count + 1, sizeof *line->stop);
    if (!line->stop)
        return status_fail(STATUS_MEMORY, "out of memory");
    for (size_t i = 0; i < count; i++) {
        const json_t *string = json_is_string(value) ? value : json_array_get(value, i);
        if (!json_is_string(string))
            return status_fail(STATUS_INVALID, "stop string %zu is not a string", i + 1);
        line->stop[line->stop_count++] =
            (struct writer_string){.bytes = json_string_value(string), .length = json_string_length(string)};
    }
    struct writer_stops *stops;
    int status = writer_stops_open(line->stop, count, &stops);
    writer_stops_close(stops);
    return status;
}

static int read_stop_ids(const struct field *field, const json_t *value, struct request_line *line, int64_t vocab) {
    (void)field;
    size_t count = json_array_size(value);
    if (!json_is_array(value) || count > REQUEST_MAX_CHANGES)
        return status_fail(STATUS_INVALID, "expected a list of token ids, at most %d", REQUEST_MAX_CHANGES);
    line->stop_ids = calloc(count + 1, sizeof *line->stop_ids);
    if (!line->stop_ids)
        return status_fail(STATUS_MEMORY, "out of memory");
    int status = STATUS_OK;
    for (size_t i = 0; i < count && !status; i++) {
        status = check_token(json_array_get(value, i), i, vocab);
        if (!status)
            line->stop_ids[line->stop_id_count++] = (int32_t)json_integer_value(json_array_get(value, i));
    }
    return status;
}

/* A key is an id in plain digits; -1 for what is none of the vocabulary. */
static int64_t read_key(const char *key, int64_t vocab) {
    int64_t id = 0;
    if (!*key || (*key == '0' && key[1]))
        return -1;
    for (const char *at = key; *at; at++) {
        if (*at < '0' || *at > '9' || id >= vocab)
            return -1;
        id = id * 10 + (*at - '0');
    }
    return id < vocab ? id : -1;
}

static int read_bias(const struct field *field, const json_t *value, struct request_line *line, int64_t vocab) {
    size_t count = json_object_size(value);
    if (!json_is_object(value) || count > REQUEST_MAX_CHANGES)
        return status_fail(STATUS_INVALID, "expected an object {\"ID\": BIAS}, of at most %d", REQUEST_MAX_CHANGES);
    line->bias = calloc(count + 1, sizeof *line->bias);
    if (!line->bias)
        return status_fail(STATUS_MEMORY, "out of memory");
    const char *key;
    json_t *bias;
    json_object_foreach((json_t *)value, key, bias) {
        char shown[40];
        int64_t id = read_key(key, vocab);
        double number = json_number_value(bias);
        snprintf(shown, sizeof shown, "%s", key);
        if (id < 0)
            return status_fail(STATUS_INVALID, "\"%s\" is not a token id from 0 to %lld", shown, (long long)vocab - 1);
        if (!json_is_number(bias) || !(number >= field->low && number <= field->high))
            return status_fail(STATUS_INVALID, "the bias of token %s is not a number from %g to %g", shown, field->low,
                               field->high);
        line->bias[line->bias_count++] = (struct logit_bias){.id = (int32_t)id, .bias = (float)number};
    }
    return STATUS_OK;
}

/* ---- the line ---- */

#define AT(member) offsetof(struct request_line, member)
static const struct field fields[] = {
    {"id", read_id, 0, 0, 0},
    {"prompt", read_prompt, 0, 0, 0},
    {"messages", read_messages, 0, 0, 0},
    {"adapters", read_adapters, 0, 0, 0},
    {"max_tokens", read_integer, AT(max_tokens), 0, 1e9},
    {"min_tokens", read_integer, AT(min_tokens), 0, 1e9},
    {"n", read_integer, AT(choices), 1, REQUEST_MAX_CHOICES},
    {"seed", read_seed, 0, 0, 0},
    {"temperature", read_number, AT(sampling.temperature), 0, 100},
    {"top_k", read_integer, AT(sampling.top_k), 0, 1e9},
    {"top_p", read_number, AT(sampling.top_p), 1e-6, 1},
    {"min_p", read_number, AT(sampling.min_p), 0, 1},
    {"repetition_penalty", read_number, AT(sampling.repetition_penalty), 0.01, 100},
    {"presence_penalty", read_number, AT(sampling.presence_penalty), -100, 100},
    {"frequency_penalty", read_number, AT(sampling.frequency_penalty), -100, 100},
    {"logit_bias", read_bias, 0, -1e9, 1e9},
    {"stop", read_stop, 0, 0, 0},
    {"stop_token_ids", read_stop_ids, 0, 0, 0},
    {"ignore_eos", read_bool, AT(ignore_eos), 0, 0},
    {"logprobs", read_integer, AT(logprobs), 0, REQUEST_MAX_TOP},
    {"prompt_logprobs", read_integer, AT(prompt_logprobs), 0, REQUEST_MAX_TOP},
    {"priority", read_integer, AT(priority), INT32_MIN, INT32_MAX},
};
enum { FIELDS = sizeof fields / sizeof *fields };

static const struct field *find_field(const char *name) {
    for (size_t i = 0; i < FIELDS; i++)
        if (!strcmp(fields[i].name, name))
            return &fields[i];
    return NULL;
}

static int check_together(const struct request_line *line, const char **field) {
    bool has_prompt = line->prompt || line->ids.count;
    *field = "prompt";
    if (has_prompt == (line->message_count > 0))
        return status_fail(STATUS_INVALID, "expected either \"prompt\" or \"messages\"");
    *field = "logit_bias";
    if (line->bias_count + line->stop_id_count > REQUEST_MAX_CHANGES)
        return status_fail(STATUS_INVALID, "%lld biases and %lld stop_token_ids: at most %d together",
                           (long long)line->bias_count, (long long)line->stop_id_count, REQUEST_MAX_CHANGES);
    *field = "min_tokens";
    if (line->max_tokens >= 0 && line->min_tokens > line->max_tokens)
        return status_fail(STATUS_INVALID, "%lld is more than the max_tokens %lld", (long long)line->min_tokens,
                           (long long)line->max_tokens);
    *field = NULL;
    return STATUS_OK;
}

static int read_fields(struct request_line *line, int64_t vocab, const char **field) {
    const char *key;
    json_t *value;
    if (!json_is_object(line->root))
        return status_fail(STATUS_INVALID, "expected an object");
    const json_t *id = json_object_get(line->root, "id"); /* for the answer, whatever else is wrong */
    if (json_is_string(id) || json_is_integer(id))
        line->id = id;
    json_object_foreach(line->root, key, value) {
        const struct field *row = find_field(key);
        *field = key;
        if (!row)
            return status_fail(STATUS_INVALID, "there is no such field");
        int status = json_is_null(value) ? STATUS_OK : row->read(row, value, line, vocab);
        if (status)
            return status;
    }
    return check_together(line, field);
}

int request_line_read(struct request_line *line, const char *text, size_t length, bool is_first, int64_t vocab,
                      const char **field) {
    json_error_t error;
    *line = (struct request_line){
        .max_tokens = -1,
        .choices = 1,
        .logprobs = -1,
        .prompt_logprobs = -1,
        .sampling = {.temperature = 1, .top_p = 1, .repetition_penalty = 1},
    };
    *field = NULL;
    size_t mark = json_line_mark(text, length, is_first);
    int status = json_read(text + mark, length - mark, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &line->root, &error);
    if (status == STATUS_INVALID)
        return status_fail(status, "column %d: bad JSON: %s", error.column + (int)mark, error.text);
    return status ? status : read_fields(line, vocab, field);
}

void request_line_free(struct request_line *line) {
    token_buffer_free(&line->ids);
    free(line->messages);
    free(line->bias);
    free(line->stop_ids);
    free(line->stop);
    json_decref(line->root);
    *line = (struct request_line){0};
}
