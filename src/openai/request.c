/* A request: read, and freed. */
#include "openai.h"

#include "base/base.h"

const struct openai_kind *const openai_kinds[] = {&openai_completion_kind, &openai_chat_kind,  &openai_responses_kind,
                                                  &openai_messages_kind,   &openai_count_kind, NULL};

/* Prepares the echo: the text as it was sent, or the text of the ids. */
static bool take_echo(struct openai *request, struct error *error) {
    for (int64_t i = 0; request->echoes && i < request->asked->prompt_count; i++) {
        const struct call_prompt *prompt = &request->asked->prompts[i];
        struct strbuf *text = &request->prompts[i].part.text;
        const struct tokenizer *tokenizer = request->model->tokenizer;
        if (prompt->text)
            strbuf_add(text, prompt->text, prompt->length);
        for (size_t k = 0; !prompt->text && tokenizer && k < prompt->ids.count; k++) {
            size_t length = 0; /* a model's vocabulary may be larger than its tokenizer's */
            const unsigned char *bytes = tokenizer_token_bytes(tokenizer, prompt->ids.ids[k], &length);
            strbuf_add(text, bytes, length);
        }
        if (text->failed)
            return error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
    }
    return true;
}

static bool open_choices(struct openai *request, struct error *error) {
    const struct call_request *asked = request->asked;
    request->prompt_count = asked->prompt_count;
    request->choice_count = asked->prompt_count * asked->ask.choices;
    request->prompts = calloc((size_t)asked->prompt_count, sizeof *request->prompts);
    request->choices = calloc((size_t)request->choice_count, sizeof *request->choices);
    if (request->prompts && request->choices)
        return take_echo(request, error);
    return error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
}

bool openai_read(struct openai *request, const struct openai_model *model, const struct openai_kind *kind, json_t *root,
                 struct call_request *asked, struct error *error) {
    *request = (struct openai){.model = model,
                               .kind = kind,
                               .root = root,
                               .asked = asked,
                               .is_chat = kind->is_chat,
                               .tops = -1,
                               .prompt_tops = -1,
                               .longest = -1,
                               .asks_for_head = true,
                               .on_event = kind->dialect ? openai_items_take : NULL,
                               .event_context = request};
    if (!kind->open(request, error) || !openai_read_fields(request, error))
        return false;
    asked->tools = &request->calls;
    return open_choices(request, error);
}

int openai_open_plain(struct openai *request, const struct openai_model *model, struct call_request *asked) {
    struct error error;
    *request = (struct openai){.model = model,
                               .asked = asked,
                               .is_plain = true,
                               .returns_ids = true,
                               .tells_logprobs = asked->ask.logprobs >= 0,
                               .tops = asked->ask.logprobs,
                               .prompt_tops = asked->ask.prompt_logprobs};
    return open_choices(request, &error) ? STATUS_OK : status_no_memory();
}

void openai_free(struct openai *request) {
    int64_t prompts = request->prompts ? request->prompt_count : 0;
    for (int64_t i = 0; i < prompts; i++) {
        kept_tokens_free(&request->prompts[i].kept);
        openai_part_free(&request->prompts[i].part);
        strbuf_free(&request->prompts[i].logprobs);
    }
    for (int64_t i = 0; request->choices && i < request->choice_count; i++) {
        openai_part_free(&request->choices[i].part);
        openai_reading_free(&request->choices[i]);
    }
    free(request->prompts);
    free(request->choices);
    json_decref(request->messages);
    json_decref(request->tools);
    json_decref(request->documents);
    json_decref(request->variables);
    json_decref(request->tool_choice);
    json_decref(request->parallel_calls);
    openai_tools_free(&request->calls);
    openai_items_free(request);
    strbuf_free(&request->head);
    openai_part_free(&request->chunk);
    strbuf_free(&request->given);
    strbuf_free(&request->ignored);
    strbuf_free(&request->ignored_names);
    json_decref(request->root);
    *request = (struct openai){0};
}
