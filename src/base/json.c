/* jansson says "string or '}' expected" when its copy of a key found no memory. It silently drops a character when the
 * buffer of a text could not grow. Its parser then lacks the character that it wants to put back, and ends the process;
 * where that was the quotation mark, it copies a string past its end. Therefore a longjmp leaves a parse when memory
 * runs out, and a journal lists the blocks that the parse has taken so far. Making a text continues without memory and
 * records that it did; each thread has its own record.
 *
 * The functions are set before main. They mix with malloc's: a block made by either may be freed by the other. */
#include "json.h"

#include "status.h"

#include <math.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_EVENTS = 200 };

/* The blocks that a parse took and gave back: their addresses, with GIVEN in the lowest bit. */
struct journal {
    jmp_buf lacked;
    uintptr_t *events;
    size_t count, capacity, held; /* held: blocks that may still be given back */
    uintptr_t first[FIRST_EVENTS];
};
enum { GIVEN = 1 };

static _Thread_local bool has_failed;
static _Thread_local struct journal *journal; /* set while a text is parsed */

/* Makes room for one more block, and for giving back all of them. */
static bool make_room(struct journal *j) {
    if (j->count + j->held + 2 <= j->capacity)
        return true;
    uintptr_t *events = malloc(2 * j->capacity * sizeof *events);
    if (!events)
        return false;
    memcpy(events, j->events, j->count * sizeof *events);
    if (j->events != j->first)
        free(j->events);
    j->events = events;
    j->capacity *= 2;
    return true;
}

static void *allocate(size_t bytes) {
    struct journal *j = journal;
    void *memory = !j || make_room(j) ? malloc(bytes) : NULL;
    if (!memory && j)
        longjmp(j->lacked, 1);
    if (!memory)
        has_failed = true;
    if (memory && j) {
        j->events[j->count++] = (uintptr_t)memory;
        j->held++;
    }
    return memory;
}

static void release(void *memory) {
    if (memory && journal) {
        journal->events[journal->count++] = (uintptr_t)memory | GIVEN;
        journal->held--;
    }
    free(memory);
}

__attribute__((constructor)) static void set_functions(void) {
    json_set_alloc_funcs(allocate, release);
}

static int compare_events(const void *a, const void *b) {
    const uintptr_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* An address may have been taken and given back more than once. */
static void give_back(struct journal *j) {
    qsort(j->events, j->count, sizeof *j->events, compare_events);
    for (size_t i = 0; i < j->count;) {
        uintptr_t block = j->events[i];
        size_t taken = 0, given = 0;
        for (; i < j->count && j->events[i] == block; i++)
            taken++;
        for (; i < j->count && j->events[i] == (block | GIVEN); i++)
            given++;
        if (taken > given)
            free((void *)block);
    }
}

/* Returns false when memory ran out. */
static bool parse(struct journal *j, const char *text, size_t length, size_t flags, json_t **root,
                  json_error_t *error) {
    if (setjmp(j->lacked))
        return false;
    journal = j;
    *root = json_loadb(text, length, flags, error);
    return true;
}

int json_read(const char *text, size_t length, size_t flags, json_t **root, json_error_t *error) {
    struct journal taken;
    taken.events = taken.first;
    taken.count = taken.held = 0;
    taken.capacity = FIRST_EVENTS;
    *root = NULL;
    bool is_read = parse(&taken, text, length, flags, root, error);
    journal = NULL;
    if (!is_read)
        give_back(&taken);
    if (taken.events != taken.first)
        free(taken.events);
    TRY(status_allocated(is_read));
    return *root ? STATUS_OK : STATUS_INVALID;
}

int json_read_wide(const char *text, size_t length, size_t flags, json_t **root, json_error_t *error) {
    int status = json_read(text, length, flags, root, error);
    if (status == STATUS_INVALID && json_error_code(error) == json_error_numeric_overflow)
        status = json_read(text, length, flags | JSON_DECODE_INT_AS_REAL, root, error);
    return status;
}

void json_begin(void) {
    has_failed = false;
}

int json_end(json_t *root, size_t flags, char **text) {
    *text = has_failed || !root ? NULL : json_dumps(root, flags);
    json_decref(root);
    if (*text && !has_failed)
        return STATUS_OK;
    free(*text);
    *text = NULL;
    return has_failed ? status_no_memory()
                      : status_fail(STATUS_INVALID, "text that is not UTF-8 cannot be written as JSON");
}

void json_add(struct strbuf *out, const json_t *value) {
    char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
    if (text)
        strbuf_add_text(out, text);
    out->failed |= !text;
    free(text);
}

int json_print(json_t *root) {
    char *text;
    TRY(json_end(root, JSON_COMPACT | JSON_REAL_PRECISION(9), &text));
    bool is_written = printf("%s\n", text) >= 0 && !fflush(stdout);
    free(text);
    return is_written ? STATUS_OK : status_fail_errno("cannot write to standard output");
}

json_t *json_number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

void json_add_string(struct strbuf *out, const void *bytes, size_t length) {
    static const char escaped[] = "\"\\\n\t\r\b\f", letters[] = "\"\\ntrbf";
    const char *at = bytes;
    strbuf_add_char(out, '"');
    for (size_t i = 0; i < length; i++) {
        const char *found = at[i] ? strchr(escaped, at[i]) : NULL;
        if (found)
            strbuf_format(out, "\\%c", letters[found - escaped]);
        else if ((unsigned char)at[i] < 0x20)
            strbuf_format(out, "\\u%04x", at[i]);
        else
            strbuf_add_char(out, at[i]);
    }
    strbuf_add_char(out, '"');
}
