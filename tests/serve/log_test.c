/* Lines of the server's log: whole, on their line whatever clients send, and readable as JSON. */
#include "base/base.h"
#include "base/json.h"
#include "serve/log.h"
#include "support/test.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static struct serve_options options;
static struct server server = {.options = &options};

/* Returns the output of `write_lines` on standard error. */
static char *written(void (*write_lines)(void)) {
    struct strbuf text = STRBUF_INIT;
    char path[4096], *directory = test_directory();
    test_ok(file_join(path, sizeof path, directory, "log"));
    int saved = dup(STDERR_FILENO), file = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_true(saved >= 0 && file >= 0);
    dup2(file, STDERR_FILENO);
    write_lines();
    dup2(saved, STDERR_FILENO);
    close(file);
    close(saved);
    test_ok(file_read(path, 16 << 20, &text));
    free(directory);
    return text.data;
}

static const struct exchange exchange = {
    .head = {.method = "POST",
             .path = "/v1/completions",
             .query = "key=sk-secret",
             .listener = LISTENER_DATA,
             .is_http2 = true,
             .peer = "127.0.0.1:5"},
    .status = 200,
    .start = 8,
};
static const struct request alices = {.server = &server, .id = "r-1", .client.name = "alice"};

static void one_request(void) {
    struct exchange asking = exchange;
    struct request request = alices;
    asking.request = &request;
    struct call_prompt prompts[2] = {{.ids.count = 2}, {.ids.count = 3}};
    int64_t cached[2] = {0, 1};
    struct call call = {
        .request = {.prompts = prompts, .prompt_count = 2, .ask = {.adapters = {"tone", "style"}, .adapter_count = 2}},
        .cached = cached};
    struct call_start start = {.time = asking.start + 0.25};
    log_take_update(&asking, &(struct call_update){.starts = &start, .start_count = 1});
    log_take_call(&asking, &call);
    request.error = ERROR_DEADLINE;
    log_request(&asking, true);
}

static void a_refused_request(void) {
    struct exchange refused = exchange;
    struct request request = alices;
    refused.request = &request;
    request.error = ERROR_KEY;
    log_request(&refused, false);
}

static void a_request_has_its_fields_in_both_formats(void **state) {
    (void)state;
    static const char expected[] =
        " info request id=r-1 method=POST path=/v1/completions listener=data protocol=HTTP/2 peer=127.0.0.1:5 "
        "client=alice status=200 end=whole seconds=";
    options.logs_json = false;
    char *text = written(one_request);
    assert_true(strlen(text) > 24 && text[23] == 'Z' && text[10] == 'T');
    assert_memory_equal(text + 24, expected, sizeof expected - 1);
    assert_non_null(strstr(text, " adapters=tone,style prompt_tokens=5 cached_tokens=1 completion_tokens=0 "
                                 "queue_seconds=0.250000 error=deadline\n"));
    free(text);

    text = written(a_refused_request);
    assert_non_null(strstr(text, " end=broken "));
    assert_non_null(strstr(text, " error=invalid_api_key\n"));
    free(text);

    options.logs_json = true;
    text = written(one_request);
    json_error_t where;
    json_t *root;
    test_ok(json_read(text, strlen(text), 0, &root, &where));
    assert_string_equal(json_string_value(json_object_get(root, "event")), "request");
    assert_string_equal(json_string_value(json_object_get(root, "adapters")), "tone,style");
    assert_int_equal(json_integer_value(json_object_get(root, "status")), 200);
    assert_true(json_real_value(json_object_get(root, "queue_seconds")) == 0.25);
    assert_null(json_object_get(root, "first_token_seconds"));
    assert_null(strstr(text, "secret"));
    json_decref(root);
    free(text);
}

static void hostile_values(void) {
    struct log_line line;
    char large[5000];
    memset(large, 'x', sizeof large);
    large[sizeof large - 1] = '\0';
    log_line_begin(&line, &server, LOG_WARNING, "odd");
    log_line_text(&line, "a", "x\r\ninfo ready\t\x1b[2J\x7f");
    log_line_text(&line, "b", "\xc2\x9b 31m \xe2\x80\xa8 \xff\xc3");
    log_line_text(&line, "c", "a b=\"c\"");
    log_line_text(&line, "d", "");
    log_line_text(&line, "e", large);
    log_line_end(&line);
    log_event(&server, LOG_ERROR, "failure", "rank %d\nis gone", 1);
}

static void nothing_that_is_sent_leaves_its_line(void **state) {
    (void)state;
    for (int json = 0; json < 2; json++) {
        options.logs_json = json;
        char *text = written(hostile_values);
        int lines = 0;
        for (const char *at = text; *at; at++) {
            lines += *at == '\n';
            assert_true((unsigned char)*at >= ' ' || *at == '\n');
            assert_true(*at != 0x7f);
        }
        assert_int_equal(lines, 2);
        assert_true(strlen(text) < 4096);
        assert_null(strstr(text, "\xc2\x9b"));
        assert_null(strstr(text, "\xe2\x80\xa8"));
        assert_non_null(strstr(text, "rank 1?is gone"));
        if (json) {
            json_error_t where;
            json_t *root;
            test_ok(json_read(text, (size_t)(strchr(text, '\n') - text), 0, &root, &where));
            assert_string_equal(json_string_value(json_object_get(root, "a")), "x??info ready??[2J?");
            assert_string_equal(json_string_value(json_object_get(root, "b")), "? 31m ? \xef\xbf\xbd\xef\xbf\xbd");
            assert_int_equal(json_string_length(json_object_get(root, "e")), 1024);
            json_decref(root);
        } else {
            assert_non_null(strstr(text, " warning odd a=\"x??info ready??[2J?\" b="));
            assert_non_null(strstr(text, " c=\"a b=\\\"c\\\"\" d=\"\" e=x"));
            assert_non_null(strstr(text, " error failure message=\"rank 1?is gone\"\n"));
        }
        free(text);
    }
}

static void many_lines(void) {
    for (int i = 0; i < 1000; i++)
        log_event(&server, LOG_INFO, "many", "line %d of a thousand, which nobody reads", i);
}

static void a_log_that_nobody_reads_holds_up_nobody(void **state) {
    (void)state;
    struct strbuf text = STRBUF_INIT;
    char block[4096];
    int ends[2], saved = dup(STDERR_FILENO);
    long long lost = 0;
    assert_true(saved >= 0 && pipe(ends) == 0);
    dup2(ends[1], STDERR_FILENO);
    test_ends_within(30);
    many_lines();
    test_ends_within(0);
    assert_true(server.lost_lines > 0 && server.lost_lines < 1000);
    assert_true(read(ends[0], block, sizeof block) > 0);
    int64_t expected = server.lost_lines;
    log_event(&server, LOG_INFO, "again", "somebody reads");
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(ends[1]);
    for (ssize_t n; (n = read(ends[0], block, sizeof block)) > 0;)
        strbuf_add(&text, block, (size_t)n);
    close(ends[0]);
    const char *report = strstr(strbuf_text(&text), " warning log message=\"");
    assert_non_null(report);
    assert_int_equal(sscanf(report, " warning log message=\"%lld lines", &lost), 1);
    assert_int_equal(lost, expected);
    assert_non_null(strstr(report, " info again message=\"somebody reads\"\n"));
    assert_int_equal(server.lost_lines, 0);
    strbuf_free(&text);
}

enum { FLOOD = 20000, FEW = 4000 }; /* FEW: 500 at once, and 50 a second of a machine that is very slow */

static void a_flood(void) {
    struct exchange flooding = exchange, other = exchange;
    struct request request = alices, bobs = {.server = &server, .id = "r-2", .client.name = "bob"};
    flooding.request = &request;
    flooding.client = 7;
    other.request = &bobs;
    other.client = 8;
    for (int i = 0; i < FLOOD; i++)
        log_request(&flooding, false);
    log_request(&other, false);
    struct request answered = alices;
    answered.usage.is_there = true; /* the model answered it */
    answered.id[0] = 'a';
    flooding.request = &answered;
    log_request(&flooding, true);
    for (bool is_reported = false; !is_reported;) { /* within the moment in which a line is allowed again */
        log_tick(&server);
        is_reported = true;
        for (int i = 0; i < RATES_SETS * RATES_WAYS; i++)
            is_reported &= server.log_rates.places[i].refused == 0;
    }
}

/* Lines about one client's failures are bounded; how many are left out is said, and others lose nothing. */
static void one_client_does_not_fill_the_log(void **state) {
    (void)state;
    options.logs_json = false;
    server.log_rates = (struct rates){0};
    char *text = written(a_flood), *at = text;
    long long lines = 0, left_out = 0;
    for (; (at = strstr(at, " id=r-1 ")); at++)
        lines++;
    at = strstr(text, " requests of alice are not logged");
    assert_non_null(at);
    while (at > text && at[-1] >= '0' && at[-1] <= '9')
        at--;
    left_out = strtoll(at, NULL, 10);
    assert_in_range(lines, 500, FEW);
    assert_int_equal(lines + left_out, FLOOD);
    assert_non_null(strstr(text, " id=r-2 "));
    assert_non_null(strstr(text, " id=a-1 "));
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_client_does_not_fill_the_log),
        cmocka_unit_test(a_log_that_nobody_reads_holds_up_nobody),
        cmocka_unit_test(a_request_has_its_fields_in_both_formats),
        cmocka_unit_test(nothing_that_is_sent_leaves_its_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
