/* Where a call pauses. */
#include "parallel/slice.h"

#include "base/status.h"

bool slice_resume(struct slice *slice, double work, int *status) {
    slice->left = work;
    slice->done = slice->next = 0;
    return fiber_resume(slice->fiber, status);
}

/* Pauses unless `work` fits. A slice does at least one piece. */
static int make_room(struct slice *slice, double work) {
    if (slice->done > 0 && work > slice->left) {
        slice->next = work;
        fiber_pause(slice->fiber);
    }
    return slice->must_end ? status_fail(STATUS_INTERRUPTED, "ended between two slices") : STATUS_OK;
}

static void take(struct slice *slice, double work) {
    slice->left -= work;
    slice->done += work;
}

int slice_pause(struct slice *slice, double work) {
    TRY(make_room(slice, work));
    take(slice, work);
    return STATUS_OK;
}

int slice_rows(struct slice *slice, int64_t rows, double row_work, int64_t *count) {
    int64_t least = rows < SLICE_ROWS ? rows : SLICE_ROWS;
    TRY(make_room(slice, (double)least * row_work));
    *count = rows;
    if ((double)rows * row_work > slice->left)
        for (*count = least; 2 * *count < rows && (double)(2 * *count) * row_work <= slice->left;)
            *count *= 2;
    take(slice, (double)*count * row_work);
    return STATUS_OK;
}
