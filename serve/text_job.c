/* Texts and chats to ids. A job has a copy of its text, or references to its messages; the client may leave. */
#include "text_job.h"

#include "loop.h"

enum { SHORT_BYTES = 4096 };

struct job {
    struct worker_job base;
    struct text_job asked;
    struct tokenizer_encoder *encoder; /* of the thread that runs the job */
    enum error_case failure;
    char reason[256];
    struct token_buffer ids;
    /* For a text: */
    char *text;
    size_t length;
    /* For a chat: */
    struct text_job_chat chat;
    struct call_prompt prompt;
    struct ask_ends ends;
};

size_t text_job_short_bytes(const struct server *server) {
    return server->model.tokenizer && tokenizer_may_be_slow(server->model.tokenizer) ? 0 : SHORT_BYTES;
}

bool text_job_may_encode(const struct server *server, struct error *error) {
    return server->model.tokenizer || error_set(error, ERROR_ARGUMENT, NULL, "the model has no tokenizer");
}

static int check_length(size_t length) {
    return length <= TEXT_JOB_BYTES
               ? STATUS_OK
               : status_fail(STATUS_INVALID, "a text of %zu bytes: at most %d are tokenized at once", length,
                             TEXT_JOB_BYTES);
}

int text_job_encode(const struct server *server, struct tokenizer_encoder *encoder, const char *text, size_t length,
                    unsigned flags, struct token_buffer *ids) {
    int status = check_length(length);
    if (!status && flags & TOKENIZER_ADD_SPECIAL)
        return prompt_encode_text(server->model.tokenizer, encoder, text, length, flags, ids);
    return status ? status : tokenizer_encode(encoder, text, length, flags, ids);
}

/* ---- chats ---- */

/* A template may write much from little: its output is checked like a text. */
static int check_room(struct job *job, size_t bytes) {
    int status = prompt_check_bytes(&job->asked.server->model.room, bytes);
    if (status)
        job->failure = ERROR_CONTEXT_LENGTH;
    return status ? status : check_length(bytes);
}

static int encode_chat(struct job *job) {
    const struct openai_model *model = &job->asked.server->model;
    struct chat_pieces pieces = {0};
    int status = call_prompt_render(&job->prompt, model, job->chat.template, &pieces);
    THEN(status, check_room(job, pieces.text.length));
    if (!status)
        call_prompt_note(&job->prompt, model, job->chat.template, &pieces);
    THEN(status, chat_pieces_encode(&pieces, job->encoder, model_first_eos(&model->ends), &job->ids, NULL));
    chat_pieces_free(&pieces);
    if (!status)
        status = ask_ends_open(job->chat.ask,
                               &(struct ask_model){.tokenizer = model->tokenizer,
                                                   .text = &model->ends,
                                                   .vocab = model->vocab,
                                                   .template = job->chat.template,
                                                   .template_seconds = model->template_seconds,
                                                   .continues = job->prompt.continues},
                               &job->ends);
    return status;
}

static void keep_chat(struct job *job) {
    const struct chat_request *chat = &job->prompt.chat;
    json_incref((json_t *)chat->messages);
    json_incref((json_t *)chat->tools);
    json_incref((json_t *)chat->documents);
    json_incref((json_t *)chat->variables);
    chat_template_keep(job->chat.template);
}

static void let_go_of_chat(struct job *job) {
    const struct chat_request *chat = &job->prompt.chat;
    json_decref((json_t *)chat->messages);
    json_decref((json_t *)chat->tools);
    json_decref((json_t *)chat->documents);
    json_decref((json_t *)chat->variables);
    chat_template_close(job->chat.template);
}

/* ---- jobs ---- */

static void work(struct worker_job *base) {
    struct job *job = (struct job *)base;
    int status = STATUS_OK;
    if (job->asked.is_unwanted && atomic_load(job->asked.is_unwanted))
        job->failure = ERROR_CANCELLED;
    else if (job->chat.template)
        status = encode_chat(job);
    else
        status = text_job_encode(job->asked.server, job->encoder, job->text, job->length,
                                 TOKENIZER_ADD_SPECIAL | job->asked.flag, &job->ids);
    if (status)
        snprintf(job->reason, sizeof job->reason, "%s", status_text());
    if (status && !job->failure)
        job->failure = status == STATUS_MEMORY ? ERROR_OVERLOADED : ERROR_ARGUMENT;
    if (job->chat.template)
        let_go_of_chat(job); /* on this thread, because the messages may be large */
}

static void done(struct worker_job *base) {
    struct job *job = (struct job *)base;
    if (job->failure) {
        token_buffer_free(&job->ids);
        status_fail(STATUS_INVALID, "%s", job->reason);
    } else if (job->chat.template) {
        job->chat.prompt->tool_format = job->prompt.tool_format;
        job->chat.prompt->thought = job->prompt.thought;
    }
    job->asked.on_done(job->asked.context, job->failure, &job->ids, job->chat.template ? &job->ends : NULL);
    free(job->text);
    free(job);
}

static void done_short(struct loop_note *note) {
    struct job *job = (struct job *)((char *)note - offsetof(struct job, base.note));
    done(&job->base);
}

static struct job *new_job(const struct text_job *asked) {
    struct job *job = calloc(1, sizeof *job);
    if (job)
        *job = (struct job){.base = {.work = work, .done = done, .owner = asked->owner}, .asked = *asked};
    return job;
}

/* Takes over the job in any case. */
static int start(struct job *job, bool is_short) {
    struct server *server = job->asked.server;
    if (is_short) {
        job->encoder = server->encoder;
        work(&job->base);
        job->base.note.run = done_short;
        loop_post(server->loop, &job->base.note);
        return STATUS_OK;
    }
    job->encoder = server->worker_encoder;
    if (worker_add(server->worker, &job->base))
        return STATUS_OK;
    if (job->chat.template)
        let_go_of_chat(job);
    free(job->text);
    free(job);
    return status_fail(STATUS_MEMORY, "too many texts wait to be tokenized");
}

int text_job_start(const struct text_job *asked, const char *text, size_t length) {
    struct job *job = new_job(asked);
    if (!job || !(job->text = malloc(length + 1))) {
        free(job);
        return status_no_memory();
    }
    if (length)
        memcpy(job->text, text, length);
    job->length = length;
    return start(job, asked->is_short);
}

int text_job_start_chat(const struct text_job *asked, const struct text_job_chat *chat) {
    struct job *job = new_job(asked);
    TRY(status_allocated(job));
    job->chat = *chat;
    job->prompt = *chat->prompt;
    keep_chat(job);
    return start(job, false);
}
