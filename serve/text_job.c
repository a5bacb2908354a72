/* Texts and rendered chats to ids. A job has a copy of its text, so that whoever asked may go. */
#include "text_job.h"

#include "server-internal.h"

#include <stdlib.h>
#include <string.h>

enum { SHORT_BYTES = 4096 };

struct job {
    struct worker_job base;
    const struct tokenizer *tokenizer;
    struct tokenizer_encoder *encoder; /* of the thread that it runs on */
    int32_t eos;
    void (*on_done)(void *context, int status, struct token_buffer *ids);
    void *context;
    int status;
    char reason[256];
    struct token_buffer ids;
    bool is_chat, adds_special;
    struct chat_pieces pieces; /* with is_chat */
    char *text;
    size_t length;
};

static int encode(struct job *job) {
    if (!job->is_chat && !job->adds_special)
        return tokenizer_encode(job->encoder, job->text, job->length, TOKENIZER_PLAIN, &job->ids);
    if (!job->is_chat)
        return prompt_encode_text(job->tokenizer, job->encoder, job->text, job->length, &job->ids);
    return chat_pieces_encode(&job->pieces, job->encoder, job->eos, &job->ids);
}

static void work(struct worker_job *base) {
    struct job *job = (struct job *)base;
    job->status = encode(job);
    if (job->status)
        snprintf(job->reason, sizeof job->reason, "%s", status_text());
}

static void done(struct worker_job *base) {
    struct job *job = (struct job *)base;
    if (job->status)
        status_fail(job->status, "%s", job->reason);
    job->on_done(job->context, job->status, &job->ids);
    chat_pieces_free(&job->pieces);
    free(job->text);
    free(job);
}

static void done_short(struct loop_note *note) {
    struct job *job = (struct job *)((char *)note - offsetof(struct job, base.note));
    done(&job->base);
}

static int check_length(size_t length) {
    return length <= TEXT_JOB_BYTES
               ? STATUS_OK
               : status_fail(STATUS_INVALID, "a text of %zu bytes: at most %d are tokenized at once", length,
                             TEXT_JOB_BYTES);
}

static struct job *new_job(struct server *server, size_t length) {
    struct job *job = calloc(1, sizeof *job);
    if (!job)
        return NULL;
    *job = (struct job){.base = {.work = work, .done = done},
                        .tokenizer = server->model.tokenizer,
                        .eos = model_first_eos(&server->model.ends),
                        .length = length,
                        .text = malloc(length + 1)};
    if (job->text)
        return job;
    free(job);
    return NULL;
}

/* Takes the job over in any case. */
static int start(struct server *server, struct job *job, void (*on_done)(void *, int, struct token_buffer *),
                 void *context) {
    job->on_done = on_done;
    job->context = context;
    if (job->length <= SHORT_BYTES) {
        job->encoder = server->own->encoder;
        work(&job->base);
        job->base.note.run = done_short;
        loop_post(server->own->loop, &job->base.note);
        return STATUS_OK;
    }
    job->encoder = server->own->worker_encoder;
    if (worker_add(server->own->text_worker, &job->base))
        return STATUS_OK;
    chat_pieces_free(&job->pieces);
    free(job->text);
    free(job);
    return status_fail(STATUS_MEMORY, "too many long texts wait to be tokenized");
}

int text_job_start(struct server *server, const char *text, size_t length, bool adds_special,
                   void (*on_done)(void *context, int status, struct token_buffer *ids), void *context) {
    if (check_length(length))
        return STATUS_INVALID;
    struct job *job = new_job(server, length);
    if (!job)
        return status_fail(STATUS_MEMORY, "out of memory");
    if (length)
        memcpy(job->text, text, length);
    job->adds_special = adds_special;
    return start(server, job, on_done, context);
}

int text_job_start_chat(struct server *server, struct chat_pieces *pieces,
                        void (*on_done)(void *context, int status, struct token_buffer *ids), void *context) {
    if (check_length(pieces->text.length))
        return STATUS_INVALID;
    struct job *job = new_job(server, 0);
    if (!job)
        return status_fail(STATUS_MEMORY, "out of memory");
    job->is_chat = true;
    job->length = pieces->text.length;
    job->pieces = *pieces;
    *pieces = (struct chat_pieces){0};
    return start(server, job, on_done, context);
}
