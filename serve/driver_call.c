/* A call at the engine: its adapters, its prompts in the scheduler, and the results of its completions. */
#include "driver-internal.h"

#include "base/base.h"
#include "infer/slots.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void driver_note(struct driver *driver, struct call_own *own) {
    if (own->is_changed)
        return;
    own->is_changed = true;
    own->next_changed = driver->changed;
    driver->changed = own;
}

/* ---- the end ---- */

static void free_runs(struct call_own *own) {
    for (int64_t p = 0; own->runs && p < own->call->prompt_count; p++) {
        for (int64_t i = 0; own->runs[p].texts && i < own->call->ask.choices; i++) {
            writer_free(&own->runs[p].texts[i].writer);
            free(own->runs[p].texts[i].held);
        }
        free(own->runs[p].texts);
    }
    free(own->runs);
    own->runs = NULL;
}

/* Publishes a call's last update, when none of its completions is in the scheduler. The engine does not access the call
 * afterwards. */
static void finish(struct driver *driver, struct call_own *own) {
    if (own->has_slot) {
        int status = adapters_give(driver->options.adapters, own->slot);
        driver->status = driver->status ? driver->status : status;
        driver->has_room = driver->adapters_changed = true;
        driver->holders--;
        driver->gives++;
    }
    own->has_slot = false;
    own->is_ended = true;
    own->making->is_done = true;
    own->making->error = own->error;
    free_runs(own);
    driver->calls--;
    driver_note(driver, own);
}

static void fail(struct call_own *own, enum error_case which, const char *param) {
    if (!own->error.which)
        error_of_status(&own->error, which, param);
}

static void fail_with(struct call_own *own, enum error_case which, const char *text) {
    if (!own->error.which)
        error_set(&own->error, which, NULL, "%s", text);
}

static void fail_cancelled(struct call_own *own) {
    if (own->cause == ERROR_OVERLOADED)
        fail_with(own, own->cause, CALL_GIVES_WAY);
    else if (own->cause)
        fail_with(own, own->cause, "the server is shutting down, and the time for what runs is over");
    else
        fail_with(own, ERROR_CANCELLED, "the request was cancelled");
}

/* Cancels its completions; the scheduler reports their end. */
static void cancel_runs(struct driver *driver, struct call_own *own) {
    own->is_cancelled = true;
    for (int64_t p = 0; own->runs && p < own->call->prompt_count; p++)
        if (own->runs[p].is_running)
            scheduler_cancel(driver->scheduler, own->runs[p].number);
}

/* ---- while it runs: calls of the scheduler ---- */

static void keep(struct call_own *own, int status) {
    if (!status)
        return;
    fail(own, ERROR_INTERNAL, NULL);
    own->is_cancelled = true;
}

static void on_start(void *context, int64_t cached) {
    struct call_run *run = context;
    run->own->has_begun = true;
    keep(run->own,
         update_add_start(run->own->making,
                          &(struct call_start){.prompt = run->prompt, .cached = cached, .time = clock_seconds()}));
    driver_note(run->own->driver, run->own);
}

/* Reads a token with its likeliest alternatives. */
static void read_token(struct call_own *own, const struct scheduler_token *token, bool has_logprob,
                       struct call_held *held) {
    *held = (struct call_held){.token = {.id = token->token, .has_logprob = has_logprob, .logprob = token->logprob}};
    bool is_broken = has_logprob && !isfinite(token->logprob);
    for (int32_t i = 0; i < token->top_count && i < ASK_MAX_TOP; i++) {
        held->tops[i] = (struct call_top){.id = token->top_token[i], .logprob = token->top_logprob[i]};
        is_broken |= !isfinite(token->top_logprob[i]);
        held->token.top_count = i + 1;
    }
    if (is_broken) {
        fail_with(own, ERROR_INTERNAL, ENGINE_NO_PROBABILITY);
        own->is_cancelled = true;
    }
}

/* Moves tokens whose last byte was sent into the last piece; at the end all of them. */
static int give_held(struct call_own *own, struct call_text *text, bool is_end) {
    int64_t given = 0;
    int status = STATUS_OK;
    while (given < text->held_count && !status && (is_end || text->held[given].end <= text->writer.given)) {
        status = update_add_token(own->making, &text->held[given].token, text->held[given].tops);
        given++;
    }
    text->held_count -= given;
    memmove(text->held, text->held + given, (size_t)text->held_count * sizeof *text->held);
    return status;
}

/* Adds a piece when text or tokens can be sent. */
static int give_piece(struct call_run *run, int64_t choice, size_t begin, bool is_end) {
    struct call_own *own = run->own;
    struct call_text *text = &run->texts[choice];
    bool has_tokens = text->held_count && (is_end || text->held[0].end <= text->writer.given);
    if (own->making->text.length == begin && !has_tokens)
        return STATUS_OK;
    int status = strbuf_status(&own->making->text);
    if (!status)
        status = update_add_piece(own->making, run->prompt, choice, begin);
    driver_note(own->driver, own);
    return status ? status : give_held(own, text, is_end);
}

static int hold(struct call_text *text, const struct call_held *held) {
    if (text->held_count == text->held_capacity) {
        int64_t capacity = text->held_capacity ? 2 * text->held_capacity : 4;
        struct call_held *grown = realloc(text->held, (size_t)capacity * sizeof *grown);
        if (!grown)
            return status_fail(STATUS_MEMORY, "out of memory");
        text->held = grown;
        text->held_capacity = capacity;
    }
    text->held[text->held_count++] = *held;
    return STATUS_OK;
}

static void add_prompt_token(struct call_run *run, const struct scheduler_token *token, bool has_logprob) {
    struct call_own *own = run->own;
    struct call_held held;
    read_token(own, token, has_logprob, &held);
    int status = update_add_piece(own->making, run->prompt, -1, own->making->text.length);
    keep(own, status ? status : update_add_token(own->making, &held.token, held.tops));
    run->has_prompt = true;
    driver_note(own->driver, own);
}

/* Adds the first token of a prompt, which nothing predicts, before everything else of the prompt and its
 * completions. */
static void add_first_token(struct call_run *run) {
    const struct call_own *own = run->own;
    const struct token_buffer *ids = &own->call->prompts[run->prompt].ids;
    if (!run->has_prompt && own->call->ask.prompt_logprobs >= 0 &&
        !engine_slot_predicts_first(own->driver->options.engine, own->slot))
        add_prompt_token(run, &(struct scheduler_token){.token = ids->ids[0]}, false);
}

static bool on_token(void *context, int64_t choice, const struct scheduler_token *token) {
    struct call_run *run = context;
    struct call_own *own = run->own;
    struct call_text *text = &run->texts[choice];
    const struct tokenizer *tokenizer = own->driver->options.tokenizer;
    struct call_held held;
    bool is_ended = false;
    own->driver->drawn++;
    text->drawn++;
    add_first_token(run);
    keep(own, update_add_draw(own->making, &(struct call_draw){run->prompt, choice, clock_seconds()}));
    driver_note(own->driver, own);
    read_token(own, token, true, &held);
    if (token->is_end) {
        text->end = held;
        text->has_end = true;
    }
    if (token->is_end || own->is_cancelled)
        return own->is_cancelled;
    size_t begin = own->making->text.length;
    keep(own, ask_write(&own->call->ask, &own->ends, tokenizer, token->token, text->drawn, &text->writer,
                        &own->making->text, &is_ended));
    held.end = text->writer.added;
    keep(own, hold(text, &held));
    keep(own, give_piece(run, choice, begin, false));
    return is_ended || own->is_cancelled;
}

static void on_prompt_logprob(void *context, int64_t index, const struct scheduler_token *token) {
    if (index > 0)
        add_first_token(context);
    add_prompt_token(context, token, true);
}

static void on_end(void *context, int64_t choice, enum scheduler_end reason) {
    struct call_run *run = context;
    struct call_own *own = run->own;
    struct call_text *text = &run->texts[choice];
    if (reason == SCHEDULER_DEADLINE)
        fail_with(own, ERROR_DEADLINE, "the request's time is over");
    else if (reason == SCHEDULER_FAILED)
        fail_with(own, ERROR_INTERNAL, ENGINE_NO_PROBABILITY);
    else if (reason == SCHEDULER_CANCELLED)
        fail_cancelled(own);
    if (reason != SCHEDULER_STOP && reason != SCHEDULER_LENGTH)
        return;
    if (choice == 0)
        add_first_token(run);
    size_t begin = own->making->text.length;
    keep(own, writer_end(&text->writer, &own->making->text));
    keep(own, give_piece(run, choice, begin, true));
    struct call_end end = {.prompt = run->prompt,
                           .choice = choice,
                           .is_stop = reason == SCHEDULER_STOP,
                           .completion_tokens = text->drawn,
                           .has_token = text->has_end,
                           .token = text->end.token};
    keep(own, update_add_end(own->making, &end, text->end.tops));
    driver_note(own->driver, own);
}

/* The call ends only after the step, because adapters cannot be released inside it. */
static void on_done(void *context) {
    struct call_run *run = context;
    run->is_running = false;
    run->own->running--;
    driver_note(run->own->driver, run->own);
}

/* ---- its beginning ---- */

static uint64_t adapter_identity(const struct call_own *own) {
    uint64_t identity = DIGEST_START;
    for (int64_t i = 0; i < own->call->ask.adapter_count; i++)
        identity = digest_bytes(identity, own->names[i], strlen(own->names[i]) + 1);
    return identity;
}

static enum error_case refusal_case(enum scheduler_refusal refusal) {
    switch (refusal) {
    case SCHEDULER_TOO_LONG:
        return ERROR_CONTEXT_LENGTH;
    case SCHEDULER_QUEUED_REQUESTS:
    case SCHEDULER_QUEUED_TOKENS:
        return ERROR_OVERLOADED;
    case SCHEDULER_NO_MEMORY:
        return ERROR_INTERNAL;
    case SCHEDULER_ENGINE_FAILED:
        return ERROR_ENGINE_FAILED;
    default:
        return ERROR_ARGUMENT;
    }
}

static int submit(struct driver *driver, struct call_own *own, struct call_run *run) {
    struct call *call = own->call;
    const struct token_buffer *ids = &call->prompts[run->prompt].ids;
    int64_t most = driver->options.server->model.max_model_len;
    struct scheduler_request request;
    enum scheduler_refusal refusal;
    ask_schedule(&call->ask, driver->options.engine, own->slot, &own->ends, ids->ids, (int64_t)ids->count, &request);
    if (request.max_tokens < 0)
        request.max_tokens = most - request.virtual_tokens - request.prompt_length;
    request.salt = own->salt;
    request.client = call->client.client;
    request.weight = call->client.weight;
    request.adapter = adapter_identity(own);
    request.deadline = call->deadline;
    request.calls = (struct scheduler_calls){on_start, on_token, on_prompt_logprob, on_end, on_done};
    request.context = run;
    int status = scheduler_submit(driver->scheduler, &request, &run->number, &refusal);
    if (status) {
        fail(own, refusal_case(refusal), refusal == SCHEDULER_TOO_LARGE ? "max_tokens" : NULL);
        return status;
    }
    run->is_running = true;
    own->running++;
    if (own->must_pause)
        scheduler_pause(driver->scheduler, run->number);
    return STATUS_OK;
}

/* Checks that a prompt leaves room for a token after it, or needs none. */
static int check_length(struct driver *driver, struct call_own *own, const struct token_buffer *ids) {
    const struct ask *ask = &own->call->ask;
    int64_t most = driver->options.server->model.max_model_len, count = (int64_t)ids->count;
    int64_t virtual_tokens = engine_slot_virtual_tokens(driver->options.engine, own->slot);
    int64_t wanted = ask->max_tokens >= 0 ? ask->max_tokens : 1;
    const char *field;
    wanted = wanted > ask->min_tokens ? wanted : ask->min_tokens;
    if (virtual_tokens + count + wanted > most) {
        status_fail(STATUS_INVALID,
                    "this model's maximum context length is %lld tokens, and the request has %lld: %lld of the prompt, "
                    "%lld of its adapters and %lld to be written",
                    (long long)most, (long long)(virtual_tokens + count + wanted), (long long)count,
                    (long long)virtual_tokens, (long long)wanted);
        fail(own, ERROR_CONTEXT_LENGTH,
             ask->max_tokens >= 0 && virtual_tokens + count < most ? "max_tokens" : "prompt");
        return STATUS_INVALID;
    }
    int status = ask_check_length(ask, driver->options.engine, own->slot, most + 1, ids->ids, count, &field);
    if (status)
        fail(own, ERROR_ARGUMENT, field ? field : "prompt");
    return status;
}

static int open_runs(struct call_own *own) {
    struct call *call = own->call;
    own->runs = calloc((size_t)call->prompt_count, sizeof *own->runs);
    for (int64_t p = 0; own->runs && p < call->prompt_count; p++) {
        own->runs[p] = (struct call_run){.own = own, .prompt = p};
        own->runs[p].texts = calloc((size_t)call->ask.choices, sizeof *own->runs[p].texts);
        if (!own->runs[p].texts)
            return STATUS_MEMORY;
        for (int64_t i = 0; i < call->ask.choices; i++)
            writer_begin(&own->runs[p].texts[i].writer, own->ends.stops);
    }
    return own->runs ? STATUS_OK : STATUS_MEMORY;
}

static int take_adapters(struct driver *driver, struct call_own *own) {
    const char *names[ASK_MAX_ADAPTERS];
    int count = (int)own->call->ask.adapter_count;
    for (int i = 0; i < count; i++)
        names[i] = own->names[i];
    int status = adapters_take(driver->options.adapters, names, count, &own->slot, own->making->generations);
    own->has_slot = !status && count;
    driver->holders += own->has_slot;
    if (status)
        fail(own,
             status == STATUS_NOT_FOUND ? ERROR_ADAPTER_NOT_FOUND
             : status == STATUS_MEMORY  ? ERROR_ADAPTER_MEMORY
                                        : ERROR_ARGUMENT,
             "adapters");
    return status;
}

/* True when an adapter was loaded or replaced after the chat was rendered, and may have another template. */
static bool is_outdated(const struct call_own *own) {
    size_t bytes = (size_t)own->call->ask.adapter_count * sizeof *own->template_generations;
    return own->call->is_chat && memcmp(own->making->generations, own->template_generations, bytes) != 0;
}

/* Adapters and lengths are valid: puts all prompts into the scheduler, or none. */
static void start(struct driver *driver, struct call_own *own) {
    struct call *call = own->call;
    int status = take_adapters(driver, own);
    if (!status && is_outdated(own)) {
        own->is_outdated = true;
        finish(driver, own);
        return;
    }
    for (int64_t p = 0; p < call->prompt_count && !status; p++)
        status = check_length(driver, own, &call->prompts[p].ids);
    if (!status && (status = open_runs(own)))
        fail_with(own, ERROR_INTERNAL, "out of memory");
    for (int64_t p = 0; p < call->prompt_count && !status; p++)
        status = submit(driver, own, &own->runs[p]);
    if (!status)
        own->making->is_accepted = true;
    else
        cancel_runs(driver, own);
    driver_note(driver, own);
    if (!own->running)
        finish(driver, own);
}

/* ---- adapters that are not in memory ---- */

struct absent {
    struct loop_note note;
    struct driver *driver;
    char name[ADAPTER_NAME_BYTES];
};

static void tell_absent(struct loop_note *note) {
    struct absent *absent = (struct absent *)note;
    absent->driver->options.on_absent(absent->driver->options.server, absent->name);
    free(absent);
}

/* Asks the loop to bring the first adapter that is not in memory. Returns false when all are, or when there was no
 * memory to ask. */
static bool ask_for_absent(struct driver *driver, struct call_own *own) {
    const char *names[ASK_MAX_ADAPTERS];
    int count = (int)own->call->ask.adapter_count;
    for (int i = 0; i < count; i++)
        names[i] = own->names[i];
    int which = adapters_absent(driver->options.adapters, names, count);
    if (which < 0)
        return false;
    struct absent *absent = calloc(1, sizeof *absent);
    if (!absent) {
        fail_with(own, ERROR_INTERNAL, "out of memory");
        own->is_cancelled = true;
        return false;
    }
    absent->note.run = tell_absent;
    absent->driver = driver;
    snprintf(absent->name, sizeof absent->name, "%s", names[which]);
    loop_post(driver->options.loop, &absent->note);
    return true;
}

/* While an adapter starves, other calls that name adapters wait too. Running completions then end, and it gets its
 * turn. */
static bool must_wait(struct driver *driver, struct call_own *own) {
    return ask_for_absent(driver, own) || (own->call->ask.adapter_count && driver_is_starving(driver));
}

static void wait_for_adapters(struct driver *driver, struct call_own *own) {
    struct call_own **at = &driver->waiting;
    while (*at)
        at = &(*at)->next_waiting;
    own->next_waiting = NULL;
    own->is_waiting = true;
    *at = own;
}

static void wait_no_more(struct driver *driver, struct call_own *own) {
    struct call_own **at = &driver->waiting;
    while (*at && *at != own)
        at = &(*at)->next_waiting;
    if (*at)
        *at = own->next_waiting;
    own->is_waiting = false;
}

static void begin(struct driver *driver, struct call_own *own) {
    if (!own->is_cancelled && must_wait(driver, own))
        wait_for_adapters(driver, own);
    else if (own->is_cancelled)
        finish(driver, own);
    else
        start(driver, own);
}

static void end_waiting(struct driver *driver, struct call_own *own) {
    wait_no_more(driver, own);
    finish(driver, own);
}

/* The list is emptied first; calls that must still wait join it again. */
static void retry_all(struct driver *driver) {
    struct call_own *own = driver->waiting;
    driver->waiting = NULL;
    for (struct call_own *next; own; own = next) {
        next = own->next_waiting;
        own->is_waiting = false;
        begin(driver, own);
    }
}

void driver_retry(struct driver *driver) {
    double now = clock_seconds();
    for (struct call_own *own = driver->waiting, *next; own; own = next) {
        next = own->next_waiting;
        if (own->call->deadline > 0 && own->call->deadline <= now) {
            fail_with(own, ERROR_DEADLINE, "the request's time is over");
            end_waiting(driver, own);
        }
    }
    bool has_room = driver->has_room;
    driver->has_room = false; /* calls that begin and end at once make room again */
    if (has_room)
        retry_all(driver);
}

static bool names_adapter(const struct call_own *own, const char *name) {
    for (int64_t i = 0; i < own->call->ask.adapter_count; i++)
        if (!strcmp(own->names[i], name))
            return true;
    return false;
}

struct call_own *driver_first_waiting(const struct driver *driver, const char *name) {
    struct call_own *own = driver->waiting;
    while (own && !names_adapter(own, name))
        own = own->next_waiting;
    return own;
}

void driver_fail_one(struct driver *driver, struct call_own *own, const struct error *error) {
    own->error = *error;
    end_waiting(driver, own);
}

void driver_fail_waiting(struct driver *driver, const char *name, const struct error *error) {
    for (struct call_own *own = driver->waiting, *next; own; own = next) {
        next = own->next_waiting;
        if (names_adapter(own, name))
            driver_fail_one(driver, own, error);
    }
}

/* ---- what the loop says ---- */

static void cancel(struct driver *driver, struct call_own *own) {
    if (own->is_ended)
        return;
    fail_cancelled(own);
    if (own->is_waiting)
        end_waiting(driver, own);
    else
        cancel_runs(driver, own);
}

void driver_do(struct driver *driver, struct call_own *own, unsigned commands) {
    if (own->has_begun) /* its client would lose what it has received */
        commands &= ~(unsigned)CALL_YIELD;
    bool is_cancelled = (commands & (CALL_CANCEL | CALL_STOP | CALL_YIELD)) != 0;
    if (commands & (CALL_STOP | CALL_YIELD))
        own->cause = commands & CALL_STOP ? ERROR_DRAINING : ERROR_OVERLOADED;
    if (commands & CALL_SUBMIT) {
        driver->calls++;
        own->is_cancelled = is_cancelled;
        if (is_cancelled)
            fail_cancelled(own);
        begin(driver, own);
    } else if (is_cancelled)
        cancel(driver, own);
    if (!(commands & (CALL_PAUSE | CALL_RESUME)) || own->is_ended)
        return;
    own->must_pause = (commands & CALL_PAUSE) != 0;
    for (int64_t p = 0; own->runs && p < own->call->prompt_count; p++)
        if (own->runs[p].is_running && own->must_pause)
            scheduler_pause(driver->scheduler, own->runs[p].number);
        else if (own->runs[p].is_running)
            scheduler_resume(driver->scheduler, own->runs[p].number);
}

void driver_settle(struct driver *driver) {
    for (struct call_own *own = driver->changed; own; own = own->next_changed)
        if (!own->is_ended && !own->is_waiting && own->runs && !own->running)
            finish(driver, own);
}

void driver_fail_all(struct driver *driver) {
    for (struct call_own *own = driver->changed; own; own = own->next_changed)
        if (!own->is_ended)
            error_set(&own->error, ERROR_ENGINE_FAILED, NULL, "the engine has failed");
    for (struct call_own *own = driver->waiting, *next; own; own = next) {
        next = own->next_waiting;
        fail_with(own, ERROR_ENGINE_FAILED, "the engine has failed");
        end_waiting(driver, own);
    }
}
