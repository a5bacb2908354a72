/* The pauses of a call, and the times of its pieces. */
#include "parallel/slice.h"

#include "base/clock.h"
#include "base/status.h"

#include <math.h>
#include <string.h>

/* Ends the piece that began last. */
static void end_piece(struct slice *slice) {
    double now = clock_seconds();
    slice->seconds[slice->kind] += now - slice->began;
    slice->began = now;
}

bool slice_resume(struct slice *slice, const struct slice_limit *limit, int *status) {
    slice->limit = *limit;
    slice->is_begun = false;
    slice->next_work = 0;
    memset(slice->work, 0, sizeof slice->work);
    memset(slice->seconds, 0, sizeof slice->seconds);
    slice->kind = slice->next;
    slice->began = clock_seconds();
    bool is_done = fiber_resume(slice->fiber, status);
    end_piece(slice);
    return is_done;
}

void slice_add_rest(struct slice *slice) {
    double rest = clock_seconds() - slice->began, expected = 0;
    for (int k = 0; k < SLICE_KINDS; k++)
        expected += slice->work[k] * slice->limit.rate[k];
    for (int k = 0; k < SLICE_KINDS && expected > 0; k++)
        slice->seconds[k] += rest * slice->work[k] * slice->limit.rate[k] / expected;
    slice->seconds[slice->kind] += expected > 0 ? 0 : rest;
}

static double cost_of(const struct slice *slice, enum slice_kind kind, double work) {
    return slice->limit.rate[kind] > 0 ? slice->limit.rate[kind] * work : INFINITY;
}

/* Pauses unless the piece fits. A slice does at least one. */
static int make_room(struct slice *slice, enum slice_kind kind, double work) {
    if (slice->is_begun && !(cost_of(slice, kind, work) <= slice->limit.seconds)) {
        slice->next = kind;
        slice->next_work = work;
        fiber_pause(slice->fiber);
    }
    return slice->must_end ? status_fail(STATUS_INTERRUPTED, "ended between two slices") : STATUS_OK;
}

static void begin_piece(struct slice *slice, enum slice_kind kind, double work) {
    end_piece(slice);
    slice->kind = kind;
    slice->is_begun = true;
    slice->work[kind] += work;
    slice->limit.seconds -= cost_of(slice, kind, work);
}

int slice_pause(struct slice *slice, enum slice_kind kind, double work) {
    TRY(make_room(slice, kind, work));
    begin_piece(slice, kind, work);
    return STATUS_OK;
}

int slice_pause_rows(struct slice *slice, const struct slice_rows *r, int64_t *count) {
    int64_t least = r->rows < SLICE_ROWS ? r->rows : SLICE_ROWS;
    TRY(make_room(slice, r->kind, r->fixed + (double)least * r->row));
    *count = r->rows;
    if (!(cost_of(slice, r->kind, r->fixed + (double)r->rows * r->row) <= slice->limit.seconds))
        for (*count = least; 2 * *count < r->rows &&
                             cost_of(slice, r->kind, r->fixed + (double)(2 * *count) * r->row) <= slice->limit.seconds;)
            *count *= 2;
    begin_piece(slice, r->kind, r->fixed + (double)*count * r->row);
    return STATUS_OK;
}
