/* The scheduler: opening, stepping, closing. The file scheduler_request.c accepts requests, scheduler_plan.c plans
 * steps, and scheduler_completion.c reports their results. */
#include "scheduler-internal.h"

#include "base/clock.h"

static int check_options(const struct scheduler_options *o) {
    if (o->max_rows < 1 || o->max_logit_rows < 1)
        return status_fail(STATUS_INVALID, "steps of %lld rows and %lld with logits", (long long)o->max_rows,
                           (long long)o->max_logit_rows);
    if (o->max_sequences < 1 || o->max_positions < 1 || o->page_tokens < 1 || o->pages < 1 || o->vocab < 1)
        return status_fail(STATUS_INVALID, "a scheduler without sequences, positions, pages or a vocabulary");
    if (o->depth < 1 || o->depth > SCHEDULER_MAX_DEPTH)
        return status_fail(STATUS_INVALID, "%d steps under way: 1 to %d are possible", o->depth, SCHEDULER_MAX_DEPTH);
    if (!(o->prefill_stretch == 0 || o->prefill_stretch >= 1))
        return status_fail(STATUS_INVALID, "steps stretched to %g times their length: at least 1 is needed",
                           o->prefill_stretch);
    if (!(o->in_weight >= 0 && o->out_weight >= 0) || o->max_requests < 0 || o->max_queued_tokens < 0)
        return status_fail(STATUS_INVALID, "a negative weight or limit of a scheduler");
    return STATUS_OK;
}

static int allocate(struct scheduler *s) {
    const struct scheduler_options *o = &s->options;
    size_t sequences = (size_t)o->max_sequences, rows = (size_t)o->max_rows;
    bool is_whole = (s->step = calloc((size_t)o->depth, sizeof *s->step)) != NULL;
    for (int i = 0; i < o->depth && is_whole; i++)
        is_whole = (s->step[i].completion = calloc(sequences, sizeof *s->step[i].completion)) != NULL;
    s->running = calloc(sequences, sizeof(struct completion *));
    s->ready = calloc(sequences, sizeof(struct completion *));
    s->rows = calloc(rows, sizeof *s->rows);
    s->results = calloc(rows, sizeof *s->results);
    TRY(status_allocated(is_whole && s->running && s->ready && s->rows && s->results));
    return step_cost_open(&s->cost, o->max_sequences);
}

static void free_all(struct scheduler *s) {
    for (int i = 0; s->step && i < s->options.depth; i++)
        free(s->step[i].completion);
    free(s->step);
    free(s->running);
    free(s->ready);
    free(s->rows);
    free(s->results);
    step_cost_close(&s->cost);
    share_close(&s->everybody);
    free(s);
}

int scheduler_open(const struct scheduler_engine *engine, const struct scheduler_options *options,
                   struct scheduler **scheduler) {
    TRY(check_options(options));
    struct scheduler *s = calloc(1, sizeof *s);
    TRY(status_allocated(s));
    s->engine = *engine;
    s->options = *options;
    if (options->in_weight == 0 && options->out_weight == 0) {
        s->options.in_weight = 1;
        s->options.out_weight = 2;
    }
    int status = allocate(s);
    if (status)
        free_all(s);
    else
        *scheduler = s;
    return status;
}

/* ---- the ends of requests ---- */

static void end_request(struct scheduler *s, struct request *request, enum scheduler_end reason) {
    for (int64_t i = 0; i < request->asked.choices; i++)
        completion_end(s, &request->completion[i], reason);
}

static bool is_late(const struct request *request, double now) {
    return request->asked.deadline != 0 && now >= request->asked.deadline;
}

/* Ends requests that were cancelled or are past their deadline. Returns whether there were any. */
static bool end_unwanted(struct scheduler *s) {
    double now = s->engine.now(s->engine.self);
    bool has_ended = false;
    for (struct request *request = s->requests; request; request = request->next) {
        bool is_unwanted = request->is_cancelled || is_late(request, now);
        if (is_unwanted)
            end_request(s, request, request->is_cancelled ? SCHEDULER_CANCELLED : SCHEDULER_DEADLINE);
        has_ended |= is_unwanted;
    }
    return has_ended;
}

/* Frees requests whose completions have all ended. */
static void forget_done(struct scheduler *s) {
    for (struct request *request = s->requests, *next; request && s->done_requests; request = next) {
        next = request->next;
        if (request->ended < request->asked.choices)
            continue;
        *(request->previous ? &request->previous->next : &s->requests) = request->next;
        *(request->next ? &request->next->previous : &s->last_request) = request->previous;
        s->done_requests--;
        if (request->asked.calls.on_done)
            request->asked.calls.on_done(request->asked.context);
        request_free(request);
    }
}

static int fail_all(struct scheduler *s, int status) {
    s->failure = status;
    for (struct request *request = s->requests; request; request = request->next) {
        for (int64_t i = 0; i < request->asked.choices; i++)
            request->completion[i].under_way = 0;
        end_request(s, request, SCHEDULER_FAILED);
    }
    forget_done(s);
    return status;
}

/* ---- steps ---- */

static int collect(struct scheduler *s) {
    struct step *step = &s->step[s->first];
    TRY(s->engine.collect(s->engine.self, s->results));
    double now = s->engine.now(s->engine.self);
    double began = step->submitted_at > s->collected_at ? step->submitted_at : s->collected_at;
    s->collected_at = now;
    s->last_seconds = now - began;
    step_cost_learn(&s->cost, step->decode_rows, step->rows - step->decode_rows, step->prefill_work, now - began);
    s->first = (s->first + 1) % s->options.depth;
    s->under_way--;
    for (int64_t i = 0; i < step->completion_count; i++)
        step->completion[i].completion->under_way--;
    for (int64_t i = 0; i < step->completion_count; i++)
        completion_report(s, &step->completion[i], s->results);
    return STATUS_OK;
}

/* Waits a little for the mask of a completion that has nothing else to do. Returns whether there is one. */
static bool wait_for_mask(struct scheduler *s) {
    for (int64_t i = 0; i < s->running_count; i++) {
        int32_t forced;
        struct completion *completion = s->running[i];
        if (completion->is_held && (!completion->request->is_paused || completion->is_full)) {
            constraint_find(completion->constraint, clock_seconds() + 0.01, &forced);
            return true;
        }
    }
    return false;
}

int scheduler_step(struct scheduler *s) {
    if (s->failure)
        return status_fail(s->failure, "the engine has failed");
    bool has_acted = end_unwanted(s);
    int planned = 1;
    s->has_settled = false;
    while (planned > 0 && s->under_way < s->options.depth)
        planned = scheduler_plan(s);
    if (planned < 0)
        return fail_all(s, planned);
    has_acted |= s->under_way > 0 || s->done_requests > 0 || s->has_settled;
    int status = s->under_way ? collect(s) : STATUS_OK;
    if (status)
        return fail_all(s, status);
    forget_done(s);
    return has_acted || wait_for_mask(s);
}

void scheduler_close(struct scheduler *s) {
    if (!s)
        return;
    for (struct request *request = s->requests; request; request = request->next) {
        request->is_cancelled = true;
        end_request(s, request, SCHEDULER_CANCELLED);
    }
    while (s->under_way && !s->failure) {
        int status = collect(s);
        if (status)
            fail_all(s, status);
    }
    forget_done(s);
    free_all(s);
}

/* ---- cancelling and pausing ---- */

static struct request *find_request(const struct scheduler *s, uint64_t number) {
    struct request *request = s->requests;
    while (request && request->number != number)
        request = request->next;
    return request;
}

void scheduler_cancel(struct scheduler *s, uint64_t number) {
    struct request *request = find_request(s, number);
    if (request)
        request->is_cancelled = true;
}

void scheduler_pause(struct scheduler *s, uint64_t number) {
    struct request *request = find_request(s, number);
    if (request)
        request->is_paused = true;
}

void scheduler_resume(struct scheduler *s, uint64_t number) {
    struct request *request = find_request(s, number);
    if (request)
        request->is_paused = false;
}

double scheduler_next_deadline(const struct scheduler *s) {
    double next = 0;
    for (const struct request *request = s->requests; request; request = request->next) {
        double deadline = request->asked.deadline;
        if (deadline != 0 && (next == 0 || deadline < next))
            next = deadline;
    }
    return next;
}

void scheduler_read_stats(const struct scheduler *s, struct scheduler_stats *stats) {
    *stats = s->stats;
    stats->waiting = s->waiting_count;
    stats->running = s->running_count;
    stats->queued_tokens = s->queued_tokens;
    stats->prefill_row_seconds = step_cost_prefill_row(&s->cost);
}
