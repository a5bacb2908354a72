/* Stop strings as an automaton: Aho and Corasick, "Efficient string matching" (Communications of the ACM 18, 1975).
 *
 * A state is a beginning of a stop string. After every byte the state is the longest beginning with which the text
 * ends; these bytes may become a stop string. States are numbered by length, so the next states of one are adjacent. */
#include "infer/writer.h"

#include "base/utf8.h"

struct state {
    uint32_t fail;    /* the longest beginning that is a proper suffix of this one */
    uint32_t next;    /* the first state that is longer by a byte */
    uint16_t length;  /* of the beginning */
    uint16_t longest; /* the longest stop string that ends here; 0: none does */
    uint8_t count;    /* number of next states, sorted by byte */
    uint8_t byte;     /* the last one of the beginning */
    uint8_t from, to; /* while compiling: range of the strings with this beginning */
};
struct writer_stops {
    uint32_t count;
    struct state states[];
};

/* ---- compiling ---- */

static int compare_strings(const void *a, const void *b) {
    const struct writer_string *x = a, *y = b;
    size_t common = x->length < y->length ? x->length : y->length;
    int order = memcmp(x->bytes, y->bytes, common);
    return order ? order : (x->length > y->length) - (x->length < y->length);
}

static int check_strings(const struct writer_string *strings, size_t count) {
    if (count > WRITER_MAX_STOPS)
        return status_fail(STATUS_INVALID, "%zu stop strings, at most %d are allowed", count, WRITER_MAX_STOPS);
    for (size_t i = 0; i < count; i++) {
        if (strings[i].length == 0)
            return status_fail(STATUS_INVALID, "stop string %zu is empty: it would end every text", i + 1);
        if (strings[i].length > WRITER_MAX_STOP_BYTES)
            return status_fail(STATUS_INVALID, "stop string %zu has %zu bytes, at most %d are allowed", i + 1,
                               strings[i].length, WRITER_MAX_STOP_BYTES);
    }
    return STATUS_OK;
}

/* Returns the next state by this byte; 0 when there is none, since no byte leads to state 0. */
static uint32_t find_next(const struct state *states, uint32_t at, uint8_t byte) {
    uint32_t low = states[at].next, high = low + states[at].count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (states[middle].byte < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low < states[at].next + states[at].count && states[low].byte == byte ? low : 0;
}

/* Moves to the state after a byte. Each step back shortens the state, and each byte lengthens it by at most one, so a
 * byte costs two lookups on average. */
static uint32_t step(const struct state *states, uint32_t at, uint8_t byte) {
    uint32_t next;
    while (!(next = find_next(states, at, byte)) && at)
        at = states[at].fail;
    return next;
}

/* Makes the next states of state `at`; all shorter states are complete. */
static void expand(struct writer_stops *stops, uint32_t at, const struct writer_string *sorted) {
    struct state *state = &stops->states[at];
    uint8_t i = state->from;
    for (; i < state->to && sorted[i].length == state->length; i++)
        state->longest = state->length;
    if (!state->longest)
        state->longest = stops->states[state->fail].longest;
    state->next = stops->count;
    while (i < state->to) {
        uint8_t byte = (uint8_t)sorted[i].bytes[state->length], first = i;
        while (i < state->to && (uint8_t)sorted[i].bytes[state->length] == byte)
            i++;
        uint32_t fail = at ? step(stops->states, state->fail, byte) : 0;
        stops->states[stops->count++] =
            (struct state){.fail = fail, .length = (uint16_t)(state->length + 1), .byte = byte, .from = first, .to = i};
        state->count++;
    }
}

int writer_stops_open(const struct writer_string *strings, size_t count, struct writer_stops **out) {
    struct writer_string sorted[WRITER_MAX_STOPS];
    size_t most = 1;
    *out = NULL;
    TRY(check_strings(strings, count));
    for (size_t i = 0; i < count; i++) {
        sorted[i] = strings[i];
        most += strings[i].length;
    }
    qsort(sorted, count, sizeof *sorted, compare_strings);
    struct writer_stops *stops = calloc(1, sizeof *stops + most * sizeof *stops->states);
    TRY(status_allocated(stops));
    stops->states[0].to = (uint8_t)count;
    stops->count = 1;
    for (uint32_t at = 0; at < stops->count; at++)
        expand(stops, at, sorted);
    *out = stops;
    return STATUS_OK;
}

void writer_stops_close(struct writer_stops *stops) {
    free(stops);
}

/* ---- writing ---- */

void writer_begin(struct writer *writer, const struct writer_stops *stops) {
    *writer = (struct writer){.stops = stops};
}

void writer_free(struct writer *writer) {
    strbuf_free(&writer->held);
    *writer = (struct writer){0};
}

/* Releases `count` held bytes, and keeps the last `kept`. */
static int give(struct writer *writer, size_t count, size_t kept, struct strbuf *out) {
    strbuf_add(out, strbuf_text(&writer->held), count);
    if (kept && kept < writer->held.length)
        memmove(writer->held.data, writer->held.data + writer->held.length - kept, kept);
    writer->held.length = kept;
    writer->given += count;
    return strbuf_status(out);
}

/* Returns the start of the first stop string that is completed by bytes at or after `from`; the number of bytes if none
 * is. */
static size_t find_stop(struct writer *writer, size_t from) {
    const struct state *states = writer->stops ? writer->stops->states : NULL;
    size_t first = writer->held.length;
    for (size_t i = from; states && i < writer->held.length; i++) {
        writer->state = step(states, writer->state, (uint8_t)writer->held.data[i]);
        size_t length = states[writer->state].longest;
        if (length && i + 1 - length < first) {
            first = i + 1 - length;
            writer->stop_length = length;
        }
    }
    return first;
}

int writer_add(struct writer *writer, const void *bytes, size_t length, struct strbuf *out) {
    if (writer->is_stopped || length == 0)
        return STATUS_OK;
    size_t before = writer->held.length;
    strbuf_add(&writer->held, bytes, length);
    TRY(strbuf_status(&writer->held));
    size_t all = writer->held.length, stop = find_stop(writer, before);
    if (stop < all) {
        writer->is_stopped = true;
        writer->added = writer->given + stop;
        writer->stop_begin = stop;
        return give(writer, stop, 0, out);
    }
    writer->added += length;
    size_t begun = writer->stops ? writer->stops->states[writer->state].length : 0;
    size_t half = utf8_unfinished_length((const unsigned char *)writer->held.data, all);
    size_t kept = begun > half ? begun : half;
    return give(writer, all - kept, kept, out);
}

int writer_end(struct writer *writer, struct strbuf *out) {
    return give(writer, writer->held.length, 0, out);
}
