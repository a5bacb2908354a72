#include "readers-internal.h"

#include <stdarg.h>
#include <stdio.h>

void grammar_report_free(struct grammar_report *report) {
    strbuf_free(&report->message);
    json_decref(report->ignored);
    *report = (struct grammar_report){0};
}

int grammar_ignore(struct grammar_report *report, const char *text) {
    struct strbuf named = STRBUF_INIT;
    strbuf_format(&named, "%s%s", report->field, *report->field ? ": " : "");
    strbuf_add_text(&named, text);
    report->ignored = report->ignored ? report->ignored : json_array();
    int status = strbuf_status(&named);
    THEN(status, status_allocated(!json_array_append_new(report->ignored, json_string(strbuf_text(&named)))));
    strbuf_free(&named);
    return status;
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
