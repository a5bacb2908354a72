/* The end of a request: its memory, on whichever thread has the time. */
#include "openai.h"

#include <stdlib.h>

/* Frees everything except the call and the timer, which belong to the loop. Any thread. */
static void free_parts(struct openai *request) {
    int64_t prompts = request->prompts ? request->prompt_count : 0;
    for (int64_t i = 0; i < prompts; i++) {
        kept_tokens_free(&request->prompts[i].kept);
        openai_part_free(&request->prompts[i].part);
        strbuf_free(&request->prompts[i].logprobs);
    }
    for (int64_t i = 0; request->choices && i < request->choice_count; i++)
        openai_part_free(&request->choices[i].part);
    free(request->prompts);
    free(request->choices);
    json_decref(request->messages);
    json_decref(request->tools);
    json_decref(request->documents);
    json_decref(request->variables);
    strbuf_free(&request->ignored);
    strbuf_free(&request->ignored_names);
    strbuf_free(&request->answer);
    json_decref(request->root);
    free(request);
}

static void free_on_worker(struct worker_job *job) {
    free_parts((struct openai *)((char *)job - offsetof(struct openai, dropping)));
}

void openai_drop(void *made) {
    struct openai *request = made;
    if (request->call)
        call_free(request->call, ERROR_NONE);
    free_parts(request);
}

/* A request that took long to read, or has a long answer, also takes long to free. */
void openai_free(struct openai *request, enum error_case why) {
    openai_stream_free(request);
    call_free(request->call, why);
    request->call = NULL;
    request->dropping.work = free_on_worker;
    if (request->is_long)
        worker_drop(request->server->worker, &request->dropping);
    else
        free_parts(request);
}

void openai_stream_free(struct openai *request) {
    if (request->timer)
        event_free(request->timer);
    strbuf_free(&request->head);
    strbuf_free(&request->out);
    openai_part_free(&request->chunk);
}
