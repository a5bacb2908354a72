/* Any bytes as the body of a completion and of a chat. It is refused by an error in JSON, or is a request within its
 * ranges, which is answered in JSON, streamed as well. */
#include "serve/fake_exchange.h"
#include "serve/fake_server.h"

#include "serve/route.h"

#include "base/json.h"

#include <fcntl.h>
#include <math.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { VOCAB = 100 }; /* as fake_server has it */

static void check(bool is_right, const char *what) {
    if (is_right)
        return;
    fprintf(stdout, "openai_json_fuzz: %s\n", what);
    abort();
}

static void check_json(const char *text, size_t length, const char *key) {
    json_error_t error;
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    check(root && json_object_get(root, key), "an answer that is not JSON");
    json_decref(root);
}

static void check_ids(const struct ask *ask, const struct call *call) {
    for (int64_t p = 0; p < call->request.prompt_count; p++)
        for (size_t i = 0; i < call->request.prompts[p].ids.count; i++)
            check(call->request.prompts[p].ids.ids[i] >= 0 && call->request.prompts[p].ids.ids[i] < VOCAB,
                  "an id of a prompt");
    for (int64_t i = 0; i < ask->bias_count; i++)
        check(ask->bias[i].id >= 0 && ask->bias[i].id < VOCAB && isfinite(ask->bias[i].bias), "a bias");
    for (int64_t i = 0; i < ask->stop_id_count; i++)
        check(ask->stop_ids[i] >= 0 && ask->stop_ids[i] < VOCAB, "a stop id");
}

static void check_call(const struct call *call) {
    const struct ask *ask = &call->request.ask;
    check(call->request.prompt_count > 0 &&
              call->request.prompt_count * ask->choices <= fake_options.max_queued_requests,
          "texts");
    check(ask->choices >= 1 && ask->max_tokens >= -1 && ask->min_tokens >= 0, "numbers of tokens");
    check(ask->logprobs >= -1 && ask->logprobs <= ASK_MAX_TOP && ask->prompt_logprobs <= ASK_MAX_TOP, "logprobs");
    check(ask->adapter_count >= 0 && ask->adapter_count <= ASK_MAX_ADAPTERS, "adapters");
    check(ask->stop_count <= WRITER_MAX_STOPS && ask->has_seed, "stop strings");
    for (int64_t p = 0; p < call->request.prompt_count; p++) {
        const struct call_prompt *prompt = &call->request.prompts[p];
        check((prompt->text != NULL) + (prompt->ids.count > 0) + (prompt->chat.messages != NULL) == 1,
              "not one prompt");
    }
    check_ids(ask, call);
}

/* Two tokens and an end for every text; bytes that are no UTF-8 among them. */
static void tell(struct call *call, bool fails) {
    static const char text[] = "a\"\xff\xe2\x82";
    struct call_top top = {7, -INFINITY};
    struct call_token token = {.id = 9, .has_logprob = true, .logprob = -1, .top_count = 1};
    struct call_piece piece = {.length = sizeof text - 1, .token_count = 1};
    struct call_end end = {.completion_tokens = 2, .is_stop = true, .has_token = true, .token = token};
    struct call_update update = {.is_accepted = true, .tokens = &token, .token_count = 1, .tops = &top, .top_count = 1};
    strbuf_add(&update.text, text, sizeof text - 1);
    call->on_update(call, &update);
    update.is_accepted = false;
    update.pieces = &piece;
    update.piece_count = 1;
    for (int64_t p = 0; p < call->request.prompt_count; p++)
        for (int64_t c = call->request.ask.prompt_logprobs >= 0 ? -1 : 0; c < call->request.ask.choices; c++) {
            piece.prompt = end.prompt = p;
            piece.choice = end.choice = c;
            update.ends = &end;
            update.end_count = c >= 0;
            call->on_update(call, &update);
        }
    update.piece_count = update.end_count = 0;
    update.is_done = true;
    if (fails)
        error_set(&update.error, ERROR_DEADLINE, NULL, "late");
    call->on_update(call, &update);
    strbuf_free(&update.text);
}

static void check_stream(const struct fake *fake) {
    const char *at = strbuf_text(&fake->body);
    while (*at) {
        const char *end = strstr(at, "\n\n");
        check(end && !strncmp(at, "data: ", 6), "an event");
        if (strncmp(at, "data: [DONE]", 12) != 0)
            check_json(at + 6, (size_t)(end - at) - 6, strstr(at, "\"error\"") == at + 7 ? "error" : "choices");
        at = end + 2;
    }
    check(fake->ended + fake->aborted == 1, "the end of a stream");
}

static void run(struct server *server, const char *path, const uint8_t *data, size_t size, bool fails) {
    struct fake fake;
    fake_open(&fake, server, LISTENER_DATA, "POST", path);
    fake_call = NULL;
    route_exchange(server, &fake.exchange);
    if (fake.exchange.handler->on_body && size)
        fake.exchange.handler->on_body(&fake.exchange, data, size);
    if (fake.exchange.handler->on_end)
        fake.exchange.handler->on_end(&fake.exchange);
    if (!fake.begun) {
        check(fake_call != NULL, "neither an answer nor a call");
        check_call(fake_call);
        tell(fake_call, fails);
    }
    bool is_stream = strstr(strbuf_text(&fake.head), "event-stream") != NULL;
    if (is_stream)
        check_stream(&fake);
    else
        check_json(strbuf_text(&fake.body), fake.body.length, fake.status == 200 ? "choices" : "error");
    check(fake.status == 200 || fake.status == 400 || fake.status == 404 || fake.status == 413 || fake.status == 504,
          "the status");
    fake_close(&fake);
    check(fake_call == NULL, "a call that stays");
}

/* Its log has a line for each request. */
static void silence(void) {
    static bool is_silent;
    int nothing = is_silent ? -1 : open("/dev/null", O_WRONLY);
    if (nothing >= 0) {
        dup2(nothing, STDERR_FILENO);
        close(nothing);
    }
    is_silent = true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct server server = fake_server();
    server.base = event_base_new();
    silence();
    run(&server, "/v1/completions", data, size, size % 2);
    run(&server, "/v1/chat/completions", data, size, size % 2);
    event_base_free(server.base);
    return 0;
}
