/* Counts for a call: in the metrics, and in the registry for its adapters. A call whose counters find no memory is
 * refused before it begins. */
#include "call_loop.h"
#include "registry.h"
#include "server-internal.h"

struct call_counts {
    struct metrics_prompt *prompts;         /* [prompt_count] */
    struct metrics_completion *completions; /* [prompt_count * choices] */
    bool *has_ended;                        /* [prompt_count * choices] */
    bool is_running;                        /* its first completion began to run */
    bool was_accepted;
};

static int64_t completions_of(const struct call *call) {
    return call->request.prompt_count * call->request.ask.choices;
}

static void tell_registry(const struct call_loop *self, int64_t running, int64_t waiting) {
    for (int64_t i = 0; i < self->call->request.ask.adapter_count; i++)
        registry_count(self->call->server, self->shared->asked.names[i], running, waiting);
}

int call_count_begin(struct call_loop *self) {
    const struct call *call = self->call;
    struct call_counts *counts = self->counts = calloc(1, sizeof *counts);
    if (counts) {
        counts->prompts = calloc((size_t)call->request.prompt_count, sizeof *counts->prompts);
        counts->completions = calloc((size_t)completions_of(call), sizeof *counts->completions);
        counts->has_ended = calloc((size_t)completions_of(call), sizeof *counts->has_ended);
    }
    tell_registry(self, 0, completions_of(call));
    TRY(status_allocated(counts && counts->prompts && counts->completions && counts->has_ended));
    for (int64_t p = 0; p < call->request.prompt_count; p++)
        counts->prompts[p].arrived = self->submitted;
    return STATUS_OK;
}

static void count_start(struct call_loop *self, const struct call_start *start) {
    const struct call *call = self->call;
    struct metrics_prompt *prompt = &self->counts->prompts[start->prompt];
    prompt->tokens = (int64_t)call->request.prompts[start->prompt].ids.count;
    prompt->cached = start->cached;
    prompt->has_looked_in_cache = call->request.ask.prompt_logprobs < 0;
    metrics_started(call->server->metrics, prompt, start->time);
    if (!self->counts->is_running)
        tell_registry(self, completions_of(call), -completions_of(call));
    self->counts->is_running = true;
}

void call_count_update(struct call_loop *self, const struct call_update *update) {
    struct call_counts *counts = self->counts;
    struct metrics *metrics = self->call->server->metrics;
    int64_t choices = self->call->request.ask.choices;
    if (!counts || self->has_left)
        return;
    if (update->is_accepted) {
        self->counts->was_accepted = true;
        for (int64_t i = 0; i < self->call->request.ask.adapter_count; i++) {
            struct registry_adapter adapter;
            if (registry_find(self->call->server, self->shared->asked.names[i], &adapter))
                metrics_adapter_request(self->call->server->metrics, self->shared->asked.names[i], adapter.methods);
        }
    }
    for (int64_t i = 0; i < update->start_count; i++)
        count_start(self, &update->starts[i]);
    for (int64_t i = 0; i < update->draw_count; i++) {
        const struct call_draw *draw = &update->draws[i];
        metrics_token(metrics, &counts->prompts[draw->prompt],
                      &counts->completions[draw->prompt * choices + draw->choice], draw->time);
    }
    for (int64_t i = 0; i < update->end_count; i++) {
        int64_t completion = update->ends[i].prompt * choices + update->ends[i].choice;
        counts->has_ended[completion] = true;
        metrics_ended(metrics, &counts->prompts[update->ends[i].prompt], &counts->completions[completion],
                      update->ends[i].is_stop ? METRICS_STOP : METRICS_LENGTH, clock_seconds());
    }
}

void call_count_done(struct call_loop *self, const struct error *error) {
    struct call_counts *counts = self->counts;
    struct call *call = self->call;
    bool is_running = counts && counts->is_running;
    tell_registry(self, is_running ? -completions_of(call) : 0, is_running ? 0 : -completions_of(call));
    if (!counts || !counts->was_accepted)
        return;
    for (int64_t i = 0; i < completions_of(call); i++)
        if (!counts->has_ended[i])
            metrics_ended(call->server->metrics, &counts->prompts[i / call->request.ask.choices],
                          &counts->completions[i],
                          error->which == ERROR_CANCELLED || error->which == ERROR_DEADLINE ||
                                  error->which == ERROR_SLOW_READER || error->which == ERROR_DRAINING
                              ? METRICS_ABORT
                              : METRICS_ERROR,
                          clock_seconds());
    if (error->which)
        metrics_cancelled(call->server->metrics, error->which);
}

void call_count_close(struct call_loop *self) {
    if (self->counts) {
        free(self->counts->prompts);
        free(self->counts->completions);
        free(self->counts->has_ended);
    }
    free(self->counts);
}
