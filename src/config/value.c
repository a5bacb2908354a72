/* Converts the text of a value to the typed field of its row. It is strict: the whole text is the value, or it is
 * refused. */
#include "config-internal.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <strings.h>

struct config_block {
    struct config_block *next;
    max_align_t bytes[];
};

/* Allocates memory that lives as long as `config`. Returns NULL and sets the error text when there is none. */
static void *config_allocate(struct config *config, size_t bytes) {
    struct config_block *block = malloc(sizeof *block + bytes);
    if (!block) {
        status_no_memory();
        return NULL;
    }
    block->next = config->blocks;
    config->blocks = block;
    return block->bytes;
}

void config_free(struct config *config) {
    if (!config)
        return;
    for (struct config_block *block = config->blocks, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    free(config->sources);
    free(config->lines);
    free(config);
}

static const char *config_copy_text(struct config *config, const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = config_allocate(config, bytes);
    return copy ? memcpy(copy, text, bytes) : NULL;
}

bool config_is_in_range(const struct config_row *row, double value) {
    return (row->minimum == 0 && row->maximum == 0) || (value >= row->minimum && value <= row->maximum);
}

void config_range_text(const struct config_row *row, char *out, size_t bytes) {
    if (row->minimum == 0 && row->maximum == 0)
        snprintf(out, bytes, "%s", "");
    else if (isinf(row->maximum))
        snprintf(out, bytes, "at least %.15g", row->minimum);
    else
        snprintf(out, bytes, "%.15g to %.15g", row->minimum, row->maximum);
}

static int check_range(const struct config_row *row, double value, const char *text) {
    if (config_is_in_range(row, value))
        return STATUS_OK;
    char range[80];
    config_range_text(row, range, sizeof range);
    bool has_unit = row->type == CONFIG_QUANTITY && *row->unit;
    return status_fail(STATUS_USAGE, "%s is out of range: expected %s%s%s", text, range, has_unit ? " " : "",
                       has_unit ? row->unit : "");
}

static int read_int(const struct config_row *row, const char *text, int64_t *out) {
    const char *digits = text + (*text == '-' || *text == '+');
    if (!*digits || digits[strspn(digits, "0123456789")])
        return status_fail(STATUS_USAGE, "'%s' is not an integer (plain decimal digits)", text);
    if (digits[0] == '0' && digits[1])
        return status_fail(STATUS_USAGE, "'%s' has a leading zero, which some readers take for octal", text);
    errno = 0;
    long long value = strtoll(text, NULL, 10);
    if (errno)
        return status_fail(STATUS_USAGE, "%s does not fit into 64 bits", text);
    *out = value;
    return check_range(row, (double)value, text);
}

/* Returns the bytes of a unit: K or KiB is 1,024, KB is 1,000, and likewise up to T, in either case. No unit is 1, an
 * unknown one 0. */
static int64_t unit_bytes(const char *unit) {
    static const char letters[] = "kmgt";
    const char *letter = *unit ? strchr(letters, tolower((unsigned char)*unit)) : NULL;
    bool is_decimal = letter && !strcasecmp(unit + 1, "b");
    int64_t bytes = 1;
    if (!*unit)
        return 1;
    if (!letter || (!is_decimal && unit[1] && strcasecmp(unit + 1, "ib")))
        return 0;
    for (const char *at = letters; at <= letter; at++)
        bytes *= is_decimal ? 1000 : 1024;
    return bytes;
}

/* Reads bytes, or a number with a unit. */
static int read_size(const struct config_row *row, const char *text, int64_t *out) {
    size_t digits = strspn(text, "0123456789");
    int64_t unit = unit_bytes(text + digits);
    if (!digits || !unit)
        return status_fail(STATUS_USAGE,
                           "'%s' is not a size: expected bytes in plain digits, or with a unit after them. K, M, G, T "
                           "and KiB, MiB, GiB, TiB "
                           "are powers of 1,024; KB, MB, GB, TB are powers of 1,000",
                           text);
    errno = 0;
    long long value = strtoll(text, NULL, 10);
    if (errno || value > INT64_MAX / unit)
        return status_fail(STATUS_USAGE, "%s does not fit into 64 bits", text);
    *out = value * unit;
    return check_range(row, (double)*out, text);
}

static int read_float(const struct config_row *row, const char *text, double *out) {
    char *end = NULL;
    if (*text && !text[strspn(text, "0123456789+-.eE")])
        *out = strtod(text, &end);
    if (!end || *end || end == text)
        return status_fail(STATUS_USAGE, "'%s' is not a number", text);
    if (!isfinite(*out))
        return status_fail(STATUS_USAGE, "%s is too large for a double", text);
    return check_range(row, *out, text);
}

static int read_quantity(const struct config_row *row, const char *text, struct config_quantity *out) {
    int status = config_read_quantity(row, text, out);
    THEN(status, check_range(row, out->value, text));
    return status || !out->high ? status : check_range(row, out->high, text);
}

static int read_bool(const char *text, bool *out) {
    static const char *const relatives[][2] = {
        {"true", "true"},   {"yes", "true"}, {"y", "true"},  {"on", "true"},   {"1", "true"},
        {"false", "false"}, {"no", "false"}, {"n", "false"}, {"off", "false"}, {"0", "false"},
    };
    *out = !strcmp(text, "true");
    if (*out || !strcmp(text, "false"))
        return STATUS_OK;
    for (size_t i = 0; i < sizeof relatives / sizeof *relatives; i++)
        if (!strcasecmp(text, relatives[i][0]))
            return status_fail(STATUS_USAGE, "'%s' is not a truth value here: write %s", text, relatives[i][1]);
    return status_fail(STATUS_USAGE, "'%s' is not a truth value: write true or false", text);
}

static int fail_choice(const struct config_row *row, const char *text) {
    struct strbuf all = STRBUF_INIT;
    size_t count = 0;
    for (; row->choices[count]; count++)
        strbuf_format(&all, "%s%s", count ? ", " : "", row->choices[count]);
    const char *nearest = config_nearest(text, row->choices, count);
    int status = status_fail(STATUS_USAGE, "'%s' is none of %s%s%s%s", text, strbuf_text(&all),
                             nearest ? " (did you mean " : "", nearest ? nearest : "", nearest ? "?)" : "");
    strbuf_free(&all);
    return status;
}

static int read_choice(const struct config_row *row, const char *text, int *out) {
    for (int i = 0; row->choices[i]; i++)
        if (!strcmp(text, row->choices[i])) {
            *out = i;
            return STATUS_OK;
        }
    return fail_choice(row, text);
}

int config_set_text(struct config *config, size_t index, const char *text) {
    const struct config_row *row = config_row_at(&config->command, index);
    void *field = (char *)config->values + config_field_offset(&config->command, index);
    switch (row->type) {
    case CONFIG_INT:
        return read_int(row, text, field);
    case CONFIG_FLOAT:
        return read_float(row, text, field);
    case CONFIG_SIZE:
        return read_size(row, text, field);
    case CONFIG_QUANTITY:
        return read_quantity(row, text, field);
    case CONFIG_BOOL:
        return read_bool(text, field);
    case CONFIG_CHOICE:
        return read_choice(row, text, field);
    case CONFIG_STRING: {
        if (row->is_path && !*text) {
            config->sources[index] = CONFIG_SOURCE_DEFAULT;
            return config_set_default(config, index);
        }
        TRY(row->check ? row->check(text) : STATUS_OK);
        const char *copy = config_copy_text(config, text);
        if (!copy)
            return STATUS_MEMORY;
        *(const char **)field = copy;
        return STATUS_OK;
    }
    case CONFIG_LIST:
        config_clear_list(config, index);
        return config_add_item(config, index, text);
    }
    return status_fail(STATUS_USAGE, "%s: unknown type of row", row->path);
}

static struct config_list *list_of(struct config *config, size_t index) {
    return (struct config_list *)((char *)config->values + config_field_offset(&config->command, index));
}

void config_clear_list(struct config *config, size_t index) {
    *list_of(config, index) = (struct config_list){0};
}

/* A list's capacity is the power of two above its count, so n additions take O(n) time. */
int config_push(struct config *config, struct config_list *list, const char *text) {
    bool is_full = (list->count & (list->count + 1)) == 0;
    const char **items = list->items;
    if (is_full) {
        items = config_allocate(config, 2 * (list->count + 1) * sizeof *items);
        if (items && list->count)
            memcpy(items, list->items, list->count * sizeof *items);
    }
    const char *copy = items ? config_copy_text(config, text) : NULL;
    if (!copy)
        return STATUS_MEMORY;
    items[list->count] = copy;
    *list = (struct config_list){items, list->count + 1};
    return STATUS_OK;
}

int config_add_item(struct config *config, size_t index, const char *text) {
    if (config_row_at(&config->command, index)->is_path && !*text)
        return status_fail(STATUS_USAGE, "an empty path");
    return config_push(config, list_of(config, index), text);
}

int config_split_list(struct config *config, size_t index, const char *text) {
    static const char separators[] = " \t\r\n,";
    int status = STATUS_OK;
    config_clear_list(config, index);
    while (!status && *(text += strspn(text, separators))) {
        size_t length = strcspn(text, separators);
        char *item = strndup(text, length);
        TRY(status_allocated(item));
        status = config_add_item(config, index, item);
        free(item);
        text += length;
    }
    return status;
}

int config_set_default(struct config *config, size_t index) {
    const struct config_row *row = config_row_at(&config->command, index);
    void *field = (char *)config->values + config_field_offset(&config->command, index);
    static const size_t bytes[] = {
        [CONFIG_INT] = sizeof(int64_t),  [CONFIG_FLOAT] = sizeof(double),
        [CONFIG_SIZE] = sizeof(int64_t), [CONFIG_QUANTITY] = sizeof(struct config_quantity),
        [CONFIG_BOOL] = sizeof(bool),    [CONFIG_STRING] = sizeof(char *),
        [CONFIG_CHOICE] = sizeof(int),   [CONFIG_LIST] = sizeof(struct config_list),
    };
    memset(field, 0, bytes[row->type]);
    if (!row->default_text)
        return STATUS_OK;
    int status = config_set_text(config, index, row->default_text);
    bool is_number = row->type == CONFIG_INT || row->type == CONFIG_FLOAT;
    return is_number && status == STATUS_USAGE ? STATUS_OK : status; /* outside its range: "not given" */
}
