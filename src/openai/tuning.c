/* Requests for tuning jobs, and the objects of files, jobs, events and checkpoints. */
#include "tuning.h"

#include "json_in.h"
#include "json_out.h"

#include "base/base.h"
#include "base/utf8.h"

#include <math.h>

static size_t characters(const char *text) {
    size_t count = 0;
    for (; *text; text++)
        count += ((unsigned char)*text & 0xc0) != 0x80;
    return count;
}

/* ---- a request ---- */

static bool is_known(const char *key, const char *const *names) {
    for (; *names; names++)
        if (!strcmp(key, *names))
            return true;
    return false;
}

/* Refuses the first field that is none of these. `path` is that of the object, with its dot, or "". */
static bool check_fields(const json_t *object, const char *path, const char *const *names, struct error *error) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value) {
        char where[64];
        snprintf(where, sizeof where, "%s%.30s", path, key);
        if (!json_is_null(value) && !is_known(key, names))
            return error_set(error, ERROR_ARGUMENT, where, "%s%.64s: the server does not know this field", path, key);
    }
    return true;
}

static const json_t *get(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) || json_in_is(value, "auto") ? NULL : value;
}

static bool read_values(const json_t *object, const char *path, struct openai_job *job, struct error *error) {
    static const char *const of_dpo[] = {"n_epochs", "batch_size", "learning_rate_multiplier", "beta", NULL};
    static const char *const of_all[] = {"n_epochs", "batch_size", "learning_rate_multiplier", NULL};
    struct openai_hyperparameters *values = &job->values;
    char name[64];
    if (!object || json_is_null(object))
        return true;
    if (!json_is_object(object)) {
        snprintf(name, sizeof name, "%.*s", (int)strlen(path) - 1, path);
        return error_set(error, ERROR_ARGUMENT, name, "%s: expected an object", name);
    }
    if (!check_fields(object, path, job->method == OPENAI_DPO ? of_dpo : of_all, error))
        return false;
    snprintf(name, sizeof name, "%sn_epochs", path);
    if (!json_in_integer(get(object, "n_epochs"), name, 1, 1000000, &values->epochs, error))
        return false;
    snprintf(name, sizeof name, "%sbatch_size", path);
    if (!json_in_integer(get(object, "batch_size"), name, 1, 1048576, &values->batch_size, error))
        return false;
    snprintf(name, sizeof name, "%slearning_rate_multiplier", path);
    if (!json_in_number(get(object, "learning_rate_multiplier"), name, 1e-9, 1e6, &values->rate, error))
        return false;
    snprintf(name, sizeof name, "%sbeta", path);
    return json_in_number(get(object, "beta"), name, 1e-6, 1e6, &values->beta, error);
}

static bool read_method(const json_t *root, struct openai_job *job, struct error *error) {
    static const char *const names[] = {"supervised", "dpo", NULL};
    static const char *const hyperparameters[] = {"hyperparameters", NULL};
    const json_t *method = json_object_get(root, "method"), *type = json_object_get(method, "type");
    if (!method || json_is_null(method))
        return read_values(json_object_get(root, "hyperparameters"), "hyperparameters.", job, error);
    if (!json_is_object(method))
        return error_set(error, ERROR_ARGUMENT, "method", "method: expected an object");
    if (!json_is_string(type) || !is_known(json_string_value(type), names))
        return error_set(error, ERROR_ARGUMENT, "method.type", "method.type: expected supervised or dpo, not %.40s",
                         json_is_string(type) ? json_string_value(type) : "another value");
    job->method = json_in_is(type, "dpo") ? OPENAI_DPO : OPENAI_SUPERVISED;
    const char *name = names[job->method], *fields[] = {"type", name, NULL};
    const json_t *own = json_object_get(method, name), *old = json_object_get(root, "hyperparameters");
    char path[64];
    if (!check_fields(method, "method.", fields, error))
        return false;
    snprintf(path, sizeof path, "method.%s.", name);
    if (own && !json_is_null(own) && !json_is_object(own))
        return error_set(error, ERROR_ARGUMENT, "method", "method.%s: expected an object", name);
    if (own && !check_fields(own, path, hyperparameters, error))
        return false;
    if (old && !json_is_null(old) && json_object_size(old))
        return error_set(error, ERROR_ARGUMENT, "hyperparameters", "hyperparameters: expected in method.%s", name);
    snprintf(path, sizeof path, "method.%s.hyperparameters.", name);
    return read_values(json_object_get(own, "hyperparameters"), path, job, error);
}

static bool check_metadata(const json_t *metadata, struct error *error) {
    const char *key;
    json_t *value;
    if (!metadata)
        return true;
    if (!json_is_object(metadata) || json_object_size(metadata) > OPENAI_METADATA_PAIRS)
        return error_set(error, ERROR_ARGUMENT, "metadata", "metadata: expected an object of at most %d pairs",
                         OPENAI_METADATA_PAIRS);
    json_object_foreach((json_t *)metadata, key, value) {
        if (characters(key) > 64 || !json_is_string(value) || characters(json_string_value(value)) > 512)
            return error_set(error, ERROR_ARGUMENT, "metadata",
                             "metadata: expected keys of at most 64 and texts of at most 512 characters");
    }
    return true;
}

bool openai_job_read(const json_t *root, struct openai_job *job, struct error *error) {
    static const char *const names[] = {
        "model",    "training_file", "validation_file", "suffix",       "seed",   "method",
        "metadata", "cambium",       "hyperparameters", "integrations", "object", NULL};
    *job = (struct openai_job){.seed = -1};
    if (!check_fields(root, "", names, error) ||
        !json_in_string(json_object_get(root, "model"), "model", &job->model, error) ||
        !json_in_string(json_object_get(root, "training_file"), "training_file", &job->training_file, error) ||
        !json_in_string(json_object_get(root, "validation_file"), "validation_file", &job->validation_file, error) ||
        !json_in_string(json_object_get(root, "suffix"), "suffix", &job->suffix, error) ||
        !json_in_integer(json_object_get(root, "seed"), "seed", 0, UINT32_MAX, &job->seed, error))
        return false;
    job->has_seed = job->seed >= 0;
    const json_t *integrations = json_object_get(root, "integrations"), *keys = json_object_get(root, "cambium");
    if (!job->model || !job->training_file)
        return error_set(error, ERROR_ARGUMENT, job->model ? "training_file" : "model", "%s is not given",
                         job->model ? "training_file" : "model");
    if (job->suffix && characters(job->suffix) > OPENAI_SUFFIX_BYTES - 1)
        return error_set(error, ERROR_ARGUMENT, "suffix", "suffix: expected at most %d characters",
                         OPENAI_SUFFIX_BYTES - 1);
    if (integrations && !json_is_null(integrations) && !(json_is_array(integrations) && !json_array_size(integrations)))
        return error_set(error, ERROR_ARGUMENT, "integrations", "integrations: the server has none");
    job->metadata = get(root, "metadata");
    if (keys && !json_is_null(keys) && !json_is_object(keys))
        return error_set(error, ERROR_ARGUMENT, "cambium", "cambium: expected an object of finetune's keys");
    job->keys = json_object_size(keys) ? keys : NULL;
    return check_metadata(job->metadata, error) && read_method(root, job, error);
}

/* Writes a scalar as a word of a command line. */
static bool write_word(const json_t *value, struct strbuf *out) {
    if (json_is_string(value) && strlen(json_string_value(value)) == json_string_length(value))
        strbuf_add_text(out, json_string_value(value));
    else if (json_is_boolean(value))
        strbuf_add_text(out, json_is_true(value) ? "true" : "false");
    else if (json_is_integer(value))
        strbuf_format(out, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        strbuf_format(out, "%.17g", json_real_value(value));
    else
        return false;
    return true;
}

bool openai_job_add_words(json_t *words, const char *key, const json_t *value, struct error *error) {
    struct strbuf word = STRBUF_INIT;
    bool is_list = json_is_array(value), is_good = true;
    strbuf_format(&word, is_list ? "--%s" : "--%s=", key);
    is_good = is_list ? json_array_size(value) > 0 : write_word(value, &word);
    if (is_good)
        json_array_append_new(words, json_string(strbuf_text(&word)));
    for (size_t i = 0; is_good && i < json_array_size(value); i++) {
        strbuf_clear(&word);
        is_good = write_word(json_array_get(value, i), &word) && *strbuf_text(&word) != '-';
        if (is_good)
            json_array_append_new(words, json_string(strbuf_text(&word)));
    }
    strbuf_free(&word);
    if (is_good)
        return true;
    char param[64];
    snprintf(param, sizeof param, "cambium.%.50s", key);
    return error_set(error, ERROR_ARGUMENT, param, "%s: expected a number, a text, a boolean or a list of them", param);
}

/* ---- a job ---- */

static json_t *number_or_auto(double value) {
    if (value <= 0)
        return json_string("auto");
    return value == (double)(int64_t)value ? json_integer((int64_t)value) : json_real(value);
}

json_t *openai_job_object(const struct openai_job *job, const char *id, int64_t now) {
    const struct openai_hyperparameters *v = &job->values;
    const char *method = job->method == OPENAI_DPO ? "dpo" : "supervised";
    json_t *values =
        json_pack("{s:o,s:o,s:o}", "n_epochs", number_or_auto((double)v->epochs), "batch_size",
                  number_or_auto((double)v->batch_size), "learning_rate_multiplier", number_or_auto(v->rate));
    json_t *own = json_deep_copy(values);
    if (own && job->method == OPENAI_DPO)
        json_object_set_new(own, "beta", number_or_auto(v->beta));
    return json_pack("{s:s,s:s,s:I,s:n,s:n,s:n,s:n,s:o,s:s,s:s,s:[],s:I,s:s,s:n,s:s,s:s?,s:[],s:O?,s:s?,s:O?,"
                     "s:{s:s,s:{s:o}}}",
                     "id", id, "object", "fine_tuning.job", "created_at", (json_int_t)now, "finished_at", "error",
                     "estimated_finish", "fine_tuned_model", "hyperparameters", values, "model", job->model,
                     "organization_id", "", "result_files", "seed", (json_int_t)job->seed, "status", "queued",
                     "trained_tokens", "training_file", job->training_file, "validation_file", job->validation_file,
                     "integrations", "metadata", job->metadata, "user_provided_suffix", job->suffix, "cambium",
                     job->keys, "method", "type", method, method, "hyperparameters", own);
}

/* Copies characters of names; others become dashes. Returns the end. */
static char *copy_name(char *to, const char *from, size_t most) {
    for (; *from && most; from++) {
        unsigned char c = (unsigned char)*from;
        if ((c & 0xc0) == 0x80)
            continue; /* one dash a character */
        bool is_plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '.' ||
                        c == '_' || c == '-';
        *to++ = is_plain ? (char)c : '-';
        most--;
    }
    return to;
}

void openai_job_model(const char *base, const char *suffix, const char *id, int64_t step,
                      char name[OPENAI_MODEL_BYTES]) {
    enum { BASE_MOST = 155 };
    char *at = copy_name(name + 3, base, BASE_MOST);
    size_t length = strlen(id);
    memcpy(name, "ft:", 3);
    *at++ = ':';
    at = copy_name(at, suffix ? suffix : "", OPENAI_SUFFIX_BYTES - 1);
    *at++ = ':';
    at = copy_name(at, length > 8 ? id + length - 8 : id, 8);
    *at = 0;
    if (step > 0)
        snprintf(at, OPENAI_MODEL_BYTES - (size_t)(at - name), ":ckpt-step-%lld", (long long)step);
}

/* ---- lists ---- */

/* Copies the value of a query's field. Returns false when it is not there; *is_good is false when it is too long. */
static bool find_value(const char *query, const char *name, char *out, size_t bytes, bool *is_good) {
    size_t length = strlen(name);
    for (const char *at = query; *at; at += strcspn(at, "&"), at += *at == '&') {
        if (strncmp(at, name, length) != 0 || at[length] != '=')
            continue;
        at += length + 1;
        size_t count = strcspn(at, "&");
        *is_good = count < bytes;
        snprintf(out, bytes, "%.*s", (int)(count < bytes ? count : bytes - 1), at);
        return true;
    }
    return false;
}

bool openai_page_read(const char *query, int64_t limit, int64_t most, struct openai_page *page, struct error *error) {
    char text[24];
    bool is_good = true;
    *page = (struct openai_page){.limit = limit};
    if (find_value(query, "limit", text, sizeof text, &is_good)) {
        char *end;
        page->limit = strtoll(text, &end, 10);
        if (!is_good || end == text || *end || page->limit < 1 || page->limit > most)
            return error_set(error, ERROR_ARGUMENT, "limit", "limit: expected an integer from 1 to %lld",
                             (long long)most);
    }
    find_value(query, "after", page->after, sizeof page->after, &is_good);
    if (!is_good)
        return error_set(error, ERROR_ARGUMENT, "after", "after: there is no such id");
    find_value(query, "purpose", page->purpose, sizeof page->purpose, &is_good);
    if (find_value(query, "order", text, sizeof text, &is_good) && strcmp(text, "asc") && strcmp(text, "desc"))
        return error_set(error, ERROR_ARGUMENT, "order", "order: expected asc or desc");
    page->is_ascending = find_value(query, "order", text, sizeof text, &is_good) && !strcmp(text, "asc");
    return true;
}

void openai_list_begin(struct openai_list *list, const struct openai_page *page) {
    *list = (struct openai_list){.page = page, .has_begun = !*page->after};
    strbuf_add_text(&list->out, "{\"object\":\"list\",\"data\":[");
}

bool openai_list_takes(struct openai_list *list, const char *id) {
    if (!list->has_begun) {
        list->has_begun = !strcmp(id, list->page->after);
        return false;
    }
    if (list->count == list->page->limit) {
        list->has_more = true;
        return false;
    }
    if (list->count++)
        strbuf_add_char(&list->out, ',');
    else
        snprintf(list->first, sizeof list->first, "%s", id);
    snprintf(list->last, sizeof list->last, "%s", id);
    return true;
}

static void add_id(struct strbuf *out, const char *name, const char *id) {
    strbuf_format(out, *id ? ",\"%s\":\"%s\"" : ",\"%s\":null", name, id);
}

void openai_list_end(struct openai_list *list) {
    strbuf_format(&list->out, "],\"has_more\":%s", list->has_more ? "true" : "false");
    add_id(&list->out, "first_id", list->first);
    add_id(&list->out, "last_id", list->last);
    strbuf_add_char(&list->out, '}');
}

/* ---- objects ---- */

json_t *openai_file_object(const struct openai_file *file) {
    return json_pack("{s:s,s:s,s:I,s:I,s:s,s:s,s:s}", "id", file->id, "object", "file", "bytes",
                     (json_int_t)file->bytes, "created_at", (json_int_t)file->created, "filename", file->filename,
                     "purpose", file->purpose, "status", "processed");
}

json_t *openai_figures_object(const struct openai_figures *figures) {
    json_t *object = json_pack("{s:I,s:I,s:o}", "step", (json_int_t)figures->step, "total_steps",
                               (json_int_t)figures->total, "train_loss", json_number(figures->train_loss));
    if (object && !isnan(figures->valid_loss))
        json_object_set_new(object, "full_valid_loss", json_number(figures->valid_loss));
    return object;
}

void openai_event_add(const struct openai_event *event, struct strbuf *out) {
    const struct openai_figures *figures = event->figures;
    strbuf_format(out, "{\"object\":\"fine_tuning.job.event\",\"id\":\"%s\",\"created_at\":%lld,\"level\":\"%s\",",
                  event->id, (long long)event->created, event->level);
    strbuf_add_text(out, "\"message\":");
    json_out_text(out, event->message);
    strbuf_format(out, ",\"type\":\"%s\",\"data\":", figures ? "metrics" : "message");
    if (figures) {
        strbuf_format(out, "{\"step\":%lld,\"total_steps\":%lld,\"train_loss\":%.9g", (long long)figures->step,
                      (long long)figures->total, figures->train_loss);
        if (!isnan(figures->valid_loss))
            strbuf_format(out, ",\"full_valid_loss\":%.9g", figures->valid_loss);
        strbuf_add_char(out, '}');
    } else
        strbuf_add_text(out, "null");
    strbuf_add_char(out, '}');
}
