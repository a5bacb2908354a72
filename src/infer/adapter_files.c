/* Reads an adapter's files; needs no engine. */
#include "adapters.h"

int adapter_files_find(const char *directory, char **found) {
    char **all;
    size_t count;
    *found = NULL;
    int status = peft_find(&directory, 1, &all, &count);
    if (!status && count != 1)
        status =
            status_fail(STATUS_INVALID, "%s holds %zu adapters: each of them needs its own name", directory, count);
    if (!status) {
        *found = strdup(all[0]);
        status = status_allocated(*found);
    }
    file_list_free(all, count);
    return status;
}

int adapter_files_read(const struct peft_place *place, const struct peft_limits *limits, struct adapter_files *files) {
    *files = (struct adapter_files){0};
    int status = peft_bytes_read_at(place, limits, &files->bytes);
    THEN(status, peft_bytes_digest(&files->bytes, files->digest));
    THEN(status, receipt_compare(&files->bytes));
    if (status)
        adapter_files_free(files);
    return status;
}

void adapter_files_free(struct adapter_files *files) {
    peft_bytes_free(&files->bytes);
    *files = (struct adapter_files){0};
}

/* ---- report of a check ---- */

enum { NAMED_AT_MOST = 8 };

void adapter_report_add(struct adapter_report *report, const char *name, const char *reason) {
    report->checked++;
    if (reason && report->refused++ < NAMED_AT_MOST)
        strbuf_format(&report->names, "%s%s (%s)", report->refused > 1 ? "; " : "", name, reason);
}

const char *adapter_report_line(struct adapter_report *report) {
    struct strbuf line = STRBUF_INIT;
    if (!report->refused)
        return NULL;
    strbuf_format(&line, "%d of %d adapters below --adapter-root will be refused: %s", report->refused, report->checked,
                  strbuf_text(&report->names));
    if (report->refused > NAMED_AT_MOST)
        strbuf_format(&line, "; and %d more", report->refused - NAMED_AT_MOST);
    strbuf_free(&report->names);
    report->names = line;
    return strbuf_text(&report->names);
}

void adapter_report_free(struct adapter_report *report) {
    strbuf_free(&report->names);
    *report = (struct adapter_report){0};
}
