/* The parser of HTTP/1.1 requests: what it takes, the list of what it must refuse, and that splits make no difference.
 */
#include "support/test.h"

#include "http/http1_transcript.h"

static void transcript_of(const char *text, size_t length, struct strbuf *out) {
    strbuf_clear(out);
    http1_transcript(text, length, NULL, 0, out);
}

static void expect(const char *text, const char *transcript) {
    struct strbuf out = STRBUF_INIT;
    transcript_of(text, strlen(text), &out);
    assert_string_equal(strbuf_text(&out), transcript);
    strbuf_free(&out);
}

/* It is refused with this status, and nothing of it became a request. */
static void refused_bytes(const char *text, size_t length, int status) {
    struct strbuf out = STRBUF_INIT;
    char begin[16];
    transcript_of(text, length, &out);
    snprintf(begin, sizeof begin, "bad %d: ", status);
    if (strncmp(strbuf_text(&out), begin, strlen(begin)) != 0)
        fail_msg("%s\nis not refused with %d:\n%s", text, status, strbuf_text(&out));
    strbuf_free(&out);
}

static void refused(const char *text, int status) {
    refused_bytes(text, strlen(text), status);
}

/* A head with one more line. */
static void refused_line(const char *line, int status) {
    char text[1024];
    snprintf(text, sizeof text, "POST / HTTP/1.1\r\nHost: a\r\n%s\r\n\r\n", line);
    refused(text, status);
}

/* A chunked body that is broken: the head is a request, and its end never comes. */
static void refused_body(const char *body) {
    struct strbuf text = STRBUF_INIT, out = STRBUF_INIT;
    strbuf_format(&text, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n%s", body);
    transcript_of(text.data, text.length, &out);
    if (!strstr(strbuf_text(&out), "bad 400: ") || strstr(strbuf_text(&out), "\nend\n"))
        fail_msg("%s\nis not refused:\n%s", body, strbuf_text(&out));
    strbuf_free(&text);
    strbuf_free(&out);
}

static void requests_are_taken(void **state) {
    (void)state;
    expect("GET /a/b?c=d?e HTTP/1.1\r\nHost: localhost:80\r\nX-Y:  z z\t \r\n\r\n",
           "GET /a/b ?c=d?e [host=localhost:80] [x-y=z z]\nbody 0: \nend\nidle\n");
    expect(
        "POST / HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 3\r\nExpect: 100-Continue\r\n\r\nabc",
        "POST / ? continue length=3 [host=[::1]] [content-length=3] [expect=100-Continue]\nbody 3: abc\nend\nidle\n");
    expect("POST / HTTP/1.1\r\nHost:\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\n0A\r\n0123456789\r\n0\r\n"
           "X-Check: 1\r\n\r\n",
           "POST / ? chunked [host=] [transfer-encoding=Chunked]\nbody 13: abc0123456789\nend\nidle\n");
    expect("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "OPTIONS * ? [host=a]\nbody 0: \nend\nidle\n");
    expect("GET / HTTP/1.0\r\nConnection: x, Close\r\n\r\n",
           "GET / ? 1.0 close [connection=x, Close]\nbody 0: \nend\nidle\n");
    expect("GET / HTTP/1.1\r\nHost: a\r\nX: \xc3\xa4\r\n\r\n", "GET / ? [host=a] [x=\xc3\xa4]\nbody 0: \nend\nidle\n");
}

static void an_absolute_target_has_the_host(void **state) {
    (void)state;
    expect("GET http://b:1/x?y HTTP/1.1\r\nHost: a\r\n\r\n", "GET /x ?y [host=b:1]\nbody 0: \nend\nidle\n");
    expect("GET HTTP://b?y HTTP/1.1\r\nHost: a\r\n\r\n", "GET / ?y [host=b]\nbody 0: \nend\nidle\n");
    expect("GET https://b HTTP/1.1\r\nHost: a\r\n\r\n", "GET / ? [host=b]\nbody 0: \nend\nidle\n");
    refused("GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    refused("GET ftp://b/x HTTP/1.1\r\nHost: a\r\n\r\n", 400);
}

static void pipelined_requests_come_one_by_one(void **state) {
    (void)state;
    expect(
        "GET /1 HTTP/1.1\r\nHost: a\r\n\r\nPOST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi\r\n"
        "GET /3 HTTP/1.1\r\nHo",
        "GET /1 ? [host=a]\nbody 0: \nend\nPOST /2 ? length=2 [host=a] [content-length=2]\nbody 2: hi\nend\nwithin\n");
}

static void long_lines_and_heads_are_refused(void **state) {
    (void)state;
    struct strbuf text = STRBUF_INIT;
    for (int longer = 0; longer < 2; longer++) { /* "GET /" and " HTTP/1.1" are 14 bytes */
        struct strbuf out = STRBUF_INIT;
        strbuf_clear(&text);
        strbuf_format(&text, "GET /%0*d HTTP/1.1\r\nHost: a\r\n\r\n", 8192 - 14 + longer, 0);
        transcript_of(text.data, text.length, &out);
        assert_int_equal(strncmp(out.data, longer ? "bad 414" : "GET /0", 6), 0);
        strbuf_free(&out);
    }
    strbuf_clear(&text);
    strbuf_format(&text, "GET / HTTP/1.1\r\nHost: a\r\nX: %0*d\r\n\r\n", 16384, 0);
    refused(text.data, 431);
    strbuf_clear(&text);
    strbuf_add_text(&text, "GET / HTTP/1.1\r\nHost: a\r\n");
    for (int i = 0; i < 100; i++)
        strbuf_add_text(&text, "A: b\r\n");
    refused(text.data, 431); /* before the head is whole */
    /* Each field costs 32 bytes more than it has. */
    strbuf_clear(&text);
    strbuf_add_text(&text, "GET / HTTP/1.1\r\nHost: a\r\n");
    for (int i = 0; i < 99; i++)
        strbuf_format(&text, "A: %0*d\r\n", 140, 0);
    strbuf_add_text(&text, "\r\n");
    refused(text.data, 431);
    strbuf_free(&text);
}

static void there_is_exactly_one_host(void **state) {
    (void)state;
    refused("GET / HTTP/1.1\r\n\r\n", 400);
    refused("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400);
    refused("GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n", 400);
    refused("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400);
    refused("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400);
    refused("GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", 400);
}

static void lengths_and_codings_leave_no_choice(void **state) {
    (void)state;
    refused_line("Content-Length: 5\r\nTransfer-Encoding: chunked", 400);
    refused_line("Transfer-Encoding: chunked\r\nContent-Length: 5", 400);
    refused_line("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", 400);
    refused_line("Transfer-Encoding: gzip, chunked", 501);
    refused_line("Transfer-Encoding: chunked, chunked", 501);
    refused_line("Transfer-Encoding: identity", 501);
    refused_line("Transfer-Encoding: xchunked", 501);
    refused_line("Transfer-Encoding: \"chunked\"", 501);
    refused_line("Transfer-Encoding:", 501);
    refused_line("Transfer-Encoding : chunked", 400);
    refused_line("Content-Length: 5\r\nContent-Length: 5", 400);
    refused_line("Content-Length: 5, 5", 400);
    refused_line("Content-Length: +5", 400);
    refused_line("Content-Length: -1", 400);
    refused_line("Content-Length: 0x5", 400);
    refused_line("Content-Length: 5 5", 400);
    refused_line("Content-Length:", 400);
    refused_line("Content-Length: 99999999999999999999", 400);
    refused_line("Expect: 200-ok", 417);
    refused("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400);
}

static void chunks_are_exact(void **state) {
    (void)state;
    refused_body("0x3\r\nabc\r\n0\r\n\r\n");
    refused_body("+3\r\nabc\r\n0\r\n\r\n");
    refused_body(" 3\r\nabc\r\n0\r\n\r\n");
    refused_body("3 \r\nabc\r\n0\r\n\r\n");
    refused_body("000000003\r\nabc\r\n0\r\n\r\n");
    refused_body("ffffffff0\r\n");
    refused_body("\r\nabc\r\n0\r\n\r\n");
    refused_body("g\r\n");
    refused_body("3;a=b\r\nabc\r\n0\r\n\r\n");
    refused_body("3\nabc\r\n0\r\n\r\n");
    refused_body("3\rabc\r\n0\r\n\r\n");
    refused_body("3\r\nabc\n0\r\n\r\n");
    refused_body("3\r\nabcd\r\n0\r\n\r\n");
    refused_body("0\r\n\n");
    refused_body("0\r\nX\r\n\r\n");
    refused_body("0\r\n X: y\r\n\r\n");
}

static void lone_line_ends_and_zero_bytes_are_refused(void **state) {
    (void)state;
    refused("GET / HTTP/1.1\nHost: a\n\n", 400);
    refused("GET / HTTP/1.1\r\nHost: a\n\r\n", 400);
    refused("GET / HTTP/1.1\rHost: a\r\n\r\n", 400);
    refused("GET / HTTP/1.1\r\nHost: a\r\r\n\r\n", 400);
    refused("GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n", 400);
    refused("\n", 400);
    static const char in_line[] = "GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n",
                      in_field[] = "GET / HTTP/1.1\r\nHost: a\0\r\n\r\n";
    refused_bytes(in_line, sizeof in_line - 1, 400);
    refused_bytes(in_field, sizeof in_field - 1, 400);
    refused_line("A: b\r\n c", 400);
    refused_line("A: b\r\n\tc", 400);
    refused("GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400);
}

static void names_and_values_have_their_characters(void **state) {
    (void)state;
    refused_line("A b: c", 400);
    refused_line("A : c", 400);
    refused_line(": c", 400);
    refused_line("A", 400);
    refused_line("\xc3\xa4: c", 400);
    refused_line("A(: c", 400);
    refused_line("A: \x01", 400);
    refused_line("A: \x7f", 400);
}

static void the_request_line_is_exact(void **state) {
    (void)state;
    refused("INVALID CONNECTION PREFACE\r\n\r\n", 0);
    refused("GET / ICAP/1.0\r\nHost: a\r\n\r\n", 0);
    refused("PRI * HTTP/2.0\r\n\r\n", 400);
    refused("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    refused("GET /  HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    refused("GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 400);
    refused(" GET / HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    refused("GET /\r\nHost: a\r\n\r\n", 400);
    refused("GET / \r\nHost: a\r\n\r\n", 400);
    refused("GET / http/1.1\r\nHost: a\r\n\r\n", 400);
    refused("GET / HTTP/1.10\r\nHost: a\r\n\r\n", 400);
    refused("GET / HTTP/1.2\r\nHost: a\r\n\r\n", 505);
    refused("GET / HTTP/3.0\r\nHost: a\r\n\r\n", 505);
    refused("GET a HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    refused("GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    refused("GET /#a HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    refused("GET /\xc3\xa4 HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    refused("GET /\t HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    refused("G(T / HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    refused("CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    refused("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400);
}

static void splits_make_no_difference(void **state) {
    (void)state;
    static const char *const texts[] = {
        "GET /a?b HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: b\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\nA: "
        "b\r\n"
        "\r\nGET / HTTP/1.1\r\nHost: b\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nabcdDELETE /x HTTP/1.1\r\nHost: a\r\n\r\nrest",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcX",
        "GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    };
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++) {
        size_t length = strlen(texts[t]), cuts[512];
        struct strbuf whole = STRBUF_INIT, split = STRBUF_INIT;
        transcript_of(texts[t], length, &whole);
        for (size_t a = 0; a <= length; a++)
            for (size_t b = a; b <= length; b += 1 + a % 3) {
                strbuf_clear(&split);
                http1_transcript(texts[t], length, (size_t[]){a, b}, 2, &split);
                assert_string_equal(split.data, whole.data);
            }
        for (size_t i = 0; i < length; i++)
            cuts[i] = i;
        strbuf_clear(&split);
        http1_transcript(texts[t], length, cuts, length, &split);
        assert_string_equal(split.data, whole.data);
        strbuf_free(&whole);
        strbuf_free(&split);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_are_taken),
        cmocka_unit_test(an_absolute_target_has_the_host),
        cmocka_unit_test(pipelined_requests_come_one_by_one),
        cmocka_unit_test(long_lines_and_heads_are_refused),
        cmocka_unit_test(there_is_exactly_one_host),
        cmocka_unit_test(lengths_and_codings_leave_no_choice),
        cmocka_unit_test(chunks_are_exact),
        cmocka_unit_test(lone_line_ends_and_zero_bytes_are_refused),
        cmocka_unit_test(names_and_values_have_their_characters),
        cmocka_unit_test(the_request_line_is_exact),
        cmocka_unit_test(splits_make_no_difference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
