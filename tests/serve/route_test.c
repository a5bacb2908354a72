/* The router: which requests it lets through, and how it refuses the others. */
#include "serve/fake_exchange.h"
#include "serve/fake_server.h"

#include "serve/keys.h"
#include "serve/origin.h"
#include "serve/route.h"

static struct server server;
static struct serve_options options;

static int start(void **state) {
    (void)state;
    options = fake_options;
    server = fake_server();
    server.options = &options;
    fake_freed = fake_paused = 0;
    return 0;
}

static void begin(struct fake *fake, enum listener_kind listener, const char *method, const char *path) {
    fake_open(fake, &server, listener, method, path);
    fake_field(fake, "host", "127.0.0.1:8000");
}

static int status_of(enum listener_kind listener, const char *method, const char *path) {
    struct fake fake;
    begin(&fake, listener, method, path);
    route_exchange(&server, &fake.exchange);
    if (!fake.begun)
        fake_send(&fake, "", 1);
    int status = fake.status;
    fake_close(&fake);
    return status;
}

static void every_path_has_its_method_and_listener(void **state) {
    static const struct {
        const char *method, *path;
        int data, control;
    } rows[] = {
        {"GET", "/v1/models", 200, 200},
        {"GET", "/models", 200, 200},
        {"HEAD", "/models", 200, 200},
        {"GET", "/v1/models/tiny", 200, 200},
        {"GET", "/v1/models/org%2Ftiny", 200, 200},
        {"GET", "/v1/models/org/tiny", 200, 200},
        {"GET", "/models/lora", 200, 200},
        {"GET", "/v1/models/", 404, 404},
        {"GET", "/v1/models/none", 404, 404},
        {"GET", "/v1/models/tin%79", 200, 200},
        {"GET", "/v1/models/tiny%00", 404, 404},
        {"GET", "/v1/models/tiny%2", 404, 404},
        {"GET", "/v1/models/..%2f..%2fetc", 404, 404},
        {"GET", "/version", 200, 200},
        {"GET", "/openapi.json", 200, 200},
        {"GET", "/v1/openapi.json", 200, 200},
        {"POST", "/openapi.json", 405, 405},
        {"GET", "/health", 200, 200},
        {"GET", "/ready", 200, 200},
        {"GET", "/", 200, 200},
        {"GET", "/v1/v1/models", 404, 404},
        {"GET", "/v1", 404, 404},
        {"GET", "/v1/", 404, 404},
        {"GET", "/../models", 404, 404},
        {"GET", "//models", 404, 404},
        {"GET", "/models?", 404, 404},
        {"GET", "*", 404, 404},
        {"POST", "/v1/models", 405, 405},
        {"GET", "/v1/completions", 405, 405},
        {"get", "/v1/models", 405, 405},
        {"POST", "/v1/completions", 400, 400},
        {"POST", "/chat/completions", 400, 400},
        {"POST", "/tokenize", 400, 400},
        {"POST", "/v1/detokenize", 400, 400},
        {"GET", "/v1/adapters", 404, 200},
        {"POST", "/v1/adapters", 404, 400},
        {"PUT", "/v1/adapters/..", 404, 404},
        {"DELETE", "/v1/adapters/", 404, 404},
        {"PATCH", "/v1/adapters/lora", 404, 405},
        {"POST", "/v1/load_lora_adapter", 404, 400},
        {"POST", "/v1/unload_lora_adapter", 404, 400},
        {"GET", "/v1/drain", 404, 405},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int data = status_of(LISTENER_DATA, rows[i].method, rows[i].path);
        int control = status_of(LISTENER_CONTROL, rows[i].method, rows[i].path);
        if (data != rows[i].data || control != rows[i].control)
            fail_msg("%s %s: %d and %d", rows[i].method, rows[i].path, data, control);
    }
}

static void a_wrong_method_is_answered_with_the_right_ones(void **state) {
    struct fake fake;
    (void)state;
    begin(&fake, LISTENER_CONTROL, "DELETE", "/v1/adapters");
    route_exchange(&server, &fake.exchange);
    assert_int_equal(fake.status, 405);
    assert_non_null(strstr(strbuf_text(&fake.head), "allow: GET, HEAD, POST\n"));
    assert_non_null(strstr(strbuf_text(&fake.body), "\"code\":\"method_not_allowed\""));
    fake_close(&fake);
}

/* ---- ids ---- */

static void id_of(const char *given, char id[REQUEST_ID_BYTES]) {
    struct fake fake;
    begin(&fake, LISTENER_DATA, "GET", "/health");
    if (given)
        fake_field(&fake, "x-request-id", given);
    route_exchange(&server, &fake.exchange);
    strcpy(id, fake.request.id);
    assert_non_null(strstr(strbuf_text(&fake.head), "x-request-id: "));
    assert_non_null(strstr(strbuf_text(&fake.head), id));
    fake_close(&fake);
}

static void a_clients_id_is_kept_where_it_is_printable_and_short(void **state) {
    char long_id[130] = {0}, id[REQUEST_ID_BYTES], other[REQUEST_ID_BYTES];
    (void)state;
    memset(long_id, 'x', 128);
    id_of("a b\"~", id);
    assert_string_equal(id, "a b\"~");
    id_of(long_id, id);
    assert_string_equal(id, long_id);
    long_id[128] = 'x';
    static const char *const bad[] = {"", "a\x1b[0m", "h\xc3\xa9", "a\x7f"};
    for (size_t i = 0; i <= sizeof bad / sizeof *bad; i++) {
        const char *given = i < sizeof bad / sizeof *bad ? bad[i] : long_id;
        id_of(given, id);
        id_of(given, other);
        assert_int_equal(strlen(id), 32);
        assert_string_not_equal(id, other);
    }
}

/* ---- keys ---- */

static void write_keys(const char *text) {
    char *directory = test_directory(), path[512];
    snprintf(path, sizeof path, "%s/keys", directory);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    test_ok(keys_open(path, &server.keys[LISTENER_DATA]));
    free(directory);
}

static int status_with_key(const char *method, const char *path, const char *type, const char *key) {
    struct fake fake;
    begin(&fake, LISTENER_DATA, method, path);
    if (key)
        fake_field(&fake, "authorization", key);
    if (type)
        fake_field(&fake, "content-type", type);
    route_exchange(&server, &fake.exchange);
    int status = fake.begun ? fake.status : 0;
    fake_close(&fake);
    return status;
}

static void without_a_key_nothing_but_health_is_there(void **state) {
    static const char *const open[] = {"/", "/health", "/ready"};
    static const char *const closed[] = {"/v1/models", "/v1/models/tiny", "/version", "/tokenizer_info",
                                         "/nowhere",   "/v1/completions", "/HEALTH",  "/health/",
                                         "/metrics",   "/v1/adapters",    "//",       "/v1/chat/completions"};
    static const char *const methods[] = {"GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE"};
    (void)state;
    write_keys("ann sesame 2\n");
    for (size_t i = 0; i < sizeof open / sizeof *open; i++)
        assert_int_equal(status_with_key("GET", open[i], NULL, NULL), 200);
    for (size_t i = 0; i < sizeof closed / sizeof *closed; i++)
        for (size_t k = 0; k < sizeof methods / sizeof *methods; k++) {
            assert_int_equal(status_with_key(methods[k], closed[i], NULL, NULL), 401);
            assert_int_equal(status_with_key(methods[k], closed[i], NULL, "Bearer wrong"), 401);
            assert_int_equal(status_with_key(methods[k], closed[i], NULL, "Bearer "), 401);
        }
    for (size_t i = 0; i < sizeof open / sizeof *open; i++)
        assert_int_equal(status_with_key("POST", open[i], NULL, NULL), 401);
    assert_int_equal(status_with_key("GET", "/v1/models", NULL, "Bearer sesame"), 200);
    assert_int_equal(status_with_key("GET", "/nowhere", NULL, "Bearer sesame"), 404);
    keys_close(server.keys[LISTENER_DATA]);
}

static void a_call_is_that_of_its_key(void **state) {
    struct fake fake;
    (void)state;
    write_keys("ann sesame 2\n");
    begin(&fake, LISTENER_DATA, "POST", "/v1/completions");
    fake_field(&fake, "authorization", "Bearer sesame");
    route_exchange(&server, &fake.exchange);
    fake_send(&fake, "{\"prompt\":[1]}", 5);
    assert_non_null(fake_call);
    assert_string_equal(fake.request.client.name, "ann");
    assert_true(fake_call->client.weight == 2 && fake_call->client.client != 0);
    fake_close(&fake);
    assert_int_equal(fake_freed, 1);
    keys_close(server.keys[LISTENER_DATA]);
}

/* ---- origins ---- */

static void ask_from(struct fake *fake, enum listener_kind listener, const char *method, const char *path,
                     const char *origin) {
    begin(fake, listener, method, path);
    fake_field(fake, "origin", origin);
    fake_field(fake, "access-control-request-headers", "authorization");
    route_exchange(&server, &fake->exchange);
}

static void only_pages_of_an_origin_that_is_named_may_read(void **state) {
    static const char *origins[] = {"https://app.example", "localhost"};
    static const char *const allowed[] = {"https://app.example", "http://localhost:3000", "http://127.0.0.1",
                                          "https://[::1]:8443"};
    static const char *const denied[] = {"http://app.example",
                                         "https://app.example.evil",
                                         "null",
                                         "",
                                         "http://localhost.evil",
                                         "http://localhost:80x",
                                         "http://127.0.0.1.evil",
                                         "https://app.example:8000",
                                         "ftp://localhost"};
    struct fake fake;
    (void)state;
    options.cors_origins.items = origins;
    options.cors_origins.count = 2;
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++) {
        char expected[128];
        snprintf(expected, sizeof expected, "access-control-allow-origin: %s\n", allowed[i]);
        ask_from(&fake, LISTENER_DATA, "GET", "/v1/models", allowed[i]);
        assert_non_null(strstr(strbuf_text(&fake.head), expected));
        assert_non_null(strstr(strbuf_text(&fake.head), "vary: origin\n"));
        fake_close(&fake);
        ask_from(&fake, LISTENER_DATA, "OPTIONS", "/v1/models", allowed[i]);
        assert_int_equal(fake.status, 200);
        assert_non_null(strstr(strbuf_text(&fake.head), expected));
        assert_non_null(strstr(strbuf_text(&fake.head), "access-control-allow-headers: authorization\n"));
        fake_close(&fake);
    }
    for (size_t i = 0; i < sizeof denied / sizeof *denied; i++) {
        ask_from(&fake, LISTENER_DATA, "OPTIONS", "/v1/models", denied[i]);
        assert_int_equal(fake.status, 200);
        assert_null(strstr(strbuf_text(&fake.head), "access-control"));
        fake_close(&fake);
    }
}

static void a_page_may_ask_before_it_has_a_key(void **state) {
    static const char *origins[] = {"https://app.example"};
    struct fake fake;
    (void)state;
    options.cors_origins.items = origins;
    options.cors_origins.count = 1;
    write_keys("ann sesame\n");
    ask_from(&fake, LISTENER_DATA, "OPTIONS", "/v1/completions", origins[0]);
    assert_int_equal(fake.status, 200);
    fake_close(&fake);
    ask_from(&fake, LISTENER_DATA, "OPTIONS", "/v1/completions", "https://evil.example");
    assert_int_equal(fake.status, 401);
    fake_close(&fake);
    ask_from(&fake, LISTENER_DATA, "GET", "/v1/models", origins[0]);
    assert_int_equal(fake.status, 401);
    fake_close(&fake);
    keys_close(server.keys[LISTENER_DATA]);
}

static void control_answers_no_page_from_elsewhere(void **state) {
    struct fake fake;
    (void)state;
    ask_from(&fake, LISTENER_CONTROL, "POST", "/v1/drain", "http://evil.example");
    assert_int_equal(fake.status, 403);
    fake_close(&fake);
    ask_from(&fake, LISTENER_CONTROL, "POST", "/v1/drain", "null");
    assert_int_equal(fake.status, 403);
    fake_close(&fake);
    assert_false(server.is_draining);
    ask_from(&fake, LISTENER_CONTROL, "POST", "/v1/drain", "http://127.0.0.1:8000"); /* its own page */
    fake_send(&fake, "{\"timeout_s\":2,\"delay_s\":1.5}", 3);
    assert_int_equal(fake.status, 200);
    assert_true(server.is_draining && fake_drained == 2 && fake_delay == 1.5);
    fake_close(&fake);
}

static int status_of_page(enum listener_kind listener, const char *method, const char *type, const char *origin,
                          const char *site) {
    struct fake fake;
    begin(&fake, listener, method, "/v1/models");
    if (type)
        fake_field(&fake, "content-type", type);
    if (origin)
        fake_field(&fake, "origin", origin);
    if (site)
        fake_field(&fake, "sec-fetch-site", site);
    route_exchange(&server, &fake.exchange);
    int status = fake.status;
    if (strstr(strbuf_text(&fake.head), "grpc-status: 7\n"))
        status = 7;
    fake_close(&fake);
    return status;
}

static void a_page_from_elsewhere_sends_nothing(void **state) {
    static const char *const types[] = {NULL, "application/json", "text/plain", "multipart/form-data; boundary=a"};
    static const char *origins[] = {"https://app.example"};
    (void)state;
    options.cors_origins.items = origins;
    options.cors_origins.count = 1;
    for (int kind = 0; kind < LISTENER_COUNT; kind++) {
        enum listener_kind listener = (enum listener_kind)kind;
        for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
            static const char *const foreign[] = {"http://evil.example", "null", "http://127.0.0.1:8001",
                                                  "127.0.0.1:8000"};
            for (size_t k = 0; k < sizeof foreign / sizeof *foreign; k++)
                assert_int_equal(status_of_page(listener, "POST", types[i], foreign[k], NULL), 403);
            assert_int_equal(status_of_page(listener, "POST", types[i], NULL, "cross-site"), 403);
            assert_int_equal(status_of_page(listener, "PUT", types[i], NULL, "cross-site"), 403);
            assert_int_equal(status_of_page(listener, "POST", types[i], origins[0], "cross-site"), 405);
            assert_int_equal(status_of_page(listener, "POST", types[i], "http://127.0.0.1:8000", "same-origin"), 405);
            assert_int_equal(status_of_page(listener, "POST", types[i], NULL, NULL), 405); /* no browser */
        }
        assert_int_equal(status_of_page(listener, "POST", "application/grpc", "http://evil.example", NULL), 7);
        assert_int_equal(status_of_page(listener, "GET", NULL, NULL, "cross-site"), 200); /* a link */
    }
    assert_int_equal(status_of_page(LISTENER_DATA, "GET", NULL, "http://evil.example", NULL), 200);
    assert_int_equal(status_of_page(LISTENER_CONTROL, "GET", NULL, "http://evil.example", NULL), 403);
}

static int status_by_name(const char *path, const char *host) {
    struct fake fake;
    fake_open(&fake, &server, LISTENER_CONTROL, "GET", path);
    if (host)
        fake_field(&fake, "host", host);
    route_exchange(&server, &fake.exchange);
    int status = fake.status;
    fake_close(&fake);
    return status;
}

static void a_name_that_is_not_the_servers_is_misdirected(void **state) {
    static const char *const good[] = {"localhost",  "LOCALHOST:8001", "127.0.0.1", "127.0.0.1:1", "[::1]",
                                       "[::1]:8001", "127.9.0.2:80",   "box",       "Box:8000",    "[fd00::1]:8001"};
    static const char *const bad[] = {"evil.example",
                                      "evil.example:8001",
                                      "localhost.evil.example",
                                      "127.0.0.1.evil",
                                      "127.evil",
                                      "box.evil",
                                      "bo",
                                      "localhost:80x",
                                      "",
                                      "localhost@evil",
                                      "[::1].evil",
                                      "[::2]:8001",
                                      "192.168.0.1",
                                      "localhost:8001:8001",
                                      "::1"};
    static const char *names[] = {"box", "[fd00::1]"}, *const paths[] = {"/health", "/", "/v1/adapters", "/none"};
    (void)state;
    options.allowed_hosts.items = names;
    options.allowed_hosts.count = 2;
    server.checks_names[LISTENER_CONTROL] = true;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (status_by_name("/health", good[i]) != 200)
            fail_msg("%s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (size_t k = 0; k < sizeof paths / sizeof *paths; k++)
            if (status_by_name(paths[k], bad[i]) != 421)
                fail_msg("%s %s", bad[i], paths[k]);
    assert_int_equal(status_by_name("/health", NULL), 200); /* of HTTP/1.0 */
    server.checks_names[LISTENER_CONTROL] = false;
    assert_int_equal(status_by_name("/health", "evil.example"), 200);
}

static void names_are_checked_where_a_page_could_reach_the_server(void **state) {
    static const struct {
        const char *address;
        bool has_keys, has_names, checks;
    } rows[] = {{"127.0.0.1:8000", false, false, true}, {"[::1]:8000", false, false, true},
                {"127.0.0.1:8000", true, true, false},  {"unix:/run/a", false, true, false},
                {"0.0.0.0:8000", false, false, false},  {"0.0.0.0:8000", false, true, true},
                {"0.0.0.0:8000", true, true, false},    {"127.0.1.1:8000", false, false, true}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        options.allowed_hosts.count = rows[i].has_names;
        assert_int_equal(origin_checks_names(&options, rows[i].address, rows[i].has_keys), rows[i].checks);
    }
}

/* ---- bodies, and states ---- */

static void a_body_must_be_json_and_not_too_large(void **state) {
    static const char *const bad[] = {"text/plain", "application/x-www-form-urlencoded", "multipart/form-data",
                                      "application/jsonp"};
    char large[5000];
    struct fake fake;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(status_with_key("POST", "/v1/completions", bad[i], NULL), 415);
    assert_int_equal(status_with_key("POST", "/v1/completions", "Application/JSON; charset=utf-8", NULL), 0);
    memset(large, ' ', sizeof large - 1);
    large[sizeof large - 1] = 0;
    for (int promises = 0; promises < 2; promises++) {
        begin(&fake, LISTENER_DATA, "POST", "/v1/completions");
        if (promises) /* it is refused before it comes */
            fake_field(&fake, "content-length", "4999");
        route_exchange(&server, &fake.exchange);
        assert_int_equal(fake.begun, promises);
        fake_send(&fake, large, 100);
        assert_int_equal(fake.status, 413);
        assert_non_null(strstr(strbuf_text(&fake.body), "body_too_large"));
        fake_close(&fake);
    }
}

static void a_head_that_the_transport_refuses_goes_to_no_handler(void **state) {
    static const char *const types[] = {"application/json", "application/grpc"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct fake fake;
        begin(&fake, LISTENER_DATA, "POST", "/v1/completions");
        fake.exchange.head.refusal = 431;
        fake.exchange.head.problem = "too long";
        fake_field(&fake, "content-type", types[i]);
        route_exchange(&server, &fake.exchange);
        assert_int_equal(fake.status, i ? 200 : 431);
        assert_non_null(strstr(strbuf_text(&fake.head), i ? "grpc-status: 8\n" : "x-request-id: "));
        assert_int_equal(fake.request.error, ERROR_HEADER_SIZE);
        fake_close(&fake);
    }
}

static void a_body_may_be_cut_off_anywhere(void **state) {
    struct fake fake;
    (void)state;
    begin(&fake, LISTENER_DATA, "POST", "/v1/completions");
    route_exchange(&server, &fake.exchange);
    fake.exchange.handler->on_body(&fake.exchange, (const unsigned char *)"{\"pro", 5);
    fake_close(&fake);
}

static void work_is_refused_while_the_server_drains(void **state) {
    (void)state;
    server.is_draining = true;
    assert_int_equal(status_of(LISTENER_DATA, "POST", "/v1/completions"), 503);
    assert_int_equal(status_of(LISTENER_DATA, "POST", "/v1/chat/completions"), 503);
    assert_int_equal(status_of(LISTENER_DATA, "GET", "/ready"), 503);
    assert_int_equal(status_of(LISTENER_DATA, "GET", "/health"), 200);
    assert_int_equal(status_of(LISTENER_DATA, "GET", "/v1/models"), 200);
}

static void errors_have_their_fields(void **state) {
    static const struct {
        enum error_case which;
        int status;
        const char *part;
    } rows[] = {
        {ERROR_OVERLOADED, 429, "retry-after: 1\nretry-after-ms: 1000\n"},
        {ERROR_DEADLINE, 504, "x-should-retry: false\n"},
        {ERROR_KEY, 401, "www-authenticate: Bearer\n"},
        {ERROR_ADAPTER_MEMORY, 507, "content-type: application/json\n"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct fake fake;
        struct error error;
        error_set(&error, rows[i].which, NULL, "because");
        begin(&fake, LISTENER_DATA, "POST", "/v1/completions");
        route_exchange(&server, &fake.exchange);
        route_fail(&fake.exchange, &error);
        assert_int_equal(fake.status, rows[i].status);
        assert_non_null(strstr(strbuf_text(&fake.head), rows[i].part));
        assert_non_null(strstr(strbuf_text(&fake.body), "\"message\":\"because\""));
        fake_close(&fake);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(every_path_has_its_method_and_listener, start),
        cmocka_unit_test_setup(a_wrong_method_is_answered_with_the_right_ones, start),
        cmocka_unit_test_setup(a_clients_id_is_kept_where_it_is_printable_and_short, start),
        cmocka_unit_test_setup(without_a_key_nothing_but_health_is_there, start),
        cmocka_unit_test_setup(a_call_is_that_of_its_key, start),
        cmocka_unit_test_setup(only_pages_of_an_origin_that_is_named_may_read, start),
        cmocka_unit_test_setup(a_page_may_ask_before_it_has_a_key, start),
        cmocka_unit_test_setup(control_answers_no_page_from_elsewhere, start),
        cmocka_unit_test_setup(a_page_from_elsewhere_sends_nothing, start),
        cmocka_unit_test_setup(a_name_that_is_not_the_servers_is_misdirected, start),
        cmocka_unit_test_setup(names_are_checked_where_a_page_could_reach_the_server, start),
        cmocka_unit_test_setup(a_body_must_be_json_and_not_too_large, start),
        cmocka_unit_test_setup(a_head_that_the_transport_refuses_goes_to_no_handler, start),
        cmocka_unit_test_setup(a_body_may_be_cut_off_anywhere, start),
        cmocka_unit_test_setup(work_is_refused_while_the_server_drains, start),
        cmocka_unit_test_setup(errors_have_their_fields, start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
