/* Sends a call's results as gRPC messages: streamed, whole, or only the prompt's log-probabilities. The prompt's
 * tokens, and those of an answer that is sent whole, are kept until their message is sent. A long answer that is sent
 * whole is built on a worker. */
#include "grpc-internal.h"

#include "driver.h"
#include "log.h"
#include "loop.h"
#include "openai/kept_tokens.h"
#include "route.h"
#include "text_job.h"

#include "base/utf8.h"

/* A call of a tool, or a piece of it. */
struct tool_call {
    int64_t index;
    char id[TOOL_ID_BYTES], name[TOOL_NAME_BYTES + 1];
    struct strbuf arguments;
};

/* One completion of an answer that is sent whole. */
struct choice {
    struct strbuf text, reasoning;
    struct tool_call *calls; /* [call_count] */
    size_t call_count, call_capacity;
    struct kept_tokens kept;
    bool has_ended;
    struct call_end end;
};

enum kind { STREAMED, WHOLE, SCORE };

struct generation;
/* Reads calls and reasoning out of a completion. */
struct reader {
    struct generation *generation;
    struct call_parser *parser;
    int64_t choice;
    /* In a stream: the piece whose tokens were not sent; NULL: none */
    const struct call_update *update;
    const struct call_piece *piece;
};

struct generation {
    struct grpc_call *call; /* NULL: its exchange closed while the answer was being built */
    struct call *asked;
    char id[REQUEST_ID_BYTES], adapters[ASK_MAX_ADAPTERS][ADAPTER_NAME_BYTES]; /* `asked` points to these */
    enum kind kind;
    bool has_started; /* streamed: Started was sent */
    struct kept_tokens prompt;
    struct choice *choices; /* [choice_count] for an answer that is sent whole */
    int64_t choice_count;
    struct reader *readers; /* [asked->request.ask.choices]; NULL: no tools were given */
    size_t bytes;           /* the minimum size of an answer that is sent whole */
    /* An answer that is sent whole, while it is built, on a worker when it is long: */
    bool is_building;
    struct worker_job building;
    struct loop_note built;
    struct strbuf packed;
    struct error error;
};

/* ---- Started, Output, Finished ---- */

struct started {
    Cambium__V1__Started message;
    Cambium__V1__AdapterVersion adapters[ASK_MAX_ADAPTERS], *adapter_list[ASK_MAX_ADAPTERS];
    struct grpc_token_list prompt;
    char **ignored;
};

static int started_fill(struct started *started, const struct call *asked, const struct call_token *prompt,
                        int64_t count, const struct call_top *tops) {
    Cambium__V1__Started *message = &started->message;
    cambium__v1__started__init(message);
    message->request_id = (char *)asked->id;
    message->prompt_tokens = (uint32_t)asked->request.prompts[0].ids.count;
    message->cached_tokens = (uint32_t)asked->cached[0];
    message->seed = asked->request.ask.sampling.seed;
    for (int64_t i = 0; i < asked->request.ask.adapter_count; i++) {
        cambium__v1__adapter_version__init(&started->adapters[i]);
        started->adapters[i].name = (char *)asked->request.ask.adapters[i];
        started->adapters[i].generation = asked->generations[i];
        started->adapter_list[i] = &started->adapters[i];
    }
    message->n_adapters = (size_t)asked->request.ask.adapter_count;
    message->adapters = started->adapter_list;
    int status = grpc_token_list_fill(&started->prompt, prompt, count, tops);
    message->n_prompt_logprobs = started->prompt.count;
    message->prompt_logprobs = started->prompt.token_list;
    size_t ignored = json_array_size(asked->ignored);
    started->ignored = calloc(ignored + 1, sizeof *started->ignored);
    THEN(status, status_allocated(started->ignored));
    for (size_t i = 0; i < ignored && !status; i++)
        started->ignored[i] = (char *)json_string_value(json_array_get(asked->ignored, i));
    message->n_ignored = status ? 0 : ignored;
    message->ignored = started->ignored;
    return status;
}

static void started_free(struct started *started) {
    grpc_token_list_free(&started->prompt);
    free(started->ignored);
}

struct output {
    Cambium__V1__Output message;
    struct grpc_text text, reasoning;
    Cambium__V1__ToolCall *calls, **call_list;
    struct strbuf *arguments; /* [message.n_tool_calls] repaired */
    struct grpc_token_list logprobs;
    uint32_t *ids;
};

/* A completion, or a piece of it. */
struct written {
    int64_t choice;
    const char *text; /* [length] */
    size_t length;
    const struct call_token *tokens; /* [count] */
    int64_t count;
    const struct call_top *tops;        /* those of its tokens */
    const struct strbuf *reasoning;     /* NULL: none */
    const struct tool_call *tool_calls; /* [call_count] */
    size_t call_count;
};

static int fill_calls(struct output *output, const struct written *written) {
    size_t count = written->call_count;
    output->calls = calloc(count + 1, sizeof *output->calls);
    output->call_list = calloc(count + 1, sizeof *output->call_list);
    output->arguments = calloc(count + 1, sizeof *output->arguments);
    TRY(status_allocated(output->calls && output->call_list && output->arguments));
    output->message.tool_calls = output->call_list;
    for (size_t i = 0; i < count; i++) {
        const struct tool_call *call = &written->tool_calls[i];
        Cambium__V1__ToolCall *message = output->call_list[i] = &output->calls[i];
        cambium__v1__tool_call__init(message);
        message->index = (uint32_t)call->index;
        message->id = (char *)call->id;
        message->name = (char *)call->name;
        output->message.n_tool_calls++;
        utf8_add_repaired(&output->arguments[i], strbuf_text(&call->arguments), call->arguments.length);
        TRY(strbuf_status(&output->arguments[i]));
        if (output->arguments[i].length)
            message->arguments = output->arguments[i].data;
    }
    return STATUS_OK;
}

static int output_fill(struct output *output, const struct call *asked, const struct written *written) {
    Cambium__V1__Output *message = &output->message;
    int64_t count = written->count;
    *output = (struct output){0};
    cambium__v1__output__init(message);
    message->index = (uint32_t)written->choice;
    output->ids = malloc(((size_t)count + 1) * sizeof *output->ids);
    TRY(status_allocated(output->ids));
    for (int64_t i = 0; i < count; i++)
        output->ids[i] = (uint32_t)written->tokens[i].id;
    message->n_token_ids = (size_t)count;
    message->token_ids = output->ids;
    int status = grpc_text_set(&output->text, &message->base, &message->text, 2, written->text, written->length);
    if (!status && written->reasoning)
        status = grpc_text_set(&output->reasoning, &message->base, &message->reasoning, 5,
                               strbuf_text(written->reasoning), written->reasoning->length);
    THEN_IF(status, written->call_count, fill_calls(output, written));
    if (!status && asked->request.ask.logprobs >= 0) {
        status = grpc_token_list_fill(&output->logprobs, written->tokens, count, written->tops);
        message->n_logprobs = output->logprobs.count;
        message->logprobs = output->logprobs.token_list;
    }
    return status;
}

static void output_free(struct output *output) {
    free(output->ids);
    grpc_text_free(&output->text);
    grpc_text_free(&output->reasoning);
    for (size_t i = 0; i < output->message.n_tool_calls; i++)
        strbuf_free(&output->arguments[i]);
    free(output->calls);
    free(output->call_list);
    free(output->arguments);
    grpc_token_list_free(&output->logprobs);
}

static void finished_fill(const struct generation *generation, Cambium__V1__Finished *message,
                          const struct call_end *end) {
    bool has_calls = generation->readers && call_parser_calls(generation->readers[end->choice].parser);
    cambium__v1__finished__init(message);
    message->index = (uint32_t)end->choice;
    message->reason = !end->is_stop ? CAMBIUM__V1__FINISHED__REASON__LENGTH
                      : has_calls   ? CAMBIUM__V1__FINISHED__REASON__TOOL_CALLS
                                    : CAMBIUM__V1__FINISHED__REASON__STOP;
    message->completion_tokens = (uint32_t)end->completion_tokens;
}

/* ---- kept results ---- */

/* Fails early when the answer can no longer fit one message. */
static bool has_room(struct generation *generation, const struct call_update *update, const struct call_piece *piece) {
    enum { LEAST_LOGPROB = 13 }; /* an id, a double, their tags and both lengths */
    bool has_logprobs = piece->choice < 0 || generation->asked->request.ask.logprobs >= 0;
    generation->bytes += piece->length + (size_t)piece->token_count;
    for (int64_t i = 0; has_logprobs && i < piece->token_count; i++)
        generation->bytes += (size_t)(1 + update->tokens[piece->first_token + i].top_count) * LEAST_LOGPROB;
    if (generation->bytes <= GRPC_MAX_MESSAGE)
        return true;
    grpc_finish(generation->call,
                AN_ERROR(ERROR_BODY_SIZE, NULL, "the answer would be larger than the %d bytes of a message%s",
                         GRPC_MAX_MESSAGE, generation->kind == WHOLE ? ": Generate streams it" : ""));
    return false;
}

/* ---- streamed ---- */

static void send_started(struct generation *generation) {
    struct started started = {0};
    Cambium__V1__GenerateResponse answer = CAMBIUM__V1__GENERATE_RESPONSE__INIT;
    const struct kept_tokens *prompt = &generation->prompt;
    if (generation->has_started)
        return;
    generation->has_started = true;
    int status = started_fill(&started, generation->asked, prompt->tokens, prompt->count, prompt->tops);
    answer.event_case = CAMBIUM__V1__GENERATE_RESPONSE__EVENT_STARTED;
    answer.started = &started.message;
    if (status)
        grpc_finish_memory(generation->call);
    else
        grpc_send(generation->call, &answer.base);
    started_free(&started);
}

static void send_written(struct generation *generation, const struct written *written) {
    struct output output;
    Cambium__V1__GenerateResponse answer = CAMBIUM__V1__GENERATE_RESPONSE__INIT;
    int status = output_fill(&output, generation->asked, written);
    answer.event_case = CAMBIUM__V1__GENERATE_RESPONSE__EVENT_OUTPUT;
    answer.output = &output.message;
    if (status)
        grpc_finish_memory(generation->call);
    else
        grpc_send(generation->call, &answer.base);
    output_free(&output);
}

static struct written written_of(const struct call_update *update, const struct call_piece *piece) {
    return (struct written){.choice = piece->choice,
                            .tokens = update->tokens + piece->first_token,
                            .count = piece->token_count,
                            .tops = update->tops};
}

static void send_output(struct generation *generation, const struct call_update *update,
                        const struct call_piece *piece) {
    struct written written = written_of(update, piece);
    written.text = strbuf_text(&update->text) + piece->begin;
    written.length = piece->length;
    send_written(generation, &written);
}

/* ---- calls and reasoning ---- */

/* Sends an event, with the tokens of its piece unless they were sent. */
static void send_event(struct reader *reader, const struct call_event *event) {
    struct written written = {.choice = reader->choice};
    struct strbuf bytes = {.data = (char *)event->text, .length = event->length};
    struct tool_call call = {.index = event->index};
    if (reader->piece)
        written = written_of(reader->update, reader->piece);
    if (event->kind == CALL_TEXT) {
        written.text = event->text;
        written.length = event->length;
    } else if (event->kind == CALL_REASONING) {
        written.reasoning = &bytes;
    } else {
        snprintf(call.id, sizeof call.id, "%s", event->id ? event->id : "");
        snprintf(call.name, sizeof call.name, "%s", event->name ? event->name : "");
        call.arguments = bytes;
        written.tool_calls = &call;
        written.call_count = 1;
    }
    reader->piece = NULL;
    send_written(reader->generation, &written);
}

static int keep_event(struct choice *choice, const struct call_event *event) {
    struct strbuf *out = event->kind == CALL_REASONING ? &choice->reasoning : &choice->text;
    if (event->kind == CALL_BEGINS) {
        TRY(array_reserve(&choice->calls, &choice->call_capacity, choice->call_count + 1, sizeof *choice->calls));
        struct tool_call *call = &choice->calls[choice->call_count++];
        *call = (struct tool_call){.index = event->index};
        snprintf(call->id, sizeof call->id, "%s", event->id);
        snprintf(call->name, sizeof call->name, "%s", event->name);
        return STATUS_OK;
    }
    if (event->kind == CALL_ARGUMENTS)
        out = &choice->calls[choice->call_count - 1].arguments;
    strbuf_add(out, event->text, event->length);
    return strbuf_status(out);
}

static int on_event(void *context, const struct call_event *event) {
    struct reader *reader = context;
    struct generation *generation = reader->generation;
    if (event->kind == CALL_ENDS)
        return STATUS_OK;
    if (generation->kind == WHOLE)
        return keep_event(&generation->choices[reader->choice], event);
    send_event(reader, event);
    return STATUS_OK;
}

/* Makes the readers of a request with tools, when its prompt has its ids. */
static int open_readers(struct generation *generation) {
    const struct call *asked = generation->asked;
    const struct call_prompt *prompt = &asked->request.prompts[0];
    int status = STATUS_OK;
    if (asked->tools.choice == TOOLS_NONE || generation->readers || generation->kind == SCORE)
        return STATUS_OK;
    generation->readers = calloc((size_t)asked->request.ask.choices, sizeof *generation->readers);
    TRY(status_allocated(generation->readers));
    for (int64_t i = 0; i < asked->request.ask.choices && !status; i++) {
        struct reader *reader = &generation->readers[i];
        *reader = (struct reader){.generation = generation, .choice = i};
        status = call_parser_open(&(struct call_parser_options){.tokenizer = asked->server->model.tokenizer,
                                                                .format = prompt->tool_format,
                                                                .tools = asked->tools.items,
                                                                .tool_count = asked->tools.count,
                                                                .thought = prompt->thought,
                                                                .is_constrained = prompt->is_constrained,
                                                                .is_single = asked->tools.is_single,
                                                                .seed = asked->request.ask.sampling.seed,
                                                                .prompt = &prompt->ids,
                                                                .choice = i,
                                                                .on_event = on_event,
                                                                .context = reader},
                                  &reader->parser);
    }
    return status;
}

static void close_readers(struct generation *generation) {
    for (int64_t i = 0; generation->readers && i < generation->asked->request.ask.choices; i++)
        call_parser_close(generation->readers[i].parser);
    free(generation->readers);
}

/* Reads a piece. In a stream its tokens are sent in any case. */
static int read_piece(struct generation *generation, const struct call_update *update, const struct call_piece *piece) {
    struct reader *reader = &generation->readers[piece->choice];
    reader->update = update;
    reader->piece = generation->kind == STREAMED ? piece : NULL;
    int status = call_parser_take(reader->parser, update, piece);
    if (!status && reader->piece) {
        const struct written written = written_of(update, piece);
        send_written(generation, &written);
    }
    reader->piece = NULL;
    return status;
}

/* When the prompt's log-probabilities are requested, Started waits for them; they come before the first text. */
static int stream_update(struct generation *generation, const struct call_update *update) {
    if (update->is_accepted)
        grpc_begin_answer(generation->call, NULL, 0);
    if (update->start_count && generation->asked->request.ask.prompt_logprobs < 0)
        send_started(generation);
    for (int64_t i = 0; i < update->piece_count; i++) {
        const struct call_piece *piece = &update->pieces[i];
        if (piece->choice >= 0) {
            send_started(generation);
            if (generation->readers)
                TRY(read_piece(generation, update, piece));
            else
                send_output(generation, update, piece);
        } else if (!has_room(generation, update, piece)) {
            return STATUS_OK;
        } else if (kept_tokens_add(&generation->prompt, update, piece)) {
            return STATUS_MEMORY;
        }
    }
    for (int64_t i = 0; i < update->end_count; i++) {
        send_started(generation);
        if (generation->readers)
            TRY(call_parser_end(generation->readers[update->ends[i].choice].parser, update->ends[i].is_stop));
        Cambium__V1__Finished finished;
        Cambium__V1__GenerateResponse answer = CAMBIUM__V1__GENERATE_RESPONSE__INIT;
        finished_fill(generation, &finished, &update->ends[i]);
        answer.event_case = CAMBIUM__V1__GENERATE_RESPONSE__EVENT_FINISHED;
        answer.finished = &finished;
        grpc_send(generation->call, &answer.base);
    }
    if (!update->is_done && grpc_is_full(generation->call))
        call_pause(generation->asked, true);
    return STATUS_OK;
}

static void on_room(struct grpc_call *call) {
    struct generation *generation = grpc_context(call);
    if (generation)
        call_pause(generation->asked, false);
}

/* ---- whole ---- */

static int keep_update(struct generation *generation, const struct call_update *update) {
    int status = STATUS_OK;
    for (int64_t i = 0; i < update->piece_count && !status; i++) {
        const struct call_piece *piece = &update->pieces[i];
        if (!has_room(generation, update, piece))
            return STATUS_OK;
        if (piece->choice < 0) {
            status = kept_tokens_add(&generation->prompt, update, piece);
        } else if (piece->choice < generation->choice_count) {
            struct choice *choice = &generation->choices[piece->choice];
            if (generation->readers)
                status = read_piece(generation, update, piece);
            else
                strbuf_add(&choice->text, strbuf_text(&update->text) + piece->begin, piece->length);
            THEN(status, strbuf_status(&choice->text));
            THEN(status, kept_tokens_add(&choice->kept, update, piece));
        }
    }
    for (int64_t i = 0; i < update->end_count && !status; i++)
        if (update->ends[i].choice < generation->choice_count) {
            if (generation->readers)
                status = call_parser_end(generation->readers[update->ends[i].choice].parser, update->ends[i].is_stop);
            generation->choices[update->ends[i].choice].end = update->ends[i];
            generation->choices[update->ends[i].choice].has_ended = true;
        }
    return status;
}

struct whole {
    struct output *outputs;
    Cambium__V1__Output **output_list;
    Cambium__V1__Finished *finished, **finished_list;
};

static int fill_choices(const struct generation *generation, struct whole *whole,
                        Cambium__V1__GenerateOnceResponse *answer) {
    size_t count = (size_t)generation->choice_count;
    whole->outputs = calloc(count + 1, sizeof *whole->outputs);
    whole->output_list = calloc(count + 1, sizeof *whole->output_list);
    whole->finished = calloc(count + 1, sizeof *whole->finished);
    whole->finished_list = calloc(count + 1, sizeof *whole->finished_list);
    TRY(status_allocated(whole->outputs && whole->output_list && whole->finished && whole->finished_list));
    answer->outputs = whole->output_list;
    answer->finished = whole->finished_list;
    for (size_t i = 0; i < count; i++) {
        const struct choice *choice = &generation->choices[i];
        const struct written written = {.choice = (int64_t)i,
                                        .text = strbuf_text(&choice->text),
                                        .length = choice->text.length,
                                        .tokens = choice->kept.tokens,
                                        .count = choice->kept.count,
                                        .tops = choice->kept.tops,
                                        .reasoning = &choice->reasoning,
                                        .tool_calls = choice->calls,
                                        .call_count = choice->call_count};
        TRY(output_fill(&whole->outputs[i], generation->asked, &written));
        whole->output_list[answer->n_outputs++] = &whole->outputs[i].message;
        if (!choice->has_ended)
            continue;
        finished_fill(generation, &whole->finished[i], &choice->end);
        whole->finished_list[answer->n_finished++] = &whole->finished[i];
    }
    return STATUS_OK;
}

static bool pack(struct generation *generation, int status, const ProtobufCMessage *answer) {
    if (status)
        error_set(&generation->error, ERROR_OVERLOADED, NULL, "out of memory");
    return !status && grpc_pack(answer, &generation->packed, &generation->error);
}

static void build_whole(struct generation *generation) {
    struct started started = {0};
    struct whole whole = {0};
    Cambium__V1__GenerateOnceResponse answer = CAMBIUM__V1__GENERATE_ONCE_RESPONSE__INIT;
    const struct kept_tokens *prompt = &generation->prompt;
    int status = started_fill(&started, generation->asked, prompt->tokens, prompt->count, prompt->tops);
    answer.started = &started.message;
    THEN(status, fill_choices(generation, &whole, &answer));
    pack(generation, status, &answer.base);
    for (int64_t i = 0; whole.outputs && i < generation->choice_count; i++)
        output_free(&whole.outputs[i]);
    free(whole.outputs);
    free(whole.output_list);
    free(whole.finished);
    free(whole.finished_list);
    started_free(&started);
}

static void build_score(struct generation *generation) {
    Cambium__V1__ScoreResponse answer = CAMBIUM__V1__SCORE_RESPONSE__INIT;
    struct grpc_token_list list;
    const struct kept_tokens *prompt = &generation->prompt;
    int status = grpc_token_list_fill(&list, prompt->tokens, prompt->count, prompt->tops);
    answer.n_tokens = list.count;
    answer.tokens = list.token_list;
    pack(generation, status, &answer.base);
    grpc_token_list_free(&list);
}

/* Any thread. */
static void build(struct generation *generation) {
    if (generation->kind == WHOLE)
        build_whole(generation);
    else
        build_score(generation);
}

static void free_generation(struct generation *generation, enum error_case why);

static void send_built(struct generation *generation) {
    if (generation->error.which)
        grpc_finish(generation->call, &generation->error);
    else
        grpc_answer_packed(generation->call, &generation->packed);
}

static void on_built(struct loop_note *note) {
    struct generation *generation = (struct generation *)((char *)note - offsetof(struct generation, built));
    generation->is_building = false;
    if (generation->call)
        send_built(generation);
    else
        free_generation(generation, ERROR_NONE);
}

static void build_on_worker(struct worker_job *job) {
    struct generation *generation = (struct generation *)((char *)job - offsetof(struct generation, building));
    struct loop *loop = generation->asked->server->loop;
    build(generation);
    loop_post(loop, &generation->built);
}

static void answer(struct generation *generation) {
    struct worker *worker = generation->asked->server->worker;
    if (worker && generation->bytes > ROUTE_SHORT_BYTES) {
        generation->is_building = true;
        generation->built.run = on_built;
        generation->building.work = build_on_worker;
        worker_drop(worker, &generation->building);
    } else {
        build(generation);
        send_built(generation);
    }
}

/* ---- calls ---- */

static void on_update(struct call *asked, const struct call_update *update) {
    struct generation *generation = asked->context;
    if (grpc_is_finished(generation->call))
        return; /* it is freed when the exchange closes */
    log_take_update(grpc_exchange(generation->call), update);
    int status = update->is_accepted ? open_readers(generation) : STATUS_OK;
    THEN(status, generation->kind == STREAMED ? stream_update(generation, update) : keep_update(generation, update));
    if (status)
        grpc_finish_memory(generation->call);
    if (!update->is_done)
        return;
    if (update->error.which) {
        struct error error = update->error;
        if (!strcmp(error.param, "prompt")) /* the name in other protocols */
            snprintf(error.param, sizeof error.param, "input");
        grpc_finish(generation->call, &error);
    } else if (generation->kind == STREAMED)
        grpc_finish(generation->call, NULL);
    else
        answer(generation);
}

/* `why`: see call_free. */
static void free_generation(struct generation *generation, enum error_case why) {
    close_readers(generation);
    call_free(generation->asked, why);
    for (int64_t i = 0; i < generation->choice_count; i++) {
        strbuf_free(&generation->choices[i].text);
        strbuf_free(&generation->choices[i].reasoning);
        for (size_t k = 0; k < generation->choices[i].call_count; k++)
            strbuf_free(&generation->choices[i].calls[k].arguments);
        free(generation->choices[i].calls);
        kept_tokens_free(&generation->choices[i].kept);
    }
    free(generation->choices);
    kept_tokens_free(&generation->prompt);
    strbuf_free(&generation->packed);
    free(generation);
}

static void on_close(struct grpc_call *call) {
    struct generation *generation = grpc_context(call);
    log_take_call(grpc_exchange(call), generation->asked);
    generation->call = NULL;
    if (!generation->is_building)
        free_generation(generation, request_error(grpc_exchange(call)));
}

static void begin(struct grpc_call *call, struct call *asked, enum kind kind) {
    struct generation *generation = calloc(1, sizeof *generation);
    int64_t count = kind == WHOLE && asked ? asked->request.ask.choices : 0;
    struct choice *choices = count ? calloc((size_t)count, sizeof *choices) : NULL;
    if (!asked || !generation || (count && !choices)) {
        free(choices);
        free(generation);
        if (asked) {
            call_free(asked, ERROR_NONE);
            grpc_finish_memory(call);
        }
        return;
    }
    *generation =
        (struct generation){.call = call, .asked = asked, .kind = kind, .choices = choices, .choice_count = count};
    /* The answer may be built after the exchange and its message have been freed. */
    snprintf(generation->id, sizeof generation->id, "%s", asked->id);
    asked->id = generation->id;
    for (int64_t i = 0; i < asked->request.ask.adapter_count; i++) {
        snprintf(generation->adapters[i], sizeof *generation->adapters, "%s", asked->request.ask.adapters[i]);
        asked->request.ask.adapters[i] = generation->adapters[i];
    }
    asked->context = generation;
    asked->on_update = on_update;
    grpc_set_context(call, generation);
    call_submit(asked);
}

static void generate(struct grpc_call *call, const ProtobufCMessage *message) {
    begin(call, grpc_ask_generate(call, (const Cambium__V1__GenerateRequest *)message), STREAMED);
}

static void generate_once(struct grpc_call *call, const ProtobufCMessage *message) {
    begin(call, grpc_ask_generate(call, (const Cambium__V1__GenerateRequest *)message), WHOLE);
}

static void score(struct grpc_call *call, const ProtobufCMessage *message) {
    begin(call, grpc_ask_score(call, (const Cambium__V1__ScoreRequest *)message), SCORE);
}

static const struct grpc_method methods[] = {
    {.name = "Generate",
     .request = &cambium__v1__generate_request__descriptor,
     .gives_many = true,
     .on_message = generate,
     .on_room = on_room,
     .on_close = on_close},
    {.name = "GenerateOnce",
     .request = &cambium__v1__generate_request__descriptor,
     .on_message = generate_once,
     .on_close = on_close},
    {.name = "Score", .request = &cambium__v1__score_request__descriptor, .on_message = score, .on_close = on_close},
    {.name = "Tokenize",
     .request = &cambium__v1__tokenize_request__descriptor,
     .short_bytes = text_job_short_bytes,
     .answer = grpc_tokenize},
    {.name = "Detokenize", .request = &cambium__v1__detokenize_request__descriptor, .answer = grpc_detokenize},
    {.name = "ServerInfo", .request = &cambium__v1__server_info_request__descriptor, .on_message = grpc_server_info},
};
const struct grpc_service grpc_cambium = {
    .name = "cambium.v1.Cambium", .methods = methods, .method_count = sizeof methods / sizeof *methods};
