/* Tables of opening steps in which one step fails. */
#pragma once

#include "test.h"

#include "base/opening.h"

enum { FAILING_STEPS_MOST = 32 };

static _Thread_local const struct opening_step *failing_step;

/* The step fails as late as it can, so other ranks need not wait for its part of the work. */
static int fail_as_late_as_it_can(void *self) {
    test_ok(failing_step->open(self));
    if (failing_step->close)
        failing_step->close(self);
    return status_fail(STATUS_IO, "this step fails");
}

/* Returns the opening with its steps copied into `steps` [FAILING_STEPS_MOST]. On the calling thread the step with this
 * number fails with STATUS_IO and "this step fails"; with the number `opening->count` none does. */
static inline struct opening opening_that_fails(const struct opening *opening, size_t number,
                                                struct opening_step *steps) {
    assert_true(opening->count <= FAILING_STEPS_MOST);
    memcpy(steps, opening->steps, opening->count * sizeof *steps);
    failing_step = opening->steps + number;
    if (number < opening->count)
        steps[number].open = fail_as_late_as_it_can;
    return (struct opening){steps, opening->count, opening->agree, opening->next};
}
