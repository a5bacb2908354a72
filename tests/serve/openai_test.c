/* The OpenAI API over calls whose updates this test makes up: every byte of a stream, and what requests ask for. */
#include "serve/fake_exchange.h"
#include "serve/fake_server.h"

#include "serve/route.h"

#include "base/base.h"

static struct server server;

static int start(void **state) {
    (void)state;
    server = fake_server();
    server.base = event_base_new();
    fake_freed = fake_paused = 0;
    return 0;
}

static int stop(void **state) {
    (void)state;
    event_base_free(server.base);
    return 0;
}

/* ---- asking ---- */

static void ask(struct fake *fake, const char *path, const char *body) {
    fake_open(fake, &server, LISTENER_DATA, "POST", path);
    fake_field(fake, "x-request-id", "r1");
    route_exchange(&server, &fake->exchange);
    fake_send(fake, body, 7);
}

static void asks(struct fake *fake, const char *path, const char *body) {
    ask(fake, path, body);
    if (fake->begun)
        fail_msg("%s: %d %s", body, fake->status, strbuf_text(&fake->body));
    assert_non_null(fake_call);
    fake_call->request.ask.sampling.seed = 5;
}

static void refused(const char *path, const char *body, int status, const char *param) {
    struct fake fake;
    char expected[100];
    snprintf(expected, sizeof expected, param ? "\"param\":\"%s\"" : "\"param\":null", param);
    ask(&fake, path, body);
    if (fake.status != status || !strstr(strbuf_text(&fake.body), expected))
        fail_msg("%s: %d %s, not %d %s", body, fake.status, strbuf_text(&fake.body), status, expected);
    fake_close(&fake);
}

static const char completions[] = "/v1/completions", chats[] = "/v1/chat/completions";

/* ---- updates ---- */

static struct call_update update;
static struct call_piece pieces[8];
static struct call_token tokens[8];
static struct call_top tops[8];
static struct call_end ends[8];

static void begin_update(void) {
    strbuf_free(&update.text);
    update = (struct call_update){.pieces = pieces, .tokens = tokens, .tops = tops, .ends = ends};
}

static void add_text(int64_t choice, const char *text) {
    pieces[update.piece_count++] = (struct call_piece){.choice = choice,
                                                       .begin = update.text.length,
                                                       .length = strlen(text),
                                                       .first_token = update.token_count,
                                                       .token_count = 1};
    strbuf_add_text(&update.text, text);
    tokens[update.token_count] = (struct call_token){
        .id = 40 + (int32_t)update.token_count, .has_logprob = true, .logprob = -0.1f, .first_top = update.top_count};
    update.token_count++;
}

static void add_top(int32_t id, float logprob) {
    tops[update.top_count++] = (struct call_top){id, logprob};
    tokens[update.token_count - 1].top_count++;
}

static void add_end(int64_t choice, bool is_stop, int64_t count) {
    ends[update.end_count++] = (struct call_end){
        .prompt = choice / 1000, .choice = choice % 1000, .is_stop = is_stop, .completion_tokens = count};
}

static void tell(void) {
    fake_call->on_update(fake_call, &update);
    begin_update();
}

static void tell_accepted(void) {
    begin_update();
    update.is_accepted = true;
    tell();
}

static void done(void) {
    update.is_done = true;
    tell();
}

static void stream_has(const struct fake *fake, const char *expected) {
    char text[4096];
    const char *created = strstr(strbuf_text(&fake->body), "\"created\":");
    size_t length = 0;
    /* The time is the one thing that is not known. */
    for (const char *at = strbuf_text(&fake->body); *at && length < sizeof text - 1;) {
        if (created && !strncmp(at, "\"created\":", 10)) {
            at += 10 + strspn(at + 10, "0123456789");
            length += (size_t)snprintf(text + length, 16, "\"created\":T");
        } else
            text[length++] = *at++;
    }
    text[length] = 0;
    assert_string_equal(text, expected);
}

#define HEAD                                                                                                           \
    "data: "                                                                                                           \
    "{\"id\":\"cmpl-r1\",\"object\":\"text_completion\",\"created\":T,\"model\":\"tiny\",\"system_fingerprint\":"      \
    "\"b0123456789ab\","
#define CHAT_HEAD                                                                                                      \
    "data: {\"id\":\"chatcmpl-r1\",\"object\":\"chat.completion.chunk\",\"created\":T,\"model\":\"tiny\","             \
    "\"system_fingerprint\":\"b0123456789ab\","
#define FACTS "\"adapters\":[],\"seed\":5,"

static void a_completion_streams_byte_by_byte(void **state) {
    struct fake fake;
    (void)state;
    asks(&fake, completions, "{\"prompt\":[1,2],\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
    tell_accepted();
    assert_int_equal(fake.begun, 0); /* a failure still has a status */
    add_text(0, "a\"\n");
    tell();
    assert_int_equal(fake.begun, 1);
    assert_int_equal(fake.length, -1);
    static const char head[] = "content-type: text/event-stream; charset=utf-8\n"
                               "cache-control: no-cache\nx-request-id: r1\ntraceparent: 00-";
    assert_memory_equal(strbuf_text(&fake.head), head, sizeof head - 1);
    add_text(0, "b");
    add_end(0, false, 2);
    tell();
    int writes = fake.writes;
    done();
    assert_int_equal(fake.writes, writes + 1); /* usage, [DONE] and the end in one */
    assert_int_equal(fake.ended, 1);
    stream_has(&fake,
               HEAD FACTS "\"choices\":[{\"index\":0,\"text\":\"a\\\"\\n\",\"logprobs\":null,\"finish_reason\":null}],"
                          "\"usage\":null}\n\n" HEAD "\"choices\":[{\"index\":0,\"text\":\"b\",\"logprobs\":null,"
                          "\"finish_reason\":\"length\"}],\"usage\":null}\n\n" HEAD
                          "\"choices\":[],\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":2,\"total_tokens\":4,"
                          "\"prompt_tokens_details\":{\"cached_tokens\":0}}}\n\ndata: [DONE]\n\n");
    fake_close(&fake);
    assert_int_equal(fake_freed, 1);
}

static void a_chat_streams_byte_by_byte(void **state) {
    struct fake fake;
    (void)state;
    asks(&fake, chats, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true,\"n\":2}");
    tell_accepted();
    add_text(1, "a");
    tell();
    assert_int_equal(fake.writes, 1); /* roles and the first token in one */
    add_text(0, "b");
    add_end(0, true, 2);
    add_end(1, false, 1);
    update.is_done = true;
    tell();
    stream_has(
        &fake, CHAT_HEAD FACTS
        "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
        "\"logprobs\":null,\"finish_reason\":null}]}\n\n" CHAT_HEAD
        "\"choices\":[{\"index\":1,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
        "\"logprobs\":null,\"finish_reason\":null}]}\n\n" CHAT_HEAD
        "\"choices\":[{\"index\":1,\"delta\":{\"content\":\"a\"},\"logprobs\":null,\"finish_reason\":null}]}"
        "\n\n" CHAT_HEAD "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"b\"},\"logprobs\":null,\"finish_reason\":"
        "null}]}\n\n" CHAT_HEAD
        "\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"}]}\n\n" CHAT_HEAD
        "\"choices\":[{\"index\":1,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n");
    fake_close(&fake);
}

static void an_end_without_a_text_has_a_chunk_of_its_own(void **state) {
    struct fake fake;
    (void)state;
    asks(&fake, completions, "{\"prompt\":[1],\"stream\":true,\"logprobs\":1}");
    tell_accepted();
    add_end(0, true, 1);
    ends[0].has_token = true;
    ends[0].token = (struct call_token){.id = 9, .has_logprob = true, .logprob = -0.5f, .top_count = 1};
    tops[0] = (struct call_top){8, -0.25f};
    done();
    stream_has(&fake,
               HEAD FACTS "\"choices\":[{\"index\":0,\"text\":\"\",\"logprobs\":{\"tokens\":[\"token_id:9\"],"
                          "\"token_logprobs\":[-0.5],\"top_logprobs\":[{\"token_id:8\":-0.25,\"token_id:9\":-0.5}],"
                          "\"text_offset\":[0]},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n");
    fake_close(&fake);
}

static void an_error_before_the_head_has_a_status(void **state) {
    struct fake fake;
    (void)state;
    asks(&fake, completions, "{\"prompt\":[1],\"stream\":true}");
    begin_update();
    error_set(&update.error, ERROR_CONTEXT_LENGTH, "prompt", "too long");
    done();
    assert_int_equal(fake.status, 400);
    assert_non_null(strstr(strbuf_text(&fake.body), "context_length_exceeded"));
    assert_int_equal(fake.ended, 1);
    fake_close(&fake);
}

static void fail_within(bool is_http2) {
    struct fake fake;
    asks(&fake, completions, "{\"prompt\":[1],\"stream\":true}");
    fake.exchange.head.is_http2 = is_http2;
    tell_accepted();
    add_text(0, "a");
    tell();
    error_set(&update.error, ERROR_DEADLINE, NULL, "late");
    done();
    stream_has(
        &fake, HEAD FACTS
        "\"choices\":[{\"index\":0,\"text\":\"a\",\"logprobs\":null,\"finish_reason\":null}]}\n\n"
        "data: {\"error\":{\"message\":\"late\",\"type\":\"timeout_error\",\"param\":null,\"code\":\"deadline\"}}\n\n");
    assert_int_equal(fake.ended, is_http2);
    assert_int_equal(fake.aborted, !is_http2);
    fake_close(&fake);
}

/* Over HTTP/1.1 the final chunk is missing. Over HTTP/2 readers would lose the event with the stream. */
static void an_error_within_a_stream_is_an_event_and_no_end(void **state) {
    (void)state;
    fail_within(false);
    fail_within(true);
}

static void a_slow_reader_is_waited_for(void **state) {
    struct fake fake;
    (void)state;
    asks(&fake, completions, "{\"prompt\":[1],\"stream\":true}");
    tell_accepted();
    fake.pending = 1000;
    add_text(0, "a");
    tell();
    assert_int_equal(fake_paused, 0);
    fake.pending = 1001;
    add_text(0, "a");
    tell();
    assert_int_equal(fake_paused, 1);
    fake.exchange.handler->on_room(&fake.exchange);
    assert_int_equal(fake_paused, 0);
    fake_close(&fake); /* the client leaves */
    assert_int_equal(fake_freed, 1);
}

/* The loop's timers, as if their time had come. */
static int fire(const struct event_base *base, const struct event *event, void *ignored) {
    (void)base;
    (void)ignored;
    event_active((struct event *)event, EV_TIMEOUT, 1);
    return 0;
}

static void let_time_pass(void) {
    event_base_foreach_event(server.base, fire, NULL);
    event_base_loop(server.base, EVLOOP_NONBLOCK);
}

static void a_stream_that_is_silent_for_long_has_comments(void **state) {
    static const char comment[] = ": waiting\n\n";
    struct fake fake;
    (void)state;
    asks(&fake, completions, "{\"prompt\":[1],\"stream\":true}");
    let_time_pass(); /* nothing is accepted yet: it may fail with a status */
    assert_int_equal(fake.begun, 0);
    tell_accepted();
    let_time_pass();
    assert_int_equal(fake.begun, 1);
    assert_string_equal(strbuf_text(&fake.body), comment);
    let_time_pass();
    assert_int_equal(fake.body.length, 2 * strlen(comment));
    add_text(0, "a");
    tell();
    size_t length = fake.body.length;
    let_time_pass(); /* there was a token since the last time */
    assert_int_equal(fake.body.length, length);
    let_time_pass();
    assert_int_equal(fake.body.length, length + strlen(comment));
    add_end(0, true, 1);
    done();
    length = fake.body.length;
    let_time_pass();
    let_time_pass();
    assert_int_equal(fake.body.length, length);
    fake_close(&fake);
}

static void an_echo_comes_first_in_every_choice(void **state) {
    struct fake fake;
    (void)state;
    asks(&fake, completions, "{\"prompt\":\"h\\u00e9\",\"echo\":true,\"n\":2,\"logprobs\":0}");
    assert_int_equal(fake_call->request.ask.prompt_logprobs, 0);
    tell_accepted();
    add_text(-1, "");
    tokens[0].has_logprob = false;
    tokens[0].id = 1;
    add_text(-1, "");
    pieces[0].length = pieces[1].length = 0;
    add_text(0, "x");
    add_text(1, "y");
    add_end(0, false, 1);
    add_end(1, true, 1);
    done();
    assert_int_equal(fake.status, 200);
    const char *body = strbuf_text(&fake.body);
    assert_non_null(
        strstr(body, "{\"index\":0,\"text\":\"h\xc3\xa9x\",\"logprobs\":{\"tokens\":[\"token_id:1\",\"token_id:41\","
                     "\"token_id:42\"],\"token_logprobs\":[null,-0.100000001,-0.100000001],\"top_logprobs\":[null,"
                     "{\"token_id:41\":-0.100000001},{\"token_id:42\":-0.100000001}],\"text_offset\":[0,0,0]},"
                     "\"finish_reason\":\"length\"}"));
    assert_non_null(
        strstr(body, "{\"index\":1,\"text\":\"h\xc3\xa9y\",\"logprobs\":{\"tokens\":[\"token_id:1\",\"token_id:41\","
                     "\"token_id:43\"]"));
    fake_close(&fake);
}

static void a_chats_log_probabilities_have_its_tops_alone(void **state) {
    struct fake fake;
    (void)state;
    asks(&fake, chats,
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"logprobs\":true,\"top_logprobs\":1,"
         "\"prompt_logprobs\":0,\"return_token_ids\":true}");
    assert_int_equal(fake_call->request.ask.logprobs, 1);
    tell_accepted();
    add_text(0, "x");
    add_top(7, -0.05f);
    add_top(6, -0.06f);
    add_end(0, true, 2);
    ends[0].has_token = true;
    ends[0].token = tokens[0];
    done();
    const char *body = strbuf_text(&fake.body);
    assert_non_null(strstr(body, "\"prompt_token_ids\":[],\"prompt_logprobs\":[]"));
    assert_non_null(strstr(
        body, "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"x\",\"refusal\":null},"
              "\"logprobs\":{\"content\":[{\"token\":\"token_id:40\",\"logprob\":-0.100000001,\"bytes\":null,"
              "\"top_logprobs\":[{\"token\":\"token_id:7\",\"logprob\":-0.0500000007,\"bytes\":null}]}],"
              "\"refusal\":null},\"finish_reason\":\"stop\",\"token_ids\":[40]}]"));
    fake_close(&fake);
}

/* ---- what is asked ---- */

static void bad_requests_name_their_field(void **state) {
    static const struct {
        const char *body, *param;
    } rows[] = {
        {"", NULL},
        {"[]", NULL},
        {"{\"prompt\":\"a\",\"prompt\":\"b\"}", NULL},
        {"{}", "prompt"},
        {"{\"prompt\":null}", "prompt"},
        {"{\"prompt\":1}", "prompt"},
        {"{\"prompt\":[]}", "prompt"},
        {"{\"prompt\":[[]]}", "prompt"},
        {"{\"prompt\":[1,\"a\"]}", "prompt"},
        {"{\"prompt\":[\"a\",1]}", "prompt"},
        {"{\"prompt\":[[1],[true]]}", "prompt"},
        {"{\"prompt\":[100]}", "prompt"},
        {"{\"prompt\":[-1]}", "prompt"},
        {"{\"prompt\":[1.0]}", "prompt"},
        {"{\"prompt\":[{}]}", "prompt"},
        {"{\"prompt\":[1],\"max_tokens\":-1}", "max_tokens"},
        {"{\"prompt\":[1],\"max_tokens\":1.5}", "max_tokens"},
        {"{\"prompt\":[1],\"max_tokens\":\"1\"}", "max_tokens"},
        {"{\"prompt\":[1],\"temperature\":-0.1}", "temperature"},
        {"{\"prompt\":[1],\"temperature\":true}", "temperature"},
        {"{\"prompt\":[1],\"top_p\":2}", "top_p"},
        {"{\"prompt\":[1],\"n\":0}", "n"},
        {"{\"prompt\":[1],\"n\":129}", "n"},
        {"{\"prompt\":[1],\"n\":17}", "n"},
        {"{\"prompt\":[[1],[1],[1],[1],[1],[1],[1],[1],[1]],\"n\":2}", "n"},
        {"{\"prompt\":[1],\"logprobs\":21}", "logprobs"},
        {"{\"prompt\":[1],\"logprobs\":true}", "logprobs"},
        {"{\"prompt\":[1],\"echo\":1}", "echo"},
        {"{\"prompt\":[1],\"stream\":\"yes\"}", "stream"},
        {"{\"prompt\":[1],\"stream_options\":{}}", "stream_options"},
        {"{\"prompt\":[1],\"stream\":true,\"stream_options\":1}", "stream_options"},
        {"{\"prompt\":[1],\"stop\":[\"\"]}", "stop"},
        {"{\"prompt\":[1],\"stop\":[1]}", "stop"},
        {"{\"prompt\":[1],\"seed\":-1.5}", "seed"},
        {"{\"prompt\":[1],\"logit_bias\":{\"100\":1}}", "logit_bias"},
        {"{\"prompt\":[1],\"logit_bias\":{\"1\":\"a\"}}", "logit_bias"},
        {"{\"prompt\":[1],\"logit_bias\":[]}", "logit_bias"},
        {"{\"prompt\":[1],\"suffix\":\"a\"}", "suffix"},
        {"{\"prompt\":[1],\"tools\":[]}", "tools"},
        {"{\"prompt\":[1],\"functions\":[]}", "functions"},
        {"{\"prompt\":[1],\"response_format\":{\"type\":\"xml\"}}", "response_format"},
        {"{\"prompt\":[1],\"response_format\":\"text\"}", "response_format"},
        {"{\"prompt\":[1],\"best_of\":2}", "best_of"},
        {"{\"prompt\":[1],\"min_tokens\":5,\"max_tokens\":4}", "min_tokens"},
        {"{\"prompt\":[1],\"model\":1}", "model"},
        {"{\"prompt\":[1],\"model\":\"../x\"}", "model"},
        {"{\"prompt\":[1],\"model\":\"lora\",\"adapters\":[\"ia3\"]}", "adapters"},
        {"{\"prompt\":[1],\"adapters\":\"ia3\"}", "adapters"},
        {"{\"prompt\":[1],\"adapters\":[\"a\",\"b\",\"c\",\"d\",\"e\"]}", "adapters"},
        {"{\"prompt\":[1],\"return_token_ids\":1}", "return_token_ids"},
        {"{\"prompt\":[1],\"cache_salt\":1}", "cache_salt"},
        {"{\"prompt\":\"a\\u0000b\"}", "prompt"},
        {"{\"prompt\":[\"a\",\"\\u0000\"]}", "prompt"},
        {"{\"prompt\":[1],\"cache_salt\":\"a\\u0000\"}", "cache_salt"},
        {"{\"prompt\":[1],\"model\":\"lora\\u0000\"}", "model"},
        {"{\"prompt\":[1],\"adapters\":[\"lora\\u0000\"]}", "adapters"},
        {"{\"prompt\":[1],\"response_format\":{\"type\":\"text\\u0000\"}}", "response_format"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        refused(completions, rows[i].body, 400, rows[i].param);
    refused(completions, "{\"prompt\":[1],\"model\":\"none\"}", 404, "model");
}

#define ONE  "{\"role\":\"user\",\"content\":\"x\"}"
#define MINE "{\"role\":\"assistant\",\"content\":\"y\"}"

static void bad_chats_name_their_field(void **state) {
    static const struct {
        const char *body, *param;
    } rows[] = {
        {"{}", "messages"},
        {"{\"messages\":[]}", "messages"},
        {"{\"messages\":\"x\"}", "messages"},
        {"{\"messages\":[1]}", "messages"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":1}]}", "messages"},
        {"{\"messages\":[{\"role\":\"function\",\"content\":\"x\"}]}", "messages"},
        {"{\"messages\":[{\"role\":\"user\\u0000\",\"content\":\"x\"}]}", "messages"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\\u0000\"}]}", "messages"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"\\u0000x\"}]}]}", "messages"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":{}}]}", "messages"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\\u0000\",\"text\":\"x\"}]}]}", "messages"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[]}]}", "messages"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"text\":\"\"}]}]}", "messages"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}", "messages"},
        {"{\"messages\":[" ONE "," MINE "]}", "messages"},
        {"{\"messages\":[" ONE ",{\"role\":\"user\",\"content\":\"x\",\"audio\":{}}]}", "messages"},
        {"{\"messages\":[" ONE ",{\"role\":\"assistant\",\"content\":\"x\",\"tool_calls\":[{}]}," ONE "]}", "messages"},
        {"{\"messages\":[" ONE "],\"top_logprobs\":1}", "top_logprobs"},
        {"{\"messages\":[" ONE "],\"logprobs\":1}", "logprobs"},
        {"{\"messages\":[" ONE "],\"logprobs\":true,\"top_logprobs\":21}", "top_logprobs"},
        {"{\"messages\":[" ONE "],\"max_completion_tokens\":-1}", "max_completion_tokens"},
        {"{\"messages\":[" ONE "],\"continue_final_message\":true}", "continue_final_message"},
        {"{\"messages\":[" ONE "," MINE "],\"continue_final_message\":true,\"add_generation_prompt\":true}",
         "continue_final_message"},
        {"{\"messages\":[" ONE "],\"tools\":[{}]}", "tools"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        refused(chats, rows[i].body, 400, rows[i].param);
}

static void nulls_are_absent_and_unknown_fields_ignored(void **state) {
    struct fake fake;
    (void)state;
    asks(&fake, completions,
         "{\"prompt\":[1],\"max_tokens\":null,\"n\":null,\"stream\":null,\"stream_options\":null,\"suffix\":null,"
         "\"tools\":null,\"best_of\":null,\"logprobs\":null,\"echo\":null,\"model\":null,\"user\":null,\"stop\":null,"
         "\"seed\":null,\"response_format\":null,\"min_tokens\":null,\"no\\nsuch\":1}");
    assert_int_equal(fake_call->request.ask.max_tokens, 16);
    assert_int_equal(fake_call->request.ask.choices, 1);
    assert_int_equal(fake_call->request.ask.logprobs, -1);
    fake_close(&fake);
    asks(&fake, chats, "{\"messages\":[" ONE "],\"max_tokens\":4,\"max_completion_tokens\":5,\"user\":\"u\"}");
    assert_int_equal(fake_call->request.ask.max_tokens, 5);
    fake_close(&fake);
    asks(&fake, chats, "{\"messages\":[" ONE "]}");
    assert_int_equal(fake_call->request.ask.max_tokens, -1);
    fake_close(&fake);
}

static void prompts_come_in_four_forms(void **state) {
    struct fake fake;
    (void)state;
    asks(&fake, completions, "{\"prompt\":\"a\"}");
    assert_int_equal(fake_call->request.prompt_count, 1);
    assert_string_equal(fake_call->request.prompts[0].text, "a");
    fake_close(&fake);
    asks(&fake, completions, "{\"prompt\":[\"a\",\"\"]}");
    assert_int_equal(fake_call->request.prompt_count, 2);
    assert_int_equal(fake_call->request.prompts[1].length, 0);
    fake_close(&fake);
    asks(&fake, completions, "{\"prompt\":[3,4]}");
    assert_int_equal(fake_call->request.prompt_count, 1);
    assert_int_equal(fake_call->request.prompts[0].ids.count, 2);
    fake_close(&fake);
    asks(&fake, completions, "{\"prompt\":[[3,4],[5]]}");
    assert_int_equal(fake_call->request.prompt_count, 2);
    assert_int_equal(fake_call->request.prompts[1].ids.ids[0], 5);
    fake_close(&fake);
}

static void messages_have_parts_and_roles(void **state) {
    struct fake fake;
    (void)state;
    asks(&fake, chats,
         "{\"messages\":[{\"role\":\"developer\",\"content\":\"s\",\"name\":\"n\"},{\"role\":\"user\",\"content\":[{"
         "\"type\":"
         "\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]},{\"role\":\"assistant\",\"content\":\"c\","
         "\"tool_calls\":"
         "null,\"refusal\":null}],\"continue_final_message\":true}");
    const struct call_prompt *prompt = &fake_call->request.prompts[0];
    const json_t *messages = prompt->chat.messages;
    assert_int_equal(json_array_size(messages), 3);
    assert_string_equal(json_string_value(json_object_get(json_array_get(messages, 0), "role")), "system");
    assert_string_equal(json_string_value(json_object_get(json_array_get(messages, 0), "name")), "n");
    assert_string_equal(json_string_value(json_object_get(json_array_get(messages, 1), "content")), "a\nb");
    assert_int_equal(prompt->chat_bytes, 5);
    assert_true(prompt->continues && prompt->has_no_head && fake_call->is_chat);
    fake_close(&fake);
    asks(&fake, chats, "{\"messages\":[" ONE "," MINE "],\"add_generation_prompt\":false}");
    assert_true(fake_call->request.prompts[0].has_no_head && !fake_call->request.prompts[0].continues);
    fake_close(&fake);
}

static void a_model_that_is_an_adapter_stands_for_it(void **state) {
    struct fake fake;
    (void)state;
    asks(&fake, completions, "{\"prompt\":[1],\"model\":\"lora\",\"stream\":false}");
    assert_int_equal(fake_call->request.ask.adapter_count, 1);
    assert_string_equal(fake_call->request.ask.adapters[0], "lora");
    fake_call->generations[0] = 4;
    tell_accepted();
    add_text(0, "x");
    add_end(0, true, 1);
    done();
    assert_non_null(strstr(strbuf_text(&fake.body), "\"model\":\"lora\""));
    assert_non_null(strstr(strbuf_text(&fake.body), "\"adapters\":[{\"name\":\"lora\",\"generation\":4}],\"seed\":5,"));
    fake_close(&fake);
    asks(&fake, completions, "{\"prompt\":[1],\"model\":\"org/tiny\",\"adapters\":[\"a\",\"b\"]}");
    assert_int_equal(fake_call->request.ask.adapter_count, 2);
    fake_close(&fake);
}

static void a_request_has_its_own_time(void **state) {
    struct fake fake;
    (void)state;
    for (int i = 0; i < 6; i++) {
        static const char *const given[] = {"1.5", "0", "-1", "nan", "1x", ""};
        fake_open(&fake, &server, LISTENER_DATA, "POST", completions);
        fake.exchange.start = 100;
        fake_field(&fake, "x-request-timeout", given[i]);
        route_exchange(&server, &fake.exchange);
        fake_send(&fake, "{\"prompt\":[1]}", 100);
        if (i)
            assert_int_equal(fake.status, 400);
        else
            assert_true(fake_call->deadline == 101.5);
        fake_close(&fake);
    }
}

/* ---- control ---- */

static void changes_of_adapters_go_to_the_registry(void **state) {
    static const struct {
        const char *method, *path, *body, *change;
        enum registry_change_kind kind;
    } rows[] = {
        {"POST", "/v1/adapters", "{\"name\":\"a\",\"path\":\"b\",\"pinned\":true}", "a b", REGISTRY_LOAD},
        {"PUT", "/v1/adapters/a", "{\"if_generation\":7}", "a -", REGISTRY_REPLACE},
        {"PUT", "/v1/adapters/a", "", "a -", REGISTRY_REPLACE},
        {"DELETE", "/v1/adapters/a", "", "a -", REGISTRY_UNLOAD},
        {"POST", "/v1/load_lora_adapter", "{\"lora_name\":\"a\",\"lora_path\":\"b\",\"load_inplace\":true}", "a b",
         REGISTRY_LOAD},
        {"POST", "/v1/unload_lora_adapter", "{\"lora_name\":\"a\",\"lora_int_id\":null}", "a -", REGISTRY_UNLOAD},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int leaves = 0; leaves < 2; leaves++) {
            struct registry_adapter adapter = {
                .name = "a", .methods = "lora", .digest = "d", .receipt = "exact", .state = "resident"};
            struct error none = {0};
            struct fake fake;
            fake_open(&fake, &server, LISTENER_CONTROL, rows[i].method, rows[i].path);
            fake_change = (struct registry_change){.name = NULL};
            route_exchange(&server, &fake.exchange);
            fake_send(&fake, rows[i].body, 5);
            assert_string_equal(fake_change_name, rows[i].change);
            assert_int_equal(fake_change.kind, rows[i].kind);
            assert_true(fake_change.is_pinned == (i == 0) && fake_change.in_place == (i == 4));
            assert_true(fake_change.if_generation == (i == 1 ? 7 : 0));
            if (leaves)
                fake_close(&fake);
            fake_change.on_done(fake_change.context, &none, rows[i].kind == REGISTRY_UNLOAD ? NULL : &adapter);
            if (leaves)
                continue;
            assert_int_equal(fake.status, 200);
            if (i == 0)
                assert_string_equal(
                    strbuf_text(&fake.body),
                    "{\"name\":\"a\",\"methods\":[\"lora\"],\"generation\":0,\"digest\":\"d\",\"parameters\":0,"
                    "\"bytes\":0,\"virtual_tokens\":0,\"state\":\"resident\",\"receipt\":\"exact\",\"receipt_gap\":0,"
                    "\"pinned\":false,\"running\":0,"
                    "\"waiting\":0}");
            if (i == 4)
                assert_string_equal(strbuf_text(&fake.body), "Success: LoRA adapter 'a' added successfully.");
            if (i == 5)
                assert_string_equal(strbuf_text(&fake.body), "Success: LoRA adapter 'a' removed successfully.");
            fake_close(&fake);
        }
}

/* A misspelt field would count as absent. */
static void control_refuses_fields_that_it_does_not_have(void **state) {
    static const struct {
        const char *method, *path, *body, *param, *meant;
    } rows[] = {
        {"POST", "/v1/adapters", "{\"name\":\"a\",\"pinnd\":true}", "pinnd", "(did you mean pinned?)"},
        {"POST", "/v1/adapters", "{\"name\":\"a\",\"Path\":\"b\"}", "Path", "(did you mean path?)"},
        {"PUT", "/v1/adapters/a", "{\"if_generatio\":7}", "if_generatio", "(did you mean if_generation?)"},
        {"PUT", "/v1/adapters/a", "{\"pinned\":true}", "pinned", "there is no such field"},
        {"DELETE", "/v1/adapters/a", "{\"if_generation\":7}", "if_generation", "there is no such field"},
        {"POST", "/v1/load_lora_adapter", "{\"lora_name\":\"a\",\"lora_path\":\"b\",\"load_in_place\":true}",
         "load_in_place", "(did you mean load_inplace?)"},
        {"POST", "/v1/unload_lora_adapter", "{\"lora_name\":\"a\",\"lora_int\":3}", "lora_int",
         "(did you mean lora_int_id?)"},
        {"POST", "/v1/drain", "{\"timout_s\":600,\"dealy_s\":60}", "timout_s", "(did you mean timeout_s?)"},
        {"POST", "/v1/drain", "{\"dealy_s\":60}", "dealy_s", "(did you mean delay_s?)"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct fake fake;
        char param[80];
        fake_open(&fake, &server, LISTENER_CONTROL, rows[i].method, rows[i].path);
        fake_change = (struct registry_change){.name = NULL};
        route_exchange(&server, &fake.exchange);
        fake_send(&fake, rows[i].body, 5);
        snprintf(param, sizeof param, "\"param\":\"%s\"", rows[i].param);
        assert_int_equal(fake.status, 400);
        assert_non_null(strstr(strbuf_text(&fake.body), param));
        assert_non_null(strstr(strbuf_text(&fake.body), rows[i].meant));
        assert_null(fake_change.name);
        assert_false(server.is_draining);
        fake_close(&fake);
    }
}

static void a_change_that_fails_says_why(void **state) {
    struct error error;
    struct fake fake;
    (void)state;
    for (int is_vllms = 0; is_vllms < 2; is_vllms++) {
        fake_open(&fake, &server, LISTENER_CONTROL, "POST", is_vllms ? "/v1/load_lora_adapter" : "/v1/adapters");
        route_exchange(&server, &fake.exchange);
        fake_send(&fake, is_vllms ? "{\"lora_name\":\"a\",\"lora_path\":\"b\"}" : "{\"name\":\"a\"}", 100);
        error_set(&error, ERROR_ADAPTER_EXISTS, "name", "there is an a");
        fake_change.on_done(fake_change.context, &error, NULL);
        assert_int_equal(fake.status, is_vllms ? 400 : 409);
        fake_close(&fake);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_completion_streams_byte_by_byte, start, stop),
        cmocka_unit_test_setup_teardown(a_chat_streams_byte_by_byte, start, stop),
        cmocka_unit_test_setup_teardown(an_end_without_a_text_has_a_chunk_of_its_own, start, stop),
        cmocka_unit_test_setup_teardown(an_error_before_the_head_has_a_status, start, stop),
        cmocka_unit_test_setup_teardown(an_error_within_a_stream_is_an_event_and_no_end, start, stop),
        cmocka_unit_test_setup_teardown(a_slow_reader_is_waited_for, start, stop),
        cmocka_unit_test_setup_teardown(a_stream_that_is_silent_for_long_has_comments, start, stop),
        cmocka_unit_test_setup_teardown(an_echo_comes_first_in_every_choice, start, stop),
        cmocka_unit_test_setup_teardown(a_chats_log_probabilities_have_its_tops_alone, start, stop),
        cmocka_unit_test_setup_teardown(bad_requests_name_their_field, start, stop),
        cmocka_unit_test_setup_teardown(bad_chats_name_their_field, start, stop),
        cmocka_unit_test_setup_teardown(nulls_are_absent_and_unknown_fields_ignored, start, stop),
        cmocka_unit_test_setup_teardown(prompts_come_in_four_forms, start, stop),
        cmocka_unit_test_setup_teardown(messages_have_parts_and_roles, start, stop),
        cmocka_unit_test_setup_teardown(a_model_that_is_an_adapter_stands_for_it, start, stop),
        cmocka_unit_test_setup_teardown(a_request_has_its_own_time, start, stop),
        cmocka_unit_test_setup_teardown(changes_of_adapters_go_to_the_registry, start, stop),
        cmocka_unit_test_setup_teardown(control_refuses_fields_that_it_does_not_have, start, stop),
        cmocka_unit_test_setup_teardown(a_change_that_fails_says_why, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
