/* Whatever allocation of a request fails, the request alone is dropped: it is answered with an error, or broken off,
 * and nothing of it stays. */
#include "support/failing.h"
#define FAKE_OUTSIDE failing_pause
#include "serve/fake_server.h"

#include "serve/route.h"

#include "base/base.h"

static struct server server;

struct posted {
    enum listener_kind listener;
    const char *method, *path, *body;
};

/* Two tokens and an end for each text; the prompts' tokens before. */
static void tell(struct call *call) {
    struct call_top top = {7, -2};
    struct call_token token = {.id = 9, .has_logprob = true, .logprob = -1, .top_count = 1};
    struct call_piece piece = {.length = 2, .token_count = 1};
    struct call_end end = {.completion_tokens = 2, .is_stop = true, .has_token = true, .token = token};
    struct call_update update = {.is_accepted = true,
                                 .tokens = &token,
                                 .token_count = 1,
                                 .tops = &top,
                                 .top_count = 1,
                                 .text = {.data = "a\"", .length = 2}};
    call->on_update(call, &update);
    update.is_accepted = false;
    update.pieces = &piece;
    update.piece_count = 1;
    update.ends = &end;
    for (int64_t p = 0; p < call->request.prompt_count; p++)
        for (int64_t c = call->request.ask.prompt_logprobs >= 0 ? -1 : 0; c < call->request.ask.choices; c++) {
            piece.prompt = end.prompt = p;
            piece.choice = end.choice = c;
            update.end_count = c >= 0;
            call->on_update(call, &update);
        }
    update.piece_count = update.end_count = 0;
    update.is_done = true;
    call->on_update(call, &update);
}

static int ask(void *context) {
    const struct posted *request = context;
    struct fake fake;
    fake_open(&fake, &server, request->listener, request->method, request->path);
    fake_call = NULL;
    fake_freed = 0;
    fake_change = (struct registry_change){.name = NULL};
    route_exchange(&server, &fake.exchange);
    if (!fake.begun)
        fake_send(&fake, request->body, 20);
    bool has_call = fake_call != NULL;
    if (has_call)
        tell(fake_call);
    if (fake_change.name && !fake.begun)
        fake_change.on_done(fake_change.context, &(struct error){0}, NULL);
    assert_int_equal(fake.begun, 1);
    assert_int_equal(fake.ended + fake.aborted, 1);
    bool is_good = fake.status == 200 && !fake.aborted;
    if (!is_good && fake.status != 429 && !fake.aborted)
        fail_msg("%s %s: %d %s", request->path, request->body, fake.status, strbuf_text(&fake.body));
    fake_close(&fake);
    assert_int_equal(fake_call, NULL);
    assert_int_equal(fake_freed >= has_call, 1);
    return is_good ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
}

#define INPUT                                                                                                          \
    "\"instructions\":\"i\",\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"a\"}]},"    \
    "{\"type\":\"reasoning\",\"content\":[{\"text\":\"r\"}]},{\"role\":\"assistant\",\"content\":\"b\"},"              \
    "{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"},"                              \
    "{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":\"o\"}],"                                         \
    "\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{}}],\"reasoning\":{\"effort\":\"low\"},\"tool_"  \
    "choice\":\"none\""
#define BLOCKS                                                                                                         \
    "\"system\":[{\"type\":\"text\",\"text\":\"s\"}],\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"             \
    "{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"t\"},{\"type\":\"text\",\"text\":"     \
    "\"b\"},"                                                                                                          \
    "{\"type\":\"tool_use\",\"id\":\"toolu_1\",\"name\":\"f\",\"input\":{}}]},"                                        \
    "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"toolu_1\",\"content\":\"o\"},"        \
    "{\"type\":\"text\",\"text\":\"c\"}]}],\"tools\":[{\"name\":\"f\",\"input_schema\":{}}],"                          \
    "\"tool_choice\":{\"type\":\"none\",\"disable_parallel_tool_use\":true}"

static void a_request_without_memory_is_dropped(void **state) {
    static const struct posted requests[] = {
        {LISTENER_DATA, "POST", "/v1/completions",
         "{\"prompt\":[\"a\",[1]],\"n\":2,\"echo\":true,\"logprobs\":1,\"prompt_logprobs\":1,\"stop\":[\"x\"],\"logit_"
         "bias\":{\"1\":"
         "2},\"stop_token_ids\":[3],\"return_token_ids\":true,\"unknown\":1}"},
        {LISTENER_DATA, "POST", "/v1/completions",
         "{\"prompt\":[1],\"stream\":true,\"stream_options\":{\"include_usage\":true},\"logprobs\":1,\"return_token_"
         "ids\":true}"},
        {LISTENER_DATA, "POST", "/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\","
         "\"text\":\"b\"}]}],"
         "\"logprobs\":true,\"adapters\":[\"lora\"],\"stream\":true}"},
        {LISTENER_DATA, "POST", "/v1/responses", "{" INPUT ",\"top_logprobs\":1,\"metadata\":{\"a\":\"b\"}}"},
        {LISTENER_DATA, "POST", "/v1/responses", "{" INPUT ",\"stream\":true}"},
        {LISTENER_DATA, "POST", "/v1/messages", "{" BLOCKS ",\"max_tokens\":5,\"stop_sequences\":[\"x\"]}"},
        {LISTENER_DATA, "POST", "/v1/messages", "{" BLOCKS ",\"max_tokens\":5,\"stream\":true}"},
        {LISTENER_DATA, "POST", "/v1/messages/count_tokens", "{" BLOCKS "}"},
        {LISTENER_DATA, "GET", "/v1/models", ""},
        {LISTENER_DATA, "GET", "/v1/models/lora", ""},
        {LISTENER_CONTROL, "GET", "/v1/adapters", ""},
        {LISTENER_CONTROL, "POST", "/v1/adapters", "{\"name\":\"a\"}"},
        {LISTENER_CONTROL, "POST", "/v1/load_lora_adapter", "{\"lora_name\":\"a\",\"lora_path\":\"b\"}"},
    };
    (void)state;
    server = fake_server();
    server.base = event_base_new();
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++)
        failing_try_all(ask, (void *)&requests[i], 300);
    event_base_free(server.base);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_request_without_memory_is_dropped)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
