#include "readers-internal.h"

#include <stdarg.h>
#include <stdio.h>

void grammar_report_free(struct grammar_report *report) {
    strbuf_free(&report->message);
    json_decref(report->ignored);
    *report = (struct grammar_report){0};
}

int grammar_refuse(struct grammar_report *report, enum grammar_refusal refusal, const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    text_make_line(text);
    report->refusal = refusal;
    strbuf_clear(&report->message);
    strbuf_add_text(&report->message, text);
    return status_fail(refusal == GRAMMAR_UNSUPPORTED ? STATUS_UNSUPPORTED : STATUS_INVALID, "%s", text);
}
