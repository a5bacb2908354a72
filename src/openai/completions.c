/* POST /v1/completions: prompts as texts or ids, one or many. */
#include "openai.h"

#include "json_in.h"

#include "base/base.h"

enum { DEFAULT_TOKENS = 16 };

/* ---- prompts ---- */

static bool refuse_prompt(struct error *error, const char *what) {
    return error_set(error, ERROR_ARGUMENT, "prompt", "prompt: %s", what);
}

static bool take_text(struct call_prompt *prompt, const json_t *value, struct error *error) {
    prompt->text = json_string_value(value);
    prompt->length = json_string_length(value);
    return !memchr(prompt->text, 0, prompt->length) || refuse_prompt(error, JSON_IN_NUL);
}

static bool take_ids(const struct openai *request, struct call_prompt *prompt, const json_t *list,
                     struct error *error) {
    size_t count = json_array_size(list);
    int status = count ? STATUS_OK : status_fail(STATUS_INVALID, "a list of token ids is empty");
    for (size_t i = 0; i < count && !status; i++) {
        int32_t id = 0;
        status = ask_read_id(json_array_get(list, i), i, request->model->vocab, &id);
        THEN(status, token_buffer_add(&prompt->ids, id));
    }
    if (status)
        json_in_fail(status, "prompt", error);
    return status == STATUS_OK;
}

/* A list that begins with a number is one prompt. */
static bool open_completion(struct openai *request, struct error *error) {
    json_t *value = json_object_get(request->root, "prompt");
    bool is_list = json_is_array(value) && !json_is_number(json_array_get(value, 0));
    size_t count = is_list ? json_array_size(value) : 1;
    if (!value || (!json_is_string(value) && !json_is_array(value)))
        return refuse_prompt(error, "expected a text, a list of token ids, or a list of either");
    if (!json_is_string(value) && !json_array_size(value))
        return refuse_prompt(error, "the list is empty");
    if (count > (size_t)request->model->most_texts)
        return error_set(error, ERROR_ARGUMENT, "prompt", "prompt: %zu prompts are more than this server queues",
                         count);
    if (call_request_begin(request->asked, (int64_t)count))
        return error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
    for (size_t i = 0; i < count; i++) {
        const json_t *item = is_list ? json_array_get(value, i) : value;
        struct call_prompt *prompt = &request->asked->prompts[i];
        if (!json_is_string(item) && !json_is_array(item))
            return refuse_prompt(error, "expected a text, a list of token ids, or a list of either");
        if (!(json_is_string(item) ? take_text(prompt, item, error) : take_ids(request, prompt, item, error)))
            return false;
        if (is_list && json_is_array(item)) /* lists of ids would stay in memory, in ten times their size */
            json_array_set_new(value, i, json_null());
    }
    if (!is_list && json_is_array(value))
        json_object_del(request->root, "prompt");
    return true;
}

/* ---- fields ---- */

static const struct openai_field fields[] = {{"prompt", "Prompt", 0, NULL},
                                             {"echo", "Flag", offsetof(struct openai, echoes), NULL}};

/* An echo never reads the prefix cache: it needs the log-probabilities of its prompt even if it does not report
 * them. */
static bool check_completion(struct openai *request, struct error *error) {
    struct ask *ask = &request->asked->ask;
    request->tops = ask->logprobs;
    request->tells_logprobs = ask->logprobs >= 0;
    request->prompt_tops = ask->prompt_logprobs;
    int64_t echoed = ask->logprobs > 0 ? ask->logprobs : 0;
    if (request->echoes && ask->prompt_logprobs < echoed)
        ask->prompt_logprobs = echoed;
    if (ask->max_tokens < 0)
        ask->max_tokens = ask->min_tokens > DEFAULT_TOKENS ? ask->min_tokens : DEFAULT_TOKENS;
    return true;
}

const struct openai_kind openai_completion_kind = {.url = "/v1/completions",
                                                   .schema = "CompletionBody",
                                                   .other = &openai_chat_kind,
                                                   .required = "prompt",
                                                   .fields = fields,
                                                   .field_count = sizeof fields / sizeof *fields,
                                                   .open = open_completion,
                                                   .check = check_completion};
