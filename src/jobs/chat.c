/* A conversation: messages, the adapters that answer, and the prompt made of them for each question. */
#include "chat.h"

#include "base/utf8.h"
#include "infer/slots.h"
#include "openai/call_parser.h"
#include "pretrained/pretrained.h"

enum { PREFILL_ROWS = 512 };

/* The adapters and the template of the answers. */
struct used {
    char *names[PEFT_SLOT_IMAGES]; /* [count] of adapters */
    int count;
    int slot; /* of these adapters; -1: none */
    struct chat_template *template;
};

struct conversation {
    const struct chat_job *job;
    struct job_memory memory;
    struct engine *engine;
    struct adapters *adapters;
    struct tokenizer *tokenizer;
    struct tokenizer_encoder *encoder;
    const char *tokenizer_directory;
    json_t *messages; /* a list */
    struct used used;
    char *saved; /* the file that this conversation wrote last; NULL: none */
};

/* ---- adapters ---- */

/* Makes a directory that is named in place of an adapter known by that name. */
static int know(struct conversation *c, const char *name) {
    struct adapter_view view;
    char *found;
    if (adapters_find(c->adapters, name, &view))
        return STATUS_OK;
    if (!file_is_directory(name))
        return status_fail(STATUS_NOT_FOUND, "there is no adapter '%s', and no such directory", name);
    int status = adapter_files_find(name, &found);
    THEN(status, adapters_add(c->adapters, name, found));
    free(found);
    return status;
}

/* Opens the template for these adapters, which are known. */
static int open_template(struct conversation *c, const char *const *names, int count, struct chat_template **template) {
    char *directories[PEFT_SLOT_IMAGES] = {0};
    struct adapter_view view;
    int status = STATUS_OK;
    for (int i = 0; i < count && !status; i++) {
        directories[i] = adapters_find(c->adapters, names[i], &view) ? strdup(view.directory) : NULL;
        status = status_allocated(directories[i]);
    }
    THEN(status, job_chat_template(c->job->chat_template, (const char *const *)directories, (size_t)count,
                                   c->tokenizer_directory, template));
    for (int i = 0; i < count; i++)
        free(directories[i]);
    return status ? status : prompt_check_template(*template);
}

/* Gives up what answers use. */
static int release(struct conversation *c, struct used *used) {
    int status = used->slot >= 0 ? adapters_give(c->adapters, used->slot) : STATUS_OK;
    chat_template_close(used->template);
    for (int i = 0; i < used->count; i++)
        free(used->names[i]);
    return status;
}

/* Copies the names of adapters, and makes them known. */
static int take_names(struct conversation *c, const char *const *names, int count, struct used *used) {
    int status = STATUS_OK;
    if (count > PEFT_SLOT_IMAGES)
        return status_fail(STATUS_USAGE, "at most %d adapters can answer together", PEFT_SLOT_IMAGES);
    for (int i = 0; i < count && !status; i++) {
        status = know(c, names[i]);
        THEN_IF(status, !(used->names[used->count++] = strdup(names[i])), status_no_memory());
    }
    return status;
}

int conversation_use(struct conversation *c, const char *const *names, int count) {
    uint64_t generations[PEFT_SLOT_IMAGES];
    struct used next = {.slot = -1}, before = c->used;
    int status = take_names(c, names, count, &next);
    THEN(status, open_template(c, names, count, &next.template));
    THEN_IF(status, count, adapters_take(c->adapters, names, count, &next.slot, generations));
    if (status) {
        release(c, &next);
        return status;
    }
    c->used = next;
    return release(c, &before);
}

bool conversation_adapter(const struct conversation *c, int number, const char **name, bool *is_used) {
    struct adapter_view view;
    if (!adapters_at(c->adapters, number, &view))
        return false;
    *name = view.name;
    *is_used = false;
    for (int i = 0; i < c->used.count; i++)
        *is_used |= !strcmp(c->used.names[i], view.name);
    return true;
}

/* ---- messages ---- */

static int add_message(struct conversation *c, const char *role, const char *text, size_t length) {
    json_t *message = json_pack("{s:s, s:s%}", "role", role, "content", text, length);
    return message && !json_array_append_new(c->messages, message) ? STATUS_OK : status_no_memory();
}

/* Removes the messages after the first `count`. */
static void cut_messages(struct conversation *c, size_t count) {
    while (json_array_size(c->messages) > count)
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
}

void conversation_reset(struct conversation *c) {
    cut_messages(c, c->job->system ? 1 : 0);
    free(c->saved);
    c->saved = NULL;
}

int conversation_save(struct conversation *c, const char *path) {
    char *text;
    if (json_array_size(c->messages) <= (c->job->system ? 1 : 0))
        return status_fail(STATUS_INVALID, "nothing was said yet");
    if (file_exists(path) && (!c->saved || strcmp(c->saved, path)))
        return status_fail(STATUS_INVALID, "%s exists already: /save needs the name of a new file", path);
    json_begin();
    TRY(json_end(json_pack("{s:O}", "messages", c->messages), JSON_COMPACT, &text));
    struct strbuf line = STRBUF_INIT;
    strbuf_format(&line, "%s\n", text);
    free(text);
    int status = strbuf_status(&line);
    THEN(status, file_write_atomic(path, line.data, line.length));
    strbuf_free(&line);
    char *saved = status ? NULL : strdup(path);
    if (saved) {
        free(c->saved);
        c->saved = saved;
    }
    return status;
}

/* ---- answers ---- */

/* An answer on its way: its reasoning is read out of its text. */
struct hearing {
    const struct conversation_output *output;
    struct call_parser *parser;
    struct strbuf text, reasoning;
};

static int on_event(void *context, const struct call_event *event) {
    struct hearing *h = context;
    bool is_reasoning = event->kind == CALL_REASONING;
    struct strbuf *out = is_reasoning ? &h->reasoning : &h->text;
    strbuf_add(out, event->text, event->length);
    TRY(strbuf_status(out));
    return h->output->on_text(h->output->context, event->text, event->length, is_reasoning);
}

static int pass_text(void *context, int64_t sample, const char *bytes, size_t length) {
    return call_parser_add(((struct hearing *)context)->parser, bytes, length);
}

static bool pass_interruption(void *context) {
    const struct conversation_output *output = ((struct hearing *)context)->output;
    return output->is_interrupted(output->context);
}

static int open_hearing(struct conversation *c, const struct strbuf *prompt, struct hearing *h) {
    bool may_think = chat_may_think(c->used.template);
    return call_parser_open(
        &(struct call_parser_options){.thought = may_think ? chat_thought_of_text(strbuf_text(prompt), prompt->length)
                                                           : THOUGHT_NEVER,
                                      .on_event = on_event,
                                      .context = h},
        &h->parser);
}

static void close_hearing(struct hearing *h) {
    call_parser_close(h->parser);
    strbuf_free(&h->text);
    strbuf_free(&h->reasoning);
}

static int make_prompt(struct conversation *c, struct strbuf *text, struct token_buffer *ids) {
    const struct model_text_ends ends = engine_text_ends(c->engine, c->tokenizer);
    const struct prompt_room room = prompt_room_of(c->tokenizer, engine_max_positions(c->engine));
    const struct chat_request request = {.messages = c->messages,
                                         .tokenizer = c->tokenizer,
                                         .eos = model_first_eos(&ends),
                                         .seconds = c->job->template_timeout};
    return prompt_encode_messages(&request, c->encoder, c->used.template, &room, text, ids);
}

static int answer(struct conversation *c, struct hearing *hearing, enum finish_reason *reason) {
    const struct model_text_ends text = engine_text_ends(c->engine, c->tokenizer);
    struct generated generated = {.tokens = TOKEN_BUFFER_INIT, .text = STRBUF_INIT};
    struct token_buffer ids = TOKEN_BUFFER_INIT;
    struct strbuf prompt = STRBUF_INIT;
    struct ask_ends ends = {0};
    int status = make_prompt(c, &prompt, &ids);
    THEN(status, open_hearing(c, &prompt, hearing));
    THEN(status, ask_ends_open(c->job->ask,
                               &(struct ask_model){.tokenizer = c->tokenizer,
                                                   .text = &text,
                                                   .vocab = engine_config(c->engine)->vocab_size,
                                                   .template = c->used.template,
                                                   .template_seconds = c->job->template_timeout},
                               &ends));
    THEN(status, generate(c->engine, c->tokenizer,
                          &(struct generate_options){.prompt = ids.ids,
                                                     .prompt_length = (int64_t)ids.count,
                                                     .slot = c->used.slot,
                                                     .ask = c->job->ask,
                                                     .ends = &ends,
                                                     .on_text = pass_text,
                                                     .is_interrupted = pass_interruption,
                                                     .context = hearing},
                          &generated));
    THEN(status, call_parser_end(hearing->parser, generated.reason == FINISH_STOP));
    *reason = generated.reason;
    generated_free(&generated);
    ask_ends_close(&ends);
    strbuf_free(&prompt);
    token_buffer_free(&ids);
    return status;
}

/* Adds the answer, whose bytes need not be characters. The template decides what becomes of its reasoning. */
static int keep_answer(struct conversation *c, const struct hearing *hearing) {
    struct strbuf text = STRBUF_INIT, reasoning = STRBUF_INIT;
    utf8_add_repaired(&text, strbuf_text(&hearing->text), hearing->text.length);
    utf8_add_repaired(&reasoning, strbuf_text(&hearing->reasoning), hearing->reasoning.length);
    int status = strbuf_status(&text);
    THEN(status, strbuf_status(&reasoning));
    THEN(status, add_message(c, "assistant", strbuf_text(&text), text.length));
    if (!status && reasoning.length) {
        json_t *message = json_array_get(c->messages, json_array_size(c->messages) - 1);
        json_t *value = json_stringn(strbuf_text(&reasoning), reasoning.length);
        status = json_object_set_new(message, "reasoning_content", value) ? status_no_memory() : STATUS_OK;
    }
    strbuf_free(&text);
    strbuf_free(&reasoning);
    return status;
}

int conversation_ask(struct conversation *c, const char *text, size_t length, const struct conversation_output *output,
                     enum finish_reason *reason) {
    struct hearing hearing = {.output = output};
    size_t count = json_array_size(c->messages);
    if (utf8_valid_length((const unsigned char *)text, length) != length)
        return status_fail(STATUS_INVALID, "the question is not UTF-8");
    int status = add_message(c, "user", text, length);
    THEN(status, answer(c, &hearing, reason));
    THEN(status, keep_answer(c, &hearing));
    if (status)
        cut_messages(c, count);
    close_hearing(&hearing);
    return status;
}

/* ---- the job ---- */

/* Adds an adapter under the last part of a path to the list of names. */
static int add_used(struct conversation *c, const char *path, const char *directory, char **names, int *count) {
    if (*count == PEFT_SLOT_IMAGES)
        return status_fail(STATUS_USAGE, "--adapter: at most %d adapters can answer together", PEFT_SLOT_IMAGES);
    char *name = names[*count] = job_last_part(path);
    *count += name != NULL;
    return name ? adapters_add(c->adapters, name, directory) : status_no_memory();
}

/* Makes the adapters of a directory of --adapter known: one by the directory's name, several by their own. */
static int add_given(struct conversation *c, const char *given, char **names, int *count) {
    char **found;
    size_t found_count;
    int status = peft_find(&given, 1, &found, &found_count);
    for (size_t i = 0; i < found_count && !status; i++)
        status = add_used(c, found_count == 1 ? given : found[i], found[i], names, count);
    file_list_free(found, found_count);
    return status;
}

/* Answers with the adapters of --adapter. */
static int use_given(struct conversation *c) {
    const struct config_list *given = &c->job->model->adapters;
    char *names[PEFT_SLOT_IMAGES];
    int count = 0, status = STATUS_OK;
    for (size_t i = 0; i < given->count && !status; i++)
        status = add_given(c, given->items[i], names, &count);
    THEN(status, conversation_use(c, (const char *const *)names, count));
    for (int i = 0; i < count; i++)
        free(names[i]);
    return status;
}

static int open_conversation(struct conversation *c, struct comm *world) {
    const struct chat_job *job = c->job;
    struct job_model model = *job->model;
    c->memory = (struct job_memory){.help = "a smaller --max-model-len, --adapter-memory or --precision",
                                    .adapters_are_given = job->names->memory_is_given};
    model.adapters.count = 0; /* they get names instead, so that others can take their place */
    const struct engine_options options = {.max_rows = PREFILL_ROWS,
                                           .max_logit_rows = 1,
                                           .max_sequences = 1,
                                           .adapter_memory = (size_t)job->names->memory};
    TRY(job_model_open(&model, world, options, &c->memory, &c->engine));
    c->tokenizer_directory = model.tokenizer ? model.tokenizer : engine_directory(c->engine);
    int status = pretrained_open_tokenizer(c->tokenizer_directory, &c->tokenizer);
    THEN(status, tokenizer_encoder_new(c->tokenizer, &c->encoder));
    THEN(status, adapter_names_open(job->names, c->engine, &c->adapters));
    THEN(status, use_given(c));
    c->messages = json_array();
    THEN_IF(status, !c->messages, status_no_memory());
    if (!status && job->system &&
        utf8_valid_length((const unsigned char *)job->system, strlen(job->system)) != strlen(job->system))
        status = status_fail(STATUS_USAGE, "--system is not UTF-8");
    return status || !job->system ? status : add_message(c, "system", job->system, strlen(job->system));
}

static void close_conversation(struct conversation *c) {
    release(c, &c->used);
    free(c->saved);
    json_decref(c->messages);
    adapters_close(c->adapters);
    tokenizer_encoder_free(c->encoder);
    tokenizer_close(c->tokenizer);
    engine_close(c->engine);
}

int chat_job_run(struct comm *world, void *context) {
    struct conversation c = {.job = context, .used = {.slot = -1}};
    int status = open_conversation(&c, world);
    THEN(status, c.job->talk(c.job->context, &c));
    THEN(status, engine_end(c.engine));
    THEN(status, job_memory_tell(world, &c.memory));
    if (status)
        comm_fail(world, status);
    close_conversation(&c);
    return status;
}
