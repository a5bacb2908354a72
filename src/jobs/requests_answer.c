/* One request from its line to its answer. */
#include "requests.h"

#include "base/json.h"
#include "base/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- JSON ---- */

static void add_text(struct strbuf *out, const char *bytes, size_t length) {
    struct strbuf mended = STRBUF_INIT;
    utf8_add_repaired(&mended, bytes, length);
    json_add_string(out, strbuf_text(&mended), mended.length);
    out->failed |= mended.failed;
    strbuf_free(&mended);
}

static void add_id(struct strbuf *out, const struct request_line *line) {
    strbuf_add_text(out, "{\"id\":");
    if (json_is_string(line->id))
        add_text(out, json_string_value(line->id), json_string_length(line->id));
    else if (line->id)
        strbuf_format(out, "%lld", (long long)json_integer_value(line->id));
    else
        strbuf_add_text(out, "null");
}

/* Adds a token as JSON. Nine significant digits reproduce every float. `has_logprob`: false for the first token of a
 * prompt, which nothing predicts. */
static void add_token(struct strbuf *out, const struct scheduler_token *token, bool has_logprob, bool *is_broken) {
    strbuf_format(out, "%s{\"id\":%d,\"logprob\":", out->length ? "," : "", token->token);
    if (has_logprob)
        strbuf_format(out, "%.9g", token->logprob);
    else
        strbuf_add_text(out, "null");
    strbuf_add_text(out, ",\"top\":[");
    for (int32_t i = 0; i < token->top_count; i++) {
        strbuf_format(out, "%s{\"id\":%d,\"logprob\":%.9g}", i ? "," : "", token->top_token[i], token->top_logprob[i]);
        *is_broken |= !isfinite(token->top_logprob[i]);
    }
    strbuf_add_text(out, "]}");
    *is_broken |= has_logprob && !isfinite(token->logprob);
}

/* ---- errors and memory ---- */

int answer_fail(struct answer *answer, const char *field) {
    char reason[1024];
    snprintf(reason, sizeof reason, "%s", status_text());
    strbuf_clear(&answer->out);
    add_id(&answer->out, &answer->line);
    strbuf_format(&answer->out, ",\"line\":%lld,\"field\":", (long long)answer->number);
    if (field)
        add_text(&answer->out, field, strlen(field));
    else
        strbuf_add_text(&answer->out, "null");
    strbuf_add_text(&answer->out, ",\"error\":");
    add_text(&answer->out, reason, strlen(reason));
    strbuf_add_text(&answer->out, "}\n");
    answer->is_error = true;
    answer->state = ANSWER_IS_WRITTEN;
    return strbuf_status(&answer->out);
}

int answer_new(const char *text, size_t length, int64_t number, int64_t vocab, struct answer **out) {
    const char *field;
    struct answer *answer = *out = calloc(1, sizeof *answer);
    if (!answer)
        return status_fail(STATUS_MEMORY, "out of memory");
    answer->number = number;
    answer->slot = -1;
    int status = request_line_read(&answer->line, text, length, number == 1, vocab, &field);
    if (status == STATUS_INVALID)
        status = answer_fail(answer, field);
    if (status) {
        answer_free(answer);
        *out = NULL;
    }
    return status;
}

/* Frees everything except the formatted line. */
static void free_work(struct answer *answer) {
    for (int64_t i = 0; answer->choices && i < answer->line.asked.choices; i++) {
        struct answer_choice *choice = &answer->choices[i];
        writer_free(&choice->writer);
        strbuf_free(&choice->text);
        strbuf_free(&choice->logprobs);
        token_buffer_free(&choice->tokens);
    }
    free(answer->choices);
    answer->choices = NULL;
    ask_ends_close(&answer->ends);
    strbuf_free(&answer->prompt_logprobs);
    request_line_free(&answer->line);
}

void answer_free(struct answer *answer) {
    if (!answer)
        return;
    free_work(answer);
    strbuf_free(&answer->out);
    free(answer);
}

/* ---- before it runs ---- */

/* Finds the chat template: the option's; else that of the first adapter that has one; else the tokenizer's. The caller
 * gets a reference. */
static int find_template(const struct answer *answer, struct requests_model *model, struct chat_template **template) {
    int status = STATUS_OK;
    *template = chat_template_keep(model->chat_template);
    for (int64_t i = 0; i < answer->line.asked.adapter_count && !*template && !status; i++) {
        struct adapter_view view;
        if (adapters_find(model->adapters, answer->line.asked.adapters[i], &view))
            status = peft_chat_template(view.directory, template);
    }
    if (status || *template)
        return status;
    if (!model->has_tokenizers_template) {
        struct tokenizer_files files;
        status = tokenizer_files_read(model->tokenizer_directory, &files);
        if (!status)
            status = chat_template_of_tokenizer(&files, &model->tokenizers_template);
        tokenizer_files_free(&files);
        model->has_tokenizers_template = !status;
    }
    *template = chat_template_keep(model->tokenizers_template);
    return status;
}

static int make_prompt(struct answer *answer, struct requests_model *model, struct chat_template **template) {
    struct request_line *line = &answer->line;
    if (line->ids.count)
        return STATUS_OK;
    if (!model->tokenizer)
        return status_fail(STATUS_INVALID, "a text needs a tokenizer, and %s has none", model->tokenizer_directory);
    line->chat.tokenizer = model->tokenizer;
    line->chat.eos = model_first_eos(&model->ends);
    line->chat.seconds = model->template_timeout;
    int status = line->prompt ? prompt_encode_text(model->tokenizer, model->encoder, line->prompt, line->prompt_length,
                                                   &line->ids)
                              : find_template(answer, model, template);
    if (!status && !line->prompt)
        status = prompt_encode_messages(&line->chat, model->encoder, *template, &model->room, NULL, &line->ids);
    if (!status && !line->ids.count)
        status = status_fail(STATUS_INVALID, "an empty text, and the tokenizer has no end-of-text to begin with");
    return status;
}

static int fail_model(const struct requests_model *model, const char *name) {
    struct adapter_view view;
    const char *nearest = config_nearest(name, model->names->items, model->names->count);
    for (int i = 0; adapters_at(model->adapters, i, &view); i++)
        nearest = config_nearest(name, (const char *[]){nearest, view.name}, 2);
    return status_fail(STATUS_INVALID, "there is no model \"%.200s\"%s%s%s", name, nearest ? " (did you mean " : "",
                       nearest ? nearest : "", nearest ? "?)" : "");
}

/* Resolves the field `model`. A name of an adapter selects that adapter; a list of adapters in addition would be
 * ambiguous. */
static int take_model(struct request_line *line, const struct requests_model *model, const char **field) {
    struct adapter_view view;
    const char *name = line->model;
    *field = "model";
    if (!name || !*name)
        return STATUS_OK;
    for (size_t i = 0; i < model->names->count; i++)
        if (!strcmp(model->names->items[i], name))
            return STATUS_OK;
    if (!adapters_find(model->adapters, name, &view))
        return fail_model(model, name);
    *field = "adapters";
    if (line->asked.adapter_count)
        return status_fail(STATUS_INVALID, "the model \"%.200s\" is an adapter already", name);
    line->asked.adapters[line->asked.adapter_count++] = name;
    return STATUS_OK;
}

/* Prepares the request. A fault of the request sets *field; STATUS_MEMORY is no fault of the request. */
static int prepare(struct answer *answer, struct requests_model *model, const char **field) {
    struct request_line *line = &answer->line;
    struct chat_template *template = NULL;
    int status = take_model(line, model, field);
    if (status)
        return status;
    *field = line->chat.messages ? "messages" : "prompt";
    status = make_prompt(answer, model, &template);
    if (!status) {
        *field = "stop";
        if (line->asked.stop_count && !model->tokenizer)
            status = status_fail(STATUS_INVALID, "stop strings need a tokenizer, and %s has none",
                                 model->tokenizer_directory);
    }
    if (!status)
        status = ask_ends_open(&line->asked,
                               &(struct ask_model){.tokenizer = model->tokenizer,
                                                   .text = &model->ends,
                                                   .vocab = engine_config(model->engine)->vocab_size,
                                                   .template = template,
                                                   .template_seconds = model->template_timeout},
                               &answer->ends);
    chat_template_close(template);
    ask_derive_seed(&line->asked, model->seed, answer->number);
    return status;
}

static int take_adapters(struct answer *answer, struct requests_model *model) {
    const struct ask *asked = &answer->line.asked;
    uint64_t generations[PEFT_SLOT_IMAGES];
    struct adapter_view view;
    int status = adapters_take(model->adapters, asked->adapters, (int)asked->adapter_count, &answer->slot, generations);
    answer->has_slot = !status;
    for (int64_t i = 0; i < asked->adapter_count && !status; i++)
        if (adapters_find(model->adapters, asked->adapters[i], &view))
            snprintf(answer->digests[i], sizeof answer->digests[i], "%s", view.digest);
    return status;
}

static struct ask_prompt prompt_of(const struct answer *answer, const struct requests_model *model) {
    const struct token_buffer *ids = &answer->line.ids;
    return (struct ask_prompt){
        .engine = model->engine, .slot = answer->slot, .ids = ids->ids, .count = (int64_t)ids->count};
}

/* Checks that the prompt and the completion fit into the context. */
static int check_length(const struct answer *answer, const struct requests_model *model, const char **field) {
    const struct request_line *line = &answer->line;
    int64_t positions = engine_max_positions(model->engine);
    const struct ask_prompt prompt = prompt_of(answer, model);
    int status = ask_check_length(&line->asked, &prompt, positions + 1, field);
    if (status && !*field)
        *field = line->chat.messages ? "messages" : "prompt";
    return status;
}

int answer_prepare(struct answer *answer, struct requests_model *model, bool *must_wait) {
    const char *field = NULL;
    int status = STATUS_OK;
    *must_wait = false;
    if (!answer->choices) {
        answer->choices = calloc((size_t)answer->line.asked.choices, sizeof *answer->choices);
        if (!answer->choices)
            return status_fail(STATUS_MEMORY, "out of memory");
        status = prepare(answer, model, &field);
        if (status == STATUS_MEMORY)
            return status;
    }
    if (!status) {
        field = "adapters";
        status = take_adapters(answer, model);
        *must_wait = status == STATUS_MEMORY;
        if (*must_wait || status == STATUS_PEER)
            return *must_wait ? STATUS_OK : status;
    }
    if (!status)
        status = check_length(answer, model, &field);
    if (!status)
        return STATUS_OK;
    int failed = answer_fail(answer, field);
    return failed ? failed : answer_finish(answer, model);
}

/* ---- while it runs ---- */

static void on_start(void *context, int64_t cached) {
    struct answer *answer = context;
    answer->cached = cached;
}

static void keep(struct answer *answer, int status) {
    if (status && !answer->status)
        answer->status = status;
}

static bool on_token(void *context, int64_t index, const struct scheduler_token *token) {
    struct answer *answer = context;
    struct answer_choice *choice = &answer->choices[index];
    bool is_ended = false;
    choice->drawn++;
    answer->is_broken |= !isfinite(token->logprob);
    if (token->is_end || answer->status)
        return answer->status != STATUS_OK;
    keep(answer, token_buffer_add(&choice->tokens, token->token));
    if (answer->line.asked.logprobs >= 0)
        add_token(&choice->logprobs, token, true, &answer->is_broken);
    const struct ask_completion completion = {&answer->line.asked, &answer->ends, answer->tokenizer, &choice->writer,
                                              choice->drawn};
    keep(answer, ask_write(&completion, token->token, &choice->text, &is_ended));
    return answer->status || is_ended;
}

static void on_prompt_logprob(void *context, int64_t index, const struct scheduler_token *token) {
    struct answer *answer = context;
    if (index == 1 && !answer->prompt_logprobs.length)
        add_token(&answer->prompt_logprobs, &(struct scheduler_token){.token = answer->line.ids.ids[0]}, false,
                  &answer->is_broken);
    add_token(&answer->prompt_logprobs, token, true, &answer->is_broken);
}

static void on_end(void *context, int64_t index, enum scheduler_end reason) {
    struct answer *answer = context;
    answer->choices[index].reason = reason;
    keep(answer, writer_end(&answer->choices[index].writer, &answer->choices[index].text));
}

static void on_done(void *context) {
    struct answer *answer = context;
    answer->state = ANSWER_IS_DONE;
    answer->next_finished = *answer->finished;
    *answer->finished = answer;
}

void answer_request(struct answer *answer, const struct requests_model *model, struct scheduler_request *request) {
    const struct ask_prompt prompt = prompt_of(answer, model);
    answer->tokenizer = model->tokenizer;
    ask_schedule(&answer->line.asked, &answer->ends, &prompt, request);
    request->calls = (struct scheduler_calls){on_start, on_token, on_prompt_logprob, on_end, on_done};
    request->context = answer;
}

/* ---- after it ran ---- */

static void add_choice(struct strbuf *out, const struct answer *answer, int64_t index) {
    const struct answer_choice *choice = &answer->choices[index];
    strbuf_format(out, "%s{\"index\":%lld,\"text\":", index ? "," : "", (long long)index);
    if (answer->tokenizer)
        add_text(out, strbuf_text(&choice->text), choice->text.length);
    else
        strbuf_add_text(out, "null");
    strbuf_add_text(out, ",\"tokens\":[");
    for (size_t i = 0; i < choice->tokens.count; i++)
        strbuf_format(out, i ? ",%d" : "%d", choice->tokens.ids[i]);
    strbuf_add_text(out, "],\"logprobs\":");
    if (answer->line.asked.logprobs >= 0)
        strbuf_format(out, "[%s]", strbuf_text(&choice->logprobs));
    else
        strbuf_add_text(out, "null");
    strbuf_format(out, ",\"finish_reason\":\"%s\"}", choice->reason == SCHEDULER_STOP ? "stop" : "length");
    out->failed |= choice->logprobs.failed;
}

static int write_line(struct answer *answer) {
    const struct request_line *line = &answer->line;
    struct strbuf *out = &answer->out;
    int64_t drawn = 0;
    add_id(out, line);
    strbuf_add_text(out, ",\"choices\":[");
    for (int64_t i = 0; i < line->asked.choices; i++) {
        add_choice(out, answer, i);
        drawn += answer->choices[i].drawn;
    }
    strbuf_add_text(out, "],\"prompt_logprobs\":");
    if (line->asked.prompt_logprobs >= 0 &&
        !answer->prompt_logprobs.length) /* a prompt of one token, which nothing predicts */
        add_token(&answer->prompt_logprobs, &(struct scheduler_token){.token = line->ids.ids[0]}, false,
                  &answer->is_broken);
    if (line->asked.prompt_logprobs >= 0)
        strbuf_format(out, "[%s]", strbuf_text(&answer->prompt_logprobs));
    else
        strbuf_add_text(out, "null");
    out->failed |= answer->prompt_logprobs.failed;
    strbuf_add_text(out, ",\"adapters\":[");
    for (int64_t i = 0; i < line->asked.adapter_count; i++) {
        strbuf_add_text(out, i ? ",{\"name\":" : "{\"name\":");
        add_text(out, line->asked.adapters[i], strlen(line->asked.adapters[i]));
        strbuf_format(out, ",\"digest\":\"%s\"}", answer->digests[i]);
    }
    strbuf_format(out, "],\"seed\":%llu,\"prompt_tokens\":%zu,\"completion_tokens\":%lld}\n",
                  (unsigned long long)line->asked.sampling.seed, line->ids.count, (long long)drawn);
    answer->state = ANSWER_IS_WRITTEN;
    return strbuf_status(out);
}

static bool has_failed(const struct answer *answer) {
    bool failed = answer->is_broken;
    for (int64_t i = 0; i < answer->line.asked.choices; i++)
        failed |= answer->choices[i].reason == SCHEDULER_FAILED;
    return failed;
}

int answer_finish(struct answer *answer, struct requests_model *model) {
    int status = answer->has_slot ? adapters_give(model->adapters, answer->slot) : STATUS_OK;
    answer->has_slot = false;
    if (!status)
        status = answer->status;
    if (!status && answer->state == ANSWER_IS_DONE && has_failed(answer)) {
        status_fail(STATUS_INVALID, ENGINE_NO_PROBABILITY);
        status = answer_fail(answer, NULL);
    } else if (!status && answer->state == ANSWER_IS_DONE)
        status = write_line(answer);
    free_work(answer);
    return status;
}
