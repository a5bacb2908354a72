/* One request from its line to its answer. */
#include "requests.h"

#include "requests_batch.h"

#include "infer/slots.h"
#include "openai/json_out.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- JSON ---- */

static void add_id(struct strbuf *out, const struct request_line *line) {
    strbuf_add_text(out, "{\"id\":");
    if (json_is_string(line->id))
        json_out_string(out, json_string_value(line->id), json_string_length(line->id));
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

int answer_fail(struct answer *answer, enum error_case which, const char *field) {
    char reason[1024];
    answer->is_error = true;
    answer->state = ANSWER_IS_WRITTEN;
    strbuf_clear(&answer->out);
    if (answer->line.batch) {
        batch_fail(answer->line.batch, which, field);
        batch_write_error(answer->line.batch, &answer->out);
        return strbuf_status(&answer->out);
    }
    snprintf(reason, sizeof reason, "%s", status_text());
    add_id(&answer->out, &answer->line);
    strbuf_format(&answer->out, ",\"line\":%lld,\"field\":", (long long)answer->number);
    if (field)
        json_out_string(&answer->out, field, strlen(field));
    else
        strbuf_add_text(&answer->out, "null");
    strbuf_add_text(&answer->out, ",\"error\":");
    json_out_string(&answer->out, reason, strlen(reason));
    strbuf_add_text(&answer->out, "}\n");
    return strbuf_status(&answer->out);
}

int answer_new(const char *text, size_t length, int64_t number, const struct openai_model *model, struct answer **out) {
    const char *field;
    struct answer *answer = *out = calloc(1, sizeof *answer);
    TRY(status_allocated(answer));
    answer->number = number;
    answer->slot = -1;
    int status = request_line_read(&answer->line, text, length, number, model, &field);
    if (status == STATUS_INVALID)
        status = answer_fail(answer, ERROR_ARGUMENT, field);
    if (status) {
        answer_free(answer);
        *out = NULL;
    }
    return status;
}

/* Frees everything except the formatted line. */
static void free_work(struct answer *answer) {
    for (int64_t i = 0; answer->choices && i < answer->line.request.ask.choices; i++) {
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
    for (int64_t i = 0; i < answer->line.request.ask.adapter_count && !*template && !status; i++) {
        struct adapter_view view;
        if (adapters_find(model->adapters, answer->line.request.ask.adapters[i], &view))
            status = peft_chat_template(view.directory, template);
    }
    if (status || *template)
        return status;
    if (!model->has_tokenizers_template) {
        struct tokenizer_files files;
        status = tokenizer_files_read(model->tokenizer_directory, &files);
        THEN(status, chat_template_of_tokenizer(&files, &model->tokenizers_template));
        tokenizer_files_free(&files);
        model->has_tokenizers_template = !status;
    }
    *template = chat_template_keep(model->tokenizers_template);
    return status;
}

/* A chat that asks for no header of an answer, or continues its last message, is rendered as the server does it. */
static int encode_messages(struct call_prompt *prompt, const struct requests_model *model,
                           struct chat_template *template) {
    struct chat_pieces pieces = {0};
    if (!prompt->has_no_head || !template)
        return prompt_encode_messages(&prompt->chat, model->encoder, template, &model->openai.room, NULL, &prompt->ids);
    int status = call_prompt_render(prompt, &model->openai, template, &pieces);
    THEN(status, prompt_check_bytes(&model->openai.room, pieces.text.length));
    THEN(status, chat_pieces_encode(&pieces, model->encoder, prompt->chat.eos, &prompt->ids, NULL));
    chat_pieces_free(&pieces);
    return status;
}

static int make_prompt(struct answer *answer, struct requests_model *model, struct chat_template **template) {
    struct call_prompt *prompt = &answer->line.request.prompts[0];
    if (prompt->ids.count)
        return STATUS_OK;
    if (!model->openai.tokenizer)
        return status_fail(STATUS_INVALID, "a text needs a tokenizer, and %s has none", model->tokenizer_directory);
    prompt->chat.tokenizer = model->openai.tokenizer;
    prompt->chat.eos = model_first_eos(&model->openai.ends);
    prompt->chat.seconds = model->openai.template_seconds;
    unsigned flag = ask_special_flag(&answer->line.request.ask, model->special_tokens);
    int status = prompt->text ? prompt_encode_text(model->openai.tokenizer, model->encoder, prompt->text,
                                                   prompt->length, flag, &prompt->ids)
                              : find_template(answer, model, template);
    if (!status && !prompt->text)
        status = encode_messages(prompt, model, *template);
    if (!status && !prompt->ids.count)
        status = status_fail(STATUS_INVALID, "an empty text, and the tokenizer has no end-of-text to begin with");
    return status;
}

static int fail_model(const struct requests_model *model, const char *name) {
    struct adapter_view view;
    const char *nearest = config_nearest(name, model->openai.names, model->openai.name_count);
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
    for (size_t i = 0; i < model->openai.name_count; i++)
        if (!strcmp(model->openai.names[i], name))
            return STATUS_OK;
    if (!adapters_find(model->adapters, name, &view))
        return fail_model(model, name);
    *field = "adapters";
    if (line->request.ask.adapter_count)
        return status_fail(STATUS_INVALID, "the model \"%.200s\" is an adapter already", name);
    line->request.ask.adapters[line->request.ask.adapter_count++] = name;
    if (line->batch)
        line->batch->request.model_name = name;
    return STATUS_OK;
}

/* Prepares the request. A fault of the request sets *field; STATUS_MEMORY is no fault of the request. */
static int prepare(struct answer *answer, struct requests_model *model, const char **field) {
    struct request_line *line = &answer->line;
    struct chat_template *template = NULL;
    TRY(take_model(line, model, field));
    *field = line->request.prompts[0].chat.messages ? "messages" : "prompt";
    int status = make_prompt(answer, model, &template);
    if (!status) {
        *field = "stop";
        if (line->request.ask.stop_count && !model->openai.tokenizer)
            status = status_fail(STATUS_INVALID, "stop strings need a tokenizer, and %s has none",
                                 model->tokenizer_directory);
    }
    if (!status)
        status = ask_ends_open(&line->request.ask,
                               &(struct ask_model){.tokenizer = model->openai.tokenizer,
                                                   .text = &model->openai.ends,
                                                   .vocab = model->openai.vocab,
                                                   .template = template,
                                                   .template_seconds = model->openai.template_seconds,
                                                   .continues = line->request.prompts[0].continues},
                               &answer->ends);
    chat_template_close(template);
    ask_derive_seed(&line->request.ask, model->seed, answer->number);
    return status;
}

static int take_adapters(struct answer *answer, struct requests_model *model) {
    const struct ask *asked = &answer->line.request.ask;
    uint64_t generations[PEFT_SLOT_IMAGES];
    struct batch *batch = answer->line.batch;
    struct adapter_view view;
    int status = adapters_take(model->adapters, asked->adapters, (int)asked->adapter_count, &answer->slot,
                               batch ? batch->generations : generations);
    answer->has_slot = !status;
    for (int64_t i = 0; i < asked->adapter_count && !status; i++)
        if (adapters_find(model->adapters, asked->adapters[i], &view))
            snprintf(answer->digests[i], sizeof answer->digests[i], "%s", view.digest);
    return status;
}

static struct ask_prompt prompt_of(const struct answer *answer, const struct requests_model *model) {
    const struct token_buffer *ids = &answer->line.request.prompts[0].ids;
    return (struct ask_prompt){
        .engine = model->engine, .slot = answer->slot, .ids = ids->ids, .count = (int64_t)ids->count};
}

/* Checks that the prompt and the completion fit into the context. */
static int check_length(const struct answer *answer, const struct requests_model *model, const char **field) {
    const struct request_line *line = &answer->line;
    int64_t positions = engine_max_positions(model->engine);
    const struct ask_prompt prompt = prompt_of(answer, model);
    int status = ask_check_length(&line->request.ask, &prompt, positions + 1, field);
    if (status && !*field)
        *field = line->request.prompts[0].chat.messages ? "messages" : "prompt";
    return status;
}

int answer_prepare(struct answer *answer, struct requests_model *model, bool *must_wait) {
    const char *field = NULL;
    int status = STATUS_OK;
    *must_wait = false;
    if (!answer->choices) {
        answer->choices = calloc((size_t)answer->line.request.ask.choices, sizeof *answer->choices);
        TRY(status_allocated(answer->choices));
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
    THEN(status, check_length(answer, model, &field));
    if (!status)
        return STATUS_OK;
    enum error_case which = status == STATUS_NOT_FOUND         ? ERROR_ADAPTER_NOT_FOUND
                            : field && !strcmp(field, "model") ? ERROR_MODEL_NOT_FOUND
                                                               : ERROR_ARGUMENT;
    int failed = answer_fail(answer, which, field);
    return failed ? failed : answer_finish(answer, model);
}

/* ---- while it runs ---- */

static void on_start(void *context, int64_t cached) {
    struct answer *answer = context;
    answer->cached = cached;
    if (answer->line.batch)
        answer->line.batch->cached = cached;
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
    if (answer->line.batch && !answer->status) {
        const struct ask_completion completion = {&answer->line.request.ask, &answer->ends, answer->tokenizer,
                                                  &choice->writer, choice->drawn};
        keep(answer, batch_add_token(answer->line.batch, index, &completion, token, &is_ended));
        return answer->status || is_ended;
    }
    if (token->is_end || answer->status)
        return answer->status != STATUS_OK;
    keep(answer, token_buffer_add(&choice->tokens, token->token));
    if (answer->line.request.ask.logprobs >= 0)
        add_token(&choice->logprobs, token, true, &answer->is_broken);
    const struct ask_completion completion = {&answer->line.request.ask, &answer->ends, answer->tokenizer,
                                              &choice->writer, choice->drawn};
    keep(answer, ask_write(&completion, token->token, &choice->text, &is_ended));
    return answer->status || is_ended;
}

static void on_prompt_logprob(void *context, int64_t index, const struct scheduler_token *token) {
    struct answer *answer = context;
    if (answer->line.batch) {
        keep(answer, batch_add_prompt_token(answer->line.batch, index, token));
        return;
    }
    if (index == 1 && !answer->prompt_logprobs.length)
        add_token(&answer->prompt_logprobs,
                  &(struct scheduler_token){.token = answer->line.request.prompts[0].ids.ids[0]}, false,
                  &answer->is_broken);
    add_token(&answer->prompt_logprobs, token, true, &answer->is_broken);
}

static void on_end(void *context, int64_t index, enum scheduler_end reason) {
    struct answer *answer = context;
    answer->choices[index].reason = reason;
    if (answer->line.batch) {
        struct answer_choice *choice = &answer->choices[index];
        keep(answer, batch_end(answer->line.batch, index, &choice->writer, reason == SCHEDULER_STOP, choice->drawn));
        return;
    }
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
    answer->tokenizer = model->openai.tokenizer;
    if (answer->line.batch)
        answer->line.batch->predicts_first = engine_slot_predicts_first(model->engine, answer->slot);
    ask_schedule(&answer->line.request.ask, &answer->ends, &prompt, request);
    request->calls = (struct scheduler_calls){on_start, on_token, on_prompt_logprob, on_end, on_done};
    request->context = answer;
}

/* ---- after it ran ---- */

static void add_choice(struct strbuf *out, const struct answer *answer, int64_t index) {
    const struct answer_choice *choice = &answer->choices[index];
    strbuf_format(out, "%s{\"index\":%lld,\"text\":", index ? "," : "", (long long)index);
    if (answer->tokenizer)
        json_out_string(out, strbuf_text(&choice->text), choice->text.length);
    else
        strbuf_add_text(out, "null");
    strbuf_add_text(out, ",\"tokens\":[");
    for (size_t i = 0; i < choice->tokens.count; i++)
        strbuf_format(out, i ? ",%d" : "%d", choice->tokens.ids[i]);
    strbuf_add_text(out, "],\"logprobs\":");
    if (answer->line.request.ask.logprobs >= 0)
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
    for (int64_t i = 0; i < line->request.ask.choices; i++) {
        add_choice(out, answer, i);
        drawn += answer->choices[i].drawn;
    }
    strbuf_add_text(out, "],\"prompt_logprobs\":");
    if (line->request.ask.prompt_logprobs >= 0 &&
        !answer->prompt_logprobs.length) /* a prompt of one token, which nothing predicts */
        add_token(&answer->prompt_logprobs, &(struct scheduler_token){.token = line->request.prompts[0].ids.ids[0]},
                  false, &answer->is_broken);
    if (line->request.ask.prompt_logprobs >= 0)
        strbuf_format(out, "[%s]", strbuf_text(&answer->prompt_logprobs));
    else
        strbuf_add_text(out, "null");
    out->failed |= answer->prompt_logprobs.failed;
    strbuf_add_text(out, ",\"adapters\":[");
    for (int64_t i = 0; i < line->request.ask.adapter_count; i++) {
        strbuf_add_text(out, i ? ",{\"name\":" : "{\"name\":");
        json_out_string(out, line->request.ask.adapters[i], strlen(line->request.ask.adapters[i]));
        strbuf_format(out, ",\"digest\":\"%s\"}", answer->digests[i]);
    }
    strbuf_format(out, "],\"seed\":%lld,\"prompt_tokens\":%zu,\"completion_tokens\":%lld}\n",
                  (long long)line->request.ask.sampling.seed, line->request.prompts[0].ids.count, (long long)drawn);
    answer->state = ANSWER_IS_WRITTEN;
    return strbuf_status(out);
}

static bool has_failed(const struct answer *answer) {
    bool failed = answer->is_broken || (answer->line.batch && answer->line.batch->is_broken);
    for (int64_t i = 0; i < answer->line.request.ask.choices; i++)
        failed |= answer->choices[i].reason == SCHEDULER_FAILED;
    return failed;
}

int answer_finish(struct answer *answer, struct requests_model *model) {
    int status = answer->has_slot ? adapters_give(model->adapters, answer->slot) : STATUS_OK;
    answer->has_slot = false;
    THEN(status, answer->status);
    if (!status && answer->state == ANSWER_IS_DONE && has_failed(answer)) {
        status_fail(STATUS_INVALID, ENGINE_NO_PROBABILITY);
        status = answer_fail(answer, ERROR_INTERNAL, NULL);
    } else if (!status && answer->state == ANSWER_IS_DONE && answer->line.batch) {
        batch_write(answer->line.batch, &answer->out);
        answer->state = ANSWER_IS_WRITTEN;
        status = strbuf_status(&answer->out);
    } else if (!status && answer->state == ANSWER_IS_DONE)
        status = write_line(answer);
    free_work(answer);
    return status;
}
