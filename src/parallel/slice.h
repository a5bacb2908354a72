/* Slices: the work of a call, cut into parts between which the rank's thread does something else.
 *
 * The call runs in a fiber. Before each piece of work it names the work: floating-point operations, and bytes at
 * SLICE_BYTE of them. It pauses where a piece would take longer than the slice may. Work follows from shapes that are
 * the same on all tensor ranks. With equal limits all ranks thus pause at the same place. Nothing that lives across a
 * pause may lie in the rank's workspace, and no loan may be open. */
#pragma once

#include "base/fiber.h"

#include <stdint.h>

/* Kinds of work, which take different times. */
enum slice_kind { SLICE_PRODUCT, SLICE_ATTENTION, SLICE_HEAD, SLICE_UPDATE, SLICE_KINDS };
enum {
    SLICE_BYTE = 16, /* operations that take about as long as a byte of memory */
    SLICE_ROWS = 16  /* the fewest rows of a piece, unless there are fewer */
};

struct slice_limit {
    double seconds;
    double rate[SLICE_KINDS]; /* seconds of a unit of work; 0: not known, and a piece of it is a slice by itself */
};

struct slice {
    struct fiber *fiber;
    struct slice_limit limit; /* of which `seconds` are left */
    bool is_begun;            /* it has done a piece since the call was resumed */
    bool must_end;            /* the call fails at the place where it paused */
    enum slice_kind next;     /* kind and work of the piece before which it paused */
    double next_work;
    /* Work and seconds of the slice so far, and of the piece that began last. */
    double work[SLICE_KINDS], seconds[SLICE_KINDS], began;
    enum slice_kind kind;
};

/* Starts or resumes the fiber's call for a piece, and for further ones within the limit. True when the call has
 * returned; *status is then its result. */
bool slice_resume(struct slice *slice, const struct slice_limit *limit, int *status);
/* Adds the time that the device still took after the last piece, to the kinds by what they were expected to take. */
void slice_add_rest(struct slice *slice);
/* Comes before a piece: pauses if it does not fit. STATUS_INTERRUPTED: the call must end here. */
int slice_pause(struct slice *slice, enum slice_kind kind, double work);
/* Rows of which some may come later: n of them are fixed + n * row work. */
struct slice_rows {
    enum slice_kind kind;
    int64_t rows;
    double fixed, row;
};
/* The same before rows: *count of them fit, SLICE_ROWS times a power of two or all. */
int slice_pause_rows(struct slice *slice, const struct slice_rows *rows, int64_t *count);
