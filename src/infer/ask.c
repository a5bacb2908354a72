/* The table of a request's fields, and checking, scheduling and writing by them. A null field counts as absent. */
#include "ask.h"

#include "slots.h"

#include <math.h>
#include <sys/random.h>

struct field {
    const char *name;
    const struct kind *kind;
    size_t offset;
    double low, high; /* both included */
};

/* The values that fields of one kind take. */
struct kind {
    /* Reads a value that is not null. */
    int (*read)(const struct field *field, const json_t *value, struct ask *ask, int64_t vocab);
    /* Writes the values that `read` takes, null among them, as members of a JSON schema. */
    void (*add_schema)(const struct field *field, int64_t vocab, struct strbuf *out);
};

/* ---- values ---- */

static int set_integer(const struct field *field, struct ask *ask, int64_t value) {
    if ((double)value < field->low || (double)value > field->high)
        return status_fail(STATUS_INVALID, "expected an integer from %.0f to %.0f", field->low, field->high);
    *(int64_t *)((char *)ask + field->offset) = value;
    return STATUS_OK;
}

static int read_integer(const struct field *field, const json_t *value, struct ask *ask, int64_t vocab) {
    if (!json_is_integer(value))
        return status_fail(STATUS_INVALID, "expected an integer from %.0f to %.0f", field->low, field->high);
    return set_integer(field, ask, json_integer_value(value));
}

static int set_number(const struct field *field, struct ask *ask, double value) {
    if (!(value >= field->low && value <= field->high))
        return status_fail(STATUS_INVALID, "expected a number from %g to %g", field->low, field->high);
    *(double *)((char *)ask + field->offset) = value;
    return STATUS_OK;
}

static int read_number(const struct field *field, const json_t *value, struct ask *ask, int64_t vocab) {
    if (!json_is_number(value))
        return status_fail(STATUS_INVALID, "expected a number from %g to %g", field->low, field->high);
    return set_number(field, ask, json_number_value(value));
}

static int read_bool(const struct field *field, const json_t *value, struct ask *ask, int64_t vocab) {
    if (!json_is_boolean(value))
        return status_fail(STATUS_INVALID, "expected true or false");
    *(bool *)((char *)ask + field->offset) = json_is_true(value);
    return STATUS_OK;
}

static int read_seed(const struct field *field, const json_t *value, struct ask *ask, int64_t vocab) {
    if (!json_is_integer(value))
        return status_fail(STATUS_INVALID, "expected an integer from %lld to %lld", (long long)INT64_MIN,
                           (long long)INT64_MAX);
    ask->sampling.seed = (uint64_t)json_integer_value(value);
    ask->has_seed = json_integer_value(value) != -1; /* as in vLLM and llama.cpp: any seed */
    return STATUS_OK;
}

static int read_parse_special(const struct field *field, const json_t *value, struct ask *ask, int64_t vocab) {
    ask->has_parse_special = true;
    return read_bool(field, value, ask, vocab);
}

unsigned ask_special_flag(const struct ask *ask, enum special_tokens otherwise) {
    return ask->has_parse_special ? (ask->parse_special ? TOKENIZER_ALLOW_SPECIAL : TOKENIZER_PLAIN)
                                  : special_tokens_flag(otherwise);
}

/* ---- lists ---- */

static int reserve(size_t count, size_t most, size_t size, const char *what, void *list) {
    void *items = NULL;
    if (count > most)
        return status_fail(STATUS_INVALID, "expected at most %zu %s", most, what);
    items = calloc(count + 1, size);
    memcpy(list, &items, sizeof items);
    return status_allocated(items);
}

int ask_reserve_bias(struct ask *ask, size_t count) {
    int status = reserve(count, ASK_MAX_BIASES, sizeof *ask->bias, "biases", &ask->bias);
    ask->bias_count = status ? 0 : (int64_t)count;
    return status;
}

int ask_reserve_stop_ids(struct ask *ask, size_t count) {
    int status = reserve(count, ASK_MAX_STOP_IDS, sizeof *ask->stop_ids, "token ids", &ask->stop_ids);
    ask->stop_id_count = status ? 0 : (int64_t)count;
    return status;
}

int ask_reserve_stops(struct ask *ask, size_t count) {
    int status = reserve(count, WRITER_MAX_STOPS, sizeof *ask->stop, "strings", &ask->stop);
    ask->stop_count = status ? 0 : (int64_t)count;
    return status;
}

int ask_read_id(const json_t *value, size_t number, int64_t vocab, int32_t *id) {
    json_int_t given = json_integer_value(value);
    if (!json_is_integer(value) || given < 0 || given >= vocab)
        return status_fail(STATUS_INVALID, "token %zu is not an id from 0 to %lld", number, (long long)vocab - 1);
    *id = (int32_t)given;
    return STATUS_OK;
}

static int check_stops(const struct ask *ask) {
    struct writer_stops *stops;
    int status = writer_stops_open(ask->stop, (size_t)ask->stop_count, &stops);
    writer_stops_close(stops);
    return status;
}

int ask_take_stops(struct ask *ask, const char *const *strings, size_t count) {
    free(ask->stop);
    ask->stop = calloc(count + 1, sizeof *ask->stop);
    ask->stop_count = ask->stop ? (int64_t)count : 0;
    for (int64_t i = 0; i < ask->stop_count; i++)
        ask->stop[i] = (struct writer_string){strings[i], strlen(strings[i])};
    return ask->stop ? check_stops(ask) : status_no_memory();
}

static int read_adapters(const struct field *field, const json_t *value, struct ask *ask, int64_t vocab) {
    size_t count = json_array_size(value);
    if (!json_is_array(value) || count > ASK_MAX_ADAPTERS)
        return status_fail(STATUS_INVALID, "expected a list of names of adapters, at most %d", ASK_MAX_ADAPTERS);
    for (size_t i = 0; i < count; i++) {
        const json_t *name = json_array_get(value, i);
        if (!json_is_string(name) || strlen(json_string_value(name)) != json_string_length(name))
            return status_fail(STATUS_INVALID, "adapter %zu is not a name", i);
        ask->adapters[ask->adapter_count++] = json_string_value(name);
    }
    return STATUS_OK;
}

/* A string, or a list of them. */
static int read_stop(const struct field *field, const json_t *value, struct ask *ask, int64_t vocab) {
    size_t count = json_is_string(value) ? 1 : json_array_size(value);
    if (!json_is_string(value) && !json_is_array(value))
        return status_fail(STATUS_INVALID, "expected a string, or a list of strings");
    int status = ask_reserve_stops(ask, count);
    for (size_t i = 0; i < count && !status; i++) {
        const json_t *string = json_is_string(value) ? value : json_array_get(value, i);
        if (!json_is_string(string))
            return status_fail(STATUS_INVALID, "stop string %zu is not a string", i + 1);
        ask->stop[i] = (struct writer_string){.bytes = json_string_value(string), .length = json_string_length(string)};
    }
    return status ? status : check_stops(ask);
}

static int read_stop_ids(const struct field *field, const json_t *value, struct ask *ask, int64_t vocab) {
    size_t count = json_array_size(value);
    if (!json_is_array(value) || count > ASK_MAX_STOP_IDS)
        return status_fail(STATUS_INVALID, "expected a list of token ids, at most %d", ASK_MAX_STOP_IDS);
    int status = ask_reserve_stop_ids(ask, count);
    for (size_t i = 0; i < count && !status; i++)
        status = ask_read_id(json_array_get(value, i), i, vocab, &ask->stop_ids[i]);
    return status;
}

/* Returns the id that the key has in plain digits; -1 if it is not an id of the vocabulary. */
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

static int read_bias(const struct field *field, const json_t *value, struct ask *ask, int64_t vocab) {
    size_t count = json_object_size(value);
    if (!json_is_object(value) || count > ASK_MAX_BIASES)
        return status_fail(STATUS_INVALID, "expected an object {\"ID\": BIAS}, of at most %d", ASK_MAX_BIASES);
    TRY(ask_reserve_bias(ask, count));
    const char *key;
    json_t *bias;
    count = 0;
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
        ask->bias[count++] = (struct logit_bias){.id = (int32_t)id, .bias = (float)number};
    }
    return STATUS_OK;
}

static int read_constraint(const struct field *field, const json_t *value, struct ask *ask, int64_t vocab) {
    return ask_constraint_read(&ask->constraint, field->name, value);
}

/* ---- schemas ---- */

static void add_integer_schema(const struct field *field, int64_t vocab, struct strbuf *out) {
    strbuf_format(out, "\"type\":[\"integer\",\"null\"],\"minimum\":%.0f,\"maximum\":%.0f", field->low, field->high);
}

static void add_number_schema(const struct field *field, int64_t vocab, struct strbuf *out) {
    strbuf_format(out, "\"type\":[\"number\",\"null\"],\"minimum\":%g,\"maximum\":%g", field->low, field->high);
}

static void add_bool_schema(const struct field *field, int64_t vocab, struct strbuf *out) {
    strbuf_add_text(out, "\"type\":[\"boolean\",\"null\"]");
}

static void add_seed_schema(const struct field *field, int64_t vocab, struct strbuf *out) {
    strbuf_format(out, "\"type\":[\"integer\",\"null\"],\"minimum\":%lld,\"maximum\":%lld", (long long)INT64_MIN,
                  (long long)INT64_MAX);
}

static void add_adapters_schema(const struct field *field, int64_t vocab, struct strbuf *out) {
    strbuf_format(out, "\"type\":[\"array\",\"null\"],\"items\":{\"type\":\"string\"},\"maxItems\":%d",
                  ASK_MAX_ADAPTERS);
}

static void add_stop_schema(const struct field *field, int64_t vocab, struct strbuf *out) {
    strbuf_format(out,
                  "\"type\":[\"string\",\"array\",\"null\"],\"minLength\":1,"
                  "\"items\":{\"type\":\"string\",\"minLength\":1},\"maxItems\":%d",
                  WRITER_MAX_STOPS);
}

static void add_stop_ids_schema(const struct field *field, int64_t vocab, struct strbuf *out) {
    strbuf_format(out,
                  "\"type\":[\"array\",\"null\"],\"items\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":%lld},"
                  "\"maxItems\":%d",
                  (long long)vocab - 1, ASK_MAX_STOP_IDS);
}

static void add_bias_schema(const struct field *field, int64_t vocab, struct strbuf *out) {
    strbuf_format(out,
                  "\"type\":[\"object\",\"null\"],\"maxProperties\":%d,"
                  "\"propertyNames\":{\"pattern\":\"^(0|[1-9][0-9]*)$\"},"
                  "\"additionalProperties\":{\"type\":\"number\",\"minimum\":%g,\"maximum\":%g}",
                  ASK_MAX_BIASES, field->low, field->high);
}

static void add_constraint_schema(const struct field *field, int64_t vocab, struct strbuf *out) {
    ask_constraint_add_schema(field->name, out);
}

static const struct kind integer_kind = {read_integer, add_integer_schema};
static const struct kind number_kind = {read_number, add_number_schema};
static const struct kind bool_kind = {read_bool, add_bool_schema};
static const struct kind parse_special_kind = {read_parse_special, add_bool_schema};
static const struct kind seed_kind = {read_seed, add_seed_schema};
static const struct kind adapters_kind = {read_adapters, add_adapters_schema};
static const struct kind stop_kind = {read_stop, add_stop_schema};
static const struct kind stop_ids_kind = {read_stop_ids, add_stop_ids_schema};
static const struct kind bias_kind = {read_bias, add_bias_schema};
static const struct kind constraint_kind = {read_constraint, add_constraint_schema};

/* ---- the table ---- */

#define AT(member) offsetof(struct ask, member)
static const struct field fields[] = {
    {"adapters", &adapters_kind, 0, 0, 0},
    {"max_tokens", &integer_kind, AT(max_tokens), 0, 1e9},
    {"min_tokens", &integer_kind, AT(min_tokens), 0, 1e9},
    {"n", &integer_kind, AT(choices), 1, ASK_MAX_CHOICES},
    {"seed", &seed_kind, 0, 0, 0},
    {"temperature", &number_kind, AT(sampling.temperature), 0, 100},
    {"top_k", &integer_kind, AT(sampling.top_k), -1, 1e9},
    {"top_p", &number_kind, AT(sampling.top_p), 0, 1},
    {"min_p", &number_kind, AT(sampling.min_p), 0, 1},
    {"repetition_penalty", &number_kind, AT(sampling.repetition_penalty), 0.01, 100},
    {"presence_penalty", &number_kind, AT(sampling.presence_penalty), -100, 100},
    {"frequency_penalty", &number_kind, AT(sampling.frequency_penalty), -100, 100},
    {"logit_bias", &bias_kind, 0, -1e9, 1e9},
    {"stop", &stop_kind, 0, 0, 0},
    {"stop_token_ids", &stop_ids_kind, 0, 0, 0},
    {"ignore_eos", &bool_kind, AT(ignore_eos), 0, 0},
    {"parse_special", &parse_special_kind, AT(parse_special), 0, 0},
    {"logprobs", &integer_kind, AT(logprobs), 0, ASK_MAX_TOP},
    {"prompt_logprobs", &integer_kind, AT(prompt_logprobs), 0, ASK_MAX_TOP},
    {"priority", &integer_kind, AT(priority), INT32_MIN, INT32_MAX},
    {"structured_outputs", &constraint_kind, 0, 0, 0},
    {"response_format", &constraint_kind, 0, 0, 0},
    {"guided_json", &constraint_kind, 0, 0, 0},
    {"guided_regex", &constraint_kind, 0, 0, 0},
    {"guided_choice", &constraint_kind, 0, 0, 0},
    {"guided_grammar", &constraint_kind, 0, 0, 0},
    {"guided_json_object", &constraint_kind, 0, 0, 0},
    {"guided_decoding_backend", &constraint_kind, 0, 0, 0},
    {"grammar", &constraint_kind, 0, 0, 0},
    {"json_schema", &constraint_kind, 0, 0, 0},
    {"regex", &constraint_kind, 0, 0, 0},
    {"ebnf", &constraint_kind, 0, 0, 0},
};
enum { FIELDS = sizeof fields / sizeof *fields };

static const struct field *find_field(const char *name) {
    for (size_t i = 0; i < FIELDS; i++)
        if (!strcmp(fields[i].name, name))
            return &fields[i];
    return NULL;
}

const char *ask_field_name(size_t number) {
    return number < FIELDS ? fields[number].name : NULL;
}

void ask_add_schema(size_t number, int64_t vocab, struct strbuf *out) {
    const struct field *field = &fields[number];
    strbuf_format(out, "\"%s\":{", field->name);
    field->kind->add_schema(field, vocab, out);
    strbuf_add_char(out, '}');
}

int ask_read_field(struct ask *ask, const char *name, const json_t *value, int64_t vocab, bool *is_known) {
    const struct field *field = find_field(name);
    *is_known = field != NULL;
    return !field || json_is_null(value) ? STATUS_OK : field->kind->read(field, value, ask, vocab);
}

const char *ask_nearest_field(const char *name, const char *const *others, size_t count) {
    const char *names[FIELDS], *best[2];
    for (size_t i = 0; i < FIELDS; i++)
        names[i] = fields[i].name;
    best[0] = config_nearest(name, names, FIELDS);
    best[1] = config_nearest(name, others, count);
    return config_nearest(name, best, 2);
}

int ask_set_integer(struct ask *ask, const char *name, int64_t value) {
    return set_integer(find_field(name), ask, value);
}

int ask_set_number(struct ask *ask, const char *name, double value) {
    return set_number(find_field(name), ask, value);
}

void ask_begin(struct ask *ask) {
    *ask = (struct ask){
        .max_tokens = -1,
        .choices = 1,
        .logprobs = -1,
        .prompt_logprobs = -1,
        .sampling = {.temperature = 1, .top_p = 1, .repetition_penalty = 1},
    };
}

void ask_free(struct ask *ask) {
    free(ask->bias);
    free(ask->stop_ids);
    free(ask->stop);
    ask_constraint_free(&ask->constraint);
    *ask = (struct ask){0};
}

/* ---- checks of combined fields ---- */

static int check_ids(const struct ask *ask, int64_t vocab, const char **field) {
    const struct field *row = find_field("logit_bias");
    *field = row->name;
    for (int64_t i = 0; i < ask->bias_count; i++) {
        const struct logit_bias *bias = &ask->bias[i];
        if (bias->id < 0 || bias->id >= vocab)
            return status_fail(STATUS_INVALID, "%d is not a token id from 0 to %lld", bias->id, (long long)vocab - 1);
        if (!((double)bias->bias >= row->low && (double)bias->bias <= row->high))
            return status_fail(STATUS_INVALID, "the bias of token %d is not a number from %g to %g", bias->id, row->low,
                               row->high);
        for (int64_t k = 0; k < i; k++)
            if (ask->bias[k].id == bias->id)
                return status_fail(STATUS_INVALID, "token %d has two biases", bias->id);
    }
    *field = "stop_token_ids";
    for (int64_t i = 0; i < ask->stop_id_count; i++)
        if (ask->stop_ids[i] < 0 || ask->stop_ids[i] >= vocab)
            return status_fail(STATUS_INVALID, "%d is not a token id from 0 to %lld", ask->stop_ids[i],
                               (long long)vocab - 1);
    return STATUS_OK;
}

int ask_check(const struct ask *ask, int64_t vocab, const char **field) {
    TRY(check_ids(ask, vocab, field));
    *field = "stop";
    TRY(check_stops(ask));
    *field = "min_tokens";
    if (ask->max_tokens >= 0 && ask->min_tokens > ask->max_tokens)
        return status_fail(STATUS_INVALID, "%lld is more than the max_tokens %lld", (long long)ask->min_tokens,
                           (long long)ask->max_tokens);
    *field = "ignore_eos";
    if (ask->constraint.source.field && ask->ignore_eos)
        return status_fail(STATUS_INVALID, "%s ends a completion where its text is complete",
                           ask->constraint.source.field);
    *field = NULL;
    return STATUS_OK;
}

int ask_draw_seed(struct ask *ask) {
    uint64_t seed;
    if (ask->has_seed)
        return STATUS_OK;
    if (getrandom(&seed, sizeof seed, 0) != sizeof seed)
        return status_fail_errno("cannot draw a seed");
    ask->sampling.seed = seed >> 11;
    ask->has_seed = true;
    return STATUS_OK;
}

void ask_derive_seed(struct ask *ask, uint64_t seed, int64_t number) {
    uint64_t digest = digest_bytes(digest_bytes(DIGEST_START, &seed, sizeof seed), &number, sizeof number);
    if (!ask->has_seed)
        ask->sampling.seed = digest >> 11;
    ask->has_seed = true;
}

/* ---- ends of its completions ---- */

/* Drops end ids of the tokenizer that the model cannot draw. */
static void drop_ends(struct prompt_ends *ends, int64_t vocab) {
    size_t kept = 0;
    for (size_t i = 0; i < ends->count; i++)
        if (ends->ids[i] < vocab)
            ends->ids[kept++] = ends->ids[i];
    ends->count = kept;
}

int ask_ends_open(const struct ask *ask, const struct ask_model *model, struct ask_ends *ends) {
    size_t count = (size_t)ask->stop_count;
    int status = STATUS_OK;
    /* A constraint holds for the bytes of every token, the first one's space among them. */
    *ends = (struct ask_ends){.is_answer = model->template && !model->continues && !ask->constraint.source.field};
    if (!ask->ignore_eos)
        status = prompt_ends_find(model->tokenizer, model->text->eos, model->text->count, model->template,
                                  model->template_seconds, &ends->prompt);
    TRY(status);
    drop_ends(&ends->prompt, model->vocab);
    struct writer_string *strings = calloc(count + 1, sizeof *strings);
    TRY(status_allocated(strings));
    if (count)
        memcpy(strings, ask->stop, count * sizeof *strings);
    const char *turn_end = ends->prompt.turn_end;
    if (*turn_end)
        strings[count++] = (struct writer_string){.bytes = turn_end, .length = strlen(turn_end)};
    status = count ? writer_stops_open(strings, count, &ends->stops) : STATUS_OK;
    free(strings);
    return status;
}

void ask_ends_close(struct ask_ends *ends) {
    writer_stops_close(ends->stops);
    *ends = (struct ask_ends){0};
}

/* ---- scheduling ---- */

int ask_check_length(const struct ask *ask, const struct ask_prompt *prompt, int64_t most, const char **field) {
    int64_t remaining = most - engine_slot_virtual_tokens(prompt->engine, prompt->slot) - prompt->count;
    *field = NULL;
    TRY(engine_check_tokens(prompt->engine, prompt->slot, "the prompt has ", prompt->ids, prompt->count));
    *field = ask->min_tokens > remaining ? "min_tokens" : "max_tokens";
    int64_t wanted = ask->min_tokens > remaining ? ask->min_tokens : ask->max_tokens;
    return wanted <= remaining
               ? STATUS_OK
               : status_fail(STATUS_INVALID,
                             "%lld tokens after a prompt of %lld: the model's %lld positions have room for "
                             "%lld",
                             (long long)wanted, (long long)prompt->count,
                             (long long)engine_max_positions(prompt->engine), (long long)remaining);
}

void ask_schedule(const struct ask *ask, const struct ask_ends *ends, const struct ask_prompt *prompt,
                  struct scheduler_request *scheduled) {
    *scheduled = (struct scheduler_request){
        .prompt = prompt->ids,
        .prompt_length = prompt->count,
        .slot = prompt->slot,
        .virtual_tokens = engine_slot_virtual_tokens(prompt->engine, prompt->slot),
        .virtual_tokens_predict = engine_slot_predicts_first(prompt->engine, prompt->slot),
        .max_tokens = ask->max_tokens,
        .min_tokens = ask->min_tokens,
        .choices = ask->choices,
        .sampling = ask->sampling,
        .bias = ask->bias,
        .bias_count = ask->bias_count,
        .end_ids = ends->prompt.ids,
        .end_count = (int64_t)ends->prompt.count,
        .stop_ids = ask->stop_ids,
        .stop_count = ask->stop_id_count,
        .wants_logprobs = ask->logprobs >= 0,
        .top_count = ask->logprobs > 0 ? (int32_t)ask->logprobs : 0,
        .wants_prompt_logprobs = ask->prompt_logprobs >= 0,
        .prompt_top_count = ask->prompt_logprobs > 0 ? (int32_t)ask->prompt_logprobs : 0,
        .priority = (int32_t)ask->priority,
    };
}

/* ---- writing a completion ---- */

int ask_write(const struct ask_completion *completion, int32_t token, struct strbuf *out, bool *is_ended) {
    const struct tokenizer *tokenizer = completion->tokenizer;
    struct writer *writer = completion->writer;
    size_t length = 0;
    /* A model's vocabulary may be padded beyond the tokenizer's: such an id has no bytes. */
    bool is_first = completion->ends->is_answer && completion->drawn == 1;
    const unsigned char *bytes =
        tokenizer ? (is_first ? tokenizer_first_bytes : tokenizer_token_bytes)(tokenizer, token, &length) : NULL;
    /* A stop string that begins within the first min_tokens tokens does not count. */
    writer->stops = completion->drawn > completion->ask->min_tokens ? completion->ends->stops : NULL;
    int status = writer_add(writer, bytes, length, out);
    *is_ended = writer->is_stopped;
    return status;
}

int64_t ask_find_stop(const struct ask *ask, const struct writer *writer) {
    for (int64_t i = 0; writer->is_stopped && i < ask->stop_count; i++)
        if (ask->stop[i].length == writer->stop_length &&
            !memcmp(ask->stop[i].bytes, writer->held.data + writer->stop_begin, writer->stop_length))
            return i + 1;
    return 0;
}
