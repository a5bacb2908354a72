/* Any text as an expression of modules: it is refused in one line, or every match ends within its limits. */
#include "base/base.h"
#include "text/expression.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The limits are some milliseconds a match; a sanitizer's build is an order of magnitude slower. */
enum { MOST_SECONDS = 5 };

static void check(bool is_right, const char *what) {
    if (is_right)
        return;
    fprintf(stderr, "expression_fuzz: %s (%s)\n", what, status_text());
    abort();
}

static double used_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const paths[] = {"transformer.h.0.attn.c_attn", "transformer.h.1023.mlp.c_proj"};
    char *text = malloc(size + 1);
    double start = used_seconds();
    check(text, "no memory");
    memcpy(text, data, size);
    text[size] = 0;
    for (int is_key = 0; is_key < 2; is_key++) {
        struct text_expression *expression;
        status_fail(STATUS_OK, "%s", "");
        int status = text_expression_open("peft.target_modules", text, is_key, &expression);
        for (size_t i = 0; i < sizeof paths / sizeof *paths && !status; i++) {
            bool is_match, is_match_again;
            status = text_expression_match(expression, paths[i], &is_match);
            check(status ||
                      (!text_expression_match(expression, paths[i], &is_match_again) && is_match == is_match_again),
                  "another answer to the same question");
        }
        check(!status || (status == STATUS_USAGE && *status_text() && !strchr(status_text(), '\n')),
              "refused without one line that says why");
        text_expression_close(expression);
    }
    free(text);
    check(used_seconds() - start < MOST_SECONDS, "took too long");
    return 0;
}
