/* Charges a rendering for everything that it uses: steps, time, memory and depth. Nothing is charged elsewhere.
 *
 * A step is about 50 nanoseconds: a node that is run, a value that is examined, or JINJA_STEP_BYTES of text that are
 * read or written. Running an operation charges a step, and what it walks through as it proceeds; a test runs each over
 * little and over much. The same holds for memory (jinja_object), and for texts that are built (jinja_build), searched
 * and compared. The clock is checked every few thousand steps, however large a value is. Between two checks, a function
 * of the C library may walk once through a single value. */
#include "jinja-internal.h"

#include <stdarg.h>

const struct jinja_limits jinja_default_limits = {
    .steps = 20000000, .memory = (size_t)256 << 20, .depth = 600, .seconds = 1};

/* Steps between two checks of the clock, including the piece during which they end: less than a millisecond. */
enum { WATCHED_STEPS = 4096, PIECE_STEPS = 1024 };

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
    int64_t unwatched = WATCHED_STEPS - run->unwatched;
    run->most_unwatched = unwatched > run->most_unwatched ? unwatched : run->most_unwatched;
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
    if (run->unwatched <= 0)
        watch(run);
    return !run->status;
}

bool jinja_pay_bytes(struct jinja_run *run) {
    size_t steps = run->unpaid / JINJA_STEP_BYTES;
    run->unpaid %= JINJA_STEP_BYTES;
    for (; steps > PIECE_STEPS && jinja_charge(run, PIECE_STEPS); steps -= PIECE_STEPS)
        ;
    return jinja_charge(run, steps);
}

bool jinja_copy(struct jinja_run *run, void *to, const void *from, size_t length) {
    if (!jinja_charge_bytes(run, length))
        return false;
    if (length)
        memcpy(to, from, length);
    return true;
}

void *jinja_grown(struct jinja_run *run, const void *from, size_t length, size_t bytes) {
    char *memory = run->status ? NULL : jinja_take(&run->objects, bytes, sizeof(void *));
    if (!memory)
        jinja_fail_memory(run, &run->objects);
    else if (jinja_copy(run, memory, from, length) && jinja_charge_bytes(run, bytes - length))
        memset(memory + length, 0, bytes - length);
    return run->status ? NULL : memory;
}

void *jinja_double(struct jinja_run *run, void *items, size_t *capacity, size_t each) {
    size_t wanted = *capacity ? 2 * *capacity : 4;
    void *grown = jinja_grown(run, items, *capacity * each, wanted * each);
    if (grown)
        *capacity = wanted;
    return grown;
}

void *jinja_object(struct jinja_run *run, size_t bytes) {
    return jinja_grown(run, NULL, 0, bytes);
}

void jinja_fail_memory(struct jinja_run *run, const struct jinja_arena *arena) {
    if (arena->is_full)
        jinja_fail(run, "the template needs more memory than it may have");
    else if (!run->status)
        run->status = status_no_memory();
}

bool jinja_enter(struct jinja_run *run) {
    if (++run->depth > run->max_depth)
        jinja_fail(run, "the template goes deeper than it may");
    return !run->status;
}
