#include "call_request.h"

#include "base/base.h"

#include <stdlib.h>

int call_request_begin(struct call_request *request, int64_t prompt_count) {
    *request = (struct call_request){.prompts = calloc((size_t)prompt_count, sizeof *request->prompts)};
    ask_begin(&request->ask);
    request->prompt_count = request->prompts ? prompt_count : 0;
    return request->prompts ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
}

void call_request_free(struct call_request *request) {
    for (int64_t i = 0; i < request->prompt_count; i++)
        token_buffer_free(&request->prompts[i].ids);
    ask_free(&request->ask);
    free(request->prompts);
    *request = (struct call_request){0};
}
