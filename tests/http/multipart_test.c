/* Bodies of multipart/form-data: the same parts whatever the pieces are, and what is refused. */
#include "support/test.h"

#include "http/multipart.h"

#include "base/base.h"

struct seen {
    struct strbuf text; /* "name|filename|contents;" for each part */
    int parts;
};

static int begin(void *context, const char *name, const char *filename) {
    struct seen *seen = context;
    strbuf_format(&seen->text, "%s%s|%s|", seen->parts++ ? ";" : "", name, filename);
    return STATUS_OK;
}

static int add(void *context, const void *bytes, size_t length) {
    strbuf_add(&((struct seen *)context)->text, bytes, length);
    return STATUS_OK;
}

static int read_body(const char *type, const char *body, size_t each, struct seen *seen) {
    const struct multipart_sink sink = {.begin = begin, .add = add, .context = seen};
    struct multipart multipart;
    *seen = (struct seen){0};
    int status = multipart_open(&multipart, type, &sink);
    for (size_t at = 0, length = strlen(body); at < length && !status; at += each)
        status = multipart_read(&multipart, body + at, length - at < each ? length - at : each);
    THEN(status, multipart_end(&multipart));
    multipart_close(&multipart);
    return status;
}

#define TYPE "multipart/form-data; charset=utf-8; boundary=\"a b\""
#define PART "--a b\r\nContent-Disposition: form-data; name="

static void parts_are_the_same_in_all_pieces(void **state) {
    static const char body[] =
        "preamble\r\n" PART "\"purpose\"\r\n\r\nfine-tune\r\n" PART
        "file; FILENAME=\"a\\\"b\\\\c;d%22.jsonl\"\r\nContent-Type: text/plain\r\n\r\n"
        "\r\n--a\r\n--a \r\n\n\r\n" PART
        "\"x\"; filename=\"no\"; filename*=UTF-8''na%c3%afve%20%25\r\n\r\n\r\n--a b--\r\nepilogue";
    (void)state;
    for (size_t each = 1; each <= sizeof body; each++) {
        struct seen seen;
        test_ok(read_body(TYPE, body, each, &seen));
        assert_string_equal(strbuf_text(&seen.text), "purpose||fine-tune;file|a\"b\\c;d\".jsonl|\r\n--a\r\n--a \r\n\n;"
                                                     "x|na\xc3\xafve %|");
        strbuf_free(&seen.text);
    }
}

static void a_body_may_begin_with_its_boundary(void **state) {
    struct seen seen;
    (void)state;
    test_ok(read_body("multipart/form-data;boundary=a",
                      "--a\r\ncontent-disposition: form-data; name=n\r\n\r\n1\r\n--a--", 3, &seen));
    assert_string_equal(strbuf_text(&seen.text), "n||1");
    strbuf_free(&seen.text);
}

static void malformed_bodies_are_refused(void **state) {
    static const struct {
        const char *type, *body, *words;
    } rows[] = {
        {NULL, "", "multipart/form-data"},
        {"text/plain; boundary=a", "", "multipart/form-data"},
        {"multipart/form-data", "", "with a boundary"},
        {"multipart/form-data; boundary=", "", "with a boundary"},
        {"multipart/form-data; boundary="
         "123456789012345678901234567890123456789012345678901234567890123456789012",
         "", "with a boundary"},
        {TYPE, "", "last boundary"},
        {TYPE, PART "\"a\"\r\n\r\nhalf", "last boundary"},
        {TYPE, "--a b\r\nX: y\r\n\r\n1\r\n--a b--", "no name"},
        {TYPE, PART "\"a\"; filename*=latin1''x\r\n\r\n1\r\n--a b--", "no valid name"},
        {TYPE, PART "\"a\xff\"\r\n\r\n1\r\n--a b--", "no valid name"},
        {TYPE, PART "\"a\"; filename*=utf-8''x%00y\r\n\r\n1\r\n--a b--", "no valid name"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct seen seen;
        int status = read_body(rows[i].type, rows[i].body, 1, &seen);
        test_fails(status, STATUS_INVALID, rows[i].words);
        strbuf_free(&seen.text);
    }
    struct strbuf long_header = STRBUF_INIT;
    struct seen seen;
    strbuf_add_text(&long_header, "--a b\r\nX: ");
    for (int i = 0; i < 5000; i++)
        strbuf_add_char(&long_header, 'x');
    test_fails(read_body(TYPE, strbuf_text(&long_header), 64, &seen), STATUS_INVALID, "4096 bytes");
    strbuf_free(&seen.text);
    strbuf_free(&long_header);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts_are_the_same_in_all_pieces),
                                       cmocka_unit_test(a_body_may_begin_with_its_boundary),
                                       cmocka_unit_test(malformed_bodies_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
