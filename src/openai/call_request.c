#include "call_request.h"

#include "call_grammar.h"

int call_request_begin(struct call_request *request, int64_t prompt_count) {
    *request = (struct call_request){.prompts = calloc((size_t)prompt_count, sizeof *request->prompts)};
    ask_begin(&request->ask);
    request->prompt_count = request->prompts ? prompt_count : 0;
    return status_allocated(request->prompts);
}

void call_request_free(struct call_request *request) {
    for (int64_t i = 0; i < request->prompt_count; i++)
        token_buffer_free(&request->prompts[i].ids);
    ask_free(&request->ask);
    free(request->prompts);
    *request = (struct call_request){0};
}

/* ---- messages ---- */

/* Returns a new reference to all messages except the last, which is to be continued. */
static json_t *drop_last(const json_t *messages) {
    json_t *copy = json_copy((json_t *)messages);
    bool is_whole = json_array_size(copy) == json_array_size(messages); /* it may lack a member that found no memory */
    if (copy && (!is_whole || json_array_remove(copy, json_array_size(copy) - 1))) {
        json_decref(copy);
        copy = NULL;
    }
    return copy;
}

int call_prompt_render(const struct call_prompt *prompt, const struct openai_model *model,
                       struct chat_template *template, struct chat_pieces *pieces) {
    struct chat_request request = prompt->chat;
    size_t count = json_array_size(request.messages);
    const json_t *last = json_array_get(request.messages, count - 1);
    json_t *rest = NULL;
    request.asks = !prompt->has_no_head || prompt->continues;
    request.tokenizer = model->tokenizer;
    request.eos = model_first_eos(&model->ends);
    request.seconds = model->template_seconds;
    if (request.asks && !prompt->continues && chat_is_assistants(last))
        return status_fail(STATUS_INVALID, "the last message is the assistant's: there is nothing to answer");
    if (prompt->continues && (!chat_is_assistants(last) || count < 2))
        return status_fail(STATUS_INVALID, "the last message is not an assistant's, which could be continued");
    TRY(prompt_check_template(template));
    if (prompt->continues && !(request.messages = rest = drop_last(request.messages)))
        return status_no_memory();
    int status = chat_render(template, &request, pieces);
    if (!status && prompt->continues) {
        const json_t *content = json_object_get(last, "content");
        status = chat_pieces_add(pieces, json_string_value(content), json_string_length(content), 0);
    }
    json_decref(rest);
    return status;
}

void call_prompt_note(struct call_prompt *prompt, const struct openai_model *model,
                      const struct chat_template *template, const struct chat_pieces *pieces) {
    prompt->tool_format = model->tool_format ? model->tool_format : tool_format_of(template);
    if (!model->has_no_reasoning && chat_may_think(template))
        prompt->thought = chat_thought_of(pieces, prompt->continues);
}

int call_request_constrain(const struct call_request *request, const struct call_prompt *prompt,
                           struct ask_constraint *made) {
    static const struct openai_tools none = {.choice = TOOLS_NONE};
    const struct call_grammar grammar = {
        .format = prompt->tool_format, .tools = request->tools ? request->tools : &none, .thought = prompt->thought};
    return call_grammar_make(&grammar, &request->ask.constraint, made);
}
