/* Any bytes as a template: refused in one line, or rendered within the limits; and no character of the arguments loses
 * its mark. */
#include "jinja/jinja.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { DATA = JINJA_FIRST_MARK };
#define SENTINEL "\xe2\x98\x83" /* in every string of the arguments */

static void check(bool is_right, const char *what) {
    if (is_right)
        return;
    fprintf(stderr, "jinja_fuzz: %s (%s)\n", what, status_text());
    abort();
}

/* `is_unmade`: the template cannot have made a sentinel of its own. */
static void check_ranges(const struct jinja_text *text, bool is_unmade) {
    size_t from = 0;
    const char *bytes = strbuf_text(&text->text);
    for (size_t i = 0; i < text->count; i++) {
        const struct jinja_range *range = &text->ranges[i];
        check(range->end > from && range->end <= text->text.length, "a range that is none");
        check(!i || range->marks != text->ranges[i - 1].marks, "two ranges that are one");
        if (is_unmade && !(range->marks & DATA))
            check(!memmem(bytes + from, range->end - from, SENTINEL, 3), "a character lost its mark");
        from = range->end;
    }
    check(from == text->text.length, "the ranges are not the whole text");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char values[] =
        "{\"messages\": [{\"role\": \"" SENTINEL "user\", \"content\": \" " SENTINEL "A \\n b" SENTINEL "\"},"
        " {\"role\": \"" SENTINEL "\", \"content\": [{\"type\": \"" SENTINEL "\", \"n\": [1, 2.5, null, true]}]}]}";
    struct jinja *jinja;
    json_error_t error;
    json_t *root = json_loads(values, 0, &error);
    struct tm now = {.tm_year = 126};
    struct jinja_limits limits = {.steps = 100000, .memory = 1 << 20, .depth = 200};
    struct jinja_argument arguments[] = {
        {.name = "messages", .value = json_object_get(root, "messages"), .marks = DATA},
        {.name = "tools"},
        {.name = "add_generation_prompt", .value = json_true()},
    };
    status_fail(STATUS_OK, "%s", "");
    int status = jinja_open((const char *)data, size, &jinja);
    if (!status) {
        struct jinja_text text;
        status = jinja_render(
            jinja, &(struct jinja_rendering){.arguments = arguments, .count = 3, .now = &now, .limits = &limits},
            &text);
        if (!status) {
            check_ranges(&text, !memchr(data, '\\', size) && !memmem(data, size, SENTINEL, 3));
            jinja_text_free(&text);
        }
    }
    check(!status || (*status_text() && !strchr(status_text(), '\n')), "refused without one line that says why");
    jinja_close(jinja);
    json_decref(root);
    return 0;
}
