/* gRPC over an exchange whose transport is here: what a client sends, cut anywhere, and what it is answered. */
#include "serve/fake_exchange.h"

#include "serve/grpc.h"
#include "serve/grpc_frames.h"

#include "base/base.h"

#include "cambium.pb-c.h"

#include <event2/event.h>
#include <zlib.h>

/* ---- a service ---- */

static int closed;

static void on_method_close(struct grpc_call *call) {
    assert_ptr_equal(grpc_context(call), &closed);
    closed++;
}

/* Answers with as many ids as the text has characters. */
static void count(struct grpc_call *call, const ProtobufCMessage *message) {
    Cambium__V1__TokenizeResponse answer = CAMBIUM__V1__TOKENIZE_RESPONSE__INIT;
    answer.n_ids = strlen(((const Cambium__V1__TokenizeRequest *)message)->text);
    answer.ids = calloc(answer.n_ids + 1, sizeof *answer.ids);
    assert_non_null(answer.ids);
    if (call && !grpc_context(call))
        grpc_set_context(call, &closed);
    grpc_send(call, &answer.base);
    free(answer.ids);
}
static void count_once(struct grpc_call *call, const ProtobufCMessage *message) {
    count(call, message);
    grpc_finish(call, NULL);
}
static void never(struct grpc_call *call, const ProtobufCMessage *message) {
    (void)message;
    grpc_set_context(call, &closed);
}
static void refuse(struct grpc_call *call, const ProtobufCMessage *message) {
    struct error error;
    (void)message;
    error_set(&error, ERROR_OVERLOADED, "n", "100%% full\n");
    grpc_finish(call, &error);
    grpc_finish(call, NULL); /* nothing any more */
}
static void finish(struct grpc_call *call) {
    grpc_finish(call, NULL);
}

#define REQUEST &cambium__v1__tokenize_request__descriptor
static const struct grpc_method methods[] = {
    {.name = "Once", .request = REQUEST, .on_message = count_once, .on_close = on_method_close},
    {.name = "Many",
     .request = REQUEST,
     .takes_many = true,
     .gives_many = true,
     .on_message = count,
     .on_end = finish,
     .on_close = on_method_close},
    {.name = "Wait", .request = REQUEST, .on_message = never, .on_close = on_method_close},
    {.name = "Fail", .request = REQUEST, .on_message = refuse},
};
static const struct grpc_service service = {.name = "test.Service", .methods = methods, .method_count = 4},
                                 control = {
                                     .name = "test.Control", .is_control = true, .methods = methods, .method_count = 4};
static const struct grpc_service *const services[] = {&service, &control};

/* ---- a client ---- */

enum { LIMIT = 1000 };
static struct serve_options options = {.limits = {.body_bytes = LIMIT, .stream_output_bytes = 4096}};
static struct server server = {.options = &options};
static struct fake fake;

static void ask_as(const char *method, const char *path, const char *type, enum listener_kind listener) {
    closed = 0;
    fake_open(&fake, &server, listener, method, path);
    fake.exchange.head.is_http2 = true;
    fake_field(&fake, "content-type", type);
}
static void ask_with(const char *path, const char *name, const char *value) {
    ask_as("POST", path, "application/grpc", LISTENER_DATA);
    fake_field(&fake, name, value);
    grpc_start(&fake.exchange, services, 2);
}
static void ask(const char *path) {
    ask_with(path, "te", "trailers");
}
static void send_bytes(const void *bytes, size_t length) {
    if (fake.exchange.handler)
        fake.exchange.handler->on_body(&fake.exchange, bytes, length);
}
static void half_close(void) {
    if (fake.exchange.handler)
        fake.exchange.handler->on_end(&fake.exchange);
}
static size_t answered; /* bytes of the last answer's messages */
static void leave(void) {
    answered = fake.body.length;
    fake_close(&fake);
}

/* A frame with a message that has this text. */
static void add_message(struct strbuf *out, const char *text, size_t length) {
    unsigned char prefix[GRPC_PREFIX_BYTES];
    assert_true(length < 128);
    grpc_prefix_write(prefix, (uint32_t)length + 2);
    strbuf_add(out, prefix, sizeof prefix);
    strbuf_add_char(out, 0x0a);
    strbuf_add_char(out, (char)length);
    strbuf_add(out, text, length);
}

static void expect_status(int status, const char *message) {
    char wanted[64];
    const char *where = strbuf_text(fake.length == 0 ? &fake.head : &fake.trailers);
    snprintf(wanted, sizeof wanted, "grpc-status: %d\n", status);
    assert_int_equal(fake.begun, 1);
    assert_int_equal(fake.ended, 1);
    assert_int_equal(fake.status, 200);
    assert_non_null(strstr(strbuf_text(&fake.head), "content-type: application/grpc\n"));
    if (!strstr(where, wanted) || (message && !strstr(where, message)))
        fail_msg("expected %s and %s in %s", wanted, message ? message : "nothing", where);
    assert_true(fake.exchange.resets_early);
}

/* Sends the bytes to a method and expects this end. */
static void expect_end(const char *path, const struct strbuf *bytes, int status, const char *message) {
    ask(path);
    send_bytes(strbuf_text(bytes), bytes->length);
    half_close();
    expect_status(status, message);
    leave();
}

/* ---- promises ---- */

static void a_message_cut_anywhere_is_the_same(void **state) {
    struct strbuf bytes = STRBUF_INIT;
    (void)state;
    add_message(&bytes, "abc", 3);
    for (size_t cut = 0; cut <= bytes.length; cut++) {
        ask("/test.Service/Once");
        send_bytes(bytes.data, cut);
        send_bytes(bytes.data + cut, bytes.length - cut);
        assert_int_equal(fake.begun, 0); /* one message: its end is waited for */
        half_close();
        expect_status(0, NULL);
        assert_int_equal(fake.length, -1);
        assert_memory_equal(fake.body.data, "\0\0\0\0\x05\x0a\x03\0\0\0", 10);
        assert_int_equal(closed, 0);
        leave();
        assert_int_equal(closed, 1);
    }
    ask("/test.Service/Many");
    for (int message = 0; message < 3; message++)
        for (size_t i = 0; i < bytes.length; i++)
            send_bytes(bytes.data + i, 1);
    assert_int_equal(fake.body.length, 30);
    assert_int_equal(fake.ended, 0);
    half_close();
    expect_status(0, NULL);
    leave();
    assert_int_equal(closed, 1);
    strbuf_free(&bytes);
}

static void counts_and_frames_that_cannot_be(void **state) {
    struct strbuf bytes = STRBUF_INIT;
    (void)state;
    expect_end("/test.Service/Once", &bytes, 12, "takes a message"); /* none */
    add_message(&bytes, "abc", 3);
    bytes.length--;
    expect_end("/test.Service/Once", &bytes, 13, "breaks off");
    bytes.length++;
    add_message(&bytes, "abc", 3);
    expect_end("/test.Service/Once", &bytes, 12, "takes one message"); /* two */
    bytes.data[0] = 2;
    expect_end("/test.Service/Once", &bytes, 13, "flags");
    bytes.data[0] = 1;
    expect_end("/test.Service/Once", &bytes, 13, "flags"); /* packed, and no encoding was named */
    strbuf_clear(&bytes);
    strbuf_add(&bytes, "\0\0\0\x03\xe9", 5);
    ask("/test.Service/Many");
    send_bytes(bytes.data, 5);
    expect_status(8, "1000 bytes"); /* before anything of it has come */
    leave();
    strbuf_clear(&bytes);
    strbuf_add(&bytes, "\0\0\0\0\x02\x08\x01", 7);
    expect_end("/test.Service/Once", &bytes, 13, "text: of another type");
    strbuf_clear(&bytes);
    add_message(&bytes, "a\0b", 3);
    expect_end("/test.Service/Once", &bytes, 3, "grpc-message: text: the text has a NUL\n");
    strbuf_clear(&bytes);
    add_message(&bytes, "a\xff", 2);
    expect_end("/test.Service/Many", &bytes, 3, "grpc-message: text: the text is not UTF-8\n");
    strbuf_free(&bytes);
}

static void add_packed(struct strbuf *out, const void *bytes, size_t length) {
    unsigned char packed[4096], prefix[GRPC_PREFIX_BYTES];
    z_stream stream = {.next_in = (unsigned char *)bytes,
                       .avail_in = (unsigned)length,
                       .next_out = packed,
                       .avail_out = sizeof packed};
    assert_int_equal(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    assert_int_equal(deflate(&stream, Z_FINISH), Z_STREAM_END);
    deflateEnd(&stream);
    grpc_prefix_write(prefix, (uint32_t)(sizeof packed - stream.avail_out));
    prefix[0] = 1;
    strbuf_add(out, prefix, sizeof prefix);
    strbuf_add(out, packed, sizeof packed - stream.avail_out);
}

static void expect_packed(const struct strbuf *bytes, int status, const char *message) {
    ask_with("/test.Service/Once", "grpc-encoding", "gzip");
    for (size_t i = 0; i < bytes->length; i++)
        send_bytes(bytes->data + i, 1);
    half_close();
    expect_status(status, message);
    leave();
}

static void gzip_is_bounded_by_what_comes_out(void **state) {
    struct strbuf bytes = STRBUF_INIT;
    char large[100000] = {0};
    (void)state;
    add_packed(&bytes,
               "\x0a\x03"
               "abc",
               5);
    expect_packed(&bytes, 0, NULL);
    assert_int_equal(answered, 10);
    size_t whole = bytes.length;
    bytes.data[4]--; /* the stream breaks off */
    bytes.length--;
    expect_packed(&bytes, 13, "not gzip");
    bytes.data[4] += 2; /* further bytes follow */
    bytes.length = whole;
    strbuf_add_char(&bytes, 0);
    expect_packed(&bytes, 13, "not gzip");
    strbuf_clear(&bytes);
    add_packed(&bytes, large, sizeof large);
    assert_true(bytes.length < LIMIT);
    expect_packed(&bytes, 8, "1000 bytes");
    strbuf_clear(&bytes);
    add_message(&bytes, "abc", 3); /* the flag says, not the encoding */
    expect_packed(&bytes, 0, NULL);
    strbuf_free(&bytes);
}

static void expect_refusal(const char *path, const char *name, const char *value, int status, const char *message) {
    ask_with(path, name, value);
    expect_status(status, message);
    assert_int_equal(fake.length, 0);
    assert_int_equal(fake.trailers.length, 0);
    assert_null(fake.exchange.handler);
    leave();
}

static void refusals_are_one_frame(void **state) {
    (void)state;
    expect_refusal("/test.Service/None", "te", "trailers", 12, "there is no method /test.Service/None");
    assert_int_equal(fake.request.error, ERROR_ROUTE_NOT_FOUND);
    expect_refusal("/test.Servic/Once", "te", "trailers", 12, NULL);
    expect_refusal("/test.Service", "te", "trailers", 12, NULL);
    expect_refusal("/", "te", "trailers", 12, NULL);
    expect_refusal("*", "te", "trailers", 12, NULL);
    expect_refusal("/test.Service/Once", "grpc-encoding", "snappy", 12, "grpc-accept-encoding: identity,gzip\n");
    expect_refusal("/test.Service/Once", "grpc-timeout", "123456789S", 13, "grpc-timeout");
    expect_refusal("/test.Control/Once", "te", "trailers", 12, NULL);
    ask_as("POST", "/test.Control/Once", "application/grpc", LISTENER_CONTROL);
    grpc_start(&fake.exchange, services, 2);
    assert_non_null(fake.exchange.handler);
    leave();
}

static void http_has_its_own_statuses(void **state) {
    static const struct {
        const char *method, *type;
        bool is_http2;
        int status;
    } rows[] = {{"GET", "application/grpc", true, 405},      {"POST", "application/grpc", false, 415},
                {"POST", "application/grpc-web", true, 415}, {"POST", "application/json", true, 415},
                {"POST", "application/grpc+proto", true, 0}, {"POST", "Application/gRPC;x=y", true, 0},
                {"POST", "application/grpc+json", true, 200}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ask_as(rows[i].method, "/test.Service/Once", rows[i].type, LISTENER_DATA);
        fake.exchange.head.is_http2 = rows[i].is_http2;
        grpc_start(&fake.exchange, services, 2);
        assert_int_equal(fake.status, rows[i].status);
        leave();
    }
}

static void errors_are_reported_once(void **state) {
    struct strbuf bytes = STRBUF_INIT;
    (void)state;
    add_message(&bytes, "", 0);
    expect_end("/test.Service/Fail", &bytes, 8, "grpc-message: n: 100%25 full?\ngrpc-retry-pushback-ms: 1000\n");
    assert_int_equal(fake.request.error, ERROR_OVERLOADED);
    strbuf_free(&bytes);
}

static void an_answer_too_large_for_clients_is_none(void **state) {
    struct strbuf bytes = STRBUF_INIT, text = STRBUF_INIT;
    unsigned char prefix[GRPC_PREFIX_BYTES];
    int64_t limit = options.limits.body_bytes;
    (void)state;
    options.limits.body_bytes = 8 << 20;
    for (int large = 0; large < 2; large++) {
        size_t length = large ? GRPC_MAX_MESSAGE : GRPC_MAX_MESSAGE - 5;
        strbuf_clear(&bytes);
        strbuf_clear(&text);
        while (text.length < length)
            strbuf_add(&text, "aaaaaaaaaaaaaaaa", length - text.length < 16 ? length - text.length : 16);
        grpc_prefix_write(prefix, (uint32_t)length + 5);
        strbuf_add(&bytes, prefix, sizeof prefix);
        strbuf_add_char(&bytes, 0x0a);
        for (size_t left = length;; left >>= 7) {
            strbuf_add_char(&bytes, (char)(left < 128 ? left : (left & 127) | 128));
            if (left < 128)
                break;
        }
        strbuf_add(&bytes, text.data, text.length);
        expect_end("/test.Service/Once", &bytes, large ? 8 : 0, NULL);
        assert_int_equal(answered, large ? 0 : GRPC_PREFIX_BYTES + GRPC_MAX_MESSAGE);
    }
    options.limits.body_bytes = limit;
    strbuf_free(&bytes);
    strbuf_free(&text);
}

static void who_sends_and_does_not_read_is_stopped(void **state) {
    struct strbuf bytes = STRBUF_INIT;
    (void)state;
    add_message(&bytes, "abc", 3);
    ask("/test.Service/Many");
    send_bytes(bytes.data, bytes.length);
    fake.pending = 4097;
    send_bytes(bytes.data, bytes.length);
    expect_status(8, "does not read");
    assert_int_equal(fake.body.length, 10);
    leave();
    strbuf_free(&bytes);
}

static void a_deadline_ends_a_call_at_once(void **state) {
    struct strbuf bytes = STRBUF_INIT;
    (void)state;
    add_message(&bytes, "abc", 3);
    for (int sends = 0; sends < 2; sends++) {
        ask_with("/test.Service/Wait", "grpc-timeout", "1m");
        if (sends) {
            send_bytes(bytes.data, bytes.length);
            half_close();
        }
        event_base_loop(server.base, EVLOOP_ONCE);
        expect_status(4, "deadline");
        assert_int_equal(closed, sends); /* before the exchange closes */
        leave();
        assert_int_equal(closed, sends);
    }
    ask_with("/test.Service/Once", "grpc-timeout", "1H");
    send_bytes(bytes.data, bytes.length);
    half_close();
    leave();
    assert_int_equal(event_base_get_num_events(server.base, EVENT_BASE_COUNT_ADDED), 0);
    strbuf_free(&bytes);
}

static void timeouts_are_read(void **state) {
    static const struct {
        const char *text;
        double seconds; /* negative: it is none */
    } rows[] = {{"5S", 5},    {"30100m", 30.1}, {"1H", 3600}, {"2M", 120}, {"99999999n", 0.099999999}, {"0u", 0},
                {"", -1},     {"S", -1},        {"5", -1},    {"5s", -1},  {"123456789S", -1},         {"-1S", -1},
                {"1.5S", -1}, {"5SS", -1},      {" 5S", -1},  {"5 S", -1}};
    double seconds;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(grpc_read_timeout(rows[i].text, &seconds), rows[i].seconds >= 0);
        if (rows[i].seconds >= 0)
            assert_true(seconds > rows[i].seconds - 1e-9 && seconds < rows[i].seconds + 1e-9);
    }
}

static void messages_are_percent_encoded(void **state) {
    struct strbuf out = STRBUF_INIT, text = STRBUF_INIT;
    (void)state;
    grpc_add_message(&out, "\t\ntest with whitespace\r\nand Unicode BMP \xe2\x98\xba and non-BMP \xf0\x9f\x98\x88\t\n");
    assert_string_equal(out.data, "%09%0Atest with whitespace%0D%0Aand Unicode BMP %E2%98%BA and non-BMP "
                                  "%F0%9F%98%88%09%0A");
    strbuf_clear(&out);
    grpc_add_message(&out, "a\xff");
    assert_string_equal(out.data, "a%EF%BF%BD");
    strbuf_clear(&out);
    for (int i = 0; i < 1000; i++)
        strbuf_add_text(&text, "\xe2\x98\xba");
    grpc_add_message(&out, text.data);
    assert_true(out.length <= 4096 && out.length % 9 == 0); /* whole characters */
    strbuf_free(&out);
    strbuf_free(&text);
}

static int open_base(void **state) {
    (void)state;
    server.base = event_base_new();
    return server.base ? 0 : -1;
}
static int close_base(void **state) {
    (void)state;
    event_base_free(server.base);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_cut_anywhere_is_the_same),
        cmocka_unit_test(counts_and_frames_that_cannot_be),
        cmocka_unit_test(gzip_is_bounded_by_what_comes_out),
        cmocka_unit_test(refusals_are_one_frame),
        cmocka_unit_test(http_has_its_own_statuses),
        cmocka_unit_test(errors_are_reported_once),
        cmocka_unit_test(an_answer_too_large_for_clients_is_none),
        cmocka_unit_test(who_sends_and_does_not_read_is_stopped),
        cmocka_unit_test(a_deadline_ends_a_call_at_once),
        cmocka_unit_test(timeouts_are_read),
        cmocka_unit_test(messages_are_percent_encoded),
    };
    return cmocka_run_group_tests(tests, open_base, close_base);
}
