/* Texts and rendered chats to ids. A job has a copy of its text, so that whoever asked may go. */
#include "text_job.h"

#include "server-internal.h"

#include <stdlib.h>
#include <string.h>

enum { SHORT_BYTES = 4096 };

struct piece {
    size_t length;
    unsigned flags;
};

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
    size_t piece_count;
    struct piece *pieces; /* [piece_count] */
    char *text;
    size_t length;
};

static int encode(struct job *job) {
    const char *at = job->text;
    if (!job->is_chat && !job->adds_special)
        return tokenizer_encode(job->encoder, job->text, job->length, TOKENIZER_PLAIN, &job->ids);
    if (!job->is_chat)
        return prompt_encode_text(job->tokenizer, job->encoder, job->text, job->length, &job->ids);
    int status = STATUS_OK;
    for (size_t i = 0; i < job->piece_count && !status; i++) {
        struct chat_piece piece = {.text = at, .length = job->pieces[i].length, .flags = job->pieces[i].flags};
        status = chat_piece_encode(&piece, job->encoder, job->eos, &job->ids);
        at += piece.length;
    }
    return status;
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
    free(job->pieces);
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
    free(job->pieces);
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

int text_job_start_chat(struct server *server, const struct chat_pieces *pieces,
                        void (*on_done)(void *context, int status, struct token_buffer *ids), void *context) {
    size_t length = 0;
    for (size_t i = 0; i < pieces->count; i++)
        length += pieces->items[i].length;
    if (check_length(length))
        return STATUS_INVALID;
    struct job *job = new_job(server, length);
    struct piece *copy = job ? calloc(pieces->count + 1, sizeof *copy) : NULL;
    if (!copy) {
        if (job)
            free(job->text);
        free(job);
        return status_fail(STATUS_MEMORY, "out of memory");
    }
    job->is_chat = true;
    job->pieces = copy;
    job->piece_count = pieces->count;
    char *at = job->text;
    for (size_t i = 0; i < pieces->count; i++) {
        const struct chat_piece *piece = &pieces->items[i];
        copy[i] = (struct piece){.length = piece->length, .flags = piece->flags};
        if (piece->length)
            memcpy(at, piece->text, piece->length);
        at += piece->length;
    }
    return start(server, job, on_done, context);
}
