/* Frees a request of the OpenAI API. One that took long to read, or has a long answer, also takes long to free. */
#include "openai.h"

/* Frees everything except the call and the timer, which belong to the loop. Any thread. */
static void free_parts(struct openai_exchange *self) {
    openai_free(&self->request);
    strbuf_free(&self->answer);
    free(self);
}

static void free_on_worker(struct worker_job *job) {
    free_parts((struct openai_exchange *)((char *)job - offsetof(struct openai_exchange, dropping)));
}

void openai_exchange_drop(void *made) {
    struct openai_exchange *self = made;
    if (self->call)
        call_free(self->call, ERROR_NONE);
    free_parts(self);
}

void openai_exchange_free(struct openai_exchange *self, enum error_case why) {
    openai_stream_free(self);
    call_free(self->call, why);
    self->call = NULL;
    self->dropping.work = free_on_worker;
    if (self->is_long)
        worker_drop(self->server->worker, &self->dropping);
    else
        free_parts(self);
}
