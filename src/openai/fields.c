/* The fields of a body: those that completions and chats share, and unknown ones.
 *
 * Ignoring an unknown field must not change an answer. A field that would change it is refused by name, whether other
 * servers have it or it is a misspelt name of ours. All others are ignored, and named in the answer. */
#include "openai.h"

#include "json_in.h"
#include "json_out.h"

#include "base/base.h"
#include "config/config.h"

/* ---- of both ---- */

static bool read_stream_options(struct openai *request, const char *name, const json_t *value, struct error *error) {
    if (!json_is_object(value))
        return error_set(error, ERROR_ARGUMENT, name, "%s: expected an object", name);
    if (!json_is_true(json_object_get(request->root, "stream")))
        return error_set(error, ERROR_ARGUMENT, name, "%s: only for a stream", name);
    return json_in_bool(json_object_get(value, "include_usage"), name, &request->tells_usage, error);
}

static bool read_cache_salt(struct openai *request, const char *name, const json_t *value, struct error *error) {
    if (!json_in_string(value, name, &request->asked->cache_salt, error))
        return false;
    request->asked->cache_salt_length = json_string_length(value);
    return true;
}

static bool read_best_of(struct openai *request, const char *name, const json_t *value, struct error *error) {
    const json_t *n = json_object_get(request->root, "n");
    int64_t best_of = 1, choices = json_is_integer(n) ? json_integer_value(n) : 1;
    if (!json_in_integer(value, name, 1, ASK_MAX_CHOICES, &best_of, error))
        return false;
    if (best_of <= choices)
        return true;
    return error_set(error, ERROR_ARGUMENT, name, "%s: more than n is not supported", name);
}

#define FLAG(member) offsetof(struct openai, member)
static const struct openai_field common[] = {
    {"model", "Name", 0, NULL},
    {"user", "Anything", 0, NULL},
    {"stream", "Flag", FLAG(is_stream), NULL},
    {"stream_options", "StreamOptions", 0, read_stream_options},
    {"cache_salt", "Name", 0, read_cache_salt},
    {"return_token_ids", "Flag", FLAG(returns_ids), NULL},
    {"best_of", "Count", 0, read_best_of},
};

static const struct openai_field *find_field(const struct openai_field *fields, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (!strcmp(fields[i].name, name))
            return &fields[i];
    return NULL;
}

/* ---- of none ---- */

/* Fields that would change the answer, with the JSON values that would not. */
struct other_field {
    const char *name, *neutral; /* neutral NULL: only null */
};
static const struct other_field others[] = {
    {"add_special_tokens", "true"}, /* for a completion; a chat has the special tokens of its template */
    {"allowed_token_ids", NULL},
    {"audio", NULL},
    {"bad_words", "[]"},
    {"beam_width", "1"},
    {"chat_template", NULL},
    {"early_stopping", "false"},
    {"function_call", NULL},
    {"functions", NULL},
    {"include_stop_str_in_output", "false"},
    {"length_penalty", "1"},
    {"logits_processors", NULL},
    {"min_length", "0"},
    {"modalities", "[\"text\"]"},
    {"no_repeat_ngram_size", "0"},
    {"num_beams", "1"},
    {"prompt_embeds", NULL},
    {"reasoning_effort", NULL},
    {"return_tokens_as_token_ids", "false"},
    {"skip_special_tokens", "true"},
    {"spaces_between_special_tokens", "true"},
    {"structural_tag", NULL},
    {"suffix", "\"\""},
    {"truncate_prompt_tokens", NULL},
    {"typical_p", "1"},
    {"use_beam_search", "false"},
    {"verbosity", NULL},
    {"web_search_options", NULL},
};

/* Fields of stock clients that change nothing. They are ignored, however similar they are to ours. */
static const char *const harmless[] = {
    "metadata",   "prediction",        "prompt_cache_key", "prompt_cache_retention",
    "request_id", "safety_identifier", "service_tier",     "store",
};

static const struct other_field *find_other(const char *name) {
    static const struct other_field guided = {"guided_", NULL};
    if (!strncmp(name, guided.name, strlen(guided.name)))
        return &guided;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(others[i].name, name))
            return &others[i];
    return NULL;
}

static bool is_harmless(const char *name) {
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (!strcmp(harmless[i], name))
            return true;
    return false;
}

static bool is_neutral(const struct other_field *field, const json_t *value) {
    json_t *neutral = field->neutral ? json_loads(field->neutral, JSON_DECODE_ANY, NULL) : NULL;
    bool is_same = neutral && (json_equal(neutral, value) || (json_is_number(neutral) && json_is_number(value) &&
                                                              json_number_value(neutral) == json_number_value(value)));
    json_decref(neutral);
    return is_same;
}

/* Returns how many letters may be wrong in a name that is taken for a known one. It is fewer than for a suggestion,
 * because the request is refused. */
/* Returns the nearest known field; NULL: none is near. */
static const char *find_nearest(const struct openai_kind *kind, const char *name) {
    const char *best = NULL, *known;
    size_t commons = sizeof common / sizeof *common, least = SIZE_MAX;
    if (strlen(name) > CONFIG_MAX_WORD)
        return NULL;
    for (size_t i = 0;; i++) {
        known = i < kind->field_count             ? kind->fields[i].name
                : i < kind->field_count + commons ? common[i - kind->field_count].name
                                                  : ask_field_name(i - kind->field_count - commons);
        if (!known)
            return best;
        size_t distance = config_distance(name, known);
        /* `user` changes nothing, and so do names like it. */
        if (distance < least && distance <= config_mistakes(name, known) && strcmp(known, "user") != 0) {
            least = distance;
            best = known;
        }
    }
}

static bool refuse_near(struct error *error, const char *name, const char *what, const char *nearest) {
    return error_set(error, ERROR_ARGUMENT, name, "%.64s: %s%s%s%s", name, what, nearest ? " (did you mean " : "",
                     nearest ? nearest : "", nearest ? "?)" : "");
}

static void add_ignored(struct openai *request, const char *name, size_t most) {
    size_t length = strlen(name);
    if (request->ignored_names.length)
        strbuf_add_char(&request->ignored_names, ',');
    json_out_string(&request->ignored_names, name, length < most ? length : most);
}

void openai_add_ignored(struct openai *request, const json_t *ignored) {
    size_t index;
    json_t *at;
    json_array_foreach((json_t *)ignored, index, at) {
        add_ignored(request, json_string_value(at), json_string_length(at));
        request->ignored_count++;
    }
}

static bool ignore(struct openai *request, const char *name, struct error *error) {
    enum { MOST = 64, MOST_BYTES = 64, MOST_LOGGED = 200 };
    if (++request->ignored_count > MOST)
        return error_set(error, ERROR_ARGUMENT, NULL, "the request has more than %d fields that are not known", MOST);
    if (request->ignored.length < MOST_LOGGED)
        strbuf_format(&request->ignored, "%s%.64s", request->ignored.length ? " " : "", name);
    add_ignored(request, name, MOST_BYTES);
    return true;
}

/* Handles a field that this kind of request does not have. */
static bool read_unknown(struct openai *request, const struct openai_kind *kind, const char *name, const json_t *value,
                         struct error *error) {
    const struct other_field *other = find_other(name);
    if (json_is_null(value))
        return true;
    if (other)
        return is_neutral(other, value) || refuse_near(error, name, "not supported", find_nearest(kind, name));
    if (kind->other && find_field(kind->other->fields, kind->other->field_count, name))
        return json_is_false(value) ||
               refuse_near(error, name, kind->is_chat ? "a field of completions only" : "a field of chats only", NULL);
    const char *nearest = is_harmless(name) ? NULL : find_nearest(kind, name);
    return nearest ? refuse_near(error, name, "not a field of this request", nearest) : ignore(request, name, error);
}

/* ---- all of them ---- */

static bool read_field(struct openai *request, const struct openai_kind *kind, const char *name, const json_t *value,
                       struct error *error) {
    const struct openai_field *field = find_field(kind->fields, kind->field_count, name);
    bool is_known = true;
    if (!field)
        field = find_field(common, sizeof common / sizeof *common, name);
    if (field && field->flag)
        return json_in_bool(value, name, (bool *)((char *)request + field->flag), error);
    if (field)
        return json_is_null(value) || !field->read || field->read(request, name, value, error);
    int status = ask_read_field(&request->asked->ask, name, value, request->model->vocab, &is_known);
    if (!is_known)
        return read_unknown(request, kind, name, value, error);
    if (status)
        json_in_fail(status, name, error);
    if (status == STATUS_INVALID && ask_constraint_has(name))
        error->which = ERROR_CONSTRAINT_INVALID;
    return status == STATUS_OK;
}

bool openai_refuse_field(struct openai *request, const char *name, const json_t *value, struct error *error) {
    return json_is_false(value) || error_set(error, ERROR_ARGUMENT, name, "%s: not supported", name);
}

/* Drops the values that no string of the call points into, because they may be large. */
static void forget_fields(json_t *root) {
    static const struct openai_field kept[] = {{.name = "prompt"}, {.name = "model"},          {.name = "adapters"},
                                               {.name = "stop"},   {.name = "stop_sequences"}, {.name = "cache_salt"}};
    const char *name;
    void *next;
    json_t *value;
    json_object_foreach_safe(root, next, name, value) {
        if (!find_field(kept, sizeof kept / sizeof *kept, name))
            json_object_del(root, name);
    }
}

bool openai_read_fields(struct openai *request, struct error *error) {
    const struct openai_kind *kind = request->kind;
    const char *name, *field = NULL;
    json_t *value;
    struct ask *ask = &request->asked->ask;
    json_object_foreach(request->root, name, value) {
        if (!read_field(request, kind, name, value, error))
            return false;
    }
    if (!kind->check(request, error))
        return false;
    forget_fields(request->root);
    int status = ask_check(ask, request->model->vocab, &field);
    if (status)
        json_in_fail(status, field, error);
    int64_t most = request->model->most_texts;
    if (!status && request->asked->prompt_count * ask->choices > most)
        return error_set(error, ERROR_ARGUMENT, "n", "n: %lld completions are more than this server queues (%lld)",
                         (long long)(request->asked->prompt_count * ask->choices), (long long)most);
    return status == STATUS_OK;
}

/* ---- as a schema ---- */

static void add_field_schemas(const struct openai_field *fields, size_t count, struct strbuf *out) {
    for (size_t i = 0; i < count; i++)
        strbuf_format(out, "\"%s\":{\"$ref\":\"#/components/schemas/%s\"},", fields[i].name, fields[i].schema);
}

void openai_add_schema(const struct openai_kind *kind, int64_t vocab, struct strbuf *out) {
    const char *name, *comma = "";
    strbuf_format(out, "{\"type\":\"object\",\"required\":[\"%s\"],\"properties\":{", kind->required);
    add_field_schemas(kind->fields, kind->field_count, out);
    add_field_schemas(common, sizeof common / sizeof *common, out);
    for (size_t i = 0; (name = ask_field_name(i)); i++) {
        if (find_field(kind->fields, kind->field_count, name)) /* the kind has it in another form */
            continue;
        strbuf_add_text(out, comma);
        ask_add_schema(i, vocab, out);
        comma = ",";
    }
    strbuf_add_text(out, "}}");
}
