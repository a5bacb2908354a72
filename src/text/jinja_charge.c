/* What a rendering may use: steps, time, memory and depth. All of it is taken here and nowhere else.
 *
 * A step is about 50 nanoseconds: a node that is run, a value that is looked at, or JINJA_STEP_BYTES of text that are
 * read or written. Operations are rows of tables, and each row says what it looks at (enum jinja_cost); whoever runs
 * one charges it by jinja_charge_operation first. What an operation then walks through charges itself as it goes: so do
 * memory (jinja_object), texts that are built (jinja_build), searched and compared. */
#include "jinja-internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const struct jinja_limits jinja_default_limits = {
    .steps = 20000000, .memory = (size_t)256 << 20, .depth = 600, .seconds = 1};

/* Steps between two looks at the clock: less than a millisecond. */
enum { WATCHED_STEPS = 4096 };

struct jinja_value jinja_fail(struct jinja_run *run, const char *format, ...) {
    char text[512];
    va_list arguments;
    if (!run->status) {
        va_start(arguments, format);
        vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
        text_make_line(text);
        run->status = status_fail(STATUS_INVALID, "line %d: %s", run->line, text);
    }
    return jinja_undefined(NULL);
}

static void watch(struct jinja_run *run) {
    run->unwatched = WATCHED_STEPS;
    if (run->deadline > 0 && clock_seconds() > run->deadline)
        jinja_fail(run, "the template takes longer than the %g s that it may take", run->seconds);
}

bool jinja_charge(struct jinja_run *run, size_t steps) {
    if (run->status)
        return false;
    if (steps > (uint64_t)run->steps) {
        run->steps = 0;
        jinja_fail(run, "the template takes more steps than it may");
        return false;
    }
    run->steps -= (int64_t)steps;
    run->unwatched -= (int64_t)steps;
    if (run->unwatched < 0)
        watch(run);
    return !run->status;
}

bool jinja_pay_bytes(struct jinja_run *run) {
    size_t steps = run->unpaid / JINJA_STEP_BYTES;
    run->unpaid %= JINJA_STEP_BYTES;
    return jinja_charge(run, steps);
}

/* Bytes that are read where all of a value is. */
static size_t value_bytes(const struct jinja_value *value) {
    switch (value->kind) {
    case JINJA_STRING:
        return value->string->length + value->string->range_count * sizeof(struct jinja_range);
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_RANGE:
    case JINJA_VIEW:
    case JINJA_GENERATOR:
        return value->list->count * sizeof(struct jinja_value);
    case JINJA_DICT:
    case JINJA_NAMESPACE:
        return value->dict->count * sizeof(struct jinja_entry);
    default:
        return 0;
    }
}

bool jinja_charge_operation(struct jinja_run *run, enum jinja_cost cost, const struct jinja_value *value) {
    if (cost == JINJA_COST_VALUE)
        jinja_charge_bytes(run, value_bytes(value));
    return jinja_charge(run, 1);
}

void *jinja_object(struct jinja_run *run, size_t bytes) {
    if (!jinja_charge_bytes(run, bytes))
        return NULL;
    void *memory = jinja_take(&run->objects, bytes, sizeof(void *));
    if (memory)
        memset(memory, 0, bytes);
    else
        jinja_fail_memory(run, &run->objects);
    return memory;
}

void jinja_fail_memory(struct jinja_run *run, const struct jinja_arena *arena) {
    if (arena->is_full)
        jinja_fail(run, "the template needs more memory than it may have");
    else if (!run->status)
        run->status = status_fail(STATUS_MEMORY, "out of memory");
}

bool jinja_enter(struct jinja_run *run) {
    if (++run->depth > run->max_depth)
        jinja_fail(run, "the template goes deeper than it may");
    return !run->status;
}
