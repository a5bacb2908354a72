/* A command's values as facts that its ranks must share. */
#include "config-internal.h"

/* Paths are compared only by their number. */
static void count_paths(const struct config_row *row, const void *field, char *out, size_t bytes) {
    size_t count = row->type == CONFIG_LIST ? ((const struct config_list *)field)->count : 1;
    snprintf(out, bytes, "%zu paths", count);
}

static int add_value(const char *name, const struct config_row *row, const void *field, struct facts *facts) {
    char *text = NULL, paths[32];
    size_t length;
    if (!config_has_value(row, field))
        return facts_add(facts, FACT_CONFIGURATION, name, "not given", NULL);
    FILE *out = open_memstream(&text, &length);
    if (out)
        config_write_value(out, row, field);
    bool is_written = out && !fclose(out);
    int status = status_allocated(is_written);
    count_paths(row, field, paths, sizeof paths);
    THEN(status, facts_add(facts, FACT_CONFIGURATION, name, text, row->is_path ? paths : NULL));
    free(text);
    return status;
}

int config_facts(const struct config_command *command, const void *values, struct facts *facts) {
    int status = STATUS_OK;
    for (size_t i = 0; i < config_row_total(command) && !status; i++) {
        const struct config_row *row = config_row_at(command, i);
        char name[128];
        if (row->may_differ)
            continue;
        snprintf(name, sizeof name, "%s%s", config_row_is_section(command, i) ? "" : "--", row->path);
        status = add_value(name, row, (const char *)values + config_field_offset(command, i), facts);
    }
    return status;
}
