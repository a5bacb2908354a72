/* A call at the engine: its adapters, its prompts in the scheduler, and the results of its completions. */
#include "driver-internal.h"

#include "infer/slots.h"

void driver_note(struct driver *driver, struct call_engine *self) {
    if (self->is_changed)
        return;
    self->is_changed = true;
    self->next_changed = driver->changed;
    driver->changed = self;
}

/* ---- making and freeing ---- */

struct call_engine *call_engine_new(const struct call *call, struct call_shared *shared) {
    struct call_engine *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    *self = (struct call_engine){.call = call, .shared = shared, .slot = -1};
    self->making = calloc(1, sizeof *self->making);
    if (self->making)
        return self;
    free(self);
    return NULL;
}

void call_engine_free(struct call_engine *self) {
    if (self)
        update_free(self->making);
    free(self);
}

/* ---- ending ---- */

static void free_runs(struct call_engine *self) {
    for (int64_t p = 0; self->runs && p < self->call->request.prompt_count; p++) {
        for (int64_t i = 0; self->runs[p].completions && i < self->call->request.ask.choices; i++) {
            writer_free(&self->runs[p].completions[i].writer);
            free(self->runs[p].completions[i].held);
        }
        free(self->runs[p].completions);
    }
    free(self->runs);
    self->runs = NULL;
}

/* Publishes a call's last update, when none of its completions is in the scheduler. The engine does not access the call
 * afterwards. */
static void finish(struct driver *driver, struct call_engine *self) {
    if (self->has_slot) {
        int status = adapters_give(driver->options.adapters, self->slot);
        driver->status = driver->status ? driver->status : status;
        driver->has_room = driver->adapters_changed = true;
        driver->holders--;
        driver->gives++;
    }
    self->has_slot = false;
    self->is_ended = true;
    self->making->is_done = true;
    self->making->error = self->error;
    free_runs(self);
    driver->calls--;
    driver_note(driver, self);
}

static void fail(struct call_engine *self, enum error_case which, const char *param) {
    if (!self->error.which)
        error_of_status(&self->error, which, param);
}

static void fail_with(struct call_engine *self, enum error_case which, const char *text) {
    if (!self->error.which)
        error_set(&self->error, which, NULL, "%s", text);
}

static void fail_cancelled(struct call_engine *self) {
    if (self->cause == ERROR_OVERLOADED)
        fail_with(self, self->cause, CALL_GIVES_WAY);
    else if (self->cause)
        fail_with(self, self->cause, "the server is shutting down, and the time for what runs is over");
    else
        fail_with(self, ERROR_CANCELLED, "the request was cancelled");
}

/* Cancels its completions; the scheduler reports their end. */
static void cancel_runs(struct driver *driver, struct call_engine *self) {
    self->is_cancelled = true;
    for (int64_t p = 0; self->runs && p < self->call->request.prompt_count; p++)
        if (self->runs[p].is_running)
            scheduler_cancel(driver->scheduler, self->runs[p].number);
}

/* ---- callbacks of the scheduler ---- */

static void keep(struct call_engine *self, int status) {
    if (!status)
        return;
    fail(self, ERROR_INTERNAL, NULL);
    self->is_cancelled = true;
}

static void on_start(void *context, int64_t cached) {
    struct call_run *run = context;
    run->owner->has_begun = true;
    keep(run->owner,
         update_add_start(run->owner->making,
                          &(struct call_start){.prompt = run->prompt, .cached = cached, .time = clock_seconds()}));
    driver_note(run->owner->shared->driver, run->owner);
}

/* Reads a token with its likeliest alternatives. */
static void read_token(struct call_engine *self, const struct scheduler_token *token, bool has_logprob,
                       struct call_held *held) {
    *held = (struct call_held){0};
    if (update_read_token(token, has_logprob, &held->token, held->tops))
        return;
    fail_with(self, ERROR_INTERNAL, ENGINE_NO_PROBABILITY);
    self->is_cancelled = true;
}

/* Moves tokens whose last byte was sent into the last piece; at the end all of them. */
static int give_held(struct call_engine *self, struct call_completion *completion, bool is_end) {
    int64_t given = 0;
    int status = STATUS_OK;
    while (given < completion->held_count && !status &&
           (is_end || completion->held[given].end <= completion->writer.given)) {
        status = update_add_token(self->making, &completion->held[given].token, completion->held[given].tops);
        given++;
    }
    completion->held_count -= given;
    memmove(completion->held, completion->held + given, (size_t)completion->held_count * sizeof *completion->held);
    return status;
}

/* Adds a piece when text or tokens can be sent. */
static int give_piece(struct call_run *run, int64_t choice, size_t begin, bool is_end) {
    struct call_engine *self = run->owner;
    struct call_completion *completion = &run->completions[choice];
    bool has_tokens = completion->held_count && (is_end || completion->held[0].end <= completion->writer.given);
    if (self->making->text.length == begin && !has_tokens)
        return STATUS_OK;
    int status = strbuf_status(&self->making->text);
    THEN(status, update_add_piece(self->making, run->prompt, choice, begin));
    driver_note(self->shared->driver, self);
    return status ? status : give_held(self, completion, is_end);
}

static int hold(struct call_completion *completion, const struct call_held *held) {
    if (completion->held_count == completion->held_capacity) {
        int64_t capacity = completion->held_capacity ? 2 * completion->held_capacity : 4;
        struct call_held *grown = realloc(completion->held, (size_t)capacity * sizeof *grown);
        TRY(status_allocated(grown));
        completion->held = grown;
        completion->held_capacity = capacity;
    }
    completion->held[completion->held_count++] = *held;
    return STATUS_OK;
}

static void add_prompt_token(struct call_run *run, const struct scheduler_token *token, bool has_logprob) {
    struct call_engine *self = run->owner;
    struct call_held held;
    read_token(self, token, has_logprob, &held);
    int status = update_add_piece(self->making, run->prompt, -1, self->making->text.length);
    keep(self, status ? status : update_add_token(self->making, &held.token, held.tops));
    run->has_prompt = true;
    driver_note(self->shared->driver, self);
}

/* Adds the first token of a prompt, which nothing predicts, before everything else of the prompt and its
 * completions. */
static void add_first_token(struct call_run *run) {
    const struct call_engine *self = run->owner;
    const struct token_buffer *ids = &self->call->request.prompts[run->prompt].ids;
    if (!run->has_prompt && self->call->request.ask.prompt_logprobs >= 0 &&
        !engine_slot_predicts_first(self->shared->driver->options.engine, self->slot))
        add_prompt_token(run, &(struct scheduler_token){.token = ids->ids[0]}, false);
}

static bool on_token(void *context, int64_t choice, const struct scheduler_token *token) {
    struct call_run *run = context;
    struct call_engine *self = run->owner;
    struct call_completion *completion = &run->completions[choice];
    const struct tokenizer *tokenizer = self->shared->driver->options.tokenizer;
    struct call_held held;
    bool is_ended = false;
    self->shared->driver->drawn++;
    completion->drawn++;
    add_first_token(run);
    keep(self, update_add_draw(self->making, &(struct call_draw){run->prompt, choice, clock_seconds()}));
    driver_note(self->shared->driver, self);
    read_token(self, token, true, &held);
    if (token->is_end) {
        completion->end = held;
        completion->has_end = true;
    }
    if (token->is_end || self->is_cancelled)
        return self->is_cancelled;
    size_t begin = self->making->text.length;
    const struct ask_completion asked = {&self->call->request.ask, &self->shared->asked.ends, tokenizer,
                                         &completion->writer, completion->drawn};
    keep(self, ask_write(&asked, token->token, &self->making->text, &is_ended));
    held.end = completion->writer.added;
    keep(self, hold(completion, &held));
    keep(self, give_piece(run, choice, begin, false));
    return is_ended || self->is_cancelled;
}

static void on_prompt_logprob(void *context, int64_t index, const struct scheduler_token *token) {
    if (index > 0)
        add_first_token(context);
    add_prompt_token(context, token, true);
}

static void on_end(void *context, int64_t choice, enum scheduler_end reason) {
    struct call_run *run = context;
    struct call_engine *self = run->owner;
    struct call_completion *completion = &run->completions[choice];
    if (reason == SCHEDULER_DEADLINE)
        fail_with(self, ERROR_DEADLINE, "the request's time is over");
    else if (reason == SCHEDULER_FAILED)
        fail_with(self, ERROR_INTERNAL, ENGINE_NO_PROBABILITY);
    else if (reason == SCHEDULER_MASK && !self->error.which)
        error_set(&self->error, ERROR_CONSTRAINT_TOO_LARGE, self->call->constraint, SCHEDULER_NO_MASK);
    else if (reason == SCHEDULER_CANCELLED)
        fail_cancelled(self);
    if (reason != SCHEDULER_STOP && reason != SCHEDULER_LENGTH)
        return;
    if (choice == 0)
        add_first_token(run);
    size_t begin = self->making->text.length;
    keep(self, writer_end(&completion->writer, &self->making->text));
    keep(self, give_piece(run, choice, begin, true));
    struct call_end end = {.prompt = run->prompt,
                           .choice = choice,
                           .is_stop = reason == SCHEDULER_STOP,
                           .stop = ask_find_stop(&self->call->request.ask, &completion->writer),
                           .completion_tokens = completion->drawn,
                           .has_token = completion->has_end,
                           .token = completion->end.token};
    keep(self, update_add_end(self->making, &end, completion->end.tops));
    driver_note(self->shared->driver, self);
}

/* The call ends only after the step, because adapters cannot be released inside it. */
static void on_done(void *context) {
    struct call_run *run = context;
    run->is_running = false;
    run->owner->running--;
    driver_note(run->owner->shared->driver, run->owner);
}

/* ---- starting ---- */

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

static struct ask_prompt prompt_of(const struct driver *driver, const struct call_engine *self, int64_t prompt) {
    const struct token_buffer *ids = &self->call->request.prompts[prompt].ids;
    return (struct ask_prompt){
        .engine = driver->options.engine, .slot = self->slot, .ids = ids->ids, .count = (int64_t)ids->count};
}

static int submit(struct driver *driver, struct call_engine *self, struct call_run *run) {
    const struct call *call = self->call;
    const struct ask_prompt prompt = prompt_of(driver, self, run->prompt);
    int64_t most = driver->options.server->model.max_model_len;
    struct scheduler_request request;
    enum scheduler_refusal refusal;
    ask_schedule(&call->request.ask, &self->shared->asked.ends, &prompt, &request);
    if (request.max_tokens < 0)
        request.max_tokens = most - request.virtual_tokens - request.prompt_length;
    request.salt = self->shared->asked.salt;
    request.grammar = self->shared->asked.grammar;
    request.client = call->client.client;
    request.weight = call->client.weight;
    uint64_t identity = DIGEST_START;
    for (int64_t i = 0; i < self->call->request.ask.adapter_count; i++)
        identity = digest_bytes(identity, self->shared->asked.names[i], strlen(self->shared->asked.names[i]) + 1);
    request.adapter = identity;
    request.deadline = call->deadline;
    request.calls = (struct scheduler_calls){on_start, on_token, on_prompt_logprob, on_end, on_done};
    request.context = run;
    int status = scheduler_submit(driver->scheduler, &request, &run->number, &refusal);
    if (status) {
        fail(self, refusal_case(refusal), refusal == SCHEDULER_TOO_LARGE ? "max_tokens" : NULL);
        return status;
    }
    run->is_running = true;
    self->running++;
    if (self->must_pause)
        scheduler_pause(driver->scheduler, run->number);
    return STATUS_OK;
}

/* Checks that a prompt leaves room for a token after it, or needs none. */
static int check_length(struct driver *driver, struct call_engine *self, int64_t number) {
    const struct ask *ask = &self->call->request.ask;
    const struct ask_prompt prompt = prompt_of(driver, self, number);
    int64_t most = driver->options.server->model.max_model_len, count = prompt.count;
    int64_t virtual_tokens = engine_slot_virtual_tokens(driver->options.engine, self->slot);
    int64_t wanted = ask->max_tokens >= 0 ? ask->max_tokens : 1;
    const char *field;
    wanted = wanted > ask->min_tokens ? wanted : ask->min_tokens;
    if (virtual_tokens + count + wanted > most) {
        status_fail(STATUS_INVALID,
                    "this model's maximum context length is %lld tokens, and the request has %lld: %lld of the prompt, "
                    "%lld of its adapters and %lld to be written",
                    (long long)most, (long long)(virtual_tokens + count + wanted), (long long)count,
                    (long long)virtual_tokens, (long long)wanted);
        fail(self, ERROR_CONTEXT_LENGTH,
             ask->max_tokens >= 0 && virtual_tokens + count < most ? "max_tokens" : "prompt");
        return STATUS_INVALID;
    }
    int status = ask_check_length(ask, &prompt, most + 1, &field);
    if (status)
        fail(self, ERROR_ARGUMENT, field ? field : "prompt");
    return status;
}

static int open_runs(struct call_engine *self) {
    const struct call *call = self->call;
    self->runs = calloc((size_t)call->request.prompt_count, sizeof *self->runs);
    for (int64_t p = 0; self->runs && p < call->request.prompt_count; p++) {
        self->runs[p] = (struct call_run){.owner = self, .prompt = p};
        self->runs[p].completions = calloc((size_t)call->request.ask.choices, sizeof *self->runs[p].completions);
        if (!self->runs[p].completions)
            return STATUS_MEMORY;
        for (int64_t i = 0; i < call->request.ask.choices; i++)
            writer_begin(&self->runs[p].completions[i].writer, self->shared->asked.ends.stops);
    }
    return self->runs ? STATUS_OK : STATUS_MEMORY;
}

int driver_adapters_of(const struct call_engine *self, const char *names[ASK_MAX_ADAPTERS]) {
    int count = (int)self->call->request.ask.adapter_count;
    for (int i = 0; i < count; i++)
        names[i] = self->shared->asked.names[i];
    return count;
}

static int take_adapters(struct driver *driver, struct call_engine *self) {
    const char *names[ASK_MAX_ADAPTERS];
    int count = driver_adapters_of(self, names);
    int status = adapters_take(driver->options.adapters, names, count, &self->slot, self->making->generations);
    self->has_slot = !status && count;
    driver->holders += self->has_slot;
    if (status)
        fail(self,
             status == STATUS_NOT_FOUND ? ERROR_ADAPTER_NOT_FOUND
             : status == STATUS_MEMORY  ? ERROR_ADAPTER_MEMORY
                                        : ERROR_ARGUMENT,
             "adapters");
    return status;
}

/* True when an adapter was loaded or replaced after the chat was rendered, and may have another template. */
static bool is_outdated(const struct call_engine *self) {
    size_t bytes = (size_t)self->call->request.ask.adapter_count * sizeof *self->shared->asked.template_generations;
    return self->call->is_chat &&
           memcmp(self->making->generations, self->shared->asked.template_generations, bytes) != 0;
}

/* Submits all prompts to the scheduler, or none. Adapters and lengths are valid. */
static void start(struct driver *driver, struct call_engine *self) {
    const struct call *call = self->call;
    int status = take_adapters(driver, self);
    if (!status && is_outdated(self)) {
        self->making->is_outdated = true;
        finish(driver, self);
        return;
    }
    for (int64_t p = 0; p < call->request.prompt_count && !status; p++)
        status = check_length(driver, self, p);
    if (!status && (status = open_runs(self)))
        fail_with(self, ERROR_INTERNAL, "out of memory");
    for (int64_t p = 0; p < call->request.prompt_count && !status; p++)
        status = submit(driver, self, &self->runs[p]);
    if (!status)
        self->making->is_accepted = true;
    else
        cancel_runs(driver, self);
    driver_note(driver, self);
    if (!self->running)
        finish(driver, self);
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
static bool ask_for_absent(struct driver *driver, struct call_engine *self) {
    const char *names[ASK_MAX_ADAPTERS];
    int which = adapters_absent(driver->options.adapters, names, driver_adapters_of(self, names));
    if (which < 0)
        return false;
    struct absent *absent = calloc(1, sizeof *absent);
    if (!absent) {
        fail_with(self, ERROR_INTERNAL, "out of memory");
        self->is_cancelled = true;
        return false;
    }
    absent->note.run = tell_absent;
    absent->driver = driver;
    snprintf(absent->name, sizeof absent->name, "%s", names[which]);
    loop_post(driver->options.loop, &absent->note);
    return true;
}

static void begin(struct driver *driver, struct call_engine *self) {
    /* While an adapter starves, other calls that name adapters wait too. Running completions then end, and it gets its
     * turn. */
    if (!self->is_cancelled &&
        (ask_for_absent(driver, self) || (self->call->request.ask.adapter_count && driver_is_starving(driver)))) {
        self->is_waiting = true;
        TAILQ_INSERT_TAIL(&driver->waiting, self, waits);
    } else if (self->is_cancelled)
        finish(driver, self);
    else
        start(driver, self);
}

static void end_waiting(struct driver *driver, struct call_engine *self) {
    TAILQ_REMOVE(&driver->waiting, self, waits);
    self->is_waiting = false;
    finish(driver, self);
}

void driver_retry(struct driver *driver) {
    double now = clock_seconds();
    for (struct call_engine *self = TAILQ_FIRST(&driver->waiting), *next; self; self = next) {
        next = TAILQ_NEXT(self, waits);
        if (self->call->deadline > 0 && self->call->deadline <= now) {
            fail_with(self, ERROR_DEADLINE, "the request's time is over");
            end_waiting(driver, self);
        }
    }
    bool has_room = driver->has_room;
    driver->has_room = false; /* calls that begin and end at once make room again */
    if (has_room) {
        /* The list is emptied first; calls that must still wait join it again. */
        struct driver_waiting all = TAILQ_HEAD_INITIALIZER(all);
        TAILQ_CONCAT(&all, &driver->waiting, waits);
        for (struct call_engine *self; (self = TAILQ_FIRST(&all));) {
            TAILQ_REMOVE(&all, self, waits);
            self->is_waiting = false;
            begin(driver, self);
        }
    }
}

static bool names_adapter(const struct call_engine *self, const char *name) {
    for (int64_t i = 0; i < self->call->request.ask.adapter_count; i++)
        if (!strcmp(self->shared->asked.names[i], name))
            return true;
    return false;
}

struct call_engine *driver_first_waiting(const struct driver *driver, const char *name) {
    struct call_engine *self = TAILQ_FIRST(&driver->waiting);
    while (self && !names_adapter(self, name))
        self = TAILQ_NEXT(self, waits);
    return self;
}

void driver_fail_one(struct driver *driver, struct call_engine *self, const struct error *error) {
    self->error = *error;
    end_waiting(driver, self);
}

void driver_fail_waiting(struct driver *driver, const char *name, const struct error *error) {
    for (struct call_engine *self = TAILQ_FIRST(&driver->waiting), *next; self; self = next) {
        next = TAILQ_NEXT(self, waits);
        if (names_adapter(self, name))
            driver_fail_one(driver, self, error);
    }
}

/* ---- commands of the loop ---- */

void driver_do(struct driver *driver, struct call_engine *self, unsigned commands) {
    if (self->has_begun) /* its client would lose what it has received */
        commands &= ~(unsigned)CALL_YIELD;
    bool is_cancelled = (commands & (CALL_CANCEL | CALL_STOP | CALL_YIELD)) != 0;
    if (commands & (CALL_STOP | CALL_YIELD))
        self->cause = commands & CALL_STOP ? ERROR_DRAINING : ERROR_OVERLOADED;
    if (commands & CALL_SUBMIT) {
        driver->calls++;
        self->is_cancelled = is_cancelled;
        self->is_ended = false; /* a call that was rendered again has ended before */
        if (is_cancelled)
            fail_cancelled(self);
        begin(driver, self);
    } else if (is_cancelled && !self->is_ended) {
        fail_cancelled(self);
        if (self->is_waiting)
            end_waiting(driver, self);
        else
            cancel_runs(driver, self);
    }
    if (!(commands & (CALL_PAUSE | CALL_RESUME)) || self->is_ended)
        return;
    self->must_pause = (commands & CALL_PAUSE) != 0;
    for (int64_t p = 0; self->runs && p < self->call->request.prompt_count; p++)
        if (self->runs[p].is_running && self->must_pause)
            scheduler_pause(driver->scheduler, self->runs[p].number);
        else if (self->runs[p].is_running)
            scheduler_resume(driver->scheduler, self->runs[p].number);
}

void driver_settle(struct driver *driver) {
    for (struct call_engine *self = driver->changed; self; self = self->next_changed)
        if (!self->is_ended && !self->is_waiting && self->runs && !self->running)
            finish(driver, self);
}

void driver_fail_all(struct driver *driver) {
    for (struct call_engine *self = driver->changed; self; self = self->next_changed)
        if (!self->is_ended)
            error_set(&self->error, ERROR_ENGINE_FAILED, NULL, "the engine has failed");
    for (struct call_engine *self; (self = TAILQ_FIRST(&driver->waiting));) {
        fail_with(self, ERROR_ENGINE_FAILED, "the engine has failed");
        end_waiting(driver, self);
    }
}
