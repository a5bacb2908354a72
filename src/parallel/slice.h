/* Slices: the work of a call, cut into parts between which the rank's thread does something else.
 *
 * The call runs in a fiber. Before each piece of work it names the work: floating-point operations, and bytes at
 * SLICE_BYTE of them. It pauses where a piece would exceed what the slice may do. The work follows from shapes that are
 * the same on all tensor ranks, so with equal limits all ranks pause at the same place. Nothing that lives across a
 * pause may lie in the rank's workspace, and no loan may be open. */
#pragma once

#include "base/fiber.h"

#include <stdint.h>

enum { SLICE_BYTE = 32 /* operations that take as long as a byte that comes from memory */, SLICE_ROWS = 16 };

struct slice {
    struct fiber *fiber;
    double left, done; /* work that may still be done, and that was done, since the call was resumed */
    double next;       /* of the piece before which it paused: the least that another slice can do */
    bool must_end;     /* the call fails at the place where it paused */
};

/* Starts or resumes the fiber's call for a piece, and for further ones of at most `work` together. True when the call
 * has returned; *status is then its result. */
bool slice_resume(struct slice *slice, double work, int *status);
/* Comes before a piece: pauses if it is more than the rest. STATUS_INTERRUPTED: the call must end here. */
int slice_pause(struct slice *slice, double work);
/* The same before rows, of which some may come later: *count of them fit, SLICE_ROWS times a power of two or all. */
int slice_rows(struct slice *slice, int64_t rows, double row_work, int64_t *count);
