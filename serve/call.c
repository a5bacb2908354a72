/* The loop's side of a call: checks and tokenizes it, passes it to the driver, and delivers its updates. */
#include "call.h"

#include "call_loop.h"
#include "queue.h"
#include "registry.h"
#include "server-internal.h"
#include "text_job.h"

#include <openssl/sha.h>

/* ---- making and freeing ---- */

static struct call_update *new_update(void) {
    return calloc(1, sizeof(struct call_update));
}

static void tell(struct call_loop *self, unsigned commands) {
    driver_tell(self->shared->driver, self->shared, commands);
}

static void free_shared(struct call_shared *shared) {
    ask_ends_close(&shared->asked.ends);
    grammar_release(shared->asked.grammar);
    chat_template_close(shared->asked.chat_template);
    call_engine_free(shared->engine);
    update_free(shared->published);
    free(shared);
}

static struct call_shared *new_shared(struct call *call, struct call_loop *self) {
    struct call_shared *shared = calloc(1, sizeof *shared);
    if (!shared)
        return NULL;
    *shared = (struct call_shared){.driver = call->server->driver, .loop = self};
    shared->engine = call_engine_new(call, shared);
    shared->published = new_update();
    if (shared->engine && shared->published)
        return shared;
    free_shared(shared);
    return NULL;
}

static void free_loop(struct call_loop *self) {
    if (self->shared)
        free_shared(self->shared);
    update_free(self->reading);
    grammar_report_free(&self->grammar.report);
    call_count_close(self);
    free(self);
}

static struct call_loop *new_loop(struct call *call) {
    struct call_loop *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    *self = (struct call_loop){.call = call, .shared = new_shared(call, self), .reading = new_update()};
    if (self->shared && self->reading)
        return self;
    free_loop(self);
    return NULL;
}

static void free_call(struct call *call) {
    if (call->loop && call->loop->is_linked)
        LIST_REMOVE(call->loop, all);
    if (call->loop)
        free_loop(call->loop);
    call_request_free(&call->request);
    openai_tools_free(&call->tools);
    json_decref(call->texts);
    free(call->cached);
    free(call);
}

struct call *call_new(struct server *server, struct call_request *request) {
    struct call *call = calloc(1, sizeof *call);
    if (!call)
        return NULL;
    *call = (struct call){.server = server, .request = {.prompt_count = request->prompt_count}};
    call->client = (struct key_holder){.name = "", .weight = 1, .least_priority = INT32_MIN};
    call->cached = calloc((size_t)request->prompt_count, sizeof *call->cached);
    call->loop = new_loop(call);
    if (!call->cached || !call->loop) {
        call->request.prompt_count = 0;
        free_call(call);
        return NULL;
    }
    call->request = *request;
    *request = (struct call_request){0};
    return call;
}

/* ---- updates ---- */

static int64_t completions_of(const struct call *call) {
    return call->request.prompt_count * call->request.ask.choices;
}

/* Gives back the queue's places for `count` tokens of its prompts. */
static void release_tokens(struct call_loop *self, int64_t count) {
    count = count < self->queued_tokens ? count : self->queued_tokens;
    if (count)
        queue_remove(self->call->server->core->token_queue, self->call->client.client, count);
    self->queued_tokens -= count;
}

static void give_up_places(struct call_loop *self) {
    release_tokens(self, self->queued_tokens);
    if (!self->has_yielded)
        queue_remove(self->call->server->core->queue, self->call->client.client, completions_of(self->call));
    self->has_yielded = true;
}

/* Ends the server's counting of a call, once, however the call ends. */
static void leave(struct call_loop *self, const struct error *error) {
    if (self->has_left || !self->has_entered)
        return;
    self->has_left = true;
    give_up_places(self);
    self->call->server->core->calls--;
    call_count_done(self, error);
}

/* Ends a call that the engine does not have. */
static void end_unwanted(struct call_loop *self) {
    struct error error;
    error_set(&error, self->was_not_read ? ERROR_SLOW_READER : ERROR_CANCELLED, NULL, "the request was cancelled");
    leave(self, &error);
    free_call(self->call);
}

/* Its client's places are free at once, whatever the engine is busy with. */
void call_free(struct call *call, enum error_case why) {
    struct call_loop *self = call->loop;
    self->was_not_read = why == ERROR_SLOW_READER;
    if (self->is_submitted && driver_withdraw(self->shared->driver, self->shared))
        self->is_submitted = false;
    if (!self->is_submitted && !self->untokenized && !self->is_failing) {
        end_unwanted(self);
        return;
    }
    self->is_abandoned = true;
    if (self->has_entered && !self->has_left)
        give_up_places(self);
    if (self->is_submitted)
        tell(self, CALL_CANCEL);
}

static void hand_over(struct call_loop *self, const struct call_update *update) {
    struct call *call = self->call;
    if (update->is_accepted)
        memcpy(call->generations, update->generations, sizeof call->generations);
    self->has_started |= update->start_count > 0;
    for (int64_t i = 0; i < update->start_count; i++) {
        call->cached[update->starts[i].prompt] = update->starts[i].cached;
        release_tokens(self, (int64_t)call->request.prompts[update->starts[i].prompt].ids.count);
    }
    call_count_update(self, update);
    if (update->is_done) {
        struct error error = update->error;
        if (self->was_not_read && error.which == ERROR_CANCELLED)
            error.which = ERROR_SLOW_READER;
        leave(self, &error);
    }
    if (self->is_abandoned || self->is_failed)
        return;
    call->on_update(call, update);
}

static void submit_again(struct call_loop *self);

static struct call_loop *noted(struct loop_note *note) {
    return ((struct call_shared *)((char *)note - offsetof(struct call_shared, note)))->loop;
}

static void take_update(struct loop_note *note) {
    struct call_loop *self = noted(note);
    struct call *call = self->call;
    struct call_update *update = self->reading = driver_take_update(self->shared->driver, self->shared, self->reading);
    bool is_done = update->is_done, is_abandoned = self->is_abandoned;
    if (is_done)
        self->is_submitted = false;
    if (is_done && update->is_outdated && !is_abandoned && !self->is_failed) {
        update_clear(update);
        submit_again(self);
        return;
    }
    hand_over(self, update);
    /* After the last update the call belongs to its owner, who may have freed it during on_update. */
    if (!is_done)
        update_clear(update);
    else if (is_abandoned)
        free_call(call);
}

/* An error before the engine has the call also comes as an update, and so does the end of a call that only counts. */
static void tell_failure(struct loop_note *note) {
    struct call_loop *self = noted(note);
    struct call *call = self->call;
    bool is_abandoned = self->is_abandoned;
    self->is_failing = false;
    self->reading->is_done = true;
    self->reading->error = self->failure;
    hand_over(self, self->reading);
    if (is_abandoned)
        free_call(call);
}

/* The first failure counts; it is reported when no text of the call is still being tokenized. */
static void fail(struct call_loop *self) {
    if (self->untokenized || self->is_failing)
        return;
    self->is_failing = true;
    self->shared->note.run = tell_failure;
    loop_post(self->call->server->loop, &self->shared->note);
}

static void fail_status(struct call_loop *self, enum error_case which, const char *param) {
    if (!self->failure.which)
        error_of_status(&self->failure, which, param);
}

/* ---- room in the queue ---- */

/* Finds the youngest waiting call of the client that exceeds its share most; NULL: none of these clients has one. */
static struct call_loop *find_yielding(const struct server *server, const struct queue *queue) {
    struct call_loop *found = NULL;
    double most = 0;
    for (struct call_loop *self = LIST_FIRST(&server->core->all_calls); self; self = LIST_NEXT(self, all)) {
        /* Only calls of which no prompt has begun to run, and which nothing has ended yet. */
        bool is_in = self->has_entered && !self->has_left && !self->has_started && !self->has_yielded &&
                     !self->is_abandoned && !self->is_failed && !self->is_failing && !self->failure.which &&
                     (queue == server->core->queue || self->queued_tokens);
        double excess = is_in ? queue_excess(queue, self->call->client.client) : 0;
        if (excess > most) {
            most = excess;
            found = self;
        }
    }
    return found;
}

static void refuse_places(struct call_loop *self, enum queue_answer answer, int64_t count, bool is_of_tokens) {
    const struct server *server = self->call->server;
    long long most = is_of_tokens ? server->options->max_queued_tokens : server->options->max_queued_requests;
    const struct queue *queue = is_of_tokens ? server->core->token_queue : server->core->queue;
    const char *what = is_of_tokens ? "tokens of prompts wait" : "completions wait or run";
    if (answer == QUEUE_OVER_SHARE)
        error_set(&self->failure, ERROR_OVERLOADED, NULL,
                  "this client has its share of the queue, in which at most %lld %s, and another waits for its own",
                  most, what);
    else
        error_set(&self->failure, ERROR_OVERLOADED, NULL,
                  "%lld %s, and %lld more are asked for: at most %lld are taken", (long long)queue_used(queue), what,
                  (long long)count, most);
}

/* Takes places for its completions, or for its prompts' tokens. A client below its share finds room if another exceeds
 * its share and has a waiting call. */
static void take_places(struct call_loop *self, int64_t count, bool is_of_tokens) {
    const struct key_holder *client = &self->call->client;
    const struct server *server = self->call->server;
    struct queue *queue = is_of_tokens ? server->core->token_queue : server->core->queue;
    enum queue_answer answer;
    struct call_loop *yielding = NULL;
    double now = clock_seconds();
    do {
        answer = queue_ask(queue, client->client, client->weight, count, now);
        yielding = answer == QUEUE_MUST_MAKE_ROOM ? find_yielding(server, queue) : NULL;
        if (yielding) {
            metrics_queue_full(server->metrics, is_of_tokens);
            give_up_places(yielding); /* at once; the call ends and is logged like every call */
            if (yielding->is_submitted)
                tell(yielding, CALL_YIELD);
            else
                error_set(&yielding->failure, ERROR_OVERLOADED, NULL, CALL_GIVES_WAY);
        }
    } while (yielding);
    int status = STATUS_OK;
    if (answer == QUEUE_HAS_ROOM)
        status = queue_add(queue, client->client, client->weight, count);
    else if (answer == QUEUE_MUST_MAKE_ROOM)
        status = queue_miss(queue, client->client, client->weight, now);
    if (status) {
        fail_status(self, ERROR_INTERNAL, NULL);
    } else if (answer != QUEUE_HAS_ROOM) {
        refuse_places(self, answer, count, is_of_tokens);
        metrics_queue_full(server->metrics, is_of_tokens);
    }
}

/* A single prompt may have more tokens than the queue holds. */
static void take_token_places(struct call_loop *self) {
    const struct call *call = self->call;
    int64_t count = 0, most = call->server->options->max_queued_tokens;
    if (!call->server->core->token_queue)
        return;
    release_tokens(self, self->queued_tokens);
    for (int64_t p = 0; p < call->request.prompt_count; p++)
        count += (int64_t)call->request.prompts[p].ids.count;
    count = count < most ? count : most;
    take_places(self, count, true);
    if (!self->failure.which)
        self->queued_tokens = count;
}

/* ---- preparing and submitting ---- */

static void continue_submission(struct call_loop *self) {
    const struct call *call = self->call;
    if (self->untokenized)
        return;
    if (self->is_abandoned) {
        if (!self->is_failed) /* else its memory stays: the driver may have a command for it */
            end_unwanted(self);
        return;
    }
    for (int64_t p = 0; p < call->request.prompt_count && !self->failure.which; p++)
        if (!call->request.prompts[p].ids.count)
            error_set(&self->failure, ERROR_ARGUMENT, call->is_chat ? "messages" : "prompt",
                      "an empty text, and the tokenizer has no end-of-text to begin with");
    if (!self->failure.which)
        take_token_places(self);
    if (self->failure.which || call->only_counts)
        fail(self);
    else {
        self->is_submitted = true;
        self->shared->note.run = take_update;
        tell(self, CALL_SUBMIT | (self->must_stop ? (unsigned)CALL_STOP : 0));
    }
}

struct answer_encoding {
    struct call_loop *owner;
    int64_t prompt;
};

/* ---- the grammar of its constraint ---- */

/* Takes what came of the order; a refusal names the field. */
static void take_grammar(struct call_loop *self) {
    const struct grammar_order *order = &self->grammar;
    const char *field = *order->report.field ? order->report.field : self->constraint.source.field;
    self->shared->asked.grammar = order->grammar;
    self->call->ignored = order->report.ignored;
    if (!order->status || self->failure.which)
        return;
    if (order->report.refusal)
        error_set(&self->failure, error_of_refusal(order->report.refusal), field, "%s: %s", field,
                  strbuf_text(&order->report.message));
    else if (order->status == STATUS_INTERRUPTED)
        error_set(&self->failure, ERROR_DRAINING, NULL, "the server is shutting down");
    else
        error_set(&self->failure, ERROR_INTERNAL, NULL, "out of memory");
}

static void on_grammar(struct loop_note *note) {
    struct call_loop *self = (struct call_loop *)((char *)note - offsetof(struct call_loop, grammar_note));
    self->untokenized--;
    take_grammar(self);
    continue_submission(self);
}

static void post_grammar(struct grammar_order *order) {
    struct call_loop *self = order->context;
    loop_post(self->call->server->loop, &self->grammar_note);
}

/* Forgets the grammar of a chat that is rendered again. */
static void drop_grammar(struct call_loop *self) {
    ask_constraint_free(&self->constraint);
    grammar_release(self->shared->asked.grammar);
    grammar_report_free(&self->grammar.report);
    self->shared->asked.grammar = NULL;
    self->call->ignored = NULL;
    self->grammar = (struct grammar_order){0};
}

/* Orders the grammar of the answers to a prompt. A chat's depends on its rendering; another's is compiled while its
 * prompts are tokenized. */
static int order_grammar(struct call_loop *self, struct call_prompt *prompt) {
    const struct call *call = self->call;
    struct ask_constraint *constraint = &self->constraint;
    drop_grammar(self);
    int status = call_request_constrain(&call->request, prompt, constraint);
    if (status)
        fail_status(self, ERROR_OVERLOADED, NULL);
    self->call->constraint = constraint->source.field;
    prompt->is_constrained = constraint->source.field != NULL;
    if (status || !constraint->source.field)
        return status;
    if (!call->server->grammars) {
        error_set(&self->failure, ERROR_ARGUMENT, constraint->source.field,
                  "a constraint needs a tokenizer, and the model has none");
        return STATUS_INVALID;
    }
    self->grammar_note.run = on_grammar;
    self->grammar = (struct grammar_order){.source = constraint->source,
                                           .vocabulary = call->server->vocabulary,
                                           .client = call->turn_owner,
                                           .is_unwanted = &self->is_abandoned,
                                           .on_done = post_grammar,
                                           .context = self};
    if (grammars_order(call->server->grammars, &self->grammar))
        take_grammar(self);
    else
        self->untokenized++;
    return self->failure.which ? STATUS_INVALID : STATUS_OK;
}

static void on_encoded(void *context, enum error_case failure, struct token_buffer *ids, struct ask_ends *ends) {
    struct answer_encoding encoding = *(struct answer_encoding *)context;
    struct call_loop *self = encoding.owner;
    struct call_asked *asked = &self->shared->asked;
    free(context);
    self->untokenized--;
    self->call->request.prompts[encoding.prompt].ids = *ids;
    if (ends) {
        ask_ends_close(&asked->ends);
        asked->ends = *ends;
    }
    if (failure)
        fail_status(self, failure, self->call->is_chat ? "messages" : "prompt");
    else if (self->call->is_chat && !self->call->only_counts && !self->is_abandoned)
        order_grammar(self, &self->call->request.prompts[encoding.prompt]);
    continue_submission(self);
}

/* For messages, the rendered text is checked after rendering. */
static int check_bytes(struct call_loop *self, const struct call_prompt *prompt) {
    int status = prompt_check_bytes(&self->call->server->model.room, prompt->length + prompt->chat_bytes);
    if (status)
        fail_status(self, ERROR_CONTEXT_LENGTH, self->call->is_chat ? "messages" : "prompt");
    return status;
}

static int start_encoding(struct call_loop *self, int64_t p, bool is_short) {
    struct call *call = self->call;
    struct call_prompt *prompt = &call->request.prompts[p];
    struct answer_encoding *encoding = malloc(sizeof *encoding);
    TRY(status_allocated(encoding));
    *encoding = (struct answer_encoding){self, p};
    const struct text_job job = {.server = call->server,
                                 .owner = call->turn_owner,
                                 .is_short = is_short,
                                 .is_unwanted = &self->is_abandoned,
                                 .flag = ask_special_flag(&call->request.ask, SPECIAL_TOKENS_PARSE),
                                 .on_done = on_encoded,
                                 .context = encoding};
    const struct text_job_chat chat = {
        .template = self->shared->asked.chat_template, .prompt = prompt, .ask = &call->request.ask};
    int status =
        prompt->chat.messages ? text_job_start_chat(&job, &chat) : text_job_start(&job, prompt->text, prompt->length);
    if (status)
        free(encoding);
    else
        self->untokenized++;
    return status;
}

static int start_encodings(struct call_loop *self) {
    struct call *call = self->call;
    int status = STATUS_OK;
    /* Many short texts count as a long one. */
    size_t bytes = 0, most = text_job_short_bytes(call->server);
    for (int64_t p = 0; p < call->request.prompt_count; p++)
        bytes += call->request.prompts[p].length;
    bool is_short = bytes <= most && most;
    for (int64_t p = 0; p < call->request.prompt_count && !status; p++) {
        if (call->request.prompts[p].ids.count)
            continue;
        if (!call->server->model.tokenizer)
            status = status_fail(STATUS_INVALID, "a text needs a tokenizer, and the model has none");
        else if (!(status = check_bytes(self, &call->request.prompts[p])))
            status = start_encoding(self, p, is_short);
        if (status)
            fail_status(self, status == STATUS_MEMORY ? ERROR_OVERLOADED : ERROR_ARGUMENT,
                        call->is_chat ? "messages" : "prompt");
    }
    return status;
}

/* Chooses the first adapter's template, else the tokenizer's, else the option's. */
static int find_template(struct call_loop *self) {
    const struct server *server = self->call->server;
    struct registry_adapter adapter;
    struct chat_template *found = NULL;
    for (int64_t i = 0; i < self->call->request.ask.adapter_count; i++) {
        if (!registry_find(server, self->shared->asked.names[i], &adapter))
            continue; /* the engine will report it */
        self->shared->asked.template_generations[i] = adapter.template_generation;
        if (!found)
            found = adapter.chat_template;
    }
    if (!found)
        found = server->model.chat_template;
    chat_template_keep(found);
    chat_template_close(self->shared->asked.chat_template);
    self->shared->asked.chat_template = found;
    if (found)
        return STATUS_OK;
    error_set(&self->failure, ERROR_ARGUMENT, "messages",
              "messages need a chat template, and neither the adapters nor the tokenizer have one");
    return STATUS_INVALID;
}

static int check_adapters(struct call_loop *self) {
    struct ask *ask = &self->call->request.ask;
    for (int64_t i = 0; i < ask->adapter_count; i++) {
        struct registry_adapter adapter;
        if (!registry_seek(self->call->server, ask->adapters[i], &adapter)) {
            char shown[ADAPTER_NAME_BYTES];
            snprintf(shown, sizeof shown, "%s", ask->adapters[i]);
            error_set(&self->failure, ERROR_ADAPTER_NOT_FOUND, "adapters", "there is no adapter %s", shown);
            return STATUS_INVALID;
        }
        snprintf(self->shared->asked.names[i], sizeof self->shared->asked.names[i], "%s", ask->adapters[i]);
    }
    return STATUS_OK;
}

static int check_room(struct call_loop *self) {
    const struct call *call = self->call;
    const struct server *server = call->server;
    int64_t most = server->options->max_queued_requests, texts = completions_of(call);
    if (server->has_failed || server->is_draining)
        error_set(&self->failure, server->has_failed ? ERROR_ENGINE_FAILED : ERROR_DRAINING, NULL,
                  server->has_failed ? "the engine has failed" : "the server is shutting down");
    else if (texts > most)
        error_set(&self->failure, ERROR_ARGUMENT, "n",
                  "%lld completions are requested: at most %lld are accepted at once", (long long)texts,
                  (long long)most);
    return self->failure.which ? STATUS_INVALID : STATUS_OK;
}

/* Clients do not share pages with each other, and one client's salts do not share either. No client can choose a salt
 * that gives another's number. Without a client and a salt, pages are shared by all such requests. */
static uint64_t salt_of(const struct call *call) {
    unsigned char both[sizeof(uint64_t) + SHA256_DIGEST_LENGTH], digest[SHA256_DIGEST_LENGTH];
    uint64_t salt;
    uint64_t client = call->client.client;
    if (!client && !call->request.cache_salt_length)
        return 0;
    memcpy(both, &client, sizeof client);
    if (!SHA256((const unsigned char *)call->request.cache_salt, call->request.cache_salt_length,
                both + sizeof client) ||
        !SHA256(both, sizeof both, digest))
        return digest_bytes(DIGEST_START, &call, sizeof call) | 1; /* no memory: it shares nothing */
    memcpy(&salt, digest, sizeof salt);
    return salt ? salt : 1;
}

/* A chat's ends come with its ids: its template defines the end of a turn, and runs on the worker. */
static int open_ends(struct call_loop *self) {
    const struct call *call = self->call;
    const struct openai_model *model = &call->server->model;
    if (self->shared->asked.chat_template)
        return STATUS_OK;
    return ask_ends_open(
        &call->request.ask,
        &(struct ask_model){.tokenizer = model->tokenizer, .text = &model->ends, .vocab = model->vocab},
        &self->shared->asked.ends);
}

/* Renders a chat again, because its adapters were replaced after it was rendered and may have other templates. The loop
 * learned of the replacement before this update, so the call comes back once more only after a further one. */
static void submit_again(struct call_loop *self) {
    struct call *call = self->call;
    struct chat_template *before = chat_template_keep(self->shared->asked.chat_template);
    driver_take_back(self->shared->driver, self->shared);
    int status = find_template(self);
    bool is_same = chat_template_is_same(self->shared->asked.chat_template, before);
    chat_template_close(before);
    if (!status && !is_same) {
        for (int64_t p = 0; p < call->request.prompt_count; p++)
            if (call->request.prompts[p].chat.messages)
                token_buffer_free(&call->request.prompts[p].ids);
        status = start_encodings(self);
    }
    if (status)
        fail(self);
    else
        continue_submission(self);
}

static int prepare(struct call_loop *self) {
    struct call *call = self->call;
    const struct openai_model *model = &call->server->model;
    const char *field = NULL;
    int status = check_room(self);
    THEN(status, check_adapters(self));
    THEN(status, call->is_chat ? find_template(self) : STATUS_OK);
    TRY(status);
    status = ask_check(&call->request.ask, model->vocab, &field);
    if (!status && call->request.ask.priority < call->client.least_priority) {
        field = "priority";
        status = status_fail(STATUS_INVALID, "priority: this key may ask for %d at least, not %lld",
                             (int)call->client.least_priority, (long long)call->request.ask.priority);
    }
    if (!status && call->request.ask.stop_count && !model->tokenizer) {
        field = "stop";
        status = status_fail(STATUS_INVALID, "stop strings need a tokenizer, and the model has none");
    }
    THEN(status, ask_draw_seed(&call->request.ask));
    THEN(status, open_ends(self));
    if (status)
        fail_status(self, status == STATUS_INVALID ? ERROR_ARGUMENT : ERROR_INTERNAL, field);
    return status;
}

void call_submit(struct call *call) {
    struct call_loop *self = call->loop;
    double now = clock_seconds(), timeout = call->server->options->request_timeout;
    self->is_linked = true;
    LIST_INSERT_HEAD(&call->server->core->all_calls, self, all);
    self->submitted = now;
    self->shared->asked.salt = salt_of(call);
    if (timeout > 0 && (call->deadline <= 0 || call->deadline > now + timeout))
        call->deadline = now + timeout;
    int status = prepare(self);
    if (!status) {
        take_places(self, completions_of(call), false);
        status = self->failure.which ? STATUS_INVALID : STATUS_OK;
    }
    if (!status) {
        self->has_entered = true;
        call->server->core->calls++;
        status = call_count_begin(self);
        if (status)
            fail_status(self, ERROR_INTERNAL, NULL);
    }
    THEN_IF(status, !call->is_chat, order_grammar(self, &call->request.prompts[0]));
    THEN(status, start_encodings(self));
    if (status)
        fail(self);
    else
        continue_submission(self);
}

void call_pause(struct call *call, bool is_paused) {
    struct call_loop *self = call->loop;
    if (self->is_paused == is_paused)
        return;
    self->is_paused = is_paused;
    if (self->is_submitted)
        tell(self, is_paused ? CALL_PAUSE : CALL_RESUME);
}

/* ---- all calls ---- */

void call_stop_all(struct server *server) {
    for (struct call_loop *self = LIST_FIRST(&server->core->all_calls); self; self = LIST_NEXT(self, all)) {
        self->must_stop = true;
        if (self->is_submitted)
            tell(self, CALL_STOP);
    }
}

void call_fail_all(struct server *server, const struct error *error) {
    for (struct call_loop *self = LIST_FIRST(&server->core->all_calls), *next; self; self = next) {
        struct call_update update = {.is_done = true, .error = *error};
        next = LIST_NEXT(self, all);
        if (self->is_failed || self->is_abandoned || !self->has_entered || self->has_left)
            continue;
        leave(self, error);
        self->is_failed = true;
        self->is_submitted = true; /* keeps memory that the engine may still read */
        self->call->on_update(self->call, &update);
    }
}
