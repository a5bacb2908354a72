/* A choice on its way to its answer: its calls and its reasoning are read out of its text, as events. */
#include "openai.h"

#include "base/base.h"

bool openai_reads(const struct openai *request) {
    const struct call_prompt *prompt = &request->asked->prompts[0];
    return prompt->chat.messages && (request->calls.choice != TOOLS_NONE || prompt->thought != THOUGHT_NEVER);
}

static struct openai_call *add_call(struct openai_choice *choice) {
    if (array_reserve(&choice->calls, &choice->call_capacity, choice->call_count + 1, sizeof *choice->calls))
        return NULL;
    struct openai_call *call = &choice->calls[choice->call_count++];
    *call = (struct openai_call){.arguments = STRBUF_INIT};
    return call;
}

/* Gathers an event, for an answer that is sent whole. */
static int gather(struct openai_choice *choice, const struct call_event *event) {
    struct openai_call *call = choice->call_count ? &choice->calls[choice->call_count - 1] : NULL;
    struct strbuf *out = event->kind == CALL_REASONING ? &choice->reasoning : &choice->part.text;
    if (event->kind == CALL_BEGINS) {
        call = add_call(choice);
        TRY(status_allocated(call));
        snprintf(call->id, sizeof call->id, "%s", event->id);
        call->name = event->name;
    } else if (event->kind != CALL_ENDS) {
        out = event->kind == CALL_ARGUMENTS ? &call->arguments : out;
        strbuf_add(out, event->text, event->length);
        return strbuf_status(out);
    }
    return STATUS_OK;
}

/* A choice with its parser. */
struct openai_reader {
    struct openai *request;
    struct openai_choice *choice;
    struct call_parser *parser;
};

static int on_event(void *context, const struct call_event *event) {
    struct openai_reader *reader = context;
    struct openai *request = reader->request;
    reader->choice->has_calls |= event->kind == CALL_BEGINS;
    return request->on_event ? request->on_event(request->event_context, reader->choice, event)
                             : gather(reader->choice, event);
}

static int open_reader(struct openai *request, struct openai_choice *choice) {
    const struct call_prompt *prompt = &request->asked->prompts[0];
    bool has_calls = request->calls.choice != TOOLS_NONE;
    struct openai_reader *reader = choice->reader = calloc(1, sizeof *reader);
    TRY(status_allocated(reader));
    *reader = (struct openai_reader){.request = request, .choice = choice};
    return call_parser_open(&(struct call_parser_options){.tokenizer = request->model->tokenizer,
                                                          .format = has_calls ? prompt->tool_format : NULL,
                                                          .tools = request->calls.items,
                                                          .tool_count = request->calls.count,
                                                          .thought = prompt->thought,
                                                          .is_constrained = prompt->is_constrained,
                                                          .is_single = request->calls.is_single,
                                                          .is_answer = !prompt->continues,
                                                          .seed = request->asked->ask.sampling.seed,
                                                          .prompt = &prompt->ids,
                                                          .choice = choice - request->choices,
                                                          .on_event = on_event,
                                                          .context = reader},
                            &reader->parser);
}

int openai_read_piece(struct openai *request, struct openai_choice *choice, const struct call_update *update,
                      const struct call_piece *piece, const struct call_end *end) {
    int status = choice->reader ? STATUS_OK : open_reader(request, choice);
    THEN_IF(status, piece, call_parser_take(choice->reader->parser, update, piece));
    THEN_IF(status, end, call_parser_end(choice->reader->parser, end->is_stop));
    if (!status && end)
        request->reasoning_tokens += call_parser_reasoning_tokens(choice->reader->parser);
    return status;
}

void openai_reading_free(struct openai_choice *choice) {
    if (choice->reader)
        call_parser_close(choice->reader->parser);
    free(choice->reader);
    for (size_t i = 0; i < choice->call_count; i++)
        strbuf_free(&choice->calls[i].arguments);
    free(choice->calls);
    strbuf_free(&choice->reasoning);
}
