/* Calls of gRPC over an exchange whose answer is kept, to a server whose calls' updates a test makes up. A test program
 * has it once. */
#pragma once

#include "serve/fake_exchange.h"
#include "serve/fake_server.h"

#include "serve/grpc_frames.h"
#include "serve/route.h"

#include "cambium.pb-c.h"

static struct server server;
static struct fake fake;

static int start(void **state) {
    (void)state;
    server = fake_server();
    server.base = event_base_new();
    return server.base ? 0 : -1;
}
static int stop(void **state) {
    (void)state;
    event_base_free(server.base);
    return 0;
}

/* ---- asking ---- */

static inline void ask_open(enum listener_kind listener, const char *path, const char *timeout) {
    fake_freed = 0;
    fake_open(&fake, &server, listener, "POST", path);
    /* Recorded bytes take no memory while allocations fail. */
    test_ok(strbuf_reserve(&fake.head, 4096) | strbuf_reserve(&fake.body, 4096) | strbuf_reserve(&fake.trailers, 4096));
    fake.exchange.head.is_http2 = true;
    fake_field(&fake, "content-type", "application/grpc");
    if (timeout)
        fake_field(&fake, "grpc-timeout", timeout);
}

static inline void ask_send(const ProtobufCMessage *message) {
    unsigned char frame[1024];
    size_t length = protobuf_c_message_get_packed_size(message);
    assert_true(length + GRPC_PREFIX_BYTES <= sizeof frame);
    grpc_prefix_write(frame, (uint32_t)length);
    protobuf_c_message_pack(message, frame + GRPC_PREFIX_BYTES);
    grpc_begin(&fake.exchange);
    if (!fake.exchange.handler)
        return;
    fake.exchange.handler->on_body(&fake.exchange, frame, GRPC_PREFIX_BYTES + length);
    fake.exchange.handler->on_end(&fake.exchange);
}

/* Requests `n` texts after three ids; the test makes the call's updates. */
static inline void ask_generate(const char *path, uint32_t n, bool wants_prompt, const char *timeout) {
    Cambium__V1__GenerateRequest asked = CAMBIUM__V1__GENERATE_REQUEST__INIT;
    Cambium__V1__Tokens tokens = CAMBIUM__V1__TOKENS__INIT;
    asked.input_case = CAMBIUM__V1__GENERATE_REQUEST__INPUT_TOKENS;
    asked.tokens = &tokens;
    tokens.n_ids = 3;
    tokens.ids = (uint32_t[]){1, 2, 3};
    asked.n = n;
    asked._logprobs_case = CAMBIUM__V1__GENERATE_REQUEST___LOGPROBS_LOGPROBS;
    asked.logprobs = 1;
    if (wants_prompt)
        asked._prompt_logprobs_case = CAMBIUM__V1__GENERATE_REQUEST___PROMPT_LOGPROBS_PROMPT_LOGPROBS;
    ask_open(LISTENER_DATA, path, timeout);
    ask_send(&asked.base);
}

static inline bool has_ended(int status) {
    char wanted[32];
    snprintf(wanted, sizeof wanted, "grpc-status: %d\n", status);
    return fake.ended && strstr(strbuf_text(fake.length == 0 ? &fake.head : &fake.trailers), wanted);
}

/* ---- updates ---- */

enum { UPDATE_ROOM = 8 };
static struct call_update update;
static struct call_piece pieces[UPDATE_ROOM];
static struct call_token tokens[UPDATE_ROOM];
static struct call_top tops[UPDATE_ROOM];
static struct call_end ends[UPDATE_ROOM];
static struct call_start starts[UPDATE_ROOM];

static inline void begin_update(void) {
    strbuf_clear(&update.text);
    update = (struct call_update){
        .text = update.text, .pieces = pieces, .tokens = tokens, .tops = tops, .ends = ends, .starts = starts};
}

/* A piece with one token and the likeliest beside it. */
static inline void add_piece(int64_t choice, const char *text, size_t length, int32_t id) {
    int64_t n = update.token_count++;
    pieces[update.piece_count++] = (struct call_piece){
        .choice = choice, .begin = update.text.length, .length = length, .first_token = n, .token_count = 1};
    strbuf_add(&update.text, text, length);
    tokens[n] = (struct call_token){
        .id = id, .has_logprob = id != 1, .logprob = -0.5f, .first_top = update.top_count, .top_count = 1};
    tops[update.top_count++] = (struct call_top){9, -0.25f};
}

static inline void add_end(int64_t choice) {
    ends[update.end_count++] = (struct call_end){.choice = choice, .is_stop = true, .completion_tokens = 2};
}

static inline void tell(void) {
    if (fake_call)
        fake_call->on_update(fake_call, &update);
    begin_update();
}

static inline void tell_done(enum error_case which) {
    update.is_done = true;
    if (which)
        error_set(&update.error, which, "prompt", "it went wrong");
    tell();
}
