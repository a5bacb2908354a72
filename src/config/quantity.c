/* Numbers with a unit: "80 GB", "312 TFLOP/s", "8 us". A prefix is a power of 1,000, or with an i ("GiB") of 1,024.
 * Bounds may follow in parentheses: "0.6 (0.2 to 0.9)". */
#include "config-internal.h"

#include <math.h>

static const struct {
    const char *letters;
    double factor;
} prefixes[] = {
    {"", 1},        {"k", 1e3},  {"M", 1e6},  {"G", 1e9},   {"T", 1e12},           {"P", 1e15},
    {"m", 1e-3},    {"u", 1e-6}, {"n", 1e-9}, {"Ki", 1024}, {"Mi", 1024.0 * 1024}, {"Gi", 0x1p30},
    {"Ti", 0x1p40},
};

/* Only seconds have parts, and no multiples. */
static bool is_time(const char *unit) {
    return !strcmp(unit, "s");
}

/* Returns the factor of "GB/s" for the unit "B/s"; 0 for another unit. */
static double unit_factor(const char *word, size_t length, const char *unit) {
    size_t unit_length = strlen(unit);
    if (length < unit_length || strncmp(word + length - unit_length, unit, unit_length))
        return 0;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strlen(prefixes[i].letters) == length - unit_length &&
            !strncmp(word, prefixes[i].letters, length - unit_length))
            return i == 0 || (*unit && (prefixes[i].factor < 1) == is_time(unit)) ? prefixes[i].factor : 0;
    return 0;
}

static int fail_number(const struct config_row *row, const char *text) {
    if (!*row->unit)
        return status_fail(STATUS_USAGE, "'%.80s' is not a number", text);
    return status_fail(STATUS_USAGE, "'%.80s' is not a number with the unit %s, such as %s%s", text, row->unit,
                       is_time(row->unit) ? "8 u" : "80 G", row->unit);
}

/* Reads one number with its unit from *text on, and moves *text past it. */
static int read_number(const struct config_row *row, const char **text, double *out) {
    const char *start = *text + strspn(*text, " ");
    size_t digits = strspn(start, "0123456789+-.");
    if (digits && (start[digits] == 'e' || start[digits] == 'E') && strspn(start + digits + 1, "0123456789+-"))
        digits += 1 + strspn(start + digits + 1, "0123456789+-");
    char *end, number[64];
    snprintf(number, sizeof number, "%.*s", (int)(digits < sizeof number ? digits : 0), start);
    double value = strtod(number, &end);
    const char *word = start + digits + strspn(start + digits, " ");
    size_t length = strcspn(word, " ()");
    bool has_word = *row->unit || (length && !(length == 2 && !strncmp(word, "to", 2)));
    double factor = has_word ? unit_factor(word, length, row->unit) : 1;
    if (!*number || *end || !isfinite(value * factor) || factor == 0)
        return fail_number(row, start);
    if (value < 0)
        return status_fail(STATUS_USAGE, "'%.80s' is negative", start);
    *out = value * factor;
    *text = has_word ? word + length : start + digits;
    return STATUS_OK;
}

static int read_bounds(const struct config_row *row, const char *text, const char *whole, struct config_quantity *out) {
    int status = read_number(row, &text, &out->low);
    text += strspn(text, " ");
    bool is_range = !status && !strncmp(text, "to ", 3);
    if (is_range) {
        text += 3;
        status = read_number(row, &text, &out->high);
        text += strspn(text, " ");
    }
    TRY(status);
    if (!is_range || strcmp(text, ")"))
        return status_fail(STATUS_USAGE, "'%.80s': expected bounds as '(LOW to HIGH)' after the number", whole);
    if (out->low > out->value || out->value > out->high)
        return status_fail(STATUS_USAGE, "'%.80s': the number is not within its bounds", whole);
    return STATUS_OK;
}

int config_read_quantity(const struct config_row *row, const char *text, struct config_quantity *out) {
    const char *at = text;
    struct config_quantity read = {0};
    int status = read_number(row, &at, &read.value);
    TRY(status);
    at += strspn(at, " ");
    if (*at == '(')
        status = read_bounds(row, at + 1, text, &read);
    else if (*at)
        return status_fail(STATUS_USAGE, "'%.80s': '%.40s' follows the number", text, at);
    if (!status)
        *out = read;
    return status;
}

void config_quantity_text(const struct config_row *row, const struct config_quantity *quantity, char *out,
                          size_t bytes) {
    snprintf(out, bytes, "%.15g%s%s", quantity->value, *row->unit ? " " : "", row->unit);
}
