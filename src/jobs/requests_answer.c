/* One request from its line to its answer. */
#include "requests.h"

#include "infer/slots.h"
#include "pretrained/pretrained.h"

/* ---- errors and memory ---- */

int answer_fail(struct answer *answer, enum error_case which, const char *field) {
    answer->is_error = true;
    answer->state = ANSWER_IS_WRITTEN;
    strbuf_clear(&answer->out);
    answer->line.form->write_error(answer, which, field, &answer->out);
    return strbuf_status(&answer->out);
}

int answer_new(const char *text, size_t length, int64_t number, const struct openai_model *model, struct answer **out) {
    const char *field;
    struct answer *answer = *out = calloc(1, sizeof *answer);
    TRY(status_allocated(answer));
    answer->number = number;
    answer->slot = -1;
    int status = request_line_read(&answer->line, text, length, number, model, &field);
    answer->line.openai.generations = answer->generations;
    answer->line.openai.cached = &answer->cached;
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
    for (int64_t i = 0; answer->choices && i < answer->line.request.ask.choices; i++)
        writer_free(&answer->choices[i].writer);
    free(answer->choices);
    answer->choices = NULL;
    ask_ends_close(&answer->ends);
    update_free(answer->update);
    answer->update = NULL;
    request_line_free(&answer->line);
}

/* ---- the grammar of its constraint ---- */

int answer_order(struct answer *answer, struct requests_model *model) {
    struct call_prompt *prompt = &answer->line.request.prompts[0];
    const struct ask_constraint *constraint = &answer->constraint;
    if (answer->state != ANSWER_WAITS || (prompt->chat.messages && !prompt->ids.count))
        return STATUS_OK;
    TRY(call_request_constrain(&answer->line.request, prompt, &answer->constraint));
    prompt->is_constrained = constraint->source.field != NULL;
    if (!constraint->source.field || !model->grammars)
        return STATUS_OK;
    answer->grammar = (struct grammar_order){.source = constraint->source, .vocabulary = model->vocabulary};
    answer->is_ordering = !grammars_begin(model->grammars, &answer->grammar);
    return STATUS_OK;
}

/* Takes what came of the order; false: it is not done. */
static bool take_grammar(struct answer *answer, bool waits) {
    if (answer->is_ordering)
        answer->is_ordering = !grammars_end(answer->grammar.context, &answer->grammar, waits);
    return !answer->is_ordering;
}

void answer_free(struct answer *answer) {
    if (!answer)
        return;
    free_work(answer);
    take_grammar(answer, true);
    grammar_release(answer->grammar.grammar);
    grammar_report_free(&answer->grammar.report);
    ask_constraint_free(&answer->constraint);
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
        status = pretrained_read_tokenizer(model->tokenizer_directory, &files);
        THEN(status, chat_template_of_tokenizer(&files, &model->tokenizers_template));
        tokenizer_files_free(&files);
        model->has_tokenizers_template = !status;
    }
    *template = chat_template_keep(model->tokenizers_template);
    return status;
}

static int encode_messages(struct call_prompt *prompt, const struct requests_model *model,
                           struct chat_template *template) {
    struct chat_pieces pieces = {0};
    int status = call_prompt_render(prompt, &model->openai, template, &pieces);
    THEN(status, prompt_check_bytes(&model->openai.room, pieces.text.length));
    if (!status)
        call_prompt_note(prompt, &model->openai, template, &pieces);
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
    THEN_IF(status, !prompt->text, encode_messages(prompt, model, *template));
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
    line->openai.model_name = name;
    return STATUS_OK;
}

/* Prepares the request. A fault of the request sets *field; STATUS_MEMORY is no fault of the request. */
static int prepare(struct answer *answer, struct requests_model *model, const char **field) {
    struct request_line *line = &answer->line;
    struct chat_template *template = NULL;
    TRY(take_model(line, model, field));
    *field = line->request.prompts[0].chat.messages ? "messages" : "prompt";
    int status = make_prompt(answer, model, &template);
    THEN_IF(status, line->request.prompts[0].chat.messages, answer_order(answer, model));
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
    struct adapter_view view;
    int status =
        adapters_take(model->adapters, asked->adapters, (int)asked->adapter_count, &answer->slot, answer->generations);
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
        answer->update = calloc(1, sizeof *answer->update);
        TRY(status_allocated(answer->choices && answer->update));
        status = prepare(answer, model, &field);
        if (status == STATUS_MEMORY)
            return status;
    }
    if (!status && answer->constraint.source.field) {
        field = answer->constraint.source.field;
        *must_wait = !take_grammar(answer, !model->is_busy);
        if (*must_wait)
            return STATUS_OK;
        if (!model->grammars)
            status = status_fail(STATUS_INVALID, "a constraint needs a tokenizer, and %s has none",
                                 model->tokenizer_directory);
        THEN(status, grammars_verdict(&answer->grammar));
        if (status == STATUS_MEMORY)
            return status;
        if (*answer->grammar.report.field)
            field = answer->grammar.report.field;
        if (status)
            status = status_wrap(status, "%s", field);
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
                            : answer->grammar.report.refusal   ? error_of_refusal(answer->grammar.report.refusal)
                                                               : ERROR_ARGUMENT;
    int failed = answer_fail(answer, which, field);
    return failed ? failed : answer_finish(answer, model);
}

/* ---- while it runs ---- */

static void on_start(void *context, int64_t cached) {
    ((struct answer *)context)->cached = cached;
}

static void keep(struct answer *answer, int status) {
    if (status && !answer->status)
        answer->status = status;
}

/* Gives the answer what the update has. */
static void pass(struct answer *answer) {
    openai_take_prompts(&answer->line.openai, answer->update);
    openai_take_all(&answer->line.openai, answer->update);
    update_clear(answer->update);
}

/* Adds the update's text as a piece, with a token unless it is NULL. `choice` -1: of the prompt. */
static int add_piece(struct answer *answer, int64_t choice, const struct scheduler_token *drawn, bool has_logprob) {
    struct call_token token;
    struct call_top tops[ASK_MAX_TOP];
    int status = strbuf_status(&answer->update->text);
    THEN(status, update_add_piece(answer->update, 0, choice, 0));
    if (drawn)
        answer->is_broken |= !update_read_token(drawn, has_logprob, &token, tops);
    THEN_IF(status, drawn, update_add_token(answer->update, &token, tops));
    pass(answer);
    return status;
}

/* Nothing predicts the first token of a prompt, except virtual tokens. */
static int add_first_token(struct answer *answer) {
    const struct call_request *asked = &answer->line.request;
    if (answer->has_prompt || answer->predicts_first || asked->ask.prompt_logprobs < 0)
        return STATUS_OK;
    answer->has_prompt = true;
    return add_piece(answer, -1, &(struct scheduler_token){.token = asked->prompts[0].ids.ids[0]}, false);
}

static void on_prompt_logprob(void *context, int64_t index, const struct scheduler_token *token) {
    struct answer *answer = context;
    int status = index > 0 ? add_first_token(answer) : STATUS_OK;
    answer->has_prompt = true;
    keep(answer, status ? status : add_piece(answer, -1, token, true));
}

static bool on_token(void *context, int64_t index, const struct scheduler_token *token) {
    struct answer *answer = context;
    struct answer_choice *choice = &answer->choices[index];
    const struct ask_completion completion = {&answer->line.request.ask, &answer->ends,
                                              answer->line.openai.model->tokenizer, &choice->writer, ++choice->drawn};
    bool is_ended = false;
    if (!answer->status)
        keep(answer, add_first_token(answer));
    if (token->is_end) {
        answer->is_broken |= !update_read_token(token, true, &choice->end.token, choice->tops);
        choice->end.has_token = true;
        return answer->status != STATUS_OK;
    }
    if (!answer->status)
        keep(answer, ask_write(&completion, token->token, &answer->update->text, &is_ended));
    if (!answer->status)
        keep(answer, add_piece(answer, index, token, true));
    return answer->status || is_ended;
}

static int end_choice(struct answer *answer, int64_t index, bool is_stop) {
    struct answer_choice *choice = &answer->choices[index];
    TRY(add_first_token(answer));
    TRY(writer_end(&choice->writer, &answer->update->text));
    if (answer->update->text.length)
        TRY(add_piece(answer, index, NULL, false));
    choice->end.choice = index;
    choice->end.is_stop = is_stop;
    choice->end.stop = ask_find_stop(&answer->line.request.ask, &choice->writer);
    choice->end.completion_tokens = choice->drawn;
    answer->line.openai.completion_tokens += choice->drawn;
    int status = update_add_end(answer->update, &choice->end, choice->tops);
    pass(answer);
    return status;
}

static void on_end(void *context, int64_t index, enum scheduler_end reason) {
    struct answer *answer = context;
    answer->is_broken |= reason == SCHEDULER_FAILED;
    answer->is_too_slow |= reason == SCHEDULER_MASK;
    keep(answer, end_choice(answer, index, reason == SCHEDULER_STOP));
}

static void on_done(void *context) {
    struct answer *answer = context;
    answer->state = ANSWER_IS_DONE;
    answer->next_finished = *answer->finished;
    *answer->finished = answer;
}

void answer_request(struct answer *answer, const struct requests_model *model, struct scheduler_request *request) {
    const struct ask_prompt prompt = prompt_of(answer, model);
    answer->predicts_first = engine_slot_predicts_first(model->engine, answer->slot);
    ask_schedule(&answer->line.request.ask, &answer->ends, &prompt, request);
    request->calls = (struct scheduler_calls){on_start, on_token, on_prompt_logprob, on_end, on_done};
    request->context = answer;
    request->grammar = answer->grammar.grammar;
    openai_add_ignored(&answer->line.openai, answer->grammar.report.ignored);
}

/* ---- after it ran ---- */

int answer_finish(struct answer *answer, struct requests_model *model) {
    int status = answer->has_slot ? adapters_give(model->adapters, answer->slot) : STATUS_OK;
    answer->has_slot = false;
    THEN(status, answer->status);
    if (!status && answer->state == ANSWER_IS_DONE && answer->is_broken) {
        status_fail(STATUS_INVALID, ENGINE_NO_PROBABILITY);
        status = answer_fail(answer, ERROR_INTERNAL, NULL);
    } else if (!status && answer->state == ANSWER_IS_DONE && answer->is_too_slow) {
        status_fail(STATUS_UNSUPPORTED, SCHEDULER_NO_MASK);
        status = answer_fail(answer, ERROR_CONSTRAINT_TOO_LARGE, answer->constraint.source.field);
    } else if (!status && answer->state == ANSWER_IS_DONE) {
        answer->line.form->write(answer, &answer->out);
        answer->state = ANSWER_IS_WRITTEN;
        status = strbuf_status(&answer->out);
    }
    free_work(answer);
    return status;
}
