/* W3C Trace Context: which fields name a trace, what is passed on, and where spans go. */
#include "support/test.h"

#include "serve/otlp_post.h"
#include "serve/request.h"

#include "base/base.h"

static const char good[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

static struct trace begin(const struct field *fields, size_t count) {
    struct exchange_head head = {.fields = fields, .field_count = count};
    struct trace trace;
    trace_begin(&head, false, &trace);
    return trace;
}

static void a_parent_is_taken_and_passed_on(void **state) {
    (void)state;
    struct field field = field_of("traceparent", good);
    struct trace trace = begin(&field, 1);
    char text[TRACE_PARENT_TEXT], span[TRACE_SPAN_TEXT];
    assert_true(trace.is_there && trace.has_parent);
    trace_parent_text(&trace, text);
    trace_hex(trace.span, sizeof trace.span, span);
    assert_memory_equal(text, good, 36);
    assert_memory_equal(text + 36, span, 16);
    assert_string_equal(text + 52, "-01");
    assert_string_not_equal(span, "b7ad6b7169203331");
    assert_true(trace_read_parent(text, &trace)); /* what goes out is right, too */
}

static void flags_that_are_not_known_are_cleared(void **state) {
    (void)state;
    static const struct {
        const char *flags;
        int kept;
    } rows[] = {{"00", 0}, {"01", 1}, {"02", 2}, {"03", 3}, {"09", 1}, {"ff", 3}, {"fe", 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[TRACE_PARENT_TEXT];
        struct trace trace = {0};
        snprintf(text, sizeof text, "%.53s%s", good, rows[i].flags);
        assert_true(trace_read_parent(text, &trace));
        assert_int_equal(trace.flags, rows[i].kept);
    }
}

static void a_later_version_may_have_more(void **state) {
    (void)state;
    static const char *const texts[] = {
        "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-the-future-will-be-like",
        "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct field field = field_of("traceparent", texts[i]);
        struct trace trace = begin(&field, 1);
        char text[TRACE_PARENT_TEXT];
        assert_true(trace.has_parent);
        trace_parent_text(&trace, text);
        assert_memory_equal(text, good, 36); /* in the version that is spoken here */
    }
}

static void what_breaks_a_rule_is_no_parent(void **state) {
    (void)state;
    static const char *const texts[] = {
        "",
        "00",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-B7AD6B7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0A",
        "0g-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-011",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
        "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01.more",
        "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331_01",
        "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319cc-b7ad6b716920333-01",
        "00-.af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 ",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct field field = field_of("traceparent", texts[i]);
        struct trace trace = begin(&field, 1), untouched = {.flags = 7};
        if (trace.has_parent || trace_read_parent(texts[i], &untouched))
            fail_msg("'%s' was taken", texts[i]);
        assert_int_equal(untouched.flags, 7);
        assert_true(trace.is_there);
    }
    struct field twice[] = {field_of("traceparent", good), field_of("traceparent", good)};
    assert_false(begin(twice, 2).has_parent);
}

static void a_new_trace_has_ids_of_its_own(void **state) {
    (void)state;
    struct trace one = begin(NULL, 0), other = begin(NULL, 0);
    struct exchange_head head = {0};
    assert_memory_not_equal(one.id, other.id, sizeof one.id);
    assert_memory_not_equal(one.span, other.span, sizeof one.span);
    assert_int_equal(one.flags, 0);
    trace_begin(&head, true, &one);
    assert_int_equal(one.flags, TRACE_SAMPLED);
}

static void expect_state(const struct field *fields, size_t count, const char *expected) {
    struct exchange_head head = {.fields = fields, .field_count = count};
    struct trace trace;
    char text[TRACE_STATE_TEXT];
    trace_begin(&head, false, &trace);
    assert_int_equal(trace_state_text(&head, &trace, text), strlen(expected));
    assert_string_equal(text, expected);
}

static void states_are_joined_and_mended(void **state) {
    (void)state;
    static const struct {
        const char *first, *second, *expected;
    } rows[] = {
        {"foo=1", NULL, "foo=1"},
        {"foo=1,bar=2", NULL, "foo=1,bar=2"},
        {"foo=1 ,\t bar=2", NULL, "foo=1,bar=2"},
        {"foo=1,", ",,bar=2", "foo=1,bar=2"},
        {"foo=1", "bar=2", "foo=1,bar=2"},
        {"", NULL, ""},
        {"1a@b=2", NULL, "1a@b=2"},
        {"a-z_0*/9=\x20!~", NULL, "a-z_0*/9=\x20!~"},
        /* one that is wrong takes all with it */
        {"foo=1,bar", NULL, ""},
        {"foo=1", "Bar=2", ""},
        {"1a=2", NULL, ""},
        {"foo =1", NULL, ""},
        {"foo@=1", NULL, ""},
        {"foo@1a=1", NULL, ""},
        {"foo@bar@baz=1", NULL, ""},
        {"foo@abcdefghijklmno=1", NULL, ""},
        {"foo=1=2", NULL, ""},
        {"foo=\x7f", NULL, ""},
        {"foo=\xc3\xa4", NULL, ""},
        {"foo=", NULL, ""},
        {"=1", NULL, ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct field fields[3] = {field_of("traceparent", good), field_of("tracestate", rows[i].first)};
        if (rows[i].second)
            fields[2] = field_of("tracestate", rows[i].second);
        expect_state(fields, rows[i].second ? 3 : 2, rows[i].expected);
    }
    struct field alone = field_of("tracestate", "foo=1"); /* of no trace */
    expect_state(&alone, 1, "");
}

static void states_have_bounds(void **state) {
    (void)state;
    struct strbuf text = STRBUF_INIT;
    struct field fields[2] = {field_of("traceparent", good)};
    for (int i = 0; i < 32; i++)
        strbuf_format(&text, "%sk%d=v", i ? "," : "", i);
    fields[1] = field_of("tracestate", strbuf_text(&text));
    expect_state(fields, 2, strbuf_text(&text));
    strbuf_add_text(&text, ",k=v");
    fields[1] = field_of("tracestate", strbuf_text(&text));
    expect_state(fields, 2, "");
    strbuf_clear(&text); /* three members of 200 bytes: the last does not fit into 512 */
    for (int i = 0; i < 3; i++)
        strbuf_format(&text, "%sk%d=%0197d", i ? "," : "", i, 0);
    fields[1] = field_of("tracestate", strbuf_text(&text));
    char two[402];
    snprintf(two, sizeof two, "%s", strbuf_text(&text));
    expect_state(fields, 2, two);
    strbuf_clear(&text);
    strbuf_format(&text, "k=%0257d", 0);
    fields[1] = field_of("tracestate", strbuf_text(&text));
    expect_state(fields, 2, "");
    strbuf_free(&text);
}

static void an_endpoint_is_a_url_of_http(void **state) {
    (void)state;
    static const struct {
        const char *url, *host, *port, *authority, *path;
    } rows[] = {
        {"http://collector:4318", "collector", "4318", "collector:4318", "/v1/traces"},
        {"HTTP://collector", "collector", "80", "collector", "/v1/traces"},
        {"http://127.0.0.1:4318/", "127.0.0.1", "4318", "127.0.0.1:4318", "/v1/traces"},
        {"http://[::1]:4318/otlp", "::1", "4318", "[::1]:4318", "/otlp/v1/traces"},
        {"http://[::1]", "::1", "80", "[::1]", "/v1/traces"},
        {"http://c:1/v1/traces", "c", "1", "c:1", "/v1/traces"},
        {"http://c:1/a/v1/traces/", "c", "1", "c:1", "/a/v1/traces"},
    };
    static const struct {
        const char *url, *error;
    } wrong[] = {
        {"https://collector:4318", "--otlp-endpoint https://collector:4318: https is not spoken here"},
        {"collector:4318", "expected http://HOST"},
        {"grpc://collector:4317", "expected http://HOST"},
        {"http://", "expected a host"},
        {"http:///v1/traces", "expected a host"},
        {"http://:4318", "expected a host"},
        {"http://c:", "expected a port"},
        {"http://c:0", "expected a port"},
        {"http://c:65536", "expected a port"},
        {"http://c:43a8", "expected a port"},
        {"http://[::1", "expected a host"},
        {"http://[::1]x", "expected a host"},
        {"http://user@c", "without a user"},
        {"http://c/?a=b", "without a user"},
        {"http://c/\r\nx: y", "without a user"},
        {"http://c d", "without a user"},
    };
    struct otlp_target target;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        test_ok(otlp_target_read(rows[i].url, &target));
        assert_string_equal(target.host, rows[i].host);
        assert_string_equal(target.port, rows[i].port);
        assert_string_equal(target.authority, rows[i].authority);
        assert_string_equal(target.path, rows[i].path);
        otlp_target_free(&target);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(otlp_target_read(wrong[i].url, &target), STATUS_USAGE);
        if (!strstr(status_text(), wrong[i].error))
            fail_msg("'%s': %s", wrong[i].url, status_text());
        otlp_target_free(&target);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_parent_is_taken_and_passed_on),
        cmocka_unit_test(flags_that_are_not_known_are_cleared),
        cmocka_unit_test(a_later_version_may_have_more),
        cmocka_unit_test(what_breaks_a_rule_is_no_parent),
        cmocka_unit_test(a_new_trace_has_ids_of_its_own),
        cmocka_unit_test(states_are_joined_and_mended),
        cmocka_unit_test(states_have_bounds),
        cmocka_unit_test(an_endpoint_is_a_url_of_http),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
